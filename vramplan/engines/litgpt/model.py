"""Models of llama, GPT-NeoX, Phi and Falcon as LitGPT 0.5.13 computes them (litgpt/model.py, litgpt/lora.py).

The head has a weight of its own, also where the published model ties it to the embedding. Fabric leaves autocast where
the model returns, and casts the logits to fp32 (lightning/fabric/wrappers.py, _FabricModule.forward).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.engines.litgpt.losses import CHUNKED, chunk_tokens, chunked_cross_entropy, cross_entropy_in_chunks
from vramplan.engines.litgpt.operators import conv1d, empty_part, zero_padded
from vramplan.engines.torchtitan.model import CheckpointedBlock
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import ACTIVATIONS, LayerNorm, Linear, Output, Recipe, as_is
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.models.part_names import NORMS as NORMS_PART
from vramplan.replay.observers import Sharding, Trained
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import (
    add,
    add_scalar,
    dropout,
    mean_last,
    mul,
    mul_scalar,
    neg,
    rsqrt,
)
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import split_along, split_with_sizes
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import cat, expand, narrow, repeat_interleave, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapter_target import DTYPES
from vramplan.replay.techniques.adapters import OWN, is_target
from vramplan.replay.tensors import FP32, INT64, DType, Tensor
from vramplan.values.model import ModelShape

QUERY, KEY, VALUE, PROJECTION = "q_proj", "k_proj", "v_proj", "o_proj"
GATED = ("gate_proj", "up_proj", "down_proj")


class RMSNorm:
    """RMSNorm of litgpt/model.py: all of it in fp32, the weight too; before 0.4.6 that came last, in 16 bits."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType, *, half: bool) -> None:
        self.half = half
        with tape.building(NORMS_PART):
            self.weight = tape.parameter(f"{name}.weight", (width,), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, FP32)
        _norm_x = mean_last(mul(x, x))
        _x_normed = mul(x, rsqrt(add_scalar(_norm_x)))
        if self.half:
            return mul(to(_x_normed, dtype), self.weight)
        _weight = self.weight
        return to(mul(_x_normed, to(_weight, FP32)), dtype)


