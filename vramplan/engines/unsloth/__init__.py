"""Unsloth."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="unsloth",
    own_code=True,
    behaviour={
        "job": "vramplan.engines.unsloth.job:BEHAVIOUR",
        "planner": "vramplan.engines.unsloth.planner:BEHAVIOUR",
        "settings": "vramplan.engines.unsloth.settings:BEHAVIOUR",
        "time": "vramplan.engines.unsloth.time:BEHAVIOUR",
    },
)
