"""Answers of the textbook made by hand: a job of equations, batch advice, and a walk-through."""

from __future__ import annotations

from tests.report.conftest import answer, fits, gib
from vramplan.results import Alternative, Component, Recommendation
from vramplan.results.advice import Advice
from vramplan.results.walkthrough import ReplaySide, Step, TextbookSide, Walkthrough
from vramplan.values.job import Assumption

P = 1_500_000_000
TEXTBOOK = answer(
    model="1.5B parameters",
    capacity=32 << 30,
    parts=[
        ("weights", 2 * P, "textbook: 1,500,000,000 x 2 B (fp16)"),
        ("master", 4 * P, "textbook: 1,500,000,000 x 4 B (fp32)"),
        ("optimizer", 8 * P, "textbook: adamw: 2 x 1,500,000,000 x 4 B (fp32)"),
        ("gradients", 2 * P, "textbook: 1,500,000,000 x 2 B (fp16)"),
        ("activations", 8_125_000_000, "textbook: quoted figure in fp16, / 4 (checkpoint_factor)"),
    ],
    overheads=[],
    low=32_125_000_000,
    high=32_125_000_000,
    phase="textbook",
    operator="sum of closed forms",
    total_parameters=P,
    trainable_parameters=P,
    job={
        "precision": "mixed-fp16",
        "runtime": "textbook",
        "attention": None,
        "sequence_length": None,
        "micro_batch_size": 32,
        "gradient_accumulation_steps": 16,
        "activation_checkpointing": "every:4",
    },
    recommended=Recommendation(
        micro_batch_size=32,
        gradient_accumulation_steps=16,
        global_batch_size=512,
        largest_micro_batch_size=32,
        activation_checkpointing="every:4",
        flags="--micro-batch 32 --gradient-accumulation-steps 16 --checkpointing every:4",
    ),
    checkpoints=(),
    alternatives=(Alternative("every:4", "fits", 32, 16, 32_125_000_000, 32_125_000_000, 32, 0.25),),
    assumptions=(Assumption("gpu.memory", "32.00 GiB", "nominal, as texts count"),),
    warnings=("textbook figures, not a prediction",),
)

ADVICE = Advice(
    base_batch_size=256,
    base_learning_rate=0.1,
    micro_batch_size=4,
    gradient_accumulation_steps=256,
    data_parallel_size=8,
    effective_batch_size=8192,
    linear_learning_rate=3.2,
    square_root_learning_rate=0.5656854249492381,
    rule="square-root",
    learning_rate=0.5656854249492381,
    why="adamw divides by the size of the gradients",
    warm_up_least_steps=5000,
    warm_up_most_steps=5000,
    layerwise_optimizer="lamb",
    overhead="over 20 %",
    communication_saved=255 / 256,
    loss_by="tokens",
    loss="divide the summed loss by the number of non-padding tokens in the whole effective batch",
    clipping="clip the accumulated gradients once",
    schedule="step the learning rate's schedule once per optimizer step",
    synchronisation="run the first 255 of the 256 micro-steps inside no_sync()",
    batch_normalisation="batch normalisation sees the micro-batch of 4, not the effective 8192",
)
ADVISED = fits()._replace(advice=ADVICE)


def step(number: int, title: str, precision: str, strategy: str, activations: int, before: int | None) -> Step:
    half = precision != "fp32"
    states = [
        ("weights", 2 if half else 4),
        ("master", 4 if half else 0),
        ("optimizer", 8),
        ("gradients", 2 if half else 4),
    ]
    book = [Component(name, P * size, "n x b") for name, size in states if size]
    book.append(Component("activations", activations, "quoted"))
    total = sum(part.bytes for part in book)
    replayed = [part for part in book if part.name != "gradients"]
    replayed += [Component("temporaries", 13_176_400_000, "alive in nll_loss"), Component("inputs", 524_288, "ids")]
    allocated = sum(part.bytes for part in replayed)
    change = None if before is None else total / before - 1
    return Step(
        number=number,
        title=title,
        precision=precision,
        activation_checkpointing=strategy,
        textbook=TextbookSide(32, 1, tuple(book), total, change, "fits" if total <= 32 << 30 else "does-not-fit"),
        replay=ReplaySide(
            micro_batch_size=8 if number == 4 else 32,
            gradient_accumulation_steps=8 if number == 4 else 1,
            components=tuple(replayed),
            allocated_bytes=allocated,
            device_bytes=allocated + gib(2),
            attention="efficient",
            phase="backward",
            operator="_log_softmax_backward_data",
            change=change,
            verdict="does-not-fit" if number < 4 else "tight",
        ),
        reasons=("the replay allocates 7.2 GB more than the textbook counts (8%)", "temporaries: _log_softmax 6.6 GB"),
    )


FIRST = step(1, "fp32", "fp32", "none", 65_000_000_000, None)
SECOND = step(2, "mixed precision", "mixed-fp16", "none", 32_500_000_000, FIRST.textbook.total_bytes)
THIRD = step(3, "checkpointing", "mixed-fp16", "every:4", 8_125_000_000, SECOND.textbook.total_bytes)
FOURTH = step(4, "accumulation", "mixed-fp16", "every:4", 4_062_500_000, THIRD.textbook.total_bytes)
WALK = Walkthrough(
    model="gpt2-xl",
    gpu="v100",
    textbook_parameters=P,
    architecture_parameters=1_557_611_200,
    sequence_length=1024,
    optimizer="adamw",
    activation_model=None,
    activation_bytes=65_000_000_000,
    checkpoint_factor=4.0,
    data_parallel_size=8,
    global_batch_size=256,
    nominal_capacity_bytes=32 << 30,
    usable_bytes=gib(31.74),
    steps=(FIRST, SECOND, THIRD, FOURTH),
    assumptions=(Assumption("precision", "mixed-fp16", "of steps 2 to 4"),),
    warnings=("8 data-parallel devices without sharding: communication buffers are not counted",),
)
