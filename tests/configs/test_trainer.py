"""Files of TrainingArguments, TRL, Accelerate and DeepSpeed, alone and together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.running import refused, run
from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted, job_of
from vramplan.configs.registry import program_of
from vramplan.configs.written import Written
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

pytestmark = pytest.mark.contract

SFT = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: own/data
max_length: 512
per_device_train_batch_size: 2
"""
PLAIN = """\
model_name_or_path: gpt2
train_file: own.txt
block_size: 256
per_device_train_batch_size: 2
output_dir: out
"""
ZERO = """\
{
  "zero_optimization": {"stage": %s, "overlap_comm": true},
  "bf16": {"enabled": "auto"},
  "fp16": {"enabled": "auto"},
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": %s
}
"""
FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 4
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: %s
"""


def together(folder: Path, **files: str) -> ReadJob:
    """The job of files, whose names have `_` for a dot."""
    paths = []
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.write_text(text, "utf-8")
        paths.append(str(path))
    return read_files(paths, Wanted())


def values(read: ReadJob) -> dict[str, Any]:
    return {value.key: value.value for value in read.values}


# ---- numbers and defaults


def test_defaults_of_training_arguments() -> None:
    found = meant("learning_rate: 1.0e-4\noutput_dir: out\nnum_train_epochs: 1\n", "a.yaml")
    assert found.program == "training-arguments"
    assert {"model", "sequence_length", "parallel.data"} <= set(found.open)
    holds(
        {value.key: value.value for value in found.values},
        micro_batch_size=8,
        gradient_accumulation_steps=1,
        max_gradient_norm=1.0,
        activation_checkpointing="none",  # off by absence
        optimizer="adamw",
        precision="fp32",
    )


def test_defaults_of_trl_are_other_ones() -> None:
    found = meant("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: own/data\n", "a.yaml")
    assert (found.program, found.release) == ("trl", "1.16.0")
    holds(
        {value.key: value.value for value in found.values},
        sequence_length=1024,
        activation_checkpointing="full",  # on by absence
        precision="amp-bf16",  # bf16 is on where fp16 is not
        weight_dtype="fp32",
    )


def test_defaults_move_with_releases() -> None:
    text = "model_name_or_path: gpt2\ndataset_name: own/data\nmax_seq_length: 256\n"
    new, old = meant(text, "a.yaml"), meant(text, "a.yaml", version="0.16.1")
    assert new.job["activation_checkpointing"] == "full"
    assert old.job["activation_checkpointing"] == "none"
    assert old.job["precision"] == "fp32"
    assert old.job["optimizer_implementation"] == "foreach"  # adamw_torch
    assert "optimizer_implementation" not in new.job  # fused, as the runtime has it
    assert "chunked_nll" in meant(text, "a.yaml", version="1.9.0").unmodelled["loss_type"]
    assert "loss_type" not in new.unmodelled
    with pytest.raises(InputError, match=r"0\.16\.1"):
        meant(text, "a.yaml", version="0.16.2")


def test_a_cache_that_is_asked_for_is_one_where_no_checkpoint_turns_it_off() -> None:
    alone = SFT + "gradient_checkpointing: false\n"
    assert job(alone + "use_cache: true\n", "a.yaml")["use_cache"] is True
    for text in (alone, alone + "use_cache: false\n", SFT + "use_cache: true\n"):
        assert not job(text, "a.yaml").get("use_cache")


def test_clipping_that_is_zero_is_none() -> None:
    assert job(SFT + "max_grad_norm: 0\n", "a.yaml")["max_gradient_norm"] is None


def test_a_value_has_the_line_or_the_default_that_gave_it() -> None:
    found = {value.key: value.sources[0] for value in meant(SFT, "a.yaml").values}
    assert (found["sequence_length"].key, found["sequence_length"].line) == ("max_length", 3)
    assert found["gradient_accumulation_steps"].is_default
    assert found["gradient_accumulation_steps"].value == 1


# ---- what is understood


@pytest.mark.parametrize(
    ("more", "precision", "weights"),
    [
        ("bf16: true\ntorch_dtype: bfloat16\n", "pure-bf16", None),
        ("bf16: true\n", "amp-bf16", "fp32"),
        ("bf16: true\ndtype: auto\n", "amp-bf16", None),
        ("bf16: false\n", "fp32", None),
        ("fp16: true\n", "amp-fp16", "fp32"),
        ("bf16: false\ndtype: bfloat16\n", "pure-bf16", None),
        ("bf16: true\ntorch_dtype: bfloat16\nuse_peft: true\n", "amp-bf16", "bf16"),
        ("bf16: true\nfsdp: full_shard\n", "fsdp-bf16", None),
        ("bf16: true\nfsdp: full_shard\ntorch_dtype: bfloat16\nuse_peft: true\n", "fsdp-bf16", "bf16"),
    ],
)
def test_bf16_means_several_things(more: str, precision: str, weights: str | None) -> None:
    holds(job(SFT + more, "a.yaml"), precision=precision, weight_dtype=weights)


def test_weights_of_one_half_below_products_of_the_other_are_told_where_they_do_not_change() -> None:
    text = SFT + "bf16: true\ntorch_dtype: float16\n"
    found = meant(text + "load_in_4bit: true\nuse_peft: true\n", "a.yaml")
    assert (found.job["precision"], found.job["weight_dtype"]) == ("amp-bf16", "bf16")
    assert "fp16" in found.unmodelled["torch_dtype"]
    holds(job(text, "a.yaml"), precision="amp-bf16", weight_dtype="fp16")  # autocast keeps a copy of trained ones


def test_weights_of_the_handbook_are_as_it_launches_them() -> None:
    text = SFT + "bf16: true\ntorch_dtype: bfloat16\ndataset_mixture: {datasets: []}\n"
    assert job(text, "a.yaml")["precision"] == "mixed-bf16"
    assert job(text, "a.yaml", beside={"parallel.sharding": "fsdp"})["precision"] == "fsdp-bf16"
    assert job(text + "use_peft: true\n", "a.yaml")["precision"] == "amp-bf16"
    assert job("# ORPOTrainer arguments\n" + text, "a.yaml")["precision"] == "fsdp-bf16"


@pytest.mark.parametrize(("begins", "option"), [("", "zero3"), ("# ORPOTrainer arguments\n", "fsdp")])
def test_what_the_handbook_leaves_open_is_asked_for_as_its_readme_has_it(
    tmp_path: Path, begins: str, option: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(begins + SFT + "bf16: true\ntorch_dtype: bfloat16\ndataset_mixture: {datasets: []}\n")
    asked = run("fit", str(path), "--gpu", "8xh100")
    assert asked.code == 2
    assert asked.err.count(f"(--sharding {option})") == 1
    assert "(--sharding " not in asked.err.replace(f"(--sharding {option})", "")


def test_quantization_is_nested_where_it_is_said() -> None:
    text = SFT + "load_in_4bit: true\nuse_peft: true\nlora_target_modules: [all-linear]\n"
    holds(job(text, "a.yaml"), quantization="nf4", adapter__targets="all-linear", adapter__rank=16)
    assert job(text + "use_bnb_nested_quant: true\n", "a.yaml")["quantization"] == "nf4-double"
    assert job(SFT + "load_in_8bit: true\n", "a.yaml")["quantization"] == "int8"


def test_an_adapter_needs_use_peft() -> None:
    found = meant(SFT + "lora_r: 4\n", "a.yaml")
    assert "adapter" not in found.job
    assert any("use_peft" in note for note in found.notes)


def test_dpo_has_a_reference_and_padding() -> None:
    text = SFT + "beta: 0.1\n"
    holds(job(text, "a.yaml"), loss="dpo", dpo_reference="model", padding="right")
    assert job(text + "use_peft: true\n", "a.yaml")["dpo_reference"] == "adapter-off"
    assert job(text + "precompute_ref_log_probs: true\n", "a.yaml")["dpo_reference"] == "precomputed"
    assert job(SFT + "desirable_weight: 1.0\n", "a.yaml")["loss"] == "kto"


@pytest.mark.parametrize(
    ("file", "line", "loss"),
    [
        ("configs/kto.yaml", "# DPOTrainer arguments", "kto"),  # left over of the file that it was made from
        ("kto/own.yaml", "dataset_mixer: {org/texts: 1.0}", "kto"),
        ("recipes/kto/config_full.yaml", "# DPOTrainer arguments", "kto"),
        ("own_kto_runs/config_full.yaml", "# DPOTrainer arguments", "dpo"),  # a folder of more than the method
        ("own.yaml", "dataset_mixer: {trl-lib/kto-mix-14k: 1.0}", "kto"),
        ("own.yaml", "# ORPOTrainer arguments", "orpo"),
        ("config_orpo.yaml", "precompute_ref_log_probs: false", "dpo"),  # a key of DPO's alone
        ("own.yaml", "output_dir: runs/kto", "dpo"),  # what is written is no sign
    ],
)
def test_of_methods_with_the_same_keys_names_tell_which_is_meant(file: str, line: str, loss: str) -> None:
    assert job(f"{SFT}beta: 0.1\n{line}\n", file)["loss"] == loss


def test_simpo_by_the_key_of_its_authors_has_no_reference() -> None:
    holds(job(SFT + "beta: 2.5\ngamma_beta_ratio: 0.5\n", "a.yaml"), loss="simpo", dpo_reference=None)


def test_liger_is_its_loss_and_the_kernels_that_are_not_turned_off() -> None:
    found = meant(SFT + "use_liger_kernel: true\nliger_kernel_config: {swiglu: false}\n", "trl.yaml").job
    assert (found["loss"], found["liger_kernels"]) == ("fused", ["rms-norm", "rope"])


def test_checkpointing_under_its_new_name() -> None:
    text = PLAIN + "activation_checkpointing: true\nactivation_checkpointing_kwargs: {every_n_layers: 2}\n"
    assert job(text, "a.yaml")["activation_checkpointing"] == "selective-layer:2"
    text = PLAIN + "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}\n"
    holds(job(text, "a.yaml"), activation_checkpointing="full", checkpoint_reentrant=True)


def test_fsdp_config_alone_does_nothing() -> None:
    text = PLAIN + "fsdp_config: {reshard_after_forward: true}\n"
    assert "parallel" not in meant(text, "a.yaml").job
    holds(job(text + "fsdp: true\n", "a.yaml"), parallel__sharding="fsdp", parallel__fsdp_version=2)
    old = job(text + "fsdp: full_shard auto_wrap offload\n", "a.yaml", version="4.53.3")
    holds(old, parallel__fsdp_version=1, offload=["parameters", "gradients", "optimizer"])


def test_a_command_line_is_read() -> None:
    text = """
    torchrun --nproc_per_node 4 run_clm.py --model_name_or_path gpt2 --block_size 128 \\
      --per_device_train_batch_size=2 --bf16 --gradient_checkpointing True \\
      --gradient_checkpointing_kwargs '{"use_reentrant": true}'
    """
    found = meant(text, "run.sh")
    assert found.program == "training-arguments"
    holds(
        {value.key: value.value for value in found.values},
        sequence_length=128,
        micro_batch_size=2,
        checkpoint_reentrant=True,
        parallel__data=4,
        parallel__sharding="ddp",
    )


def test_a_script_made_from_alpaca_s_cuts_texts_to_model_max_length() -> None:
    text = """
    GPUS=$(nvidia-smi -L | wc -l)
    torchrun --nproc_per_node $GPUS --nnodes 2 train_mem.py --model_name_or_path gpt2 --data_path own.json \\
      --model_max_length 512 --lazy_preprocess True --per_device_train_batch_size 2 --bf16 True
    """
    found = meant(text, "run.sh")
    values = {value.key: value.value for value in found.values}
    holds(values, sequence_length=512, micro_batch_size=2)
    assert "parallel.data" not in values, "the caller's machine alone knows how many GPUs it has"


# ---- DeepSpeed


def test_auto_is_filled_by_the_trainer() -> None:
    found = meant(ZERO % (2, '"auto"'), "ds.json")
    assert found.program == "deepspeed"
    assert found.job["runtime"] == "transformers"
    assert "precision" in found.open  # both auto
    assert found.job["parallel"] == {"sharding": "zero2", "overlap_comm": True}
    assert "gradient_accumulation_steps" not in found.job


def test_deepspeed_alone_and_its_batch_rule() -> None:
    text = '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": true}}'
    holds(
        job(text, "ds.json"),
        runtime="deepspeed",
        precision="mixed-fp16",
        parallel__sharding="ddp",  # no zero_optimization is stage 0
        parallel__data=16,
        gradient_accumulation_steps=1,
    )
    holds(job(text, "ds.json", devices=4), gradient_accumulation_steps=4, parallel__data=None)
    with pytest.raises(InputError, match="no multiple"):
        job(text, "ds.json", devices=3)


def test_old_keys_and_floats_of_deepspeed() -> None:
    text = """{"zero_optimization": {"stage": 3, "cpu_offload": true, "max_live_parameters": 1e9,
    "sub_group_size": 1e9, "offload_param": {"device": "nvme"}}, "train_batch_size": 8, "bf16": {"enabled": true}}"""
    holds(
        job(text, "ds.json"),
        offload=["parameters", "optimizer", "gradients"],
        parallel__stage3_max_live_parameters=10**9,
        parallel__sub_group_size=10**9,
        parallel__offload_parameters_device="nvme",
    )


@pytest.mark.parametrize(("name", "word"), [("Adagrad", "adagrad"), ("NAdam", "nadam"), ("ASGD", "asgd")])
def test_deepspeed_takes_the_classes_of_torch(name: str, word: str) -> None:
    text = f'{{"train_batch_size": 8, "optimizer": {{"type": "{name}"}}, "zero_optimization": {{"stage": 1}}}}'
    assert meant(text, "ds.json").job["optimizer"] == word


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        ('"zero_optimization": {"stge": 2}', "zero_optimization.stge"),
        ('"zero_optimization": {"stage": 4}', "zero_optimization.stage"),
        ('"zero_optimization": {"stage": 2, "sub_group_size": "much"}', "sub_group_size"),
        ('"train_micro_batch_size_per_gpus": 1, "zero_optimization": {"stage": 1}', "train_micro_batch_size_per_gpus"),
        ('"optimizer": {"type": "Adamn"}, "zero_optimization": {"stage": 1}', "optimizer.type"),
        ('"train_micro_batch_size_per_gpu": 0, "zero_optimization": {"stage": 1}', "train_micro_batch_size_per_gpu"),
    ],
)
def test_what_deepspeed_does_not_take_has_a_place(broken: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        meant('{"train_batch_size": 8,\n ' + broken + "}", "ds.json")
    problem = caught.value.problems[0]
    assert where in (problem.key or "")
    assert (problem.file, problem.line) == ("ds.json", 2)


def test_settings_that_are_not_understood_may_be_ignored() -> None:
    text = '{"train_batch_size": 8, "zero_optimization": {"stage": 1, "stge": 2}}'
    found = meant(text, "ds.json", ignore_unknown=True)
    assert [source.key for source in found.not_understood] == ["zero_optimization.stge"]


# ---- Accelerate


def test_accelerate() -> None:
    holds(
        job(FSDP % "false", "acc.yaml"),
        precision="fsdp-bf16",
        parallel__sharding="fsdp",
        parallel__fsdp_version=1,  # by absence
        parallel__data=4,
        activation_checkpointing="none",
    )
    text = "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\nmixed_precision: 'no'\nmachine_rank: 0\n"
    found = meant(text, "acc.yaml")
    assert found.job["parallel"] == {"data": 8, "sharding": "ddp"}  # of all machines
    assert {"precision", "model", "micro_batch_size"} <= set(found.open)


def test_a_strategy_under_the_name_of_the_second_version() -> None:
    text = (FSDP % "false").replace("fsdp_sharding_strategy: FULL_SHARD", "fsdp_reshard_after_forward: SHARD_GRAD_OP")
    assert job(text, "acc.yaml")["parallel.sharding"] == "fsdp-grad-op"


def test_the_sizes_of_a_mesh_are_the_processes() -> None:
    text = (FSDP % "false") + "parallelism_config:\n  parallelism_config_cp_size: 2\n"
    with pytest.raises(InputError, match="product"):
        job(text, "acc.yaml")
    text += "  parallelism_config_dp_shard_size: 2\n"
    holds(job(text, "acc.yaml"), parallel__data=2, parallel__context=2)


# ---- together


def test_the_precision_of_a_named_deepspeed_file_holds_where_the_arguments_have_none(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}', "utf-8")
    (tmp_path / "args.yaml").write_text(PLAIN + "deepspeed: ds.json\n", "utf-8")
    found = read_files([str(tmp_path / "args.yaml")], Wanted())
    assert found.job["precision"] == "mixed-bf16"
    told = next(one for one in found.values if one.key == "precision")
    assert told.sources[0].key == "deepspeed:bf16.enabled"
    (tmp_path / "args.yaml").write_text(PLAIN + "fp16: true\ndeepspeed: ds.json\n", "utf-8")
    with pytest.raises(InputError, match="the DeepSpeed file says bf16"):
        read_files([str(tmp_path / "args.yaml")], Wanted())


def test_the_precision_below_deepspeed_config_counts_before_the_files_own() -> None:
    """The launcher copies what is below it over its own arguments."""
    text = "distributed_type: DEEPSPEED\nmixed_precision: {}\nnum_processes: 2\nnum_machines: 1\n"
    text += "deepspeed_config:\n  zero_stage: 2\n  mixed_precision: {}\n"
    assert job(text.format("fp16", "bf16"), "own.yaml")["precision"] == "mixed-bf16"
    assert job(text.format("fp16", "null"), "own.yaml")["precision"] == "mixed-fp16"
    below = next(one for one in meant(text.format("fp16", "bf16"), "own.yaml").values if one.key == "precision")
    assert below.sources[0].line == 7


def test_accelerate_and_training_arguments(tmp_path: Path) -> None:
    read = together(tmp_path, acc_yaml=FSDP % "false", sft_yaml=SFT + "torch_dtype: bfloat16\n")
    assert (read.program, len(read.files)) == ("trl", 2)
    holds(
        values(read),
        precision="fsdp-bf16",  # accelerate launch sets mixed precision, FSDP keeps fp32 shards
        parallel__data=4,
        micro_batch_size=2,
        activation_checkpointing="full",
    )
    assert "model" not in read.open
    places = {value.key: value.sources[0] for value in read.values}
    assert places["parallel.data"].file == str(tmp_path / "acc.yaml")
    assert places["sequence_length"].file == str(tmp_path / "sft.yaml")


def test_deepspeed_and_training_arguments(tmp_path: Path) -> None:
    read = together(tmp_path, ds_json=ZERO % (3, '"auto"'), sft_yaml=SFT + "bf16: true\n")
    holds(values(read), precision="mixed-bf16", parallel__sharding="zero3", runtime="transformers")
    with pytest.raises(InputError, match="the Trainer refuses") as caught:
        together(tmp_path, ds_json=ZERO % (3, "4"), sft_yaml=SFT + "gradient_accumulation_steps: 2\n")
    assert "ds.json:7" in str(caught.value)
    assert caught.value.problems[0].line == 5


def test_checkpointing_of_fsdp_and_of_the_trainer(tmp_path: Path) -> None:
    read = together(tmp_path, acc_yaml=FSDP % "true", sft_yaml=SFT + "gradient_checkpointing: false\n")
    assert values(read)["activation_checkpointing"] == "full"
    with pytest.raises(InputError, match="leave one of the two out"):
        together(tmp_path, acc_yaml=FSDP % "true", sft_yaml=SFT + "gradient_checkpointing: true\n")


def test_a_file_that_names_another(tmp_path: Path) -> None:
    below = tmp_path / "recipes"
    below.mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(ZERO % (2, '"auto"'), "utf-8")
    (below / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\nnum_machines: 1\n"
        "deepspeed_config:\n  deepspeed_config_file: configs/ds.json\n",
        "utf-8",
    )  # the path begins at the root of the repository, above the file
    read = read_files([str(below / "acc.yaml")], Wanted())
    holds(values(read), parallel__sharding="zero2", parallel__data=2)
    source = next(value for value in read.values if value.key == "parallel.sharding").sources[0]
    assert source.file == str(tmp_path / "configs" / "ds.json")
    assert read.points_to
    (below / "args.yaml").write_text(PLAIN + "bf16: true\ndeepspeed: configs/ds.json\n", "utf-8")
    read = read_files([str(below / "args.yaml")], Wanted())
    holds(values(read), parallel__sharding="zero2", precision="mixed-bf16")
    (below / "args.yaml").write_text(PLAIN + "deepspeed: configs/none.json\n", "utf-8")
    read = read_files([str(below / "args.yaml")], Wanted())
    assert "configs/none.json" in read.open["parallel.sharding"]


DS = """\
{
  "zero_optimization": {"stage": 3, "sub_group_size": 0, "zero_quantized_gradients": true},
  "optimizer": {"type": "Adam", "params": {"lr": "auto"}},
  "gradient_clipping": %s
}
"""


@pytest.mark.parametrize("text", [
    SFT + "optim: paged_adamw_8bit\n",
    "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\ncutoff_len: 64\noptim: adamw_torch\nbf16: true\n",
    "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\noptimizer: adamw_bnb_8bit\ndatasets: []\n",
])  # fmt: skip
def test_the_whole_of_a_deepspeed_file_that_training_arguments_name_is_read(tmp_path: Path, text: str) -> None:
    def read(ds: str) -> ReadJob:
        (tmp_path / "ds.json").write_text(ds, "utf-8")
        return together(tmp_path, args_yaml=text + "deepspeed: ds.json\n")

    found = read(DS % "1.0")
    holds(values(found), optimizer="adam", parallel__sharding="zero3", parallel__sub_group_size=0)
    holds(values(found), optimizer_implementation=None)  # its optimizer goes before the Trainer's
    place = next(value for value in found.values if value.key == "parallel.sub_group_size").sources[0]
    assert (place.file, place.line) == (str(tmp_path / "ds.json"), 2)
    assert list(found.unmodelled) == ["deepspeed:zero_optimization.zero_quantized_gradients"]
    for wrong, said in (
        (DS % "0.5", "is 0.5, and max_grad_norm is 1.0"),
        ((DS % "1.0").replace("sub_group_size", "sub_grop_size"), "is not understood"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            read(wrong)
        assert (caught.value.problems[0].file or "").endswith("ds.json")


def test_the_options_of_accelerate_launch(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(FSDP % "false", "utf-8")
    (tmp_path / "sft.yaml").write_text(SFT, "utf-8")
    text = "accelerate launch --config_file acc.yaml --num_processes 8 sft.py --config sft.yaml --max_length 128\n"
    read = together(tmp_path, run_sh=text)
    holds(values(read), parallel__data=8, sequence_length=128, micro_batch_size=2, precision="fsdp-bf16")


def test_two_files_that_say_what_is_trained_contradict(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="what is trained"):
        together(tmp_path, one_yaml=SFT, two_yaml=SFT)


# ---- the commands


def test_fit_takes_files(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(SFT, "utf-8")
    (tmp_path / "acc.yaml").write_text(FSDP % "false", "utf-8")
    sft, acc = str(tmp_path / "sft.yaml"), str(tmp_path / "acc.yaml")
    ran = run("fit", sft, "--gpu", "rtx-4090", "--micro-batch", "1", "--format", "json")
    job = ran.document["job"]
    assert (job["model"]["name"], job["micro_batch_size"], job["sequence_length"]) == ("qwen2.5-0.5b", 1, 512)
    typed = ("--model", "qwen2.5-0.5b", "--seq", "512", "--micro-batch", "1", "--checkpointing", "full")
    more = ("--precision", "amp-bf16", "--weight-dtype", "fp32", "--gradient-accumulation-steps", "1")
    by_hand = run("fit", "--gpu", "rtx-4090", *typed, *more, "--print", "peak.device_bytes")
    assert run("fit", sft, "--gpu", "rtx-4090", "--micro-batch", "1", "--print", "peak.device_bytes").out == by_hand.out
    both = run("fit", acc, "--config", sft, "--gpu", "a100-80gb", "--format", "json")
    assert both.document["job"]["parallel"]["data"] == 4
    for command in ("explain", "timeline"):
        assert run(command, sft, "--gpu", "rtx-4090", "--quiet").code == 0


@pytest.mark.sweep
def test_plan_takes_files_and_keeps_the_batch_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(SFT + "gradient_accumulation_steps: 3\n", "utf-8")
    excluded = [word for one in ("compile=true", "offload=optimizer") for word in ("--exclude", one)]
    ran = run("plan", str(tmp_path / "sft.yaml"), "--gpu", "a100-80gb", *excluded, "--format", "json")
    plans = ran.document["plans"]
    assert {plan["micro_batch_size"] * plan["gradient_accumulation_steps"] for plan in plans} == {6}
    assert len(plans) > 1


def test_what_is_open_is_asked_for_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(FSDP % "false", "utf-8")
    file = str(tmp_path / "acc.yaml")
    ran = refused("fit", file)
    assert all(option in ran.err for option in ("--model", "--gpu"))
    assert run("fit", file, "--model", "gpt2", "--seq", "64", "--gpu", "v100", "--precision", "fp32").code == 0


def test_a_problem_of_the_job_has_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(SFT + "optim: rmsprop_bnb\nbf16: true\ndtype: bfloat16\n", "utf-8")
    ran = refused("fit", str(file), "--gpu", "a100-80gb", "--format", "json")
    problem = ran.document["error"]["problems"][0]
    assert (problem["file"], problem["line"]) == (str(file), 5)
    assert problem["key"].startswith("optim")


def test_a_model_and_a_job_file_are_still_what_they_are(tmp_path: Path) -> None:
    model, jobs = tmp_path / "config.json", tmp_path / "jobs.yaml"
    model.write_text('{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2}', "utf-8")
    jobs.write_text("version: 1\njobs:\n- {name: a, model: gpt2, gpu: v100}\n", "utf-8")
    assert run("fit", str(model), "--gpu", "v100", "--seq", "64", "--quiet").code == 0
    assert run("fit", str(jobs), "--quiet").code == 0


def test_options_of_files_mean_nothing_without_one() -> None:
    for words in (("--from", "trl"), ("--engine-version", "1.0.0"), ("--ignore-unknown",)):
        assert words[0] in refused("fit", "--model", "gpt2", "--gpu", "v100", *words).err
    assert "--gpus" in refused("check", "missing.yaml", "--gpus", "2").err


def test_check_takes_files(tmp_path: Path) -> None:
    for name, text in (("acc", FSDP % "false"), ("one", SFT), ("two", SFT.replace("512", "1024"))):
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    files = [str(tmp_path / f"{name}.yaml") for name in ("acc", "one", "two")]
    ran = run("check", *files, "--gpu", "a100-80gb", "--format", "json")
    assert [row["name"] for row in ran.document["results"]] == ["one", "two"]
    assert {row["job"]["parallel"]["data"] for row in ran.document["results"]} == {4}
    assert "--gpu" in refused("check", *files).err


def test_a_long_value_leaves_room_for_where_it_came_from(tmp_path: Path) -> None:
    targets = "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"
    (tmp_path / "sft.yaml").write_text(SFT + f"use_peft: true\nlora_target_modules: {targets}\n", "utf-8")
    lines = run("read", str(tmp_path / "sft.yaml")).out.splitlines()
    assert any("line 6: lora_target_modules" in line for line in lines)
    assert any("per_device_train_batch_size" in line for line in lines)  # not broken inside
    assert all(len(line) <= 80 for line in lines)
    assert any("down_proj" in line for line in lines)


def test_a_model_that_nobody_knows_has_the_name_of_its_shape() -> None:
    found = meant(SFT.replace("Qwen/Qwen2.5-0.5B", "Own/OwnLM9-3B-Base"), "a.yaml")
    assert found.job["model"] == "ownlm9-3b"
    assert any("config.json" in note for note in found.notes)


# ---- what holds for every file

_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10), st.floats(), st.text(max_size=4), st.just("auto"),
    st.lists(st.integers(0, 2), max_size=2), st.dictionaries(st.just("a"), st.integers(), max_size=1),
)  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.closed_form
@given(data=st.data())
def test_any_values_give_a_job_or_problems(data: st.DataObject) -> None:
    """Each setting of a file is in exactly one of the lists, whatever its value."""
    program = program_of(data.draw(st.sampled_from(["training-arguments", "trl", "accelerate", "deepspeed"])))
    keys = sorted(key for key in (*program.table.understood, *program.table.without_effect) if "*" not in key)
    settings = data.draw(st.dictionaries(st.sampled_from(keys), _ODD, max_size=8))
    written = {key: Written(value, "f", at, 1) for at, (key, value) in enumerate(settings.items(), 1)}
    try:
        read = job_of(program, written, ["f"], Wanted())
    except InputError as error:
        keyless = [problem for problem in error.problems if not problem.key]
    else:
        keyless = []
        assert not set(read.open) & {value.key for value in read.values}
        assert not read.not_understood
    assert not keyless


def test_a_comment_of_a_recipe_says_whose_arguments_follow() -> None:
    text = """
        model_name_or_path: mistralai/Mistral-7B-v0.1
        dataset_mixture: {}
        # %s
        beta: 0.05
        max_length: 1024
        max_prompt_length: 512
        per_device_train_batch_size: 1
    """
    holds(job(text % "ORPOTrainer arguments", "a.yaml"), loss="orpo", dpo_reference=None, padding="right")
    holds(job(text % "DPOTrainer arguments", "a.yaml"), loss="dpo", dpo_reference="model")


def test_sizes_of_zero_count_for_nothing_without_it() -> None:
    text = """{"zero_optimization": {"stage": 0, "reduce_bucket_size": 5e8, "overlap_comm": true},
    "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}"""
    holds(
        job(text, "ds.json"), parallel__sharding="ddp", parallel__reduce_bucket_size=None, parallel__overlap_comm=None
    )


def test_stage_2_looks_at_nothing_of_stage_3() -> None:
    zero = {
        "stage": 2,
        "sub_group_size": 1e9,
        "stage3_max_live_parameters": 1e9,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    }
    read = meant(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}), "ds.json")
    found = {value.key: value.value for value in read.values}
    assert found["offload"] == ["optimizer", "gradients"]
    assert not {"parallel.sub_group_size", "parallel.stage3_max_live_parameters"} & found.keys()
    assert any("stage 2 keeps its parameters" in note for note in read.notes)


