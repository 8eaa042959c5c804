"""Models of the Hugging Face hub that were downloaded before: `org/name` -> the `config.json` in the local cache.

Nothing is fetched. The cache's layout is `models--ORG--NAME/refs/REVISION`, a file with a commit, and
`models--ORG--NAME/snapshots/COMMIT/config.json`.
Source: huggingface_hub 1.0, src/huggingface_hub/constants.py and file_download.py, `try_to_load_from_cache`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from vramplan.catalog.fields import shown
from vramplan.errors import InputError, Problem

MAIN = "main"  # the revision that a name alone stands for
CONFIG = "config.json"
_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.][\w./-]*))?")


_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repository>[\w.-]+/[\w.-]+)"
    r"(?:/(?:tree|blob|resolve|raw)/(?P<revision>[\w.-]+)(?:/.*)?)?/?"
)


def of_address(text: str) -> str:
    """The `org/name` or `org/name@revision` of the address of a model's page on the hub; any other text as it is."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return text
    revision = found["revision"]
    return found["repository"] if revision in (None, MAIN) else f"{found['repository']}@{revision}"


def is_repository(text: str) -> bool:
    """Whether `text` has the form `org/name` or `org/name@revision`."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def cache_dir() -> Path:
    """The folder of the cache, whether it exists or not, as the variables of huggingface_hub have it."""
    own = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not own:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        home = os.environ.get("HF_HOME") or os.path.join(base, "huggingface")
        own = os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(own)))


def cached_config(text: str, near: str | None = None) -> tuple[Path, str]:
    """The `config.json` of `org/name` or `org/name@revision` and the commit that it is of.

    A revision is a branch, a tag or the beginning of a commit. Raises InputError, which says how to fetch it; `near`
    is a further hint, of names that are known.
    """
    matched = _NAME.fullmatch(text)
    assert matched is not None
    repository, revision = matched["repository"], matched["revision"]
    folder = cache_dir() / ("models--" + repository.replace("/", "--"))
    commits = _commits(folder)
    found = [_commit(folder, revision or MAIN)]
    if found[0] not in commits:
        # a commit by its beginning; without a revision, what is there if it is but one
        found = [commit for commit in commits if revision is None or commit.startswith(revision)]
    if len(found) == 1:
        return folder / "snapshots" / found[0] / CONFIG, found[0]
    fetch = f"hf download {repository} {CONFIG}" + (f" --revision {revision}" if revision else "")
    hint = f"fetch it with: {fetch}"
    if found:
        what = f"has {len(found)} revisions of {repository}, and no branch {MAIN}"
        hint = "name one: " + " or ".join(f"{repository}@{commit[:12]}" for commit in found[:4])
    elif commits and revision:
        what = f"has no revision {shown(revision)} of {repository}"
    else:
        what = f"has no {CONFIG} of {repository}"
    hint += f"; {near}" if near else ""
    message = f"no profile is called {shown(repository)}, and the Hugging Face cache {cache_dir()} {what}"
    raise InputError([Problem(f"{message}; nothing is downloaded", "model", hint)])


def _commit(folder: Path, revision: str) -> str:
    """The commit that a branch or tag points to; what was given where none is known."""
    try:
        return (folder / "refs" / revision).read_text("utf-8").strip()
    except (OSError, ValueError):
        return revision


def _commits(folder: Path) -> list[str]:
    """The commits whose `config.json` is there; a snapshot may hold other files only."""
    try:
        names = sorted(os.listdir(folder / "snapshots"))
    except OSError:
        return []
    return [name for name in names if os.path.isfile(folder / "snapshots" / name / CONFIG)]
