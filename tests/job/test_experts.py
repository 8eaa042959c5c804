"""Models with experts in a job: what is active, what routing decides (nothing), and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.answers import answer
from vramplan.catalog.hf_config import read_hf_config
from vramplan.catalog.models import find_model, find_model_profile, load_model_profile
from vramplan.catalog.skeleton import new_profile
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.values.job import ResolvedJob
from vramplan.values.model import Experts, LatentAttention, ModelShape

SMALL = {
    "family": "qwen3_moe",
    "layers": 3,
    "hidden_size": 64,
    "attention_heads": 4,
    "vocabulary_size": 100,
    "experts": {"count": 8, "active": 2, "intermediate_size": 32, "dense_layers": [0]},
}


def job(model: Any, **keys: Any) -> ResolvedJob:
    built = build_job({"gpu": "a100-80gb", "sequence_length": 64, "model": model, **keys})
    assert isinstance(built, ResolvedJob)
    return built


def refused(model: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(model, **keys)
    return str(caught.value)


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # as published, in billions: arXiv:2401.04088; the announcements of Mixtral 8x22B and of Qwen1.5-MoE;
        # arXiv:2505.09388, table 2; arXiv:2412.19437, abstract
        ("mixtral-8x7b", 47, 13),
        ("mixtral-8x22b", 141, 39),
        ("qwen1.5-moe-a2.7b", 14.3, 2.7),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235, 22),
        ("deepseek-v3", 671, 37),
    ],
)
def test_total_and_active_parameters_are_the_published_ones(name: str, total: float, active: float) -> None:
    found = answer(job(name, micro_batch_size=1, activation_checkpointing="full"))
    assert found.total_parameters / 1e9 == pytest.approx(total, rel=0.01)  # texts round to two or three digits
    assert found.active_parameters is not None
    assert found.active_parameters / 1e9 == pytest.approx(active, rel=0.03)  # and to two


def test_only_models_with_experts_have_active_parameters() -> None:
    assert answer(job("gpt2")).active_parameters is None
    found = answer(job({**SMALL, "experts": {**SMALL["experts"], "active": 8}}))
    assert found.active_parameters == found.total_parameters


def test_imbalance_changes_no_figure_and_says_so() -> None:
    plain, uneven = job(SMALL), job(SMALL, expert_imbalance=3.5)
    assert (plain.expert_imbalance, uneven.expert_imbalance) == (1.0, 3.5)
    (told,) = (one for one in plain.assumptions if one.key == "expert_imbalance")
    assert told.why.startswith("balanced; one product over all tokens")
    assert uneven.warnings == (
        "expert_imbalance 3.5 changes no figure: one product over all tokens, sorted by expert, "
        "needs the same memory for every routing",
    )
    assert answer(plain).peak == answer(uneven).peak
    assert job_to_dict(uneven)["expert_imbalance"] == 3.5
    assert job_to_dict(job("gpt2"))["expert_imbalance"] is None


def test_counts_that_are_left_to_the_class_are_told() -> None:
    told = {one.key: one.value for one in job({"family": "deepseek", "experts": {"count": 64}}).assumptions}
    assert told["model.experts.active"] == 8
    assert told["model.experts.intermediate_size"] == 2048
    assert told["model.latent_attention.query_rank"] == 1536
    assert "model.experts.count" not in told
    without = job({"family": "deepseek", "latent_attention": {"query_rank": None}})
    assert "model.latent_attention.query_rank" not in {one.key for one in without.assumptions}
    assert without.model.latent_attention is not None
    assert without.model.latent_attention.query_rank is None


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ("gpt2", {"expert_imbalance": 2}, "expert_imbalance: belongs to models with experts, and gpt2 has none"),
        (SMALL, {"expert_imbalance": 4.5}, "expert_imbalance: 4.5 is more than 4"),
        (SMALL, {"expert_imbalance": 0.5}, "expert_imbalance: 0.5 is too small; the least is 1"),
        (SMALL, {"parallel": {"expert": 2}}, "parallel.expert: 2 is not modelled"),
        ({**SMALL, "experts": {"cuont": 8}}, {}, "model.experts.cuont: unknown key (did you mean count"),
        ({**SMALL, "experts": {"dense_layers": [0, 0.5]}}, {}, "expected a list of block numbers, from 0"),
        ({**SMALL, "experts": 8}, {}, "model.experts: expected keys and values, not '8'"),
        (
            {**SMALL, "latent_attention": {"value_size": 8}},
            {},
            "value_size: 8 is not modelled (a qwen3_moe model has null",
        ),
        (
            "mixtral-8x7b",
            {"runtime": "textbook", "activation_model": "book"},
            "activation_model: book has no place for the experts of mixtral-8x7b",
        ),
    ],
)
def test_what_is_refused(model: Any, keys: dict[str, Any], message: str) -> None:
    assert message in refused(model, **keys)


def test_deepseek_takes_the_efficient_kernel_by_itself() -> None:
    assert job("deepseek-v2-lite").attention == "efficient"
    assert job("mixtral-8x7b").attention == "flash"
    latent = {"plain_size": 16, "rotary_size": 8, "value_size": 24}
    assert job({"family": "deepseek", "latent_attention": latent}).attention == "flash"


@pytest.mark.closed_form
def test_activations_follow_the_active_experts_and_weights_all_of_them() -> None:
    def peak(**experts: int) -> tuple[int, int]:
        model = {**SMALL, "experts": {**SMALL["experts"], "dense_layers": [], **experts}}
        keys = {"precision": "pure-bf16", "micro_batch_size": 4, "activation_checkpointing": "none"}
        found = answer(job(model, **keys))
        return found.peak.saved_bytes, next(one.bytes for one in found.components if one.name == "weights")

    saved, weights = peak()
    tokens, blocks, width, inner = 4 * 64, 3, SMALL["hidden_size"], 32
    # of each row in bf16: hidden state, gate and up, activation, product, result, the expert's weight; four numbers
    row = 2 * (width + 2 * inner + inner + inner + width + 1) + 4 * 8
    assert peak(active=4) == (saved + blocks * 2 * tokens * row, weights)
    one = 2 * 3 * width * inner  # bytes of an expert
    router = 2 * width
    probabilities = 4 * tokens  # of each expert, in fp32
    assert peak(count=16) == (saved + blocks * 8 * probabilities, weights + blocks * 8 * (one + router))


# config.json of each model type


def config(tmp_path: Path, **values: Any) -> ModelShape:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return read_hf_config(path)[0]


def config_refused(tmp_path: Path, **values: Any) -> str:
    with pytest.raises(InputError) as caught:
        config(tmp_path, **values)
    return str(caught.value)


MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}


def same_architecture(shape: ModelShape, name: str) -> None:
    profile = find_model(name)[0]
    assert shape._replace(name=name) == profile._replace(declared_parameters=None, dtype=None)


def test_a_config_of_each_family_is_the_profile(tmp_path: Path) -> None:
    same_architecture(config(tmp_path, **MIXTRAL), "mixtral-8x7b")
    same_architecture(config(tmp_path, **QWEN3), "qwen3-30b-a3b")
    same_architecture(config(tmp_path, **V2_LITE), "deepseek-v2-lite")
    same_architecture(config(tmp_path, model_type="qwen2_moe"), "qwen1.5-moe-a2.7b")
    same_architecture(
        config(tmp_path, model_type="deepseek_v3", max_position_embeddings=131072, num_nextn_predict_layers=1),
        "deepseek-v3",
    )


def test_a_copied_profile_has_the_same_experts(tmp_path: Path) -> None:
    profile = find_model_profile("deepseek-v2-lite")
    path = tmp_path / "copy.yaml"
    path.write_text(new_profile("model", "copy", profile).text.replace("TODO ", ""), "utf-8")
    copied = load_model_profile(path).shape()
    assert copied._replace(name=profile.name) == profile.shape()
    assert copied.experts == Experts(64, 6, 2, 1408, 2816, False, (0,))


def test_a_resolved_job_gives_its_model_again() -> None:
    for name in ("mixtral-8x22b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "deepseek-v3"):
        resolved = job(name)
        again = build_job(json.loads(json.dumps(job_to_dict(resolved))))
        assert isinstance(again, ResolvedJob)
        assert again.model == resolved.model
        assert job_to_dict(again) == job_to_dict(resolved)


def test_dense_blocks_of_a_qwen(tmp_path: Path) -> None:
    def dense(**values: Any) -> tuple[int, ...]:
        experts = config(tmp_path, **{**QWEN3, "num_hidden_layers": 6, **values}).experts
        assert experts is not None
        return experts.dense_layers

    assert dense() == ()
    assert dense(mlp_only_layers=[0, 3]) == (0, 3)
    assert dense(decoder_sparse_step=3) == (0, 1, 3, 4)
    assert dense(decoder_sparse_step=3, mlp_only_layers=[2]) == (0, 1, 2, 3, 4)


def test_groups_and_latents_of_a_deepseek(tmp_path: Path) -> None:
    grouped = config(tmp_path, **{**V2_LITE, "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3})
    assert grouped.experts == Experts(64, 6, 2, 1408, 2816, False, (0,), 8, 3)
    assert grouped.latent_attention == LatentAttention(None, 512, 128, 64, 128, True)
    v3 = config(tmp_path, model_type="deepseek_v3", rope_interleave=False, n_group=1, topk_group=1, num_hidden_layers=2)
    assert v3.experts == Experts(256, 8, 1, 2048, 2048, True, (0, 1), 1, 1)
    assert v3.latent_attention == LatentAttention(1536, 512, 128, 64, 128, False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**MIXTRAL, "output_router_logits": True}, "output_router_logits: true is not modelled"),
        ({**QWEN3, "output_router_logits": True}, "output_router_logits: true is not modelled"),
        ({**V2_LITE, "output_router_logits": True}, "output_router_logits: true is not modelled"),
        ({**MIXTRAL, "router_jitter_noise": 0.1}, "router_jitter_noise: noise on the routed states is not modelled"),
        ({**QWEN3, "use_sliding_window": True}, "use_sliding_window: true is not modelled"),
        ({**QWEN3, "mlp_only_layers": ["a"]}, "mlp_only_layers: expected a list of block numbers"),
        ({**QWEN3, "moe_intermediate_size": 100}, "moe_intermediate_size: 100 is no multiple of 8"),
        ({**V2_LITE, "topk_method": "noaux_tc"}, "topk_method: 'noaux_tc' is not modelled"),
        ({**V2_LITE, "num_experts_per_tok": 65}, "num_experts_per_tok: 65 experts for each token, but there are 64"),
        ({**V2_LITE, "moe_layer_freq": 2}, "moe_layer_freq: is not known to the code of Transformers"),
    ],
)
def test_what_a_config_may_not_say(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in config_refused(tmp_path, **values)
