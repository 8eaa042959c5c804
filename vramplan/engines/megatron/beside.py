"""Falcon as NeMo has it in megatron-core: attention and MLP beside each other, behind one norm or one each.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), nemo/collections/nlp/models/language_modeling/megatron/falcon/
falcon_decoder_layer.py, FalconTransformerLayer.forward.
"""

from __future__ import annotations

from vramplan.engines.megatron.layers import Norm, norm_of
from vramplan.engines.megatron.model import Block, Megatron
from vramplan.engines.megatron.tensor_parallel import bias_dropout_add
from vramplan.replay.models.modules import Recipe
from vramplan.replay.operators.elementwise import add
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


class BesideBlock(Block):
    """FalconTransformerLayer with `parallel_attention`."""

    def second_norm(self, tape: Tape, recipe: Recipe) -> Norm | None:
        """Of Falcon-7B there is none: its MLP is given what attention is given."""
        return norm_of(tape, recipe, "mlp_layernorm") if recipe.shape.parallel_norms == 2 else None

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        _normed = self.input_layernorm(hidden)
        _for_mlp = _normed if self.pre_mlp_layernorm is None else self.pre_mlp_layernorm(hidden)
        out, bias = self.self_attention(_normed, self.mask, self.angles, self.scratch)
        of_mlp, _bias = self.mlp(_for_mlp)
        return bias_dropout_add(add(of_mlp, out), bias, residual, self.p)


class Beside(Megatron):
    """GPTModel of Falcon."""

    block = BesideBlock
    untraced = True

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Not Falcon-RW, whose layers follow each other and whose positions are a bias."""
        return shape.parallel_residual and shape.positions == "rope"


FORWARD = Beside
