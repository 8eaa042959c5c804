"""The job that is to be written as files of a program, and what writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vramplan.configs.catalogue import Catalogue
from vramplan.configs.page import Page
from vramplan.errors import InputError, Problem, closest
from vramplan.job import build_job, job_to_dict
from vramplan.job.trained import parts
from vramplan.options import table
from vramplan.replay.models.parts import block_lists
from vramplan.replay.techniques.frozen import matches
from vramplan.replay.techniques.trained import names_of
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob


def refused(writer: str, model: Any, known: Iterable[str]) -> InputError:
    """The error of a model that a program has no name for, where its reader would take any name."""
    has = list(known)
    near = [name for name in Catalogue().nearest_to(str(model)) if name in has] or closest(str(model), has, 3, 0)
    first, *rest = near[:3]
    hint = f"nearest: model={first}, --model {first}" + (f", or {' or '.join(rest)}" if rest else "")
    return InputError([Problem(f"{writer} has no setting for model={model}", hint=hint)])


class ProgramFiles(NamedTuple):
    """The files of a program, the one that is printed first, and the commands that start it with them.

    `is_script`: whether a script of the user's own decides what no setting says.
    """

    pages: tuple[Page, ...]
    launch: tuple[str, ...]
    is_script: bool = False


@dataclass(frozen=True)
class Asked:
    """The job that is to be written: its keys with dots, every default explicit.

    `checkpoint`: the name of the model on the hub, or the catalogue's. `is_sdpa`: whether SDPA chooses the attention
    that the job has. `paths`: of a job that freezes parts, all weights. `trained`: the names in Transformers of those
    that are trained, where they are known. `alike`: words of a key that mean the same to the program that it is for.
    """

    job: Mapping[str, Any]
    checkpoint: str
    is_sdpa: bool
    blocks: int = 0
    shape: Mapping[str, Any] = field(default_factory=dict)
    paths: tuple[tuple[str, ...], ...] = ()
    trained: tuple[str, ...] = ()
    alike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.job.get(key)

    @property
    def devices(self) -> int:
        """All GPUs."""
        count = 1
        for key in ("data", "tensor", "pipeline", "context"):
            count *= self[f"parallel.{key}"] or 1
        return count

    @property
    def nodes(self) -> int:
        """Machines that the GPUs are in: the fewest that have as many each, as launchers start them."""
        most = self["parallel.devices_per_node"] or 1
        return next(count for count in range(-(-self.devices // most), self.devices + 1) if self.devices % count == 0)

    @property
    def per_node(self) -> int:
        """GPUs of a machine that are used."""
        return self.devices // self.nodes

    @property
    def half(self) -> str | None:
        """The type of 16 bits that the model computes in."""
        word = str(self["precision"])
        return next((half for half in ("bf16", "fp16") if word.endswith(half)), None)

    @property
    def kind(self) -> str:
        """How the states are shared, without a number: `hsdp` of `hsdp:8`."""
        return str(self["parallel.sharding"]).partition(":")[0]

    @property
    def shards(self) -> bool:
        """Whether states are shared, be it by one device: a launcher then has to say how many there are."""
        return self.kind not in ("ddp", "none")

    @property
    def zero(self) -> int | None:
        """The stage of ZeRO."""
        return int(self.kind[4:]) if self.kind.startswith("zero") else None

    @property
    def fsdp(self) -> bool:
        """Whether FSDP shards the model."""
        return self.kind in ("fsdp", "fsdp-grad-op", "hsdp")

    def offloads(self, part: str) -> bool:
        """Whether the host holds a part."""
        return part in (self["offload"] or ())

    def torchrun(self) -> str:
        """The launcher with the number of GPUs."""
        meeting = "--rdzv_backend c10d --rdzv_endpoint HOST:29500"
        several = f"--nnodes {self.nodes} {meeting} " if self.nodes > 1 else ""
        return f"torchrun {several}--nproc_per_node {self.per_node}"

    @property
    def is_alone(self) -> bool:
        """Whether one process without a group of processes trains: states are shared in a group, be it one of one."""
        return self.devices == 1 and not self.shards

    def accelerate(self) -> str:
        """The launcher with the number of GPUs; torchrun for a group of one, which `accelerate launch` does not make.

        Without a group FSDP shards nothing, and ZeRO cannot start. Source: huggingface/accelerate 1.15.0,
        commands/launch.py, simple_launcher; deepspeedai/DeepSpeed 0.19.8, deepspeed/comm/comm.py, mpi_discovery.
        """
        if self.devices == 1 and self.shards:
            return self.torchrun()
        meeting = "--machine_rank RANK --main_process_ip HOST --main_process_port 29500"
        several = f" --num_machines {self.nodes} {meeting}" if self.nodes > 1 else ""
        return f"accelerate launch --num_processes {self.devices}{several}"

    def environment(self, *, hides: bool = False) -> str:
        """Variables before a command: the settings of the allocator, and the one GPU of a run without a group.

        `hides`: the program is one of the Trainer's, which takes every GPU that it sees by nn.DataParallel. Source:
        huggingface/transformers 5.23.0, src/transformers/training_args.py, _setup_devices.
        """
        settings = str(self["allocator"])
        told = f"PYTORCH_ALLOC_CONF={settings} " if ":" in settings else ""
        return f"{told}{'CUDA_VISIBLE_DEVICES=0 ' if hides and self.is_alone else ''}"


class Writer(NamedTuple):
    """What writes the files of one program."""

    name: str
    runtimes: tuple[str, ...]
    """The runtimes whose jobs its files can mean; the first where a job names none."""

    write: Callable[[Asked], Iterator[ProgramFiles]]
    """The files, in one way or in several: the first that means the job is taken."""

    alike: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Words of a key that the program has one setting for, as it runs the same for both."""

    lacks: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """Words of a key that its runtime has from another program and its files have no setting for, with the nearest."""


