"""What an Axolotl file says of adapters and quantized weights.

Source: axolotl-ai-cloud/axolotl 0.18.0 (067b021c), src/axolotl/loaders/{model,adapter}.py.
"""

from __future__ import annotations

from vramplan.configs.checkpoints import quantized_by_name
from vramplan.configs.programs import expert_tensors
from vramplan.configs.programs.arguments.peft_kinds import say_tokens
from vramplan.configs.programs.axolotl.patterns import matched
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.replay.models.lora_kernels import EVERY, QKV, STOPS

NVFP4 = "-nvfp4"
LINEARIZED = "llama4_linearized_experts"
BESIDE_BLOCKS = ("lm_head", "embed_tokens", "wte", "embed_in", "embed_out", "word_embeddings")
"""What heads and tables of words are called, which `lora_target_linear` leaves out."""

OF_EMBEDDING, EMBEDDING = "lora_embedding_kernel", "embed_tokens"


def adapter(sheet: Sheet, meaning: Meaning) -> bool:
    """What is trained beside the model; whether anything is."""
    kind = (sheet.text("adapter") or "").lower()
    four, eight = sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
    if kind == "llama-adapter":
        sheet.problem("adapter", "llama-adapter is not modelled: prompts with gates inside of attention", "lora")
    elif kind in ("lora", "qlora", "dora", "ia3"):
        dora = sheet.flag("peft_use_dora")
        meaning.say("adapter.kind", "dora" if dora or kind == "dora" else "ia3" if kind == "ia3" else "lora", "adapter")
        rank = sheet.count("lora_r")
        if rank is not None:
            meaning.say("adapter.rank", rank, "lora_r")
        _targets(sheet, meaning)
        expert_tensors.add(sheet, meaning, sheet.shape_of(checkpoint_of(sheet.text("base_model") or "")))
        meaning.say("adapter.dropout", sheet.number("lora_dropout"), "lora_dropout")
        alpha = sheet.number("lora_alpha")
        if alpha is not None:
            meaning.say("adapter.alpha", int(alpha) if alpha == int(alpha) else alpha, "lora_alpha")
        saved = sheet.texts("lora_modules_to_save")
        if saved:
            meaning.say("adapter.modules_to_save", saved, "lora_modules_to_save")
        say_tokens(sheet, meaning, "peft_trainable_token_indices")
    elif kind:
        sheet.problem("adapter", f"{kind!r} is not a known adapter", "lora or qlora")
    else:
        unused = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear")
        for key in (*unused, expert_tensors.KEY):
            sheet.get(key)
    if four and kind == "lora":  # loaders/model.py, _set_quantization_config: bitsandbytes' 4 bits are qlora's alone
        meaning.lack(
            "load_in_4bit", "adapter: lora loads no weights in 4 bits, which are counted whole (adapter: qlora)"
        )
    elif four and kind:
        double = {**sheet.under("bnb_config_kwargs")}.get("bnb_4bit_use_double_quant", True)
        meaning.say("quantization", "nf4-double" if double else "nf4", "load_in_4bit")
    elif eight:
        meaning.say("quantization", "int8", "load_in_8bit")
    elif sheet.flag("gptq"):
        meaning.say("quantization", "gptq-int4", "gptq")
    elif kind and is_nvfp4(sheet.text("base_model")):
        meaning.say("quantization", "nf4", "base_model")
        meaning.lack("base_model", "weights in NVFP4 are counted as nf4's, which are as many bytes")
    if kind:
        quantized_by_name(meaning, sheet.text("base_model"), "base_model")
    key = next((key for key in ("quantize_moe_experts", LINEARIZED) if sheet.flag(key)), "base_model")
    if "quantization" in meaning.job and (key != "base_model" or is_nvfp4(sheet.text(key))):
        _experts(sheet, meaning, key)
    if key == LINEARIZED:
        meaning.lack(key, "experts as linear layers, which are counted as given back together in a block")
    return bool(kind)


def _experts(sheet: Sheet, meaning: Meaning, key: str) -> None:
    """Stacked weights of experts in few bits; a model without experts has none, and Axolotl finds none."""
    shape = sheet.shape_of(checkpoint_of(sheet.text("base_model") or ""))
    if shape is None or shape.experts is None:
        if key != "base_model":
            meaning.note(f"{key}: no weight is a stack of experts")
    else:
        meaning.say("quantized_experts", True, key)


def is_nvfp4(name: str | None) -> bool:
    """Whether a checkpoint is ModelOpt's NVFP4: 4 bits, and a scale of 8 bits for each 16 of them.

    nf4 has as many bytes, with a scale of 32 bits for each 64.
    Source: NVIDIA/Model-Optimizer, modelopt/torch/quantization/qtensor/nvfp4_tensor.py.
    """
    return (name or "").lower().endswith(NVFP4)


