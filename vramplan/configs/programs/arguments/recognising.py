"""Whether a file is of TRL, or of the plain Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs.arguments import scripts
from vramplan.configs.programs.arguments.ages import Age, age_of
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.programs.arguments.keys import HANDBOOK, OF_OTHERS, OF_SCRIPTS, OF_TRL, script_name
from vramplan.configs.table import names

TRAINER = "_trainer"
"""The key of settings for whose arguments the script parses that a command starts, where its text tells."""

RELEASE = "_release"
"""The key of settings for the `Age` of a script, where its calls tell it."""

OF_ITS_OWN = names(
    """
    use_peft lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save use_dora use_rslora load_in_8bit
    load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant max_length max_seq_length datasets
    """
)
"""Keys of TRL that scripts around the plain Trainer have too: in a command they do not tell TRL's defaults."""


OF_TRLS_SCRIPTS = names("sft dpo kto grpo reward rloo sft.py dpo.py kto.py grpo.py")
"""What TRL's own scripts and the verbs of its console are called."""


OF_SFT = names("packing dataset_text_field dataset_num_proc dataset_kwargs eval_packing num_of_sequences")
"""Arguments of `SFTConfig`, and before it of `examples/scripts/sft.py`, that stood beside `max_seq_length`.

Source: huggingface/trl 0.19.1, trl/trainer/sft_config.py; 0.8.6, examples/scripts/sft.py.
"""


def age(keys: Mapping[str, Any], *, trl: bool) -> Age | None:
    """What tells the release that a script is of, or the release of the parser that takes these arguments.

    An argument that the script declares itself tells nothing. A file for TRL is judged by these two, and by
    `max_seq_length` beside another argument of SFT's configuration: programs made from it have the others too.
    """
    of_script: Age | None = getattr(keys.get(RELEASE), "value", None)
    if of_script is not None or RELEASE in keys:
        return of_script
    declared = getattr(keys.get("_declared"), "value", None) or {}
    own = {key for key in keys if key not in declared}
    telling = {"evaluation_strategy", "vllm_device"}
    tops = {key.split(".", 1)[0] for key in own}
    if own & OF_SFT and not tops & (
        HANDBOOK | {"max_length"}
    ):  # scripts of the handbook take max_seq_length themselves
        telling.add("max_seq_length")
    return age_of((), own & telling if trl else own, trl=trl)


def release_of_trl(keys: Mapping[str, Any]) -> str | None:
    """The release of TRL that a script or a file is of."""
    found = age(keys, trl=True)
    return None if found is None else found.trl


def release_of_trainer(keys: Mapping[str, Any]) -> str | None:
    """The release of Transformers that a script, a command or a file is of."""
    found = age(keys, trl=False)
    return None if found is None else found.transformers


def why_trl(keys: Mapping[str, Any]) -> str | None:
    """The argument that tells the release of TRL."""
    found = age(keys, trl=True)
    return None if found is None else f"{found.argument} is taken until {found.since}"


def why_trainer(keys: Mapping[str, Any]) -> str | None:
    """The argument that tells the release of Transformers."""
    found = age(keys, trl=False)
    return None if found is None or found.transformers is None else f"{found.argument} is taken until {found.since}"


def is_of_others(keys: Mapping[str, Any]) -> bool:
    """Whether keys are of another program: `use_lora` is open-instruct's, but beside `lora_r`, as scripts have it."""
    return bool(OF_OTHERS & set(keys)) or ("use_lora" in keys and not {"lora_r", "lora_config", "program"} & set(keys))


def note_absent(file: TrainingFile) -> None:
    """Say whose defaults hold for a script that is not here, where its command may be of the Trainer and of TRL."""
    sheet = file.sheet
    if file.is_trl or sheet.declared or scripts.of(sheet.written) is not None:
        return
    if sheet.given("program") and any(key in sheet.written for key in OF_ITS_OWN):
        program = (sheet.text("program") or "").rsplit("/", 1)[-1]
        file.meaning.note(f"{program} is not here: defaults of TrainingArguments are taken (--from trl: those of TRL)")


def recognise_trl(keys: Mapping[str, Any]) -> int:
    """How many keys are TRL's, or its scripts'."""
    script = scripts.of(keys)
    if script is not None:
        return len(keys) if script.of_trl else 0
    if is_of_others(keys):
        return 0
    program = script_name(str(getattr(keys.get("program"), "value", "") or ""))
    tops = {key.split(".", 1)[0] for key in keys}
    found = len(tops & OF_TRL)
    whose = getattr(keys.get(TRAINER), "value", None)
    if whose is None and program in OF_TRLS_SCRIPTS:
        found += 2
    elif program and (whose == "trainer" or (whose is None and not tops & (OF_TRL - OF_ITS_OWN))):
        return 0
    elif whose == "trl":
        found += 2
    if tops & (OF_SCRIPTS - OF_CONFIGURATIONS) and not found:
        return 0
    if ("model_name_or_path" in keys or "model_name" in keys) and ("dataset_name" in keys or found):
        found += 2
    return found + min(2, len(tops & _COMMON)) if found else 0


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are the plain Trainer's."""
    script = scripts.of(keys)
    if script is not None:
        return 0 if script.of_trl else len(keys)
    if is_of_others(keys) or recognise_trl(keys):
        return 0
    tops = {key.split(".", 1)[0] for key in keys}
    return len(tops & _COMMON) + 2 * len(tops & (OF_SCRIPTS - OF_CONFIGURATIONS))


OF_CONFIGURATIONS = names("model_type config_overrides")  # which configurations of models have too
_COMMON = names(
    """
    per_device_train_batch_size gradient_accumulation_steps num_train_epochs learning_rate output_dir bf16 fp16 optim
    gradient_checkpointing max_grad_norm lr_scheduler_type warmup_ratio warmup_steps save_strategy logging_steps
    report_to model_name_or_path per_device_eval_batch_size fsdp deepspeed
    """
)
