"""Random jobs on one device whose techniques meet: small models of every type, and options out of the table.

Each option is drawn on its own with a small probability, so that two to five meet in a job. What is no technique of a
training step on one device is named here, so that an option that is new to the table is drawn without being listed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.draws import BESIDE, value
from tests.traces.drawn_adapters import adapter
from tests.traces.models import CONFIGS, VARIANTS
from vramplan.job import build_job
from vramplan.options import table
from vramplan.options.words import (
    DISTILLATIONS,
    FSDP_UNITS,
    LATER_TORCH_OPTIMIZERS,
    OTHER_OPTIMIZERS,
    QAT_ACTIVATIONS,
    QAT_WEIGHTS,
    RUNTIMES,
    TORCH_OPTIMIZERS,
)
from vramplan.values.parallel import DDP, ZERO3, ZERO_STAGES

Keys = dict[str, Any]

PLAIN = (
    *("name", "model", "gpu", "runtime", "parallel", "sequence_length", "micro_batch_size", "precision", "attention"),
    "optimizer",
)
"""What every job has, and is drawn by itself."""

OF_A_RUN = (
    *("tokens", "samples", "epochs", "compute_optimal", "goodput", "price", "purchase_price", "deadline", "budget"),
    *("pue", "grid", "data_rate", "sample_size", "base_batch_size", "base_learning_rate"),
)
OF_A_MACHINE = (
    *("host_memory", "gpu_free", "pytorch_version", "transformers_version", "cuda_module_loading", "allocator"),
    *("reserve", "expect", "litgpt_version", "deepspeed_version"),
    *("max_utilization", "global_batch_size"),
)
OF_OTHERS = (
    *("master_dtype", "compute_dtype", "trainable_parameters", "activation_model"),
    *("activation_bytes", "checkpoint_factor", "expert_imbalance", "expert_capacity_factor", "expert_pad_to_capacity"),
    *("generation_batch_size", "generation_length", "from_scratch", "compile", "bitsandbytes"),
    *("image_size", "optimizer_state_dtype"),
)
"""Of the textbook and other programs, of what runs beside training, and what no trace here can run."""

SPLIT = (
    *("tensor", "pipeline", "schedule", "microbatch_group_size", "context", "expert", "sequence_parallel"),
    *("pipeline_split", "context_communication"),
)
CONNECTED = ("devices_per_node", "node_bandwidth")
ON_THE_HOST = (
    *("offload_optimizer_buffer_count", "offload_parameters_buffer_count", "offload_parameters_buffer_size"),
    "offload_parameters_max_in_cpu",
)
WITHOUT_EFFECT = ("allgather_bucket_size",)
"""Keys of `parallel` of models that other programs split, of what connects devices, and of what no device has."""

SHARING_NOT_DRAWN = {f"parallel.{key}" for key in (*SPLIT, *CONNECTED, *ON_THE_HOST, *WITHOUT_EFFECT)}
NOT_DRAWN = {*PLAIN, *OF_A_RUN, *OF_A_MACHINE, *OF_OTHERS}

WORDS_NOT_DRAWN = {
    "precision": {"auto": "chooses", "tf32": "is fp32", "bf16": "is amp-bf16", "fp16": "is amp-fp16"}
    | {"fsdp-fp8": "is torchao's, whose rig has rows", "fp8": "is torchao's, whose rig has rows"},
    "weight_dtype": {"fp32": "is usual", "fp8": "textbook", "int8": "textbook", "none": "textbook"},
    "gradient_dtype": {
        "fp16": "is usual",
        "bf16": "is usual",
        "fp8": "textbook",
        "int8": "textbook",
        "none": "textbook",
    },
    "optimizer": {f"adamw-{word}-torchao": "has kernels of its own" for word in ("8bit", "4bit", "fp8")},
    "activation_checkpointing": {"layers": "is Megatron's", "optimal": "chooses"}
    | {"gelu": "is llm.c's", "gelu-norms": "is llm.c's"},
    "attention": {"sdpa": "chooses"},
    "loss": {
        "dpo-logits": "is of older releases of TRL",
        "kto": "no rig has it",
        "fused-chunks": "is Unsloth's",
        "vocab-parallel": "is of split models",
    },
    "adapter.bias": {"none": "is usual"},
    "quantization": {"gptq-int4": "has a rig of its own"},
    "parallel.sharding": {"none": "is usual", "hsdp": "is drawn as `shards`", "distributed-optimizer": "is Megatron's"},
    "parallel.fsdp_version": {"2": "is usual"},
    "parallel.offload_optimizer_device": {"cpu": "is usual"},
    "parallel.offload_parameters_device": {"cpu": "is usual"},
    "runtime": {
        word: "has models of its own" for word in RUNTIMES if word not in ("transformers", "pytorch", "deepspeed")
    },
}
"""Words of the keys that are drawn which are not, and why."""

GROUPS = table.GROUPS  # more devices; what an adapter has is drawn with its kind

OPTIONS = tuple(one for one in table.TABLE if one.key not in NOT_DRAWN and one.group not in GROUPS and not one.only)
"""The options that are drawn, each on its own."""

PROBABILITY = 0.16  # of each, which lets two to five meet
RARE = {
    "qat": 0.5,
    "teacher": 0.5,
    "distillation": 0.0,
    "eval_batch_size": 0.5,
    "tiled_mlp": 0.75,
    "gradient_dtype": 0.25,
    "teacher_logprobs": 0.25,
    "dpo_reference": 0.25,
}
"""A share of that for what leaves little room for others; how predictions are compared is drawn with the teacher."""

IMAGES_AND_TEXT = (
    *("clip", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
    *("gemma3", "qwen3_5", "qwen3_5_moe", "siglip", "paligemma", "internvl", "llava_next", "idefics3", "smolvlm"),
    "llava_onevision",
)
IMAGES = (
    *("vit", "resnet", "dinov2", "convnext", "swin", "deit", "convnextv2", "dinov2_with_registers", "vit_msn"),
    "beit",
)
LENGTHS = {
    "llava_next": (100, 128),
    "llava_onevision": (100, 128),
    "internvl": (64, 128),
    "mistral3": (200, 256),
    "whisper": (8, 17, 32, 64),
}
LENGTHS |= dict.fromkeys(("idefics3", "smolvlm"), (100, 128))
LENGTHS |= dict.fromkeys(("wav2vec2", "hubert", "wavlm"), (1600, 3000, 8000))
"""Of types whose sequences have to hold an image's tokens, or that have learned fewer positions."""

