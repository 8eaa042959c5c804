"""One job: defaults and what is said about them, and every refusal."""

from pathlib import Path
from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.values.job import ResolvedJob

MODERN = {"name": "m", "memory": "80 GiB", "bf16": True, "flash_attention": True}
OLD = {"name": "v", "memory": "32 GiB", "bf16": False, "flash_attention": False, "compute_capability": "7.0"}
LABEL = {"name": "some label", "memory": "24 GiB"}
GPT2 = {"family": "gpt2"}
LLAMA = {"family": "llama", "layers": 4, "hidden_size": 256, "attention_heads": 4, "vocabulary_size": 1000}
BERT = {"family": "bert"}


def job(**keys: Any) -> ResolvedJob:
    return build_job({"model": GPT2, "gpu": MODERN, **keys})


def refused(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(**keys)
    return str(caught.value)


def told(one: ResolvedJob) -> dict[str, Any]:
    return {assumption.key: assumption.value for assumption in one.assumptions}


def test_defaults_are_those_of_the_job_format() -> None:
    one = job()
    assert (one.runtime.name, one.precision, one.optimizer, one.optimizer_implementation) == (
        *("transformers", "amp-bf16", "adamw", "fused"),
    )
    assert (one.attention, one.sequence_length, one.global_batch_size, one.global_batch_given) == (
        "flash",
        1024,
        0,
        False,
    )
    assert (one.micro_batch_size, one.gradient_accumulation_steps, one.activation_checkpointing) == (None, 1, None)
    assert (one.half_weights, one.max_gradient_norm) == (False, 1.0)
    assert (one.dropout, one.hold_outputs, one.data_parallel_size, one.reserve_bytes) == (None, False, 1, 0)
    assert (one.expect, one.max_utilization, one.name) == ("fits", 0.95, "inline gpt2 on m")
    assert set(told(one)) >= {
        *("runtime", "precision", "optimizer", "optimizer_implementation", "attention", "sequence_length"),
        *("gradient_accumulation_steps", "dropout", "model.layers", "model.hidden_size"),
        *("weight_dtype", "max_gradient_norm"),
    }


def test_what_is_given_is_no_assumption() -> None:
    given = {
        "runtime": "pytorch",
        "precision": "fp32",
        "optimizer": "sgd",
        "optimizer_implementation": "foreach",
        "attention": "eager",
        "sequence_length": 128,
        "global_batch_size": 8,
        "dropout": 0.0,
        "packing": False,
    }
    assert {key for key in told(job(**given)) if not key.startswith("model.")} == set()


def test_an_old_gpu_gets_fp16_and_efficient_attention() -> None:
    one = job(gpu=OLD)
    assert (one.precision, one.attention) == ("amp-fp16", "efficient")


def test_an_unknown_gpu_counts_as_able_and_this_is_told() -> None:
    one = job(gpu=LABEL)
    assert (one.precision, one.attention, one.gpu.capacity_basis) == ("amp-bf16", "flash", "given")
    whys = " ".join(assumption.why for assumption in one.assumptions)
    assert whys.count("unknown; assumed yes") == 2
    explicit = told(job(gpu=LABEL, precision="pure-bf16", attention="flash"))
    assert (explicit["gpu.bf16"], explicit["gpu.flash_attention"]) == (True, True)


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        *[("bf16", "amp-bf16"), ("fp16", "amp-fp16"), ("tf32", "fp32"), ("auto", "amp-bf16"), (None, "amp-bf16")],
        *[(name, name) for name in ("fp32", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16")],
    ],
)
def test_precisions(given: str | None, resolved: str) -> None:
    assert job(precision=given).precision == resolved


@pytest.mark.parametrize("name", ["3090ti", "3090 ti", "4070 Ti", "4080 Super", "4090 laptop"])
def test_a_name_of_a_card_is_no_size(name: str) -> None:
    gpu = job(gpu=name).gpu
    assert gpu is not None
    assert gpu.name.startswith(f"rtx-{name[:4]}-")


def test_a_size_in_gb_says_what_cards_of_that_name_have() -> None:
    [said] = [one for one in job(gpu="24gb").warnings if "sold as" in one]
    assert said == "24gb is 22.35 GiB: cards sold as 24 GB have 24 GiB (--gpu '24 GiB')"
    for other in ("24 GiB", "rtx-3090", "a100-80gb"):
        assert not any("sold as" in one for one in job(gpu=other).warnings)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "keys",
    [
        *({"parallel": {"data": 2, "sharding": f"zero{stage}"}} for stage in (1, 2, 3)),
        {"parallel": {"data": 2, "sharding": "zero3"}, "adapter": {"kind": "lora"}},
        {"runtime": "megatron"},
        {"runtime": "deepspeed"},
    ],
)
def test_a_half_is_over_a_master_copy_where_the_program_has_one(keys: dict[str, Any], half: str) -> None:
    """The word of a DeepSpeed file, and of Megatron's --bf16."""
    built = job(precision=half, **keys)
    assert built.precision == f"mixed-{half}"
    assert job(precision=None, **keys).precision == "mixed-bf16"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "fused"),
        ({"runtime": "pytorch"}, "foreach"),
        ({"optimizer": "adam"}, "fused"),
        ({"optimizer": "sgd"}, "foreach"),
        ({"optimizer": "rmsprop"}, "foreach"),
        ({"optimizer": "adafactor"}, "transformers"),
        ({"optimizer": "adafactor", "runtime": "pytorch"}, "foreach"),
        ({"optimizer": "adafactor", "parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1}}, "foreach"),
        ({"precision": "mixed-fp16"}, "fused"),
        ({"precision": "mixed-fp16", "runtime": "pytorch", "optimizer": "sgd-momentum"}, "fused"),
        ({"optimizer_implementation": "for-loop"}, "for-loop"),
        ({"optimizer": "sgd", "optimizer_implementation": "fused"}, "fused"),
        ({"optimizer": "muon"}, "fused"),
        ({"optimizer": "muon", "runtime": "pytorch"}, "foreach"),
        ({"optimizer": "lion", "runtime": "pytorch"}, "fused"),
        ({"optimizer": "adamw-8bit-paged"}, "fused"),
        ({"optimizer": "lomo"}, "for-loop"),
        ({"optimizer": "adagrad"}, "foreach"),
        ({"optimizer": "adagrad", "optimizer_implementation": "fused"}, "fused"),
        ({"optimizer": "schedule-free-sgd"}, "foreach"),
        ({"optimizer": "stable-adamw", "runtime": "pytorch"}, "fused"),
        ({"optimizer": "adamw-optimi", "optimizer_implementation": "for-loop"}, "for-loop"),
        ({"optimizer": "came"}, "for-loop"),
        ({"optimizer": "prodigy", "runtime": "pytorch"}, "for-loop"),
        ({"optimizer": "adalomo"}, "for-loop"),
        ({"optimizer": "ademamix-8bit-paged"}, "fused"),
        ({"optimizer": "galore-adafactor:8", "runtime": "pytorch"}, "for-loop"),
        ({"optimizer": "galore-adamw:8", "runtime": "pytorch"}, "for-loop"),
    ],
)
def test_optimizer_implementations(keys: dict[str, Any], expected: str) -> None:
    assert job(**keys).optimizer_implementation == expected


