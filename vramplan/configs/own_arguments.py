"""The arguments that a Python script declares: fields of its data classes and options of `argparse`, with defaults.

The script that a command starts is parsed where it stands beside the command, never executed. An argument that it
declares is no slip, whatever it does.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from vramplan.configs.constructed import Beside
from vramplan.configs.evaluated import ScriptNames
from vramplan.configs.forms import NotConstant
from vramplan.configs.noted_names import name_of
from vramplan.errors import InputError
from vramplan.tuples import NamedTuple

TASK = "_task"
"""Among the arguments of a script: the trainer of TRL, or of its name, that it imports, where it is one alone."""

WRAPPING = "_wrapping"
"""Among the arguments of a script: the Wrapping by which there may be an adapter around its model."""


class Wrapping(NamedTuple):
    """What may put an adapter around a model: a function of a module beside the script, or a call behind a test.

    `by`: the arguments of the test; `idle`: whether their defaults leave the call out.
    """

    what: str
    by: tuple[str, ...] = ()
    idle: bool = False


OF_A_TASK = re.compile(r"(SFT|DPO|KTO|ORPO|CPO|Reward)Trainer")
OF_TRLS, OF_THE_TRAINER = "trl", "trainer"
OF_TRL = re.compile(r"(?!ModelConfig$)\w+Config|TrlParser")
"""What a script imports of TRL whose arguments are TRL's; those of its ModelConfig say nothing of a step."""

WITHIN_TRL = re.compile(r"\btrl\.((?!ModelConfig\b)\w+Config|TrlParser)\b")
PARSER = "ArgumentParser("
OWN_PARSER = re.compile(r"\w+ArgumentParser")
"""What scripts call a parser of their own, made from HfArgumentParser."""

PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")


def declared(text: str, file: str, beside: Beside) -> dict[str, Any]:
    """The arguments of a script by name: their defaults, None where there is none that its text says."""
    try:
        names = ScriptNames(text, file, beside)
    except InputError:
        return {}
    found: dict[str, Any] = {}
    beside_it = [names, *_modules(names, beside)]
    if any(_parses_classes(one) for one in beside_it) and not any(_data_classes(one) for one in beside_it):
        beside_it += [inner for one in beside_it[1:] for inner in _modules(one, beside)]  # a script that starts another
    if any(PARSER in ast.unparse(place.tree) for place in beside_it):
        for place in beside_it:
            found |= {name: None for name in _options(place) if name not in found}
            found |= {name: _default(place, value) for name, value in place.arguments.items()}
    for place in beside_it if any(_parses_classes(one) for one in beside_it) else ():
        for node in _data_classes(place):
            found |= {name: None for name in _annotated(node) if name not in found}
            found |= {name: _default(place, value) for name, value in place.fields.get(node.name, {}).items()}
    kinds = {OF_A_TASK.fullmatch(str(name)) for _, name in names.imported.values()}  # of TRL, or made after it
    tasks = {kind[1].lower() for kind in kinds if kind is not None}
    if len(tasks) == 1:
        found[TASK] = tasks.pop()
    decided = _decided(names, found)
    asked = [name for name in SWITCHES if name in found]
    if not asked and not any(name in found for name in OF_LORA.values()):
        wrapping = _wraps_behind(names, found) or _wraps_elsewhere(names, beside)
        found |= {} if wrapping is None else {WRAPPING: wrapping}
    if asked and _wraps_always(names):
        found |= dict.fromkeys(asked, True)
    elif "use_peft" not in decided or asked:
        decided = {key: value for key, value in decided.items() if key != "use_peft" and key not in OF_LORA.values()}
    decided |= {key: value for key, value in _of_its_adapter(names).items() if key not in decided and key not in found}
    return found | {key: value for key, value in decided.items() if found.get(key) is None or key in ALWAYS}


