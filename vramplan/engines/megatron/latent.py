"""DeepSeek's family in megatron-core (vramplan/engines/megatron/mixtures.py)."""

from vramplan.engines.megatron.mixtures import LatentMixtures

FORWARD = LatentMixtures
