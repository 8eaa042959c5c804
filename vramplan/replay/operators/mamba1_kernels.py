"""The kernels of mamba-ssm and causal-conv1d for state spaces of Mamba-1.

What they save and allocate was read in their source, and never traced: mamba-ssm 2.3,
mamba_ssm/ops/selective_scan_interface.py and csrc/selective_scan/selective_scan.cpp; causal-conv1d 1.6,
causal_conv1d/causal_conv1d_interface.py. B is the micro-batch, S the sequence, D channels, N of the state, R the rank
of the steps.
"""

from __future__ import annotations

from math import ceil

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import FP32, DType, Parameter, Tensor, dense_like
from vramplan.tuples import NamedTuple
from vramplan.values.model import StateSpace

CHUNK = 2048  # tokens, after each of which a state is kept


class InnerWeights(NamedTuple):
    """What the function of a whole mixer computes with beside the projected states."""

    conv: Tensor
    conv_bias: Parameter | None
    x_proj: Tensor
    step_proj: Tensor
    out: Tensor
    out_bias: Parameter | None
    decay: Tensor
    skip: Tensor
    step_bias: Tensor


def causal_conv1d(x: Tensor, weight: Tensor, bias: Parameter | None) -> Tensor:
    """`causal_conv1d_fn` of [B, D, S] with its activation: new, in the layout of x.

    Saves `x`: the gradient of the weight is made of it.
    Saves `weight`: that of x is made of it.
    Backward: the gradients of x, of the weight and of the bias, the latter two in fp32 first.
    Source: causal_conv1d/causal_conv1d_interface.py, CausalConv1dFn; causal_conv1d/cpp_functions.py.
    """
    tape = x.tape
    shape, strides, need = x.shape, None if x.strides is None else dense_like(x.shape, x.strides), weight.shape
    kind = weight.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_x = tape.new("causal_conv1d_bwd", shape, grad.dtype, grad.batched, strides)
        _wide = tape.new("causal_conv1d_bwd", need, FP32, False)
        of_weight = tape.new("causal_conv1d_bwd", need, kind, False)
        of_bias = None if bias is None else tape.new("causal_conv1d_bwd", need[:1], kind, False)
        return (of_x, of_weight, of_bias)

    node = tape.record("CausalConv1dFn", (x, weight, bias), backward, (x, weight))
    return tape.new("causal_conv1d_fwd", shape, x.dtype, x.batched, strides, node)


def _by_token(x: Tensor) -> Tensor:
    """`x.contiguous()` where the last dimension does not lie innermost, inside of a function of autograd."""
    if x.strides is None or x.strides[-1] == 1:
        return x
    return x.tape.new("clone", x.shape, x.dtype, x.batched)


def selective_scan_fn(
    hidden: Tensor, step: Tensor, decay: Tensor, both: tuple[Tensor, Tensor], skip: Tensor, gate: Tensor, bias: Tensor
) -> Tensor:
    """`selective_scan_fn` of [B, D, S] with a gate: new, gated.

    What does not lie token by token is copied first, and the copies are saved.
    Saves `hidden`: and `step`, `decay`, `write`, `read`, `skip`, `gate` and `bias`, from which backward scans again.
    Saves `states`: of each channel, after every 2,048 tokens, in fp32.
    Saves `out`: before the gate.
    Backward: the gradients of each of them, of what writes and reads in fp32 first.
    Source: mamba_ssm/ops/selective_scan_interface.py, SelectiveScanFn; csrc/selective_scan/selective_scan.cpp.
    """
    tape, (batch, width, length) = hidden.tape, hidden.shape
    state, dtype, batched = decay.shape[1], hidden.dtype, hidden.batched
    inputs = (hidden, step, decay, *both, skip, gate, bias)
    given = [(one.shape, one.dtype, one.batched) for one in inputs]
    wide = (batch, state, length)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _incoming = _by_token(grad)
        found = [tape.new("selective_scan_bwd", *one) for one in given]
        _fp32 = [tape.new("selective_scan_bwd", wide, FP32, batched) for _ in both] if dtype is not FP32 else []
        return tuple(found)

    node = tape.record("SelectiveScanFn", inputs, backward)
    copies = [_by_token(one) for one in inputs]
    out = tape.new("selective_scan_fwd", (batch, width, length), dtype, batched)
    states = tape.new("selective_scan_fwd", (batch, width, ceil(length / CHUNK), 2 * state), FP32, batched)
    gated = tape.new("selective_scan_fwd", (batch, width, length), dtype, batched, None, node)
    tape.work(8 * batch * width * length * state)
    tape.save(node, *copies, states, out)
    return gated


