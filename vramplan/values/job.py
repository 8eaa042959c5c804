"""One training run with every default explicit, as frozen values. Sizes are integer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vramplan.tuples import NamedTuple
from vramplan.values.length import NO_LENGTH, Length, Rent
from vramplan.values.machine import Gpu, Runtime
from vramplan.values.model import NEWEST, ModelShape, OldCode
from vramplan.values.parallel import DDP, Sharded, Split, is_fsdp

if TYPE_CHECKING:
    from vramplan.values.allocator import Settings


NEXT_FORWARD = "next-forward"  # until when outputs are held
BEFORE_BACKWARD = "before-backward"  # where a loop zeroes gradients
MAX_UTILIZATION = 0.95  # share of the usable memory that a gate lets pass where nobody says another
FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does-not-fit"  # the verdicts


class Assumption(NamedTuple):
    """A default that was taken, and why."""

    key: str
    value: Any
    why: str


class Adapter(NamedTuple):
    """Small weights that are trained beside a frozen model, as PEFT has them."""

    kind: str  # a word of vramplan/values/adapter_kinds.py, KINDS
    rank: int  # what it is, the kind says; 0 of those that have none
    targets: tuple[str, ...]  # linear layers by the ends of their names, or all-linear
    feedforward_targets: tuple[str, ...] = ()  # ia3: those of them whose input is scaled, not their output
    modules_to_save: tuple[str, ...] = ()  # modules of which a copy is trained in full
    alpha: float | None = None  # a factor, which costs nothing, or over experts little
    dropout: float = 0.0
    dtype: str = "fp32"  # element type of the adapter's weights: fp32, or that of the model's
    decompose_factor: int | None = None  # lokr: the smaller of the factors of a width; None: those that are nearest
    frequencies: int | None = None  # fourierft: numbers of the spectrum that are trained
    bias: str = "none"  # which biases of the model are trained beside it: none, all, or those of its targets
    kernels: tuple[str, ...] = ()  # layers that run with their adapters as one function: mlp, qkv, o
    asked_kernels: tuple[str, ...] = ()  # those that the job asks for, of which some may change nothing
    trainable_tokens: int | None = None  # rows of the table of the tokens that are trained
    virtual_tokens: int = 0  # of kinds that train tokens in place of layers
    encoder_hidden_size: int | None = None  # of what makes these tokens of an embedding; None: nothing does
    prefix_projection: bool = False  # prefix-tuning: whether something does

    @property
    def is_prefix(self) -> bool:
        """Whether the virtual tokens are keys and values of each block, in a cache that no checkpoint knows."""
        return self.kind == "prefix-tuning"

    @property
    def tokens_before(self) -> int:
        """Virtual tokens that stand before those of a text."""
        return 0 if self.is_prefix else self.virtual_tokens


class FakeQuantization(NamedTuple):
    """Quantization-aware training, as torchao has it: linear layers that round in high precision."""

    weights: str  # a word of vramplan/options/words.py, QAT_WEIGHTS
    activations: str | None = None  # of QAT_ACTIVATIONS; None: inputs are as they are
    group_size: int | None = None  # consecutive weights that share a scale; None: a row
    embedding: bool = False  # the table of the token embeddings too
    zero_points: str = "int32"  # element type of those of integers: int32 | fp32
    adapted_only: bool = False  # of all linear layers those that have an adapter
    skips: bool = False  # layers whose width is no multiple of the groups stay as they are


class ResolvedJob(NamedTuple):
    """One training run with every default explicit, except the three things the planner chooses.

    `None` in micro_batch_size, gradient_accumulation_steps or activation_checkpointing means "not pinned: recommend".
    """

    name: str
    model: ModelShape
    gpu: Gpu
    sequence_length: int  # tokens; 0: the model takes images alone
    micro_batch_size: int | None
    global_batch_size: int
    global_batch_given: bool  # False: the recipe of the model, which may move to the nearest that can be reached
    gradient_accumulation_steps: int | None
    precision: str  # fp32 | amp-fp16 | amp-bf16 | mixed-fp16 | mixed-bf16 | pure-fp16 | pure-bf16 | fp8
    optimizer: str  # a word of vramplan/options/words.py, OPTIMIZERS
    optimizer_implementation: str  # foreach | fused | for-loop | transformers
    # none | full | sqrt | every:K | layers:[[0,6],[7,13]] | optimal | selective | selective-op | selective-layer:K
    activation_checkpointing: str | None
    attention: str  # eager | flash | efficient  (sdpa is resolved)
    dropout: float | None  # None: the model's own
    hold_outputs: bool
    data_parallel_size: int
    runtime: Runtime
    reserve_bytes: int
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()  # a part of the memory, and the warning that says why it is that large
    expect: str = "fits"  # gates only
    max_utilization: float = MAX_UTILIZATION  # gates only
    case: Mapping[str, Any] = MappingProxyType({})  # validation cases only: measured, use, source, trace, ...
    base_batch_size: int | None = None  # batch advice only: the batch that the base learning rate was found for
    base_learning_rate: float | None = None
    hold_outputs_until: str | None = None  # backward | next-forward (which makes new ones); None: none are held
    use_cache: bool = False  # the model returns keys and values with its outputs
    optimizer_in_backward: bool = False
    zero_grad: str = "after-step"  # after-step | before-backward: where the loop zeroes gradients
    max_gradient_norm: float | None = None  # None: no clipping
    grad_scaler: bool = False  # torch.amp.GradScaler around the loss and the step
    ema: bool = False  # an exponential moving average of the weights
    from_scratch: bool = False  # no checkpoint gives the weights their element type
    tf32: bool = False  # precision fp32 whose products run on tensor cores, in TF32
    half_weights: bool = False  # amp-* and fsdp-*: the weights have the element type of the matrix products already
    fp32_states: bool = False  # without a master copy: the 32-bit states of bitsandbytes beside half weights
    fp32_gradients: bool = False  # mixed-* only: half-precision gradients are summed in fp32 buffers that stay
    mamba_kernels: bool = False  # mamba-ssm and causal-conv1d are installed, and the model has a use for them
    liger_kernels: tuple[str, ...] = ()  # that run in place of the model's own modules: rms-norm, glu, rope
    teacher: ModelShape | None = None  # a second model, whose predictions the loss compares with
    distillation: str | None = None  # how: forward-kl | reverse-kl | symmetric-kl | jsd
    teacher_logprobs: int | None = None  # of a teacher that ran before: so many were saved for each token
    tiled_mlp: int | None = None  # tiles along the sequence that the MLP of each block runs in; None: at once
    every_second_matmul: bool = False  # selective-op only
    offload_activations: bool = False  # what forward saves is in pinned memory of the host
    checkpoint_reentrant: bool = False  # torch.utils.checkpoint with use_reentrant=True
    expert_imbalance: float | None = None  # tokens of the most loaded expert over the mean; None: there are no experts
    expert_capacity_factor: float | None = None  # tokens that an expert takes over the mean; None: all
    expert_pad_to_capacity: bool = False  # each expert gets as many as it takes
    loss: str = "standard"  # standard (what the runtime does) | fp32-logits | half-logits | chunked:N | fused | dpo
    compile: bool = False  # torch.compile around the model, its loss included
    channels_last: bool = False  # images lie in memory with their channels last; the time of a step alone
    label_smoothing: float = 0.0  # the figure itself costs nothing
    dpo_reference: str | None = None  # of the loss dpo: model | precomputed | adapter-off
    padding: str = "none"  # none | right: every token counts, or some are padding and a mask says so
    packing: bool = False  # several sequences in each, told apart by position ids that begin anew
    varied_lengths: bool = False  # batches are padded to their longest sample, so that their lengths differ
    eval_batch_size: int | None = None  # None: no evaluation is looked at
    generation_batch_size: int | None = None  # both or neither
    generation_length: int | None = None  # tokens of prompt and answer
    image_size: int | None = None  # pixels of an edge; None: the model takes no images
    target_length: int | None = None  # seq2seq only: tokens of the decoder; None: sequence_length
    frozen: tuple[str, ...] = ()  # parts of the model that are not trained
    trained_blocks: str = "all"  # at a time: all | lisa:N | badam; `frozen` then has those that are not, now
    adapter: Adapter | None = None
    quantization: str | None = None  # of the frozen weights under an adapter: nf4 | nf4-double | int8 | gptq-int4
    quantized_experts: bool = False  # the stacked weights of experts too
    bitsandbytes: str | None = None  # the release that multiplies them; None: the one that was read
    qat: FakeQuantization | None = None  # None: nothing is rounded
    sharding: Sharded | None = None  # None: one device, or replicas whose communication is not counted
    split: Split | None = None  # None: each device has a whole replica
    planned: Split | None = None  # the same, where the program splits a model whose code knows nothing of it
    offload: tuple[str, ...] = ()  # what lives on the host: any of parameters, gradients, optimizer
    devices_per_node: int = 1  # that share a host
    node_bandwidth_bytes_per_s: float | None = None  # of a node's network, each way; None: that of the usual machine
    host_memory_bytes: int | None = None  # of a node; None: not checked
    allocator: Settings | None = None  # what the caching allocator is simulated with; None: it is estimated
    rent: Rent | None = None  # of the instance of a cloud that the GPUs are
    allocator_offered: Settings | None = None  # the same where nothing says whether: for short iterations
    gpu_free_bytes: int | None = None  # of the device before the process starts; None: all of it
    old_code: OldCode = NEWEST  # what of that release runs
    transformers_version: str | None = None  # 4.57; None: the newest that was traced
    litgpt_version: str | None = None  # 0.4.5; None: the newest that was traced
    deepspeed_version: str | None = None  # 0.18.6; None: the newest that was read, or that of the time of others
    first_flash: bool = False  # whether sdpa came to the flash kernel of a PyTorch that has FlashAttention 1
    pytorch_version: str | None = None  # 2.1; None: the context is the runtime profile's
    cuda_module_loading: str | None = None  # lazy | eager; None: what that version does
    composed: tuple[str, ...] = ()  # what of it was never compared as a whole: sentences without an end
    length: Length = NO_LENGTH  # of the whole run: time and cost only

    @property
    def usable_bytes(self) -> int:
        """What the run may take of the device."""
        capacity = self.gpu.capacity_bytes
        free = capacity if self.gpu_free_bytes is None else min(self.gpu_free_bytes, capacity)
        return free - self.reserve_bytes


def trains_all(job: ResolvedJob) -> bool:
    """Whether every weight is trained: then all blocks of a run are alike."""
    return not job.frozen and job.adapter is None and job.trained_blocks == "all"


OF_TORCHAO = ("adamw-8bit", "adamw-8bit-torchao", "adamw-4bit-torchao", "adamw-fp8-torchao")
"""Optimizers whose states torchao has too, for DTensors: a byte an element of the shard and 4 B per 256 of them, as
bitsandbytes has. Source: torchao 0.18, optim/adam.py, _AdamBase._new_buffer; optim/subclass_8bit.py."""


def of_torchao(job: ResolvedJob) -> bool:
    """Whether the optimizer is torchao's in the place of bitsandbytes', which steps no shards of fully_shard.

    The Trainer asks bitsandbytes alone for 32 bits of the states of embeddings.
    """
    sharding = job.sharding
    return sharding is not None and is_fsdp(sharding.kind) and sharding.version == 2 and job.optimizer in OF_TORCHAO


def shares_weights(job: ResolvedJob) -> bool:
    """Whether each device holds a part of the weights, or of their states, alone."""
    return job.sharding is not None and job.sharding.kind != DDP
