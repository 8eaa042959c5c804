"""Small files with what people publish: names of scripts around programs, keys in the wrong file, files left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant

TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
per_device_train_batch_size: 1
gradient_accumulation_steps: 1
max_length: 512
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "loss"),
    [
        ("max_prompt_length: 256\nmax_completion_length: 256\n", "dpo"),
        ("# ORPOTrainer arguments\nbeta: 0.1\nmax_completion_length: 256\n", "orpo"),
        ("max_completion_length: 256\nnum_generations: 8\n", "grpo"),
        ("log_completions: true\n", "grpo"),
    ],
)
def test_a_length_of_completions_alone_is_not_grpo(more: str, loss: str) -> None:
    """DPO, KTO, ORPO and CPO have had it beside `max_length`, which GRPO never had."""
    assert meant(TRL + more, "trl.yaml").job.get("loss") == loss


def test_completions_without_a_length_are_sampled() -> None:
    text = TRL.replace("max_length: 512\n", "max_completion_length: 256\nlog_completions: true\n")
    found = meant(text, "trl.yaml")
    assert (found.job["loss"], found.job["padding"]) == ("grpo", "right")
    assert any("sampling takes time and memory of its own" in note for note in found.notes)
    for more, reference in (
        ("", None),
        ("beta: 0.0\n", None),
        ("beta: 0.04\n", "model"),
        ("beta: 0.04\nuse_peft: true\n", "adapter-off"),
    ):
        assert meant(text + more, "trl.yaml").job.get("dpo_reference") == reference


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: ppo\nfinetuning_type: lora\ncutoff_len: 512\n",
            "the reward model",
        ),
        (
            "model: {_component_: torchtune.models.llama2.llama2_7b}\nbatch_size: 2\ndtype: bf16\n"
            "optimizer: {_component_: torch.optim.AdamW}\nloss: {_component_: torchtune.rlhf.loss.PPOLoss}\n",
            "reference, value and reward models",
        ),
    ],
)
def test_ppo_leaves_its_loss_open_too(text: str, said: str) -> None:
    found = meant(text, "a.yaml")
    assert "loss" not in found.job
    assert said in found.open["loss"]
    assert "(--loss standard)" in found.open["loss"]


@pytest.mark.parametrize(
    ("own", "key", "value"),
    [
        ("use_lora: true\nlora_r: 4\n", "adapter.rank", 4),
        ("use_peft: true\nlora_rank: 32\n", "adapter.rank", 32),
        ("use_peft: true\nlora_r: 4\nlora_target_modules: all\n", "adapter.targets", "all-linear"),
    ],
)
def test_scripts_call_arguments_otherwise(own: str, key: str, value: Any) -> None:
    assert job(TRL + own, "sft.yaml")[key] == value


@pytest.mark.parametrize(("word", "attention"), [("flash_attention_2", "flash"), ("eager", "eager"), ("true", "flash")])
def test_a_switch_of_attention_may_be_its_name(word: str, attention: str) -> None:
    assert job(TRL + f"use_flash_attention_2: {word}\n", "sft.yaml")["attention"] == attention


def test_the_cache_of_modelscope_writes_dots_otherwise() -> None:
    text = TRL.replace("Qwen/Qwen2.5-0.5B", "/mnt/modelscope_hub/qwen/Qwen2___5-0___5B")
    assert job(text, "sft.yaml")["model"] == "qwen2.5-0.5b"


def test_the_model_is_called_otherwise() -> None:
    text = TRL.replace("model_name_or_path", "model_name") + "packing: true\n"
    holds(job(text, "sft.yaml"), model="qwen2.5-0.5b", packing=True)


ZERO = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
  offload_optimizer_device: none
  offload_param_device: cpu
  reduce_bucket_size: 200000000
  overlap_comm: true
mixed_precision: bf16
num_processes: 8
"""


