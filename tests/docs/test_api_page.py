"""docs/api.md runs: each block of Python prints what the block of text behind it says.

`python -m tests.docs.test_api_page` writes into the page what is printed now.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import vramplan
from vramplan.errors import Problem
from vramplan.results import FitResult, Peak, Recommendation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
BLOCK = re.compile(
    r"^```python\n(?P<program>.*?)^```\n\n<!-- prints -->\n```text\n(?P<printed>.*?)^```$", re.MULTILINE | re.DOTALL
)
BLOCKS = list(BLOCK.finditer(PAGE.read_text("utf-8")))


def printed(program: str) -> str:
    """What a program prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(program, "docs/api.md", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.sweep(6)
@pytest.mark.snapshot
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["program"].splitlines()[-1].strip())
def test_a_program_prints_what_the_page_says(block: re.Match[str]) -> None:
    assert printed(block["program"]) == block["printed"], "python -m tests.docs.test_api_page rewrites the page"


def test_every_program_of_the_page_is_run() -> None:
    assert PAGE.read_text("utf-8").count("```python") == len(BLOCKS) >= 4


def test_every_name_and_field_is_described() -> None:
    words = {part for code in re.findall(r"`([^`\n]+)`", PAGE.read_text("utf-8")) for part in re.split(r"[.(]", code)}
    fields = {*FitResult._fields, *Peak._fields, *Recommendation._fields, *Problem._fields}
    assert {*vramplan.__all__, *fields, "to_dict"} - words == set()


@pytest.mark.parametrize("page", ["api.md", "cli.md", "completion.md"])
def test_one_sentence_per_line(page: str) -> None:
    text = PAGE.with_name(page).read_text("utf-8")
    for line in re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        if not line.startswith(("|", "#")):
            assert not re.search(r"[a-z`)][.?!] [A-Z`]", line), line


def rewritten(block: re.Match[str]) -> str:
    """The block with what is printed now."""
    program = block["program"]
    return f"```python\n{program}```\n\n<!-- prints -->\n```text\n{printed(program)}```"


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(rewritten, PAGE.read_text("utf-8")), "utf-8")
