"""Why the two sides of a step differ: read off the figures, so nothing is said of what the two do not show."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.planner.decision import Decision
from vramplan.planner.textbook import activations, budget
from vramplan.planner.textbook.checkpointing import checkpoint_count
from vramplan.planner.textbook.states import ELEMENT_BYTES
from vramplan.replay.placed import checkpoint_ranges_in
from vramplan.results.walkthrough import ReplaySide, TextbookSide
from vramplan.values.textbook import TextbookJob

STATES = ("weights", "gradients", "master", "optimizer")
WORTH_SAYING = 0.01  # of the replayed total: smaller differences are rounding of tensors to allocator blocks
LARGEST_OPERATORS = 3
SMALLEST_SHOWN_BYTES = 50_000_000  # shown in GB with one decimal, less would be 0.0


def reasons(
    book: TextbookJob, textbook: TextbookSide, replay: ReplaySide, decision: Decision, counted: int
) -> Iterator[str]:
    """Why the two totals differ, the whole first, then component by component. Sizes in GB."""
    ours, theirs = replay.allocated_bytes, textbook.total_bytes
    threshold = WORTH_SAYING * ours
    if replay.micro_batch_size != textbook.micro_batch_size:
        yield (
            f"micro-batch: {textbook.micro_batch_size} by the textbook, {replay.micro_batch_size} replayed; each is "
            "the largest exact one up to that of the steps before that fits by its own figures, or the smallest if "
            "none does"
        )
    sign = "more" if ours >= theirs else "less"
    share = f" ({abs(ours - theirs) / theirs:.0%})" if theirs else ""
    yield f"the replay allocates {_gb(abs(ours - theirs))} {sign} than the textbook counts{share}"
    yield from _states(book, textbook, replay, counted, threshold)
    yield from _activations(book, textbook, replay, decision, threshold)
    sizes = {part.name: part.bytes for part in replay.components}
    for name, size in sizes.items():
        if name not in (*STATES, "activations") and size >= threshold:
            made = _operators(decision, name)
            yield f"{name}: {_gb(size)} that the textbook leaves out" + (f" ({made})" if made else "")
    outside = replay.device_bytes - ours
    if outside >= threshold:
        yield f"device: {_gb(outside)} more for the allocator, the CUDA context and NCCL, which the textbook leaves out"


def _states(
    book: TextbookJob, textbook: TextbookSide, replay: ReplaySide, counted: int, threshold: float
) -> Iterator[str]:
    """Weights, gradients, master copy and optimizer: what the count explains, and what it does not."""
    ours = {part.name: part.bytes for part in replay.components}
    theirs = {part.name: part.bytes for part in textbook.components}
    factor = counted / book.model.parameters
    rounding = sum(theirs.get(name, 0) for name in STATES) * (factor - 1)
    if counted != book.model.parameters:
        yield (
            f"parameters: the architecture has {counted:,}, the text {book.model.parameters:,}, "
            f"which is {_gb(abs(round(rounding)))} of model states"
        )
    for name in STATES:
        expected = theirs.get(name, 0) * factor
        difference = ours.get(name, 0) - expected
        if abs(difference) < threshold:
            continue
        if name == "gradients" and difference < 0 and replay.gradient_accumulation_steps == 1:
            exist = f"{_gb(ours[name])} of" if ours.get(name, 0) >= threshold else "hardly any of"
            yield (
                f"gradients: {exist} {_gb(round(expected))} exist at the replayed peak "
                f"({replay.phase}, {replay.operator}): without accumulation they are made during backward"
            )
        else:
            yield f"{name}: {_gb(ours.get(name, 0))} replayed, {_gb(round(expected))} by the textbook"


def _activations(
    book: TextbookJob, textbook: TextbookSide, replay: ReplaySide, decision: Decision, threshold: float
) -> Iterator[str]:
    ours = sum(part.bytes for part in replay.components if part.name == "activations")
    theirs = sum(part.bytes for part in textbook.components if part.name == "activations")
    if abs(ours - theirs) >= threshold:
        made = _operators(decision, "activations")
        yield (
            f"activations: {_gb(ours)} replayed at the peak, {_gb(theirs)} by the textbook"
            + (f"; replayed, they are mostly results of {made}" if made else "")
        )
    stored = budget.stored_bytes(book, textbook.micro_batch_size)
    if book.activation_model == "korthikanti" and replay.attention != "eager" and stored:
        element = ELEMENT_BYTES[book.cells.compute]
        sizes = budget.sizes(book, textbook.micro_batch_size)
        scores = sizes.layers * activations.score_bytes(sizes, element) * theirs // stored
        if scores >= threshold:
            yield (
                f"attention scores: {_gb(scores)} of the textbook's activations, "
                f"which {replay.attention} attention does not store"
            )
    segments = len(checkpoint_ranges_in(decision.choice.rung.placement, decision.job.model.stacks))
    if segments:
        count = f"{segments} layer inputs" if segments > 1 else "one layer input"
        elements = f"{replay.micro_batch_size} x {book.sequence_length} x {book.model.hidden_size} elements"
        yield f"checkpoints: the replay keeps {count} of {elements}; {_table_row(book)}"


def _table_row(book: TextbookJob) -> str:
    """What the textbook's side made of the same checkpoints."""
    if book.checkpoint_factor is not None:
        return f"the text divides what it stores by {book.checkpoint_factor:g}"
    layers = book.model.layers or 1
    count = checkpoint_count(book.activation_checkpointing or "none", layers) or 0
    if count >= layers:
        return "the textbook's table counts one layer's activations and no inputs"
    return f"the textbook's table counts whole layers' activations, {count} + {layers}/{count} of them"


def _operators(decision: Decision, component: str) -> str:
    """The operators that made most of a component at the peak, with their sizes; empty if it is no tensor's."""
    micro = decision.choice.rung.schedule.micro_batch_size
    record = decision.record.at_peak(micro)
    phase, moment = record.worst(micro)
    sizes = record.sizes(micro)
    totals: dict[str, int] = {}
    for storage, copies in record.alive(phase, moment).items():
        if record.categories[storage] == component:
            name = record.operators[storage]
            totals[name] = totals.get(name, 0) + sizes[storage] * copies
    largest = sorted(totals.items(), key=lambda item: -item[1])[:LARGEST_OPERATORS]
    return ", ".join(f"{name} {_gb(size)}" for name, size in largest if size >= SMALLEST_SHOWN_BYTES)


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
