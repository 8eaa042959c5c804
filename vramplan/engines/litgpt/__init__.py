"""LitGPT."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="litgpt",
    families=dict.fromkeys(("llama", "neox", "phi", "falcon"), "vramplan.engines.litgpt.model"),
    rules=("vramplan.engines.litgpt.operators",),
    behaviour={
        "job": "vramplan.engines.litgpt.job:BEHAVIOUR",
        "settings": "vramplan.engines.litgpt.settings:BEHAVIOUR",
        "time": "vramplan.engines.litgpt.time:BEHAVIOUR",
    },
)
