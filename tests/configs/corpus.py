"""Score the readers on a folder of real files: `python -m tests.configs.corpus FOLDER [--program NAME] [--answers]`.

Names of models that are no checkpoints count for nothing. An expectation may be of as many GPUs as were assumed to run
it. `deviations.yaml` tells where an expectation is not what the source of the program says.

FOLDER has the files and `manifest.yaml`: a list `files` of entries with `file`, `engine` and `expectation`, the job
that the file means, and optionally `assumed_for_check` and `gpu_for_check`, what the file leaves open.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.cli.running import run
from vramplan.options import table
from vramplan.options.flags import arguments_of


def flat(job: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The keys of a job with dots; a mapping of a model stays one value."""
    found: dict[str, Any] = {}
    for key, value in job.items():
        if isinstance(value, Mapping) and key in table.GROUPS:
            found |= flat(value, f"{key}.")
        else:
            found[before + key] = value
    return found


def differences(meant: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, str]:
    """Where two jobs differ, by key."""
    one, other = flat(meant), flat(read)
    keys = [key for key in {**one, **other} if not _same(one, other, key)]
    return {key: f"{key}: {one.get(key)!r} is read as {other.get(key)!r}" for key in keys}


def told() -> set[tuple[str, str]]:
    """The files and keys whose expectation is not what the source says."""
    listed = yaml.safe_load((Path(__file__).parent / "deviations.yaml").read_text("utf-8"))
    return {(file, key) for one in listed for file in one["files"] for key in one["keys"]}


def _same(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    a, b = one.get(key), other.get(key)
    if key == "model" and isinstance(a, Mapping) and isinstance(b, Mapping):
        return {**a, "name": None} == {**b, "name": None}
    if isinstance(a, list) and isinstance(b, list):
        return sorted(map(str, a)) == sorted(map(str, b))
    return bool(a == b) or (not isinstance(a, bool) and str(a) == str(b))


def entries(folder: Path, program: str | None) -> Iterator[dict[str, Any]]:
    """Those of the manifest whose file is there."""
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text("utf-8"))
    for entry in manifest["files"]:
        if (program is None or entry["engine"] == program) and (folder / entry["file"]).is_file():
            yield entry


def main(arguments: list[str] | None = None) -> int:
    """Print what differs, and a line for each program. The exit code is 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.configs.corpus", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--program")
    parser.add_argument("--answers", action="store_true", help="also ask fit for each, with what is open filled in")
    options = parser.parse_args(arguments)
    exact: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    count: Counter[str] = Counter()
    known = told()
    for entry in entries(options.folder, options.program):
        path, program = options.folder / entry["file"], entry["engine"]
        count[program] += 1
        ran = run("read", str(path), "--format", "json", "--ignore-unknown")
        if ran.code:
            print(f"{entry['file']}: {ran.err.strip()[:200]}")
        else:
            wrong = differences(entry["expectation"], json.loads(ran.out)["job"])
            assumed = ((entry.get("assumed_for_check") or {}).get("parallel") or {}).get("data")
            if wrong and assumed:
                more = run("read", str(path), "--format", "json", "--ignore-unknown", "--gpus", str(assumed))
                ours = json.loads(more.out)["job"] if not more.code else {}
                if ours.get("parallel", {}).get("data") == assumed and "data" not in entry["expectation"].get(
                    "parallel", {}
                ):
                    del ours["parallel"]["data"]
                found = differences(entry["expectation"], ours)
                wrong = found if len(found) < len(wrong) else wrong
            exact[program] += not wrong
            explained[program] += bool(wrong) and all((entry["file"], key) in known for key in wrong)
            if wrong:
                print(f"{entry['file']}: {'; '.join(wrong.values())}")
        if options.answers:
            gpu = entry.get("gpu_for_check") or "a100-80gb"
            words = arguments_of(entry.get("assumed_for_check") or {})
            ran = run("fit", str(path), "--gpu", gpu, "--ignore-unknown", *words, "--print", "verdict")
            answered[program] += ran.code in (0, 3)
            if ran.code not in (0, 3):
                print(f"{entry['file']}: not answered: {ran.err.strip()[:300]}")
    for program, number in sorted(count.items()):
        more = f", {answered[program]} answered" if options.answers else ""
        print(f"{program}: {exact[program]} of {number} exact, {explained[program]} told in deviations.yaml{more}")
    total = sum(count.values())
    more = f", {sum(answered.values())} answered" if options.answers else ""
    print(f"all: {sum(exact.values())} of {total} exact, {sum(explained.values())} told{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
