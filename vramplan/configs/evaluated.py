"""What an expression of a Python script is, by the text of the script alone. Nothing is executed.

Followed are names that are assigned a constant, here or in a module beside the script, parameters with defaults or
that one call gives, what a function with one `return` returns, fields of classes and of data classes, dictionaries,
files of YAML and JSON that the script reads and that stand beside it, the defaults of `argparse`, of environment
variables and of `X if TEST else Y`, and arithmetic. Whether the device knows bf16 is answered with yes. Anything else
is a `NotConstant`: known only when the script runs.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from vramplan.configs import data_files
from vramplan.configs.constructed import COMPARED, Beside
from vramplan.configs.forms import NotConstant
from vramplan.configs.noted_names import Function, NotedNames, name_of
from vramplan.configs.shell.numbers import CALCULATED, MAX_NUMBER
from vramplan.errors import InputError

DEPTH = 16  # names that stand for names; a circle ends here
ASKS_FOR_BF16 = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
YES = (*ASKS_FOR_BF16, "is_available")
"""Functions that ask for the device, which is a newer GPU."""

UNKNOWN = "**"
"""Among the keyword arguments of a call: a dictionary that only the run knows."""

CAPABILITY = "get_device_capability"  # compared with 8: Ampere or newer
PARSED = (
    *("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config"),
    *("parse_json_file", "parse_yaml_file", "parse_dict"),
)
PARSER = re.compile(r"(?i)pars|get_args")
"""In the name of a function that reads the command line."""

MODULE = "torch."
CAST: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list,
    "tuple": list,
    "sorted": sorted,
}
STARTERS = ("fire.Fire", "Fire")
"""What calls a function with the arguments of a command."""

OF_ITS_CLASSES = re.compile(r"HfArgumentParser|TrlParser|parse_args_into_dataclasses")
"""What a script calls that parses the command line for data classes: no options of a module beside it."""

"""Functions that call another with the arguments of the command line. Source: google/python-fire, fire/core.py."""

NAMESPACES = ("SimpleNamespace", "Namespace", "EasyDict", "AttrDict")
OF_NUMBERS: dict[str, Callable[..., Any]] = {"max": max, "min": min, "round": round, "abs": abs}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class ScriptNames(NotedNames):
    """The names of a script, and the values that its text says they have."""

    def __init__(self, text: str, file: str | None, beside: Beside = lambda name: None) -> None:
        """Raises InputError where the text is not Python. `beside`: a module that it imports, or a file it reads."""
        super().__init__(text, file)
        self.beside = beside
        self.modules: dict[str, ScriptNames | None] = {}
        self.changes: dict[str, Any] = {}  # of the settings of Hydra, by a command
        if not self.options and any(PARSER.search(name) and not OF_ITS_CLASSES.search(name) for name in self.called):
            self._options_beside()

    def _options_beside(self) -> None:
        """Take the options of `argparse` from the modules beside the script, where it has none of its own."""
        for module in dict.fromkeys(module for module, name in self.imported.values() if module and name):
            other = self._module(module)
            if other is not None:
                self.options |= other.options
                self.arguments |= other.arguments

    def is_left_out(self, node: ast.AST) -> bool:
        """Whether a node stands in a branch that is not taken, by a test that the text decides."""
        return any(bool(value) is not holds for value, holds in self.tests_of(node, self.value))

    def given(self, call: ast.Call) -> dict[str, ast.expr]:
        """The keyword arguments of a call, with those of a dictionary that it is handed: `Trainer(**words)`."""
        found: dict[str, ast.expr] = {}
        for word in call.keywords:
            if word.arg is not None:
                found[word.arg] = word.value
            else:
                found |= self._spread(word.value, call)
        return found

    def _spread(self, node: ast.expr, call: ast.Call) -> dict[str, ast.expr]:
        """The items of `**node` in a call, UNKNOWN among them where only the run knows them."""
        below = self._behind(node)
        found: dict[str, ast.expr] = {}
        if isinstance(below, ast.Call) and isinstance(below.func, ast.Attribute) and below.func.attr == "to_dict":
            made = self._behind(below.func.value)  # the arguments of one class handed on to another
            if isinstance(made, ast.Call):
                return self.given(made)
        copied = _copied(below)
        if isinstance(below, ast.Dict):
            for key, item in zip(below.keys, below.values, strict=True):
                found |= self._spread(item, call) if key is None else {}
                if isinstance(key, ast.Constant):
                    found[str(key.value)] = item
        elif copied is not None:
            found |= self._spread(copied, call)
        elif isinstance(below, ast.BinOp) and isinstance(below.op, ast.BitOr):
            found |= self._spread(below.left, call) | self._spread(below.right, call)
        elif isinstance(kept := self.value(node), Mapping):  # of a file
            found |= {
                str(key): ast.copy_location(ast.Constant(item), node)
                for key, item in kept.items()
                if not isinstance(item, NotConstant)
            }
        elif (handed := self._handed_on(below)) is not None:
            found |= self._spread(handed, call)
        elif (further := self._further(node)) is not None:
            found |= further
        elif not (isinstance(below, ast.Call) and name_of(below) == "dict"):
            found[UNKNOWN] = node
        if isinstance(below, ast.Call) and name_of(below) == "dict":
            found |= self.given(below)
        if isinstance(node, ast.Name):
            found |= self._updates(node, call) | self._items_put(node)
        return found

    def _updates(self, node: ast.Name, call: ast.Call) -> dict[str, ast.expr]:
        """What `words.update(...)` puts into a dictionary before a call, but for branches that are not taken."""
        found: dict[str, ast.expr] = {}
        for one in self.called.get(f"{node.id}.update", []):
            if self.owner.get(one) is self.owner.get(node) and one.lineno < call.lineno and not self.is_left_out(one):
                for item in one.args:
                    found |= self._spread(item, call)
                found |= self.given(one)
        return found

    def _further(self, node: ast.expr) -> dict[str, ast.expr] | None:
        """What `**words` of a function's own head holds: what its only call gives beyond the other parameters."""
        function = self.owner.get(node)
        words = function.args.kwarg if function is not None and isinstance(node, ast.Name) else None
        if function is None or words is None or not isinstance(node, ast.Name) or words.arg != node.id:
            return None
        calls = self.called.get(function.name, [])
        if not calls and any(name_of(one) in STARTERS for one in self.calls()):
            return {}  # the arguments of a command that the function has no name for are settings
        if len(calls) != 1 or any(word.arg is None for word in calls[0].keywords):
            return None
        heads = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        taken = {one.arg for one in heads}
        return {word.arg: word.value for word in calls[0].keywords if word.arg and word.arg not in taken}

    def items_of(self, node: ast.expr | None) -> dict[str, ast.expr]:
        """The items of a dictionary, with those of others within it: `{"a": 1, **({"b": 2} if TEST else {})}`."""
        below = self._behind(node)
        if isinstance(below, ast.IfExp):
            test = self.value(below.test)
            return self.items_of(below.orelse if test is False or test is None else below.body)
        if isinstance(below, ast.Call) and name_of(below) == "dict":
            return self.given(below)
        found: dict[str, ast.expr] = {}
        if isinstance(below, ast.Dict):
            for key, item in zip(below.keys, below.values, strict=True):
                found |= self.items_of(item) if key is None else {}
                if isinstance(key, ast.Constant):
                    found[str(key.value)] = item
        if isinstance(node, ast.Name):
            found |= self._items_put(node)
        return found

    def _items_put(self, node: ast.Name) -> dict[str, ast.expr]:
        """What a dictionary gets after it is made, `words["bf16"] = True`, but for branches that are not taken."""
        put = self.items.get((self.owner.get(node), node.id), {})
        taken = {key: [one for one in values if not self.is_left_out(one)] for key, values in put.items()}
        return {key: values[0] for key, values in taken.items() if values}

    def stands_for(self, name: str) -> list[str]:
        """The names in their libraries of what a name is imported as, or assigned; of the branches that are taken."""
        found = [inner for node, inner in self.aliases.get(name, []) if not self.is_left_out(node)]
        for (_, other), lines in self.assigned.items():
            if other == name:
                found += [ast.unparse(value) for _, value in lines if isinstance(value, ast.Name | ast.Attribute)]
        return list(dict.fromkeys(one.rpartition(".")[2] for one in found))

    def _handed_on(self, node: ast.expr | None) -> ast.expr | None:
        """The one dictionary that a function is called with, as `Trainer(**known_of(Trainer, words))` is."""
        arguments = [*node.args, *(word.value for word in node.keywords)] if isinstance(node, ast.Call) else []
        words = [one for one in arguments if isinstance(self._behind(one), ast.Dict)]
        return words[0] if len(words) == 1 else None

    def is_parsed(self, node: ast.expr | None) -> bool:
        """Whether a name stands for what a parser of the command line returns."""
        expression = self._behind(node)
        while isinstance(expression, ast.Subscript):
            expression = expression.value
        return isinstance(expression, ast.Call) and name_of(expression).rpartition(".")[2] in PARSED

    def behind(self, node: ast.expr | None) -> ast.expr | None:
        """What a name was assigned last before it; the expression itself where it is no name."""
        return self._behind(node)

    def assigned_to(self, node: ast.expr) -> ast.expr:
        """What a name was assigned last before it, and no further; the expression itself where it is no name."""
        return (self._last(node) or node) if isinstance(node, ast.Name) else node

    def is_none_before(self, node: ast.expr | None) -> bool:
        """Whether a name is assigned None too, as where a branch that is not taken leaves it."""
        key = (self.owner.get(node), node.id) if isinstance(node, ast.Name) else None
        lines = [] if key is None else self.assigned.get(key, [])
        return any(isinstance(value, ast.Constant) and value.value is None for _, value in lines)

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression, or a NotConstant."""
        try:
            return self._value(node, depth)
        except (_Unknown, TypeError, ValueError, ArithmeticError, LookupError, RecursionError):
            return NotConstant(ast.unparse(node))

    def _module(self, name: str) -> ScriptNames | None:
        """A module of the user's that the script imports; None where it is not there."""
        if name not in self.modules:
            self.modules[name] = None  # a circle of imports ends here
            found = self.beside(name) if name else None
            if found is not None:
                with contextlib.suppress(InputError):
                    self.modules[name] = ScriptNames(*found)
        return self.modules[name]

    def _behind(self, node: ast.expr | None) -> ast.expr | None:
        for _ in range(DEPTH):
            found: ast.expr | None = None
            if isinstance(node, ast.Name):
                found = self._last(node)
            elif isinstance(node, ast.Call) and name_of(node) in self.functions:
                found = _returned(self.functions[name_of(node)])
            elif isinstance(node, ast.DictComp):
                found = _sieved(node)
            if found is None:
                break
            node = found
        return node

    def _last(self, node: ast.Name) -> ast.expr | None:
        """The expression that a name was assigned last before the line of its use, in its function or in the module."""
        function = self.owner.get(node)
        for within in (function, self.owner.get(function) if function is not None else None, None):
            lines = self.assigned.get((within, node.id), [])
            line = getattr(node, "lineno", 0)
            before = [value for at, value in lines if at < line or within is not function]
            before = [value for value in before if not self.is_left_out(value)] or before
            of_parameter = within is not None and len(before) == len(self._defaults(within, lines))
            if of_parameter and within is not None and (given := self._given(within, node.id)) is not None:
                return given
            if before:
                return before[-1]
        return None

    @staticmethod
    def _defaults(function: Function, lines: list[tuple[int, ast.expr]]) -> list[ast.expr]:
        """What a name has by the head of a function alone."""
        return [value for at, value in lines if at == function.lineno]

    def _given(self, function: Function, name: str) -> ast.expr | None:
        """What the only call of a function in the script gives a parameter."""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        calls = self.called.get(function.name, [])
        if name not in (*names, *(one.arg for one in function.args.kwonlyargs)) or len(calls) != 1:
            return None
        for word in calls[0].keywords:
            if word.arg == name:
                return word.value
            if word.arg is None and self._is_parsed_mapping(word.value) and name in self.arguments:
                return self.arguments[name]
        place = names.index(name) if name in names else len(calls[0].args)
        return calls[0].args[place] if place < len(calls[0].args) else None

    def _is_parsed_mapping(self, node: ast.expr) -> bool:
        """Whether an expression is `vars` of what a parser of the command line returns."""
        made = self._behind(node)
        return isinstance(made, ast.Call) and name_of(made) == "vars" and self.is_parsed(next(iter(made.args), None))

    def _value(self, node: ast.expr, depth: int) -> Any:
        if depth > DEPTH:
            raise _Unknown
        again = depth + 1
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            found = self._last(node)
            module, name = self.imported.get(node.id, ("", None))
            if found is None and name is not None:
                return self._elsewhere(module, name, again)
            return self._value(_known(found), again)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, again)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self._value(item, again) for item in node.elts]
        if isinstance(node, ast.Dict):
            held: dict[Any, Any] = {}
            for key, item in zip(node.keys, node.values, strict=True):
                if key is None:  # {"a": 1, **others}
                    held |= self._value(item, again)
                else:
                    held[self._value(key, again)] = self.value(item, again)
            return held
        if isinstance(node, ast.Subscript):
            found = self._value(node.value, again)[self._value(node.slice, again)]
            return _decided(found)
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, again)
            return self._value(node.orelse if test is False or test is None else node.body, again)
        if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
            return UNARY[type(node.op)](self._value(node.operand, again))
        if isinstance(node, ast.BinOp) and type(node.op) in CALCULATED:
            value = CALCULATED[type(node.op)](self._value(node.left, again), self._value(node.right, again))
            if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
                raise _Unknown
            return value
        if isinstance(node, ast.BoolOp):
            return self._either(node, again)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if CAPABILITY in ast.unparse(node):
                return True
            return COMPARED[type(node.ops[0])](self._value(node.left, again), self._value(node.comparators[0], again))
        if isinstance(node, ast.JoinedStr):
            return "".join(str(self._value(_part(item), again)) for item in node.values)
        if isinstance(node, ast.Call):
            return self._called(node, again)
        raise _Unknown

    def _either(self, node: ast.BoolOp, depth: int) -> Any:
        value: Any = None
        for item in node.values:
            value = self._value(item, depth)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _annotated(self, node: ast.expr, depth: int = 0) -> dict[str, ast.expr] | None:
        """The fields of the class that a parameter is said to be of: `def train(config: Config)`."""
        if depth > DEPTH:
            return None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            kept = self.attributes.get(node.attr)
            return None if kept is None else self._annotated(kept, depth + 1)
        if isinstance(node, ast.BoolOp):  # config or Config()
            return next((found for one in node.values if (found := self._annotated(one, depth + 1))), None)
        function = self.owner.get(node)
        if not isinstance(node, ast.Name) or function is None:
            return None
        told = (one for one in (*function.args.args, *function.args.kwonlyargs) if one.arg == node.id)
        text = ast.unparse(annotation) if (annotation := next((one.annotation for one in told), None)) else ""
        for name in re.findall(r"\w+", text):
            if name in self.fields:
                return self.fields[name]
            module, other = self.imported.get(name, ("", None))
            beside = self._module(module) if other is not None else None
            if beside is not None and other in beside.fields:
                return beside.fields[other]
        return None

    def _elsewhere(self, module: str, name: str, depth: int) -> Any:
        other = self._module(module)
        lines = [] if other is None else other.assigned.get((None, name), [])
        if other is None or not lines:
            raise _Unknown
        return other._value(lines[-1][1], depth)

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:
        whole = ast.unparse(node)
        module, inner = self.imported.get(node.value.id, ("", "")) if isinstance(node.value, ast.Name) else ("", "")
        if module and inner is None and module != "torch":
            return self._elsewhere(module, node.attr, depth)
        if whole.startswith(MODULE) and whole.count(".") == 1:
            return node.attr  # torch.bfloat16
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self._value(_known(self.attributes.get(node.attr)), depth)
        made = self._behind(node.value)
        name = name_of(made) if isinstance(made, ast.Call) else ast.unparse(node.value)
        annotated = self._annotated(node.value)
        if annotated is not None and node.attr in annotated:
            return self._value(annotated[node.attr], depth)
        if isinstance(made, ast.Call) and name.rpartition(".")[2] in NAMESPACES and made.keywords:
            return self._value(_known(next((one.value for one in made.keywords if one.arg == node.attr), None)), depth)
        if name in self.fields and node.attr in self.fields[name]:
            given = self.given(made) if isinstance(made, ast.Call) else {}
            return self._value(given.get(node.attr, self.fields[name][node.attr]), depth)
        if self.is_parsed(node.value) or (isinstance(node.value, ast.Name) and self._last(node.value) is None):
            if node.attr in self.arguments:
                return self._value(self.arguments[node.attr], depth)
            of_classes = [fields[node.attr] for fields in self.fields.values() if node.attr in fields]
            if len(of_classes) == 1:
                return self._value(of_classes[0], depth)
        kept = self.value(node.value, depth)
        if isinstance(kept, Mapping):
            return _decided(kept[node.attr])
        raise _Unknown

    def _loaded(self, node: ast.expr, of_hydra: bool = False) -> Any:
        """What is in the file beside the script that an expression is, opens or reads."""
        path = data_files.place_in(node, self._behind, self.value)
        path = data_files.of_command(path, self.changes) if of_hydra else path
        found = self.beside(path) if path else None
        inside = None if found is None else data_files.content(*found)
        inside = data_files.composed(inside, self.changes) if of_hydra else inside
        if inside is None:
            raise _Unknown
        return inside

    def _called(self, node: ast.Call, depth: int) -> Any:
        name = name_of(node)
        short = name.rpartition(".")[2]
        if short in YES:
            return True
        if name in data_files.LOADERS and node.args:
            return self._loaded(node.args[0], of_hydra=name == data_files.OF_HYDRA)
        if name in data_files.WRAPPERS and len(node.args) == 1 and not node.keywords:
            return self._value(node.args[0], depth)
        if name in self.functions:
            return self._value(_known(_returned(self.functions[name])), depth)
        if name in CAST and len(node.args) == 1:
            return CAST[name](self._value(node.args[0], depth))
        if name in OF_NUMBERS and node.args and not node.keywords:
            numbers = [self._value(one, depth) for one in node.args]
            if all(isinstance(one, int | float) for one in numbers):
                return OF_NUMBERS[name](*numbers)
        if name == "dict" and not node.args:
            return {word.arg: self.value(word.value, depth) for word in node.keywords if word.arg}
        if name in ("os.environ.get", "os.getenv", "environ.get") and len(node.args) == 2:
            return self._value(node.args[1], depth)
        if short == "get" and isinstance(node.func, ast.Attribute) and 0 < len(node.args) < 3:
            of = self._value(node.func.value, depth)
            if isinstance(of, Mapping):
                key = self._value(node.args[0], depth)
                return _decided(of[key]) if key in of else self._value(node.args[1], depth)
        raise _Unknown


