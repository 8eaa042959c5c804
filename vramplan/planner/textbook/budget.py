"""The bytes of a textbook job: its states and its activations, by component."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from vramplan.planner.textbook import activations, checkpointing
from vramplan.planner.textbook.states import ELEMENT_BYTES, MOMENTS, ZERO_STAGES, Elements, States, model_states
from vramplan.results import Component
from vramplan.values.textbook import TextbookJob


def states(job: TextbookJob) -> States:
    """Bytes of the model states on one device."""
    cells = job.cells
    elements = Elements(
        weights=ELEMENT_BYTES[cells.weights],
        gradients=ELEMENT_BYTES[cells.gradients],
        master=ELEMENT_BYTES[cells.master],
        optimizer=ELEMENT_BYTES[cells.optimizer],
    )
    stage = ZERO_STAGES[job.sharding]
    return model_states(
        job.model.parameters,
        elements,
        job.optimizer,
        stage=stage,
        shards=shard_count(job),
        trainable=job.model.trainable_parameters,
    )


def shard_count(job: TextbookJob) -> int:
    """Devices that share the sharded states."""
    return job.shards or job.data_parallel_size


def depends_on_micro_batch(job: TextbookJob) -> bool:
    """Whether any figure does: a quoted one belongs to the batch of its text."""
    return job.activation_model is not None


def stored_bytes(job: TextbookJob, micro: int) -> int:
    """Activations without checkpointing: by the equation, or as quoted at another element size; 0 if left out."""
    element = ELEMENT_BYTES[job.cells.compute]
    if job.activation_bytes is not None:
        return activations.at_element_size(job.activation_bytes, element)
    if job.activation_model is None:
        return 0
    return activations.MODELS[job.activation_model](sizes(job, micro), element)


def sizes(job: TextbookJob, micro: int) -> activations.ActivationSizes:
    """What an activation model looks at. Only for jobs that have one: what it needs is there then."""
    model = job.model
    assert job.sequence_length is not None
    assert model.hidden_size is not None
    assert model.layers is not None
    return activations.ActivationSizes(
        micro, job.sequence_length, model.hidden_size, model.layers, model.attention_heads or 0
    )


def activation_bytes(job: TextbookJob, strategy: str, micro: int) -> int:
    """Activations under a strategy: divided by the text's own factor if it has one, else by the table."""
    stored = stored_bytes(job, micro)
    if job.checkpoint_factor is not None:
        return ceil(stored / Fraction(job.checkpoint_factor))
    if strategy == "none" or not stored:
        return stored
    assert job.model.layers is not None
    checkpoints = checkpointing.checkpoint_count(strategy, job.model.layers)
    assert checkpoints is not None
    return checkpointing.checkpointed_bytes(stored, job.model.layers, checkpoints)


def recomputed_fraction(job: TextbookJob, strategy: str) -> float:
    """Extra work over the work of a step without checkpointing."""
    if strategy == "none":
        return 0.0
    if job.model.layers is None:
        return checkpointing.ONE_MORE_FORWARD
    checkpoints = checkpointing.checkpoint_count(strategy, job.model.layers)
    assert checkpoints is not None
    return checkpointing.recomputed_fraction(job.model.layers, checkpoints)


def components(job: TextbookJob, strategy: str, micro: int) -> tuple[Component, ...]:
    """Every component that is not empty, with the equation that it comes from."""
    held, cells, trained = states(job), job.cells, f"{job.model.trained:,}"
    stage, shards = ZERO_STAGES[job.sharding], shard_count(job)

    def basis(text: str, from_stage: int) -> str:
        return f"{text} / {shards} (ZeRO stage {stage})" if stage >= from_stage and shards > 1 else text

    moments = MOMENTS[job.optimizer]
    words = {
        "weights": (f"{job.model.parameters:,}", cells.weights, 3),
        "gradients": (trained, cells.gradients, 2),
        "master": (trained, cells.master, 1),
    }
    parts = {
        name: (getattr(held, name), basis(f"{count} x {ELEMENT_BYTES[word]} B ({word})", least))
        for name, (count, word, least) in words.items()
    }
    parts["optimizer"] = (
        held.optimizer,
        basis(f"{job.optimizer}: {moments} x {trained} x {ELEMENT_BYTES[cells.optimizer]} B ({cells.optimizer})", 1),
    )
    parts["activations"] = (activation_bytes(job, strategy, micro), activation_basis(job, strategy, micro))
    order = ("weights", "master", "optimizer", "gradients", "activations")
    return tuple(Component(name, *parts[name]) for name in order if parts[name][0])


def activation_basis(job: TextbookJob, strategy: str, micro: int) -> str:
    """Where the activations come from, in words."""
    word = job.cells.compute
    if job.activation_bytes is not None:
        text = f"quoted figure in {word}"
    elif job.activation_model is None:
        return "left out"
    else:
        text = f"{job.activation_model}: micro-batch {micro} x {job.sequence_length} tokens, {word}"
    if job.checkpoint_factor is not None:
        return f"{text}, / {job.checkpoint_factor:g} (checkpoint_factor)"
    layers = job.model.layers
    if strategy == "none" or layers is None:
        return text
    checkpoints = checkpointing.checkpoint_count(strategy, layers)
    assert checkpoints is not None
    if checkpoints >= layers:
        return f"{text}, 1 of {layers} layers"
    kept = checkpoints + layers / checkpoints
    change = 1 - kept / layers
    saved = f"{abs(change):.0%} {'less' if change >= 0 else 'more'}"
    return f"{text}, {checkpoints} + {layers}/{checkpoints} = {kept:.1f} of {layers} layers, {saved}"
