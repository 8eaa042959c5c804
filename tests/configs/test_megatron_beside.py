"""Programs that are built on Megatron: Megatron-DeepSpeed, and models of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.catalog.models import find_model
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

pytestmark = pytest.mark.contract

DEEPSPEED = """\
ZERO_STAGE=2
DTYPE="bf16"
cat <<EOT > ds_config.json
{"zero_optimization": {"stage": $ZERO_STAGE}}
EOT
ds_args=" --deepspeed --deepspeed_config=ds_config.json --zero-stage=$ZERO_STAGE --no-pipeline-parallel"
run_cmd="deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 2 \\
    --ds-sequence-parallel-size 2 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
    --num-key-value-heads 8 --swiglu --normalization rmsnorm --untie-embeddings-and-output-weights \\
    --tokenizer-model mistralai/Mistral-7B-v0.1 --seq-length 2048 --max-position-embeddings 32768 \\
    --micro-batch-size 1 --global-batch-size 32 --${DTYPE} --use-flash-attn-v2 --cpu-optimizer \\
    --checkpoint-activations --deepspeed-activation-checkpointing --num-experts 1 --train-tokens 1000 \\
    ${ds_args} &> log/own.log"
eval ${run_cmd}
"""


def test_megatron_deepspeed() -> None:
    found = meant(DEEPSPEED, "run.sh")
    assert "deepspeed_config" in found.unmodelled
    holds(
        job(DEEPSPEED, "run.sh"),
        model="mistral-7b",  # by the vocabulary of the tokenizer that is named
        parallel__sharding="zero2",
        parallel__tensor=2,
        parallel__context=2,
        parallel__data=4,
        gradient_accumulation_steps=8,
        offload=["gradients", "optimizer"],
        precision="mixed-bf16",
        attention="flash",
        activation_checkpointing="full",
    )
    pyramid = DEEPSPEED.replace("--num-experts 1", "--num-experts 4 4 8")
    assert "counted with 8" in meant(pyramid, "run.sh").unmodelled["num_experts"]
    holds(job(DEEPSPEED.replace("ZERO_STAGE=2", "ZERO_STAGE=0"), "run.sh"), parallel__sharding="ddp")


WHOLE = DEEPSPEED.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 1")


def test_stages_that_megatron_has_no_code_of_are_the_engine_of_deepspeed_around_a_whole_model() -> None:
    holds(job(WHOLE, "run.sh"), runtime="deepspeed", parallel__sharding="zero2", parallel__context=2, parallel__data=8)
    assert "Transformers" in meant(WHOLE, "run.sh").unmodelled["deepspeed"]
    eager = WHOLE.replace("--use-flash-attn-v2 ", "").replace(
        "ds-sequence-parallel-size 2", "ds-sequence-parallel-size 1"
    )
    holds(job(eager, "run.sh"), runtime="deepspeed", attention="eager")
    holds(job(DEEPSPEED, "run.sh"), runtime="megatron")  # split layers are Megatron's


def test_stage_1_beside_parts_of_sequences_is_counted_as_the_distributed_optimizer() -> None:
    first = WHOLE.replace("ZERO_STAGE=2", "ZERO_STAGE=1").replace("--cpu-optimizer", "")
    holds(job(first, "run.sh"), runtime="megatron", parallel__sharding="distributed-optimizer", offload=None)
    assert "distributed optimizer" in meant(first, "run.sh").unmodelled["zero_stage"]
    apart = first.replace("ds-sequence-parallel-size 2", "ds-sequence-parallel-size 1")
    holds(job(apart, "run.sh"), parallel__sharding="zero1")
    experts = apart.replace(
        "--num-experts 1", "--num-experts 8 --moe-expert-parallel-size 4"
    )  # which are not Megatron's
    holds(job(experts, "run.sh"), parallel__sharding="distributed-optimizer", parallel__expert=4)


def test_a_language_model_beside_one_of_images() -> None:
    text = (
        "torchrun --nproc_per_node 4 examples/multimodal/train.py --num-layers 2 --hidden-size 64 --use-te --freeze-LM "
        "--num-attention-heads 4 --seq-length 576 --decoder-seq-length 1024 --max-position-embeddings 4096 --bf16 "
        "--micro-batch-size 1 --global-batch-size 8 --language-model-type=mistral_7b --tensor-model-parallel-size 1\n"
    )
    holds(job(text, "run.sh"), sequence_length=1024, target_length=None, gradient_accumulation_steps=2)
    assert "--frozen none counts all of it as trained" in meant(text, "run.sh").open["frozen"]
    assert "frozen" in meant(text.replace("--freeze-LM ", "--freeze-llm true "), "run.sh").open
    assert "frozen" not in meant(text.replace("--freeze-LM ", "--freeze-llm false "), "run.sh").open
    assert "frozen" not in meant(text.replace("--freeze-LM ", "--freeze-ViT "), "run.sh").open


def test_what_is_asked_for_beside_a_frozen_language_model_may_be_left_out(tmp_path: Path) -> None:
    text = (
        "torchrun --nproc_per_node 1 train.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
        "--max-position-embeddings 32 --bf16 --micro-batch-size 1 --global-batch-size 2 --vocab-size 500 --freeze-LM\n"
    )
    (tmp_path / "run.sh").write_text(text)
    words = ("fit", tmp_path / "run.sh", "--from", "megatron-lm", "--gpu", "h100")
    assert "leaves frozen open" in run(*words).err
    assert run(*words, "--frozen", "none", "--print", "verdict").out.strip() == "fits"


@pytest.mark.parametrize(("provider", "asked"), [("own_images", True), ("gpt", False)])
def test_a_model_that_a_provider_makes_is_asked_for(provider: str, asked: bool) -> None:
    text = (
        "torchrun --nproc_per_node 2 examples/mimo/train.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
        "--seq-length 32 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --vocab-size 500 "
        f"--model-provider {provider}\n"
    )
    found = meant(text, "run.sh")
    assert ("model" in found.open) == asked
    assert ("model" in found.job) != asked


def test_a_test_of_megatron_whose_batch_is_not_that_of_a_node_asks_for_the_gpus() -> None:
    text = "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n  --num-attention-heads: 2\n  --seq-length: 32\n"
    text += "  --micro-batch-size: 2\n  --global-batch-size: 2\n  --max-position-embeddings: 32\n"
    assert "parallel.data" in meant(text, "model_config.yaml").open


PAI = """\
MODEL_SIZE=$1
MBS=$2
if [ $MODEL_SIZE = 8B ]; then
EXTRA_VOCAB_SIZE=256
sizes=" --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336"
gqa_options=" --group-query-attention --num-query-groups 8"
fi
run_cmd="torchrun --nproc_per_node 8 pretrain_llama.py ${sizes} --seq-length 128 --micro-batch-size $MBS \\
    --global-batch-size 8 --max-position-embeddings 131072 --max-padding-length 128 --tensor-model-parallel-size 4 \\
    --extra-vocab-size ${EXTRA_VOCAB_SIZE} --patch-tokenizer-type LLama3Tokenizer --swiglu --normalization RMSNorm \\
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --bf16 \\
    --dataset LLama-Pretrain-Idxmap --train-mode pretrain --use-distributed-optimizer ${sp_options} ${gqa_options}"
