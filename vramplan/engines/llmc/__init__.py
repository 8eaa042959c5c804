"""llm.c."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="llm.c",
    families={"gpt2": "vramplan.engines.llmc.model"},
    only_own_code=True,
    behaviour={
        "answers": "vramplan.engines.llmc.answers:BEHAVIOUR",
        "job": "vramplan.engines.llmc.job:BEHAVIOUR",
        "planner": "vramplan.engines.llmc.planner:BEHAVIOUR",
        "settings": "vramplan.engines.llmc.settings:BEHAVIOUR",
        "time": "vramplan.engines.llmc.time:BEHAVIOUR",
    },
)