@pytest.mark.parametrize(
    ("spelling", "word"),
    [
        ("paged_lion_8bit", "lion-8bit-paged"),
        ("paged_lion_32bit", "lion-paged"),
        ("PagedLion", "lion-paged"),
        ("lion8bit", "lion-8bit"),
        ("bitsandbytes.optim.PagedLion8bit", "lion-8bit-paged"),
        ("bnb.optim.RMSprop8bit", "rmsprop-8bit"),
        ("bitsandbytes.optim.AdamW", "adamw-32bit"),
        ("bitsandbytes.optim.SGD", "sgd-momentum-32bit"),
        ("rmsprop_bnb", "rmsprop-32bit"),
        ("RMSprop", "rmsprop"),  # of torch.optim
        ("AdEMAMix8bit", "ademamix-8bit"),
        ("paged_ademamix_32bit", "ademamix-paged"),
        ("adagrad_bnb_8bit", "adagrad-8bit"),
        ("galore_adafactor", "galore-adafactor:128"),
        ("AdaLomo", "adalomo"),
    ],
)
def test_names_of_classes_and_of_the_trainer_are_words(spelling: str, word: str) -> None:
    assert job(model="llama-3.2-1b", optimizer=spelling, precision="amp-bf16", weight_dtype="fp32").optimizer == word


