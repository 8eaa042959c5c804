"""The frozen values that cross the rooms: what a model, a GPU and a job are once nothing is left to look up.

Sizes are integer bytes with the unit in the name. Nothing here reads a file or computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vramplan.allocator_settings import Settings

FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does-not-fit"  # the verdicts

DEFAULT_IMAGE_SIZE = 224  # docs/job-format.md, "Defaults", where the model has no size of its own
DEFAULT_GLOBAL_BATCH_SIZE = 512  # docs/job-format.md, "Defaults"; it moves to the nearest that can be reached


class Experts(NamedTuple):
    """The mixture of experts in the blocks of a model."""

    routed: int  # experts of a block among which tokens are spread; `count` in the job format
    active: int  # of them, for each token
    shared: int  # experts that every token passes
    intermediate_size: int  # of each routed expert
    shared_intermediate_size: int | None  # of all shared ones together
    normalized: bool  # whether the weights of a token's experts are divided by their sum
    dense_layers: tuple[int, ...]  # blocks with a plain feed-forward layer instead, from 0
    groups: int | None = None  # DeepSeek: experts are chosen within so many groups of them,
    active_groups: int | None = None  # of which each token sees so many


class LatentAttention(NamedTuple):
    """Attention whose keys and values pass a narrow latent: the sizes of its parts, for each head but the ranks."""

    query_rank: int | None  # of the queries' own latent; None: they have none
    key_value_rank: int  # of the latent of keys and values
    plain_size: int  # elements of queries and keys without positions
    rotary_size: int  # and with; the keys' are shared by all heads
    value_size: int
    interleaved: bool  # rotary positions turn neighbours, not halves


class UNet(NamedTuple):
    """What modded-nanogpt's models have beside a plain transformer, record by record (job format, `model.unet`)."""

    value_embeddings: int  # tables whose rows are added to the values of the first and of the last so many blocks
    mirrored: bool  # the last block takes the first table; else the first of the last so many blocks does
    embedding_rows: int  # of the tables; the head may be padded to more
    fp32_rotary: bool  # queries and keys are turned in fp32, by buffers of all positions; else by a cache in 16 bits
    attention_free: tuple[int, ...] = ()  # blocks without attention, from 0

    def table_of(self, block: int, layers: int) -> int | None:
        """The table whose rows are added to the values of a block; None: it has none."""
        count = self.value_embeddings
        if block < count:
            return block
        if block < layers - count:
            return None
        return layers - 1 - block if self.mirrored else block - (layers - count)


