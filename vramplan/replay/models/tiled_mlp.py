"""Of which model types an MLP can run in tiles along the sequence.

Source: axolotl 0.19.0, monkeypatch/tiled_mlp/patch.py, patch_tiled_mlp, beside the modules of Transformers 5.23.0: it
replaces the class that has the name of the model and MLP, or TextMLP.
"""

from __future__ import annotations

TILED = (
    *("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "glm", "glm4", "granite", "olmo", "olmo2"),
    *("olmo3", "phi", "phi3", "starcoder2", "gpt2", "gpt_neox", "gpt_neo", "falcon", "cohere", "cohere2", "stablelm"),
    *("nemotron", "arcee", "apertus", "helium", "seed_oss", "hunyuan_v1_dense", "ernie4_5", "exaone4", "ministral3"),
)
"""Model types each block of which has one MLP of that class, and no other."""

STOPS = {
    **dict.fromkeys(("opt", "mixtral", "llava", "qwen2_vl", "qwen2_5_vl", "mistral3"), "it has no class of that name"),
    **dict.fromkeys(("gemma3_text", "gemma4_text", "llama4_text", "qwen3_5_text"), "it has no file of that name"),
    **dict.fromkeys(("bloom", "mpt"), "its MLP is given the residual too"),
}
"""Model types at which Axolotl stops, and why."""
