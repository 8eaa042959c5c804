"""What losses, evaluation and generation ask of a job, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.planner.decision import decide
from vramplan.planner.setups import loss_of, setup_of
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

QLORA: dict[str, Any] = {"adapter": {"kind": "lora"}, "quantization": "nf4", "precision": "pure-bf16"}
GPU = {"name": "m", "memory": "80 GiB", "bf16": True, "flash_attention": True, "compute_capability": "8.0"}


def job(**keys: Any) -> ResolvedJob:
    return build_job({"model": "gpt2", "gpu": GPU, **keys})


def refused(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(**keys)
    return str(caught.value)


def told(one: ResolvedJob) -> dict[str, Any]:
    return {assumption.key: assumption.value for assumption in one.assumptions}


@pytest.mark.parametrize(
    "model", ["pythia-1.4b", "opt-1.3b", "phi-3-mini", "gemma-2b", "gemma-2-2b", "bloom-560m", "mpt-7b"]
)
def test_every_causal_family_has_the_losses_of_a_head(model: str) -> None:
    assert job(model=model, sequence_length=128, attention="eager", loss="chunked:8").loss == "chunked:8"
    assert job(model=model, sequence_length=128, attention="eager", loss="fused").loss == "fused"


@pytest.mark.parametrize(
    "model", ["mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "falcon-7b"]
)
def test_so_have_mixtures_of_experts_and_falcon(model: str) -> None:
    for loss in ("chunked:8", "fused", "dpo"):
        assert job(model=model, sequence_length=128, loss=loss).loss == loss
    beside = {"eval_batch_size": 8, "generation_batch_size": 1, "generation_length": 64}
    assert job(model=model, sequence_length=128, label_smoothing=0.1, **beside).eval_batch_size == 8
    assert job(model=model, sequence_length=128, padding="right").attention != "flash"


def test_what_chatglm_has_of_it() -> None:
    one = job(model="chatglm3-6b", label_smoothing=0.1, eval_batch_size=8)
    assert (loss_of(one), one.eval_batch_size) == ("label-smoother", 8)
    message = refused(model="chatglm3-6b", generation_batch_size=1, generation_length=64)
    assert "generation_batch_size: generating is not modelled for chatglm: it has a cache of its own" in message
    assert "loss: fused is not modelled for chatglm: its code copies the logits" in refused(
        model="chatglm3-6b", loss="fused"
    )


def test_a_head_with_a_bias_has_no_fused_loss() -> None:
    assert "loss: fused is not modelled for phi: its head has a bias" in refused(model="phi-2", loss="fused")
    assert job(model="phi-2", loss="chunked:8").loss == "chunked:8"


def test_the_trainer_runs_no_loss_of_a_head_beside_smoothed_labels() -> None:
    assert job(model="phi-2", loss="fused", label_smoothing=0.1).loss == "standard"
    own = refused(model="phi-2", loss="fused", label_smoothing=0.1, runtime="pytorch")
    assert "loss: fused is not modelled for phi" in own
    assert "not for the task mlm" in refused(model="bert-base-uncased", loss="fused", label_smoothing=0.1)


def test_a_number_that_logits_are_multiplied_by_is_folded_into_hidden_states() -> None:
    assert "which Liger has no loss for" in refused(model="granite-3-2b", loss="fused")
    assert job(model="falcon-h1-0.5b", loss="fused").loss == "fused"


def test_smoothed_labels_are_those_of_the_runtime() -> None:
    assert loss_of(job(label_smoothing=0.1)) == "label-smoother"
    assert loss_of(job(label_smoothing=0.1, runtime="pytorch")) == "smoothed"
    assert loss_of(job(label_smoothing=0)) == "causal-lm-fp32"
    assert job(model="bert-base-uncased", loss="classification", label_smoothing=0.1).label_smoothing == 0.1


@pytest.mark.parametrize("loss", ["fused", "chunked:4"])
def test_the_trainer_smooths_whole_logits_and_a_loop_what_its_loss_has(loss: str) -> None:
    one = job(loss=loss, label_smoothing=0.1)
    assert (one.loss, loss_of(one)) == ("standard", "label-smoother")
    assert "smooths over whole logits" in next(taken.why for taken in one.assumptions if taken.key == "loss")
    own = job(loss=loss, label_smoothing=0.1, runtime="pytorch")
    assert (own.loss, loss_of(own)) == (loss, "fused" if loss == "fused" else "smoothed-chunked:4")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sequence_length": 1}, "sequence_length: 1 leaves no token to predict"),
        ({"activation_checkpointing": "optimal"}, "optimal is not modelled with the Trainer's smoothed labels"),
        ({"label_smoothing": 1}, "label_smoothing: "),
        ({"label_smoothing": -0.1}, "label_smoothing: "),
    ],
)
def test_refused_smoothing(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**{"label_smoothing": 0.1, **keys})


@pytest.mark.parametrize("loss", ["fp32-logits", "half-logits", "chunked:4", "fused", "tiled"])
def test_the_trainer_smooths_over_the_logits_that_come_back(loss: str) -> None:
    one = job(label_smoothing=0.1, loss=loss, precision="amp-bf16", gpu="a100-80gb")
    assert (one.loss, told(one)["loss"]) == ("standard", "standard")


def test_logits_in_fp32_that_a_loop_holds_are_smoothed_as_they_are() -> None:
    one = job(
        runtime="pytorch",
        label_smoothing=0.1,
        loss="fp32-logits",
        precision="amp-bf16",
        hold_outputs=True,
        gpu="a100-80gb",
    )
    assert loss_of(one) == "smoothed-fp32-logits"


def test_a_trainer_of_pairs_packs_nothing() -> None:
    assert "packing: true says nothing to simpo" in refused(loss="simpo", packing=True)


def test_preference_training() -> None:
    one = job(loss="dpo")
    assert (one.loss, one.dpo_reference, one.dropout) == ("dpo", "model", 0.0)
    assert told(one)["dpo_reference"] == "model"
    assert told(one)["dropout"] == 0.0
    assert loss_of(one) == "dpo"
    assert job(loss="dpo", dropout=0.1).dropout == 0.1
    scored = job(loss="dpo", dpo_reference="precomputed")
    assert "dpo_reference" not in told(scored)
    assert loss_of(scored) == "dpo-precomputed"


def test_a_preference_without_a_reference_or_of_single_sequences() -> None:
    pair = job(loss="orpo")
    assert (pair.dpo_reference, pair.dropout, loss_of(pair)) == (None, 0.0, "orpo")
    single = job(loss="kto", dpo_reference="precomputed")
    assert loss_of(single) == "kto-precomputed"
    assert any("loss kto was never traced" in said for said in single.composed)
    reward = job(loss="reward")
    assert (reward.model.task, reward.model.classes) == ("cls", 1)
    assert "loss: reward needs a model with a classification head" in refused(loss="reward", model="chatglm3-6b")


def test_the_reference_of_an_adapter_is_the_model_without_it() -> None:
    one = job(loss="dpo", adapter={"kind": "lora", "dropout": 0.1})
    assert (one.dpo_reference, loss_of(one)) == ("adapter-off", "dpo-adapter-off")
    assert one.adapter is not None
    assert (one.adapter.dropout, told(one)["adapter.dropout"]) == (0.0, 0.0)
    said = job(loss="dpo", dropout=0.0, adapter={"kind": "lora", "dropout": 0.1})
    assert said.adapter == one.adapter  # as the echo of a job says what TRL sets it to
    own = job(loss="dpo", dropout=0.1, dpo_reference="model", adapter={"kind": "lora", "dropout": 0.1})
    assert own.adapter is not None
    assert (own.adapter.dropout, loss_of(own)) == (0.1, "dpo")


def test_an_adapter_over_quantized_weights_has_the_dtype_that_trl_gives_it() -> None:
    one = job(loss="dpo", **{**QLORA, "precision": "amp-bf16"})
    assert one.adapter is not None
    assert (one.adapter.dtype, told(one)["adapter.dtype"]) == ("bf16", "bf16")
    plain = job(**{**QLORA, "precision": "amp-bf16"})
    assert plain.adapter is not None
    assert plain.adapter.dtype == "fp32"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dpo_reference": "adapter-off"}, "dpo_reference: adapter-off needs an adapter, and there is none"),
        (
            {"dpo_reference": "model", **QLORA},
            "dpo_reference: a reference model beside one with nf4 weights is not modelled (use adapter-off",
        ),
        ({**QLORA, "precision": "pure-fp16"}, "adapter.dtype: is missing: TRL makes adapters over"),
        (
            {"adapter": {"kind": "dora", "dropout": 0.1}},
            "adapter.dropout: 0.1 is not modelled with dora and dpo: TRL sets it to 0",
        ),
        ({"dpo_reference": "models"}, "dpo_reference: 'models' is not a known value (did you mean model?)"),
        ({"runtime": "pytorch"}, "loss: dpo is TRL's, over the Trainer of transformers"),
        ({"model": "bert-base-uncased"}, "loss: dpo is modelled for causal language models"),
        ({"hold_outputs": True}, "hold_outputs: true contradicts dpo"),
        (
            {"label_smoothing": 0.1},
            "label_smoothing: TRL's trainer of dpo makes the loss by itself",
        ),
        ({"sequence_length": 1}, "sequence_length: 1 leaves no token to predict"),
        ({"activation_checkpointing": "optimal"}, "activation_checkpointing: optimal is not modelled with dpo"),
        (
            {"loss": "standard", "dpo_reference": "model"},
            "dpo_reference: model belongs to the losses dpo, kto and grpo",
        ),
        (
            {"loss": "grpo", "dpo_reference": "adapter-off"},
            "dpo_reference: adapter-off needs an adapter, and there is none (use model, or leave it out)",
        ),
        (
            {"loss": "grpo", "dpo_reference": "precomputed"},
            "precomputed does not exist for grpo, which samples its completions anew (use model, or leave it out)",
        ),
        (
            {"loss": "grpo", "dpo_reference": "precomputed", **QLORA},
            "which samples its completions anew (use adapter-off, or leave it out)",
        ),
        (
            {"loss": "grpo", "dpo_reference": "model", **QLORA},
            "model is not modelled with an adapter, for which TRL has adapter-off (use adapter-off)",
        ),
    ],
)
def test_refused_preference_training(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**{"loss": "dpo", **keys})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"generation_length": 128}, "generation_batch_size: is missing: generation_length alone generates nothing"),
        ({"generation_batch_size": 8}, "generation_length: is missing: generation_batch_size alone generates nothing"),
        ({"generation_batch_size": 8, "generation_length": 1025}, "1025 is more than the 1024 positions of gpt2"),
        (
            {"model": "bert-base-uncased", "generation_batch_size": 8, "generation_length": 8},
            "generation_batch_size: a model of the task mlm generates nothing",
        ),
        (
            {"runtime": "pytorch", "loss": "fused", "eval_batch_size": 8, "label_smoothing": 0.1},
            "eval_batch_size: an evaluation with the loss fused and smoothed labels is not modelled",
        ),
        ({"eval_batch_size": 0}, "eval_batch_size: "),
    ],
)
def test_refused_evaluation_and_generation(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**keys)


def test_padded_sequences_need_a_mask_that_flash_does_not_take() -> None:
    one = job(padding="right")
    assert (one.padding, one.attention) == ("right", "efficient")
    why = next(taken.why for taken in one.assumptions if taken.key == "attention")
    assert why == "sdpa: it takes no mask, which padded sequences need"
    assert (job().padding, job().attention) == ("none", "flash")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "vit-base-patch16-224", "sequence_length": None}, "padding: right means nothing to the task image"),
        ({"sequence_length": 1}, "padding: right leaves nothing of sequences of 1 token"),
        ({"padding": "left"}, "padding: 'left' is not a known value"),
    ],
)
def test_refused_padding(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**{"padding": "right", **keys})


def test_flash_removes_what_is_padded() -> None:
    """The package's kernels take lengths, and the longest batch is full."""
    one = job(padding="right", attention="flash")
    assert one.attention == "flash"
    assert "removes what is padded" in next(taken.why for taken in one.assumptions if taken.key == "padding")
    assert any("padding right was never traced together with attention flash" in said for said in one.composed)


