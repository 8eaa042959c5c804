"""Predicted against measured, like with like (docs/job-format.md, "Results, in JSON")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import UsageError
from vramplan.exit_codes import ExitCode
from vramplan.planner.time import fitted
from vramplan.results import FITS, FitResult
from vramplan.results.listings import ValidateRow
from vramplan.results.listings.rates import FIGURES
from vramplan.results.time import Time
from vramplan.values.textbook import AnyJob, TextbookJob


def compare(result: FitResult, job: AnyJob) -> ValidateRow:
    """One measured case beside its prediction.

    `unspecified` is right anywhere between allocated and device, else its error is against the nearer one.
    """
    measured: dict[str, Any] = job.case.get("measured") or {}
    use = job.case.get("use")
    metric = measured.get("metric")
    measured_bytes: int | None = measured.get("peak_bytes")
    comparable = metric is not None and (use is None or "peak" in use)
    predicted, error, within, width = None, None, None, None
    if comparable and measured_bytes:
        predicted = predicted_bytes(_of_stage(result, measured.get("stage")), metric, measured_bytes)
        error = (predicted - measured_bytes) / measured_bytes
        within, width = band_of(result, measured_bytes - predicted)
    source = job.case.get("source")
    return ValidateRow(
        name=job.name,
        result=result,
        exit_code=ExitCode.OK,
        metric=metric if comparable else None,
        runtime=job.runtime.name,
        devices="one" if devices_of(job) == 1 else "several",
        ladder=job.case.get("ladder"),
        source=source.get("title") if isinstance(source, Mapping) else None,
        confidence=job.case.get("confidence"),
        in_band=within,
        band_width=width,
        predicted_bytes=predicted,
        measured_bytes=measured_bytes if comparable else None,
        relative_error=error,
        outcome="fits" if result.verdict == FITS or result.headroom_bytes >= 0 else "oom",
        measured_outcome=measured.get("outcome") if use is None or "fit" in use else None,
        **(_rate(result, job, measured) if use is None or RATES & {*use} else {}),
    )


RATES = frozenset({"mfu", "rate"})
"""Words of `use` that ask for a comparison of speed."""


def _rate(result: FitResult, job: AnyJob, measured: Mapping[str, Any]) -> dict[str, Any]:
    """The measured rate of a case beside the predicted one, and that of a constant utilisation.

    Of several figures that which the source has printed: one that was computed of it is among `inferred`.
    """
    given = [name for name in FIGURES if measured.get(name)]
    inferred = job.case.get("inferred") or ()
    name = next((name for name in given if f"measured.{name}" not in inferred), given[0] if given else None)
    if name is None:
        return {}
    value = float(measured[name])
    found: dict[str, Any] = {"rate_figure": name, "measured_rate": value}
    time = result.time
    if time is None or isinstance(job, TextbookJob):
        return found
    steady = fitted.CONSTANT_MFU.get(job.gpu.architecture or "", fitted.CONSTANT_MFU[""])
    faster = steady / time.mfu_percent
    predicted = _figure(time, name)
    if predicted is None:
        return found
    constant = predicted / faster if name == "step_seconds" else predicted * faster
    source = job.case.get("source")
    title = source.get("title") if isinstance(source, Mapping) else None

    def error(rate: float) -> float:
        return value / rate - 1 if name == "step_seconds" else rate / value - 1

    return found | {
        "predicted_rate": predicted,
        "rate_error": error(predicted),
        "constant_rate": constant,
        "constant_rate_error": error(constant),
        "rate_basis": time.basis,
        "rate_group": (str(title), job.model.name, job.gpu.name, "tf32" if job.tf32 else job.precision),
    }


def _figure(time: Time, name: str) -> float | None:
    """The predicted figure of that name; None where it has no meaning, as tokens of images."""
    return {
        "tokens_per_second": time.tokens_per_second_per_device,
        "samples_per_second": time.samples_per_second,
        "step_seconds": time.step_seconds,
        "tflops_per_device": time.hfu_percent / 100 * time.peak_flop_per_s / 1e12,
        "mfu": time.mfu_percent,
    }[name]


def band_of(result: FitResult, off_bytes: int) -> tuple[bool, float]:
    """Whether a run that is so far from its figure lies in the band, and how wide the band is.

    The band is one of the device figure; what a source measured further inside is as far off as the device would be.
    """
    peak = result.peak
    device = peak.device_bytes + off_bytes
    return peak.low_bytes <= device <= peak.high_bytes, (peak.high_bytes - peak.low_bytes) / peak.device_bytes


def devices_of(job: AnyJob) -> int:
    """All devices of a run."""
    split = None if isinstance(job, TextbookJob) else job.split
    return job.data_parallel_size * (1 if split is None else split.devices)


def counted_bytes(result: FitResult) -> int:
    """What `max_memory_allocated()` counts: tensors, and where the allocator is simulated whole blocks.

    Those of the workspaces of libraries are among them, and what was not split off a block that is a little larger.
    """
    simulated = result.allocator
    if simulated is None or simulated.out_of_memory is not None:
        return result.peak.allocated_bytes
    return max(result.peak.allocated_bytes, simulated.allocated_bytes)


def _of_stage(result: FitResult, number: int | None) -> FitResult:
    """The answer with the figures of one device of a pipeline, which has as much outside of its tensors as the worst.

    Raises UsageError if there is no such stage.
    """
    if number is None:
        return result
    stages = result.stages or ()
    if number >= len(stages):
        has = f"{len(stages)} stages, counted from 0" if stages else "no stages"
        raise UsageError(
            f"measured.stage is {number}, and the run has {has}", key="measured.stage", hint="leave it out"
        )
    peak, allocated, device = result.peak, stages[number].allocated_bytes, stages[number].device_bytes
    reserved = peak.reserved_bytes - peak.device_bytes + device
    held = result.allocator
    if held is not None:
        counted = max(held.allocated_bytes - peak.allocated_bytes + allocated, 0)
        held = held._replace(allocated_bytes=counted)
    moved = peak._replace(allocated_bytes=allocated, reserved_bytes=reserved, device_bytes=device)
    return result._replace(peak=moved, allocator=held)


def predicted_bytes(result: FitResult, metric: str | None, measured_bytes: int) -> int:
    """The figure of ours that a metric is comparable with."""
    peak = result.peak
    if metric == "allocated":
        return counted_bytes(result)
    if metric == "reserved":
        return peak.reserved_bytes
    if metric == "device":
        return peak.device_bytes
    return min(max(measured_bytes, peak.allocated_bytes), peak.device_bytes)
