"""Jobs about models that take images: what applies to them, and what a person reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.running import run
from vramplan.answers.fit import answer
from vramplan.answers.walkthrough import walkthrough
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.errors import InputError, UsageError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.planner.judge import Judge
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay

VIT = {"family": "vit", "layers": 2, "hidden_size": 64, "attention_heads": 4, "intermediate_size": 128}
DINO = {"family": "dinov2", "layers": 2, "hidden_size": 64, "attention_heads": 4}
CARD = {"name": "m", "memory": "4 GiB"}
ALONE = [name for name, kind in MODEL_TYPES.items() if kind.tasks == ("image",)]


def refused(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        build_job({"gpu": CARD, **keys})
    return str(caught.value)


def test_the_image_size_is_the_models_own_and_is_told() -> None:
    job = build_job({"model": {**VIT, "image_size": 96}, "gpu": CARD})
    assert (job.image_size, job.sequence_length) == (96, 0)
    assert [one.value for one in job.assumptions if one.key == "image_size"] == [96]
    assert not any(one.key == "sequence_length" for one in job.assumptions)
    assert build_job({"model": VIT, "gpu": CARD, "image_size": 224}).image_size == 224


def test_learned_positions_are_for_one_size() -> None:
    message = refused(model=VIT, image_size=384)
    assert "image_size: inline vit has learned positions for images of 224 pixels, not 384" in message


def test_dinov2_takes_images_as_its_processor_crops_them() -> None:
    job = build_job({"model": "dinov2-base", "gpu": CARD})
    assert job.image_size == 224
    assert [one.why for one in job.assumptions if one.key == "image_size"] == [
        "what the processor of the model crops images to; positions for 518 are interpolated"
    ]
    assert build_job({"model": "dinov2-base", "gpu": CARD, "image_size": 518}).image_size == 518
    assert "image_size: 8 is less than the patch_size 14" in refused(model="dinov2-base", image_size=8)


def test_interpolated_positions_are_a_tensor_of_their_own() -> None:
    """Where there are as many patches as positions, nothing is made."""

    def made(image_size: int, precision: str) -> int:
        keys = {"model": {**DINO, "image_size": 56}, "gpu": CARD, "image_size": image_size, "precision": precision}
        job = build_job({**keys, "micro_batch_size": 1, "activation_checkpointing": "none", "attention": "eager"})
        made_by = list(replay(setup_of(job, "none", False)).operators)
        return made_by.count("upsample_bicubic2d") + made_by.count("upsample_bicubic2d_backward")

    assert made(56, "fp32") == 0
    assert made(60, "fp32") == 0  # as many whole patches
    assert made(84, "fp32") == 2
    assert made(84, "pure-bf16") == 2


def test_tokens_mean_nothing_to_a_model_of_images_alone() -> None:
    assert "sequence_length: 128 tokens mean nothing to inline vit" in refused(model=VIT, sequence_length=128)


def test_a_patch_is_not_larger_than_the_image() -> None:
    assert "image_size: 8 is less than the patch_size 16" in refused(model={**VIT, "image_size": 8})


@pytest.mark.parametrize("model_type", ALONE)
def test_an_echo_has_no_sequence_length_and_is_taken_again(model_type: str) -> None:
    echoed = job_to_dict(build_job({"model": {"family": model_type}, "gpu": "a100", "micro_batch_size": 2}))
    assert echoed["sequence_length"] is None
    assert echoed["image_size"] == 224
    assert echoed["model"]["vocabulary_size"] is None
    assert job_to_dict(build_job(echoed)) == echoed


def test_the_classes_are_those_of_imagenet_unless_said() -> None:
    assert build_job({"model": VIT, "gpu": CARD}).model.classes == 1000
    assert build_job({"model": {**VIT, "classes": 7}, "gpu": CARD}).model.classes == 7
    assert "one class is a regression" in refused(model={**VIT, "classes": 1})


def test_the_classification_loss_is_the_models_own() -> None:
    assert build_job({"model": VIT, "gpu": CARD, "loss": "classification"}).loss == "standard"
    assert "chunked:8 is modelled for causal language models, not for the task image" in refused(
        model=VIT, loss="chunked:8"
    )


def test_people_read_of_pixels_and_images() -> None:
    result = answer(build_job({"model": VIT, "gpu": CARD, "micro_batch_size": 4}))
    basis = {one.name: one.basis for one in result.components}
    assert basis["inputs"] == "images and labels"
    said = [one.basis for one in result.components if one.name == "activations"]
    assert said in ([], ["micro-batch 4 x 224 x 224 pixels"])


@pytest.mark.sweep(2)
@settings(max_examples=15, deadline=None)
@given(st.integers(16, 200), st.integers(0, 60), st.sampled_from([1, 3]))
def test_a_larger_image_never_needs_less(pixels: int, more: int, micro: int) -> None:
    def peak(size: int) -> int:
        job = build_job({"model": {**VIT, "image_size": size}, "gpu": CARD, "micro_batch_size": micro})
        return Judge(job).allocated_bytes("none", micro, False)

    assert peak(pixels) <= peak(pixels + more)


def test_a_no_proposes_no_shorter_sequence() -> None:
    job = build_job({"model": VIT, "gpu": {"name": "s", "memory": "700 MiB"}, "micro_batch_size": 512})
    result = answer(job)
    assert result.verdict == "does-not-fit"
    assert not any("sequence_length" in one.change for one in result.remedies)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("command", ["fit", "explain", "timeline", "checkpoints"])
@pytest.mark.parametrize("form", ["text", "json", "csv", "markdown"])
def test_every_command_says_what_it_has_to_say(command: str, form: str) -> None:
    ran = run(command, "--model", "vit-base-patch16-224", "--gpu", "t4", "--micro-batch", "2", "--format", form)
    assert ran.code == 0, ran.err
    assert "tokens" not in re.sub(r"\"?tokens(_per_\w+)?\"?: null", "", ran.out)  # keys of every answer
    assert "None" not in ran.out


RESNET = {"family": "resnet", "depths": [1, 1], "widths": [16, 32], "embedding_size": 8}


def test_convolutions_take_images_of_any_size_and_have_no_attention() -> None:
    job = build_job({"model": RESNET, "gpu": CARD, "image_size": 97, "micro_batch_size": 2})
    assert job.image_size == 97
    assert not any(one.key == "attention" for one in job.assumptions)
    assert any(one.key == "cudnn_workspace" for one in job.assumptions)
    assert "flash means nothing to inline resnet" in refused(model=RESNET, attention="flash")
    eager = build_job({"model": RESNET, "gpu": CARD, "image_size": 97, "micro_batch_size": 2, "attention": "eager"})
    assert any("attention eager changes nothing" in one for one in eager.warnings)  # it is not echoed
    smaller = answer(job._replace(image_size=64)).peak.allocated_bytes
    assert smaller < answer(job).peak.allocated_bytes
    assert "is an empty list" in refused(model={**RESNET, "depths": []})
    assert "whole numbers above 0" in refused(model={**RESNET, "depths": [0, 1]})


def test_batch_normalisation_is_warned_of_in_small_micro_batches() -> None:
    keys = {"model": RESNET, "gpu": CARD, "base_batch_size": 256, "base_learning_rate": 0.1, "global_batch_size": 64}
    small = answer(build_job({**keys, "micro_batch_size": 4})).advice
    large = answer(build_job({**keys, "micro_batch_size": 32})).advice
    assert small is not None
    assert large is not None
    assert "sees the micro-batch of 4, not the effective 64" in (small.batch_normalisation or "")
    assert large.batch_normalisation is None


@pytest.mark.sweep(8)
@pytest.mark.parametrize("command", ["fit", "explain", "timeline"])
@pytest.mark.parametrize("form", ["text", "json", "csv", "markdown"])
def test_every_command_speaks_of_convolutions(command: str, form: str) -> None:
    ran = run(command, "--model", "resnet-50", "--gpu", "t4", "--micro-batch", "2", "--format", form)
    assert ran.code == 0, ran.err
    assert "tokens" not in re.sub(r"\"?tokens(_per_\w+)?\"?: null", "", ran.out)  # keys of every answer
    assert "None" not in ran.out


def test_the_walk_through_is_about_tokens() -> None:
    with pytest.raises(UsageError, match="takes images, and the equations of texts are about tokens"):
        walkthrough({"model": VIT, "gpu": CARD})


SMALL = {"image_size": 28, "patch_size": 14, "layers": 2, "hidden_size": 64, "attention_heads": 4, "vision_layers": 3}
QWEN = {"transformers_model_type": "qwen2_vl", "layers": 2, "hidden_size": 64, "attention_heads": 4}
QWEN |= {"key_value_heads": 2, "vision_layers": 2, "vision_hidden_size": 32, "vision_attention_heads": 2}
QWEN |= {"vision_intermediate_size": 64, "vocabulary_size": 100, "intermediate_size": 96}
LLAVA = {**SMALL, "family": "llava", "vocabulary_size": 100}
CLIP = {**SMALL, "family": "clip", "vocabulary_size": 100}


def test_flash_asks_for_the_heads_of_both_encoders() -> None:
    model = {**CLIP, "vision_hidden_size": 600, "vision_attention_heads": 2}
    assert "not 300" in refused(model=model, attention="flash", precision="pure-fp16")
    assert build_job({"model": model, "gpu": "a100"}).attention == "efficient"


def test_a_gemma_2_makes_scores_beside_whatever_attention_of_the_images() -> None:
    small = {"family": "paligemma", "layers": 2, "hidden_size": 64, "head_size": 16, "vision_hidden_size": 64}
    small |= {"vision_layers": 2, "vision_attention_heads": 2, "intermediate_size": 96, "vocabulary_size": 100}

    def peak(**keys: Any) -> int:
        one = build_job({"model": small | keys, "gpu": "h100", "attention": "efficient", "sequence_length": 1024})
        return replay(setup_of(one, "none", accumulates=False)).peak_bytes(1)

    scores = 2 * 8 * 1024**2 * (4 + 2)  # of two blocks with eight heads: products of fp32 and of 16 bits
    assert peak(text_type="gemma2", sliding_window=None) - peak() > scores
    built = build_job({"model": small | {"text_type": "gemma2"}, "gpu": "h100"})
    assert built.attention == "sdpa"  # call by call, of the images alone
    flash = build_job({"model": small | {"text_type": "gemma2"}, "gpu": "h100", "attention": "flash"})
    assert "bounds scores itself" in next(one.why for one in flash.assumptions if one.key == "attention")


def test_swin_takes_images_that_leave_its_last_stage_a_window() -> None:
    model = {"family": "swin", "depths": [2, 2], "widths": [16, 32], "attention_heads": 2, "vision_window": 28}
    model |= {"image_size": 64}
    built = build_job({"model": model, "gpu": "a100", "image_size": 53})  # 14 patches of an edge, 7 in the last stage
    assert (built.image_size, built.activation_checkpointing, built.sequence_length) == (53, "none", 0)
    assert "48 pixels leave 6 patches in the last stage, of 7" in refused(model=model, image_size=48)
    assert "around the blocks inside" in refused(model=model, activation_checkpointing="full")
    assert "bias of their places" in refused(model=model, attention="flash", precision="pure-bf16")


@pytest.mark.parametrize(("family", "named"), [("swin", "its stages"), ("smolvlm", "the attention of each block")])
def test_units_that_transformers_names_otherwise_are_told(family: str, named: str) -> None:
    model = {"family": family} | ({"vision_tiles": 2} if family == "smolvlm" else {})

    def why(sharding: str) -> list[str]:
        built = build_job({"model": model, "gpu": "8xa100", "parallel": {"sharding": sharding}})
        return [one.why for one in built.assumptions if one.key == "parallel.units"]

    assert named in why("fsdp")[0]
    assert not why("ddp")


def test_dropped_paths_are_two_tensors_of_each_block_but_the_first() -> None:
    model = {"family": "convnext", "depths": [1, 2], "widths": [16, 16], "image_size": 64, "classes": 10}

    def saved(drops: bool) -> int:
        one = build_job({"model": {**model, "drops_paths": drops}, "gpu": "a100", "precision": "fp32"})
        return replay(setup_of(one, "none", accumulates=False)).peaks(1)["forward"]

    image = 4 * 16 * 8 * 8  # of the second stage; while the last block runs both are there beside what it adds
    assert image <= saved(True) - saved(False) <= 3 * image


def test_tiles_make_no_text_longer_than_its_default() -> None:
    fields = {"family": "internvl", "hidden_size": 64, "layers": 2, "attention_heads": 2, "key_value_heads": 2}
    job = {"model": fields, "gpu": "a100"}
    assert build_job(job).sequence_length == 4096
    assert build_job({**job, "model": {**fields, "vision_tiles": 8}}).sequence_length == 2048


def test_a_text_has_room_for_the_tokens_of_its_image() -> None:
    assert "sequence_length: 3 tokens have no room for the 4 of an image" in refused(model=LLAVA, sequence_length=3)
    assert build_job({"model": LLAVA, "gpu": CARD, "sequence_length": 4}).sequence_length == 4
    assert "512 tokens have no room for the 576" in refused(model={"family": "llava", "max_positions": 512})


@pytest.mark.parametrize(("model", "stacks"), [(CLIP, [[0, 2], [3, 4]]), (LLAVA, [[0, 1], [2, 2], [3, 4]])])
def test_checkpoints_stay_inside_of_a_stack(model: dict[str, Any], stacks: list[list[int]]) -> None:
    job = build_job({"model": model, "gpu": CARD, "activation_checkpointing": "every:9", "sequence_length": 9})
    assert [list(pair) for pair in answer(job).checkpoints] == stacks
    across = str([[stacks[0][0], stacks[1][1]]]).replace(" ", "")
    message = refused(model=model, sequence_length=9, activation_checkpointing=f"layers:{across}")
    assert "reaches from one stack into the other" in message


def test_a_part_that_no_gradient_reaches_has_no_states() -> None:
    keys = {"gpu": CARD, "sequence_length": 9, "micro_batch_size": 2, "gradient_accumulation_steps": 2}
    result = answer(build_job({"model": LLAVA, **keys, "optimizer_implementation": "foreach", "precision": "fp32"}))
    sizes = {one.name: one.bytes for one in result.components}
    assert result.trainable_parameters == result.total_parameters
    assert sizes["gradients"] < sizes["weights"]
    assert sizes["optimizer"] == 2 * sizes["gradients"]


def test_accumulation_does_not_enlarge_what_a_contrastive_loss_compares() -> None:
    keys = {"model": CLIP, "gpu": CARD, "sequence_length": 9, "micro_batch_size": 8}
    said = answer(build_job({**keys, "gradient_accumulation_steps": 4})).warnings
    assert "the contrastive loss compares the 8 pairs of a micro-batch with each other" in said[0]
    alone = answer(build_job({**keys, "gradient_accumulation_steps": 1})).warnings
    assert not any("contrastive" in text for text in alone)


@pytest.mark.sweep(12)
@pytest.mark.parametrize("model", ["clip-vit-base-patch32", "llava-1.5-7b", "qwen2.5-vl-3b", "qwen3-vl-2b"])
@pytest.mark.parametrize("command", ["fit", "explain", "timeline"])
def test_every_command_tells_of_models_of_images_and_text(model: str, command: str) -> None:
    ran = run(command, "--model", model, "--gpu", "h200", "--micro-batch", "2", "--steps", "2")
    assert ran.code == 0, ran.err
    assert "tokens" in ran.out
    assert "pixels" in ran.out


def test_the_largest_micro_batch_counts_the_pairs() -> None:
    """The similarities grow with the square: the micro-batch that is found fits, and one more does not."""
    tiny = {**CLIP, "image_size": 16, "patch_size": 16, "layers": 1, "vision_layers": 1, "hidden_size": 8}
    tiny |= {"vision_hidden_size": 8, "vision_attention_heads": 1, "attention_heads": 1, "projection_size": 4}
    keys = {"model": tiny, "gpu": {"name": "m", "memory": "2 GiB"}, "sequence_length": 1}
    found = answer(build_job({**keys, "gradient_accumulation_steps": 1})).recommended.largest_micro_batch_size

    def device(micro: int) -> int:
        job = build_job(
            {**keys, "gradient_accumulation_steps": 1, "micro_batch_size": micro, "activation_checkpointing": "none"}
        )
        return answer(job).peak.device_bytes

    assert device(found) <= 2 * 2**30 < device(found + 1)


def test_an_image_of_any_size_is_brought_to_whole_squares_of_patches() -> None:
    """models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize: 28 pixels of an edge become a token."""
    built = {size: build_job({"model": QWEN, "gpu": CARD, "image_size": size}).model for size in (28, 69, 71, 448)}
    assert {size: model.image_tokens for size, model in built.items()} == {28: 1, 69: 4, 71: 9, 448: 256}
    assert build_job({"model": QWEN, "gpu": CARD}).model.image_tokens == 256
    assert "255 tokens have no room for the 256" in refused(model=QWEN, sequence_length=255)
    keys = {"model": QWEN, "gpu": CARD, "sequence_length": 256, "micro_batch_size": 2, "gradient_accumulation_steps": 1}
    small, large = (answer(build_job({**keys, "image_size": size})).peak.device_bytes for size in (224, 448))
    assert small < large
