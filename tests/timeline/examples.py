"""Timelines made by hand: the renderers never compute, so no replay is needed to test them."""

from __future__ import annotations

from typing import Any

from vramplan.report.timeline_chart import Drawing
from vramplan.results import Component, FitResult, Peak, Recommendation
from vramplan.results.timeline import END, START, History, Part, Phase, Sample, Timeline

MIB, GIB = 1 << 20, 1 << 30
LIMIT = 18 * GIB


def fit(peak: Sample, parts: list[Part], phases: list[Phase], job: dict[str, Any] | None = None) -> FitResult:
    """The answer of `fit` that goes with a history."""
    allocated = peak.allocated_bytes
    device = allocated + GIB
    usable = LIMIT + GIB
    return FitResult(
        name="drawn",
        verdict="fits" if device + GIB <= usable else "does-not-fit",
        job={
            "model": "small",
            "gpu": "card",
            "precision": "fp32",
            "sequence_length": 128,
            "micro_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "global_batch_size": 8,
            "activation_checkpointing": "none",
            **(job or {}),
        },
        capacity_bytes=usable,
        usable_bytes=usable,
        headroom_bytes=usable - device,
        utilization=device / usable,
        total_parameters=1,
        trainable_parameters=1,
        peak=Peak(
            allocated_bytes=allocated,
            reserved_bytes=allocated,
            device_bytes=device,
            low_bytes=device - GIB // 2,
            high_bytes=device + GIB,
            phase=peak.phase,
            operator=peak.operator,
            forward_bytes=phases[0].peak_bytes,
            backward_bytes=phases[1].peak_bytes,
            step_bytes=phases[2].peak_bytes,
            saved_bytes=phases[0].end_bytes - phases[0].start_bytes,
        ),
        components=tuple(Component(part.name, part.bytes, "") for part in parts if part.bytes),
        overheads=(Component("context", GIB, ""),),
        recommended=Recommendation(4, 2, 8, 4, "none", "--micro-batch 4"),
        checkpoints=(),
        alternatives=(),
        remedies=(),
        assumptions=(),
        warnings=("a note",),
    )


def timeline(
    rows: list[tuple[str, int | None, str, tuple[int, ...]]], names: list[str], limit: int = LIMIT, **job: Any
) -> Timeline:
    """A timeline of these samples; sizes are MiB of each component."""
    samples = [
        Sample(phase, block, operator, sum(sizes) * MIB, tuple(size * MIB for size in sizes))
        for phase, block, operator, sizes in rows
    ]
    levels = [sample.allocated_bytes for sample in samples]
    peak = levels.index(max(levels))
    phases = []
    for name in ("forward", "backward", "step"):
        mine = [number for number, sample in enumerate(samples) if sample.phase == name]
        after = levels[mine[-1] + 1] if mine[-1] + 1 < len(levels) else levels[-1]
        inside = levels[mine[0] : mine[-1] + 1]
        phases.append(Phase(name, mine[0], len(mine), inside[0], max(inside), after))
    parts = [
        Part(name, samples[peak].components[place], max(sample.components[place] for sample in samples))
        for place, name in enumerate(names)
    ]
    history = History(tuple(parts), tuple(samples), tuple(phases), peak)
    return Timeline(fit(samples[peak], parts, phases, job), history, limit)


def small(*, scale: int = 1, blocks: int = 12, limit: int = LIMIT, **job: Any) -> Timeline:
    """Blocks that save activations in forward and free them in backward; one operator of a step."""
    weights, optimizer, gradients = 2000 * scale, 4000 * scale, 2000 * scale
    rows: list[tuple[str, int | None, str, tuple[int, ...]]] = [
        ("forward", None, START, (weights, optimizer, gradients, 0, 0, 0))
    ]
    for block in range(blocks):
        for number, operator in enumerate(("linear", "softmax")):
            saved = (400 * block + 200 * number) * scale
            rows.append(("forward", block, operator, (weights, optimizer, gradients, saved, 0, 1)))
    whole = 400 * blocks * scale
    rows.append(("forward", None, "nll_loss", (weights, optimizer, gradients, whole + 1000 * scale, 0, 0)))
    rows.append(("backward", None, START, (weights, optimizer, gradients, whole, 0, 0)))
    for block in reversed(range(blocks)):
        for number, operator in enumerate(("softmax_backward", "mm", "to")):
            saved = 400 * (block + 1) * scale
            rows.append(("backward", block, operator, (weights, optimizer, gradients, saved, 700 * scale * number, 0)))
    rows.append(("step", None, START, (weights, optimizer, gradients, 0, 0, 0)))
    rows.append(("step", None, END, (weights, optimizer, gradients, 0, 0, 0)))
    names = ["weights", "optimizer", "gradients", "activations", "temporaries", "workspace"]
    return timeline(rows, names, limit, **job)


NASTY = "a<b> &amp; \x1b[31m\x00\ud800\ufffe 模型 " + "x" * 150

EXAMPLES = {
    "fits": Drawing(small(), None, False),
    "zoomed": Drawing(small(), 10, True),
    "does not fit": Drawing(small(scale=3), None, False),
    "limit far above": Drawing(small(limit=900 * GIB), None, False),
    "limit far below": Drawing(small(limit=GIB), 20, True),
    "nothing fits": Drawing(small(limit=0), None, False),
    "many blocks": Drawing(small(blocks=400), None, False),
    "one block": Drawing(small(blocks=1), 4, False),
    "nasty": Drawing(small(model=NASTY, gpu=NASTY), 7, False),
}
