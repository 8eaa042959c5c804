"""The console script: a keyboard interrupt is silent from the first import on."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `vramplan`."""
    try:
        from vramplan.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
