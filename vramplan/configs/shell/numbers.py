"""Expressions of numbers, as `$((5 * 8))` has them."""

from __future__ import annotations

import ast
import operator
import re
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
COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
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


def condition(text: str) -> bool | None:
    """Whether an expression of numbers holds, `2 > 1 && 4`, as `((...))` asks; None for anything else."""
    if len(text) > 200:
        return None
    spelled = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    try:
        return _holds(ast.parse(spelled.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _holds(node: ast.expr) -> bool:
    """Whether a condition holds. Raises ValueError for anything but comparisons of numbers."""
    if isinstance(node, ast.BoolOp):
        parts = [_holds(part) for part in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _holds(node.operand)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        return COMPARED[type(node.ops[0])](_number(node.left), _number(node.comparators[0]))
    return _number(node) != 0


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
