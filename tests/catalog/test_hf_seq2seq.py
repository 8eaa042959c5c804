"""Configurations of T5, of BART and its relatives, and of encoders: the published ones, and what they may not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog import models
from vramplan.catalog.hf_config import read_hf_config
from vramplan.errors import InputError
from vramplan.values.model import ModelShape

T5_BASE = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 3072,
    "d_kv": 64,
    "d_model": 768,
    "dropout_rate": 0.1,
    "is_encoder_decoder": True,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 12,
    "num_layers": 12,
    "relative_attention_num_buckets": 32,
    "vocab_size": 32128,
}
FLAN_T5_BASE = {**T5_BASE, "d_ff": 2048, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BART_BASE = {
    "activation_dropout": 0.1,
    "architectures": ["BartModel"],
    "attention_dropout": 0.1,
    "d_model": 768,
    "decoder_attention_heads": 12,
    "decoder_ffn_dim": 3072,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "encoder_layers": 6,
    "max_position_embeddings": 1024,
    "model_type": "bart",
    "num_hidden_layers": 6,
    "vocab_size": 50265,
}
ROBERTA_BASE = {
    "architectures": ["RobertaForMaskedLM"],
    "hidden_size": 768,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
NLLB_600M = {
    "activation_function": "relu",
    "architectures": ["M2M100ForConditionalGeneration"],
    "attention_dropout": 0.1,
    "decoder_layerdrop": 0,
    "encoder_layerdrop": 0,
    "model_type": "m2m_100",
    "scale_embedding": True,
    "torch_dtype": "float32",
    "vocab_size": 256206,
}
OPUS_MT = {
    "activation_function": "swish",
    "architectures": ["MarianMTModel"],
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layers": 6,
    "decoder_vocab_size": 58101,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layers": 6,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "share_encoder_decoder_embeddings": True,
    "vocab_size": 58101,
}
MBART_50 = {"architectures": ["MBartForConditionalGeneration"], "model_type": "mbart", "vocab_size": 250054}
PEGASUS = {
    "activation_dropout": 0.1,
    "activation_function": "relu",
    "architectures": ["PegasusForConditionalGeneration"],
    "attention_dropout": 0.1,
    "decoder_layers": 16,
    "encoder_layers": 16,
    "model_type": "pegasus",
    "vocab_size": 96103,
}
ESM2_8M = {
    "architectures": ["EsmForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "emb_layer_norm_before": False,
    "esmfold_config": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 320,
    "intermediate_size": 1280,
    "is_folding_model": False,
    "max_position_embeddings": 1026,
    "model_type": "esm",
    "num_attention_heads": 20,
    "num_hidden_layers": 6,
    "position_embedding_type": "rotary",
    "token_dropout": True,
    "torch_dtype": "float32",
    "vocab_size": 33,
}


def read(folder: Path, config: dict[str, Any]) -> ModelShape:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_hf_config(path)[0]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("t5-base", T5_BASE),
        ("flan-t5-base", FLAN_T5_BASE),
        ("bart-base", BART_BASE),
        ("roberta-base", ROBERTA_BASE),
        ("nllb-200-distilled-600m", NLLB_600M),
        ("opus-mt-en-de", OPUS_MT),
        ("mbart-large-50", MBART_50),
        ("pegasus-large", PEGASUS),
        ("esm2-8m", ESM2_8M),
        ("xlm-roberta-base", {**ROBERTA_BASE, "model_type": "xlm-roberta", "vocab_size": 250002}),
    ],
)
def test_a_published_configuration_is_the_profile(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    shape = models.find_model(name)[0]
    assert read(tmp_path, config) == shape._replace(name=tmp_path.name, declared_parameters=None)


def test_the_decoder_has_as_many_blocks_as_the_encoder_unless_it_says_so(tmp_path: Path) -> None:
    assert read(tmp_path, {**T5_BASE, "num_layers": 5}).stacks == (5, 5)
    assert read(tmp_path, {**T5_BASE, "num_decoder_layers": 3}).stacks == (12, 3)
    assert read(tmp_path, {"model_type": "bart", "encoder_layers": 4}).stacks == (4, 12)


def test_the_head_of_old_names_is_known(tmp_path: Path) -> None:
    assert read(tmp_path, {**T5_BASE, "architectures": ["T5WithLMHeadModel"]}).task == "seq2seq"
    assert read(tmp_path, {**ROBERTA_BASE, "architectures": ["RobertaForSequenceClassification"]}).task == "cls"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**T5_BASE, "feed_forward_proj": "wide-relu"}, "feed_forward_proj: wide-relu is neither ACTIVATION nor gated"),
        ({**T5_BASE, "feed_forward_proj": "gated-mish"}, "mish is not modelled"),
        ({**T5_BASE, "relative_attention_num_buckets": 64}, "relative_attention_num_buckets: 64 is not modelled"),
        ({**T5_BASE, "architectures": ["T5EncoderModel"]}, "architectures: an encoder alone is not modelled"),
        ({**T5_BASE, "is_decoder": True}, "is_decoder: true is not modelled"),
        ({**BART_BASE, "decoder_ffn_dim": 1024}, "decoder_ffn_dim: 1024 beside an encoder of 3072 is not modelled"),
        ({**BART_BASE, "decoder_attention_heads": 6}, "decoder_attention_heads: 6 beside an encoder of 12"),
        ({**BART_BASE, "decoder_layerdrop": 0.1}, "decoder_layerdrop: blocks that are skipped at random"),
        ({**BART_BASE, "tie_word_embeddings": False}, "tie_word_embeddings: false is not modelled"),
        ({**BART_BASE, "architectures": ["BartForSequenceClassification"]}, "architectures: cls is not modelled"),
        ({**ROBERTA_BASE, "classifier_dropout": 0.0}, "classifier_dropout: 0"),
        ({**NLLB_600M, "decoder_layerdrop": 0.05}, "decoder_layerdrop: blocks that are skipped at random"),
        ({"model_type": "m2m_100"}, "encoder_layerdrop: blocks that are skipped at random"),  # the default of the class
        ({**OPUS_MT, "share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings: false is not"),
        ({**OPUS_MT, "decoder_vocab_size": 60000}, "60000 beside a vocabulary of 58101 is not modelled"),
        ({**ESM2_8M, "position_embedding_type": "absolute"}, "'absolute' is not modelled (modelled: rotary)"),
        ({**ESM2_8M, "token_dropout": False}, "token_dropout: false is not modelled"),
        ({**ESM2_8M, "is_folding_model": True}, "is_folding_model: true is not modelled"),
        ({**ROBERTA_BASE, "is_decoder": True}, "is_decoder: true is not modelled"),
    ],
)
def test_what_is_refused_names_the_key_of_the_file(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, config)
    assert message in str(caught.value)