@pytest.mark.parametrize("word", ["galore-adamw", "galore-adamw-8bit", "apollo-adamw"])
def test_a_layerwise_optimizer_steps_in_backward(word: str) -> None:
    made = job(model="llama-3.2-1b", optimizer=f"{word.replace('-', '_')}_layerwise")
    assert (made.optimizer, made.optimizer_in_backward) == (f"{word}:128", True)


def test_states_of_8_bits_step_bf16_where_nothing_is_small() -> None:
    """No weight of Llama 2 7B has less than 4096 elements, and a loop of one's own asks nothing of embeddings."""
    keys = {"optimizer": "rmsprop-8bit", "precision": "pure-bf16", "gpu": "h100"}
    assert job(model="llama-2-7b", runtime="pytorch", **keys).optimizer == "rmsprop-8bit"
    assert job(model="llama-2-7b", adapter={"kind": "lora", "rank": 8, "dtype": "fp32"}, **keys).adapter is not None


@pytest.mark.parametrize(
    "keys", [{}, {"loss": "fused"}, {"model": "bert-base-uncased", "label_smoothing": 0.1}, {"precision": "amp-fp16"}]
)
def test_lomo_does_not_scale_a_loss_in_fp32(keys: dict[str, Any]) -> None:
    assert job(**{"optimizer": "lomo", "precision": "pure-fp16", **keys}).optimizer == "lomo"


def test_flash_has_no_fp32_kernels_and_no_large_heads() -> None:
    assert job(precision="fp32").attention == "efficient"
    assert job(attention="sdpa", precision="fp32").attention == "efficient"
    large = {**LLAMA, "head_size": 512}
    assert job(model=large).attention == "efficient"
    assert "at most 256 elements, not 512 (use efficient)" in refused(model=large, attention="flash")


def test_steps_without_a_global_batch_leave_it_to_the_planner() -> None:
    one = job(gradient_accumulation_steps=4)
    assert (one.global_batch_size, one.global_batch_given, one.gradient_accumulation_steps) == (0, False, 4)
    assert "global_batch_size" not in told(one)


def test_the_sequence_length_of_a_long_model_is_2048() -> None:
    assert job(model={**LLAMA, "max_positions": 131072}).sequence_length == 2048
    assert job(model={**LLAMA, "max_positions": 512}).sequence_length == 512


def test_warnings() -> None:
    assert "more than the max_positions 2048" in job(model=LLAMA, sequence_length=4096).warnings[0]
    windowed = {**LLAMA, "sliding_window": 128}
    assert job(model=windowed, sequence_length=128).warnings == ()
    assert job(model=windowed, sequence_length=127).warnings == ()
    assert "communication buffers" in job(parallel={"data": 8, "sharding": "none"}).warnings[0]
    assert job().warnings == ()


def test_checkpoint_segments() -> None:
    for given, resolved in [
        ("full", "full"),
        ("every:12", "every:12"),
        ("layers: [[0, 6], [7, 11]]", "layers:[[0,6],[7,11]]"),
        ({"layers": [[0, 0], [2, 3]]}, "layers:[[0,0],[2,3]]"),
    ]:
        assert job(activation_checkpointing=given).activation_checkpointing == resolved


def test_sizes_and_rates() -> None:
    one = job(reserve="1.5 GiB", gpu={"name": "x", "memory": "31.74 GiB"})
    assert (one.reserve_bytes, one.gpu.capacity_bytes) == (3 * 2**29, 34080565493)
    assert job(reserve="0 GiB").reserve_bytes == 0


def test_a_classification_loss_makes_bert_a_classifier() -> None:
    one = job(model=BERT, loss="classification")
    assert one.model.task == "cls"
    assert told(one)["model.task"] == "cls"
    message = refused(model={**BERT, "task": "mlm"}, loss="classification")
    assert "loss: classification needs a model with a classification head" in message


def test_a_loss_that_the_runtime_has_anyway() -> None:
    assert job(loss="fp32-logits").loss == "standard"
    assert job(loss="fp32-logits", runtime="pytorch").loss == "standard"
    assert job(loss="fp32-logits", model={"family": "bert"}, precision="fp32").loss == "standard"
    assert job(loss="fp32-logits", model={"family": "bert"}, precision="amp-fp16").loss == "fp32-logits"


