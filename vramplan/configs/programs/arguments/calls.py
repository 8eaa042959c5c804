"""Scripts in Python that construct a Trainer: its arguments, the model, the adapter and the quantization, as settings.

The script is parsed, never executed (`vramplan/configs/evaluated.py`). What its text leaves to its command line or to a
file is open, or a problem where a step depends on it.

Source: huggingface/transformers 5.23.0, trainer.py and modeling_utils.py (`from_pretrained`, whose type is the
checkpoint's where none is named); huggingface/trl 1.16.0, trl/trainer/sft_trainer.py (`TrainingArguments` becomes an
`SFTConfig`); huggingface/peft 0.18, tuners/lora/config.py and utils/other.py (`prepare_model_for_kbit_training`);
unslothai/unsloth, models/loader.py and models/llama.py (`from_pretrained`, `get_peft_model`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs import shell
from vramplan.configs.constructed import Beside
from vramplan.configs.evaluated import UNKNOWN, ScriptNames
from vramplan.configs.forms import NotConstant
from vramplan.configs.noted_names import name_of
from vramplan.configs.programs.arguments import loaded_adapters, peft_kinds
from vramplan.configs.programs.arguments.asked import ASKED, WITHOUT_MEMORY
from vramplan.configs.programs.arguments.keys import BITS, CLASSIFIER, KBIT, LORA, OLD_KBIT, TABLE
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem
from vramplan.tuples import NamedTuple

TRAINERS = {
    **dict.fromkeys(("SFTTrainer", "UnslothTrainer"), "sft"),
    **{f"{name.upper()}Trainer": name for name in ("dpo", "kto", "orpo", "cpo", "grpo", "rloo", "ppo", "gkd")},
    "RewardTrainer": "reward",
    "OnlineDPOTrainer": "online_dpo",
}
"""Trainers of TRL, by what a file of arguments calls what they train."""

PLAIN = ("Trainer", "Seq2SeqTrainer")
OF_TRL, OF_TRAINER = "_trainer", "trainer"
"""How the programs are named that stand for such scripts: `sft_trainer`, and `trainer` for the plain one."""

ARGUMENTS = re.compile(
    r"(\w+\.)*(\w*TrainingArguments|(SFT|DPO|KTO|ORPO|CPO|GRPO|RLOO|PPO|GKD|Reward|OnlineDPO)Config)"
)
UNSLOTH = re.compile(r"(\w+\.)*Fast\w*Model\.(?P<what>from_pretrained|get_peft_model)")
MODEL = re.compile(
    r"(\w+\.)*(AutoModelForCausalLM|AutoModelForSeq2SeqLM|AutoModelForImageTextToText|AutoModelForVision2Seq"
    r"|AutoModelForMaskedLM|AutoLigerKernelForCausalLM|AutoPeftModelForCausalLM|\w+ForCausalLM|\w+LMHeadModel"
    r"|\w+ForConditionalGeneration|\w+ForMaskedLM)\.from_pretrained"
)
CLASSIFIERS = re.compile(r"(\w+\.)*\w+ForSequenceClassification\.from_pretrained")
HEADED = re.compile(r"(\w+\.)*\w+For(TokenClassification|QuestionAnswering|MultipleChoice)\.from_pretrained")
OTHER_ADAPTERS = re.compile(r"(\w+\.)*(Prompt\w*|Prefix\w*|IA3|AdaLora|LoHa|LoKr|OFT|VeRA?|PTuning)Config")
OWN_ADAPTERS = re.compile(
    r"(?!.*(state|param|weight|path|dir|name|callback|optim|merge|sav|load|layer|count|info|request|template))"
    r"(\w+\.)*(apply|add|attach|inject|wrap|set_?up|create|build|make|enable|get|prepare)_\w*(lora|peft)\w*"
)
"""What functions are called that make an adapter, in modules of somebody's own."""

PEFT = "peft"
KNOWN = f"those of LoraConfig, {', '.join(peft_kinds.BY_NAME)} are"

GIVE = "give the command that starts it, or a file of its arguments"

LOADED = {
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "use_flash_attention_2": "use_flash_attention_2",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
}
REFERRING = ("dpo", "kto")
"""Trainers that compare the trained model with a reference."""

