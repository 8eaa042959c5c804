"""Commands that name a file and change its keys."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.configs.meant import holds, together
from vramplan.cli.runs.configs import keys_of
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

pytestmark = pytest.mark.contract

TUNE = """
    # tune run lora_finetune_single_device --config own.yaml
    model:
      _component_: torchtune.models.llama3.lora_llama3_8b
      lora_attn_modules: [q_proj]
      lora_rank: 8
    tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 512}
    batch_size: 2
    optimizer: {_component_: torch.optim.AdamW, fused: true}
    loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
    clip_grad_norm: 1.0
    dtype: bf16
"""
LITGPT = """
    checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
    lora_r: 16
    devices: 1
    train: {global_batch_size: 8, micro_batch_size: 1, max_seq_length: 256}
"""
TITAN = """
    [model]
    name = "llama3"
    flavor = "8B"
    [training]
    local_batch_size = 2
    seq_len = 4096
    [compile]
    enable = true
"""
FOUNDRY = """
    max_seq_len: 512
    model: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12}
    optimizer: {name: decoupled_adamw}
    global_train_batch_size: 64
    device_train_microbatch_size: 4
    max_duration: 10ba
    fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE}
"""
NEMO = """
    trainer: {devices: 1, num_nodes: 1, precision: bf16}
    model:
      encoder_seq_length: 512
      num_layers: 12
      hidden_size: 768
      num_attention_heads: 12
      ffn_hidden_size: 3072
      max_position_embeddings: 512
      micro_batch_size: 4
      global_batch_size: 64
      tensor_model_parallel_size: 1
      megatron_amp_O2: true
      optim: {name: fused_adam}