def test_other_losses() -> None:
    assert job(loss="chunked:8").loss == "chunked:8"
    assert job(loss="fused").loss == "fused"
    assert "counts as recent" in str(job(loss="fused", gpu={"name": "x", "memory": "9 GiB"}).assumptions)
    assert "counts as recent" not in str(job(loss="fused", gpu="v100").assumptions)
    assert "loss: fused is not modelled on AMD GPUs, such as mi300x" in refused(loss="fused", gpu="mi300x")


def test_selective_checkpoints() -> None:
    one = job(activation_checkpointing="selective-op", every_second_matmul=True)
    assert (one.activation_checkpointing, one.every_second_matmul) == ("selective-op", True)
    assert not job(activation_checkpointing="selective-op").every_second_matmul
    assert job(activation_checkpointing="selective-layer:13").warnings == (
        "selective-layer:13 recomputes nothing: inline gpt2 has 12 blocks",
    )
    fused = job(activation_checkpointing="selective", attention="efficient").warnings
    assert fused == (
        "selective runs the efficient kernel twice and saves nothing but its row statistics: "
        "fused attention stores no scores that could be recomputed",
    )
    assert job(activation_checkpointing="selective", attention="eager").warnings == ()


def test_every_technique_at_its_default_is_accepted() -> None:
    assert job(
        compile=False,
        adapter=None,
        quantization=None,
        frozen=[],
        offload=[],
        optimizer_in_backward=False,
        every_second_matmul=False,
        loss="standard",
        parallel={
            "data": 1,
            "tensor": 1,
            "pipeline": 1,
            "context": 1,
            "expert": 1,
            "sequence_parallel": False,
            "sharding": "none",
            "shards": None,
            "schedule": "1f1b",
        },
        weight_dtype="fp32",
        compute_dtype="bf16",
        image_size=None,
    )


