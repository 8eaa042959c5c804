"""WavLM with a head for CTC, as transformers 5.23 computes it (models/wavlm/modeling_wavlm.py): Wav2Vec2 whose scores
have a bias of relative positions, a table of the first block that each block gates by what it is given.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import each_is_a_checkpoint, run_blocks
from vramplan.replay.models.modules import SELECTIVE_OP, LayerNorm, Linear, Recipe
from vramplan.replay.models.wav2vec2 import FeedForward, Places, Wav2Vec2
from vramplan.replay.observers import Outer
from vramplan.replay.operators.alternating import mean_over
from vramplan.replay.operators.biased import permute
from vramplan.replay.operators.elementwise import add, add_scalar, dropout, mul, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.experts import sigmoid, sum_last
from vramplan.replay.operators.indexing import unsqueeze
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear, matmul
from vramplan.replay.operators.repeated import repeat_samples
from vramplan.replay.operators.views import cat, split, to, transpose, view
from vramplan.replay.operators.waveforms import biased_product
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Tensor
from vramplan.values.model import ModelShape

BUCKETS, GATES = 320, 8  # num_buckets of every published model; what a head is projected to for its gates
State = tuple[Tensor, Tensor | None]  # the hidden state, and the bias once the first block has made it


class Attention:
    """WavLMAttention: torch.nn.functional.multi_head_attention_forward over weights of its own."""

    def __init__(self, tape: Tape, recipe: Recipe, *, first: bool) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.recipe = recipe
        self.gate = tape.parameter("gru_rel_pos_const", (1, shape.attention_heads, 1, 1), dtype)
        names = ("k_proj", "v_proj", "q_proj", "out_proj")
        self.k, self.v, self.q, self.out = (Linear(tape, name, width, width, dtype, bias=True) for name in names)
        self.gates = Linear(tape, "gru_rel_pos_linear", shape.head_size, GATES, dtype, bias=True)
        self.table = None
        if first:
            self.table = tape.parameter("rel_attn_embed.weight", (BUCKETS, shape.attention_heads), dtype)

    def __call__(self, hidden: Tensor, position_bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.recipe.shape
        batch, length, _ = hidden.shape
        heads = shape.attention_heads
        if position_bias is None:
            position_bias = self.bias(length)
            position_bias = repeat_samples(unsqueeze(position_bias, 0), batch)
            position_bias = view(position_bias, (batch * heads, length, length))
        _gated_hidden = permute(view(hidden, (batch, length, heads, shape.head_size)), (0, 2, 1, 3))
        _relative = self.gates(_gated_hidden)
        _relative = view(sum_last(view(_relative, (batch, heads, length, 2, GATES // 2))), (batch, heads, length, 2))
        _gate_a, _gate_b = split(sigmoid(_relative), 1)
        with Outer(hidden, own=(self.gate,)):
            _gate = add_scalar(mul(_gate_a, add_scalar(mul(_gate_b, self.gate))))
        gated = mul(view(_gate, (batch * heads, length, 1)), position_bias)
        output, weights = self.attend(hidden, gated)
        return output, weights, position_bias

    def bias(self, length: int) -> Tensor:
        """WavLMAttention.compute_bias: [a, S, S], a number of the table for each pair of positions."""
        assert self.table is not None
        tape = self.table.tape
        _context = tape.new("arange", (length, 1), INT64, False)
        _memory = tape.new("arange", (1, length), INT64, False)
        _relative = tape.new("sub", (length, length), INT64, False)
        _bucket = buckets(_relative)
        values = embedding(_bucket, self.table)
        return permute(values, (2, 0, 1))

    def attend(self, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """WavLMAttention.torch_multi_head_self_attention."""
        recipe = self.recipe
        shape = recipe.shape
        batch, length, width = hidden.shape
        heads, size = shape.attention_heads, shape.head_size
        rows = transpose(hidden, 0, 1)
        biases = [one.bias for one in (self.q, self.k, self.v)]
        _biases = split(cat([one for one in biases if one is not None], 0), width, 0)
        q, k, v = (
            transpose(view(linear(rows, one.weight, bias), (length, batch * heads, size)), 0, 1)
            for one, bias in zip((self.q, self.k, self.v), _biases, strict=True)
        )
        weights = biased_product(bias, mul_scalar(q), transpose(k, 1, 2))
        del k
        weights = softmax(weights)
        weights = dropout(weights, recipe.attention_dropout)
        output = matmul(weights, v)
        del v
        output = view(transpose(output, 0, 1), (length * batch, width))
        output = linear(output, self.out.weight, self.out.bias)
        output = view(output, (length, batch, width))
        weights = mean_over(view(weights, (batch, heads, length, length)), 1)
        return transpose(output, 0, 1), weights


def buckets(relative: Tensor) -> Tensor:
    """WavLMAttention._relative_positions_bucket: whole numbers [S, S], operator by operator."""
    tape, shape = relative.tape, relative.shape

    def number(operator: str, dtype: DType = INT64) -> Tensor:
        return tape.new(operator, shape, dtype, False)

    found = number("gt", BOOL)
    found = to(found, INT64)
    found = mul_scalar(found)
    _positions = number("abs")
    _is_small = number("lt", BOOL)
    large = to(_positions, FP32)
    large = mul_scalar(large)
    large = number("log", FP32)
    large = mul_scalar(large)
    large = mul_scalar(large)
    _large = number("add", FP32)
    del large
    bounded = to(_large, INT64)
    full = number("full_like")
    bounded = number("minimum")
    del full
    chosen = number("where")
    del chosen, bounded  # the first of which is added in place
    return found


class Block:
    """WavLMEncoderLayer, or WavLMEncoderLayerStableLayerNorm, which normalises before."""

    def __init__(self, tape: Tape, recipe: Recipe, *, first: bool) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.p, self.pre_norm = recipe.hidden_dropout, recipe.shape.pre_norm
        self.attention = Attention(tape, recipe, first=first)
        self.layer_norm = LayerNorm(tape, "layer_norm", width, dtype)
        self.feed_forward = FeedForward(tape, recipe)
        self.final_layer_norm = LayerNorm(tape, "final_layer_norm", width, dtype)

    def __call__(self, state: State) -> State:
        hidden, bias = state
        del state
        residual = hidden
        if self.pre_norm:
            hidden = self.layer_norm(hidden)
        hidden, _weights, bias = self.attention(hidden, bias)
        hidden = dropout(hidden, self.p)
        hidden = add(residual, hidden)
        if self.pre_norm:
            return add(hidden, self.feed_forward(self.final_layer_norm(hidden))), bias
        hidden = self.layer_norm(hidden)
        hidden = add(hidden, self.feed_forward(hidden))
        hidden = self.final_layer_norm(hidden)
        return hidden, bias


class WavLM(Wav2Vec2):
    """WavLMForCTC, with its loss."""

    selective = SELECTIVE_OP
    asks_no_inputs = True
    equal_blocks = False  # the first of them makes the bias that the others share
    block_returns = None  # the bias too, which the next block takes by its name: no code here joins several
    no_fused_attention = "its code has none"
    read_weights = ("k_proj", "v_proj", "q_proj", "out_proj")

    @staticmethod
    def no_quantization(shape: ModelShape) -> str | None:
        """torch.nn.functional.multi_head_attention_forward multiplies by the weights of the layers that are packed."""
        return "its attention multiplies by the weights of its layers itself, which are packed then"

    def run(self, hidden: Tensor) -> Tensor:
        """WavLMEncoder.forward, or WavLMEncoderStableLayerNorm's."""
        tape, recipe = self.tape, self.recipe
        places = Places(tape, recipe)
        norm = LayerNorm(tape, "layer_norm", recipe.shape.hidden_size, recipe.weight_dtype)
        _places = places(hidden)
        hidden = add(hidden, _places)
        if not recipe.shape.pre_norm:
            hidden = norm(hidden)
        entering = [hidden]
        del hidden
        segments = recipe.segments
        # the first checkpoint after the one that makes the bias keeps it longest; backward has one gradient of it
        # until the block before the last adds its own
        maker = segments[0].blocks if segments[0].checkpointed else 1
        last = segments[-1].blocks if segments[-1].checkpointed else 1
        before_last = recipe.shape.layers - last - 1
        encoded, _bias = run_blocks(
            tape,
            segments,
            lambda i: Block(tape, recipe, first=i == 0),
            initial(dropout(entering.pop(), recipe.embedding_dropout)),
            kind=lambda i: (i < maker, i == before_last),
            carries=True,
            switched=each_is_a_checkpoint(segments),
        )
        return norm(encoded) if recipe.shape.pre_norm else encoded


def initial(hidden: Tensor) -> State:
    """What the first block is given."""
    return hidden, None


FORWARD = WavLM
