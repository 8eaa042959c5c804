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

from vramplan.configs.constructed import Beside
from vramplan.configs.evaluated import ASKS_FOR_BF16, ScriptNames
from vramplan.configs.forms import NotConstant
from vramplan.configs.handed import handed
from vramplan.configs.noted_names import name_of
from vramplan.configs.programs.arguments.ages import age_of
from vramplan.configs.programs.arguments.keys import (
    BITS,
    CLASSIFIER,
    FREEZES_SOUND,
    KBIT,
    MADE_ELSEWHERE,
    OF_LENGTH,
    OF_PAIRS,
    OLD_KBIT,
    SETS_GRADIENTS,
    TO_DICT,
)
from vramplan.configs.programs.arguments.model_calls import CLASSIFIERS, LIBRARIES, ModelPage
from vramplan.configs.programs.arguments.recognising import RELEASE
from vramplan.configs.programs.arguments.releases import UNSAID
from vramplan.configs.programs.arguments.script_page import UNSLOTH
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
QUANTIZES = ("quantization_config", "load_in_4bit", "load_in_8bit")
"""Arguments of `from_pretrained` that quantize."""

GIVE = "give the command that starts it, or a file of its arguments"

LOADED = {
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "use_flash_attention_2": "use_flash_attention_2",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
}
REFERRING = ("dpo", "kto")
"""Trainers that compare the trained model with a reference."""

INIT = "model_init_kwargs"
QUANTIZED = (f"{INIT}.quantization_config", f"{INIT}.load_in_")

OF_THE_TRAINER = ("max_seq_length", "packing", "dataset_text_field", "beta", "max_length", "max_prompt_length")
"""Arguments that trainers of TRL took themselves, before their configurations did."""

BESIDE = re.compile(r"(?i)ref|teacher|reward|critic|input|output|embeds|\bout\b|\bx\b")
"""What stands beside the trained model, or is no parameter: `output.requires_grad_(True)` in a hook."""

LENGTHS = ("max_length", "max_seq_length", "model_max_length", "block_size")
"""Arguments of a command that say how long a sequence is."""

PREFERENCES = re.compile(r"(DPO|KTO|ORPO|CPO|SimPO|RRHF|Reward|Preference|Pairwise)(?![a-z])")
"""In the name of somebody's own trainer: it compares answers."""

NAMED = re.compile(r"(name|path|repo|id|dir)$")
"""How an argument ends that is the name of a model, which a trainer of TRL loads."""

OWN_STEPS = ("compute_loss", "training_step")
"""Methods of a trainer that another one may have in its place."""


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
    left = handed(names, {key: item.value for key, item in (given or {}).items()})
    run = _run(names, file, wanted)
    if run is None:
        return None
    page = _Page(names, file)
    page.written |= {key: item for key, item in (given or {}).items() if key in left}
    page.read(run)
    if not any(
        key in page.written for key in LENGTHS
    ):  # what the script makes of it has the name that it has elsewhere
        page.written |= {key: item for key, item in (given or {}).items() if key in LENGTHS}
    told = f"the script constructs {name_of(run.trainer)} at line {run.trainer.lineno}"
    if run.own:
        told += f", a trainer of its own: what it changes in the one of {name_of(run.arguments)} is not counted"
    return page.settled(), told


def _run(names: ScriptNames, file: str, wanted: str | None) -> _Run | None:
    """The trainer that is constructed where the script comes by, else one of a function that it does not call."""
    calls = [call for call in names.calls() if wanted is None or getattr(names.owner[call], "name", None) == wanted]
    reached = [call for call in calls if names.is_mentioned(names.owner[call])]
    return _run_of(names, file, reached) or _run_of(names, file, calls)


def _run_of(names: ScriptNames, file: str, calls: list[ast.Call]) -> _Run | None:
    classes = {node.name: node for node in ast.walk(names.tree) if isinstance(node, ast.ClassDef)}
    from_command = None
    for call in calls:
        short = _class_of(names, call)
        bases = [ast.unparse(base).rpartition(".")[2] for base in classes[short].bases] if short in classes else []
        kind = next((name for name in (short, *bases) if name in TRAINERS or name in PLAIN), None)
        given = names.given(call)
        if (kind is None and not short.endswith("Trainer")) or not ({"args", "model"} & set(given) or call.args):
            continue
        arguments = names.behind(given.get("args") or _by_position(names, call))
        elsewhere = names.imported.get(name_of(call).split(".")[0], ("", None))[0].split(".")[0]
        foreign = bool(elsewhere) and elsewhere not in LIBRARIES
        own = short in classes and any(getattr(line, "name", "") in OWN_STEPS for line in classes[short].body)
        own = own or foreign
        if kind is None:
            known = ARGUMENTS.fullmatch(name_of(arguments)) if isinstance(arguments, ast.Call) else None
            if known is not None and isinstance(arguments, ast.Call):
                return _Run(call, TRAINERS.get(f"{known[3]}Trainer") if known[3] else None, arguments, own=True)
            continue
        if isinstance(arguments, ast.Call) and ARGUMENTS.fullmatch(_class_of(names, arguments)):
            return _Run(call, TRAINERS.get(kind), arguments, own)
        if arguments is None and kind in TRAINERS and not foreign:
            return _Run(call, TRAINERS[kind], call)
        if arguments is not None and names.is_parsed(given.get("args")):
            from_command = from_command or call
    if from_command is not None:
        message = "the script takes the arguments of its trainer from its command line"
        raise InputError([Problem(message, file=file, line=from_command.lineno, hint=GIVE)])
    return None


