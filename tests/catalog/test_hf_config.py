"""Hugging Face configurations: the published ones, and the switches that change the forward pass."""

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog import models
from vramplan.catalog.counting import parameters_of
from vramplan.catalog.hf_config import read_hf_config
from vramplan.errors import InputError
from vramplan.replay.models.windows import has_window

GPT2_XL = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 1600,
    "n_head": 25,
    "n_layer": 48,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "vocab_size": 50257,
    "task_specific_params": {"a": {"b": 1}},
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0},
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "eos_token_id": [128001, 128008],
}
BERT = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "position_embedding_type": "absolute",
}


@pytest.fixture
def write(tmp_path: Path):
    folder = tmp_path / "some-model"
    folder.mkdir()

    def write(config: dict[str, Any]) -> Path:
        path = folder / "config.json"
        path.write_text(json.dumps(config, indent=2))
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_hf_config(path)
    return str(caught.value)


def test_gpt2_xl(write) -> None:
    shape, assumptions = read_hf_config(write(GPT2_XL))
    assert (shape.layers, shape.hidden_size, shape.attention_heads, shape.intermediate_size) == (48, 1600, 25, 6400)
    assert (shape.tied_embeddings, shape.task, shape.name) == (True, "lm", "some-model")
    assert assumptions == ()


def test_llama(write) -> None:
    shape, _ = read_hf_config(write(LLAMA))
    assert (shape.key_value_heads, shape.head_size, shape.max_positions, shape.tied_embeddings) == (
        8,
        128,
        131072,
        False,
    )
    shape, _ = read_hf_config(write({**LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 64}))
    assert (shape.qkv_bias, shape.output_bias, shape.mlp_bias, shape.head_size) == (True, True, True, 64)


def test_null_key_value_heads_are_all_heads(write) -> None:
    config = {"model_type": "mistral", "num_attention_heads": 16, "hidden_size": 1024, "num_key_value_heads": None}
    assert read_hf_config(write(config))[0].key_value_heads == 16
    assert read_hf_config(write({**config, "num_key_value_heads": 4}))[0].key_value_heads == 4
    del config["num_key_value_heads"]
    assert read_hf_config(write(config))[0].key_value_heads == 8


def test_sliding_windows(write) -> None:
    def window(**config: Any) -> int | None:
        return read_hf_config(write(config))[0].sliding_window

    assert window(model_type="mistral") == 4096
    assert window(model_type="mistral", sliding_window=None) is None
    assert window(model_type="qwen2", sliding_window=131072, use_sliding_window=False) is None
    assert window(model_type="qwen2", sliding_window=131072, use_sliding_window=True) == 131072
    assert window(model_type="qwen2", use_sliding_window=True) == 4096
    assert window(model_type="qwen3", use_sliding_window=True) == 4096
    assert window(model_type="qwen3", use_sliding_window=True, sliding_window=None) is None


def test_the_first_block_with_a_window(write) -> None:
    def start(**config: Any) -> int | None:
        return read_hf_config(write({"model_type": "qwen3", "use_sliding_window": True, **config}))[
            0
        ].sliding_window_start

    assert start() == 28
    assert start(max_window_layers=0) == 0
    assert start(num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "sliding_attention"]) == 1
    assert start(num_hidden_layers=2, layer_types=["full_attention"] * 2, max_window_layers=1) == 2


def test_a_causal_model_with_a_classification_head(write) -> None:
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}}
    shape, _ = read_hf_config(write({**LLAMA, "architectures": ["LlamaForSequenceClassification"], **labels}))
    assert (shape.task, shape.classes) == ("cls", 3)


