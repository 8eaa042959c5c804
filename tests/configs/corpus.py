"""Score a folder of configuration files against the jobs that its manifest says they mean.

    python -m tests.configs.corpus FOLDER [--engine NAME] [--fit]

`FOLDER/manifest.yaml` has a list `files`; each has `file`, `engine`, `expectation` (a job in our keys) and, for
`--fit`, `gpu_for_check` and `assumed_for_check`. A file is exact where every expected key has its value, and strictly
exact where there is no other key. With `--fit` each file is answered too, with what is assumed given as options.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cli.running import run
from vramplan.catalog import document
from vramplan.configs import forms
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError
from vramplan.options import table

ANSWERED = (0, 3, 4)


def flat(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in job.items():
        if key in ("parallel", "adapter") and isinstance(value, Mapping):
            found.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            found[key] = value
    return found


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is expected and is not so, as (found, expected), and what is there beside it."""
    ours, theirs = flat(found), flat(expected)
    wrong = {
        key: (ours.get(key, "-"), value) for key, value in theirs.items() if not _same(key, ours.get(key, "-"), value)
    }
    return wrong, {key: value for key, value in ours.items() if key not in theirs}


def _same(key: str, ours: Any, theirs: Any) -> bool:
    if key in ("adapter.targets", "offload") and isinstance(ours, list) and isinstance(theirs, list):
        return sorted(ours) == sorted(theirs)  # sets, whatever their order
    if key == "model" and isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return {**ours, "name": ""} == {**theirs, "name": ""}
    return bool(ours == theirs)


def options_of(assumed: Mapping[str, Any]) -> list[str]:
    """Keys of a job as options."""
    words: list[str] = []
    rows = {row.key: row for row in table.TABLE}
    for key, value in flat(assumed).items():
        words += [rows[key].option, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


def score(folder: Path, engines: Sequence[str], fits: bool) -> None:
    """Print what differs, and the sums."""
    text = (folder / "manifest.yaml").read_text("utf-8")
    manifest = forms.plain(document.parse(text, str(folder / "manifest.yaml")).root)
    count = exact = strict = answered = 0
    for entry in manifest["files"]:
        path = folder / str(entry.get("file") or entry["path"])
        if (engines and entry["engine"] not in engines) or not path.is_file():
            continue
        count += 1
        try:
            wrong, more = differences(read_files([str(path)], Wanted()).job, entry["expectation"])
        except InputError as error:
            print(f"{entry['file']}: {error}")
            continue
        exact += not wrong
        strict += not wrong and not more
        if wrong or more:
            print(f"{entry['file']}: differs {wrong or 'nowhere'}, beside it {sorted(more) or 'nothing'}")
        if fits:
            ran = run("fit", str(path), "--gpu", entry["gpu_for_check"], *options_of(entry["assumed_for_check"]), "-q")
            answered += ran.code in ANSWERED
            if ran.code not in ANSWERED:
                print(f"{entry['file']}: not answered: {ran.err.strip()[:300]}")
    print(f"{count} files: {exact} exact, {strict} without another key" + (f", {answered} answered" if fits else ""))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", action="append", default=[])
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    score(given.folder, given.engine, given.fit)


if __name__ == "__main__":
    main()
