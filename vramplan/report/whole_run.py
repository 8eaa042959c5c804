"""The words of a whole run: how long it takes, and what it costs."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.report.times import three
from vramplan.results.run import Data, Range, Run

TITLE = "The whole run"
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def run_words(run: Run) -> list[str]:
    """Each of them stands on one line where it can: length, time, hours, cost, energy, carbon dioxide."""
    what = f"{count_text(run.tokens)} tokens" if run.tokens is not None else f"{count_text(run.samples)} samples"
    words = [
        f"{run.steps:,} {'step' if run.steps == 1 else 'steps'} ({what})",
        f"{_between(run.wall_seconds, duration_text)} on {run.devices} {'GPU' if run.devices == 1 else 'GPUs'}",
        f"{_between(run.gpu_hours, hours_text)} GPU hours",
    ]
    if run.cost_usd is not None:
        words.append(f"{_between(run.cost_usd, money_text)} USD")
    if run.energy_kwh is not None:
        words.append(f"{_between(run.energy_kwh, hours_text)} kWh")
    if run.co2_kg is not None:
        words.append(f"{_between(run.co2_kg, hours_text)} kg CO2")
    return words


def limit_words(run: Run) -> list[str]:
    """Of the deadline and the budget that are not kept, and what would keep them."""
    said = []
    if run.in_time is False and run.deadline_seconds is not None:
        said.append(
            f"misses the deadline of {duration_text(run.deadline_seconds)}: "
            f"{run.devices_in_time:,} GPUs or more would keep it"
        )
    if run.in_budget is False and run.budget_usd is not None:
        each = f"{run.price_in_budget_usd:.3g} USD for a GPU hour"
        said.append(f"exceeds the budget of {money_text(run.budget_usd)} USD: {each} or less would keep it")
    return said


def run_facts(run: Run | None, data: Data | None) -> list[tuple[str, str]]:
    """The same and what it is made of, one fact to a line."""
    return ([] if run is None else _facts(run)) + ([] if data is None else [("data", data_text(data))])


def _facts(run: Run) -> list[tuple[str, str]]:
    goodput = run.goodput
    facts = [
        ("length", run_words(run)[0] + _of_data(run)),
        ("warm-up", f"at most {run.warm_up_steps:,} steps of the learning rate, by batch size and length"),
        ("computing", f"{_between(run.steady_seconds, duration_text)}, {run.model_flops:.3g} FLOP of the model"),
        ("wall time", f"{_between(run.wall_seconds, duration_text)}, at a goodput of {_between(goodput, _share)}"),
        ("GPU hours", _between(run.gpu_hours, hours_text)),
    ]
    price = run.price_usd_per_gpu_hour
    if price is not None and run.cost_usd is not None:
        source = "as given"
        if run.price_offers:
            source = "1 published price" if run.price_offers == 1 else f"{run.price_offers} published prices"
        each = run.cost_usd_per_million_tokens
        of_tokens = "" if each is None else f"; {_between(each, money_text)} USD for a million tokens"
        facts.append(("price", f"{_between(price, money_text)} USD for a GPU hour, {source}"))
        facts.append(("cost", f"{_between(run.cost_usd, money_text)} USD{of_tokens}"))
    if run.purchase_usd is not None:
        even = (
            "" if run.break_even_runs is None else f"; renting for {three(run.break_even_runs)} such runs costs as much"
        )
        facts.append(("to buy", f"{money_text(run.purchase_usd)} USD for the GPUs{even}"))
    if run.energy_kwh is not None:
        whose = "GPUs alone" if run.pue is None else f"with a PUE of {run.pue:g}"
        facts.append(("energy", f"{_between(run.energy_kwh, hours_text)} kWh, {whose}"))
    if run.co2_kg is not None:
        facts.append(("carbon", f"{_between(run.co2_kg, hours_text)} kg CO2"))
    if run.deadline_seconds is not None:
        kept = "kept" if run.in_time else f"missed: at least {run.devices_in_time:,} GPUs"
        facts.append(("deadline", f"{duration_text(run.deadline_seconds)}, {kept}"))
    if run.budget_usd is not None:
        facts.append(("budget", f"{money_text(run.budget_usd)} USD, {_budget(run)}"))
    return facts


def data_text(data: Data) -> str:
    """What the input pipeline has to deliver, and whether it does."""
    needed, given = (f"{three(rate / 1e6)} MB/s" for rate in (data.needed_bytes_per_s, data.given_bytes_per_s))
    waits = f"the GPUs wait {1 - data.gpu_utilization:.0%} of the time" if data.is_bound else "the GPUs do not wait"
    return f"a node needs {needed} and gets {given}: {waits}; {data.host_buffer_bytes / 2**20:.1f} MiB of buffers"


def duration_text(seconds: float) -> str:
    """`41 s`, `8.5 min`, `3.1 h`, `12.4 days`."""
    for size, unit in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * size:
            return f"{_round(seconds / size)} {unit}"
    return f"{_round(seconds)} s"


def hours_text(number: float) -> str:
    """A figure with three digits that count, and all that it has before its point."""
    return _round(number)


def money_text(number: float) -> str:
    """The same, with at least two digits behind the point below 100."""
    return f"{number:,.0f}" if number >= 99.995 else f"{number:.2f}" if number >= 0.995 else f"{number:.3g}"


def count_text(number: int | None) -> str:
    """`52,000`, `300B`, `15T`."""
    assert number is not None
    for power, unit in ((12, "T"), (9, "B"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.4g}{unit}"
    return f"{number:,}"


def _round(number: float) -> str:
    return f"{number:,.0f}" if number >= 99.95 else three(number)


def _share(number: float) -> str:
    return f"{number:.0%}"


def _between(one: Range, write: Callable[[float], str]) -> str:
    low, likely, high = (write(part) for part in one)
    return likely if low == likely == high else f"{likely} ({low} to {high})"


def _of_data(run: Run) -> str:
    if run.tokens_per_parameter is None:
        return ""
    return f", {three(run.tokens_per_parameter)} tokens per parameter (compute-optimal: about 20)"


def _budget(run: Run) -> str:
    if run.in_budget is None:
        return "and no price is known: --price"
    return "kept" if run.in_budget else f"exceeded: {run.price_in_budget_usd:.3g} USD for a GPU hour would keep it"
