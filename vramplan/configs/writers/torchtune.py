"""The YAML of `tune run RECIPE --config`.

The words are those of `programs/torchtune.py`. Source of builders and recipes: pytorch/torchtune 0.6.1,
torchtune/models/*/_model_builders.py, torchtune/_recipe_registry.py, recipes/configs/.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.configs.asked import Asked, ProgramFiles, Writer, refused
from vramplan.configs.page import Page
from vramplan.configs.programs import torchtune_keys as keys
from vramplan.configs.programs.torchtune import shape_name
from vramplan.configs.writers import words
from vramplan.errors import InputError, Problem

BUILDERS = {
    "llama2": "llama2_7b llama2_13b llama2_70b",
    "llama3": "llama3_8b llama3_70b",
    "llama3_1": "llama3_1_8b llama3_1_70b llama3_1_405b",
    "llama3_2": "llama3_2_1b llama3_2_3b",
    "llama3_3": "llama3_3_70b",
    "code_llama2": "code_llama2_7b code_llama2_13b code_llama2_70b",
    "gemma": "gemma_2b gemma_7b",
    "gemma2": "gemma2_2b gemma2_9b gemma2_27b",
    "mistral": "mistral_7b",
    "phi3": "phi3_mini",
    "phi4": "phi4_14b",
    "qwen2": "qwen2_0_5b qwen2_1_5b qwen2_7b",
    "qwen2_5": "qwen2_5_0_5b qwen2_5_1_5b_base qwen2_5_3b qwen2_5_7b_base qwen2_5_14b_base qwen2_5_32b_base "
    "qwen2_5_72b_base",
    "qwen3": "qwen3_0_6b_base qwen3_1_7b_base qwen3_4b_base qwen3_8b_base qwen3_14b_base qwen3_32b",
}
"""By module. qwen3 is of the branch main (2026-04-23), the others of 0.6.1 too."""

TOKENIZERS = {
    "llama3_1": "llama3.llama3_tokenizer",
    "llama3_2": "llama3.llama3_tokenizer",
    "llama3_3": "llama3.llama3_tokenizer",
    "code_llama2": "llama2.llama2_tokenizer",
    "gemma2": "gemma.gemma_tokenizer",
    "phi3": "phi3.phi3_mini_tokenizer",
}
"""Of modules whose tokenizer is not called after them."""

TOKENIZER_FILES = {
    **{module: {"path": "original/tokenizer.model"} for module in ("llama3", "llama3_1", "llama3_2", "llama3_3")},
    **{module: {"path": "vocab.json", "merges_file": "merges.txt"} for module in ("qwen2", "qwen2_5", "qwen3")},
    "phi4": {"vocab_path": "vocab.json", "merges_path": "merges.txt"},
}
"""What the tokenizers of some modules read, by their arguments."""

TYPES = {
    **dict.fromkeys(("llama3_1", "llama3_3"), "LLAMA3"),
    "llama3_2": "LLAMA3_2",
    "code_llama2": "LLAMA2",
    "phi3": "PHI3_MINI",
    "qwen2_5": "QWEN2",
}
"""How a checkpoint is converted, where that is not called after the module: training/checkpointing/_utils.py."""

NO_QLORA = ("qwen2", "qwen2_5", "qwen3")
"""Modules without builders of their own for quantized weights: those for LoRA take `quantize_base`."""

MODELS = {
    shape_name(builder): (module, builder) for module, builders in BUILDERS.items() for builder in builders.split()
}
LOSSES = words.turned(keys.LOSSES, last=True) | {
    "chunked": "torchtune.modules.loss.CEWithChunkedOutputLoss",
    "dpo": "torchtune.rlhf.loss.DPOLoss",
}
DTYPES = words.turned(keys.DTYPES)
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FUSED = {"qkv_proj": ATTENTION[:3], "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections of Phi 3 in Transformers, and those that torchtune has in their place."""


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """One file; its comment names the recipe, which decides how many devices there are."""
    page = Page("torchtune.yaml")
    found = MODELS.get(str(asked.shape.get("name")))
    if found is None:
        raise refused("torchtune", asked.shape.get("name"), MODELS)
    module, builder = found
    lora = bool(asked["adapter.kind"])
    quantized = asked["quantization"] in ("nf4", "nf4-double")  # its own always quantizes the scales
    kind = "qlora_" if quantized and module not in NO_QLORA else "lora_" if lora else ""
    page.put("model._component_", f"torchtune.models.{module}.{kind}{builder}", "model", "adapter.kind", "quantization")
    if lora:
        _adapter(page, asked)
        if quantized and module in NO_QLORA:
            page.put("model.quantize_base", True, "quantization")
    tokenizer = TOKENIZERS.get(module, f"{module}.{module}_tokenizer")
    page.put("tokenizer._component_", f"torchtune.models.{tokenizer}")
    for key, file in TOKENIZER_FILES.get(module, {"path": "tokenizer.model"}).items():
        page.yours(f"tokenizer.{key}", f"/tmp/{asked.checkpoint.rsplit('/', 1)[-1]}/{file}")
    page.put("tokenizer.max_seq_len", asked["sequence_length"], "sequence_length")
    page.put("dtype", DTYPES.get(str(asked["precision"]), "bf16"), "precision")
    if str(asked["precision"]).endswith("fp8"):
        page.put("enable_fp8_training", True, "precision")
    page.put("batch_size", asked["micro_batch_size"], "micro_batch_size")
    page.put("gradient_accumulation_steps", asked["gradient_accumulation_steps"], "gradient_accumulation_steps")
    _optimizer(page, asked)
    page.put("clip_grad_norm", asked["max_gradient_norm"] or None, "max_gradient_norm")
    _rounding(page, asked)
    _loss(page, asked)
    page.put("compile", bool(asked["compile"]), "compile")
    _checkpoints(page, asked)
    page.yours("dataset._component_", f"torchtune.datasets.{_dataset(asked)}")
    if asked["loss"] != "dpo":  # pairs are never packed
        page.put("dataset.packed", bool(asked["packing"]), "packing")
    _devices(page, asked)
    _rest(page, asked, module)
    recipe = recipe_of(asked)
    for key in [key for key in page.lines if not keys.is_read(key, recipe)]:
        del page.lines[key]
    launch = asked.torchrun().removeprefix("torchrun ") + " " if is_distributed(asked) else ""
    command = f"tune run {launch}{recipe} --config {page.name}"
    yield ProgramFiles((page,), (asked.environment() + command,))


