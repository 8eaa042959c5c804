"""Preference training and reward models by TRL: its head, its losses, and the reference beside the model that trains.

The head and the losses of pairs without a reference are the library's own code. That of DPO is written anew, as its
trainer computes metrics in the same function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from vramplan.measure.runnable import PREFERENCES
from vramplan.values.job import ResolvedJob

SEQUENCES = 2  # of a pair
BETA = 0.1
ADAPTER_OFF, PRECOMPUTED, RESIDENT = "adapter-off", "precomputed", "model"
ALL_OUTPUTS = ("log_probs", "entropy", "mean_logits", "is_top1")  # of the model that trains (DPOTrainer.__init__)
OVER_LOGITS = "dpo-logits"
DIRECT = ("dpo", OVER_LOGITS)
COMPARED = ("orpo", "cpo", "simpo")  # losses over logits of pairs
POLICY, PROMPT = "grpo", 1  # a prompt has so many tokens, and the rest is the completion
CLIPPED = 0.2  # how far a ratio may be from 1 (GRPOConfig.epsilon of trl 1.16.0)


Around = Callable[[], contextlib.AbstractContextManager[Any]]


def is_preference(job: ResolvedJob) -> bool:
    """Whether a trainer of TRL makes the loss of several sequences."""
    return job.loss in PREFERENCES


def with_scores(job: ResolvedJob, model: Any, *, trains: bool) -> Any:
    """The model with TRL's head, and without dropout, as the trainer of DPO has it."""
    if job.loss not in (*DIRECT, POLICY):
        return model
    utils = import_module("trl.trainer.utils")
    if job.loss in DIRECT:
        utils.disable_dropout_in_model(model)
    if job.loss == OVER_LOGITS:
        return model
    count = 1 if not trains else 2 if job.loss == POLICY else len(ALL_OUTPUTS)
    utils.add_fused_lm_head(model, outputs=ALL_OUTPUTS[:count])
    return model


def has_reference(job: ResolvedJob) -> bool:
    """Whether a second model lies beside the one that trains."""
    return job.loss in (*DIRECT, POLICY) and job.dpo_reference == RESIDENT


def pairs_of(job: ResolvedJob, device: str) -> dict[str, Any]:
    """A micro-batch of pairs, as the collator of each trainer gives it.

    Source: trl 1.16.0, trainer/dpo_trainer.py, trainer/reward_trainer.py (DataCollatorForPreference) and
    experimental/utils.py (DPODataCollatorWithPadding).
    """
    size = job.micro_batch_size
    assert size is not None

    def tokens(rows: int) -> Any:
        return torch.randint(1, job.model.vocabulary_size, (rows, job.sequence_length), device=device)

    if job.loss == POLICY:
        return _completions(job, size, device)
    if job.loss in COMPARED:
        return {
            f"{of}_{name}": tokens(size)
            for of in ("chosen", "rejected")
            for name in ("input_ids", "attention_mask", "labels")
        }
    names = ["input_ids", "attention_mask", *(["completion_mask"] if job.loss in DIRECT else [])]
    given = {name: tokens(SEQUENCES * size) for name in names}
    if job.dpo_reference == PRECOMPUTED:
        given |= {name: torch.randn(size, device=device) for name in ("ref_chosen_logps", "ref_rejected_logps")}
    return given


def _completions(job: ResolvedJob, size: int, device: str) -> dict[str, Any]:
    """Source: trl 1.16.0, trainer/grpo_trainer.py, GRPOTrainer._generate_and_score_completions."""
    length = job.sequence_length - PROMPT
    found = {
        name: torch.randint(1, job.model.vocabulary_size, (size, of), device=device)
        for name, of in (("prompt_ids", PROMPT), ("prompt_mask", PROMPT))
    }
    for name in ("completion_ids", "completion_mask"):
        found[name] = torch.randint(1, job.model.vocabulary_size, (size, length), device=device)
    found["advantages"] = torch.randn(size, device=device)
    found["num_items_in_batch"] = torch.ones((), dtype=torch.int64, device=device)
    if job.dpo_reference is not None:
        found["ref_per_token_logps"] = torch.randn(size, length, device=device)
    return found


def score_completions(reference: Any, inputs: dict[str, Any], around: Around) -> None:
    """What a reference does before a step: FSDP may keep it whole from then on.

    Source: trl 1.16.0, trainer/grpo_trainer.py, GRPOTrainer._generate_and_score_completions.
    """
    parts = [[inputs[f"{one}_{name}"] for one in ("prompt", "completion")] for name in ("ids", "mask")]
    input_ids, attention_mask = (torch.cat(one, dim=1) for one in parts)
    with torch.no_grad():
        _scores(reference, input_ids, attention_mask, inputs["completion_ids"].size(1), around)


