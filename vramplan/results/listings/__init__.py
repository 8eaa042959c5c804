"""What the renderers of `check`, `validate`, `gpus`, `models` and `show` are given: frozen values.

Sizes are integer bytes. Errors are `vramplan.errors.Problem`s of a job that could not be computed.
"""

from vramplan.results.listings.gates import CheckRow, CheckSummary
from vramplan.results.listings.ladders import LadderStep, ladder_steps
from vramplan.results.listings.measured import UNSPECIFIED, ErrorStats, ValidateRow
from vramplan.results.listings.profiles import FieldRow, GpuRow, ModelRow, ProfileView, RuntimeRow, SourceRow
from vramplan.results.listings.rates import RateStats, RateSummary
from vramplan.results.listings.summary import BandStats, LabelStats, UnspecifiedStats, ValidateSummary

__all__ = [
    "UNSPECIFIED",
    "BandStats",
    "CheckRow",
    "CheckSummary",
    "ErrorStats",
    "FieldRow",
    "GpuRow",
    "LabelStats",
    "LadderStep",
    "ModelRow",
    "ProfileView",
    "RateStats",
    "RateSummary",
    "RuntimeRow",
    "SourceRow",
    "UnspecifiedStats",
    "ValidateRow",
    "ValidateSummary",
    "ladder_steps",
]
