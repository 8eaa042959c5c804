"""The Trainer of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="transformers",
    plain_loop=True,
    smooths_outside=True,  # trainer_pt_utils.py, LabelSmoother
    casts_beside_policy=True,  # accelerate/accelerator.py, prepare_model; _prepare_fsdp2 does without
    behaviour={
        "job": "vramplan.engines.transformers.job:BEHAVIOUR",
        "planner": "vramplan.engines.transformers.planner:BEHAVIOUR",
        "settings": "vramplan.engines.transformers.settings:BEHAVIOUR",
    },
)
