"""Random jobs out of the table of options: each key alone, and a few of them together."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from vramplan import Session
from vramplan.catalog.gpus import list_gpus
from vramplan.catalog.models import list_models
from vramplan.errors import InputError
from vramplan.job import build_any_job
from vramplan.job.length import OF_A_RUN
from vramplan.options import table, words
from vramplan.options.option import COUNT, FLAG, MAX_COUNT, NUMBER, PARAMETERS, SIZE, TEXT, TEXTS, WORD, Option

Keys = dict[str, Any]

SESSION = Session()  # of all rounds: it changes no answer

SUBJECT = ("name", "model", "gpu", "runtime", *table.GROUPS)
SIZES = ("1 kB", "600 MB", "1 GiB", "19 GiB", "24 GB", "80 GiB", "512 GiB")
NUMBERS = ("2", "3", "4", "8", "64", "1000", "100000", "999999999")  # in a word such as every:K
TARGETS = ("q_proj", "v_proj", "c_attn", "query", "query_key_value", "down_proj", "fc1", "all-linear")
TEXTS_OF = {
    "pytorch_version": ("1.12", "1.13", "2.0", "2.4", "2.6", "9.9"),
    "deepspeed_version": ("0.18.6", "0.19.8", "0.8.0", "x"),
    "litgpt_version": ("0.4.5", "0.5.4", "0.5.13", "0.3.0", "x"),
    "transformers_version": ("4.40", "4.48", "4.53", "4.57", "5.0", "5.23", "3.9"),
    "bitsandbytes": ("0.41.1", "0.45.0", "0.49.2", "0.50.2", "1.0"),
    "allocator": ("estimate", "simulate", "expandable_segments:True", "roundup_power2_divisions:4"),
    "weight_dtype": words.CELL_WORDS,
    "price": ("2", "2.50", "1.99-3.50", "1-2-3", "0", "free"),
    "purchase_price": ("30k", "1500", "$25000", "much"),
    "deadline": ("90min", "36h", "7d", "2 weeks", "soon"),
    "budget": ("5", "5k", "5000 USD", "-1"),
    "grid": ("us", "france", "400 g/kWh", "0.05 kg/kWh", "atlantis"),
    "data_rate": ("1 kB/s", "500 MB/s", "7 GB/s", "500 MB"),
    "parallel.node_bandwidth": ("200 GB/s", "100 Gbit/s", "25Gbps"),
}
LISTS_OF = {
    "adapter.targets": TARGETS,
    "adapter.feedforward_targets": TARGETS,
    "adapter.modules_to_save": ("embed_tokens", "lm_head", "wte", "score"),
    "frozen": ("embeddings", "layers.0-1", "layers.0-999999999", "norms", "head", "attention", "mlp", "lora_A"),
}


@cache
def models() -> tuple[str, ...]:
    """The names of all models, the small ones several times, as they are answered faster."""
    known = [(profile.name, profile.shape()) for profile in list_models()]
    small = [name for name, shape in known if (shape.declared_parameters or 0) < 2 * 10**9]
    return (*(name for name, _ in known), *small * 3)


@cache
def gpus() -> tuple[str, ...]:
    """The names of all GPUs."""
    return tuple(profile.name for profile in list_gpus())


BESIDE: dict[str, Keys] = {
    "every_second_matmul": {"activation_checkpointing": "selective-op"},
    "dpo_reference": {"loss": "dpo"},
    "generation_batch_size": {"generation_length": 64},
    "generation_length": {"generation_batch_size": 2},
    "base_batch_size": {"base_learning_rate": 0.001},
    "base_learning_rate": {"base_batch_size": 64},
    "quantization": {"adapter": {"kind": "lora"}},
    "adapter.feedforward_targets": {"adapter": {"kind": "ia3"}},
    "adapter.decompose_factor": {"adapter": {"kind": "lokr"}},
    "adapter.frequencies": {"adapter": {"kind": "fourierft"}},
    "adapter.bias": {"adapter": {"kind": "lora"}},
    "adapter.trainable_tokens": {"adapter": {"kind": "lora"}},
    "grad_scaler": {"precision": "amp-fp16"},
    "expert_imbalance": {"model": "mixtral-8x7b"},
    "expert_capacity_factor": {"model": "mixtral-8x7b", "runtime": "megatron"},
    "expert_pad_to_capacity": {"model": "mixtral-8x7b", "runtime": "megatron", "expert_capacity_factor": 1.5},
    "target_length": {"model": "t5-small"},
    "image_size": {"model": "resnet-18"},
    "parallel.pipeline_split": {"parallel": {"pipeline": 2}},
    "parallel.schedule": {"parallel": {"pipeline": 2}, "gradient_accumulation_steps": 8},
    "parallel.context_communication": {"parallel": {"context": 2}},
    "parallel.sequence_parallel": {"parallel": {"tensor": 2}},
    **{key: {"samples": 52_000} for key in OF_A_RUN},
    **{
        f"parallel.{key}": {"offload": ["optimizer", "parameters"]}
        for key in (*words.PARAMETER_DRIVE_KEYS, "offload_optimizer_device", "offload_optimizer_buffer_count")
    },
}
"""What a key belongs to, where that is another key."""


def job(random: Random) -> Keys:
    """A job: what runs where, and a few keys that have a value of their kind.

    Most often what is refused is left out again, as a refusal shows less than an answer.
    """
    keys: Keys = {"model": random.choice(models()), "gpu": random.choice(gpus())}
    if random.random() < 0.1:
        keys["gpu"] = f"{random.choice([2, 8, 24, 80, 300])} GiB"
    if random.random() < 0.6:
        keys = _likely(random, keys, keys | {"runtime": random.choice(words.RUNTIMES)})
    if random.random() < 0.5:
        keys = _likely(random, keys, keys | {"sequence_length": random.choice([1, 7, 64, 128, 512, 1024, 2048])})
    if random.random() < 0.3:
        schedule = {"micro_batch_size": random.choice([1, 2, 3, 8, 64]), "gradient_accumulation_steps": 2}
        keys = _likely(random, keys, keys | schedule)
    textbook = keys.get("runtime") == words.TEXTBOOK
    options = [one for one in table.TABLE if one.key not in SUBJECT and (one.textbook if textbook else not one.only)]
    for option in random.sample(options, random.choice([1, 2, 3, 4, 6, 8])):
        keys = _likely(random, keys, _with(random, keys, option))
    return keys


def _likely(random: Random, keys: Keys, more: Keys) -> Keys:
    """The job with more keys; most often without them where they are refused."""
    if random.random() < 0.1:
        return more
    try:
        with SESSION.open():
            build_any_job(more)
    except InputError:
        return keys
    except Exception:
        return more
    return more


def _with(random: Random, keys: Keys, option: Option) -> Keys:
    """The job with a value of the key, most often beside what it belongs to."""
    keys = {key: dict(part) if isinstance(part, dict) else part for key, part in keys.items()}
    for key, part in BESIDE.get(option.key, {}).items() if random.random() < 0.9 else ():
        keys[key] = keys.get(key, {}) | part if isinstance(part, dict) else part
    inside = keys.setdefault(option.group, {}) if option.group else keys
    if option.group == "adapter":
        inside.setdefault("kind", random.choice(words.ADAPTERS))
    if option.group == "qat":
        inside.setdefault("weights", random.choice(words.QAT_WEIGHTS))
    if option.group == "parallel" and random.random() < 0.8:
        inside.setdefault("data", random.choice([2, 4, 8]))
    if option.sharding and random.random() < 0.9:
        inside["sharding"] = _word(random, random.choice(option.sharding))
    inside[option.name] = value(random, option)
    if "zero" in str(keys.get("parallel", {}).get("sharding")) and random.random() < 0.9:
        keys["precision"] = random.choice(["mixed-bf16", "mixed-fp16"])
    return keys


def value(random: Random, option: Option) -> Any:
    """A value that the row admits, or just about."""
    if option.key == "teacher":
        return random.choice(models())
    if option.kind in (TEXT, WORD) and option.key in TEXTS_OF:
        return random.choice(TEXTS_OF[option.key])
    if option.kind == WORD:
        return _word(random, random.choice(option.words))
    if option.kind == FLAG:
        return random.random() < 0.8
    if option.kind == COUNT and option.words:
        return int(random.choice(option.words))
    if option.kind in (COUNT, PARAMETERS):
        least, most = int(option.minimum or 0), int(option.maximum or MAX_COUNT)
        usual = [n for n in (1, 2, 3, 4, 5, 8, 16, 64, 512) if least <= n <= most] or [least]
        return random.choice([*usual * 4, least, most, 735134400 if most >= 735134400 else most])
    if option.kind == NUMBER:
        least, most = option.minimum or 0.0, option.below or option.maximum or 10.0
        return random.choice([least, 0.1, 0.5, 1.0, 1.25, 3.0, most if option.below is None else 0.999])
    if option.kind == SIZE:
        return random.choice(SIZES)
    if option.kind == TEXTS:
        known = option.words or LISTS_OF[option.key]
        return random.sample(known, random.choice([0, 1, 1, 2]))
    raise AssertionError(option)


def _word(random: Random, word: str) -> str:
    """A word of the table, with a number in the place of its letter."""
    head, colon, _ = word.partition(":")
    if not colon:
        return word
    return f"layers:[[0,{random.choice(['0', '3', '999999'])}]]" if "[" in word else f"{head}:{random.choice(NUMBERS)}"
