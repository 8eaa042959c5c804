"""GPT-2 as llm.c has it: lists of tensors that are allocated once, and no operator that allocates anything.

Source: karpathy/llm.c, train_gpt2.cu, fill_in_parameter_sizes and fill_in_activation_sizes (21 tensors, as of July 2024
and later: what the two projections back into the residual stream give lies in `output`, and is kept no more).
Tensors have the names that they have there.
"""

from __future__ import annotations

from vramplan.replay.models.modules import GELU_NORMS
from vramplan.tuples import NamedTuple
from vramplan.values.model import ModelShape

ROW_MULTIPLE = 128  # rows of the vocabulary's table (padded_vocab_size)


class StackedWeight(NamedTuple):
    """One tensor of all blocks, or one that is outside of them."""

    name: str
    elements: int  # of one block
    copies: int = 1  # blocks


class Buffer(NamedTuple):
    """One tensor of the arena of activations."""

    name: str
    elements: int  # of one sequence
    wide: bool = False  # fp32, whatever the weights are
    scratch: bool = False  # each block writes it anew, and backward uses it for gradients


def padded_vocabulary(shape: ModelShape) -> int:
    """Rows of the table: 50257 are 50304."""
    return -(-shape.vocabulary_size // ROW_MULTIPLE) * ROW_MULTIPLE


def weights(shape: ModelShape) -> tuple[StackedWeight, ...]:
    """The 16 tensors of `ParameterTensors`; the head is the token table."""
    width, layers = shape.hidden_size, shape.layers
    blocks = {
        "ln1w": width,
        "ln1b": width,
        "qkvw": 3 * width * width,
        "qkvb": 3 * width,
        "attprojw": width * width,
        "attprojb": width,
        "ln2w": width,
        "ln2b": width,
        "fcw": 4 * width * width,
        "fcb": 4 * width,
        "fcprojw": 4 * width * width,
        "fcprojb": width,
    }
    return (
        StackedWeight("wte", padded_vocabulary(shape) * width),
        StackedWeight("wpe", shape.max_positions * width),
        *(StackedWeight(name, elements, layers) for name, elements in blocks.items()),
        StackedWeight("lnfw", width),
        StackedWeight("lnfb", width),
    )


def parameters(shape: ModelShape) -> int:
    """`num_parameters`, with the rows that pad the vocabulary."""
    return sum(one.elements * one.copies for one in weights(shape))


def arena(shape: ModelShape, length: int, attention: str, recomputes: str | None) -> tuple[Buffer, ...]:
    """The 21 tensors of `ActivationTensors`, for sequences of so many tokens.

    `attention` flash is cuDNN's (built with USE_CUDNN=1), which keeps a number for each row and head; llm.c's own
    kernels keep all attention weights. What backward computes again is kept for one block, or lies in `lnf`.
    """
    layers, tokens, heads = shape.layers, length, shape.attention_heads
    hidden, wide = tokens * shape.hidden_size, 4 * tokens * shape.hidden_size
    of_norms = 0 if recomputes == GELU_NORMS else layers * hidden
    again = recomputes is not None
    attended = heads * tokens if attention == "flash" else heads * tokens * tokens
    return (
        Buffer("encoded", hidden),
        Buffer("ln1", of_norms),
        Buffer("ln1_mean", layers * tokens, wide=True),
        Buffer("ln1_rstd", layers * tokens, wide=True),
        Buffer("atty", layers * hidden),
        Buffer("att", layers * attended, wide=attention == "flash"),
        Buffer("residual2", layers * hidden),
        Buffer("ln2", of_norms),
        Buffer("ln2_mean", layers * tokens, wide=True),
        Buffer("ln2_rstd", layers * tokens, wide=True),
        Buffer("fch", layers * wide),
        Buffer("fch_gelu", wide if again else layers * wide, scratch=again),
        Buffer("residual3", layers * hidden),
        Buffer("lnf", hidden),
        Buffer("lnf_mean", tokens, wide=True),
        Buffer("lnf_rstd", tokens, wide=True),
        Buffer("losses", tokens, wide=True),
        Buffer("qkvr", 3 * layers * hidden),
        Buffer("output", tokens * max(3 * shape.hidden_size, heads * tokens, padded_vocabulary(shape)), scratch=True),
        Buffer("scratch_bt4c", wide, scratch=True),
        Buffer("scratch_btc", hidden, scratch=True),
    )


ATTENTION, CLASSIFIER = "attention_forward_cudnn", "fused_classifier_"


class Call(NamedTuple):
    """A kernel of forward for one sequence: shapes that it reads and writes, and how often it is called."""

    name: str  # one that ends with an underscore writes, and multiplies nothing
    copies: int
    operands: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...] = ()
    flops: int = 0


def kernels(shape: ModelShape, length: int, attention: str) -> tuple[Call, ...]:
    """The calls of gpt2_forward (train_gpt2.cu), whose products sum to `flops`.

    `attention` flash is cuDNN's; llm.c's own kernels write the scores, and read them for the softmax.
    """
    width, layers, heads = shape.hidden_size, shape.layers, shape.attention_heads
    row, wide = (length, width), (length, 4 * width)

    def product(name: str, count: int, inputs: int, outputs: int) -> Call:
        read = ((length, inputs), (length, outputs))
        return Call(name, count, read, ((outputs, inputs),), 2 * length * inputs * outputs)

    scores = 4 * length * length * width
    attended = (
        [Call(ATTENTION, layers, ((length, 3 * width), row), (), scores)]
        if attention == "flash"
        else [
            Call("permute_", layers, ((length, 3 * width),) * 2),
            Call("matmul_cublaslt", layers, (row, row, (heads, length, length)), (), scores // 2),
            Call("softmax_forward_", layers, ((heads, length, length),) * 2),
            Call("matmul_cublaslt", layers, (row, row, (heads, length, length)), (), scores // 2),
        ]
    )
    return (
        Call("encoder_forward_", 1, (row,), (row,)),
        Call("fused_residual_forward_", 2 * layers + 1, (row,) * 4),  # and the norm behind it
        product("matmul_forward_cublaslt", layers, width, 3 * width),
        *attended,
        product("matmul_forward_cublaslt", layers, width, width),
        product("matmul_forward_cublaslt", layers, width, 4 * width),
        Call("gelu_forward_", layers, (wide, wide)),
        product("matmul_forward_cublaslt", layers, 4 * width, width),
        product("matmul_forward_cublaslt", 1, width, padded_vocabulary(shape)),
        Call(CLASSIFIER, 1, ((length, padded_vocabulary(shape)),) * 2),
    )


def flops(shape: ModelShape, length: int) -> int:
    """Floating-point operations of forward for one sequence: matrix products and attention.

    Backward has twice as many. What is computed again has no product in it.
    """
    products = 12 * shape.layers * shape.hidden_size**2 + padded_vocabulary(shape) * shape.hidden_size
    return 2 * length * products + 4 * shape.layers * length * length * shape.hidden_size


class GPT2:
    """What llm.c can do; vramplan/engines/llmc/iteration.py adds up what it allocates."""

    iteration = "vramplan.engines.llmc.iteration:replay_llmc"
    shares_by_itself = True
    drops_out = False
    own_core = True
    ladder = ("none", "gelu", "gelu-norms")

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether it is a GPT-2 with its usual widths, whose head is the token table."""
        plain = shape.task == "lm" and shape.tied_embeddings and shape.intermediate_size == 4 * shape.hidden_size
        return plain and shape.attention_heads * shape.head_size == shape.hidden_size


FORWARD = GPT2
