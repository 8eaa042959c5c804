"""llm-foundry."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="llm-foundry",
    casts_around_step=True,  # Composer's trainer/trainer.py, _train_microbatch, with precision amp_bf16
    families={"mpt": "vramplan.engines.llm_foundry.model"},
    rules=("vramplan.engines.llm_foundry.operators",),
    behaviour={
        "job": "vramplan.engines.llm_foundry.job:BEHAVIOUR",
        "settings": "vramplan.engines.llm_foundry.settings:BEHAVIOUR",
        "time": "vramplan.engines.llm_foundry.time:BEHAVIOUR",
    },
)
