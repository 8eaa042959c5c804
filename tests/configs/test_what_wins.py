"""Which of several values counts: what holds where a command runs, and what is typed over what a file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs import shell
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

pytestmark = pytest.mark.contract

SFT = "model_name_or_path: gpt2\nmax_length: 128\nper_device_train_batch_size: 2\nbf16: true\nuse_peft: false\n"
ACCELERATE = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
FACTORY = "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\nfinetuning_type: lora\ntemplate: qwen3\nbf16: true\n"


def _read(folder: Path, **texts: str) -> ReadJob:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return read_files([str(folder / "run.sh")], Wanted())


def test_what_a_script_sets_behind_a_command_is_not_of_it(tmp_path: Path) -> None:
    text = "export CUDA_VISIBLE_DEVICES=0,1,2,3\nllamafactory-cli train a.yaml\nexport CUDA_VISIBLE_DEVICES=0\nls\n"
    assert _read(tmp_path, run__sh=text, a__yaml=FACTORY).job["parallel"]["data"] == 4
    line = "deepspeed --include localhost:2,3 src/train.py a.yaml\n"
    assert _read(tmp_path, run__sh=line, a__yaml=FACTORY).job["parallel"]["data"] == 2
    line = line.replace("--include localhost", "-i worker-0")  # deepspeed 0.19.8, launcher/runner.py: both are one
    assert _read(tmp_path, run__sh=line, a__yaml=FACTORY).job["parallel"]["data"] == 2
    behind = text.partition("\n")[2]
    assert "parallel.data" in _read(tmp_path, run__sh=behind, a__yaml=FACTORY).open


def test_nodes_that_a_script_names_behind_its_program_are_another_runs() -> None:
    words = "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64"
    line = f"{words} --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 8\n"
    assert job(f"NNODES=2\nGPUS_PER_NODE=4\n{line}", "run.sh")["parallel.data"] == 8
    assert job(f"{line}NNODES=2\nGPUS_PER_NODE=4\n", "run.sh").get("parallel.data") != 8


def test_a_count_that_only_the_caller_knows_is_not_that_of_the_file(tmp_path: Path) -> None:
    line = "accelerate launch --config_file a.yaml --num_processes {} sft.py --model_name_or_path gpt2 --max_length 64 "
    line += "--per_device_train_batch_size 1 --bf16 --output_dir o\n"
    found = _read(tmp_path, run__sh=line.format("$GPUS"), a__yaml=ACCELERATE)
    assert "data" not in found.job["parallel"]
    assert "parallel.data" in found.open
    assert _read(tmp_path, run__sh=line.format("2"), a__yaml=ACCELERATE).job["parallel"]["data"] == 2
    assert (
        _read(tmp_path, run__sh=line.replace("--num_processes {} ", ""), a__yaml=ACCELERATE).job["parallel"]["data"]
        == 8
    )


def test_a_file_of_trl_says_how_many_processes_accelerate_starts() -> None:
    found = read_texts({"a.yaml": SFT + "num_processes: 4\n"}, Wanted())
    assert found.job["parallel"] == {"sharding": "ddp", "data": 4}
    both = read_texts({"b.yaml": ACCELERATE, "a.yaml": SFT + "num_processes: 4\n"}, Wanted())
    assert both.job["parallel"]["data"] == 8  # a script of one's own is started by what the other file says
    assert "num_processes" in [source.key for source in both.without_effect]


def test_other_commands_that_take_a_file_of_arguments_are_told(tmp_path: Path) -> None:
    line = "accelerate launch sft.py --config {}.yaml\n"
    found = _read(tmp_path, run__sh=line.format("a") + line.format("b"), a__yaml=SFT, b__yaml=SFT)
    assert any("also starts sft.py in line 2" in note for note in found.notes)


def test_replicas_among_devices_that_nobody_counted_are_asked_for() -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 1\nseq_len = 512\n'
    text += "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = -1\n"
    found = read_texts({"a.toml": text}, Wanted())
    assert "2 replicas" in found.open["parallel.sharding"]
    holds(job(text, "a.toml", devices=8), parallel__sharding="hsdp:4", parallel__data=8)


def test_of_a_function_that_trains_the_first_call_counts_and_the_others_are_told(tmp_path: Path) -> None:
    words = "--model_name_or_path $1 --max_length 64 --per_device_train_batch_size 1 --bf16 --output_dir o"
    text = f"train() {{\n  torchrun --nproc_per_node 2 sft.py {words} --use_peft $2\n}}\ntrain gpt2 false\n"
    found = _read(tmp_path, run__sh=text + "train gpt2-medium false\n")
    assert found.job["model"] == "gpt2"
    assert any("also starts train in line 5" in note for note in found.notes)
    assert not any("also starts" in note for note in _read(tmp_path, run__sh=text).notes)


def test_a_script_that_another_one_calls_may_shift_its_arguments(tmp_path: Path) -> None:
    words = "--max_length 64 --per_device_train_batch_size 1 --bf16 --output_dir o"
    own = f'M=$1\nshift\ntorchrun --nproc_per_node 2 sft.py --model_name_or_path $M {words} "$@"\n'
    found = _read(tmp_path, own__sh=own, run__sh="bash own.sh gpt2 --gradient_accumulation_steps 4\n")
    assert (found.job["model"], found.job["gradient_accumulation_steps"]) == ("gpt2", 4)


def test_a_blank_to_fill_in_is_no_file_to_read_from() -> None:
    text = (
        'options=" --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 2 \\\n'
        '  --max-position-embeddings 64 --save <PATH TO CHECKPOINTS> --fp16 "\n'
        'sh -c "python pretrain_gpt.py $options"\n'
    )
    assert job(text, "own.sh")["precision"] == "mixed-fp16"


def test_options_of_slurm_may_share_a_line() -> None:
    text = (
        "#!/bin/bash\n#SBATCH <OPTIONS> --nodes=4 --exclusive --ntasks-per-node=8\n"
        "srun python own_train.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --nodes $SLURM_NNODES "
        "--run_name of_$SLURM_NTASKS\n"
    )
    assert shell.read(text).arguments[-1].text == "of_32"


def test_commands_of_empty_variables_are_no_commands() -> None:
    with pytest.raises(InputError, match="no training program"):
        meant("$NOTHING\npip install axolotl\nexport $(grep -v x own | xargs)\n", "own.sh")


@pytest.mark.parametrize(("words", "told"), [('--bf16 "$@"', True), ("--bf16 $*", True), ("--bf16 true", False)])
def test_arguments_that_the_caller_hands_on_are_told_of(words: str, told: bool) -> None:
    text = f"python own.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --max_length 64 {words}\n"
    assert any("hands on the arguments" in note for note in meant(text, "run.sh").notes) is told


@pytest.mark.parametrize(("head", "folder"), [("#SBATCH", "$SLURM_SUBMIT_DIR"), ("#PBS", "${PBS_O_WORKDIR}")])
def test_the_folder_in_which_a_script_is_queued_is_its_own(tmp_path: Path, head: str, folder: str) -> None:
    """Slurm 25.05, sbatch, output environment variables; OpenPBS, qsub: PBS_O_WORKDIR."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.yaml").write_text(FACTORY)
    line = f"#!/bin/bash\n{head} -N 1\nllamafactory-cli train {folder}/examples/a.yaml\n"
    assert _read(tmp_path, run__sh=line).job["model"] == "qwen3-4b"
