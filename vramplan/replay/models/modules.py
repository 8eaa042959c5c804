"""What a model is made from, and the few modules that every family is written from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vramplan.engines import imported
from vramplan.replay.models import casts_logits, scales_logits
from vramplan.replay.models.part_names import HEAD, NORMS, TIED_HEAD
from vramplan.replay.observers import Kernels, Rounding, Sharding, Trained, VirtualTokens, entered
from vramplan.replay.operators.elementwise import (
    add,
    add_scalar,
    gelu,
    mean_last,
    mul,
    mul_scalar,
    pow_scalar,
    relu,
    rsqrt,
    silu,
    tanh,
)
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.normalised import layer_norm
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import after, contiguous, narrow, to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, DType, Parameter, Tensor
from vramplan.tuples import NamedTuple
from vramplan.values.model import NEWEST, ModelShape, OldCode
from vramplan.values.parallel import Split

SELECTIVE = ("selective", "selective-op")  # traced with both selective strategies
SELECTIVE_OP = ("selective-op",)  # with that alone
CORE = "core"  # the attention core of each block is a checkpoint of its own, and nothing else is
GELU, GELU_NORMS = "gelu", "gelu-norms"  # what llm.c computes again in each block: its options -r 1 and -r 2

CAUSAL_LM_FP32 = "causal-lm-fp32"  # the model's own loss; that of a causal language model casts its logits to fp32
CAUSAL_LM = "causal-lm"  # the same without that cast
IN_PLACE = "causal-lm-in-place"  # the same by a kernel that makes the gradient of the logits where they are
FP32_LOGITS = "fp32-logits"  # the losses of the other tasks do so too
HALF_LOGITS = "half-logits"  # of code of one's own, which casts nothing
LOGITS = "logits"  # no loss: the caller makes it of the logits
SCORES = "scores"  # no loss: TRL's head gives the log-probabilities of the labels
ALL_SCORES = "all-scores"  # and their entropies, mean logits and whether they are the likeliest
TOKEN_SCORES = "token-scores"  # the same without the mean logits
ENTROPIES = "entropies"  # log-probabilities and entropies alone
HIDDEN = "hidden"  # no loss: what the head would be given, and the head
HIDDEN_AND_LAST = "hidden-and-last"  # the same, and the logits of the last token
TILED = "tiled"  # the negative log-likelihood of what that head gives
SMOOTHED = "smoothed"  # the model's own with PyTorch's label smoothing
SMOOTHED_FP32 = f"{SMOOTHED}-{FP32_LOGITS}"
SMOOTHED_HALF = f"{SMOOTHED}-{HALF_LOGITS}"
LABEL_SMOOTHER = "label-smoother"
DISTILLED = "distilled"  # a divergence of its logits from those of a teacher
TILED_DIVERGENCE = "tiled-divergence"  # the same by tiles of both heads
TOP_TOKENS = "top-tokens"  # a divergence from the likeliest tokens of a teacher, which were saved
DPO, DPO_PRECOMPUTED = "dpo", "dpo-precomputed"  # preference training with a reference model, or with its scores
DPO_ADAPTER_OFF = "dpo-adapter-off"  # the reference is the model without its adapter
KTO, KTO_PRECOMPUTED, KTO_ADAPTER_OFF = "kto", "kto-precomputed", "kto-adapter-off"  # the same over single sequences
DPO_LOGITS, DPO_LOGITS_PRECOMPUTED = "dpo-logits", "dpo-logits-precomputed"  # of releases of TRL without that head
DPO_LOGITS_ADAPTER_OFF = "dpo-logits-adapter-off"
PREFERENCES_OVER_LOGITS = (DPO_LOGITS, DPO_LOGITS_PRECOMPUTED, DPO_LOGITS_ADAPTER_OFF)
PREFERENCES = (DPO, DPO_PRECOMPUTED, DPO_ADAPTER_OFF, KTO, KTO_PRECOMPUTED, KTO_ADAPTER_OFF)
ORPO, CPO, SIMPO, REWARD = "orpo", "cpo", "simpo", "reward"  # over pairs, without a reference
LOGIT_PAIRS = (ORPO, CPO, SIMPO)
GRPO, GRPO_MODEL = "grpo", "grpo-model"  # of a policy's completions; with a reference model on the device
GRPO_ADAPTER_OFF = "grpo-adapter-off"  # with the scores of the model without its adapter
POLICIES = (GRPO, GRPO_MODEL, GRPO_ADAPTER_OFF)
OUTSIDE_LOSSES = {
    LABEL_SMOOTHER: LOGITS,
    DISTILLED: LOGITS,
    TILED_DIVERGENCE: HIDDEN,
    TOP_TOKENS: HIDDEN_AND_LAST,
    TILED: TOKEN_SCORES,
    **dict.fromkeys(PREFERENCES, ALL_SCORES),
    **dict.fromkeys((*PREFERENCES_OVER_LOGITS, *LOGIT_PAIRS, REWARD), LOGITS),
    **dict.fromkeys(POLICIES, ENTROPIES),
}
"""Losses that the training loop makes when the model has returned, and what the model is asked for."""

MASKED = (TILED, *PREFERENCES, *PREFERENCES_OVER_LOGITS, *LOGIT_PAIRS, REWARD, *POLICIES)
"""Losses of TRL, whose collators give a mask that leaves nothing out where nothing is padded."""

SCORED = (SCORES, ALL_SCORES, TOKEN_SCORES, ENTROPIES)
"""What the head of TRL gives in place of logits."""

HEAD_LOSSES: tuple[str, ...] = ("half-logits", "chunked:N", "fused", "dpo")
"""Losses instead of a causal language model's own."""