def test_options_may_come_as_text() -> None:
    one = job(micro_batch_size="4", dropout="0.1", hold_outputs="true", parallel={"data": "2"})
    assert (one.micro_batch_size, one.dropout, one.hold_outputs, one.data_parallel_size) == (4, 0.1, True, 2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": None}, "model: required key is missing"),
        ({"gpu": None}, "gpu: required key is missing"),
        ({"model": "gpt2-xxl"}, "model: there is no model profile 'gpt2-xxl' (did you mean gpt2-xl"),
        ({"gpu": "24Gb"}, "gpu.memory: '24Gb': 'Gb' is not a known unit of data (write GB for bytes or Gbit for bits"),
        ({"gpu": "24 gigs"}, "gpu.memory: '24 gigs': 'gigs' is not a known unit of data (write GB"),
        ({"gpu": "80g"}, "gpu.memory: '80g': 'g' is not a known unit of data (write GB"),
        ({"gpu": "v1000"}, "gpu: there is no GPU profile 'v1000' (did you mean v100"),
        ({"gpu": {"name": "label"}}, "gpu.memory: required key is missing (no profile is called 'label'"),
        ({"gpu": {"memory": "32"}}, "gpu.memory: '32' has no unit of bytes (write 32 GB for powers of 1000 or 32 GiB"),
        ({"gpu": {"name": "x", "memory": "8 GiB", "memmory": "x"}}, "gpu.memmory: unknown key (did you mean memory"),
        ({"modle": "x"}, "modle: unknown key (did you mean model?)"),
        ({"measured": {}}, "measured: unknown key"),
        ({"micro_batch_size": 0}, "micro_batch_size: 0 is too small; the least is 1"),
        ({"micro_batch_size": 1.5}, "micro_batch_size: expected a whole number, not 1.5"),
        ({"micro_batch_size": True}, "micro_batch_size: expected a whole number, not 'true'"),
        ({"micro_batch_size": float("nan")}, "not a finite number"),
        ({"micro_batch_size": 10**30}, "too large"),
        ({"dropout": 1}, "dropout: 1 is too large; it is less than 1"),
        ({"dropout": -0.1}, "dropout: -0.1 is too small"),
        ({"precision": "fp61"}, "precision: 'fp61' is not a known value (did you mean fp16"),
        ({"precision": "fp8"}, "fp8 is not modelled for gpt2, whose layers are Conv1D"),
        ({"precision": "fsdp-bf16"}, "precision: fsdp-bf16 shards the weights over several devices"),
        ({"gpu": OLD, "precision": "bf16"}, "precision: v has no bf16, which bf16 needs (use amp-fp16)"),
        ({"gpu": OLD, "precision": "mixed-bf16"}, "(use mixed-fp16)"),
        ({"gpu": OLD, "precision": "pure-bf16"}, "(use pure-fp16)"),
        (
            {"gpu": OLD, "attention": "flash"},
            "v (compute capability 7.0) has no flash attention (use eff",
        ),
        (
            {"precision": "fp32", "attention": "flash"},
            "flash cannot run: it has no fp32 kernels (use efficient)",
        ),
        ({"optimizer": "adamw-8bits"}, "(did you mean adamw-8bit"),
        ({"optimizer": "adamw-8bit", "precision": "mixed-bf16"}, "adamw-8bit over a master copy (mixed-bf16)"),
        ({"optimizer": "lars", "precision": "pure-bf16"}, "bitsandbytes has no lars for bf16 gradients (use amp-bf16)"),
        (
            {"optimizer": "lion", "optimizer_implementation": "foreach"},
            "there is no foreach lion: bitsandbytes has one",
        ),
        ({"optimizer": "lamb-8bit"}, "is not a known value (lamb: bitsandbytes has no kernel"),
        ({"optimizer": "galore_adafactor_layerwise"}, "is not a known value (galore-adafactor:128 and"),
        (
            {"optimizer": "rmsprop_bnb", "precision": "pure-bf16"},
            "bitsandbytes has no rmsprop for bf16 gradients (use amp-bf16)",
        ),
        (
            {"optimizer": "rmsprop", "precision": "pure-bf16", "optimizer_state_dtype": "fp32"},
            "bitsandbytes has no rmsprop for bf16 gradients (use amp-bf16)",
        ),
        (
            {"optimizer": "adagrad-8bit", "precision": "pure-bf16"},
            "no adagrad for bf16 gradients with the fp32 states that the Trainer asks for embeddings",
        ),
        (
            {"optimizer": "adagrad-8bit", "precision": "pure-bf16", "runtime": "pytorch"},
            "with the fp32 states of parameters below 4,096 elements (one has 768)",
        ),
        (
            {"optimizer": "adalomo", "model": "vit-b16"},
            "a weight of vit-base-patch16-224 is 768 x 3 x 16 x 16: its step is an error",
        ),
        ({"optimizer": "adalomo", "precision": "mixed-bf16"}, "adalomo over a master copy (mixed-bf16) exists nowhere"),
        ({"optimizer": "adalomo", "gradient_accumulation_steps": 2}, "no gradients to accumulate over 2 steps"),
        (
            {
                "optimizer": "galore_adamw_layerwise",
                "parallel": {"data": 2, "sharding": "fsdp"},
                "model": "qwen2.5-0.5b",
            },
            "the Trainer steps galore-adamw:128 in backward on one device alone",
        ),
        ({"optimizer": "galore-adamw:0"}, "'galore-adamw:0' is not of the form galore-adamw:RANK, with a number"),
        ({"optimizer": "galore-adamw:1.5"}, "galore-adamw:RANK, with a number from 1 (for example galore-adamw:128)"),
        ({"optimizer": "galore-adamw:8"}, "finds no layer for galore-adamw:8: those of the model type gpt2 are Conv1D"),
        (
            {"optimizer": "galore-adamw:8", "model": "resnet-50"},
            "finds no layer for galore-adamw:8: resnet-50 has no attention",
        ),
        (
            {"optimizer": "galore-adamw:8", "runtime": "pytorch", "optimizer_implementation": "fused"},
            "there is no fused galore-adamw:8: galore-torch steps one parameter after the other (use for-loop)",
        ),
        ({"optimizer": "galore-adamw:x"}, "is not of the form galore-adamw:RANK"),
        ({"optimizer": "rmsprop", "optimizer_implementation": "fused"}, "no fused rmsprop (use foreach)"),
        ({"optimizer": "asgd", "optimizer_implementation": "fused"}, "PyTorch has no fused asgd (use foreach)"),
        ({"optimizer": "adopt", "optimizer_implementation": "fused"}, "Axolotl has no fused adopt (use foreach)"),
        ({"optimizer": "came", "optimizer_implementation": "foreach"}, "no foreach came: came-pytorch steps one"),
        ({"optimizer": "adagrad", "precision": "mixed-bf16"}, "adagrad over a master copy (mixed-bf16)"),
        ({"precision": "mixed-fp16", "optimizer_implementation": "foreach"}, "foreach contradicts mixed-fp16"),
        ({"precision": "mixed-fp16", "optimizer": "adafactor"}, "adafactor over a master copy"),
        (
            {"sequence_length": 1025},
            "sequence_length: 1025 is more than the 1024 positions that inline gpt2 has learned",
        ),
        ({"activation_checkpointing": "every:0"}, "is not of the form every:K"),
        ({"activation_checkpointing": "every"}, "is not a known value"),
        ({"activation_checkpointing": "selective-layer:0"}, "is not of the form selective-layer:K"),
        ({"activation_checkpointing": "selective-layer"}, "is not a known value"),
        ({"every_second_matmul": True}, "every_second_matmul: true belongs to activation_checkpointing selective-op"),
        ({"every_second_matmul": True, "activation_checkpointing": "full"}, "belongs to activation_checkpointing sel"),
        ({"every_second_matmul": True, "runtime": "textbook"}, "every_second_matmul: no equation"),
        ({"activation_checkpointing": "layers:[[0,12]]"}, "the segment [0,12] is out of range"),
        ({"activation_checkpointing": "layers:[[3,2]]"}, "the segment [3,2] ends before it begins"),
        ({"activation_checkpointing": "layers:[[0,5],[5,6]]"}, "the segment [5,6] begins before the one before it"),
        ({"activation_checkpointing": "layers:[]"}, "is not a list of segments"),
        ({"activation_checkpointing": "layers:[[0,1]"}, "is not a list of segments"),
        ({"activation_checkpointing": {"layers": "x"}}, "expected a list of segments"),
        ({"loss": "chunked:8", "model": BERT}, "loss: chunked:8 is modelled for causal language models"),
        ({"loss": "fused", "model": BERT}, "loss: fused is modelled for causal language models"),
        ({"loss": "vocab-parallel"}, "loss: vocab-parallel is not modelled (modelled: standard, fp32-logits"),
        ({"loss": "chunked:0"}, "is not of the form chunked:N"),
        ({"adapter": {"kind": "loar"}}, "adapter.kind: 'loar' is not a known value (did you mean lora"),
        ({"offload": ["optimizer"], "runtime": "pytorch"}, "offload: optimizer: offloading is not modelled"),
        ({"offload": ["optimiser"]}, "did you mean optimizer"),
        (
            {"optimizer_in_backward": True, "gradient_accumulation_steps": 2},
            "leaves no gradients to accumulate over 2 steps (gradient_accumulation_steps: 1)",
        ),
        ({"optimizer_in_backward": True, "precision": "mixed-fp16"}, "true contradicts mixed-fp16"),
        (
            {"optimizer_in_backward": True, "max_gradient_norm": 1.0},
            "max_gradient_norm: optimizer_in_backward drops each gradient before the norm of all is known",
        ),
        ({"precision": "mixed-bf16", "optimizer": "lomo"}, "lomo over a master copy (mixed-bf16) exists nowhere"),
        (
            {"precision": "mixed-bf16", "optimizer": "muon"},
            "no matrices, and Megatron has a Muon of its own (pure-bf16",
        ),
        (
            {"precision": "mixed-fp16", "optimizer": "galore-adamw:4"},
            "where it finds no matrices (pure-fp16 or amp-fp16",
        ),
        ({"optimizer": "lomo", "optimizer_in_backward": False}, "false contradicts lomo"),
        ({"optimizer": "lomo", "gradient_accumulation_steps": 3}, "no gradients to accumulate over 3 steps"),
        (
            {"optimizer": "lomo", "precision": "pure-fp16", "model": "bert-base-uncased"},
            "runs backward twice to scale an fp16 loss",
        ),
        (
            {"optimizer": "lomo", "precision": "pure-fp16", "loss": "half-logits"},
            "runs backward twice to scale an fp16 loss",
        ),
        (
            {"checkpoint_reentrant": True, "activation_checkpointing": "selective-op"},
            "checkpoint_reentrant: true contradicts selective-op",
        ),
        ({"checkpoint_reentrant": True, "model": "bloom-560m"}, "is not modelled for bloom"),
        (
            {"checkpoint_reentrant": True, "activation_checkpointing": "every:2", "model": "bart-base"},
            "true cannot run for bart with every:2: backward goes through the encoder once for each checkpoint",
        ),
        (
            {"checkpoint_reentrant": True, "activation_checkpointing": "optimal", "model": "bart-base"},
            "checkpoint_reentrant: true is not modelled for bart with optimal",
        ),
        (
            {
                "checkpoint_reentrant": True,
                "activation_checkpointing": "layers:[[0,3],[4,11],[12,23]]",
                "model": "t5-base",
            },
            "is not modelled for t5 with layers:[[0,3],[4,11],[12,23]], whose checkpoints return position biases",
        ),
        (
            {"offload": ["activations", "optimizer"], "runtime": "pytorch"},
            "offload: optimizer: offloading is not modelled",
        ),
        ({"grad_scaler": True}, "grad_scaler: true belongs to amp-fp16 and fsdp-fp16"),
        ({"grad_scaler": True, "precision": "amp-fp16", "weight_dtype": "fp16"}, "unscales no fp16 gradients"),
        (
            {"grad_scaler": True, "precision": "amp-fp16", "weight_dtype": "fp16"}
            | {"adapter": {"kind": "lora", "targets": "all-linear", "dtype": "fp16"}},
            "unscales no fp16 gradients",
        ),
        ({"optimizer_implementation": "transformers"}, "transformers has no adamw of its own"),
        (
            {
                "optimizer": "adafactor",
                "optimizer_implementation": "transformers",
                "parallel": {"data": 2, "sharding": "fsdp"},
            },
            "optimizer_implementation: transformers is not modelled with fsdp",
        ),
        ({"precision": "amp-fp16", "weight_dtype": "fp16"}, "fp16 weights are not trained by transformers under"),
        *(
            (
                {"precision": "amp-fp16", "weight_dtype": "fp16"}
                | {"adapter": {"kind": "lora", "targets": "c_attn"} | own},
                "copies of modules, biases and adapters in fp16 are not trained by transformers under",
            )
            for own in ({"modules_to_save": ["ln_f"]}, {"bias": "all"}, {"dtype": "fp16"})
        ),
        ({"grad_scaler": True, "precision": "amp-fp16", "optimizer": "muon"}, "is not modelled with muon"),
        ({"grad_scaler": True, "precision": "amp-fp16", "optimizer_in_backward": True}, "unscaled after backward"),
        ({"ema": "yes"}, "ema: expected true or false"),
        ({"weight_dtype": "fp16"}, "weight_dtype: bf16 products of fp16 weights are not modelled"),
        ({"weight_dtype": "int8"}, "weight_dtype: int8 is not modelled"),
        ({"optimizer_state_dtype": "bf16"}, "optimizer_state_dtype: bf16 states of fp32 weights are not modelled"),
        ({"compute_dtype": "none"}, "compute_dtype: none belongs to the runtime textbook"),
        ({"precision": "mixed-bf16", "master_dtype": "bf16"}, "a master copy in bf16 is not modelled"),
        ({"precision": "mixed-bf16", "gradient_dtype": "fp16"}, "fp16 gradients of bf16 weights are not modelled"),
        ({"precision": "mixed-bf16", "optimizer_state_dtype": "bf16"}, "beside an fp32 master copy are not modelled"),
        (
            {"precision": "pure-bf16", "optimizer": "adafactor", "optimizer_state_dtype": "fp32"},
            "fp32 states of bf16 weights are modelled for adamw, adam, sgd-momentum, rmsprop",
        ),
        (
            {"weight_dtype": "bf16", "optimizer_state_dtype": "fp32", "optimizer_implementation": "foreach"},
            "there is no foreach adamw: bitsandbytes has one kernel for each parameter",
        ),
        ({"gpu": "v100", "compute_dtype": "bf16"}, "compute_dtype: v100 has no bf16"),
        ({"gradient_dtype": "none"}, "belongs to the runtime textbook"),
        ({"checkpoint_factor": 4}, "checkpoint_factor: belongs to the runtime textbook"),
        ({"image_size": 224}, "image_size: 224 pixels mean nothing to inline gpt2, a model that takes no images"),
        ({"parallel": {"tensor": 2}, "runtime": "pytorch"}, "parallel.tensor: 2 is not modelled"),
        ({"parallel": {"sharding": "fsdp"}}, "parallel.sharding: fsdp needs several devices, not parallel.data 1"),
        (
            {"parallel": {"data": 2, "sharding": "zero3"}, "precision": "amp-bf16"},
            "precision: amp-bf16 is not modelled",
        ),
        ({"parallel": {"sharding": "hsdp:4"}}, "parallel.sharding: hsdp:4 needs several devices, not parallel.data 1"),
        ({"parallel": {"sharding": "zero4"}}, "did you mean zero"),
        ({"parallel": 8}, "parallel: expected keys and values, not '8'"),
        (
            {"runtime": "modded-nanogpt"},
            "model: each record of modded-nanogpt has an architecture of its own, which gpt2 is not",
        ),
        ({"runtime": "transfomers"}, "did you mean transformers"),
        ({"reserve": "2"}, "reserve: '2' has no unit of bytes"),
        ({"reserve": "80 GiB"}, "reserve: leaves nothing of the 80.00 GiB of m"),
        ({"expect": "fit"}, "did you mean fits"),
        ({"max_utilization": 0}, "max_utilization: 0 lets nothing pass"),
        ({"max_utilization": 95}, "max_utilization: 95 is too large; the most is 1"),
        (
            {"micro_batch_size": 4, "gradient_accumulation_steps": 100, "global_batch_size": 512},
            "micro_batch_size 4 * gradient_accumulation_steps 100 * data 1 = 400, not 512",
        ),
        ({"model": {**LLAMA, "qk_norm": True}}, "model.qk_norm: true is not modelled (a llama model has false)"),
        ({"model": {**LLAMA, "layers": "four"}}, "model.layers: expected a whole number, not 'four'"),
        ({"model": {**LLAMA, "leyers": 4}}, "model.leyers: unknown key (did you mean layers"),
        ({"model": {"parameters": 1500000000}}, "model.family: required key is missing"),
        ({"name": "a\nb"}, "name: expected one line"),
        ({"frozen": object()}, "a value cannot be a object"),
    ],
)
def test_refusals_name_the_key_the_value_and_the_way_out(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**keys)


