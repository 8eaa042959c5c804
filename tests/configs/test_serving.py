"""Files of the same programs that train nothing: generation, evaluation, conversion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.meant import job, meant
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

pytestmark = pytest.mark.contract

EVALUATION = """
    model:
      _component_: torchtune.models.llama3_2.llama3_2_1b
    checkpointer:
      _component_: torchtune.training.FullModelHFCheckpointer
    tokenizer:
      _component_: torchtune.models.llama3.llama3_tokenizer
    tasks: [truthfulqa_mc2]
    batch_size: 8
"""
MERGE = """
    model: Qwen/Qwen3-4B
    model_class: llm
    peft_config:
      name: lora
      adapter_name_or_path: ./out
      export_dir: ./merged
"""
SERVER = """
    torchrun --nproc_per_node 1 tools/run_text_generation_server.py --num-layers 24 --hidden-size 1024 \\
        --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1
"""

TESTS = """
    trainer:
      devices: 1
      precision: 16
      max_steps: 20000
    exp_manager:
      exp_dir: null
    model:
      micro_batch_size: 1
      global_batch_size: 1
      tensor_model_parallel_size: 1
      megatron_amp_O2: false
      data:
        test_ds:
          file_names: [a.jsonl]
"""
PERPLEXITY = """
    batch_size = 8
    eval_iters = 500
    eval_only = True
    init_from = 'gpt2-large'
"""


@pytest.mark.parametrize(
    ("text", "file", "program"),
    [
        (TESTS, "n.yaml", "nemo"),
        (PERPLEXITY, "eval_gpt2.py", "nanogpt"),
        (EVALUATION, "t.yaml", None),
        (MERGE, "m.yaml", "llama-factory"),
        (SERVER, "s.sh", None),
    ],
)
def test_a_file_that_trains_nothing_is_no_job(text: str, file: str, program: str | None) -> None:
    with pytest.raises(InputError, match="trains nothing"):
        meant(text, file, program=program)
    with pytest.raises(InputError, match="trains nothing"):
        meant(text, file, program=program, ignore_unknown=True)


def test_a_quantizer_beside_an_optimizer_is_training() -> None:
    more = """
    quantizer:
      _component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer
    optimizer:
      _component_: torch.optim.AdamW
    loss:
      _component_: torchtune.modules.loss.LinearCrossEntropyLoss
"""
    text = EVALUATION.replace("tasks: [truthfulqa_mc2]", "max_steps_per_epoch: 1").rstrip("\n") + more
    assert meant(text, "t.yaml", ignore_unknown=True).job["model"] == "llama-3.2-1b"


def test_what_a_file_of_nemo_is_for_is_told_by_its_data_and_layers() -> None:
    more = "    train_ds:\n          file_names: [b.jsonl]\n"
    assert meant(TESTS + f"    {more}", "n.yaml", program="nemo").job["micro_batch_size"] == 1
    recurrent = TESTS.replace("megatron_amp_O2: false", "activations_checkpoint_recurrent: false")
    with pytest.raises(InputError, match="another kind of model"):
        meant(recurrent, "n.yaml", program="nemo")


TRAINS = """
    trainer: {devices: 1, num_nodes: 1, precision: bf16}
    model:
      micro_batch_size: 1
      global_batch_size: 1
      tensor_model_parallel_size: 1
      megatron_amp_O2: true
      encoder_seq_length: 128
      num_layers: 2
      hidden_size: 64
      num_attention_heads: 2
      optim: {name: fused_adam}
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("  virtual_prompt_style: p-tuning", "beside a frozen model"),
        ("  ia3_tuning: {type: own}", "beside a frozen model"),
        ("  adapter_tuning: {adapter_dim: 8}", "beside a frozen model"),
        ("  decoder_tokenizer: {library: yttm}", "translation"),
        ("top_k: 4\n    output_path: out", "trains nothing"),
    ],
)
def test_what_nemo_trains_beside_a_frozen_model_is_not_counted_as_the_model(more: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        meant(TRAINS + f"    {more}\n", "n.yaml", program="nemo")


def test_the_adapters_of_nemo_that_are_not_loras_are_asked_for() -> None:
    found = meant(TRAINS + "      peft: {peft_scheme: adapter}\n", "n.yaml", program="nemo")
    assert "--adapter lora" in found.open["adapter.kind"]


def test_a_reward_model_of_nemo_is_trained_on_pairs() -> None:
    ranked = job(TRAINS + "      reward_model_type: binary_ranking\n", "n.yaml", program="nemo")
    assert ranked["loss"] == "reward"
    scored = meant(TRAINS + "      reward_model_type: regression\n", "n.yaml", program="nemo")
    assert "single answers" in scored.unmodelled["model.reward_model_type"]
    assert "loss" not in scored.job
    padded = meant(TRAINS + "      padded_vocab_size: 640\n      vocab_file: own\n", "n.yaml", program="nemo")
    assert padded.job["model"]["vocabulary_size"] == 640


def test_deepspeed_passes_over_sections_that_it_has_not_and_a_slip_is_an_error() -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, %s}'
    found = meant(text % '"logging": {"every": 5}, "moe": {"enabled": true}', "ds.json")
    assert {
        "logging: DeepSpeed has no such key and passes over it",
        "moe: DeepSpeed has no such key and passes over it",
    } <= {*found.notes}
    assert found.job["parallel"]["sharding"] == "zero2"
    beside = '"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}, "adam_w_mode": true, "torch_adam": true}'
    assert "optimizer.torch_adam: DeepSpeed has no such key and passes over it" in meant(text % beside, "ds.json").notes
    slips = ('"gradient_acumulation_steps": 2', '"zero_optimisation": {"stage": 3}', '"optimizer": {"types": "Lion"}')
    for slip in slips:
        with pytest.raises(InputError, match="is not understood"):
            meant(text % slip, "ds.json")
    with pytest.raises(InputError, match="own: is not understood"):  # DeepSpeed refuses it there
        meant(text.replace('"stage": 2', '"stage": 2, "own": 1') % '"seed": 1', "ds.json")


def test_a_deepspeed_file_that_another_one_names_is_passed_over_in_the_same_way(tmp_path: Path) -> None:
    file, named = tmp_path / "own.yaml", tmp_path / "ds.json"
    file.write_text(
        "model_name_or_path: gpt2\nper_device_train_batch_size: 1\nbf16: true\noutput_dir: o\ndeepspeed: ds.json\n"
    )
    named.write_text('{"zero_optimization": {"stage": 2}, "moe": {"enabled": true}}')
    assert read_files([str(file)], Wanted()).job["parallel"]["sharding"] == "zero2"
    named.write_text('{"zero_optimization": {"stage": 2}, "gradient_cliping": 1.0}')
    with pytest.raises(InputError, match="gradient_cliping: is not understood"):
        read_files([str(file)], Wanted())