def test_what_accelerate_does_not_pass_on_changes_nothing() -> None:
    """Its launcher takes the keys of DeepSpeed's own file and gives them to nobody; parameters stay in stage 2."""
    read = meant(ZERO, "accelerate.yaml")
    found = {value.key: value.value for value in read.values}
    holds(found, parallel__sharding="zero2", offload=None, parallel__reduce_bucket_size=None)
    assert {"deepspeed_config.reduce_bucket_size", "deepspeed_config.overlap_comm"} <= {
        one.key for one in read.without_effect
    }
    assert any("stage 3 alone" in note for note in read.notes)
    holds(job(ZERO.replace("zero_stage: 2", "zero_stage: 3"), "accelerate.yaml"), offload=["parameters"])


@pytest.mark.parametrize(
    ("stage", "names", "told"),
    [(3, "MixtralSparseMoeBlock,OwnExperts", True), (3, "MixtralSparseMoeBlock", False), (2, "OwnExperts", False)],
)
def test_modules_that_stage_3_gathers_as_a_whole_are_told(stage: int, names: str, told: bool) -> None:
    text = ZERO.replace("zero_stage: 2", f"zero_stage: {stage}\n  deepspeed_moe_layer_cls_names: {names}")
    found = meant(text, "accelerate.yaml").unmodelled.get("deepspeed_config.deepspeed_moe_layer_cls_names")
    assert (found or "").startswith("OwnExperts: gathered as a whole") is told


def test_a_loss_of_chosen_answers_beside_the_one_of_pairs_is_told() -> None:
    words = "python dpo.py --model_name_or_path gpt2 --max_length 64 --loss_type sigmoid --rpo_alpha 1.0"
    assert "rpo_alpha" in meant(words, "run.sh").unmodelled


def test_a_file_of_the_launcher_that_is_not_here_is_asked_for() -> None:
    text = """
    accelerate launch --config_file configs/zero3.yaml --num_processes 4 sft.py --model_name_or_path gpt2 \\
      --per_device_train_batch_size 2 --max_length 256
    """
    read = meant_of_script(text)
    assert read.open["parallel.sharding"] == "--config_file: configs/zero3.yaml is not here; give that file too"
    holds({value.key: value.value for value in read.values}, micro_batch_size=2, parallel__data=4)


def meant_of_script(text: str) -> Any:
    """The job of a script, read as a command reads it."""
    from vramplan.configs.combine import read_texts
    from vramplan.configs.reading import Wanted

    return read_texts({"run.sh": text}, Wanted())


def test_the_folder_of_a_tokenizer_says_how_many_tokens_there_are() -> None:
    text = """
    torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 20 --hidden-size 2048 --ffn-hidden-size 5504 \\
      --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \\
      --global-batch-size 8 --bf16 --swiglu --normalization RMSNorm --use-rotary-position-embeddings \\
      --untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type GPTSentencePieceTokenizer \\
      --tokenizer-model data/{}/tokenizer.model
    """
    assert job(text.format("llama-7b"), "run.sh")["model"]["vocabulary_size"] == 32000
    assert "model.vocabulary_size" in meant(text.format("mine"), "run.sh").open


def test_gemma_4_is_checkpointed_without_reentrance() -> None:
    text = "base_model: {}\nsequence_len: 512\nmicro_batch_size: 1\ngradient_checkpointing: true\nbf16: true\n"
    assert job(text.format("google/gemma-3-4b-it"), "a.yaml")["checkpoint_reentrant"] is True
    assert "checkpoint_reentrant" not in job(text.format("google/gemma-4-31b-it"), "a.yaml")


def test_a_file_of_litgpt_may_have_names_of_trl() -> None:
    text = """
    checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf
    precision: bf16-true
    lora_r: 8
    lora_alpha: 16
    lora_dropout: 0.05
    lora_query: true
    train: {global_batch_size: 4, micro_batch_size: 2, max_seq_length: 512}
    """
    read = meant(text, "lora.yaml")
    assert read.program == "litgpt"
    holds({value.key: value.value for value in read.values}, adapter__rank=8, micro_batch_size=2)


