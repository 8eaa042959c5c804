"""An engine of another package: found by its entry point, in every place that knows the engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.contract

ENGINE = """
from pathlib import Path

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="tiny",
    families={"gpt2": "tiny_engine.model"},
    behaviour={"job": "tiny_engine.job:BEHAVIOUR"},
    profile=str(Path(__file__).with_name("tiny.yaml")),
)
"""
MODEL = """
from vramplan.replay.models.gpt2 import GPT2


class Tiny(GPT2):
    drops_out = False


FORWARD = Tiny
"""
JOB = """
from vramplan.job.behaviour import JobBehaviour


class TinyJob(JobBehaviour):
    lacks = {"ema": "leave it out"}
    accepts = {"attention": ("eager", "flash")}

    def no_sync(self, resolver):
        return True, "tiny sums once"


BEHAVIOUR = TinyJob()
"""
PROFILE = """
kind: runtime
name: tiny
title: A tiny trainer
sources:
  code: {title: the code of tiny, url: https://example.org/tiny, accessed: "2026-11-20"}
fields:
  optimizer_implementation: {value: foreach, source: code}
  loss: {value: causal-lm-fp32, source: code}
  gradients: {value: set-to-none, source: code}
  context: {value: 500 MiB, source: code}
  process_group: {value: 1 MiB, source: code}
  max_gradient_norm: {value: 0.5, source: code}
"""


def install(folder: Path, value: str = "tiny_engine:ENGINE", **files: str) -> Path:
    """A package with an entry point, as an installer leaves it in a folder."""
    package, metadata = folder / "tiny_engine", folder / "vramplan_tiny-1.0.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    for name, text in files.items():
        (package / name.replace("_yaml", ".yaml").replace("_py", ".py")).write_text(dedent(text).lstrip("\n"), "utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vramplan-tiny\nVersion: 1.0\n", "utf-8")
    (metadata / "entry_points.txt").write_text(f"[vramplan.engines]\ntiny = {value}\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"__init___py": ENGINE, "model_py": MODEL, "job_py": JOB, "tiny_yaml": PROFILE}
    return install(tmp_path_factory.mktemp("site"), **files)


def vramplan(site: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT))), **variables}
    command = [sys.executable, "-m", "vramplan", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


FIT = ("fit", "--model", "gpt2", "--gpu", "a100", "--micro-batch", "4", "--checkpointing", "none")


def test_its_runtime_is_answered_with_its_profile_its_behaviour_and_its_code(site: Path) -> None:
    done = vramplan(site, *FIT, "--runtime", "tiny", "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["job"]["runtime"], answer["job"]["max_gradient_norm"]) == ("tiny", 0.5)
    assert answer["job"]["model"]["family"] == "gpt2", "the family that was published, not the module"
    plain = ("--runtime", "pytorch", "--dropout", "0", "--max-gradient-norm", "0.5", "--format", "json")
    other = json.loads(vramplan(site, *FIT, *plain).stdout)
    assert answer["peak"]["allocated_bytes"] == other["peak"]["allocated_bytes"], "its code is GPT-2 without dropout"


def test_what_it_has_no_code_for_is_refused_by_the_generated_sentence(site: Path) -> None:
    done = vramplan(site, *FIT, "--runtime", "tiny", "--ema")
    assert done.returncode == 2
    assert "ema: true is not in tiny (leave it out)" in done.stderr
    done = vramplan(site, *FIT, "--runtime", "tiny", "--attention", "efficient")
    assert "attention: efficient is not in tiny (it has eager, flash; or another --runtime)" in done.stderr


@pytest.mark.sweep
def test_it_is_listed_shown_completed_and_named_in_hints(site: Path) -> None:
    listed = json.loads(vramplan(site, "runtimes", "--format", "json").stdout)
    row = next(row for row in listed["runtimes"] if row["name"] == "tiny")
    assert (row["title"], row["model_code"]) == ("A tiny trainer", "tiny")
    assert "A tiny trainer" in vramplan(site, "runtimes", "show", "tiny").stdout
    program = "import sys\nfrom tests.cli.test_completion import offered\nprint(offered('fit', '--runtime', 't'))"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=ROOT)
    assert "'tiny'" in done.stdout
    assert "'tiny'" not in str(json.loads(vramplan(ROOT, "runtimes", "--format", "json").stdout))
    assert "tiny" in vramplan(site, *FIT, "--runtime", "nosuch").stderr


def test_a_runtime_profile_of_the_user_may_name_it_and_any_other_engine(site: Path, tmp_path: Path) -> None:
    (tmp_path / "runtimes").mkdir()
    for name, engine in (("mine", "tiny"), ("ours", "megatron"), ("wrong", "nosuch")):
        text = PROFILE.replace("name: tiny", f"name: {name}").lstrip("\n")
        text += f"  engine: {{value: {engine}, source: code}}\n"
        (tmp_path / "runtimes" / f"{name}.yaml").write_text(text, "utf-8")
    folder = ("--profiles", str(tmp_path))
    assert "true is not in mine" in vramplan(site, *FIT, *folder, "--runtime", "mine", "--ema").stderr
    done = vramplan(site, *FIT, *folder, "--runtime", "ours", "--tensor", "2", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"]["parallel"]["tensor"] == 2
    wrong = vramplan(site, *FIT, *folder, "--runtime", "wrong").stderr
    assert "there is no engine" in wrong
    assert "nosuch" in wrong
    assert "tiny" in wrong


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("value", "source", "why"),
    [
        ("tiny_engine:ENGINE", "import nosuchmodule\n", "it cannot be imported: ModuleNotFoundError"),
        ("tiny_engine:NOTHING", "", "it cannot be imported: AttributeError"),
        ("tiny_engine:ENGINE", "ENGINE = 1\n", "it is no Engine but a value of type int"),
    ],
    ids=["import", "attribute", "type"],
)
def test_an_entry_point_that_cannot_be_imported_names_its_package(
    tmp_path: Path, value: str, source: str, why: str
) -> None:
    site = install(tmp_path / "site", value, __init___py=source)
    for words in ((*FIT, "--runtime", "tiny"), ("runtimes",)):
        done = vramplan(site, *words)
        assert done.returncode == 2
        assert "the package vramplan-tiny registers the engine tiny" in done.stderr
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    assert vramplan(site, *FIT).returncode == 0, "an engine that is not asked for costs nothing"


def test_a_behaviour_that_cannot_be_imported_names_its_package(tmp_path: Path) -> None:
    files = {"__init___py": ENGINE, "model_py": MODEL, "job_py": "import nosuchmodule\n", "tiny_yaml": PROFILE}
    done = vramplan(install(tmp_path / "site", **files), *FIT, "--runtime", "tiny")
    assert done.returncode == 2
    assert "the package vramplan-tiny registers the engine tiny" in done.stderr
    assert "tiny_engine.job:BEHAVIOUR cannot be imported" in done.stderr


@pytest.mark.parametrize("runtime", ["transformers", "litgpt", "megatron"])
def test_a_fit_with_an_engine_that_comes_along_reads_no_entry_points(runtime: str) -> None:
    program = dedent(
        f"""
        import importlib.metadata, sys
        def asked(**words):
            raise AssertionError(words)
        importlib.metadata.entry_points = asked
        sys.argv = ["vramplan", "fit", "--model", "gpt2", "--gpu", "a100", "--runtime", "{runtime}"]
        from vramplan.cli.app import main
        main()
        """
    )
    model = program.replace("gpt2", "llama-3.2-1b") if runtime == "litgpt" else program
    command = [sys.executable, "-c", model]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
