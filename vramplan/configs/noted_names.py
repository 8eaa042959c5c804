"""What the text of a Python script says of its names: assignments, parameters, fields of classes and options."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from vramplan.catalog import scalars
from vramplan.configs import data_files
from vramplan.configs.forms import NotConstant, python_tree

Function = ast.FunctionDef | ast.AsyncFunctionDef


class NotedNames:
    """The names of a script, each with the expressions that it stands for."""

    def __init__(self, text: str, file: str | None) -> None:
        """Raises InputError where the text is not Python."""
        self.tree = python_tree(text, file)
        self.imported: dict[str, tuple[str, str | None]] = {}
        self.aliases: dict[str, list[tuple[ast.AST, str]]] = {}
        """Of names that are imported: the statements, and what they import."""
        self.functions: dict[str, Function] = {}
        self.called: dict[str, list[ast.Call]] = {}
        self.owner: dict[ast.AST, Function | None] = {}
        self.guards: dict[ast.AST, tuple[tuple[ast.expr, bool], ...]] = {}
        """Of what stands in branches: their tests, and whether each has to hold."""
        self._asked: set[ast.expr] = set()
        self._own(self.tree, None)
        self.assigned: dict[tuple[Function | None, str], list[tuple[int, ast.expr]]] = {}
        self.items: dict[tuple[Function | None, str], dict[str, list[ast.expr]]] = {}
        self.attributes: dict[str, ast.expr] = {}
        self.fields: dict[str, dict[str, ast.expr]] = {}
        self.arguments: dict[str, ast.expr] = {}
        self.options: dict[str, tuple[str, ast.Call]] = {}
        for node in ast.walk(self.tree):
            self._note(node)

    def calls(self) -> Iterator[ast.Call]:
        """Every call, in the order of the text."""
        yield from self._calls

    @cached_property
    def _calls(self) -> list[ast.Call]:
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def is_mentioned(self, function: Function | None) -> bool:
        """Whether the text has the name of a function beside its head, without which the script does not call it."""
        return function is None or function.name in self._mentioned

    @cached_property
    def _mentioned(self) -> frozenset[str | None]:
        """The names and the attributes of the text."""
        found = ast.walk(self.tree)
        return frozenset(one.id if isinstance(one, ast.Name) else getattr(one, "attr", None) for one in found)

    def tests_of(self, node: ast.AST, value: Callable[[ast.expr], Any]) -> Iterator[tuple[Any, bool]]:
        """What the tests around a node are, as far as the text decides them, each with whether it has to hold."""
        for test, holds in self.guards.get(node, ()):
            if test in self._asked:  # which needs the node itself
                continue
            self._asked.add(test)
            found = value(test)
            self._asked.discard(test)
            if not isinstance(found, NotConstant):
                yield found, holds

    def depends(self, node: ast.AST, value: Callable[[ast.expr], Any]) -> ast.expr | None:
        """The test around a node that hangs on a setting which the text does not say; None where none does.

        A function without arguments asks for the machine or for a library, and is taken to find it.
        """
        for test, _ in self.guards.get(node, ()):
            asks = any(isinstance(one, ast.Call) and not one.args and not one.keywords for one in ast.walk(test))
            if not asks and "__name__" not in ast.unparse(test) and isinstance(value(test), NotConstant):
                return test
        return None

    def _own(self, node: ast.AST, function: Function | None) -> None:
        todo: list[tuple[ast.AST, Function | None, tuple[tuple[ast.expr, bool], ...]]] = [(node, function, ())]
        while todo:
            now, within, guards = todo.pop()
            self.owner[now] = within
            if guards:
                self.guards[now] = guards
            inner = now if isinstance(now, ast.FunctionDef | ast.AsyncFunctionDef) else within
            for name, field in ast.iter_fields(now):
                below = guards
                if isinstance(now, ast.If | ast.IfExp) and name != "test":
                    below = (*guards, (now.test, name == "body"))
                for child in field if isinstance(field, list) else [field]:
                    if isinstance(child, ast.AST):
                        todo.append((child, inner, below))
                        below = (*below, *_left_before(child))

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, node.lineno)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, node.lineno)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.With):  # with open("own.yaml") as file
            for item in node.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, item.context_expr, node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions[node.name] = node
            given = [*node.args.posonlyargs, *node.args.args]
            pairs = [*zip(reversed(given), reversed(node.args.defaults), strict=False)]
            pairs += [(one, it) for one, it in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if it]
            pairs += filter(None, [data_files.of_hydra(node)])
            for one, default in pairs:
                self.assigned.setdefault((node, one.arg), []).append((node.lineno, default))
        elif isinstance(node, ast.ClassDef):
            kept = self.fields.setdefault(node.name, {})
            for line in node.body:
                field: ast.expr | None = line.target if isinstance(line, ast.AnnAssign) else None
                if isinstance(line, ast.Assign) and len(line.targets) == 1:
                    field = line.targets[0]
                value = getattr(line, "value", None)
                if isinstance(field, ast.Name) and value is not None:
                    kept[field.id] = _of_field(value)
        elif isinstance(node, ast.Call):
            self.called.setdefault(name_of(node), []).append(node)
            if name_of(node).endswith("add_argument"):
                self._argument(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                self.imported[alias.asname or alias.name] = (node.module or "", alias.name)
                self.aliases.setdefault(alias.asname or alias.name, []).append((node, alias.name))
            elif "." not in alias.name:
                self.imported[alias.asname or alias.name] = (alias.name, None)

    def _assign(self, target: ast.expr, value: ast.expr, line: int) -> None:
        if isinstance(target, ast.Name):
            self.assigned.setdefault((self.owner.get(target), target.id), []).append((line, value))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):  # words["bf16"] = True
            if isinstance(target.slice, ast.Constant):
                key = self.owner.get(target), target.value.id
                self.items.setdefault(key, {}).setdefault(str(target.slice.value), []).append(value)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            self.attributes[target.attr] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other, line)
        elif isinstance(target, ast.Tuple):  # model, tokenizer = FastLanguageModel.from_pretrained(...)
            for one in target.elts:
                self._assign(one, value, line)

    def _argument(self, call: ast.Call) -> None:
        words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        given = {word.arg: word.value for word in call.keywords if word.arg}
        name = next((word for word in words if word.startswith("--")), words[0] if words else "")
        dest = given.get("dest")
        key = dest.value if isinstance(dest, ast.Constant) else name.lstrip("-").replace("-", "_")
        action = given.get("action")
        self.options[name.lstrip("-").replace("-", "_").lower()] = str(key), call
        if "default" in given:
            self.arguments[str(key)] = given["default"]
        elif isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
            self.arguments[str(key)] = ast.Constant(action.value == "store_false")
        elif name.startswith("-") and "required" not in given:
            self.arguments[str(key)] = ast.Constant(None)


def _left_before(node: ast.AST) -> tuple[tuple[ast.expr, bool], ...]:
    """The test that has to fail for what stands behind a statement, as `if not args.use_lora: return model`."""
    ends = node.body[-1] if isinstance(node, ast.If) and not node.orelse else None
    leaves = isinstance(ends, ast.Return) and ends.value is not None
    return ((node.test, False),) if leaves and isinstance(node, ast.If) else ()


def _of_field(node: ast.expr) -> ast.expr:
    """The default of `field(default=1, metadata=...)` or of `default_factory=lambda: [...]`, else the value."""
    if isinstance(node, ast.Call) and name_of(node).rpartition(".")[2].lower() in ("field", "arg"):
        given = {word.arg: word.value for word in node.keywords}
        made = given.get("default_factory")
        return given.get("default", made.body if isinstance(made, ast.Lambda) else node)
    return node


def name_of(call: ast.Call) -> str:
    """The dotted name of what is called; empty for anything else."""
    return ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""


def as_parsed(value: Any, option: ast.Call) -> Any:
    """The value of an option as `argparse` or Fire hands it on: a number, a word, or what its action stores."""
    given = {word.arg: word.value for word in option.keywords}
    action = given.get("action")
    if value is True and isinstance(action, ast.Constant):
        return action.value != "store_false"
    kind = given.get("type")
    if not isinstance(value, str) or (isinstance(kind, ast.Name) and kind.id == "str"):
        return value
    try:
        return scalars.plain_value(value)
    except scalars.NotANumber:
        return value
