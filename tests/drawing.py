"""How the properties of this suite draw their examples: the same ones for everybody, or fresh ones to explore."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

EVERYBODY, EXPLORING = "everybody", "exploring"


def install() -> None:
    """Register both profiles, and load the one that draws the same examples on every machine and in every run.

    `derandomize` takes the seed of a test from its source, and neither a database of earlier failures nor
    `--hypothesis-seed` changes that. Health checks that look at the clock are off: a busy machine is no defect.
    A failing example is printed as it was drawn: making it smaller takes up to five minutes for each property, which
    hides a failure behind a time limit. VRAMPLAN_SHRINK=1 makes it smaller, and so does `python -m tests.explore`.
    """
    common: dict[str, Any] = {
        "database": None,
        "deadline": None,
        "print_blob": False,
        # how often a draw is of no use depends on luck; that none is of use ends a test all the same
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
    }
    plain = (Phase.explicit, Phase.generate, Phase.target)
    if os.environ.get("VRAMPLAN_SHRINK"):
        plain = (*plain, Phase.shrink)
    settings.register_profile(EVERYBODY, derandomize=True, phases=plain, **common)
    phases = (Phase.generate, Phase.target, Phase.shrink)  # kept examples are for everybody
    settings.register_profile(EXPLORING, derandomize=False, phases=phases, **common)
    settings.load_profile(EVERYBODY)
    _draw_no_constants_of_modules()


def _draw_no_constants_of_modules() -> None:
    """Hypothesis draws one number in twenty from the source of the modules that are imported so far; here it does not.

    Which modules these are depends on the tests that ran before and on the path of the checkout. There is no setting.
    Source: hypothesis 6.170, internal/conjecture/providers.py, HypothesisProvider._maybe_draw_constant.
    """
    nothing = providers.Constants()
    providers._get_local_constants = lambda: nothing


class Drawn:
    """Stands in an explicit example for `st.data()`: gives these values, one for each draw of the test."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def draw(self, strategy: Any, label: Any = None) -> Any:
        """The next value; the strategy is that of the test, and not asked."""
        return self.values.pop(0)
