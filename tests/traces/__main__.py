"""Traces of the real libraries, made again: `python -m tests.traces COMMAND`; docs/traces.md says what each needs."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str]) -> int:
    """The exit code of a command."""
    parser = argparse.ArgumentParser(prog="python -m tests.traces", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compose = commands.add_parser("compose", help="draw jobs whose techniques meet: answer, trace, compare")
    compose.add_argument("--seed", type=int, default=0)
    compose.add_argument("--jobs", type=int, default=100, help="how many jobs to draw")
    compose.add_argument("--output", help="a file of JSON for what was found")
    given = parser.parse_args(arguments)
    from tests.traces import composed

    return composed.run(given.seed, given.jobs, given.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
