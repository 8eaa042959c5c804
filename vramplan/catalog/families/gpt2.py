"""GPT-2 (models/gpt2/configuration_gpt2.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, Peft, four_times, same_heads

TYPES = {
    "gpt2": ModelType(
        config="GPT2Config",
        family="gpt2",
        tasks=("lm", "cls"),
        peft=Peft(
            norms=("ln_1", "ln_2", "ln_f"),
            of_kind={"fourierft": ("mlp.c_proj",)},
            lora=("c_attn",),
            ia3=("c_attn", "mlp.c_proj"),
            ia3_feedforward=("mlp.c_proj",),
            fused="c_attn",
        ),
        defaults={
            "vocabulary_size": 50257,
            "max_positions": 1024,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "key_value_heads": same_heads,
            "intermediate_size": four_times,  # n_inner is None
            "activation": "gelu_new",
            "tied_embeddings": True,
            "embedding_dropout": 0.1,
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
            "sliding_window": None,
        },
        fixed={
            "gated_mlp": False,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "positions": "learned",
            "token_types": 0,
        },
        keys={
            "n_layer": ("layers", COUNT),
            "n_embd": ("hidden_size", COUNT),
            "n_head": ("attention_heads", COUNT),
            "n_inner": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "n_positions": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "activation_function": ("activation", TEXT),
            "embd_pdrop": ("embedding_dropout", RATIO),
            "attn_pdrop": ("attention_dropout", RATIO),
            "resid_pdrop": ("hidden_dropout", RATIO),
            # the names of the other classes are accepted by GPT2Config too (its attribute_map)
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
        },
        refused=("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"),
    ),
}
