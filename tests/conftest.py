"""Every test is of one kind, and says so: `pytest -m truth`, `-m closed_form`, `-m snapshot`, `-m contract`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VALUES = ("truth", "closed_form", "snapshot")  # where an expected value comes from; never mixed in one test


def pytest_configure() -> None:
    """No profile and no card of the person who runs the tests is in them, and none in the processes they start."""
    os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).with_name("no-configuration"))
    for name in ("VRAMPLAN_PROFILES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test without an expected value of these kinds holds what the documents promise: a contract."""
    for item in items:
        kinds = {mark.name for mark in item.iter_markers() if mark.name in VALUES}
        if len(kinds) > 1:
            raise pytest.UsageError(f"{item.nodeid} mixes {' and '.join(sorted(kinds))}")
        if not kinds:
            item.add_marker("contract")