def is_distributed(asked: Asked) -> bool:
    """Whether FSDP shards the model: the other recipes run on one device."""
    return asked.devices > 1 or asked.fsdp or bool(asked["qat.weights"])


def recipe_of(asked: Asked) -> str:
    """The recipe for the job. Raises InputError where there is none."""
    where = "distributed" if is_distributed(asked) else "single_device"
    kind = "lora" if asked["adapter.kind"] else "full"
    if asked["teacher"]:
        return f"knowledge_distillation_{where}"
    if asked["qat.weights"]:  # which no recipe on one device has
        return "qat_lora_finetune_distributed" if kind == "lora" else "qat_distributed"
    if asked["loss"] == "dpo" and kind == "full" and where == "single_device":
        message = "torchtune has no setting for loss=dpo of a whole model on one GPU"
        raise InputError([Problem(message, hint="nearest: --lora, or --gpus 2")])
    return f"{kind}_{'dpo' if asked['loss'] == 'dpo' else 'finetune'}_{where}"


def _dataset(asked: Asked) -> str:
    return "stack_exchange_paired_dataset" if asked["loss"] == "dpo" else "alpaca_dataset"


def _adapter(page: Page, asked: Asked) -> None:
    found = words.targets(asked)
    listed = [*ATTENTION, *keys.MLP] if found == "all-linear" else found
    wanted = [name for one in listed for name in FUSED.get(one, (one,))]
    back = words.turned(keys.PROJECTIONS)
    attention = [back.get(name, name) for name in wanted if name in ATTENTION]
    if not attention:  # models/*/_component_builders.py: "Must pass one or more of"
        message = f"torchtune has no setting for adapter.targets={','.join(wanted)}"
        raise InputError([Problem(message, hint=f"nearest: --targets {','.join(('q_proj', *wanted))}")])
    page.put("model.lora_attn_modules", attention, "adapter.targets")
    page.put("model.apply_lora_to_mlp", any(name in wanted for name in keys.MLP), "adapter.targets")
    if "lm_head" in wanted:  # which not every builder can adapt
        page.put("model.apply_lora_to_output", True, "adapter.targets")
    page.put("model.lora_rank", asked["adapter.rank"] or 8, "adapter.rank")
    page.put("model.lora_alpha", words.alpha(asked), "adapter.alpha")
    page.put("model.lora_dropout", float(asked["adapter.dropout"] or 0), "adapter.dropout")
    if asked["adapter.kind"] == "dora":
        page.put("model.use_dora", True, "adapter.kind")


def _rounding(page: Page, asked: Asked) -> None:
    back = {ours: theirs for theirs, ours in keys.QUANTIZERS.items()}
    name = back.get((asked["qat.weights"], asked["qat.activations"]))
    if name is None:
        return  # which the reader finds missing
    page.put("quantizer._component_", f"torchtune.training.quantization.{name}", "qat.weights", "qat.activations")
    page.put("quantizer.groupsize", asked["qat.group_size"], "qat.group_size")


def _optimizer(page: Page, asked: Asked) -> None:
    word, how = str(asked["optimizer"]), asked["optimizer_implementation"]
    table = words.turned(keys.OPTIMIZERS)
    name = table.get(word) or table.get(words.NEAR_OPTIMIZERS.get(word.partition(":")[0], ""), "torch.optim.AdamW")
    page.put("optimizer._component_", name, "optimizer")
    if name in ("torch.optim.AdamW", "torch.optim.Adam", "torch.optim.SGD", "torch.optim.Adagrad"):
        page.put("optimizer.fused", how == "fused", "optimizer_implementation")
    if name.startswith("torch.") and how == "for-loop":
        page.put("optimizer.foreach", False, "optimizer_implementation")
    if word.startswith("sgd-momentum"):
        page.put("optimizer.momentum", 0.9, "optimizer")
    page.yours("optimizer.lr", 0.00002)
    page.put("optimizer_in_bwd", bool(asked["optimizer_in_backward"]), "optimizer_in_backward")


