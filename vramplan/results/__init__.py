"""The answer as frozen values: all that a renderer may know. It describes, it never decides.

Every size is integer bytes on the most loaded device. Components are what is alive at the peak and sum exactly to
`Peak.allocated_bytes`; overheads are the steps from there to `Peak.device_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vramplan.exit_codes import ExitCode
from vramplan.results.frozen import plain
from vramplan.tuples import NamedTuple
from vramplan.values.job import DOES_NOT_FIT as DOES_NOT_FIT
from vramplan.values.job import FITS as FITS
from vramplan.values.job import TIGHT as TIGHT
from vramplan.values.job import Assumption
from vramplan.version import __version__

if TYPE_CHECKING:  # most answers give no advice, and have no pipeline
    from vramplan.results.advice import Advice
    from vramplan.results.allocator import Allocator
    from vramplan.results.run import Data, Limit, Run
    from vramplan.results.solved import Solved
    from vramplan.results.stages import StageRow
    from vramplan.results.time import Time

TEXTBOOK_PHASE = "textbook"  # the phase of a peak that is a sum of closed forms and not a moment

SCHEMA_VERSION = 1
"""Of the documents of all answers: it changes when a key changes its meaning or goes."""

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


SETTING, CODE = "setting", "code"  # how a program comes to a strategy of checkpoints


class Recommendation(NamedTuple):
    """What to run. Everything is None when no choice fits."""

    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    global_batch_size: int | None
    largest_micro_batch_size: int
    activation_checkpointing: str | None
    flags: str | None  # options of `vramplan fit` that pin this choice
    checkpointing_by: str | None = None  # "setting" of the program, or "code" that wraps the blocks of the model
    accumulation_adds_bytes: int | None = None  # with more than one micro-batch in a step; None: there are more


class Setting(NamedTuple):
    """One setting of a plan as the training program spells it; `value` is empty where the name alone is a call."""

    name: str
    value: str
    source: str | None = None  # the file of the program that has this name; None where it has none


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


# What a remedy costs the person who takes it, the least first.
NOTHING, TIME, OPTIMIZER, TRAINING, MONEY = "nothing", "time", "optimizer", "training", "money"


class Remedy(NamedTuple):
    """A change of what was typed that would make it fit. Typing it gives this verdict and this peak."""

    change: Mapping[str, Any]  # job keys; nested for parallel and adapter; None: the key is taken away
    saves_bytes: int  # device bytes of this answer less those of the answer with the change
    cost: str  # in words
    verdict: str
    costs: str = NOTHING  # nothing | time | optimizer | training | money
    device_bytes: int = 0  # the peak with the change
    usable_bytes: int = 0  # of the device with the change, which may be another one
    option: str = ""  # the change as options of `vramplan fit`
    samples_per_second: float | None = None  # of all devices, with the change; None: a rate of the GPU is not known
    tokens_per_second: float | None = None  # the same; None also where the model takes no text
    host_bytes: int | None = None  # that a node needs of its host with the change; None: nothing is kept there


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
    remedies: tuple[Remedy, ...] | None  # None: nobody looked for any
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    active_parameters: int | None = None  # that one token passes; None: all of them, as there are no experts
    host: Host | None = None  # where the job offloads
    allocator: Allocator | None = None  # where it is simulated
    stages: tuple[StageRow, ...] | None = None  # of a pipeline; the figures above are of the most loaded one
    lists_stages: bool = False  # whether a report for people has a table of them
    solved: Solved | None = None  # where something was solved for: the answer is that at its value
    advice: Advice | None = None  # on batch size and learning rate, where the job names what it comes from
    settings: tuple[Setting, ...] = ()  # the judged plan in the words of the training program
    settings_need_code: bool = False  # whether its checkpoints are no setting of the program, but code in the script
    weight_dtype: str | None = None  # element type of the weights on the GPU; the quantization, where they have one
    time: Time | None = None  # of a step; None: the peak rate of the GPU is not known, or the job is of equations
    run: Run | None = None  # the whole one, where the job says how long it is
    run_unknown: str | None = None  # why there is no run, although something of one is asked
    # the warnings that say why most of the memory of what does not fit is that large, or what a tight run had better be
    decisive: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()  # the deadline and the budget that are asked, and whether they are kept
    data: Data | None = None  # what the input pipeline delivers, where the job says it
    allocated_by: str = "torch.cuda.max_memory_allocated()"  # what the program prints of the allocated bytes

    def to_dict(self, *, strict: bool = False) -> dict[str, Any]:
        """The JSON document of `vramplan fit --format json`, as plain dicts and lists of the caller's own.

        `strict` is the option `--strict`: it decides `exit_code` for a tight verdict, and nothing else.
        """
        return fit_document(self, exit_code=self.exit_code(strict=strict))

    @property
    def broken_limits(self) -> tuple[str, ...]:
        """A sentence for each of deadline and budget that is not kept, or that cannot be judged."""
        return tuple(limit.why for limit in self.limits if not limit.kept)

    def exit_code(self, *, strict: bool) -> int:
        """That of the verdict.

        A tight job whose estimate is above the usable memory, and a run that breaks its deadline or budget, or of which
        nobody can say whether it does, end as one that does not fit: `check` fails them too. So does a search for a
        value that found none, whatever the figures of the one that is shown.
        """
        none_found = self.solved is not None and self.solved.value is None
        if (self.verdict == TIGHT and self.headroom_bytes < 0) or self.broken_limits or none_found:
            return ExitCode.DOES_NOT_FIT
        return code_of(self.verdict, strict=strict)

    def __repr__(self) -> str:
        needed, usable = self.peak.device_bytes / _GIB, self.usable_bytes / _GIB
        best = self.recommended
        run = "nothing fits"
        if best.micro_batch_size is not None:
            run = f"micro-batch {best.micro_batch_size} x {best.gradient_accumulation_steps} accumulation steps"
            run += f", checkpointing {best.activation_checkpointing}"
        return f"<FitResult {self.name!r}: {self.verdict}, {needed:.1f} of {usable:.1f} GiB, {run}>"


def code_of(verdict: str, *, strict: bool) -> int:
    """The exit code of a verdict."""
    if verdict == DOES_NOT_FIT:
        return ExitCode.DOES_NOT_FIT
    return ExitCode.TIGHT if verdict == TIGHT and strict else ExitCode.OK


# The answer as a document: the keys of docs/job-format.md, all of them, in a stable order, bytes as integers


def fit_document(result: FitResult, *, exit_code: int) -> dict[str, Any]:
    """The JSON document of `vramplan fit`: plain dicts and lists that belong to the caller."""
    peak, recommended = result.peak, result.recommended
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "name": result.name,
        "verdict": result.verdict,
        "job": plain(result.job),
        "exit_code": exit_code,
        "capacity_bytes": result.capacity_bytes,
        "usable_bytes": result.usable_bytes,
        "headroom_bytes": result.headroom_bytes,
        "utilization": result.utilization,
        "parameters": {
            "total": result.total_parameters,
            "trainable": result.trainable_parameters,
            "active": result.active_parameters,
        },
        "weight_dtype": result.weight_dtype,
        "peak": {
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "device_bytes": peak.device_bytes,
            "low_bytes": peak.low_bytes,
            "high_bytes": peak.high_bytes,
            "phase": peak.phase,
            "operator": peak.operator,
            "phases": {
                "forward_bytes": peak.forward_bytes,
                "backward_bytes": peak.backward_bytes,
                "step_bytes": peak.step_bytes,
            },
            "saved_bytes": peak.saved_bytes,
        },
        "components": [_component(part) for part in result.components],
        "overheads": _parts(result.overheads),
        "recommended": {
            "micro_batch_size": recommended.micro_batch_size,
            "gradient_accumulation_steps": recommended.gradient_accumulation_steps,
            "global_batch_size": recommended.global_batch_size,
            "largest_micro_batch_size": recommended.largest_micro_batch_size,
            "activation_checkpointing": recommended.activation_checkpointing,
            "flags": recommended.flags,
            "checkpointing_by": recommended.checkpointing_by,
            "accumulation_adds_bytes": recommended.accumulation_adds_bytes,
        },
        "settings": [setting._asdict() for setting in result.settings],
        "settings_need_code": result.settings_need_code,
        "checkpoints": [{"first": first, "last": last} for first, last in result.checkpoints],
        "alternatives": [
            {
                "activation_checkpointing": row.activation_checkpointing,
                "verdict": row.verdict,
                "micro_batch_size": row.micro_batch_size,
                "gradient_accumulation_steps": row.gradient_accumulation_steps,
                "allocated_bytes": row.allocated_bytes,
                "device_bytes": row.device_bytes,
                "largest_micro_batch_size": row.largest_micro_batch_size,
                "recomputed_fraction": row.recomputed_fraction,
            }
            for row in result.alternatives
        ],
        "remedies": None if result.remedies is None else [_remedy(remedy) for remedy in result.remedies],
        "assumptions": [{"key": item.key, "value": plain(item.value), "why": item.why} for item in result.assumptions],
        "warnings": list(result.warnings),
        "stages": None if result.stages is None else [row._asdict() for row in result.stages],
        "host": None if result.host is None else result.host._asdict(),
        "allocator": None if result.allocator is None else _allocator(result.allocator),
        "advice": None if result.advice is None else _advice(result.advice),
        "time": None if result.time is None else result.time.to_dict(),
        "run": None if result.run is None else result.run.to_dict(),
        "data": None if result.data is None else result.data._asdict(),
        "solved": None if result.solved is None else result.solved._asdict(),
        "run_unknown": result.run_unknown,
        "limits": [limit._asdict() for limit in result.limits],
        "decisive": list(result.decisive),
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "change": plain(remedy.change),
        "option": remedy.option,
        "saves_bytes": remedy.saves_bytes,
        "device_bytes": remedy.device_bytes,
        "usable_bytes": remedy.usable_bytes,
        "cost": remedy.cost,
        "costs": remedy.costs,
        "verdict": remedy.verdict,
        "samples_per_second": remedy.samples_per_second,
        "tokens_per_second": remedy.tokens_per_second,
        "host_bytes": remedy.host_bytes,
    }


def _allocator(allocator: Allocator) -> dict[str, Any]:
    end = allocator.out_of_memory
    return {**allocator._asdict(), "out_of_memory": None if end is None else end._asdict()}


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "base_batch_size": advice.base_batch_size,
        "base_learning_rate": advice.base_learning_rate,
        "micro_batch_size": advice.micro_batch_size,
        "gradient_accumulation_steps": advice.gradient_accumulation_steps,
        "data_parallel_size": advice.data_parallel_size,
        "effective_batch_size": advice.effective_batch_size,
        "learning_rate": {
            "linear": advice.linear_learning_rate,
            "square_root": advice.square_root_learning_rate,
            "rule": advice.rule,
            "recommended": advice.learning_rate,
            "why": advice.why,
        },
        "warm_up": {"least_steps": advice.warm_up_least_steps, "most_steps": advice.warm_up_most_steps},
        "layerwise_optimizer": advice.layerwise_optimizer,
        "accumulation_overhead": advice.overhead,
        "communication_saved_fraction": advice.communication_saved,
        "loss": {"by": advice.loss_by, "text": advice.loss},
        "clipping": advice.clipping,
        "schedule": advice.schedule,
        "synchronisation": advice.synchronisation,
        "batch_normalisation": advice.batch_normalisation,
    }


def _component(part: Component) -> dict[str, Any]:
    """A part of the peak, with what it would be on one device and what divides it."""
    return {
        **_parts([part])[0],
        "unsharded_bytes": part.unsharded_bytes,
        "divided_by": dict(part.divided_by) or None,
    }


def _parts(parts: Iterable[Component]) -> list[dict[str, Any]]:
    return [{"name": part.name, "bytes": part.bytes, "basis": part.basis} for part in parts]
