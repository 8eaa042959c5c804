"""Price profiles: what an hour of a GPU costs at a provider, and what a GPU costs to buy, each figure with its date.

A field has the name of a GPU profile. `3.99 USD/h` is a rent, `1500 USD` a purchase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from vramplan.catalog import locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile
from vramplan.catalog.reading import once
from vramplan.tuples import NamedTuple

_PRICE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*USD\s*(/\s*h)?", re.ASCII)


class Figure(NamedTuple):
    """A price in US dollars: of an hour, or of the card."""

    usd: float
    is_rent: bool


class Offer(NamedTuple):
    """What a provider asks for one GPU, for an hour or for good."""

    provider: str
    usd: float
    accessed: str  # the day on which it was read
    title: str


def _price(fields: Fields, name: str) -> Figure | None:
    text = fields.text(name)
    found = None if text is None else _PRICE.fullmatch(text.strip())
    if text is not None and (found is None or float(found[1]) <= 0):
        fields.problem(name, f"{text[:40]!r} is no price", hint="as in 3.99 USD/h, or 1500 USD for the card")
        return None
    return None if found is None else Figure(float(found[1]), found[2] is not None)


@once
def load_prices(path: Path | str) -> Profile:
    """Read one price profile. Raises InputError with every problem of the file."""
    return profile.read_named(Path(path), "prices", _price)


def rents_of(gpu: str, dirs: Sequence[Path] = (), cloud: str | None = None) -> tuple[Offer, ...]:
    """What an hour of the GPU of that profile name costs, the cheapest first; of one cloud where it has a price."""
    offers = _offers(gpu, dirs, is_rent=True)
    return tuple(offer for offer in offers if offer.provider == cloud) or offers


def purchases_of(gpu: str, dirs: Sequence[Path] = ()) -> tuple[Offer, ...]:
    """What the GPU of that profile name costs to buy, the cheapest first."""
    return _offers(gpu, dirs, is_rent=False)


def rented(dirs: Sequence[Path] = ()) -> list[str]:
    """The GPUs that somebody rents out, by the name of their profile: those with the lowest median price first."""
    prices: dict[str, list[float]] = {}
    for one in locate.load_all("prices", dirs, load_prices, []):
        for gpu, field in one.fields.items():
            if field.value is not None and field.value.is_rent:
                prices.setdefault(gpu, []).append(field.value.usd)
    known = [gpu for gpu in prices if gpu in locate.files("gpus", dirs)]
    return sorted(known, key=lambda gpu: (median(prices[gpu]), gpu))


def _offers(gpu: str, dirs: Sequence[Path], *, is_rent: bool) -> tuple[Offer, ...]:
    found = []
    for one in locate.load_all("prices", dirs, load_prices, []):
        field = one.fields.get(gpu)
        if field is not None and field.value is not None and field.value.is_rent is is_rent:
            source = one.sources[field.source] if field.source is not None else None
            told = ("", "") if source is None else (source.accessed, source.title)
            found.append(Offer(one.name, field.value.usd, *told))
    return tuple(sorted(found, key=lambda offer: offer.usd))
