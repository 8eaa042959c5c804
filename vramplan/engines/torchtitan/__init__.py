"""torchtitan."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="torchtitan",
    families={"llama": "vramplan.engines.torchtitan.model"},
    behaviour={
        "job": "vramplan.engines.torchtitan.job:BEHAVIOUR",
        "settings": "vramplan.engines.torchtitan.settings:BEHAVIOUR",
        "time": "vramplan.engines.torchtitan.time:BEHAVIOUR",
    },
)
