"""Operator rules of butterfly adapters: a linear system of small matrices, and a block-diagonal matrix of them."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import INT32, Tensor


def solve(a: Tensor, b: Tensor) -> Tensor:
    """`torch.linalg.solve(a, b, left=False)` of square matrices [n, r, r]: new; what the library takes is left out.

    Saves `a`: the system is solved again, transposed, for the gradient of b.
    Saves `out`: the gradient of a is that of b times the result.
    Saves `factors`: of a, with which the transposed system is solved.
    Saves `pivots`: of the factors.
    Backward: the gradient of b is the solution of the transposed system; then its product with the result, and that
    negated.
    Source: tools/autograd/derivatives.yaml, _linalg_solve_ex; torch/csrc/autograd/FunctionsManual.cpp,
    linalg_solve_backward; aten/src/ATen/native/BatchLinearAlgebra.cpp, _linalg_solve_ex.
    """
    tape, shape = a.tape, a.shape
    count, rows, _ = shape
    work = 2 * count * rows**3

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(2 * work)
        of_b = tape.new("linalg_lu_solve", shape, grad.dtype, False)
        product = tape.new("bmm", shape, grad.dtype, False)
        of_a = tape.like("neg", product)
        del product
        return (of_a, of_b)

    node = tape.record("_linalg_solve_ex", (a, b), backward, (a,))
    tape.work(work)
    out = tape.new("_linalg_solve_ex", shape, b.dtype, False, None, node)
    factors = tape.new("_linalg_solve_ex", shape, b.dtype, False)
    pivots = tape.new("_linalg_solve_ex", (count, rows), INT32, False)
    _info = tape.new("_linalg_solve_ex", (count,), INT32, False)
    tape.save(node, out, factors, pivots)
    return out


def block_diagonal(x: Tensor) -> Tensor:
    """`torch.block_diag` of the matrices of a stack [n, r, r]: new, [n * r, n * r].

    Backward: the blocks of the gradient are views of it, and are stacked: 1 new.
    Source: torch/functional.py, block_diag; tools/autograd/derivatives.yaml, block_diag and unbind.
    """
    shape = x.shape
    size = shape[0] * shape[1]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("stack", shape, grad.dtype, False),)

    return x.tape.new("block_diag", (size, size), x.dtype, False, None, x.tape.record("block_diag", (x,), backward))
