"""Files of nanoGPT, torchtitan, llm-foundry and open-instruct."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.configs import shell
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

NANOGPT = """\
import time
# torchrun --standalone --nproc_per_node=4 train.py config/own.py
wandb_run_name = 'own-' + str(time.time())
batch_size = 8
block_size = 1024
gradient_accumulation_steps = 3 * 4
eval_iters = 20
lr_decay_iters = 1000
"""


def test_nanogpt_is_read_and_not_run() -> None:
    found = meant(NANOGPT, "own.py")
    assert found.program == "nanogpt"
    holds(
        job(NANOGPT, "own.py"),
        runtime="nanogpt",
        model="gpt2",
        micro_batch_size=8,
        gradient_accumulation_steps=3,  # train.py divides it by the GPUs
        parallel__data=4,
        parallel__sharding="ddp",
        compile=True,
        precision="amp-bf16",
        max_gradient_norm=1.0,
        dropout=0.0,
    )


def test_nanogpt_of_characters_has_their_vocabulary() -> None:
    text = "dataset = 'shakespeare_char'\nblock_size = 64\nn_layer = 2\nn_head = 2\nn_embd = 32\nbatch_size = 4\n"
    found = meant(text, "own.py", program="nanogpt")
    assert found.job["model"]["vocabulary_size"] == 65
    assert "model.vocabulary_size" not in found.open
    own = text.replace("shakespeare_char", "own_char")
    assert "model.vocabulary_size" in meant(own, "own.py", program="nanogpt").open
    assert found.job["model"]["intermediate_size"] == 128


def test_nanogpt_asks_for_a_value_that_only_the_program_knows() -> None:
    with pytest.raises(InputError) as caught:
        meant(NANOGPT.replace("batch_size = 8", "batch_size = int(time.time())"), "own.py")
    assert (caught.value.problems[0].key, caught.value.problems[0].line) == ("batch_size", 4)


TITAN = """\
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2
seq_len = 4096

[parallelism]
tensor_parallel_degree = {tensor}
data_parallel_shard_degree = {shard}
data_parallel_replicate_degree = {replicate}

[activation_checkpoint]
mode = "{mode}"
selective_ac_option = "{option}"
"""


def titan(mode: str = "full", option: str = "op", more: str = "", **degrees: int) -> str:
    values: dict[str, Any] = {"tensor": 1, "shard": -1, "replicate": 1, **degrees}
    return TITAN.format(mode=mode, option=option, **values) + more


def test_torchtitan() -> None:
    found = meant(titan(), "a.toml")
    assert (found.program, set(found.open)) == ("torchtitan", {"parallel.data"})
    holds(
        job(titan(), "a.toml"),
        model="llama-3.1-8b",
        sequence_length=4096,
        micro_batch_size=2,
        precision="fsdp-bf16",
        activation_checkpointing="full",
        optimizer_implementation="fused",
        max_gradient_norm=1.0,
        parallel__sharding="fsdp",
        parallel__fsdp_version=2,
        parallel__reduce_dtype="fp32",
    )
    values = {value.key: value for value in found.values}
    assert (values["sequence_length"].sources[0].line, values["sequence_length"].sources[0].column) == (10, 1)


@pytest.mark.parametrize(
    ("mode", "option", "word", "second"),
    [
        ("none", "op", "none", None),
        ("selective", "op", "selective-op", True),
        ("selective", "2", "selective-layer:2", None),
        ("full", "2", "full", None),
    ],
)
def test_torchtitan_recomputes(mode: str, option: str, word: str, second: bool | None) -> None:
    found = job(titan(mode, option), "a.toml")
    holds(found, activation_checkpointing=word, every_second_matmul=second)


def test_torchtitan_degrees() -> None:
    found = job(titan(tensor=8, shard=4, replicate=2), "a.toml")
    holds(found, parallel__tensor=8, parallel__sequence_parallel=True, parallel__sharding="hsdp:4", parallel__data=8)


def test_torchtitan_compiles_only_with_the_model_among_the_components() -> None:
    holds(job(titan(more='[compile]\nenable = true\ncomponents = ["loss"]\n'), "a.toml"), compile=None)
    holds(job(titan(more="[compile]\nenable = true\n"), "a.toml"), compile=True)


@pytest.mark.parametrize("more", ["[training]\n", "[trainingg]\nseq_len = 1\n", "[profiling]\nx =\n"])
def test_torchtitan_says_where_a_file_is_wrong(more: str) -> None:
    with pytest.raises(InputError) as caught:
        meant(titan(more=more), "a.toml")
    assert caught.value.problems[0].line is not None


FOUNDRY = """\
variables:
  length: 1024