def norm(tape: Tape, name: str, width: int, recipe: Recipe) -> Any:
    """The normalisation of the family."""
    if recipe.shape.published_family == "llama":
        return RMSNorm(tape, name, width, recipe.weight_dtype, half=recipe.old_code.half_norms)
    return LayerNorm(tape, name, width, recipe.weight_dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """apply_rope: the cached cosines and sines are in fp32, and so is what is made with them."""
    half = x.shape[-1] // 2
    first, second = narrow(x, -1, half), narrow(x, -1, half)
    _rotated = cat([neg(second), first], -1)
    roped = add(mul(x, cos), mul(_rotated, sin))
    return to(roped, x.dtype)


class LoRALinear(Linear):
    """LoRALinear: a layer and LoRA beside it, which casts nothing, unlike PEFT's, and copies no result."""

    def __init__(self, tape: Tape, name: str, inputs: int, outputs: int, dtype: DType, *, bias: bool) -> None:
        super().__init__(tape, name, inputs, outputs, dtype, bias=bias)
        lora = self.adapter
        self.lora: Any = lora if hasattr(lora, "lora_A") else None
        if self.lora is not None:
            self.adapter = getattr(lora, "quantized", None)

    def __call__(self, x: Tensor) -> Tensor:
        pretrained = super().__call__(x)
        if self.lora is None:
            return pretrained
        _lora = mul_scalar(linear(linear(dropout(x, self.lora.p), self.lora.lora_A), self.lora.lora_B))
        return add(pretrained, _lora)


class FusedProjection(Linear):
    """LoRAQKVLinear: queries, keys and values in one layer, and LoRA over those of them that are targets."""

    def __init__(self, tape: Tape, recipe: Recipe, adapter: Any) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        size = shape.head_size
        self.copies_places = not recipe.old_code.buffered_places
        widths = {
            QUERY: size * shape.attention_heads,
            KEY: size * shape.key_value_heads,
            VALUE: size * shape.key_value_heads,
        }
        self.outputs = sum(widths.values())
        super().__init__(tape, "qkv", shape.hidden_size, self.outputs, dtype, bias=shape.qkv_bias)
        if adapter is None:
            for name in widths:
                tape.role(Trained).linear(tape, self, name)  # by these names parts of it are known
        self.parts = [width for name, width in widths.items() if adapter is not None and names(adapter, name)]
        self.is_grouped = shape.attention_heads != shape.key_value_heads
        if self.parts:
            with tape.building(OWN):
                lora, rank = DTYPES[adapter.dtype], adapter.rank
                self.p = adapter.dropout
                self.lora_A = tape.parameter("qkv.lora_A.weight", (rank * len(self.parts), shape.hidden_size), lora)
                self.lora_B = tape.parameter("qkv.lora_B.weight", (sum(self.parts), rank), lora)

    def __call__(self, x: Tensor) -> Tensor:
        pretrained = super().__call__(x)
        if not self.parts:
            return pretrained
        after_A = linear(dropout(x, self.p), self.lora_A)
        after_B = transpose(self.convolved(transpose(after_A, 1, 2)), 1, 2)
        whole = sum(self.parts) == self.outputs
        padded = after_B if whole else zero_padded(after_B, self.outputs, copies=self.copies_places)
        lora = mul_scalar(padded)
        del padded
        return add(pretrained, lora)

    def convolved(self, x: Tensor) -> Tensor:
        """LoRAQKVLinear.conv1d: one grouped convolution, or one for each part where their widths differ."""
        weight = view(self.lora_B, self.lora_B.shape)  # unsqueezed, so that autocast casts it at each use
        if not self.is_grouped:
            return conv1d(x, weight)
        count = len(self.parts)
        inputs = split(x, -(-x.shape[1] // count), 1)
        weights = rows_of(weight, self.parts)
        return cat([conv1d(a, b) for a, b in zip(inputs, weights, strict=True)], 1)


def rows_of(weight: Tensor, sizes: list[int]) -> list[Tensor]:
    """`weight.split(sizes)`: views of rows."""
    if len(sizes) == 1:
        return split(weight, sizes[0], 0)
    turned = transpose(weight, 0, 1)
    return [transpose(part, 0, 1) for part in split_with_sizes(turned, tuple(sizes))]


def names(adapter: Any, name: str) -> bool:
    """Whether a part of a fused layer is a target."""
    return is_target(name, adapter.targets)


class Attention:
    """CausalSelfAttention."""

    def __init__(self, tape: Tape, recipe: Recipe, rope: tuple[Tensor, Tensor]) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        query = shape.attention_heads * shape.head_size
        self.recipe, self.rope = recipe, rope
        self.qkv = FusedProjection(tape, recipe, tape.role(Trained).adapter)
        self.proj = LoRALinear(tape, PROJECTION, query, shape.hidden_size, dtype, bias=shape.output_bias)
        self.norm_q = norm(tape, "norm_q", shape.head_size, recipe) if shape.qk_norm else as_is
        self.norm_k = norm(tape, "norm_k", shape.head_size, recipe) if shape.qk_norm else as_is

    def __call__(self, x: Tensor) -> Tensor:
        recipe, (cos, sin) = self.recipe, self.rope
        shape = recipe.shape
        batch, length, _ = x.shape
        size, heads, groups = shape.head_size, shape.attention_heads, shape.key_value_heads
        _qkv = self.qkv(x)
        if recipe.old_code.mixed_projections:
            q, k, v = out_of_groups(_qkv, heads, groups, size)
        else:
            q, k, v = split_with_sizes(_qkv, (heads * size, groups * size, groups * size))
            q = transpose(view(q, (batch, length, heads, size)), 1, 2)
            k = transpose(view(k, (batch, length, groups, size)), 1, 2)
            v = transpose(view(v, (batch, length, groups, size)), 1, 2)
        q, k = self.norm_q(q), self.norm_k(k)
        turned = cos.shape[-1]
        cos, sin = (one.alias((1, 1, length, turned), None, None) for one in (cos, sin))
        _q_roped = apply_rope(narrow(q, -1, turned), cos, sin)
        _k_roped = apply_rope(narrow(k, -1, turned), cos, sin)
        q = cat([_q_roped, rest_of(q, turned)], -1)
        k = cat([_k_roped, rest_of(k, turned)], -1)
        if groups != heads and k.shape[1] != heads:
            k = repeat_interleave(k, heads // groups)
            v = repeat_interleave(v, heads // groups)
        y = transpose(scaled_dot_product(q, k, v, recipe.attention, 0.0, None), 1, 2)
        y = view(y, (batch, length, heads * size))
        return self.proj(y)


def out_of_groups(qkv: Tensor, heads: int, groups: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of releases before 0.5.5, for as many heads each.

    Those of a group of heads lie beside each other: queries of several groups are copied, and keys and values are
    copied for the queries that share them.
    """
    batch, length, _ = qkv.shape
    each = heads // groups
    together = view(qkv, (batch, length, groups, each + 2, size))
    together = transpose(transpose(together, 1, 2), 2, 3)
    q, k, v = split_along(together, (each, 1, 1), 2)
    if each > 1:
        k, v = (expand(one, (batch, groups, each, length, size)) for one in (k, v))
    q, k, v = (view(one, (batch, heads, length, size)) for one in (q, k, v))
    return q, k, v


def rest_of(x: Tensor, turned: int) -> Tensor:
    """The columns that rotary positions leave alone, of which there may be none."""
    rest = x.shape[-1] - turned
    return narrow(x, -1, rest) if rest else empty_part(x)


class MLP:
    """LLaMAMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        gate, up, down = GATED
        self.fc_1 = LoRALinear(tape, gate, hidden, inner, dtype, bias=bias)
        self.fc_2 = LoRALinear(tape, up, hidden, inner, dtype, bias=bias)
        self.proj = LoRALinear(tape, down, inner, hidden, dtype, bias=bias)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, x: Tensor) -> Tensor:
        _x_fc_1 = self.fc_1(x)
        _x_fc_2 = self.fc_2(x)
        x = mul(self.act(_x_fc_1), _x_fc_2)
        return self.proj(x)


class PlainMLP:
    """GptNeoxMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.fc = LoRALinear(tape, GATED[1], hidden, inner, dtype, bias=bias)
        self.proj = LoRALinear(tape, GATED[2], inner, hidden, dtype, bias=bias)
        self.act = ACTIVATIONS["gelu"]

    def __call__(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        x = self.act(x)
        return self.proj(x)


class Block:
    """Block: one after the other, or attention and feed-forward layer beside each other, with one norm or two."""

    def __init__(self, tape: Tape, recipe: Recipe, rope: tuple[Tensor, Tensor]) -> None:
        shape = recipe.shape
        width, family = shape.hidden_size, shape.published_family
        self.is_parallel = shape.parallel_residual or family in ("phi", "falcon")
        self.norm_1 = norm(tape, "norm_1", width, recipe)
        self.attn = Attention(tape, recipe, rope)
        shares_norm = family == "phi" or (family == "falcon" and shape.parallel_norms == 1)
        self.norm_2 = None if shares_norm else norm(tape, "norm_2", width, recipe)
        self.mlp: Any = MLP(tape, recipe) if shape.gated_mlp else PlainMLP(tape, recipe)

    def __call__(self, x: Tensor) -> Tensor:
        x_normed = self.norm_1(x)
        attention_output = self.attn(x_normed)
        if self.is_parallel:
            if self.norm_2 is not None:
                x_normed = self.norm_2(x)
            x = add(attention_output, x)
        else:
            assert self.norm_2 is not None
            x = add(attention_output, x)
            x_normed = self.norm_2(x)
        return add(self.mlp(x_normed), x)


class GPT:
    """GPT of litgpt/model.py, called as its training loops do."""

    block_lists = ("h",)
    shards_by_blocks = True
    keeps_root = True  # finetune/lora.py, parallelize_fn, says nothing of resharding: embedding and head stay whole
    steps_views = True  # fabric/strategies/fsdp.py, FSDPStrategy: use_orig_params
    drops_out = False
    no_eager_attention = "LitGPT calls scaled_dot_product_attention alone"
    head_losses = ("chunked:N",)
    may_miss_adapter = True
    compiled_graphs = 2  # litgpt/pretrain.py compiles the model alone: its loss is outside
    not_adapted = ("qkv",)  # LoRAQKVLinear adapts the three parts of the fused layer

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether a language model has rotary positions, not scaled in a way that depends on the length."""
        return shape.task == "lm" and shape.positions == "rope" and shape.rope_scaling is None

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(HEAD):
            bias = shape.published_family == "phi"
            self.lm_head = Linear(tape, "lm_head", shape.hidden_size, shape.vocabulary_size, dtype, bias=bias)
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte.weight", (shape.vocabulary_size, shape.hidden_size), dtype)
        turned = int(shape.partial_rotary_factor * shape.head_size)
        # made anew in fp32 for the length that is trained, unless it is the model's own; what Fabric quantizes by
        # (fabric/plugins/precision/bitsandbytes.py, convert_module) gives linear layers alone another type
        half = recipe.sequence_length == shape.max_positions and not self.lm_head.weight.quantized
        self.made_in = dtype if half else FP32
        self.rope_shape = (recipe.sequence_length, turned)

    @property
    def rope_dtype(self) -> DType:
        """Of cosines and sines: FSDP1 casts buffers to what it gathers (fabric/plugins/precision/fsdp.py)."""
        return self.recipe.weight_dtype if self.tape.role(Sharding).casts_buffers else self.made_in

    def buffers(self) -> list[int]:
        """Bytes of the buffers: cosines and sines, and the places of the targets of LoRA in each fused layer."""
        length, turned = self.rope_shape
        return [length * turned * self.rope_dtype.itemsize] * 2 + self.places()

    def places(self) -> list[int]:
        """Bytes of the indices of LoRAQKVLinear, of each block."""
        shape, adapter = self.recipe.shape, self.tape.role(Trained).adapter
        if adapter is None:
            return []
        keys = shape.head_size * shape.key_value_heads
        widths = {QUERY: shape.head_size * shape.attention_heads, KEY: keys, VALUE: keys}
        chosen = [width for name, width in widths.items() if names(adapter, name)]
        return [] if len(chosen) in (0, 3) else [sum(chosen) * INT64.itemsize] * shape.layers

    def kept(self) -> list[int]:
        """Scaled rotary positions keep nothing more."""
        return []

    def __call__(self, input_ids: Tensor, labels: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        if tape.role(Sharding).buffer_dtype is FP32 and recipe.weight_dtype is not FP32:
            tape.autocast = recipe.weight_dtype  # fabric/plugins/precision/fsdp.py, forward_context, in mixed precision
        logits = [tape.leave_graph(one) for one in self.forward(input_ids)]
        logits[-1] = tape.role(Sharding).after_model(logits[-1])  # the loss is no part of the model
        tape.autocast = None
        tape.casts.clear()
        wide = [to(one, FP32) for one in logits]
        del logits
        for bound in tape.told.outputs_bound:
            bound()  # `loss` is a number by then: the loop reads it at each iteration
        held = wide if recipe.loss.startswith(CHUNKED) else wide[0]
        shifted = narrow(wide[-1], 1, wide[-1].shape[1] - 1)
        targets = labels.alias(
            (labels.shape[0], labels.shape[1] - 1), None if labels.shape[0] == 1 else (labels.shape[1], 1), None
        )
        if held is wide:
            wide[-1] = shifted
            del shifted
            return Output(chunked_cross_entropy(wide, targets), wide)
        del wide
        return Output(cross_entropy_in_chunks([shifted], targets), held)

    def forward(self, input_ids: Tensor) -> list[Tensor]:
        """GPT.forward: the logits, in chunks of the sequence."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        x = embedding(input_ids, self.wte)
        rope = (
            tape.constant(self.rope_shape, self.rope_dtype, False),
            tape.constant(self.rope_shape, self.rope_dtype, False),
        )
        state = [x]
        del x
        if Sharding not in tape.roles:
            x = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, rope), state)
        else:
            x = self.sharded_blocks(state, rope)
        x = norm(tape, "ln_f", shape.hidden_size, recipe)(x)
        return [self.lm_head(part) for part in split(x, chunk_tokens(recipe), 1)]

    def sharded_blocks(self, state: list[Tensor], rope: tuple[Tensor, Tensor]) -> Tensor:
        """The blocks as units of FSDP, each around its checkpoint (litgpt/finetune/lora.py, parallelize_fn).

        A policy names modules, so a checkpoint of several blocks can only be a call around their units.
        """
        tape, recipe = self.tape, self.recipe
        if any(one.checkpointed and one.blocks > 1 for one in recipe.segments):
            return run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, rope), state)
        checkpointed = [one.checkpointed for one in recipe.segments for _ in range(one.times * one.blocks)]

        def block(i: int) -> Any:
            made: Any = Block(tape, recipe, rope)
            return CheckpointedBlock(tape, made, None) if checkpointed[i] else made

        plain = tuple(segment._replace(checkpointed=False, selects=None) for segment in recipe.segments)
        return run_blocks(tape, plain, block, state)


FORWARD = GPT
