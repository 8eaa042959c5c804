"""What only some answers need: each is imported when a job asks for it, and a plain job pays for none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import on_demand

if TYPE_CHECKING:
    from vramplan.catalog.counting import parameters_of as parameters_of
    from vramplan.job.machine.allocator import text_of as text_of
    from vramplan.planner.beside import exceeding as exceeding
    from vramplan.planner.devices import divided_by as divided_by
    from vramplan.planner.devices import is_shared as is_shared
    from vramplan.planner.devices import whole_sizes as whole_sizes
    from vramplan.planner.groups import process_groups as process_groups
    from vramplan.planner.narrowing import narrower as narrower
    from vramplan.planner.reserving import of_varied_lengths as of_varied_lengths
    from vramplan.planner.reserving import remarks as remarks
    from vramplan.planner.settle import with_largest as with_largest
    from vramplan.planner.staged import rows_of_stages as rows_of_stages
    from vramplan.planner.textbook.advice import advise as advise
    from vramplan.planner.whole_run import limits_of as limits_of
    from vramplan.planner.whole_run import timed as timed
    from vramplan.planner.whole_run import why_no_run as why_no_run
    from vramplan.replay.models.experts import active_parameters as active_parameters
    from vramplan.replay.sharding.replicated import BUCKET_BYTES as BUCKET_BYTES
    from vramplan.replay.sharding.units import REDUCED as REDUCED
    from vramplan.results.allocator import Allocator as Allocator
    from vramplan.results.allocator import OutOfMemory as OutOfMemory
    from vramplan.values.adapter_kinds import KINDS as KINDS

MODULES = {
    "vramplan.results.allocator": (
        "OutOfMemory",
        "Allocator",
    ),
    "vramplan.catalog.counting": ("parameters_of",),
    "vramplan.job.machine.allocator": ("text_of",),
    "vramplan.planner.beside": ("exceeding",),
    "vramplan.planner.devices": (
        "divided_by",
        "is_shared",
        "whole_sizes",
    ),
    "vramplan.planner.groups": ("process_groups",),
    "vramplan.planner.narrowing": ("narrower",),
    "vramplan.planner.reserving": ("of_varied_lengths", "remarks"),
    "vramplan.planner.settle": ("with_largest",),
    "vramplan.planner.staged": ("rows_of_stages",),
    "vramplan.planner.whole_run": (
        "limits_of",
        "timed",
        "why_no_run",
    ),
    "vramplan.replay.models.experts": ("active_parameters",),
    "vramplan.replay.sharding.replicated": ("BUCKET_BYTES",),
    "vramplan.replay.sharding.units": ("REDUCED",),
    "vramplan.values.adapter_kinds": ("KINDS",),
    "vramplan.planner.textbook.advice": ("advise",),
}
"""The names that there are here, by the file that has each: the imports above again, for a run."""

__getattr__ = on_demand(__name__, MODULES)
