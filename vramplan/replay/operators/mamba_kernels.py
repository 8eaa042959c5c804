"""The kernels of mamba-ssm and causal-conv1d for a block with a state space, which are one function for autograd.

What it saves and allocates was read in its source, and never traced: mamba-ssm 2.2 and 2.3,
mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn, and the files of its kernels beside it.
B is the micro-batch, S the sequence, C chunks of c tokens, H heads of P elements, N of the state, G groups.
"""

from __future__ import annotations

from math import ceil

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import FP32, DType, Parameter, Shape, Tensor, dense_like
from vramplan.tuples import NamedTuple
from vramplan.values.model import StateSpace

BLOCK = 32  # rows of a chunk, the least that a kernel sums apart


class Weights(NamedTuple):
    """What the function computes with beside the projected states."""

    conv: Tensor
    conv_bias: Parameter | None
    dt_bias: Parameter
    decay: Tensor
    skip: Parameter
    norm: Parameter | None
    out: Parameter | None  # None: whoever calls it projects what comes out
    out_bias: Parameter | None


class KernelShapes(NamedTuple):
    """The shapes of what the kernels hand to each other."""

    tape: Tape
    space: StateSpace
    batch: int
    length: int
    dtype: DType

    def new(self, operator: str, shape: Shape, dtype: DType | None = None) -> Tensor:
        """One of them, without gradients."""
        return self.tape.new(operator, shape, dtype or self.dtype, True)

    @property
    def chunks(self) -> int:
        """How many there are."""
        return ceil(self.length / self.space.chunk)

    @property
    def wide(self) -> Shape:
        """What goes into the states and comes out of them."""
        return (self.batch, self.length, self.space.values)

    @property
    def steps(self) -> Shape:
        """A number for each token and head, in chunks."""
        return (self.batch, self.space.heads, self.chunks, self.space.chunk)

    @property
    def states(self) -> Shape:
        """A state for each chunk and head."""
        return (self.batch, self.chunks, self.space.heads, self.space.head_size, self.space.state_size)

    @property
    def scores(self) -> Shape:
        """Every token of a chunk against every other, for each group."""
        return (self.batch, self.chunks, self.space.groups, self.space.chunk, self.space.chunk)

    @property
    def written(self) -> Shape:
        """What writes into the states, or reads from them."""
        return (self.batch, self.length, self.space.groups, self.space.state_size)

    @property
    def work(self) -> int:
        """Floating-point operations of the scan."""
        space, rows = self.space, self.batch * self.length
        within = space.chunk * (space.groups * space.state_size + space.values)
        return 2 * rows * (within + 2 * space.values * space.state_size)


def split_conv1d_scan(projected: Tensor, weights: Weights, space: StateSpace) -> Tensor:
    """`mamba_split_conv1d_scan_combined`: the convolution, the scan, the gated norm and the last projection.

    Autocast casts the weight of the projection inside.
    Saves `projected`: the convolution and the scan are computed again from it.
    Saves `scanned`: what came out of the states, before gate and norm.
    Saves `decay`: of each head.
    Saves `rstd`: of each row and group in fp32, where there is a norm.
    Saves `out_weight`: that of the last projection, as it was multiplied.
    Without that projection what comes out is handed on, gated or normed.
    Backward: the convolution and the states again; then gradients of the states, of each operand of the scan in fp32,
    and of the weights, all of them whatever is trained.
    Source: mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn; ssd_chunk_scan.py, ssd_chunk_state.py,
    ssd_state_passing.py, ssd_bmm.py, layernorm_gated.py.
    """
    tape = projected.tape
    batch, length, _ = projected.shape
    sizes = KernelShapes(tape, space, batch, length, projected.dtype)
    inputs = (projected, *weights)
    autocast, hidden = tape.autocast, 0 if weights.out is None else weights.out.shape[0]
    has_norm, shapes = weights.norm is not None, [None if one is None else (one.shape, one.dtype) for one in weights]
    work = 2 * batch * length * hidden * space.values + sizes.work
    layout = None if projected.strides is None else dense_like(projected.shape, projected.strides)
    whole = projected.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        grad.tape.work(2 * work + sizes.work)
        return _backward(grad, sizes._replace(tape=grad.tape), (whole, layout), shapes, has_norm=has_norm)

    node = tape.record("MambaSplitConv1dScanCombinedFn", inputs, backward)
    tape.work(work)
    scanned, rstd, normed = _forward(sizes, has_norm=has_norm)
    decay = weights.decay
    if weights.out is None:
        tape.save(node, *[one for one in (projected, scanned, decay, rstd) if one is not None])
        return normed.alias(normed.shape, normed.strides, node)
    out_weight: Tensor = weights.out
    if autocast is not None and weights.out.dtype is FP32:
        out_weight = tape.new("to", weights.out.shape, autocast, False)
    out = tape.new("linear", (batch, length, hidden), autocast or projected.dtype, True, None, node)
    del normed
    saves = [one for one in (projected, scanned, decay, rstd, out_weight) if one is not None]
    tape.save(node, *saves)
    return out


