"""Settings of somebody's own: by their names, by the script that declares them, and of programs that many run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files
from vramplan.configs.own_names import is_quiet
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

COMMAND = (
    "torchrun --nproc_per_node 2 {} --model_name_or_path gpt2 --per_device_train_batch_size 2 --bf16 --output_dir o"
)


@pytest.mark.parametrize(
    "name", ["train_file_dir", "eval_split_ratio", "dataset_id", "min_lr_ratio", "log_freq", "subset", "messages_field"]
)
def test_names_of_data_logs_and_schedules_count_for_nothing(name: str) -> None:
    assert is_quiet(name)


@pytest.mark.parametrize(
    "name",
    [
        *("eval_batch_size", "train_dtaa_dir", "max_text_len", "data_parallel", "use_moe", "size", "model_dir"),
        *("lora_data", "train_type", "training_mode", "data_type", "max_length_train"),
    ],
)
def test_a_name_with_any_other_word_or_a_slip_is_not_one_of_them(name: str) -> None:
    assert not is_quiet(name)


@pytest.mark.parametrize(("when", "asked"), [("epoch", True), ("no", False)])
def test_a_batch_of_an_evaluation_that_only_the_caller_knows(when: str, asked: bool) -> None:
    text = COMMAND.format("tune.py") + f" --max_length 64 --eval_strategy {when} --per_device_eval_batch_size $2\n"
    found = meant(text, "run.sh")
    assert ("eval_batch_size" in found.open) == asked
    assert found.job["micro_batch_size"] == 2


def test_what_a_scripts_own_settings_say_of_data_is_told_and_the_rest_refused() -> None:
    own = COMMAND.format("own/tune.py") + " --block_size 128 --train_file_dir d"
    found = meant(own + "\n", "run.sh")
    assert "train_file_dir" in [source.key for source in found.without_effect]
    assert any("train_file_dir" in note and "somebody's own" in note for note in found.notes)
    with pytest.raises(InputError, match="vision_tokens"):
        meant(own + " --vision_tokens 4\n", "run.sh")


def test_a_fork_of_nanogpt_may_say_how_its_run_is_called_but_not_make_another_model() -> None:
    text = "n_layer = 4\nn_head = 4\nn_embd = 128\nblock_size = 64\nmax_iters = 10\nname = 'a'\ntrain_data_path = 'b'\n"
    holds(job(text, "train_own.py"), runtime="nanogpt", sequence_length=64)
    calculated = job(text.replace("n_embd = 128", "n_embd = n_head * 48"), "train_own.py")
    assert calculated["model"]["hidden_size"] == 192
    with pytest.raises(InputError, match="n_latent"):
        job(text + "n_latent = 8\n", "train_own.py")


def test_names_of_gpt2_in_a_program_made_from_nanogpt() -> None:
    text = "n_layer = 4\nn_head = 4\nn_embd = 128\nn_ctx = 64\nmax_iters = 10\nvocab_size = 999\n"
    found = meant(text, "train_own.py")
    model = found.job["model"]
    assert (model["vocabulary_size"], model["max_positions"], found.job["sequence_length"]) == (999, 64, 64)
    assert any("vocab_size" in note and "its own train.py" in note for note in found.notes)
    with pytest.raises(InputError, match="n_ctx: is not block_size"):
        meant(text + "block_size = 32\n", "train_own.py")


SCRIPT = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments
from own_arguments import DataArguments

@dataclass
class ModelArguments:
    model_name_or_path: str
    fuse_things: bool = False
    use_lora: bool = field(default=True, metadata={"help": "adapters"})
    lora_rank: int = field(default=4)

@dataclass
class Arguments(TrainingArguments):
    optim: str = field(default="adafactor")
    model_max_length: int = field(default=384)

parser = HfArgumentParser((ModelArguments, DataArguments, Arguments))
"""


