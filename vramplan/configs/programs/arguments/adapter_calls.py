"""The adapters that a script in Python makes, wraps a model with, or loads.

Source: huggingface/peft 0.21.2, tuners/lora/config.py; unslothai/unsloth, models/llama.py (`get_peft_model`).
"""

from __future__ import annotations

import ast
import re

from vramplan.configs.forms import NotConstant
from vramplan.configs.noted_names import name_of
from vramplan.configs.programs.arguments import loaded_adapters, peft_kinds
from vramplan.configs.programs.arguments.keys import LORA
from vramplan.configs.programs.arguments.script_page import ScriptPage, unsloths
from vramplan.errors import Problem

OTHER_ADAPTERS = re.compile(r"(\w+\.)*(Prompt\w*|Prefix\w*|IA3|AdaLora|LoHa|LoKr|OFT|VeRA?|PTuning)Config")

OWN_ADAPTERS = re.compile(
    r"(?!.*(state|param|weight|path|dir|name|callback|optim|merge|sav|load|layer|count|info|request|template))"
    r"(\w+\.)*(apply|add|attach|inject|wrap|set_?up|create|build|make|enable|get|prepare)_\w*(lora|peft)\w*"
)
"""What functions are called that make an adapter, in modules of somebody's own."""

OF_A_COPY = re.compile(r"(\w+\.)*Peft\w*\.from_pretrained_\w+")
"""What a copy of PEFT has, and PEFT itself has not."""

WRAPS = (
    *("get_peft_model", "PeftModel", "PeftModelForCausalLM", "PeftModelForSeq2SeqLM"),
    "PeftModelForSequenceClassification",
)
"""What puts an adapter of PEFT around a model: its function, and its classes."""

PEFT = "peft"

KNOWN = f"those of LoraConfig, {', '.join(peft_kinds.BY_NAME)} are"

WORDS = "embed_tokens"
UNSLOTHS = {"lora_r": 16, "lora_alpha": 16, "lora_dropout": 0.0}

