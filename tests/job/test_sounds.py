"""Jobs of models that take the samples of a sound: lengths, what is refused, checkpoints and their `config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.job.test_families import small
from vramplan.catalog.families.wav2vec2 import KEYS
from vramplan.catalog.hf_config import read_hf_config
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.models.capable import no_int8
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

CARD = {"name": "m", "memory": "80 GiB"}
BASE = '{"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForPreTraining"], "mask_time_prob": 0.075, %s}'


def job(**keys: Any) -> ResolvedJob:
    built = build_job({"gpu": CARD, "micro_batch_size": 1, "activation_checkpointing": "none", **keys})
    assert isinstance(built, ResolvedJob)
    return built


def refused(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(**keys)
    return str(caught.value)


def test_lengths_are_samples_and_letters() -> None:
    plain = job(model="wav2vec2-base")
    assert (plain.sequence_length, plain.target_length) == (240000, 240)
    told = {one.key: one.why for one in plain.assumptions}
    assert told["sequence_length"] == "samples: 15 s of 16000 samples each"
    assert "leave out no block" in told["model.layerdrop"]
    given = job(model="hubert-base-ls960", sequence_length=160000, target_length=100)
    assert (given.sequence_length, given.target_length) == (160000, 100)


def test_the_loss_has_no_smoothed_labels() -> None:
    short = {"model": "wav2vec2-base", "sequence_length": 16000, "target_length": 8, "label_smoothing": 0.1}
    assert "torch's ctc_loss, has no smoothed labels" in refused(**short, runtime="pytorch")
    assert "compares each label with a row of logits" in refused(**short, runtime="transformers")


def test_frames_are_what_the_convolutions_leave() -> None:
    sound = job(model="wav2vec2-base").model.waveform
    assert sound is not None
    assert (sound.frames(240000), sound.frames(16000), sound.frames(399)) == (749, 49, 0)
    assert sound.samples(1) == 400
    assert all(sound.frames(sound.samples(n)) == n > sound.frames(sound.samples(n) - 1) for n in (1, 2, 49, 749))
    assert (sound.masked(749), sound.masked(25), sound.masked(9)) == (40, 20, 0)
    assert sound._replace(masks=False).masked(749) == 0


def test_too_few_samples_and_too_many_letters() -> None:
    assert "399 samples are too few" in refused(model="wav2vec2-base", sequence_length=399)
    assert "use at least 3280" in refused(model="wav2vec2-base", sequence_length=3279)
    message = refused(model="wav2vec2-base", sequence_length=16000, target_length=50)
    assert "target_length: 50 letters cannot be told apart in the 49 frames of 16000 samples" in message
    assert "takes no tokens" in refused(model="wav2vec2-base", tokens=1000)


def test_weights_in_8_bits_need_dropout_behind_the_projection() -> None:
    keys = {"adapter": {"kind": "lora", "targets": ["q_proj"]}, "quantization": "int8", "precision": "pure-bf16"}
    assert "frames are masked in place" in refused(model="wav2vec2-base", **keys)
    shape = job(model="wav2vec2-base").model
    assert no_int8(shape) is not None
    assert no_int8(shape.with_dropout(0.1)) is None
    assert no_int8(job(model=small("hubert", waveform={"masks": False}), sequence_length=8000).model) is None


@pytest.mark.parametrize("model_type", ["wav2vec2", "hubert"])
def test_every_convolution_of_the_switch_is_a_checkpoint(model_type: str) -> None:
    model = small(model_type)
    asked = {"sequence_length": 4000, "attention": "eager", "precision": "fp32", "dropout": 0.0}

    def made(strategy: str) -> int:
        one = job(model=model, **asked)
        return list(replay(setup_of(one, strategy, False)).operators).count("convolution")

    assert made("none") == 4  # the one for places too, and the copy of what it is given
    assert made("full") == 6
    assert made("every:2") == 4


def read(tmp_path: Path, more: str) -> Any:
    path = tmp_path / "config.json"
    path.write_text(BASE % more, "utf-8")
    return read_hf_config(path)[0]


def test_a_checkpoint_that_was_pretrained_gets_the_head_for_letters(tmp_path: Path) -> None:
    shape = read(
        tmp_path, '"vocab_size": 60, "do_stable_layer_norm": true, "feat_extract_norm": "layer", "layerdrop": 0.1'
    )
    assert (shape.task, shape.vocabulary_size, shape.pre_norm, shape.waveform.norm) == ("ctc", 60, True, "layer")
    assert shape.waveform.masked_share == 0.075
    assert {"conv_dim", "mask_time_prob", "num_conv_pos_embeddings"} <= set(KEYS)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('"add_adapter": true', "add_adapter: convolutions behind the blocks are not modelled"),
        ('"adapter_attn_dim": 16', "adapter_attn_dim: adapters of single languages in each block"),
        ('"mask_feature_prob": 0.1', "mask_feature_prob: features that are masked are not modelled"),
        ('"feat_extract_activation": "relu"', "feat_extract_activation: gelu alone is modelled"),
        ('"conv_stride": [5, 2]', "2 strides for 7 widths"),
        ('"feat_extract_norm": "batch"', "batch is not modelled (modelled: group, layer)"),
        ('"num_conv_pos_embedding_groups": 7', "768 elements do not make 7 groups evenly"),
    ],
)
def test_what_is_refused_names_the_key_of_the_file(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, more)
    assert message in str(caught.value)
