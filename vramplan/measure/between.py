"""What a loop runs between its training steps: an evaluation, and the last token of a generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramplan.measure.batches import batch_of
from vramplan.values.job import ResolvedJob


def evaluate(job: ResolvedJob, model: Any, forward: Callable[[ResolvedJob, dict[str, Any]], Any]) -> None:
    """One forward pass with its loss, as the Trainer makes it; `forward` runs a job's batch.

    Source: transformers 5.23, trainer.py, Trainer.prediction_step.
    """
    model.eval()
    one = job._replace(micro_batch_size=job.eval_batch_size, gradient_accumulation_steps=1)
    with torch.no_grad():
        forward(one, batch_of(one, model, "cuda"))
    model.train()


def generate(job: ResolvedJob, model: Any, begin: Callable[[], object]) -> None:
    """The last token of sequences, over a cache of all tokens before it; `begin` is called when these are there.

    The model is called as it is, outside of autocast.
    Source: transformers 5.23, generation/utils.py, GenerationMixin._sample.
    """
    batch, length = job.generation_batch_size, job.generation_length
    assert batch is not None
    assert length is not None
    model.eval()
    with torch.no_grad():
        tokens = torch.randint(1, job.model.vocabulary_size, (batch, length), device="cuda")
        _unfinished_sequences = torch.ones(batch, dtype=torch.long, device="cuda")
        given, name, mask = {}, "input_ids", torch.ones_like(tokens)
        before = mask[:, :-1]
        if job.model.task == "seq2seq":  # the mask is of what is encoded, once
            source = torch.randint(1, job.model.vocabulary_size, (batch, job.sequence_length), device="cuda")
            before = mask = torch.ones_like(source)
            given, name = {"encoder_outputs": model.get_encoder()(source, attention_mask=mask)}, "decoder_input_ids"
        outputs = model(**given, **{name: tokens[:, :-1]}, attention_mask=before, use_cache=True)
        cache = outputs.past_key_values
        del outputs
        begin()
        given |= {name: tokens[:, -1:], "attention_mask": mask}
        outputs = model(**given, past_key_values=cache, use_cache=True)
        next_token_logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32)
        _next_tokens = torch.argmax(next_token_logits, dim=-1)
    model.train()
