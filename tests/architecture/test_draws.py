"""What everybody runs draws the same examples; `python -m tests.explore` finds all properties and what breaks them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test

from tests.drawing import Drawn
from tests.engine.examples import model, setup
from tests.pasted import NotWritten, source_of
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.replay.models.modules import Segment
from vramplan.values.job import Adapter
from vramplan.values.model import Experts

TESTS = Path(__file__).resolve().parents[1]

NOTED = """
from hypothesis import given, settings, strategies as st
from tests import drawing
drawing.install()

@settings(max_examples=50)
@given(st.integers(), st.sampled_from(["a", "b"]), st.floats(0, 1), st.data())
def test_noted(number, word, share, data):
    print("drawn", number, word, share, data.draw(st.integers(0, 700)))
"""

BROKEN = """
from hypothesis import given, strategies as st
from tests.drawing import Drawn

@given(st.integers(0, 5000))
def test_of_a_limit(tmp_path_factory, number):
    assert number < 1000

@given(st.data())
def test_of_data(data):
    first, second = data.draw(st.integers(1, 9)), data.draw(st.lists(st.booleans()))
    assert not second

@given(st.integers())
def test_of_what_holds(number):
    assert number == number

def test_of_no_property():
    raise AssertionError("this is no property")
"""


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, **environment}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=TESTS.parent, env=everything, capture_output=True, text=True, check=False)


@pytest.mark.sweep
def test_every_property_is_found_by_collection() -> None:
    """A function that is tested inside of another one would be drawn by nobody who explores."""
    hidden = []
    for path in TESTS.rglob("*.py"):
        tree = ast.parse(path.read_text())
        outer = {id(node) for node in tree.body} if path.name.startswith("test_") else set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            calls = [one.func for one in node.decorator_list if isinstance(one, ast.Call)]
            given = any(isinstance(call, ast.Name) and call.id == "given" for call in calls)
            if given and not (id(node) in outer and node.name.startswith("test_")):
                hidden.append(f"{path.relative_to(TESTS)}:{node.lineno}")
    assert hidden == []


def test_no_property_depends_on_chance_or_the_clock(request: pytest.FixtureRequest) -> None:
    functions = [getattr(item, "obj", None) for item in request.session.items]
    for function in functions:
        if is_hypothesis_test(function):
            own = function._hypothesis_internal_use_settings
            assert (own.derandomize, own.database, own.deadline) == (True, None, None), function
            assert HealthCheck.too_slow in own.suppress_health_check, function


@pytest.mark.sweep
def test_the_same_is_drawn_by_other_processes(tmp_path: Path) -> None:
    """Whatever the seed of hashes, the seed on the command line, the path and the modules that are imported before."""
    texts = []
    for folder, first, options, hashes in (
        ("tests", "", (), "1"),
        ("x", "import vramplan.job", ("--hypothesis-seed=9",), "2"),
    ):
        file = tmp_path / folder / "test_noted.py"
        file.parent.mkdir()
        file.write_text(f"{first}\n{NOTED}")
        done = ran("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options, str(file), PYTHONHASHSEED=hashes)
        assert done.returncode == 0, done.stdout
        texts.append([line for line in done.stdout.splitlines() if "drawn" in line])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 40


@pytest.mark.sweep
def test_exploring_prints_what_it_drew_and_what_can_be_pasted(tmp_path: Path) -> None:
    file = tmp_path / "test_broken.py"
    file.write_text(BROKEN)
    done = ran("-m", "tests.explore", "--seed", "3", "--jobs", "2", "--test", "not holds", str(file))  # no test is left
    assert done.returncode == 1, done.stderr
    examples = [line for line in done.stdout.splitlines() if line.startswith("@example(")]
    assert sorted(set(examples)) == ["@example(data=Drawn(1, [False]))", "@example(number=1000)"]
    assert "explore --seed 3 " in done.stdout
    assert "explore --seed 4 " in done.stdout  # the other process
    assert "2 property tests; 2 of them failed" in done.stdout
    assert "test_of_no_property" not in done.stdout

    pasted = BROKEN.replace("import given,", "import example, given,")
    for name, test in (("number", "test_of_a_limit"), ("data", "test_of_data")):
        text = next(line for line in examples if f"({name}=" in line)
        pasted = pasted.replace(f"def {test}", f"{text}\ndef {test}")
    file.write_text(pasted)
    again = ran("-m", "pytest", "-q", "-p", "no:cacheprovider", str(file))
    explicit = {
        line.rpartition("Failing explicit example: ")[2] for line in again.stdout.splitlines() if "explicit" in line
    }
    assert explicit == {"test_of_a_limit(", "test_of_data("}, again.stdout  # under CI pytest prints each of them twice


@pytest.mark.sweep
def test_exploring_ends_well_where_nothing_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_broken.py"
    file.write_text(BROKEN)
    quiet = ran("-m", "tests.explore", "--minutes", "0.01", "--test", "what_holds", str(file))
    assert (quiet.returncode, quiet.stderr) == (0, "")
    drawn = next(line.split() for line in quiet.stdout.splitlines() if line.endswith("::test_of_what_holds"))
    assert int(drawn[0].replace(",", "")) >= 100  # in the first round
    nobody = ran("-m", "tests.explore", "--minutes", "0.01", "--test", "nobody", str(file))
    assert nobody.returncode == 2
    file.write_text(
        BROKEN.replace("given, ", "given, settings, ").replace("@given", "@settings(derandomize=True)\n@given")
    )
    fixed = ran("-m", "tests.explore", "--minutes", "0.01", str(file))
    assert fixed.returncode == 2
    assert "derandomize" in fixed.stdout
    file.write_text("import a_module_that_is_not_there")
    broken = ran("-m", "tests.explore", "--minutes", "0.01", str(file))
    assert broken.returncode == 2
    assert "a_module_that_is_not_there" in broken.stdout


@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
def test_an_example_is_written_as_what_differs(model_type: str) -> None:
    of = model(model_type, layers=5)
    kept = setup(
        of,
        precision="amp-bf16",
        segments=(Segment(1, 2, True), Segment(3, 1, False)),
        adapter=Adapter(kind="lora", rank=1, targets=("q_proj",)),
    )
    text = source_of(kept)
    assert (
        eval(text, {"setup": setup, "model": model, "Segment": Segment, "Adapter": Adapter, "Experts": Experts}) == kept
    )
    assert f"setup(model({model_type!r}, layers=5), precision='amp-bf16', " in text
    assert "hidden_size" not in text


def test_what_has_no_source_is_not_written() -> None:
    with pytest.raises(NotWritten):
        source_of({"key": [object()]})
    itself: dict[str, object] = {}
    itself["x"] = itself
    with pytest.raises(NotWritten):
        source_of([itself])
    assert source_of([{"a": (1,)}, float("inf")]) == "[{'a': (1,)}, float('inf')]"
    drawn = Drawn(3, 4)
    assert [drawn.draw(None), drawn.draw(None, "label")] == [3, 4]