INIT = "model_init_kwargs"
QUANTIZED = (f"{INIT}.quantization_config", f"{INIT}.load_in_")

OF_THE_TRAINER = ("max_seq_length", "packing", "dataset_text_field", "beta", "max_length", "max_prompt_length")
"""Arguments that trainers of TRL took themselves, before their configurations did."""

EVALUATED = ("per_device_eval_batch_size", "eval_strategy", "evaluation_strategy", "do_eval")  # which are only told

UNSLOTHS = {"lora_r": 16, "lora_alpha": 16, "lora_dropout": 0.0}
UNSLOTHS_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
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

OWN_STEPS = ("compute_loss", "training_step")
"""Methods of a trainer that another one may have in its place."""

COUNTED = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Settings that are never null."""


DECISIVE = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "optim"),
    "max_grad_norm",
)
"""Arguments that are asked for where all of them are a dictionary that only the run knows."""


class _Run(NamedTuple):
    """The trainer that a script constructs, and its arguments."""

    trainer: ast.Call
    task: str | None
    """None for the plain Trainer."""

    arguments: ast.Call
    own: bool = False
    """Whether the class of the trainer is somebody's own: of another module, or with a step of its own."""


def from_python(
    text: str, file: str, wanted: str | None, beside: Beside, given: Mapping[str, Written] | None = None
) -> tuple[dict[str, Written], str] | None:
    """The settings of the trainer that a script constructs, with a note; None where it constructs none.

    `wanted`: the function that constructs it. `given`: the arguments of its command, of which those that the script
    does not take stay settings. Raises InputError.
    """
    if "Trainer" not in text:
        return None
    names = ScriptNames(text, file, beside)
    left = names.handed({key: item.value for key, item in (given or {}).items()})
    run = _run(names, file, wanted)
    if run is None:
        return None
    page = _Page(names, file)
    page.written |= {key: item for key, item in (given or {}).items() if key in left}
    page.read(run)
    told = f"the script constructs {name_of(run.trainer)} at line {run.trainer.lineno}"
    if run.own:
        told += f", a trainer of its own: what it changes in the one of {name_of(run.arguments)} is not counted"
    return page.settled(), told


def _run(names: ScriptNames, file: str, wanted: str | None) -> _Run | None:
    classes = {node.name: node for node in ast.walk(names.tree) if isinstance(node, ast.ClassDef)}
    from_command = None
    for call in names.calls():
        function = names.owner.get(call)
        if wanted is not None and (function is None or function.name != wanted):
            continue
        short = name_of(call).rpartition(".")[2]
        bases = [ast.unparse(base).rpartition(".")[2] for base in classes[short].bases] if short in classes else []
        kind = next((name for name in (short, *bases) if name in TRAINERS or name in PLAIN), None)
        given = names.given(call)
        if (kind is None and not short.endswith("Trainer")) or not ({"args", "model"} & set(given) or call.args):
            continue
        arguments = names.behind(given.get("args"))
        own = short in classes and any(getattr(line, "name", "") in OWN_STEPS for line in classes[short].body)
        if kind is None:
            known = ARGUMENTS.fullmatch(name_of(arguments)) if isinstance(arguments, ast.Call) else None
            if known is not None and isinstance(arguments, ast.Call):
                return _Run(call, TRAINERS.get(f"{known[3]}Trainer") if known[3] else None, arguments, own=True)
            continue
        if isinstance(arguments, ast.Call) and ARGUMENTS.fullmatch(name_of(arguments)):
            return _Run(call, TRAINERS.get(kind), arguments, own)
        if arguments is None and kind in TRAINERS:
            return _Run(call, TRAINERS[kind], call)
        if arguments is not None and names.is_parsed(given.get("args")):
            from_command = from_command or call
    if from_command is not None:
        message = "the script takes the arguments of its trainer from its command line"
        raise InputError([Problem(message, file=file, line=from_command.lineno, hint=GIVE)])
    return None