def flat(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job with dotted keys; a model that is a mapping stays one."""
    found: dict[str, Any] = {}
    for key, value in job.items():
        if key in table.GROUPS and isinstance(value, Mapping):
            found.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            found[key] = value
    return found


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as keys within keys."""
    result: dict[str, Any] = {}
    for key, value in keys.items():
        group, _, name = key.rpartition(".")
        (result.setdefault(group, {}) if group else result)[name] = value
    return result


def asked_of(job: Mapping[str, Any], folders: Sequence[Path], checkpoint: str | None = None) -> Asked:
    """What a writer is asked for; `job` is that of an answer. Raises InputError.

    `checkpoint`: the model as it was asked for, which is kept where it is a name on the hub.
    """
    settled = build_job(dict(job), profile_dirs=folders)
    echo = job_to_dict(settled)
    try:
        sdpa = build_job({**job, "attention": "sdpa"}, profile_dirs=folders).attention == settled.attention
    except InputError:
        sdpa = False
    echo["global_batch_size"] = None  # it follows from the micro-batch and the steps
    shape = echo["model"]
    name = str(shape.get("name"))
    known = Catalogue(folders)
    if checkpoint is None or not _ON_THE_HUB.fullmatch(checkpoint) or known.name_of(checkpoint) != name:
        checkpoint = checkpoint_of(name, known)
    else:
        checkpoint = spelled(checkpoint, name, known)
    paths = tuple(names_of(settled.model).paths) if settled.frozen and settled.trained_blocks == "all" else ()
    return Asked(flat(echo), checkpoint, sdpa, settled.model.layers, shape, paths, trained_names(settled, paths))


_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def trained_names(job: ResolvedJob, paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Of a model whose blocks are `model.layers` the weights that are trained."""
    if not paths or block_lists(job.model) != ("layers",):
        return ()
    frozen = matching(job.frozen, paths)
    return tuple(parts.spelled(path, job.model)[0] for path in paths if path not in frozen)


def matching(words: Sequence[str], paths: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The weights that words of `frozen` mean."""
    return {path for path in paths if any(matches(word, path) for word in words)}


def spelled(checkpoint: str, name: str, known: Catalogue) -> str:
    """A name on the hub in capital letters as its page has it: gated pages are not found otherwise.

    Source: huggingface/transformers, issue 26475.
    """
    aliases = known.aliases_of(name)
    return next((alias for alias in aliases if alias.lower() == checkpoint.lower()), checkpoint)


def checkpoint_of(name: str, known: Catalogue) -> str:
    """The name on the hub of a model of the catalogue; the name itself where it has none."""
    return next((one for one in known.aliases_of(name) if "/" in one and known.name_of(one) == name), name)
