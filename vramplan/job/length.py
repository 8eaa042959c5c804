"""How long a whole run is, and what it may cost: durations, money and places as they are typed; published prices."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from vramplan.catalog.fields import shown
from vramplan.catalog.grids import find_grid, parse_intensity_g_per_kwh
from vramplan.catalog.prices import purchases_of, rents_of
from vramplan.errors import InputError
from vramplan.job.counts import ungrouped
from vramplan.options import table
from vramplan.units import parse_size_bytes
from vramplan.values.length import Length, Price

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu
    from vramplan.values.model import ModelShape

LENGTHS = ("tokens", "samples", "compute_optimal")
OF_A_RUN = ("epochs", "goodput", "price", "purchase_price", "deadline", "budget", "pue", "grid")
"""Keys that say nothing without a length."""

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hr", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]+)", re.ASCII | re.IGNORECASE)
_MONEY = re.compile(
    r"(?:usd|\$)?\s*(\d{1,3}(?:[,_]\d{3}){1,3}(?:\.\d{1,6})?|\d{1,12}(?:\.\d{1,6})?)\s*([km]?)\s*(?:usd|\$)?",
    re.ASCII | re.IGNORECASE,
)
_AN_HOUR = re.compile(r"\s*/\s*(?:h|hr|hour|gpu-hour)$", re.ASCII | re.IGNORECASE)
_POWERS = {"": 1.0, "k": 1e3, "m": 1e6}
MOST_PRICES = 3


def length_of(resolver: Resolver, model: ModelShape | None, gpu: Gpu | None) -> Length:
    """What a job says of the length of its run, checked; a price that nobody gives is that of published offers."""
    raw, fields = resolver.raw, resolver.fields
    given = [key for key in LENGTHS if getattr(raw, key)]
    if len(given) > 1:
        hint = f"give one of {_options(LENGTHS)}"
        fields.refuse(given[1], f"{given[0]} says how long the run is already", hint=hint)
    alone = [key for key in OF_A_RUN if getattr(raw, key) is not None]
    unread = any(fields.given(key) and getattr(raw, key) is None for key in LENGTHS)  # which is refused already
    if not given and not unread and alone:
        what = "of what?" if alone[0] == "epochs" else "belongs to a run, and nobody says how long it is"
        fields.refuse(alone[0], what, hint=f"give one of {_options(LENGTHS)}")
    if model is not None and not model.takes_text and (raw.tokens or raw.compute_optimal):
        fields.refuse(given[0], f"{model.name} takes no tokens", hint=f"give {_options(('samples',))}")
    price, offers = _price(resolver, gpu, asked=bool(given))
    return Length(
        tokens=raw.tokens,
        samples=raw.samples,
        epochs=1.0 if raw.epochs is None else raw.epochs,
        compute_optimal=bool(raw.compute_optimal),
        goodput=raw.goodput,
        price=price,
        offers=offers,
        purchase_usd=_purchase(resolver, gpu, asked=bool(given)),
        deadline_seconds=_parsed(resolver, "deadline", raw.deadline, _seconds, "7d, 36h or 90min"),
        budget_usd=_parsed(resolver, "budget", raw.budget, _usd, "5000 or 5k, in US dollars"),
        pue=raw.pue,
        grid_g_per_kwh=_grid(resolver),
        data_bytes_per_s=_data_rate(resolver),
        sample_bytes=raw.sample_size,
    )


def _options(keys: tuple[str, ...]) -> str:
    return ", ".join(table.find(key).option for key in keys)


def _parsed(
    resolver: Resolver, key: str, text: str | None, parse: Callable[[str], float | None], examples: str
) -> float | None:
    value = None if text is None else parse(text.strip())
    if text is not None and not value:
        resolver.fields.problem(key, f"{shown(text)} is not understood", hint=f"as in {examples}")
    return value or None


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text)
    unit = None if found is None else _UNITS.get(found[2].lower())
    return None if found is None or unit is None else float(found[1]) * _SECONDS[unit]


def _usd(text: str) -> float | None:
    found = _MONEY.fullmatch(text)
    return None if found is None else float(ungrouped(found[1])) * _POWERS[found[2].lower()]


def _price(resolver: Resolver, gpu: Gpu | None, *, asked: bool) -> tuple[Price | None, int]:
    """The price of a GPU hour that is given, or else of those that are published for the GPU, and how many they are."""
    text = resolver.raw.price
    if text is not None:
        parts = [_usd(part.strip()) for part in _AN_HOUR.sub("", text.strip()).split("-")]
        numbers = [part for part in parts if part]
        if len(numbers) < len(parts) or len(numbers) > MOST_PRICES or numbers != sorted(numbers):
            hint = "US dollars for an hour of one GPU: 2.50, or the lowest and the highest as in 1.99-3.50"
            resolver.fields.problem("price", f"{shown(text)} is not understood", hint=hint)
            return None, 0
        return Price(numbers[0], median(numbers), numbers[-1]), 0
    rent = resolver.raw.rent
    if asked and rent is not None and rent.usd_per_gpu_hour is not None:
        usd = rent.usd_per_gpu_hour
        resolver.assume("price", f"{usd:g}", f"USD for a GPU hour, of the instance, by {rent.cloud}")
        return Price(usd, usd, usd), 1
    cloud = None if rent is None else rent.cloud
    offers = rents_of(gpu.name, resolver.catalog.dirs, cloud) if asked and gpu is not None else ()
    if not offers:
        return None, 0
    each = [offer.usd for offer in offers]
    price = Price(each[0], round(median(each), 4), each[-1])
    listed = ", ".join(f"{offer.provider} {offer.usd:g} ({offer.accessed})" for offer in offers)
    of_several = "" if len(offers) == 1 else ", the lowest, the median and the highest"
    resolver.assume("price", price.text, f"USD for a GPU hour{of_several} of {listed}")
    return price, len(offers)


def _purchase(resolver: Resolver, gpu: Gpu | None, *, asked: bool) -> float | None:
    """The price of one GPU that is given, or else the lowest that is published."""
    text = resolver.raw.purchase_price
    if text is not None:
        return _parsed(resolver, "purchase_price", text, _usd, "30000 or 30k, in US dollars")
    offers = purchases_of(gpu.name, resolver.catalog.dirs) if asked and gpu is not None else ()
    if not offers:
        return None
    found = offers[0]
    resolver.assume("purchase_price", f"{found.usd:g}", f"USD, by {found.provider} ({found.accessed}): {found.title}")
    return found.usd


def _grid(resolver: Resolver) -> float | None:
    text = resolver.raw.grid
    if text is None:
        return None
    given = parse_intensity_g_per_kwh(text)
    if given is not None:
        return given
    try:
        found = find_grid(text, resolver.catalog.dirs)
    except InputError as error:
        hint = error.problems[0].hint
        more = "or give the figure, as in '400 g/kWh'"
        resolver.fields.problem("grid", f"{shown(text)} is no grid", hint=f"{hint}; {more}" if hint else more)
        return None
    value: float = found.value("intensity")
    resolver.assume("grid", f"{value:g} g/kWh", f"electricity of {found.title}, {found.fields['intensity'].note}")
    return value


def _data_rate(resolver: Resolver) -> float | None:
    text = resolver.raw.data_rate
    if text is None:
        return None
    if not re.search(r"/\s*s(ec)?$", text.strip()):
        hint = "bytes in a second, as in 500 MB/s"
        resolver.fields.problem("data_rate", f"{shown(text)} is no rate", hint=hint)
        return None
    return resolver.fields.parsed("data_rate", _bytes_per_s)


def _bytes_per_s(text: str) -> float:
    """A size in a second, in the units of sizes."""
    return float(parse_size_bytes(text.rpartition("/")[0], rounding="down"))
