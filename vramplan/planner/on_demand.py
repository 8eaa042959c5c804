"""What the verdict of only some jobs needs: each is imported when a job asks for it, and a plain job pays for none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import on_demand

if TYPE_CHECKING:
    from vramplan.planner.bounds.plain import has_room_for_states as has_room_for_states
    from vramplan.planner.bounds.plain import most_within as most_within
    from vramplan.planner.groups import process_groups as process_groups
    from vramplan.planner.on_host import is_within as is_within
    from vramplan.planner.on_host import largest_within as largest_within
    from vramplan.replay.host import host_of as host_of
    from vramplan.replay.models.parts import make_ups as make_ups
    from vramplan.replay.pipeline.stages import contenders as contenders
    from vramplan.replay.pipeline.stages import make_up_of as make_up_of
    from vramplan.replay.pipeline.stages import stages_of as stages_of

MODULES = {
    "vramplan.replay.host": ("host_of",),
    "vramplan.planner.bounds.plain": (
        "has_room_for_states",
        "most_within",
    ),
    "vramplan.planner.groups": ("process_groups",),
    "vramplan.planner.on_host": (
        "is_within",
        "largest_within",
    ),
    "vramplan.replay.models.parts": ("make_ups",),
    "vramplan.replay.pipeline.stages": (
        "contenders",
        "make_up_of",
        "stages_of",
    ),
}
"""The names that there are here, by the file that has each: the imports above again, for a run."""

__getattr__ = on_demand(__name__, MODULES)
