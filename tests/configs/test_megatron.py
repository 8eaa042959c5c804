"""Scripts and arguments of Megatron-LM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.errors import InputError

SCRIPT = """\
#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=${NODES:-2}
TP=2
WORLD=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINTS=$1
DTYPE="bf16"
MODEL_ARGS=(
    --num-layers 24
    --hidden-size 1024   # a comment
    --num-attention-heads 16
    --seq-length 1024
    --max-position-embeddings 1024
)
TRAINING="
    --micro-batch-size 2 \\
    --global-batch-size $((8 * 16)) \\
    --clip-grad 1.0 \\
    --lr 1e-4 \\
"
if [[ "$DTYPE" == "fp8" ]]; then
    PRECISION=(--bf16 "--fp8-format hybrid")
else
    PRECISION=(--bf16)
fi
if [ -n "$WANDB_API_KEY" ]; then
    MODEL_ARGS+=(--wandb-project own)
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} $TRAINING ${PRECISION[@]} \\
    --tensor-model-parallel-size ${TP} --sequence-parallel --save $CHECKPOINTS
"""


def test_a_script() -> None:
    found = meant(SCRIPT, "a.sh")
    assert (found.program, found.open) == ("megatron-lm", {})
    holds(
        job(SCRIPT, "a.sh"),
        runtime="megatron",
        sequence_length=1024,
        micro_batch_size=2,
        gradient_accumulation_steps=8,  # 128 samples of 2, over 16 GPUs of which 2 split each tensor
        precision="mixed-bf16",
        optimizer="adam",
        parallel__data=8,
        parallel__tensor=2,
        parallel__sequence_parallel=True,
        activation_checkpointing="none",
    )
    assert found.job["model"]["layers"] == 24
    assert found.job["model"]["intermediate_size"] == 4096
    values = {value.key: value for value in found.values}
    assert values["micro_batch_size"].sources[0].line == 15  # where the quoted string begins


def test_a_branch_is_taken_by_the_value_that_the_script_sets() -> None:
    holds(job(SCRIPT.replace('DTYPE="bf16"', 'DTYPE="fp8"'), "a.sh"), precision="fp8")


def test_what_only_the_caller_knows_is_asked_for_by_name() -> None:
    text = SCRIPT.replace("$((8 * 16))", "$3")
    found = meant(text, "a.sh")
    assert "gradient_accumulation_steps" not in found.job
    assert "$3" in found.open["global_batch_size"]


def test_a_sourced_file_holds_arguments(tmp_path: Path) -> None:
    (tmp_path / "CONFIG.sh").write_text(
        'export PARAMS=" ${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} '
        "--num-layers 8 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1 "
        '--global-batch-size ${GBS} --max-position-embeddings 128 --fp16"\n'
    )
    script = (
        "PP=2\nTP=$((16/PP))\nGBS=32\nEXTRA='--activations-checkpoint-method uniform'\nNNODES=4\n. `pwd`/CONFIG.sh\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(script)
    found = job(script, str(path))
    holds(found, parallel__tensor=8, parallel__pipeline=2, activation_checkpointing="full", precision="mixed-fp16")
    holds(found, parallel__data=2, gradient_accumulation_steps=16)  # 4 nodes of 8
    path.with_name("CONFIG.sh").unlink()
    with pytest.raises(InputError, match=r"CONFIG\.sh"):
        meant(script, str(path))


ARGUMENTS = (
    "--num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--micro-batch-size 4 --clip-grad 1.0 --bf16 "
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--recompute-granularity selective", {"activation_checkpointing": "selective"}),
        ("--recompute-granularity full --recompute-method uniform", {"activation_checkpointing": "full"}),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 3",
            {"activation_checkpointing": "every:3"},
        ),
        ("--checkpoint-activations", {"activation_checkpointing": "full"}),  # of 2021
        ("--use-distributed-optimizer", {"parallel__sharding": "distributed-optimizer"}),
        ("--sequence-parallel", {"parallel__sequence_parallel": None}),  # nothing without tensor parallelism
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1",
            {"parallel__schedule": "interleaved:3"},
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 "
            "--microbatch-group-size-per-virtual-pipeline-stage 6",
            {"parallel__schedule": "interleaved:3", "parallel__microbatch_group_size": 6},
        ),
        ("--attention-backend flash --hidden-dropout 0 --attention-dropout 0", {"attention": "flash", "dropout": 0.0}),
        ("--optimizer sgd", {"optimizer": "sgd-momentum"}),
        ("--clip-grad=0.5", {"max_gradient_norm": 0.5}),
    ],
)
def test_arguments_as_text(words: str, expected: dict[str, Any]) -> None:
    holds(job(ARGUMENTS + words + "\n", "-"), **expected)


def test_a_script_that_starts_too_few_gpus_says_so() -> None:
    text = SCRIPT.replace("TP=2", "TP=8").replace("--sequence-parallel", "--pipeline-model-parallel-size 16")
    found = meant(text, "a.sh")
    assert set(found.open) == {"parallel.data"}
    assert found.job["gradient_accumulation_steps"] == 64  # one data-parallel group
    assert any("128 are needed" in note for note in found.notes)


def test_known_sizes_have_the_name_of_a_model() -> None:
    words = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope --vocab-size 128256 "
        "--untie-embeddings-and-output-weights --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 "
        "--clip-grad 1.0 --tensor-model-parallel-size 1\n"
    )
    holds(job(words, "-"), model="llama-3-8b", precision="fp32")


def test_a_decoder_without_a_gate_and_one_with_other_blocks(tmp_path: Path) -> None:
    words = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --group-query-attention --num-query-groups 2 --bf16 "
        "--squared-relu --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear "
        "--tokenizer-type GPTSentencePieceTokenizer --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 "
        "--tensor-model-parallel-size 1 --use-mcore-models\n"
    )
    model = job(words, "-")["model"]
    assert (model["family"], model["key_value_heads"], model["tied_embeddings"]) == ("nemotron", 2, False)
    gelu = job(words.replace("--squared-relu ", ""), "-")["model"]
    assert (gelu["family"], gelu["key_value_heads"], gelu["qkv_bias"]) == ("starcoder2", 2, False)
    old = words.replace("--position-embedding-type rope", "--use-rotary-position-embeddings --no-position-embedding")
    assert job(old, "-")["model"] == model
    path = tmp_path / "own.sh"
    path.write_text(f"torchrun --nproc_per_node 1 pretrain_gpt.py {words}")
    ran = run("fit", str(path), "--gpu", "h100")
    assert "tokens are counted: the tokenizer" in ran.err
    assert ran.code == 0
    assert "model" in meant(words.replace("--bf16", "--bf16 --hybrid-layer-pattern MG*"), "-").open


def test_the_yaml_of_the_functional_tests() -> None:
    text = """\
    ENV_VARS:
      CUDA_DEVICE_MAX_CONNECTIONS: 1
    MODEL_ARGS:
      --num-layers: 12
      --hidden-size: 512
      --num-attention-heads: 8
      --micro-batch-size: 4
      --global-batch-size: 32
      --seq-length: 1024
      --max-position-embeddings: 1024
      --tensor-model-parallel-size: 2
      --context-parallel-size: 2
      --sequence-parallel: true
      --bf16: true
    """
    holds(job(text, "model_config.yaml"), parallel__data=2, gradient_accumulation_steps=4, parallel__context=2)


@pytest.mark.parametrize("word", ["--tensor-model-paralel-size 2", "--fp8-fromat hybrid", "--own-flag"])
def test_an_argument_that_is_not_known_is_an_error(word: str) -> None:
    with pytest.raises(InputError, match="is not understood"):
        meant(ARGUMENTS + word + "\n", "-")


def test_what_only_the_caller_gives_is_answered_by_an_option(tmp_path: Path) -> None:
    path = tmp_path / "own.sh"
    path.write_text(
        "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --bf16 "
        "--seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 --global-batch-size $4\n"
    )
    words = ("fit", str(path), "--gpu", "h100", "--print", "verdict")
    asked = run(*words)
    assert asked.code == 2
    assert "leaves global_batch_size open, --global-batch-size is $4" in asked.err
    assert run(*words, "--grad-accum", "3").code == 0
    assert run(*words, "--global-batch", "8").code == 0


def test_sizes_that_only_the_caller_knows_are_one_question() -> None:
    """A model answers them all; the split and the batch are asked for by their own options."""
    text = """
        torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN} \\
            --ffn-hidden-size ${INNER} --num-attention-heads ${HEADS} --seq-length 2048 --micro-batch-size 1 \\
            --global-batch-size 8 --tensor-model-parallel-size $1 --swiglu --normalization RMSNorm --bf16 \\
            --optimizer-cpu-offload --optimizer-offload-fraction $2
    """
    found = meant(text, "run.sh")
    assert set(found.open) == {"model", "parallel.tensor"}
    assert "model" not in found.job


@pytest.mark.parametrize("program", ["evaluate_huggingface_llama.py", "preprocess_data.py", "merge_mp_partitions.py"])
def test_programs_beside_training_are_refused(program: str) -> None:
    text = f"python {program} --num-layers 2 --hidden-size 64 --num-attention-heads 2 --tensor-model-parallel-size 1"
    with pytest.raises(InputError, match="trains nothing"):
        meant(text, "run.sh")


def test_a_model_with_a_retriever_is_refused() -> None:
    text = "python pretrain_retro.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --retro-add-retriever"
    with pytest.raises(InputError, match="retrieved texts"):
        meant(text, "run.sh")


def test_experts_without_groups_have_keys_of_every_head() -> None:
    text = """
        torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --fp16 \\
            --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --num-experts 4 \\
            --num-layers-per-virtual-pipeline-stage $1 --pipeline-model-parallel-size 2 --vocab-size 50304
    """
    found = meant(text, "run.sh")
    assert found.job["model"]["key_value_heads"] == 12
    assert "parallel.schedule" in found.open


def test_what_a_branch_adds_that_the_caller_decides_is_asked_for() -> None:
    script = """
        PR=$1
        if [ $PR = fp16 ]; then
            pr_options="--fp16"
        elif [ $PR = bf16 ]; then
            pr_options="--bf16"
        fi
        case $2 in
            full) ac_options="--recompute-method uniform --recompute-granularity full" ;;
        esac
        torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 \\
            --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 {more} $pr_options $ac_options $EXTRA_ARGS
    """
    found = meant(script.format(more=""), "run.sh")
    assert "--bf16" in found.open["precision"]
    assert "--recompute-granularity" in found.open["activation_checkpointing"]
    said = meant(script.format(more="--bf16 --recompute-activations"), "run.sh")
    assert said.job["precision"] == "mixed-bf16"
    assert said.job["activation_checkpointing"] == "selective"
    plain = meant(script.format(more="").replace("$pr_options $ac_options", ""), "run.sh")
    assert (plain.job["precision"], plain.job["activation_checkpointing"]) == ("fp32", "none")


def test_a_script_that_converts_is_no_training_of_another_program() -> None:
    text = "torchrun impl/convert.py --lr-decay-iters 9 --eval-iters 1 --eval-interval 1 --no-load-optim --load-dir x\n"
    with pytest.raises(InputError, match=r"convert\.py generates, evaluates or converts"):
        meant(text, "run.sh")


@pytest.mark.parametrize(
    ("file", "tokens"),
    [
        ("/data/gpt2-vocab.json", 50257),
        ("$1", 50257),
        ("<path>/vocab.json", 50257),
        ("/tokenizers/own_131072/vocab.json", None),
        ("/models/bloom-560m/vocab.json", 250880),
    ],
)
def test_a_vocabulary_that_somebody_has_made_is_asked_for(file: str, tokens: int | None) -> None:
    words = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu --seq-length "
    words += "64 --max-position-embeddings 4096 --normalization RMSNorm --use-rotary-position-embeddings --micro-batch"
    words += "-size 1 --untie-embeddings-and-output-weights --tokenizer-type GPT2BPETokenizer --vocab-file"
    found = meant(f"torchrun --nproc_per_node 8 pretrain_gpt.py {words} {file}\n", "run.sh")
    if tokens is None:
        assert found.open == {"model.vocabulary_size": "--vocab-file says how many tokens there are"}
        return
    model = found.job["model"]
    shape = model if isinstance(model, dict) else {"vocabulary_size": 50257}  # a profile of these sizes
    assert (shape["vocabulary_size"], found.open) == (tokens, {})


def test_the_devices_of_a_copy_of_megatron_for_mpirun() -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    text = f"mpirun -x A python pretrain_gpt.py {sizes} --micro-batch-size 1 --global-batch-size 16 --bf16 "
    text += "--tensor-model-parallel-size 2 --rank $RANK --world-size 8 --dist-url tcp://host:1\n"
    found = meant(text, "own.sh")
    holds(found.job, gradient_accumulation_steps=4)
    assert found.job["parallel"]["data"] == 4
    assert "dist_url" in {one.key for one in found.without_effect}
