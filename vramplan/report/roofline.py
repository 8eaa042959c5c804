"""What is said about the time of a step: the JSON document, tables for a person, rows, and Markdown."""

from __future__ import annotations

from typing import Any

from vramplan.report import markdown as page
from vramplan.report.csv import written
from vramplan.report.headline import NARROWEST, WIDEST
from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.numbers import share_text
from vramplan.report.times import PART_WORDS, seconds_text, three, time_words
from vramplan.results import SCHEMA_VERSION, fit_document
from vramplan.results.roofline import OUTSIDE, BlockRow, KernelRow, Roofline
from vramplan.version import __version__

CSV = (
    *("operator", "direction", "kind", "runs", "flops", "bytes", "seconds"),
    *("share", "flop_per_byte", "flop_per_s", "bound"),
)
LEAST = 0.002  # of the step: kernels below are summed in the tables for people


def document(answer: Roofline) -> dict[str, Any]:
    """The answer of `vramplan explain --time`. Kernels and blocks are of one micro-batch on the slowest device."""
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "name": answer.fit.name,
        "job": fit_document(answer.fit, exit_code=0)["job"],
        "time": answer.time.to_dict(),
        "micro_batches": answer.steps,
        "product_flop_per_s": answer.product_flop_per_s,
        "bytes_per_s": answer.bytes_per_s,
        "ridge_flop_per_byte": answer.ridge,
        "kernels": [_kernel(row) for row in answer.kernels],
        "blocks": [row._asdict() for row in answer.blocks],
        "collectives": [row._asdict() for row in answer.collectives],
    }


def _kernel(row: KernelRow) -> dict[str, Any]:
    return {
        **row._asdict(),
        "shapes": [list(shape) for shape in row.shapes],
        "flop_per_byte": row.intensity,
        "flop_per_s": row.flop_per_s,
    }


def text(answer: Roofline, *, width: int | None) -> list[Line]:
    """Tables in at most `width` columns."""
    width = max(NARROWEST, min(width or WIDEST, 120))
    likely, between, rate, utilisation, bound = time_words(answer.time)
    lines = wrap([Span(likely, "strong"), Span(f" ({between}), {rate}, {utilisation}, {bound}")], width, rest=2)
    steps = f"{answer.steps} micro-batch{'es' if answer.steps > 1 else ''} in a step; "
    reached = f"products reach {_tera(answer.product_flop_per_s)}, memory {answer.bytes_per_s / 1e9:.0f} GB/s: "
    ridge = f"a kernel with less than {three(answer.ridge)} FLOP/byte waits for memory"
    lines += [*wrap([Span(steps + reached + ridge, "muted")], width, rest=2), ()]
    lines += _table("Parts of the step", ["part", "time", "share"], _parts(answer), width, left=1)
    lines += _table("Operators, one micro-batch", list(OPERATORS), _operators(answer), width, left=3)
    lines += _table(
        "Blocks, one micro-batch, each", list(BLOCKS), [_block(row) for row in answer.blocks], width, left=1
    )
    if answer.collectives:
        lines += _table("Collectives", list(COLLECTIVES), _collectives(answer), width, left=3)
    return lines[:-1]


OPERATORS = ("operator", "direction", "bound by", "runs", "time", "share", "GFLOP", "GB", "FLOP/B", "TFLOP/s")
BLOCKS = ("blocks", "forward", "again", "backward", "GFLOP", "GB", "share of all")
COLLECTIVES = ("collective", "among", "when", "times", "MB", "time each", "beside kernels")


def _parts(answer: Roofline) -> list[list[str]]:
    whole, shares = answer.time.step_seconds, answer.time.shares
    return [[PART_WORDS[part], _time(share * whole), share_text(share)] for part, share in shares.items() if share]


def _operators(answer: Roofline) -> list[list[str]]:
    shown = [row for row in answer.kernels if row.share >= LEAST]
    rest = [row for row in answer.kernels if row.share < LEAST]
    rows = [
        [
            row.operator,
            row.direction,
            row.bound,
            str(row.runs),
            _time(row.seconds),
            share_text(row.share),
            _giga(row.flops),
            _giga(row.bytes),
            "-" if row.intensity is None else three(row.intensity),
            three(row.flop_per_s / 1e12),
        ]
        for row in shown
    ]
    if rest:
        sums = [sum(one) for one in zip(*((row.runs, row.flops, row.bytes) for row in rest), strict=True)]
        seconds = sum(row.seconds for row in rest)
        rows.append(
            [
                f"{len(rest)} others",
                "",
                "",
                str(sums[0]),
                _time(seconds),
                share_text(sum(row.share for row in rest)),
                _giga(sums[1]),
                _giga(sums[2]),
                "",
                "",
            ]
        )
    return rows


def _block(row: BlockRow) -> list[str]:
    name = OUTSIDE
    if row.first is not None:
        several = row.blocks_each > 1
        name = f"{row.first}-{row.first + row.blocks_each - 1}" if several else f"{row.first}"
        name += f" and {row.copies - 1} like {'them' if several else 'it'}" if row.copies > 1 else ""
    seconds = (row.forward_seconds, row.recompute_seconds, row.backward_seconds)
    return [name, *map(_time, seconds), _giga(row.flops), _giga(row.bytes), share_text(row.share)]


def _collectives(answer: Roofline) -> list[list[str]]:
    return [
        [
            row.kind,
            f"{row.devices} ({row.group})",
            row.when,
            str(row.times),
            f"{row.size_bytes / 1e6:.1f}",
            _time(row.seconds),
            "yes" if row.hidden else "no",
        ]
        for row in answer.collectives
    ]


def _table(title: str, names: list[str], rows: list[list[str]], width: int, *, left: int) -> list[Line]:
    drop = {"GFLOP": 3, "TFLOP/s": 4, "runs": 5, "MB": 3, "GB": 2, "FLOP/B": 4, "when": 2}
    columns = [Column(name, right=number >= left, drop=drop.get(name, 0)) for number, name in enumerate(names)]
    cells: list[list[Cell]] = [list(row) for row in rows]
    return [(Span(title, "heading"),), *table(columns, cells, width), ()]


def _time(seconds: float) -> str:
    if 0 < seconds < 1e-3:
        return f"{three(1e6 * seconds)} us"
    return seconds_text(seconds) if seconds else "-"


def _giga(number: float) -> str:
    return three(number / 1e9) if number else "-"


def _tera(rate: float) -> str:
    return f"{three(rate / 1e12)} TFLOP/s"


def csv(answer: Roofline) -> str:
    """One row for each operator and direction."""
    return written(CSV, [{key: _kernel(row)[key] for key in CSV} for row in answer.kernels])


def markdown(answer: Roofline) -> str:
    """The tables in Markdown."""
    likely, between, rate, utilisation, bound = time_words(answer.time)
    sections = [
        [f"**{likely}** ({between}), {rate}, {utilisation}, {bound}"],
        page.table(["part", "time", "share"], _parts(answer)),
        page.table(OPERATORS, _operators(answer)),
        page.table(BLOCKS, [_block(row) for row in answer.blocks]),
    ]
    if answer.collectives:
        sections.append(page.table(COLLECTIVES, _collectives(answer)))
    return page.page(sections)
