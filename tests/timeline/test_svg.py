"""The SVG: well-formed, self-contained, its figures those of the document, and no text over another."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.timeline.examples import EXAMPLES, GIB
from vramplan.replay.history import LONG_TO_SHORT
from vramplan.report.numbers import gib_down, gib_up, text_of
from vramplan.report.timeline import document
from vramplan.report.timeline_chart import Drawing
from vramplan.report.timeline_scale import axis
from vramplan.report.timeline_svg import BOTTOM, COLOURS, LEFT, RIGHT, TOP, svg_of

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ElementTree.Element) -> list[tuple[str, float, float, float, str]]:
    """Every text: words, x, y, size, anchor."""
    return [
        (
            "".join(node.itertext()),
            float(node.attrib["x"]),
            float(node.attrib["y"]),
            float(node.attrib["font-size"]),
            node.attrib.get("text-anchor", "start"),
        )
        for node in root.iter(f"{SVG}text")
    ]


def level_at(y: float, drawing: Drawing) -> float:
    """The bytes that a height of the picture means."""
    scale = axis(drawing.timeline, zoom=drawing.zoom)
    return scale.low + (BOTTOM - y) / (BOTTOM - TOP) * (scale.high - scale.low)


def pixel(drawing: Drawing) -> float:
    """Bytes of one pixel: heights are rounded to a tenth of one."""
    scale = axis(drawing.timeline, zoom=drawing.zoom)
    return (scale.high - scale.low) / (BOTTOM - TOP)


def test_it_is_one_file_that_needs_nothing_else(drawing: Drawing) -> None:
    made = svg_of(drawing)
    assert made.isascii()
    assert len(made) < 300_000
    root = ElementTree.fromstring(made)
    assert root.tag == f"{SVG}svg"
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
        *("svg", "title", "desc", "rect", "path", "circle", "text", "tspan"),
    }
    assert not re.search(r"href|url\(|@import|<style|<script|on\w+=", made)
    assert re.findall(r"https?://[^\"]*", made) == ["http://www.w3.org/2000/svg"]


def test_the_peak_is_the_dot_and_the_figure(drawing: Drawing) -> None:
    root = ElementTree.fromstring(svg_of(drawing))
    peak = document(drawing)["peak"]
    (dot,) = root.iter(f"{SVG}circle")
    assert level_at(float(dot.attrib["cy"]), drawing) == pytest.approx(peak["allocated_bytes"], abs=pixel(drawing))
    figure = text_of(gib_up(peak["allocated_bytes"]))
    (said,) = [words for words, *_ in texts(root) if words.startswith("peak ")]
    assert said.startswith(f"peak {figure} GiB")
    assert peak["operator"] in said
    assert any(f"{figure} GiB" == words for words, *_ in texts(root))


def test_the_labels_of_the_axis_stand_at_their_heights(drawing: Drawing) -> None:
    root = ElementTree.fromstring(svg_of(drawing))
    labels = [(float(words), y) for words, x, y, _, _ in texts(root) if x == LEFT - 10 and words != "GiB"]
    assert len(labels) >= 2
    for figure, y in labels:
        assert level_at(y - 4, drawing) == pytest.approx(figure * GIB, abs=pixel(drawing))


def test_the_limit_is_drawn_or_said(drawing: Drawing) -> None:
    root = ElementTree.fromstring(svg_of(drawing))
    limit = document(drawing)["allocated_limit_bytes"]
    figure = f"{text_of(gib_down(limit))} GiB"
    dashed = [node for node in root.iter(f"{SVG}path") if "stroke-dasharray" in node.attrib]
    said = " ".join(words for words, *_ in texts(root))
    assert figure in said
    if axis(drawing.timeline, zoom=drawing.zoom).limit is None:
        assert not dashed
        assert "picture" in said
    else:
        (line,) = dashed
        y = float(re.findall(r"[\d.]+", line.attrib["d"])[1])
        assert level_at(y, drawing) == pytest.approx(limit, abs=pixel(drawing))


def test_areas_end_at_the_highest_level_of_their_component(drawing: Drawing) -> None:
    """The highest point of the area of the last component that can be seen is the peak."""
    root = ElementTree.fromstring(svg_of(drawing))
    areas = [node for node in root.iter(f"{SVG}path") if node.find(f"{SVG}title") is not None]
    assert areas
    heights = [float(y) for node in areas for y in re.findall(r"V([\d.]+)", node.attrib["d"])]
    peak = document(drawing)["peak"]["allocated_bytes"]
    assert level_at(min(heights), drawing) == pytest.approx(peak, abs=pixel(drawing))
    for node in areas:
        xs = [float(x) for x in re.findall(r"[MH]([\d.]+)", node.attrib["d"])]
        assert LEFT == min(xs) <= max(xs) == RIGHT
        assert node.attrib["fill"] == COLOURS[node.findtext(f"{SVG}title") or ""]


def overlaps(one: Any, other: Any) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_no_text_is_over_another_or_outside(drawing: Drawing) -> None:
    """A letter is about 0.56 of the size wide on average in the fonts that are asked for."""
    root = ElementTree.fromstring(svg_of(drawing))
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    boxes = []
    for words, x, y, size, anchor in texts(root):
        wide = 0.56 * size * len(words)
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        assert left >= 0, words
        assert left + wide <= width, words
        assert y + 0.3 * size <= height, words
        boxes.append((left, y - 0.75 * size, left + wide, y + 0.22 * size, words))
    for one, other in combinations(boxes, 2):
        assert not overlaps(one, other), (one, other)


def test_every_component_has_a_colour_of_its_own() -> None:
    assert set(LONG_TO_SHORT) == set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_what_comes_from_outside_is_text() -> None:
    made = svg_of(EXAMPLES["nasty"])
    assert "\x1b" not in made
    assert "a&lt;b&gt; &amp;amp;" in made