HEAD_LOSSES_WITH_BIAS = ("half-logits", "chunked:N", "dpo")  # LigerForCausalLMLoss takes no head with a bias


class Segment(NamedTuple):
    """`times` consecutive runs of `blocks` blocks each; each run is one checkpoint if `checkpointed`.

    `selects` makes it selective: which results a checkpoint keeps (tape.MATMULS, tape.ALTERNATE_MATMULS), or that
    stored blocks recompute their attention core (CORE), or gelus and norms
    (GELU, GELU_NORMS, of llm.c alone).
    """

    times: int
    blocks: int
    checkpointed: bool
    selects: str | None = None


class Slice(NamedTuple):
    """What of a model a device holds, where its layers are split over devices."""

    tensor: int = 1  # devices that each layer is split over
    sequence_parallel: bool = False  # between split layers each of them has a part of the sequence
    first: bool = True  # of a pipeline: the stage with the embeddings
    last: bool = True  # and with the head
    deepspeed: bool = False  # as BigScience's fork runs it in DeepSpeed's pipeline engine
    context: int = 1  # devices that each sequence is split over: lengths are those of one device
    ring: bool = False  # keys and values go round these devices; else they are gathered
    expert: int = 1  # devices that the experts are spread over
    imbalance: float = 1.0  # tokens of the most loaded of them over the mean
    capacity: float | None = None  # of an expert over the mean, above which tokens are dropped; None: none is
    pads: bool = False  # each expert gets as many tokens as it has room for
    start: int = 0  # of a pipeline: the number of this stage's first block among all of the model


class Tiling(NamedTuple):
    """How an MLP is cut along the sequence."""

    number: int  # of tiles
    sums_apart: bool  # gradients of tiles are added to zeros beside the weights' own; else to these


class Recipe(NamedTuple):
    """All that a forward pass depends on beside the micro-batch."""

    shape: ModelShape
    weight_dtype: DType
    sequence_length: int
    attention: str  # eager | flash | efficient
    segments: tuple[Segment, ...]
    loss: str  # CAUSAL_LM_FP32 | CAUSAL_LM | FP32_LOGITS | HALF_LOGITS | LOGITS | SMOOTHED | chunked:N | fused
    embedding_dropout: float
    attention_dropout: float
    hidden_dropout: float
    recomputes_core: bool = False  # whether the attention core of each block is a checkpoint
    image_size: int | None = None  # pixels of an edge; None: the model takes no images
    vision_attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    target_length: int | None = None  # tokens of a decoder beside an encoder; None: as many as the encoder's
    padded: bool = False  # sequences are padded, and a mask says so
    masked: bool = False  # a mask comes with them that leaves nothing out
    packed: bool = False  # several sequences in each, told apart by position ids that begin anew
    old_code: OldCode = NEWEST  # of Transformers
    returns_cache: bool = False  # of keys, values and states, beside which nobody looks for packed sequences
    split: Split | None = None  # how this model is split over devices
    compiled: bool = False
    float8: bool = False  # over shards in fp32: products in fp8
    mamba_kernels: bool = False  # of mamba-ssm, in blocks with a state space
    fused_projection: bool = False  # queries, keys and values are one projection, where the family has three
    tiling: Tiling | None = None  # of the MLP of each block; None: it runs at once
    slice: Slice = Slice()
    evaluates: bool = False  # the model is in eval mode
    modules_repeat: bool = False  # modules of a block that follow each other and are alike are a repeated unit
    loaded_dtype: DType | None = (
        None  # of what is not gathered, where weights are gathered in another type; None: theirs
    )

    @property
    def buffer_dtype(self) -> DType:
        """The element type of buffers that are made as the weights are: FSDP's policy casts parameters and inputs."""
        return self.loaded_dtype or self.weight_dtype

    @property
    def masks_packing(self) -> bool:
        """Whether a mask keeps packed sequences apart: the flash kernel takes their lengths instead.

        Positions are not looked at where a mask is given, or a cache (masking_utils.py, _preprocess_mask_arguments).
        """
        return self.packed and self.attention != "flash" and not self.padded and not self.returns_cache


