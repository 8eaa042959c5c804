"""Megatron-LM, and Megatron-DeepSpeed."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="megatron",
    families=dict.fromkeys(("gpt2", "llama", "bloom", "mixtral"), "vramplan.engines.megatron.model"),
    only_own_code=True,
    behaviour={
        "answers": "vramplan.engines.megatron.answers:BEHAVIOUR",
        "job": "vramplan.engines.megatron.job:BEHAVIOUR",
        "planner": "vramplan.engines.megatron.planner:BEHAVIOUR",
    },
)
