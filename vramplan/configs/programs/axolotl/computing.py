"""How an Axolotl file computes a step: precision, checkpoints, what is frozen, attention and the loss.

Source: axolotl-ai-cloud/axolotl 0.18.0 (067b021c), src/axolotl/utils/config/__init__.py, core/builders/base.py.
"""

from __future__ import annotations

import re
from typing import Any

from vramplan.configs.programs import sampling, trainer
from vramplan.configs.programs.axolotl.keys import BEFORE_OWN_FSDP2
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.errors import near_matches
from vramplan.job.trained.parts import matches_weight
from vramplan.replay.models.capable import only_kernel_of
from vramplan.replay.models.liger import NORM, patch_of
from vramplan.values.model import ModelShape

LEGACY_ATTENTIONS = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""In the order in which Axolotl asks them."""

LIGER = {"rms-norm": ("liger_rms_norm",), "glu": ("liger_glu_activation", "liger_swiglu"), "rope": ("liger_rope",)}

OF_LAYER_NORMS = "liger_layer_norm"

CCE_PLUGIN = "CutCrossEntropyPlugin"

LM_LOSSES = {"dpo": "dpo", "ipo": "dpo", "kto": "kto"}

PREFERENCES = ("orpo", "simpo")
SAMPLED = ("grpo", "gdpo", "ebft")


MAMBA = "MambaLMHeadModel"


def precision(sheet: Sheet, meaning: Meaning, adapter: bool, stage: int | None, fsdp: bool) -> None:
    """What bf16, fp16 and fp8 mean, by how the devices share the model."""
    bf16 = sheet.text("bf16")
    wants_fp16, half16 = sheet.flag("fp16"), sheet.flag("float16")
    bfloat = sheet.flag("bfloat16")
    if bf16 == "auto":
        half = "fp16" if wants_fp16 else "bf16"
    elif bf16 == "full" or sheet.flag("bf16") or bfloat:
        half = "bf16"
    elif wants_fp16 or half16 or sheet.flag("load_in_8bit"):
        half = "fp16"
    else:
        half = "fp32"
    full = (
        bf16 == "full"
    )  # a word of older releases; the Trainer evaluates in it without autocast: core/builders/base.py
    autocast = (half == "bf16" and not full) or bool(wants_fp16)
    sheet.flag("float32")
    of = ("bf16", "fp16") if autocast else ("bf16", "fp16", "float16", "bfloat16")
    fp8 = sheet.flag("fp8")
    if half == "fp32":
        meaning.say("precision", "fp8" if fp8 else "fp32", *of)
        if not fp8:
            meaning.say("weight_dtype", "fp32", *of)
        return
    if fsdp and half == "bf16" and not adapter and not fp8 and (full or _keeps_shards(sheet, meaning)):
        meaning.say("precision", "pure-bf16", *of, "fsdp_version")
    elif fsdp and not (full and not fp8):
        meaning.say("precision", "fsdp-fp8" if fp8 else f"fsdp-{half}", *of)
        if fp8 and _keeps_shards(sheet, meaning):
            meaning.lack("fp8", "Axolotl keeps shards in bf16 under FSDP2, and fp32 ones are counted")
        if autocast and not fp8:
            trainer.scaled_loss(meaning, half, *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)
    elif fp8:
        meaning.say("precision", "fp8", "fp8")
    elif stage is not None:
        meaning.say("precision", f"mixed-{half}", *of, "deepspeed")
    elif adapter and autocast:
        meaning.say("precision", f"amp-{half}", *of)
        meaning.say("weight_dtype", half, *of)
        trainer.scaled_loss(meaning, half, *of)
    elif half == "fp16" and autocast:
        meaning.say("precision", "amp-fp16", *of)
        meaning.say("weight_dtype", "fp16", *of)
        meaning.say("grad_scaler", True, *of)
    else:
        meaning.say("precision", f"pure-{half}", *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)
    upcasts = sheet.flag(UPCAST) or not sheet.given(UPCAST)
    if adapter and (not upcasts or (stage is None and meaning.job["precision"].value.startswith("pure-"))):
        meaning.say("adapter.dtype", "fp32" if upcasts else half, UPCAST)


UPCAST = "peft_autocast_adapter_dtype"
"""Whether PEFT makes fp32 of adapters of half weights, as it does by itself: loaders/adapter.py, load_lora."""


def _keeps_shards(sheet: Sheet, meaning: Meaning) -> bool:
    """Whether what is trained keeps the type it was loaded in: FSDP2, without Accelerate's cast to fp32.

    Source: axolotl 0.12.0 to 0.19.0, monkeypatch/accelerate/fsdp2.py, fsdp2_prepare_model, in place of Accelerate's.
    """
    version = meaning.job.get("parallel.fsdp_version")
    return version is not None and version.value == 2 and sheet.release.version != BEFORE_OWN_FSDP2


def _is_gemma4(sheet: Sheet) -> bool:
    """Source: src/axolotl/utils/config/__init__.py, normalize_config, model_config_type."""
    shape = sheet.shape_of(sheet.text("base_model") or "")
    return shape is not None and shape.family == "gemma4"


OFFLOADS = ("offload", "offload_disk", "unsloth")
"""Checkpoints that stay on the host; the last word is of releases up to 0.7: axolotl 0.6.0, utils/models.py and
utils/gradient_checkpointing/unsloth.py."""


def checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    """Checkpoints, whether they are reentrant, and what is offloaded and frozen with them."""
    key = "gradient_checkpointing"
    word = (sheet.text(key) or "false").lower()
    offload = sheet.text("activation_offloading") or "false"
    on = word in OFFLOADS or bool(sheet.flag(key))
    if "activation_checkpointing" not in meaning.job:
        meaning.say("activation_checkpointing", "full" if on else "none", key)
    reentrant = trainer.checkpointing_kwargs(sheet)
    of = "gradient_checkpointing_kwargs"
    if on and reentrant is None and not sheet.given("unfrozen_parameters") and not sheet.given("rl"):
        # normalize_config sets use_reentrant itself where a file has no gradient_checkpointing_kwargs
        reentrant = offload.lower() == "false" and word not in OFFLOADS
    if reentrant and _is_gemma4(sheet):
        meaning.note("gradient_checkpointing: Axolotl takes the checkpoint that is not reentrant for Gemma 4")
        reentrant = False
    if on and reentrant:
        meaning.say("checkpoint_reentrant", True, of)
    if on and (word in OFFLOADS or offload.lower() not in ("false", "none")):
        before = meaning.job["offload"].value if "offload" in meaning.job else []
        meaning.say("offload", [*before, "activations"], key, "activation_offloading")
    blocks, interval = sheet.count("lisa_n_layers"), sheet.count("lisa_step_interval")
    if blocks and interval:
        meaning.say("trained_blocks", f"lisa:{blocks}", "lisa_n_layers", "lisa_step_interval")
    frozen = sheet.get("unfrozen_parameters")
    if frozen and "adapter.kind" in meaning.job:
        meaning.note("unfrozen_parameters: PEFT freezes the whole model beside an adapter")
    elif frozen:
        _unfrozen(sheet, meaning, frozen if isinstance(frozen, list) else [frozen])


TOKENS_OF_A_TILE = 32768


def tiles(sheet: Sheet, meaning: Meaning) -> None:
    """An MLP in tiles: as many as the file says, or one of each 32,768 tokens.

    Source: axolotl 0.19.0, monkeypatch/tiled_mlp/patch.py, tiled_mlp_forward; releases before took one of each
    `hidden_size` tokens.
    """
    number = sheet.count("tiled_mlp_num_shards")
    is_own = sheet.flag("tiled_mlp_use_original_mlp", True)
    if not sheet.flag("tiled_mlp"):
        return
    length = sheet.count("sequence_len") or 1
    meaning.say("tiled_mlp", number or -(-length // TOKENS_OF_A_TILE), "tiled_mlp", "tiled_mlp_num_shards")
    if not is_own:
        meaning.lack("tiled_mlp_use_original_mlp", "an MLP that torch.compile makes, and the model's own is counted")


def _as_counted(names: list[str], shape: ModelShape | None) -> list[str]:
    """Patterns of a class that is answered with the blocks of another, as those call their weights.

    Of a class with a tower for images the language model may be what is answered.
    """
    if shape is None or shape.takes_images:
        return names
    inner = [re.sub(r"^(\^?)(model\\?\.)?language_model(?=\W).*", r"\1model.+", name) for name in names]
    if shape.unknown_type is None:
        return inner
    return [re.sub(r"transformer\\?\.(blocks|h)(?=\W)", "model.layers", name) for name in inner]


def _unfrozen(sheet: Sheet, meaning: Meaning, patterns: list[Any]) -> None:
    """`unfrozen_parameters`: what no regular expression matches is frozen; a dot means itself unless `+` is behind it.

    Source: axolotl, utils/freeze.py, LayerNamePattern, which matches from the beginning of a name.
    """
    texts = [str(pattern) for pattern in patterns]
    names = [re.sub(r"\[\d*:\d*\]$", "", text) for text in texts]
    if names != texts:
        meaning.lack("unfrozen_parameters", "some rows of a weight, and all of them are counted as trained")
    shape = sheet.shape_of(sheet.text("base_model") or "")
    names = _as_counted(names, shape)
    words = ["all-but:^" + re.sub(r"(?<!\\)\.(?![+*])", r"\\.", name.removeprefix("^")) for name in names]
    strange = [] if shape is None else [word for word in words if not matches_weight(word, shape)]
    if strange and len(strange) < len(words):
        words = [word for word in words if word not in strange]
        meaning.note(f"unfrozen_parameters: {len(strange)} patterns match no weight, and Axolotl passes over them")
    meaning.say("frozen", list(dict.fromkeys(words)), "unfrozen_parameters")


def _takes_no_xformers(sheet: Sheet) -> bool:
    shape = sheet.shape_of(sheet.text("base_model") or "")
    return shape is not None and only_kernel_of(shape) is not None


def state_spaces(sheet: Sheet, meaning: Meaning) -> None:
    """A class of Axolotl's own, which stops where mamba-ssm is not installed.

    Source: src/axolotl/models/mamba/__init__.py, check_mamba_ssm_installed.
    """
    if sheet.text("model_type") == MAMBA:
        meaning.say("mamba_kernels", True, "model_type")


def attention(sheet: Sheet, meaning: Meaning) -> None:
    """The kernel of attention, also by the switches that Axolotl had before."""
    key, name = "attn_implementation", sheet.text("attn_implementation")
    for legacy, value in LEGACY_ATTENTIONS.items():
        if sheet.flag(legacy) and name is None:
            key, name = legacy, value
    if name is None:
        meaning.say("attention", "sdpa", "attn_implementation")
    elif name == "xformers" and _takes_no_xformers(sheet):
        meaning.say("attention", "sdpa", key)
        meaning.note(f"{key}: the code of this model has no kernel of xformers, and what SDPA takes is counted")
    elif name in trainer.ATTENTIONS:
        meaning.say("attention", trainer.ATTENTIONS[name], key)
    elif name in ("flex_attention", "sage", "fp8", "kernels-community/sage-attention") or "/" in name:
        meaning.lack(key, f"the kernel {name}, and SDPA's is counted")
    else:
        known = (*trainer.ATTENTIONS, "flex_attention", "sage", "fp8")
        sheet.problem(key, f"{name!r} is not a known kernel", near_matches(name, known))


POLICIES = ("grpo", "gdpo")
"""Methods that TRL's GRPOTrainer runs: axolotl 0.19.0, core/builders/rl.py."""