def test_bert_heads(write) -> None:
    assert read_hf_config(write(BERT))[0].task == "mlm"
    assert read_hf_config(write({**BERT, "architectures": None}))[0].task == "mlm"
    assert read_hf_config(write({**BERT, "architectures": ["BertModel"]}))[0].task == "mlm"
    shape, assumptions = read_hf_config(write({**BERT, "architectures": ["BertForPreTraining"]}))
    assert (shape.task, assumptions[0].key) == ("mlm", "model.task")
    classes = {"id2label": {"0": "a", "1": "b", "2": "c"}, "architectures": ["BertForSequenceClassification"]}
    shape, _ = read_hf_config(write({**BERT, **classes}))
    assert (shape.task, shape.classes) == ("cls", 3)
    shape, _ = read_hf_config(write({**BERT, "architectures": classes["architectures"], "num_labels": 5}))
    assert shape.classes == 5
    assert "the head of 'BertForTokenClassification' is not modelled" in refused(
        write({**BERT, "architectures": ["BertForTokenClassification"]})
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_type: required key is missing (is this a Hugging Face config.json?)"),
        ({"model_type": "lama"}, "did you mean llama"),
        (
            {"model_type": "xglm"},
            "config.json:2:17: model_type: 'xglm' is not modelled (`vramplan models` lists what is;",
        ),
        ({**GPT2_XL, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: true is not modelled"),
        ({**GPT2_XL, "add_cross_attention": True}, "add_cross_attention: true is not modelled"),
        ({**GPT2_XL, "n_layer": "48"}, "n_layer: expected a whole number, not '48'"),
        ({**GPT2_XL, "n_layer": -1}, "n_layer: -1 is too small"),
        ({**GPT2_XL, "n_head": 24}, "n_embd: 1600 is not a multiple of the 24 attention heads"),
        ({**GPT2_XL, "attn_pdrop": 1.5}, "attn_pdrop: 1.5 is too large"),
        ({**GPT2_XL, "activation_function": "tanh"}, "activation_function: tanh is not modelled"),
        ({**LLAMA, "pretraining_tp": 2}, "pretraining_tp"),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
            "layer_types: only blocks of full_attention before those of sliding_attention are modelled",
        ),
        (
            {"model_type": "qwen2", "num_hidden_layers": 3, "layer_types": ["full_attention"] * 2},
            "layer_types: 2 entries for 3 blocks",
        ),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "layer_types: sliding_attention without use_"),
        ({"model_type": "gpt_neox", "rotary_pct": 0.01}, "rotary_pct: 0.01 of a head of 96 elements is 0"),
        ({"model_type": "gpt_neox", "rotary_pct": 1.5}, "rotary_pct: 1.5 is too large"),
        ({"model_type": "opt", "enable_bias": False}, "enable_bias: false is not modelled"),
        ({"model_type": "opt", "layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine: false"),
        ({"model_type": "opt", "layerdrop": 0.1}, "layerdrop: blocks that are skipped at random"),
        ({"model_type": "opt", "_remove_final_layer_norm": True}, "_remove_final_layer_norm: true is not modelled"),
        ({"model_type": "opt", "hidden_size": 100, "num_attention_heads": 3}, "hidden_size: 100 is not a multiple"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm: true is not modelled"),
        ({"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_attention: true"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention", "sliding_attention"]}, "layer_types: only"),
        ({"model_type": "gemma3_text", "sliding_window": None}, "sliding_window: null is not modelled"),
        ({"model_type": "gemma3n"}, "'gemma3n' is not modelled"),
        ({"model_type": "gpt_neo", "attention_types": [[["global", "local"], 2]]}, "4 kinds of 24 blocks"),
        ({"model_type": "gpt_neo", "attention_types": [[["sparse"], 24]]}, "only global and local are known"),
        ({"model_type": "gpt_neo", "attention_types": ["local"]}, "attention_types: expected a list of pairs"),
        ({"model_type": "glm4_moe", "output_router_logits": True}, "output_router_logits: true is not modelled"),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling: dynamic is not mod"),
        ({"model_type": "falcon", "num_attention_heads": 1, "multi_query": False}, "multi_query: false is not mod"),
        ({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn: 2 is not modelled (it is 1"),
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "parallel_attn": False},
            "parallel_attn: false contradicts new_decoder_architecture",
        ),
        ({"model_type": "bloom", "apply_residual_connection_post_layernorm": True}, "post_layernorm: true is not"),
        ({"model_type": "bloom", "pretraining_tp": 4, "slow_but_exact": True}, "slow_but_exact: sliced projections"),
        ({"model_type": "mpt", "attn_config": {"clip_qkv": 6}}, "attn_config.clip_qkv: clipped queries"),
        ({"model_type": "mpt", "attn_config": {"attn_type": "multiquery_attention"}}, "attn_config.attn_type"),
        ({"model_type": "mpt", "attn_config": {"qk_ln": True}}, "attn_config.qk_ln: true is not modelled"),
        ({"model_type": "mpt", "attn_config": {"alibi": False}}, "attn_config.alibi: false is not modelled"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads: 32 attention heads cannot share 5"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config: weights of an unnamed method are not"),
        ({**LLAMA, "quantization_config": {"quant_method": "hqq"}}, "quantization_config: weights of hqq are not"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 3}}, "weights of gptq with 3 bits are not"),
        (
            {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
            "weights of gptq with groups of 32 are not",
        ),
        ({**LLAMA, "architectures": ["LlamaForMaskedLM"]}, "architectures: mlm is not modelled"),
        ({**LLAMA, "architectures": "LlamaForQuestionAnswering"}, "the head of"),
        ({**LLAMA, "architectures": [1, 2]}, "the head of"),
        ({**BERT, "is_decoder": True}, "is_decoder: true is not modelled"),
        ({**BERT, "position_embedding_type": "relative_key"}, "'relative_key' is not modelled"),
        ({**LLAMA, "vocab_size": float("inf")}, "is not a finite number"),
        ({**LLAMA, "something": float("nan")}, "is not a finite number"),
    ],
)
def test_what_is_refused_names_the_key_of_the_file(write, config: dict[str, Any], message: str) -> None:
    assert message in refused(write(config))


CHATGLM: dict[str, Any] = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "num_layers": 28,
    "padded_vocab_size": 65024,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "add_qkv_bias": True,
    "seq_length": 8192,
    "rmsnorm": True,
    "post_layer_norm": True,
    "pre_seq_len": None,
    "quantization_bit": 0,
}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"padded_vocab_size": 151552}, "padded_vocab_size: the code that came with GLM-4 is not modelled"),
        ({"position_encoding_2d": True}, "model_type: the first ChatGLM is not modelled"),
        ({"multi_query_attention": False}, "multi_query_attention: only true is modelled"),
        ({"rmsnorm": False}, "rmsnorm: false is not modelled"),
        ({"add_bias_linear": True}, "add_bias_linear: true is not modelled"),
        ({"pre_seq_len": 128}, "pre_seq_len: prefixes are not modelled (set it to null)"),
        ({"quantization_bit": 4}, "quantization_bit: quantised weights are not modelled (set it to 0)"),
        ({"kv_channels": 126}, "kv_channels: half of a head of 126 elements is no whole number of pairs"),
    ],
)
def test_what_is_refused_of_chatglm(write, keys: dict[str, Any], message: str) -> None:
    assert message in refused(write({**CHATGLM, **keys}))


