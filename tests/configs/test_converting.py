"""Small files of every program, written as those of every other: the same job, or an error that says what is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.round_trip import differences, read_back, resolved, written
from vramplan.configs.carried import MAY_BE_LEFT_OUT, carried, changes, decisive
from vramplan.configs.writers import MODULES
from vramplan.errors import InputError, Problem
from vramplan.options import table

EXAMPLES = {
    "axolotl.yaml": """\
base_model: NousResearch/Llama-3.2-1B
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 2
bf16: true
gradient_checkpointing: true
adapter: lora
lora_r: 8
lora_target_modules: [q_proj, v_proj]
""",
    "sft.yaml": """\
model_name_or_path: Qwen/Qwen2.5-0.5B
max_length: 256
per_device_train_batch_size: 2
gradient_accumulation_steps: 1
optim: adamw_torch_fused
""",
    "llama.yaml": """\
model_name_or_path: Qwen/Qwen2.5-0.5B
stage: sft
finetuning_type: full
cutoff_len: 256
per_device_train_batch_size: 1
pure_bf16: true
optim: adamw_torch
""",
    "tune.yaml": """\
model:
  _component_: torchtune.models.llama3_2.llama3_2_1b
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 512
batch_size: 2
gradient_accumulation_steps: 4
optimizer:
  _component_: torch.optim.AdamW
  fused: true
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
dtype: bf16
device: cuda
enable_activation_checkpointing: true
compile: false
""",
    "titan.toml": """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "full"
[optimizer]
name = "AdamW"
""",
    "lit.yaml": """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-true
devices: 1
train:
  global_batch_size: 4
  micro_batch_size: 2
  max_seq_length: 512
  epochs: 1
""",
    "megatron.sh": """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
  --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --bf16 \\
  --use-distributed-optimizer
""",
    "nano.py": "init_from = 'gpt2'\nbatch_size = 4\nblock_size = 256\ngradient_accumulation_steps = 8\ndropout = 0.0\n",
}
MORE = {"sft.yaml": ("--gpus", "2", "--sharding", "fsdp"), "titan.toml": ("--gpus", "8")}
OF_THE_TRAINER = {"trl", "accelerate", "axolotl", "llama-factory"}
WRITTEN = {
    "axolotl.yaml": OF_THE_TRAINER,
    "sft.yaml": {*(OF_THE_TRAINER - {"axolotl"}), "training-arguments", "litgpt"},  # as of titan.toml
    "llama.yaml": {*OF_THE_TRAINER, "training-arguments", "torchtune"},
    "tune.yaml": {"torchtune", "axolotl"},  # whose losses come in chunks
    # Axolotl's FSDP2 keeps shards in bf16
    "titan.toml": {*(OF_THE_TRAINER - {"axolotl"}), "training-arguments", "torchtitan", "litgpt"},
    "lit.yaml": {*OF_THE_TRAINER, "training-arguments", "torchtune", "torchtitan", "litgpt"},
    "megatron.sh": {"megatron-lm"},
    "nano.py": set(),  # no other program has a setting for a dropout of nothing
}
"""The programs that have settings for all of each."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("files")
    for name, text in EXAMPLES.items():
        (found / name).write_text(text, "utf-8")
    return found


@pytest.mark.plain
@pytest.mark.sweep(8)
@pytest.mark.parametrize("to", MODULES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_means_the_same_job_as_that_of_another_program(name: str, to: str, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / name), *MORE.get(name, ())]
    ran = run("convert", *words, "--to", to, "--emit-to", tmp_path)
    assert (ran.code == 0) == (to in WRITTEN[name]), ran.err
    if ran.code:
        errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        assert any(re.search(r"nearest: |\(it has |\(use |\(leave ", line) for line in errors)
        return
    texts = written(ran, tmp_path)
    before, err = resolved(*words, "--gpu", "h100")
    assert before is not None, err
    after, err = read_back(tmp_path, texts, ran.err, "h100")
    assert after is not None, err
    first = next(iter(texts.values()))
    for key, (one, other) in differences(before, after).items():
        if key == "runtime":
            assert f"# the runtime is {other} now" in first
        elif not is_alike(key, one, other):
            assert key in MAY_BE_LEFT_OUT, (key, one, other)
            assert re.search(rf"decided by {to} itself: .*\b{key}=", first), (key, one, other)