"""


def read(folder: Path, script: str, **files: str) -> ReadJob:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(dedent(text))
    (folder / "run.sh").write_text(dedent(script))
    return read_files([str(folder / "run.sh")], Wanted())


def test_a_command_changes_keys_of_the_file_that_it_names(tmp_path: Path) -> None:
    command = (
        "tune run --nproc_per_node 4 lora_finetune_distributed --config own.yaml model.lora_rank=32 ~clip_grad_norm"
    )
    found = read(tmp_path, command, own__yaml=TUNE)
    assert found.job["adapter"]["rank"] == 32
    assert found.job["parallel"] == {"sharding": "fsdp", "fsdp_version": 2, "data": 4}
    assert "max_gradient_norm" not in found.job
    rank = next(value for value in found.values if value.key == "adapter.rank")
    assert rank.sources[0].file == str(tmp_path / "run.sh")
    assert str(tmp_path / "own.yaml") in found.files

    found = read(tmp_path, "litgpt finetune_lora --config lit.yaml --train.micro_batch_size=4", lit__yaml=LITGPT)
    assert (found.job["micro_batch_size"], found.job["gradient_accumulation_steps"]) == (4, 2)
    alone = read(tmp_path, "litgpt finetune Qwen/Qwen2.5-0.5B --train.max_seq_length 128 --precision bf16-true")
    assert (alone.job["model"], alone.job["adapter"]["rank"], alone.job["precision"]) == (
        "qwen2.5-0.5b",
        8,
        "pure-bf16",
    )

    command = "NGPU=8 CONFIG_FILE=./own.toml ./run_train.sh --parallelism.tensor_parallel_degree 2 --compile.no-enable"
    found = read(tmp_path, command, own__toml=TITAN)
    assert found.job["parallel"]["tensor"] == 2
    assert found.job["parallel"]["data"] == 4
    assert "compile" not in found.job

    command = "composer -n 2 train/train.py own_mpt.yaml max_seq_len=1024 fsdp_config.activation_checkpointing=true"
    found = read(tmp_path, command, own_mpt__yaml=FOUNDRY)
    assert (found.job["sequence_length"], found.job["activation_checkpointing"]) == (1024, "full")
    assert (found.job["parallel"]["data"], found.job["gradient_accumulation_steps"]) == (2, 8)

    command = """
        python examples/nlp/language_modeling/megatron_gpt_pretraining.py --config-path=. --config-name=gpt \\
            trainer.devices=8 ++model.tensor_model_parallel_size=2 'model.optim.name=distributed_fused_adam'
    """
    found = read(tmp_path, command, gpt__yaml=NEMO)
    assert found.job["parallel"] == {"tensor": 2, "data": 4, "sharding": "distributed-optimizer"}

    found = read(tmp_path, "torchrun --nproc_per_node=2 train.py own.py --batch_size=8", own__py="block_size = 256\n")
    assert (found.job["micro_batch_size"], found.job["sequence_length"], found.job["parallel"]["data"]) == (8, 256, 2)


def test_the_launcher_of_nemo_starts_the_file_of_a_stage(tmp_path: Path) -> None:
    below = tmp_path / "launcher_scripts" / "conf" / "training" / "gpt3"
    below.mkdir(parents=True)
    (below / "own.yaml").write_text(NEMO, "utf-8")
    command = """
        python3 ${LAUNCHER:-/opt/launcher}/launcher_scripts/main.py training=gpt3/own stages=[training] \\
            data_dir=$DATA base_results_dir=results training.trainer.devices=8 cluster.partition=a100 \\
            training.model.tensor_model_parallel_size=2 +training.model.optim.name=distributed_fused_adam
    """
    found = read(tmp_path, command)
    assert found.job["parallel"] == {"tensor": 2, "data": 4, "sharding": "distributed-optimizer"}
    assert {"stages", "data_dir", "cluster.partition"} <= {one.key for one in found.without_effect}
    with pytest.raises(InputError, match="is of no training program"):
        read(tmp_path, command.replace("[training]", "[conversion]"))


def test_a_command_names_a_recipe_of_nemo_and_changes_it(tmp_path: Path) -> None:
    command = "nemo llm pretrain --factory {} trainer.devices=4 data.micro_batch_size=2 trainer.max_steps=3 -y\n"
    found = read(tmp_path, command.format('"llama3_8b(num_nodes=2)"'))
    holds(found.job, model="llama-3-8b", sequence_length=8192, micro_batch_size=2, gradient_accumulation_steps=64)
    assert found.job["parallel"] == {"context": 2, "data": 4, "sharding": "distributed-optimizer"}
    tune = command.format("llama3_8b").replace("pretrain", "finetune")
    assert read(tmp_path, tune).job["adapter"]["kind"] == "lora"
    assert "adapter" not in read(tmp_path, tune.replace(" -y", " peft=none")).job
    with pytest.raises(InputError, match=r"data.micro_batch_size: is \$ROWS, which only the caller knows"):
        read(tmp_path, tune.replace("size=2", "size=$ROWS"))
    with pytest.raises(InputError, match="is of no training program"):
        read(tmp_path, command.format("own_recipe"))


def test_a_program_that_the_shell_looks_for_is_that_of_its_name(tmp_path: Path) -> None:
    text = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\ntemplate: default\ncutoff_len: 64\n"
    command = "accelerate launch --num_processes 2 $(which llamafactory-cli) train own.yaml 2>&1 | tee log"
    found = read(tmp_path, command, own__yaml=text)
    assert (found.program, found.job["sequence_length"], found.job["parallel"]["data"]) == ("llama-factory", 64, 2)


def test_how_many_machines_there_are_only_the_caller_knows(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node=8 --nnodes=$NODES torchtitan/train.py --job.config_file own.toml"
    found = read(tmp_path, command, own__toml=TITAN)
    assert "data" not in found.job.get("parallel", {})
    assert "parallel.data" in found.open


def test_what_stands_before_a_command_is_no_matter(tmp_path: Path) -> None:
    script = 'BEFORE="nsys profile -o own"\n$BEFORE composer -n 2 train/train.py own_mpt.yaml max_seq_len=1024\n'
    assert read(tmp_path, script, own_mpt__yaml=FOUNDRY).job["sequence_length"] == 1024
    found = read(tmp_path, "srun tune run full_finetune_single_device --config own.yaml batch_size=3", own__yaml=TUNE)
    assert found.job["micro_batch_size"] == 3


def test_what_only_the_caller_knows_is_said_as_a_variable(tmp_path: Path) -> None:
    found = read(tmp_path, "composer train/train.py own_mpt.yaml max_seq_len=${LENGTH}", own_mpt__yaml=FOUNDRY)
    assert found.open["sequence_length"] == "max_seq_len is $LENGTH, which only the caller knows"
    assert "sequence_length" not in found.job
    steps = read(
        tmp_path, "composer -n 2 train/train.py own_mpt.yaml global_train_batch_size=$ALL", own_mpt__yaml=FOUNDRY
    )
    assert "gradient_accumulation_steps" in steps.open


def test_a_run_of_a_platform_has_the_file_inside(tmp_path: Path) -> None:
    inner = "".join(f"  {line}\n" for line in dedent(FOUNDRY).splitlines())
    text = "image: mosaicml/llm-foundry\ncompute:\n  gpus: 4\ncommand: |\n"
    text += "  cd llm-foundry/scripts\n  composer train/train.py /mnt/config/parameters.yaml max_seq_len=256\n"
    (tmp_path / "run.yaml").write_text(f"{text}parameters:\n{inner}")
    found = read_files([str(tmp_path / "run.yaml")], Wanted())
    assert (found.job["sequence_length"], found.job["parallel"]["data"]) == (256, 4)
    assert found.job["gradient_accumulation_steps"] == 4


def test_a_run_of_a_platform_names_a_file_below_the_folder_that_it_changes_to(tmp_path: Path) -> None:
    (tmp_path / "scripts" / "train" / "yamls").mkdir(parents=True)
    (tmp_path / "scripts" / "train" / "yamls" / "own.yaml").write_text(dedent(FOUNDRY))
    (tmp_path / "mcli").mkdir()
    text = "image: mosaicml/llm-foundry\ncompute: {gpus: 4}\ncommand: |\n  cd llm-foundry/scripts\n"
    (tmp_path / "mcli" / "run.yaml").write_text(
        text + "  composer train/train.py train/yamls/own.yaml max_seq_len=256\n"
    )
    found = read_files([str(tmp_path / "mcli" / "run.yaml")], Wanted())
    assert (found.job["sequence_length"], found.job["parallel"]["data"]) == (256, 4)


def test_what_a_command_names_wrongly_is_said_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, "\ntune run lora_finetune_single_device --config own.yaml batch_sise=4", own__yaml=TUNE)
    problem = caught.value.problems[0]
    assert (problem.key, problem.line, problem.file) == ("batch_sise", 2, str(tmp_path / "run.sh"))
    assert "batch_size" in str(problem.hint)
    with pytest.raises(InputError, match=r"gone\.yaml is not here"):
        read(tmp_path, "tune run lora_finetune_single_device --config gone.yaml")


AXOLOTL = "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\noptimizer: adamw_torch\nbf16: true\ndatasets: []\n"
FACTORY = "model_name_or_path: gpt2\nstage: sft\ntemplate: default\ncutoff_len: 64\nfinetuning_type: full\nbf16: true\n"
V1 = "model: Qwen/Qwen3-0.6B\ntrain_dataset: d.yaml\ncutoff_len: 64\ndist_config:\n  name: fsdp2\n"
SFT = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: own/data\nmax_length: 64\n"
ACCELERATE = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n"


@pytest.mark.parametrize(("command", "expected"), [
    ("axolotl train a.yaml --micro-batch-size 4 --num-processes 2", {"micro_batch_size": 4, "parallel__data": 2}),
    ("accelerate launch --config_file acc.yaml -m axolotl.cli.train a.yaml", {"precision": "fsdp-bf16"}),
    ("axolotl train a.yaml --launcher torchrun -- --nproc_per_node 8", {"parallel__data": 8, "micro_batch_size": 1}),
    ("llamafactory-cli train f.yaml cutoff_len=128 use_galore=true", {"sequence_length": 128, "parallel__data": None}),
    ("NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train f.yaml", {"parallel__data": 16, "weight_dtype": "fp32"}),
    ("CUDA_VISIBLE_DEVICES=0,1,3 llamafactory-cli train f.yaml", {"parallel__data": 3, "allocator": None}),
    ("CUDA_VISIBLE_DEVICES=0 llamafactory-cli train f.yaml", {"parallel__data": 1, "allocator": None}),
    ("PYTORCH_ALLOC_CONF=max_split_size_mb:64 axolotl train a.yaml", {"allocator": "max_split_size_mb:64"}),
    ("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 trl sft --config s.yaml", {"allocator": "max_split_size_mb:64"}),
    ("accelerate launch --config_file acc.yaml src/train.py f.yaml", {"precision": "fsdp-bf16", "parallel__data": 4}),
    ("USE_V1=1 llamafactory-cli dpo v.yaml", {"loss": "dpo", "dpo_reference": "model"}),
    ("llamafactory-cli rm v.yaml", {"loss": "reward", "padding": "right"}),
    ("trl dpo --config s.yaml --beta 0.1 --num_processes 4", {"loss": "dpo", "parallel__data": 4}),
    ("trl sft --config s.yaml --accelerate_config zero3", {"parallel__sharding": "zero3", "parallel__data": 8}),
])  # fmt: skip
def test_trainers_are_started_with_a_file(tmp_path: Path, command: str, expected: dict[str, Any]) -> None:
    files = {"a": AXOLOTL, "f": FACTORY, "v": V1, "s": SFT, "acc": ACCELERATE}
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    (tmp_path / "run.sh").write_text(command + "\n", "utf-8")
    read = read_files([str(tmp_path / "run.sh")], Wanted())
    holds({value.key: value.value for value in read.values}, **expected)


def test_accelerate_config_of_trl_names_a_file_or_one_that_it_comes_with(tmp_path: Path) -> None:
    def read(name: str) -> ReadJob:
        (tmp_path / "s.yaml").write_text(f"{SFT}accelerate_config: {name}\nnum_processes: 2\n", "utf-8")
        return read_files([str(tmp_path / "s.yaml")], Wanted())

    (tmp_path / "acc.yaml").write_text(ACCELERATE, "utf-8")
    assert read("acc.yaml").job["parallel"] == {"sharding": "fsdp", "fsdp_version": 2, "data": 2}
    assert read("zero2").job["parallel"] == {"sharding": "zero2", "data": 2}
    with pytest.raises(InputError, match="zero4 is not here") as caught:
        read("zero4")
    assert (caught.value.problems[0].line, "zero3" in (caught.value.problems[0].hint or "")) == (4, True)


def test_a_script_above_is_sourced_by_the_end_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "common.sh").write_text("BATCH=4\n", "utf-8")
    command = "torchrun train.py --model_name_or_path gpt2 --output_dir $OUT --learning_rate 1e-5"
    command += " --per_device_train_batch_size $BATCH --num_train_epochs 1\n"
    script = tmp_path / "scripts" / "run.sh"
    script.write_text(f'HERE="$(dirname $0)"\nsource "${{HERE}}/../common.sh"\n{command}', "utf-8")
    read = read_files([str(script)], Wanted())
    assert read.job["micro_batch_size"] == 4
    script.write_text(f"source ~/.bashrc\nBATCH=2\n{command}", "utf-8")  # $OUT changes nothing
    read = read_files([str(script)], Wanted())
    assert read.job["micro_batch_size"] == 2
    for name, is_told in (("cluster.sh", True), (".bashrc", False)):  # a login's sets no variable of a run
        script.write_text(f"source ~/{name}\n{command}", "utf-8")
        read = read_files([str(script)], Wanted())
        assert "$BATCH" in read.open["micro_batch_size"]
        assert any(f"it sources {name}, which is not here" in note for note in read.notes) is is_told


def test_variables_of_a_script_count_nothing_beside_accelerates_own_number() -> None:
    """As scripts of Hugging Face start it: through `srun`, `bash -c` and two variables."""
    text = """\
    NUM_NODES=2
    GPUS_PER_NODE=8
    WORLD_SIZE=$(($NUM_NODES*$GPUS_PER_NODE))
    export CMD=" sft.py --model_name_or_path="gpt2" --max_length=64 --bf16 true "
    export LAUNCHER="HF_HUB_ENABLE_HF_TRANSFER=1 accelerate launch \\
        --multi_gpu --num_machines $NUM_NODES --num_processes $WORLD_SIZE --machine_rank \\$SLURM_PROCID \\
        --rdzv_conf "rdzv_backend=c10d,rdzv_endpoint=$HOST:6000" --tee 3 "
    srun $ARGS --jobid $ID -u bash -c "$LAUNCHER --role \\$NAME: $CMD"
    """
    found = {value.key: value.value for value in read_texts({"run.sh": dedent(text)}, Wanted()).values}
    assert found["parallel.data"] == 16
    assert found["parallel.sharding"] == "ddp"
    assert found["model"] == "gpt2"


def test_a_script_of_several_runs_says_which_is_read() -> None:
    one = "accelerate launch --num_processes 2 --multi_gpu {} \\\n --model_name_or_path {} {}\n"
    more = "--max_length 64 --bf16 true --optim adamw_torch"
    read = read_texts(
        {"run.sh": one.format("sft.py", "gpt2", more) + one.format("dpo.py", "gpt2-large", more)}, Wanted()
    )
    assert read.job["model"] == "gpt2-large"
    assert "the script also starts sft.py in line 1; the command of line 3 is read" in read.notes
    alone = read_texts({"run.sh": "python prepare.py --out own\n" + one.format("sft.py", "gpt2", more)}, Wanted())
    assert alone.job["model"] == "gpt2"
    assert not any("also starts" in note for note in alone.notes)


@pytest.mark.parametrize("value", ["${oc.env:STEPS,4}", "${STEPS:-4}", "${STEPS-4}"])
def test_a_variable_of_the_environment_is_its_default(value: str) -> None:
    text = f"model_name_or_path: gpt2\nmax_length: 64\nbf16: true\ngradient_accumulation_steps: {value}\n"
    assert read_texts({"own.yaml": text}, Wanted()).job["gradient_accumulation_steps"] == 4


@pytest.mark.parametrize(
    "command",
    [
        'llamafactory-cli train "$CONFIG" cutoff_len=512',
        "axolotl train ${CONFIG}",
        "composer -n 2 train/train.py $CONFIG",
        "torchrun -m torchtitan.train --job.config_file $CONFIG",
    ],
)
def test_a_file_that_only_the_caller_knows_is_asked_for(tmp_path: Path, command: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, command)
    assert "$CONFIG" in str(caught.value)
    assert caught.value.problems[0].hint == "give that file beside it"


def test_a_file_that_only_the_caller_knows_is_the_one_given_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\ncutoff_len: 256\nbf16: true\n"
    )
    (tmp_path / "run.sh").write_text("TMP=$(mktemp)\nllamafactory-cli train $TMP per_device_train_batch_size=3\n")
    found = read_files([str(tmp_path / "run.sh"), str(tmp_path / "own.yaml")], Wanted())
    holds(found.job, model="gpt2", sequence_length=256, micro_batch_size=3)


def test_a_batch_that_composer_finds_keeps_the_batch_of_a_step(tmp_path: Path) -> None:
    auto = "composer -n 8 train/train.py own_mpt.yaml device_train_microbatch_size=auto"
    found = read(tmp_path, auto, own_mpt__yaml=FOUNDRY)
    assert (found.job["global_batch_size"], found.job["parallel"]["data"]) == (64, 8)
    assert "micro_batch_size" in found.open
    assert "micro_batch_size" not in found.job


def test_numbers_that_stand_for_arguments_of_a_script_are_asked_for(tmp_path: Path) -> None:
    script = "accelerate launch --num_processes $4 open_instruct/finetune.py --model_name_or_path $1 --use_lora"
    script += " --per_device_train_batch_size $3 --max_seq_length 2048 --lora_rank 8 --gradient_accumulation_steps 2\n"
    found = read(tmp_path, script)
    assert {"model", "micro_batch_size"} <= found.open.keys()
    assert found.open["micro_batch_size"] == "per_device_train_batch_size is $3, which only the caller knows"
    assert "micro_batch_size" not in found.job


def test_a_script_that_another_one_writes_is_run_where_it_is_handed_on(tmp_path: Path) -> None:
    queued = """
        SIZE=4
        cat > job.sh <<EOD
        #!/bin/bash
        srun litgpt finetune_lora checkpoints/meta-llama/Llama-3.2-1B --train.micro_batch_size $SIZE \\
            --train.max_seq_length \\$LENGTH
        EOD
        sbatch job.sh
    """
    assert read(tmp_path, queued).job["micro_batch_size"] == 4
    handed = "sbatch <<'EOT'\nB=3\ntune run full_finetune_single_device --config own.yaml batch_size=$B\nEOT\n"
    assert read(tmp_path, handed, own__yaml=TUNE).job["micro_batch_size"] == 3
    kept = "cat > notes.sh <<EOD\ntune run full_finetune_single_device --config own.yaml batch_size=7\nEOD\n"
    assert read(tmp_path, kept + handed, own__yaml=TUNE).job["micro_batch_size"] == 3  # which nobody runs


def test_a_file_of_settings_that_a_script_writes_is_read(tmp_path: Path) -> None:
    zero = 'DS=ds_$JOB.json\nN=2\ncat <<EOT > $DS\n{"zero_optimization": {"stage": $N}, "bf16": {"enabled": "auto"}}\n'
    zero += "EOT\n"
    command = "--model_name_or_path gpt2 --per_device_train_batch_size 1 --block_size 512 --bf16 --output_dir out\n"
    found = read(tmp_path, f"{zero}deepspeed --num_gpus 4 run_clm.py --deepspeed $DS {command}")
    assert (found.job["parallel"]["sharding"], found.job["precision"]) == ("zero2", "mixed-bf16")
    own = "cat > own.yaml <<EOF\nmodel_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\ncutoff_len: 333\nEOF\n"
    assert read(tmp_path, own + "llamafactory-cli train own.yaml\n").job["sequence_length"] == 333


def test_a_file_of_another_machine_is_found_by_the_end_of_its_path(tmp_path: Path) -> None:
    for folder in ("conf", "scripts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "conf" / "own.yaml").write_text(dedent(TUNE))
    script = tmp_path / "scripts" / "run.sh"
    for path in ("/home/me/project/conf/own.yaml", "${HERE}/conf/own.yaml"):
        script.write_text(f"tune run full_finetune_single_device --config {path} batch_size=5\n")
        assert read_files([str(script)], Wanted()).job["micro_batch_size"] == 5
    script.write_text("tune run full_finetune_single_device --config /home/me/elsewhere/own.yaml\n")
    with pytest.raises(InputError):
        read_files([str(script)], Wanted())


REGISTRY = """
    def {}_own() -> Trainer.Config:
        return Trainer.Config(
            model_spec=model_registry("8B"),
            optimizer=OptimizersContainer.Config(lr=3e-4),
            training=TrainingConfig(local_batch_size=2, seq_len=4096, steps=10),
            parallelism=ParallelismConfig(tensor_parallel_degree=2),
            activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        )