eval ${run_cmd}
"""


def test_pai_megatron_patch_called_with_arguments(tmp_path: Path) -> None:
    (tmp_path / "run_mcore.sh").write_text(PAI)
    (tmp_path / "own.sh").write_text("sh run_mcore.sh \\\n8B \\\n2\n")
    found = read_files([str(tmp_path / "own.sh")], Wanted())
    assert list(found.notes) == ["nothing sets $sp_options: no arguments are read from there"]
    assert found.job["model"] == "llama-3.1-8b"
    assert found.job["micro_batch_size"] == 2
    assert found.job["parallel"]["sharding"] == "distributed-optimizer"


def test_heads_of_another_size_are_another_model() -> None:
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 64 --hidden-size 5120 --num-attention-heads 64 "
        "--ffn-hidden-size 25600 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
        "--position-embedding-type rope --qk-layernorm --vocab-size 151936 --seq-length 4096 --micro-batch-size 1 "
        "--max-position-embeddings 40960 --untie-embeddings-and-output-weights --attention-backend unfused "
        "--use-flash-attn"
    )
    assert job(text, "run.sh")["model"]["qk_norm"] is True
    holds(job(text, "run.sh"), attention="eager")
    holds(job(f"{text} --kv-channels 128", "run.sh"), model="qwen3-32b")


def test_the_width_of_experts() -> None:
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
        "--ffn-hidden-size 2048 --num-experts 8 --moe-ffn-hidden-size 256 --moe-router-topk 2 --swiglu "
        "--normalization RMSNorm --position-embedding-type rope --vocab-size 32000 --seq-length 128 "
        "--max-position-embeddings 128 --micro-batch-size 1"
    )
    assert job(text, "run.sh")["model"]["intermediate_size"] == 256


def test_bigsciences_scripts_train_bloom_and_share_its_states() -> None:
    """BF16_Optimizer of DeepSpeed's pipeline engine shares fp32 states at stage 0; the ends count as blocks."""
    text = (
        "deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --bf16 "
        "--seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --pipeline-model-parallel-size 2 --deepspeed "
        "--zero-stage 0 --position-embedding-type alibi --embed-layernorm --pad-vocab-size-to 250880 "
        "--pp-partition-method 'type:transformer|embedding' --abort-on-unmet-fused-kernel-constraints\n"
    )
    found = job(text, "run.sh")
    holds(found, model="bloom-1b7", parallel__sharding="zero1", parallel__pipeline_split="embedding-and-head")
    holds(job(text.replace("--bf16", "--fp16"), "run.sh"), parallel__sharding="ddp")


