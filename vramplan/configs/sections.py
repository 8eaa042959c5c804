"""Files of somebody's own program, whose sections have the arguments of a library under the names that it gives them.

`training: {per_device_train_batch_size: 2, ...}` beside `lora: {r: 16, ...}` and `model: {name: org/name}` are the
arguments of TrainingArguments, of PEFT's LoraConfig and of `from_pretrained`. `llamafactory: {finetuning_type: lora}`
is a file of LLaMA-Factory within another. What stands beside them is kept under its own name, for the reader to tell.

Source of the names: huggingface/transformers 5.23.0, training_args.py and utils/quantization_config.py;
huggingface/peft 0.18, tuners/lora/config.py; unslothai/unsloth, models/loader.py and models/llama.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from vramplan.configs.programs.arguments.keys import BITS, LORA, OF_OTHERS, OF_TRL, TABLE
from vramplan.configs.table import names
from vramplan.configs.written import Written
from vramplan.tuples import NamedTuple

BATCH = "per_device_train_batch_size"
LEAST = 3  # arguments of a trainer in a section, to take it for one

ADAPTER = {**LORA, "rank": "lora_r", "lora_rank": "lora_r", "lora_r": "lora_r", "alpha": "lora_alpha"}
ADAPTER |= {"dropout": "lora_dropout", "lora_target_modules": "lora_target_modules"}
RANKS, ALPHAS = ("r", "rank", "lora_rank", "lora_r"), ("lora_alpha", "alpha")
OF_ADAPTERS = ("lora_dropout", "target_modules", "lora_target_modules", "task_type", "bias")
SWITCHES = ("enabled", "enable", "use", "use_lora", "use_peft", "use_qlora")

MODELS = re.compile(r"(base_?)?(model|llm)(_(args|arguments|config))?")
NAMES = (
    *("name", "model_name", "name_or_path", "model_name_or_path", "pretrained_model_name_or_path", "model_id"),
    *("base_model", "id", "repo_id", "hf_model_id", "base", "base_model_name", "pretrained"),
)
LOADED = {"torch_dtype": "torch_dtype", "dtype": "torch_dtype", "attn_implementation": "attn_implementation"}
LOADED |= {name: name for name in ("load_in_4bit", "load_in_8bit", "use_flash_attention_2", "gradient_checkpointing")}
LOADED |= dict.fromkeys(("use_flash_attention", "use_flash_attn", "flash_attention"), "use_flash_attention_2")

LENGTHS = ("max_seq_length", "max_length", "max_seq_len", "packing")
"""What sections of models and of data say of a sample."""

UNSLOTHS = {"use_bnb_nested_quant": True, "dtype": "bfloat16"}
"""How Unsloth loads a model where nothing is said."""

CHECKPOINTS = "use_gradient_checkpointing"  # of Unsloth's adapters

# a section, or the file itself, that is called after the method of a trainer
METHODS = re.compile(r"(?i)(?<![a-z])(grpo|dpo|kto|orpo|cpo|rloo|ppo)(?![a-z])")


OF_SEQ2SEQ = frozenset(["predict_with_generate", "generation_max_length", "generation_num_beams", "sortish_sampler"])
"""Arguments of Seq2SeqTrainingArguments alone, of which TRL's configurations have none: the plain Trainer runs."""


OF_TRL_ALONE = OF_TRL - names(
    """
    use_peft lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save lora_task_type use_dora use_rslora
    load_in_8bit load_in_4bit bnb_4bit_quant_type bnb_4bit_quant_storage use_bnb_nested_quant datasets
    """
)
"""Keys of TRL by which somebody's own program is one of its trainers: adapters and quantized weights are of any."""


class Unwrapped(NamedTuple):
    """The settings that sections of a file have, by the names of a library.

    `own`: those of somebody's own, which are told, and no error where their names say nothing of what is trained.
    """

    settings: dict[str, Written]
    own: frozenset[str]
    note: str


