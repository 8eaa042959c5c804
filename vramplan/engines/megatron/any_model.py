"""Megatron-LM's GPT where it is none of a published family (vramplan/engines/megatron/mixtures.py)."""

from vramplan.engines.megatron.mixtures import Mixtures
from vramplan.values.model import ModelShape


class AnyModel(Mixtures):
    """GPTModel with the positions, gates and experts that its arguments ask for."""

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """With experts or without."""
        return True


FORWARD = AnyModel
