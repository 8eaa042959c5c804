"""Configurations of T5, BART and RoBERTa: the published ones, and what they may not say."""

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
        ({**ROBERTA_BASE, "is_decoder": True}, "is_decoder: true is not modelled"),
    ],
)
def test_what_is_refused_names_the_key_of_the_file(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, config)
    assert message in str(caught.value)
