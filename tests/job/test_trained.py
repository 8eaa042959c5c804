"""What a job trains: defaults, checks of names, and the round trip of the resolved job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import models
from vramplan.answers.fit import answer
from vramplan.catalog.config_classes import MODEL_TYPES, Peft
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.replay.techniques.frozen import matches
from vramplan.replay.techniques.trained import has_no_biases, names_of
from vramplan.values.job import ResolvedJob

UNTIED = {"family": "llama", "layers": 4, "hidden_size": 64, "attention_heads": 4, "intermediate_size": 128}
LORA = {"kind": "lora"}
XLMR, CLS = "xlm-roberta-base", "classification"
SPACES_ALONE = {
    "name": "all spaces",
    "family": "nemotron_h",
    "transformers_model_type": "nemotron_h",
    "layers": 3,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 2,
    "vocabulary_size": 100,
}
WITH_TARGETS: dict[str, dict[str, Any]] = {"nemotron_h": {"layers": 2, "state_space": {"layers": [0]}}}  # and attention
GPTQ = {"quantization": "gptq-int4", "adapter": LORA, "precision": "pure-bf16"}
LLAVA_REST = ("projector", "language_model", "head")


def job(**keys: Any) -> ResolvedJob:
    return build_job({"model": "gpt2", "gpu": "a100", **keys})


def refused(**keys: Any) -> str:
    with pytest.raises(InputError) as error:
        job(**keys)
    return str(error.value)


def assumed(found: ResolvedJob) -> dict[str, Any]:
    return {one.key: one.value for one in found.assumptions}


def test_an_adapter_has_the_defaults_of_peft() -> None:
    found = job(adapter=LORA)
    assert found.adapter is not None
    assert (found.adapter.rank, found.adapter.targets, found.adapter.dtype) == (8, ("c_attn",), "fp32")
    told = assumed(found)
    assert (told["adapter.rank"], told["adapter.targets"], told["adapter.dtype"]) == (8, ["c_attn"], "fp32")


def test_a_target_may_name_the_module_that_its_layers_stand_in() -> None:
    found = job(model=UNTIED, adapter={**LORA, "targets": ["self_attn.q_proj", "q_proj", "mlp.up_proj"]})
    assert found.adapter is not None
    assert found.adapter.targets == ("q_proj", "up_proj")
    told = {one.why for one in found.assumptions if one.key == "adapter.targets"}
    assert "self_attn.q_proj: the layers of self_attn called q_proj" in told


def test_a_master_copy_is_of_half_an_adapter() -> None:
    found = job(adapter=LORA, precision="mixed-bf16")
    assert found.adapter is not None
    assert found.adapter.dtype == "bf16"
    assert "fp32 is not modelled with mixed-bf16" in refused(adapter={**LORA, "dtype": "fp32"}, precision="mixed-bf16")


@pytest.mark.parametrize(
    ("model", "named"), [("falcon-h1-0.5b", "q_proj,k_proj,v_proj,o_proj"), ("mamba-130m", "x_proj")]
)
def test_where_peft_has_no_targets_the_refusal_has_an_option_that_is_answered(model: str, named: str) -> None:
    _, _, option = refused(model=model, adapter=LORA).partition("--targets ")
    targets = option.partition(";")[0].rstrip(")")
    assert named in targets
    assert "dt_proj" not in targets  # whose weight Mamba reads without a call of the layer
    adapter = job(model=model, adapter={**LORA, "targets": targets.split(",")}).adapter
    assert adapter is not None
    assert list(adapter.targets) == targets.split(",")


def test_the_head_of_a_classification_is_trained_in_full() -> None:
    """PEFT names both heads for every model; a model has one of them."""
    for model, head in (("bert-base", 2 * 768 + 2), ("gpt2", 2 * 768)):
        found = job(model=model, loss="classification", adapter=LORA)
        assert found.adapter is not None
        assert found.adapter.modules_to_save == ("classifier", "score")
        assert assumed(found)["adapter.modules_to_save"] == ["classifier", "score"]
        of_ranks = (answer(found._replace(adapter=found.adapter._replace(rank=rank))) for rank in (1, 2))
        first, second = (one.trainable_parameters for one in of_ranks)
        assert 2 * first - second == head


@pytest.mark.parametrize("model_type", [name for name, one in MODEL_TYPES.items() if one.peft != Peft()])
def test_every_default_target_is_a_layer_of_its_model(model_type: str) -> None:
    peft = MODEL_TYPES[model_type].peft
    for kind, known in (("lora", peft.lora), ("ia3", peft.ia3)):
        if known:
            model = {"transformers_model_type": model_type, **WITH_TARGETS.get(model_type, {})}
            assert job(model=model, adapter={"kind": kind}).adapter is not None


@pytest.mark.parametrize(
    "keys",
    [
        {"frozen": ["embeddings", "layers.0-5", "norms"]},
        {"frozen": ["embeddings", "head"]},
        {"frozen": ["embeddings", "lm_head", "attention"]},
        {"frozen": ["lora_A"], "adapter": LORA},
        {"adapter": LORA},
        {"adapter": {"kind": "lora", "rank": 4, "targets": ["all-linear"], "dropout": 0.05, "alpha": 16}},
        {"adapter": {"kind": "ia3"}},
        {"adapter": LORA, "quantization": "nf4-double", "precision": "pure-bf16"},
        GPTQ,
        {"adapter": {"kind": "dora"}, "quantization": "int8"},
        {"adapter": LORA, "loss": "fused"},
        {"adapter": {**LORA, "modules_to_save": ["lm_head"]}, "loss": "dpo", "padding": "right"},
        {"frozen": ["embeddings", "head"], "loss": "fused"},
        {"adapter": {"kind": "ia3"}, "quantization": "nf4", "precision": "amp-bf16", "weight_dtype": "bf16"},
        {"adapter": {**LORA, "dtype": "bf16"}, "precision": "pure-bf16"},
        {"adapter": {**LORA, "modules_to_save": ["lm_head", "embed_tokens"]}, "model": UNTIED},
        {"adapter": {**LORA, "targets": ["query"], "modules_to_save": ["classifier"]}, "model": XLMR, "loss": CLS},
        {"adapter": LORA, "model": "bert-base", "loss": "classification"},
        {"adapter": LORA, "precision": "amp-bf16", "weight_dtype": "bf16"},
        {"adapter": {**LORA, "targets": ["all-linear"]}, "model": "deepseek-v2-lite"},
        {"adapter": {**LORA, "targets": ["w1", "w2", "w3"]}, "model": "mixtral-8x7b"},
        {"adapter": LORA, "model": "falcon-7b"},
    ],
)
def test_round_trip(keys: dict[str, Any]) -> None:
    found = job(**keys)
    again = build_job(json.loads(json.dumps(job_to_dict(found))))
    for field in ("frozen", "adapter", "quantization", "half_weights"):
        assert getattr(again, field) == getattr(found, field)
    assert job_to_dict(again) == job_to_dict(found)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"frozen": ["embedings"]}, "frozen: 'embedings' names no part of gpt2 (did you mean embeddings? known: embed"),
        ({"frozen": ["layers.0-12"]}, "frozen: 'layers.0-12' is out of range: the blocks of gpt2 are 0 to 11"),
        ({"frozen": ["embeddings", "layers", "norms"]}, "frozen: nothing is left to train (leave a part out)"),
        ({"frozen": ["head"]}, "frozen: the head of gpt2 is tied to its embeddings: neither can be frozen alone"),
        (
            {"model": UNTIED, "frozen": ["embeddings", "layers", "norms"], "loss": "fused"},
            "loss: Liger's fused loss gives the head a gradient only where its input needs one",
        ),
        (
            {"frozen": ["embeddings"], "adapter": LORA},
            "frozen: an adapter freezes the whole model (leave frozen out; of lora itself lora_A or lora_B may be",
        ),
        (
            {"frozen": ["lora_A", "lora_B"], "adapter": LORA},
            "frozen: nothing is left to train (leave one of the two out)",
        ),
        ({"frozen": ["lora_A"], "adapter": {"kind": "oft"}}, "frozen: lora_A belongs to LoRA: oft has none"),
        ({"frozen": ["lora_A"]}, "frozen: 'lora_A' names no part of gpt2"),
        ({"model": "bert-base", "frozen": ["mlp"]}, "frozen: 'mlp' names no part of bert-base"),
        ({"frozen": ["lm_head"]}, "frozen: the head of gpt2 is tied to its embeddings: neither can be frozen alone"),
        ({"adapter": {"rank": 8}}, "adapter.kind: required key is missing"),
        ({"adapter": {**LORA, "targets": ["c_atn"]}}, "adapter.targets: 'c_atn' names no linear layer of gpt2"),
        ({"adapter": {**LORA, "targets": ["lm_hed"]}}, "'lm_hed' names no linear layer of gpt2 (did you mean lm_head"),
        ({"model": UNTIED, "adapter": {**LORA, "targets": ["mlp.q_proj"]}}, "adapter.targets: 'mlp.q_proj' names no"),
        ({"adapter": {**LORA, "feedforward_targets": ["c_fc"]}}, "feedforward_targets: has no meaning for lora"),
        ({"adapter": {"kind": "ia3", "rank": 8}}, "adapter.rank: has no meaning for ia3"),
        ({"adapter": {**LORA, "dtype": "fp16"}}, "adapter.dtype: fp16 is not modelled with amp-bf16"),
        (
            {"model": "t5-base", "adapter": {**LORA, "targets": ["q"], "modules_to_save": ["shared"]}},
            "'shared' is tied to the head of t5-base, and PEFT would untie them, which is not",
        ),
        (
            {"model": "bert-base", "adapter": {**LORA, "targets": ["query"], "modules_to_save": ["decoder"]}},
            "'decoder' names no module of bert-base-uncased",
        ),
        (
            {"model": "vit-base", "adapter": {**LORA, "targets": ["q_proj"], "modules_to_save": ["cls_token"]}},
            "'cls_token' names no module of vit-base",
        ),
        ({"adapter": {**LORA, "rank": 0}}, "adapter.rank: 0 is too small"),
        (
            {"adapter": {"kind": "ia3"}, "model": "phi-3-mini"},
            "adapter.targets: is missing: PEFT has no targets of its",
        ),
        (
            {"adapter": LORA, "model": SPACES_ALONE},
            "PEFT's own for nemotron_h are q_proj, k_proj, v_proj, o_proj, which name no layer of all spaces",
        ),
        ({"quantization": "nf4"}, "quantization: nf4 weights cannot be trained: they need an adapter"),
        (
            {"quantization": "gptq-int4", "adapter": LORA},
            "such a checkpoint has 16 bits where it is not quantized (weight_dtype: bf16, as an option",
        ),
        (
            {"quantization": "gptq-int4", "adapter": LORA, "precision": "fp32"},
            "gptq-int4 is not modelled with fp32: such a checkpoint",
        ),
        (
            {**GPTQ, "adapter": {**LORA, "targets": ["all-linear"]}},
            "targets: PEFT's all-linear does not see gptq-int4 layers",
        ),
        ({**GPTQ, "adapter": {"kind": "ia3"}}, "adapter.kind: ia3 is not modelled over gptq-int4 weights"),
        (
            {**GPTQ, "model": {**UNTIED, "intermediate_size": 500}},
            "quantization: gptq-int4 needs widths that are multiples of 32",
        ),
        ({**GPTQ, "model": "bert-base"}, "quantization: gptq-int4 is not modelled for bert (modelled: bloom, "),
        (
            {"quantization": "int8", "adapter": {"kind": "ia3"}, "precision": "pure-bf16"},
            "adapter.kind: ia3 over int8 weights gives fp32, which pure-bf16 cannot go on with",
        ),
        (
            {"quantization": "nf4", "adapter": {"kind": "ia3"}, "parallel": {"data": 2, "sharding": "zero1"}},
            "adapter.kind: ia3 over nf4 weights gives fp32, which mixed-bf16 cannot go on with",
        ),
        ({**GPTQ, "precision": "mixed-fp16"}, "gptq-int4 is not modelled with mixed-fp16"),
        (
            {"quantization": "nf4", "adapter": LORA, "ema": True},
            "ema: a moving average of nf4 weights cannot be updated",
        ),
        ({**GPTQ, "ema": True}, "ema: a moving average of gptq-int4 weights is not modelled"),
        (
            {"quantization": "nf4", "adapter": LORA, "model": "bert-base", "loss": "classification"},
            "quantization: nf4 would quantize the classifier",
        ),
        (
            {"quantization": "nf4", "adapter": {**LORA, "modules_to_save": ["c_fc"]}},
            "adapter.modules_to_save: 'c_fc' is quantized and cannot be trained",
        ),
        ({"adapter": LORA, "weight_dtype": "fp16"}, "weight_dtype: bf16 products of fp16 weights are not modelled"),
        (
            {"model": "llava-1.5-7b", "frozen": ["vision_encoder.layers.20-24"]},
            "frozen: 'vision_encoder.layers.20-24' is out of range: the blocks of llava-1.5-7b are 0 to 23",
        ),
        (
            {"model": "llava-1.5-7b", "frozen": ["vision_encoder.layers.0-22", "embeddings", "norms", *LLAVA_REST]},
            "frozen: nothing that the loss depends on is left to train",
        ),
        (
            {
                "model": {"transformers_model_type": "llava", "vision_layers": 1},
                "adapter": {**LORA, "targets": ["out_proj"]},
            },
            "adapter.targets: nothing that the loss depends on is trained",
        ),
        (
            {"model": "chatglm3-6b", "adapter": {**LORA, "targets": ["all-linear"]}},
            "adapter.targets: all-linear is not modelled for chatglm, whose own code",
        ),
        (
            {"model": "resnet-50", "adapter": {**LORA, "targets": ["classifier"]}},
            "adapter.targets: 'classifier' names no linear layer of resnet-50 (known: convolution)",
        ),
        (
            {"model": "resnet-50", "adapter": {"kind": "ia3", "targets": ["convolution"]}},
            "adapter.kind: ia3 is not modelled for resnet (use lora)",
        ),
        (
            {"model": "mixtral-8x7b", "adapter": {**LORA, "targets": ["q_proj", "w1"]}},
            "adapter.targets: w1 without w3: PEFT refuses it, as the experts have both in one tensor (name w3 too)",
        ),
        (
            {"model": "qwen3-30b-a3b", "adapter": {"kind": "dora", "targets": ["all-linear"]}},
            "adapter.kind: PEFT has no dora over the experts, which all-linear stands for (use lora, or leave experts",
        ),
        (
            {"model": "deepseek-v3", "adapter": {**LORA, "targets": ["down_proj"], "dropout": 0.1}},
            "adapter.dropout: PEFT has no dropout over the experts, which down_proj stands for",
        ),
        (
            {"model": "mixtral-8x7b", "adapter": {**LORA, "modules_to_save": ["gate"]}},
            "adapter.modules_to_save: 'gate': a trained copy of experts or of their router is not modelled",
        ),
        (
            {"model": "qwen3-30b-a3b", "adapter": {**LORA, "targets": ["gate_prj"]}},
            "adapter.targets: 'gate_prj' names no linear layer of qwen3-30b-a3b (did you mean gate_proj",
        ),
        (
            {"model": "t5-base", "adapter": LORA, "quantization": "nf4", "precision": "pure-fp16"},
            "quantization: nf4 is not modelled with t5-base in fp16, of which some layers stay in fp32 (use bf16",
        ),
        ({"adapter": LORA, "activation_checkpointing": "optimal"}, "optimal is modelled only where every weight"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**keys)


@pytest.mark.parametrize(
    ("model", "biased"),
    [("olmo-2-7b", False), ("lfm2-350m", False), ("falcon-h1-0.5b", False), ("qwen2.5-0.5b", True), ("gpt2", True)],
)
def test_an_average_of_quantized_weights_has_no_biases_to_cast(model: str, biased: bool) -> None:
    adapter = {**LORA, "targets": ["q_proj"]} if model != "gpt2" else LORA
    keys = {"model": model, "quantization": "nf4", "adapter": adapter, "ema": True, "weight_dtype": "fp32"}
    assert has_no_biases(job(model=model).model) is not biased
    if biased:
        assert "ema: a moving average of nf4 weights cannot be updated" in refused(**keys)
    else:
        assert job(**keys).ema


def test_what_quantization_takes_for_granted_is_said() -> None:
    assert assumed(job(quantization="int8", adapter=LORA))["quantization"] == "int8"
    assert assumed(job(**GPTQ))["quantization"] == "gptq-int4"
    assert "quantization" not in assumed(job(quantization="nf4", adapter=LORA))
    why = {one.key: one.why for one in job(quantization="nf4", adapter=LORA, model="mixtral-8x7b").assumptions}
    assert why["quantization"].startswith("bitsandbytes leaves the experts")


@pytest.mark.sweep(6)
@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
@settings(max_examples=5)
@given(st.data())
def test_every_model_type_can_say_how_its_parts_are_called(model_type: str, data: st.DataObject) -> None:
    model = data.draw(models(3, model_type=model_type))
    names = names_of(model)
    assert names.table in ((), names.paths[0])
    assert names.parts(model.layers)


@pytest.mark.parametrize(
    ("model", "word"),
    [("gpt2", "layers.5"), ("llava-1.5-7b", "vision_encoder.layers.10-23"), ("resnet-50", "layers.9")],
)
def test_every_block_can_be_named(model: str, word: str) -> None:
    assert job(model=model, frozen=[word]).frozen == (word,)


@pytest.mark.parametrize(
    ("model", "word", "modules"),
    [
        ("llama-3.2-3b", "attention", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("llama-3.2-3b", "mlp", ("gate_proj", "up_proj", "down_proj")),
        ("gpt2", "attention", ("c_attn", "attn.c_proj")),
        ("gpt2", "mlp", ("mlp",)),
        ("t5-base", "attention", ("q", "k", "v", "o", "relative_attention_bias")),
        ("bloom-560m", "attention", ("query_key_value", "dense")),
        ("bert-base", "attention", ("attention",)),
    ],
)
def test_parts_that_a_model_calls_otherwise_are_told(model: str, word: str, modules: tuple[str, ...]) -> None:
    found = job(model=model, frozen=[word])
    assert found.frozen == modules
    told = [one.value for one in found.assumptions if one.key == "frozen"]
    assert told == ([] if modules == (word,) else [list(modules)])


@pytest.mark.parametrize(
    "model", ["llama-2-7b", "opt-1.3b", "phi-2", "pythia-1.4b", "mpt-7b", "glm-4-9b", "falcon-7b", "chatglm3-6b"]
)
def test_attention_and_mlp_are_all_that_a_block_has_beside_its_norms(model: str) -> None:
    """Closed form: what is left of the blocks to train is one or two numbers (weight, bias) a channel of each norm."""
    found = job(model=model, frozen=["embeddings", "lm_head", "attention", "mlp"])
    names = names_of(found.model)
    left = {path for path in names.paths if not any(matches(word, path) for word in found.frozen)}
    assert left
    assert all("norms" in path for path in left)


@pytest.mark.contract
def test_expressions_name_what_is_trained() -> None:
    """Names are those of Transformers, `model.layers.3.mlp.up_proj.weight`; frozen alike stand together."""
    one = job(model="llama-3-8b", frozen=[r"all-but:^model.layers.3[01]\.mlp", "all-but:^lm_head.weight$"])
    attention = [f"layers.30-31.{name}_proj" for name in "qkvo"]
    assert one.frozen == ("embeddings", "norms", "layers.0-29", *attention)
    older = job(model="gpt2", frozen=[r"all-but:^transformer.h.1[01]\.", "all-but:^transformer.wte"])
    assert older.frozen == ("embeddings.wpe", "norms.ln_f", "layers.0-9")
    for frozen, message in (("all-but:foo", "'foo' matches no weight"), ("all-but:(", "is no regular expression")):
        with pytest.raises(InputError, match=message):
            job(model="llama-3-8b", frozen=[frozen])


def test_a_table_is_a_module_whatever_its_weight_is_called() -> None:
    for model, table in (("gpt2", "wte"), ("gpt2", "wpe"), ("bert-base-uncased", "word_embeddings")):
        job = build_job({"model": model, "gpu": "a100", "adapter": {**LORA, "modules_to_save": [table]}})
        assert job.adapter is not None
        assert job.adapter.modules_to_save == (table,)