def in_tiles(make: Callable[[Tape, Recipe], Callable[[Tensor], Tensor]], tape: Tape, recipe: Recipe) -> Any:
    """The MLP of a block, which runs tile by tile where the recipe says so."""
    start = len(tape.parameters)
    mlp = make(tape, recipe)
    if recipe.tiling is None:
        return mlp
    name = "tiles_summed_apart" if recipe.tiling.sums_apart else "tiles_summed_in_place"
    function = imported(f"vramplan.replay.operators.tiled_mlp:{name}")
    weights = tuple(one for one in tape.parameters[start:] if one.node is not None)
    return partial(function, mlp=mlp, weights=weights, number=recipe.tiling.number)


class Output(NamedTuple):
    """What a model returns: the caller decides how long the logits live, and what is returned with them."""

    loss: Tensor | None  # None: the caller makes it
    logits: object


class Linear:
    """`nn.Linear`, or GPT-2's Conv1D with `transposed`."""

    quantizes = True  # by bitsandbytes, where Transformers puts its layers in

    def __init__(
        self, tape: Tape, name: str, inputs: int, outputs: int, dtype: DType, *, bias: bool, transposed: bool = False
    ) -> None:
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        self.weight = tape.parameter(f"{name}.weight", shape, dtype)
        self.weight.in_linear = True
        self.bias = tape.parameter(f"{name}.bias", (outputs,), dtype) if bias else None
        self.transposed = transposed
        self.adapter = tape.role(Trained).linear(tape, self, name)
        self.converted: Callable[[Linear, Tensor], Tensor] | None = None  # what a library runs in place of the product
        for made in tape.told.made_linear:
            made(self)

    def __call__(self, x: Tensor) -> Tensor:
        if self.adapter is not None:
            return self.adapter(self, x)
        return self.base(x)

    def base(self, x: Tensor) -> Tensor:
        """The layer as it is in the model."""
        if self.converted is not None:
            return self.converted(self, x)
        return linear(x, self.weight, self.bias, transposed=self.transposed)


class LayerNorm:
    """`nn.LayerNorm`."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType, *, bias: bool = True) -> None:
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", (width,), dtype)
            self.bias = tape.parameter(f"{name}.bias", (width,), dtype) if bias else None
        self.kernel = tape.role(Kernels).layer_norm(name) or layer_norm

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.weight, self.bias)


class RMSNorm:
    """Transformers' RMSNorm, as its Python code composes it (modeling_llama.py, LlamaRMSNorm.forward)."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType) -> None:
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", (width,), dtype)
        self.kernel = tape.role(Kernels).norm(name)

    def __call__(self, hidden: Tensor) -> Tensor:
        wrapped = hidden.tape.role(Sharding).wrapped
        if wrapped is None:
            return self.normalised(hidden)
        whole = self.weight

        def run(own: Parameter) -> Tensor:
            self.weight = own
            try:
                return self.normalised(hidden)
            finally:  # a recomputation may stop inside
                self.weight = whole

        return wrapped(whole, run)

    def normalised(self, hidden: Tensor) -> Tensor:
        """By the kernel of a library, or as the model's code has it."""
        if self.kernel is not None:
            return self.kernel(hidden, self.weight)
        return entered(self.composed, hidden, self.weight)

    def composed(self, hidden: Tensor) -> Tensor:
        """The norm as the model's code has it."""
        dtype = hidden.dtype
        hidden = to(hidden, FP32)
        variance = mean_last(pow_scalar(hidden))
        hidden = mul(hidden, rsqrt(add_scalar(variance)))
        return mul(self.weight, to(hidden, dtype))


def gated_kernel(tape: Tape) -> Callable[[Tensor, Tensor], Tensor] | None:
    """What a library runs in place of a gated activation, of gate and up projection; None: nothing."""
    return tape.role(Kernels).gated


def rotary_kernel(tape: Tape) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """What a library runs in place of rotary positions, of queries, keys, cosines and sines; None: nothing."""
    return tape.role(Kernels).rotary


def as_is(x: Tensor) -> Tensor:
    """What stands for a module that a model type does not have."""
    return x


