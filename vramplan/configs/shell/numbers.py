"""Expressions of numbers, as `$((5 * 8))` has them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

CALCULATED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
MAX_NUMBER = 2**63


def arithmetic(text: str) -> int | float | None:
    """The value of an expression of numbers, `5 * 8`; None for anything else."""
    if len(text) > 200:
        return None
    try:
        return _number(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int | float:
    """A number made of numbers; `**` only of small ones. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        if node.value < MAX_NUMBER:  # 1e400 is infinite
            return node.value
        raise ValueError("larger than any number of a shell")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _number(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Pow) and abs(left) <= 1000 and 0 <= right <= 20:
            return left**right
        if type(node.op) in CALCULATED:
            value = CALCULATED[type(node.op)](left, right)
            if abs(value) < MAX_NUMBER:
                return value  # type: ignore[no-any-return]
    raise ValueError("not an expression of numbers")
