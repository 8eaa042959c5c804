"""Batch advice: what to change in a run when its batch size changes, from the rules of the other modules."""

from __future__ import annotations

from vramplan.planner.textbook import accumulation, learning_rate
from vramplan.results.advice import Advice

SMALLEST_NORMALISED_BATCH = 8  # below, the statistics of batch normalisation are noise, as texts quote it
TOKEN_TASKS = ("lm", "mlm", "seq2seq")  # each position has a loss, and padding has none


def advise(
    *,
    base_batch_size: int,
    base_learning_rate: float,
    optimizer: str,
    micro: int,
    steps: int,
    data: int,
    batch_normalised: bool,
    task: str | None,
) -> Advice:
    """The advice for micro * steps * data sequences per optimizer step, coming from a run with another batch.

    `batch_normalised`: the model is convolutions with batch normalisation. `task` decides about the loss; None is
    unknown, and counts as a language model, which most are.
    """
    batch = accumulation.effective_batch(micro, steps, data)
    linear = learning_rate.linear(base_learning_rate, base_batch_size, batch)
    root = learning_rate.square_root(base_learning_rate, base_batch_size, batch)
    rule = learning_rate.rule_for(optimizer, batch)
    least, most = learning_rate.warm_up_steps(batch)
    by_tokens = (task or "lm") in TOKEN_TASKS
    layerwise = learning_rate.layerwise_optimizer(batch, convolutional=batch_normalised)
    return Advice(
        base_batch_size=base_batch_size,
        base_learning_rate=base_learning_rate,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        data_parallel_size=data,
        effective_batch_size=batch,
        linear_learning_rate=linear,
        square_root_learning_rate=root,
        rule=rule,
        learning_rate=linear if rule == "linear" else root,
        why=_why(optimizer, batch),
        warm_up_least_steps=least,
        warm_up_most_steps=most,
        layerwise_optimizer=None if optimizer == layerwise else layerwise,
        overhead=accumulation.quoted_overhead(steps),
        communication_saved=accumulation.communication_saved(steps) if data > 1 else None,
        loss_by="tokens" if by_tokens else "steps",
        loss=_loss(steps, data, by_tokens),
        clipping=_clipping(steps),
        schedule="step the learning rate's schedule once per optimizer step"
        + (f", not once per micro-step, which is {steps} times as often" if steps > 1 else ""),
        synchronisation=_synchronisation(steps, data),
        batch_normalisation=_batch_normalisation(micro, batch) if batch_normalised else None,
    )


def _why(optimizer: str, batch: int) -> str:
    if optimizer not in learning_rate.SGD_LIKE:
        return f"{optimizer} divides by the size of the gradients"
    if batch <= learning_rate.LINEAR_UP_TO:
        return f"{optimizer}, up to a batch of {learning_rate.LINEAR_UP_TO}"
    return f"the linear rule of {optimizer} holds up to a batch of about {learning_rate.LINEAR_UP_TO}"


def _loss(steps: int, data: int, by_tokens: bool) -> str:
    if by_tokens:
        whole = "the whole effective batch" if steps * data > 1 else "the batch"
        parts = [f"all {steps} micro-steps"] if steps > 1 else []
        parts += [f"all {data} GPUs"] if data > 1 else []
        over = f", {' and '.join(parts)} together" if parts else ""
        text = f"divide the summed loss by the number of non-padding tokens in {whole}{over}"
        if steps > 1:
            text += f"; dividing each mean by {steps} is the same only without padding"
        return text
    return (
        f"divide the loss of each micro-step by {steps}" if steps > 1 else "nothing to divide: there is one micro-step"
    )


def _clipping(steps: int) -> str:
    if steps > 1:
        return f"clip the accumulated gradients once, after the last of the {steps} micro-steps and before the step"
    return "clip once, after backward and before the step"


def _synchronisation(steps: int, data: int) -> str | None:
    if data == 1 or steps == 1:
        return None
    which = "the first micro-step" if steps == 2 else f"the first {steps - 1} of the {steps} micro-steps"
    return f"run {which} inside no_sync(), so that only the last one reduces gradients over the {data} GPUs"


def _batch_normalisation(micro: int, batch: int) -> str | None:
    if micro >= SMALLEST_NORMALISED_BATCH:
        return None
    return (
        f"batch normalisation sees the micro-batch of {micro}, not the effective {batch}: "
        f"under {SMALLEST_NORMALISED_BATCH} its statistics are noise"
    )
