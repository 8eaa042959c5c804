"""How many replicas there are, and what shards them, where files split a replica among devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant, together
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

pytestmark = pytest.mark.plain

AXOLOTL = "base_model: gpt2\nsequence_len: 128\nmicro_batch_size: 1\nbf16: true\n"
MESH = """\
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
parallelism_config:
"""


def values(folder: Path, start: str, **texts: str) -> dict[str, object]:
    """The job of a folder of files, of which `start` is given."""
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text, "utf-8")
    read = read_files([str(folder / start)], Wanted())
    return {value.key: value.value for value in read.values}


@pytest.mark.parametrize(
    ("sizes", "sharding", "data"),
    [
        ({"dp_replicate": 4, "cp": 2}, "hsdp:2", 4),  # the devices of a context shard what it is computed with
        ({"dp_replicate": 2, "dp_shard": 2, "cp": 2}, "hsdp:4", 4),
        ({"dp_replicate": 2, "dp_shard": 4}, "hsdp:4", 8),
        ({"dp_shard": 4, "cp": 2}, "fsdp", 4),
    ],
)
def test_a_mesh_of_accelerate(sizes: dict[str, int], sharding: str, data: int) -> None:
    text = MESH + "".join(f"  parallelism_config_{name}_size: {size}\n" for name, size in sizes.items())
    holds(job(text, "acc.yaml"), parallel__sharding=sharding, parallel__data=data)


@pytest.mark.parametrize(
    ("sizes", "sharding", "data"),
    [
        ("dp_replicate_size: 2\ncontext_parallel_size: 2\n", "hsdp:2", 2),
        ("dp_replicate_size: 2\ndp_shard_size: 2\nsequence_parallel_degree: 2\n", "hsdp:4", 4),
        ("dp_shard_size: 2\ncontext_parallel_size: 2\n", "fsdp", 2),
    ],
)
def test_a_mesh_of_axolotl(sizes: str, sharding: str, data: int) -> None:
    text = AXOLOTL + "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n" + sizes
    holds(job(text, "a.yaml"), parallel__sharding=sharding, parallel__data=data, parallel__context=2)


def test_processes_of_a_launcher_are_divided_among_the_devices_of_a_replica(tmp_path: Path) -> None:
    start = "accelerate launch --num_processes 8 -m axolotl.cli.train a.yaml\n"
    found = values(tmp_path, "run.sh", run__sh=start, a__yaml=AXOLOTL + "context_parallel_size: 2\n")
    holds(found, parallel__data=4, parallel__context=2)
    with pytest.raises(InputError, match=r"are 8, of which 3 make a replica"):
        values(tmp_path, "run.sh", a__yaml=AXOLOTL + "context_parallel_size: 3\n")


def test_a_file_of_deepspeed_that_accelerate_names_divides_them_too(tmp_path: Path) -> None:
    ds = '{"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 2}, "train_batch_size": "auto"}'
    acc = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    holds(values(tmp_path, "acc.yaml", acc__yaml=acc, ds__json=ds), parallel__data=4, parallel__tensor=2)


def test_so_do_megatrons_degrees_in_a_file_of_accelerate() -> None:
    text = "distributed_type: MEGATRON_LM\nnum_processes: 8\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
    text += "  megatron_lm_pp_degree: 2\n"
    holds(job(text, "acc.yaml"), parallel__data=2, parallel__tensor=2, parallel__pipeline=2)


SCRIPT = """\
deepspeed --num_nodes 4 --num_gpus 8 train.py --deepspeed {file} --model_name_or_path gpt2 --max_seq_length 128 \\
  --per_device_train_batch_size 4 --num_train_epochs 3 --learning_rate 2e-5 --output_dir out {half}
