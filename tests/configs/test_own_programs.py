"""Files and commands of somebody's own program that are read as far as they are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.meant import holds, job, meant, together
from vramplan.configs.own_names import is_off, is_quiet
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

pytestmark = pytest.mark.contract

TWO_RUNS = """
    keep_dir: null
    checkpoint_dir: null
    model_config: {model_name: gpt2}
    sft_config: {per_device_train_batch_size: 3, gradient_accumulation_steps: 2, learning_rate: 1.0e-5, max_length: 512}
    dpo_config: {per_device_train_batch_size: 1, gradient_accumulation_steps: 9, learning_rate: 1.0e-6, beta: 0.1}
"""


def test_of_two_runs_in_a_file_the_first_is_read() -> None:
    """The other one is told, and says neither the loss nor the batch of this one."""
    read = meant(TWO_RUNS, "stages.yaml")
    assert (read.job["micro_batch_size"], read.job["gradient_accumulation_steps"]) == (3, 2)
    assert read.job["sequence_length"] == 512
    assert read.job.get("loss") != "dpo"
    assert any("dpo_config has the arguments of another run" in note for note in read.notes)


def test_how_a_model_answers_is_none_of_its_training() -> None:
    """`batch_size` may say what is trained, and not below `generation`."""
    text = """
        model: {name: gpt2}
        generation: {batch_size: 16, temperature: 1.0}
        training: {per_device_train_batch_size: 2, learning_rate: 1.0e-4, max_seq_length: 128}
    """
    read = meant(text, "own.yaml")
    assert "generation.batch_size" in read.unmodelled
    assert read.job["micro_batch_size"] == 2


def test_a_prompt_of_the_model_is_of_data() -> None:
    assert is_quiet("model_prompt")
    assert not is_quiet("model_width")
    assert not is_quiet("model_prompt_encoder")


TYPED = """
    tmux new-session -d -s train
    tmux send-keys -t train "conda activate own" C-m
    tmux send-keys -t train "{command}" C-m
"""


def test_what_tmux_types_is_read() -> None:
    command = (
        "torchrun --nproc_per_node 2 train.py --model_name_or_path gpt2 --per_device_train_batch_size 5 --bf16 True"
    )
    holds(job(TYPED.format(command=command), "run.sh"), model="gpt2", micro_batch_size=5, parallel__data=2)


def test_a_program_that_a_package_installs_is_read_by_its_arguments() -> None:
    command = "own-train --model_name_or_path gpt2 --per-device-train-batch-size 5 --output_dir out --bf16 True\n"
    holds(job(command, "run.sh"), model="gpt2", micro_batch_size=5, precision="amp-bf16")


TASK = """
    resources:
      accelerators: {gpus}
    num_nodes: 2
    envs:
      NAME: "gpt2"
      TOKEN:
    setup: |
      pip install transformers
    run: |
      torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE --nnodes=$SKYPILOT_NUM_NODES train.py \\
        --model_name_or_path $NAME --per_device_train_batch_size 5 --bf16 True --output_dir out