max_seq_len: ${{variables.length}}
model:
  name: mpt_causal_lm
  d_model: 768
  n_heads: 12
  n_layers: 12
  expansion_ratio: 4
  max_seq_len: ${{max_seq_len}}
  vocab_size: 50368
  attn_config:
    attn_impl: flash
train_loader:
  name: text
  dataset:
    split: train
optimizer:
  name: decoupled_adamw
algorithms:
  gradient_clipping:
    clipping_type: norm
    clipping_threshold: 1.0
max_duration: 10ba
global_train_batch_size: 256
device_train_microbatch_size: {micro}
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: {mixed}
  activation_checkpointing: true
  activation_checkpointing_reentrant: false
  activation_cpu_offload: {offload}
"""


def foundry(micro: str = "8", mixed: str = "PURE", offload: str = "false") -> str:
    return FOUNDRY.format(micro=micro, mixed=mixed, offload=offload)


def test_llm_foundry() -> None:
    found = meant(foundry(), "a.yaml")
    assert set(found.open) == {"parallel.data", "gradient_accumulation_steps"}
    assert found.job["model"]["max_positions"] == 1024  # a reference to a reference
    holds(
        job(foundry(), "a.yaml"),
        sequence_length=1024,
        micro_batch_size=8,
        precision="fsdp-bf16",
        parallel__reduce_dtype="bf16",
        activation_checkpointing="full",
        checkpoint_reentrant=None,
        max_gradient_norm=1.0,
    )
    holds(job(foundry(), "a.yaml", devices=8), gradient_accumulation_steps=4, parallel__data=8)
    holds(job(foundry(mixed="DEFAULT"), "a.yaml"), parallel__reduce_dtype="fp32")
    assert job(foundry(offload="true"), "a.yaml")["offload"] == ["activations"]


@pytest.mark.parametrize(("more", "kind"), [("", "lora"), ("    use_dora: true\n    use_rslora: true\n", "dora")])
def test_llm_foundrys_adapters_are_those_of_peft(more: str, kind: str) -> None:
    text = (
        foundry()
        + f"""\
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: HuggingFaceTB/SmolLM2-135M
  peft_config:
    peft_type: LORA
    r: 4
    target_modules: [q_proj]
{more}"""
    )
    holds(job(text, "a.yaml"), adapter__kind=kind, adapter__rank=4, adapter__targets=["q_proj"])


@pytest.mark.parametrize(
    ("more", "attention"), [("", "eager"), ("attn_impl: torch", "eager"), ("attn_impl: flash", None)]
)
def test_the_hubs_mpt_runs_as_its_config_says(more: str, attention: str | None) -> None:
    text = f"""\
max_seq_len: 2048
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: mosaicml/mpt-7b
  use_flash_attention_2: true
  config_overrides: {{max_seq_len: 2048, attn_config: {{{more}}}}}