def unwrapped(
    written: Mapping[str, Written], file: str | None, whose: Callable[[Mapping[str, Written]], str | None]
) -> Unwrapped | None:
    """What the sections of a file say; None where none has arguments that are known.

    `whose`: the program whose keys some settings are, None where they are too few.
    """
    sections: dict[str, dict[str, Written]] = {}
    for key, item in written.items():
        section, _, below = key.partition(".")
        if below:
            sections.setdefault(section, {})[below] = item
    for name, inside in sections.items():
        program = whose(inside)
        if program is not None:
            beside = {key: item for key, item in written.items() if not key.startswith(f"{name}.")}
            own = frozenset(beside) - inside.keys()
            return Unwrapped({**beside, **inside}, own, f"the section {name} is a file of {program}")
    several = [name for name, inside in sections.items() if _trains(inside)]
    if not several:
        return None
    trains, *others = several
    sections = {name: inside for name, inside in sections.items() if name not in others}
    tops = {key: item for key, item in written.items() if "." not in key}
    tops = {key: item for key, item in tops.items() if item.value is not None or key not in OF_OTHERS}
    found = {**tops, **sections[trains]}
    read = [trains]
    for name, inside in sections.items():
        taken = {} if name == trains else _of_section(name, inside)
        read += [name] if taken else []
        found |= {key: item for key, item in taken.items() if key not in found}
        left = {f"{name}.{key}": item for key, item in inside.items() if not _is_taken(name, key, inside)}
        found |= _beside(found, {} if name == trains else left)
    place = sections[trains][BATCH]
    if "use_unsloth" in found:
        for key, value in UNSLOTHS.items():
            found.setdefault(key, place._replace(value=value))
    if "dtype" not in found and "torch_dtype" not in found:
        found["dtype"] = place._replace(value="auto")  # `from_pretrained` of the checkpoint's type
    method = next((hit for text in (*sections, file or "") if (hit := METHODS.search(text.rpartition("/")[2]))), None)
    if method is None and (OF_SEQ2SEQ & sections[trains].keys() or not OF_TRL_ALONE & found.keys()):
        found.setdefault("program", place._replace(value="trainer"))
    elif method is None and "use_peft" in found and not found.keys() & OF_METHODS:
        found.setdefault("program", place._replace(value="sft_trainer"))  # whose script makes its own LoraConfig
    if method is not None and "program" not in found:
        found["program"] = place._replace(value=f"{method[1].lower()}_trainer")
    own = frozenset(key for key in found if TABLE.class_of(key) is None)
    note = (
        f"of somebody's own program: the sections {', '.join(read)} are read as arguments of TrainingArguments, "
        "LoraConfig and from_pretrained, and what they leave out has the defaults of these"
    )
    if others:
        note += f"; {', '.join(others)} has the arguments of another run, which are not read"
    return Unwrapped(found, own, note)


def _beside(found: Mapping[str, Written], left: Mapping[str, Written]) -> dict[str, Written]:
    """What stands beside the sections that are read, under names that are known to change nothing, else its own."""
    named: dict[str, Written] = {}
    for key, item in left.items():
        last = key.rpartition(".")[2]
        is_known = TABLE.class_of(last) == "without_effect" and last not in found and last not in named
        named[last if is_known else key] = item
    return named


OF_METHODS = names("beta loss_type num_generations max_prompt_length max_completion_length")
"""What sections of a method say of a step: `dpo: {beta: 0.1}`."""


def _trains(inside: Mapping[str, Written]) -> bool:
    """Whether a section has the arguments of a trainer."""
    return BATCH in inside and sum(TABLE.class_of(key) is not None for key in inside) >= LEAST


def _adapts(inside: Mapping[str, Written]) -> bool:
    """Whether a section has the arguments of an adapter: its rank beside its factor, or beside two more of its own."""
    if not any(key in inside for key in RANKS):
        return False
    return any(key in inside for key in ALPHAS) or sum(key in inside for key in OF_ADAPTERS) > 1


def _of_section(name: str, inside: Mapping[str, Written]) -> dict[str, Written]:
    """What a section beside that of the trainer says, in the names of its arguments."""
    found: dict[str, Written] = {}
    if _adapts(inside):
        switch = next((inside[key] for key in SWITCHES if key in inside), None)
        if switch is not None and switch.value is False:
            return {"use_peft": switch}
        found["use_peft"] = next(iter(inside.values()))._replace(value=True)
        found |= {ADAPTER[key]: item for key, item in inside.items() if key in ADAPTER}
        if CHECKPOINTS in inside:
            found |= _checkpoints(inside[CHECKPOINTS])
    if MODELS.fullmatch(name):
        named = next((inside[key] for key in NAMES if key in inside and isinstance(inside[key].value, str)), None)
        found |= {} if named is None else {"model_name_or_path": named}
        found |= {LOADED[key]: item for key, item in inside.items() if key in LOADED and item.value is not None}
    if any(key in BITS for key in inside):
        found |= {BITS[key]: item for key, item in inside.items() if key in BITS}
    found |= {key: item for key, item in inside.items() if key in {*LENGTHS, *OF_METHODS} and item.value is not None}
    return found


def _checkpoints(item: Written) -> dict[str, Written]:
    """What Unsloth is asked for: checkpoints, which it keeps on the host where its own word says so."""
    is_named = isinstance(item.value, str)  # after the program
    found = {"gradient_checkpointing": item._replace(value=is_named or item.value is True)}
    if is_named:
        found["use_unsloth"] = item._replace(value=True)
        found["gradient_checkpointing_kwargs.offload"] = item._replace(value=True)
    return found


def _is_taken(name: str, key: str, inside: Mapping[str, Written]) -> bool:
    """Whether a key of a section is in what it says, or is a detail of what it is of."""
    if key in LENGTHS or key in BITS or key in OF_METHODS:
        return True
    if _adapts(inside) and (key in ADAPTER or key in SWITCHES or key == CHECKPOINTS):
        return True
    return bool(MODELS.fullmatch(name)) and (key in NAMES or key in LOADED)
