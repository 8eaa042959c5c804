"""Fuzz by hand: `python -m tests.fuzz --seconds 600`."""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.fuzz.run import rounds

EPILOG = """\
Each round has a seed of its own, which is printed with what it finds; --seed SEED --rounds 1 draws it again. A find is
made smaller by dropping keys, and printed as a command line.

exit code: 0 if nothing was found, 1 if something was.
"""
APART = 1_000_000_007  # between the seeds of two processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw until the time is over."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Ask random jobs and broken files, and compare the answers with what holds for all of them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--rounds", type=int, help="end after so many")
    parser.add_argument("--seed", type=int, help="of the first round (default: a random one)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, each with seeds of its own")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    more = [*(["--rounds", str(options.rounds)] if options.rounds else [])]
    others = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.fuzz",
                "--seconds",
                str(options.seconds),
                "--seed",
                str(seed + i * APART),
                *more,
            ]
        )
        for i in range(1, options.jobs)
    ]
    found = fuzz(seed, options.seconds, options.rounds)
    codes = [other.wait() for other in others]
    return 1 if found or any(codes) else 0


def fuzz(seed: int, seconds: float, most_rounds: int | None) -> int:
    """How many rounds found something; each is printed when it does."""
    end, found = time.monotonic() + seconds, 0
    done: Counter[bool | None] = Counter()
    for number, fault, answered in rounds(seed):
        done[answered] += 1
        if fault is not None:
            found += 1
            print(f"seed {number}: {fault.oracle}: {fault.message}\n    {fault.command}", flush=True)
        if time.monotonic() > end or done.total() == most_rounds:
            break
    jobs = f"{done[True]} jobs answered, {done[False]} refused, {done[None]} files"
    print(f"{done.total()} rounds from seed {seed} ({jobs}), {found} found something")
    return found


if __name__ == "__main__":
    sys.exit(main())
