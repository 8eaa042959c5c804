"""Batch advice as rows of a key and a sentence: the text and the Markdown of `fit` show the same."""

from __future__ import annotations

from vramplan.report.lines import Line, Span, wrap
from vramplan.results.advice import Advice

TITLE = "Batch advice"


def advice_rows(advice: Advice) -> list[tuple[str, str]]:
    """What to change, in the order in which a training script is written."""
    steps, data = advice.gradient_accumulation_steps, advice.data_parallel_size
    made_of = f"micro-batch {advice.micro_batch_size} × {steps} accumulation {'step' if steps == 1 else 'steps'}"
    if data > 1:
        made_of += f" × {data} GPUs"
    rates = {"linear": advice.linear_learning_rate, "square-root": advice.square_root_learning_rate}
    other = "linear" if advice.rule == "square-root" else "square-root"
    least, most = advice.warm_up_least_steps, advice.warm_up_most_steps
    warm_up = f"{least} to {most}" if least != most else str(most)
    rows = [
        ("batch", f"{made_of} = {advice.effective_batch_size}, coming from {advice.base_batch_size}"),
        (
            "learning rate",
            f"{rate(advice.learning_rate)}, from {rate(advice.base_learning_rate)} by the {advice.rule} rule "
            f"({advice.why}); the {other} rule gives {rate(rates[other])}",
        ),
        ("warm-up", f"{warm_up} optimizer steps, as texts quote it for this batch"),
    ]
    if advice.layerwise_optimizer:
        rows.append(("optimizer", f"at this batch texts change to {advice.layerwise_optimizer.upper()}"))
    rows += [("loss", advice.loss), ("clipping", advice.clipping), ("schedule", advice.schedule)]
    if advice.synchronisation:
        rows.append(("GPUs", advice.synchronisation))
    if advice.communication_saved:
        rows.append(("saved", f"{advice.communication_saved:.1%} of the all-reduces, 1 - 1/{steps}"))
    if steps > 1:
        rows.append(("overhead", f"{advice.overhead} of the throughput, as texts quote it for {steps} micro-steps"))
    if advice.batch_normalisation:
        rows.append(("warning", advice.batch_normalisation))
    return rows


def advice_lines(advice: Advice, width: int) -> list[Line]:
    """The same as a section of the text."""
    title = [Span(TITLE, "heading"), Span("  rules of thumb; they do not touch the verdict", "muted")]
    lines = wrap(title, width, rest=2)
    for key, text in advice_rows(advice):
        style = "note" if key == "warning" else "muted"
        lines += wrap([Span(f"{key.ljust(13)} ", style), Span(text)], width, first=2, rest=16)
    return lines


def rate(value: float) -> str:
    """A learning rate with four digits."""
    return f"{value:.4g}"
