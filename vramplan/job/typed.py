"""A job as it was typed, so that it can be typed again with changes: defaults follow them, and the same is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.document import Entry, Scalar
from vramplan.catalog.fields import Fields, Sink
from vramplan.errors import InputError, Problem
from vramplan.job.echo import job_to_dict
from vramplan.job.given.keyed import root_of
from vramplan.job.given.read import read_job
from vramplan.job.given.spelled import counted, replica, whole_in, with_kind
from vramplan.job.lookup import Catalog
from vramplan.job.resolve import resolve
from vramplan.options import table
from vramplan.options.flags import flags_of
from vramplan.values.job import ResolvedJob


class Typed:
    """The keys of a job before defaults. Called with a change it gives the job that the changed keys describe.

    A change maps keys of the job format to values: a mapping under a key that groups others, as `parallel` does,
    changes the keys that it names, and None takes a key away, as if it had never been typed.
    """

    def __init__(self, root: document.Mapping, catalog: Catalog, *, in_file: bool = False) -> None:
        self._root, self._catalog, self._in_file = with_kind(root), catalog, in_file
        self.given = frozenset(_names(self._root))
        gpu = root.entries.get("gpu")
        self._counted = counted(gpu.value.text) if gpu is not None and isinstance(gpu.value, Scalar) else None

    @classmethod
    def of_keys(cls, keys: Mapping[str, Any], profile_dirs: Sequence[Path] = ()) -> Typed:
        """Of the keys of options, or of the API."""
        return cls(root_of(keys, Sink(None)), Catalog(profile_dirs))

    @classmethod
    def of_job(cls, job: ResolvedJob) -> Typed:
        """Of a resolved job of which nobody knows how it was typed: as if all of its echo had been.

        What it has looked up is taken from it: its runtime and its GPU may be of a folder that is not known here.
        """
        root = document.from_value(job_to_dict(job))
        assert isinstance(root, document.Mapping)
        return cls(root, Catalog.of(job))

    def __call__(self, change: Mapping[str, Any]) -> ResolvedJob | None:
        """The job with a change; None where it is refused."""
        job, problems = self._resolved(change)
        return None if problems else job

    def refusal(self, change: Mapping[str, Any]) -> str:
        """Why a change is refused, in words; empty where it is not."""
        _, problems = self._resolved(change)
        return problems[0].message if problems else ""

    def worded(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """A change as it is typed: where the GPU was counted, as in 8xA100, it is counted still."""
        new = dict(change)
        if self._counted is None:
            return new
        count, gpu = self._counted
        parallel = dict(new.get("parallel") or {})
        data, wanted = parallel.pop("data", None), new.get("gpu")
        if data is None and wanted is None:
            return new
        if data is not None:
            count = data * replica(_changed(self._root, new).entries.get("parallel"))
            new["parallel"] = parallel
            if not parallel:
                del new["parallel"]
        name = wanted["name"] if isinstance(wanted, Mapping) else wanted or gpu
        return new | {"gpu": f"{count}x{name}"}

    def option(self, change: Mapping[str, Any]) -> str:
        """A change as options of `vramplan fit`: where the devices of a node were typed, more are more such nodes."""
        new = self.worded(change)
        below = _changed(self._root, new).entries.get("parallel")
        each, data = whole_in(below, "devices_per_node"), whole_in(below, "data")
        parallel = dict(new.get("parallel") or {})
        if each and data and "data" in parallel and data * replica(below) % each == 0:
            del parallel["data"]
            nodes = f"--nodes {data * replica(below) // each} --gpus {each}"
            return " ".join(filter(None, (flags_of(new | {"parallel": parallel}), nodes)))
        return flags_of(new)

    def changed(self, change: Mapping[str, Any]) -> Typed:
        """What was typed, with a change that stays."""
        return Typed(_changed(self._root, self.worded(change)), self._catalog, in_file=self._in_file)

    def _resolved(self, change: Mapping[str, Any]) -> tuple[ResolvedJob | None, list[Problem]]:
        sink = Sink(None)
        try:
            job = resolve(
                read_job(Fields(_changed(self._root, self.worded(change)), sink), in_file=self._in_file), self._catalog
            )
        except InputError as error:
            return None, [*error.problems]
        return job, [*sink.problems, *sink.refusals]


def _changed(root: document.Mapping, change: Mapping[str, Any]) -> document.Mapping:
    result = document.Mapping(root.line, root.column)
    result.entries = dict(root.entries)
    for key, value in change.items():
        below = result.entries.pop(key, None)
        if value is None:
            continue
        if key in table.GROUPS and isinstance(value, Mapping) and below is not None:
            inside = below.value if isinstance(below.value, document.Mapping) else document.Mapping()
            result.entries[key] = Entry(below.key, _changed(inside, value))
        elif isinstance(value, Mapping):
            given = {name: item for name, item in value.items() if item is not None}
            result.entries[key] = Entry(Scalar(key), document.from_value(given))
        else:
            result.entries[key] = Entry(Scalar(key), document.from_value(value))
    return result


def _names(root: document.Mapping, group: str = "") -> Iterator[str]:
    for name, entry in root.entries.items():
        value = entry.value
        if isinstance(value, document.Mapping) and not group and name in table.GROUPS:
            yield from _names(value, f"{name}.")
        elif not (isinstance(value, Scalar) and value.is_null):
            yield group + name