global_train_batch_size: 64
device_train_microbatch_size: 8
max_duration: 1ep
optimizer: {{name: decoupled_adamw}}
"""
    holds(job(text, "a.yaml", devices=8), runtime="llm-foundry", attention=attention)


@pytest.mark.parametrize(
    ("mixed", "precision", "reduce"),
    [("FULL", "amp-bf16", None), ("DEFAULT", "fsdp-bf16", "fp32"), ("PURE", "fsdp-bf16", "bf16")],
)
def test_words_of_composer_for_types(mixed: str, precision: str, reduce: str | None) -> None:
    text = f"""
        max_seq_len: 128
        global_train_batch_size: 8
        device_train_microbatch_size: 2
        precision: amp_bf16
        model: {{name: hf_causal_lm, pretrained_model_name_or_path: gpt2, pretrained: true}}
        fsdp_config: {{sharding_strategy: FULL_SHARD, mixed_precision: {mixed}}}
    """
    found = job(text, "a.yaml")
    holds(found, precision=precision, parallel__sharding="fsdp", parallel__reduce_dtype=reduce)


def test_variables_with_names_of_arguments_are_llm_foundrys() -> None:
    text = """
        model_name_or_path: gpt2
        mlm_probability: 0.15
        train_loader: {name: text, dataset: {mlm_probability: "${mlm_probability}"}}
        max_seq_len: 128
        global_train_batch_size: 8
        device_train_microbatch_size: 2
        model: {name: hf_causal_lm, pretrained_model_name_or_path: "${model_name_or_path}", pretrained: true}
    """
    found = meant(text, "a.yaml")
    assert (found.program, found.job["sequence_length"], found.job["micro_batch_size"]) == ("llm-foundry", 128, 2)


def test_llm_foundry_finds_the_micro_batch_itself() -> None:
    assert "micro_batch_size" in meant(foundry("auto"), "a.yaml").open


OPEN_INSTRUCT = """\
model_name_or_path: meta-llama/Llama-2-7b-hf
use_slow_tokenizer: true
dataset_name: own/data
max_seq_length: 2048
per_device_train_batch_size: 1 # note, this is set up for 8 GPUs
gradient_accumulation_steps: 4
with_tracking: true
checkpointing_steps: epoch
"""


def test_open_instruct() -> None:
    found = meant(OPEN_INSTRUCT, "a.yaml")
    assert (found.program, set(found.open)) == ("open-instruct", {"parallel"})
    holds(
        job(OPEN_INSTRUCT, "a.yaml"),
        model="llama-2-7b",
        attention="flash",
        activation_checkpointing="none",  # off by absence
        max_gradient_norm=None,
        precision="mixed-bf16",
    )
    lora = job(OPEN_INSTRUCT + "use_lora: true\nlora_rank: 8\n", "a.yaml")
    assert len(lora["adapter.targets"]) == 7  # they stand in the script
    holds(lora, adapter__rank=8, adapter__alpha=16, adapter__dropout=0.1)


def test_open_instruct_computes_the_reference_before_training() -> None:
    found = job(OPEN_INSTRUCT + "loss_type: dpo_norm\nbeta: 5\n", "a.yaml")
    holds(found, loss="dpo", dpo_reference="precomputed", padding="right")
    found = job(OPEN_INSTRUCT + "num_epochs: 3\n", "a.yaml")  # of DPO's arguments; those of SFT are num_train_epochs
    holds(found, loss="dpo", dpo_reference="precomputed", padding="right")


def test_open_instruct_has_bitsandbytes_only_with_quantized_weights_or_paging() -> None:
    holds(job(OPEN_INSTRUCT + "use_8bit_optimizer: true\n", "a.yaml"), optimizer="adamw")
    quantized = job(OPEN_INSTRUCT + "use_8bit_optimizer: true\nuse_lora: true\nuse_qlora: true\n", "a.yaml")
    holds(quantized, optimizer="adamw-8bit-paged", precision="amp-bf16", weight_dtype="bf16")  # without DeepSpeed


@pytest.mark.parametrize("text", ["a: 1\nb: 2\n", "x = 1\ny = 2\n", "[table]\nkey = 1\n"])
def test_a_file_of_no_program_is_an_error_that_names_them(text: str) -> None:
    with pytest.raises(InputError, match=r"axolotl, .*torchtune"):
        meant(text, "-")


def test_a_program_that_is_not_known_is_an_error() -> None:
    with pytest.raises(InputError, match="axolotl"):
        meant(OPEN_INSTRUCT, "a.yaml", program="axolotll")


NEMO = """\
name: own
trainer:
  devices: 8
  num_nodes: 2
  precision: bf16
  gradient_clip_val: 1.0
exp_manager:
  exp_dir: null
