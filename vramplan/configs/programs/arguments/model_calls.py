"""The call that loads the model which a trainer of a script trains.

Source: huggingface/transformers 5.23.0, models/auto/modeling_auto.py and the classes of single models.
"""

from __future__ import annotations

import ast
import re

from vramplan.configs.noted_names import name_of
from vramplan.configs.programs.arguments import loaded_adapters
from vramplan.configs.programs.arguments.adapter_calls import AdapterPage
from vramplan.configs.programs.arguments.script_page import UNSLOTH
from vramplan.errors import InputError, Problem

MODEL = re.compile(
    r"(\w+\.)*(AutoModelForCausalLM|AutoModelForSeq2SeqLM|AutoModelForImageTextToText|AutoModelForVision2Seq"
    r"|AutoModelForMaskedLM|AutoModelForSpeechSeq2Seq|AutoModelForCTC|AutoLigerKernelForCausalLM"
    r"|AutoPeftModelForCausalLM|\w+ForCausalLM|\w+LMHeadModel|\w+ForConditionalGeneration|\w+ForMaskedLM|\w+ForCTC"
    r"|\w+MTModel)\.from_pretrained"
)
CLASSIFIERS = re.compile(r"(\w+\.)*\w+ForSequenceClassification\.from_pretrained")
HEADED = re.compile(r"(\w+\.)*\w+For(TokenClassification|QuestionAnswering|MultipleChoice)\.from_pretrained")

LIBRARIES = ("trl", "transformers", "unsloth", "optimum")
"""Whose trainers have the defaults that are known; one of the same name from elsewhere is somebody's own."""


class ModelPage(AdapterPage):
    """The settings of a script, with what loads its model."""

    def loading(self, node: ast.expr | None) -> ast.Call | None:
        """The call that loads the model of a trainer: what its name was assigned first, else the first of the file.

        None for a model of a class of the script's own, whatever that loads.
        """
        found = self._taken([call for call in self.names.calls() if self._loads(call)])
        if isinstance(node, ast.Call) and name_of(node) in self.names.fields:
            return None
        if any(self._is_of_own_class(call) for call in found):
            return None
        if isinstance(node, ast.Name):
            values = self.assigned_calls(node)
            loaded = [value for value in values if value in found or name_of(value).endswith(".from_pretrained")]
            loaded = self._latest(self._taken(loaded), node)
            inner = loaded_adapters.within(loaded[0]) if loaded else None
            if inner is not None and ast.unparse(inner) != node.id:
                return self.loading(inner)
            if loaded:
                return loaded[0] if loaded[0] in found else None
            if any(name_of(value).split(".")[0] in self.names.fields for value in values):
                return None
        return found[0] if found else None

    def _latest(self, calls: list[ast.Call], node: ast.Name) -> list[ast.Call]:
        """Of models that a name is given one after another, as cells of a notebook do, the one that it has by then.

        All of them where branches give it one, or none stands before.
        """
        owner = self.names.owner.get(node)
        body = self.names.tree.body if owner is None else owner.body
        given = [line.value for line in body if isinstance(line, ast.Assign) and line.lineno < node.lineno]
        before = [one for value in given if isinstance(value, ast.Call) and (one := _unwrapped(value)) in calls]
        in_branches = [one for one in calls if one.lineno < node.lineno and one not in before]
        return [before[-1]] if before and not in_branches else calls

    def assigned_calls(self, node: ast.Name) -> list[ast.Call]:
        """The calls that a name was assigned: in the function where it stands, else in any that has one of its name."""
        here = (self.names.owner.get(node), node.id)
        lines = {key: lines for key, lines in self.names.assigned.items() if key[1] == node.id}
        own = [_unwrapped(value) for _, value in lines.get(here, []) if isinstance(value, ast.Call)]
        if any(name_of(value).endswith(".from_pretrained") for value in own):
            return own
        return [_unwrapped(value) for found in lines.values() for _, value in found if isinstance(value, ast.Call)]

    def _is_of_own_class(self, call: ast.Call) -> bool:
        """Whether a model is of a class that a module beside the script has, whose blocks nobody knows."""
        module, name = self.names.imported.get(name_of(call).split(".")[0], ("", None))
        return bool(name) and module.split(".")[0] not in LIBRARIES and self.names.beside(module) is not None

    def _taken(self, calls: list[ast.Call]) -> list[ast.Call]:
        """Those of the branches that the text takes; all where it takes none."""
        return [call for call in calls if not self.names.is_left_out(call)] or calls

    def _loads(self, call: ast.Call) -> bool:
        name = name_of(call)
        if HEADED.fullmatch(name):
            message = f"{name.rpartition('.')[0]} has a head that is not read from a script"
            hint = "--model NAME with the other options, without the file"
            raise InputError([Problem(message, file=self.file, line=call.lineno, hint=hint)])
        found = UNSLOTH.fullmatch(name)
        return bool(MODEL.fullmatch(name) or CLASSIFIERS.fullmatch(name)) or (
            found is not None and found["what"] == "from_pretrained"
        )


PLACES = ("cuda", "to", "half", "bfloat16", "float", "train", "eval")
"""Methods of a model that return it."""


def _unwrapped(call: ast.Call) -> ast.Call:
    """The call that makes a model of which methods put it elsewhere, as `Own.from_pretrained(name).cuda()` does."""
    inner = call.func
    while isinstance(inner, ast.Attribute) and inner.attr in PLACES and isinstance(inner.value, ast.Call):
        call = inner.value
        inner = call.func
    return call
