"""torchtitan: one TOML file for `run_train.sh`, of the releases up to 0.2.2; later ones have a Python registry.

Source: pytorch/torchtitan 0.2.2 (238fa995), torchtitan/config/job_config.py (keys and defaults),
torchtitan/models/*/__init__.py (flavors), torchtitan/distributed/activation_checkpoint.py (what `op` saves),
run_train.sh and torchtitan/config/manager.py (options).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.command import Words, named, options, processes
from vramplan.configs.programs import torchtitan_registry as registry
from vramplan.configs.programs import trainer
from vramplan.configs.programs.torchtitan_keys import (
    ATTENTIONS,
    DEFAULTS,
    UNDERSTOOD,
    UNMODELLED,
    WITHOUT_EFFECT,
)
from vramplan.configs.programs.torchtitan_shapes import FLAVORS, SHAPES, UNCOUNTED
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet
from vramplan.configs.shell import Argument, Script
from vramplan.configs.table import ProgramRelease, Table
from vramplan.configs.written import Written

_SOURCE = "pytorch/torchtitan {}, torchtitan/config/job_config.py"
RELEASES = (
    ProgramRelease("0.2.2", "2026-04-01", _SOURCE.format("0.2.2 (238fa995)"), DEFAULTS),
    registry.release(DEFAULTS),
    registry.between(DEFAULTS),
    registry.earlier(DEFAULTS),
)
OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam"}
SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe"}


LLAMAS = ("llama3", "llama2", "llama")
"""What releases call the models of one class, with one plan of sharding: torchtitan/models/llama until 2025."""


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are torchtitan's alone."""
    own: tuple[str, ...]
    own = ("model.flavor", "training.local_batch_size", "training.seq_len", "activation_checkpoint.mode")
    own += (
        "model_spec.0",
        "model_spec._class",
        "training.max_context_length",
        "parallelism.tensor_parallel_degree",
        "parallelism.data_parallel_shard_degree",
        "job.dump_folder",
    )
    return sum(name in keys for name in own)


