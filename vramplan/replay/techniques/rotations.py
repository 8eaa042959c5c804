"""OFT as PEFT 0.21 has it: what goes into a layer is turned, block by block, by matrices that are orthogonal.

A trained vector is the upper half of a skew matrix for each block, of which Cayley's transform is a rotation, and that
is the first terms of a series (arXiv:2306.07280, arXiv:2506.19847).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer, Sharding
from vramplan.replay.operators.adapters import eye
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.skew import add_multiple, repeat, upper_halves
from vramplan.replay.operators.state_space import einsum
from vramplan.replay.operators.views import to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapter_target import Adapting
from vramplan.replay.tensors import INT64, DType, Tensor

TERMS = 5  # of the series: num_cayley_neumann_terms


def nearest_divisor(width: int, size: int) -> int:
    """The size of a block where the one that is asked for does not divide a layer's width.

    Source: peft 0.21.2, tuners/oft/layer.py, OFTLayer.adjust_oft_parameters.
    """
    if size >= width:
        return width
    higher = next(one for one in range(size, width + 1) if width % one == 0)
    lower = next(one for one in range(size, 0, -1) if width % one == 0)
    return lower if size - lower <= higher - size else higher


def elements_of(block: int) -> int:
    """Numbers above the diagonal of a block."""
    return block * (block - 1) // 2


def index_bytes(block: int) -> int:
    """Bytes of a buffer that has the row, or the column, of each of them."""
    return elements_of(block) * INT64.itemsize


class OFT:
    """oft.Linear over a layer, or over what runs in place of a quantized one.

    Source: peft 0.21.2, tuners/oft/layer.py, Linear.forward and OFTRotationModule.
    """

    def __init__(self, tape: Tape, name: str, inputs: int, block: int, dtype: DType, base: Adapting | None) -> None:
        self.block, self.base = nearest_divisor(inputs, block), base
        self.blocks = inputs // self.block
        self.places = (index_bytes(self.block),) * 2  # of the numbers of a block: the rows and the columns
        self.weight = tape.parameter(f"{name}.oft_R.weight", (self.blocks, elements_of(self.block)), dtype)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        dtype = x.dtype
        with Outer(x, own=(self.weight,)):
            x = to(x, self.weight.dtype)
            x = self.rotated(x)
            result = module.base(to(x, dtype)) if self.base is None else self.base(module, to(x, dtype))
            result = to(result, dtype)
        return result

    def rotated(self, x: Tensor) -> Tensor:
        """The module of the vectors, which may be a unit by itself where devices share the weights."""
        wrapped = x.tape.role(Sharding).wrapped
        if wrapped is not None:
            return wrapped(self.weight, lambda weight: self.turned(x, weight))
        return self.turned(x, self.weight)

    def turned(self, x: Tensor, weight: Tensor) -> Tensor:
        """OFTRotationModule.forward."""
        dtype, lead = x.dtype, x.shape[:-1]
        rotation = self.rotation(weight)
        names = "abdefg"[: len(lead)]
        _blocks = view(x, (*lead, self.blocks, self.block))
        _turned = einsum(f"{names}rk,rkc->{names}rc", _blocks, rotation)
        _whole = view(_turned, x.shape)
        return to(_whole, dtype)

    def rotation(self, weight: Tensor) -> Tensor:
        """_cayley_batch: the powers of the skew matrices are summed up to the fourth."""
        shape = (self.blocks, self.block, self.block)
        matrix = upper_halves(weight, shape)
        _skew = sub(matrix, transpose(matrix, -2, -1))
        del matrix
        result = repeat(eye(_skew.tape, self.block, _skew.dtype), self.blocks)
        result = add_multiple(result, _skew)
        _squared = matmul(_skew, _skew)
        result = add_multiple(result, _squared)
        power = _squared
        for _ in range(3, TERMS - 1):
            power = matmul(power, _skew)
            result = add_multiple(result, power)
        power = matmul(power, _skew)
        return add_multiple(result, power, once=True)
