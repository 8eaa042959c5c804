"""torchtitan after 0.2.2: a Python file `config_registry.py`, with a function for each configuration.

Source: pytorch/torchtitan main (b5bcd76c, 2026-08-21), torchtitan/trainer.py (`Trainer.Config`), torchtitan/config/
configs.py (`TrainingConfig`, `ParallelismConfig`, `CompileConfig`), torchtitan/components/loss.py (eight chunks),
torchtitan/distributed/activation_checkpoint.py, torchtitan/models/*/config_registry.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramplan.configs import constructed
from vramplan.configs.programs.torchtitan_shapes import FOLDERS
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import ProgramRelease, names
from vramplan.configs.written import Written

UNDERSTOOD = names(
    """
    model_spec.0 model_spec.attn_backend model_spec.converters model_converters.converters model.name
    activation_checkpoint._class
    training.num_tokens_per_microbatch_per_dp_rank training.num_tokens_per_train_step training.max_context_length
    loss._class loss.num_chunks optimizer._class optimizer.names parallelism.num_pp_microbatches
    parallelism.enable_sequence_parallel training.disable_cuda_graphs
    """
)
WITHOUT_EFFECT = names(
    """
    _class hf_assets_path dataloader.* dataloader profiler.* validator.* loss.loss_fn.* loss.* optimizer.*
    training._class parallelism._class compile._class compile.* checkpoint._class parallelism.spmd_backend debug.*
    parallelism.context_parallel_ptrr_mask_key override.* parallelism.pipeline_parallel_schedule_csv
    model_converters._class activation_checkpoint.* tokenizer.*
    model_spec._class model_spec.* metrics.* comm.* lr_scheduler.* checkpoint.*
    """
)
UNMODELLED = {
    "parallelism.enable_fsdp_symm_mem": "buffers of FSDP in symmetric memory",
    "compile.enable_async_tensor_parallel": "tensor-parallel communication overlaps with products",
    "model_spec.moe_comm_backend": "how tokens reach the experts",
    "model_spec.tp_gemm_backend": "tensor-parallel communication is part of the products",
}
DEFAULTS: dict[str, Any] = {
    "model_spec.attn_backend": "sdpa",
    "model_spec.converters": [],
    "training.num_tokens_per_microbatch_per_dp_rank": 16384,
    "training.num_tokens_per_train_step": -1,
    "training.max_context_length": 2048,
    "activation_checkpoint._class": "SelectiveAC.Config",
    "loss._class": "BaseLoss.Config",
    "loss.num_chunks": 8,
    "optimizer._class": "default_adamw",
    "optimizer.names": [],
    "parallelism.num_pp_microbatches": 1,
    "parallelism.enable_sequence_parallel": True,
    "training.disable_cuda_graphs": False,
}
"""What is another default than that of the TOML files, by torchtitan/config/configs.py and trainer.py."""

GRAPHS = "to_graph_trainer_config"

GONE = (
    "training.local_batch_size",
    "training.global_batch_size",
    "training.seq_len",
    "activation_checkpoint.mode",
    "activation_checkpoint.selective_ac_option",
    "model.name",
    "model.flavor",
)
VERSION, BETWEEN, EARLIER = "main", "2026-04", "2026-03"
OPTION = "activation_checkpoint.selective_ac_option"
DEFAULT_OPTION = "2"
"""What a configuration leaves out where others of its registry name the option."""

OF_EARLIER = "ActivationCheckpointConfig"
"""The class of checkpoints that the registry had as it began; later ones have a class for each kind."""

MODELS = ("deepseek_v3", "gpt_oss", "kimi_k2", "llama3", "llama4", "qwen3_5", "qwen3", "flux", "muse_glimmer")
CHECKPOINTS = {"SelectiveAC.Config": "selective-op", "FullAC.Config": "full", "MemoryBudgetAC.Config": None}


def graphs(sheet: Sheet, meaning: Meaning) -> None:
    """Tell of the CUDA graph that forward and backward are unless a file turns it off.

    Source: torchtitan/trainer.py, `fwd_bwd_fn` and `zero_grad(set_to_none=...)`; torchtitan/distributed/cudagraph.py.
    """
    key = "training.disable_cuda_graphs"
    if not sheet.flag(key):
        kept = "gradients stay between steps, and activations have a pool of their own"
        meaning.lack(key, f"forward and backward are one CUDA graph: {kept}, which is not counted")


def release(defaults: Mapping[str, Any]) -> ProgramRelease:
    """That of the registry, from the defaults of the TOML files."""
    kept = {key: value for key, value in defaults.items() if key not in GONE}
    source = "pytorch/torchtitan main (b5bcd76c), torchtitan/config/configs.py and trainer.py"
    return ProgramRelease(VERSION, "2026-08-21", source, {**kept, **DEFAULTS})


def earlier(defaults: Mapping[str, Any]) -> ProgramRelease:
    """That of the registry as it began, whose classes have the keys of the TOML files."""
    source = "pytorch/torchtitan main of 2026-03, torchtitan/config/configs.py and trainer.py"
    kept = {key: value for key, value in defaults.items() if key not in ("model.name", "model.flavor")}
    own = {key: DEFAULTS[key] for key in ("model_spec.attn_backend", "model_spec.converters", "loss.num_chunks")}
    return ProgramRelease(EARLIER, "2026-03-17", source, {**kept, **own})


def between(defaults: Mapping[str, Any]) -> ProgramRelease:
    """That of the registry since selective checkpoints choose by operation alone.

    Source: pytorch/torchtitan (114151a, 2026-03-23), which takes selective_ac_option away.
    """
    source = "pytorch/torchtitan main (114151a), torchtitan/config/configs.py and distributed/activation_checkpoint.py"
    return ProgramRelease(BETWEEN, "2026-03-23", source, {**earlier(defaults).defaults, OPTION: "op"})


def release_of(keys: Mapping[str, Any]) -> str | None:
    """The release that a file is of, by its keys."""
    if "model_spec.0" not in keys:
        return None
    kind = getattr(keys.get("activation_checkpoint._class"), "value", None)
    if kind != OF_EARLIER and not any(key in keys for key in GONE[:5]):
        return VERSION
    return EARLIER if OPTION in keys else BETWEEN


def from_python(
    text: str, file: str, wanted: str | None, beside: constructed.Beside
) -> tuple[dict[str, Written], str] | None:
    """The settings of one configuration of a registry, and a note on the others; None where it is none.

    Without a name the first configuration counts that is of no model for debugging.
    """
    if not any(word in text for word in ("Trainer.Config", "TrainerConfig", "model_registry(")):
        return None
    kept = ("model_registry", "default_adamw", "_dist_muon_optimizer", GRAPHS)
    module = constructed.Module(text, file, beside, kept=kept)
    name, made, others = constructed.chosen(module, wanted, lambda name: "debug" not in name)
    made = _of_graphs(made)
    found = constructed.settings(made, file)
    model = next((model for model in MODELS if model in name or model.replace("_", "") in name), None)
    source = re.search(r"from \.model import (\w+?)Model\b", text)
    if model is None and source is not None:
        model = next((known for known in MODELS if known.replace("_", "") == source[1].lower()), source[1].lower())
    folder = Path(file).parent.name  # torchtitan/models/FOLDER/config_registry.py
    if folder in FOLDERS:
        model = FOLDERS[folder]
    found["model.name"] = Written(model or name, file, made.line)
    if "selective_ac_option" in text and OPTION not in found:
        found[OPTION] = Written(DEFAULT_OPTION, file, made.line)
    found |= _groups(made, file)
    return found, constructed.note_on(file, name, others)


def _of_graphs(made: constructed.Constructed) -> constructed.Constructed:
    """The configuration that one of the graph trainer copies, with what is changed of the copy.

    Source: torchtitan/experiments/graph_trainer/configs.py, to_graph_trainer_config: checkpoints are selective.
    """
    copied = made.positional[0] if made.name == GRAPHS and made.positional else None
    if not isinstance(copied, constructed.Constructed):
        return made
    changed = {name: one for name, one in made.fields.items() if getattr(one[0], "name", None) != "replace"}
    fields = {**copied.fields, **changed}
    if fields.get("activation_checkpoint", (None, 0))[0] is not None:
        selective = constructed.Constructed("SelectiveAC.Config", made.line)
        fields["activation_checkpoint"] = (selective, made.line)
    return replace(copied, fields=fields)


def _groups(made: constructed.Constructed, file: str) -> dict[str, Written]:
    """The optimizers of an `OptimizersContainer.Config`, which has one for each group of parameters."""
    container, line = made.fields.get("optimizer", (None, 0))
    if not isinstance(container, constructed.Constructed):
        return {}
    groups = container.fields.get("param_groups", ([], 0))[0]
    if not isinstance(groups, list):
        return {}
    named = [
        one.fields.get("optimizer_name", (None, 0))[0] for one in groups if isinstance(one, constructed.Constructed)
    ]
    found = list(dict.fromkeys(name for name in named if isinstance(name, str)))
    return {"optimizer.names": Written(found, file, line)} if found else {}


def batch(sheet: Sheet, meaning: Meaning, stages: int) -> None:
    """The length and the batch: tokens of a micro-batch by the length of a row."""
    length = sheet.count("training.max_context_length") or 1
    tokens = sheet.count("training.num_tokens_per_microbatch_per_dp_rank") or length
    total = sheet.count("training.num_tokens_per_train_step") or -1
    of = ("training.num_tokens_per_microbatch_per_dp_rank", "training.max_context_length")
    meaning.say("sequence_length", length, of[1])
    pieces = sheet.count("parallelism.num_pp_microbatches") or 1
    micro = max(1, tokens // length)
    if stages > 1:
        meaning.say("micro_batch_size", max(1, micro // pieces), *of, "parallelism.num_pp_microbatches")
        meaning.say("gradient_accumulation_steps", pieces, "parallelism.num_pp_microbatches")
        return
    meaning.say("micro_batch_size", micro, *of)
    if total > 0:
        meaning.say("global_batch_size", max(1, total // length), "training.num_tokens_per_train_step")
    else:
        meaning.say("gradient_accumulation_steps", 1, "training.num_tokens_per_train_step")


def has_class_of_checkpoints(sheet: Sheet) -> bool:
    """Whether checkpoints have a class for each kind, as since June 2026, or are turned off by None.

    Source: pytorch/torchtitan (1c0fde2b6, 2026-06-26), torchtitan/distributed/activation_checkpoint.py.
    """
    is_off = "activation_checkpoint" in sheet and not sheet.given("activation_checkpoint")
    return is_off or sheet.text("activation_checkpoint._class") in CHECKPOINTS


def checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    """What is recomputed, by the class of `activation_checkpoint`."""
    key = "activation_checkpoint._class"
    if "activation_checkpoint" in sheet and not sheet.given("activation_checkpoint"):
        meaning.say("activation_checkpointing", "none", "activation_checkpoint")
        return
    word = sheet.word(key, CHECKPOINTS)
    if word is None:
        meaning.say("activation_checkpointing", "none", key)
        meaning.lack(key, "the compiler chooses within a memory budget, and nothing is counted as recomputed")
        return
    meaning.say("activation_checkpointing", word, key)
    if word == "selective-op":
        meaning.say("every_second_matmul", True, key)


def loss(sheet: Sheet, meaning: Meaning) -> None:
    """The head and the loss in chunks, where the loss is wrapped."""
    chunks = sheet.count("loss.num_chunks")
    if (sheet.text("loss._class") or "").startswith("Chunked"):
        meaning.say("loss", f"chunked:{chunks}", "loss._class", "loss.num_chunks")


def optimizer(sheet: Sheet, meaning: Meaning) -> None:
    """AdamW, fused; or Muon, by the name of the function that makes it or by those of its groups."""
    said = (sheet.text("optimizer._class"), sheet.text("optimizer.param_groups"))  # another container's groups
    name = " ".join([*(one or "" for one in said), *(sheet.texts("optimizer.names") or [])]).lower()
    word = next((word for word in ("muon", "adamw") if word in name), None)
    if word is None:
        meaning.ask("optimizer", f"optimizer={sheet.text('optimizer._class')} is not followed (--optimizer NAME)")
        return
    meaning.say("optimizer", word, "optimizer._class")
    if word == "adamw":
        meaning.say("optimizer_implementation", "fused", "optimizer._class")
