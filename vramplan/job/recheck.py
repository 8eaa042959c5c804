"""Whether a change of a resolved job makes a job that can be computed: the code of a runtime refuses some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.document import Entry, Scalar
from vramplan.catalog.fields import Fields, Sink
from vramplan.errors import InputError
from vramplan.job.echo import job_to_dict
from vramplan.job.lookup import Catalog
from vramplan.job.read import read_job
from vramplan.job.resolve import resolve
from vramplan.values.job import Job


def rechecker(job: Job) -> Callable[[Mapping[str, Any]], bool]:
    """A function that says of a change, in the words of the job format, whether `build_job` would take the changed job.

    What the job has looked up is taken from it: its runtime and its GPU may be of a folder of profiles that is not
    known here. A mapping in a change replaces the whole key, but for `parallel`, of which it changes some keys.
    """
    whole = document.from_value(job_to_dict(job))
    assert isinstance(whole, document.Mapping)
    catalog = Catalog.of(job)

    def is_modelled(change: Mapping[str, Any]) -> bool:
        root = document.Mapping()
        root.entries = dict(whole.entries)
        for key, value in change.items():
            node = document.from_value(value)
            if key == "parallel":
                node = document.merged(whole.entries[key].value, node)
            root.entries[key] = Entry(Scalar(key), node)
        sink = Sink(None)
        try:
            resolve(read_job(Fields(root, sink), in_file=False), catalog)
        except InputError:
            return False
        return not (sink.problems or sink.refusals)

    return is_modelled
