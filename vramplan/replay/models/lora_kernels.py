"""Of which model types Axolotl's fused LoRA replaces what.

Source: axolotl 0.19.0, monkeypatch/lora_kernels.py, against the code of Transformers 5.23: it rewrites the forward pass
of an attention whose text it knows, and stops at another; it replaces the MLP of a block that has three gated layers.
"""

from __future__ import annotations

MLP, QKV, OUTPUT = "mlp", "qkv", "o"
OUTPUT_LAYER = "o_proj"
LAYERS = {
    MLP: ("gate_proj", "up_proj", "down_proj"),
    QKV: ("q_proj", "k_proj", "v_proj"),
    OUTPUT: (OUTPUT_LAYER,),
}
"""The layers that each function is of, which all need an adapter."""

EVERY, OF_ATTENTION = (MLP, QKV, OUTPUT), (QKV, OUTPUT)

FUSED = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text"), EVERY),
    **dict.fromkeys(("granite", "helium", "ernie4_5", "ministral3", "hunyuan_v1_dense", "gemma3"), EVERY),
    **dict.fromkeys(("exaone4", "cohere2"), EVERY),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "gpt_oss"), OF_ATTENTION),
    **dict.fromkeys(("glm", "glm4", "arcee", "nemotron", "starcoder2", "apertus"), OF_ATTENTION),
}
"""By the model type of Transformers: the functions that run, of those that are asked for. Experts are none of an MLP,
nor are layers of which one is two, or none has a gate."""

STOPS = (
    *("olmo", "olmo2", "olmo3", "olmoe", "phi3", "glm4_moe", "cohere", "stablelm", "llama4_text"),
    *("deepseek_v2", "deepseek_v3", "mllama", "falcon_h1"),
)
"""Types at whose attention Axolotl stops."""

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new")
"""Of a gated MLP; Axolotl stops at another."""
