"""Repositories of the Hugging Face hub whose models have the shape of a profile: copies, and fine-tunes of it.

They stand in `mirrors.yaml` of a folder of profiles, with the source of each group. The table is read when a name with
a slash is neither a profile nor in the local cache of the hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import document, locate
from vramplan.catalog.fields import Fields, Sink
from vramplan.catalog.reading import once
from vramplan.tuples import NamedTuple

FILE = "mirrors.yaml"


class Mirror(NamedTuple):
    """What a repository has the shape of."""

    model: str  # the name of a profile
    source: str  # the title of what says so
    is_of_texts: bool = False  # an embedding model, or a reranker: it has no logits over a vocabulary


@once
def load_mirrors(path: Path | str) -> dict[str, Mirror]:
    """The repositories of a file, in lower case. Raises InputError with every problem of the file."""
    loaded = document.load(Path(path))
    fields = Fields(loaded.root, Sink(loaded.file, loaded.problems))
    fields.reject_unknown(("kind", "sources", "mirrors"))
    if fields.text("kind") != "mirrors":
        fields.problem("kind", "a table of repositories is of kind mirrors", hint="kind: mirrors")
    sources = fields.fields("sources")
    found: dict[str, Mirror] = {}
    for group in fields.mappings("mirrors"):
        group.reject_unknown(("model", "source", "repositories"))
        model, source = group.text("model"), group.text("source")
        title, is_of_texts = None, False
        if sources is not None and source in sources.names:
            entry = sources.fields(source)
            title = None if entry is None else entry.text("title")
            is_of_texts = entry is not None and bool(entry.boolean("of_texts"))
        if title is None:
            group.problem("source", f"{source or 'none'} is not among the sources")
        for repository in group.texts("repositories") or ():
            if repository.lower() in found:
                group.problem("repositories", f"{repository} is there twice")
            found[repository.lower()] = Mirror(model or "", title or "", is_of_texts)
    fields.sink.raise_all()
    return found


def mirror_without_owner(name: str, dirs: Sequence[Path] = ()) -> Mirror | None:
    """The same of the name of a repository without that of its owner; None too where several differ."""
    end = f"/{name.strip().lower()}"
    tables = [load_mirrors(folder / FILE) for folder in locate.searched(dirs) if (folder / FILE).is_file()]
    found = [one for table in tables for repository, one in table.items() if repository.endswith(end)]
    return found[0] if len({one.model for one in found}) == 1 else None


def is_of_texts(name: str, dirs: Sequence[Path] = ()) -> bool:
    """Whether the table has a name as that of an embedding model or a reranker."""
    mirror = mirror_of(name, dirs) if "/" in name else mirror_without_owner(name, dirs)
    return mirror is not None and mirror.is_of_texts


def mirror_of(name: str, dirs: Sequence[Path] = ()) -> Mirror | None:
    """What a repository has the shape of, by the tables of all folders, the first one first; None if none knows it."""
    for folder in locate.searched(dirs):
        path = folder / FILE
        if path.is_file():
            found = load_mirrors(path).get(name.strip().rstrip("/").lower())
            if found is not None:
                return found
    return None
