"""Which of TRL's trainers a file is for, and the loss that it computes.

Source: huggingface/trl 1.16.0, trl/trainer/{sft,dpo,kto,orpo,cpo}_config.py and _trainer.py.
"""

from __future__ import annotations

import re

from vramplan.configs.own_arguments import TASK
from vramplan.configs.programs import preferences, sampling, trainer
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.programs.arguments.keys import CLASSIFIER, OF_PAIRS, script_name
from vramplan.configs.shell import shown, unknowns
from vramplan.configs.table import names
from vramplan.errors import near_matches

DPO_LOSSES = names(
    """
    sigmoid hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_pair aot_unpaired discopop apo_zero apo_down
    sft sigmoid_norm kto_pair
    """
)

SFT_LOSSES = ("nll", "dft", "chunked_nll")

SFT, DPO, GKD = "sft", "dpo", "gkd"
OTHERS = ("grpo", "kto", "orpo", "cpo", "ppo", "reward", "rloo", GKD, "online_dpo")

OF_UNSLOTH = (SFT,)
"""What is counted with Unsloth's own kernels."""

OF_FILES = re.compile(r"(^|[_-])(?P<task>dpo|kto|orpo|cpo|simpo|grpo|reward)([_-][^/]*)?\.(ya?ml|json)$")
"""What files of arguments are called that a script hands to a trainer of TRL."""

OF_DPO = ("loss_type", "precompute_ref_log_probs", "rpo_alpha")
"""Keys that DPO's configuration alone has, of those by which it is known."""

OF_PREFERENCES = ("max_prompt_length", "max_completion_length")
"""Lengths that DPO, KTO, ORPO and CPO have beside `max_length`, up to TRL 0.24 and in `trl.experimental` after it."""

TRAINER = re.compile(r"(?m)^\s*#.*\b(KTO|ORPO|CPO|DPO)(?:Trainer|Config)\b")
"""A comment that says whose arguments follow, as recipes of the alignment handbook have it."""

SAMPLED = ("grpo", "rloo")  # whose trainers sample completions of a length beside training

PREFERENCES = ("kto", "orpo", "cpo", "reward")  # losses of jobs, beside DPO


def task_of(file: TrainingFile) -> str:
    """Which of TRL's trainers the file is for, by the script, else by its keys."""
    sheet = file.sheet
    program = script_name(sheet.text("program") or "").removesuffix(".py").lower()
    of_script = sheet.declared.get(TASK)
    if of_script in (DPO, *PREFERENCES):
        return str(of_script)
    if not file.is_trl:  # a script of its own around the Trainer, whose name says what it trains
        words = re.split(r"[_-]", program)
        return DPO if DPO in words else "reward" if "reward" in words else SFT
    for word in (*OTHERS, DPO, SFT):
        if program == word or program.startswith((word + "_", word + "-")) or program.endswith("_" + word):
            return word
    if sheet.given("teacher_model_name_or_path"):
        return GKD
    told = TRAINER.search(sheet.source)
    if told is not None and not sheet.given("loss_type"):
        return preferences.method(sheet, of_its_name=True) or told[1].lower()
    samples = sheet.given("max_completion_length") and not sheet.given("max_length")  # which KTO, ORPO and CPO have too
    if samples or any(sheet.given(key) for key in ("num_generations", "reward_funcs", "log_completions")):
        return "grpo"
    if sheet.given("reward_model_path") or (sheet.given("response_length") and sheet.given("total_episodes")):
        return "ppo"
    if sheet.given("desirable_weight") or sheet.given("undesirable_weight"):
        return "kto"
    if sheet.given("gamma_beta_ratio"):
        return "cpo"
    losses = sheet.texts("loss_type") or []
    if any(sheet.given(key) for key in ("beta", *OF_PREFERENCES, "precompute_ref_log_probs", "rpo_alpha")):
        alone = any(sheet.given(key) for key in OF_DPO) or "program" in sheet.written
        return DPO if alone else preferences.method(sheet) or DPO
    if any(word in DPO_LOSSES for word in losses):
        return DPO
    asked = ASKED.get(str(sheet.beside.get("loss")))
    return asked if asked is not None and of_pairs(file) is not None else SFT


ASKED = {"dpo": DPO, "kto": "kto", "orpo": "orpo", "simpo": "cpo", "reward": "reward"}
"""Losses that may be asked for beside a file, and the trainers that compute them."""