UNSLOTHS_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class AdapterPage(ScriptPage):
    """The settings of a script, with those of its adapter."""

    def adapter(self, trainer: ast.Call) -> None:
        """The adapter that a trainer trains."""
        calls = self.calls()
        other = next((call for call in calls if self._is_other_adapter(call, calls)), None)
        word = None if other is None else peft_kinds.BY_NAME.get(name_of(other).rpartition(".")[2])
        if other is not None and word is not None:
            self.put(peft_kinds.KIND, word, other)
            self.of_call(other, {name: peft_kinds.BELOW + name for name in peft_kinds.taken(word)})
            return
        if other is not None:
            message, hint = f"an adapter of {name_of(other)} is not read from a script", KNOWN
            self.problems.append(Problem(message, file=self.file, line=other.lineno, hint=hint))
            return
        wrapped = next((call for call in calls if unsloths(call, "get_peft_model")), None)
        if wrapped is not None:
            self.put("use_peft", True, wrapped)
            self.of_call(wrapped, LORA)
            for key, value in UNSLOTHS.items():
                self.usual(key, value, wrapped)
            self.usual("lora_target_modules", list(UNSLOTHS_TARGETS), wrapped)
            self._table(wrapped)
            how = next((word.value for word in wrapped.keywords if word.arg == "use_gradient_checkpointing"), None)
            word = "unsloth" if how is None else self.names.value(how)
            self.put("gradient_checkpointing", word in (True, "unsloth"), wrapped)
            if word == "unsloth":
                self.put("gradient_checkpointing_kwargs.offload", True, wrapped)
            return
        given = self.names.given(trainer)
        wraps = next((call for call in calls if name_of(call).rpartition(".")[2] in WRAPS), None)
        used = "peft_config" in given or wraps is not None
        config = next((call for call in calls if name_of(call).rpartition(".")[2] == "LoraConfig"), None)
        loaded = None if config is not None and used else loaded_adapters.trained(self.names, calls, trainer)
        if loaded is not None:
            self._asked_adapter(loaded)
            return
        if config is None:
            self._own_adapter(calls, given.get("peft_config"), wraps)
        if config is None or not used:
            return
        self.put("use_peft", True, config)
        self._shaped(config)
        every = {word.arg: word.value for word in config.keywords}.get("target_modules")
        if every is not None and self._is_every_linear(every):
            self.put("lora_target_modules", ["all-linear"], every)
            self.of_call(config, {key: name for key, name in LORA.items() if key != "target_modules"})
        else:
            self.of_call(config, LORA)

    def _table(self, wrapped: ast.Call) -> None:
        """Unsloth trains the table of the tokens as a whole where it is among the targets; the head has an adapter."""
        targets, saved = self.written["lora_target_modules"].value, self.written.get("lora_modules_to_save")
        if isinstance(targets, list) and WORDS in targets:
            before = saved.value if saved is not None and isinstance(saved.value, list) else []
            self.put("lora_target_modules", [one for one in targets if one != WORDS], wrapped)
            self.put("lora_modules_to_save", list(dict.fromkeys([*before, WORDS])), wrapped)

    def _is_other_adapter(self, call: ast.Call, calls: list[ast.Call]) -> bool:
        """Whether a configuration is of another adapter of PEFT, and not a part of a `LoraConfig`, as EVA's is."""
        name = name_of(call)
        if OTHER_ADAPTERS.fullmatch(name):
            return True
        if not name.endswith("Config") or name in ("LoraConfig", "PeftConfig") or not self._is_of_peft(call, (PEFT,)):
            return False
        whole = [one for one in calls if name_of(one).rpartition(".")[2] == "LoraConfig"]
        return all(self.names.behind(word.value) is not call for one in whole for word in one.keywords)

    def _own_adapter(self, calls: list[ast.Call], config: ast.expr | None, wraps: ast.Call | None) -> None:
        """An adapter that a function of another module makes: what it is like is asked for.

        So is one whose configuration is not constructed in the script. `wraps`: PEFT's function around a model.
        """
        given = self.names.behind(config)
        makes = [call for call in calls if OWN_ADAPTERS.fullmatch(name_of(call)) and not self._is_of_peft(call)]
        makes += [call for call in calls if OF_A_COPY.fullmatch(name_of(call))]
        if isinstance(given, ast.Call) and not self._is_of_peft(given):
            makes.insert(0, given)
        if wraps is not None and self._is_of_peft(wraps, (PEFT,)):
            makes.append(wraps)
        if not makes:
            return
        self.of_call(makes[0], LORA)
        self._asked_adapter(makes[0])

    def _asked_adapter(self, call: ast.Call) -> None:
        """An adapter of which the script does not say what it is like."""
        self.put("use_peft", True, call)
        for key in ("lora_r", "lora_target_modules"):
            self.usual(key, NotConstant(ast.unparse(call)), call)

    def _shaped(self, config: ast.Call) -> None:
        """What a configuration says of single layers, which no key of a job does."""
        for name, node in self.names.given(config).items():
            value = self.names.value(node) if name in loaded_adapters.SHAPING else None
            if value not in (None, False, "", [], {}):
                told = value if isinstance(value, bool | int | str | list) else ast.unparse(node)
                self.put(loaded_adapters.SHAPING[name], told, node)

    def _is_of_peft(self, call: ast.Call, libraries: tuple[str, ...] = (PEFT, "trl", "unsloth")) -> bool:
        """Whether a function is of a library: TRL's `get_peft_config` makes none unless its arguments ask for one."""
        return self.names.imported.get(name_of(call), ("", None))[0].split(".")[0] in libraries

    def _is_every_linear(self, node: ast.expr) -> bool:
        """Whether a function of the script finds the linear layers but for the head, as that of qlora.py does."""
        found = self.names.assigned_to(node)
        function = self.names.functions.get(name_of(found)) if isinstance(found, ast.Call) else None
        text = ast.unparse(function) if function is not None else ""
        return all(word in text for word in ("named_modules", "Linear", "lm_head"))