def _forward(sizes: KernelShapes, *, has_norm: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """What came out of the states, the factors of the norm, and what is projected."""
    space = sizes.space
    _conv = sizes.new("causal_conv1d_fwd", (sizes.batch, sizes.length, space.channels))
    _decays, _steps, _passed, _final, scanned, gated = _scanned(sizes, gates=not has_norm)
    if not has_norm:
        assert gated is not None
        return scanned, None, gated
    normed = sizes.new("layer_norm_fwd", sizes.wide)
    rstd = sizes.new("layer_norm_fwd", (space.groups * sizes.batch * sizes.length,), FP32)
    return scanned, rstd, normed


def _scanned(sizes: KernelShapes, *, gates: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """_mamba_chunk_scan_combined_fwd."""
    decays, steps = sizes.new("chunk_cumsum", sizes.steps, FP32), sizes.new("chunk_cumsum", sizes.steps, FP32)
    states = sizes.new("chunk_state", sizes.states, FP32)
    passed = sizes.new("state_passing", sizes.states)
    final = sizes.new("state_passing", (sizes.batch, *sizes.states[2:]), FP32)
    del states
    _scores = sizes.new("bmm_chunk", sizes.scores, FP32)
    out = sizes.new("chunk_scan", sizes.wide)
    gated = sizes.new("chunk_scan", sizes.wide) if gates else None
    return decays, steps, passed, final, out, gated


def _backward(
    grad: Tensor,
    sizes: KernelShapes,
    projected: tuple[Shape, Shape | None],
    weights: list[tuple[Shape, DType] | None],
    *,
    has_norm: bool,
) -> Grads:
    """MambaSplitConv1dScanCombinedFn.backward."""
    tape, space = sizes.tape, sizes.space
    whole, layout = projected
    projects = weights[Weights._fields.index("out")] is not None
    _recomputed = sizes.new("empty", sizes.wide) if projects else None
    _conv = sizes.new("causal_conv1d_fwd", (sizes.batch, sizes.length, space.channels))
    result = tape.new("empty_like", whole, sizes.dtype, True, layout)
    _of_conv = sizes.new("empty_like", (sizes.batch, sizes.length, space.channels))
    _of_projection = sizes.new("linear", sizes.wide) if projects else None
    _of_norm = sizes.new("layer_norm_bwd", sizes.wide) if has_norm else None
    _of_scan(sizes, gates=not has_norm)
    found = [
        None if one is None else tape.new("MambaSplitConv1dScanCombinedFn", one[0], one[1], False) for one in weights
    ]
    return (result, *found)


def _of_scan(sizes: KernelShapes, *, gates: bool) -> None:
    """_mamba_chunk_scan_combined_bwd, whose results lie in what it is given."""
    space = sizes.space
    _steps_in = sizes.new("clone", (sizes.batch, sizes.length, space.heads))
    _decays, _steps = sizes.new("chunk_cumsum", sizes.steps, FP32), sizes.new("chunk_cumsum", sizes.steps, FP32)
    _scores = sizes.new("bmm_chunk", sizes.scores, FP32)
    first = sizes.new("chunk_state", sizes.states, FP32)
    states = sizes.new("state_passing", sizes.states, FP32)
    _final = sizes.new("state_passing", (sizes.batch, *sizes.states[2:]), FP32)
    del first
    _of_gate = sizes.new("chunk_scan_bwd_dz", sizes.wide) if gates else None
    of_states = sizes.new("chunk_scan_bwd_dstates", sizes.states, FP32)
    _passed = sizes.new("state_passing_bwd", sizes.states)
    _converted = sizes.new("state_passing_bwd", sizes.states)
    del states, of_states
    _of_skip = sizes.new("chunk_scan_chunk_state_bwd_dx", (ceil(space.chunk / BLOCK), *sizes.states[:3]), FP32)
    _of_steps = sizes.new("chunk_scan_chunk_state_bwd_dx", sizes.steps, FP32)
    _of_writing = sizes.new("chunk_state_bwd_db", sizes.written, FP32)
    _of_next = sizes.new("chunk_state_bwd_db", sizes.steps, FP32)
    _of_reading = sizes.new("chunk_scan_bwd_dC", sizes.written, FP32)
    _of_previous = sizes.new("chunk_scan_bwd_dC", sizes.steps, FP32)
    _of_scores = sizes.new("chunk_scan_bwd_dcb", sizes.scores, FP32)
    _of_decays = sizes.new("chunk_scan_bwd_ddAcs_stable", (ceil(space.chunk / BLOCK), *sizes.steps), FP32)