def is_alike(key: str, one: Any, other: Any) -> bool:
    """Whether two values mean the same: fp32 is what autocast and FSDP have, none and 0 are no clipping, and where
    alpha is left open any will do.
    """
    if key == "adapter.alpha":
        return one is None
    if isinstance(one, list) or isinstance(other, list):
        return False
    return {one, other} in ({None, "fp32"} if key == "weight_dtype" else None, {None, 0.0})


QLORA = EXAMPLES["lit.yaml"].replace("bf16-true\n", "bf16-true\nquantize: bnb.nf4\nlora_r: 8\nlora_query: true\n")

PREFERENCES = """
base_model: meta-llama/Llama-3.1-8B
rl: dpo
adapter: lora
load_in_8bit: true
lora_r: 8
lora_alpha: 16
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
bf16: true
gradient_checkpointing: true
datasets: [{path: pairs, type: chatml.intel}]
"""


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (EXAMPLES["axolotl.yaml"], ("torchtune",), "axolotl.yaml:5:1: bf16: precision: amp-bf16 is not in torchtune"),
        (EXAMPLES["titan.toml"], ("torchtune", "--gpus", "8"), "nearest: precision=pure-bf16, --precision pure-bf16"),
        (EXAMPLES["megatron.sh"], ("trl",), "nearest: parallel.sharding=zero1, --sharding zero1"),
        (QLORA, ("torchtune",), "torchtune has no setting for quantization=nf4 (nearest: quantization=nf4-double"),
        (EXAMPLES["tune.yaml"], ("trl",), "trl has no setting for loss=chunked:8 (nearest: loss=standard"),
        (
            PREFERENCES,
            ("torchtitan", "--gpus", "8"),
            "under torchtitan (nearest: loss=standard, --loss standard)",
        ),
        (
            PREFERENCES,
            ("torchtitan", "--gpus", "8"),
            "lora is not in torchtitan (nearest: adapter=none, --adapter null)",
        ),
        (
            PREFERENCES,
            ("megatron-lm", "--gpus", "8"),
            "int8 is not in megatron (nearest: quantization=none, --quantization n",
        ),
    ],
)
def test_what_decides_the_job_is_never_dropped(text: str, words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Be it a default of the program: the new files would be another job."""
    name = next((name for name, one in EXAMPLES.items() if one == text), "lit.yaml")
    (tmp_path / name).write_text(text, "utf-8")
    ran = run("convert", tmp_path / name, "--to", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


MIXTRAL = """
base_model: mistralai/Mixtral-8x7B-v0.1
sequence_len: 512
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: adamw_torch_fused
bf16: true
deepspeed: ds.json
"""
NEAREST = re.compile(r"nearest: \S+=\S+, (--[a-z-]+)( [^ ,)]+)?")


@pytest.mark.parametrize("to", ["torchtune", "litgpt"])
def test_the_nearest_can_be_asked_for(to: str, tmp_path: Path) -> None:
    """Each error is followed, as somebody would type it, until there is a file: of another model, shared otherwise."""
    (tmp_path / "mixtral.yaml").write_text(MIXTRAL, "utf-8")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}', "utf-8")
    typed = {"--gpus": " 8"}
    for _ in range(4):
        words = [word for name, value in typed.items() for word in (name, *value.split())]
        ran = run("convert", tmp_path / "mixtral.yaml", "--to", to, *words)
        if ran.code == 0:
            break
        found = dict(NEAREST.findall(ran.err))
        assert found, ran.err
        assert not found.items() <= typed.items(), ran.err
        typed |= found
    assert ran.code == 0, ran.err
    assert typed["--sharding"] == " fsdp"
    assert typed.get("--model") == (" mistral-7b" if to == "torchtune" else None)


def test_what_an_option_says_is_no_change_of_the_program(folder: Path) -> None:
    ran = run("convert", folder / "titan.toml", "--gpus", "8", "--precision", "pure-bf16", "--to", "torchtune")
    assert ran.code == 0, ran.err
    assert "precision=" not in ran.out
    assert "parallel.fsdp_units=blocks (embedding-and-norm-head in torchtitan)" in ran.out


def test_megatrons_adam_is_adamw(tmp_path: Path) -> None:
    words = ("-m", "gpt2", "-g", "h100", "--micro-batch", "1", "--runtime", "megatron", "--checkpointing", "none")
    for name in ("adam", "adamw"):
        ran = run("fit", *words, "--optimizer", name, "--emit", "megatron-lm")
        assert "--optimizer adam " in f"{ran.out} ", ran.err
        assert ("decouples weight decay" in ran.out) == (name == "adamw")
    assert (
        "no setting for optimizer=sgd (nearest: " in run("fit", *words, "--optimizer", "sgd", "--emit", "megatron").err
    )


WAS = {"runtime": "a", "precision": "fsdp-bf16", "max_gradient_norm": None, "hold_outputs": True, "loss": "standard"}


def test_a_job_is_carried_over_key_by_key() -> None:
    own = {"max_gradient_norm": 1.0, "hold_outputs": False, "loss": "chunked:8", "precision": "pure-bf16"}

    def echo(keys: Mapping[str, Any]) -> dict[str, Any]:
        if keys.get("precision") == "fsdp-bf16":
            raise InputError([Problem("is not in b", "precision")])
        return {**own, **keys}

    found = carried({"runtime": "b"}, WAS, echo)
    assert found == {"runtime": "b", "max_gradient_norm": None, "loss": "standard"}
    differing = changes(WAS, echo(found))
    assert differing == {"precision": ("fsdp-bf16", "pure-bf16"), "hold_outputs": (True, False)}
    assert decisive(differing) == ("precision",)
    kept = carried({"runtime": "b"}, WAS, echo, ["max_gradient_norm"])
    assert "max_gradient_norm" not in kept


def test_every_key_of_a_program_is_a_key_of_a_job() -> None:
    assert {row.key for row in table.TABLE} >= MAY_BE_LEFT_OUT


INLINE = """\
[model]
name = "llama3"
flavor = "debugmodel"
[training]
local_batch_size = 1
seq_len = 256
[activation_checkpoint]
mode = "full"
"""


@pytest.mark.parametrize(
    ("more", "to", "said"),
    [
        ((), "trl", "no setting for model=torchtitan llama3 debugmodel (nearest: model=pythia-31m, --model pythia"),
        (
            ("--checkpointing", "selective-op"),
            "litgpt",
            "(nearest: activation_checkpointing=full, --checkpointing full)",
        ),
        (
            ("--model", "gemma-2b", "--precision", "mixed-bf16", "--sharding", "ddp"),
            "megatron-lm",
            "no setting for model=gemma-2b (nearest: model=falcon3-1b, --model falcon3-1b, or ",
        ),
        (("--sharding", "hsdp:4"), "llama-factory", "(nearest: parallel.sharding=fsdp, --sharding fsdp)"),
    ],
)
def test_what_no_program_has_by_itself_has_a_nearest(more: tuple[str, ...], to: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "titan.toml").write_text(INLINE, "utf-8")
    assert said in run("convert", tmp_path / "titan.toml", "--gpus", "8", *more, "--to", to).err


def test_a_number_of_all_gpus_is_none_of_replicas(tmp_path: Path) -> None:
    """Of a file that splits the model: four replicas of two GPUs."""
    text = f"{INLINE}[parallelism]\ntensor_parallel_degree = 2\n"
    (tmp_path / "titan.toml").write_text(text, "utf-8")
    words = ("--gpus", "8", "--no-sequence-parallel", "--loss", "standard", "--model", "llama-3.2-1b")
    ran = run("convert", tmp_path / "titan.toml", *words, "--to", "trl")
    assert ran.err.count("error: ") == 1, ran.err
    assert "no setting for parallel.tensor=2 (nearest: parallel.tensor=1, --tensor 1)" in ran.err


def test_without_an_adapter_what_else_was_typed_of_it_counts_for_nothing(folder: Path) -> None:
    """As somebody types who follows one error after the other: other targets first, and then no adapter at all."""
    words = ("convert", folder / "axolotl.yaml", "--precision", "mixed-bf16", "--optimizer", "adam", "--to", "megatron")
    assert "no setting for adapter.kind=lora" in run(*words, "--targets", "linear_qkv").err
    ran = run(*words, "--targets", "linear_qkv", "--adapter", "null")
    assert ran.code == 0, ran.err
    assert "--num-layers" in ran.out


def test_deepspeeds_first_stage_is_megatrons_distributed_optimizer(tmp_path: Path) -> None:
    """Megatron-DeepSpeed runs ZeRO-1, and Megatron-LM has its own way to share the same states."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1, "overlap_comm": true}}', "utf-8")
    text = "model_name_or_path: meta-llama/Llama-2-7b-hf\nmax_length: 64\nbf16: true\ndeepspeed: ds.json\n"
    (tmp_path / "sft.yaml").write_text(text + "per_device_train_batch_size: 2\n", "utf-8")
    refused = run("convert", tmp_path / "sft.yaml", "--gpus", "8", "--to", "megatron-lm")
    assert dict(NEAREST.findall(refused.err)) == {"--sharding": " distributed-optimizer"}
    typed = ("--gpus", "8", "--sharding", "distributed-optimizer")
    written = run("convert", tmp_path / "sft.yaml", *typed, "--to", "megatron-lm")
    assert written.code == 0, written.err
    assert "--use-distributed-optimizer" in written.out
    assert "--bf16" in written.out


MPT = """\
max_seq_len: 4096
model: {name: hf_causal_lm, pretrained_model_name_or_path: mosaicml/mpt-7b, config_overrides: {max_seq_len: 4096}}
optimizer: {name: decoupled_adamw}
global_train_batch_size: 1
device_train_microbatch_size: 1
precision: amp_bf16
max_duration: 10ba
"""


def test_a_length_beyond_the_model_of_another_program_names_options_that_lead_to_a_file(tmp_path: Path) -> None:
    """LLaMA-Factory has no setting for the positions of a checkpoint."""
    path = tmp_path / "train.yaml"
    path.write_text(MPT)
    words = ("convert", str(path), "--to", "llama-factory", "--gpus", "1")
    refused = run(*words)
    assert "sequence_length=4096" in refused.err
    assert "nearest: sequence_length=2048, --seq 2048 --model mpt-7b" in refused.err
    assert "nearest: model=mpt-7b, --model mpt-7b" in run(*words, "--seq", "2048").err
    assert "cutoff_len: 2048" in run(*words, "--seq", "2048", "--model", "mpt-7b").out


ALL_TENSOR = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 512
[parallelism]
tensor_parallel_degree = 8
data_parallel_shard_degree = 1
[activation_checkpoint]
mode = "full"
"""


def test_tensor_parallelism_on_every_device_shards_nothing_in_torchtune(tmp_path: Path) -> None:
    """Its recipes make no mesh of replicas then: the file is read back with all GPUs counted."""
    path = tmp_path / "train.toml"
    path.write_text(ALL_TENSOR)
    words = ["convert", str(path), "--to", "torchtune"]
    for _ in range(4):  # each error names the option of what it refuses
        found = run(*words)
        if not found.code:
            break
        told = re.findall(r", (--[\w-]+(?: [\w:.-]+)?)\)", found.err)
        assert told, found.err
        words += [word for option in told for word in option.split() if option.split()[0] not in words]
    assert "tensor_parallel_dim: 8" in found.out
    assert "--gpu 8xGPU" in found.out
    back = tmp_path / "torchtune.yaml"
    back.write_text(found.out)
    assert run("fit", str(back), "--gpu", "8xh200").code in (0, 3)


def test_what_the_code_of_a_program_gives_is_said_in_a_sentence(tmp_path: Path) -> None:
    text = "model_name: pythia-160m\nprecision: 32-true\ntokenizer_dir: t\ndevices: 1\n"
    (tmp_path / "lit.yaml").write_text(f"{text}train: {{global_batch_size: 8, max_seq_length: 512}}\n", "utf-8")
    said = run("convert", tmp_path / "lit.yaml", "--to", "megatron-lm").err
    assert "compile: true is not in megatron; it is of litgpt 0.5.13: pretrain.py compiles the model" in said
