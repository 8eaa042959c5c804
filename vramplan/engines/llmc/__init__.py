"""llm.c."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="llm.c",
    families={"gpt2": "vramplan.engines.llmc.model"},
    only_own_code=True,
    behaviour={"job": "vramplan.engines.llmc.job:BEHAVIOUR"},
)
