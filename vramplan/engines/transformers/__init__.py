"""The Trainer of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="transformers",
    behaviour={
        "job": "vramplan.engines.transformers.job:BEHAVIOUR",
        "planner": "vramplan.engines.transformers.planner:BEHAVIOUR",
        "settings": "vramplan.engines.transformers.settings:BEHAVIOUR",
    },
)