HYBRID = (
    "torchrun --nproc_per_node 8 pretrain_hybrid.py --hidden-size 4096 --ffn-hidden-size {inner} --squared-relu "
    "--normalization RMSNorm --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--mamba-num-heads 128 --mamba-head-dim 64 --hybrid-layer-pattern {pattern} --vocab-size 131072 --seq-length 4096 "
    "--micro-batch-size 1 --untie-embeddings-and-output-weights --disable-bias-linear --max-position-embeddings 8192 "
    "--bf16"
)
PUBLISHED = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"


def test_a_pattern_of_blocks_is_a_model() -> None:
    holds(job(HYBRID.format(inner=21504, pattern=PUBLISHED), "run.sh"), model="nemotron-h-8b")
    own = job(HYBRID.format(inner=8192, pattern="M-M*"), "run.sh")["model"]
    assert own["family"] == "nemotron_h"
    assert own["state_space"]["layers"] == [0, 2]
    assert own["state_space"]["feedforward_layers"] == [1]
    assert (own["state_space"]["heads"], own["state_space"]["groups"], own["head_size"]) == (128, 8, 128)
    assert "has experts" in meant(HYBRID.format(inner=8192, pattern="MEM*"), "run.sh").open["model"]
    assert "$PATTERN" in meant(HYBRID.format(inner=8192, pattern="$PATTERN"), "run.sh").open["model"]


@pytest.mark.parametrize(("kind", "vocabulary"), [("mistral_7b", 32768), ("llama3_8b", 128256)])
def test_the_word_for_a_language_model_beside_images_tells_its_vocabulary(kind: str, vocabulary: int) -> None:
    """Both have the same sizes; the tokenizer is the caller's."""
    text = (
        "torchrun examples/multimodal/train.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu "
        "--ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --normalization RMSNorm --bf16 "
        "--position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --seq-length 576 "
        "--decoder-seq-length 2048 --max-position-embeddings 4096 --micro-batch-size 1 --tokenizer-model $OWN "
        f"--tokenizer-type HuggingFaceTokenizer --language-model-type={kind}\n"
    )
    found = find_model(job(text, "own.sh")["model"])[0]
    assert abs(found.vocabulary_size - vocabulary) <= 768


def test_a_program_that_only_the_caller_names_has_the_options_behind_it() -> None:
    text = """\
    SCRIPT=$1
    LAUNCH=(--nproc_per_node 4 --nnodes 2)
    torchrun ${LAUNCH[@]} $SCRIPT --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \\
      --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 8 --bf16
    """
    found = job(text, "run.sh", program="megatron-lm")
    assert (found["parallel.data"], found["micro_batch_size"]) == (8, 1)


def test_a_model_of_images_is_refused_by_its_program() -> None:
    text = "python pretrain_vision_classify.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --bf16\n"
    with pytest.raises(InputError, match="a model of images"):
        meant(text, "run.sh", program="megatron-lm")