def checkpoint_of(name: str) -> str:
    """The name of a checkpoint without the word of how it is quantized."""
    return name[: -len(NVFP4)] if is_nvfp4(name) else name


def images(sheet: Sheet, meaning: Meaning, name: str) -> None:
    """Images or sounds beside the text, of a model that is answered without what reads them.

    Source: src/axolotl/utils/config/__init__.py, normalize_config: with a processor the run is multimodal.
    """
    shape = sheet.shape_of(checkpoint_of(name))
    if sheet.text("processor_type") and shape is not None and not shape.takes_images:
        meaning.lack("processor_type", "images or sounds beside the text: what reads them is not counted")


def lora_kernels(sheet: Sheet, meaning: Meaning) -> None:
    """Fused LoRA, which Axolotl turns on where a file says nothing of it.

    Source: utils/schemas/config.py, check_auto_enable_lora_kernels.
    """
    kind = (sheet.text("adapter") or "").lower()
    asked = {word: f"lora_{word}_kernel" for word in EVERY}
    on = {word: key for word, key in asked.items() if sheet.flag(key)}
    if sheet.flag(OF_EMBEDDING) and any(EMBEDDING in str(one) for one in sheet.texts("lora_target_modules") or ()):
        meaning.lack(OF_EMBEDDING, "the function of an embedding with LoRA, and PEFT's is counted")
    if on:
        meaning.say("adapter.kernels", [*on], *on.values())
        return
    version = meaning.job.get("parallel.fsdp_version")
    if kind not in ("lora", "qlora") or (kind == "lora" and sheet.flag("load_in_8bit")):
        return
    if (version is not None and version.value == 1) or any(sheet.given(key) for key in (*asked.values(), OF_EMBEDDING)):
        return
    if any(sheet.get(key) for key in ("rl", "trust_remote_code", "nvfp4_merge_aware")):
        return
    shape = sheet.shape_of(checkpoint_of(sheet.text("base_model") or ""))
    stops = ""
    if shape is not None and shape.transformers_model_type in STOPS:
        stops = f"the attention of {shape.transformers_model_type}"
    elif sheet.flag("gptq"):
        stops = "weights of GPTQ"
    if stops:
        meaning.lack(asked[QKV], f"Axolotl turns its fused LoRA on and stops at {stops}; PEFT's layers are counted")
        return
    meaning.say("adapter.kernels", [*asked], *asked.values())


def _pattern(sheet: Sheet, meaning: Meaning, pattern: str) -> None:
    """Targets that are a regular expression: the layers that it is of, where the model is known."""
    key = "lora_target_modules"
    shape = sheet.shape_of(checkpoint_of(sheet.text("base_model") or ""))
    found = None if shape is None else matched(pattern, shape)
    if shape is None or found is None:
        meaning.say("adapter.targets", "all-linear", key)
        meaning.lack(key, "it is a regular expression, and every linear layer is counted")
        return
    names, some = found
    meaning.say("adapter.targets", names, key)
    if some:
        meaning.lack(key, "it leaves blocks out, and the layers of all blocks are counted")
    elif shape.takes_images:
        meaning.lack(key, "layers with the same names in the encoder of images are counted too")


def _lack_further(sheet: Sheet, meaning: Meaning) -> None:
    """Tell adapters of the head and of tables beside those of the blocks.

    Source: src/axolotl/loaders/adapter.py, load_lora: the linear layers are joined with the targets that are named.
    """
    targets = sheet.get("lora_target_modules")
    held = [targets] if isinstance(targets, str) else targets or []
    further = [name for name in held if name in BESIDE_BLOCKS]
    if further:
        what = f"adapters of {' and '.join(further)} beside those of the linear layers of the blocks"
        meaning.lack("lora_target_modules", what)


def _targets(sheet: Sheet, meaning: Meaning) -> None:
    if sheet.flag("lora_target_linear"):
        # find_all_linear_names takes names of layers; PEFT's word would take the tensors of experts too
        layers = sheet.linears_of(sheet.text("base_model") or "")
        meaning.say("adapter.targets", layers or "all-linear", "lora_target_linear")
        _lack_further(sheet, meaning)
        return
    targets = sheet.get("lora_target_modules")
    if isinstance(targets, str) and targets != "all-linear":
        if any(sign in targets for sign in "*+()|[\\"):
            _pattern(sheet, meaning, targets)
            return
        targets = [targets]
    if targets:
        meaning.say("adapter.targets", targets, "lora_target_modules")
