"""What YAML files of NeMo and of NeMo-Aligner mean: T5, recomputed blocks, clipping."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs import registry
from vramplan.configs.reading import Wanted, job_of
from vramplan.configs.texts import settings
from vramplan.configs.written import Written
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

GPT = """
    trainer: {{num_nodes: 1, devices: 8, precision: bf16}}
    model:
      mcore_gpt: true
      micro_batch_size: 1
      global_batch_size: 8
      tensor_model_parallel_size: 1
      pipeline_model_parallel_size: {stages}
      encoder_seq_length: 2048
      max_position_embeddings: 2048
      num_layers: 4
      hidden_size: 1024
      num_attention_heads: 16
      megatron_amp_O2: true
      activations_checkpoint_granularity: full
      activations_checkpoint_method: {method}
      activations_checkpoint_num_layers: {number}
      tokenizer: {{type: GPT2BPETokenizer}}
      optim: {{name: fused_adam}}
"""


@pytest.mark.parametrize(
    ("stages", "method", "number", "means", "told"),
    [
        (1, "uniform", 2, "every:2", False),
        (1, "block", 2, "layers:[[0,0],[1,1]]", False),
        (1, "block", 4, "full", False),
        (2, "block", 2, "full", False),
        (2, "block", 1, "full", True),  # a job has no word for some blocks of several stages
        (1, "block", 0, "none", False),
    ],
)
def test_the_first_blocks_of_a_stage(stages: int, method: str, number: int, means: str, told: bool) -> None:
    found = meant(GPT.format(stages=stages, method=method, number=number), "gpt.yaml")
    assert found.job["activation_checkpointing"] == means
    assert ("model.activations_checkpoint_method" in found.unmodelled) is told


def test_keys_of_the_launchers_mlperf_files() -> None:
    own = "use_te_rng_tracker: true\n      torch_distributed_checkpoint: false\n      tokenizer:"
    text = GPT.format(stages=1, method="block", number=0).replace("tokenizer:", own)
    found = meant(text.replace("name: fused_adam", "name: distributed_fused_adam, nccl_ub: true"), "gpt.yaml")
    assert "model.use_te_rng_tracker" in [source.key for source in found.without_effect]
    assert "NCCL registers" in found.unmodelled["model.optim.nccl_ub"]


T5 = """
    trainer: {{num_nodes: 1, devices: 8, precision: bf16}}
    model:
      mcore_t5: true
      micro_batch_size: 8
      global_batch_size: 64
      tensor_model_parallel_size: 1
      seq_length: 512
      megatron_amp_O2: true
      encoder: &half
        num_layers: 12
        hidden_size: 768
        ffn_hidden_size: {inner}
        num_attention_heads: 12
        kv_channels: 64
        activation: {activation}
      decoder: *half
      tokenizer: {{type: BertWordPieceCase, num_sentinel_tokens: 100}}
      share_decoder_tokens_head_embeddings: {tied}
      optim: {{name: fused_adam}}
      data: {{seq_length_dec: 128}}
"""


def test_a_t5_is_named_where_its_gates_and_its_table_are_those_of_the_name() -> None:
    def model(**sizes: object) -> object:
        return job(T5.format(**sizes), "t5.yaml")["model"]

    assert model(inner=3072, activation="gelu", tied="true") == "t5-base"
    assert model(inner=2048, activation="geglu", tied="false") == "flan-t5-base"
    own = model(inner=2048, activation="geglu", tied="true")
    assert isinstance(own, dict)
    holds(own, gated_mlp=True, tied_embeddings=True, vocabulary_size=28996 + 100, decoder_layers=12, name="t5-0.2b")


@pytest.mark.parametrize("part", ["sft", "dpo", "kto", "rm"])
def test_a_loop_of_aligner_clips_by_its_own_key(part: str) -> None:
    text = GPT.format(stages=1, method="uniform", number=1)
    text = text.replace("precision: bf16}", f"precision: bf16, {part}: {{gradient_clip_val: 0.5}}}}")
    holds(job(text, "align.yaml"), max_gradient_norm=0.5)


@pytest.mark.parametrize(
    ("more", "reference"),
    [("", "precomputed"), ("      peft: {peft_scheme: lora, lora_tuning: {adapter_dim: 8}}\n", "adapter-off")],
)
def test_the_reference_of_aligner_lies_on_the_host(more: str, reference: str) -> None:
    text = GPT.format(stages=1, method="uniform", number=1) + "      dpo: {ref_policy_kl_penalty: 0.2}\n" + more
    holds(job(text, "align.yaml"), loss="dpo", dpo_reference=reference)


@pytest.mark.parametrize(("name", "model"), [("baichuan2_7b", "baichuan2-7b"), ("own_run", "llama-2-7b")])
def test_of_models_of_the_same_sizes_the_one_that_the_run_is_called_by(name: str, model: str) -> None:
    text = f"""\
    run: {{name: {name}}}
    name: megatron_own
    trainer: {{devices: 8, num_nodes: 1, precision: bf16, gradient_clip_val: 1.0}}
    exp_manager: {{create_checkpoint_callback: false}}
    model:
      mcore_gpt: true
      micro_batch_size: 1
      global_batch_size: 8
      tensor_model_parallel_size: 1
      pipeline_model_parallel_size: 1
      encoder_seq_length: 4096
      max_position_embeddings: 4096
      num_layers: 32
      hidden_size: 4096
      ffn_hidden_size: 11008
      num_attention_heads: 32
      normalization: rmsnorm
      activation: fast-swiglu
      bias: false
      position_embedding_type: rope
      share_embeddings_and_output_weights: false
      tokenizer: {{library: sentencepiece, type: null, model: null}}
    """
    found = meant(text, "own.yaml")
    assert found.job["model"] == model
    assert any(f"sizes of {model}" in note and "tells the vocabulary" in note for note in found.notes)


def test_sft_has_its_length_and_its_batch_with_the_data() -> None:
    """NeMo-Aligner's loop takes samples of `train_ds`, whatever the positions of the model."""
    text = """
    trainer: {devices: 4, num_nodes: 1, precision: bf16, sft: {gradient_clip_val: 1.0, max_steps: 10}}
    model:
      megatron_amp_O2: true
      restore_from_path: ???
      encoder_seq_length: 4096
      tensor_model_parallel_size: 1
      optim: {name: distributed_fused_adam}
      data:
        train_ds: {max_seq_length: 1024, micro_batch_size: 2, global_batch_size: 32}
    """
    found = job(text, "sft.yaml")
    holds(found, sequence_length=1024, micro_batch_size=2, gradient_accumulation_steps=4)
    own = text.replace("  encoder_seq", "  micro_batch_size: 1\n      global_batch_size: 8\n      encoder_seq")
    holds(job(own, "sft.yaml"), micro_batch_size=1, gradient_accumulation_steps=2)


