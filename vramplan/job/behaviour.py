"""What a training program makes of a job: its defaults, its checks, and what it has no code for.

`JobBehaviour` is a plain training loop around a model of Transformers. A program that differs subclasses it in `job.py`
of its folder under `vramplan/engines`, and registers an instance as its behaviour in the room `job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vramplan.engines import OF_SHARDINGS, behaviour_of
from vramplan.replay.models.capable import drops_out, freezes_parts, ignores_windows
from vramplan.replay.models.parts import compiles_blocks
from vramplan.values.parallel import DDP

if TYPE_CHECKING:
    from vramplan.catalog.fields import Fields
    from vramplan.job.evidence.cells import Cells
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import FakeQuantization, ResolvedJob
    from vramplan.values.machine import Gpu, Runtime
    from vramplan.values.model import ModelShape
    from vramplan.values.parallel import Sharded, Split

LEAVE = "leave it out"
COMPILED = "each block is a graph of its own, by the rules of compiled steps"
Refusal = tuple[str, str]  # a message and what to do instead


class JobBehaviour:
    """What a job is under a training program; the values and methods here are those of a plain loop."""

    lacks: Mapping[str, str] = MappingProxyType({})
    """Keys of a job that the program has no code for, and what to do instead."""

    accepts: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """By the key all words that the program has code for; `only_` fields of its runtime profile say the same."""

    implementations: Mapping[str, str] = MappingProxyType({})
    """Optimizers that the program has a class of its own for, and the word of it."""

    keeps_master_copy = False  # training in 16 bits is over a copy of the weights in fp32
    scales_fp16 = False  # a loss under autocast in fp16 goes through torch.amp.GradScaler, whatever the job says
    shards_hold_experts = False  # the devices that share experts are among those that share FSDP's shards
    wraps_one_device = False  # FSDP's units are made on a single device too
    has_sharded_float8 = False  # `precision: fp8` means products in 8 bits of fp32 shards
    has_float8_of_fsdp = False  # the same where FSDP shares the states
    has_preference_training = False
    distils: tuple[str, ...] = ()  # words of divergences that recipes of the program with a teacher have
    distils_from_file: tuple[str, ...] = ()  # the same where the predictions of a teacher were saved
    distils_over_logits = False  # a trainer makes the divergence of whole logits, and no other loss
    preferences_by = "TRL"  # which turns dropout off
    offloads_by_zero = False  # states go to the host by DeepSpeed's ZeRO, of which a job has to say nothing then
    sizes_buckets_by_width = False  # DeepSpeed's `auto` is filled in from the width of the model
    projects_linear_only = False  # GaLore is looked for in nn.Linear alone
    projects_in_backward_alone = False  # an optimizer that projects steps in backward on one device alone
    refuses_micro_batches = False  # `check` looks at the micro-batch: what it says of one is not true of another
    groups_micro_batches = False  # an interleaved schedule may take other groups of micro-batches than of the stages
    splits_loss_anyway = False  # the loss is computed over parts of the vocabulary, whatever the job says
    has_own_attention = False  # the kernel is called by code of the program, which repeats keys and values if need be
    joined: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """The layers that an adapter sits on, by names of other programs that are parts of them, or stand for them."""

    adapter_targets: tuple[str, ...] = ()  # those of its recipes; else queries and values
    adapter_rank: int | None = None  # that of its function which makes adapters; None: PEFT's
    fuses_adapters = False  # it has functions of its own for layers with LoRA, as Axolotl has
    shares_by_itself = False  # data-parallel devices share states in ways of the program's own: `sharding_of`
    fp32_states_of = "bitsandbytes"  # whose kernel keeps fp32 states beside weights in 16 bits

    models_hint: str | None = None  # what to write as the model, where the families do not say it

    # The model

    def described(self, resolver: Resolver, values: dict[str, Any]) -> dict[str, Any]:
        """What a described model says. Raises InputError where the program has no code for such a description."""
        return values

    def note_release(self, resolver: Resolver, model: ModelShape, runtime: Runtime, release: str) -> None:
        """Note in the resolver what of an older release of the program runs, as `old_code`."""
        message = f"{release} says nothing of {runtime.name}"
        resolver.fields.refuse("litgpt_version", message, hint="leave it out, or runtime: litgpt")

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """Refuse what the program's own code of the family, in the module `own`, has not got."""
        raw, fields = resolver.raw, resolver.fields
        if not drops_out(own) and raw.dropout:
            message = f"{raw.dropout:g} means nothing to {runtime.name}, which has none"
            fields.refuse("dropout", message, hint=LEAVE)
        window, length = model.sliding_window, raw.sequence_length
        reached = window is not None and (length is None or length >= window) and window < model.max_positions
        if reached and not ignores_windows(own):
            what = f"a sequence that reaches the sliding window of {window}"
            hint = f"use less than {window}, or another --runtime"
            fields.refuse("sequence_length", f"{what} is not modelled as {runtime.name} computes it", hint=hint)
        if raw.compile and compiles_blocks(own):
            resolver.assume("compile", True, self.compiled_basis)
        if raw.frozen and runtime.only.get("adapter") is not None and not freezes_parts(own):
            fields.refuse("frozen", f"frozen parts are not modelled as {runtime.name} has them", hint="leave them out")

    compiled_basis = f"{COMPILED}; and the loss"  # of the program's own code

    # Precision

    def default_precision(self, resolver: Resolver, able: bool) -> tuple[str, str] | None:
        """The precision of a job that has none, on a GPU that is able to bf16, and why; None: the usual."""
        return None

    def cells_of(self, resolver: Resolver, precision: str) -> Cells | None:
        """The element types of the job, where the program has types of its own."""
        return None

    def check_own_float8(self, resolver: Resolver, gpu: Gpu | None, sequence_length: int) -> bool:
        """Refuse what products in fp8 are not computed with; false where the program has none but torchao's."""
        return False

    def check_sharded_float8(
        self, resolver: Resolver, model: ModelShape, gpu: Gpu | None, sequence_length: int
    ) -> None:
        """Refuse products in fp8 of fp32 shards where no code is known that has them."""
        hint = "fsdp-bf16; or --runtime torchtitan, or llm-foundry with its own MPT"
        message = f"no code of {model.code} is known that has products in fp8 of fp32 shards"
        resolver.fields.refuse("precision", message, hint=hint)

    # The loss

    def no_head_loss(self, resolver: Resolver, model: ModelShape, loss: str) -> Refusal | None:
        """Why a loss over the head that the family has is not modelled in this job."""
        return None

    # Quantization-aware training

    rounds_own_code = False  # whether layers of the program's own code are replaced by those that round

    def fake_quantization(self, resolver: Resolver, model: ModelShape, asked: FakeQuantization) -> FakeQuantization:
        """How the program rounds what a job asks for."""
        return asked

    # Weights in 4 bits

    four_bits: tuple[str, str] | None = None  # what its nf4 weights are whatever the job calls them, and why

    def no_bitsandbytes(self, model: ModelShape) -> str | None:
        """Whose the quantized weights are, where they are not those of bitsandbytes."""
        return None

    # Several devices

    splits: tuple[str, ...] = ()  # ways to split a model whose own code knows nothing of them

    way_of_replicas: str | None = None  # what the program brings for devices that each have all; None: PyTorch's DDP

    def sharing_devices(self, resolver: Resolver) -> int:
        """How many devices share the data, and with it the states."""
        split = resolver.raw.split
        along = split is not None and "context" in self.splits  # those that share a sequence have all of its weights
        return resolver.raw.data_parallel_size * (split.context if split is not None and along else 1)

    def default_sharding(self, resolver: Resolver) -> tuple[str, str]:
        """How several devices share the states where the job says nothing, and why."""
        return DDP, "DistributedDataParallel"

    def sharding_of(self, resolver: Resolver, model: ModelShape | None) -> Sharded | None:
        """How the devices share the states, of a program that `shares_by_itself`."""
        raise NotImplementedError

    def check_sharing(self, resolver: Resolver, sharding: Sharded | None) -> None:
        """Refuse a way to share states, or none, that the program is not for."""

    def fsdp_version(self, resolver: Resolver) -> tuple[int, str]:
        """Which version of FSDP the program has where the job says nothing, and why."""
        return 2, "fully_shard, as FSDP is today"

    def has_policy(self, resolver: Resolver) -> bool:
        """Whether a half of FSDP is its own mixed precision, where the profile has a `sharded_precision`."""
        return True

    def no_sync(self, resolver: Resolver) -> tuple[bool, str]:
        """Whether gradients are summed at the last micro-step alone where the job says nothing, and why."""
        return False, "a plain loop sums the gradients of each micro-step"

    def split_of(
        self, resolver: Resolver, split: Split | None, model: ModelShape, loss: str, sequence_length: int
    ) -> tuple[Split | None, str]:
        """The split of a replica over devices and the loss, with the program's own defaults."""
        return split, loss

    # The whole job

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """The job with what the program decides last; what it cannot do is refused at its key."""
        return job

    def said_gradient_dtype(self, job: ResolvedJob) -> str | None:
        """The `gradient_dtype` that a job file has to name, as the program's default is another one."""
        return None


class SharingBehaviour:
    """What a program that brings its ways to share states to the loops of others makes of the keys of `parallel`."""

    def sharded(self, resolver: Resolver, kind: str, devices: int) -> Sharded:
        """What the keys say, with the program's defaults."""
        raise NotImplementedError

    def refuse_keys(self, resolver: Resolver) -> None:
        """Refuse the keys where the states are shared in another way."""

    def check(self, parallel: Fields, job: ResolvedJob) -> None:
        """Refuse what does not go with the keys."""

    def to_dict(self, sharding: Sharded, offload: tuple[str, ...]) -> dict[str, Any]:
        """The keys of `parallel` that a job file has to name."""
        return {}


PLAIN = JobBehaviour()
NO_WAYS = SharingBehaviour()


def under(runtime: Runtime | None) -> JobBehaviour:
    """What a runtime's training program makes of a job; a plain loop where the runtime was refused."""
    return PLAIN if runtime is None else behaviour_of(runtime.engine, "job", PLAIN)


def sharing_in(kind: str) -> SharingBehaviour:
    """What a program that brings a way to share states, a word of `parallel.sharding`, makes of its keys."""
    return behaviour_of(OF_SHARDINGS[kind], "sharing", NO_WAYS)
