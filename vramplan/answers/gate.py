"""Gates: whether the verdict of a job is the expected one. It fails closed: what cannot be computed did not pass."""

from __future__ import annotations

from math import ceil

from vramplan.exit_codes import ExitCode
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT, FitResult
from vramplan.results.figures import Figures
from vramplan.results.listings import CheckRow
from vramplan.values.textbook import AnyJob, TextbookJob


def gate(result: FitResult | Figures, job: AnyJob, *, strict: bool) -> CheckRow:
    """Judge a result against `expect` and `max_utilization` (docs/job-format.md, "Gates")."""
    passed, code, reasons = _judge(result, job, strict)
    if isinstance(job, TextbookJob):
        reasons.append("textbook figures, not a prediction")
    return CheckRow(name=job.name, result=result, passed=passed, exit_code=code, reasons=tuple(reasons))


def _judge(result: FitResult | Figures, job: AnyJob, strict: bool) -> tuple[bool, int, list[str]]:
    verdict = result.verdict
    if job.expect != FITS:
        if verdict == job.expect:
            return True, ExitCode.OK, []
        return False, ExitCode.DOES_NOT_FIT, [f"the job expects {job.expect}, and the verdict is {verdict}"]
    if verdict == DOES_NOT_FIT:
        return False, ExitCode.DOES_NOT_FIT, ["does not fit"]
    if verdict == TIGHT and result.headroom_bytes < 0:
        reason = "tight, and the estimate is above the usable memory: more likely than not it does not fit"
        return False, ExitCode.DOES_NOT_FIT, [reason]
    if result.broken_limits:
        return False, ExitCode.DOES_NOT_FIT, list(result.broken_limits)
    if verdict == TIGHT:
        if result.headroom_bytes < 0:
            reason = "tight, and the estimate is above the usable memory: more likely than not it does not fit"
            return False, ExitCode.DOES_NOT_FIT, [reason]
        reason = "tight: the estimate is within the usable memory, and its range crosses it"
        if strict:
            return False, ExitCode.TIGHT, [reason]
        return True, ExitCode.OK, [reason]
    if result.utilization > job.max_utilization:
        used = ceil(1000 * result.utilization) / 10  # up: what is above the limit is not shown as if it were at it
        reason = f"utilization {used:.1f}% is above max_utilization {100 * job.max_utilization:.4g}%"
        return False, ExitCode.DOES_NOT_FIT, [reason]
    return True, ExitCode.OK, []


MOST_REMEDIES = 3  # that a gate names in words; the document has all


def remedies_in_words(result: FitResult) -> list[str]:
    """What would make the job fit, the cheapest first."""
    remedies = result.remedies or ()
    return [f"{one.verdict} with {one.option}" for one in remedies[:MOST_REMEDIES]]


def exit_code(rows: list[CheckRow]) -> int:
    """Bad input outranks a failed gate, which outranks a tight one."""
    codes = {row.exit_code for row in rows}
    for code in (ExitCode.BAD_INPUT, ExitCode.DOES_NOT_FIT, ExitCode.TIGHT):
        if code in codes:
            return code
    return ExitCode.OK