def preference_loss(job: ResolvedJob, model: Any, reference: Any, inputs: dict[str, Any], around: Around) -> Any:
    """The loss of a micro-batch; `around` is what each forward pass runs in."""
    if job.loss == POLICY:
        return _policy(job, model, inputs, around)
    if job.loss == "dpo":
        return _direct(job, model, reference, inputs, around)
    if job.loss == OVER_LOGITS:
        return _over_logits(job, model, reference, inputs)
    if job.loss == "reward":
        return _reward(model, inputs)
    return _compared(job, model, inputs)


def _direct(job: ResolvedJob, model: Any, reference: Any, inputs: dict[str, Any], around: Around) -> Any:
    """Source: trl 1.16.0, trainer/dpo_trainer.py, DPOTrainer._compute_loss, up to the metrics."""
    model_kwargs = {name: inputs[name] for name in ("input_ids", "attention_mask")} | {"use_cache": False}
    completion_mask = inputs["completion_mask"]
    labels = inputs["input_ids"].masked_fill(completion_mask == 0, -100)
    with around():
        outputs = model(**model_kwargs, labels=labels, fused_lm_head=True)
    seq_len = completion_mask[..., 1:].size(1)
    per_token_logps = outputs.log_probs[:, -seq_len:]
    logps = per_token_logps.sum(dim=1)
    chosen_logps, rejected_logps = logps.chunk(2, dim=0)
    if job.dpo_reference == PRECOMPUTED:
        ref_chosen_logps, ref_rejected_logps = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
    else:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if job.dpo_reference == ADAPTER_OFF:
                whole = model
                stack.enter_context(_without_checkpoints(model))
                stack.enter_context(import_module("trl.trainer.utils").use_adapter(model, adapter_name=None))
            else:
                whole = reference
            stack.enter_context(around())
            ref_outputs = whole(**model_kwargs, labels=labels, fused_lm_head=True)
        ref_per_token_logps = ref_outputs.log_probs[:, -seq_len:]
        ref_logps = ref_per_token_logps.sum(dim=1)
        ref_chosen_logps, ref_rejected_logps = ref_logps.chunk(2, dim=0)
    chosen_logratios = chosen_logps - ref_chosen_logps
    rejected_logratios = rejected_logps - ref_rejected_logps
    delta_score = chosen_logratios - rejected_logratios
    loss = 0.0
    per_sequence_loss = -functional.logsigmoid(BETA * delta_score)
    return loss + per_sequence_loss.mean() * 1.0


def _over_logits(job: ResolvedJob, model: Any, reference: Any, inputs: dict[str, Any]) -> Any:
    """Source: trl 0.24.0, trainer/dpo_trainer.py, DPOTrainer.get_batch_loss_metrics and dpo_loss, up to the metrics."""
    model_output = _concatenated(model, inputs)
    if job.dpo_reference == PRECOMPUTED:
        ref_chosen_logps, ref_rejected_logps = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
    else:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            whole = model if job.dpo_reference == ADAPTER_OFF else reference
            if job.dpo_reference == ADAPTER_OFF:
                stack.enter_context(model.disable_adapter())
            ref_chosen_logps, ref_rejected_logps, *_rest = _concatenated(whole, inputs)
    chosen_logps, rejected_logps, *_means = model_output
    logratios = chosen_logps - rejected_logps
    ref_logratios = ref_chosen_logps - ref_rejected_logps
    logits = logratios - ref_logratios
    losses = -functional.logsigmoid(BETA * logits) * 1.0
    return losses.mean()