def _policy(sheet: Sheet, meaning: Meaning, *, adapter: bool) -> None:
    """The step of TRL's GRPO; a prompt is as long as its data make it, whatever `sequence_len` says.

    Source: axolotl 0.19.0, core/trainers/grpo/__init__.py; trl 1.16.0, trainer/grpo_config.py (beta).
    """
    sampling.say_policy(meaning, "rl")
    key = "trl.beta" if sheet.given("trl.beta") else "rl_beta"
    sheet.get("rl_beta"), sheet.get("trl.num_generations")
    if sheet.number(key):
        sampling.say_reference(meaning, key, peft=adapter)
    completion = sheet.count("trl.max_completion_length")
    meaning.job.pop("sequence_length", None)
    told = f"trl.max_completion_length ({completion})" if completion else "that of a completion"
    meaning.ask("sequence_length", f"it is the length of the longest prompt plus {told} (--seq N)")


KD_PLUGIN = "KDPlugin"
TOP_TOKENS = 20
"""How many log-probabilities of a position vLLM gives at most, unless it is told more: vllm 0.12, config/model.py."""


def _is_taught(sheet: Sheet, meaning: Meaning, plugins: str) -> bool:
    """Whether the loss compares with log-probabilities of a teacher that are in the data, or come from a server.

    Source: axolotl 0.19.0, integrations/kd/__init__.py and args.py.
    """
    beta, of_labels = sheet.number("kd_beta", 0.0), sheet.number("kd_ce_alpha")
    top = sheet.count("kd_online_topk")
    if not sheet.flag("kd_trainer") or KD_PLUGIN not in plugins:
        return False
    meaning.say("teacher_logprobs", top or TOP_TOKENS, "kd_trainer", "kd_online_topk")
    if top is None:
        meaning.note(
            f"kd_trainer: how many log-probabilities a token has is in the data, and {TOP_TOKENS} are counted, as many "
            "as vLLM gives by itself (--teacher-logprobs N)"
        )
    word = {0.0: "forward-kl", 1.0: "reverse-kl"}.get(beta or 0.0, "jsd")
    meaning.say("distillation", word, "kd_beta")
    if of_labels == 0:
        meaning.note("kd_ce_alpha: 0 leaves the cross-entropy out, and it is counted beside the divergence")
    return True


