"""Traces of the real libraries, made again: `python -m tests.traces COMMAND`; docs/traces.md says what each needs."""

from __future__ import annotations

import argparse
import sys

from tests.traces.drawn import SHARDINGS, TYPES
from tests.traces.drawn_programs import CHOICES
from tests.traces.parts import PARTS
from tests.traces.rigs import RIGS, check, nightly, row_names, set_up, trace_rows, write_sources


def main(arguments: list[str]) -> int:
    """The exit code of a command."""
    parser = argparse.ArgumentParser(prog="python -m tests.traces", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compose = commands.add_parser("compose", help="draw jobs whose techniques meet: answer, trace, compare")
    compose.add_argument("--seed", type=int, default=0)
    compose.add_argument("--jobs", type=int, default=100, help="how many jobs to draw")
    compose.add_argument("--sharding", choices=SHARDINGS, help="under which all of them are (default: one device)")
    compose.add_argument(
        "--types", nargs="*", default=(), choices=TYPES, metavar="TYPE", help="of models (default: all)"
    )
    compose.add_argument("--program", choices=CHOICES, help="with models of its own, for which all of them are drawn")
    compose.add_argument("--output", help="a file of JSON for what was found")
    for name, help_of in (
        ("setup", "make the environment of a rig"),
        ("check", "trace rows of a rig again, in its environment"),
        ("rows", "the same, in the environment that runs this"),
    ):
        one = commands.add_parser(name, help=help_of)
        one.add_argument("rig", choices=list(RIGS))
        one.add_argument("--rows", type=int, default=10, help="how many of each file (default 10)")
        one.add_argument("--seed", type=int, default=0, help="which ones")
        one.add_argument("--files", nargs="*", default=(), help="of these files alone")
        if name == "setup":
            one.add_argument("--source", help="of a program that is no package: its repository, if not the public one")
    every = commands.add_parser("nightly", help="check rows of every rig that is set up")
    every.add_argument("--rows", type=int, default=3, help="how many of each file (default 3)")
    every.add_argument("--seed", type=int, default=0, help="which ones; the day of the year, for example")
    anew = commands.add_parser("answer", help="answer the jobs of a file anew, and compare with their traces")
    anew.add_argument("file", help="of JSON, as `compose --output` writes it")
    commands.add_parser("sources", help="name in every file of rows the rig, its versions and its command")
    commands.add_parser("page", help="write the page of the composed jobs that are kept")
    given = parser.parse_args(arguments)
    if given.command == "setup":
        return set_up(RIGS[given.rig], given.source)
    if given.command == "check":
        return check(RIGS[given.rig], given.rows, given.seed, given.files)
    if given.command == "nightly":
        return nightly(given.rows, given.seed)
    if given.command == "rows":
        return trace_rows(RIGS[given.rig], given.rows, given.seed, given.files)
    from tests.traces import composed, composed_page

    if given.command == "sources":
        write_sources((*row_names(), *PARTS))
        return 0

    if given.command == "page":
        composed_page.PAGE.write_text(composed_page.page(), "utf-8")
        return 0
    if given.command == "answer":
        return composed.answer_anew(given.file)
    return composed.run(given.seed, given.jobs, given.output, given.sharding, given.types, given.program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