def test_ddp_of_one_device_is_none() -> None:
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 1\nmixed_precision: bf16\n"
    assert "parallel.sharding" not in job(text, "accelerate.yaml")
    assert job(text.replace("num_processes: 1", "num_processes: 4"), "accelerate.yaml")["parallel.sharding"] == "ddp"


def test_a_teacher_of_trl() -> None:
    text = "program: gkd.py\nmodel_name_or_path: Qwen/Qwen2-0.5B-Instruct\nmax_length: 512\nbf16: true\n"
    text += "teacher_model_name_or_path: Qwen/Qwen2-1.5B-Instruct\n"
    found = meant(text, "a.yaml")
    holds(found.job, teacher="Qwen/Qwen2-1.5B-Instruct", distillation="jsd", padding="right")
    assert "lmbda" in str(found.unmodelled)
    holds(meant(text + "beta: 1.0\nlmbda: 0.0\n", "a.yaml").job, distillation="reverse-kl")


def test_keys_that_several_preferences_have_are_dpos_and_said() -> None:
    text = (
        "model_name_or_path: meta-llama/Llama-3.2-1B\nbf16: true\nmax_length: 512\nbeta: 0.1\nmax_prompt_length: 256\n"
    )
    found = meant(text, "a.yaml")
    assert found.job["loss"] == "dpo"
    assert any("--loss orpo" in note for note in found.notes)
    for more in ("loss_type: ipo\n", "precompute_ref_log_probs: true\n", "# ORPOTrainer\n"):
        assert not any("--loss orpo" in note for note in meant(text + more, "a.yaml").notes)


