"""What `vramplan calibrate` found on this machine, and where it wrote it."""

from __future__ import annotations

from typing import Any

from vramplan.report.csv import written
from vramplan.report.lines import Column, Line, Span, table, wrap
from vramplan.report.lists import ENDLESS
from vramplan.report.markdown import page
from vramplan.report.markdown import table as grid
from vramplan.results import SCHEMA_VERSION
from vramplan.results.measure import Calibration

MIB = 2**20
LEFT_OUT = ("text",)


def document(answer: Calibration) -> dict[str, Any]:
    """The JSON document."""
    return {"schema_version": SCHEMA_VERSION} | {
        key: value for key, value in answer._asdict().items() if key not in LEFT_OUT
    }


def text(answer: Calibration, *, width: int | None) -> list[Line]:
    """The figures, and what follows."""
    wide = width or ENDLESS
    lines = wrap([Span(_head(answer), "heading")], wide, rest=2)
    lines += table(
        [Column("figure"), Column("MiB", right=True), Column("of", fluid=True)],
        [list(row) for row in _rows(answer)],
        width,
    )
    for note in _notes(answer):
        lines += wrap([Span(note)], wide, first=2, rest=4)
    return lines


def csv(answer: Calibration) -> str:
    """One row."""
    found = document(answer)
    return written(tuple(found), [found])


def markdown(answer: Calibration) -> str:
    """The figures, and what follows."""
    return page([[_head(answer)], grid(["figure", "MiB", "of"], [list(row) for row in _rows(answer)]), _notes(answer)])


def _head(answer: Calibration) -> str:
    return f"{answer.gpu} ({answer.architecture}), PyTorch {answer.torch}, CUDA {answer.cuda}"


def _rows(answer: Calibration) -> list[tuple[str, str, str]]:
    group = answer.process_group_bytes
    return [
        ("context", _mib(answer.context_bytes), "in use beside the allocator after three small steps"),
        ("at first", _mib(answer.first_context_bytes), "the same after the first tensor"),
        ("workspace", _mib(answer.workspace_bytes), "of cuBLAS, of each thread that multiplies"),
        ("NCCL", "-" if group is None else _mib(group), "a communicator of two ranks"),
        ("reserved", _mib(answer.reserved_bytes), "by PyTorch's allocator after a fixed sequence"),
        ("simulated", _mib(answer.simulated_bytes), "by ours after the same"),
    ]


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"


def _notes(answer: Calibration) -> list[str]:
    notes = [f"written: {answer.file}" if answer.file else "not written"]
    notes.append(f"answers about {answer.architecture} GPUs take these figures, and their range is narrower")
    if answer.process_group_bytes is None:
        notes.append("one GPU is here: NCCL has the shipped figure, and ranges of several devices stay as wide")
    if answer.used_by_others_bytes is None:
        notes.append("no tool says what others use of the GPU: taken to be nothing")
    if not answer.allocator_agrees:
        notes.append("the allocators differ: this release has other rules than those that are simulated, or settings")
    return notes