"""


def test_a_file_of_deepspeed_that_is_not_here_leaves_the_sharding_open(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT.format(file="own.json", half="--bf16 True"), "utf-8")
    read = read_files([str(tmp_path / "run.sh")], Wanted())
    assert read.job["parallel"] == {"data": 32}
    assert "own.json is not here" in read.open["parallel.sharding"]


@pytest.mark.parametrize(
    ("file", "sharding", "offload"),
    [
        ("ds_configs/stage3_no_offloading.conf", "zero3", None),
        ("configs/ds_configs/stage2_no_offloading_accelerate.conf", "zero2", None),
        ("configs/ds_configs/stage3_offloading_accelerate.conf", "zero3", ["optimizer", "gradients", "parameters"]),
    ],
)
def test_files_that_come_with_open_instruct_are_known(
    file: str, sharding: str, offload: list[str] | None, tmp_path: Path
) -> None:
    found = values(tmp_path, "run.sh", run__sh=SCRIPT.format(file=file, half="--bf16 True"))
    holds(found, parallel__sharding=sharding, parallel__data=32, precision="mixed-bf16", offload=offload)


@pytest.mark.parametrize(
    "more",
    [
        "",
        "use_peft: true\nlora_r: 8\ndtype: float16\n",
        "stage: sft\nfinetuning_type: lora\nlora_target: all\ntemplate: default\ncutoff_len: 128\n",
        "fsdp: full_shard auto_wrap\n",
    ],
)
def test_the_trainer_scales_the_loss_of_fp16_and_fits_its_adapters(tmp_path: Path, more: str) -> None:
    """The gradients of adapters are fp32, whatever the weights beside them are."""
    text = "model_name_or_path: gpt2\nper_device_train_batch_size: 1\n{}: true\n" + more
    text += "" if "cutoff_len" in more else "max_length: 128\n"
    assert job(text.format("fp16"), "a.yaml")["grad_scaler"] is True
    assert "grad_scaler" not in job(text.format("bf16"), "a.yaml")
    (tmp_path / "a.yaml").write_text(text.format("fp16"), "utf-8")
    ran = run("fit", str(tmp_path / "a.yaml"), "--gpu", "a100", "--gpus", "2", "--print", "job.grad_scaler")
    assert ran.out.strip() == "true", ran.err


def test_deepspeed_scales_the_loss_by_itself(tmp_path: Path) -> None:
    text = "model_name_or_path: gpt2\nstage: sft\ncutoff_len: 128\nper_device_train_batch_size: 1\nfp16: true\n"
    (tmp_path / "a.yaml").write_text(text + "finetuning_type: full\n", "utf-8")
    for sharding, scaler in (("zero3", None), ("ddp", True)):
        read = read_files([str(tmp_path / "a.yaml")], Wanted(beside={"parallel.sharding": sharding}))
        assert read.job.get("grad_scaler") == scaler


OLMO_CORE = """\
torchrun --nnodes=2 --nproc_per_node=8 open_instruct/dpo.py --model_name_or_path allenai/OLMo-2-1124-7B \\
  --max_seq_length 1024 --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --mixer_list own 1.0 \\
  --attn_backend {backend} --{prefix}shard_degree 8 --{prefix}num_replicas {replicas}
