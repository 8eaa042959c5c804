"""How the devices of a file share the model: DeepSpeed, FSDP, or DistributedDataParallel.

Source: huggingface/transformers 5.23.0, src/transformers/training_args.py, _process_fsdp_args.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import accelerate, trainer, zero
from vramplan.configs.programs.arguments.file import TrainingFile
from vramplan.errors import near_matches


def strategy(file: TrainingFile) -> None:
    """`deepspeed` and `fsdp` of TrainingArguments, and the GPUs that a launcher starts."""
    sheet, meaning = file.sheet, file.meaning
    path = sheet.get("deepspeed_config", sheet.get("deepspeed"))  # a script for DeepSpeed itself has both
    facts: Mapping[str, Any] | None = zero.inline_facts(sheet, "deepspeed")
    if facts is None and isinstance(path, str) and path.strip():
        meaning.pointed["deepspeed"] = path
        facts = zero.facts_of(sheet, path, "deepspeed")
        if facts is None and not file.sharding:
            meaning.ask("parallel.sharding", f"deepspeed: {path} is not here; give that file too")
    file.by_deepspeed = file.by_deepspeed or facts is not None or "deepspeed" in meaning.pointed
    if facts is not None:
        zero.deepspeed(sheet, meaning, facts, "deepspeed")
        file.half_of_zero = next((half for half in ("bf16", "fp16") if facts.get(half) is True), None)
        file.sharding, file.sharding_of = meaning.job["parallel.sharding"].value, ("deepspeed",)
    fsdp(file)
    devices = trainer.devices(sheet)
    if devices:
        keys = tuple(key for key in trainer.LAUNCHED if sheet.given(key))
        meaning.say("parallel.data", devices, *keys)
        is_open = "parallel.sharding" in meaning.open  # of a file of DeepSpeed that is not here
        if devices > 1 and not file.sharding and not is_open:
            file.sharding = "ddp"
            meaning.say("parallel.sharding", "ddp", *keys)


def fsdp(file: TrainingFile) -> None:
    """`fsdp` turns it on; `fsdp_config` alone does nothing."""
    sheet, meaning = file.sheet, file.meaning
    below = {key.removeprefix("fsdp_"): value for key, value in sheet.under("fsdp_config").items()}
    whole = sheet.get("fsdp_config")
    value = sheet.get("fsdp")
    for key in ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"):
        sheet.get(key)
    options = [str(word) for word in value] if isinstance(value, list) else str(value or "").replace(",", " ").split()
    if not options or options[0].lower() in ("false", "none"):
        if below or whole:
            meaning.note("fsdp_config: without fsdp the Trainer does not shard")
        return
    if isinstance(whole, str) and whole.strip():
        meaning.pointed["fsdp_config"] = whole
        written = sheet.opened(whole)
        if written is None:
            meaning.ask("parallel.fsdp_version", f"fsdp_config: {whole} is not here; give that file too")
        below = {key.removeprefix("fsdp_"): item.value for key, item in (written or {}).items()}
    for key in below:
        if key not in _FSDP_KEYS and not key.startswith("xla"):
            sheet.problem(f"fsdp_config.{key}", "is not understood", near_matches(key, _FSDP_KEYS))
    for word in options:
        if word.lower() not in (*_FSDP_OPTIONS, "true"):
            sheet.problem("fsdp", f"{word!r} is not understood", ", ".join(_FSDP_OPTIONS))
    word = next((accelerate.SHARDINGS[option] for option in options if option in accelerate.SHARDINGS), "fsdp")
    given = below.get("reshard_after_forward", below.get("sharding_strategy"))
    if word == "fsdp" and given is not None:
        word = accelerate.SHARDINGS.get(str(given).lower(), "fsdp")
    if word == "hsdp":
        word = f"hsdp:{accelerate.NODE}"
        meaning.note(f"hybrid_shard shards within a node; a node of {accelerate.NODE} GPUs is assumed")
    version = below.get("version") or sheet.release.defaults["fsdp_config.version"]
    meaning.say("parallel.sharding", word, "fsdp")
    if word != "ddp":
        meaning.say("parallel.fsdp_version", file.whole("fsdp_config", version, 2), "fsdp_config.version")
        trainer.limit_of_gathers(sheet, meaning, below.get("limit_all_gathers"))
        for before in ("fsdp_config.", "fsdp_config.fsdp_", "fsdp_"):
            trainer.wrapping(sheet, meaning, f"{before}auto_wrap_policy", f"{before}transformer_layer_cls_to_wrap")
    file.sharding, file.sharding_of = word, ("fsdp",)
    if "offload" in options or true(below.get("offload_params")) or true(below.get("cpu_offload")):
        meaning.say("offload", ["parameters", "gradients", "optimizer"], "fsdp")
    if true(below.get("activation_checkpointing")):
        meaning.say("activation_checkpointing", "full", "fsdp_config.activation_checkpointing")


def true(value: Any) -> bool:
    """Whether a value within a mapping is true, or the word."""
    return str(value).lower() == "true"


_FSDP_KEYS = (
    *("version", "reshard_after_forward", "cpu_offload", "offload_params", "activation_checkpointing"),
    *("cpu_ram_efficient_loading", "state_dict_type", "auto_wrap_policy", "transformer_layer_cls_to_wrap"),
    *("min_num_params", "sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers"),
    *("use_orig_params", "sync_module_states", "transformer_cls_names_to_wrap", "xla", "xla_fsdp_settings"),
)

_FSDP_OPTIONS = (
    "full_shard",
    "shard_grad_op",
    "no_shard",
    "hybrid_shard",
    "hybrid_shard_zero2",
    "offload",
    "auto_wrap",
)
