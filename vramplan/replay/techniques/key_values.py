"""Keys and values that a model returns with its outputs, as those of Transformers do unless `use_cache` is off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.models import own
from vramplan.replay.models.blocks import each_is_a_checkpoint
from vramplan.replay.models.windows import has_window
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.views import cat, to
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.techniques import Technique
from vramplan.replay.techniques.losses import CHUNKED
from vramplan.replay.tensors import INT64, Tensor
from vramplan.values.model import ModelShape


def _window(tape: Tape) -> Tensor:
    """How long the window of a layer of the cache is (DynamicSlidingWindowLayer)."""
    return tape.new("to", (), INT64, False)


def windowed_layers(shape: ModelShape) -> tuple[int, bool]:
    """How many layers of the cache have a window, and whether all have one.

    A block that takes the keys and values of another has a layer that stores nothing.
    Source: transformers 5.23, cache_utils.py, get_layer_types_and_kwargs.
    """
    windowed = own(shape.family, "windowed", None) or has_window
    storing = shape.layers - shape.key_value_sharing_layers
    windows = sum(windowed(shape, block) for block in range(storing))
    return windows, windows == storing


class Returned(KeyValues):
    """Keys and values of every block, with their graph.

    Beside a checkpoint they are the tuples of before, which hold what the block made.
    Source: transformers 5.23, cache_utils.py, DynamicLayer.update; 4.31, modeling_llama.py, LlamaAttention.forward.
    """

    keeps = True

    def __init__(self, tape: Tape, shape: ModelShape, checkpointed: bool) -> None:
        self.checkpointed = checkpointed
        windows, self.all_windowed = (0, False) if checkpointed else windowed_layers(shape)
        # which blocks have one is not asked of those that are played, so where not all have one they come before them
        self.tensors: list[Any] = [] if self.all_windowed else [_window(tape) for _ in range(windows)]

    def kept(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """What a block goes on with: copies, which are concatenated to what is empty, or the tensors as they are."""
        if not self.checkpointed:
            if self.all_windowed:
                self.tensors.append(_window(key.tape))
            dtype = max(key.dtype, value.dtype, key=lambda one: one.itemsize)  # autocast widens to that of the keys
            key, value = cat([key], -2), cat([to(value, dtype)], -2)
        self.tensors += (key, value)
        return key, value

    def convolves(self, x: Tensor, kernel: int) -> None:
        """Of each channel as many tokens as the kernel is long (LinearAttentionLayer.update_conv_state)."""
        self.tensors.append(x.tape.new("zeros", (*x.shape[:2], kernel), x.dtype, x.batched))

    def recurs(self, state: Tensor, graph: Sequence[Any] = ()) -> None:
        """A copy, whose graph is that of the state (LinearAttentionLayer.update_recurrent_state)."""
        self.tensors.append(state.tape.new("zeros_like", state.shape, state.dtype, state.batched))
        self.tensors += graph


def returns_cache(setup: Setup) -> bool:
    """Whether the model returns what its blocks keep; a checkpoint would put it into the object twice, and drops it.

    Tuples, which blocks of earlier releases returned, a checkpoint hands on.
    Source: transformers 5.23, modeling_layers.py, GradientCheckpointingLayer; 4.31, models/llama/modeling_llama.py,
    LlamaAttention.forward.
    """
    checkpointed = any(segment.checkpointed for segment in setup.segments)
    keeps = setup.use_cache and own(setup.model.family, "caches_in_training", True)
    return keeps and not (checkpointed and setup.cache_objects)


def caches_in_evaluation(setup: Setup) -> bool:
    """Whether the model returns them in eval mode, where no checkpoint of Transformers' own switch is one.

    What wraps several blocks, or some of them, turns the cache off for good (vramplan/report/placement_code.py).
    """
    checkpointed = any(segment.checkpointed for segment in setup.segments)
    return setup.use_cache and (not checkpointed or each_is_a_checkpoint(setup.segments))


class ReturnsKeysAndValues(Technique):
    """Every block's are there until forward is over, and as long as a loop holds the outputs."""

    def before_forward(self) -> None:
        checkpointed = any(segment.checkpointed for segment in self.setup.segments)
        self.returned = Returned(self.tape, self.setup.model, checkpointed)
        self.tape.enlist(KeyValues, self.returned)

    def after_forward(self) -> None:
        self.tape.dismiss(KeyValues)  # what backward recomputes is not returned
        if not self.setup.hold_outputs or self.setup.loss.startswith(CHUNKED):  # whose outputs are logits alone
            self.returned.tensors.clear()

    def beside_outputs(self) -> list[Any]:
        """Until the loop lets go of the outputs."""
        tensors, self.returned.tensors = self.returned.tensors, []
        return tensors
