"""Software stacks: what a runtime takes of its stack, what it has itself, and folders of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run, valid
from vramplan.catalog.locate import files_in, shipped_dirs
from vramplan.catalog.runtimes import find_runtime, find_runtime_profile, load_runtime_profile
from vramplan.catalog.stacks import FIELDS, FIGURE, find_stack_profile, load_stack_profile
from vramplan.errors import InputError

pytestmark = pytest.mark.contract
GIB, MIB = 1 << 30, 1 << 20
SHIPPED = shipped_dirs()[0]
SOURCE = 'sources: {own: {title: ours, url: "https://example.org", accessed: "2026-11-23"}}'
OWN = "optimizer_implementation: {value: fused, source: own}\n  loss: {value: causal-lm, source: own}\n  "
OWN += "gradients: {value: set-to-none, source: own}"


def written(folder: Path, kind: str, name: str, *lines: str, top: str = "") -> Path:
    path = folder / f"{kind}s" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([f"kind: {kind}", f"name: {name}", "title: T", top, SOURCE, "fields:", *lines, ""]))
    return path


def test_every_shipped_runtime_names_a_stack_and_repeats_nothing_of_it() -> None:
    for path in files_in("runtimes", [SHIPPED]).values():
        own = load_runtime_profile(path)
        assert own.stack is not None
        stack = find_stack_profile(own.stack)
        same = [key for key in own.fields if key in stack.fields and own.value(key) == stack.value(key)]
        assert same == [], path
        copied = {source.title for source in own.sources.values()} & {one.title for one in stack.sources.values()}
        assert {title for title in copied if "zero_grad" not in title} == set(), path


@pytest.mark.parametrize("name", ["pytorch", "cuda-c"])
def test_every_figure_of_a_stack_has_its_source_or_its_reason(name: str) -> None:
    stack = find_stack_profile(name)
    assert all(field.source in stack.sources or field.reason for field in stack.fields.values())
    assert {key for key in stack.fields if not FIGURE.fullmatch(key)} <= set(FIELDS)
    assert {field.source for field in stack.fields.values()} - {None} == set(stack.sources)


def test_a_runtime_has_the_fields_of_its_stack_with_their_sources() -> None:
    stack = find_stack_profile("pytorch")
    for name in ("transformers", "litgpt", "deepspeed"):
        found = find_runtime_profile(name)
        for key, field in stack.fields.items():
            assert (
                found.sources[found.fields[key].source or ""] == stack.sources[field.source or ""]
                if field.source
                else (found.fields[key].reason == field.reason)
            )


def test_its_own_field_wins_and_the_others_stay(tmp_path: Path) -> None:
    written(tmp_path, "runtime", "mine", f"  {OWN}", "  context: {value: 1 GiB, source: own}", top="stack: pytorch")
    runtime, _ = find_runtime("mine", [tmp_path])
    assert (runtime.context_on("ampere"), runtime.context_on("volta")) == (GIB, 1331 * MIB + 209715 + 1)
    assert runtime.blas_workspace_on("hopper") == 32 * MIB
    assert find_runtime_profile("mine", [tmp_path]).fields["context"].source == "own"


def test_a_runtime_that_has_the_fields_itself_needs_no_stack(tmp_path: Path) -> None:
    figures = ("  context: {value: 2 GiB, source: own}", "  process_group: {value: 1 GiB, source: own}")
    written(tmp_path, "runtime", "full", f"  {OWN}", *figures)
    runtime, _ = find_runtime("full", [tmp_path])
    assert (runtime.context_on("volta"), runtime.process_group_bytes, runtime.blas_workspace_bytes) == (
        2 * GIB,
        GIB,
        None,
    )
    written(tmp_path, "runtime", "partial", f"  {OWN}", figures[0])
    assert "process_group missing" in run("profiles", "lint", tmp_path / "runtimes" / "partial.yaml").out


def test_a_stack_of_the_user_stands_before_the_shipped_one(tmp_path: Path) -> None:
    figures = ("  context: {value: 3 GiB, source: own}", "  process_group: {value: 1 GiB, source: own}")
    written(tmp_path, "stack", "pytorch", *figures)
    assert find_runtime("transformers", [tmp_path])[0].context_on("volta") == 3 * GIB
    assert find_runtime("llm.c", [tmp_path])[0].context_on("volta") != 3 * GIB
    folders = valid("profile-path", run("profiles", "path", "--profiles", tmp_path, "--format", "json").document)
    assert folders["folders"][0]["stacks"] == 1
    assert folders["folders"][0]["shadowing"] == ["stacks/pytorch"]
    shown = run("profiles", "show", "pytorch", "--kind", "stack", "--profiles", tmp_path, "--format", "json")
    assert valid("stack-profile", shown.document)["fields"]["context"]["value"] == "3 GiB"


def test_an_unknown_stack_is_a_problem_at_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, "runtime", "mine", f"  {OWN}", top="stack: pytorhc")
    with pytest.raises(InputError) as caught:
        find_runtime("mine", [tmp_path])
    (problem,) = caught.value.problems
    assert (problem.key, problem.file) == ("stack", str(path))
    assert "did you mean pytorch" in str(problem.hint)
    assert f"{path}:4:8: error: stack: there is no stack profile" in run("profiles", "lint", path).out


@pytest.mark.parametrize(("given", "message"), [("[]", "names no run"), ("[a, a]", "names a run twice")])
def test_runs_that_a_figure_was_chosen_from_are_named(given: str, message: str, tmp_path: Path) -> None:
    fields = f"  context: {{value: 1 GiB, source: own, fitted_from: {given}}}"
    path = written(tmp_path, "stack", "mine", fields, "  process_group: {value: 1 GiB, source: own}")
    with pytest.raises(InputError, match=message):
        load_stack_profile(path)


def test_runs_that_a_figure_was_chosen_from_are_shown() -> None:
    document: Any = valid("runtime-profile", run("runtimes", "show", "megatron", "--format", "json").document)
    assert document["fields"]["context_ampere"]["fitted_from"] == ["bigscience-*"]
    for words in ((), ("--format", "markdown")):
        assert "chosen in sight of published runs: bigscience-" in run("runtimes", "show", "megatron", *words).out


def test_a_context_of_an_unlikely_size_is_a_warning(tmp_path: Path) -> None:
    fields = ("  context: {value: 600 GiB, source: own}", "  process_group: {value: 1 GiB, source: own}")
    path = written(tmp_path, "stack", "mine", *fields)
    assert "is its unit right?" in run("profiles", "lint", path).out


def test_the_context_of_one_a100_is_that_of_its_architecture_alone() -> None:
    megatron, _ = find_runtime("megatron")
    pytorch, _ = find_runtime("pytorch")
    assert megatron.context_on("ampere") == 1573 * MIB
    for architecture in ("volta", "hopper", "blackwell", None):
        assert megatron.context_on(architecture) == pytorch.context_on(architecture)
