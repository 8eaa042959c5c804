"""How good the predictions of many measured cases are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vramplan.results import DOES_NOT_FIT, FITS, TIGHT
from vramplan.results.listings.ladders import LadderStep, ladder_steps
from vramplan.results.listings.measured import UNSPECIFIED, ErrorStats, ValidateRow
from vramplan.results.listings.rates import RateSummary

RAN, DIED = "fits", "oom"  # what a source says of a run
JUDGED = ("high", "medium")  # the confidence of cases that a total counts; a case that names none counts too


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStats:
    """Runs whose source says that they fitted, or died: what was predicted for them.

    `verdicts[measured][verdict]` are counts. A tight verdict says that both may happen: it recalls either, and is no
    prediction of which precision could be asked. `right` counts outcomes, where it is on the side of its headroom.
    """

    verdicts: Mapping[str, Mapping[str, int]]
    recall: Mapping[str, float | None]  # of those that ran or died, the share that the verdict allows
    precision: Mapping[str, float | None]  # of those whose verdict is fits or does-not-fit, the share that did
    right: int
    total: int

    @property
    def died_called_fits(self) -> int:
        """Runs that died, of which the verdict is fits; tight is none."""
        return self.verdicts[DIED][FITS]

    @classmethod
    def of(cls, rows: Iterable[ValidateRow]) -> LabelStats:
        """Count the rows that have both labels."""
        verdicts = {measured: dict.fromkeys((FITS, TIGHT, DOES_NOT_FIT), 0) for measured in (RAN, DIED)}
        pairs = []
        for row in rows:
            if row.result is not None and row.outcome in verdicts and row.measured_outcome in verdicts:
                verdicts[row.measured_outcome][row.result.verdict] += 1
                pairs.append((row.outcome, row.measured_outcome))

        certain, other = {RAN: FITS, DIED: DOES_NOT_FIT}, {RAN: DOES_NOT_FIT, DIED: FITS}

        def recalled(measured: str) -> float | None:
            mine = verdicts[measured]
            total = sum(mine.values())
            return 1 - mine[other[measured]] / total if total else None

        def precise(measured: str) -> float | None:
            called = sum(counts[certain[measured]] for counts in verdicts.values())
            return verdicts[measured][certain[measured]] / called if called else None

        return cls(
            verdicts=verdicts,
            recall={word: recalled(word) for word in (RAN, DIED)},
            precision={word: precise(word) for word in (RAN, DIED)},
            right=sum(a == b for a, b in pairs),
            total=len(pairs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BandStats:
    """How many measured peaks lie in their bands, and how wide these are against the device figure."""

    count: int
    covered: int
    median_width: float | None

    @classmethod
    def of(cls, rows: Sequence[ValidateRow]) -> BandStats:
        """Count the rows that have a band to compare with."""
        widths = sorted(row.band_width for row in rows if row.band_width is not None)
        middle = ErrorStats.of(widths).median
        return cls(count=len(widths), covered=sum(bool(row.in_band) for row in rows), median_width=middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnspecifiedStats:
    """Peaks of which the source does not say whether they are allocated, reserved or of the device.

    Inside is a peak between the predicted allocated and device figures, which says little: no error is known of it.
    `outside` are errors of the others, against the nearer of the two figures.
    """

    count: int
    inside: int
    outside: ErrorStats

    @classmethod
    def of(cls, rows: Iterable[ValidateRow]) -> UnspecifiedStats:
        """Count the rows with such a peak."""
        errors = [row.relative_error for row in rows if row.metric == UNSPECIFIED and row.relative_error is not None]
        outside = [error for error in errors if error]
        return cls(count=len(errors), inside=len(errors) - len(outside), outside=ErrorStats.of(outside))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateSummary:
    """How good the predictions are. `outcomes_*`: cases whose source says whether the run fitted.

    Errors are of peaks whose metric the source names. The others are in `unspecified`, and a group of `per_metric`.
    """

    computed: int
    errors: int
    per_metric: Mapping[str, ErrorStats]
    per_runtime: Mapping[str, ErrorStats]
    per_devices: Mapping[str, ErrorStats] = field(default_factory=dict)  # one | several
    per_source: Mapping[str, ErrorStats] = field(default_factory=dict)  # by the titles of the sources
    peaks: ErrorStats | None = None  # of all cases of high or medium confidence
    unspecified: UnspecifiedStats | None = None
    labels: LabelStats | None = None
    bands: BandStats | None = None
    steps: tuple[LadderStep, ...] = ()
    rates: RateSummary | None = None  # None: no case has a measured rate

    @property
    def outcomes_right(self) -> int:
        """Cases that fit or die as predicted."""
        return 0 if self.labels is None else self.labels.right

    @property
    def outcomes_total(self) -> int:
        """Cases whose source says whether they did."""
        return 0 if self.labels is None else self.labels.total

    @property
    def judged_steps(self) -> tuple[LadderStep, ...]:
        """Those that are large enough to be judged."""
        return tuple(step for step in self.steps if step.is_judged)

    @classmethod
    def of(cls, rows: Iterable[ValidateRow]) -> ValidateSummary:
        """Group the relative errors of `rows`, in order of first appearance."""
        rows = tuple(rows)
        computed = [row for row in rows if row.result is not None]
        trusted = [row for row in computed if row.confidence in (None, *JUDGED) and row.relative_error is not None]
        named = [row for row in computed if row.names_metric]
        judged = [row for row in trusted if row.names_metric]

        def grouped(key: str, among: Sequence[ValidateRow]) -> dict[str, ErrorStats]:
            groups: dict[str, list[float]] = {}
            for row in among:
                name = getattr(row, key)
                if name is not None and row.relative_error is not None:
                    groups.setdefault(name, []).append(row.relative_error)
            return {name: ErrorStats.of(errors) for name, errors in groups.items()}

        return cls(
            computed=len(computed),
            errors=len(rows) - len(computed),
            per_metric=grouped("metric", computed),
            per_runtime=grouped("runtime", named),
            per_devices=grouped("devices", judged),
            per_source=grouped("source", named),
            peaks=ErrorStats.of([row.relative_error for row in judged if row.relative_error is not None]),
            unspecified=UnspecifiedStats.of(computed),
            labels=LabelStats.of(computed),
            bands=BandStats.of(trusted),
            steps=tuple(ladder_steps(rows)),
            rates=RateSummary.of(rows) if any(row.measured_rate is not None for row in rows) else None,
        )
