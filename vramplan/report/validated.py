"""What a person sees of `vramplan validate`: errors by group, bands, labels, ladders, the worst cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.lists import ABOVE, ENDLESS
from vramplan.report.numbers import count, gib_up, share_text, text_of
from vramplan.report.times import three
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT
from vramplan.results.listings import UNSPECIFIED, ErrorStats, RateSummary, ValidateRow, ValidateSummary


def render_validate(
    rows: Iterable[ValidateRow], summary: ValidateSummary | None = None, *, width: int | None = None, worst: int = 5
) -> list[Line]:
    """How good the predictions are, per metric and per runtime; then the `worst` cases and every error."""
    rows = tuple(rows)
    summary = summary or ValidateSummary.of(rows)
    lines: list[Line] = []
    per_devices = dict(summary.per_devices)
    if summary.peaks is not None and summary.peaks.count and len(per_devices) > 1:
        per_devices["all"] = summary.peaks
    by = (
        ("metric", named_metrics(summary)),
        ("runtime", summary.per_runtime),
        ("source", summary.per_source),
        ("devices", per_devices),
    )
    for title, groups in by:
        if groups:
            lines += [*_stats(title, groups, width), ()]
    if unspecified_text(summary):
        heading = Span("Without a metric", "heading")
        lines += [*wrap([heading, Span(f"  {unspecified_text(summary)}")], width or ENDLESS, rest=2), ()]
    lines += _bands(summary, width)
    lines += _labels(summary, width)
    if summary.steps:
        lines += [*_ladders(summary, width), ()]
    lines += _rates(summary, width)
    lines += _slowest(rows, width, worst)
    compared = [row for row in rows if row.relative_error is not None]
    compared.sort(key=lambda row: -abs(row.relative_error or 0.0))
    if compared[:worst]:
        lines.append((Span("Worst cases", "heading"),))
        cells: list[list[Cell]] = [
            [
                row.name,
                row.metric or "-",
                row.runtime or "-",
                _gib(row.predicted_bytes),
                _gib(row.measured_bytes),
                _error(row),
            ]
            for row in compared[:worst]
        ]
        columns = [
            Column("case", most=48),
            Column("metric", drop=1),
            Column("runtime", drop=2),
            Column("predicted GiB", right=True),
            Column("measured GiB", right=True),
            Column("error", right=True),
        ]
        lines += [*table(columns, cells, width), ()]
    failed = [row for row in rows if row.result is None]
    if failed:
        lines.append((Span("Errors", "heading"),))
        for row in failed:
            spans = [Span(f"{row.name}: ", "error"), Span(ABOVE)]
            lines += wrap(spans, width or ENDLESS, first=2, rest=4)
        lines.append(())
    total = summary.computed + summary.errors
    words = f"{count(total, 'case')}: {summary.computed} computed, {count(summary.errors, 'error')}"
    return lines + wrap([Span(words)], width or ENDLESS)


def _rates(summary: ValidateSummary, width: int | None) -> list[Line]:
    """Errors of predicted rates, and beside them those of a constant utilisation."""
    rates = summary.rates
    if rates is None or not rates.count:
        return []
    cells: list[list[Cell]] = [list(row) for row in rate_rows(rates)]
    columns = [Column("rate", most=28), *(Column(word, right=True) for word in RATE_COLUMNS)]
    words = "  order: pairs of one source, model, GPU and precision that differ by more than 5 %"
    if rates.without:
        words += f"; {count(rates.without, 'case')} without a known peak rate of the GPU"
    heading = [Span("Error of the rate", "heading"), Span(words)]
    return [*wrap(heading, width or ENDLESS, rest=2), *table(columns, cells, width), ()]


RATE_COLUMNS = ("cases", "median", "p90", "worst", "bias", "order", "pairs")


def rate_rows(rates: RateSummary) -> list[list[str]]:
    """Errors of predicted rates by basis, and of a constant utilisation, in the order of `RATE_COLUMNS`."""
    groups = {
        "calibrated": rates.calibrated,
        "extrapolated": rates.extrapolated,
        "all": rates.together,
        "constant MFU, calibrated": rates.constant_calibrated,
        "constant MFU, all": rates.constant,
    }
    return [
        [
            name,
            str(stats.errors.count),
            share_text(stats.errors.median),
            share_text(stats.errors.p90),
            share_text(stats.errors.worst),
            share_text(stats.errors.bias, signed=True),
            share_text(stats.order),
            str(stats.order_total),
        ]
        for name, stats in groups.items()
        if stats.errors.count
    ]


def _slowest(rows: Iterable[ValidateRow], width: int | None, worst: int) -> list[Line]:
    """The cases whose rate is furthest off."""
    compared = [row for row in rows if row.rate_error is not None]
    compared.sort(key=lambda row: -abs(row.rate_error or 0.0))
    if not compared[:worst]:
        return []
    cells: list[list[Cell]] = [
        [
            row.name,
            row.rate_figure or "-",
            row.rate_basis or "-",
            three(row.predicted_rate or 0.0),
            three(row.measured_rate or 0.0),
            share_text(row.rate_error, signed=True),
        ]
        for row in compared[:worst]
    ]
    columns = [
        Column("case", most=48),
        Column("figure", drop=1),
        Column("basis", drop=2),
        Column("predicted", right=True),
        Column("measured", right=True),
        Column("error", right=True),
    ]
    return [(Span("Worst rates", "heading"),), *table(columns, cells, width), ()]


def named_metrics(summary: ValidateSummary) -> dict[str, ErrorStats]:
    """Errors by the metrics that sources name."""
    return {name: stats for name, stats in summary.per_metric.items() if name != UNSPECIFIED}


def unspecified_text(summary: ValidateSummary) -> str:
    """What is known of peaks whose source does not say what they are of; empty where there are none."""
    found = summary.unspecified
    if found is None or not found.count:
        return ""
    outside = found.outside
    words = f"{found.inside} of {count(found.count, 'measured peak')} whose source does not say what it measured "
    words += "lie between what is allocated and what the GPU shows"
    if outside.count:
        words += f"; the other {outside.count} are {share_text(outside.median)} away from them in the median, "
        words += f"at most {share_text(outside.worst)}"
    return f"{words}. No other error counts them"


def _bands(summary: ValidateSummary, width: int | None) -> list[Line]:
    bands = summary.bands
    if bands is None or not bands.count:
        return []
    words = f"  {bands.covered} of {count(bands.count, 'measured peak')} lie in the predicted range"
    words += f", whose median width is {share_text(bands.median_width)} of the prediction"
    return [*wrap([Span("Ranges", "heading"), Span(words)], width or ENDLESS, rest=2), ()]


def _labels(summary: ValidateSummary, width: int | None) -> list[Line]:
    """Runs that fitted or died, and what was predicted for them."""
    labels = summary.labels
    if labels is None or not labels.total:
        return []
    words = f"  {labels.right} of {count(labels.total, 'case')} fit or run out of memory as predicted; "
    words += f"{labels.died_called_fits} of those that died are called {FITS}"
    names = {"fits": "ran", "oom": "died"}
    cells: list[list[Cell]] = [
        [
            names[measured],
            *(str(number) for number in counts.values()),
            share_text(labels.recall[measured]),
            share_text(labels.precision[measured]),
        ]
        for measured, counts in labels.verdicts.items()
    ]
    columns = [Column("measured"), *(Column(word, right=True) for word in (FITS, TIGHT, DOES_NOT_FIT))]
    columns += [Column("recall", right=True), Column("precision", right=True, drop=1)]
    title = wrap([Span("Outcomes", "heading"), Span(words)], width or ENDLESS, rest=2)
    return [*title, *table(columns, cells, width), ()]


def _ladders(summary: ValidateSummary, width: int | None) -> list[Line]:
    """Pairs of runs that differ in one switch, those that are large enough to be judged, and how many are not."""
    judged = summary.judged_steps
    words = f"  {sum(step.has_sign for step in judged)} of {count(len(judged), 'pair')} go the right way"
    if judged:
        middle = ErrorStats.of([step.relative_error for step in judged]).median
        words += f", median error {share_text(middle)}"
    if len(summary.steps) > len(judged):
        words += f"; {len(summary.steps) - len(judged)} too small to say"
    cells: list[list[Cell]] = [
        [
            step.first,
            step.second,
            step.switch,
            _signed(step.predicted_bytes),
            _signed(step.measured_bytes),
            Span(share_text(step.relative_error, signed=True), "" if step.has_sign else "over"),
        ]
        for step in judged
    ]
    columns = [
        Column("from", most=40, drop=2),
        Column("to", most=40),
        Column("switch", drop=1),
        Column("predicted GiB", right=True),
        Column("measured GiB", right=True),
        Column("error", right=True),
    ]
    title = wrap([Span("Pairs of runs", "heading"), Span(words)], width or ENDLESS, rest=2)
    return title + (table(columns, cells, width) if cells else [])


def _signed(size: int) -> str:
    return f"{size / 2**30:+.2f}"


def _stats(title: str, groups: Mapping[str, ErrorStats], width: int | None) -> list[Line]:
    cells: list[list[Cell]] = [
        [
            name,
            str(stats.count),
            share_text(stats.median),
            share_text(stats.p90),
            share_text(stats.worst),
            share_text(stats.bias, signed=True),
        ]
        for name, stats in groups.items()
    ]
    columns = [
        Column(title, most=28),
        Column("cases", right=True),
        Column("median", right=True),
        Column("p90", right=True),
        Column("worst", right=True),
        Column("bias", right=True),
    ]
    heading = [Span(f"Error of the peak per {title}", "heading")]
    return wrap(heading, width or ENDLESS) + table(columns, cells, width)


def _error(row: ValidateRow) -> str:
    return error_text(row)


def error_text(row: ValidateRow) -> str:
    """The error of a peak; of one without a metric only whether it is between the two figures, or how far outside."""
    return (
        "inside"
        if row.metric == UNSPECIFIED and row.relative_error == 0
        else share_text(row.relative_error, signed=True)
    )


def _gib(size: int | None) -> str:
    return "-" if size is None else text_of(gib_up(size))