def _loss(page: Page, asked: Asked) -> None:
    word, _, chunks = str(asked["loss"]).partition(":")
    page.put("loss._component_", LOSSES.get(word, LOSSES["standard"]), "loss")
    if word == "chunked":
        page.put("loss.num_output_chunks", int(chunks), "loss")
    if asked["teacher"]:
        _teacher(page, asked, "WithChunkedOutputLoss" if word == "chunked" else "Loss")
        if word == "chunked":
            page.put("kd_loss.num_output_chunks", int(chunks), "loss")


def _teacher(page: Page, asked: Asked, end: str) -> None:
    teacher = asked["teacher"]
    name = teacher.get("name") if isinstance(teacher, dict) else teacher
    found = MODELS.get(str(name))
    if found is None:
        raise refused("torchtune", name, MODELS)
    page.put("teacher_model._component_", "torchtune.models.{}.{}".format(*found), "teacher")
    way = str(asked["distillation"]).removesuffix("-kl").capitalize()
    page.put("kd_loss._component_", f"torchtune.modules.loss.{way}KL{end}", "distillation")
    _checkpointer(page, "teacher_checkpointer", found[0], str(name))


def _checkpoints(page: Page, asked: Asked) -> None:
    word, _, apart = str(asked["activation_checkpointing"]).partition(":")
    selective = word.startswith("selective")
    key = "enable_activation_checkpointing"
    page.put(key, not selective and word != "none", "activation_checkpointing")
    if selective:
        page.put("ac_mode", "selective", "activation_checkpointing")
        page.put("ac_option", "op" if word == "selective-op" else int(apart or 1), "activation_checkpointing")
    page.put("enable_activation_offloading", asked.offloads("activations"), "offload")


def _devices(page: Page, asked: Asked) -> None:
    if not is_distributed(asked):
        return
    page.put("fsdp_reshard_after_forward", asked.kind != "fsdp-grad-op", *words.STATES)
    apart = words.turned(keys.UNITS).get(str(asked["parallel.fsdp_units"]))
    if apart:
        page.put("custom_sharded_layers", list(apart), "parallel.fsdp_units")
    page.put("fsdp_cpu_offload", asked.offloads("parameters"), "offload")
    if asked.kind == "hsdp":
        shards = asked["parallel.shards"]
        page.put("data_parallel_shard_dim", shards, *words.STATES)
        page.put("data_parallel_replicate_dim", asked["parallel.data"] // shards, *words.STATES)
    for key, ours in (("tensor_parallel_dim", "parallel.tensor"), ("context_parallel_dim", "parallel.context")):
        if (asked[ours] or 1) > 1:
            page.put(key, asked[ours], ours)
    if (asked["parallel.tensor"] or 1) > 1:
        page.put("tensor_parallel_plan._component_", "torchtune.models.llama3.base_llama_tp_plan", "parallel.tensor")


def _rest(page: Page, asked: Asked, module: str) -> None:
    """What recipes ask for beside."""
    name = asked.checkpoint.rsplit("/", 1)[-1]
    page.put("device", "cuda")
    page.yours("output_dir", "/tmp/torchtune")
    _checkpointer(page, "checkpointer", module, name)
    if asked["loss"] == "dpo" and not asked["adapter.kind"]:
        _checkpointer(page, "ref_checkpointer", module, name)
    for key, value in (("shuffle", True), ("seed", None), ("epochs", 1), ("max_steps_per_epoch", None)):
        page.put(key, value)
    page.put("resume_from_checkpoint", False)
    page.put("metric_logger._component_", "torchtune.training.metric_logging.DiskLogger")
    page.put("metric_logger.log_dir", "/tmp/torchtune/logs")
    page.put("log_every_n_steps", 1)
    page.put("log_level", "INFO")
    page.put("log_peak_memory_stats", True)
    if asked["adapter.kind"]:
        page.put("save_adapter_weights_only", False)
    if asked["adapter.kind"] or asked["loss"] == "dpo":
        page.put("lr_scheduler._component_", "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup")
        page.put("lr_scheduler.num_warmup_steps", 100)


def _checkpointer(page: Page, key: str, module: str, name: str) -> None:
    page.yours(f"{key}._component_", "torchtune.training.FullModelHFCheckpointer")
    page.yours(f"{key}.checkpoint_dir", f"/tmp/{name}")
    page.yours(f"{key}.checkpoint_files", ["model.safetensors"])
    page.yours(f"{key}.output_dir", "/tmp/torchtune")
    page.put(f"{key}.model_type", TYPES.get(module, module.upper()))


WRITER = Writer("torchtune", ("torchtune",), write)
