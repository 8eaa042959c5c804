"""What scripts and files of open-instruct mean, where its programs differ from one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

COMMAND = """
    torchrun --nnodes=2 --nproc_per_node=8 open_instruct/{program}.py \\
        --model_name_or_path allenai/OLMo-2-1124-7B \\
        --max_seq_length 4096 --per_device_train_batch_size 4 --num_epochs 1 {more}
"""


@pytest.mark.parametrize(
    ("program", "more", "means"),
    [
        ("dpo_tune_cache", "--activation_memory_budget 0.5", "full"),
        ("dpo_tune_cache", "--activation_memory_budget 1.0", "none"),
        ("dpo", "--activation_memory_budget 0.5", "full"),
        ("dpo", "--activation_memory_budget 0.5 --compile_model false", "none"),
        ("dpo", "--activation_checkpointing_mode selected_modules", "full"),
        ("dpo", "", "none"),
    ],
)
def test_a_budget_below_one_turns_checkpoints_on(program: str, more: str, means: str) -> None:
    found = meant(COMMAND.format(program=program, more=more), "dpo.sh")
    assert found.job["activation_checkpointing"] == means
    told = {"activation_memory_budget", "activation_checkpointing_mode"} & found.unmodelled.keys()
    assert bool(told) == (means == "full" and program == "dpo")


def test_a_module_is_the_script_of_its_name() -> None:
    text = "torchrun --nproc_per_node 2 {} --model_name_or_path Qwen/Qwen3-0.6B --max_seq_length 64\n"
    as_file, as_module = (
        job(text.format(program), "run.sh") for program in ("open_instruct/finetune.py", "-m open_instruct.finetune")
    )
    assert as_file == as_module
    holds(as_module, max_gradient_norm=None, sequence_length=64, parallel__data=2)  # None is open-instruct's own


def test_a_file_whose_model_the_command_names_is_known_by_its_other_keys() -> None:
    text = "with_tracking: true\ncheckpointing_steps: 1000\nuse_slow_tokenizer: false\ndpo_loss_type: dpo_norm\n"
    found = meant(text + "max_seq_length: 2048\nper_device_train_batch_size: 1\n", "a.yaml")
    assert (found.program, found.job["loss"], "model" in found.open) == ("open-instruct", "dpo", True)
    with pytest.raises(InputError, match="no training program"):
        meant("with_tracking: true\nbatch: 1\n", "a.yaml")


def test_rows_of_preferences_that_are_packed_have_no_padding() -> None:
    padded = job(COMMAND.format(program="dpo", more=""), "dpo.sh")
    holds(padded, padding="right", micro_batch_size=4, packing=None)
    filled = job(COMMAND.format(program="dpo", more="--packing"), "dpo.sh")
    holds(filled, padding=None, micro_batch_size=1, packing=None)  # one row of 4,096 tokens, whatever fits in it
    flat = job(COMMAND.format(program="dpo_tune_cache", more="--packing"), "dpo.sh")
    holds(flat, padding=None, micro_batch_size=4, packing=None)


def test_a_group_of_gpus_counts_once() -> None:
    more = "--tensor_parallel_degree 2 --fsdp_shard_degree 4 --fsdp_num_replicas 2"
    found = job(COMMAND.format(program="dpo", more=more), "dpo.sh")
    holds(found, parallel__tensor=2, parallel__data=8, parallel__sharding="hsdp:4")


def test_supervised_training_with_olmo_core() -> None:
    more = "--cp_degree 2 --cp_strategy ulysses --max_grad_norm 1.0"
    text = COMMAND.format(program="olmo_core_finetune", more=more)
    holds(
        job(text, "sft.sh"),
        loss=None,
        padding=None,
        parallel__context=2,
        parallel__data=8,
        parallel__sharding="hsdp:4",
        max_gradient_norm=1.0,
    )
    assert "cp_strategy" in meant(text, "sft.sh").unmodelled


REWARDS = """\
accelerate launch --num_processes 4 --use_deepspeed --deepspeed_config_file ds.json open_instruct/reward_modeling.py \\
    --model_name_or_path meta-llama/Llama-3.1-8B --max_prompt_token_length 128 --with_tracking {more}
