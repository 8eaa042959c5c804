"""What an iteration asks of the caching allocator: requests in their order, how large each is, and on which stream."""

from __future__ import annotations

from vramplan.replay.caching.ahead import with_late_ends
from vramplan.replay.ledger import rounded
from vramplan.replay.played import Requests
from vramplan.replay.record import Record
from vramplan.tuples import NamedTuple
from vramplan.values.allocator import MIN_BLOCK_BYTES, Settings

Records = tuple[Record, Record | None]
"""An iteration with every block played, and a micro-step before it that is unlike it, if any."""
GATHERING, REDUCING = "gather", "reduce"  # streams of FSDP; source: _fsdp_param_group.py, FSDPCommContext
GATHERED = ("all_gather", "_foreach_copy_")  # what is allocated on the first of them
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})  # of cuBLAS
THREADS = ("forward", "backward")  # the phases that the program's thread and that of the device begin to multiply in


class Course(NamedTuple):
    """One iteration as it is played: its last micro-step, and one before that is unlike it."""

    record: Record
    requests: Requests
    sizes: list[int]
    streams: dict[int, str]
    first: Record | None
    first_requests: Requests  # of the one that begins
    first_sizes: list[int]
    first_streams: dict[int, str]

    @classmethod
    def of(cls, records: Records, micro: int, settings: Settings, *, is_turned: bool) -> Course:
        """That of the records of a micro-batch."""
        record, first = records
        requests, sizes, streams = _requested(record, micro, settings, is_turned=is_turned)
        if first is None:
            return cls(record, requests, sizes, streams, None, requests, sizes, streams)
        return cls(record, requests, sizes, streams, first, *_requested(first, micro, settings, is_turned=is_turned))

    @property
    def awaited(self) -> Course:
        """The same where what other streams use is free late."""
        record = self.record
        if not record.awaited:
            return self
        requests = with_late_ends(self.requests, record.awaited, record.operators, record.waits)
        begins = requests if self.first is None else self.first_requests
        return self._replace(requests=requests, first_requests=begins)


def _requested(
    record: Record, micro: int, settings: Settings, *, is_turned: bool
) -> tuple[Requests, list[int], dict[int, str]]:
    """What a record asks for, how much that is, and on which streams."""
    sizes = _rounded(record, micro, settings)
    requests = _with_copies(record, micro, sizes) if is_turned and record.turned else record.requests
    return _with_gradients_first(record, requests), sizes, _streams_of(record, micro)


def _rounded(record: Record, micro_batch_size: int, settings: Settings) -> list[int]:
    """Of each storage what the allocator makes of its size."""
    rounded = settings.rounded
    if not settings.divisions:  # sizes are whole blocks already
        return [size or MIN_BLOCK_BYTES for size in record.sizes(micro_batch_size)]
    return [rounded(size) for size in record.sizes(micro_batch_size)]


def _with_copies(record: Record, micro_batch_size: int, sizes: list[int]) -> Requests:
    """The requests, and behind what each convolution makes the copies that its kernel takes meanwhile.

    Their sizes are added to `sizes`.
    """
    numbers: dict[int, int] = {}
    for index, (fixed, each) in record.turned.items():
        numbers[index] = len(sizes)
        sizes.append(rounded(fixed + each * micro_batch_size))
    found: Requests = []
    for name, events in record.requests:
        more: list[int] = []
        for event in events:
            more.append(event)
            if event in numbers:
                more += numbers[event], ~numbers[event]
        found.append((name, more))
    return found


def _with_gradients_first(record: Record, requests: Requests) -> Requests:
    """The requests, with the whole gradients that an earlier micro-step has left before all others."""
    left = record.left_whole
    if not left:
        return requests
    found = [(name, [event for event in events if event not in left]) for name, events in requests]
    first, events = found[0]
    found[0] = first, [*(event for _, each in requests for event in each if event in left), *events]
    return found


def with_workspaces(
    record: Record, begins: Requests, sizes: list[int], workspaces: tuple[int, ...]
) -> tuple[list[int], Requests]:
    """The requests of the first micro-step, with the workspaces that it makes, and their numbers.

    Their sizes are added to `sizes`. Source: aten/src/ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl, which makes the
    result before it asks for a handle.
    """
    made: list[int] = []
    operators, count = record.operators, len(record.operators)
    requests = list(begins)
    for size, thread in zip(workspaces, THREADS, strict=False):
        place = next((at for at, (name, _) in enumerate(requests) if name == thread), None)
        if place is None:
            break
        events = requests[place][1]
        first = next((at for at, one in enumerate(events) if 0 <= one < count and operators[one] in PRODUCTS), None)
        if first is None:
            break
        made.append(len(sizes))
        sizes.append(size)
        requests[place] = thread, [*events[: first + 1], made[-1], *events[first + 1 :]]
    return made, requests


def _streams_of(record: Record, micro_batch_size: int) -> dict[int, str]:
    """The stream of each storage that is not on the model's own."""
    apart = record.elsewhere | record.without_a_block(micro_batch_size)
    operators, categories = record.operators, record.categories
    gathers = (index for index in apart if operators[index] in GATHERED or categories[index] == "gathered")
    return dict.fromkeys(apart, REDUCING) | dict.fromkeys(gathers, GATHERING)