def _of_its_adapter(names: ScriptNames) -> dict[str, Any]:
    """What the one adapter of a script is like, whatever the script asks before it makes it."""
    made = [call for call in names.calls() if name_of(call).rpartition(".")[2] == "LoraConfig"]
    given = {word.arg: names.value(word.value) for word in made[0].keywords if word.arg} if len(made) == 1 else {}
    told = {OF_LORA[key]: value for key, value in given.items() if key in OF_LORA}
    found = {key: value for key, value in told.items() if isinstance(value, int | float)}
    targets = told.get(OF_LORA["target_modules"])
    if isinstance(targets, NotConstant) and _is_chosen(names, made[0]):
        return found | {OF_LORA["target_modules"]: "auto"}
    is_list = isinstance(targets, list) and all(isinstance(item, str) for item in targets)
    return found | ({OF_LORA["target_modules"]: ",".join(targets)} if is_list and targets else {})


def _is_chosen(names: ScriptNames, config: ast.Call) -> bool:
    """Whether a function of the script's, or one that it imports, says which modules an adapter is on."""
    node = names.behind(next(word.value for word in config.keywords if word.arg == "target_modules"))
    called = name_of(node) if isinstance(node, ast.Call) else ""
    return called in names.functions or called in names.imported


def _wraps_always(names: ScriptNames) -> bool:
    """Whether a script wraps its model with PEFT whatever its arguments say: no condition guards that on its way."""
    free = set(_unguarded(names.tree))

    def runs(call: ast.Call, behind: tuple[str, ...] = ()) -> bool:
        function = names.owner.get(call)
        if call not in free or (function is not None and function.name in behind):
            return False
        if function is None:
            return True
        calls = [one for one in names.calls() if name_of(one) == function.name]
        return bool(calls) and all(runs(one, (*behind, function.name)) for one in calls)

    return any(name_of(call).rpartition(".")[2] == "get_peft_model" and runs(call) for call in names.calls())


WRAPS = ("get_peft_model", "LoraConfig", "inject_adapter_in_model")


def _wraps_behind(names: ScriptNames, found: Mapping[str, Any]) -> Wrapping | None:
    """The call behind a test of the script's arguments that puts an adapter around its model; None without one."""
    for call in names.calls():
        if name_of(call).rpartition(".")[2] != "get_peft_model":
            continue
        parts = [part for test, _ in names.guards.get(call, ()) for part in ast.walk(test)]
        asked = {part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "") for part in parts}
        if by := tuple(sorted(asked & found.keys())):
            return Wrapping(f"{name_of(call)}, behind {' and '.join(by)},", by, names.is_left_out(call))
    return None


def _wraps_elsewhere(names: ScriptNames, beside: Beside) -> Wrapping | None:
    """The function of a module beside the script by which it may put an adapter around its model; None without one."""
    for call in names.calls():
        first, _, last = name_of(call).partition(".")
        module, name = names.imported.get(first, ("", None))
        if not module:
            continue
        for path in (module, f"{module}.{name}") if name else (module,):
            found = beside(path)
            function = None if found is None else _function_of(found, last or str(name))
            if function is not None and any(word in function for word in WRAPS):
                return Wrapping(f"{name_of(call)} of the script")
    return None


def _function_of(found: tuple[str, str], name: str) -> str | None:
    """The text of a function of a module; None where it has none of that name, or nothing that wraps a model."""
    if f"def {name}" not in found[0] or not any(word in found[0] for word in WRAPS):
        return None
    try:
        function = _module(*found).functions.get(name)
    except InputError:
        return None
    return None if function is None else ast.unparse(function)


@lru_cache(maxsize=16)
def _module(text: str, file: str) -> ScriptNames:
    """A module beside a script. Raises InputError where it is not Python."""
    return ScriptNames(text, file)


