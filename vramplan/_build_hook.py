"""Build hook: an editable install compiles the package, as pip does for a normal one.

Start-up is most of what a call of `vramplan` costs, and compiling the sources anew at each call would add half to it
wherever Python may not write bytecode (PYTHONDONTWRITEBYTECODE, a read-only checkout).
"""

from __future__ import annotations

import compileall
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHook(BuildHookInterface[BuilderConfig]):
    """Runs when the wheel target is built; only the editable version compiles in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the build."""
        if version == "editable":
            compileall.compile_dir(Path(self.root) / "vramplan", quiet=2)
