"""A linear layer that is the target of an adapter, and what the layers of a model share of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models.modules import Linear
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import clone
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BF16, FP16, FP32, DType, Parameter, Tensor
from vramplan.tuples import NamedTuple
from vramplan.values.job import Adapter

DTYPES = {"fp32": FP32, "fp16": FP16, "bf16": BF16}
FOUR_BITS = ("nf4", "nf4-double")

Adapting = Callable[[Linear, Tensor], Tensor]


def product(x: Tensor, weight: Tensor, *, transposed: bool = False, patched: bool = True) -> Tensor:
    """`F.linear`, or `@`, of what nobody else holds: it lives until the product is there."""
    return linear(x, weight, transposed=transposed, patched=patched)


class Target(NamedTuple):
    """One layer, with its adapter."""

    tape: Tape
    module: Linear
    name: str
    adapter: Adapter
    base: Adapting | None  # what runs in place of the layer, whose weight is quantized; None: it is not
    quantization: str | None  # of that weight
    compute: DType  # of products
    shared: dict[str, Any]  # what the layers of a model share

    @property
    def widths(self) -> tuple[int, int]:
        """Inputs and outputs."""
        first, second = self.module.weight.shape
        return (first, second) if self.module.transposed else (second, first)

    @property
    def inputs(self) -> int:
        """Width of what the layer is given."""
        return self.widths[0]

    @property
    def outputs(self) -> int:
        """Width of what it gives."""
        return self.widths[1]

    @property
    def dtype(self) -> DType:
        """Of the adapter's weights."""
        return DTYPES[self.adapter.dtype]

    @property
    def bits(self) -> str | None:
        """How the weight of this very layer is quantized."""
        return None if self.base is None else self.quantization

    def parameter(self, part: str, *shape: int, trainable: bool = True) -> Parameter:
        """A weight of the adapter."""
        return self.tape.parameter(f"{self.name}.{part}", shape, self.dtype, trainable=trainable)

    def frozen_dtype(self) -> DType:
        """Element type of the adapter's tensors that are no weights.

        They are moved to that of the layer beside them, that of the products where its weight has 4 bits, and brought
        to fp32 where the weights are.
        Source: peft 0.21.2, tuners/tuners_utils.py, _move_adapter_to_device_of_base_layer and cast_adapter_dtype.
        """
        if self.dtype is FP32 or self.bits == "int8":
            return FP32
        return self.compute if self.bits in FOUR_BITS else self.module.weight.dtype


class Over:
    """An adapter over one layer: what of the layer runs beside it."""

    places: tuple[int, ...] = ()  # bytes of its buffers

    def __init__(self, target: Target) -> None:
        self.run_instead = target.base
        self.clones = target.bits in FOUR_BITS

    def base(self, module: Linear, x: Tensor) -> Tensor:
        """The layer's own result."""
        return module.base(x) if self.run_instead is None else self.run_instead(module, x)

    def cloned_base(self, module: Linear, x: Tensor) -> Tensor:
        """The same; of a weight in 4 bits a copy of it.

        Source: peft 0.21.2, utils/quantization_utils.py, maybe_clone_base_result.
        """
        result = self.base(module, x)
        return clone(result) if self.clones else result