def test_packed_sequences_need_a_mask_too() -> None:
    one = job(packing=True)
    assert (one.packing, one.attention) == (True, "efficient")
    why = next(taken.why for taken in one.assumptions if taken.key == "attention")
    assert why == "sdpa: it takes no mask, which keeps packed sequences apart"
    assert "packing" not in told(one)
    assert told(job())["packing"] is False
    assert job(packing=False).attention == "flash"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "opt-1.3b"}, "packing: true says nothing to opt, whose code makes no mask of position ids"),
        ({"model": "bert-base-uncased"}, "packing: true means nothing to the task mlm"),
        ({"loss": "classification"}, "packing: true means nothing to the task cls"),
        ({"sequence_length": 1}, "packing: true packs nothing into sequences of 1 token"),
    ],
)
def test_refused_packing(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**{"packing": True, **keys})


@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "mixtral-8x7b", "qwen3-0.6b"])
def test_packed_sequences_under_flash_need_no_mask_and_may_go_with_anything(model: str) -> None:
    lora = {"kind": "lora", "rank": 8}
    keys: dict[str, Any] = {"model": model, "attention": "flash", "micro_batch_size": 2, "sequence_length": 512}
    plain, packed = (answer(job(**keys, adapter=lora, **more)) for more in ({}, {"packing": True}))
    assert 0 <= packed.peak.allocated_bytes - plain.peak.allocated_bytes < 4 << 20  # the ids of positions, their angles
    told_of = next(one for one in packed.assumptions if one.key == "packing")
    assert "never traced as a whole" in told_of.why
    masked = answer(job(**{**keys, "model": "llama-3.2-1b", "attention": "efficient"}, packing=True))
    bare = answer(job(**{**keys, "model": "llama-3.2-1b"}, packing=True))
    assert masked.peak.allocated_bytes > bare.peak.allocated_bytes