"""


@pytest.mark.parametrize("prefix", ["", "fsdp_"])  # of February 2026, and since
def test_olmo_core_shards_within_groups(prefix: str) -> None:
    found = job(OLMO_CORE.format(prefix=prefix, replicas=2, backend="flash_2"), "a.sh")
    holds(found, parallel__sharding="hsdp:8", parallel__data=16, attention="flash", precision="fsdp-bf16")
    found = job(OLMO_CORE.format(prefix=prefix, replicas=1, backend="torch"), "a.sh")
    holds(found, parallel__sharding="fsdp", parallel__data=16, attention="sdpa")


def test_a_file_that_samples_answers_leaves_the_loss_open() -> None:
    text = "model_name_or_path: gpt2\ndataset_mixer_list: [own, '1.0']\nnum_samples_per_prompt_rollout: 8\n"
    found = meant(text + "use_slow_tokenizer: true\nvllm_num_engines: 4\n", "a.yaml")
    assert "GRPO samples answers" in found.open["loss"]
    assert set(found.unmodelled) == {"vllm_num_engines"}


TRAINED = "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\ndatasets: []\n"
ARGUMENTS = "model_name_or_path: meta-llama/Llama-3.2-1B\nmax_length: 512\nbf16: true\nfsdp: full_shard auto_wrap\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRAINED + "fsdp: [full_shard]\nfsdp_config: {fsdp_limit_all_gathers: false}\n", False),
        (TRAINED + "fsdp: [full_shard]\nfsdp_config: {limit_all_gathers: true}\n", None),
        (TRAINED + "fsdp_version: 2\nfsdp_config: {limit_all_gathers: false}\n", None),
        (ARGUMENTS + "fsdp_config: {version: 1, limit_all_gathers: false}\n", False),
        (ARGUMENTS + "stage: sft\ncutoff_len: 8\nfsdp_config: {version: 1, limit_all_gathers: 'False'}\n", False),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1, fsdp_limit_all_gathers: false}\n", None),
    ],
)
def test_that_fsdp1_gathers_without_a_limit_is_heard_where_the_trainer_hears_it(text: str, said: bool | None) -> None:
    holds(job(text, "a.yaml"), parallel__limit_all_gathers=said)


def test_composer_is_told_so_too() -> None:
    text = """\
    max_seq_len: 512
    model: {name: mpt_causal_lm, d_model: 256, n_heads: 4, n_layers: 2, vocab_size: 1000, max_seq_len: 512}
    train_loader: {name: text}
    optimizer: {name: decoupled_adamw}
    global_train_batch_size: 8
    device_train_microbatch_size: 1
    precision: amp_bf16
    max_duration: 1ba
    fsdp_config: {sharding_strategy: FULL_SHARD, limit_all_gathers: false}
    """
    holds(job(text, "a.yaml"), parallel__limit_all_gathers=False)


def test_deepspeeds_launcher_says_which_gpus() -> None:
    """`--include` names them, and its own counts go before what variables of the script are called."""
    command = "train.py --model_name_or_path gpt2 --max_seq_length 128 --per_device_train_batch_size 1 --bf16 True"
    assert job(f"deepspeed --include=localhost:2,3 {command}", "a.sh")["parallel.data"] == 2
    assert job(f"deepspeed --include one:0,1@two:0 {command}", "a.sh")["parallel.data"] == 3
    assert "parallel.data" not in job(f"deepspeed --include one@two {command}", "a.sh")
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 128 --max-position-embeddings 128"
    script = f"""
    GPUS_PER_NODE=8
    NNODES=2
    deepspeed --num_nodes 1 --num_gpus 4 pretrain_gpt.py {sizes} --micro-batch-size 1 --global-batch-size 8 --bf16
    """
    holds(job(script, "a.sh"), parallel__data=4, gradient_accumulation_steps=2)


PLAIN = "model_name_or_path: gpt2\nmax_length: 128\nper_device_train_batch_size: 1\nbf16: true\n"
STAGE_0 = '{"zero_optimization": {"stage": 0}, "bf16": {"enabled": "auto"}}'


@pytest.mark.parametrize("more", ["", "stage: sft\nfinetuning_type: full\ntemplate: default\ncutoff_len: 128\n"])
def test_deepspeed_casts_the_weights_at_stage_0_too(tmp_path: Path, more: str) -> None:
    """Be its file named, given beside, within Accelerate's file, or not here."""
    text = PLAIN.replace("max_length: 128\n", "") + more if more else PLAIN
    named = text + "deepspeed: own/ds0.json\n"
    launched = (
        "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 0}\n"
    )
    holds(values(tmp_path, "a.yaml", a__yaml=named), precision="mixed-bf16", weight_dtype=None)
    (tmp_path / "acc.yml").write_text(launched, "utf-8")
    holds(
        values(tmp_path, "a.yaml", a__yaml=named, ds0__json=STAGE_0), precision="mixed-bf16", parallel__sharding="ddp"
    )
    (tmp_path / "plain.yaml").write_text(text, "utf-8")
    for how in ("ds0.json", "acc.yml"):
        read = read_files([str(tmp_path / how), str(tmp_path / "plain.yaml")], Wanted())
        assert (read.job["precision"], read.job["parallel"]["sharding"]) == ("mixed-bf16", "ddp")
        assert "weight_dtype" not in read.job


@pytest.mark.parametrize(("stage", "precision"), [(0, "pure-fp16"), (2, "mixed-fp16"), (3, "mixed-fp16")])
def test_zero_keeps_a_copy_in_fp32_of_weights_that_were_loaded_in_half(
    tmp_path: Path, stage: int, precision: str
) -> None:
    text = PLAIN.replace("bf16: true\n", "bf16: false\ndtype: float16\ndeepspeed: own/ds.json\n")
    named = f'{{"zero_optimization": {{"stage": {stage}}}, "fp16": {{"enabled": "auto"}}}}'
    holds(values(tmp_path, "a.yaml", a__yaml=text, ds__json=named), precision=precision)


