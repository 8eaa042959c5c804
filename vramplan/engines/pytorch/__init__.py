"""A training loop in plain PyTorch, around the models of Transformers."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="pytorch",
    plain_loop=True,
    is_own_loop=True,
    behaviour={
        "planner": "vramplan.engines.pytorch.planner:BEHAVIOUR",
        "settings": "vramplan.engines.pytorch.settings:BEHAVIOUR",
    },
)
