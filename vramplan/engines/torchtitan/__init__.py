"""torchtitan."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="torchtitan",
    families={"llama": "vramplan.engines.torchtitan.model"},
)
