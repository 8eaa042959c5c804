"""Adapters of PEFT beside LoRA, by the configurations that scripts construct and that PEFT keeps beside its weights.

Source: peft 0.21.2, tuners/*/config.py (names and defaults), utils/peft_types.py (PeftType).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog import scalars
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.shell import shown, unknowns
from vramplan.tuples import NamedTuple

BELOW = "peft_config."
"""What the settings of such an adapter begin with, as Weights & Biases has them."""

KIND = f"{BELOW}peft_type"
RANK = {"r": "rank"}
LAYERS = {"target_modules": "targets", "modules_to_save": "modules_to_save"}
BIASED = {"bias": "bias", **LAYERS}
TOKENS = {"num_virtual_tokens": "virtual_tokens"}
LENGTHS = {"encoder_hidden_size": "encoder_hidden_size", **TOKENS}


class PeftKind(NamedTuple):
    """What PEFT calls a kind of adapter, its configuration, and the keys of a job that are arguments of it.

    `in_parts`: an argument that gives the rank as a number of parts of each layer, which its sizes would tell.
    """

    word: str
    name: str
    keys: Mapping[str, str]
    in_parts: str | None = None


KINDS: Mapping[str, PeftKind] = {
    "ADALORA": PeftKind(
        "adalora", "AdaLoraConfig", {"init_r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout", **BIASED}
    ),
    "IA3": PeftKind("ia3", "IA3Config", {"feedforward_modules": "feedforward_targets", **LAYERS}),
    "OFT": PeftKind("oft", "OFTConfig", {"oft_block_size": "rank", **BIASED}, "r"),
    "VERA": PeftKind("vera", "VeraConfig", {**RANK, "vera_dropout": "dropout", **BIASED}),
    "LOHA": PeftKind("loha", "LoHaConfig", {**RANK, "alpha": "alpha", **LAYERS}),
    "LOKR": PeftKind(
        "lokr", "LoKrConfig", {**RANK, "alpha": "alpha", "decompose_factor": "decompose_factor", **LAYERS}
    ),
    "HRA": PeftKind("hra", "HRAConfig", {**RANK, **BIASED}),
    "BOFT": PeftKind("boft", "BOFTConfig", {"boft_block_size": "rank", **BIASED}, "boft_block_num"),
    "FOURIERFT": PeftKind("fourierft", "FourierFTConfig", {"n_frequency": "frequencies", **BIASED}),
    "RANDLORA": PeftKind(
        "randlora", "RandLoraConfig", {**RANK, "randlora_alpha": "alpha", "randlora_dropout": "dropout", **BIASED}
    ),
    "MISS": PeftKind("miss", "MissConfig", {**RANK, "miss_dropout": "dropout", **BIASED}),
    "LN_TUNING": PeftKind("ln-tuning", "LNTuningConfig", LAYERS),
    "TRAINABLE_TOKENS": PeftKind("trainable-tokens", "TrainableTokensConfig", {"token_indices": "trainable_tokens"}),
    "PROMPT_TUNING": PeftKind("prompt-tuning", "PromptTuningConfig", TOKENS),
    "P_TUNING": PeftKind("p-tuning", "PromptEncoderConfig", LENGTHS),
    "PREFIX_TUNING": PeftKind(
        "prefix-tuning", "PrefixTuningConfig", {"prefix_projection": "prefix_projection", **LENGTHS}
    ),
}
BY_NAME = {kind.name: word for word, kind in KINDS.items()}
"""The kinds by their configurations."""


def taken(peft_type: str) -> tuple[str, ...]:
    """The arguments of a configuration that decide something of a job."""
    kind = KINDS[peft_type]
    return (*kind.keys, *filter(None, [kind.in_parts]))


def other_adapter(file: TrainingFile) -> bool:
    """Say an adapter that is none of LoRA's, by the settings of its configuration; whether there is one."""
    sheet, meaning = file.sheet, file.meaning
    word = (sheet.text(KIND) or "").upper()
    if word not in KINDS:
        return False
    kind = KINDS[word]
    meaning.say("adapter.kind", kind.word, KIND)
    for argument, key in kind.keys.items():
        setting = BELOW + argument
        value = sheet.get(setting)
        if isinstance(value, str) and unknowns(value):
            meaning.ask(f"adapter.{key}", f"{argument} is {shown(value)}, which only the caller knows")
        elif value not in (None, [], "none"):
            meaning.say(f"adapter.{key}", _said(key, value), setting)
    parts = sheet.get(f"{BELOW}{kind.in_parts}") if kind.in_parts else None
    if parts:
        meaning.job.pop("adapter.rank", None)
        meaning.ask("adapter.rank", f"{kind.in_parts} divides each layer in {parts} parts")
    if "num_virtual_tokens" in kind.keys:
        meaning.ask("adapter.virtual_tokens", "the configuration of the adapter does not say it")
    return True


def bias_of(value: Any) -> str | None:
    """PEFT's word for the biases that are trained as a job has it; None for none, or for what is no such word.

    Its own word for those of the targets begins with the kind, and PEFT looks at the end of it alone.
    """
    word = str(value)
    return "all" if word == "all" else "targets" if word.endswith("_only") else None


def say_tokens(sheet: Sheet, meaning: Meaning, key: str) -> None:
    """Say how many rows of the table of the tokens are trained: a list of them, or one for each table."""
    given: Any = sheet.get(key)
    of_tables = sheet.under(key)
    if given is None and of_tables:
        given = next(iter(of_tables.values()))
        if len(of_tables) > 1:
            meaning.lack(key, f"rows of {', '.join(of_tables)}, and those of the first are counted")
    if isinstance(given, str):
        what = shown(given) if unknowns(given) else repr(given)
        meaning.ask("adapter.trainable_tokens", f"{key} is {what}: how many there are, only the caller knows")
    elif given:
        meaning.say("adapter.trainable_tokens", len(given), key)


def _said(key: str, value: Any) -> Any:
    """A value as a job has it: targets are a list, or the word for all linear layers."""
    if key in ("targets", "feedforward_targets", "modules_to_save"):
        names = value.split(",") if isinstance(value, str) else list(value)
        return names[0] if key == "targets" and names == ["all-linear"] else [name.strip() for name in names]
    if key == "bias":
        return bias_of(value)
    if key == "trainable_tokens":
        return len(value)
    if isinstance(value, str):  # of a command line
        value = scalars.plain_value(value)
    return int(value) if isinstance(value, float) and key == "alpha" and value == int(value) else value
