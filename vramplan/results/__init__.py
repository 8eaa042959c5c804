"""The answer as frozen values: all that a renderer may know. It describes, it never decides.

Every size is integer bytes on the most loaded device. Components are what is alive at the peak and sum exactly to
`Peak.allocated_bytes`; overheads are the steps from there to `Peak.device_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vramplan.exit_codes import code_of
from vramplan.values.job import DOES_NOT_FIT as DOES_NOT_FIT
from vramplan.values.job import FITS as FITS
from vramplan.values.job import TIGHT as TIGHT
from vramplan.values.job import Assumption

if TYPE_CHECKING:  # most answers give no advice, and have no pipeline
    from vramplan.results.advice import Advice
    from vramplan.results.allocator import Allocator
    from vramplan.results.stages import StageRow

TEXTBOOK_PHASE = "textbook"  # the phase of a peak that is a sum of closed forms and not a moment

_GIB = 1 << 30


class Component(NamedTuple):
    """One part of the memory at the peak; `basis` says in words where the figure comes from."""

    name: str
    bytes: int
    basis: str
    unsharded_bytes: int | None = None  # on one device that runs the same micro-batch alone; None: nothing is shared
    divided_by: tuple[tuple[str, int], ...] = ()  # among so many devices, and by what: ("shards", 8), ("tensor", 2)


class Peak(NamedTuple):
    """The worst moment of one steady-state iteration."""

    allocated_bytes: int  # torch.cuda.max_memory_allocated()
    reserved_bytes: int  # torch.cuda.max_memory_reserved()
    device_bytes: int  # what nvidia-smi shows for the process
    low_bytes: int
    high_bytes: int
    phase: str  # forward | backward | step | textbook
    operator: str
    forward_bytes: int
    backward_bytes: int
    step_bytes: int
    saved_bytes: int  # what the end of forward holds for backward


class Recommendation(NamedTuple):
    """What to run. Everything is None when no choice fits."""

    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    global_batch_size: int | None
    largest_micro_batch_size: int
    activation_checkpointing: str | None
    flags: str | None  # options of `vramplan fit` that pin this choice


class Alternative(NamedTuple):
    """One row of the ladder: a checkpointing strategy judged at its own best micro-batch."""

    activation_checkpointing: str
    verdict: str
    micro_batch_size: int
    gradient_accumulation_steps: int | None
    allocated_bytes: int
    device_bytes: int
    largest_micro_batch_size: int
    recomputed_fraction: float  # extra forward FLOPs over the FLOPs of a step without checkpointing


class Remedy(NamedTuple):
    """A single change of job keys that would make it fit, verified by a replay."""

    change: Mapping[str, Any]  # job keys; nested for parallel
    saves_bytes: int  # device bytes against the judged job
    cost: str
    verdict: str


class Host(NamedTuple):
    """What a step holds in the memory of the host, at most."""

    saved_bytes: int  # of the tensors that forward saves
    pinned_bytes: int  # of the pinned blocks that hold what is there, each a power of two
    states_bytes: int = 0  # of what the optimizer and the gradients of one device are there
    node_bytes: int = 0  # of all devices of a node, pinned blocks and the rest
    devices_per_node: int = 1
    to_host_bytes: int = 0  # that cross the link in a step, from one device
    to_device_bytes: int = 0  # and back
    drive_bytes: int = 0  # of what one device has on NVMe
    to_drive_bytes: int = 0  # that the host writes there in a step, for one device
    from_drive_bytes: int = 0  # and reads


class FitResult(NamedTuple):
    """The whole answer of `vramplan fit` and of `vramplan.fit`: frozen, hashable, picklable.

    Sizes are integer bytes on the most loaded device. It is a tuple for the sake of start-up time; use its names, as
    fields may be added anywhere, and `to_dict` for JSON.
    """

    name: str
    verdict: str  # fits | tight | does-not-fit
    job: Mapping[str, Any]  # resolved, in the words of the job format; fed back in it gives the same answer
    capacity_bytes: int
    usable_bytes: int
    headroom_bytes: int
    utilization: float
    total_parameters: int
    trainable_parameters: int
    peak: Peak
    components: tuple[Component, ...]
    overheads: tuple[Component, ...]
    recommended: Recommendation
    checkpoints: tuple[tuple[int, int], ...]  # first and last block of each segment of the judged job
    alternatives: tuple[Alternative, ...]
    remedies: tuple[Remedy, ...]
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    active_parameters: int | None = None  # that one token passes; None: all of them, as there are no experts
    host: Host | None = None  # where the job offloads
    allocator: Allocator | None = None  # where it is simulated
    stages: tuple[StageRow, ...] | None = None  # of a pipeline; the figures above are of the most loaded one
    lists_stages: bool = False  # whether a report for people has a table of them
    advice: Advice | None = None  # on batch size and learning rate, where the job names what it comes from

    def to_dict(self, *, strict: bool = False) -> dict[str, Any]:
        """The JSON document of `vramplan fit --format json`, as plain dicts and lists of the caller's own.

        `strict` is the option `--strict`: it decides `exit_code` for a tight verdict, and nothing else.
        """
        from vramplan.results.document import fit_document  # it needs this module

        return fit_document(self, exit_code=code_of(self.verdict, strict=strict))

    def __repr__(self) -> str:
        needed, usable = self.peak.device_bytes / _GIB, self.usable_bytes / _GIB
        best = self.recommended
        run = "nothing fits"
        if best.micro_batch_size is not None:
            run = f"micro-batch {best.micro_batch_size} x {best.gradient_accumulation_steps} steps"
            run += f", checkpointing {best.activation_checkpointing}"
        return f"<FitResult {self.name!r}: {self.verdict}, {needed:.1f} of {usable:.1f} GiB, {run}>"