TYPES = tuple(name for name in CONFIGS if name not in IMAGES_AND_TEXT)
LOSSES = (
    *("standard", "chunked:1", "chunked:3", "fused", "classification", "fp32-logits", "half-logits", "tiled"),
    *("dpo", "orpo", "cpo", "simpo", "reward", "grpo"),
)
OPTIMIZERS = (
    *("adam", "sgd", "sgd-momentum", "rmsprop", "adafactor", "muon", "adamw-8bit", "adamw-paged"),
    *("adamw-8bit-paged", "lion", "lamb", "lars", "lomo", "galore-adamw:4", "galore-adamw-8bit:4", "apollo-adamw:4"),
    "adam-mini",
    *(*LATER_TORCH_OPTIMIZERS, *OTHER_OPTIMIZERS),
    *("lion-8bit", "lion-paged", "lion-8bit-paged", "ademamix", "ademamix-8bit", "ademamix-paged", "adamw-32bit"),
    *("ademamix-8bit-paged", "rmsprop-32bit", "rmsprop-8bit", "adagrad-32bit", "adagrad-8bit", "sgd-momentum-32bit"),
    *("sgd-momentum-8bit", "galore-adafactor:4", "adalomo"),
)
OUTSIDE = ("tiled", "dpo", "orpo", "cpo", "simpo", "reward", "grpo")
"""Losses that are made outside of the model, which no rig of several devices has."""
LISTS = ("layer_types", "layers_block_type", "mlp_layer_types", "activation_sparsity_pattern")
"""Keys of a `config.json` that have an entry for each block."""
QUANTIZED = ("nf4", "nf4-double", "int8")
CHECKPOINTS = ("full", "full", "sqrt", "every:2", "every:3", "selective", "selective-op", "selective-layer:2")
GPU = {"name": "trace", "memory": "8192 GiB"}


def job(random: Random, folder: Path, types: Sequence[str] = TYPES) -> Keys:
    """A job in the words of the job format; its model is read from a `config.json` in the folder."""
    model_type = random.choice(types)
    keys: Keys = {
        "model": model_of(random, model_type, folder),
        "gpu": GPU,
        "runtime": random.choice(["transformers", "transformers", "pytorch"]),
        "micro_batch_size": random.choice([1, 2, 3, 5]),
        "gradient_accumulation_steps": 1,
        "precision": random.choice(["fp32", "amp-fp16", "amp-bf16", "pure-fp16", "pure-bf16"]),
        "attention": random.choice(["eager", "efficient", "flash", "math"]),
        "optimizer": "adamw",
        "optimizer_implementation": random.choice(["fused", "fused", "foreach", "for-loop"]),
        "activation_checkpointing": "none",
        "max_gradient_norm": None,
        "dropout": None,
    }
    if model_type not in IMAGES:
        keys["sequence_length"] = random.choice(LENGTHS.get(model_type, (8, 17, 32, 64, 100, 128)))
    for option in OPTIONS:
        if random.random() < PROBABILITY * RARE.get(option.key, 1):
            keys |= _with(random, option, keys)
    if keys.get("teacher"):
        keys["teacher"] = model_of(random, model_type, folder, vocabulary_of=keys["model"])
    if random.random() < PROBABILITY:
        keys["optimizer"] = random.choice(OPTIMIZERS)
        if keys["optimizer"] not in TORCH_OPTIMIZERS:
            keys.pop("optimizer_implementation", None)
    half = keys["precision"].rpartition("-")[2]
    if keys.pop("weight_dtype", None) and keys["precision"].startswith("amp-"):
        keys["weight_dtype"] = half
    return {key: one for key, one in keys.items() if one is not None or key == "max_gradient_norm"}