# keys of published configurations, in the spelling of each class, and the shape that they are
CONFIGURATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"model_type": "qwen3", "head_dim": 64, "attention_bias": True, "use_sliding_window": False},
        {"family": "llama", "qk_norm": True, "head_size": 64, "qkv_bias": True, "output_bias": True},
    ),
    (
        {"model_type": "gpt_neox", "rotary_pct": 0.5, "use_parallel_residual": False, "attention_bias": False},
        {"partial_rotary_factor": 0.5, "parallel_residual": False, "qkv_bias": False, "output_bias": False},
    ),
    (
        {"model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": 1.0}},
        {"partial_rotary_factor": 1.0, "parallel_residual": True, "family": "neox"},
    ),
    (
        {"model_type": "opt", "word_embed_proj_dim": 512, "do_layer_norm_before": False, "ffn_dim": 4096},
        {"embedding_size": 512, "pre_norm": False, "intermediate_size": 4096, "activation": "relu"},
    ),
    ({"model_type": "opt", "hidden_size": 1536}, {"embedding_size": 1536, "pre_norm": True}),
    (
        {"model_type": "falcon", "alibi": False, "multi_query": True, "parallel_attn": True, "bias": False},
        {"key_value_heads": 1, "positions": "rope", "parallel_residual": True, "parallel_norms": 1, "mlp_bias": False},
    ),
    (
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "multi_query": True,
        },
        {"key_value_heads": 8, "new_decoder_architecture": True, "parallel_norms": 2, "intermediate_size": 32768},
    ),
    (
        {
            "model_type": "falcon",
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "alibi": True,
            "bias": True,
            "multi_query": False,
            "parallel_attn": False,
        },
        {"key_value_heads": 32, "positions": "alibi", "parallel_residual": False, "output_bias": True},
    ),
    (
        {
            "model_type": "falcon",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 16384,
        },
        {"key_value_heads": 8, "parallel_norms": 1, "intermediate_size": 16384},
    ),
    (
        {"model_type": "glm", "num_key_value_heads": 4, "attention_bias": True},
        {"family": "glm", "key_value_heads": 4, "partial_rotary_factor": 0.5, "qkv_bias": True, "output_bias": False},
    ),
    (
        CHATGLM,
        {"family": "chatglm", "key_value_heads": 2, "qkv_bias": True, "max_positions": 8192, "tied_embeddings": False},
    ),
    ({"model_type": "glm4", "rope_parameters": {"partial_rotary_factor": 1.0}}, {"partial_rotary_factor": 1.0}),
    ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, {"rope_scaling": "dynamic"}),
    ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {"rope_scaling": None}),
    ({**LLAMA, "rope_scaling": None}, {"rope_scaling": None}),
    ({"model_type": "phi3", "rope_scaling": {"type": "su"}}, {"rope_scaling": "longrope"}),
    ({"model_type": "qwen3", "rope_parameters": {"rope_type": "longrope"}}, {"rope_scaling": "longrope"}),
    (
        {"model_type": "phi", "partial_rotary_factor": 0.4, "hidden_size": 2560, "resid_pdrop": 0.1},
        {"partial_rotary_factor": 0.4, "hidden_dropout": 0.1, "head_size": 80},
    ),
    ({"model_type": "phi3", "sliding_window": 2047, "embd_pdrop": 0.3}, {"sliding_window": 2047}),
    ({"model_type": "gemma", "hidden_act": "gelu"}, {"activation": "gelu", "head_size": 256, "hidden_size": 3072}),
    (
        {"model_type": "gemma2", "attn_logit_softcapping": None, "final_logit_softcapping": 30.0},
        {"attention_softcap": False, "logit_softcap": True, "sliding_window": 4096},
    ),
    ({"model_type": "gemma2", "sliding_window": None}, {"sliding_window": None, "attention_softcap": True}),
    (
        {"model_type": "gemma3_text", "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2},
        {"sliding_window_pattern": 3},
    ),
    ({"model_type": "gemma3_text", "layer_types": ["sliding_attention"] * 4}, {"sliding_window_pattern": 5}),
    (
        {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "n_head": 16, "pretraining_tp": 4},
        {"hidden_size": 1024, "layers": 24, "attention_heads": 16, "intermediate_size": 4096, "positions": "alibi"},
    ),
    (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "attn_config": {"attn_pdrop": 0.1, "alibi": True}},
        {"hidden_size": 4096, "intermediate_size": 16384, "attention_dropout": 0.1, "hidden_dropout": 0.1},
    ),
]