@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "mixtral-8x7b", "deepseek-v2-lite", "falcon-7b", "opt-1.3b"])
def test_a_classification_makes_a_classifier_of_a_causal_model(model: str) -> None:
    one = job(model=model, loss="classification", sequence_length=128)
    assert (one.model.task, one.model.classes, one.loss) == ("cls", 2, "standard")
    assert told(one)["pad_token_id"] == "set"
    assert told(one)["model.task"] == "cls"
    assert job(model=model, loss="classification", frozen=["norms"]).frozen == ("norms",)


@pytest.mark.parametrize(
    "model",
    [
        *("BAAI/bge-m3", "BAAI/bge-reranker-large", "all-MiniLM-L6-v2", "Alibaba-NLP/gte-Qwen2-1.5B-instruct"),
        *("Qwen/Qwen3-Embedding-0.6B", "sentence-transformers/all-distilroberta-v1"),
    ],
)
def test_an_embedding_model_or_a_reranker_predicts_no_tokens(model: str) -> None:
    keys: dict[str, Any] = {"model": model, "sequence_length": 128, "micro_batch_size": 2}
    one = job(**keys, activation_checkpointing="none")
    assert (one.model.task, one.loss) == ("cls", "standard")
    assert any("a pair of texts counts as two" in warning for warning in one.warnings)
    whole = job(**keys, activation_checkpointing="none", loss="standard")
    assert whole.model.task in ("mlm", "lm")
    assert answer(one).peak.allocated_bytes < answer(whole).peak.allocated_bytes


