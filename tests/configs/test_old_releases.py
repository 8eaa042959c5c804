"""Keys, scripts and names of releases that are gone, and files that look like a run and are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

AXOLOTL = "base_model: meta-llama/Llama-3.2-1B\nmicro_batch_size: 2\nsequence_len: 512\ndatasets: []\n"


def test_what_axolotl_has_no_more_and_never_had_changes_nothing() -> None:
    old = "eval_table_max_new_tokens: 128\ncollator_pad_to_longest: true\nrelora_steps: 100\n"  # of 0.1.0 to 0.4.0
    never = "push_to_hub: true\ndata_seed: 3\nbnb_4bit_quant_type: nf4\n"  # of the Trainer and of bitsandbytes
    found = meant(AXOLOTL + old + never, "a.yml")
    assert found.job == meant(AXOLOTL, "a.yml").job
    assert {"eval_table_max_new_tokens", "push_to_hub"} <= {source.key for source in found.without_effect}
    told = meant(AXOLOTL + "unsloth_lora_mlp: true\nrope_scaling:\n  type: linear\n", "a.yml").unmodelled
    assert set(told) == {"unsloth_lora_mlp", "rope_scaling.type"}
    with pytest.raises(InputError, match="gradient_checkpointin: is not understood"):
        meant(AXOLOTL + "gradient_checkpointin: true\n", "a.yml")


def test_axolotl_keeps_a_reference_beside_an_adapter_where_it_is_asked_to() -> None:
    dpo = AXOLOTL + "rl: dpo\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"
    assert job(dpo, "a.yml")["dpo_reference"] == "adapter-off"
    assert job(dpo + "rl_adapter_ref_model: true\n", "a.yml")["dpo_reference"] == "model"


def test_axolotls_arguments_of_the_optimizer_may_be_a_mapping() -> None:
    text = AXOLOTL + "optimizer: galore_adamw\noptim_target_modules: [mlp]\noptim_args:\n  rank: 64\n  scale: 2\n"
    assert job(text, "a.yml")["optimizer"] == "galore-adamw:64"


def test_random_weights_had_another_name_in_axolotl() -> None:
    assert job(AXOLOTL + "random_init_weights: true\n", "a.yml")["from_scratch"] is True


NANOGPT = """
    # $ torchrun --standalone --nproc_per_node=8 train.py config/own.py
    batch_size = 12
    block_size = 1024
    gradient_accumulation_steps = {steps}
    max_iters = 10