@pytest.mark.parametrize(("config", "expected"), CONFIGURATIONS, ids=lambda value: str(value.get("model_type")))
def test_each_type_is_read_in_the_spelling_of_its_class(
    write, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    layers = len(config.get("layer_types", ())) or config.get("n_layer", 4)
    key = {"mpt": "n_layers", "bloom": "n_layer"}.get(config["model_type"], "num_hidden_layers")
    shape, _ = read_hf_config(write({key: layers, **config}))
    assert {name: getattr(shape, name) for name in expected} == expected
    assert shape.transformers_model_type == config["model_type"]


def test_what_the_class_adds_is_told(write) -> None:
    _, assumptions = read_hf_config(write({"model_type": "llama", "hidden_size": 2048}))
    assert ("model.vocabulary_size", 32000, "the default of LlamaConfig") in {
        (one.key, one.value, one.why) for one in assumptions
    }


def test_a_path_a_folder_and_a_hub_name_are_accepted_as_a_model(write, tmp_path: Path) -> None:
    path = write({**LLAMA, "_name_or_path": "meta-llama/Llama-3.1-8B"})
    assert models.find_model(str(path))[0] == models.find_model(str(path.parent))[0]
    assert models.find_model(str(path))[0].name == "Llama-3.1-8B"
    assert models.find_model("config.json", base_dir=path.parent)[0].layers == 32
    with pytest.raises(InputError, match="no such file"):
        models.find_model(str(tmp_path))


def test_the_heads_of_glm_4_5_are_those_that_the_file_says(write) -> None:
    keys = {"model_type": "glm4_moe", "num_hidden_layers": 3, "first_k_dense_replace": 2}
    shape, _ = read_hf_config(write({**keys, "head_dim": 96, "partial_rotary_factor": 0.5, "use_qk_norm": True}))
    assert (shape.head_size, shape.qk_norm, shape.partial_rotary_factor) == (96, True, 0.5)
    assert shape.experts is not None
    assert shape.experts.dense_layers == (0, 1)
    assert read_hf_config(write({**keys, "num_attention_heads": 32, "hidden_size": 2048}))[0].head_size == 64


def test_windows_of_gpt_neo_are_masks_of_one_size(write) -> None:
    keys = {"model_type": "gpt_neo", "num_layers": 4, "window_size": 64}
    some, _ = read_hf_config(write({**keys, "attention_types": [[["global", "local"], 2]]}))
    every, _ = read_hf_config(write({**keys, "attention_types": [[["local"], 4]]}))
    assert some == every
    assert (some.layers, some.sliding_window, some.intermediate_size) == (4, None, 8192)


def test_distilbert_has_keys_of_its_own_and_no_token_types(write) -> None:
    names = {"dim": 96, "hidden_dim": 192, "n_layers": 3, "n_heads": 4, "vocab_size": 500, "dropout": 0.2}
    shape, _ = read_hf_config(write({"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], **names}))
    assert (shape.hidden_size, shape.intermediate_size, shape.layers, shape.attention_heads) == (96, 192, 3, 4)
    assert (shape.task, shape.token_types, shape.hidden_dropout) == ("mlm", 0, 0.2)
    assert "seq_classif_dropout: 0.0 is not modelled" in refused(
        write({"model_type": "distilbert", "seq_classif_dropout": 0.0})
    )


def test_dbrx_has_its_keys_in_two_mappings(write) -> None:
    attention = {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000, "attn_pdrop": 0.1}
    experts = {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 3, "moe_jitter_eps": 0}
    keys = {"model_type": "dbrx", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100, "resid_pdrop": 0.2}
    shape, _ = read_hf_config(write({**keys, "attn_config": attention, "ffn_config": experts}))
    assert (shape.family, shape.key_value_heads, shape.intermediate_size, shape.layers) == ("dbrx", 2, 96, 2)
    assert (shape.attention_dropout, shape.hidden_dropout, shape.clipped_qkv) == (0.1, 0.2, True)
    assert shape.experts is not None
    assert (shape.experts.routed, shape.experts.active, shape.experts.noisy) == (8, 3, True)  # 0 is not null
    plain, _ = read_hf_config(
        write({**keys, "attn_config": attention, "ffn_config": {**experts, "moe_jitter_eps": None}})
    )
    assert plain.experts is not None
    assert not plain.experts.noisy
    assert "rope_theta missing: DbrxAttention ends" in refused(write({**keys, "attn_config": {"clip_qkv": 8}}))
    assert "clip_qkv and rope_theta missing" in refused(write(keys))
    assert "moe_normalize_expert_weights" in refused(
        write({**keys, "attn_config": attention, "ffn_config": {"moe_normalize_expert_weights": 2}})
    )


DEBERTA = {
    "model_type": "deberta-v2",
    "hidden_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "type_vocab_size": 0,
    "relative_attention": True,
    "max_relative_positions": -1,
    "position_buckets": 128,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}


def test_deberta_reads_what_every_published_model_has(write) -> None:
    shape, _ = read_hf_config(write(DEBERTA))
    assert (shape.family, shape.task, shape.positions, shape.position_span) == ("deberta_v2", "mlm", "relative", 128)
    assert (shape.token_types, shape.vocabulary_size, shape.hidden_dropout) == (0, 128100, 0.1)
    listed, _ = read_hf_config(write({**DEBERTA, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2}))
    assert listed.token_types == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("relative_attention", False),
        ("share_att_key", False),
        ("pos_att_type", "c2p"),
        ("norm_rel_ebd", "none"),
        ("position_biased_input", True),
        ("position_buckets", None),
        ("conv_kernel_size", 3),
        ("legacy", False),
        ("embedding_size", 128),
        ("pooler_dropout", 0.1),
        ("cls_dropout", 0.0),
    ],
)
def test_other_kinds_of_deberta_are_refused_by_their_key(write, key: str, value: object) -> None:
    assert key in refused(write({**DEBERTA, key: value}))


def test_nomic_bert_is_read_by_the_names_of_both_codes(write) -> None:
    former = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_inner": 256, "n_positions": 512, "prenorm": False}
    own = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    own["max_position_embeddings"] = 512
    read = [read_hf_config(write({"model_type": "nomic_bert", **keys}))[0] for keys in (former, own)]
    assert read[0]._replace(name="") == read[1]._replace(name="")
    assert (read[0].family, read[0].hidden_size, read[0].layers, read[0].token_types) == ("nomic_bert", 128, 4, 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "nomic_bert", "prenorm": True}, "prenorm: true is not modelled"),
        ({"model_type": "nomic_bert", "rotary_emb_fraction": 0.5}, "rotary_emb_fraction: 0.5 is not modelled"),
        ({"model_type": "nomic_bert", "activation_function": "gelu"}, "activation_function: 'gelu' is not modelled"),
        ({"model_type": "nomic_bert", "moe_every_n_layers": 2}, "moe_every_n_layers: experts in some blocks"),
        ({"model_type": "nomic_bert", "classifier_dropout": 0.1}, "classifier_dropout: 0.1 is not modelled"),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 64}, "64 is not modelled (modelled: 32)"),
        ({"model_type": "mpnet", "tie_word_embeddings": False}, "tie_word_embeddings: false is not modelled"),
        ({"model_type": "dinov2_with_registers", "num_register_tokens": 8}, "8 is not modelled (modelled: 4)"),
        ({"model_type": "granitemoe", "output_router_logits": True}, "output_router_logits: true is not modelled"),
        ({"model_type": "albert", "num_hidden_groups": 12}, "num_hidden_groups: 12 is not modelled (modelled: 1,"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num: 2 is not modelled (modelled: 1,"),
        ({"model_type": "albert", "classifier_dropout_prob": 0}, "the classification head has a dropout"),
        ({"model_type": "eurobert", "classifier_pooling": "mean"}, "'mean' is not modelled (modelled: late,"),
        ({"model_type": "eurobert", "clf_pooling": "bos"}, "'bos' is not modelled (modelled: late,"),
        ({"model_type": "dots1", "max_window_layers": 2, "sliding_window": 8}, "max_window_layers: 2 is not modelled"),
        ({"model_type": "dots1"}, "experts.count: required key is missing"),
        ({"model_type": "exaone_moe", "sliding_window": None}, "sliding_window: null is not modelled"),
        ({"model_type": "flex_olmo", "output_router_logits": True}, "output_router_logits: true is not modelled"),
        ({"model_type": "wavlm", "num_buckets": 32}, "num_buckets: 32 is not modelled (modelled: 320,"),
        ({"model_type": "ernie", "use_task_id": True}, "use_task_id: true is not modelled"),
    ],
)
def test_what_further_types_do_not_model(write, config: dict[str, Any], message: str) -> None:
    assert message in refused(write(config))


