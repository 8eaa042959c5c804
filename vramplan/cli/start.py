"""The console script: a keyboard interrupt is silent from the first import on, and little is spent on garbage."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Entry point of `vramplan`."""
    gc.set_threshold(500_000, 50, 50)  # collections find next to nothing, and cost a tenth of a short process
    try:
        from vramplan.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        run()
    finally:
        gc.freeze()  # the interpreter looks for garbage once more when it ends, which costs another tenth
