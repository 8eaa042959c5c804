"""OLMoE in megatron-core (vramplan/engines/megatron/mixtures.py)."""

from vramplan.engines.megatron.mixtures import WholeNormsModel

FORWARD = WholeNormsModel