def test_the_layer_of_albert_is_counted_once_however_often_it_runs(write) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "embedding_size": 32}
    read = [read_hf_config(write({"model_type": "albert", **sizes, "num_hidden_layers": n}))[0] for n in (2, 9)]
    assert [one.layers for one in read] == [2, 9]
    assert parameters_of(read[0]) == parameters_of(read[1])


def test_electra_has_embeddings_of_their_own_width(write) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    keys = {"model_type": "electra", "architectures": ["ElectraForSequenceClassification"], **sizes}
    shape, _ = read_hf_config(write({**keys, "embedding_size": 32}))
    assert (shape.family, shape.task, shape.embedding_size, shape.hidden_size) == ("electra", "cls", 32, 64)
    assert read_hf_config(write(keys))[0].embedding_size == 128
    assert "classifier_dropout" in refused(write({**keys, "classifier_dropout": 0.0}))


MODERNBERT = {
    "model_type": "modernbert",
    "hidden_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "intermediate_size": 160,
    "global_attn_every_n_layers": 3,
    "local_attention": 32,
    "classifier_pooling": "mean",
    "position_embedding_type": "absolute",
    "reference_compile": True,
}


def test_modernbert_reads_old_and_new_names_of_its_windows(write) -> None:
    """A window counts tokens to both sides; the first block and every third after it have none."""
    shape, _ = read_hf_config(write(MODERNBERT))
    assert (shape.family, shape.task, shape.positions) == ("modernbert", "mlm", "rope")
    assert (shape.sliding_window, shape.sliding_window_pattern, shape.sliding_window_start) == (16, 3, 1)
    assert [has_window(shape, i) for i in range(7)] == [False, True, True, False, True, True, False]
    assert shape.mean_pooling
    full, window = "full_attention", "sliding_attention"
    kinds = [full, window, full, window, full, window, full]
    rope = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    newer, _ = read_hf_config(write({**MODERNBERT, "layer_types": kinds, "rope_parameters": rope}))
    assert [has_window(newer, i) for i in range(7)] == [one == window for one in kinds]
    for wrong in ([window] * 7, [full, full, window, full, full, window, full], kinds[:5]):
        assert "layer_types" in refused(write({**MODERNBERT, "layer_types": wrong}))
    every, _ = read_hf_config(write({**MODERNBERT, "global_attn_every_n_layers": 1, "attention_bias": True}))
    assert not any(has_window(every, i) for i in range(7))
    assert every.qkv_bias
    assert every.output_bias


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sparse_prediction", True),
        ("norm_bias", True),
        ("classifier_bias", True),
        ("decoder_bias", False),
        ("classifier_activation", "relu"),
        ("classifier_pooling", "max"),
        ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0}),
    ],
)
def test_other_kinds_of_modernbert_are_refused_by_their_key(write, key: str, value: object) -> None:
    assert key in refused(write({**MODERNBERT, key: value}))