def test_a_script_beside_its_command_says_which_arguments_and_defaults_it_has(tmp_path: Path) -> None:
    """Without the script `--fuse_things` may be a slip; with it, it is an argument of which nothing is known here."""
    folder = tmp_path / "scripts"
    (tmp_path / "src").mkdir()
    folder.mkdir()
    run = folder / "run.sh"
    run.write_text(COMMAND.format("src/tune.py") + " --fuse_things True --pieces 3\n", "utf-8")
    with pytest.raises(InputError, match="fuse_things"):
        read_files([str(run)], Wanted())
    (tmp_path / "src" / "tune.py").write_text(SCRIPT, "utf-8")
    with pytest.raises(InputError) as error:
        read_files([str(run)], Wanted())
    assert [problem.key for problem in error.value.problems] == ["pieces"]
    (tmp_path / "src" / "tune.py").write_text(SCRIPT.replace("fuse_things", "lora_layers"), "utf-8")
    run.write_text(run.read_text("utf-8").replace("fuse_things", "lora_layers"), "utf-8")
    with pytest.raises(InputError, match="lora_layers: is not understood"):  # which may say what is trained
        read_files([str(run)], Wanted())
    (tmp_path / "src" / "tune.py").write_text(SCRIPT, "utf-8")
    run.write_text(run.read_text("utf-8").replace("lora_layers", "fuse_things"), "utf-8")
    (tmp_path / "src" / "own_arguments.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass DataArguments:\n    pieces: int = 1\n", "utf-8"
    )
    found = read_files([str(run)], Wanted())
    assert set(found.unmodelled) == {"fuse_things", "pieces"}
    told = {value.key: value.value for value in found.values}
    holds(told, sequence_length=384, optimizer="adafactor", adapter__rank=4, adapter__kind="lora", parallel__data=2)
    assert any("tune.py is beside the command" in note for note in found.notes)


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ("--use_8bit_optimizer", "optimizer"),
        ("--own_quantization true", "quantization"),
        ("--model_precision half", "precision"),
        ("--own_flash_attn True", "attention"),
        ("--tune_vision_tower True", "frozen"),
        ("--spectrum_config_path a.yaml", "frozen"),
        ("--run_dpo True", "loss"),
        ("--text_len 512", "sequence_length"),
    ],
)
def test_an_argument_that_a_script_declares_leaves_open_what_one_option_answers(
    tmp_path: Path, own: str, asked: str
) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + f" {own}\n", "utf-8")
    name = own.split()[0]
    declares = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('{}')\n"
    (tmp_path / "tune.py").write_text(declares.format(name), "utf-8")
    assert name.lstrip("-") in read_files([str(run)], Wanted()).open[asked]
    (tmp_path / "tune.py").write_text(declares.format("--other"), "utf-8")
    with pytest.raises(InputError, match=name.lstrip("-")):
        read_files([str(run)], Wanted())


