"""The settings of a script in Python as they are found, each at the place of the call that gives it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs import shell
from vramplan.configs.evaluated import UNKNOWN, ScriptNames
from vramplan.configs.forms import NotConstant
from vramplan.configs.noted_names import name_of
from vramplan.configs.programs.arguments import peft_kinds
from vramplan.configs.programs.arguments.asked import ASKED, WITHOUT_MEMORY
from vramplan.configs.programs.arguments.keys import TABLE
from vramplan.configs.written import Written
from vramplan.errors import Problem

UNSLOTH = re.compile(r"(\w+\.)*Fast\w*Model\.(?P<what>from_pretrained|get_peft_model)")

EVALUATED = ("per_device_eval_batch_size", "eval_strategy", "evaluation_strategy", "do_eval")  # which are only told

OPEN = (
    "model_name_or_path",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "max_seq_length",
)
"""Settings that are asked for where only the command line of the script says them."""

OF_WRAPPING = ("fsdp_config.transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap")

OF_SAMPLING = ("num_generations", "max_completion_length", "max_prompt_length")
"""Settings of trainers that sample, whose loss is asked for whatever they are."""

COUNTED = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Settings that are never null."""

DECISIVE = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "optim"),
    "max_grad_norm",
)
"""Arguments that are asked for where all of them are a dictionary that only the run knows."""


class ScriptPage:
    """The settings of a script, as they are found."""

    def __init__(self, names: ScriptNames, file: str) -> None:
        self.names, self.file = names, file
        self.written: dict[str, Written] = {}
        self.problems: list[Problem] = []

    def put(self, key: str, value: Any, node: ast.AST) -> None:
        """A setting, at its place; one that a step depends on must be known."""
        line = getattr(node, "lineno", None)
        if isinstance(value, Mapping):
            for name, item in value.items():
                self.put(f"{key}.{name}", item, node)
            return
        if value is None and key in COUNTED:  # of an option that has no default
            value = NotConstant(ast.unparse(node))
        if isinstance(value, NotConstant):
            if key in OPEN or key in ASKED or key in WITHOUT_MEMORY or key.startswith(peft_kinds.BELOW):
                value = f"{shell.OPEN}{value.text}{shell.CLOSE}"
            elif key in OF_SAMPLING:
                return
            elif key == "quantization_config":
                key, value = "load_in_4bit", f"{shell.OPEN}{value.text}{shell.CLOSE}"
            elif TABLE.class_of(key) in ("without_effect", "unmodelled") or key in OF_WRAPPING:
                value = value.text
            elif key in EVALUATED:
                return
            else:
                hint = f"{key} is to be a number or a word there"
                message = f"{value.text} is known only when the script runs"
                self.problems.append(Problem(message, key, hint, self.file, line))
                return
        if value is None:
            return
        self.written[key] = Written(value, self.file, line, getattr(node, "col_offset", 0) + 1)

    def usual(self, key: str, value: Any, node: ast.AST) -> None:
        """A setting that nothing else gave."""
        if key not in self.written:
            self.put(key, value, node)

    def of_call(self, call: ast.Call, words: Mapping[str, str] | None) -> None:
        """The keyword arguments of a call under their names among `words`; all of them without."""
        given = self.names.given(call)
        unknown = given.pop(UNKNOWN, None)
        for name, value in given.items():
            if words is None or name in words:
                self.put(name if words is None else words[name], self.names.value(value), value)
        if unknown is None:
            return
        left = DECISIVE if words is None else tuple(words[name] for name in ("r", "target_modules") if name in words)
        if words is None and not name_of(call).endswith("TrainingArguments"):
            left = (*left, "max_length")
        for key in left:
            self.usual(key, NotConstant(ast.unparse(unknown)), unknown)

    def calls(self) -> list[ast.Call]:
        """The calls of the script, but for those of branches that its arguments do not take."""
        return [call for call in self.names.calls() if not self.names.is_left_out(call)]


def unsloths(call: ast.Call, what: str) -> bool:
    """Whether a call is one of Unsloth's."""
    found = UNSLOTH.fullmatch(name_of(call))
    return found is not None and found["what"] == what