class _Page:
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

    def read(self, run: _Run) -> None:
        """Everything that the run is of."""
        self.put("program", OF_TRAINER if run.task is None else f"{run.task}{OF_TRL}", run.trainer)
        if run.arguments is not run.trainer:
            self.of_call(run.arguments, None)
        if run.task is not None:
            for name, value in self.names.given(run.trainer).items():
                if name in OF_THE_TRAINER:
                    self.usual(name, self.names.value(value), value)
        if name_of(run.arguments).endswith("TrainingArguments"):  # whose defaults TRL's configuration takes over
            self.usual("gradient_checkpointing", False, run.arguments)
            self.usual("bf16", False, run.arguments)
        self._model(run)
        self._adapter(run)
        if run.task in REFERRING:
            self._reference(run.trainer)
        if run.task is None:
            self._length()

    def _reference(self, trainer: ast.Call) -> None:
        """A reference model of its own, which a trainer takes beside an adapter too."""
        node = self.names.given(trainer).get("ref_model", trainer.args[1] if len(trainer.args) > 1 else None)
        if node is not None and self.names.value(node) is not None:
            self.usual("force_use_ref_model", True, node)

    def settled(self) -> dict[str, Written]:
        """The settings. Raises InputError with every problem."""
        if self.problems:
            raise InputError(self.problems)
        return self.written

    def _model(self, run: _Run) -> None:
        given = self.names.given(run.trainer)
        node = given.get("model", run.trainer.args[0] if run.trainer.args else None)
        named = self.names.value(node) if node is not None else None
        if isinstance(named, str):
            self.put("model_name_or_path", named, run.trainer)
            self._loaded_by_the_trainer(run)
            return
        call = self._loading(node)
        if call is None:
            self.put("model_name_or_path", NotConstant("the model that the script makes"), run.trainer)
            return
        words = self.names.given(call)
        unsloth = UNSLOTH.fullmatch(name_of(call))
        first = words.get("model_name") or words.get("pretrained_model_name_or_path")
        source = first or (call.args[0] if call.args else None)
        self.put("model_name_or_path", self.names.value(source) if source else NotConstant("its model"), call)
        self.of_call(call, LOADED)
        if CLASSIFIERS.fullmatch(name_of(call)):
            self.put(CLASSIFIER, True, call)
        if isinstance(self.written.get("dtype", Written(None)).value, NotConstant):
            del self.written["dtype"]
        self._quantized(words.get("quantization_config"))
        if unsloth:
            self._unsloth(call, words)
        self.usual("dtype", "auto", call)
        calls = self._calls()
        kbit = next((one for one in calls if name_of(one).rpartition(".")[2] in (KBIT, OLD_KBIT)), None)
        if kbit is not None:
            off = next((word.value for word in kbit.keywords if word.arg == "use_gradient_checkpointing"), None)
            if off is None or self.names.value(off) is not False:
                self.put("gradient_checkpointing", True, kbit)
            self.put(KBIT, True, kbit)
        elif any(name_of(one).endswith(".gradient_checkpointing_enable") for one in calls):
            self.put("gradient_checkpointing", True, call)

    def _loaded_by_the_trainer(self, run: _Run) -> None:
        """How a trainer of TRL loads the model that it is given the name of: by `model_init_kwargs`."""
        words = self.names.items_of(self.names.given(run.arguments).get(INIT))
        for name in ("load_in_4bit", "load_in_8bit"):
            if name in words:
                self.usual(name, self.names.value(words[name]), words[name])
        self._quantized(words.get("quantization_config"))
        self.written = {key: item for key, item in self.written.items() if not key.startswith(QUANTIZED)}

    def _quantized(self, node: ast.expr | None) -> None:
        """The configuration of quantized weights."""
        quantized = self.names.behind(node)
        if isinstance(quantized, ast.IfExp):
            quantized = self.names.behind(quantized.body)
        if isinstance(quantized, ast.Call) and name_of(quantized).endswith("BitsAndBytesConfig"):
            for key in ("load_in_4bit", "load_in_8bit"):  # the configuration won until transformers 4.38 refused both
                self.written.pop(key, None)
            self.of_call(quantized, BITS)
        elif quantized is not None and not (isinstance(quantized, ast.Constant) and quantized.value is None):
            self.put("quantization_config", NotConstant(ast.unparse(quantized)), quantized)

    def _calls(self) -> list[ast.Call]:
        """The calls of the script, but for those of branches that its arguments do not take."""
        return [call for call in self.names.calls() if not self.names.is_left_out(call)]

    def _loading(self, node: ast.expr | None) -> ast.Call | None:
        """The call that loads the model of a trainer: what its name was assigned first, else the first of the file.

        None for a model of a class of the script's own, whatever that loads.
        """
        found = [call for call in self.names.calls() if self._loads(call)]
        if isinstance(node, ast.Call) and name_of(node) in self.names.fields:
            return None
        if isinstance(node, ast.Name):
            values = [
                _unwrapped(value)
                for (_, name), lines in self.names.assigned.items()
                for _, value in lines
                if name == node.id and isinstance(value, ast.Call)
            ]
            loaded = [value for value in values if value in found or name_of(value).endswith(".from_pretrained")]
            inner = loaded_adapters.within(loaded[0]) if loaded else None
            if inner is not None and ast.unparse(inner) != node.id:
                return self._loading(inner)
            if loaded:
                return loaded[0] if loaded[0] in found else None
            if any(name_of(value).split(".")[0] in self.names.fields for value in values):
                return None
        return found[0] if found else None

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

    def _unsloth(self, call: ast.Call, words: Mapping[str, ast.expr]) -> None:
        self.put("use_unsloth", True, call)
        if "max_seq_length" in words and "max_length" not in self.written:
            self.usual("max_seq_length", self.names.value(words["max_seq_length"]), words["max_seq_length"])
        else:
            self.usual("max_seq_length" if "max_length" not in self.written else "max_length", 2048, call)
        whole = self.names.value(words["full_finetuning"]) if "full_finetuning" in words else False
        if whole is not True and "load_in_8bit" not in self.written:
            self.usual("load_in_4bit", True, call)
        self.put("use_bnb_nested_quant", True, call)
        self.usual("dtype", "bfloat16", call)

    def _adapter(self, run: _Run) -> None:
        calls = self._calls()
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
        wrapped = next((call for call in calls if _unsloths(call, "get_peft_model")), None)
        if wrapped is not None:
            self.put("use_peft", True, wrapped)
            self.of_call(wrapped, LORA)
            for key, value in UNSLOTHS.items():
                self.usual(key, value, wrapped)
            self.usual("lora_target_modules", list(UNSLOTHS_TARGETS), wrapped)
            how = next((word.value for word in wrapped.keywords if word.arg == "use_gradient_checkpointing"), None)
            word = "unsloth" if how is None else self.names.value(how)
            self.put("gradient_checkpointing", word in (True, "unsloth"), wrapped)
            if word == "unsloth":
                self.put("gradient_checkpointing_kwargs.offload", True, wrapped)
            return
        given = self.names.given(run.trainer)
        wraps = next((call for call in calls if name_of(call).rpartition(".")[2] == "get_peft_model"), None)
        used = "peft_config" in given or wraps is not None
        config = next((call for call in calls if name_of(call).rpartition(".")[2] == "LoraConfig"), None)
        loaded = None if config is not None and used else loaded_adapters.trained(self.names, calls, run.trainer)
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

    def _length(self) -> None:
        """The length to which the tokenizer cuts texts, the longest of several."""
        found: list[tuple[int, ast.Call]] = []
        for call in self.names.calls():
            given = {word.arg: word.value for word in call.keywords}
            if "truncation" in given and "max_length" in given:
                value = self.names.value(given["max_length"])
                if isinstance(value, int):
                    found.append((value, call))
        if found:
            value, call = max(found, key=lambda pair: pair[0])
            self.usual("model_max_length", value, call)


PLACES = ("cuda", "to", "half", "bfloat16", "float", "train", "eval")
"""Methods of a model that return it."""


def _unwrapped(call: ast.Call) -> ast.Call:
    """The call that makes a model of which methods put it elsewhere, as `Own.from_pretrained(name).cuda()` does."""
    inner = call.func
    while isinstance(inner, ast.Attribute) and inner.attr in PLACES and isinstance(inner.value, ast.Call):
        call = inner.value
        inner = call.func
    return call


def _unsloths(call: ast.Call, what: str) -> bool:
    found = UNSLOTH.fullmatch(name_of(call))
    return found is not None and found["what"] == what
