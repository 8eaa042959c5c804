"""Files of torchtune."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.meant import holds, job, meant, together
from vramplan.configs.programs.torchtune import shape_name
from vramplan.errors import InputError

LORA = """\
# Config for {recipe}.py
output_dir: /tmp/out
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: {length}
model:
  _component_: torchtune.models.{builder}
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: False
  lora_rank: 4
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: False
batch_size: 3
gradient_accumulation_steps: 2
optimizer:
  _component_: torch.optim.AdamW
  fused: {fused}
  lr: 3e-4
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
dtype: bf16
enable_activation_checkpointing: True
"""


def written(
    recipe: str = "lora_finetune_single_device",
    length: str = "null",
    builder: str = "llama3_2.lora_llama3_2_1b",
    fused: str = "True",
    more: str = "",
) -> str:
    return LORA.format(recipe=recipe, length=length, builder=builder, fused=fused) + more


def test_an_adapter() -> None:
    found = meant(written(), "a.yaml")
    assert found.program == "torchtune"
    holds(
        job(written(), "a.yaml"),
        runtime="torchtune",
        model="llama-3.2-1b",
        micro_batch_size=3,
        precision="pure-bf16",
        loss="chunked:8",
        adapter__rank=4,
        adapter__alpha=16,  # the builder's default
        adapter__targets=["q_proj", "o_proj"],
        optimizer_implementation="fused",
        max_gradient_norm=None,  # torchtune clips nothing by default
        parallel__sharding=None,
    )
    assert set(found.open) == {"sequence_length"}  # the longest sample decides


def test_the_length_of_old_releases_is_that_of_the_data() -> None:
    old = written().replace("  packed: False", "  max_seq_len: 512")
    assert job(old, "a.yaml")["sequence_length"] == 512
    assert job(old.replace("max_seq_len: null", "max_seq_len: 1024"), "a.yaml")["sequence_length"] == 1024


def test_the_recipe_that_a_comment_names_says_whether_it_is_distributed() -> None:
    found = meant(written("lora_finetune_distributed", "1024"), "a.yaml")
    assert found.job["parallel"] == {"sharding": "fsdp", "fsdp_version": 2}
    assert found.job["sequence_length"] == 1024
    assert set(found.open) == {"parallel.data"}


def test_the_recipe_is_that_of_the_command_in_a_comment_and_not_a_file_that_is_named_beside_it() -> None:
    """Comments name other files too, and recipes for FSDP2 had names of their own."""
    head = "# 7B_lora_single_device.yaml is for one device\n# tune run --nnodes 1 --nproc_per_node 2 {} --config own\n"
    for recipe in ("lora_finetune_fsdp2", "recipes/lora_finetune_distributed.py"):
        text = head.format(recipe) + written("lora_finetune_single_device", "1024")
        assert meant(text, "a.yaml").job["parallel"] == {"sharding": "fsdp", "fsdp_version": 2}


@pytest.mark.parametrize(
    ("builder", "name"),
    [
        ("llama3_1.lora_llama3_1_70b", "llama-3.1-70b"),
        ("qwen2_5.qwen2_5_1_5b_base", "qwen2.5-1.5b"),
        ("qwen2.lora_qwen2_0_5b", "qwen2-0.5b"),
        ("qwen3.qwen3_1_7b_instruct", "qwen3-1.7b"),
        ("gemma.gemma_2b", "gemma-2b"),
        ("gemma2.gemma2_27b", "gemma-2-27b"),
        ("phi3.qlora_phi3_mini", "phi-3-mini-4k"),
        ("code_llama2.code_llama2_7b", "codellama-7b"),
        ("mistral.mistral_7b", "mistral-7b"),
    ],
)
def test_builders_have_names_of_the_catalogue(builder: str, name: str) -> None:
    assert shape_name(f"torchtune.models.{builder}") == name


def test_torch_steps_tensors_together_unless_it_is_told_otherwise() -> None:
    holds(job(written(fused="False"), "a.yaml"), optimizer_implementation="foreach")


@pytest.mark.parametrize(
    ("name", "word", "how"),
    [
        ("torch.optim.Adagrad", "adagrad", "foreach"),
        ("torch.optim.ASGD", "asgd", "foreach"),
        ("optimi.StableAdamW", "stable-adamw", "fused"),
        ("came_pytorch.CAME", "came", None),
    ],
)
def test_components_of_other_optimizers_step_as_their_libraries_do(name: str, word: str, how: str | None) -> None:
    text = written(fused="False").replace("torch.optim.AdamW", name)
    holds(job(text, "a.yaml"), optimizer=word, optimizer_implementation=how)


def test_quantized_and_decomposed() -> None:
    holds(job(written(builder="llama3.qlora_llama3_8b"), "a.yaml"), quantization="nf4")
    text = written().replace("  lora_rank: 4\n", "  lora_rank: 4\n  use_dora: True\n")
    holds(job(text, "a.yaml"), adapter__kind="dora")


def test_offloading_and_the_step_in_backward() -> None:
    more = "optimizer_in_bwd: True\nenable_activation_offloading: True\n"
    holds(job(written(more=more), "a.yaml"), optimizer_in_backward=True, offload=["activations"])
    found = job(written("full_finetune_distributed", more="fsdp_cpu_offload: True\n"), "a.yaml")
    assert found["offload"] == ["parameters", "gradients", "optimizer"]


def test_degrees() -> None:
    more = "tensor_parallel_dim: 2\ndata_parallel_shard_dim: 4\ndata_parallel_replicate_dim: 2\n"
    found = job(written("full_finetune_distributed", more=more), "a.yaml")
    holds(found, parallel__tensor=2, parallel__sharding="hsdp:4", parallel__data=8)


def test_a_reference_to_another_key_is_resolved() -> None:
    text = written().replace("batch_size: 3\n", "batch_size: ${wanted.size}\nwanted:\n  size: 6\n")
    holds(job(text, "a.yaml"), micro_batch_size=6)
    assert "wanted.size" in {source.key for source in meant(text, "a.yaml").without_effect}  # a variable
    with pytest.raises(InputError, match="wanted"):
        meant(written() + "wanted:\n  size: 6\n", "a.yaml")


@pytest.mark.parametrize(
    ("old", "new"), [("LinearCross", "LinearCrosss"), ("optim.AdamW", "optim.AdamV"), ("bf16", "b16")]
)
def test_what_is_not_understood_is_an_error(old: str, new: str) -> None:
    with pytest.raises(InputError, match=new):
        meant(written().replace(old, new), "a.yaml")


@pytest.mark.parametrize(
    ("layers", "units"),
    [
        ("[tok_embeddings, output]", "embedding-and-head"),
        ("[decoder.tok_embeddings]", "embedding"),
        ("null", None),
        ("[norm]", None),
    ],
)
def test_layers_that_are_sharded_on_their_own_are_units(layers: str, units: str | None) -> None:
    text = written("full_finetune_distributed", more=f"custom_sharded_layers: {layers}\n")
    holds(job(text, "a.yaml"), parallel__sharding="fsdp", parallel__fsdp_units=units)
    assert any("custom_sharded_layers" in one for one in meant(text, "a.yaml").notes) == (layers == "[norm]")


SPLIT = """
    # tune run --nproc_per_node 8 full_finetune_distributed --config F
    model:
      _component_: torchtune.models.llama4.llama4_scout_17b_16e
    tokenizer:
      _component_: torchtune.models.llama4.llama4_transform
      max_seq_len: 2048
    tensor_parallel_dim: 8
    custom_sharded_layers: [tok_embeddings, output]
    batch_size: 1
    optimizer:
      _component_: torch.optim.AdamW
      fused: true
    loss:
      _component_: torchtune.modules.loss.LinearCrossEntropyLoss
