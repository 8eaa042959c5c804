"""DeepSpeed, with the models of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="deepspeed",
    brings={
        **dict.fromkeys(("zero1", "zero2", "zero3"), "vramplan.engines.deepspeed.stages:ZERO"),
        "zero0": "vramplan.engines.deepspeed.stages:REPLICAS",
    },
    behaviour={
        "answers": "vramplan.engines.deepspeed.answers:BEHAVIOUR",
        "job": "vramplan.engines.deepspeed.job:BEHAVIOUR",
        "settings": "vramplan.engines.deepspeed.settings:BEHAVIOUR",
        "time": "vramplan.engines.deepspeed.time:BEHAVIOUR",
        "sharing": "vramplan.engines.deepspeed.job:SHARING",
    },
)
