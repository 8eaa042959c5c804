"""Megatron-LM's GPT model, as megatron-core 0.16 computes it from its own modules (core/models/gpt/gpt_model.py).

It is what one device of a tensor-parallel group holds of one pipeline stage: its heads, its part of each feed-forward
layer, its part of the vocabulary. Hidden states are [S, B, H]. A batch is made inside, as `forward_step` does it.
Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines.megatron.adapters import asked_for_gradient
from vramplan.engines.megatron.attention import Attention
from vramplan.engines.megatron.context_parallel import starts_of_parts
from vramplan.engines.megatron.layers import (
    ColumnParallelLinear,
    Norm,
    Projected,
    RowParallelLinear,
    gathered,
    norm_of,
    padded_vocabulary,
)
from vramplan.engines.megatron.moe import MoELayer, kept_bytes
from vramplan.engines.megatron.tensor_parallel import (
    bias_dropout_add,
    bias_gelu,
    has_fused_softmax,
    parallel_linear,
    reduce_scatter,
    scatter,
    swiglu,
)
from vramplan.engines.megatron.vocabulary import parallel_embedding, summed_loss, vocab_parallel_cross_entropy
from vramplan.replay.models import published
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import LayerNorm, Output, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.operators.elementwise import add, dropout, gelu, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.views import contiguous, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Parameter, Tensor

if TYPE_CHECKING:
    from vramplan.engines.megatron.moe import MoELayer
    from vramplan.values.model import ModelShape


class MLP:
    """MLP, fused with its activation."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.gated, bias = shape.gated_mlp, shape.mlp_bias
        inner = shape.intermediate_size
        self.linear_fc1 = ColumnParallelLinear(
            tape, recipe, "linear_fc1", shape.hidden_size, inner * (2 if self.gated else 1), bias=bias
        )
        self.linear_fc2 = RowParallelLinear(tape, recipe, "linear_fc2", inner, shape.hidden_size, bias=bias)

    def __call__(self, hidden: Tensor) -> Projected:
        inner, bias = self.linear_fc1.without_bias(hidden)
        if self.gated:
            length, batch, width = inner.shape
            inner = view(swiglu(view(inner, (length * batch, width)), bias), (length, batch, width // 2))
        else:
            inner = gelu(inner) if bias is None else bias_gelu(inner, bias)
        return self.linear_fc2(inner)


class Block:
    """TransformerLayer."""

    attention: type[Attention] = Attention
    mixture: type[MoELayer] = MoELayer

    def __init__(
        self, tape: Tape, recipe: Recipe, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None
    ) -> None:
        self.p = recipe.hidden_dropout
        self.input_layernorm = norm_of(tape, recipe, "input_layernorm")
        self.self_attention = self.attention(tape, recipe)
        self.pre_mlp_layernorm = self.second_norm(tape, recipe)
        self.mlp: MLP | MoELayer
        if recipe.shape.experts is None:
            self.mlp = MLP(tape, recipe)
        else:
            self.mlp = self.mixture(tape, recipe)
        self.angles, self.scratch = angles, scratch
        self.mask = mask  # an argument, which causal attention does not use and a checkpoint keeps

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.attend(hidden)
        residual = hidden
        assert self.pre_mlp_layernorm is not None
        _normed = self.pre_mlp_layernorm(hidden)
        out, bias = self.mlp(_normed)
        return bias_dropout_add(out, bias, residual, self.p)

    def second_norm(self, tape: Tape, recipe: Recipe) -> Norm | None:
        """The norm before the feed-forward layer."""
        return norm_of(tape, recipe, "pre_mlp_layernorm")

    def attend(self, hidden: Tensor) -> Tensor:
        """TransformerLayer._forward_attention."""
        residual = hidden
        _normed = self.input_layernorm(hidden)
        out, bias = self.self_attention(_normed, self.mask, self.angles, self.scratch)
        return bias_dropout_add(out, bias, residual, self.p)


OF_ALL = (
    *("iteration", "iteration_of_stage", "reads_slice", "shares_by_itself", "own_core", "drops_tokens", "splits"),
    *("stands_for", "untraced_adapters", "takes_packing"),
)


class Megatron:
    """GPTModel of one stage, with the loss of pretrain_gpt.py."""

    iteration = iteration_of_stage = "vramplan.engines.megatron.iteration:replay_megatron"
    reads_slice = True
    shares_by_itself = True
    own_core = True
    drops_tokens = True
    splits: tuple[str, ...] = ("tensor", "sequence_parallel", "pipeline", "context", "expert")
    selective = ("selective",)
    gradient_buffers = True
    untraced_adapters = takes_packing = True
    block: type[Block] = Block
    scales_embedding = False
    equal_blocks = True

    def __init_subclass__(cls) -> None:
        """What replay/models asks of a class alone holds for all that are built from this one."""
        for name in OF_ALL:
            if name not in vars(cls):
                setattr(cls, name, next(vars(one)[name] for one in cls.__mro__ if name in vars(one)))

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether every block is alike: no shared experts, and no block without experts beside others with them."""
        mixture = shape.experts
        return mixture is None or not (mixture.shared or mixture.dense_layers)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        self.vocabulary = padded_vocabulary(shape.vocabulary_size, recipe.slice.tensor)
        self.rows = self.vocabulary // recipe.slice.tensor
        self.table: Parameter | None = None
        self.positions: Parameter | None = None
        self.table_norm: LayerNorm | None = None
        if recipe.slice.first:
            with tape.building(EMBEDDINGS):
                self.table = tape.parameter("word_embeddings.weight", (self.rows, shape.hidden_size), dtype)
                if shape.positions == "alibi":  # of Megatron-DeepSpeed alone, with --embed-layernorm
                    self.table_norm = LayerNorm(tape, "word_embeddings.norm", shape.hidden_size, dtype)
                if shape.positions == "learned":
                    size = (shape.max_positions, shape.hidden_size)
                    self.positions = tape.parameter("position_embeddings.weight", size, dtype)

    def inputs(self) -> tuple[()]:
        """None: each micro-batch comes to the device when its forward pass begins (`get_batch`)."""
        return ()

    def buffers(self) -> list[int]:
        """Bytes of the inverse frequencies and of the angles that are kept for a length."""
        shape = self.recipe.shape
        if shape.positions == "alibi":  # one for each block, of every head and sample
            size = shape.attention_heads // self.recipe.slice.tensor * self.recipe.sequence_length
            return [size * self.tape.batch * self.recipe.weight_dtype.itemsize] * shape.layers
        shared = starts_of_parts(self.tape.batch, self.recipe.slice)
        if shape.positions != "rope":
            return shared
        return [4 * (self.rotary_size // 2), 4 * self.recipe.sequence_length * self.rotary_size, *shared]

    def kept_by_samples(self) -> list[int]:
        """Bytes of one sample that the dispatchers of experts keep, each once for every block."""
        recipe = self.recipe
        if recipe.shape.experts is None:
            return []
        return kept_bytes(recipe)

    def kept(self) -> list[int]:
        """Nothing more where positions are scaled."""
        return []

    def __call__(self) -> Output:
        tape, recipe = self.tape, self.recipe
        length, batch, shape = recipe.sequence_length, tape.batch, recipe.shape
        tokens = (batch, length)
        ids = tape.new("input_ids", tokens, INT64, True, category="inputs")
        labels = tape.new("labels", tokens, INT64, True, category="inputs")
        counted = tape.new("loss_mask", tokens, FP32, True, category="inputs")
        mask, places = self.mask(), tape.new("position_ids", tokens, INT64, True, category="inputs")
        hidden = self.embed(ids, places) if self.table is not None else self.received()
        hidden = asked_for_gradient(tape, recipe, hidden)
        angles = None
        if shape.positions == "rope":
            angles = tape.constant((length, 1, 1, self.rotary_size), FP32, False)
        scratch = self.scratch(length, batch)
        heads = shape.attention_heads // recipe.slice.tensor
        fused = has_fused_softmax(heads, length) and recipe.weight_dtype is not FP32
        held = mask if recipe.recomputes_core or (recipe.attention == "eager" and not fused) else None
        state = [hidden]
        del hidden
        hidden = run_blocks(
            tape,
            recipe.segments,
            lambda number: self.block_of(number, held, angles, scratch),
            state,
            make_up=None if self.equal_blocks else self.make_up,
            handed={"mask": mask},
            hands_to_all=True,
        )
        if not recipe.slice.last:
            return Output(hidden, hidden)
        state = [norm_of(tape, recipe, "final_layernorm")(hidden)]
        del hidden
        return Output(self.loss(state, labels, counted), None)

    def block_of(self, number: int, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None) -> Block:
        """A block of this stage by its number."""
        return self.block(self.tape, self.recipe, mask, angles, scratch)

    def make_up(self, number: int) -> object:
        """What a block of a model with several kinds is made of."""
        return self.is_dense(number)

    def is_dense(self, number: int) -> bool:
        """Whether a block of a model with experts has none."""
        return False

    def with_experts(self, blocks: int) -> int:
        """Of so many blocks of a stage, those with experts."""
        return blocks

    @property
    def rotary_size(self) -> int:
        """Elements of each head that positions turn."""
        return self.recipe.shape.head_size

    def mask(self) -> Tensor | None:
        """The causal mask that a micro-batch brings; none where sequences are split, as the core knows that it is.

        Packed ones are told apart by where each begins (`cu_seqlens`), which the kernel takes.
        """
        recipe, batch, length = self.recipe, self.tape.batch, self.recipe.sequence_length
        if recipe.slice.context > 1 or recipe.packed:
            return None
        each = 1 if recipe.slice.deepspeed else batch  # there it is one for all samples
        return self.tape.new("attention_mask", (each, 1, length, length), BOOL, each == batch, category="inputs")

    def loss(self, state: list[Tensor], labels: Tensor, counted: Tensor) -> Tensor:
        """The output layer and the loss of pretrain_gpt.py; `state` is emptied, as no variable keeps what it holds."""
        state = [parallel_linear(state.pop(), self.head(), gathered=gathered(self.recipe))]
        return summed_loss(self.losses(state, labels), counted)

    def losses(self, state: list[Tensor], labels: Tensor) -> Tensor:
        """compute_language_model_loss: that of each token, of logits that nobody else keeps."""
        targets = contiguous(transpose(labels, 0, 1))
        losses = vocab_parallel_cross_entropy(state.pop(), targets)
        del targets
        return contiguous(transpose(losses, 0, 1))

    def embed(self, ids: Tensor, places: Tensor) -> Tensor:
        """LanguageModelEmbedding.forward."""
        recipe = self.recipe
        assert self.table is not None
        devices, split_sequence = recipe.slice.tensor, gathered(recipe)
        hidden = parallel_embedding(ids, self.table, devices)
        if self.positions is not None:
            hidden = add(hidden, embedding(places, self.positions))
        if self.table_norm is not None:
            hidden = self.table_norm(hidden)
        hidden = contiguous(transpose(hidden, 0, 1))
        share = reduce_scatter if self.positions is None else scatter
        hidden = share(hidden, split_sequence)
        hidden = dropout(hidden, recipe.embedding_dropout)
        scaled = self.scales_embedding or published(recipe.shape) == "gemma"
        return mul_scalar(hidden) if scaled else hidden  # NeMo's EmbeddingScalingMixin

    def received(self) -> Tensor:
        """What the stage before has sent."""
        recipe = self.recipe
        length = recipe.sequence_length // gathered(recipe)
        return received(self.tape, (length, self.tape.batch, recipe.shape.hidden_size), recipe.weight_dtype)

    def head(self) -> Parameter:
        """The output layer's weight: the table itself if tied and here, else one of its own."""
        recipe = self.recipe
        if recipe.shape.tied_embeddings and self.table is not None:
            return self.table
        with self.tape.building(HEAD):
            size = (self.rows, recipe.shape.hidden_size)
            return self.tape.parameter("output_layer.weight", size, recipe.weight_dtype)

    def scratch(self, length: int, batch: int) -> Tensor | None:
        """Of eager attention: the operand that is multiplied by zero, in the buffer that stays."""
        if self.recipe.attention != "eager":
            return None
        heads = self.recipe.shape.attention_heads // self.recipe.slice.tensor
        return self.tape.constant((batch * heads, length, length), self.recipe.weight_dtype, True)

    def buffer_bytes(self) -> int:
        """Bytes per sample of the buffer that collectives and eager attention share (core/utils.py,
        GlobalMemoryBuffer)."""
        recipe = self.recipe
        length, shape, devices = recipe.sequence_length, recipe.shape, recipe.slice.tensor
        elements = [0]
        if gathered(recipe) > 1:
            elements.append(length * shape.hidden_size)
        if recipe.attention == "eager":
            elements.append(shape.attention_heads // devices * length * length)
        return max(elements) * recipe.weight_dtype.itemsize


def received(tape: Tape, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """What came from another device and needs a gradient, which stays until it is sent back."""
    leaf = tape.new("recv", shape, dtype, True)
    accumulator = Parameter(tape, "input_tensor", shape, dtype, 1, trainable=True)
    accumulator.storage = leaf.storage
    tape.held.append(accumulator)
    return leaf.alias(leaf.shape, None, accumulator)


FORWARD = Megatron