def test_all_problems_come_at_once() -> None:
    text = refused(
        precision="fp61", optimizer="galore-adamw:8", dropout=2, parallel={"data": 3, "shards": 2}, gpu="v10", modle=1
    )
    assert len(text.splitlines()) == 6


def test_where_names_the_source_of_the_keys() -> None:
    with pytest.raises(InputError, match=r"^options: model"):
        build_job({"gpu": MODERN}, where="options")


class TestGpuMapping:
    def test_a_name_that_matches_a_profile_takes_its_other_fields(self) -> None:
        one = job(gpu={"name": "Tesla V100", "memory": "31 GiB"})
        assert (one.gpu.name, one.gpu.capacity_bytes, one.gpu.capacity_basis) == ("v100", 31 * 2**30, "given")
        assert (one.gpu.bf16, one.precision, one.attention) == (False, "amp-fp16", "efficient")

    def test_without_memory_the_profile_decides(self) -> None:
        assert job(gpu={"name": "v100"}).gpu == job(gpu="v100").gpu

    def test_what_is_explicit_wins_over_the_profile(self) -> None:
        one = job(gpu={"name": "v100", "bf16": True, "flash_attention": None})
        assert (one.gpu.bf16, one.gpu.flash_attention, one.gpu.compute_capability) == (True, None, "7.0")

    def test_without_a_name_it_is_a_label(self) -> None:
        assert job(gpu={"memory": "32 GiB"}).gpu.name == "GPU"


def test_paths_are_read_from_the_folder_of_the_job_first(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text('{"model_type": "gpt2", "n_layer": 5}')
    one = build_job({"model": "net.json", "gpu": MODERN}, base_dir=tmp_path)
    assert one.model.layers == 5
    assert build_job({"model": str(tmp_path / "net.json"), "gpu": MODERN}).model.layers == 5


def test_the_problems_of_a_profile_keep_their_place(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text('{\n"model_type": "gpt2",\n"n_layer": "x"}')
    with pytest.raises(InputError, match=r"net\.json:3:12: n_layer"):
        build_job({"model": str(tmp_path / "net.json"), "gpu": MODERN})
    with pytest.raises(InputError, match="no such directory"):
        build_job({"model": GPT2, "gpu": MODERN}, profile_dirs=[tmp_path / "nowhere"])