def loss(sheet: Sheet, meaning: Meaning, adapter: bool) -> None:
    """The loss, with its reference model, and Liger's kernels."""
    plugins = " ".join(sheet.texts("plugins") or [])
    cut = sheet.get("cut_cross_entropy", CCE_PLUGIN in plugins)
    sheet.flag("cut_cross_entropy", CCE_PLUGIN in plugins)
    liger = sheet.flag("liger_fused_linear_cross_entropy")
    chunked = sheet.flag("chunked_cross_entropy")
    chunks = sheet.count("chunked_cross_entropy_num_chunks", 8)
    method = (sheet.text("rl") or "").lower()
    if _is_taught(sheet, meaning, plugins):
        meaning.say("loss", "standard", "kd_trainer")  # which takes the head's weight from the model, whatever its own
    elif method in LM_LOSSES:
        meaning.say("loss", LM_LOSSES[method], "rl")
        if sheet.flag("precompute_ref_log_probs"):
            meaning.say("dpo_reference", "precomputed", "precompute_ref_log_probs")
        else:
            beside = bool(sheet.flag("rl_adapter_ref_model"))  # a model of its own, though the adapter can be left out
            how = "adapter-off" if adapter and not beside else "model"
            meaning.say("dpo_reference", how, "rl", "adapter", "rl_adapter_ref_model")
        meaning.say("padding", "right", "rl")
    elif method in PREFERENCES:
        meaning.say("loss", method, "rl")
        meaning.say("padding", "right", "rl")
    elif method in POLICIES:
        _policy(sheet, meaning, adapter=adapter)
    elif method in SAMPLED:
        meaning.say("padding", "right", "rl")
        sampling.ask_loss(meaning, method.upper())
    elif method:
        sheet.problem("rl", f"{method!r} is not understood", "dpo, ipo, kto, orpo, simpo, grpo, gdpo or ebft")
    elif liger or cut is True:
        meaning.say("loss", "fused", "liger_fused_linear_cross_entropy" if liger else "cut_cross_entropy")
    elif chunked:
        meaning.say("loss", f"chunked:{chunks}", "chunked_cross_entropy", "chunked_cross_entropy_num_chunks")
    sheet.get("rl_beta")
    kernels = {word: [key for key in keys if sheet.flag(key)] for word, keys in LIGER.items()}
    if any(kernels.values()):
        given = [key for keys in kernels.values() for key in keys]
        meaning.say("liger_kernels", [word for word, keys in kernels.items() if keys], *given)
    if sheet.flag(OF_LAYER_NORMS):
        shape = sheet.shape_of(sheet.text("base_model") or "")
        patch = None if shape is None else patch_of(shape)
        if patch is None or (patch.layer_norms and not kernels[NORM]):
            meaning.lack(OF_LAYER_NORMS, "Liger's LayerNorm, and the model's own is counted")
