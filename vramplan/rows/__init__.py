"""What the renderers of `check`, `validate`, `gpus`, `models` and `show` are given: frozen values.

Sizes are integer bytes. Errors are `vramplan.errors.Problem`s of a job that could not be computed.
"""

from vramplan.rows.gates import CheckRow, CheckSummary
from vramplan.rows.ladders import LadderStep, ladder_steps
from vramplan.rows.measured import ErrorStats, ValidateRow
from vramplan.rows.profiles import FieldRow, GpuRow, ModelRow, ProfileView, RuntimeRow, SourceRow
from vramplan.rows.summary import BandStats, LabelStats, ValidateSummary

__all__ = [
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
    "RuntimeRow",
    "SourceRow",
    "ValidateRow",
    "ValidateSummary",
    "ladder_steps",
]