"""


def test_nothing_is_sharded_where_tensor_parallelism_takes_every_device() -> None:
    holds(
        job(SPLIT, "t.yaml", devices=8),
        parallel__sharding="none",
        parallel__data=1,
        parallel__tensor=8,
        parallel__fsdp_units=None,
    )
    found = meant(SPLIT, "t.yaml", devices=16)
    assert (found.job["parallel"]["sharding"], found.job["parallel"]["data"]) == ("fsdp", 2)
    assert "custom_sharded_layers" in found.unmodelled


IMAGES = """\
# Config for full_finetune_distributed.py
model:
  _component_: torchtune.models.llama3_2_vision.llama3_2_vision_11b
  decoder_trainable: False
  encoder_trainable: True
  fusion_trainable: True
  image_size: 560
tokenizer:
  _component_: torchtune.models.llama3_2_vision.llama3_2_vision_transform
  max_seq_len: 8192
batch_size: 2
gradient_accumulation_steps: 8
optimizer:
  _component_: torch.optim.AdamW
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
dtype: bf16
enable_activation_checkpointing: True
"""


def test_its_model_of_images_and_text_freezes_the_text() -> None:
    found = meant(IMAGES, "a.yaml")
    holds(found.job, model="llama-3.2-11b-vision-instruct", image_size=560, loss="chunked:8")
    frozen = found.job["frozen"]
    assert {"language_model.embeddings", "language_model.norms", "lm_head", "language_model.layers.0-2"} <= {*frozen}
    assert "language_model.layers.4-7" in frozen  # the fourth looks at the images
    assert not any(word.startswith(("vision_encoder", "projector")) for word in frozen)
    assert "DeepFusionModel" in found.unmodelled["model._component_"]


def test_its_encoder_and_what_fuses_may_be_frozen() -> None:
    text = IMAGES.replace("encoder_trainable: True", "encoder_trainable: False").replace(
        "decoder_trainable: False", "decoder_trainable: True"
    )
    frozen = meant(text, "a.yaml").job["frozen"]
    assert {*frozen} == {"vision_encoder.embeddings", "vision_encoder.norms", "vision_encoder.transformer"}


def test_adapters_of_its_model_of_images_are_told_to_be_in_all_blocks() -> None:
    found = meant(written(builder="llama3_2_vision.lora_llama3_2_vision_90b"), "a.yaml")
    assert found.job["model"] == "llama-3.2-90b-vision-instruct"
    assert "frozen" not in found.job
    assert "model.decoder_trainable" in found.unmodelled


def test_a_teacher() -> None:
    text = written("knowledge_distillation_single_device").replace("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss")
    text += "teacher_model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\n"
    text += "kd_loss:\n  _component_: torchtune.modules.loss.{}\nkd_ratio: 0.5\n"
    found = meant(text.format("ReverseKLWithChunkedOutputLoss"), "a.yaml").job
    assert (found["teacher"], found["distillation"], found["loss"]) == ("llama-3.1-8b", "reverse-kl", "chunked:8")
    with pytest.raises(InputError, match="JensenLoss is not understood"):
        meant(text.format("JensenLoss"), "a.yaml")


def test_a_quantizer_of_a_recipe_that_trains() -> None:
    more = """