model:
  micro_batch_size: 2
  global_batch_size: 32
  tensor_model_parallel_size: {tensor}
  pipeline_model_parallel_size: 2
  encoder_seq_length: 1024
  max_position_embeddings: ${{.encoder_seq_length}}
  num_layers: 12
  hidden_size: 768
  ffn_hidden_size: 3072
  num_attention_heads: 12
  hidden_dropout: 0.1
  activation: gelu
  normalization: layernorm
  tokenizer:
    library: megatron
    type: GPT2BPETokenizer
  megatron_amp_O2: {master}
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 2
  optim:
    name: distributed_fused_adam
"""


def test_nemo() -> None:
    text = NEMO.format(tensor=2, master="True")
    found = meant(text, "a.yaml")
    assert (found.program, found.job["model"]["max_positions"]) == ("nemo", 1024)
    holds(
        job(text, "a.yaml"),
        runtime="megatron",
        precision="mixed-bf16",
        parallel__data=4,
        parallel__tensor=2,
        parallel__pipeline=2,
        parallel__sequence_parallel=True,
        parallel__sharding="distributed-optimizer",
        gradient_accumulation_steps=4,
        activation_checkpointing="every:2",
        max_gradient_norm=1.0,
    )


def test_nemo_has_a_master_copy_only_with_o2() -> None:
    holds(job(NEMO.format(tensor=1, master="False"), "a.yaml"), precision="amp-bf16", parallel__sequence_parallel=None)


def test_nemo_says_when_the_file_starts_too_few_gpus() -> None:
    found = meant(NEMO.format(tensor=16, master="True"), "a.yaml")
    assert "parallel.data" in found.open
    assert any("32 GPUs are needed" in note for note in found.notes)


def test_nemo_adapters_are_on_fused_layers() -> None:
    peft = "  peft:\n    peft_scheme: lora\n    lora_tuning:\n      adapter_dim: 16\n"
    peft += "      target_modules: [attention_qkv, mlp_fc2]\n"
    found = job(NEMO.format(tensor=1, master="True") + peft, "a.yaml")
    holds(found, adapter__rank=16, adapter__alpha=16, adapter__targets=["q_proj", "k_proj", "v_proj", "down_proj"])


@pytest.mark.parametrize(
    ("sizes", "model"),
    [
        ("num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 11008\n  num_attention_heads: 32", "llama-2-7b"),
        (
            "num_layers: 28\n  hidden_size: 3072\n  ffn_hidden_size: 24576\n  num_attention_heads: 16\n"
            "  kv_channels: 256\n  apply_embedding_scaling: true",
            "gemma-7b",
        ),
        (
            "num_layers: 28\n  hidden_size: 4096\n  ffn_hidden_size: 13696\n  num_attention_heads: 32\n"
            "  num_query_groups: 2\n  qkv_bias: true",
            "chatglm2-6b",
        ),
    ],
)
def test_nemo_names_a_model_by_its_sizes(sizes: str, model: str) -> None:
    text = "trainer:\n  num_nodes: 1\n  precision: bf16\nmodel:\n  encoder_seq_length: 4096\n  micro_batch_size: 1\n"
    text += f"  global_batch_size: 1\n  tensor_model_parallel_size: 1\n  {sizes}\n  normalization: rmsnorm\n"
    text += "  max_position_embeddings: 4096\n  activation: fast-swiglu\n  megatron_amp_O2: false\n"
    shared = "gemma" in model
    other = text + f"  share_embeddings_and_output_weights: {str(not shared).lower()}\n"
    text += f"  share_embeddings_and_output_weights: {str(shared).lower()}\n"
    found = job(text, "a.yaml")
    holds(found, model=model, precision="amp-bf16")
    assert job(other, "a.yaml")["model"]["tied_embeddings"] is not shared
    recurrent = meant(text + "  hybrid_override_pattern: M-M*\n", "a.yaml")
    assert "model" in recurrent.open


BEAKER = """
version: v2
tasks:
  - name: own
    arguments: ['
      python -m accelerate.commands.launch && accelerate launch
      --mixed_precision bf16
      --num_machines 2
      --num_processes 16
      open_instruct/finetune.py
      --model_name_or_path /net/own/7B
      --use_qlora
      --lora_rank 8
      --max_seq_length 512
      --per_device_train_batch_size 2
      --gradient_accumulation_steps 3
      --with_tracking
    ']
    resources:
      gpuCount: 8
"""


def test_a_specification_of_beaker_starts_a_command() -> None:
    found = read_texts({"own.yaml": BEAKER}, Wanted())
    holds(
        {value.key: value.value for value in found.values},
        micro_batch_size=2,
        quantization="nf4-double",
        precision="amp-bf16",  # without DeepSpeed
        weight_dtype="bf16",
        parallel__data=16,
        model=None,
    )
    assert "folder of the machine that trains" in found.open["model"]
    rank = next(value for value in found.values if value.key == "adapter.rank")
    assert rank.sources[0].line == 13


def test_reinforcement_learning_is_refused_once() -> None:
    text = "python open_instruct/ppo_fast.py --model_name_or_path Qwen/Qwen2.5-7B --response_length 512 --own 1\n"
    with pytest.raises(InputError) as caught:
        meant(text, "own.sh")
    assert [problem.key for problem in caught.value.problems] == ["program"]


MASON = """\
python mason.py --cluster own/cluster --num_nodes 2 --budget own --gpus 4 -- accelerate launch \\
    --mixed_precision bf16 --num_processes 4 --use_deepspeed --deepspeed_config_file ds.json \\
    open_instruct/{program}.py --model_name_or_path Qwen/Qwen2.5-7B --max_seq_length 512 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 3 --gradient_checkpointing --with_tracking
"""


def test_a_script_that_starts_open_instruct_on_a_cluster_has_all_its_processes() -> None:
    def started(program: str) -> ReadJob:
        return read_texts({"own.sh": MASON.format(program=program)}, Wanted())

    found = started("finetune")
    holds(
        {one.key: one.value for one in found.values},
        model="qwen2.5-7b",
        micro_batch_size=2,
        gradient_accumulation_steps=3,
        parallel__data=8,
    )
    assert "loss" not in found.job
    assert started("dpo_tune_cache").job["loss"] == "dpo"
    before = MASON.replace("-- accelerate", "-- source own.sh \\&\\& accelerate")  # for the shell that the cluster has
    assert read_texts({"own.sh": before.format(program="finetune")}, Wanted()).job == found.job
    with pytest.raises(InputError, match="ppo_fast samples answers beside training"):
        started("ppo_fast")


def test_what_only_the_caller_of_a_script_knows_is_left_open() -> None:
    _, _, text = MASON.format(program="finetune").replace("--num_processes 4", "--num_processes $1").partition("-- ")
    found = read_texts({"own.sh": text.replace("Qwen/Qwen2.5-7B", '"$MODEL"')}, Wanted())
    assert "num_processes" in found.open["parallel.data"]
    assert found.open["model"].startswith("$MODEL is known to the caller alone")


def test_what_stands_behind_two_dashes_is_a_command_only_if_it_starts_one() -> None:
    script = MASON.format(program="finetune")
    assert words_behind(script)[0] == "--model_name_or_path"
    assert words_behind("torchrun train.py --lr 1 -- data.py --seed 2")[:2] == ["--lr", "1"]


def words_behind(script: str) -> list[str]:
    return [one.text for one in shell.read(script).arguments]


def test_yaml_is_read_as_pyyaml_reads_it() -> None:
    """Merge keys, and of a key that stands twice the last."""
    text = """\
common: &common
  learning_rate: 1e-5
own: &own
  <<: *common
  seed: 1
model_name_or_path: Qwen/Qwen2.5-7B
max_seq_length: 512
gradient_checkpointing: true
with_tracking: true
checkpointing_steps: epoch
gradient_checkpointing: false
"""
    found = meant(text, "own.yaml", ignore_unknown=True)
    assert found.job["activation_checkpointing"] == "none"
    assert "gradient_checkpointing is written twice: line 11 replaces line 8" in found.notes
    with pytest.raises(InputError, match="a merge key takes a mapping"):
        meant(text + "last:\n  <<: 3\n", "own.yaml", ignore_unknown=True)


def test_a_torchtitan_file_of_the_backend_of_transformers_names_its_model() -> None:
    text = titan("selective", "2", more='[hf_transformers]\nmodel = "Qwen/Qwen3-4B-Instruct-2507"\n')
    holds(job(text, "a.toml"), model="qwen3-4b", activation_checkpointing="selective-layer:2")
    assert "model" in meant(text.replace('"8B"', '"debugmodel"'), "a.toml").open
    moe = titan().replace('"llama3"', '"deepseek_v3"').replace('"8B"', '"debugmodel"')
    assert job(moe, "a.toml")["model"]["experts"] == {
        "count": 8,
        "active": 3,
        "shared": 2,
        "intermediate_size": 256,
        "dense_layers": [0],
    }


def test_llm_foundry_trains_dbrx(tmp_path: Path) -> None:
    path = tmp_path / "dbrx.yaml"
    path.write_text(
        "max_seq_len: 512\nmodel: {name: hf_causal_lm, pretrained_model_name_or_path: databricks/dbrx-instruct,\n"
        "  peft_config: {peft_type: LORA, r: 8, target_modules: [Wqkv]}}\noptimizer: {name: decoupled_lionw}\n"
        "global_train_batch_size: 16\ndevice_train_microbatch_size: 1\nmax_duration: 1ep\n"
        "fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE, activation_checkpointing: true}\n"
    )
    ran = run("fit", str(path), "--gpu", "h100", "--gpus", "16", "--allocator", "estimate", "--format", "json")
    answer = json.loads(ran.out)
    assert not any("not modelled" in warning for warning in answer["warnings"]), ran.err
    assert answer["parameters"]["total"] - answer["parameters"]["trainable"] == 131_596_523_520


def test_nemos_launcher_composes_and_computes() -> None:
    text = """
        trainer: {num_nodes: 1, devices: 8, precision: bf16, gradient_clip_val: 1.0, max_steps: 10}
        model:
          mcore_gpt: true
          micro_batch_size: 1
          global_batch_size: 8
          tensor_model_parallel_size: 8
          encoder_seq_length: ${training.model.data.train_ds.max_seq_length}
          max_position_embeddings: ${.encoder_seq_length}
          num_layers: ${int_div:89,2}
          hidden_size: 6144
          ffn_hidden_size: ${multiply:4, ${training.model.hidden_size}}
          num_attention_heads: ${subtract:50,2}
          megatron_amp_O2: true
          optim: {name: distributed_fused_adam}
          tokenizer: {type: GPT2BPETokenizer}
          data: {train_ds: {max_seq_length: 2048}}
    """
    found = job(text, "20b.yaml")
    assert found["sequence_length"] == 2048
    sizes = {key: found["model"][key] for key in ("intermediate_size", "layers", "attention_heads")}
    assert sizes == {"intermediate_size": 4 * 6144, "layers": 44, "attention_heads": 48}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("inference: {greedy: true}", "trains nothing"),
        (
            "tensor_model_parallel_size: 1\nmicro_batch_size: 1\nglobal_batch_size: 2\ngpt_model_file: g",
            "trains nothing",
        ),
        ("model: {tensor_model_parallel_size: 1, unet_config: {in_channels: 4}}", "images alone"),
        ("model: {tensor_model_parallel_size: 1, retro: {retro_encoder_num_layers: 2}}", "another kind of model"),
    ],
)
def test_files_of_nemo_that_train_no_text_are_refused(more: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        meant(f"trainer: {{num_nodes: 1, devices: 1}}\nexp_manager: {{exp_dir: out}}\n{more}\n", "conf.yaml")


def test_a_switch_of_somebodys_own_that_is_off_changes_nothing() -> None:
    text = "block_size = 64\nn_layer = 2\nn_embd = 64\nn_head = 2\nbatch_size = 4\n"
    found = meant(text + "use_fsdp = False\n", "train_own.py")
    assert "use_fsdp" in {one.key for one in found.without_effect}
    with pytest.raises(InputError, match="use_fsdp: is not understood"):
        meant(text + "use_fsdp = True\n", "train_own.py")


def test_a_setting_without_a_value_changes_nothing() -> None:
    text = "model_name_or_path: gpt2\nmax_length: 128\nper_device_train_batch_size: 1\npacking: false\n"
    found = meant(text + "rotate_head:\npeft_enabled: false\n", "sft.yaml")
    assert "rotate_head" in {one.key for one in found.without_effect}
    assert "adapter" not in found.job
    with pytest.raises(InputError, match="rotate_head: is not understood"):
        meant(text + "rotate_head: 2\n", "sft.yaml")


def test_an_mpt_with_experts_leaves_the_model_open() -> None:
    sizes = "  ffn_config: {{ffn_type: {}, ffn_hidden_size: 1000}}\n  attn_config: {{kv_n_heads: 2}}\n"
    text = "max_seq_len: 128\nglobal_train_batch_size: 8\ndevice_train_microbatch_size: 2\noptimizer: {name: adamw}\n"
    text += "model:\n  name: mpt_causal_lm\n  d_model: 256\n  n_heads: 4\n  n_layers: 2\n"
    experts = meant(text + sizes.format("mb_dmoe"), "train.yaml")
    assert "model" not in experts.job
    assert "mb_dmoe: an MPT whose blocks have experts" in experts.open["model"]
    plain = meant(text + sizes.format("mptmlp"), "train.yaml")
    assert plain.job["model"]["intermediate_size"] == 1000
    assert "2 of keys and values" in plain.unmodelled["model.attn_config.kv_n_heads"]
    gated = meant(text + sizes.format("mptglu"), "train.yaml")
    assert "mptglu in an MPT" in gated.unmodelled["model.ffn_config.ffn_type"]


@pytest.mark.parametrize("file", ["run.sh", "train.py", "own.toml", "own.yaml", "ds.json"])
def test_an_empty_file_is_told_as_such(file: str) -> None:
    with pytest.raises(InputError, match="is empty"):
        meant("\n", file)


def test_a_variable_of_the_environment_in_a_file_is_asked_for_by_its_name() -> None:
    text = "model_name_or_path: gpt2\nmax_length: ${LEN}\nper_device_train_batch_size: 1\nbf16: true\n"
    assert "max_length is ${LEN}" in meant(text, "trl.yaml").open["sequence_length"]


def test_references_of_references_end() -> None:
    lines = [f'k{at}: "{f"${{k{at + 1}}}" * 60}"' for at in range(9)]
    text = "\n".join([*lines, "k9: xxxx", "max_seq_len: 64", "model: {name: mpt_causal_lm, d_model: 64}"])
    with pytest.raises(InputError, match="k0: is not understood"):
        meant(f"{text}\nglobal_train_batch_size: 8\ntrain_loader: {{name: text}}\n", "mpt.yaml")


def test_what_a_message_quotes_is_short() -> None:
    with pytest.raises(InputError) as caught:
        meant(f"model_name_or_path: gpt2\nmax_length: {'x1' * 5000}\nbf16: true\n", "trl.yaml")
    assert len(str(caught.value)) < 500


def test_an_optimizer_of_a_program_made_from_nanogpt_is_asked_for() -> None:
    text = "n_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 1024\nalgorithm = {!r}\n"
    found = meant(text.format("adam_mini"), "train_own.py")
    assert "optimizer" not in found.job
    assert "--optimizer adam-mini" in found.open["optimizer"]
    assert meant(text.format("adamw"), "train_own.py").job["optimizer"] == "adamw"


def test_a_task_of_beaker_has_as_many_gpus_as_deepspeed_starts(tmp_path: Path) -> None:
    launch = "deepspeed open_instruct/finetune_trainer.py --model_name_or_path gpt2 --max_seq_length 64 --bf16"
    text = f"version: v2\ntasks:\n  - name: own\n    arguments: ['{launch}']\n    resources:\n      gpuCount: 4\n"
    path = tmp_path / "own.yaml"
    path.write_text(text, "utf-8")
    assert read_files([str(path)], Wanted()).job["parallel"]["data"] == 4
    path.write_text(text.replace("deepspeed open", "deepspeed --num_gpus 2 open"), "utf-8")
    assert read_files([str(path)], Wanted()).job["parallel"]["data"] == 2
