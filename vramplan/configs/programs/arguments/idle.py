"""Commands and files that train nothing, or a model in code of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vramplan.configs.programs.arguments import llava
from vramplan.configs.sheet import Sheet
from vramplan.configs.written import Written

GIVE = "give the file of a training run"

WITHOUT_TRAINING = re.compile(
    r"(.*_)?(?P<kind>chat|chatbot|cli_demo|web_demo|demo|infer|inference|evaluate|evaluation|evaluator|eval|merge|export|serve)"
    r"([_-].*)?\.py|.*(merge_lora|_to_hf)\w*\.py|(calculate|compute|extract)_\w*(loss|score|logit|embed|perplexity)\w*\.py"
)
"""What scripts are called that train nothing."""

TRAINING = re.compile(r"(fine-?tune|(^|[_-])(pre)?train|(^|[_-])(sft|dpo|mpo|kto|orpo|grpo)([_.-]|$))")
"""Words in the name of a script that trains a model to chat, as `own_chat_finetune.py`."""

OF_FILTERS = ("pass_rate_min", "pass_rate_max")
"""Arguments of open-r1's script that filters a data set. Source: huggingface/open-r1 (1416fa0), scripts/pass_rate_*."""

IDLE = "the command answers or evaluates and trains nothing"
_IDLE_SWITCHES = re.compile(r"(do|only)_(infer|inference|generate)|(infer|inference|eval|evaluate|test|predict)_only")
"""Switches of scripts that both train and answer, with which they do the latter."""


def idle_switch(written: Mapping[str, Written]) -> str | None:
    """The switch of a command by which its script trains nothing; None where there is none, or where it trains too."""
    is_on = {key for key, item in written.items() if item.value is True or str(item.value).lower() == "true"}
    return None if "do_train" in is_on else next((key for key in is_on if _IDLE_SWITCHES.fullmatch(key)), None)


OF_RLHF = "actor_zero_stage"
"""An argument of step 3 of DeepSpeed-Chat. Source: deepspeedai/DeepSpeedExamples, training/step3*/main.py."""

OF_LLAVA = ("vision_tower", "mm_projector_type", "mm_vision_select_layer")
"""Arguments of LLaVA's own code and of scripts made from it, which put a language model behind an encoder."""


HYDRAS = re.compile(r"\$\{[\w.]+\}")
"""A value that stands in another file of a configuration of Hydra."""


def refuse_without_training(sheet: Sheet) -> None:
    """Refuse what trains nothing, parts of a run, and models that are made in code of their own; in one sentence."""
    parts = [key for key, item in sheet.written.items() if HYDRAS.fullmatch(str(item.value).strip())]
    if sheet.text("_target_") and parts:
        message = f"the file is a part of a configuration of Hydra, and {parts[0]} stands in another"
        sheet.refuse(parts[0], message, "give what the program prints with --cfg job")
        return
    program = (sheet.text("program") or "").replace("\\", "/").rsplit("/", 1)[-1]
    idle = WITHOUT_TRAINING.fullmatch(program)
    if idle and not (str(idle["kind"]).startswith("chat") and TRAINING.search(program)):
        sheet.refuse("program", f"{program} answers, evaluates or merges and trains nothing", GIVE)
    for key in OF_FILTERS:
        if sheet.given(key):
            sheet.refuse(key, "the file filters a data set and trains nothing", GIVE)
            return
    idle_by = idle_switch(sheet.written)
    if idle_by is not None:
        sheet.refuse(idle_by, IDLE, GIVE)
        return
    if program == "main.py" and sheet.given(OF_RLHF):
        message = "step 3 of DeepSpeed-Chat is not modelled: its actor generates answers between steps"
        sheet.refuse(OF_RLHF, message, "give the file of step 1 or 2")
        return
    own = next((key for key in OF_LLAVA if sheet.given(key)), None)
    if own is not None and not llava.is_modelled(sheet):
        message = "a language model behind an encoder of images, in the code of LLaVA, is not modelled"
        sheet.refuse(own, message, "--model llava-1.5-7b without the file is LLaVA as Transformers computes it")
