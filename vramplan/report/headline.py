"""What every report of a run says in the same words: the run, its devices, its batch, its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from vramplan.report.lines import Line, Span, clean, elide, wrap
from vramplan.report.memory import ShownFigures, by_textbook
from vramplan.report.numbers import gb_near, text_of
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT, FitResult

WIDEST = 100  # a longer line is harder to read, not easier
NARROWEST = 40
WEIGHTS = {"gptq-int4": "int4 weights packed as GPTQ's"}  # which stands for those of AWQ and AQLM too
HEADLINES = {FITS: "FITS", TIGHT: "TIGHT", DOES_NOT_FIT: "DOES NOT FIT"}


def name_of(value: Any) -> str:
    """The short name of a model or GPU in a resolved job: the profile's name, or that of a mapping."""
    if isinstance(value, Mapping):
        return str(value.get("name") or "unnamed")
    return str(value)


def run_words(job: Mapping[str, Any]) -> str:
    """`micro-batch 2 x 256 accumulation steps = global batch 512`, with the GPUs where there are several."""
    micro, steps, whole = (
        job.get(key) for key in ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size")
    )
    words = f"micro-batch {micro}"
    if steps is not None:
        words += f" × {steps} accumulation {'step' if steps == 1 else 'steps'}"
    ranks = (job.get("parallel") or {}).get("data") or 1
    if ranks > 1:
        words += f" × {ranks} GPUs"
    return words + (f" = global batch {whole}" if whole is not None else "")


def degrees(job: Mapping[str, Any]) -> dict[str, int]:
    """How many devices each kind of parallelism multiplies by; experts are shared by devices that are counted here."""
    parallel = job.get("parallel") or {}
    return {key: parallel.get(key) or 1 for key in ("data", "tensor", "pipeline", "context")}


def device_words(job: Mapping[str, Any]) -> str:
    """`64: data 4 x tensor 8 x pipeline 2, sharding fsdp`; nothing for one device."""
    parallel = job.get("parallel") or {}
    sizes = degrees(job)
    whole = prod(sizes.values())
    if whole == 1:
        return ""
    parts = [f"{key} {size}" for key, size in sizes.items() if size > 1]
    words = f"{whole}: " + " × ".join(parts)
    if (parallel.get("expert") or 1) > 1:
        words += f", expert {parallel['expert']}"
    if parallel.get("sequence_parallel"):
        words += ", sequence parallel"
    sharding = parallel.get("sharding")
    if sharding in {None, "none"}:
        return words
    words += f", sharding {sharding}"
    shards = parallel.get("shards")
    grouped = sharding == "fsdp-grad-op" and shards is not None and shards < sizes["data"] * sizes["context"]
    return words + (f" over {shards}" if grouped else "")


def margin_words(result: FitResult, figures: ShownFigures) -> str:
    """The range; closed forms have none, and are compared with printed GB."""
    if by_textbook(result):
        return f"{text_of(gb_near(result.peak.device_bytes))} of {text_of(gb_near(result.usable_bytes))} GB"
    return f"range {text_of(figures.low)} to {text_of(figures.high)}"


def verdict_words(result: FitResult) -> str:
    """`TIGHT, more likely not`."""
    return HEADLINES.get(result.verdict, result.verdict) + (", more likely not" if is_unlikely(result) else "")


def is_unlikely(result: FitResult) -> bool:
    """Whether a tight verdict is above the usable memory by the likely figure."""
    return result.verdict == TIGHT and result.headroom_bytes < 0


def room_words(figures: ShownFigures) -> str:
    """`2.16 GiB free`, `8.33 GiB too much`."""
    return f"{text_of(abs(figures.headroom))} GiB {'too much' if figures.headroom < 0 else 'free'}"


def subject(result: FitResult, room: int | None = None) -> str:
    """`gpt2-xl on v100, amp-fp16, fp32 weights, 1024 tokens`; all devices are counted, as in `on 16 x h100`.

    `room`: letters of the model's name and of the GPU's, where these may be long.
    """
    job = result.job
    devices = prod(degrees(job).values())
    count = f"{devices} × " if devices > 1 else ""
    model, gpu = (one if room is None else elide(one, room) for one in map(name_of, (job.get("model"), job.get("gpu"))))
    parts = [f"{model}{_stands_in(job)} on {count}{gpu}", *shared_words(job)]
    parts += [str(job.get("precision"))] if job.get("precision") else []
    parts += [WEIGHTS.get(result.weight_dtype, f"{result.weight_dtype} weights")] if result.weight_dtype else []
    return ", ".join([*parts, *sample_words(job)])


