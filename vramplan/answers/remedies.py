"""The remedies of a decision, on what was typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vramplan.answers.processes import BLOCKS_OF_SEVERAL, done, usable
from vramplan.catalog import reading
from vramplan.job.typed import Typed
from vramplan.planner.decision import Decision
from vramplan.planner.remedies import remedies_for
from vramplan.planner.remedies.trial import AtOnce
from vramplan.results import Remedy
from vramplan.values.machine import Gpu


def remedies_of(
    decision: Decision,
    known_gpus: Callable[[], Iterable[Gpu]],
    typed: Callable[[], Typed] | None,
    *,
    closer_from: int | None,
    enough: int | None = None,
    at_once: bool = False,
) -> tuple[Remedy, ...]:
    """Those of a decision; where nobody says how its job was typed, as if the echo of the answer had been.

    `enough`: as many of the first ones as are of use; all without it. `at_once`: several processes may look for them.
    """
    rung, judge = decision.choice.rung, decision.judge
    with reading.kept():  # each change is typed again, and larger cards are looked at first
        asked = Typed.of_job(decision.judged) if typed is None else typed()
        found = remedies_for(
            *(decision.judged, rung, judge, asked, known_gpus),
            closer_from=closer_from,
            enough=enough,
            at_once=_at_once(decision, closer_from) if at_once else None,
        )
    return tuple(
        remedy._replace(change=asked.worded(remedy.change), option=asked.option(remedy.change)) for remedy in found
    )


def _at_once(decision: Decision, closer_from: int | None) -> AtOnce | None:
    """What tries several changes at a time; None where one after another is as fast."""
    processes = usable()
    if closer_from is None or processes < 2 or decision.job.model.layers < BLOCKS_OF_SEVERAL:
        return None
    return lambda works: done(works, lambda work: work(), processes)
