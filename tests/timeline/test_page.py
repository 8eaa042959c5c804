"""The pictures in docs/timeline.md are what the program draws."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.running import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "timeline.md"
JOB = ("--model", "gpt2-xl", "--gpu", "v100")
PICTURES = {"timeline.svg": JOB, "timeline-zoom.svg": (*JOB, "--zoom")}


@pytest.mark.snapshot
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_the_page_is_current(name: str) -> None:
    """VRAMPLAN_UPDATE_GOLDEN=1 draws it again."""
    path = PAGE.parent / "images" / name
    drawn = run("timeline", *PICTURES[name], "--svg", "-").out
    if os.environ.get("VRAMPLAN_UPDATE_GOLDEN"):
        path.write_text(drawn, "utf-8")
    assert path.read_text("utf-8") == drawn
    ElementTree.parse(path)


def test_the_page_shows_these_pictures_and_no_others() -> None:
    text = PAGE.read_text("utf-8")
    assert re.findall(r"!\[[^\]]+\]\(images/([^)]+)\)", text) == list(PICTURES)
    assert {path.name for path in (PAGE.parent / "images").glob("timeline*")} == set(PICTURES)
