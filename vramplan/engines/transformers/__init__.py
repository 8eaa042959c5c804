"""The Trainer of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="transformers",
    plain_loop=True,
    smooths_outside=True,  # trainer_pt_utils.py, LabelSmoother
    behaviour={
        "job": "vramplan.engines.transformers.job:BEHAVIOUR",
        "planner": "vramplan.engines.transformers.planner:BEHAVIOUR",
        "settings": "vramplan.engines.transformers.settings:BEHAVIOUR",
    },
)
