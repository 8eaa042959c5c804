"""nanoGPT."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="nanogpt",
    families={"gpt2": "vramplan.engines.nanogpt.model"},
    behaviour={"settings": "vramplan.engines.nanogpt.settings:BEHAVIOUR"},
)
