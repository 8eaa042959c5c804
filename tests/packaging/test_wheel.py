"""What people install: the sdist and the wheel hold everything, and profiles are found however vramplan came.

The checkout is copied first, so that neither the build nor the editable install leaves anything in it. Dependencies
come from the package index, as they do for a user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIT = ("fit", "--model", "gpt2-xl", "--gpu", "v100", "--format", "json")
PROFILES = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "profiles").rglob("*.yaml"))
SCHEMAS = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "vramplan/report/schemas").glob("*.json"))
MODULES = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "vramplan").rglob("*.py"))

pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path, python_path: Path | None = None) -> str:
    """Run a command far from the checkout's modules; its output, or a failure that shows all it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def assert_fits(output: str) -> None:
    answer = json.loads(output)
    assert answer["verdict"] == "fits"
    assert answer["recommended"]["micro_batch_size"] == 2


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what belongs to the project, without `.git`: what an archive of a release holds."""
    copy = tmp_path_factory.mktemp("source") / "vramplan"
    copy.mkdir()
    for name in ("vramplan", "profiles", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def distributions(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout, cwd=out)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def environment_with(place: Path, *what: str | Path) -> Path:
    """The `bin` folder of a clean environment that has `what` and its dependencies, and nothing else.

    The pip of the tests fills it from outside: to put one into each environment takes longer than all the rest.
    """
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    programs = place / "venv" / "bin"
    pip(programs, "install", "--quiet", "--no-compile", *what, cwd=place)
    return programs


def pip(programs: Path, *words: str | Path, cwd: Path) -> str:
    """Run pip for the environment that has these programs."""
    return run(sys.executable, "-m", "pip", "--python", programs / "python", *words, cwd=cwd)


@pytest.fixture(scope="module")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel."""
    return environment_with(tmp_path_factory.mktemp("environment"), distributions[1])


@pytest.mark.sweep
def test_the_sdist_holds_the_sources_the_profiles_and_the_tests(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {*PROFILES, *SCHEMAS, *MODULES, "vramplan/py.typed"}
    wanted |= {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "tests/packaging/test_wheel.py"}
    assert PROFILES
    assert SCHEMAS
    assert wanted <= names
    assert not {name for name in names if "__pycache__" in name or name.startswith(".venv")}


@pytest.mark.sweep
def test_the_wheel_holds_the_package_the_profiles_and_the_licence(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as archive:
        names = set(archive.namelist())
    profiles = {f"vramplan/_{name}" for name in PROFILES}
    assert {*profiles, *SCHEMAS, *MODULES, "vramplan/py.typed"} - {"vramplan/_build_hook.py"} <= names
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    others = {name for name in names if not name.startswith("vramplan/") and ".dist-info/" not in name}
    assert not others, "a wheel owns one name at the top of site-packages"


@pytest.mark.sweep
def test_the_wheel_answers_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    assert_fits(run(installed / "vramplan", *FIT, cwd=tmp_path))
    assert run(installed / "vramplan", "--version", cwd=tmp_path).startswith("vramplan ")


@pytest.mark.sweep
def test_the_api_answers_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    program = "import json; from vramplan import fit; print(json.dumps(fit(model='gpt2-xl', gpu='v100').to_dict()))"
    assert_fits(run(installed / "python", "-c", program, cwd=tmp_path))


@pytest.mark.sweep
def test_a_type_checker_sees_the_types_of_the_installed_package(installed: Path, tmp_path: Path) -> None:
    """By the py.typed of the wheel: without it `fit` would be Any, and both lines would pass."""
    (tmp_path / "use.py").write_text(
        "from vramplan import fit\n\npeak: int = fit(model='gpt2', gpu='v100').peak.device_bytes\n", "utf-8"
    )
    (tmp_path / "misuse.py").write_text("from vramplan import fit\n\nfit(modle='gpt2', gpu='v100')\n", "utf-8")
    check = ("-m", "mypy", "--strict", "--python-executable", installed / "python")
    run(sys.executable, *check, "use.py", cwd=tmp_path)
    with pytest.raises(AssertionError, match="modle"):
        run(sys.executable, *check, "misuse.py", cwd=tmp_path)


@pytest.mark.sweep
def test_the_installed_program_has_completion(installed: Path, tmp_path: Path) -> None:
    assert "complete -o default -F" in run(installed / "vramplan", "--show-completion", "bash", cwd=tmp_path)


@pytest.mark.sweep
def test_the_installed_package_reads_its_own_profiles(installed: Path, tmp_path: Path) -> None:
    program = "from vramplan.catalog.locate import shipped_dirs; print(*shipped_dirs())"
    assert "site-packages" in run(installed / "python", "-c", program, cwd=tmp_path)


@pytest.mark.sweep
def test_an_environment_with_the_wheel_is_consistent(installed: Path, tmp_path: Path) -> None:
    assert "No broken requirements" in pip(installed, "check", cwd=tmp_path)


def test_a_checkout_runs_where_it_is(checkout: Path, tmp_path: Path) -> None:
    assert_fits(run(sys.executable, "-m", "vramplan", *FIT, cwd=tmp_path, python_path=checkout))


@pytest.mark.sweep
def test_an_editable_install_reads_the_profiles_of_the_checkout(checkout: Path, tmp_path: Path) -> None:
    """It copies the wheel's profiles once and never again: that copy must not be the one that is read."""
    programs = environment_with(tmp_path, "--editable", checkout)
    assert list((checkout / "vramplan").rglob("*.pyc")), "the build hook compiles it"
    assert_fits(run(programs / "vramplan", *FIT, cwd=tmp_path))
    program = "from vramplan.catalog.locate import shipped_dirs; print(*shipped_dirs())"
    assert run(programs / "python", "-c", program, cwd=tmp_path).strip() == str(checkout / "profiles")
