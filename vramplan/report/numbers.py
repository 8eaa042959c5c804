"""Integer bytes as GiB with two decimals. Demand is rounded up, supply down, and shown sums add up.

Everything is computed in whole hundredths of a GiB, so no figure depends on a float.
"""

from __future__ import annotations

from collections.abc import Sequence

GIB = 1 << 30
GB = 10**9


def gib_up(demand_bytes: int) -> int:
    """Hundredths of a GiB that hold `demand_bytes`."""
    return -(-demand_bytes * 100 // GIB)


def whole_gib(demand_bytes: int) -> str:
    """Whole GiB that hold `demand_bytes`, with commas: `1,433`."""
    return f"{-(-demand_bytes // GIB):,}"


def gib_down(supply_bytes: int) -> int:
    """Hundredths of a GiB that are there. A capacity of "31.74 GiB" was itself rounded down to bytes: still 31.74."""
    return ((supply_bytes + 1) * 100 - 1) // GIB


def gib_against(demand_bytes: int, supply_bytes: int) -> int:
    """`gib_up`, except that what is within the supply is never shown above it."""
    shown = gib_up(demand_bytes)
    return min(shown, gib_down(supply_bytes)) if demand_bytes <= supply_bytes else shown


def text_of(hundredths: int) -> str:
    """`2958` as `29.58`."""
    sign = "-" if hundredths < 0 else ""
    whole, part = divmod(abs(hundredths), 100)
    return f"{sign}{whole}.{part:02d}"


def gib_near(size: int) -> int:
    """Hundredths of a GiB, rounded to the nearest."""
    return (200 * size + 2**30) // 2**31


def gb_near(size_bytes: int) -> int:
    """Hundredths of a GB, to the nearest: textbook figures are compared with printed ones, which are rounded so."""
    return (size_bytes * 200 + GB) // (2 * GB)


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Hundredths for parts in bytes that add up to `total` hundredths, each within one hundredth of the truth.

    Equal parts are shown equal wherever the others can take up the rounding.
    """
    shares = [part * 100 // GIB for part in parts]
    left = total - sum(shares)
    if not 0 <= left <= len(parts):  # the parts do not make up this total: show each for itself
        return [gib_up(part) for part in parts]
    twins = [place for place, part in enumerate(parts) if parts.count(part) > 1]
    by_remainder = sorted(range(len(parts)), key=lambda place: (place in twins, -(parts[place] * 100 % GIB)))
    rounded_up = [place for place in by_remainder if parts[place] * 100 % GIB * 2 >= GIB]
    rest = [place for place in by_remainder if place not in rounded_up]
    for place in (rounded_up + rest)[:left]:
        shares[place] += 1
    return shares


def percent(part: int, whole: int) -> str:
    """`part` of `whole` in percent with one decimal, without the sign."""
    return f"{100 * part / whole:.1f}" if whole else "-"


def percent_up(demand: int, supply: int) -> str:
    """`demand` of `supply` in percent, rounded up: what is over a limit never looks as if it were at it."""
    if supply <= 0:
        return "-"
    whole, part = divmod(-(-demand * 1000 // supply), 10)
    return f"{whole}.{part}%"


def share_text(share: float | None, *, signed: bool = False) -> str:
    """A share as a percentage with one decimal; `-` where there is none."""
    if share is None:
        return "-"
    return f"{100 * share:+.1f}%" if signed else f"{100 * share:.1f}%"


def count(number: int, word: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