SHARDINGS = ("fsdp", DDP, "fsdp1", *ZERO_STAGES)
"""Under which all jobs of a draw may be; `fsdp` is FSDP2."""

STATES = ("parameters", "optimizer", "gradients")
"""What may be on the host: with FSDP all of it at once."""

NO_KEYS_OF_ZERO = (
    "optimizer_implementation",
    "grad_scaler",
    "ema",
    "optimizer_in_backward",
    "weight_dtype",
    "compute_dtype",
)
"""What DeepSpeed does by itself, or does not let a program do."""

NO_KEYS_OF_FSDP1 = ("ema", "optimizer_in_backward")
"""A module of FSDP1 cannot be copied, and it wants its gradients back after backward."""


def shared(random: Random, keys: Keys, sharding: str) -> Keys:
    """The same job on two to five devices, with switches of what they share states by.

    FSDP's own mixed precision is in half of the jobs that it is for.
    """
    devices = random.choice([2, 3, 4, 5])
    keys = {key: one for key, one in keys.items() if key != "eval_batch_size"}  # their rigs step alone
    if keys.get("loss") in OUTSIDE:
        del keys["loss"]
    if keys.pop("gradient_dtype", None):  # whose buffers no rig of several devices has
        keys["precision"] = keys["precision"].replace("mixed-", "amp-")
    if sharding == DDP:
        return {
            **keys,
            "parallel": {"data": devices, "sharding": DDP, "gradient_as_bucket_view": random.random() < 0.5},
        }
    if sharding in ZERO_STAGES:
        return _under_zero(random, keys, {"data": devices, "sharding": sharding})
    parallel: Keys = {"data": devices, "sharding": random.choice(["fsdp", "fsdp", "fsdp-grad-op"])}
    if sharding == "fsdp1":
        parallel["fsdp_version"] = 1
        if random.random() < PROBABILITY:
            parallel["limit_all_gathers"] = random.random() < 0.5
        keys = {key: one for key, one in keys.items() if key not in NO_KEYS_OF_FSDP1}
    elif random.random() < PROBABILITY:
        parallel["fsdp_units"] = random.choice(FSDP_UNITS)
    if devices == 4 and random.random() < 0.5:
        parallel["shards"] = 2
    if random.random() < PROBABILITY:
        parallel["reduce_dtype"] = random.choice(["fp32", keys["precision"].rpartition("-")[2]])
    if random.random() < PROBABILITY:
        keys = {**keys, "offload": [*STATES, *keys.get("offload", [])]}
    if keys["gradient_accumulation_steps"] > 1:
        parallel["no_sync"] = random.random() < 0.5
    precision = keys["precision"]
    if precision.startswith("amp-") and random.random() < 0.5:
        precision = precision.replace("amp-", "fsdp-")
    return {**keys, "parallel": parallel, "precision": precision}