def test_keys_below_fsdp_config_may_leave_out_their_beginning() -> None:
    """Source: huggingface/accelerate 1.15.0, src/accelerate/commands/launch.py, `_validate_launch_command`."""
    text = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n"
    short = "  sharding_strategy: SHARD_GRAD_OP\n  activation_checkpointing: true\n  offload_params: true\n"
    long = "".join(f"  fsdp_{line.strip()}\n" for line in short.splitlines())
    assert job(text + short, "a.yaml") == job(text + long, "a.yaml")
    holds(job(text + short, "a.yaml"), parallel__sharding="fsdp-grad-op", activation_checkpointing="full")


@pytest.mark.parametrize(
    ("policy", "classes", "told"),
    [
        ("TRANSFORMER_BASED_WRAP", "LlamaDecoderLayer", None),
        ("TRANSFORMER_BASED_WRAP", "MixtralSparseMoeBlock", "fsdp_transformer_layer_cls_to_wrap"),
        ("TRANSFORMER_BASED_WRAP", "LlamaDecoderLayer,LlamaMLP", None),
        ("NO_WRAP", "", "fsdp_auto_wrap_policy"),
        ("SIZE_BASED_WRAP", "", "fsdp_auto_wrap_policy"),
    ],
)
def test_units_of_fsdp_that_are_no_blocks_are_told(policy: str, classes: str, told: str | None) -> None:
    text = "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\nfsdp_config:\n"
    text += f"  fsdp_auto_wrap_policy: {policy}\n  fsdp_transformer_layer_cls_to_wrap: '{classes}'\n"
    found = meant(text + "  fsdp_transformer_cls_names_to_wrap: none that anybody reads\n", "a.yaml")
    assert list(found.unmodelled) == ([f"fsdp_config.{told}"] if told else [])
    assert not {one.key for one in found.without_effect} & set(found.unmodelled)
