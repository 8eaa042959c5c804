"""Megatron-LM's GPT model, as megatron-core 0.16 computes it from its own modules (core/models/gpt/gpt_model.py).

It is what one device of a tensor-parallel group holds of one pipeline stage: its heads, its part of each feed-forward
layer, its part of the vocabulary. Hidden states are [S, B, H]. A batch is made inside, as `forward_step` does it.
Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines.megatron.context_parallel import gathered_attention, ring_attention
from vramplan.engines.megatron.moe import MoELayer, kept_bytes
from vramplan.engines.megatron.tensor_parallel import (
    batch_matmul,
    bias_dropout_add,
    bias_gelu,
    causal_softmax,
    core_checkpoint,
    fused_rms_norm,
    has_fused_softmax,
    masked_scores,
    parallel_embedding,
    parallel_linear,
    reduce_scatter,
    scatter,
    summed_loss,
    swiglu,
    vocab_parallel_cross_entropy,
)
from vramplan.replay.models import published
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import LayerNorm, Output, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, NORMS
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, gelu, mul, mul_scalar, neg
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import permute, split_with_sizes, unsqueeze
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import baddbmm
from vramplan.replay.operators.views import cat, clone, contiguous, expand, narrow, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Parameter, Tensor, round_up

if TYPE_CHECKING:
    from vramplan.engines.megatron.moe import MoELayer
    from vramplan.values.model import ModelShape

VOCABULARY_MULTIPLE = 128  # of each device: --make-vocab-size-divisible-by

Projected = tuple[Tensor, Parameter | None]  # a result, and the bias that whoever comes next adds


def padded_vocabulary(size: int, devices: int) -> int:
    """The vocabulary with rows that make it a multiple of 128 for each device (vocab_size_with_padding)."""
    return round_up(size, VOCABULARY_MULTIPLE * devices)


class ColumnParallelLinear:
    """Its outputs are split; the gradient of its input is summed over devices."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, inputs: int, outputs: int, *, bias: bool) -> None:
        share = outputs // recipe.slice.tensor
        self.weight = tape.parameter(f"{name}.weight", (share, inputs), recipe.weight_dtype)
        self.weight.in_linear = True
        self.bias = tape.parameter(f"{name}.bias", (share,), recipe.weight_dtype) if bias else None
        self.gathered = gathered(recipe)

    def __call__(self, x: Tensor) -> Tensor:
        return parallel_linear(x, self.weight, self.bias, gathered=self.gathered)

    def without_bias(self, x: Tensor) -> Projected:
        """With `skip_bias_add`: who comes next adds it."""
        return parallel_linear(x, self.weight, gathered=self.gathered), self.bias


class RowParallelLinear:
    """Its inputs are split; its results are summed over devices, and the bias is left to who comes next."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, inputs: int, outputs: int, *, bias: bool) -> None:
        share = inputs // recipe.slice.tensor
        self.weight = tape.parameter(f"{name}.weight", (outputs, share), recipe.weight_dtype)
        self.weight.in_linear = True
        self.bias = tape.parameter(f"{name}.bias", (outputs,), recipe.weight_dtype) if bias else None
        self.gathered = gathered(recipe)

    def __call__(self, x: Tensor) -> Projected:
        out = parallel_linear(x, self.weight)
        return reduce_scatter(out, self.gathered), self.bias


def gathered(recipe: Recipe) -> int:
    """Over how many devices the sequence is split between layers."""
    return recipe.slice.tensor if recipe.slice.sequence_parallel else 1


class FusedRMSNorm:
    """`torch.nn.RMSNorm`, and Apex's and Transformer Engine's, which keep the same."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType) -> None:
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", (width,), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return fused_rms_norm(x, self.weight)


def norm_of(tape: Tape, recipe: Recipe, name: str, width: int | None = None) -> LayerNorm | FusedRMSNorm:
    """The normalisation of the model type."""
    make = FusedRMSNorm if recipe.shape.positions == "rope" and recipe.shape.gated_mlp else LayerNorm
    return make(tape, name, width or recipe.shape.hidden_size, recipe.weight_dtype)