IMAGES = """
model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
stage: sft
finetuning_type: full
cutoff_len: 512
per_device_train_batch_size: 1
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "frozen"),
    [
        ("", ["vision_encoder", "projector"]),
        ("freeze_multi_modal_projector: false\n", ["vision_encoder"]),
        ("freeze_vision_tower: false\nfreeze_multi_modal_projector: false\n", None),
        ("freeze_multi_modal_projector: false\nfreeze_language_model: true\n", ["vision_encoder", "language_model"]),
        ("train_mm_proj_only: true\n", ["vision_encoder", "language_model"]),
    ],
)
def test_llama_factory_freezes_what_reads_images(more: str, frozen: list[str] | None) -> None:
    """By default, and not where the model reads text alone."""
    assert job(IMAGES + more, "vl.yaml").get("frozen") == frozen
    assert "frozen" not in job(IMAGES.replace("-VL", "") + more, "text.yaml")


def test_an_encoder_without_adapters_is_told() -> None:
    read = meant(IMAGES.replace("full", "lora"), "vl.yaml")
    assert "freeze_vision_tower" in read.unmodelled
    assert "frozen" not in {value.key for value in read.values}


TITAN = """
[model]
name = "llama3"
flavor = "{}"
[training]
local_batch_size = 1
seq_len = 512
[activation_checkpoint]
mode = "full"
"""


def test_one_gpu_of_torchtitan_has_no_fsdp() -> None:
    """Up to 0.2.2, where autocast stands in for its mixed precision."""
    alone = job(TITAN.format("8B"), "t.toml", devices=1)
    holds(alone, precision="amp-bf16", parallel__sharding=None, parallel__data=None)
    holds(job(TITAN.format("8B"), "t.toml", devices=2), precision="fsdp-bf16", parallel__sharding="fsdp")
    text = TITAN.format("8B") + "[parallelism]\ndata_parallel_shard_degree = 1\n"
    holds(job(text, "t.toml"), precision="amp-bf16", parallel__sharding=None)


def test_a_flavor_of_a_fork_is_asked_for() -> None:
    assert "none of torchtitan's" in meant(TITAN.format("500m"), "t.toml").open["model"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("base_model: unsloth/llama-3-8b-bnb-4bit\nadapter: lora\nlora_r: 8\nsequence_len: 512\n", "nf4-double"),
        ("base_model: me/llama-3-8b-bnb-4bit\nadapter: qlora\nload_in_4bit: true\nlora_r: 8\n", "nf4-double"),
        ("base_model: NousResearch/Meta-Llama-3-8B\nadapter: lora\nlora_r: 8\nsequence_len: 512\n", None),
        ("model_name_or_path: unsloth/llama-3-8b-bnb-4bit\nuse_peft: true\nlora_r: 8\nbf16: true\n", "nf4-double"),
        ("model_name_or_path: me/llama-3-8b-AWQ\nstage: sft\nfinetuning_type: lora\nlora_rank: 8\n", "awq-int4"),
    ],
)
def test_a_checkpoint_that_is_quantized_stays_so(text: str, word: str | None) -> None:
    found = meant(text, "a.yml")
    assert found.job.get("quantization") == word
    assert ("fp16 on a GPU" in str(found.unmodelled)) == (word == "awq-int4")


def test_a_sampled_sequence_is_a_prompt_and_its_completion() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nbf16: true\nnum_generations: 8\nmax_completion_length: 256\n"
    assert job(text + "max_prompt_length: 128\n", "trl.yaml")["sequence_length"] == 384
    quiet = {source.key for source in meant(text + "max_prompt_length: 128\n", "trl.yaml").without_effect}
    assert "max_prompt_length" not in quiet  # which it is for other losses
    found = meant(text, "trl.yaml")
    assert "sequence_length" not in found.job
    assert "max_completion_length (256)" in found.open["sequence_length"]
    assert found.job["loss"] == "grpo"


OF_PAIRS = """
model_name_or_path: Qwen/Qwen2.5-0.5B
max_length: 512
per_device_train_batch_size: 1
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "file", "told"),
    [
        ("dataset_name: someone/pairs-of-preferences\n", "run.yaml", "someone/pairs-of-preferences has pairs"),
        ("dataset_mixer:\n  someone/dpo-mix: 1.0\n", "run.yaml", "someone/dpo-mix has pairs"),
        ("dataset_name: own\nchosen_column: better\n", "run.yaml", "chosen_column is a column of pairs"),
        ("dataset_name: own\n", "recipes/dpo/config.yaml", "the file is called dpo/config.yaml"),
    ],
)
def test_data_of_pairs_without_a_key_of_dpo_leave_the_loss_open(more: str, file: str, told: str) -> None:
    """DPOTrainer needs no key of its own: `beta` and `loss_type` have defaults."""
    read = meant(OF_PAIRS + more, file)
    assert "loss" not in read.job
    assert read.open["loss"].startswith(told)
    assert read.open["loss"].endswith("(--loss dpo)")
    asked = meant(OF_PAIRS + more, file, beside={"loss": "dpo"})
    assert (asked.job["loss"], asked.job["dpo_reference"], asked.job["padding"]) == ("dpo", "model", "right")
    plain = meant(OF_PAIRS + more, file, beside={"loss": "standard"})
    assert not {"loss", "padding"} & {*plain.job, *plain.open}