def _decided(names: ScriptNames, found: dict[str, Any]) -> dict[str, Any]:
    """What a script decides by calls that no condition guards: checkpoints, adapters, and how a model is loaded."""
    decided: dict[str, Any] = {}
    for call in _unguarded(names.tree):
        name = name_of(call)
        if name.endswith("get_peft_model"):
            decided["use_peft"] = True
        elif name.rpartition(".")[2] == "LoraConfig":
            told = {word.arg: names.value(word.value) for word in call.keywords if word.arg in OF_LORA}
            texts = {key: ",".join(value) if isinstance(value, list) else value for key, value in told.items()}
            decided |= {OF_LORA[key]: value for key, value in texts.items() if isinstance(value, str | int | float)}
        if name.endswith(".gradient_checkpointing_enable"):
            decided["gradient_checkpointing"] = True
        given = {word.arg: word.value for word in call.keywords}
        kind = given.get("torch_dtype", given.get("dtype"))
        if LOADS.search(name) and isinstance(kind, ast.Attribute) and "torch_dtype" not in found:
            decided.setdefault("torch_dtype", kind.attr)
    return decided


OF_LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
}
SWITCHES = ("use_peft", "use_lora", "lora_enable", "enable_lora", "peft_enable", "use_peft_lora", "lora")
"""Arguments with which scripts ask whether there is an adapter."""

ALWAYS = ("gradient_checkpointing", "use_peft")
LOADS = re.compile(r"(AutoModel\w*|For\w+|LMHeadModel)\.from_pretrained$")
"""How a call ends that loads a model."""


def _unguarded(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls of a script that are outside of conditions, but for `if __name__ == "__main__"`."""
    todo = [tree]
    while todo:
        node = todo.pop(0)
        is_guard = isinstance(node, ast.If | ast.IfExp) and "__name__" not in ast.unparse(node.test)
        if is_guard or isinstance(node, ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        todo += ast.iter_child_nodes(node)


def trainer_of(text: str, file: str, beside: Beside) -> str | None:
    """Whose arguments a script parses: `trl` for a configuration of TRL's, `trainer` for TrainingArguments.

    None where its text names neither.
    """
    try:
        names = ScriptNames(text, file, beside)
    except InputError:
        return None
    places = [names, *_modules(names, beside)]
    taken = {(module.split(".")[0], name) for place in places for module, name in place.imported.values() if name}
    if any(module == "trl" and OF_TRL.fullmatch(str(name)) for module, name in taken):
        return OF_TRLS
    plain = any("TrainingArguments" in ast.unparse(place.tree) for place in places)
    if any(WITHIN_TRL.search(ast.unparse(place.tree)) for place in places):
        return OF_TRLS
    return OF_THE_TRAINER if plain else None


def _data_classes(names: ScriptNames) -> list[ast.ClassDef]:
    nodes = (node for node in ast.walk(names.tree) if isinstance(node, ast.ClassDef))
    return [node for node in nodes if any("dataclass" in ast.unparse(one) for one in node.decorator_list)]


def _parses_classes(names: ScriptNames) -> bool:
    """Whether a script parses its command line into data classes."""
    made = (name_of(call).rpartition(".")[2] for call in names.calls())
    return any(name in PARSERS or OWN_PARSER.fullmatch(name) for name in made)


def _modules(names: ScriptNames, beside: Beside) -> Iterator[ScriptNames]:
    """The modules beside a script of which it takes something by its name, and those of a package that hands it on."""
    todo = [("", names)]
    seen: set[str] = set()
    while todo:
        package, place = todo.pop(0)
        for module in dict.fromkeys(module for module, name in place.imported.values() if module and name):
            found = beside(f"{package}.{module}") if package else beside(module)
            if found is None or found[1] in seen:
                continue
            seen.add(found[1])
            try:
                read = ScriptNames(*found)
            except InputError:
                continue
            yield read
            if os.path.basename(found[1]) == "__init__.py":
                todo.append((f"{package}.{module}".lstrip("."), read))


def _options(names: ScriptNames) -> Iterator[str]:
    """The options of `argparse`, also those without a default."""
    for call in names.calls():
        words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if name_of(call).endswith("add_argument") and words:
            name = next((word for word in words if word.startswith("--")), words[0])
            yield name.lstrip("-").replace("-", "_")


def _annotated(node: ast.ClassDef) -> Iterator[str]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id


def _default(names: ScriptNames, node: ast.expr) -> Any:
    value = names.value(node)
    return None if isinstance(value, NotConstant) else value
