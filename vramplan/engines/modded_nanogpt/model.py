"""GPT of modded-nanogpt's records of 2024-12-10 and 2024-12-17 (KellerJordan/modded-nanogpt, the code in their logs).

What differs between them is data, `ModelShape.unet`. Linear weights are fp32 and cast at each use (CastedLinear), all
other weights have the 16 bits of `model.bfloat16()`. There is no checkpoint, so blocks are played one by one.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.modules import Output, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.operators.elementwise import add, mul, mul_scalar, neg, pow_scalar, relu, tanh
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.flex_attention import document_mask, flex_attention, plain_rms_norm
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import cat, contiguous, select, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BF16, FP32, INT32, INT64, DType, Shape, Tensor
from vramplan.values.model import ModelShape, UNet

WINDOW_BYTES = 512  # sliding_window_num_blocks, one number


class CastedLinear:
    """A layer without bias whose fp32 weight is cast to the type of its input."""

    def __init__(self, tape: Tape, name: str, inputs: int, outputs: int) -> None:
        self.weight = tape.parameter(f"{name}.weight", (outputs, inputs), FP32)
        self.weight.in_linear = True

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, to(self.weight, x.dtype, category="weight_casts"))


class Rotary:
    """Half of each head is turned, by cosines and sines that are there."""

    def __init__(self, tape: Tape, recipe: Recipe, *, wide: bool) -> None:
        self.wide = wide
        size = (1, recipe.sequence_length, 1, recipe.shape.head_size // 2)
        self.cos, self.sin = (tape.constant(size, recipe.weight_dtype, False) for _ in range(2))

    def __call__(self, x: Tensor) -> Tensor:
        cos, sin = self.cos, self.sin
        _x1, _x2 = split(to(x, FP32) if self.wide else x, x.shape[-1] // 2)
        _y1 = add(mul(_x1, cos), mul(_x2, sin))
        _y2 = add(mul(_x1, neg(sin)), mul(_x2, cos))
        return to(cat([_y1, _y2], 3), x.dtype)


class Attention:
    """CausalSelfAttention."""

    def __init__(self, tape: Tape, recipe: Recipe, unet: UNet) -> None:
        width = recipe.shape.hidden_size
        self.recipe = recipe
        self.c_q = CastedLinear(tape, "attn.c_q", width, width)
        self.c_k = CastedLinear(tape, "attn.c_k", width, width)
        self.c_v = CastedLinear(tape, "attn.c_v", width, width)
        self.lambdas = tape.parameter("attn.lambdas", (2,), recipe.weight_dtype)
        self.c_proj = CastedLinear(tape, "attn.c_proj", width, width)
        self.rotary = Rotary(tape, recipe, wide=unet.fp32_rotary)

    def __call__(self, x: Tensor, vi: Tensor | None, block_mask: list[Tensor]) -> Tensor:
        shape = self.recipe.shape
        heads = (*x.shape[:2], shape.attention_heads, shape.head_size)
        q = view(self.c_q(x), heads)
        k = view(self.c_k(x), heads)
        v = view(self.c_v(x), heads)
        if vi is None:
            v = mul(select(self.lambdas, 0), v)
        else:
            v = add(mul(select(self.lambdas, 0), v), mul(select(self.lambdas, 0), view(vi, heads)))
        q, k = plain_rms_norm(q), plain_rms_norm(k)
        q, k = self.rotary(q), self.rotary(k)
        y = flex_attention(transpose(q, 1, 2), transpose(k, 1, 2), transpose(v, 1, 2), block_mask)
        y = view(contiguous(transpose(y, 1, 2)), x.shape)
        y = self.c_proj(y)
        return y


class MLP:
    """MLP: the square of what is above zero."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, inner = recipe.shape.hidden_size, recipe.shape.intermediate_size
        self.c_fc = CastedLinear(tape, "mlp.c_fc", width, inner)
        self.c_proj = CastedLinear(tape, "mlp.c_proj", inner, width)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        x = pow_scalar(relu(x))
        x = self.c_proj(x)
        return x


