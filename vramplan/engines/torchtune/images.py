"""Llama 3.2 Vision under torchtune: Transformers' blocks with the checkpoints of torchtune's recipes.

Its recipes wrap each TransformerSelfAttentionLayer: the blocks of both encoders and those of the text, and none that
looks at the images. Of the encoder they keep the states that the text is given.

Source: pytorch/torchtune main after 0.6.1 (bd2a0fc7), recipes/full_finetune_distributed.py (auto_wrap_policy),
torchtune/models/llama3_2_vision/_component_builders.py, torchtune/modules/vision_transformer.py (out_indices).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.blocks import each_is_a_checkpoint
from vramplan.replay.models.mllama import Mllama
from vramplan.replay.models.mllama_vision import TiledVisionModel
from vramplan.replay.models.modules import SELECTIVE, Segment
from vramplan.replay.tensors import Tensor


class LeftBehind(list[Tensor]):
    """States of blocks that nobody asks for."""

    def append(self, state: Tensor) -> None:
        """It goes."""


class CheckpointedTiles(TiledVisionModel):
    """Llama3VisionEncoder: where blocks are checkpoints, those of the encoders are too."""

    def segments(self, blocks: int) -> Sequence[Segment]:
        """One block each."""
        if each_is_a_checkpoint(self.recipe.segments):
            return (Segment(blocks, 1, True),)
        return super().segments(blocks)

    def kept_states(self) -> list[Tensor]:
        """None of them."""
        return LeftBehind()


class DeepFusion(Mllama):
    """DeepFusionModel of the encoder and the decoder."""

    block_lists = Mllama.block_lists
    stored_lists = Mllama.stored_lists
    selective = SELECTIVE
    head_losses = Mllama.head_losses
    equal_blocks = False
    takes_padding = True
    no_flat_parameters = "torchtune shards by FSDP2"
    no_generation = Mllama.no_generation
    freezes_parts = True  # encoder_trainable, fusion_trainable and decoder_trainable of its builders
    untraced = True
    vision = CheckpointedTiles

    def text_segments(self) -> Sequence[Segment]:
        """Blocks of the text, of which those that look at the images are stored."""
        shape, segments = self.recipe.shape, self.recipe.segments
        if not each_is_a_checkpoint(segments):
            return segments
        runs: list[Segment] = []
        for block in range(shape.layers):
            checkpointed = not self.block_kind(shape, block)
            last = runs[-1] if runs else None
            if last is not None and last.checkpointed == checkpointed:
                runs[-1] = last._replace(times=last.times + 1)
            else:
                runs.append(Segment(1, 1, checkpointed))
        return runs


FORWARD = DeepFusion
