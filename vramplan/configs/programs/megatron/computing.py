"""How a Megatron command computes: number formats, the optimizer, checkpoints and the kernel of attention.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from vramplan.configs.programs import megatron_beside as beside
from vramplan.configs.programs.megatron import experts
from vramplan.configs.programs.megatron.asked import MegatronMeaning
from vramplan.configs.programs.megatron.kinds import Kind
from vramplan.configs.programs.megatron.recomputing import whole_blocks
from vramplan.configs.sheet import Meaning

CORE = "core_attn"  # what is recomputed where nothing says which modules are
RECOMPUTING = (
    *("recompute-granularity", "recompute-activations", "checkpoint-activations", "recompute-method"),
    *("activations-checkpoint-method", "activations-checkpoint-granularity"),
)
OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd-momentum", "muon": "muon", "dist_muon": "muon"}


def numbers_of(asked: MegatronMeaning) -> None:
    """Say precision, optimizer and clipping."""
    sheet, meaning = asked.sheet, asked.meaning
    half = "bf16" if sheet.flag("bf16") else "fp16" if sheet.flag("fp16") else None
    fp8 = sheet.text("fp8_format") or sheet.text("fp8") or sheet.flag("fp8_hybrid") or sheet.flag("fp8_e4m3")
    if fp8:
        meaning.say("precision", "fp8", "fp8_format")
    elif half is None and (option := asked.undecided("bf16", "fp16")) is not None:
        meaning.ask("precision", f"the script adds --{option} where its caller says so")
    else:
        meaning.say("precision", f"mixed-{half}" if half else "fp32", "bf16", "fp16")
    _gradients(asked, half)
    word = sheet.word("optimizer", OPTIMIZERS)
    if word:
        said(meaning, word, "optimizer")
    else:
        meaning.note(f"optimizer: a job has no word for {sheet.text('optimizer')}")
    sheet.number("sgd_momentum")
    meaning.say("max_gradient_norm", sheet.number("clip_grad") or None, "clip_grad")


def said(meaning: Meaning, word: str, key: str) -> None:
    """Say the optimizer; Muon's states are those of a momentum.

    Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), core/optimizer/muon.py: a momentum in fp32 for each matrix.
    """
    if word == "muon":
        word = "sgd-momentum"
        meaning.lack(key, "Muon: its momentum is counted for all weights, and what it orthogonalizes with is not")
    meaning.say("optimizer", word, key)


def _gradients(asked: MegatronMeaning, half: str | None) -> None:
    """Say in which element type gradients are summed, where it is not what the precision has (validate_args)."""
    sheet, key = asked.sheet, "gradient_dtype"
    if sheet.flag("deepspeed"):  # whose engine sums them
        return
    wide, narrow = bool(sheet.flag("accumulate_allreduce_grads_in_fp32")), bool(sheet.flag("grad_reduce_in_bf16"))
    narrow = narrow or (not wide and sheet.text("main_grads_dtype") in ("bf16", "fp16"))
    if half == "bf16" and narrow:
        asked.meaning.say(key, half, "grad_reduce_in_bf16", "main_grads_dtype")
    elif half == "fp16" and wide:
        asked.meaning.say(key, "fp32", "accumulate_allreduce_grads_in_fp32")


def checkpointing(asked: MegatronMeaning) -> None:
    """Say what is recomputed."""
    sheet, meaning = asked.sheet, asked.meaning
    granularity = sheet.text("recompute_granularity")
    method = sheet.text("recompute_method") or sheet.text("activations_checkpoint_method")
    old = sheet.flag("checkpoint_activations") or bool(sheet.text("activations_checkpoint_method"))
    each = asked.count("recompute_num_layers") or 1
    for key in ("activations_checkpoint_num_layers", "checkpoint_num_layers"):
        each = asked.count(key) or each
    if sheet.flag("recompute_activations") or granularity == "selective":
        modules = sheet.texts("recompute_modules") or [CORE]
        word = "selective" if CORE in modules else "none"
        meaning.say("activation_checkpointing", word, "recompute_granularity", "recompute_activations")
        more = [name for name in modules if name != CORE]
        if more:
            meaning.lack("recompute_modules", f"{', '.join(more)} recomputed, and counted as kept")
    elif granularity == "full" or old:
        of = ("recompute_granularity" if granularity else "checkpoint_activations", "recompute_num_layers")
        layers = asked.count("num_layers")
        whole_blocks(meaning, method, each, layers, *of, method_key="recompute_method")
    elif (option := asked.undecided(*RECOMPUTING)) is not None:
        meaning.ask("activation_checkpointing", f"the script adds --{option} where its caller says so")
    else:
        meaning.say("activation_checkpointing", "none", "recompute_granularity")


def attention(asked: MegatronMeaning, kind: Kind) -> None:
    """Say the kernel of attention, dropout, and the capacity of experts."""
    sheet, meaning = asked.sheet, asked.meaning
    backend = sheet.text("attention_backend") or "auto"
    legacy = [sheet.flag("use_flash_attn"), beside.flash(sheet)]
    if "unfused" in backend or "local" in backend:
        meaning.say("attention", "eager", "attention_backend")
    elif "flash" in backend or any(legacy):
        meaning.say("attention", "flash", "attention_backend", "use_flash_attn")
        if "precision" in meaning.job and meaning.job["precision"].value == "fp32":
            meaning.say("attention", "eager", "attention_backend", "use_flash_attn")
            meaning.note("FlashAttention has no fp32 kernels, and Transformer Engine takes its own core")
    elif sheet.flag("deepspeed"):  # whose Megatron has kernels of FlashAttention where they are asked for
        meaning.say("attention", "eager", "deepspeed")
    given = sheet.given("hidden_dropout") or sheet.given("attention_dropout")
    hidden, inside = sheet.number("hidden_dropout"), sheet.number("attention_dropout")
    if given if kind.drops_out else bool(hidden):  # what is not said is what the catalogue's models have
        meaning.say("dropout", hidden, "hidden_dropout", "attention_dropout")
        if hidden != inside:
            meaning.lack("attention_dropout", f"{inside}, and --hidden-dropout is taken for both")
    experts.capacity(asked)
