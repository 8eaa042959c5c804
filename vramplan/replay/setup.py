"""What decides an iteration, beside the micro-batch: the values that a job is replayed from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.replay.models.modules import Segment
from vramplan.tuples import NamedTuple
from vramplan.values.job import Adapter, FakeQuantization
from vramplan.values.model import NEWEST, ModelShape, OldCode
from vramplan.values.parallel import Sharded, Split

if TYPE_CHECKING:
    from vramplan.replay.loading import Loading
    from vramplan.replay.pipeline.stages import Stage


class Setup(NamedTuple):
    """All that decides an iteration, beside the micro-batch."""

    model: ModelShape
    precision: str
    sequence_length: int
    attention: str
    segments: tuple[Segment, ...]
    optimizer: str
    optimizer_implementation: str
    accumulating: bool  # gradients of earlier micro-steps are resident, and the loss is divided
    hold_outputs: bool
    dropout: float | None = None
    persistent_gradients: bool = False  # the runtime keeps gradient buffers for the whole run
    loss: str = "causal-lm-fp32"  # which loss the runtime computes
    padded: bool = False  # sequences are padded, and a mask says so
    masked_apart: bool = False  # they are, and the family's code has no mask here: it is counted beside
    packed: bool = False  # several sequences in each, told apart by position ids that begin anew
    old_code: OldCode = NEWEST  # of Transformers
    optimizer_in_backward: bool = False  # each parameter is stepped when its gradient is there, which then goes
    zeroes_late: bool = False  # gradients of the step before are there until backward begins
    max_gradient_norm: float | None = None  # gradients are clipped; the figure itself costs nothing
    ema: bool = False  # an exponential moving average of the weights beside them
    fp32_gradients: bool = False  # half-precision gradients are added to fp32 buffers, which stay, and are freed
    image_size: int | None = None  # pixels of an edge; None: the model takes no images
    offload_activations: bool = False  # what forward saves is in pinned memory of the host
    has_middle_steps: bool = False  # micro-steps between the first and the last, where these are of another kind
    before_last: str = ""  # a micro-step under no_sync of FSDP, which reduces no gradient: first | middle | forward
    checkpoint_reentrant: bool = False  # checkpoints walk a graph of their own, in one node
    grad_scaler: bool = False  # an fp16 loss is scaled, and the gradients are divided by the scale
    reads_shards: bool = False  # the program loads its part of a weight alone, and no weight is whole on the device
    loading: Loading | None = None  # how the program brings weights of few bits to a device; None: one by one
    half_weights: bool = False  # autocast over weights of its own element type
    compile: bool = False  # torch.compile around the model and its loss
    wide_embeddings: bool = False  # the runtime asks for 32-bit states of embeddings where the others have 8 bits
    target_length: int | None = None  # tokens of a decoder beside an encoder; None: as many as the encoder's
    frozen: tuple[str, ...] = ()  # parts that are not trained
    trained_blocks: str = "all"  # at a time, of a model whose blocks are trained in turns
    adapter: Adapter | None = None
    quantization: str | None = None
    qat: FakeQuantization | None = None  # quantization-aware training
    quantized_experts: bool = False  # the stacked weights of experts too
    bitsandbytes: str | None = None  # the release of its products; None: the newest that was read
    quantized_from: str | None = None  # the element type that the runtime brings weights to before
    sharding: Sharded | None = None  # how data-parallel devices share the states
    rank: int | None = None  # of stages 1 and 2 of ZeRO: the device; None: at each moment the one that holds most then
    split: Split | None = None  # how a replica is split over devices
    planned: Split | None = None  # how a program splits one whose code knows nothing of it: `model` is a device's part
    expert_imbalance: float = 1.0  # where devices share experts: tokens of the most loaded one over the mean
    expert_capacity_factor: float | None = None  # of each expert over the mean; None: no token is dropped
    expert_pad_to_capacity: bool = False
    offload: tuple[str, ...] = ()  # what lives on the host: any of parameters, gradients, optimizer
    stage: Stage | None = None  # of a pipeline: which one this device has
    pytorch: tuple[int, int] | None = None  # whose operators run, where a job says so; None: those that were traced
    outlives: bool = False  # outputs that are held live until the next forward has made new ones, with their graph
    use_cache: bool = False  # keys and values are returned with the outputs
    cache_objects: bool = True  # in an object that blocks fill; else in tuples that blocks return
    mamba_kernels: bool = False  # mamba-ssm runs blocks with a state space
    liger_kernels: tuple[str, ...] = ()  # that run in place of the model's own modules
    teacher: ModelShape | None = None  # a second model, whose predictions the loss compares with
    distillation: str | None = None  # how: forward-kl | reverse-kl | symmetric-kl | jsd
    teacher_logprobs: int | None = None  # that were saved for each token
    tiled_mlp: int | None = None  # tiles that the MLP of each block runs in
    adam_denominators: bool = False  # of a PyTorch whose foreach Adam has denominators beside square roots
    gathers_ahead: bool = False  # of a PyTorch whose FSDP1 has no limit of units that are gathered
    first_flash: bool = False  # of a PyTorch whose flash kernel is FlashAttention 1
    composed_norms: bool = False  # of a PyTorch whose nn.RMSNorm has no kernel of its own
    casts_buffers: bool = False  # a device without what FSDP1 shares, whose buffers have the type that it gathers
    reduces: bool = True  # of a pipeline's micro-batches only the last one's gradients are reduced