class Block:
    """Block: it begins with a sum of the stream and of what the stream began with."""

    def __init__(self, tape: Tape, recipe: Recipe, unet: UNet, number: int) -> None:
        self.lambdas = tape.parameter("lambdas", (2,), recipe.weight_dtype)
        self.attn = None if number in unet.attention_free else Attention(tape, recipe, unet)
        self.mlp = MLP(tape, recipe)

    def __call__(self, x: Tensor, vi: Tensor | None, x0: Tensor, block_mask: list[Tensor]) -> Tensor:
        x = add(mul(select(self.lambdas, 0), x), mul(select(self.lambdas, 0), x0))
        if self.attn is not None:
            x = add(x, self.attn(plain_rms_norm(x), vi, block_mask))
        x = add(x, self.mlp(plain_rms_norm(x)))
        return x


class GPT:
    """GPT: the second half of the blocks gets what the first half gave, last first."""

    compiled_graphs = 1
    takes_one = True  # FlexAttention's mask is of one sequence
    returns_logits = False  # the model gives its loss alone
    drops_out = False
    equal_blocks = False
    no_checkpointing = "modded-nanogpt checkpoints nothing"
    no_eager_attention = "modded-nanogpt calls FlexAttention"

    @staticmethod
    def only_kernel(shape: ModelShape) -> tuple[str, str]:
        """Its one kernel keeps what flash does."""
        return "flash", "modded-nanogpt calls FlexAttention, whose kernel keeps what flash keeps"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        assert shape.unet is not None
        self.tape, self.recipe, self.unet = tape, recipe, shape.unet
        layers, table = shape.layers, (shape.unet.embedding_rows, shape.hidden_size)
        self.first = layers // 2  # block of the second half
        names = ["embed", *[f"value_embeds.embed.{i}" for i in range(self.unet.value_embeddings)]]
        with tape.building(EMBEDDINGS):
            self.embed, *self.value_embeds = [tape.parameter(f"{name}.weight", table, dtype) for name in names]
        self.blocks: list[Block] = []
        for i, _ in tape.repeat(layers, apart=range(layers)):
            self.blocks.append(Block(tape, recipe, self.unet, i))
            if i == self.first - 1:  # gradients fill the buckets in the order in which they come
                self.skip_weights = tape.parameter("skip_weights", (layers - self.first,), dtype)
        with tape.building(HEAD):
            self.lm_head = CastedLinear(tape, "lm_head", shape.hidden_size, shape.vocabulary_size)

    def buffers(self) -> list[int]:
        """Bytes of the cosines and sines of each attention layer, and of the width of the window.

        Where they are no buffers of all positions, a cache of those of the last sequence has their place, beside the
        frequencies that it is made from.
        """
        shape, wide = self.recipe.shape, self.unet.fp32_rotary
        positions = shape.max_positions if wide else self.recipe.sequence_length
        half = shape.head_size // 2 * BF16.itemsize
        each = [positions * half] * 2 + ([] if wide else [half])
        return each * (shape.layers - len(self.unet.attention_free)) + [WINDOW_BYTES]

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Tokens in 32 bits, and targets in 64."""
        length = (self.recipe.sequence_length,)
        return (("inputs", length, INT32), ("targets", length, INT64))

    def __call__(self, inputs: Tensor, targets: Tensor) -> Output:
        tape, shape = self.tape, self.recipe.shape
        batch, length = inputs.shape
        _block_mask, _ends = document_mask(tape, length)
        x = embedding(inputs, self.embed)
        x = plain_rms_norm(x)
        _x0 = x
        _tables = [embedding(inputs, table) for table in self.value_embeds]
        skip_connections: list[Tensor] = []
        for i, _ in tape.repeat(shape.layers, apart=range(shape.layers)):
            if i >= self.first:
                x = add(x, mul(select(self.skip_weights, 0), skip_connections.pop()))
            table = self.unet.table_of(i, shape.layers)
            x = self.blocks[i](x, None if table is None else _tables[table], _x0, _block_mask)
            if i < self.first:
                skip_connections.append(x)
        x = plain_rms_norm(x)
        logits = self.lm_head(x)
        logits = mul_scalar(tanh(mul_scalar(logits)))
        logits = to(logits, FP32)
        rows = view(logits, (batch * length, shape.vocabulary_size))
        loss = cross_entropy(rows, view(targets, (batch * length,)))
        return Output(loss, None)


FORWARD = GPT