class _Unknown(Exception):
    """The text does not say it."""


def _known(node: ast.expr | None) -> ast.expr:
    if node is None:
        raise _Unknown
    return node


def _decided(value: Any) -> Any:
    if isinstance(value, NotConstant):
        raise _Unknown
    return value


def _returned(function: Function) -> ast.expr | None:
    """What a function returns, where it has one `return`."""
    found = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return found[0] if len(found) == 1 else None


def _sieved(node: ast.DictComp) -> ast.expr | None:
    """The dictionary of which a comprehension keeps items as they are: `{k: v for k, v in words.items() if TEST}`."""
    names = [one.id if isinstance(one, ast.Name) else None for one in (node.key, node.value)]
    first = node.generators[0]
    pair = [one.id for one in ast.walk(first.target) if isinstance(one, ast.Name)]
    call = first.iter
    if len(node.generators) > 1 or names != pair or not isinstance(call, ast.Call):
        return None
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "items" else None


def _part(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.FormattedValue) else node


def _copied(node: ast.expr | None) -> ast.expr | None:
    """The dictionary that another is a copy of: `dict(words)`, `words.copy()` and `deepcopy(words)`."""
    if not isinstance(node, ast.Call):
        return None
    name = name_of(node)
    if name in ("dict", "copy", "deepcopy", "copy.copy", "copy.deepcopy") and len(node.args) == 1:
        return node.args[0]
    return node.func.value if isinstance(node.func, ast.Attribute) and name.endswith(".copy") else None
