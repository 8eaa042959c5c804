"""Adapters at the two ends of a language model: over the table of its tokens, and over its head.

Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, mul, mul_scalar
from vramplan.replay.operators.ends import look_up, rows_of_table
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.scattered import index_copy
from vramplan.replay.operators.views import to, transpose
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapter_target import Adapting, product
from vramplan.replay.tensors import FP32, INT64, DType, Parameter, Tensor


class LoraTable:
    """lora.Embedding: what the table gives, and the rows of a thin table times a thin matrix added to it.

    Where the module scales what it looks up, the second is scaled by itself.
    Source: peft 0.21.2, tuners/lora/layer.py, Embedding.forward.
    """

    def __init__(self, tape: Tape, name: str, table: Parameter, rank: int, dtype: DType) -> None:
        vocabulary, width = table.shape
        self.lora_embedding_A = tape.parameter(f"{name}.lora_embedding_A", (rank, vocabulary), dtype)
        self.lora_embedding_B = tape.parameter(f"{name}.lora_embedding_B", (width, rank), dtype)

    def __call__(self, ids: Tensor, table: Parameter, scale: Tensor | None) -> Tensor:
        with Outer(ids, own=(self.lora_embedding_A, self.lora_embedding_B)):
            result = rows_of_table(ids, table)
            if scale is not None:
                result = mul(result, scale)
            dtype = result.dtype
            _thin = transpose(self.lora_embedding_A, 0, 1)
            _after = look_up(ids, _thin)
            _output = mul_scalar(product(_after, self.lora_embedding_B))
            if scale is not None:
                _output = mul(_output, to(scale, _output.dtype))
            result = add(result, _output)
            return to(result, dtype)


class TrainedTokens:
    """TrainableTokensLayer: some rows of the table are trained, and put into a copy of the whole of it at each use.

    The copy needs a gradient, which is as large. A head that is tied to the table makes a copy of its own.
    Source: peft 0.21.2, tuners/trainable_tokens/layer.py, get_merged_weights and forward_adapters.
    """

    def __init__(self, tape: Tape, name: str, table: Parameter, tokens: int, dtype: DType) -> None:
        width, kept = table.shape[1], FP32 if dtype is FP32 else table.dtype
        self.delta = tape.parameter(f"{name}.trainable_tokens_delta", (tokens, width), dtype)
        self.places = (tokens * width * kept.itemsize,)  # the rows as they were

    def merged(self, table: Parameter) -> Tensor:
        """The table with the trained rows in it."""
        tape = table.tape
        _index = tape.new("to", (self.delta.shape[0],), INT64, False)
        return index_copy(table, _index, to(self.delta, table.dtype))

    def __call__(self, ids: Tensor, table: Parameter, scale: Tensor | None) -> Tensor:
        with Outer(ids, own=(self.delta,)):
            _whole = self.merged(table)
            result = look_up(ids, _whole)
            if scale is not None:
                result = mul(result, to(scale, result.dtype))
            return result

    def head(self, x: Tensor, table: Parameter, bias: Parameter | None) -> Tensor:
        """The product of a head that is tied to the table."""
        with Outer(x, own=(self.delta,)):
            _whole = self.merged(table)
            return linear(x, _whole)


class HeadLayer(Linear):
    """The head as the linear layer that an adapter is put on."""

    def __init__(self, weight: Parameter) -> None:
        self.weight, self.bias, self.transposed = weight, None, False
        self.converted = None

    def adapted(self, adapter: Adapting) -> Callable[[Tensor, Parameter, Parameter | None], Tensor]:
        """What runs in place of its product."""

        def run(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
            self.bias = bias
            return adapter(self, x)

        return run