"""


@pytest.mark.parametrize("gpus", ["A100:4", "{A100-80GB: 4}", '"A100:4"'])
def test_a_task_of_skypilot_is_its_script_on_its_gpus(gpus: str) -> None:
    found = job(TASK.format(gpus=gpus), "task.yaml")
    holds(found, model="gpt2", micro_batch_size=5, precision="amp-bf16", parallel__data=8)


def test_a_problem_of_a_task_is_told_at_its_line() -> None:
    text = TASK.format(gpus="A100:4").replace("--output_dir out", "--tensor_width 3")
    with pytest.raises(InputError, match=r"task\.yaml:11.*tensor_width"):
        job(text, "task.yaml")


def test_a_file_with_tuner_type_and_model_is_of_ms_swift() -> None:
    read = meant("model: Qwen/Qwen2.5-0.5B\ntuner_type: lora\nlora_rank: 4\ntorch_dtype: bfloat16\n", "own.yaml")
    assert read.program == "ms-swift"
    assert read.job["adapter"]["rank"] == 4


def test_a_train_py_below_src_is_of_llama_factory_by_its_arguments(tmp_path: Path) -> None:
    """Another repository may have a script of this path."""
    own = "python src/train.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --bf16 True --output_dir out\n"
    assert together(tmp_path, {"run.sh": own}, "run.sh").program == "training-arguments"
    theirs = own.replace("--bf16 True", "--stage sft --finetuning_type full --cutoff_len 64")
    assert together(tmp_path, {"run.sh": theirs}, "run.sh").program == "llama-factory"


def test_a_parser_of_the_scripts_own_parses_its_data_classes(tmp_path: Path) -> None:
    script = """
        from dataclasses import dataclass

        from alignment import OurArgumentParser
        from transformers import Trainer, TrainingArguments

        @dataclass
        class Ours:
            model_name_or_path: str = "gpt2"
            colour_of_plots: str = "red"

        ours, words = OurArgumentParser((Ours, TrainingArguments)).parse()
        Trainer(model=loaded(ours), args=words).train()
    """
    command = "python own.py --per_device_train_batch_size 2 --colour_of_plots blue --output_dir out\n"
    read = together(tmp_path, {"own.py": script, "run.sh": command}, "run.sh")
    assert read.job["model"] == "gpt2"


def test_sections_without_a_key_of_trl_are_of_the_plain_trainer() -> None:
    """TRL saves activations and trains in bf16 unless it is told; the Trainer does neither."""
    text = """
        model: {name: gpt2}
        lora: {r: 8, lora_alpha: 16, target_modules: [c_attn], task_type: CAUSAL_LM}
        training: {per_device_train_batch_size: 2, learning_rate: 1.0e-4, num_train_epochs: 1, warmup_ratio: 0.1}
    """
    assert meant(text, "own.yaml").program == "training-arguments"
    of_trl = text.replace("0.1}", "0.1, packing: true, max_length: 128}")
    assert meant(of_trl, "own.yaml").program == "trl"


@pytest.mark.parametrize("script", ["calculate_token_loss.py", "tools/compute_ref_scores.py", "extract_embeddings.py"])
def test_a_script_that_measures_trains_nothing(script: str) -> None:
    with pytest.raises(InputError, match="trains nothing"):
        job(f"python {script} --model_name_or_path gpt2 --per_device_train_batch_size 2 --output_dir out\n", "run.sh")


def test_keys_that_change_no_memory_are_passed_over(tmp_path: Path) -> None:
    swift = """
        swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --num_generations 4 --gc_collect_after_offload true \\
          --per_device_train_batch_size 4
    """
    assert "gc_collect_after_offload" in together(tmp_path, {"run.sh": swift}, "run.sh").unmodelled
    nano = "batch_size = 4\nblock_size = 64\nn_layer = 2\nscale_attn_by_inverse_layer_idx = True\n"
    assert "scale_attn_by_inverse_layer_idx" in [one.key for one in meant(nano, "config/train_own.py").without_effect]


def test_a_batch_of_a_step_asks_for_the_passes_that_make_it() -> None:
    """Of `effective_batch_size` only the program knows how it is shared out."""
    text = """
        model: {name: gpt2}
        training: {per_device_train_batch_size: 2, learning_rate: 1.0e-4, num_train_epochs: 1, effective_batch_size: 64}
    """
    read = meant(text, "own.yaml")
    assert "effective_batch_size" in read.open["gradient_accumulation_steps"]
    assert read.job["micro_batch_size"] == 2
    with pytest.raises(InputError, match="effective_batch_size"):
        meant(text.replace("64}", "64, gradient_accumulation_steps: 3}"), "own.yaml")


def test_quantization_that_is_off_counts_for_nothing() -> None:
    assert is_off("quantized", False)
    assert not is_off("quantized", True)
    assert not is_off("lora", False)


DIFFUSION = "--pretrained_model_name_or_path own/model --train_batch_size 1 --mixed_precision bf16"


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (f"accelerate launch sdxl_train_network.py {DIFFUSION} --network_dim 8\n", "run.sh"),
        (f"accelerate launch own.py {DIFFUSION} --resolution=512\n", "run.sh"),
        ("[model]\npretrained_model_name_or_path = 'a'\n[network]\nnetwork_module = 'networks.lora'\n", "own.toml"),
        ('{"--model_family": "flux", "--data_backend_config": "a.json", "--lora_rank": 4}', "config.json"),
    ],
)
def test_trainers_of_diffusion_models_are_told(text: str, file: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"diffusion models.*not modelled"):
        together(tmp_path, {file: text}, file)


OF_HYDRA = """
    import hydra
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    @hydra.main(version_base=None, config_path="conf", config_name="own")
    def main(cfg):
        model = AutoModelForCausalLM.from_pretrained(cfg.model.name)
        if cfg.adapter.rank != 0:
            model = get_peft_model(model, LoraConfig(r=cfg.adapter.rank, target_modules=["c_attn"]))
        words = TrainingArguments(
            output_dir=cfg.out,
            per_device_train_batch_size=cfg.batch,
            gradient_accumulation_steps=cfg.passes,
        )
        Trainer(model=model, args=words).train()

    main()
"""
SETTINGS = "model: {name: gpt2}\nadapter: {rank: 0}\nbatch: 16\npasses: 2\nout: out-${batch}\n"


def of_hydra(folder: Path, arguments: str = "", settings: str = SETTINGS) -> ReadJob:
    (folder / "conf").mkdir(exist_ok=True)
    files = {"conf/own.yaml": settings, "conf/other.yaml": SETTINGS.replace("16", "7"), "own.py": OF_HYDRA}
    return together(folder, {**files, "run.sh": f"torchrun --nproc_per_node 2 own.py {arguments}\n"}, "run.sh")


def test_a_script_of_hydra_is_read_with_its_file_and_with_what_the_command_changes(tmp_path: Path) -> None:
    read = of_hydra(tmp_path)
    assert (read.job["model"], read.job["micro_batch_size"], read.job["gradient_accumulation_steps"]) == ("gpt2", 16, 2)
    assert "adapter" not in read.job
    read = of_hydra(tmp_path, "batch=3 adapter.rank=4")
    assert (read.job["micro_batch_size"], read.job["adapter"]["rank"]) == (3, 4)
    assert of_hydra(tmp_path, "--config-name other").job["micro_batch_size"] == 7
    assert of_hydra(tmp_path, "--config-name=other.yaml batch=5").job["micro_batch_size"] == 5
    with pytest.raises(InputError, match="batsh"):
        of_hydra(tmp_path, "batsh=3")


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS.replace("16", "???"),
        SETTINGS.replace("16", "${passes}"),
        SETTINGS.replace("model:", "defaults: [_self_, others]\nmodel:"),
    ],
)
def test_what_hydra_puts_together_is_asked_for(settings: str, tmp_path: Path) -> None:
    assert "micro_batch_size" in of_hydra(tmp_path, "", settings).open