def _class_of(names: ScriptNames, call: ast.Call) -> str:
    """The class that a call makes one of, by its name in its library: `from trl import CPOTrainer as Trainer`.

    A name that branches give to several, of which the text takes none, stays as it is.
    """
    short = name_of(call).rpartition(".")[2]
    known = names.stands_for(short) if name_of(call) == short else []
    return known[0] if len(known) == 1 else short


def _by_position(names: ScriptNames, call: ast.Call) -> ast.expr | None:
    """The arguments of a trainer that it is handed without a name, as in `Trainer(model, args, ...)`."""
    for one in call.args:
        made = names.behind(one)
        if isinstance(made, ast.Call) and ARGUMENTS.fullmatch(_class_of(names, made)):
            return one
    return None


class _Page(ModelPage):
    """The settings of a script that trains."""

    def read(self, run: _Run) -> None:
        """Everything that the run is of."""
        self.put("program", OF_TRAINER if run.task is None else f"{run.task}{OF_TRL}", run.trainer)
        if run.arguments is not run.trainer:
            self.of_call(run.arguments, None)
        if run.task is not None:
            for name, value in self.names.given(run.trainer).items():
                if name in OF_THE_TRAINER:
                    self.usual(name, self.names.value(value), value)
        kind = _class_of(self.names, run.arguments)
        handed_on = any(word.arg is None and TO_DICT.search(ast.unparse(word.value)) for word in run.arguments.keywords)
        if kind.endswith("TrainingArguments") or handed_on:  # whose defaults TRL's configuration takes over
            self.usual("gradient_checkpointing", False, run.arguments)
            self.usual("bf16", False, run.arguments)
        self._model(run)
        self.adapter(run.trainer)
        if "use_peft" not in self.written:
            self._freezes()
            self._made_elsewhere(run)
        if run.task in REFERRING:
            self._reference(run.trainer)
        self._age(run)
        if run.task is None:
            self._length()
            if run.own and PREFERENCES.search(name_of(run.trainer)):
                self.put(OF_PAIRS, name_of(run.trainer), run.trainer)

    def _made_elsewhere(self, run: _Run) -> None:
        """Whether another module hands the trainer its model, which says nothing of an adapter."""
        words = self.names.given(run.trainer)
        node = words.get("model", run.trainer.args[0] if run.trainer.args else None)
        named = isinstance(node, ast.Attribute) and NAMED.search(node.attr)
        if node is None or named or isinstance(self.names.value(node), str):
            return
        made = self.assigned_calls(node) if isinstance(node, ast.Name) else [node]
        own = [name_of(one).rpartition(".")[2] for one in made if isinstance(one, ast.Call)]
        if self.loading(node) is None and not any(name[:1].isupper() for name in own):  # which make one of a class
            self.put(MADE_ELSEWHERE, True, run.trainer)

    def _age(self, run: _Run) -> None:
        """The release that the script is of; Unsloth's copies of the trainers take what those of TRL have no more."""
        words = self.names.given(run.trainer)
        arguments = {} if run.arguments is run.trainer else self.names.given(run.arguments)
        plain = not run.own and "use_unsloth" not in self.written
        age = age_of(words.keys(), arguments.keys(), trl=run.task is not None) if plain else None
        self.written[RELEASE] = Written(age, self.file, run.trainer.lineno)

    def _freezes(self) -> None:
        """Whether the script says by itself which parameters are trained, of another model than a reference."""
        for node in ast.walk(self.names.tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.Call):
                targets = [node.func]
            for target in targets:
                word = SETS_GRADIENTS + "_" * isinstance(node, ast.Call)
                if not isinstance(target, ast.Attribute) or self.names.is_left_out(node):
                    continue
                if target.attr in FREEZES_SOUND and isinstance(node, ast.Call):
                    self.put(target.attr, True, node)
                if target.attr != word:
                    continue
                if not any(BESIDE.search(name) for name in (*self._loops_around(node), ast.unparse(target.value))):
                    self.put(SETS_GRADIENTS, True, node)
                    return

    def _loops_around(self, node: ast.AST) -> list[str]:
        """What loops go through that a node stands in."""
        loops = (one for one in ast.walk(self.names.tree) if isinstance(one, ast.For))
        return [ast.unparse(one.iter) for one in loops if any(inner is node for inner in ast.walk(one))]

    def _reference(self, trainer: ast.Call) -> None:
        """A reference model of its own, which a trainer takes beside an adapter too."""
        node = self.names.given(trainer).get("ref_model", trainer.args[1] if len(trainer.args) > 1 else None)
        if node is not None and self.names.value(node) is not None:
            self.usual("force_use_ref_model", True, node)
            self._loaded_reference(trainer, node)

    def _loaded_reference(self, trainer: ast.Call, node: ast.expr) -> None:
        """Name a reference that a script loads: what it loads, and whether in other types than the trained model."""
        call = self.loading(node)
        first = trainer.args[0] if trainer.args else None
        trained = self.loading(self.names.given(trainer).get("model", first))
        if call is None:
            return
        given = self.names.given(call)
        source = given.get("pretrained_model_name_or_path") or (call.args[0] if call.args else None)
        name = self.names.value(source) if source is not None else None
        bits = [{} if one is None else self.names.given(one) for one in (call, trained)]
        types = [[self._said(one.get(key)) for key in QUANTIZES] for one in bits]
        if isinstance(name, str):
            self.usual("ref_model", name if types[0] == types[1] else f"{name} of other types", node)

    def _said(self, node: ast.expr | None) -> str | None:
        """What a value of a call is, by its text where it is made by another call."""
        behind = None if node is None else self.names.behind(node)
        return None if behind is None else ast.unparse(behind)

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
        call = self.loading(node)
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
            self._unsloth(call, words, self.names.given(run.arguments))
        self.usual("dtype", UNSAID, call)
        calls = self.calls()
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
        hangs_on = self.names.depends(quantized, self.names.value) if quantized is not None else None
        if node is not None and hangs_on is not None and self.names.is_none_before(node):
            self.put("quantization_config", NotConstant(ast.unparse(hangs_on)), node)
        elif isinstance(quantized, ast.Call) and name_of(quantized).endswith("BitsAndBytesConfig"):
            for key in ("load_in_4bit", "load_in_8bit"):  # the configuration won until transformers 4.38 refused both
                self.written.pop(key, None)
            self.of_call(quantized, BITS)
        elif quantized is not None and not (isinstance(quantized, ast.Constant) and quantized.value is None):
            self.put("quantization_config", NotConstant(ast.unparse(quantized)), quantized)

    def _unsloth(self, call: ast.Call, words: Mapping[str, ast.expr], arguments: Mapping[str, ast.expr]) -> None:
        self.put("use_unsloth", True, call)
        for key in ("bf16", "fp16"):
            if key in arguments and self._asks_for_bf16(arguments[key]):
                self.written.pop(key, None)
        if "max_seq_length" in words and "max_length" not in self.written:
            self.usual("max_seq_length", self.names.value(words["max_seq_length"]), words["max_seq_length"])
        else:
            self.usual("max_seq_length" if "max_length" not in self.written else "max_length", 2048, call)
        whole = self.names.value(words["full_finetuning"]) if "full_finetuning" in words else False
        if whole is not True and "load_in_8bit" not in self.written:
            self.usual("load_in_4bit", True, call)
        self.put("use_bnb_nested_quant", True, call)
        self.usual("dtype", "auto", call)  # the half type that the GPU has

    def _asks_for_bf16(self, node: ast.expr) -> bool:
        """Whether the GPU decides: `bf16=is_bfloat16_supported()`, which is what Unsloth does where nothing is said."""
        found = ast.walk(self.names.behind(node) or node)
        return any(isinstance(one, ast.Call) and name_of(one).rpartition(".")[2] in ASKS_FOR_BF16 for one in found)

    def _length(self) -> None:
        """The length to which the tokenizer cuts texts, the longest of several."""
        found: list[tuple[int, ast.Call]] = []
        for call in self.names.calls():
            given = {word.arg: word.value for word in call.keywords}
            if "truncation" in given and "max_length" in given:
                value = self.names.value(given["max_length"])
                if isinstance(value, int):
                    found.append((value, call))
        named = [self.names.options[one] for one in OF_LENGTH if one in self.names.options]
        if found:
            value, call = max(found, key=lambda pair: pair[0])
            self.usual("model_max_length", value, call)
        elif len(named) == 1 and (default := self.names.arguments.get(named[0][0])) is not None:
            length = self.names.value(default)  # of the command, or what the option has by default
            if isinstance(length, int) and length > 1:
                self.usual("model_max_length", length, named[0][1])