def _under_zero(random: Random, keys: Keys, parallel: Keys) -> Keys:
    """DeepSpeed under the Trainer or in a loop of its own: weights of fp32 or 16 bits, states on the host in a few."""
    keys = {key: one for key, one in keys.items() if key not in NO_KEYS_OF_ZERO}
    stage_3 = parallel["sharding"] == ZERO3
    half = keys["precision"].rpartition("-")[2]
    keys["precision"] = f"mixed-{half}" if half in ("fp16", "bf16") else half
    if keys["runtime"] == "pytorch":
        keys["runtime"] = "deepspeed"
    parallel["reduce_bucket_size"] = random.choice([3_000, 40_000, 1_000_000])
    if random.random() < PROBABILITY:
        parallel["overlap_comm"] = random.random() < 0.5
    if stage_3:
        del parallel["reduce_bucket_size"]
        drawn: dict[str, list[Any]] = {
            "reduce_bucket_size": [3_000, 40_000, 1_000_000],
            "stage3_prefetch_bucket_size": [0, 20_000, 1_000_000],
            "stage3_param_persistence_threshold": [0, 500, 20_000],
            "stage3_max_live_parameters": [10_000, 200_000],
            "sub_group_size": [5_000, 50_000],
            "contiguous_gradients": [False],
            "memory_efficient_linear": [False],
        }
        parallel |= {
            key: random.choice(several)
            for key, several in drawn.items()
            # the Trainer makes the others of the hidden size; a bucket of DeepSpeed's own would be all there is
            if random.random() < PROBABILITY or (keys["runtime"] == "deepspeed" and key == "reduce_bucket_size")
        }
    if random.random() < PROBABILITY:
        states = random.choice([STATES[1:], STATES])
        keys["offload"] = [*(one for one in states if stage_3 or one != "parameters"), *keys.get("offload", [])]
        for key in ("offload_optimizer_device", "offload_parameters_device") if stage_3 else ():
            if key.split("_")[1] in states and random.random() < PROBABILITY:
                parallel[key] = "nvme"
    return {**keys, "parallel": parallel}


def _with(random: Random, option: Any, keys: Keys) -> Keys:
    own: dict[str, Any] = {
        "activation_checkpointing": CHECKPOINTS,
        "loss": LOSSES,
        "dropout": (0.0, 0.1),
        "gradient_accumulation_steps": (2, 3),
        "max_gradient_norm": (1.0,),
        "label_smoothing": (0.1,),
        "offload": (["activations"],),
        "eval_batch_size": (1, 2, 4),
        "tiled_mlp": (1, 2, 3, 4),
        "target_length": (8, 33),
        "frozen": (["embeddings"], ["layers.0-1"], ["norms"], ["head"], ["embeddings", "layers.0"]),
    }
    if option.key == "adapter":
        sizes: Keys = {key: keys[key] for key in ("model", "gpu", "sequence_length") if key in keys}
        return adapter(random, build_job(sizes).model, keys["precision"])
    if option.key == "teacher":
        return {"teacher": True, "distillation": random.choice(DISTILLATIONS)}
    if option.key == "qat":
        return {"qat": _fake_quantization(random)}
    if option.key == "quantization":
        return {"quantization": random.choice(QUANTIZED), **_with(random, table.find("adapter"), keys)}
    if option.key == "teacher_logprobs":  # which Axolotl compares with alone
        return {option.key: random.choice([1, 8]), "label_smoothing": None, "teacher": None}
    if option.key == "gradient_dtype":  # beside a step over a copy of the weights
        return {"precision": random.choice(["mixed-fp16", "mixed-bf16"]), "gradient_dtype": "fp32"}
    if option.key in own:
        return {option.key: random.choice(own[option.key])}
    return {**BESIDE.get(option.key, {}), option.key: value(random, option)}


def _fake_quantization(random: Random) -> Keys:
    """Weights that are rounded in forward, and what else is."""
    qat: Keys = {"weights": random.choice(QAT_WEIGHTS), "embedding": random.random() < 0.3}
    if qat["weights"] != "fp8":
        qat["group_size"] = random.choice([8, 16, 32])
    if random.random() < 0.5:
        qat["activations"] = random.choice(QAT_ACTIVATIONS)
    return qat


def model_of(random: Random, model_type: str, folder: Path, *, vocabulary_of: str | None = None) -> str:
    """A small `config.json` of other sizes each time; a teacher has the vocabulary of its student."""
    config = {"model_type": model_type, **CONFIGS[model_type]}
    layers = random.choice([1, 2, 3, 4])
    if config.get("num_kv_shared_layers"):  # which take the keys and values of blocks of their kind
        layers = config["num_hidden_layers"]
    for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"):
        if key in config:
            config[key] = layers
    if "attention_types" in config:  # a number of blocks, and what they are
        config["attention_types"] = [[["global"], layers]]
    first = {key: random.choice(range(len(config[key]) - layers + 1)) for key in LISTS if key in config}
    config |= {key: config[key][start : start + layers] for key, start in first.items()}
    for key in ("num_decoder_layers", "decoder_layers"):
        if key in config:
            config[key] = random.choice([1, 2, 3])
    for key, values in VARIANTS.get(model_type, {}).items():
        config[key] = random.choice(values)
    config["vocab_size"] = random.choice([64, 1003, 5000])
    if vocabulary_of is not None:
        config["vocab_size"] = json.loads(Path(vocabulary_of).read_text("utf-8"))["vocab_size"]
    for key in ("pad_token_id", "decoder_start_token_id"):
        if key in config:
            config[key] = 0
    path = folder / f"{model_type}-{random.getrandbits(32):08x}.json"
    path.write_text(json.dumps(config), "utf-8")
    return str(path)