@pytest.mark.parametrize(
    ("start", "devices"),
    [
        ("CUDA_VISIBLE_DEVICES=0 python train.py", 1),
        ("export CUDA_VISIBLE_DEVICES=3\npython -u train.py", 1),
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", None),  # nn.DataParallel, or as many processes as somebody starts
        ("CUDA_VISIBLE_DEVICES=0 torchrun train.py", None),
        ("torchrun --nproc_per_node 1 train.py", 1),
        ("torchrun --nproc_per_node 8 --nnodes $NODES train.py", None),
    ],
)
def test_one_process_has_one_gpu(start: str, devices: int | None) -> None:
    text = f"{start} --model_name_or_path gpt2 --max_seq_length 64 --per_device_train_batch_size 1 --output_dir out\n"
    holds(job(text, "run.sh"), parallel__data=devices)


@pytest.mark.parametrize("start", ["a.yaml", "acc.yml"])
def test_a_file_of_another_program_is_none_of_deepspeeds(tmp_path: Path, start: str) -> None:
    """Be it Accelerate's, or the file itself."""
    acc = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: acc.yml}\n"
    (tmp_path / "acc.yml").write_text(acc, "utf-8")
    with pytest.raises(InputError, match=r"acc.yml has no key of a DeepSpeed file"):
        values(tmp_path, start, a__yaml=PLAIN + "deepspeed: acc.yml\n")


@pytest.mark.parametrize(
    ("kind", "cpu", "told"), [("'NO'", "true", True), ("'NO'", "false", False), ("FSDP", "true", False)]
)
def test_one_process_on_the_cpu_is_told(kind: str, cpu: str, told: bool) -> None:
    text = f"distributed_type: {kind}\nnum_processes: 1\nmixed_precision: bf16\nuse_cpu: {cpu}\n"
    assert any("use_cpu" in note for note in meant(text, "acc.yaml").notes) is told


ARGUMENTS = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 500 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 2"
)


@pytest.mark.parametrize(
    ("start", "replicas"),
    [
        ("export WORLD_SIZE=16\nsrun python", 8),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nexport WORLD_SIZE=$SLURM_NTASKS\nsrun ./launch.sh", 4),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\nsrun python", 4),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:4\nsrun python", None),
        ("WORLD_SIZE=4\ntorchrun --nproc_per_node 8", 4),  # a number of nodes, as others call it
        ("mpirun -np 8 -npernode 4 python", 4),
        ("GPUS_PER_NODE=4\nmpirun -np $((4 * NODES)) -npernode $GPUS_PER_NODE python", None),
        ("GPUS_PER_NODE=4\nNNODES=$NHOSTS\nsrun python", None),
        ("GPUS_PER_NODE=4\nWORLD_SIZE=$((GPUS_PER_NODE * NODES))\nsrun python", None),
        ("GPUS_PER_NODE=4\nsrun python", 2),
    ],
)
def test_processes_that_no_launcher_of_pytorch_starts(start: str, replicas: int | None) -> None:
    found = meant(f"{start} {ARGUMENTS}\n", "run.sh")
    assert found.job["parallel"].get("data") == replicas
    assert ("parallel.data" in found.open) == (replicas is None)


@pytest.mark.parametrize(
    "command",
    [
        "swift sft --model gpt2 --tuner_type full --torch_dtype bfloat16 --max_length 64",
        "llamafactory-cli train --model_name_or_path gpt2 --stage sft --finetuning_type full --cutoff_len 64 --bf16",
    ],
)
def test_gpus_that_a_script_counts_are_asked_for(tmp_path: Path, command: str) -> None:
    text = f"export NPROC_PER_NODE=$(nvidia-smi --list-gpus | wc -l)\n{command}\n"
    found = together(tmp_path, {"run.sh": text}, "run.sh")
    assert "data" not in found.job.get("parallel", {})
    assert "nvidia-smi --list-gpus" in found.open["parallel.data"]


def test_ddp_of_a_file_that_leaves_the_gpus_open_is_of_one_device_without_them(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 0}, "bf16": {"enabled": true}}')
    file = tmp_path / "sft.yaml"
    file.write_text(
        "model_name_or_path: gpt2\nmax_length: 64\nbf16: true\nper_device_train_batch_size: 1\n"
        f"gradient_accumulation_steps: 1\ndeepspeed: {tmp_path}/ds.json\n"
    )
    one, two = ["fit", str(file), "--gpu", "h100"], ["--gpus", "2"]
    alone = run(*one)
    assert (alone.code, "DDP" in alone.out) == (0, False)
    assert "DDP" in run(*one, *two).out