"""


def test_reward_models() -> None:
    ds = '{"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": "auto", "bf16": {"enabled": true}}'

    def found(more: str) -> dict[str, object]:
        read = read_texts({"rm.sh": REWARDS.format(more=more), "ds.json": ds}, Wanted())
        return {value.key: value.value for value in read.values}

    holds(
        found(""),
        loss="reward",
        padding="right",
        attention="sdpa",
        sequence_length=512,
        micro_batch_size=1,
        gradient_accumulation_steps=8,
        precision="mixed-bf16",
        parallel__data=4,
        parallel__sharding="zero3",
        max_gradient_norm=None,
    )
    more = "--max_token_length 1024 --per_device_train_batch_size 2 --gradient_accumulation_steps 3"
    holds(found(more), sequence_length=1024, micro_batch_size=2, gradient_accumulation_steps=3)


POLICY = """\
python open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen2.5-0.5B --response_length 256 --pack_length 1024 \\
    --num_unique_prompts_rollout 4 --num_samples_per_prompt_rollout 8 --vllm_num_engines 2 --beta {beta} {more}
"""


def test_a_policy_that_trains_on_sampled_answers() -> None:
    found = meant(POLICY.format(beta=0.01, more="--num_learners_per_node 4 2 --deepspeed_stage 3"), "run.sh")
    values = {value.key: value.value for value in found.values}
    holds(
        values,
        model="qwen2.5-0.5b",
        sequence_length=1024,
        micro_batch_size=1,
        max_gradient_norm=1.0,
        activation_checkpointing="full",
        precision="mixed-bf16",
        packing=True,
        parallel__data=6,
        parallel__sharding="zero3",
        loss=None,
    )
    assert {"loss", "gradient_accumulation_steps"} <= found.open.keys()
    assert "the reference policy" in found.open["loss"]
    assert "vllm_num_engines" in found.unmodelled


def test_a_policy_without_a_reference_on_the_gpu_that_samples() -> None:
    more = "--load_ref_policy False --single_gpu_mode --vllm_gpu_memory_utilization 0.3 --per_device_train_batch_size 2"
    found = meant(POLICY.format(beta=0.0, more=more), "run.sh")
    assert found.job["micro_batch_size"] == 2
    assert "reference" not in found.open["loss"]
    assert "vLLM is on the same GPU" in found.unmodelled["single_gpu_mode"]
    assert "share of each GPU" in found.unmodelled["vllm_gpu_memory_utilization"]
    shared = meant(POLICY.format(beta=0.0, more="--num_learners_per_node 8 --sequence_parallel_size 2"), "run.sh")
    assert shared.job["parallel"] == {"context": 2, "data": 4, "sharding": "ddp"}


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_deepspeed_computes_in_the_type_of_its_launcher(half: str) -> None:
    script = f"accelerate launch --mixed_precision {half} --num_machines 1 --num_processes 2 --use_deepspeed"
    script += " --zero_stage 3 open_instruct/finetune.py --model_name_or_path gpt2 --max_seq_length 64"
    script += " --per_device_train_batch_size 1 --gradient_accumulation_steps 1\n"
    assert read_texts({"run.sh": script}, Wanted()).job["precision"] == f"mixed-{half}"


def test_accelerates_fsdp_widens_what_is_trained(tmp_path: Path) -> None:
    fsdp = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config: {fsdp_version: 1}\n"
    (tmp_path / "fsdp.yaml").write_text(fsdp)
    script = "accelerate launch --config_file fsdp.yaml open_instruct/finetune.py --model_name_or_path gpt2"
    script += " --max_seq_length 512 --per_device_train_batch_size 1 --gradient_accumulation_steps 1"
    for more, weights in (("", None), (" --use_lora", "bf16")):
        (tmp_path / "run.sh").write_text(script + more)
        found = read_files([str(tmp_path / "run.sh")], Wanted()).job
        assert (found["precision"], found["parallel"]["data"]) == ("fsdp-bf16", 4)
        assert found.get("weight_dtype") == weights


OLDER = """\
python open_instruct/{script}.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_prompt_token_length 512 \\
    --response_length 256 --per_device_train_batch_size 2 --local_mini_batch_size 16 --actor_num_gpus_per_node 4 2 \\
    --deepspeed_stage 2 --local_rollout_batch_size 8 --local_rollout_forward_batch_size 4 --beta 0.05 --temperature 1.0
