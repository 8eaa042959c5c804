"""torchtune."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="torchtune",
    families={"llama": "vramplan.engines.torchtune.model", "mllama": "vramplan.engines.torchtune.images"},
    rules=("vramplan.engines.torchtune.operators",),
    behaviour={
        "job": "vramplan.engines.torchtune.job:BEHAVIOUR",
        "settings": "vramplan.engines.torchtune.settings:BEHAVIOUR",
    },
)
