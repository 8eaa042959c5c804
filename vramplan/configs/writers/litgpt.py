"""The YAML of `litgpt finetune_full`, `finetune_lora` and `pretrain`.

The words are those of `programs/litgpt.py`. Source: Lightning-AI/litgpt 0.5.13, litgpt/args.py, finetune/full.py,
finetune/lora.py, pretrain.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.configs.asked import Asked, ProgramFiles, Writer
from vramplan.configs.page import Page
from vramplan.configs.programs import litgpt
from vramplan.configs.writers import words
from vramplan.options import spellings

CLASSES = words.turned(spellings.CLASSES) | words.turned(litgpt.OPTIMIZERS) | {"sgd-momentum": "SGD"}
HOMES = {
    "StableAdamW": "optimi",
    "GrokAdamW": "grokadamw",
    "CAME": "came_pytorch",
    "Prodigy": "prodigyopt",
}
"""Where a class is, if neither in torch.optim nor in bitsandbytes.optim."""
QUANTIZATIONS = words.turned(litgpt.QUANTIZATIONS)


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """The file of fine-tuning, or that of pretraining, which compiles and makes no checkpoints."""
    if asked["adapter.kind"]:
        yield _files(asked, "finetune_lora")
        return
    yield _files(asked, "finetune_full")
    yield _files(asked, "pretrain")


def _files(asked: Asked, command: str) -> ProgramFiles:
    page = Page("litgpt.yaml")
    if command == "pretrain":
        page.put("model_name", asked.checkpoint.rsplit("/", 1)[-1], "model")
        page.yours("initial_checkpoint_dir", None)
        page.yours("tokenizer_dir", f"checkpoints/{asked.checkpoint}")
    else:
        page.put("checkpoint_dir", f"checkpoints/{asked.checkpoint}", "model")
    page.yours("out_dir", "out/litgpt")
    place = asked.devices > 1
    names = {pair[place]: word for word, pair in reversed(litgpt.PRECISIONS.items())}
    page.put("precision", names.get(str(asked["precision"]), "bf16-mixed"), "precision")
    quantized = QUANTIZATIONS.get(str(asked["quantization"]))
    if quantized:
        page.put("quantize", quantized, "quantization")
    page.put("devices", asked.per_node, "parallel.data", "parallel.sharding")
    page.put("num_nodes", asked.nodes, "parallel.data")
    if command == "finetune_lora":
        _adapter(page, asked)
    if command == "pretrain":
        page.yours("data", "TinyLlama")
    else:
        page.yours("data.class_path", "litgpt.data.Alpaca2k")
    micro, steps = asked["micro_batch_size"] or 1, asked["gradient_accumulation_steps"] or 1
    page.put("train.global_batch_size", micro * steps * asked.devices, "gradient_accumulation_steps")
    page.put("train.micro_batch_size", micro, "micro_batch_size")
    page.put("train.max_seq_length", asked["sequence_length"], "sequence_length")
    if command == "pretrain":  # which asks for one, where fine-tuning takes none (validate_args)
        page.put("train.max_norm", asked["max_gradient_norm"] or 1.0, "max_gradient_norm")
    page.yours("train.epochs" if command != "pretrain" else "train.max_tokens", 1 if command != "pretrain" else 10**9)
    _optimizer(page, asked, command)
    meeting = "MASTER_ADDR=HOST MASTER_PORT=29500 NODE_RANK=RANK " if asked.nodes > 1 else ""  # what Lightning reads
    return ProgramFiles((page,), (f"{asked.environment()}{meeting}litgpt {command} --config {page.name}",))


def _adapter(page: Page, asked: Asked) -> None:
    found = words.targets(asked)
    page.put("lora_r", asked["adapter.rank"] or 8, "adapter.rank")
    page.put("lora_alpha", words.alpha(asked), "adapter.alpha")
    page.put("lora_dropout", float(asked["adapter.dropout"] or 0), "adapter.dropout")
    for key, layers in litgpt.TARGETS.items():
        on = found == "all-linear" or any(name in found for name in layers)
        page.put(key, on, "adapter.targets")
    page.put("lora_head", False)


def _optimizer(page: Page, asked: Asked, command: str) -> None:
    word, how = str(asked["optimizer"]), asked["optimizer_implementation"]
    if word == "adamw-paged" and asked["quantization"]:
        word = "adamw"  # instantiate_bnb_optimizer takes the paged one in its place
    name = CLASSES.get(word) or CLASSES.get(words.NEAR_OPTIMIZERS.get(word.partition(":")[0], ""), "AdamW")
    home = HOMES.get(name) or ("torch.optim" if name in litgpt.OPTIMIZERS else "bitsandbytes.optim")
    page.put("optimizer.class_path", f"{home}.{name}", "optimizer")
    page.yours("optimizer.init_args.lr", 0.0002)
    if home == "torch.optim" and name != "Adafactor" and command != "pretrain":
        if how == "fused":
            page.put("optimizer.init_args.fused", True, "optimizer_implementation")
        elif how == "for-loop":
            page.put("optimizer.init_args.foreach", False, "optimizer_implementation")
    if word.startswith("sgd-momentum"):
        page.put("optimizer.init_args.momentum", 0.9, "optimizer")


WRITER = Writer("litgpt", ("litgpt",), write)