"""


@pytest.mark.parametrize(
    ("script", "beside"),
    [("grpo_vllm_thread_ray_gtrl", "the reference policy:"), ("ppo_vllm_thread_ray_gtrl", "and the reward model:")],
)
def test_older_scripts_have_rows_of_a_prompt_and_an_answer(script: str, beside: str) -> None:
    found = meant(OLDER.format(script=script), "run.sh")
    values = {value.key: value.value for value in found.values}
    holds(
        values,
        sequence_length=768,
        micro_batch_size=2,
        gradient_accumulation_steps=8,
        padding="right",
        packing=None,
        parallel__data=6,
        parallel__sharding="zero2",
        loss=None,
    )
    assert beside in found.open["loss"]


def test_the_settings_of_a_policy_may_be_a_file() -> None:
    text = """
    model_name_or_path: Qwen/Qwen2.5-0.5B
    with_tracking: true
    pack_length: 2048
    num_learners_per_node: [2]
    deepspeed_stage: 3
    truncated_importance_sampling_ratio_cap: 2.0
    """
    found = meant(text, "grpo.yaml")
    values = {value.key: value.value for value in found.values}
    holds(values, sequence_length=2048, packing=True, parallel__data=2, parallel__sharding="zero3")
    assert "GRPO samples answers" in found.open["loss"]


OF_OLMO_CORE = """\
python mason.py --gpus 8 -- source ray_node_setup.sh \\&\\&python open_instruct/grpo.py \\
    --model_name_or_path Qwen/Qwen3-4B-Base --pack_length 2048 --beta 0.0 --load_ref_policy false {more}
"""


@pytest.mark.parametrize(
    ("more", "means"),
    [
        ("--num_learners_per_node 4", {"parallel__sharding": "fsdp", "parallel__data": 4}),
        ("--num_learners_per_node 8 8", {"parallel__sharding": "hsdp:8", "parallel__data": 16}),
        (
            "--num_learners_per_node 8 8 --fsdp_shard_degree 4 --fsdp_num_replicas 4",
            {"parallel__sharding": "hsdp:4", "parallel__data": 16},
        ),
        ("--num_learners_per_node 4 --activation_memory_budget 0.5", {"activation_checkpointing": "full"}),
        ("--single_gpu_mode", {"precision": "pure-bf16", "parallel__data": 1, "parallel__sharding": None}),
    ],
)
def test_a_policy_of_olmo_core_behind_a_program_that_hands_out_machines(more: str, means: dict[str, object]) -> None:
    found = meant(OF_OLMO_CORE.format(more=more), "run.sh")
    values = {value.key: value.value for value in found.values}
    usual = {"precision": "fsdp-bf16", "activation_checkpointing": "none", "packing": True, "sequence_length": 2048}
    holds(values, **{**usual, **means})
    assert "reference" not in found.open["loss"]


def test_a_launcher_of_one_process_shares_nothing() -> None:
    """`accelerate launch` without a file of DeepSpeed: the model is loaded in bf16 and no master copy is made."""

    def read(processes: int, more: str = "") -> tuple[ReadJob, dict[str, object]]:
        text = f"accelerate launch --mixed_precision bf16 --num_processes {processes} open_instruct/finetune.py {more}"
        found = read_texts({"run.sh": f"{text} --model_name_or_path Qwen/Qwen3-0.6B --max_seq_length 64\n"}, Wanted())
        return found, {value.key: value.value for value in found.values}

    found, alone = read(1)
    holds(alone, precision="pure-bf16", parallel__data=1, parallel__sharding=None)
    assert not found.open
    holds(read(1, "--use_lora")[1], precision="amp-bf16", weight_dtype="bf16", parallel__sharding=None)
    holds(read(2)[1], precision="pure-bf16", parallel__sharding="ddp", parallel__data=2)