@pytest.mark.parametrize(
    "model", ["qwen3-0.6b", "bert-base", "NousResearch/Meta-Llama-3-8B", "google-bert/bert-base-cased"]
)
def test_other_models_keep_the_head_of_their_profile(model: str) -> None:
    assert job(model=model, sequence_length=128).model.task != "cls"


def test_the_score_of_a_causal_model_stays_whole_beside_quantized_weights() -> None:
    one = job(model="llama-3.2-1b", loss="classification", sequence_length=64, **QLORA)
    assert (one.model.task, one.quantization) == ("cls", "nf4")
    assert job(model="Qwen/Qwen3-Embedding-0.6B", sequence_length=64, **QLORA).model.task == "cls"
    assert job(model="BAAI/bge-m3", sequence_length=64, **QLORA).model.task == "mlm"  # whose classifier is quantized


def test_what_has_no_classification_head() -> None:
    for model in ("t5-base", "chatglm3-6b"):
        assert "loss: classification needs a model with a classification head" in refused(
            model=model, loss="classification"
        )


@pytest.mark.parametrize("model", ["t5-base", "bart-base"])
def test_what_two_stacks_have(model: str) -> None:
    beside = {"eval_batch_size": 8, "generation_batch_size": 2, "generation_length": 600}
    if model == "bart-base":
        assert job(model=model, label_smoothing=0.1, **beside).eval_batch_size == 8
    assert loss_of(job(model=model, label_smoothing=0.1)) == "label-smoother"
    assert job(model=model, **beside).generation_length == 600  # the positions of t5 are relative