class ModelShape(NamedTuple):
    """The architecture of one network: what decides the shapes of its tensors."""

    name: str
    family: str  # which forward pass: a file of vramplan/models
    transformers_model_type: str  # gpt2, llama, mistral, qwen2, bert, ...
    task: str  # lm | mlm | cls | seq2seq | image | contrastive: which head and loss
    layers: int
    hidden_size: int
    attention_heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int
    vocabulary_size: int
    max_positions: int
    tied_embeddings: bool
    positions: str  # learned | rope | alibi | relative
    activation: str  # gelu_new | gelu | gelu_pytorch_tanh | relu | silu | quick_gelu
    gated_mlp: bool
    qkv_bias: bool  # bias of the query, key and value projections
    output_bias: bool  # bias of the attention's output projection
    mlp_bias: bool
    embedding_dropout: float
    attention_dropout: float
    hidden_dropout: float  # residual dropout
    token_types: int = 0  # BERT's segment embeddings
    classes: int = 2  # classification only
    sliding_window: int | None = None  # Mistral: no effect while longer than the sequence
    declared_parameters: int | None = None
    qk_norm: bool = False  # Qwen3: queries and keys are normalised, head by head
    partial_rotary_factor: float = 1.0  # GPT-NeoX, Phi: the share of each head that rotary positions turn
    parallel_residual: bool = False  # GPT-NeoX: attention and feed-forward layer beside each other
    pre_norm: bool = True  # OPT-350m normalises after each residual sum instead of before attention and MLP
    embedding_size: int | None = None  # OPT-350m: width of the token embedding, projected to the hidden size
    attention_softcap: bool = False  # Gemma 2: a tanh bounds the attention scores
    logit_softcap: bool = False  # Gemma 2: a tanh bounds the logits
    sliding_window_pattern: int | None = None  # Gemma 3: every so many blocks one has no window
    image_size: int | None = None  # pixels of an edge, of the images that it was made for
    patch_size: int | None = None  # pixels of an edge of a patch; None: no vision transformer in it
    channels: int | None = None  # of an image; None: it takes none
    depths: tuple[int, ...] | None = None  # ResNet: layers of each stage
    widths: tuple[int, ...] | None = None  # ResNet: channels of each stage
    bottleneck: bool = False  # ResNet-50 and above: layers of three convolutions, the middle one narrow
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False
    vision_layers: int | None = None  # CLIP, LLaVA: blocks of a vision encoder beside the text's; None: there is none
    vision_hidden_size: int | None = None
    vision_attention_heads: int | None = None
    vision_intermediate_size: int | None = None
    vision_activation: str | None = None
    vision_attention_dropout: float = 0.0
    projection_size: int | None = None  # CLIP: elements of the vectors that images and texts are compared by
    decoder_layers: int | None = None  # encoder-decoder models: `layers` is the encoder's
    activation_dropout: float = 0.0  # BART: inside the feed-forward layer

    @property
    def stacks(self) -> tuple[int, ...]:
        """Blocks of each stack, in the order in which forward runs them; of most models it is one stack."""
        if self.decoder_layers is not None:
            return (self.layers, self.decoder_layers)
        if self.vision_layers is None:
            return (self.layers,)
        if self.image_tokens:  # the block after the one that is used is apart: nobody asks for its result
            return (self.vision_layers - 1, 1, self.layers)
        return (self.vision_layers, self.layers)

    @property
    def vision_head_size(self) -> int:
        """Elements of a head of the vision encoder; 0 without one."""
        return (self.vision_hidden_size or 0) // (self.vision_attention_heads or 1)

    @property
    def image_tokens(self) -> int:
        """Tokens of a text that stand for an image, one for each patch; 0 where images are not among the tokens."""
        if self.task != "lm" or self.image_size is None or self.patch_size is None:
            return 0
        return int((self.image_size // self.patch_size) ** 2)

    @property
    def blocks(self) -> int:
        """All blocks, numbered through the stacks."""
        return sum(self.stacks)

    @property
    def takes_images(self) -> bool:
        """Whether a sample has an image."""
        return self.channels is not None

    @property
    def takes_text(self) -> bool:
        """Whether a sample has tokens, and so a sequence length."""
        return self.task != "image"

    experts: Experts | None = None  # mixtures of experts
    latent_attention: LatentAttention | None = None  # DeepSeek
    sliding_window_start: int | None = None  # Qwen2, Qwen3: the first block with a window
    new_decoder_architecture: bool = False  # Falcon 40B, 180B, 11B: each group's queries, key and value side by side
    rope_scaling: str | None = None  # dynamic | longrope; the other kinds are made of the same tensors as none
    parallel_norms: int | None = None  # Falcon: layer norms before attention and MLP that run beside each other
    unet: UNet | None = None  # modded-nanogpt
    published_family: str | None = None  # where a runtime's own code replaced the family: what it was


class Gpu(NamedTuple):
    """One accelerator. None means unknown: it never refuses a kernel, and is listed as an assumption."""

    name: str
    capacity_bytes: int  # what the framework sees, rounded down
    capacity_basis: str  # "visible" (a source says so) | "nominal" (data sheet) | "given" (by the user)
    title: str | None = None
    architecture: str | None = None  # volta, turing, ampere, ...
    compute_capability: str | None = None  # "7.0"
    bf16: bool | None = None
    flash_attention: bool | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    note: str | None = None  # said with the answer: "v100 is the 32 GiB part; the other is v100-16gb"
    free_bytes: int | None = None  # now, of a card of this machine; a resolved job has it as `gpu_free_bytes`


class ContextFigure(NamedTuple):
    """A CUDA context that somebody measured: on which architecture, of which PyTorch, and how its kernels come."""

    architecture: str
    version: str  # 2.1
    loading: str  # lazy | eager
    context_bytes: int


class Runtime(NamedTuple):
    """A training framework as a policy: what it does where the model and the job leave it open.

    Its figures are read from `profiles/runtimes/`, each with a source.
    """

    name: str
    title: str
    optimizer_implementation: str  # of Adam and AdamW, where the job leaves it open
    loss: str  # "causal-lm-fp32": the causal loss upcasts the logits | "causal-lm": it does not
    gradients: str  # "set-to-none": made in backward, gone after the step | "persistent": buffers that stay
    context_bytes: int  # CUDA context and modules, outside the allocator
    context_by_architecture: Mapping[str, int] = MappingProxyType({})
    context_basis: str = ""  # what it is a figure of; empty: the profile's own, of no version
    contexts: tuple[ContextFigure, ...] = ()  # where a job names a version
    context_kernels_bytes: int = 0  # what a lazy context loads after the first tensor
    blas_workspace_bytes: int | None = None  # of each thread that multiplies, in the allocator; None: not known
    blas_workspace_by_architecture: Mapping[str, int | None] = MappingProxyType({})
    process_group_bytes: int = 0  # of a communicator of NCCL, outside the allocator too
    embedding_states: str = "as-others"  # of 8-bit optimizers: "fp32": embeddings are left out
    quantized_from: str | None = None  # the element type that it brings weights to, to quantize them; None: their own
    caches: bool = True  # whether an allocator keeps what is freed; else everything is allocated once
    model_code: str = "transformers"  # whose forward pass is replayed, where there is one of its own for the family
    defaults: Mapping[str, Any] = MappingProxyType({})  # what a job has where it says nothing (job/runtime.py)
    only: Mapping[str, Any] = MappingProxyType({})  # the words that it knows of a key; "one_device": True
    notes: Mapping[str, str] = MappingProxyType({})  # what its profile says of a field

    def context_on(self, architecture: str | None) -> int:
        """Bytes of the CUDA context on a GPU of this architecture."""
        return self.context_by_architecture.get(architecture or "", self.context_bytes)

    def blas_workspace_on(self, architecture: str | None) -> int | None:
        """Bytes of the workspace that PyTorch gives a handle of cuBLAS; None: not known."""
        return self.blas_workspace_by_architecture.get(architecture or "", self.blas_workspace_bytes)


class Assumption(NamedTuple):
    """A default that was taken, and why."""

    key: str
    value: Any
    why: str


class Adapter(NamedTuple):
    """Small weights that are trained beside a frozen model, as PEFT has them."""

    kind: str  # lora | dora | ia3
    rank: int  # of lora and dora; 0 of ia3, which has vectors
    targets: tuple[str, ...]  # linear layers by the ends of their names, or all-linear
    feedforward_targets: tuple[str, ...] = ()  # ia3: those of them whose input is scaled, not their output
    modules_to_save: tuple[str, ...] = ()  # modules of which a copy is trained in full
    alpha: float | None = None  # a factor, which costs nothing, or over experts little
    dropout: float = 0.0
    dtype: str = "fp32"  # element type of the adapter's weights: fp32, or that of the model's


DDP, FSDP, FSDP_GRAD_OP = "ddp", "fsdp", "fsdp-grad-op"
ZERO1 = "zero1"
DISTRIBUTED_OPTIMIZER = "distributed-optimizer"  # Megatron's: fp32 states are shared, weights and gradients whole
ZERO_STAGES = (ZERO1, "zero2", "zero3")  # of DeepSpeed


class ParameterDrive(NamedTuple):
    """How the parameters of ZeRO-3 pass between NVMe and the host; sizes are in elements."""

    buffers: int  # on the host: one for each parameter that is there or whole
    buffer_size: int
    most_on_host: int  # of the groups of parameters that stay there for good


class Zero(NamedTuple):
    """The switches of DeepSpeed's ZeRO that decide what its buffers hold; sizes are in elements."""

    reduce_bucket_size: int  # gradients that are averaged at a time
    overlap_comm: bool  # a second bucket is filled meanwhile
    prefetch_bucket_size: int = 50_000_000  # stage 3: parameters that are gathered ahead of their use
    param_persistence_threshold: int = 100_000  # stage 3: smaller parameters stay whole
    max_live_parameters: int = 1_000_000_000  # stage 3: gathered at a time
    sub_group_size: int = 1_000_000_000  # stage 3: of the parameters that are stepped at a time
    drive_buffers: int | None = None  # stage 3: through which an optimizer on NVMe passes; None: it is not there
    parameter_drive: ParameterDrive | None = None  # stage 3: None: the parameters are not there


class Sharded(NamedTuple):
    """How data-parallel devices share the states of a model."""

    kind: str  # DDP | FSDP | FSDP_GRAD_OP
    shards: int  # devices that share them; of ddp, that have the same
    no_sync: bool = False  # gradients of all micro-steps but the last stay whole on each device
    bucket_views: bool = False  # of ddp: gradients are views of the buckets that are summed
    zero: Zero | None = None  # of zero1, zero2 and zero3
    version: int = 2  # of FSDP: 1 is FullyShardedDataParallel, 2 is fully_shard
    reduce_dtype: str | None = None  # fp32 | bf16 | fp16, of gradients while they are summed; None: that of the shards
    replicas: int = 1  # groups of devices that each share all states, and sum what their shards have of gradients


BLOCKS, ENDS_AS_BLOCKS = "blocks", "embedding-and-head"  # what a pipeline is balanced by
RING, ALL_GATHER = "ring", "all-gather"  # how devices that share a sequence get each other's keys and values


class Split(NamedTuple):
    """How one replica of a model is split over devices; the first four are numbers of devices."""

    tensor: int = 1  # share every matrix
    pipeline: int = 1  # have blocks of their own
    context: int = 1  # share every sequence
    expert: int = 1  # of the data-parallel ones, share the experts
    sequence_parallel: bool = False  # what tensor parallelism leaves whole is shared along the sequence
    schedule: str = "1f1b"  # of a pipeline: 1f1b | gpipe | interleaved
    virtual: int = 1  # interleaved: parts of the model on each device of the pipeline
    pipeline_split: str | None = None  # BLOCKS, or the embeddings and the head count as a block each
    context_communication: str | None = None  # RING | ALL_GATHER: how keys and values come to the other devices

    @property
    def devices(self) -> int:
        """That hold one replica; expert parallelism takes the data-parallel ones."""
        return self.tensor * self.pipeline * self.context


class Job(NamedTuple):
    """One training run with every default explicit, except the three things the planner chooses.

    `None` in micro_batch_size, gradient_accumulation_steps or activation_checkpointing means "not pinned: recommend".
    """

    name: str
    model: ModelShape
    gpu: Gpu
    sequence_length: int  # tokens; 0: the model takes images alone
    micro_batch_size: int | None
    global_batch_size: int
    global_batch_given: bool  # False: the default of 512, which may move to the nearest reachable one
    gradient_accumulation_steps: int | None
    precision: str  # fp32 | amp-fp16 | amp-bf16 | mixed-fp16 | mixed-bf16 | pure-fp16 | pure-bf16 | fp8
    optimizer: str  # a word of vramplan/job/vocabulary.py, OPTIMIZERS
    optimizer_implementation: str  # foreach | fused | for-loop
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
    expect: str = "fits"  # gates only
    max_utilization: float = 0.95  # gates only
    case: Mapping[str, Any] = MappingProxyType({})  # validation cases only: measured, use, source, trace, ...
    base_batch_size: int | None = None  # batch advice only: the batch that the base learning rate was found for
    base_learning_rate: float | None = None
    optimizer_in_backward: bool = False
    max_gradient_norm: float | None = None  # None: no clipping
    grad_scaler: bool = False  # torch.amp.GradScaler around the loss and the step
    ema: bool = False  # an exponential moving average of the weights
    half_weights: bool = False  # amp-* and fsdp-*: the weights have the element type of the matrix products already
    fp32_states: bool = False  # without a master copy: the 32-bit states of bitsandbytes beside half weights
    fp32_gradients: bool = False  # mixed-* only: half-precision gradients are summed in fp32 buffers that stay
    every_second_matmul: bool = False  # selective-op only
    offload_activations: bool = False  # what forward saves is in pinned memory of the host
    checkpoint_reentrant: bool = False  # torch.utils.checkpoint with use_reentrant=True
    expert_imbalance: float | None = None  # tokens of the most loaded expert over the mean; None: there are no experts
    expert_capacity_factor: float | None = None  # tokens that an expert takes over the mean; None: all
    expert_pad_to_capacity: bool = False  # each expert gets as many as it takes
    loss: str = "standard"  # standard (what the runtime does) | fp32-logits | half-logits | chunked:N | fused | dpo
    compile: bool = False  # torch.compile around the model, its loss included
    label_smoothing: float = 0.0  # the figure itself costs nothing
    dpo_reference: str | None = None  # of the loss dpo: model | precomputed | adapter-off
    padding: str = "none"  # none | right: every token counts, or some are padding and a mask says so
    packing: bool = False  # several sequences in each, told apart by position ids that begin anew
    eval_batch_size: int | None = None  # None: no evaluation is looked at
    generation_batch_size: int | None = None  # both or neither
    generation_length: int | None = None  # tokens of prompt and answer
    image_size: int | None = None  # pixels of an edge; None: the model takes no images
    target_length: int | None = None  # seq2seq only: tokens of the decoder; None: sequence_length
    frozen: tuple[str, ...] = ()  # parts of the model that are not trained
    adapter: Adapter | None = None
    quantization: str | None = None  # of the frozen weights under an adapter: nf4 | nf4-double | int8 | gptq-int4
    bitsandbytes: str | None = None  # the release that multiplies them; None: the one that was read
    sharding: Sharded | None = None  # None: one device, or replicas whose communication is not counted
    split: Split | None = None  # None: each device has a whole replica
    offload: tuple[str, ...] = ()  # what lives on the host: any of parameters, gradients, optimizer
    devices_per_node: int = 1  # that share a host
    host_memory_bytes: int | None = None  # of a node; None: not checked
    allocator: Settings | None = None  # what the caching allocator is simulated with; None: it is estimated
    gpu_free_bytes: int | None = None  # of the device before the process starts; None: all of it
    pytorch_version: str | None = None  # 2.1; None: the context is the runtime profile's
    cuda_module_loading: str | None = None  # lazy | eager; None: what that version does

    @property
    def usable_bytes(self) -> int:
        """What the run may take of the device."""
        capacity = self.gpu.capacity_bytes
        free = capacity if self.gpu_free_bytes is None else min(self.gpu_free_bytes, capacity)
        return free - self.reserve_bytes


def trains_all(job: Job) -> bool:
    """Whether every weight is trained: then all blocks of a run are alike."""
    return not job.frozen and job.adapter is None


def shares_weights(job: Job) -> bool:
    """Whether each device holds a part of the weights, or of their states, alone."""
    return job.sharding is not None and job.sharding.kind != DDP


class TextbookModel(NamedTuple):
    """What the closed forms know of a network: None is not said, and `shape` is there if the family is modelled."""

    name: str
    parameters: int
    family: str | None = None
    layers: int | None = None
    hidden_size: int | None = None
    attention_heads: int | None = None
    shape: ModelShape | None = None
    trainable_parameters: int | None = None  # None: all of them

    @property
    def trained(self) -> int:
        """The parameters that have gradients and states."""
        return self.parameters if self.trainable_parameters is None else self.trainable_parameters


class TextbookCells(NamedTuple):
    """The element type of each state and of the activations: fp32 | fp16 | bf16 | fp8 | int8 | none (left out)."""

    weights: str
    gradients: str
    master: str
    optimizer: str
    compute: str


class TextbookJob(NamedTuple):
    """A job with `runtime: textbook`: equations instead of a replay, so most keys of a `Job` mean nothing here.

    It is a type of its own, so that nothing replays it by accident. `replay` is the same run as a job that can be
    replayed, where there is one, to say how far the equations are from it.
    """

    name: str
    model: TextbookModel
    gpu: Gpu  # with its nominal capacity
    precision: str
    cells: TextbookCells
    optimizer: str
    sequence_length: int | None
    micro_batch_size: int | None
    global_batch_size: int
    global_batch_given: bool
    gradient_accumulation_steps: int | None
    activation_checkpointing: str | None
    activation_model: str | None  # book | zero-paper | korthikanti
    activation_bytes: int | None  # a quoted figure, in fp32
    checkpoint_factor: float | None  # what a text divides the activations by
    data_parallel_size: int
    sharding: str
    shards: int | None  # devices that share the sharded states; None: all data-parallel ones
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    expect: str = "fits"
    max_utilization: float = 0.95
    case: Mapping[str, Any] = MappingProxyType({})
    base_batch_size: int | None = None
    base_learning_rate: float | None = None
    replay: Job | None = None

    @property
    def runtime(self) -> Runtime:
        """The same for every such job."""
        return TEXTBOOK


# No profile in profiles/runtimes/: a profile holds figures with their sources, and the textbook's runtime has none. Its
# equations are code in vramplan/textbook, and context, reserve and all factors are left out by definition.
TEXTBOOK = Runtime(
    name="textbook",
    title="The closed forms of papers and courses",
    optimizer_implementation="left out",
    loss="left out",
    gradients="persistent",
    context_bytes=0,
)

AnyJob = Job | TextbookJob
