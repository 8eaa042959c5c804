"""LitGPT: one YAML file for `litgpt finetune_full`, `finetune_lora` or `pretrain`.

Source: Lightning-AI/litgpt 0.5.13 (26857050), litgpt/args.py, litgpt/finetune/{full,lora}.py and litgpt/pretrain.py
(`setup` and `main`: keys, defaults, strategies), litgpt/utils.py (default precision, optimizers), litgpt/config.py,
litgpt/__main__.py (commands).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.command import Words, named, options
from vramplan.configs.programs import litgpt_model
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet
from vramplan.configs.shell import Argument, Script
from vramplan.configs.table import ProgramRelease, Table, names
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem, near_matches
from vramplan.options.spellings import CLASSES
from vramplan.options.words import LATER_TORCH_OPTIMIZERS, NEVER_FUSED

UNDERSTOOD = names(
    """
    checkpoint_dir model_name precision quantize devices num_nodes lora_r lora_alpha
    lora_dropout lora_query lora_key lora_value lora_projection lora_mlp train.global_batch_size
    train.micro_batch_size train.max_seq_length train.max_norm train.tie_embeddings train.activation_checkpointing
    fsdp.activation_checkpointing
    optimizer optimizer.class_path
    optimizer.init_args.momentum optimizer.init_args.fused optimizer.init_args.foreach compiler
    """
)

WITHOUT_EFFECT = names(
    """
    out_dir data data.* train.save_interval train.log_interval train.lr_warmup_steps train.lr_warmup_fraction
    train.epochs train.max_tokens train.max_steps train.max_time train.min_lr train.learning_rate train.weight_decay
    train.beta1 train.beta2 train eval eval.* log log.* logger_name seed resume access_token tokenizer_dir
    initial_checkpoint_dir optimizer.init_args optimizer.init_args.lr optimizer.init_args.weight_decay
    optimizer.init_args.betas optimizer.init_args.eps optimizer.init_args.amsgrad optimizer.init_args.nesterov
    pad_id
    """
)

UNMODELLED = {
    "executors": "Thunder's executors, in extensions/thunder",
    "lora_head": "an adapter on the output head",
    "adapter_*": "LLaMA-Adapter",
}

FINETUNE: dict[str, Any] = {
    "train.global_batch_size": 16,
    "train.micro_batch_size": 1,
    "devices": 1,
    "num_nodes": 1,
    "precision": "bf16-mixed",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "lora_query": True,
    "lora_key": False,
    "lora_value": True,
    "lora_projection": False,
    "lora_mlp": False,
    "optimizer": "AdamW",
}
PRETRAIN: dict[str, Any] = {
    "train.global_batch_size": 512,
    "train.micro_batch_size": 4,
    "train.max_norm": 1.0,
    "devices": "auto",
}
"""Where the defaults of `litgpt pretrain` are other ones.

What a mapping under `train` leaves out is that of the command too: jsonargparse 4.37 and 4.41 take the values of the
object that `setup` has as its default, and not those of its class TrainArgs.
"""

RELEASES = (
    ProgramRelease(
        "0.5.13",
        "2026-06-29",
        "Lightning-AI/litgpt 0.5.13 (26857050), litgpt/args.py, litgpt/finetune/*.py, litgpt/pretrain.py",
        FINETUNE,
    ),
)

PRECISIONS = {
    "bf16-true": ("pure-bf16", "pure-bf16"),
    "bf16-mixed": ("amp-bf16", "fsdp-bf16"),
    "16-true": ("pure-fp16", "pure-fp16"),
    "16-mixed": ("amp-fp16", "fsdp-fp16"),
    "32-true": ("fp32", "fp32"),
    "32": ("fp32", "fp32"),
    "bf16": ("amp-bf16", "fsdp-bf16"),
    "16": ("amp-fp16", "fsdp-fp16"),
}
"""Of Fabric's `precision`: on one device, and under FSDP."""

QUANTIZATIONS = {
    "bnb.nf4": "nf4",
    "bnb.nf4-dq": "nf4-double",
    "bnb.fp4": "nf4",
    "bnb.fp4-dq": "nf4-double",
    "bnb.int8-training": "int8",
    "bnb.int8": "int8",
}

OPTIMIZERS = {
    "AdamW": "adamw",
    "Adam": "adam",
    "SGD": "sgd",
    "RMSprop": "rmsprop",
    "Adafactor": "adafactor",
    "Adagrad": "adagrad",
    "NAdam": "nadam",
    "RAdam": "radam",
    "Adamax": "adamax",
    "Adadelta": "adadelta",
    "ASGD": "asgd",
    "StableAdamW": "stable-adamw",
    "GrokAdamW": "grokadamw",
    "CAME": "came",
    "Prodigy": "prodigy",
}
"""Classes of torch.optim."""

