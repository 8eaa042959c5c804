"""BOFT as PEFT 0.21 has it: what goes into a layer is turned by one matrix, which is made of rotations of blocks.

Its extension for CUDA, which PEFT compiles where it can, is left out: without it there is one factor, whatever is asked
for. Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer
from vramplan.replay.operators.adapters import eye
from vramplan.replay.operators.adapters import sub as sub_constant
from vramplan.replay.operators.cayley import block_diagonal, solve
from vramplan.replay.operators.changes import mm, sub
from vramplan.replay.operators.elementwise import add, mul, mul_scalar
from vramplan.replay.operators.products import linear, matmul
from vramplan.replay.operators.views import to, transpose, view
from vramplan.replay.techniques.adapter_target import Over, Target
from vramplan.replay.techniques.quantized import as_left
from vramplan.replay.tensors import FP32, Tensor


class BOFT(Over):
    """boft.Linear over a layer, or over what runs in place of a quantized one.

    The permutation of the inputs is a buffer of each layer, as large as its inputs squared, which stays in fp32.
    Source: peft 0.21.2, tuners/boft/layer.py, Linear.forward and BOFTLayer.update_layer; arXiv:2311.06243.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.block, self.inputs, self.outputs = target.adapter.rank, target.inputs, target.outputs
        blocks = target.inputs // self.block
        self.boft_R = target.parameter("boft_R", 1, blocks, self.block, self.block)
        self.boft_s = target.parameter("boft_s", target.outputs, 1)
        self.boft_P = target.tape.constant((1, self.inputs, self.inputs), FP32, False, "boft_P")
        self.places = (self.inputs**2 * FP32.itemsize,)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        previous, tape = x.dtype, x.tape
        biases = () if module.bias is None else (module.bias,)
        with Outer(x, own=(self.boft_R, self.boft_s, *biases)):
            rotation = eye(tape, self.inputs, previous)
            scale = tape.new("ones", (self.outputs, 1), previous, False)
            _turned = self.rotations()
            _blocks = block_diagonal(_turned)
            _places = to(self.boft_P, previous)
            _blocks = to(_blocks, previous)
            _blocks = view(_blocks, (1, *_blocks.shape))
            _batch = matmul(_blocks, transpose(_places, 1, 2))
            _batch = matmul(_places, _batch)
            _whole = view(_batch, _batch.shape[1:])
            rotation = mm(_whole, rotation)
            scale = mul(self.boft_s, scale)
            rotation = to(rotation, previous)
            _x = linear(x, rotation, transposed=True, patched=False)
            result = self.base(module, _x)
            bias = None if module.bias is None else as_left(module.bias, _x.dtype)
            if bias is not None:
                result = sub_constant(result, bias)
            result = mul(result, view(scale, (self.outputs,)))
            if bias is not None:
                result = add(result, bias)
            result = to(result, previous)
        return result

    def rotations(self) -> Tensor:
        """cayley_batch, of the blocks [n, r, r]."""
        blocks = view(self.boft_R, self.boft_R.shape[1:])
        _skew = mul_scalar(sub(blocks, transpose(blocks, 1, 2)))
        _identity = eye(_skew.tape, self.block, FP32)
        each = _identity.alias(_skew.shape, (0, self.block, 1), None)
        return to(solve(add(each, _skew), sub(each, _skew)), blocks.dtype)
