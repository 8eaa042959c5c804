"""Many jobs that differ in little, as the runs of a comparison do: what they have in common is resolved once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import InputError
from vramplan.job.behaviour import under
from vramplan.job.file import build_any_job
from vramplan.job.lookup import Catalog
from vramplan.options.option import MAX_COUNT
from vramplan.values.job import ResolvedJob
from vramplan.values.textbook import AnyJob

MICRO = "micro_batch_size"
BATCH = ("global_batch_size", "gradient_accumulation_steps")  # with both a micro-batch may contradict them


class Jobs:
    """Makes jobs of their keys. Of those that differ in the micro-batch alone one is resolved, or refused."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._known: dict[str, ResolvedJob | InputError] = {}

    def job(self, keys: Mapping[str, Any]) -> AnyJob:
        """`build_any_job` of the keys. Raises InputError as it does."""
        size = _size(keys.get(MICRO))
        if size is None or all(key in keys for key in BATCH) or self._is_looked_at(keys.get("runtime")):
            return build_any_job(keys, catalog=self.catalog)
        others = str({key: value for key, value in keys.items() if key != MICRO})
        found = self._known.get(others)
        if found is None:
            try:
                job = build_any_job(keys, catalog=self.catalog)
            except InputError as error:
                self._known[others] = error
                raise
            if not isinstance(job, ResolvedJob):
                return job
            self._known[others] = job
            return job
        if isinstance(found, InputError):
            raise InputError(found.problems)
        return found._replace(micro_batch_size=size)

    def _is_looked_at(self, runtime: Any) -> bool:
        """Whether a training program refuses micro-batches."""
        if runtime is None:
            return False
        try:
            return under(self.catalog.runtime(runtime)[0]).refuses_micro_batches
        except InputError:
            return True


def _size(given: Any) -> int | None:
    """A micro-batch that nothing is wrong with in itself; else None."""
    text = str(given) if type(given) is int else given
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if 0 < int(text) <= MAX_COUNT else None