OTHERS = {
    **dict.fromkeys(
        ("rollouter", "async_loop", "generator"), "it samples answers beside training, which is not modelled"
    ),
    "encoder": "a job has no word for a model of images alone",
}
"""Parts of configurations of torchtitan/experiments/rl and models/flux."""


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a torchtitan file."""
    trainer.renamed(sheet, {"training.sequence_parallel_degree": "training.tensor_parallel_degree"})  # of March 2024
    for key, why in OTHERS.items():
        found = next((one for one in sheet.written if one.startswith(f"{key}.")), None)
        if found is not None:
            sheet.refuse(found, why, "give a configuration that trains on texts")
            return
    meaning.say("runtime", "torchtitan", "model.name")
    stages = _degree(sheet, "pipeline_parallel_degree")
    _model(sheet, meaning)
    if registry.release_of(sheet.written) == registry.VERSION:
        registry.batch(sheet, meaning, stages)
        registry.optimizer(sheet, meaning)
        registry.checkpointing(sheet, meaning)
        registry.loss(sheet, meaning)
        registry.graphs(sheet, meaning)
    else:
        _batch(sheet, meaning, stages)
        _optimizer(sheet, meaning)
        if registry.has_class_of_checkpoints(sheet):
            registry.checkpointing(sheet, meaning)
        else:
            _checkpointing(sheet, meaning)
        if sheet.given("loss._class"):
            registry.loss(sheet, meaning)
    norm = sheet.number("training.max_norm") or None
    if norm is not None and "optimizer_in_backward" in meaning.job:  # train.py clips behind backward
        meaning.note("training.max_norm: each gradient is gone before all are there, and none is clipped")
        norm = None
    meaning.say("max_gradient_norm", norm, "training.max_norm")
    _compile(sheet, meaning)
    _devices(sheet, meaning, stages)


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    word = sheet.word("optimizer.name", OPTIMIZERS)
    if word:
        meaning.say("optimizer", word, "optimizer.name")
    how = sheet.text("optimizer.implementation") or "fused"
    if sheet.given("optimizer.fused"):
        how = "fused" if sheet.flag("optimizer.fused") else "foreach"
    meaning.say("optimizer_implementation", how, "optimizer.implementation")
    made = sheet.text("optimizer._class") or ""
    if sheet.flag("optimizer.early_step_in_backward") or "InBackward" in made:
        key = "optimizer._class" if "InBackward" in made else "optimizer.early_step_in_backward"
        meaning.say("optimizer_in_backward", True, key)


def _model(sheet: Sheet, meaning: Meaning) -> None:
    key_of_flavor = "model_spec.0" if sheet.given("model_spec.0") else "model.flavor"
    name, flavor = sheet.text("model.name") or "", sheet.text(key_of_flavor) or ""
    backend = sheet.text("model_spec.attn_backend")
    if backend not in (None, "sdpa"):
        meaning.lack("model_spec.attn_backend", f"attention of {backend} is counted as SDPA's")
    bare = flavor
    for tail in ATTENTIONS:
        bare = bare.removesuffix(tail)
    if bare != flavor:
        meaning.lack(key_of_flavor, f"attention of {flavor} is counted as SDPA's")
    key = (name, bare)
    if key in UNCOUNTED:
        meaning.lack(key_of_flavor, UNCOUNTED[key])
    other = next((of for of in ("hf_transformers.model", "hf_model") if sheet.text(of)), None)
    if other is not None and flavor.startswith("debugmodel"):
        meaning.ask(
            "model", f"the flavor {flavor} changes sizes of {sheet.text(other)} (--model FILE with all of them)"
        )
    elif other is not None:
        meaning.say("model", sheet.text(other), other)
    elif key in SHAPES:
        meaning.say("model", dict(SHAPES[key]), "model.name", key_of_flavor)
    elif key in FLAVORS:
        meaning.say("model", FLAVORS[key], "model.name", key_of_flavor)
    elif sheet.shape_of(model := f"{name.replace('_', '-')}-{bare.lower()}") is not None:
        meaning.say("model", model, "model.name", key_of_flavor)
    else:
        what = f"the flavor {flavor} of {name} is none of torchtitan's"
        meaning.ask("model", f"{what} (--model NAME)")


def _degree(sheet: Sheet, name: str) -> int:
    """A degree of parallelism."""
    return sheet.count(_key_of(sheet, name), 1) or 1


def _key_of(sheet: Sheet, name: str) -> str:
    """Where a file has a degree: also in the tables that had it in 2024."""
    old = (key for table in ("experimental", "training") if (key := f"{table}.{name}") in UNDERSTOOD)
    return next((key for key in old if sheet.given(key)), f"parallelism.{name}")


def _batch(sheet: Sheet, meaning: Meaning, stages: int) -> None:
    meaning.say("sequence_length", sheet.count("training.seq_len"), "training.seq_len")
    of = "training.batch_size" if sheet.given("training.batch_size") else "training.local_batch_size"
    micro = sheet.count(of)
    piece, piece_key = _piece(sheet, micro or 1, stages)
    total = sheet.count("training.global_batch_size")
    key = "gradient_accumulation_steps"
    steps = sheet.count(f"training.{key}") or 1  # of flame, which is built on torchtitan
    if micro is None:
        return
    if stages > 1:
        meaning.say("micro_batch_size", piece, piece_key)
        meaning.say(key, max(1, micro // piece) * steps, of)
    elif total and total > 0:
        meaning.say("micro_batch_size", micro, of)
        meaning.say("global_batch_size", total, "training.global_batch_size")
    else:
        meaning.say("micro_batch_size", micro, of)
        meaning.say(key, steps, f"training.{key}" if sheet.given(f"training.{key}") else "training.global_batch_size")


def _piece(sheet: Sheet, batch: int, stages: int) -> tuple[int, str]:
    """The samples that a stage takes at a time, and the key that says so.

    Until April 2025 the batch was split into a number of parts, by default as many as there are stages on all devices.
    Source: pytorch/torchtitan (5e2033c75~1), torchtitan/distributed/pipeline.py, `build_pipeline_schedule`.
    """
    own = ("parallelism.pipeline_parallel_microbatches", "experimental.pipeline_parallel_microbatches")
    key = next((name for name in own if sheet.count(name)), None)
    parts = sheet.count(key) if key is not None else None
    schedule = _key_of(sheet, "pipeline_parallel_schedule")
    if parts is None and sheet.given("experimental.pipeline_parallel_degree"):
        several = re.search(r"(?i)interleaved|looped|zerobubble|zbv", sheet.text(schedule) or "") is not None
        parts = stages * (2 if several else 1)
    size = sheet.count("parallelism.pipeline_parallel_microbatch_size") or 1
    if parts is None:
        return size, "parallelism.pipeline_parallel_microbatch_size"
    return max(1, batch // parts), key or "experimental.pipeline_parallel_degree"


def _checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    mode = sheet.text("activation_checkpoint.mode")
    option = str(sheet.get("activation_checkpoint.selective_ac_option"))
    of = ("activation_checkpoint.mode", "activation_checkpoint.selective_ac_option")
    if mode in ("none", "full"):
        meaning.say("activation_checkpointing", mode, of[0])
    elif mode == "selective" and option == "op":
        meaning.say("activation_checkpointing", "selective-op", *of)
        meaning.say("every_second_matmul", True, *of)
    elif mode == "selective" and option.isdigit():
        meaning.say("activation_checkpointing", f"selective-layer:{option}", *of)
    elif mode == "memory_budget":
        meaning.say("activation_checkpointing", "none", of[0])
        meaning.lack(of[0], "the compiler chooses within a memory budget, and nothing is counted as recomputed")
    else:
        sheet.problem(
            of[0], f"{mode!r} with {option!r} is not understood", "none, full, or selective with op or a number"
        )


def _compile(sheet: Sheet, meaning: Meaning) -> None:
    parts = sheet.texts("compile.components") or []
    if not (sheet.flag("compile.enable") and "model" in parts) and not sheet.flag("training.compile"):
        if sheet.flag("compile.enable") and "loss" in parts:
            meaning.lack(
                "compile.components", "the loss alone is compiled: it is counted as it is without the compiler"
            )
        return
    checkpoints = meaning.job.get("activation_checkpointing")
    selects = checkpoints is not None and checkpoints.value == "selective-op"
    if selects and sheet.text("model.name") not in LLAMAS:
        meaning.lack("compile.enable", "what selective checkpoints keep is counted as it is without the compiler")
        return
    meaning.say("compile", True, "compile.enable", "compile.components")


def _devices(sheet: Sheet, meaning: Meaning, stages: int) -> None:
    tensor, context = _degree(sheet, "tensor_parallel_degree"), _degree(sheet, "context_parallel_degree")
    expert = _degree(sheet, "expert_parallel_degree")
    replicas = _degree(sheet, "data_parallel_replicate_degree")
    shards = _degree(sheet, "data_parallel_shard_degree")
    old = sheet.count("training.data_parallel_degree")
    shards = shards if old is None else old
    half = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    parameter = half.get(sheet.text("training.mixed_precision_param") or "", "bf16")
    reduce = half.get(sheet.text("training.mixed_precision_reduce") or "", "fp32")
    dtype = half.get(sheet.text("training.dtype") or "", "fp32")
    of_converters = ("model.converters", "model_spec.converters", "model_converters.converters")
    converters = [name for key in of_converters for name in sheet.texts(key) or []]
    kind = (sheet.text("training.fp8_linear") or "").lower()  # of spring 2024: dynamic, delayed, or nothing
    fp8 = any("float8" in name.lower() for name in converters) or bool(
        sheet.flag("float8.enable_float8_linear")
        or sheet.flag("training.enable_float8_linear")
        or kind not in ("", "false")
    )
    sheet.text("quantize.linear.float8.recipe_name")
    of_llama = sheet.text("model.name") in LLAMAS
    of_own_code = of_llama and "compile" in meaning.job
    if fp8 and not of_own_code:
        of_fp8 = (*of_converters, "training.fp8_linear", "float8.enable_float8_linear")
        why = "products in fp8 are counted as products in bf16, whose operands are what backward keeps"
        meaning.lack(next((key for key in of_fp8 if sheet.given(key)), of_fp8[-1]), why)
    sharded = shards != 1
    alone = _is_alone(sheet, tensor * stages * context * replicas, shards)
    of = ("training.mixed_precision_param", "training.dtype")
    if dtype == "bf16":
        meaning.say("precision", "pure-bf16", *of)
    elif fp8 and of_own_code:
        meaning.say("precision", "fsdp-fp8", *(key for key in of_converters if sheet.given(key)))
    elif parameter == "fp32":
        meaning.say("precision", "fp32", *of)
    elif not alone and (sharded or replicas == 1):
        meaning.say("precision", f"fsdp-{parameter}", *of)
    else:
        meaning.say("precision", f"amp-{parameter}", *of)
    for name, value, key in (
        ("parallel.tensor", tensor, "tensor_parallel_degree"),
        ("parallel.pipeline", stages, "pipeline_parallel_degree"),
        ("parallel.context", context, "context_parallel_degree"),
        ("parallel.expert", expert, "expert_parallel_degree"),
    ):
        if value > 1:
            meaning.say(name, value, _key_of(sheet, key))
    if tensor > 1 and sheet.flag("parallelism.enable_sequence_parallel", True):
        if of_llama:
            meaning.say("parallel.sequence_parallel", True, _key_of(sheet, "tensor_parallel_degree"))
        else:
            why = "between its products each device is counted with the whole sequence"
            meaning.lack("parallelism.tensor_parallel_degree", why)
    sheet.flag("parallelism.disable_loss_parallel")
    if context > 1:
        ring = sheet.text("parallelism.context_parallel_rotate_method") == "alltoall"
        meaning.say(
            "parallel.context_communication",
            "ring" if ring else "all-gather",
            "parallelism.context_parallel_rotate_method",
        )
    sheet.text("parallelism.context_parallel_rotate_method")
    if not alone:
        _sharding(sheet, meaning, replicas, shards, reduce, tensor * stages * context, context, stages)
    schedule = (
        sheet.text("experimental.pipeline_parallel_schedule")
        or sheet.text("parallelism.pipeline_parallel_schedule")
        or ""
    ).lower()
    each = sheet.count("parallelism.pipeline_parallel_layers_per_stage")
    if stages > 1:
        if schedule.startswith("interleaved") or schedule in ("zbvzerobubble", "interleavedzerobubble", "loopedbfs"):
            name = meaning.job["model"].value
            layers = sheet.layers_of(name) if isinstance(name, str) else name["layers"]
            chunks = max(2, layers // stages // each) if each and layers else 2
            meaning.say("parallel.schedule", f"interleaved:{chunks}", "parallelism.pipeline_parallel_schedule")
        else:
            meaning.say("parallel.schedule", SCHEDULES.get(schedule, "1f1b"), "parallelism.pipeline_parallel_schedule")
    if sheet.flag("training.enable_cpu_offload"):
        meaning.say("offload", ["parameters", "gradients", "optimizer"], "training.enable_cpu_offload")


def _is_alone(sheet: Sheet, others: int, shards: int) -> bool:
    """Whether one GPU trains without FSDP, under autocast: with TOML files and the first registry; later ones wrap it.

    Source: pytorch/torchtitan 0.2.2, torchtitan/distributed/parallel_dims.py, fsdp_enabled, and utils.py,
    maybe_enable_amp; b5bcd76c, torchtitan/models/llama3/parallelize.py.
    """
    one = shards == 1 or (shards < 0 and sheet.devices == 1)
    return one and others == 1 and registry.release_of(sheet.written) != registry.VERSION


def _sharding(
    sheet: Sheet, meaning: Meaning, replicas: int, shards: int, reduce: str, each: int, context: int, stages: int
) -> None:
    """How devices share states; `each`: the devices of one data-parallel rank.

    Those of a context shard the model too. Parameters stay whole between the micro-batches of a pipeline, unless the
    file says otherwise. Source: pytorch/torchtitan 0.2.2, torchtitan/models/llama3/infra/parallelize.py, apply_fsdp.
    """
    old = "training.fsdp_reshard_after_forward"  # its place until spring 2025
    whole = sheet.text(old if sheet.given(old) else "parallelism.fsdp_reshard_after_forward")
    kept = whole == "never" or (whole != "always" and stages > 1)
    of = ("parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree")
    if replicas > 1 and shards == context == 1:
        meaning.say("parallel.sharding", "ddp", *of)
        meaning.say("parallel.data", replicas, of[1])
        return
    if replicas > 1 and (shards >= 1 or sheet.devices):
        group = (shards if shards >= 1 else max(1, (sheet.devices or 1) // each // replicas)) * context
        meaning.say("parallel.sharding", "fsdp-grad-op" if kept else f"hsdp:{group}", *of)
        if kept:
            meaning.say("parallel.shards", group, *of)
    elif replicas > 1:
        why = f"hsdp: each of {replicas} replicas is sharded among as many devices as there are for it (--gpus N)"
        meaning.ask("parallel.sharding", why)
    else:
        meaning.say("parallel.sharding", "fsdp-grad-op" if kept else "fsdp", *of)
    meaning.say("parallel.fsdp_version", 2, "torchtitan shards with fully_shard")
    meaning.say("parallel.reduce_dtype", reduce, "training.mixed_precision_reduce")
    if shards > 0:
        meaning.say("parallel.data", replicas * shards, *of)
    elif sheet.devices and sheet.devices % each == 0:
        meaning.say("parallel.data", sheet.devices // each, "the launcher", *of)
    else:
        meaning.ask(
            "parallel.data", "data_parallel_shard_degree -1 takes every GPU that the launcher starts (--gpus N)"
        )


TABLE = Table(
    UNDERSTOOD | registry.UNDERSTOOD,
    WITHOUT_EFFECT | registry.WITHOUT_EFFECT,
    {**UNMODELLED, **registry.UNMODELLED},
    is_extended=True,
)


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    names = [named(word) for word in words]
    changes = dict(options(words, file))
    config = changes.pop("job.config_file", None)  # which a program around torchtitan's takes too
    own = {"torchtitan.train", "run_train.sh", "run_llama_train.sh", "train.py"}
    if config is None and not own & set(names):
        return None
    held = {name: script.values[name][0] for name in ("CONFIG_FILE", "MODULE", "CONFIG") if script.values.get(name)}
    if config is None and "CONFIG_FILE" in held:
        config = Written(held["CONFIG_FILE"].text, file, held["CONFIG_FILE"].line)
    elif config is None:
        config = _of_registry(changes, held, file)
    if config is None or not re.search(r"\.toml$|\$|\.py:\w+$", str(config.value)):
        return None
    given = {key: item for key, item in changes.items() if "." in key}
    counted = script.values.get("NGPU", ())
    number = next((int(item.text) for item in counted if item.text.isdecimal()), None)
    return Launched(config, given, processes(words) or number)


def _of_registry(changes: dict[str, Written], held: Mapping[str, Argument], file: str) -> Written | None:
    """The function of a registry that `--module llama3 --config llama3_8b` or variables of run_train.sh name.

    Source: pytorch/torchtitan main (b5bcd76c), torchtitan/config/manager.py; run_train.sh.
    """
    found = {}
    for option, name in (("module", "MODULE"), ("config", "CONFIG")):
        item, value = changes.pop(option, None), held.get(name)
        if item is None and value is not None:
            item = Written(value.text, file, value.line)
        if item is None or not re.fullmatch(r"[\w.]+", str(item.value)):
            return None
        found[option] = item
    folder = str(found["module"].value).replace(".", "/")
    place = folder if folder.startswith("torchtitan/") else f"torchtitan/*/{folder}"
    return found["config"]._replace(value=f"{place}/config_registry.py:{found['config'].value}")


PROGRAM = Program("torchtitan", RELEASES, TABLE, read, recognise, registry.release_of, started=started)