def _stands_in(job: Mapping[str, Any]) -> str:
    """Of a model type that is not modelled, by which it is answered."""
    model = job.get("model")
    if not isinstance(model, Mapping) or not model.get("unknown_type"):
        return ""
    return f" (unknown type {clean(model['unknown_type'])}, answered as {model['transformers_model_type']})"


def shared_words(job: Mapping[str, Any]) -> list[str]:
    """How several GPUs share a run: `FSDP`, `ZeRO-3`, `tensor parallel 8`."""
    parallel = job.get("parallel") or {}
    sizes = degrees(job)
    words = [f"{key} parallel {sizes[key]}" for key in ("tensor", "pipeline", "context") if sizes[key] > 1]
    if (parallel.get("expert") or 1) > 1:
        words.append(f"expert parallel {parallel['expert']}")
    sharding = str(parallel.get("sharding") or "none")
    if sharding == "none" or (prod(sizes.values()) == 1 and not sharding.startswith("zero")):
        return words
    kind, _, groups = sharding.partition(":")
    known = {"fsdp-grad-op": "FSDP SHARD_GRAD_OP", "hsdp": f"HSDP over {groups}", "ddp": "DDP", "fsdp": "FSDP"}
    name = f"ZeRO-{kind[4:]}" if kind.startswith("zero") else known.get(kind, sharding)
    hosted = any(word != "activations" for word in job.get("offload") or ())
    return [f"{name} with offload" if hosted else name, *words]


def sample_words(job: Mapping[str, Any]) -> list[str]:
    """What a sample is made of: `1024 tokens`, `224 pixels`, both, or nothing that the job says."""
    tokens = [tokens_of(job)] if job.get("sequence_length") is not None else []
    return tokens + ([f"{job['image_size']} pixels"] if job.get("image_size") is not None else [])


def tokens_of(job: Mapping[str, Any]) -> str:
    """`1024 tokens`; `1024 tokens, target 128` where a decoder has another length; `240000 samples, 240 letters`."""
    target, model = job.get("target_length"), job.get("model")
    if isinstance(model, Mapping) and model.get("waveform") is not None:
        return f"{job['sequence_length']} samples, {target} letters"
    return f"{job['sequence_length']} tokens" + (f", target {target}" if target is not None else "")


def judged_words(result: FitResult) -> str:
    """The batch to run with, or the one that was judged when none fits."""
    recommended = result.recommended
    if recommended.micro_batch_size is None:
        return f"judged at {run_words(result.job)}"
    batch = {
        "micro_batch_size": recommended.micro_batch_size,
        "gradient_accumulation_steps": recommended.gradient_accumulation_steps,
        "global_batch_size": recommended.global_batch_size,
    }
    return run_words({**result.job, **batch})


def strategy(result: FitResult) -> str:
    """The checkpointing to run with, or the one that was judged when none fits."""
    return str(result.recommended.activation_checkpointing or result.job.get("activation_checkpointing"))


def notes(result: FitResult) -> list[str]:
    """The warnings that the headline does not say."""
    said = set(result.broken_limits)
    return [
        text for text in result.warnings if text not in said and not (is_unlikely(result) and "more likely not" in text)
    ]


def value_text(value: Any) -> str:
    """A value as the job format writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {value_text(item)}" for key, item in value.items()) + "}"
    return str(value)


def headline(result: FitResult, figures: ShownFigures, width: int) -> list[Line]:
    """The verdict, the likely figure against the usable memory, what to run, and the notes."""
    title = [Span(verdict_words(result), result.verdict), Span("  " + subject(result), "strong")]
    lines = wrap(title, width, rest=2)
    for broken in result.broken_limits:
        lines += wrap([Span("limit: ", "note"), Span(broken)], width, first=2, rest=9)

    spans = [Span(text_of(figures.device), "strong"), Span(f" of {text_of(figures.usable)} GiB per GPU, ")]
    spans.append(Span(f"{margin_words(result, figures)}, ", "muted"))
    spans.append(Span(room_words(figures), "over" if figures.headroom < 0 else ""))
    lines += wrap(spans, width, first=2, rest=2)

    lines += wrap(
        [Span(f"{judged_words(result)}, checkpointing {elide(strategy(result), 26)}")], width, first=2, rest=2
    )
    for warning in notes(result):
        lines += wrap([Span("note: ", "note"), Span(warning)], width, first=2, rest=8)
    return lines


def changes_title(result: FitResult) -> str:
    """The title over changes of a job, each of which is enough."""
    return "What would make it fit" if result.verdict == DOES_NOT_FIT else "What would save memory"
