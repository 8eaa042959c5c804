"""ZeRO-Infinity's parameters on NVMe: what of them stays on the host, and the buffers that the rest passes through.

The groups of parts that are stepped together stay in the memory of the host, pinned, as long as they fit in what is
allowed. Of the others each part of at least 1 MiB is a file; smaller ones stay pinned one by one, also those of
parameters that are always whole: which these are is not known yet when a parameter is cut. A part comes into one of the
buffers before it is gathered, and the buffer is taken until the whole parameter goes. What comes next is read ahead,
into the buffers that are free; what is still on NVMe when it is come to ends the gathering ahead.

Where DeepSpeed would stop for want of buffers, the walk goes on and says so.

Source: DeepSpeed 0.19.8, deepspeed/runtime/swap_tensor/partitioned_param_swapper.py (AsyncPartitionedParameterSwapper);
deepspeed/runtime/zero/partition_parameters.py (_partition_param, _ensure_availability_of_partitioned_params),
partitioned_param_coordinator.py (_fetch_sub_module_impl, __prefetch_nvme_param_partitions), stage3.py
(_create_param_groups_fp16_flat_cpu_memory, _create_fp16_partitions_with_defragmentation, _partitioned_params_swap_out);
csrc/pin_memory/deepspeed_pin_tensor.cpp; arXiv:2104.07857 (ZeRO-Infinity).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero3_offload import SWAPPABLE_BYTES, Offloaded3
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.replay.recorder import Tape
from vramplan.replay.sharding.hosted import HostStates, pinned_block
from vramplan.values.parallel import ParameterDrive

ALIGNED_BYTES = 1024  # what is written is a multiple of it, for aio's one thread (swap_tensor/utils.py)
COUNT_OPTION = "--offload-parameters-buffer-count"
TWICE = "reading ahead, it may ask twice for the part of a parameter that comes up again soon; fewer buffers read less"
HORIZON = 2  # reading ahead looks as far as twice what is being gathered


class Swapped3(Offloaded3):
    """The walk of one iteration whose parameters come from NVMe."""

    def __init__(
        self,
        tape: Tape,
        policy: Zero3Policy,
        order: Order,
        words: tuple[str, ...],
        drive: ParameterDrive,
        *,
        accumulating: bool,
    ) -> None:
        super().__init__(tape, policy, order, words, accumulating=accumulating)
        self.drive, self.aligned = drive, ALIGNED_BYTES // policy.dtype.itemsize
        self.flat, self.away = self._places()
        large = {one for one, part in enumerate(self.parts) if part * policy.dtype.itemsize >= SWAPPABLE_BYTES}
        self.files, self.swapped = frozenset(large), frozenset(large & self.away)
        self.in_buffers: dict[int, bool] = {}  # parts that are there, and whether they are gathered from there
        self.read = 0  # elements, in this micro-step
        self.needed = 0  # buffers, where there are too few
        self.stops = self.doubts = ""

    def _places(self) -> tuple[int, frozenset[int]]:
        """Elements of the buffer of those that stay on the host, and the parameters of the groups that do not."""
        flat = min(sum(self.parts), self.drive.most_on_host)
        found: set[int] = set()
        start = end = 0
        for count, group in zip(self.counts(), self.groups(), strict=True):
            end += group
            if end > flat:
                found.update(range(start, start + count))
            start += count
        return flat, frozenset(found)

    # -------------------------------------------------------------------------------------------- the parameters
    def _is_away(self, one: int) -> bool:
        """Nothing is gathered ahead that is not in a buffer."""
        return one in self.swapped and one not in self.in_buffers

    def _gather(self, wanted: Sequence[int]) -> None:
        """What is on NVMe has to come first, into buffers of its own."""
        missing = [one for one in wanted if self._is_away(one)]
        if missing:
            self._count(missing)
            self._read(missing)
        for one in wanted:
            if one in self.swapped:
                self.in_buffers[one] = True
        super()._gather(wanted)

    def _count(self, missing: Sequence[int]) -> None:
        """Whether there are buffers enough: for what is whole for certain, and as this walk reads ahead besides.

        DeepSpeed also reads ahead at modules that only contain others, and so sooner.
        """
        there = self.drive.buffers
        whole = sum(one in self.whole for one in self.in_buffers)
        needed, certain = len(self.in_buffers) + len(missing), whole + len(missing)
        if certain > max(there, self.needed):
            self.needed = certain
            have = f"{certain} parameters have to be in buffers at a time, and there are {there}"
            self.stops = f"DeepSpeed stops: {have} ({COUNT_OPTION})"
        elif needed > there and not self.doubts:
            have = f"with what is read ahead {needed} parameters are in buffers at a time, and there are {there}"
            self.doubts = f"DeepSpeed may stop: {have} ({COUNT_OPTION})"

    def _read(self, members: Sequence[int]) -> None:
        for one in members:
            self.in_buffers[one] = False
            self.read += self._whole_pieces(self.parts[one])

    def _prefetch(self) -> None:
        """Then what comes after is read, as far as there are buffers."""
        super()._prefetch()
        if self.policy.zero.prefetch_bucket_size == 0:
            return
        limit = HORIZON * sum(self.sizes[one] for one in self.coming)
        free = self.drive.buffers - len(self.in_buffers)
        ahead: list[int] = []
        considered = 0
        for one, _ in self.queue:
            if considered > limit or len(ahead) >= free:
                break
            if self._is_away(one):
                if one in ahead and not self.doubts:
                    self.doubts = f"DeepSpeed may stop: {TWICE} ({COUNT_OPTION})"
                ahead.append(one)
            considered += self.sizes[one]
        self._read(tuple(dict.fromkeys(ahead)))

    def _let_go(self) -> None:
        """With a whole parameter its buffer goes."""
        super()._let_go()
        self._free_buffers()

    def _free_buffers(self) -> None:
        gone = [
            one for one, used in self.in_buffers.items() if used and one not in self.whole and one not in self.coming
        ]
        for one in gone:
            del self.in_buffers[one]

    def before_step(self) -> None:
        """Everything is partitioned, so all buffers are free."""
        super().before_step()
        self._free_buffers()

    # ------------------------------------------------------------------------------------------------ what is where
    def _parameters_on_host(self) -> tuple[int, int]:
        """The buffer of those that stay, the small ones, the buffers of the others, and one that the step fills.

        That one is as large as all whole parameters of the largest group: DeepSpeed takes `ds_numel` of them, and not
        of their parts.
        """
        itemsize = self.policy.dtype.itemsize
        buffers = self.drive.buffers * self._whole_pieces(self.drive.buffer_size)
        if self.away:
            groups, counts = self.groups(), self.counts()
            largest = groups.index(max(groups))
            first = sum(counts[:largest])
            buffers += sum(map(self._whole_pieces, self.sizes[first : first + counts[largest]]))
        small = {one for one, _ in enumerate(self.parts) if one not in self.files}
        pinned = [self.flat * itemsize, *(self.parts[one] * itemsize for one in small)]
        held = self.flat + sum(self.parts[one] for one in small & self.away) + buffers
        return held * itemsize, sum(map(pinned_block, pinned)) + buffers * itemsize

    def host_states(self, small: int) -> HostStates:
        """The same, and what is read and written of the parameters; those that stay on the host are files too."""
        itemsize = self.policy.dtype.itemsize
        plain = super().host_states(small)
        written = sum(self._whole_pieces(self.parts[one]) for one in self.swapped) * itemsize
        files = sum(self._whole_pieces(self.parts[one]) for one in self.files) * itemsize
        return plain._replace(
            drive_bytes=plain.drive_bytes + files,
            to_drive_bytes=plain.to_drive_bytes + written,
            from_drive_bytes=plain.from_drive_bytes + self.read * itemsize,
            each_from_drive_bytes=self.read * itemsize,
            stops=self.stops,
            doubts="" if self.stops else self.doubts,
        )

    def _whole_pieces(self, elements: int) -> int:
        """Buffers and files are of whole pieces that the drive is written in."""
        return -(-elements // self.aligned) * self.aligned