"""


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("torchrun --nproc_per_node=4 -m torchtitan.train --module llama3 --config llama3_own", "models/llama3"),
        ("MODULE=llama3 CONFIG=llama3_own NGPU=4 ./run_train.sh", "models/llama3"),
        ("MODULE=own.llama3 CONFIG=llama3_own NGPU=4 ./run_train.sh", "experiments/own/llama3"),
    ],
)
def test_a_command_names_a_function_of_torchtitans_registry(tmp_path: Path, command: str, folder: str) -> None:
    """torchtitan/config/manager.py looks for the module among the models, and then among the experiments."""
    place = tmp_path / "torchtitan" / folder
    place.mkdir(parents=True)
    (place / "config_registry.py").write_text(dedent(REGISTRY.format("llama3")))
    found = read(tmp_path, f"{command} --training.seq_len 1024 --activation_checkpoint.mode none")
    told = {value.key: value.value for value in found.values}
    holds(told, sequence_length=1024, micro_batch_size=2, parallel__tensor=2, parallel__data=2)
    holds(told, activation_checkpointing="none", model="llama-3.1-8b")


def test_a_registry_that_is_not_here_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"torchtitan/\*/llama3/config_registry.py:llama3_own is not here"):
        read(tmp_path, "MODULE=llama3 CONFIG=llama3_own ./run_train.sh")


def test_a_script_that_trains_several_times_is_told(tmp_path: Path) -> None:
    command = "llamafactory-cli train --stage sft --finetuning_type full --cutoff_len 64 --model_name_or_path {}\n"
    found = read(tmp_path, "".join(map(command.format, ("gpt2", "gpt2-medium", "gpt2-large"))))
    assert found.job["model"] == "gpt2"
    assert "the script trains in lines 2, 3 too; the first command is read" in found.notes


RECIPES = """
    from megatron.bridge import AutoBridge
    from megatron.bridge.recipes.common import _sft_common
    from megatron.bridge.training.config import ConfigContainer

    def llama32_1b_sft_1gpu_h100_bf16_config() -> ConfigContainer:
        cfg = _sft_common()
        cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").to_megatron_provider(load_weights=False)
        cfg.dataset.seq_length = 4096
        cfg.train.global_batch_size = 8
        cfg.train.micro_batch_size = 1
        return cfg
