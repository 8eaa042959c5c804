"""Virtual tokens of a job, trained by PEFT before a model."""

from __future__ import annotations

from typing import Any

import peft
import torch

from vramplan.values.job import ResolvedJob

TASKS = {"lm": "CAUSAL_LM", "cls": "SEQ_CLS", "seq2seq": "SEQ_2_SEQ_LM"}


def prompted(job: ResolvedJob, model: Any) -> Any:
    """The model behind virtual tokens: PEFT makes them fp32, whatever the model is."""
    assert job.adapter is not None
    made = peft.get_peft_model(model, _config(job))
    # the table of the tokens is a module twice, which cannot be put on a device twice where tensors have no data
    object.__setattr__(made, "word_embeddings", made._modules.pop("word_embeddings"))
    # numbers of tokens, which are no buffer: they stay on the host where the model has no storages
    made.prompt_tokens = {name: torch.arange(len(ids), device="cpu") for name, ids in made.prompt_tokens.items()}
    return made


def _config(job: ResolvedJob) -> Any:
    adapter, shape = job.adapter, job.model
    assert adapter is not None
    given: dict[str, Any] = {
        "task_type": TASKS[shape.task],
        "num_virtual_tokens": adapter.virtual_tokens,
        "modules_to_save": list(adapter.modules_to_save) or None,
        "num_attention_heads": shape.attention_heads,  # which PEFT looks for under few names; a prefix alone has any
    }
    if adapter.kind == "prompt-tuning":
        return peft.PromptTuningConfig(**given)
    given["encoder_hidden_size"] = adapter.encoder_hidden_size
    if adapter.kind == "p-tuning":
        return peft.PromptEncoderConfig(**given)
    return peft.PrefixTuningConfig(**given, prefix_projection=adapter.prefix_projection)
