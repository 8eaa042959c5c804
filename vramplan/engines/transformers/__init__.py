"""The Trainer of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="transformers",
    behaviour={"job": "vramplan.engines.transformers.job:BEHAVIOUR"},
)
