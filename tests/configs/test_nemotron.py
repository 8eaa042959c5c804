"""Nemotron by its sizes: a square of ReLU, no gate, and rotary positions, in files of NeMo and of Megatron-LM."""

from __future__ import annotations

import pytest

from tests.configs.meant import job

NEMO = """\
trainer: {{devices: 8, num_nodes: 1, precision: bf16}}
model:
  micro_batch_size: 1
  global_batch_size: 32
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: {layers}
  hidden_size: 6144
  ffn_hidden_size: 24576
  num_attention_heads: 48
  normalization: layernorm1p
  activation: {activation}
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  bias: false
  megatron_amp_O2: true
"""
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} --hidden-size 6144 --num-attention-heads 48 "
    "--ffn-hidden-size 24576 {activation} --position-embedding-type rope --disable-bias-linear --seq-length 4096 "
    "--untie-embeddings-and-output-weights --max-position-embeddings 4096 --micro-batch-size 1 --bf16\n"
)


@pytest.mark.parametrize(
    ("layers", "nemo", "megatron", "family"),
    [
        (40, "squared-relu", "--squared-relu", "nemotron-3-22b"),  # whose 256,000 tokens are counted
        (20, "squared-relu", "--squared-relu", "nemotron"),
        (20, "gelu", "", "starcoder2"),
    ],
)
def test_a_square_of_relu_without_a_gate_is_nemotron(layers: int, nemo: str, megatron: str, family: str) -> None:
    texts = {"a.yaml": NEMO.format(layers=layers, activation=nemo)}
    texts["a.sh"] = MEGATRON.format(layers=layers, activation=megatron)
    for file, text in texts.items():
        model = job(text, file)["model"]
        assert model == family if isinstance(model, str) else model["family"] == family