def test_what_only_the_caller_knows_is_shown_as_a_variable(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --max_length 64 --deepspeed $OWN_FOLDER/ds.json\n", "utf-8")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', "utf-8")
    found = read_files([str(run)], Wanted())
    assert found.points_to["deepspeed"] == "$OWN_FOLDER/ds.json"
    assert found.job["parallel"]["sharding"] == "zero2"


def test_data_for_a_loss_and_a_trainer_that_is_imported_leave_no_loss_open(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --max_length 64 --preprocess_for_kto True --as_dpo True\n", "utf-8")
    declares = "import argparse\nparser = argparse.ArgumentParser()\n" + "".join(
        f"parser.add_argument('--{name}')\n" for name in ("preprocess_for_kto", "as_dpo")
    )
    (tmp_path / "tune.py").write_text(declares, "utf-8")
    assert "as_dpo" in read_files([str(run)], Wanted()).open["loss"]
    (tmp_path / "tune.py").write_text(declares + "from trl import KTOTrainer\n", "utf-8")
    found = read_files([str(run)], Wanted())
    assert found.job["loss"] == "kto"
    assert {"as_dpo", "preprocess_for_kto"} <= set(found.unmodelled)


def test_an_argument_that_says_several_things_or_what_the_file_says_is_not_understood(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    declares = "import argparse\nparser = argparse.ArgumentParser()\n"
    for own in ("lora_precision", "rollout_batch", "prompt_len", "tune_attn"):
        (tmp_path / "tune.py").write_text(declares + f"parser.add_argument('--{own}')\n", "utf-8")
        run.write_text(COMMAND.format("tune.py") + f" --max_length 64 --{own} 4\n", "utf-8")
        with pytest.raises(InputError, match=f"{own}: is not understood"):
            read_files([str(run)], Wanted())


def test_options_may_be_declared_in_a_module_beside_the_script(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --pieces 3 --max_seq_length 64\n", "utf-8")
    script = "import argparse\nfrom options import add_options\nadd_options(argparse.ArgumentParser())\n"
    (tmp_path / "tune.py").write_text(script, "utf-8")
    (tmp_path / "options.py").write_text(
        "def add_options(parser):\n    parser.add_argument('--pieces', type=int, default=1)\n", "utf-8"
    )
    assert set(read_files([str(run)], Wanted()).unmodelled) == {"pieces"}


HANDED_ON = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments

@dataclass
class Settings(TrainingArguments):
    pieces: int = 1
    model_max_length: int = field(default=96)

def settings():
    return HfArgumentParser(Settings).parse_args_into_dataclasses()[0]
"""


@pytest.mark.parametrize("package", ["options", "parts/options"])
def test_a_package_beside_the_script_hands_on_the_arguments_of_its_modules(tmp_path: Path, package: str) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("code/tune.py") + " --pieces 3\n", "utf-8")
    folder = tmp_path / "code" / package
    folder.mkdir(parents=True)
    name = package.replace("/", ".")
    (tmp_path / "code" / "tune.py").write_text(f"from {name} import settings\nsettings()\n", "utf-8")
    (folder / "__init__.py").write_text("from . import settings\n", "utf-8")
    with pytest.raises(InputError, match="pieces"):
        read_files([str(run)], Wanted())
    (folder / "__init__.py").write_text(f"from .declared import settings\nfrom {name} import settings as s\n", "utf-8")
    (folder / "declared.py").write_text(HANDED_ON, "utf-8")
    found = read_files([str(run)], Wanted())
    assert set(found.unmodelled) == {"pieces"}
    assert found.job["sequence_length"] == 96


@pytest.mark.parametrize(
    ("word", "quantization"),
    [("4bit", "nf4"), ("int8", "int8"), ("8-bit", "int8"), ("none", None), ("fp8", "open"), ("gptq", "open")],
)
def test_the_bits_of_a_scripts_own_quantization(word: str, quantization: str | None) -> None:
    found = meant(COMMAND.format("tune.py") + f" --max_length 64 --use_peft --quantization {word}\n", "run.sh")
    assert ("open" if "quantization" in found.open else found.job.get("quantization")) == quantization


def test_a_switch_of_an_adapter_is_no_unknown_one_and_that_of_a_loss_is() -> None:
    run = COMMAND.format("tune.py") + " --max_length 64 --lora true --lora_r 4"
    assert job(run, "run.sh")["adapter.rank"] == 4
    with pytest.raises(InputError, match="dpo"):
        job(run + " --dpo true\n", "run.sh")


def test_a_script_that_is_not_python_or_not_there_declares_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --max_length 64\n", "utf-8")
    before = read_files([str(run)], Wanted()).job
    (tmp_path / "tune.py").write_text("not python at all {", "utf-8")
    assert read_files([str(run)], Wanted()).job == before


def test_what_a_sourced_file_would_say_is_asked_for() -> None:
    text = "source ./settings.sh\n" + COMMAND.format("tune.py") + " --max_length $LENGTH --run_name $NAME\n"
    found = meant(text, "run.sh")
    assert "$LENGTH" in found.open["sequence_length"]
    assert any("settings.sh" in note and "asked for" in note for note in found.notes)


CHAT = (
    "deepspeed --num_gpus 4 {}main.py --data_split 2,4,4 --model_name_or_path facebook/opt-1.3b --deepspeed "
    "--zero_stage "
)


def test_deepspeed_chat_makes_its_configuration_of_its_arguments() -> None:
    """get_train_ds_config: 3e7 parameters gathered and prefetched, clipped at 1, fp16 unless bf16 is asked for."""
    found = job(CHAT.format("training/step1_supervised_finetuning/") + "3 --offload --gradient_checkpointing\n", "a.sh")
    holds(
        found,
        runtime="deepspeed",
        precision="mixed-fp16",
        micro_batch_size=16,
        sequence_length=512,
        parallel__sharding="zero3",
        parallel__stage3_max_live_parameters=30_000_000,
        parallel__data=4,
        max_gradient_norm=1.0,
        offload=["optimizer", "gradients", "parameters"],
        activation_checkpointing="full",
        adapter__kind=None,
        loss=None,
    )
    more = "0 --dtype bf16 --max_seq_len 256 --lora_dim 8 --only_optimize_lora --print_loss --dropout 0.0\n"
    lora = meant(CHAT.format("") + more, "a.sh")
    told = {value.key: value.value for value in lora.values}
    holds(told, precision="mixed-bf16", parallel__sharding="ddp", sequence_length=256, adapter__rank=8, dropout=0.0)
    assert "lora_dim" not in lora.unmodelled
    assert "lora_dim" in meant(CHAT.format("") + more.replace("--only_optimize_lora ", ""), "a.sh").unmodelled
    none = meant(CHAT.format("") + more.replace("--lora_dim 8 --only_optimize_lora", "--lora_dim 0"), "a.sh")
    assert "adapter" not in none.job
    assert not any("lora" in note for note in none.notes)


@pytest.mark.parametrize(
    ("more", "loss"), [("--num_padding_at_beginning 1", "reward"), ("--beta 0.1", "dpo"), ("--print_loss", None)]
)
def test_deepspeed_chat_trains_what_its_arguments_are_of(more: str, loss: str | None) -> None:
    found = meant(CHAT.format("") + f"2 {more}\n", "a.sh")
    told = {value.key: value.value for value in found.values}
    holds(told, loss=loss, runtime="transformers" if loss else "deepspeed")
    assert "loss" not in found.open
    assert "--loss standard" in meant(CHAT.format("") + "2\n", "a.sh").open["loss"]


def test_deepspeed_chats_third_step_is_refused() -> None:
    with pytest.raises(InputError, match="step 3"):
        meant(CHAT.format("") + "2 --actor_zero_stage 2 --actor_model_name_or_path a\n", "a.sh")


LLAVA = (
    "deepspeed llava/train/train_mem.py --version v1 --vision_tower openai/clip-vit-large-patch14-336 --bf16 True "
    "--mm_projector_type mlp2x_gelu --model_max_length 2048 --per_device_train_batch_size 4 "
    "--gradient_checkpointing True "
)


def test_llavas_scripts_are_counted_as_transformers_computes_the_model() -> None:
    whole = job(LLAVA + "--model_name_or_path lmsys/vicuna-7b-v1.5\n", "run.sh")
    holds(whole, model="llava-1.5-7b", frozen=["vision_encoder"], attention="flash", sequence_length=2048)
    first = job(LLAVA + "--model_name_or_path lmsys/vicuna-13b-v1.5 --tune_mm_mlp_adapter True\n", "run.sh")
    holds(first, model="llava-1.5-13b", frozen=["vision_encoder", "language_model", "lm_head"])
    lora = meant(LLAVA + "--model_name_or_path liuhaotian/llava-v1.5-7b --lora_enable True --lora_r 128\n", "run.sh")
    told = {value.key: value.value for value in lora.values}
    holds(told, adapter__rank=128, adapter__modules_to_save=["linear_1", "linear_2"], frozen=None)
    assert "lora_enable" in lora.unmodelled
    asked = meant(LLAVA + "--model_name_or_path ./checkpoints/$VERSION\n", "run.sh")
    assert "--model llava-1.5-7b" in asked.open["model"]


def test_llavas_scripts_put_other_language_models_behind_other_encoders() -> None:
    """Of the sizes of both; LLaVA-NeXT says which parts it trains."""
    text = LLAVA.replace("openai/clip-vit-large-patch14-336", "google/siglip-so400m-patch14-384")
    text += "--model_name_or_path Qwen/Qwen2-7B --mm_tunable_parts mm_mlp_adapter,mm_language_model\n"
    found = meant(text, "run.sh")
    told = {value.key: value.value for value in found.values}
    model = told["model"]
    assert (model["family"], model["vision_layers"], model["layers"], model["qkv_bias"]) == ("llava", 27, 28, True)
    holds(told, frozen=["vision_encoder"])
    assert "SigLIP" in found.unmodelled["vision_tower"]


@pytest.mark.parametrize("model", ["microsoft/phi-2", "mistralai/Mixtral-8x7B-v0.1"])
def test_another_language_model_in_the_code_of_llava_is_refused(model: str) -> None:
    with pytest.raises(InputError, match="behind an encoder"):
        meant(LLAVA + f"--model_name_or_path {model}\n", "run.sh")


def test_a_program_made_from_nanogpt_may_have_names_that_train_py_passes_over() -> None:
    text = "n_layer = 4\nn_head = 4\nn_embd = 128\nblock_size = 64\nmax_iters = 10\nstart = 'a'\noperator = '+'\n"
    found = meant(text, "train_own.py")
    assert {"start", "operator"} <= set(found.unmodelled)
    with pytest.raises(InputError, match="bacth_size"):
        meant(text + "bacth_size = 4\n", "train_own.py")
    with pytest.raises(InputError, match="use_moe"):
        meant(text + "use_moe = True\n", "train_own.py")


@pytest.mark.parametrize(
    ("model", "keys", "length", "target"),
    [
        ("gpt2", "--max_source_length {} --max_target_length {}", 192, None),
        ("google-t5/t5-small", "--max_source_length {} --max_target_length {}", 128, 64),
        ("gpt2", "--source_max_len {} --target_max_len {}", 192, None),
    ],
)
def test_two_lengths_are_of_one_text_where_a_model_has_no_decoder_apart(
    model: str, keys: str, length: int, target: int | None
) -> None:
    text = COMMAND.format("tune.py").replace("gpt2", model) + " " + keys.format(128, 64) + "\n"
    holds(job(text, "run.sh"), sequence_length=length, target_length=target)


OWN_TRAINER = """
from own import OwnTrainer
from transformers import AutoModelForCausalLM
from trl import {config}

model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config={quantized})
args = {config}(output_dir="o", max_length=256, per_device_train_batch_size=2, num_generations=known.later)
OwnTrainer(model=model, args=args, train_dataset=rows).train()
"""


def test_a_trainer_of_another_module_is_known_by_its_arguments() -> None:
    found = meant(OWN_TRAINER.format(config="SFTConfig", quantized=None), "own.py")
    holds({value.key: value.value for value in found.values}, sequence_length=256, micro_batch_size=2)
    assert any("OwnTrainer" in note and "not counted" in note for note in found.notes)
    sampled = meant(OWN_TRAINER.format(config="GRPOConfig", quantized=None), "own.py")
    assert sampled.job["loss"] == "grpo"


def test_how_weights_are_quantized_is_asked_for_where_only_the_run_knows() -> None:
    found = meant(OWN_TRAINER.format(config="SFTConfig", quantized="made_of(arguments)"), "own.py")
    assert "made_of(arguments)" in found.open["quantization"]


def test_a_trainer_with_a_loss_of_its_own_is_told_so() -> None:
    text = OWN_TRAINER.format(config="TrainingArguments", quantized=None).replace("max_length=256, ", "")
    text = text.replace("from own import OwnTrainer", "from transformers import Trainer, TrainingArguments")
    own = "class OwnTrainer(Trainer):\n    def {}(self, model, inputs):\n        return model(**inputs)\n"
    plain = meant(text + own.format("floating_point_ops"), "own.py")
    assert not any("not counted" in note for note in plain.notes)
    lossy = meant(text + own.format("compute_loss"), "own.py")
    assert any("OwnTrainer" in note and "not counted" in note for note in lossy.notes)


def test_sections_of_deepspeeds_file_below_accelerates_reach_nobody() -> None:
    text = "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
    found = meant(text + "  zero_optimization:\n    stage: 2\n    overlap_comm: true\n", "a.yaml")
    holds({value.key: value.value for value in found.values}, parallel__sharding="zero3", precision="mixed-bf16")
    assert any("zero_optimization of DeepSpeed's own file reach nobody" in note for note in found.notes)
    # accelerate 1.15.0, commands/config/config_args.py: the plugin has stage 2 where zero_stage is not said
    found = meant(text.replace("zero_stage", "stage"), "a.yaml")
    holds({value.key: value.value for value in found.values}, parallel__sharding="zero2")
    assert any("stage of DeepSpeed's own file reach nobody" in note for note in found.notes)
    with pytest.raises(InputError, match="offload_param_dvice"):
        meant(text + "  offload_param_dvice: cpu\n", "a.yaml")


@pytest.mark.parametrize(("reduce", "told"), [("fp32", "fp32"), ("bf16", "bf16")])
def test_composers_types_of_fsdp_by_their_names(reduce: str, told: str) -> None:
    text = f"""
    max_seq_len: 512
    model: {{name: mpt_causal_lm, d_model: 128, n_heads: 4, n_layers: 2, vocab_size: 1000}}
    optimizer: {{name: decoupled_adamw, lr: 0.001}}
    global_train_batch_size: 8
    device_train_microbatch_size: 2
    precision: amp_bf16
    fsdp_config:
      sharding_strategy: FULL_SHARD
      mixed_precision: {{param_dtype: bf16, reduce_dtype: {reduce}, buffer_dtype: bf16}}
    """
    holds(job(text, "f.yaml"), precision="fsdp-bf16", parallel__reduce_dtype=told)


def test_a_file_of_llama_factory_that_answers_trains_nothing() -> None:
    text = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\ncutoff_len: 64\ndataset: a\n{}: true\n"
    with pytest.raises(InputError, match="trains nothing"):
        job(text.format("do_predict"), "lf.yaml")
    assert job(text.format("do_predict: true\ndo_train"), "lf.yaml")["sequence_length"] == 64


def test_a_file_for_deepspeeds_tuner_is_deepspeeds() -> None:
    text = '{"train_micro_batch_size_per_gpu": "auto", "autotuning": {"enabled": true, "fast": true}}'
    found = meant(text, "ds_config_tune.json")
    assert found.program == "deepspeed"
    assert "micro_batch_size" in found.open


def test_a_number_of_gpus_that_only_the_caller_knows_is_none() -> None:
    text = "deepspeed --num_gpus $1 --bind_cores_to_rank tune.py --model_name_or_path gpt2 --max_seq_length 64 --bf16\n"
    assert "parallel.data" in meant(text, "run.sh").open


def test_a_megatron_file_that_answers_requests_trains_nothing() -> None:
    text = "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --micro-batch-size: 1\n"
    with pytest.raises(InputError, match="serves requests"):
        job(text + "  --incoming-requests-per-sec: -1\n", "model_config.yaml")


def test_bits_of_scripts_made_from_qlora() -> None:
    text = COMMAND.format("own_qlora.py") + " --max_seq_length 64 --bits {} --double_quant --quant_type nf4\n"
    assert job(text.format(4), "run.sh")["quantization"] == "nf4-double"
    holds(job(text.format(16), "run.sh"), quantization=None)


OF_TRAINER = """
from transformers import HfArgumentParser, TrainingArguments
from trl import SFTTrainer
parser = HfArgumentParser((TrainingArguments,))
parser.add_argument("--max_seq_length", type=int, default=128)
"""


@pytest.mark.parametrize(
    ("script", "checkpointing"),
    [
        (None, "none"),
        (OF_TRAINER, "none"),
        (OF_TRAINER + "from trl import ModelConfig\n", "none"),
        (OF_TRAINER.replace("SFTTrainer", "SFTConfig, TrlParser"), "full"),
        (OF_TRAINER.replace("from trl import SFTTrainer", "import trl\narguments = trl.SFTConfig\n"), "full"),
    ],
)
def test_whose_defaults_a_script_has_is_told_by_the_arguments_that_it_parses(
    script: str | None, checkpointing: str, tmp_path: Path
) -> None:
    """`lora_r` and lengths are arguments of scripts around the plain Trainer too."""
    (tmp_path / "run.sh").write_text(COMMAND.format("tune.py") + " --lora_r 4 --max_seq_length 64 --use_lora True\n")
    if script is not None:
        (tmp_path / "tune.py").write_text(script)
    found = read_files([str(tmp_path / "run.sh")], Wanted())
    assert found.job["activation_checkpointing"] == checkpointing
    assert found.job["adapter"]["rank"] == 4
    assert any("tune.py is not here" in note for note in found.notes) == (script is None)


def test_settings_that_only_trls_configurations_have_are_of_trl() -> None:
    assert meant(COMMAND.format("tune.py") + " --packing True --max_length 64\n", "run.sh").program == "trl"
    assert meant(COMMAND.format("sft.py") + " --max_length 64\n", "run.sh").program == "trl"


def test_a_rank_without_a_switch_is_of_an_adapter_in_a_script_that_has_none(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --model_max_length 64 --lora_r 4\n")
    assert read_files([str(run)], Wanted()).job["adapter"]["rank"] == 4
    switch = OF_TRAINER + 'parser.add_argument("--use_lora", action="store_true")\nparser.add_argument("--lora_r")\n'
    (tmp_path / "tune.py").write_text(switch)
    assert "adapter" not in read_files([str(run)], Wanted()).job


def test_an_adapter_that_a_script_makes_whatever_its_switch_says(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --model_max_length 64\n")
    switch = OF_TRAINER + 'parser.add_argument("--use_lora", action="store_true")\n'
    made = "def wrap(m):\n    return get_peft_model(m, LoraConfig(r=16, target_modules=['c_attn']))\n"
    (tmp_path / "tune.py").write_text(f"{switch}{made}model = wrap(model)\n")
    found = read_files([str(run)], Wanted()).job["adapter"]
    assert (found["rank"], found["targets"]) == (16, ["c_attn"])
    (tmp_path / "tune.py").write_text(f"{switch}{made}if a.use_lora:\n    model = wrap(model)\n")
    assert "adapter" not in read_files([str(run)], Wanted()).job


def test_arguments_of_a_script_that_another_one_starts(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --model_max_length 64 --fuse_things True\n")
    (tmp_path / "tune.py").write_text("from train import train\ntrain()\n")
    parsed = "from transformers import HfArgumentParser\nfrom own_arguments import A\np = HfArgumentParser((A,))\n"
    (tmp_path / "train.py").write_text(parsed)
    (tmp_path / "own_arguments.py").write_text(
        "from dataclasses import dataclass\nfrom transformers import TrainingArguments\n\n"
        "@dataclass\nclass A(TrainingArguments):\n    fuse_things: bool = False\n"
    )
    assert "fuse_things" in read_files([str(run)], Wanted()).unmodelled


def test_the_targets_of_the_one_adapter_are_those_of_the_script_behind_its_switch(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("tune.py") + " --model_max_length 64 --lora_enable True --lora_r 4\n")
    script = OF_TRAINER + 'parser.add_argument("--lora_enable")\nparser.add_argument("--lora_r")\nif a.lora_enable:\n'
    (tmp_path / "tune.py").write_text(script + "    c = LoraConfig(r=a.lora_r, target_modules=['c_attn'])\n")
    assert read_files([str(run)], Wanted()).job["adapter"]["targets"] == ["c_attn"]
    run.write_text(run.read_text().replace(" --lora_enable True", ""))
    assert "adapter" not in read_files([str(run)], Wanted()).job


def test_an_adapter_whose_rank_is_the_scripts_is_asked_for() -> None:
    found = meant(COMMAND.format("tune.py") + " --model_max_length 64 --use_lora True\n", "run.sh")
    assert "adapter.rank" in found.open
    assert found.job["adapter"]["kind"] == "lora"


def test_an_adapter_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        COMMAND.format("tune.py") + " --model_max_length 64 --use_lora --lora_config lora.json\n"
    )
    assert "adapter.rank" in read_files([str(tmp_path / "run.sh")], Wanted()).open
    (tmp_path / "lora.json").write_text('{"lora_r": 4, "lora_alpha": 8, "lora_target_modules": ["c_attn"]}')
    adapter = read_files([str(tmp_path / "run.sh")], Wanted()).job["adapter"]
    assert (adapter["rank"], adapter["alpha"], adapter["targets"]) == (4, 8, ["c_attn"])


def test_a_loss_of_a_trainer_made_from_trls_is_asked_for() -> None:
    text = "model_name_or_path: gpt2\nmax_length: 64\nbeta: 0.1\nloss_type: {}\n"
    found = meant(text.format("own-margin"), "dpo.yaml")
    assert "own-margin" in found.open["loss"]
    assert "loss" not in found.job
    with pytest.raises(InputError, match="did you mean sigmoid"):
        meant(text.format("sigmiod"), "dpo.yaml")


def test_an_evaluation_of_the_scripts_own_decides_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("-m own.tune") + " --model_max_length 64 --eval_batch_size 4 --seq_len 32\n")
    with pytest.raises(InputError, match="eval_batch_size"):
        read_files([str(run)], Wanted())
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tune.py").write_text(OF_TRAINER + 'parser.add_argument("--eval_batch_size")\n')
    found = read_files([str(run)], Wanted())
    assert set(found.unmodelled) == {"eval_batch_size"}
    assert found.job["sequence_length"] == 32


DECIDES = """
import torch
from dataclasses import dataclass
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class ModelArguments:
    model_name_or_path: str
    {own}

def main():
    model, training = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    loaded = AutoModelForCausalLM.from_pretrained(model.model_name_or_path, torch_dtype=torch.bfloat16)
    config = LoraConfig(r=4, lora_alpha=32, target_modules=["c_attn"], lora_dropout=0.05)
    {peft}
    {checkpoints}
    Trainer(model=loaded, args=training).train()
"""


@pytest.mark.parametrize(
    ("own", "peft", "checkpoints", "expected"),
    [
        (
            "pass",
            "loaded = get_peft_model(loaded, config)",
            "loaded.gradient_checkpointing_enable()",
            {"adapter__rank": 4, "adapter__targets": ["c_attn"], "activation_checkpointing": "full"},
        ),
        ("pass", "pass", "pass", {"adapter__rank": None, "activation_checkpointing": "none"}),
        (
            "use_lora: bool = False",
            "loaded = get_peft_model(loaded, config) if model.use_lora else loaded",
            "if training.gradient_checkpointing: loaded.gradient_checkpointing_enable()",
            {"adapter__rank": None, "activation_checkpointing": "none"},
        ),
    ],
)
def test_what_a_script_decides_without_a_condition(
    own: str, peft: str, checkpoints: str, expected: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(COMMAND.format("tune.py") + " --model_max_length 64\n")
    (tmp_path / "tune.py").write_text(DECIDES.format(own=own, peft=peft, checkpoints=checkpoints))
    told = {value.key: value.value for value in read_files([str(tmp_path / "run.sh")], Wanted()).values}
    holds(told, **expected)
    assert (told["precision"], told.get("weight_dtype")) in (("pure-bf16", None), ("amp-bf16", "bf16"))


def test_longlora_is_an_adapter_with_checkpoints() -> None:
    found = meant(COMMAND.format("fine-tune.py") + " --low_rank_training True --model_max_length 64\n", "run.sh")
    assert found.job["adapter"]["rank"] == 8
    assert found.job["activation_checkpointing"] == "full"
    assert "embed,norm" in found.unmodelled["trainable_params"]
    whole = meant(COMMAND.format("fine-tune.py") + " --low_rank_training False --model_max_length 64\n", "run.sh")
    assert "adapter" not in whole.job


def test_a_script_behind_a_variable_is_found_by_the_end_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "sft.py").write_text(OF_TRAINER)
    run = tmp_path / "run.sh"
    run.write_text(COMMAND.format("${HERE}/src/sft.py") + " --model_max_length 64\n")
    assert read_files([str(run)], Wanted()).job["activation_checkpointing"] == "none"  # TRL's own sft.py has them


def test_a_file_that_a_script_sources_if_it_is_there() -> None:
    text = '[ -f "$ROOT/keys.sh" ] && source "$ROOT/keys.sh"\n' + COMMAND.format("tune.py") + " --max_length $LENGTH\n"
    assert not any("keys.sh" in note for note in meant(text, "run.sh").notes)


def test_preferences_under_megatron_are_refused() -> None:
    text = "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64"
    text += " --micro-batch-size 1 --max-position-embeddings 64 --train-mode {}\n"
    assert meant(text.format("finetune"), "run.sh").job["micro_batch_size"] == 1
    with pytest.raises(InputError, match="dpo is not modelled"):
        meant(text.format("dpo"), "run.sh")


def test_switches_are_turned_off_as_hugging_faces_parser_has_it(tmp_path: Path) -> None:
    """Source: huggingface/transformers 5.23.0, src/transformers/hf_argparser.py, _parse_dataclass_field."""
    off = meant(COMMAND.format("tune.py") + " --model_max_length 64 --no_gradient_checkpointing\n", "run.sh")
    assert off.job["activation_checkpointing"] == "none"
    with pytest.raises(InputError, match="no_lora_layers"):
        meant(COMMAND.format("tune.py") + " --model_max_length 64 --no_lora_layers\n", "run.sh")
    own = "accelerate launch --num_processes 2 open_instruct/finetune.py --model_name_or_path gpt2 --max_seq_length 64"
    own += " --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --no_use_slow_tokenizer --no_push_to_hub\n"
    (tmp_path / "run.sh").write_text(own)
    found = read_files([str(tmp_path / "run.sh")], Wanted())
    assert "push_to_hub" in [source.key for source in found.without_effect]


def test_scripts_made_from_llavas_are_llavas() -> None:
    command = "deepspeed {}/train/train_mem.py --model_name_or_path liuhaotian/llava-v1.5-7b --bf16 True --output_dir o"
    command += " --vision_tower openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu --version v1"
    command += " --mm_vision_select_layer -2 --per_device_train_batch_size 2 --model_max_length 2048\n"
    assert meant(command.format("own"), "run.sh").job == meant(command.format("llava"), "run.sh").job


@pytest.mark.parametrize(
    ("more", "frozen"),
    [
        ("--freeze_vision_tower True --freeze_llm False", ["vision_encoder"]),
        (
            "--freeze_vision_tower False --freeze_merger True --freeze_llm True",
            ["projector", "language_model", "embeddings", "head"],
        ),
        ("--tune_mm_vision False --tune_mm_mlp True --tune_mm_llm True", ["vision_encoder"]),
        ("--tune_mm_mlp True", ["vision_encoder", "language_model", "embeddings", "head"]),
        ("--freeze_vision_tower False", None),
    ],
)
def test_parts_of_a_model_of_images_that_a_script_leaves_untrained(more: str, frozen: list[str] | None) -> None:
    command = COMMAND.format("train_own.py").replace("gpt2", "Qwen/Qwen2.5-VL-3B-Instruct")
    assert meant(f"{command} --model_max_length 2048 {more}\n", "run.sh").job.get("frozen") == frozen
    assert "frozen" not in meant(f"{COMMAND.format('t.py')} --model_max_length 64 {more}\n", "run.sh").job


def test_ppo_by_the_keys_of_its_configuration_leaves_the_loss_open() -> None:
    text = "model_name_or_path: gpt2\nuse_peft: true\nper_device_train_batch_size: 1\ntotal_episodes: 10\n"
    assert "PPO" in meant(text + "response_length: 53\nmax_length: 64\n", "a.yaml").open["loss"]


def test_settings_of_qwen2_vl_finetune() -> None:
    command = COMMAND.format("train_own.py").replace("gpt2", "Qwen/Qwen2.5-VL-3B-Instruct") + " --model_max_length 2048"
    sdpa = meant(f"{command} --disable_flash_attn2 True --tune_merger False\n", "run.sh").job
    assert (sdpa["attention"], sdpa["frozen"]) == ("sdpa", ["projector"])
    tied = meant(f"{command} --disable_flash_attn2 False --freeze_llm True\n", "run.sh").job
    assert (tied["attention"], tied["frozen"]) == ("flash", ["language_model", "embeddings", "head"])
    adapter = meant(f"{command} --lora_enable True --lora_rank 8 --num_lora_modules -1\n", "run.sh")
    assert adapter.job["adapter"]["targets"] == "all-linear"
    assert "num_lora_modules" in adapter.unmodelled


def test_liger_that_only_the_caller_turns_on_is_asked_for() -> None:
    found = meant(COMMAND.format("tune.py") + " --model_max_length 64 --use_liger_kernel $LIGER --tf32 $TF\n", "run.sh")
    assert "$LIGER" in found.open["liger_kernels"]
    assert any("tf32 is $TF" in note for note in found.notes)
    flex = meant(COMMAND.format("tune.py") + " --model_max_length 64 --attn_implementation flex_attention\n", "run.sh")
    assert (flex.job["attention"], "attn_implementation" in flex.unmodelled) == ("flash", True)


@pytest.mark.parametrize(
    ("imports", "loss"),
    [
        ("DPOTrainer", "dpo"),
        ("SFTTrainer", None),
        ("DPOTrainer, SFTTrainer", None),
        ("SFTConfig\nfrom own.trainer import ORPOTrainer", "orpo"),  # made after TRL's
    ],
)
def test_the_one_trainer_of_trl_that_a_script_imports_tells_the_loss(
    imports: str, loss: str | None, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(COMMAND.format("tune.py") + " --max_seq_length 64\n")
    (tmp_path / "tune.py").write_text(OF_TRAINER.replace("SFTTrainer", imports))
    assert read_files([str(tmp_path / "run.sh")], Wanted()).job.get("loss") == loss