OF_TEXTS = names(
    """
    packing packing_strategy padding_free eval_packing max_seq_length completion_only_loss assistant_only_loss
    dataset_text_field neftune_noise_alpha dataset_kwargs
    """
)
"""Keys that SFT's configuration has, and none for pairs of answers."""


def of_pairs(file: TrainingFile) -> str | None:
    """What says that the data are pairs of answers where no key says which trainer reads them."""
    sheet = file.sheet
    if not file.is_trl or "program" in sheet.written or any(sheet.given(key) for key in OF_TEXTS):
        return None
    return preferences.sign(sheet)


def is_simpo(file: TrainingFile, losses: list[str]) -> bool:
    """By TRL's word, or by the key that the trainer of SimPO's authors has and no other."""
    return file.sheet.given("gamma_beta_ratio") or bool({*losses} & {"simpo", "alphapo"})


def losses(file: TrainingFile, task: str, peft: bool) -> None:
    """Say packing, the loss and its reference model."""
    if task not in (DPO, "kto") and file.sheet.text("ref_model"):
        file.meaning.lack("ref_model", OF_NO_OTHER)
    sheet, meaning = file.sheet, file.meaning
    packing = bool(sheet.flag("packing"))
    meaning.say("packing", packing, "packing")
    if packing:
        sheet.text("packing_strategy")
    elif sheet.flag("padding_free"):
        meaning.note("padding_free: a batch is one row without padding; its longest rows are counted")
    sheet.get("padding_free"), sheet.get("packing_strategy"), sheet.number("beta")
    liger = sum(bool(sheet.flag(key)) for key in ("use_liger_kernel", "use_liger_loss", "use_liger")) > 0
    kinds = sheet.texts("loss_type") or []
    _cached(file, task)
    unknown: list[str] = []
    classifies = sheet.flag(CLASSIFIER)
    for key in ("num_generations", "max_completion_length", "desirable_weight", "precompute_ref_log_probs"):
        sheet.get(key)
    sheet.get("force_use_ref_model")
    asks = task == SFT and "loss" not in sheet.beside
    pairs = of_pairs(file) if asks else None
    shape = sheet.shape_of(sheet.text("model_name_or_path") or "") if asks and file.is_trl else None
    if shape is not None and shape.task == "mlm" and "program" not in sheet.written:
        what = "the model is an encoder, whose loss of masked words is counted"
        meaning.note(f"{what}: --loss classification is that of a script that classifies texts")
    if task == SFT:
        if classifies:
            meaning.say("loss", "classification", CLASSIFIER)
        elif sheet.given(OF_PAIRS):
            what = "is somebody's own, with a loss over pairs of answers by its name"
            meaning.ask("loss", f"{sheet.text(OF_PAIRS)} {what}: --loss standard is the step of SFT (--loss dpo)")
        elif pairs is not None:
            meaning.ask("loss", f"{pairs}; {preferences.ASKED}")
        elif liger:
            trainer.liger(sheet, meaning, "use_liger_kernel")
        elif file.is_trl and "chunked_nll" in kinds:
            meaning.lack(
                "loss_type",
                "chunked_nll computes the logits of some tokens at a time, and all at once are counted (--loss "
                "tiled counts them as TRL 1.16 does, which makes none)",
            )
        unknown = [word for word in kinds if word not in SFT_LOSSES] if sheet.given("loss_type") and file.is_trl else []
    elif task == DPO:
        meaning.say("loss", "dpo", "loss_type" if sheet.given("loss_type") else "beta")
        told = any(sheet.given(key) for key in ("program", *OF_DPO)) or preferences.method(sheet)
        if not told and not TRAINER.search(sheet.source):
            meaning.note(
                "beta, max_prompt_length: keys of DPO, KTO, ORPO and CPO alike; DPO is taken (--loss orpo, ...)"
            )
        _reference(file, peft=peft)
        meaning.say("padding", "right", "program")
        if liger:
            meaning.lack("use_liger_kernel", "Liger's fused DPO loss, and all logits are counted")
        unknown = [word for word in kinds if word not in (*DPO_LOSSES, *SFT_LOSSES)]
    elif task in PREFERENCES:
        kind = "simpo" if task == "cpo" and is_simpo(file, kinds) else task
        meaning.say("loss", kind, "program" if sheet.given("program") else "beta")
        if task == "kto":
            _reference(file, peft=peft)
        meaning.say("padding", "right", "program")
    elif task == "grpo":
        sampling.say_policy(meaning, "program" if sheet.given("program") else "num_generations")
        if sheet.given("beta") and sheet.number("beta"):
            sampling.say_reference(meaning, "beta", peft=peft)
    elif task == GKD:
        _taught(file)
    else:
        meaning.say("padding", "right", "program")
        beside = "the reward and value models" if task == "ppo" else ""
        sampling.ask_loss(meaning, task.upper().replace("_", " "), more=beside)
    if task in SAMPLED:
        sampling.ask_share(sheet, meaning)
    if liger and task != SFT:
        trainer.liger(sheet, meaning, "use_liger_kernel", loss=False)
    known = SFT_LOSSES if task == SFT else sorted(DPO_LOSSES)
    for word in unknown:
        near = near_matches(word, known, 0.75)
        if task == SFT or near is not None:
            sheet.problem("loss_type", f"{word!r} is not understood", near or ", ".join(known))
        else:  # of a trainer made from TRL's
            meaning.job.pop("loss", None)
            meaning.ask("loss", f"loss_type: {word} is none of TRL's (--loss dpo)")