TARGETS = {
    "lora_query": ("q_proj",),
    "lora_key": ("k_proj",),
    "lora_value": ("v_proj",),
    "lora_projection": ("o_proj",),
    "lora_mlp": ("gate_proj", "up_proj", "down_proj"),
}


def _neox(name: str, blocks: int, width: int, heads: int, positions: int, words: int = 50304) -> dict[str, Any]:
    return {
        "name": name,
        "family": "neox",
        "layers": blocks,
        "hidden_size": width,
        "attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocabulary_size": words,
        "max_positions": positions,
        "tied_embeddings": False,
    }


SHAPES = {
    # litgpt/config.py: models that the catalogue has no profile of
    "pythia-14m": _neox("pythia-14m", 6, 128, 4, 512),
    "pythia-31m": _neox("pythia-31m", 6, 256, 8, 1024),
    "pythia-70m": _neox("pythia-70m", 6, 512, 8, 2048),
    "pythia-1b": _neox("pythia-1b", 16, 2048, 8, 2048),
    **{
        f"stablelm-{kind}-alpha-{size}": _neox(f"stablelm-{kind}-alpha-{size}", 16, width, heads, 4096, words)
        for kind in ("base", "tuned")
        for size, width, heads, words in (("3b", 4096, 32, 50688), ("7b", 6144, 48, 50432))
    },
    "stories15M": {
        "name": "stories15M",
        "family": "llama",
        "layers": 6,
        "hidden_size": 288,
        "attention_heads": 6,
        "intermediate_size": 768,
        "vocabulary_size": 32000,
        "max_positions": 256,
        "tied_embeddings": False,
    },
}


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are LitGPT's alone."""
    own = ("train.micro_batch_size", "train.global_batch_size", "train.max_seq_length", "lora_query", "eval.max_iters")
    return sum(name in keys for name in own) + ("checkpoint_dir" in keys or "model_name" in keys)


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a LitGPT file."""
    pretrain = any(key in sheet for key in ("model_name", "model_config", "initial_checkpoint_dir", "tokenizer_dir"))
    lora = any(key.startswith("lora_") for key in sheet.written)

    def default(key: str) -> Any:
        return PRETRAIN.get(key, FINETUNE.get(key)) if pretrain else FINETUNE.get(key)

    def of_train(name: str) -> float | None:
        key = f"train.{name}"
        return sheet.number(key) if sheet.given(key) else default(key)

    meaning.say("runtime", "litgpt", "train")
    length = sheet.count("train.max_seq_length")
    _model(sheet, meaning, pretrain, length)
    devices, nodes = _devices(sheet, meaning, pretrain)
    micro, total = of_train("micro_batch_size"), of_train("global_batch_size")
    if micro and total:
        meaning.say("micro_batch_size", int(micro), "train.micro_batch_size")
        steps = int(total) // devices // int(micro)
        of = ("train.global_batch_size", "train.micro_batch_size", "devices", "num_nodes")
        if steps < 1 and sheet.devices is not None:
            meaning.say("gradient_accumulation_steps", 1, *of)
            more = f"{int(total)} is smaller than {devices} devices x {int(micro)} samples, which LitGPT refuses"
            meaning.note(f"train.global_batch_size: {more}: {devices * int(micro)} samples are counted")
        elif steps < 1:
            sheet.problem("train.global_batch_size", f"{total} is smaller than {devices} devices x {micro} samples")
        else:
            meaning.say("gradient_accumulation_steps", steps, *of)
    norm = of_train("max_norm")
    if norm and not pretrain:
        sheet.problem("train.max_norm", "litgpt finetune clips nothing and refuses it", "leave train.max_norm out")
    elif norm:
        meaning.say("max_gradient_norm", norm, "train.max_norm")
    quantized = sheet.word("quantize", QUANTIZATIONS)
    if quantized:
        meaning.say("quantization", quantized, "quantize")
        if devices > 1:
            hint = "leave out quantize, or name one device: --gpus 1"
            sheet.problem("quantize", f"LitGPT quantizes on one device alone, and these are {devices}", hint)
    _optimizer(sheet, meaning, pretrain, bool(quantized))
    pair = sheet.word("precision", PRECISIONS, "bf16-mixed")
    if pair:
        meaning.say("precision", pair[devices > 1], "precision")
        if pair[devices > 1] == "amp-fp16":
            meaning.say("grad_scaler", True, "precision")
    if lora and not pretrain:
        _adapter(sheet, meaning)
    else:
        for key in ("lora_r", "lora_alpha", "lora_dropout", *TARGETS):
            sheet.get(key)
        if not pretrain and "quantize" in sheet and not lora:
            meaning.lack("quantize", "without lora_* it is `finetune_adapter`, which trains prompts")
    compiler = sheet.word("compiler", {"torch": "torch", "thunder": "thunder"})  # of extensions/thunder/pretrain.py
    if compiler == "thunder":
        meaning.lack("compiler", "Thunder compiles the model, and torch.compile is counted")
    if pretrain:
        meaning.say("compile", True, "compiler" if compiler else "pretrain.py compiles the model")
        meaning.say("activation_checkpointing", "none", "pretrain.py has none")
    else:
        word = "full" if devices > 1 else "none"
        meaning.say("activation_checkpointing", word, "the strategy in finetune/*.py", "devices")
    for forked in ("train.activation_checkpointing", "fsdp.activation_checkpointing"):
        if not sheet.given(forked):
            continue  # LitGPT itself has no setting for it, and copies of it have one of these
        if forked.startswith("fsdp.") and devices == 1:
            sheet.taken.add(forked)  # one device has no strategy that it could be of
            continue
        meaning.say("activation_checkpointing", "full" if sheet.flag(forked) else "none", forked)
    if devices > 1:
        word = f"hsdp:{devices // nodes}" if pretrain and nodes > 1 else "fsdp"
        meaning.say("parallel.sharding", word, "devices")
        meaning.say("parallel.fsdp_version", 2 if lora and not pretrain else 1, "the strategy")


def _model(sheet: Sheet, meaning: Meaning, pretrain: bool, length: int | None) -> None:
    key = "model_name" if pretrain else "checkpoint_dir"
    name = sheet.text(key)
    positions = None
    if any(key.startswith(f"{litgpt_model.CONFIG}.") for key in sheet.written):
        positions = litgpt_model.say(sheet, meaning, name)
        length = length or positions
    elif name:
        last = name.rstrip("/").rsplit("/", 1)[-1]
        shape = SHAPES.get(last) or name.removeprefix("checkpoints/")
        if isinstance(shape, dict):
            positions = shape["max_positions"]
            length = length or (positions if pretrain else None)
            if sheet.flag("train.tie_embeddings"):
                shape = {**shape, "tied_embeddings": True}
        meaning.say("model", shape, key)
    else:
        meaning.ask("model", f"the file has no {key}")
    sheet.flag("train.tie_embeddings")
    if pretrain and length and positions and length > positions:
        long = f"{length} is more than the {positions} positions of the model, and LitGPT stops there"
        meaning.ask("sequence_length", f"train.max_seq_length: {long} (--seq {positions})")
    elif length:
        meaning.say("sequence_length", length, "train.max_seq_length")
    elif not pretrain:
        meaning.ask("sequence_length", "train.max_seq_length is null: the longest sample decides (--seq N)")


def _devices(sheet: Sheet, meaning: Meaning, pretrain: bool) -> tuple[int, int]:
    """All devices, and the nodes. Those that are named beside the file go before its own."""
    nodes = sheet.count("num_nodes") or 1
    text = str(sheet.get("devices") if sheet.given("devices") else "auto" if pretrain else 1)
    if sheet.devices is not None:
        return sheet.devices, nodes if sheet.devices % nodes == 0 else 1
    if text in ("auto", "-1"):
        meaning.ask("parallel.data", "devices: auto takes every GPU of the machine (--gpus N)")
        return nodes, nodes
    count = len(text.split(",")) if "," in text else int(float(text)) if text.replace(".", "").isdigit() else 0
    if count < 1:
        sheet.problem("devices", f"{text!r} is not a number of devices")
        count = 1
    if count * nodes > 1:
        meaning.say("parallel.data", count * nodes, "devices", "num_nodes")
    return count * nodes, nodes


def _optimizer(sheet: Sheet, meaning: Meaning, pretrain: bool, quantized: bool) -> None:
    key = "optimizer.class_path" if sheet.given("optimizer.class_path") else "optimizer"
    home, _, name = str(sheet.get(key) or "AdamW").rpartition(".")
    fused, foreach = sheet.flag("optimizer.init_args.fused"), sheet.flag("optimizer.init_args.foreach")
    known = CLASSES if home.startswith("bitsandbytes") else CLASSES | OPTIMIZERS
    if name not in known:
        sheet.problem(key, f"{name!r} is not understood", near_matches(name, known))
        return
    word = known[name]
    if word == "sgd" and sheet.number("optimizer.init_args.momentum"):
        word = "sgd-momentum"
    if quantized and word == "adamw":
        meaning.say("optimizer", "adamw-paged", "quantize", key)  # instantiate_bnb_optimizer
        return
    meaning.say("optimizer", word, key)
    if word in ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop", *LATER_TORCH_OPTIMIZERS):
        asked = (fused or pretrain) and word not in NEVER_FUSED  # pretrain.py asks for the fused one on CUDA
        how = "fused" if asked else "for-loop" if foreach is False else "foreach"
        meaning.say("optimizer_implementation", how, "pretrain.py" if pretrain else "optimizer.init_args.fused")


def _adapter(sheet: Sheet, meaning: Meaning) -> None:
    on = [key for key in TARGETS if sheet.flag(key)]
    targets: Any = [name for key in on for name in TARGETS[key]]
    if len(on) == len(TARGETS):
        targets = "all-linear"
    meaning.say("adapter.kind", "lora", "lora_r")
    meaning.say("adapter.rank", sheet.count("lora_r"), "lora_r")
    meaning.say("adapter.targets", targets, *TARGETS)
    meaning.say("adapter.dropout", sheet.number("lora_dropout"), "lora_dropout")
    meaning.say("adapter.alpha", sheet.count("lora_alpha"), "lora_alpha")


_SCRIPT = re.compile(r"(?:.*/)?(?:(?:litgpt/)?(finetune)/(full|lora)|litgpt/(pretrain))\.py")
"""Scripts of early March 2024, before the command `litgpt`; tutorials/finetune_lora.md of that time starts them."""


def _as_commands(words: Words, file: str) -> Words:
    """`python litgpt/finetune/lora.py` as `litgpt finetune_lora`. Raises InputError for the scripts of 2023."""
    at = next((place for place, word in enumerate(words) if _SCRIPT.fullmatch(word.text)), None)
    found = _SCRIPT.fullmatch(words[at].text) if at is not None else None
    if at is None or found is None:
        return words
    behind = words[at + 1 :]
    is_read = "litgpt/" in words[at].text or any(re.match(r"--(train|data|eval)\.|--config\b", w.text) for w in behind)
    if not is_read and any(re.match(r"--(checkpoint_dir|precision|quantize)\b", word.text) for word in behind):
        what = "is a script of Lit-GPT of 2023, which has batch and rank as constants in its text"
        hint = "say what it runs: vramplan fit MODEL GPU --seq N --micro-batch N"
        raise InputError([Problem(what, words[at].text, hint, file, words[at].line)])
    if not is_read:
        return words
    kind = "_".join(part for part in found.groups() if part)
    return [words[at]._replace(text="litgpt"), words[at]._replace(text=kind), *behind]


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    words = _as_commands(words, file)
    at = next((place for place, word in enumerate(words[:-1]) if named(word) == "litgpt"), None)
    kind = re.fullmatch(r"(finetune(?:_full|_lora)?|pretrain)", words[at + 1].text) if at is not None else None
    if at is None:
        return None
    if kind is None:
        _refuse_others(words[at + 1], file)
        return None
    changes = dict(options(words[at + 2 :], file))
    config = changes.pop("config", None)
    first = words[at + 2] if at + 2 < len(words) else None
    if first is not None and not first.text.startswith("-"):
        changes["model_name" if kind[0] == "pretrain" else "checkpoint_dir"] = Written(first.text, file, first.line)
    if kind[0] in ("finetune", "finetune_lora") and config is None:
        changes.setdefault("lora_r", Written(8, file, words[at + 1].line))  # the command is what makes it LoRA
    return Launched(config, changes, None)


def _refuse_others(word: Argument, file: str) -> None:
    """Raises InputError for a command that trains, and that is none of those that are read.

    Source: Lightning-AI/litgpt 0.5.13, litgpt/__main__.py, PARSER_DATA.
    """
    if re.fullmatch(r"(finetune|pretrain)_\w+", word.text):
        message = f"litgpt {word.text} is a command of a copy of LitGPT, whose steps are not known here"
        if word.text.startswith("finetune_adapter"):
            message = f"litgpt {word.text} trains prompts within a frozen model, which are not modelled"
        hint = "give a run of finetune_full, finetune_lora or pretrain, or --from litgpt with its file"
        raise InputError([Problem(message, file=file, line=word.line, hint=hint)])


def prepared(written: dict[str, Written]) -> dict[str, Written]:
    """The settings of a file of early March 2024 under the names that they have had since: `model`, `io.out_dir`."""
    if not any(key.startswith("model.") for key in written):
        return written
    names = {key: key.replace("model.", f"{litgpt_model.CONFIG}.", 1) for key in written if key.startswith("model.")}
    names |= {key: key.removeprefix("io.") for key in written if key.startswith("io.")}
    return {names.get(key, key): item for key, item in written.items()}


TABLE = Table(
    UNDERSTOOD | litgpt_model.UNDERSTOOD,
    WITHOUT_EFFECT | litgpt_model.WITHOUT_EFFECT,
    {**UNMODELLED, **litgpt_model.UNMODELLED},
    is_extended=True,
)

PROGRAM = Program("litgpt", RELEASES, TABLE, read, recognise, prepared=prepared, started=started)