def apply_rotary(x: Tensor, angles: Tensor) -> Tensor:
    """_apply_rotary_pos_emb_bshd (core/models/common/embeddings/rope_utils.py)."""
    rest = narrow(x, -1, 0)
    cos = to(x.tape.new("cos", angles.shape, FP32, False), FP32)
    cos = to(x.tape.new("mul", angles.shape, FP32, False), x.dtype)
    sin = x.tape.new("sin", angles.shape, FP32, False)
    sin = to(x.tape.new("mul", angles.shape, FP32, False), x.dtype)
    x = add(mul(x, cos), mul(rotate_half(x), sin))
    return cat([x, rest], -1)


def rotate_half(x: Tensor) -> Tensor:
    """_rotate_half, not interleaved."""
    first, second = split(x, x.shape[-1] // 2)
    return cat([neg(second), first], -1)


class Attention:
    """SelfAttention, with DotProductAttention or a fused core."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, devices = recipe.shape, recipe.slice.tensor
        self.recipe = recipe
        self.heads, self.groups = shape.attention_heads // devices, shape.key_value_heads // devices
        query, keys = shape.attention_heads * shape.head_size, shape.key_value_heads * shape.head_size
        hidden = shape.hidden_size
        self.linear_qkv = ColumnParallelLinear(
            tape, recipe, "linear_qkv", hidden, query + 2 * keys, bias=shape.qkv_bias
        )
        self.linear_proj = RowParallelLinear(tape, recipe, "linear_proj", query, hidden, bias=shape.output_bias)
        self.q_layernorm = norm_of(tape, recipe, "q_layernorm", shape.head_size) if shape.qk_norm else None
        self.k_layernorm = norm_of(tape, recipe, "k_layernorm", shape.head_size) if shape.qk_norm else None

    def __call__(self, hidden: Tensor, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None) -> Projected:
        size, each = self.recipe.shape.head_size, self.heads // self.groups
        _mixed = self.linear_qkv(hidden)
        length, batch, _ = _mixed.shape
        _mixed = view(_mixed, (length, batch, self.groups, (each + 2) * size))
        query, key, value = split_with_sizes(_mixed, (each * size, size, size))
        query = view(query, (length, batch, self.heads, size))
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        _qkv_output = (query, key, value)
        if angles is not None:
            query, key = apply_rotary(query, angles), apply_rotary(key, angles)
        if self.recipe.recomputes_core:
            context = core_checkpoint(
                lambda q, k, v, given: self.core(q, k, v, given, scratch), query, key, value, mask=mask
            )
        else:
            context = self.core(query, key, value, mask, scratch)
        return self.linear_proj(context)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scratch: Tensor | None) -> Tensor:
        """DotProductAttention.forward; a fused kernel in its place takes the layout as it is."""
        recipe, size = self.recipe, self.recipe.shape.head_size
        length, batch = query.shape[:2]
        if recipe.slice.context > 1:
            return self.over_devices(query, key, value)
        if recipe.attention != "eager":
            order = (1, 2, 0, 3)
            query, key, value = permute(query, order), permute(key, order), permute(value, order)
            context = scaled_dot_product(query, key, value, recipe.attention, recipe.attention_dropout)
            return view(permute(context, (2, 0, 1, 3)), (length, batch, self.heads * size))
        if self.heads != self.groups:
            key, value = self.for_each_head(key), self.for_each_head(value)
        query = view(query, (length, batch * self.heads, size))
        key = view(key, (length, batch * self.heads, size))
        assert scratch is not None
        scores = baddbmm(scratch, transpose(query, 0, 1), transpose(transpose(key, 0, 1), 1, 2))
        scores = view(scores, (batch, self.heads, length, length))
        probabilities = self.softmax(scores, mask)
        probabilities = dropout(probabilities, recipe.attention_dropout)
        value = view(value, (length, batch * self.heads, size))
        probabilities = view(probabilities, (batch * self.heads, length, length))
        context = batch_matmul(probabilities, transpose(value, 0, 1))
        context = view(context, (batch, self.heads, length, size))
        context = contiguous(permute(context, (2, 0, 1, 3)))
        return view(context, (length, batch, self.heads * size))

    def over_devices(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Transformer Engine's core where sequences are split: it takes contiguous queries, keys and values."""
        part = self.recipe.slice
        core = ring_attention if part.ring else gathered_attention
        context = core(contiguous(query), contiguous(key), contiguous(value), part.context)
        return view(context, (*context.shape[:2], self.heads * self.recipe.shape.head_size))

    def for_each_head(self, x: Tensor) -> Tensor:
        """`repeat_interleave` over the heads of each group."""
        length, batch, groups, size = x.shape
        each = self.heads // groups
        wide = expand(unsqueeze(x, 3), (length, batch, groups, each, size))
        return view(clone(wide), (length, batch, self.heads, size))

    def softmax(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """FusedScaleMaskSoftmax.forward."""
        batch, heads, length, _ = scores.shape
        if has_fused_softmax(heads, length) and scores.dtype is not FP32:
            return view(causal_softmax(view(scores, (batch * heads, length, length))), scores.shape)
        assert mask is not None
        return softmax(masked_scores(scores, mask))


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

    def __init__(
        self, tape: Tape, recipe: Recipe, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None
    ) -> None:
        self.p = recipe.hidden_dropout
        self.input_layernorm = norm_of(tape, recipe, "input_layernorm")
        self.self_attention = Attention(tape, recipe)
        self.pre_mlp_layernorm = norm_of(tape, recipe, "pre_mlp_layernorm")
        self.mlp: MLP | MoELayer
        if recipe.shape.experts is None:
            self.mlp = MLP(tape, recipe)
        else:
            self.mlp = MoELayer(tape, recipe)
        self.angles, self.scratch = angles, scratch
        self.mask = mask  # an argument, which causal attention does not use and a checkpoint keeps

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.attend(hidden)
        residual = hidden
        _normed = self.pre_mlp_layernorm(hidden)
        out, bias = self.mlp(_normed)
        return bias_dropout_add(out, bias, residual, self.p)

    def attend(self, hidden: Tensor) -> Tensor:
        """TransformerLayer._forward_attention."""
        residual = hidden
        _normed = self.input_layernorm(hidden)
        out, bias = self.self_attention(_normed, self.mask, self.angles, self.scratch)
        return bias_dropout_add(out, bias, residual, self.p)


class Megatron:
    """GPTModel of one stage, with the loss of pretrain_gpt.py."""

    iteration = iteration_of_stage = "vramplan.engines.megatron.iteration:replay_megatron"
    reads_slice = True
    shares_by_itself = True
    sequence_first = True
    own_core = True
    drops_tokens = True
    splits = ("tensor", "sequence_parallel", "pipeline", "context", "expert")
    selective = ("selective",)
    gradient_buffers = True

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
        if shape.positions != "rope":
            return []
        return [4 * (shape.head_size // 2), 4 * self.recipe.sequence_length * shape.head_size]

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
        each = 1 if recipe.slice.deepspeed else batch  # there it is one for all samples
        mask = None  # where sequences are split no one makes it: the core knows that it is causal
        if recipe.slice.context == 1:
            mask = tape.new("attention_mask", (each, 1, length, length), BOOL, each == batch, category="inputs")
        places = tape.new("position_ids", tokens, INT64, True, category="inputs")
        hidden = self.embed(ids, places) if self.table is not None else self.received()
        angles = None
        if shape.positions == "rope":
            angles = tape.constant((length, 1, 1, shape.head_size), FP32, False)
        scratch = self.scratch(length, batch)
        heads = shape.attention_heads // recipe.slice.tensor
        fused = has_fused_softmax(heads, length) and recipe.weight_dtype is not FP32
        held = mask if recipe.recomputes_core or (recipe.attention == "eager" and not fused) else None
        state = [hidden]
        del hidden
        hidden = run_blocks(
            tape,
            recipe.segments,
            lambda _: Block(tape, recipe, held, angles, scratch),
            state,
            handed={"mask": mask},
            hands_to_all=True,
        )
        if not recipe.slice.last:
            return Output(hidden, hidden)
        hidden = norm_of(tape, recipe, "final_layernorm")(hidden)
        logits = parallel_linear(hidden, self.head(), gathered=gathered(recipe))
        del hidden
        targets = contiguous(transpose(labels, 0, 1))
        losses = vocab_parallel_cross_entropy(logits, targets)
        del logits, targets
        losses = contiguous(transpose(losses, 0, 1))
        return Output(summed_loss(losses, counted), None)

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
        return mul_scalar(hidden) if published(recipe.shape) == "gemma" else hidden  # NeMo's EmbeddingScalingMixin

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