OF_NO_OTHER = "a model that the script may load beside the trained one, and none is counted"


def _reference(file: TrainingFile, *, peft: bool) -> None:
    """Say what the trained model is compared with; beside an adapter the model without it, unless there is another.

    Source: huggingface/trl 1.16.0, trl/trainer/dpo_trainer.py (`ref_model`).
    """
    sheet = file.sheet
    precomputed, own = sheet.flag("precompute_ref_log_probs"), sheet.flag("force_use_ref_model")
    how = "precomputed" if precomputed else "adapter-off" if peft and not own else "model"
    key = "precompute_ref_log_probs" if precomputed else "force_use_ref_model" if peft and own else "use_peft"
    file.meaning.say("dpo_reference", how, key)
    if how == "model":
        trainer.other_reference(sheet, file.meaning, "ref_model")
    elif sheet.text("ref_model"):
        file.meaning.lack("ref_model", OF_NO_OTHER)


def _cached(file: TrainingFile, task: str) -> None:
    """Whether the model returns keys and values: TrainingArguments say it, and checkpoints turn it off.

    Source: huggingface/transformers 5.23.0, src/transformers/trainer.py, `self.model.config.use_cache`;
    modeling_layers.py, GradientCheckpointingLayer. The trainers of preferences turn it off themselves.
    """
    sheet = file.sheet
    asked = bool(sheet.flag("use_cache"))
    if asked and task == SFT and not sheet.flag(CLASSIFIER) and not sheet.flag("gradient_checkpointing"):
        file.meaning.say("use_cache", True, "use_cache")


def _taught(file: TrainingFile) -> None:
    """GKDTrainer: the teacher, and between which predictions the divergence is.

    Source: trl 1.16.0, experimental/gkd/gkd_config.py and gkd_trainer.py.
    """
    sheet, meaning = file.sheet, file.meaning
    key, beta = "teacher_model_name_or_path", sheet.number("beta", 0.5)
    teacher = sheet.text(key)
    if teacher is None:
        meaning.ask("teacher", f"the file has no {key}")
    else:
        meaning.say("teacher", teacher, key)
    word = {0.0: "forward-kl", 1.0: "reverse-kl"}.get(beta or 0.0, "jsd")
    meaning.say("distillation", word, "beta")
    meaning.say("padding", "right", "program")
    if sheet.number("lmbda", 0.5) or sheet.flag("seq_kd"):
        meaning.lack("lmbda", "answers that a model gives before a step, and the step alone is counted")


def evaluation(file: TrainingFile) -> None:
    """Leave an evaluation open, with its size."""
    sheet, meaning = file.sheet, file.meaning
    when = sheet.text("eval_strategy") if sheet.given("eval_strategy") else sheet.text("evaluation_strategy", "no")
    sheet.get("eval_strategy"), sheet.get("do_eval")
    evaluates = bool(when) and str(when).lower() not in ("no", "false")
    key = "per_device_eval_batch_size"
    item = sheet.written.get(key)
    if item is not None and isinstance(item.value, str) and unknowns(item.value):
        del sheet.written[key]
        sheet.taken.add(key)
        if evaluates:
            meaning.ask("eval_batch_size", f"{key} is {shown(item.value)}, which only the caller knows")
        return
    size = sheet.count(key)
    if evaluates and size:
        meaning.ask(
            "eval_batch_size",
            f"it evaluates with {size} sequences: --eval-batch-size {size} says whether that exceeds training",
        )