"""


@pytest.mark.parametrize(("steps", "each"), [("5 * 8", 5), ("5", 5), ("16", 2)])
def test_the_first_nanogpt_accumulated_on_each_gpu(steps: str, each: int) -> None:
    holds(job(NANOGPT.format(steps=steps), "own.py"), gradient_accumulation_steps=each, parallel__data=8)


def test_the_first_nanogpt_by_its_version() -> None:
    alone = NANOGPT.replace("# $", "#").replace("--nproc_per_node=8", "")
    found = job(alone.format(steps=5), "own.py", version="2023-03")
    holds(found, gradient_accumulation_steps=40, parallel__data=None)  # one process stands for eight
    assert job(NANOGPT.format(steps=16), "own.py", version="2023-03")["gradient_accumulation_steps"] == 16
    with pytest.raises(InputError, match="5 is no multiple of 8 GPUs"):
        meant(NANOGPT.format(steps=5), "own.py", devices=8)


SCRIPT = (
    "accelerate launch --num_processes 4 {program} --model_name_or_path Qwen/Qwen2.5-7B --max_seq_length 512 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 3 {more}\n"
)


@pytest.mark.parametrize(
    ("program", "more", "expected"),
    [
        ("dpo_tune.py", "--with_tracking", {"loss": "dpo", "dpo_reference": "model"}),
        ("dpo_tune.py", "--use_lora --with_tracking", {"loss": "dpo", "dpo_reference": "adapter-off"}),
        ("dpo_tune_cache.py", "--use_lora --with_tracking", {"loss": "dpo", "dpo_reference": "precomputed"}),
        ("dpo.py", "", {"precision": "fsdp-bf16", "parallel.sharding": "fsdp", "parallel.reduce_dtype": "fp32"}),
    ],
)
def test_scripts_of_open_instruct_for_preferences(program: str, more: str, expected: dict[str, Any]) -> None:
    text = SCRIPT.format(program=f"open_instruct/{program}", more=more)
    found = {one.key: one.value for one in read_texts({"own.sh": text}, Wanted()).values}
    assert {key: found.get(key) for key in expected} == expected


def test_open_instructs_old_script_with_the_plain_trainer() -> None:
    found = meant(
        SCRIPT.format(program="open_instruct/finetune_trainer.py", more="--bf16 --use_flash_attn True"), "a.sh"
    )
    assert found.program == "training-arguments"
    assert (found.job["attention"], found.job["sequence_length"]) == ("flash", 512)


TITAN = '[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nseq_len = 4096\nlocal_batch_size = 1\n'


@pytest.mark.parametrize(
    ("name", "flavor", "model"),
    [("llama3", "3B", "llama-3.2-3b"), ("llama3", "1B", "llama-3.2-1b"), ("llama2", "7B", "llama-2-7b")],
)
def test_flavors_of_torchtitan(name: str, flavor: str, model: str) -> None:
    text = TITAN.format(name=name, flavor=flavor) + "[parallelism]\ntensor_parallel_degree = 2\n"
    holds(job(text, "a.toml"), model=model, parallel__sequence_parallel=True)  # one class, and one plan of sharding


@pytest.mark.parametrize("key", ["fsdp_backward_prefetch", "fsdp_backward_prefetch_policy"])
def test_accelerates_prefetching_by_both_names(key: str) -> None:
    text = f"distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n  {key}: BACKWARD_POST\n"
    found = meant(text + "ipex_config:\n  ipex: false\n", "a.yaml")
    assert "gathers later" in found.unmodelled[f"fsdp_config.{key}"]


def test_the_trainer_says_last_how_llama_factory_recomputes() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: full\ndataset: own\ntemplate: qwen\n"
    assert job(text, "a.yaml")["checkpoint_reentrant"] is True
    how = "gradient_checkpointing_kwargs:\n  use_reentrant: false\n"
    assert job(text + how, "a.yaml")["checkpoint_reentrant"] is True  # the Trainer does not turn them on
    holds(job(text + "gradient_checkpointing: true\n" + how, "a.yaml"), checkpoint_reentrant=None)


def test_preparing_texts_for_a_retriever_is_no_training() -> None:
    text = "python tools/retro/main.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
    with pytest.raises(InputError, match="prepares texts for a retriever"):
        meant(text + "--micro-batch-size 1 --retro-tasks db-build\n", "own.sh")


def test_layers_between_an_encoder_and_a_frozen_model_are_refused() -> None:
    text = """
        trainer: {devices: 8, num_nodes: 1, max_steps: 10, precision: bf16}
        model:
          micro_batch_size: 1
          global_batch_size: 8
          tensor_model_parallel_size: 1
          encoder_seq_length: 512
          megatron_amp_O2: true
          mm_cfg: {llm: {freeze: FREEZE}}
          optim: {name: adam}
    """
    with pytest.raises(InputError, match="stands between an encoder of images and a frozen language model"):
        meant(text.replace("FREEZE", "true"), "a.yaml")
    assert meant(text.replace("FREEZE", "false"), "a.yaml").job["sequence_length"] == 512


def test_a_key_that_others_refer_to_is_a_variable_of_the_files_author() -> None:
    text = """
        own_length: 512
        model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
        tokenizer:
          _component_: torchtune.models.llama3.llama3_tokenizer
          path: /net/own/tokenizer
          max_seq_len: ${own_length}
        optimizer: {_component_: torch.optim.AdamW, lr: 1e-5}
        loss: {_component_: torchtune.modules.loss.DPOLoss}
        batch_size: 2
        dtype: bf16
    """
    found = meant(text, "a.yaml")
    assert "own_length" in {source.key for source in found.without_effect}
    assert (found.job["loss"], found.job["sequence_length"]) == ("dpo", 512)  # where 0.2 had it
    with pytest.raises(InputError, match="own_length: is not understood"):
        meant(text.replace("${own_length}", "512"), "a.yaml")


def test_a_script_that_sources_what_is_not_here_is_read_where_its_command_needs_nothing_of_it() -> None:
    text = "source /opt/own/setup.sh\n" + SCRIPT.format(program="sft.py", more="--bf16 True")
    found = meant(text, "own.sh")
    assert found.job["micro_batch_size"] == 2
    assert any("it sources setup.sh, which is not here" in note for note in found.notes)
    asked = meant(text.replace("--gradient_accumulation_steps 3", "--gradient_accumulation_steps $STEPS"), "own.sh")
    assert "$STEPS" in asked.open["gradient_accumulation_steps"]
    with pytest.raises(InputError, match=r"it sources setup\.sh"):
        meant("source /opt/own/setup.sh\n$COMMAND --bf16 True\n", "own.sh")


@pytest.mark.parametrize(
    "folder", ['$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)', '$(dirname "$0")', "$(cd $(dirname $0); pwd)"]
)
def test_a_script_may_ask_in_which_folder_it_is(folder: str, tmp_path: Path) -> None:
    how, script = tmp_path / "how.yaml", tmp_path / "own.sh"
    how.write_text("distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 2\n")
    start = "accelerate launch --config_file $HERE/how.yaml sft.py --model_name_or_path gpt2"
    script.write_text(f"HERE={folder}\n{start} --per_device_train_batch_size 2\n")
    alone = read_files([str(script)], Wanted())
    assert alone.job["parallel"]["data"] == 2
    assert read_files([str(script), str(how)], Wanted()).job == alone.job  # also where it is named beside the script


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("bofenghuang/vigogne-2-7b-instruct", "llama-2-7b"),
        ("yentinglin/Taiwan-LLM-7B-v2.0-chat", "llama-2-7b"),
        ("Neko-Institute-of-Science/LLaMA-7B-4bit-128g", "llama-7b"),
        ("scb10x/llama-3-typhoon-v1.5x-8b-instruct", "llama-3-8b"),
    ],
)
def test_fine_tunes_whose_names_do_not_say_their_base(name: str, model: str) -> None:
    assert job(AXOLOTL.replace("meta-llama/Llama-3.2-1B", name), "a.yml")["model"] == model


def test_intervals_are_nanogpts_only_beside_its_sizes() -> None:
    text = "python pretrain_bert.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
    more = "--micro-batch-size 1 --lr-decay-iters 10 --eval-interval 5 --eval-iters 2 --max-position-embeddings 512\n"
    assert meant(text + more, "own.sh").program == "megatron-lm"


def test_keys_that_deepspeed_never_had_change_nothing() -> None:
    text = '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, '
    plain, more = job(text + '"seed": 1}', "a.json"), text + '"zero3_init_flag": true, "fp16": {"opt_level": "O2"}}'
    assert job(more, "a.json") == plain


def test_a_nanogpt_file_that_evaluates_names_what_would_train() -> None:
    text = "init_from = 'gpt2'\nbatch_size = 8\neval_iters = 500\neval_only = {}\nwandb_log = False\n"
    with pytest.raises(InputError, match="eval_only = False"):
        meant(text.format(True), "own.py")
    assert meant(text.format(False), "own.py").job["model"] == "gpt2"


def test_llama_factorys_stage_of_orpo() -> None:
    text = "python src/train_bash.py --stage {} --do_train --model_name_or_path meta-llama/Llama-3.2-1B --dataset pairs"
    holds(job(text.format("orpo") + " --finetuning_type lora\n", "orpo.sh"), loss="orpo", padding="right")
    holds(job(text.format("sft") + " --finetuning_type lora\n", "sft.sh"), loss=None, padding=None)


def test_llama_factorys_old_names_of_what_is_trained() -> None:
    text = (
        "python src/train_bash.py --stage sft --do_train --model_name_or_path meta-llama/Llama-2-7b-hf --dataset own "
    )
    text += "--finetuning_type freeze "
    old = job(text + "--name_module_trainable all --num_layer_trainable 8\n", "pro.sh")
    new = job(text + "--freeze_trainable_modules all --freeze_trainable_layers 8\n", "pro.sh")
    assert old == new
    assert "layers.0-23" in old["frozen"]


def test_adapters_in_fp32_over_fp16_weights_are_answered(tmp_path: Path) -> None:
    """The Trainer scales the loss, and the gradients of the adapters are in fp32, as LLaMA-Factory upcasts them."""
    text = "python src/train_bash.py --stage sft --do_train --model_name_or_path meta-llama/Llama-3.2-1B --dataset own "
    text += "--cutoff_len 256 --fp16 --finetuning_type "
    holds(job(text + "lora\n", "a.sh"), precision="amp-fp16", weight_dtype="fp16", grad_scaler=True)
    holds(job(text + "full\n", "a.sh"), precision="amp-fp16", weight_dtype="fp32", grad_scaler=True)
    path = tmp_path / "a.sh"
    path.write_text(text + "lora\n", "utf-8")
    assert run("fit", path, "--gpu", "h100").code == 0


def test_the_first_megatrons_arguments() -> None:
    text = "python pretrain_gpt2.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    text += "--max-position-embeddings 1024 --batch-size 8 --fp16 --checkpoint-activations "
    found = meant(text + "--resume-dataloader --lazy-loader --cache-dir cache --fp32-allreduce --deep-init\n", "own.sh")
    assert found.job == meant(text + "\n", "own.sh").job
    assert "gradients are reduced" in found.unmodelled["fp32_allreduce"]
    with pytest.raises(InputError, match="lazy_laoder: is not understood"):
        meant(text + "--lazy-laoder\n", "own.sh")


NEMO = """
    trainer: {gpus: 2, num_nodes: 1, accelerator: ddp, checkpoint_callback: False, precision: 16}
    model:
      micro_batch_size: 4
      global_batch_size: 16
      encoder_seq_length: 512
      max_position_embeddings: 512
      num_layers: 12
      hidden_size: 768
      num_attention_heads: 12
      MORE
      tokenizer: {library: megatron, type: GPT2BPETokenizer}
      optim: {name: fused_adam}