quantizer:
  _component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer
fake_quant_after_n_steps: 50
"""
    found = meant(written("qat_lora_finetune_distributed", "1024", more=more), "a.yaml")
    values = {value.key: value.value for value in found.values if value.key.startswith("qat.")}
    assert values == {"qat.weights": "int4", "qat.activations": "int8", "qat.group_size": 256}
    assert any("before step 50" in note for note in found.notes)
    assert "parallel.data" in found.open  # both recipes shard


def test_a_quantizer_that_trains_nothing_is_an_error() -> None:
    more = "\nquantizer:\n  _component_: torchtune.training.quantization.Int8DynActInt4WeightQuantizer\n"
    with pytest.raises(InputError, match="is no quantizer that trains"):
        meant(written(length="1024", more=more), "a.yaml")


def test_what_a_template_leaves_to_who_fills_it_in() -> None:
    text = written().replace("/tmp/out", "{{output_dir}}").replace("batch_size: 3", "batch_size: {{ batch }}")
    found = meant(text, "a.yaml")
    assert "$batch" in found.open["micro_batch_size"]
    assert found.job["gradient_accumulation_steps"] == 2


def test_recipes_pass_over_settings_that_they_have_not() -> None:
    text = LORA + "keep_last_n_checkpoints: 2\nlog_details: true\nentropy_k: 4\n"
    found = meant(text, "a.yaml")
    assert {"keep_last_n_checkpoints", "log_details", "entropy_k"} <= {one.key for one in found.without_effect}
    with pytest.raises(InputError, match="clip_grad_nrom: is not understood"):
        meant(LORA + "clip_grad_nrom: 1.0\n", "a.yaml")


SAMPLED = """
    tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: {length}}}
    model: {{_component_: torchtune.models.llama3_2.llama3_2_1b}}
    batch_size: 2
    gradient_accumulation_steps: 4
    loss: {{_component_: torchtune.{loss}}}
    max_generated_tokens: 100
    {more}
