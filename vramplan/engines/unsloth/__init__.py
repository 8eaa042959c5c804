"""Unsloth."""

from vramplan.values.engine import Engine

ENGINE = Engine(name="unsloth", own_code=True, behaviour={"settings": "vramplan.engines.unsloth.settings:BEHAVIOUR"})
