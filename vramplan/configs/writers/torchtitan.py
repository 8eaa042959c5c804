"""The TOML of torchtitan up to 0.2.2.

The words are those of `programs/torchtitan.py`. Source: pytorch/torchtitan 0.2.2 (238fa995),
torchtitan/config/job_config.py and torchtitan/models/*/__init__.py (flavors).
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.configs.asked import Asked, ProgramFiles, Writer, refused
from vramplan.configs.page import TOML, Page
from vramplan.configs.programs import torchtitan, torchtitan_shapes
from vramplan.configs.programs.torchtitan_shapes import NEWER
from vramplan.configs.writers import words

P = "parallelism"
AC = "activation_checkpoint"
MODELS: dict[str, tuple[str, str]] = {
    **{f"qwen3-{size.lower()}": ("qwen3", size) for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B")},
    **words.turned({key: name for key, name in torchtitan_shapes.FLAVORS.items() if key[0] not in NEWER}),
    **{
        str(shape["name"]): key
        for key, shape in reversed(torchtitan_shapes.SHAPES.items())
        if key[0] not in NEWER  # of two flavors with one shape the first
    },
}
"""Of the names of the catalogue, the name and the flavor."""
FLOAT8 = "quantize.linear.float8"


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """One file."""
    page = Page("torchtitan.toml", TOML)
    found = MODELS.get(str(asked.shape.get("name")))
    if found is None:
        raise refused("torchtitan", asked.shape.get("name"), MODELS)
    name, flavor = found
    page.yours("job.dump_folder", "./outputs")
    page.put("model.name", name, "model")
    page.put("model.flavor", flavor, "model")
    page.yours("model.hf_assets_path", f"./assets/hf/{asked.checkpoint.rsplit('/', 1)[-1]}")
    if str(asked["precision"]).endswith("fp8"):
        page.put("model.converters", [FLOAT8], "precision")
    _batch(page, asked)
    page.put("training.seq_len", asked["sequence_length"], "sequence_length")
    page.put("training.max_norm", asked["max_gradient_norm"] or 0.0, "max_gradient_norm")
    _numbers(page, asked)
    page.put("training.enable_cpu_offload", asked.offloads("parameters"), "offload")
    page.yours("training.dataset", "c4_test")
    page.put("optimizer.name", words.turned(torchtitan.OPTIMIZERS).get(str(asked["optimizer"]), "AdamW"), "optimizer")
    page.put("optimizer.implementation", asked["optimizer_implementation"], "optimizer_implementation")
    if asked["optimizer_in_backward"]:
        page.put("optimizer.early_step_in_backward", True, "optimizer_in_backward")
    _checkpoints(page, asked)
    page.put("compile.enable", bool(asked["compile"]), "compile")
    page.put("compile.components", ["model", "loss"], "compile")
    _devices(page, asked)
    launch = f"{asked.environment()}{asked.torchrun()} -m torchtitan.train --job.config_file {page.name}"
    yield ProgramFiles((page,), (launch,))


def _batch(page: Page, asked: Asked) -> None:
    micro, steps = asked["micro_batch_size"] or 1, asked["gradient_accumulation_steps"] or 1
    if (asked["parallel.pipeline"] or 1) > 1:
        page.put("training.local_batch_size", micro * steps, "gradient_accumulation_steps")
        page.put(f"{P}.pipeline_parallel_microbatch_size", micro, "micro_batch_size")
        return
    page.put("training.local_batch_size", micro, "micro_batch_size")
    if steps > 1:
        total = micro * steps * (asked["parallel.data"] or 1)
        page.put("training.global_batch_size", total, "gradient_accumulation_steps")


def _numbers(page: Page, asked: Asked) -> None:
    word = str(asked["precision"])
    half = asked.half or ("bf16" if word.endswith("fp8") else "fp32")
    page.put("training.dtype", "bfloat16" if word == "pure-bf16" else "float32", "precision")
    page.put("training.mixed_precision_param", words.DTYPES[half], "precision")
    reduce = asked["parallel.reduce_dtype"] or "fp32"
    page.put("training.mixed_precision_reduce", words.DTYPES[reduce], "parallel.reduce_dtype")


def _checkpoints(page: Page, asked: Asked) -> None:
    word, _, apart = str(asked["activation_checkpointing"]).partition(":")
    if word.startswith("selective"):
        page.put(f"{AC}.mode", "selective", "activation_checkpointing")
        option = "op" if word == "selective-op" else apart or "1"
        page.put(f"{AC}.selective_ac_option", option, "activation_checkpointing", "every_second_matmul")
    else:
        page.put(f"{AC}.mode", "none" if word == "none" else "full", "activation_checkpointing")


def _devices(page: Page, asked: Asked) -> None:
    data, context = asked["parallel.data"] or 1, asked["parallel.context"] or 1
    replicas = max(1, data * context // (asked["parallel.shards"] or 1))
    if asked.fsdp:  # the devices of a context shard the model too, and count apart
        page.put(f"{P}.data_parallel_shard_degree", data // replicas, *words.STATES, "parallel.data")
        page.put(f"{P}.data_parallel_replicate_degree", replicas, *words.STATES)
        page.put(
            f"{P}.fsdp_reshard_after_forward", "never" if asked.kind == "fsdp-grad-op" else "default", *words.STATES
        )
    else:
        page.put(f"{P}.data_parallel_shard_degree", 1, *words.STATES)
        page.put(f"{P}.data_parallel_replicate_degree", data, *words.STATES, "parallel.data")
    for name in ("tensor", "context", "expert"):
        page.put(f"{P}.{name}_parallel_degree", asked[f"parallel.{name}"] or 1, f"parallel.{name}")
    if (asked["parallel.context"] or 1) > 1:
        ring = asked["parallel.context_communication"] == "ring"
        method = "alltoall" if ring else "allgather"
        page.put(f"{P}.context_parallel_rotate_method", method, "parallel.context_communication")
    stages = asked["parallel.pipeline"] or 1
    page.put(f"{P}.pipeline_parallel_degree", stages, "parallel.pipeline")
    if stages > 1:
        word, _, chunks = str(asked["parallel.schedule"]).partition(":")
        name = {"gpipe": "GPipe", "interleaved": "Interleaved1F1B"}.get(word, "1F1B")
        page.put(f"{P}.pipeline_parallel_schedule", name, "parallel.schedule")
        if chunks:
            each = max(1, asked.blocks // stages // int(chunks))
            page.put(f"{P}.pipeline_parallel_layers_per_stage", each, "parallel.schedule")


WRITER = Writer("torchtitan", ("torchtitan",), write)