@pytest.mark.parametrize(
    "keys",
    [
        {"padding": "right"},
        {"packing": True},
        {"loss": "classification"},
        {"label_smoothing": 0.1},
        {"loss": "dpo"},
        {"loss": "dpo", "adapter": {"kind": "lora", "dropout": 0.1}},
        {"loss": "dpo", **QLORA},
        {"loss": "dpo", "dpo_reference": "precomputed", "dropout": 0.1},
        {"eval_batch_size": 8, "generation_batch_size": 2, "generation_length": 100},
    ],
)
def test_an_echoed_job_is_the_same(keys: dict[str, Any]) -> None:
    echoed = job_to_dict(job(**keys))
    assert job_to_dict(build_job(echoed)) == echoed


TUNED: dict[str, Any] = {"model": "llama-3.2-1b", "runtime": "torchtune", "loss": "fused", "sequence_length": 512}


@pytest.mark.parametrize(("devices", "tables"), [(1, 1), (4, 3)])
def test_ligers_loss_under_torchtune_keeps_no_logits(devices: int, tables: int) -> None:
    """Closed form: of what forward leaves only the gradient of the head, 2 V H bytes, hangs on the vocabulary.

    Under FSDP the head and the table of the tokens are whole beside it.
    """
    shape = {"name": "m", "family": "llama", "layers": 2, "hidden_size": 256, "attention_heads": 4}
    shared = {**TUNED, "micro_batch_size": 4, "gradient_accumulation_steps": 1, "parallel": {"data": devices}}
    small, large = (
        decide(job(**shared | {"model": {**shape, "intermediate_size": 512, "vocabulary_size": size}})).record
        for size in (1024, 4096)
    )
    assert large.saved_bytes(4) - small.saved_bytes(4) == tables * 2 * (4096 - 1024) * 256


def test_a_published_run_with_ligers_loss_under_torchtune_fits() -> None:
    """Measured truth: PyTorch blog, 27 February 2025: 512 sequences of 512 tokens on each of 4 A100s."""
    shared = {
        "gpu": "a100",
        "parallel": {"data": 4},
        "gradient_accumulation_steps": 1,
        "activation_checkpointing": "full",
    }
    found = answer(job(**TUNED | shared | {"compile": True, "micro_batch_size": 512}))
    assert found.verdict == "fits"


def test_ligers_loss_under_torchtune_is_refused_with_an_adapter() -> None:
    assert "loss: fused is modelled under torchtune for recipes that train every weight" in refused(
        **TUNED, adapter={"kind": "lora"}
    )


@pytest.mark.closed_form
@pytest.mark.parametrize("loss", ["dpo", "kto", "orpo", "reward"])
def test_preferences_beside_an_adapter_are_replayed_under_zero3(loss: str) -> None:
    """The reference, the model without its adapter, has weights that nobody gathered before."""
    small = {"name": "small", "family": "llama", "layers": 2, "hidden_size": 64, "attention_heads": 4}
    small |= {"intermediate_size": 96, "vocabulary_size": 99, "max_positions": 64}
    parallel = {"sharding": "zero3", "data": 4}
    keys = {"loss": loss, "model": small, "sequence_length": 16, "precision": "mixed-bf16", "parallel": parallel}
    one = job(**keys, adapter={"kind": "lora"}, micro_batch_size=1, activation_checkpointing="full")
    peaks = replay(setup_of(one, "full", False), batch=1).peaks(1)
    assert 0 < peaks["step"] < max(peaks.values())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"runtime": "pytorch"}, "tiled is TRL's"),
        ({"compile": True}, "tiled is not modelled in a compiled model"),
        ({"hold_outputs": True}, "true contradicts tiled"),
        ({"activation_checkpointing": "optimal"}, "optimal is not modelled with tiled"),
        ({"model": "bert-base"}, "tiled is modelled for causal language models"),
    ],
)
def test_the_loss_of_trl_without_logits_is_its_own(keys: dict[str, Any], said: str) -> None:
    assert said in refused(loss="tiled", **{"runtime": "transformers", **keys})


def test_smoothed_labels_make_whole_logits_under_trl_too() -> None:
    assert job(runtime="transformers", loss="tiled", label_smoothing=0.1).loss == "standard"
    assert job(runtime="transformers", loss="tiled").dropout is None