def _concatenated(model: Any, inputs: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Source: trl 0.24.0, trainer/dpo_trainer.py, DPOTrainer.concatenated_forward, without what it does to prompts."""
    ids, half = inputs["input_ids"], len(inputs["input_ids"]) // SEQUENCES
    outputs = model(ids, attention_mask=inputs["attention_mask"], use_cache=False)
    logits = outputs.logits
    labels = torch.roll(ids, shifts=-1, dims=1)
    loss_mask = torch.roll(inputs["completion_mask"], shifts=-1, dims=1).bool()
    per_token_logps = _selected(logits, labels)
    per_token_logps.masked_fill_(~loss_mask, 0)
    per_token_logps = torch.roll(per_token_logps, shifts=1, dims=1)
    all_logps = per_token_logps[:, 1:].sum(-1)
    means = [part.clone().mean() for part in (logits[:half], logits[half:])]  # of all tokens, as all are completions
    return all_logps[:half], all_logps[half:], *means


def _selected(logits: Any, labels: Any) -> Any:
    """Source: trl 0.24.0, trainer/utils.py, selective_log_softmax."""
    if logits.dtype is torch.float32:
        chosen = torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
        return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    found = []
    for row, where in zip(logits, labels, strict=True):
        log_probabilities = functional.log_softmax(row, dim=-1)
        found.append(log_probabilities.gather(dim=-1, index=where.unsqueeze(-1)).squeeze(-1))
    return torch.stack(found)


def _policy(job: ResolvedJob, model: Any, inputs: dict[str, Any], around: Around) -> Any:
    """Source: trl 1.16.0, trainer/grpo_trainer.py, GRPOTrainer._compute_loss with its defaults, up to the metrics."""
    prompt_ids, prompt_mask = inputs["prompt_ids"], inputs["prompt_mask"]
    completion_ids, completion_mask = inputs["completion_ids"], inputs["completion_mask"]
    input_ids = torch.cat([prompt_ids, completion_ids], dim=1)
    attention_mask = torch.cat([prompt_mask, completion_mask], dim=1)
    mask = completion_mask
    per_token_logps, _entropies = _scores(model, input_ids, attention_mask, completion_ids.size(1), around)
    advantages = inputs["advantages"].unsqueeze(1)
    old_per_token_logps = per_token_logps.detach()
    log_ratio = per_token_logps - old_per_token_logps
    coef_1 = torch.exp(log_ratio)
    if job.dpo_reference is not None:
        ref_per_token_logps = inputs["ref_per_token_logps"]
        per_token_kl = torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1
    coef_2 = torch.clamp(coef_1, 1 - CLIPPED, 1 + CLIPPED)
    per_token_loss1 = coef_1 * advantages
    per_token_loss2 = coef_2 * advantages
    per_token_loss = -torch.min(per_token_loss1, per_token_loss2)
    if job.dpo_reference is not None:
        per_token_loss = per_token_loss + BETA * per_token_kl
    normalizer = inputs["num_items_in_batch"].clamp(min=1.0) / 1
    normalizer = normalizer * 1 / 1
    return (per_token_loss * mask).sum() / normalizer


def _scores(model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, around: Around) -> tuple[Any, Any]:
    """Source: trl 1.16.0, trainer/grpo_trainer.py, GRPOTrainer._get_per_token_logps_and_entropies."""
    all_logps, all_entropies = [], []
    input_ids_batch, attention_mask_batch = input_ids[0 : len(input_ids)], attention_mask[0 : len(input_ids)]
    model_inputs = {"input_ids": input_ids_batch, "attention_mask": attention_mask_batch}
    labels = input_ids_batch.masked_fill(attention_mask_batch == 0, -100)
    labels[:, :-logits_to_keep] = -100
    with around():
        outputs = model(**model_inputs, labels=labels, fused_lm_head=True)
    all_logps.append(outputs.log_probs[:, -logits_to_keep:])
    if outputs.entropy is None:  # a reference has none
        return torch.cat(all_logps, dim=0), None
    all_entropies.append(outputs.entropy[:, -logits_to_keep:])
    return torch.cat(all_logps, dim=0), torch.cat(all_entropies, dim=0)


@contextlib.contextmanager
def _without_checkpoints(model: Any) -> Any:
    """Source: trl 1.16.0, models/utils.py, disable_gradient_checkpointing."""
    parts = [one for one in model.modules() if getattr(one, "gradient_checkpointing", False)]
    for one in parts:
        one.gradient_checkpointing = False
    try:
        yield
    finally:
        for one in parts:
            one.gradient_checkpointing = True


def _compared(job: ResolvedJob, model: Any, inputs: dict[str, Any]) -> Any:
    """Source: trl 1.16.0, experimental/orpo and experimental/cpo, get_batch_loss_metrics, up to the metrics."""
    name = "orpo" if job.loss == "orpo" else "cpo"
    module = import_module(f"trl.experimental.{name}.{name}_trainer")
    kind = getattr(module, f"{name.upper()}Trainer")
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device=torch.device("cuda")),
        is_encoder_decoder=False,
        aux_loss_enabled=False,
        padding_value=0,
        pad_token_id=0,
        beta=BETA,
        alpha=0.0,
        label_smoothing=0.0,
        simpo_gamma=0.5,
        cpo_alpha=0.0 if job.loss == "simpo" else 1.0,
        loss_type="simpo" if job.loss == "simpo" else "sigmoid",
        concatenated_inputs=kind.concatenated_inputs,
        get_batch_logps=kind.get_batch_logps,
    )
    forward_output = kind.concatenated_forward(trainer, model, inputs)
    chosen_logps, rejected_logps, _chosen_logits, _rejected_logits, nll_loss = forward_output[:5]
    if name == "orpo":
        losses, *_rest = kind.odds_ratio_loss(trainer, chosen_logps, rejected_logps)
        return nll_loss - losses.mean()
    losses, *_rest = kind.cpo_loss(trainer, chosen_logps, rejected_logps)
    return losses.mean() + trainer.cpo_alpha * nll_loss


def _reward(model: Any, inputs: dict[str, Any]) -> Any:
    """Source: trl 1.16.0, trainer/reward_trainer.py, RewardTrainer.compute_loss, up to the metrics."""
    outputs = model(**inputs, use_cache=False)
    rewards_chosen, rewards_rejected = torch.chunk(outputs.logits.squeeze(-1), chunks=2)
    return -functional.logsigmoid(rewards_chosen - rewards_rejected).mean()
