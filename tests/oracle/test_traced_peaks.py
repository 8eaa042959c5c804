"""TRACED TRUTH. The figures are torch.cuda.max_memory_allocated() as a trace of the real model code gives it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.oracle import compare
from tests.oracle.chosen import path_of, row_files, written
from tests.oracle.compare import (
    COMPILED,
    FILES,
    OFFLOADED,
    ROWS,
    job_called,
    jobs,
    rows,
    rows_of_every_block,
    setup_of,
    some_rows,
)
from tests.oracle.test_evaluation import is_said
from tests.oracle.test_host import DEVICE_ALONE
from vramplan.catalog.config_classes import FAMILY_OF, MODEL_TYPES, OF_RUNTIMES
from vramplan.options.words import BITSANDBYTES_OPTIMIZERS
from vramplan.replay.models.capable import head_losses, no_all_linear, no_checkpointing, takes_only_lora
from vramplan.replay.step import replay
from vramplan.replay.techniques.evidence import FP8, rows_of
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.truth

UNDECLARED = {
    "met",
    *("every_type_shared", "every_type_zero", "types_more"),
    *("rounded", "rounded_shared", "torchtune_rounded"),
    "zero",
    "zero_offload",
    "zero_adapters",
    "half_logits",
    "random",
    "optimizers",
    "selective",
    "selective_more",
    "losses",
    "adapters",
    "adapted",
    "adapters_more",
    "adapter_kinds",
    *("peft_more", "peft_more_shared"),
    "lora_parts",
    "heads",
    "smoothing",
    "preference",
    "policy",
    "preference_shared",
    "preference_zero",
    "stepped_shared",
    *("optimizers_more", "optimizers_more_shared"),
    "met_shared",
    "padding",
    "fp8",
    "fully_shard",
    "fully_shard_more",
    "replicated",
    "sharded_bits",
    "flat_parameter",
    "flat_host",
    "flat_adapters",
    "replicas",
    "sharded_more",
    "quantized",
    "losses_more",
    "returned",
    "titan",
    "titan_replicas",
    "titan_units",
    "torchtune_units",
    "litgpt_flat",
    "litgpt_old",
    "sharded_units",
    "sharded_decoders",
    "sharded_spaces",
    "state_spaces",
    "short_convolutions",
    "sharded_activations",
    "host_activations",
    "hosted",
    "masks",
    "liger",
    "fused_lora",
    "fused_lora_shared",
    "tiled_mlp",
    "tiled_mlp_shared",
    "taught",
    "taught_from_file",
    "torchtune_taught",
    "turns",
    "other_optimizers",
    "zeroed_late",
    "zeroed_late_shared",
    "distilbert",
    "distilbert_shared",
    "whisper",
    "whisper_shared",
    "whisper_zero",
    "dbrx",
    "dbrx_shared",
    "dbrx_zero",
    "deberta_v2",
    "deberta_v2_shared",
    "deberta_v2_zero",
    "electra",
    "electra_shared",
    "electra_zero",
    "modernbert",
    "modernbert_shared",
    "modernbert_zero",
    "older_releases",
    "virtual_tokens",
    "tiled",
    *("other_families", "other_families_shared", "other_families_zero"),
    *("every_type_shared", "every_type_zero", "types_more"),
    "named_types",
    "vision_more",
    "image_text",
    "stages",
    "image_shared",
    "text_types",
    "speech",
    *("further_types", "further_types_shared", "further_types_zero"),
    *("added_types", "added_types_shared", "added_types_zero"),
}
"""Files of rows that do not say how many parameters their models have."""


@pytest.mark.parametrize("file", FILES)
def test_every_row_is_exact(file: str) -> None:
    """Everybody looks at those of tests/oracle/chosen.py, `--whole` at all."""
    assert some_rows(file)
    assert {row.job.name: row.wrong for row in some_rows(file) if row.wrong} == {}


@pytest.mark.sweep
@pytest.mark.parametrize("file", FILES)
def test_every_row_is_exact_block_by_block(file: str) -> None:
    """What the quick replay plays once, played for each: rows of every technique with every type of model.

    That the two replays agree on any configuration, tests/engine shows. VRAMPLAN_EVERY_ROW=1 plays all rows so.
    """
    assert {row.job.name: row.wrong for row in rows_of_every_block(file) if row.wrong} == {}


@pytest.mark.parametrize("file", FILES)
def test_every_count_of_parameters_is_exact(file: str) -> None:
    counted = [(row.job.name, row.parameters, row.job.model.declared_parameters) for row in some_rows(file)]
    assert [row for row in counted if row[2] is not None and row[1] != row[2]] == []


@pytest.mark.parametrize("file", FILES)
def test_some_row_of_a_file_declares_how_many_parameters_there_are(file: str) -> None:
    declared = [row["model"].get("parameters") for row in written(path_of(file)) if isinstance(row["model"], dict)]
    assert any(declared) or file in UNDECLARED


@pytest.mark.parametrize("file", FILES)
def test_the_rows_are_all_there(file: str) -> None:
    names = [row["name"] for row in written(path_of(file))]
    assert len({*names}) == len(names) == ROWS[file]


def test_every_file_is_known() -> None:
    assert {*ROWS, *COMPILED} <= {path.stem for path in row_files()}


@pytest.mark.sweep
@pytest.mark.parametrize("path", row_files(), ids=lambda path: path.stem)
def test_a_row_by_itself_is_the_job_of_its_file(path: Path) -> None:
    """What everybody looks at is read row by row, and not with its file."""
    assert [job_called(path.stem, job.name) for job in jobs(path.stem)] == [*jobs(path.stem)]


@pytest.mark.sweep
def test_the_rows_that_offload_are_all_looked_at() -> None:
    """By test_host.py, where it was measured what is on the host."""
    offloaded = {
        file: sum(job.offload_activations and "host_bytes" in job.case["trace"] for job in jobs(file)) for file in FILES
    }
    known = {file: number for file, number in OFFLOADED.items() if file not in DEVICE_ALONE}
    assert {file: number for file, number in offloaded.items() if number} == known


@pytest.mark.sweep
def test_the_rows_cover_what_is_modelled() -> None:
    jobs = [row.job for file in FILES for row in rows(file)]
    composed = {"megatron_gpt"}
    assert {job.model.transformers_model_type for job in jobs} == {*MODEL_TYPES, *OF_RUNTIMES} - composed
    assert {job.model.task for job in jobs} == {"lm", "mlm", "cls", "image", "contrastive", "seq2seq", "ctc"}
    assert {job.precision for job in jobs} == {
        *("fp32", "amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16", "fp8"),
        "fsdp-bf16",
        "fsdp-fp16",
    }
    assert {job.attention for job in jobs} == {"eager", "flash", "efficient", "math", "sdpa"}
    assert {(job.optimizer, job.optimizer_implementation) for job in jobs} >= {
        ("adamw", "foreach"),
        ("adamw", "fused"),
        ("adamw", "for-loop"),
        ("adam", "foreach"),
        ("sgd", "foreach"),
        ("sgd-momentum", "foreach"),
        ("rmsprop", "foreach"),
        ("adafactor", "foreach"),
        ("adam", "for-loop"),
        ("sgd", "for-loop"),
        ("rmsprop", "for-loop"),
        ("adafactor", "for-loop"),
    }
    assert {job.micro_batch_size == 1 for job in jobs} == {True, False}
    assert {job.hold_outputs for job in jobs} == {True, False}
    assert {(job.gradient_accumulation_steps or 1) > 1 for job in jobs} == {True, False}
    assert any(job.model.key_value_heads == 1 < job.model.attention_heads for job in jobs)
    assert any(job.model.head_size % 8 for job in jobs)


@pytest.mark.sweep
def test_every_type_has_rows_of_many_kinds() -> None:
    jobs = [row.job for file in FILES for row in rows(file)]
    for model_type in MODEL_TYPES.keys() - {"falcon_mamba"}:
        of_type = [job for job in jobs if job.model.transformers_model_type == model_type]
        assert len(of_type) >= 10, model_type
        assert len({job.precision for job in of_type} - {"fp8", "fsdp-bf16", "fsdp-fp16"}) >= 2, model_type
        if no_checkpointing(of_type[0].model.family) is None:
            assert {job.activation_checkpointing == "none" for job in of_type} == {True, False}, model_type
    for family in {job.model.family for job in jobs}:
        of_family = [job for job in jobs if job.model.family == family]
        assert len(of_family) >= 10, family


@pytest.mark.sweep
def test_the_rows_of_adapters_cover_what_is_modelled() -> None:
    """Every model type that the other files have none of: kinds, targets, precisions and checkpoints of each."""
    jobs = [row.job for row in rows("adapters_more")]
    vision = ("clip", "resnet")
    for model_type in ("falcon", "chatglm", *vision, "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"):
        of_type = [job for job in jobs if job.model.transformers_model_type == model_type]
        adapters = [job.adapter for job in of_type if job.adapter is not None]
        assert len(adapters) == len(of_type) >= 20, model_type
        kinds = {"lora"} if takes_only_lora(FAMILY_OF[model_type]) else {"lora", "dora", "ia3"}
        assert {adapter.kind for adapter in adapters} == kinds, model_type
        whole = {False} if no_all_linear(of_type[0].model, "lora") else {True, False}
        assert {adapter.targets == ("all-linear",) for adapter in adapters} == whole, model_type
        assert {job.precision.partition("-")[0] for job in of_type} == {"fp32", "amp", "pure"}, model_type
        if no_checkpointing(of_type[0].model.family) is None:
            assert {job.activation_checkpointing for job in of_type} >= {"none", "full"}, model_type


@pytest.mark.sweep
def test_the_rows_of_images_cover_what_is_modelled() -> None:
    jobs = [row.job for row in rows("vision")]
    for model_type in ("vit", "clip", "llava"):
        of_type = [job for job in jobs if job.model.transformers_model_type == model_type]
        assert {job.attention for job in of_type} == {"eager", "flash", "efficient"}, model_type
        assert {"none", "full", "sqrt", "every:3"} == {job.activation_checkpointing for job in of_type}, model_type
        kept = {(job.micro_batch_size == 1, job.gradient_accumulation_steps == 1) for job in of_type}
        assert len(kept) == 4, model_type  # a gradient that is a view is kept between micro-steps
        cut = [job for job in of_type if job.model.image_size % job.model.patch_size]
        assert cut, model_type  # patches that do not reach the border
    assert any(job.sequence_length == job.model.image_tokens > 0 for job in jobs)
    assert any(job.model.key_value_heads < job.model.attention_heads for job in jobs)
    assert any(job.model.tied_embeddings for job in jobs)


@pytest.mark.sweep
def test_the_rows_of_other_optimizers_cover_what_is_modelled() -> None:
    """Eight rows or more of each; of those that project some that step in backward."""
    found = [row.job for row in rows("other_optimizers")]
    counts = Counter(job.optimizer.partition(":")[0] for job in found)
    known = {job.optimizer for row in rows("optimizers") for job in [row.job]}
    mine = {*BITSANDBYTES_OPTIMIZERS} - known | {"adalomo", "galore-adafactor"}
    assert {word: counts[word] for word in mine if counts[word] < 8} == {}
    layerwise = Counter(job.optimizer.partition(":")[0] for job in found if job.optimizer_in_backward)
    low_rank = ("galore-adamw", "galore-adamw-8bit", "galore-adafactor", "apollo-adamw")
    assert {word: layerwise[word] for word in low_rank if layerwise[word] < 5} == {}
    paged = [job for job in found if "paged" in job.optimizer]
    assert {replay(setup_of(job)).managed_bytes > 0 for job in paged} == {True, False}
    stepped = [job for job in found if job.optimizer == "adalomo"]
    assert {job.adapter is not None for job in stepped} == {True, False}
    assert {job.quantization for job in stepped} >= {"nf4", "nf4-double", "int8", None}
    assert any(job.trained_blocks == "badam" for job in found)


@pytest.mark.sweep
def test_the_rows_of_optimizers_cover_what_is_modelled() -> None:
    """Ten rows or more of each, with every combination that has an allocation of its own."""
    jobs = [row.job for row in rows("optimizers")]
    counts = Counter(job.optimizer for job in jobs if not job.optimizer_in_backward)
    assert {name for name in counts if counts[name] >= 10} >= {
        *("sgd", "sgd-momentum", "muon", "adamw-8bit", "adamw-paged", "adamw-8bit-paged", "lion", "lamb", "lars"),
    }
    assert {job.optimizer_implementation for job in jobs if job.optimizer == "muon"} == {"fused", "foreach", "for-loop"}
    in_backward = {(job.optimizer, job.optimizer_implementation) for job in jobs if job.optimizer_in_backward}
    assert in_backward >= {
        *((name, how) for name in ("adamw", "adam", "sgd", "sgd-momentum") for how in ("fused", "foreach", "for-loop")),
        *((name, how) for name in ("rmsprop", "adafactor") for how in ("foreach", "for-loop")),
        *(("muon", "foreach"), ("adamw-8bit", "fused"), ("adamw-8bit-paged", "fused"), ("lion", "fused")),
    }
    assert {job.runtime.name for job in jobs if job.optimizer == "adamw-8bit"} == {"transformers", "pytorch"}
    assert sum(job.optimizer == "lomo" for job in jobs) >= 10
    assert sum(job.max_gradient_norm is not None for job in jobs) >= 10
    assert sum(job.ema for job in jobs) >= 10
    paged = [job for job in jobs if "paged" in job.optimizer]
    assert {replay(setup_of(job)).managed_bytes > 0 for job in paged} == {True, False}


@pytest.mark.sweep
def test_the_rows_of_two_stacks_cover_what_is_modelled() -> None:
    jobs = [row.job for row in rows("seq2seq") if row.job.model.decoder_layers is not None]
    assert any(job.model.layers != job.model.decoder_layers for job in jobs)
    for model_type, kernels in (("t5", {"eager", "efficient"}), ("bart", {"eager", "flash", "efficient"})):
        of_type = [job for job in jobs if job.model.transformers_model_type == model_type]
        assert {job.attention for job in of_type} == kernels
        assert {job.activation_checkpointing for job in of_type} == {"none", "full", "sqrt", "every:3"}
        assert {(job.target_length or job.sequence_length) > job.sequence_length for job in of_type} == {True, False}
        assert {job.sequence_length for job in of_type} >= {1, 17, 128, 500}
        assert {(job.gradient_accumulation_steps or 1) > 1 for job in of_type} == {True, False}
    t5 = [job.model for job in jobs if job.model.transformers_model_type == "t5"]
    assert {(model.gated_mlp, model.tied_embeddings) for model in t5} == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert any(model.attention_heads * model.head_size != model.hidden_size for model in t5)


@pytest.mark.sweep
def test_the_rows_of_selections_and_losses_cover_what_is_modelled() -> None:
    jobs = [row.job for file in ("selective", "losses") for row in rows(file)]
    assert {job.every_second_matmul for job in jobs if job.activation_checkpointing == "selective-op"} == {True, False}
    others = [row.job for file in ("heads", "preference", "losses_more", "half_logits") for row in rows(file)]
    heads = {(job.model.family, job.loss.partition(":")[0]) for job in others}
    of_families = {name for kind in MODEL_TYPES.values() for name in [kind.family] if head_losses(name)}
    # whose head is Llama's, and whose answers say so
    of_families -= {
        "olmo2",
        "olmoe",
        "starcoder2",
        "gpt_oss",
        "llama4",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "glm4_moe",
        "gpt_neo",
        "gemma4",
        "qwen3_next",
        "qwen3_5",
        "ministral3",
        "granite",
        "seed_oss",
        "arcee",
        "apertus",
        "olmo",
        "hunyuan_v1_dense",
        "cohere",
        "ernie4_5",
        "exaone4",
        "stablelm",
        "nemotron",
        "helium",
        "granitemoehybrid",
        "nemotron_h",
        "falcon_h1",
        "bamba",
        "lfm2",
        "lfm2_moe",
        "mllama",
    }
    of_families.discard("gemma3_images")  # tests/engine/test_gemma3_losses.py has its rows
    every = [job for file in FILES for job in compare.jobs(file)]
    traced = heads | {(job.model.family, job.loss.partition(":")[0]) for job in (*jobs, *every)}
    for family in sorted(of_families):
        kind = next(one for one in MODEL_TYPES.values() if one.family == family)
        for word in head_losses(family):
            is_traced = (family, word.partition(":")[0]) in traced
            assert is_traced or is_said("loss", kind, loss=word.replace(":N", ":8")), (family, word)
    padded = [row.job for row in rows("padding")]
    assert {job.padding for job in padded} == {"right"}
    assert {(job.model.family, job.attention) for job in padded} == {
        (name, attention) for name in ("gpt2", "llama", "bert") for attention in ("eager", "efficient")
    }
    assert {job.dpo_reference for job in others if job.loss == "dpo"} == {"model", "precomputed"}
    smoothed = [row.job for row in rows("smoothing")]
    assert {(job.runtime.name, job.model.task) for job in smoothed} >= {
        (runtime, task) for runtime in ("transformers", "pytorch") for task in ("lm", "mlm", "cls")
    }
    assert {"selective", "selective-op", "selective-layer:2"} <= {job.activation_checkpointing for job in jobs}
    assert {job.loss for job in jobs} >= {"standard", "fp32-logits", "chunked:1", "chunked:8", "fused"}
    assert any(job.loss == f"chunked:{job.sequence_length}" and job.sequence_length < 8 for job in jobs)  # of 8
    assert any(job.loss == "fused" and job.gpu.compute_capability == "7.0" for job in jobs)


@pytest.mark.sweep
def test_the_rows_of_more_losses_cover_what_is_modelled() -> None:
    """Four rows or more of each loss and model type, and each loss with padding and over half weights."""
    jobs = [row.job for row in rows("losses_more")]
    counts = Counter((job.model.transformers_model_type, _kind_of_loss(job)) for job in jobs)
    heads = [name for name, kind in MODEL_TYPES.items() if kind.family in ("mixtral", "qwen_moe", "deepseek", "falcon")]
    heads.remove("glm4_moe_lite")  # which has its rows among other families
    for name in (*heads, "glm", "glm4"):
        assert all(counts[name, loss] >= 4 for loss in ("chunked", "fused", "dpo", "smoothed", "padded")), name
        mixed = {(_kind_of_loss(job._replace(padding="none")), job.padding, job.half_weights) for job in jobs}
        assert mixed >= {
            (loss, padding, half)
            for loss in ("chunked", "fused", "smoothed")
            for padding, half in (("right", False), ("none", True))
        }
    assert counts["chatglm", "smoothed"] >= 4
    assert all(counts[name, loss] >= 4 for name in ("roberta", "xlm-roberta") for loss in ("smoothed", "padded"))
    assert {job.runtime.name for job in jobs if job.label_smoothing} == {"transformers", "pytorch"}
    assert {job.dpo_reference for job in jobs if job.loss == "dpo"} == {"model", "precomputed"}


@pytest.mark.sweep
def test_the_rows_of_classifiers_and_packed_sequences_cover_what_is_modelled() -> None:
    jobs = [row.job for row in rows("losses_more")]
    further = [row.job for file in ("more_families", "linear", "decoders") for row in rows(file)]
    classifiers = [job for job in (*jobs, *further) if job.model.task == "cls"]
    counts = Counter(job.model.transformers_model_type for job in classifiers)
    elsewhere = {
        one.model.transformers_model_type for file in FILES for one in compare.jobs(file) if one.model.task == "cls"
    }
    causal = {name for name, kind in MODEL_TYPES.items() if kind.tasks == ("lm", "cls")}
    causal -= {"mistral4", "gpt_bigcode", "hunyuan_v1_moe"}  # whose classifiers are the one that all share
    assert all(counts[name] >= 4 or name in elsewhere for name in causal)
    assert {"padded", "smoothed", "standard"} <= {_kind_of_loss(job) for job in classifiers}
    packed = [job for job in jobs if job.packing]
    assert {(job.model.transformers_model_type, job.attention) for job in packed} == {
        (name, how) for name in ("gpt2", "llama", "mistral", "qwen2", "qwen3") for how in ("eager", "efficient")
    }
    assert {_kind_of_loss(job) for job in packed} == {"standard", "chunked", "fused", "smoothed"}
    assert {job.half_weights for job in packed} == {job.model.sliding_window is None for job in packed} == {True, False}
    pairs = [job for job in jobs if job.model.task == "seq2seq"]
    assert {(job.model.family, job.runtime.name) for job in pairs if job.label_smoothing} == {
        (name, runtime) for name in ("t5", "bart") for runtime in ("transformers", "pytorch")
    }


def _kind_of_loss(job: ResolvedJob) -> str:
    if job.padding != "none":
        return "padded"
    return "smoothed" if job.label_smoothing else job.loss.partition(":")[0]


@pytest.mark.sweep
def test_the_rows_of_experts_cover_what_is_modelled() -> None:
    jobs = [row.job for row in rows("moe")]
    experts = [(job.model.transformers_model_type, job.model.experts) for job in jobs if job.model.experts is not None]
    assert len(experts) == len(jobs)
    for name in ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "deepseek_v2"):
        of_type = [one for found, one in experts if found == name]
        assert len(of_type) >= 40
        assert {one.active == 1 for one in of_type} == {True, False}
        assert name == "mixtral" or {bool(one.dense_layers) for one in of_type} == {True, False}
    assert {one.normalized for name, one in experts if name in ("qwen2_moe", "qwen3_moe", "deepseek_v3")} == {
        True,
        False,
    }
    assert {one.groups for name, one in experts if name == "deepseek_v2"} >= {None, 2}
    latent = [job.model.latent_attention for job in jobs if job.model.latent_attention is not None]
    assert {one.query_rank is None for one in latent} == {one.interleaved for one in latent} == {True, False}
    assert {job.attention for job in jobs if job.model.family == "deepseek"} == {"eager", "efficient", "flash"}


@pytest.mark.sweep
def test_the_rows_of_windows_and_masks_cover_what_is_modelled() -> None:
    jobs = [row.job for row in rows("attention")]
    windowed = [job for job in jobs if job.model.sliding_window and job.sequence_length >= job.model.sliding_window]
    assert sum(job.attention != "eager" for job in windowed) >= 30
    assert {job.model.transformers_model_type for job in windowed} == {
        *("mistral", "phi3", "gemma3_text", "qwen2", "qwen3"),
    }
    assert {job.sequence_length % 8 == 0 for job in windowed} == {True, False}  # rows of masks are padded to 8
    falcons = [job.model for job in jobs if job.model.family == "falcon"]
    designs = {(shape.new_decoder_architecture, shape.key_value_heads == 1, shape.positions) for shape in falcons}
    assert designs >= {(new, one, where) for new in (False, True) for one in (False, True) for where in ("rope",)}
    assert {shape.parallel_residual for shape in falcons} == {shape.qkv_bias for shape in falcons} == {True, False}
    assert any(shape.positions == "alibi" for shape in falcons)
    scaled = {(job.model.rope_scaling, job.sequence_length > job.model.max_positions) for job in jobs}
    assert scaled >= {("dynamic", True), ("dynamic", False), ("longrope", True), ("longrope", False)}


@pytest.mark.sweep
def test_the_rows_of_fp8_cover_what_is_modelled() -> None:
    jobs = [row.job for row in rows("fp8")]
    assert {job.precision for job in jobs} == {"fp8"}
    assert {job.model.transformers_model_type for job in jobs} == {"llama", "mistral", "qwen2", "qwen3", "bert"}
    assert {job.attention for job in jobs} == {"eager", "flash", "efficient"}
    assert {"none", "full", "sqrt", "every:2"} <= {job.activation_checkpointing for job in jobs}
    assert {(job.gradient_accumulation_steps or 1) > 1 for job in jobs} == {True, False}
    assert {job.micro_batch_size == 1 for job in jobs} == {True, False}


@pytest.mark.sweep
def test_the_rows_of_fp8_cover_every_model_type_of_it() -> None:
    jobs = [row.job for file in ("fp8", "fp8_more") for row in rows(file)]
    assert {job.precision for job in jobs} == {"fp8"}
    types = {name for name, family in FAMILY_OF.items() if family in rows_of(FP8).families} - {
        *("smollm3", "internlm3", "camembert", "data2vec-text", "ernie", "mt5")
    }  # the blocks of llama, roberta, bert and t5
    assert {job.model.transformers_model_type for job in jobs} == types
    for model_type in types:
        of_type = [job for job in jobs if job.model.transformers_model_type == model_type]
        assert len(of_type) >= 5, model_type
        assert {job.activation_checkpointing == "none" for job in of_type} == {True, False}, model_type
    assert {(job.gradient_accumulation_steps or 1) > 1 for job in jobs} == {True, False}
    assert any(job.target_length for job in jobs)
