"""Programs that are built on Megatron: Megatron-DeepSpeed, and models of images."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job, meant

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


def test_a_language_model_beside_one_of_images() -> None:
    text = (
        "torchrun --nproc_per_node 4 examples/multimodal/train.py --num-layers 2 --hidden-size 64 --use-te --freeze-LM "
        "--num-attention-heads 4 --seq-length 576 --decoder-seq-length 1024 --max-position-embeddings 4096 --bf16 "
        "--micro-batch-size 1 --global-batch-size 8 --language-model-type=mistral_7b --tensor-model-parallel-size 1\n"
    )
    holds(job(text, "run.sh"), sequence_length=1024, target_length=None, gradient_accumulation_steps=2)
    assert "freeze_lm" in meant(text, "run.sh").unmodelled


def test_a_test_of_megatron_whose_batch_is_not_that_of_a_node_asks_for_the_gpus() -> None:
    text = "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n  --num-attention-heads: 2\n  --seq-length: 32\n"
    text += "  --micro-batch-size: 2\n  --global-batch-size: 2\n  --max-position-embeddings: 32\n"
    assert "parallel.data" in meant(text, "model_config.yaml").open
