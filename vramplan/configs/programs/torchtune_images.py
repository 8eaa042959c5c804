"""What a torchtune file says of its model of images and text, Llama 3.2 Vision.

Source: pytorch/torchtune main after 0.6.1 (bd2a0fc7), torchtune/models/llama3_2_vision/_model_builders.py and
_encoder.py (what is fused), torchtune/modules/model_fusion/_deep_fusion.py (what is trained).
"""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.values.model import ModelShape

ENCODER_MLP = ("fc1", "fc2")
ENCODER = ("vision_encoder.embeddings", "vision_encoder.norms", "vision_encoder.transformer")
FUSION = ("vision_encoder.global_transformer", "projector")
DECODER = ("language_model.embeddings", "language_model.norms", "lm_head")
OWN_CODE = "torchtune's own code of it (DeepFusionModel), and the blocks of Transformers are counted"


def trained(sheet: Sheet, meaning: Meaning, name: str, adapter: bool) -> None:
    """Which of the three parts are trained: the encoder, what fuses images into the text, and the text's own blocks."""
    meaning.lack("model._component_", OWN_CODE)
    size, shape = sheet.count("model.image_size"), sheet.shape_of(name)
    if size:
        meaning.say("image_size", size, "model.image_size")
    parts = {part: f"model.{part}_trainable" for part in ("encoder", "fusion", "decoder")}
    told = {part: sheet.text(key) for part, key in parts.items()}
    if adapter:
        if (told["decoder"] or "frozen").lower() == "frozen":
            meaning.lack(parts["decoder"], "blocks of the text have no adapters, which are counted in all blocks")
        for part, word in told.items():
            if (word or "").lower() == "full":
                meaning.lack(parts[part], "weights that are trained beside adapters, and adapters alone are counted")
        return
    kept = {part: bool(sheet.flag(key, part != "decoder")) for part, key in parts.items()}
    if shape is None or all(kept.values()):
        return
    frozen = [word for part, words in _parts(shape).items() if not kept[part] for word in words]
    meaning.say("frozen", frozen, *parts.values())


def _parts(shape: ModelShape) -> dict[str, tuple[str, ...]]:
    """The words of a job for each part; the rows of the tokens that stand for images go with the table."""
    fused = shape.cross_attention_layers
    own = (block for block in range(shape.layers) if block not in fused)
    return {"encoder": ENCODER, "fusion": (*FUSION, *_blocks(fused)), "decoder": (*DECODER, *_blocks(own))}


def _blocks(numbers: Iterable[int]) -> list[str]:
    """Blocks by their numbers, those that follow each other by the first and the last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ends = ([str(run[0]), str(run[-1])][: len(run)] for run in runs)
    return [f"language_model.layers.{'-'.join(one)}" for one in ends]
