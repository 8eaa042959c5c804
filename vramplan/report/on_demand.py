"""What only some answers are written with: each is imported when one asks for it, and `fit` pays for none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import on_demand

if TYPE_CHECKING:
    from vramplan.report.whole_run import limit_words as limit_words
    from vramplan.report.whole_run import run_words as run_words
    from vramplan.results.listings import BandStats as BandStats
    from vramplan.results.listings import CheckSummary as CheckSummary
    from vramplan.results.listings import ErrorStats as ErrorStats
    from vramplan.results.listings import LabelStats as LabelStats
    from vramplan.results.listings import UnspecifiedStats as UnspecifiedStats
    from vramplan.results.listings import ValidateSummary as ValidateSummary

MODULES = {
    "vramplan.report.whole_run": ("limit_words", "run_words"),
    "vramplan.results.listings": (
        "BandStats",
        "CheckSummary",
        "ErrorStats",
        "LabelStats",
        "UnspecifiedStats",
        "ValidateSummary",
    ),
}
"""The names that there are here, by the file that has each: the imports above again, for a run."""

__getattr__ = on_demand(__name__, MODULES)