"""


@pytest.mark.parametrize(
    ("loss", "more", "batch"),
    [
        ("dev.grpo.loss.GRPOSimpleLoss", "grpo_samples: 16", 32),
        ("rlhf.loss.PPOLoss", "ppo_batch_size: 64", 16),
        ("modules.loss.LinearCrossEntropyLoss", "", 2),
    ],
)
def test_answers_that_are_sampled_stand_behind_prompts_and_run_together(loss: str, more: str, batch: int) -> None:
    found = job(SAMPLED.format(length=512, loss=loss, more=more), "a.yaml")
    holds(found, micro_batch_size=batch, sequence_length=612 if more else 512)
    if more:
        asked = meant(SAMPLED.format(length="null", loss=loss, more=more), "a.yaml").open["sequence_length"]
        assert "with 100 tokens of its answer" in asked


def test_workers_that_train_beside_others_have_their_settings_below_a_key_of_theirs() -> None:
    found = meant(
        """
        tokenizer: {_component_: torchtune.models.qwen2_5.qwen2_5_tokenizer, max_seq_len: 1024}
        model: {_component_: torchtune.models.qwen2_5.qwen2_5_3b}
        orchestration: {num_training_workers: 2, num_inference_workers: 4}
        inference: {max_generated_tokens: 512, group_size: 16}
        training:
          batch_size: 16
          clip_grad_norm: 1.0
          enable_activation_checkpointing: true
          optimizer: {_component_: torch.optim.AdamW, fused: true}
          loss: {_component_: torchtune.dev.rl.linear_grpo_loss.LinearGRPOLoss}
        """,
        "async.yaml",
    )
    values = {value.key: value.value for value in found.values}
    holds(values, micro_batch_size=16, sequence_length=1536, activation_checkpointing="full", max_gradient_norm=1.0)
    holds(values, parallel__data=2, parallel__sharding="fsdp", optimizer="adamw")
    assert "reference" not in found.open["loss"]


def test_an_inference_engine_of_a_copy_is_told() -> None:
    text = "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\nbatch_size: 1\nvllm_mode: server\n"
    found = meant(f"{text}loss: {{_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}}\n", "a.yaml")
    assert "inference engine" in str(found.unmodelled["vllm_mode"])


def test_a_recipe_of_a_copy_is_started_by_hand(tmp_path: Path) -> None:
    own = "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\nbatch_size: 1\n"
    own += "loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}\n"
    line = "torchrun --nproc_per_node 2 recipes/dev/own_distributed.py --config own.yaml batch_size=3 seed=1\n"
    found = together(tmp_path, {"own.yaml": own, "run.sh": line}, "run.sh")
    assert (found.program, found.job["micro_batch_size"]) == ("torchtune", 3)