def gelu_new(x: Tensor) -> Tensor:
    """Transformers' NewGELUActivation: five unfused operators (activations.py)."""
    return mul(mul_scalar(x), add_scalar(tanh(mul_scalar(add(x, mul_scalar(pow_scalar(x)))))))


def quick_gelu(x: Tensor) -> Tensor:
    """Transformers' QuickGELUActivation: three unfused operators (activations.py)."""
    from vramplan.replay.operators.contrastive import sigmoid  # only models that have it pay for it

    return mul(x, sigmoid(mul_scalar(x)))


def relu_squared(x: Tensor) -> Tensor:
    """Transformers' ReLUSquaredActivation: a ReLU and its square (activations.py)."""
    _applied = relu(x)
    return pow_scalar(_applied)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": gelu_new,
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu,
    "relu": relu,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "relu2": relu_squared,
}


def words(ids: Tensor, table: Parameter) -> Tensor:
    """The embeddings of the tokens of a text, before which a job may put virtual ones."""
    return ids.tape.role(VirtualTokens).embedded(ids, lambda own: embedding(own, table))


def output_embedding(tape: Tape, recipe: Recipe, embedding: Parameter) -> Parameter:
    """The head's weight: the embedding itself if tied, else one of its own."""
    if recipe.shape.task == "cls":  # a classifier has a head of its own
        return embedding
    with tape.building(HEAD):
        trained, size = tape.role(Trained), (recipe.shape.vocabulary_size, recipe.shape.hidden_size)
        if recipe.shape.tied_embeddings:
            weight = trained.tied(tape, embedding, TIED_HEAD)
        else:
            weight = tape.parameter(TIED_HEAD, size, recipe.weight_dtype)
        trained.makes_head(tape, weight)
        return weight


def decoder_of(tape: Tape, recipe: Recipe, table: Parameter, name: str, module: str | None = None) -> Parameter:
    """The weight of that name, as large as the table, which makes logits: the table itself if it is tied, else its own.

    `module`: the one around it, where its bias is a weight of that one too, so that it is no module to save by itself.
    """
    if recipe.shape.tied_embeddings:
        return tape.role(Trained).tied(tape, table, name if module is None else f"{module}.weight")
    return tape.parameter(name, table.shape, recipe.weight_dtype)


def project(hidden: Tensor, weight: Parameter, bias: Parameter | None, recipe: Recipe) -> Tensor:
    """The logits of hidden states, scaled or bounded where the model does it."""
    logits: Tensor = hidden.tape.role(Sharding).within(HEAD, lambda x: times_head(x, weight, bias), hidden)
    if scales_logits(recipe.shape.family):
        logits = mul_scalar(logits)
    if recipe.shape.logit_softcap:
        logits = mul_scalar(logits)
        logits = tanh(logits)
        logits = mul_scalar(logits)
    return logits


def times_head(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """The product of a head, a linear layer that may have the table of the embeddings as its weight."""
    head = x.tape.role(Trained).head or x.tape.role(Rounding).head
    return linear(x, weight, bias) if head is None else head(x, weight, bias)


def as_returned(logits: Tensor, recipe: Recipe) -> Tensor:
    """The logits as the model's own forward returns them: in fp32 where it casts them itself."""
    return to(logits, FP32) if casts_logits(recipe.shape.family) else logits


def causal_lm_loss(
    logits: Tensor, labels: Tensor, recipe: Recipe, entropy: Callable[[Tensor, Tensor], Tensor] = cross_entropy
) -> Tensor:
    """Transformers' ForCausalLMLoss: fp32 logits, labels padded by one and shifted (loss/loss_utils.py)."""
    vocabulary = recipe.shape.vocabulary_size
    if recipe.loss != CAUSAL_LM:
        logits = to(logits, FP32)
    batch, length = labels.shape
    if recipe.old_code.shifts_logits:  # before 4.49
        length -= 1
        _logits = logits
        logits = contiguous(narrow(logits, 1, length))
        targets = contiguous(after(labels, 1, 1))
    else:
        labels = next_tokens(labels)
        targets = contiguous(labels)
    logits = view(logits, (batch * length, vocabulary))
    targets = view(targets, (batch * length,))
    return entropy(logits, targets)


def next_tokens(labels: Tensor) -> Tensor:
    """A view of the labels padded by one, from the second on: what each token predicts (loss/loss_utils.py)."""
    batch, length = labels.shape
    padded = labels.tape.new("constant_pad_nd", (batch, length + 1), INT64, True)
    return padded.alias((batch, length), None if batch == 1 else (length + 1, 1), None)
