"""torchtune."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="torchtune",
    families={"llama": "vramplan.engines.torchtune.model"},
    behaviour={"job": "vramplan.engines.torchtune.job:BEHAVIOUR"},
)
