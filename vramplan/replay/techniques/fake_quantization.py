"""Quantization-aware training: linear layers whose weights and inputs are rounded in forward, as torchao has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Observer, Outer, Rounding
from vramplan.replay.operators.fake_blocks import mx_linear, nvfp4_linear
from vramplan.replay.operators.fake_groups import float8, int4_of_mslk, int4_of_mslk_fp8
from vramplan.replay.operators.fake_integers import fake_quantize, fake_quantize_for_tinygemm
from vramplan.replay.operators.products import linear
from vramplan.replay.precision import Precision
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, INT32, DType, Parameter, Shape, Tensor
from vramplan.values.job import FakeQuantization

BY_GROUPS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "int4-mslk": int4_of_mslk,
    "int4-mslk-fp8": int4_of_mslk_fp8,
    "fp8": lambda weight, _: float8(weight),
}
BY_BLOCKS: dict[str, Callable[[Tensor, Parameter, Parameter | None], Tensor]] = {
    "mxfp4": mx_linear,
    "nvfp4": nvfp4_linear,
}
"""Formats in which a layer multiplies: input and weight are rounded by one function, which keeps what it multiplies."""

TINYGEMM = "int4-tinygemm"
ALONE = 2  # references to an object that nobody else holds
INPUT, WEIGHT, TABLE = "input", "weight", "table"
KEPT_BYTES = 4  # of a scale, in fp32, and of a zero point


class RoundsInForward(Technique, Observer):
    """torchao's `quantize_(model, QATConfig(...))` before training."""

    replaces_layers = True

    def __init__(self, setup: Setup, tape: Tape, precision: Precision) -> None:
        super().__init__(setup, tape, precision)
        assert setup.qat is not None
        self.qat: FakeQuantization = setup.qat
        self.kept: dict[tuple[int, str], tuple[int, int, int]] = {}  # by the weight, and what of it is rounded
        self.latest: dict[tuple[int, str], Tensor] = {}  # scales that fake quantizers keep

    def before_model(self) -> None:
        """Layers are converted as they are made."""
        self.tape.observe(self)
        role = Rounding()
        role.operands = self.operands
        if not self.qat.adapted_only:
            role.head = self._product
        if self.qat.embedding:
            role.table = self._table
        self.tape.enlist(Rounding, role)

    def made_linear(self, layer: Linear) -> None:
        """Convert one; Conv1D is no linear layer of PyTorch."""
        if layer.transposed or (self.qat.adapted_only and layer.adapter is None):
            return
        if layer.weight.shape[1] % (self.qat.group_size or 1) == 0:
            layer.converted = self._linear

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """Scales and zero points, which fake quantizers keep until they run again."""
        return [StandingState("buffers", fixed, each, copies) for fixed, each, copies in self.kept.values()]

    def annotate(self, record: Record) -> None:
        """The tape lets go of who knows it."""
        self.tape.dismiss(Rounding)
        self.latest.clear()

    def operands(self, weight: Parameter, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is multiplied in the place of an input and a weight."""
        _x = self._rounded_input(weight, x)
        return _x, self._rounded_weight(weight)

    def _linear(self, layer: Linear, x: Tensor) -> Tensor:
        return self._product(x, layer.weight, layer.bias)

    def _product(self, x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
        """A layer is a module of several operators, which round before they multiply."""
        by_blocks = BY_BLOCKS.get(self.qat.weights)
        with Outer(x, own=(weight,) if bias is None else (weight, bias)):
            if by_blocks is not None:
                return by_blocks(x, weight, bias)
            x, _weight = self.operands(weight, x)
            return linear(x, _weight, bias)

    def _table(self, table: Parameter) -> Tensor:
        return self._rounded_weight(table, TABLE)

    def _rounded_input(self, weight: Parameter, x: Tensor) -> Tensor:
        if self.qat.activations is None:
            return x
        if self.qat.activations == "fp8":
            return float8(x)
        shape = (*x.shape[:-1], 1)
        keep = self._keeping(weight, INPUT, shape, x)
        return fake_quantize(x, shape, self._zero_points, keep, symmetric=False)

    def _rounded_weight(self, weight: Parameter, what: str = WEIGHT) -> Tensor:
        rows, columns = weight.shape
        group = self.qat.group_size or columns
        if self.qat.weights in BY_GROUPS:
            return BY_GROUPS[self.qat.weights](weight, group)
        shape = (rows, columns // (self.qat.group_size or columns))
        keep = self._keeping(weight, what, shape, weight)
        if self.qat.weights == TINYGEMM:
            return fake_quantize_for_tinygemm(weight, shape, keep)
        return fake_quantize(weight, shape, self._zero_points, keep, symmetric=True)

    @property
    def _zero_points(self) -> DType:
        return FP32 if self.qat.zero_points == "fp32" else INT32

    def _keeping(self, weight: Parameter, what: str, shape: Shape, x: Tensor) -> Callable[[Tensor], None]:
        """What is told of the new scales of a fake quantizer, which keeps scales and zero points of this shape."""
        width = weight.dtype.itemsize if self.qat.weights == TINYGEMM and what != INPUT else KEPT_BYTES
        size, key, batch = prod(shape) * width, (id(weight), what), self.tape.batch
        fixed, each = (0, size // batch) if x.batched else (size, 0)
        self.kept[key] = (fixed, each, 2 * weight.copies)

        def keep(scale: Tensor) -> None:
            old = self.latest.pop(key, None)
            if old is not None and getrefcount(old) > ALONE:  # a layer ran again before its backward, which needs them
                old.storage = self.tape.allocate("_to_copy", prod(old.shape) * width, old.batched, None)
            self.latest[key] = scale

        return keep
