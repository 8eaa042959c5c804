"""The Trainer of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="transformers",
    behaviour={"planner": "vramplan.engines.transformers.planner:BEHAVIOUR"},
)
