"""modded-nanogpt."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="modded-nanogpt",
    families={"modded_nanogpt": "vramplan.engines.modded_nanogpt.model"},
    only_own_code=True,
    brings={"modded-muon": "vramplan.engines.modded_nanogpt.muon"},
    rules=("vramplan.engines.modded_nanogpt.muon",),
    behaviour={
        "answers": "vramplan.engines.modded_nanogpt.answers:BEHAVIOUR",
        "job": "vramplan.engines.modded_nanogpt.job:BEHAVIOUR",
        "planner": "vramplan.engines.modded_nanogpt.planner:BEHAVIOUR",
        "settings": "vramplan.engines.modded_nanogpt.settings:BEHAVIOUR",
        "time": "vramplan.engines.modded_nanogpt.time:BEHAVIOUR",
    },
)