def mamba_inner_fn(projected: Tensor, weights: InnerWeights, space: StateSpace) -> Tensor:
    """`mamba_inner_fn` of [B, 2 D, S]: convolution, projections, scan and the last projection; new, [B, S, H].

    Autocast casts the weights of the projections inside.
    Saves `projected`: a copy token by token, from which the convolution and the steps are made again.
    Saves `x_dbl`: what the second projection gave, and beside it what writes into the states and reads from them.
    Saves `out`: before the gate, and the states after every 2,048 tokens.
    Saves `weights`: all of them, as they were multiplied.
    Backward: the convolution, the steps and the gated result again, then gradients of all weights and of the states.
    Source: mamba_ssm/ops/selective_scan_interface.py, MambaInnerFn with checkpoint_lvl 1.
    """
    tape, (batch, whole, length) = projected.tape, projected.shape
    sizes = _Inner(tape, batch, length, space, tape.autocast or projected.dtype)
    inputs = (projected, *weights)
    shapes = [None if one is None else (one.shape, one.dtype) for one in weights]
    kind, need_copy = projected.dtype, projected.strides is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        own = sizes._replace(tape=grad.tape)
        result = own.tape.new("empty_like", (batch, whole, length), kind, True)
        own.again(grad)
        found = [None if one is None else own.tape.new("MambaInnerFn", one[0], one[1], False) for one in shapes]
        return (result, *found)

    node = tape.record("MambaInnerFn", inputs, backward)
    copy = tape.new("clone", projected.shape, kind, True) if need_copy else projected
    casts = [sizes.cast(one) for one in (weights.x_proj, weights.step_proj, weights.out)]
    _conv = sizes.wide("causal_conv1d_fwd")
    rows = sizes.wide("clone")
    x_dbl = sizes.rows("linear")
    del rows
    _steps = sizes.wide("matmul")
    write, read = sizes.state("clone"), sizes.state("clone")
    out, states, gated = sizes.wide("selective_scan_fwd"), sizes.kept(), sizes.wide("selective_scan_fwd")
    _rows = sizes.wide("clone")
    result = tape.new("linear", (batch, length, weights.out.shape[0]), sizes.dtype, True, None, node)
    del gated
    hidden = weights.out.shape[0]
    tape.work(2 * batch * length * space.values * (hidden + 2 * (space.step_rank or 0) + 6 * space.state_size))
    plain = [one for one in (weights.conv, weights.decay, weights.skip, weights.step_bias) if one is not None]
    tape.save(node, copy, x_dbl, *casts, *plain, write, read, states, out)
    return result


class _Inner(NamedTuple):
    """The shapes of what the function makes."""

    tape: Tape
    batch: int
    length: int
    space: StateSpace
    dtype: DType

    def wide(self, operator: str) -> Tensor:
        """A number for each token and channel."""
        return self.tape.new(operator, (self.batch, self.space.values, self.length), self.dtype, True)

    def rows(self, operator: str) -> Tensor:
        """What the second projection gives."""
        width = (self.space.step_rank or 0) + 2 * self.space.state_size
        return self.tape.new(operator, (self.batch, self.length, width), self.dtype, True)

    def state(self, operator: str, dtype: DType | None = None) -> Tensor:
        """What writes into the states, or reads from them."""
        shape = (self.batch, self.space.state_size, self.length)
        return self.tape.new(operator, shape, dtype or self.dtype, True)

    def kept(self) -> Tensor:
        """States after every so many tokens."""
        shape = (self.batch, self.space.values, ceil(self.length / CHUNK), 2 * self.space.state_size)
        return self.tape.new("selective_scan_fwd", shape, FP32, True)

    def cast(self, weight: Tensor) -> Tensor:
        """A weight as it is multiplied."""
        if weight.dtype is self.dtype:
            return weight
        return self.tape.new("to", weight.shape, self.dtype, False)

    def again(self, grad: Tensor) -> None:
        """What backward makes on its way, of which nothing stays."""
        _conv, _steps = self.wide("causal_conv1d_fwd"), self.wide("matmul")
        _incoming = self.tape.new("clone", grad.shape, grad.dtype, True)
        _of_out = self.wide("matmul")
        _of_conv, _of_steps = self.wide("selective_scan_bwd"), self.wide("selective_scan_bwd")
        _of_both = [self.state("selective_scan_bwd", FP32) for _ in range(2)]
        _gated = self.wide("selective_scan_bwd")
        _of_rows = self.rows("empty_like")
        _copies = [self.wide("clone") for _ in range(2)]
