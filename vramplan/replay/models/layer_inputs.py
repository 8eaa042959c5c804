"""Inputs for each layer beside the hidden state, as transformers 5.23 computes those of Gemma 4
(models/gemma4/modeling_gemma4.py): a table that is as wide as all blocks together, and a projection of the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.gemma import RMSNorm, scaled_rows
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.operators.elementwise import add, mul, mul_scalar
from vramplan.replay.operators.views import view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor

Norm = Callable[..., RMSNorm]
TABLE = "embed_tokens_per_layer.weight"


class LayerInputs:
    """Those of all blocks: Gemma4TextModel.get_per_layer_inputs and project_per_layer_inputs."""

    def __init__(self, tape: Tape, recipe: Recipe, norm: Norm) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        assert shape.layer_input_size is not None
        assert shape.layer_input_vocabulary_size is not None
        self.size, self.layers = shape.layer_input_size, shape.layers
        whole = self.layers * self.size
        with tape.building(EMBEDDINGS):
            self.table = tape.parameter(TABLE, (shape.layer_input_vocabulary_size, whole), dtype)
        self.projection = Linear(tape, "per_layer_model_projection", shape.hidden_size, whole, dtype, bias=False)
        self.norm = norm(tape, "per_layer_projection_norm", self.size, dtype)

    def __call__(self, input_ids: Tensor, embeds: Tensor) -> Tensor:
        shape = (*embeds.shape[:2], self.layers, self.size)
        inputs = view(scaled_rows(input_ids, self.table), shape)
        projected = mul_scalar(self.projection(embeds))
        projected = view(projected, shape)
        projected = self.norm(projected)
        return mul_scalar(add(projected, inputs))


class LayerInput:
    """What a block does with its own: the last part of Gemma4TextDecoderLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, norm: Norm) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        assert shape.layer_input_size is not None
        width, size = shape.hidden_size, shape.layer_input_size
        self.gate = Linear(tape, "per_layer_input_gate", width, size, dtype, bias=False)
        self.projection = Linear(tape, "per_layer_projection", size, width, dtype, bias=False)
        self.norm = norm(tape, "post_per_layer_input_norm", width, dtype)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor, layer_input: Tensor) -> Tensor:
        hidden = self.gate(hidden)
        hidden = self.act(hidden)
        hidden = mul(hidden, layer_input)
        hidden = self.projection(hidden)
        return self.norm(hidden)