"""


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("activations_checkpoint_method: null", "none"),
        ("activations_checkpoint_method: uniform", "full"),
        ("activations_checkpoint_method: uniform\n      activations_checkpoint_granularity: null", "none"),
        ("activations_checkpoint_granularity: selective", "selective"),
    ],
)
def test_nemos_files_of_lightning_1(more: str, word: str) -> None:
    """The method of checkpoints alone said that whole blocks are recomputed."""
    found = job(NEMO.replace("MORE", more), "gpt.yaml")
    holds(found, parallel__data=2, gradient_accumulation_steps=2, activation_checkpointing=word)


OLD_TITAN = """
    [model]
    name = "llama2"
    flavor = "13B"
    [training]
    batch_size = 8
    seq_len = 4096
    DEGREES
"""


@pytest.mark.parametrize(
    ("degrees", "micro", "steps"),
    [
        ("[experimental]\npipeline_parallel_degree = 4", 2, 4),
        ("[experimental]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'", 2, 4),
        ("[experimental]\npipeline_parallel_degree = 2\npipeline_parallel_microbatches = 8", 1, 8),
        ("[parallelism]\npipeline_parallel_degree = 4", 1, 8),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatches = 4", 2, 4),
        ("gradient_accumulation_steps = 3", 8, 3),  # of flame
    ],
)
def test_titans_batches_were_split_into_a_number_of_parts(degrees: str, micro: int, steps: int) -> None:
    lines = degrees.replace("\n", "\n    ")
    found = job(OLD_TITAN.replace("DEGREES", lines), "own.toml")
    assert (found["micro_batch_size"], found["gradient_accumulation_steps"]) == (micro, steps)


def test_a_script_below_a_folder_that_only_the_caller_knows_is_the_one_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from transformers import Trainer, TrainingArguments, HfArgumentParser\n"
        "from dataclasses import dataclass\n@dataclass\nclass Words:\n    shade: str = 'red'\n"
        "HfArgumentParser((Words, TrainingArguments)).parse_args_into_dataclasses()\n"
    )
    script = tmp_path / "run.sh"
    command = "torchrun --nproc_per_node 2 $BASE/own.py --model_name_or_path gpt2 --per_device_train_batch_size 2"
    script.write_text(f"{command} --block_size 64 --shade blue --bf16 True\n")
    found = read_files([str(script)], Wanted())
    assert "script's own" in found.unmodelled["shade"]


def test_names_of_the_first_files_of_torchtune_torchtitan_and_litgpt() -> None:
    titan = "[training]\nbatch_size = 2\nseq_len = 64\nsequence_parallel_degree = 2\ncheckpoint_interval = 5\n"
    assert job("[model]\nname = 'llama2'\nflavor = '7B'\n" + titan, "a.toml")["parallel.tensor"] == 2
    tune = """
        # tune run --nproc_per_node 2 full_finetune_distributed --config 7B_full
        model: {_component_: torchtune.models.llama2.llama2_7b}
        tokenizer: {_component_: torchtune.models.llama2.llama2_tokenizer, path: own, max_seq_len: 64}
        optimizer: {_component_: torch.optim.AdamW, lr: 1e-5}
        batch_size: 2
        dtype: bf16
        enable_fsdp: True
        cpu_offload: True
    """
    assert job(tune, "a.yaml")["offload"] == ["parameters", "gradients", "optimizer"]
    lit = """
        model: {name: own, n_layer: 2, n_embd: 64, n_head: 4, vocab_size: 512, block_size: 64}
        io: {out_dir: own}
        train: {global_batch_size: 8, micro_batch_size: 2, max_seq_length: 64}
        devices: 1
        tokenizer_dir: own
    """
    found = job(lit, "a.yaml")
    assert (found["model"]["layers"], found["gradient_accumulation_steps"]) == (2, 4)


def test_the_first_script_of_llama_factory_cuts_texts_to_1024_tokens() -> None:
    words = "--stage sft --do_train --model_name_or_path gpt2 --finetuning_type full --bf16 --template default\n"
    old = meant(f"deepspeed --num_gpus 2 src/train_bash.py {words}", "run.sh")
    assert (old.release, old.job["sequence_length"]) == ("0.7.1", 1024)
    assert meant(f"torchrun src/train.py {words}", "run.sh").job["sequence_length"] == 2048
    later = meant(f"python src/train_bash.py {words}", "run.sh", version="0.9.3")
    assert later.job["sequence_length"] == 2048


OWN_PROGRAM = """\
import os
batch_size = 16
bias = False
n_layer = 6
dropout = 0.1
gradient_accumulation_steps = 2
{own}
config_keys = [k for k in globals()]
exec(open('configurator.py').read())
batch_size = 999
{loop}
"""


@pytest.mark.parametrize(
    ("loop", "gpus", "steps"),
    [
        ("gradient_accumulation_steps //= ddp_world_size", 2, 1),
        ("gradient_accumulation_steps //= ddp_world_size", None, 2),
        ("pass", 2, 2),  # each GPU takes the steps
        ("pass", None, 2),
        ("if not ddp:\n    gradient_accumulation_steps *= 8", None, 16),
    ],
)
def test_defaults_of_a_program_made_from_nanogpt(tmp_path: Path, loop: str, gpus: int | None, steps: int) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "train.py").write_text(OWN_PROGRAM.format(own="block_size = 256", loop=loop))
    file = tmp_path / "config" / "own.py"
    file.write_text("n_embd = 384\nn_head = 6\nblock_size = 512\nwandb_log = True\nmax_iters = 10\n")
    found = read_files([str(file)], Wanted(devices=gpus)).job
    sizes = {"layers": 6, "hidden_size": 384, "attention_heads": 6, "max_positions": 512}
    assert sizes.items() <= found["model"].items()
    expected = {"micro_batch_size": 16, "dropout": 0.1, "sequence_length": 512, "gradient_accumulation_steps": steps}
    assert expected.items() <= found.items()


def test_a_program_that_chooses_its_model_by_a_name_leaves_it_open(tmp_path: Path) -> None:
    own = "model_name = 'longhorn'"
    (tmp_path / "train.py").write_text(OWN_PROGRAM.format(own=own, loop="if model_name == 'longhorn':\n    pass"))
    file = tmp_path / "own.py"
    file.write_text("n_embd = 384\nn_head = 6\nblock_size = 512\nwandb_log = True\nmax_iters = 10\n")
    found = read_files([str(file)], Wanted())
    assert "model" not in found.job
    assert "model_name, which is longhorn" in found.open["model"]
    (tmp_path / "train.py").write_text((tmp_path / "train.py").read_text().replace("longhorn", "gpt2"))
    assert "model" in read_files([str(file)], Wanted()).job


def test_a_train_py_without_the_configurator_is_another_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("batch_size = 16\n")
    file = tmp_path / "own.py"
    file.write_text("n_embd = 384\nn_head = 6\nn_layer = 6\nblock_size = 512\n")
    assert read_files([str(file)], Wanted()).job["micro_batch_size"] == 12


@pytest.mark.parametrize(("script", "length", "loss"), [("pt", 512, None), ("sft", 1024, None), ("rm", 1024, "reward")])
def test_first_scripts_of_llama_factory_are_each_of_a_stage(script: str, length: int, loss: str | None) -> None:
    line = f"torchrun --nproc_per_node 8 src/train_{script}.py --model_name_or_path huggyllama/llama-7b --do_train"
    line += " --finetuning_type lora --dataset wiki --per_device_train_batch_size 4 --bf16\n"
    found = job(line, "run.sh")
    holds(found, sequence_length=length, loss=loss, adapter__alpha=32, adapter__dropout=0.1, parallel__data=8)
    holds(found, adapter__targets=["q_proj", "v_proj"])
    holds(job(line.replace(" --bf16", " --bf16 --cutoff_len 256"), "run.sh"), sequence_length=256)
