"""What functions of a Python file construct: configurations as settings, by following the text. Nothing is executed.

A function `def NAME(): ... return Trainer.Config(training=TrainingConfig(steps=10))` is followed statement by
statement: constants, calls of functions of the same file or of one beside it, `if` with a test that constants decide,
and assignments to attributes of what was constructed. Any other call stands for its name and its arguments.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vramplan.configs.forms import NotConstant, python_tree
from vramplan.configs.shell.numbers import CALCULATED
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem

DEPTH = 24  # calls within calls; a file that calls itself ends here
CLASS = "_class"
"""The key of a constructed object for the name of what was called."""

OWNER = "_of"
"""The key for the object whose method made it, as in `Bridge.of("org/name").provider()`."""

COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
Beside = Callable[[str], tuple[str, str] | None]
"""The text and the name of a file that is imported, by its dotted name; None where it is not there."""

TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "list": list}
"""Of `isinstance`, which is decided for constants."""

LARGEST = 1 << 62  # a product of constants above it is left as it is written


@dataclass
class Constructed:
    """What a call makes: the name of what is called, and its arguments as fields."""

    name: str
    line: int
    positional: list[Any] = field(default_factory=list)
    fields: dict[str, tuple[Any, int]] = field(default_factory=dict)
    """Each value with the line that gave it."""


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Module:
    """A Python file: its functions and its constants.

    `beside`: the text of a file that it imports from, by the dotted name; None where it is not there. `kept`: functions
    that are not followed, because a reader knows them by their names.
    """

    def __init__(
        self,
        text: str,
        file: str | None,
        beside: Beside = lambda name: None,
        kept: Iterable[str] = (),
    ) -> None:
        """Raises InputError where the text is not Python."""
        self.file = file
        self.beside, self.kept = beside, frozenset(kept)
        tree = python_tree(text, file)
        self._top = tree.body
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imported: dict[str, tuple[str, str]] = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        self.names: dict[str, Any] = {}
        self.handed: list[tuple[str, Constructed]] = []
        """Calls whose first argument is an object, and that object."""

        self._others: dict[str, Module | None] = {}
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                self._statement(statement, self.names, 0)

    def constructs(self, name: str) -> Constructed | None:
        """What the function of a name returns without arguments, if that is an object."""
        found = self._called(self.functions[name], Constructed(name, self.functions[name].lineno), {}, 0)
        return found if isinstance(found, Constructed) else None

    def runs(self) -> None:
        """Go through what the file does where it is started, `if __name__ == "__main__":` and the lines around it."""
        self.names["__name__"] = "__main__"
        for statement in self._top:
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self._statement(statement, self.names, 0)

    def _called(self, function: ast.FunctionDef, call: Constructed, given: dict[str, Any], depth: int) -> Any:
        arguments = [*function.args.posonlyargs, *function.args.args]
        names: dict[str, Any] = {one.arg: NotConstant(one.arg) for one in [*arguments, *function.args.kwonlyargs]}
        late = arguments[len(arguments) - len(function.args.defaults) :]
        defaults = [*zip(late, function.args.defaults, strict=True)]
        defaults += [
            (one, value)
            for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
            if value
        ]
        for argument, default in defaults:
            names[argument.arg] = self._value(default, {}, depth)
        names.update({argument.arg: value for argument, value in zip(arguments, call.positional, strict=False)})
        names.update({key: value for key, (value, _) in call.fields.items() if key in names})
        if function.args.kwarg is not None:
            names[function.args.kwarg.arg] = {
                key: value for key, (value, _) in call.fields.items() if key not in names and key != OWNER
            }
        try:
            self._body(function.body, {**given, **names}, depth)
        except _Returned as returned:
            return returned.value
        return None

    def _body(self, statements: Iterable[ast.stmt], names: dict[str, Any], depth: int) -> None:
        for statement in statements:
            self._statement(statement, names, depth)

    def _statement(self, statement: ast.stmt, names: dict[str, Any], depth: int) -> None:
        if isinstance(statement, ast.Return):
            raise _Returned(None if statement.value is None else self._value(statement.value, names, depth))
        if isinstance(statement, ast.Assign):
            value = self._value(statement.value, names, depth)
            for target in statement.targets:
                self._assign(target, value, names, depth)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, self._value(statement.value, names, depth), names, depth)
        elif isinstance(statement, ast.If):
            test = self._value(statement.test, names, depth)
            if not isinstance(test, NotConstant | Constructed):  # what a call returns is not known
                self._body(statement.body if test else statement.orelse, names, depth)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._value(statement.value, names, depth)
        elif isinstance(statement, ast.With):
            self._body(statement.body, names, depth)

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any], depth: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value, names, depth)
            if owner is not None:
                owner.fields[target.attr] = (value, target.lineno)
        elif isinstance(target, ast.Subscript):
            held, key = self._value(target.value, names, depth), self._value(target.slice, names, depth)
            if isinstance(held, dict) and isinstance(key, str | int):
                held[key] = value
        elif isinstance(target, ast.Tuple | ast.List):
            several = value if isinstance(value, list) else [value] * len(target.elts)
            for part, one in zip(target.elts, several, strict=False):
                # what a call returns several of: each stands for its name and its arguments
                copied = replace(one, fields=dict(one.fields)) if isinstance(one, Constructed) else one
                self._assign(part, copied, names, depth)

    def _owner(self, node: ast.expr, names: dict[str, Any], depth: int) -> Constructed | None:
        """The object of an attribute that is assigned to; one that a default would make is made here."""
        if isinstance(node, ast.Attribute):
            above = self._owner(node.value, names, depth)
            if above is None:
                return None
            found = above.fields.get(node.attr, (None, 0))[0]
            if not isinstance(found, Constructed):
                if found is not None:
                    return None
                found = Constructed("", node.lineno)
                above.fields[node.attr] = (found, node.lineno)
            return found
        found = self._value(node, names, depth)
        return found if isinstance(found, Constructed) else None

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, self.names.get(node.id, NotConstant(node.id)))
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, names, depth) for item in node.elts]
        if isinstance(node, ast.Dict):
            return self._mapping(node, names, depth)
        if isinstance(node, ast.Subscript):
            held, key = self._value(node.value, names, depth), self._value(node.slice, names, depth)
            known = isinstance(held, dict) and isinstance(key, str | int) and key in held
            return held[key] if known else NotConstant(ast.unparse(node))
        if isinstance(node, ast.Call):
            return self._call(node, names, depth)
        if isinstance(node, ast.Attribute):
            found = self._value(node.value, names, depth)
            if isinstance(found, Constructed) and node.attr in found.fields:
                return found.fields[node.attr][0]
            return NotConstant(ast.unparse(node))
        if isinstance(node, ast.IfExp):
            test = self._value(node.test, names, depth)
            if isinstance(test, NotConstant | Constructed):
                return NotConstant(ast.unparse(node))
            return self._value(node.body if test else node.orelse, names, depth)
        return self._calculated(node, names, depth)

    def _mapping(self, node: ast.Dict, names: Mapping[str, Any], depth: int) -> Any:
        """A dictionary of constants, with those that `**` puts into it; a `NotConstant` where one of them is none."""
        made: dict[Any, Any] = {}
        for name, item in zip(node.keys, node.values, strict=True):
            value = self._value(item, names, depth)
            key = None if name is None else self._value(name, names, depth)
            if name is None and isinstance(value, dict):
                made |= value
            elif isinstance(key, str | int):
                made[key] = value
            else:
                return NotConstant(ast.unparse(node))
        return made

    def _calculated(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """Operators; a `NotConstant` where an operand is none, or does not suit."""
        strange = NotConstant(ast.unparse(node))
        if isinstance(node, ast.BoolOp):
            # `a or b` is the first that decides; one that is not known leaves it open
            decides = isinstance(node.op, ast.Or)
            value: Any = strange
            for operand in node.values:
                value = self._value(operand, names, depth)
                if isinstance(value, NotConstant | Constructed):
                    return strange
                if bool(value) is decides:
                    return value
            return value
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, names, depth)
            if isinstance(value, NotConstant | Constructed):
                return strange
            if isinstance(node.op, ast.Not):
                return not value
            return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else strange
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._applied(COMPARED.get(type(node.ops[0])), node.left, node.comparators[0], names, depth, strange)
        if isinstance(node, ast.BinOp):
            value = self._applied(CALCULATED.get(type(node.op)), node.left, node.right, names, depth, strange)
            return strange if isinstance(value, int | float) and abs(value) > LARGEST else value
        return strange

    def _applied(
        self,
        function: Callable[[Any, Any], Any] | None,
        left: ast.expr,
        right: ast.expr,
        names: Mapping[str, Any],
        depth: int,
        strange: NotConstant,
    ) -> Any:
        one, other = self._value(left, names, depth), self._value(right, names, depth)
        unlike = isinstance(one, Constructed) or isinstance(other, Constructed)
        if unlike and function not in (COMPARED[ast.Is], COMPARED[ast.IsNot]):
            return strange
        if function is None or isinstance(one, NotConstant) or isinstance(other, NotConstant):
            return strange
        if isinstance(one, str) != isinstance(other, str) and function is operator.mul:
            return strange  # a text many times over
        try:
            return function(one, other)
        except (TypeError, ZeroDivisionError, OverflowError):
            return strange

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and not node.args and node.func.attr in ("lower", "upper"):
            text = self._value(node.func.value, names, depth)
            if isinstance(text, str):
                return text.lower() if node.func.attr == "lower" else text.upper()
        if isinstance(node.func, ast.Attribute) and not node.args and node.func.attr == "copy":
            copied = self._value(node.func.value, names, depth)
            if isinstance(copied, list):
                return list(copied)
        made = Constructed(name, node.lineno, [self._value(item, names, depth) for item in node.args])
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call | ast.Name):
            owner = self._value(node.func.value, names, depth)
            if isinstance(owner, dict) and node.func.attr == "get" and made.positional:
                return owner.get(*made.positional[:2]) if isinstance(made.positional[0], str) else made
            if isinstance(owner, Constructed):
                made.name = f"{owner.name}.{node.func.attr}"
                made.fields[OWNER] = (owner, node.lineno)
        if made.positional and isinstance(made.positional[0], Constructed):
            self.handed.append((name, made.positional[0]))
        if name == "isinstance" and len(made.positional) == 2 and str(made.positional[1]) in TYPES:
            given = made.positional[0]
            return isinstance(given, TYPES[str(made.positional[1])]) if not isinstance(given, NotConstant) else made
        for keyword in node.keywords:
            value, line = self._value(keyword.value, names, depth), keyword.value.lineno
            if keyword.arg is not None:
                made.fields[keyword.arg] = (value, line)
            elif isinstance(value, dict):
                made.fields.update({key: (item, line) for key, item in value.items() if isinstance(key, str)})
        if name.rpartition(".")[2] in ("cast", "deepcopy") and made.positional:
            return made.positional[-1]
        if name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and len(made.positional) == 2:
            return made.positional[1]  # what is taken where the caller sets nothing
        if (
            name in ("replace", "dataclasses.replace")
            and made.positional
            and isinstance(made.positional[0], Constructed)
        ):
            whole = made.positional[0]
            return replace(whole, fields={**whole.fields, **made.fields})
        if depth < DEPTH and name not in self.kept:
            if name in self.functions:
                return self._called(self.functions[name], made, {}, depth + 1)
            other = self._imported(name)
            if other is not None:
                module, function = other
                return module._called(module.functions[function], made, {}, depth + 1)
        return made

    def _imported(self, name: str) -> tuple[Module, str] | None:
        """The module beside this one that a function is imported from, and its name there."""
        owner, _, function = name.rpartition(".")
        if owner in self.imported:
            path = ".".join(self.imported[owner])
        elif name in self.imported:
            path, function = self.imported[name]
        else:
            return None
        if path not in self._others:
            found = self.beside(path)
            self._others[path] = None if found is None else Module(*found, beside=self.beside, kept=self.kept)
        other = self._others[path]
        return (other, function) if other is not None and function in other.functions else None


def chosen(module: Module, wanted: str | None, usual: Callable[[str], bool]) -> tuple[str, Constructed, list[str]]:
    """The configuration of a file: its function, what that constructs, and the names of the others.

    `wanted`: the name after the file, `FILE.py:NAME`. `usual`: whether a function is one to take without a name. Raises
    InputError where the name is none of the file's, or nothing is constructed.
    """
    names = [name for name in module.functions if not name.startswith("_")]
    if wanted is not None and wanted not in names:
        hint = "it has " + ", ".join(names)
        raise InputError([Problem(f"has no function {wanted}", file=module.file, hint=hint)])
    tried = [wanted] if wanted is not None else [name for name in names if usual(name)] or names
    for name in tried:
        made = module.constructs(name)
        if made is not None:
            return name, made, [other for other in names if other != name]
    raise InputError([Problem("constructs no configuration", file=module.file, hint="name one: FILE.py:FUNCTION")])


def settings(
    made: Constructed, file: str | None, shorter: Callable[[Constructed], Constructed] = lambda made: made
) -> dict[str, Written]:
    """A constructed object as dotted keys, each with its line; `_class` is the name of what was called.

    `shorter`: makes one object of an object that only wraps another, as `run.Config(Class, size=1)`.
    """
    found: dict[str, Written] = {}

    def add(value: Any, key: str, line: int) -> None:
        if isinstance(value, Constructed):
            value = shorter(value)
            found[f"{key}.{CLASS}" if key else CLASS] = Written(value.name, file, line)
            for number, item in enumerate(value.positional):
                add(item, f"{key}.{number}" if key else str(number), line)
            for name, (item, at) in value.fields.items():
                add(item, f"{key}.{name}" if key else name, at)
        elif isinstance(value, list):
            names = [shorter(item).name for item in value if isinstance(item, Constructed)]
            plain = [item for item in value if not isinstance(item, Constructed | NotConstant)]
            found[key] = Written(names or plain, file, line)
        elif isinstance(value, dict):
            found[key] = Written(NotConstant(str(value)), file, line)
        else:
            found[key] = Written(value, file, line)

    add(made, "", made.line)
    return found


def note_on(file: str, name: str, others: list[str]) -> str:
    """What was read of a file with several configurations, and how another is named."""
    if not others:
        return f"{name} is read"
    return f"{name} is read; others are named as {file}:NAME, of {', '.join(others)}"
