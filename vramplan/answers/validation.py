"""Predicted against measured, like with like (docs/job-format.md, "Results, in JSON")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.exit_codes import ExitCode
from vramplan.results import FITS, FitResult
from vramplan.results.listings import ValidateRow
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
        predicted = predicted_bytes(result, metric, measured_bytes)
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
    )


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


def predicted_bytes(result: FitResult, metric: str | None, measured_bytes: int) -> int:
    """The figure of ours that a metric is comparable with."""
    peak = result.peak
    if metric == "allocated":
        return peak.allocated_bytes
    if metric == "reserved":
        return peak.reserved_bytes
    if metric == "device":
        return peak.device_bytes
    return min(max(measured_bytes, peak.allocated_bytes), peak.device_bytes)