"""
RUN = """
    for sizes in "2,1" "4,1"; do
        IFS=',' read -r TP PP <<< "$sizes"
        python -m torch.distributed.run --nproc_per_node=8 scripts/training/run_recipe.py \\
            --recipe {name} -mb 2 model.tensor_model_parallel_size=$TP model.sequence_parallel=True
    done
"""
OWN_NAME = "llama32_1b_sft_1gpu_h100_bf16_config"


def test_a_recipe_is_found_in_the_library_around_the_script_also_by_its_shorter_name(tmp_path: Path) -> None:
    package = tmp_path / "src" / "megatron" / "bridge" / "recipes" / "llama"
    (package / "h100").mkdir(parents=True)
    (package / "h100" / "llama3.py").write_text(dedent(RECIPES))
    (package / "llama3.py").write_text(f"from .h100.llama3 import (\n    {OWN_NAME} as llama32_1b_sft_config,\n)\n")
    script = tmp_path / "examples" / "run.sh"
    script.parent.mkdir()
    for name in (OWN_NAME, "llama32_1b_sft_config"):
        script.write_text(dedent(RUN).format(name=name))
        found = read_files([str(script)], Wanted())
        values = {value.key: value.value for value in found.values}
        holds(values, model="llama-3.2-1b", parallel__tensor=2, parallel__data=4, micro_batch_size=2)
        holds(values, gradient_accumulation_steps=1, sequence_length=4096)
        assert any(note.startswith("$sizes is 2,1 first") for note in found.notes)


def test_arguments_that_another_command_prints_are_told(tmp_path: Path) -> None:
    (tmp_path / "llama3.py").write_text(dedent(RECIPES))
    script = dedent(RUN).format(name=OWN_NAME).replace("=True\n", '=True $(cat more.txt) --step_func "$(wc -l x)"\n')
    (tmp_path / "run.sh").write_text(script)
    found = read_files([str(tmp_path / "run.sh"), str(tmp_path / "llama3.py")], Wanted())
    assert any("what $(cat more.txt) prints is not known" in note and "wc" not in note for note in found.notes)


def test_the_file_of_a_recipe_may_be_given_beside_its_script(tmp_path: Path) -> None:
    (tmp_path / "llama3.py").write_text(dedent(RECIPES))
    (tmp_path / "run.sh").write_text(dedent(RUN).format(name=OWN_NAME))
    found = read_files([str(tmp_path / "run.sh"), str(tmp_path / "llama3.py")], Wanted())
    assert found.job["parallel"]["tensor"] == 2
    with pytest.raises(InputError, match="the file of this recipe"):
        read_files([str(tmp_path / "run.sh")], Wanted())


@pytest.mark.parametrize("name", ["$2", "${CONFIG_FILE}", "$RECIPE"])
def test_a_file_that_only_the_caller_names_and_that_is_the_only_argument(tmp_path: Path, name: str) -> None:
    script, own = tmp_path / "run.sh", tmp_path / "own.yaml"
    script.write_text(f"accelerate launch --num_processes 2 open_instruct/finetune.py {name}\n")
    own.write_text("model_name_or_path: gpt2\nmax_seq_length: 64\nper_device_train_batch_size: 3\n")
    with pytest.raises(InputError, match="is known to the caller alone"):
        read_files([str(script)], Wanted())
    found = read_files([str(script), str(own)], Wanted()).job
    assert (found["micro_batch_size"], found["sequence_length"]) == (3, 64)


def test_a_variable_of_a_script_is_no_option_of_accelerate(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n")
    command = "accelerate launch --config_file acc.yaml sft.py --model_name_or_path gpt2 --max_length 512"
    script = tmp_path / "run.sh"
    script.write_text(f"export GPUS_PER_NODE=4\nL='{command}'\n$L --packing\n")
    found = read_files([str(script)], Wanted())
    assert (found.job["parallel"]["data"], found.job["packing"]) == (2, True)


def test_what_llamafactory_sets_on_several_gpus_is_told(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FACTORY, "utf-8")
    several, one = (read(tmp_path, f"NPROC_PER_NODE={number} llamafactory-cli train f.yaml").notes for number in (2, 1))
    told = "llamafactory-cli sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True by itself"
    assert [any(note.startswith(told) for note in notes) for notes in (several, one)] == [True, False]


def test_an_answer_about_a_file_has_what_its_program_sets_of_the_allocator(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AXOLOTL, "utf-8")
    found = read_files([str(tmp_path / "a.yaml")], Wanted())
    assert "allocator" not in found.job
    assert keys_of(found, {"gpu": "v100"})["allocator"] == "auto,expandable_segments:True"
    assert keys_of(found, {"gpu": "v100", "allocator": "simulate"})["allocator"] == "simulate"
    own = read(tmp_path, "PYTORCH_ALLOC_CONF=max_split_size_mb:64 axolotl train a.yaml")
    assert keys_of(own, {"gpu": "v100"})["allocator"] == "max_split_size_mb:64"


def test_settings_of_the_allocator_that_are_not_modelled_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AXOLOTL, "utf-8")
    found = read(tmp_path, "PYTORCH_ALLOC_CONF=backend:cudaMallocAsync axolotl train a.yaml")
    assert "allocator" not in found.job
    assert any("backend cudaMallocAsync is not modelled" in note for note in found.notes)


@pytest.mark.parametrize(("script", "loss"), [("sft", None), ("dpo", "dpo"), ("kto", "kto")])
def test_a_script_of_trl_as_a_module_has_its_defaults(tmp_path: Path, script: str, loss: str | None) -> None:
    command = f"accelerate launch --num_processes 2 -m trl.scripts.{script} --model_name_or_path gpt2 --max_length 64"
    found = together(tmp_path, {"run.sh": f"{command} --per_device_train_batch_size 1\n"}, "run.sh")
    assert (found.program, found.job.get("loss"), found.job["activation_checkpointing"]) == ("trl", loss, "full")


def test_fsdp_of_megatron_by_its_older_name(tmp_path: Path) -> None:
    command = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
        "--seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--use-{name}-fsdp --data-parallel-sharding-strategy optim_grads_params\n"
    )
    old, new = (
        together(tmp_path, {"run.sh": command.format(name=name)}, "run.sh").job["parallel"]
        for name in ("custom", "megatron")
    )
    assert old == new
    assert old["sharding"] == "fsdp"