@pytest.mark.parametrize(
    ("tied", "groups", "means"), [("true", 1, "falcon-7b"), ("false", 1, False), ("false", 71, False)]
)
def test_a_falcon_with_a_head_of_its_own_is_one_by_its_sizes(tied: str, groups: int, means: object) -> None:
    text = f"""
        trainer: {{num_nodes: 1, devices: 8, precision: bf16}}
        model:
          micro_batch_size: 1
          global_batch_size: 8
          encoder_seq_length: 2048
          num_layers: 32
          hidden_size: 4544
          ffn_hidden_size: 18176
          num_attention_heads: 71
          num_query_groups: {groups}
          activation: gelu
          position_embedding_type: rope
          share_embeddings_and_output_weights: {tied}
          mcore_customization_config: {{new_decoder_architecture: false, parallel_attention: true}}
          tokenizer: {{library: huggingface, type: tiiuae/falcon-7b}}
          optim: {{name: fused_adam}}
    """
    model = job(text, "falcon.yaml")["model"]
    if isinstance(model, str):
        assert model == means
    else:
        holds(model, family="falcon", tied_embeddings=False, vocabulary_size=65024)


@pytest.mark.parametrize(
    ("optimizer", "precision", "means"),
    [
        ("{name: mcore_distributed_optim, grad_sync_dtype: bf16}", "bf16", "bf16"),
        ("{name: mcore_distributed_optim, grad_sync_dtype: fp32}", "bf16", None),
        ("{name: distributed_fused_adam, grad_sync_dtype: bfloat16}", "bf16", "bf16"),
        ("{name: distributed_fused_adam, grad_sync_dtype: fp32}", "16", "fp32"),
        ("{name: fused_adam, grad_sync_dtype: bf16}", "bf16", None),  # which sums none of them
    ],
)
def test_the_distributed_optimizer_sums_gradients_in_the_type_that_the_file_says(
    optimizer: str, precision: str, means: str | None
) -> None:
    text = GPT.format(stages=1, method="uniform", number=1)
    text = text.replace("{name: fused_adam}", optimizer).replace("precision: bf16", f"precision: {precision}")
    assert meant(text, "gpt.yaml").job.get("gradient_dtype") == means


OTHER = "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\n"
BELOW = "model:\n  " + OTHER.replace("\n", "\n  ").rstrip()
JOB = """
{defaults}
trainer: {{num_nodes: 1, devices: 1, precision: bf16}}
model: {{micro_batch_size: 1, global_batch_size: 1, tensor_model_parallel_size: 1, encoder_seq_length: 64,
  megatron_amp_O2: true, {own}tokenizer: {{type: GPT2BPETokenizer}}, optim: {{name: fused_adam}}}}
"""


@pytest.mark.parametrize(
    ("defaults", "own", "layers"),
    [
        ("defaults: [other]", "", 2),
        ("defaults: [other]", "num_layers: 3, ", 3),  # the file's own go before what it names
        ("defaults: [_self_, other]", "num_layers: 3, ", 2),
        ("defaults: [sizes@model]", "", 2),
        ("defaults: [{.@model: sizes}]", "", 2),
        ("defaults: [{model: own/sizes}]", "", 2),
        ("defaults: [middle]", "", 2),
    ],
)
def test_the_files_of_defaults_are_taken_in(defaults: str, own: str, layers: int) -> None:
    texts = {"a.yaml": JOB.format(defaults=defaults, own=own)}
    named = {"other.yaml": BELOW, "sizes.yaml": OTHER, "middle.yaml": "defaults: [other]\n"}
    found = read_texts_of(texts, named)
    assert found.job["model"]["layers"] == layers


def read_texts_of(texts: dict[str, str], named: dict[str, str]) -> ReadJob:
    """The job of texts beside files that they may name."""
    (file, text), *_ = texts.items()
    written = settings(text, file)

    def opened(path: str) -> dict[str, Written] | None:
        name = path.rsplit("/", 1)[-1]
        return settings(named[name], name) if name in named else None

    return job_of(registry.recognised(written, file), written, [file], Wanted(), text, opened)


def test_files_of_defaults_that_are_not_here_are_told_and_circles_are_errors() -> None:
    text = JOB.format(
        defaults="defaults: [gone, {optional cfg@model.more: gone}, _self_]", own=OTHER.replace("\n", ", ")
    )
    found = read_texts_of({"a.yaml": text}, {})
    assert [note for note in found.notes if "gone.yaml is not here" in note]
    with pytest.raises(InputError, match="or itself"):
        read_texts_of({"a.yaml": text}, {"gone.yaml": "defaults: [gone]\n"})