@pytest.mark.parametrize(
    ("more", "file"),
    [
        ("dataset_name: someone/chats\noutput_dir: out-dpo\nrun_name: dpo\n", "run.yaml"),
        ("dataset_name: someone/ultrafeedback\ndataset_splits: [train_sft]\n", "run.yaml"),
        ("dataset_name: someone/ultrafeedback\npacking: true\n", "run.yaml"),
        ("dataset_name: someone/chats\n", "dpo/sft.yaml"),
    ],
)
def test_texts_are_no_pairs(more: str, file: str) -> None:
    assert "loss" not in meant(OF_PAIRS + more, file).open


@pytest.mark.parametrize(("model", "told"), [("bert-base-uncased", True), ("Qwen/Qwen3-0.6B", False)])
def test_an_encoder_in_a_file_of_trl_is_told_to_learn_masked_words(model: str, told: bool) -> None:
    text = f"model_name_or_path: {model}\nmax_seq_length: 64\nuse_peft: true\nlora_r: 4\nbf16: true\n"
    assert any("--loss classification" in note for note in meant(text, "config.yaml").notes) == told
    given = meant(text, "config.yaml", beside={"loss": "classification"})
    assert not any("--loss classification" in note for note in given.notes)


def test_open_instructs_script_of_preferences_needs_no_key_either() -> None:
    text = """
    model_name_or_path: EleutherAI/pythia-14m
    use_slow_tokenizer: true
    max_seq_length: 512
    per_device_train_batch_size: 1
    with_tracking: true
    """
    assert "loss" not in meant(text, "sft/mini.yaml").open
    assert "--loss dpo" in meant(text, "dpo/mini.yaml").open["loss"]
    assert meant(text, "dpo/mini.yaml", beside={"loss": "dpo"}).job["dpo_reference"] == "precomputed"


GRPO = """
model_name_or_path: Qwen/Qwen2.5-0.5B
bf16: true
num_generations: 8
max_completion_length: 256
use_vllm: true
"""


@pytest.mark.parametrize(
    ("more", "version", "open_for"),
    [
        ("", None, "--reserve '24 GiB'"),
        ("vllm_gpu_memory_utilization: 0.45\n", None, "--reserve '36 GiB'"),
        ("vllm_mode: server\n", None, None),
        ("vllm_enable_sleep_mode: true\n", None, None),
        ("", "0.29.0", None),  # whose vLLM is a server where nothing is said
        ("vllm_mode: colocate\n", "0.29.0", "--reserve '24 GiB'"),
    ],
)
def test_what_vllm_keeps_of_the_gpus_that_train_is_asked_for(
    more: str, version: str | None, open_for: str | None
) -> None:
    found = meant(GRPO + more, "grpo.yaml", version=version)
    assert found.job["loss"] == "grpo"
    assert ("reserve" in found.open) == (open_for is not None)
    assert open_for is None or open_for in found.open["reserve"]


def test_a_file_with_vllm_beside_training_is_judged_with_what_it_keeps(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(GRPO, "utf-8")
    more = ("--seq", "512")
    assert "--reserve '24 GiB'" in run("fit", str(file), "l4", *more).err
    assert run("fit", str(file), "l4", *more, "--reserve", "22 GiB", "-q").code == 3
