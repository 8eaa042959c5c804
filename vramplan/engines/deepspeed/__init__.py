"""DeepSpeed, with the models of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="deepspeed",
    behaviour={
        "job": "vramplan.engines.deepspeed.job:BEHAVIOUR",
        "sharing": "vramplan.engines.deepspeed.job:SHARING",
    },
)
