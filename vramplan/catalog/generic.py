"""A `config.json` of a model type that is not modelled, read by the keys that most decoders have.

The answer is that of the known model type whose blocks the keys describe: Llama's, Mistral's with a window, Qwen3's
with normalised queries and keys, StarCoder2's without a gate, Mixtral's or Qwen's with experts, DeepSeek's with latent
attention. What no key says (norms between the layers, what is kept in which element type) is taken from that type, so
the peak has a band of its own: `UNKNOWN_TYPE` of vramplan/planner/bands.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.catalog.config_classes import MODEL_TYPES, OTHERWISE
from vramplan.catalog.fields import Fields, nearest, shown
from vramplan.catalog.shapes import KNOWN_FAMILIES, MAX_LAYERS
from vramplan.engines import imported
from vramplan.values.job import Assumption

NEEDED = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
"""What every decoder has, each under the names that configurations have for it, the usual one first."""

OTHERS = {
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "d_ff"),
    "head_dim": ("head_dim", "kv_channels"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_top_k",
        "moe_topk",
    ),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_expert_intermediate_size": ("shared_expert_intermediate_size",),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
    "first_k_dense_replace": ("first_k_dense_replace",),
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
}
"""The same of what some have."""

ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")
QK_NORMS = ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm")
WITHOUT_GATE = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon")
ENCODER = "vramplan.catalog.scope:ENCODER"  # where a sentence stands that is told of names too
PAIR = "vramplan.catalog.scope:PAIR"
IMAGE = "vramplan.catalog.scope:DETECTION"
IMAGE_AND_TEXT = "vramplan.catalog.scope:VISION_LANGUAGE"
SOUND = "vramplan.catalog.scope:SPEECH"
RECURRENT = "vramplan.catalog.scope:RECURRENT"
HYBRID = "vramplan.catalog.scope:HYBRID"
NOT_A_DECODER = {
    "vision_config": IMAGE_AND_TEXT,
    "vq_config": IMAGE_AND_TEXT,
    "audio_config": SOUND,
    "codec_config": SOUND,
    "audio_encoder_config": SOUND,
    "feat_proj_dropout": SOUND,
    "audio_token_id": SOUND,
    "spectrogram_bins": SOUND,
    "num_mel_bins": SOUND,
    "is_encoder_decoder": PAIR,
    "image_size": IMAGE,
    "num_channels": IMAGE,
    "type_vocab_size": ENCODER,
    "type_vocab_sizes": ENCODER,
    "max_relative_positions": ENCODER,
    "attn_type": ENCODER,
    "ssm_cfg": RECURRENT,
    "lru_width": RECURRENT,
    "mamba_num_heads": RECURRENT,
    "mamba_n_heads": RECURRENT,
    "mamba_d_state": RECURRENT,
    "linear_num_key_heads": HYBRID,
    "linear_attn_config": HYBRID,
    "conv_L_cache": HYBRID,
    "hidden_size_per_layer_input": "vramplan.catalog.scope:LATER_GEMMA",
    "protein_encoder_config": "vramplan.catalog.scope:PROTEINS",
}
"""Keys of models that are something else, whose language model's keys would not say what is trained; and what can be
asked in their place."""

OTHER_TASKS = {
    **dict.fromkeys(("ForCTC", "ForAudioClassification", "ForXVector", "ForSpeechSeq2Seq"), SOUND),
    **dict.fromkeys(("ForImageClassification", "ForObjectDetection", "ForSemanticSegmentation"), IMAGE),
}
"""The same of how the name of an architecture ends."""

ATTENTIONS = (
    *("full_attention", "sliding_attention", "chunked_attention", "attention", "full", "sliding"),
    "indexed_attention",  # of chosen keys and values: answered without what chooses them, as the profiles of GLM-5 are
)
LAYER_TYPES = ("layer_types", "layers_block_type", "block_types")
"""Lists of what each block is, and what of it is attention over keys and values."""

INSIDE = ("attn_config", "ffn_config")
"""Mappings inside of a configuration that have a part of the keys: those of DBRX and MPT."""

UNGATED = "relu2"  # the activation of Arcee, Nemotron and others, each of which has no gate

WIDTH_FACTOR = 4  # of a feed-forward layer over the model where no key says how wide it is: GPT's


class Generic:
    """What was found in a configuration, in the fields of a known model type, and what was assumed."""

    def __init__(self, fields: Fields, model_type: str) -> None:
        self.fields, self.model_type = fields, model_type
        inside = (fields.fields(key) for key in INSIDE if fields.given(key))
        self.parts = (fields, *(one for one in inside if one is not None))
        self.values: dict[str, Any] = {}
        self.told: list[Assumption] = []

    def read(self) -> tuple[dict[str, Any], tuple[Assumption, ...]]:
        """The fields of the model. Notes each needed key that is missing, by its usual name."""
        fields = self.fields
        if self.model_type in OTHERWISE:
            fields.refuse("model_type", f"{shown(self.model_type)} is not modelled: {OTHERWISE[self.model_type]}")
            return {}, ()
        other = next(self._signs(), None)
        if other is not None:
            sign, instead = other
            message = f"{shown(self.model_type)} is not modelled, and {sign} says that it is no plain decoder"
            fields.refuse("model_type", message, hint=imported(instead))
            return {}, ()
        found = {key: self._count(names) for key, names in {**NEEDED, **OTHERS}.items()}
        for key in NEEDED:
            if found[key] is None:
                message = f"required key is missing: {shown(self.model_type)} is read by the usual keys of a decoder"
                fields.problem(key, message, hint=f"also read: {', '.join(NEEDED[key][1:])}")
        if any(found[key] is None for key in NEEDED):
            self._unknown()
            return {}, ()
        self._sizes(found)
        self._kind(found)
        return self.values, tuple(self.told)

    def _signs(self) -> Iterator[tuple[str, str]]:
        """What says that the model is no plain decoder, and what can be asked in its place."""
        fields = self.fields
        for key, instead in NOT_A_DECODER.items():
            if fields.given(key) and str(fields.value(key)) not in ("False", "0"):
                yield key, instead
        names = fields.value("architectures") if fields.given("architectures") else None
        for name in names if isinstance(names, list) else ():
            yield from (("architectures", instead) for end, instead in OTHER_TASKS.items() if str(name).endswith(end))
        for key in LAYER_TYPES:
            kinds = fields.value(key) if fields.given(key) else None
            for kind in kinds if isinstance(kinds, list) else ():
                if kind not in ATTENTIONS:
                    yield f"{shown(str(kind))} in {key}", HYBRID

    def _unknown(self) -> None:
        """Refuse the model type, as a file without the usual keys may be misspelt, or of another kind of model."""
        word = self.model_type
        near = None if word in KNOWN_FAMILIES else nearest(word, (*MODEL_TYPES, *KNOWN_FAMILIES))
        listed = "`vramplan models` lists what is; give a model of the same sizes, or a mapping with family and sizes"
        self.fields.refuse("model_type", f"{shown(word)} is not modelled", hint=near or listed)

    def _count(self, names: tuple[str, ...]) -> int | None:
        for fields in self.parts:
            name = next((one for one in names if fields.given(one)), None)
            if name is not None:
                return fields.integer(name, minimum=0 if name.startswith(("n_sh", "fir")) else 1)
        return None

    def _assume(self, field: str, value: Any, why: str) -> None:
        self.values[field] = value
        self.told.append(Assumption(f"model.{field}", value, why))

    def _flag(self, *names: str) -> bool | None:
        name = next((one for one in names if self.fields.given(one)), None)
        return None if name is None else self.fields.boolean(name)

    def _sizes(self, found: dict[str, int | None]) -> None:
        values, hidden = self.values, found["hidden_size"]
        assert hidden is not None
        values |= {
            "layers": found["num_hidden_layers"],
            "hidden_size": hidden,
            "attention_heads": found["num_attention_heads"],
            "key_value_heads": found["num_key_value_heads"] or found["num_attention_heads"],
            "vocabulary_size": found["vocab_size"],
            "max_positions": found["max_position_embeddings"],
            "head_size": found["head_dim"],
        }
        if self.fields.boolean("multi_query"):
            values["key_value_heads"] = 1
        if found["intermediate_size"] is not None:
            values["intermediate_size"] = found["intermediate_size"]
        elif found["moe_intermediate_size"] is None:
            self._assume("intermediate_size", WIDTH_FACTOR * hidden, "no key says how wide the feed-forward layer is")
        tied = self._flag("tie_word_embeddings")
        if tied is None:
            self._assume("tied_embeddings", False, "no key tie_word_embeddings")
        else:
            values["tied_embeddings"] = tied

    def _kind(self, found: dict[str, int | None]) -> None:
        """The model type whose blocks the keys describe."""
        values, fields = self.values, self.fields
        named = next((one for one in ACTIVATIONS if fields.given(one)), None)
        activation = "silu" if named is None else str(fields.text(named))
        values["activation"] = "silu" if activation in ("swiglu", "swish", "swigluoai") else activation
        bias = self._flag("attention_bias", "qkv_bias", "use_bias", "bias")
        normed = self._flag(*QK_NORMS)
        window = fields.integer("sliding_window", minimum=0) if fields.given("sliding_window") else None
        if fields.given("use_sliding_window") and not fields.boolean("use_sliding_window"):
            window = None
        if found["num_experts"] is not None and found["num_experts"] > 1:
            self._experts(found, bool(normed))
            return
        values["sliding_window"] = window or None
        values["qkv_bias"] = bool(bias)
        if values["activation"] == UNGATED:
            values["transformers_model_type"] = "arcee"
            del values["sliding_window"]
            values["output_bias"] = bool(bias)
            values["mlp_bias"] = bool(self._flag("mlp_bias"))
        elif any(fields.given(key) for key in WITHOUT_GATE) and not fields.given("rms_norm_eps"):
            if named is not None and values["activation"] == "silu" and not window:  # whose layer norms are no hint
                values["transformers_model_type"] = "stablelm"
                del values["sliding_window"]
                values["partial_rotary_factor"] = 1.0
                return
            values["transformers_model_type"] = "starcoder2"
            values["qkv_bias"] = bias is not False
        elif normed:
            values["transformers_model_type"] = "qwen3"
            values["output_bias"] = bool(bias)
            values["sliding_window_start"] = 0
        elif window:
            values["transformers_model_type"] = "mistral"
            values["output_bias"] = False
            values["mlp_bias"] = False
        else:
            values["transformers_model_type"] = "llama"
            del values["sliding_window"]
            values["output_bias"] = bool(bias)
            values["mlp_bias"] = bool(self._flag("mlp_bias"))

    def _experts(self, found: dict[str, int | None], normed: bool) -> None:
        values = self.values
        values |= {"experts.count": found["num_experts"], "experts.active": found["num_experts_per_tok"]}
        if found["num_experts_per_tok"] is None:
            message = "required key is missing: how many experts each token is sent to"
            self.fields.problem("num_experts_per_tok", message)
        width = found["moe_intermediate_size"] or values["intermediate_size"]
        values.setdefault("intermediate_size", width)
        dense = tuple(range(min(found["first_k_dense_replace"] or 0, values["layers"], MAX_LAYERS)))
        values["experts.intermediate_size"] = width
        shared = found["shared_expert_intermediate_size"]
        if shared is None and found["n_shared_experts"]:
            shared = found["n_shared_experts"] * width
        if found["kv_lora_rank"] is not None:
            self._latent(found, dense)
        elif shared:
            values |= {"transformers_model_type": "qwen2_moe", "experts.shared_intermediate_size": shared}
            values |= {"experts.dense_layers": dense, "experts.normalized": self._normalized(), "qkv_bias": False}
        elif normed or dense:
            values |= {"transformers_model_type": "qwen3_moe", "experts.dense_layers": dense, "qkv_bias": False}
            values["experts.normalized"] = self._normalized()
        else:
            values["transformers_model_type"] = "mixtral"
            values["intermediate_size"] = width
            del values["experts.intermediate_size"]

    def _latent(self, found: dict[str, int | None], dense: tuple[int, ...]) -> None:
        """DeepSeek's latent attention, whose sizes are all needed."""
        values = self.values
        for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            if found[key] is None:
                self.fields.problem(key, "required key is missing beside kv_lora_rank")
        values |= {
            "transformers_model_type": "deepseek_v3",
            "experts.shared": found["n_shared_experts"] or 1,
            "experts.dense_layers": dense,
            "experts.normalized": self._normalized(),
            "experts.groups": 1,
            "experts.active_groups": 1,
            "latent_attention.query_rank": found["q_lora_rank"],
            "latent_attention.key_value_rank": found["kv_lora_rank"],
            "latent_attention.plain_size": found["qk_nope_head_dim"],
            "latent_attention.rotary_size": found["qk_rope_head_dim"],
            "latent_attention.value_size": found["v_head_dim"],
        }
        del values["head_size"], values["key_value_heads"]

    def _normalized(self) -> bool:
        return self._flag("norm_topk_prob") is not False
