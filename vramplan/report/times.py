"""The words of a step's time."""

from __future__ import annotations

from vramplan.results.time import BUBBLE, COMMUNICATION, COMPUTE, DATA, EXTRAPOLATED, HOST, MEMORY, Time

BOUND_WORDS = {
    COMPUTE: "bound by compute",
    MEMORY: "bound by memory bandwidth",
    COMMUNICATION: "bound by communication",
    BUBBLE: "bound by the pipeline's bubble",
    HOST: "bound by the host",
    DATA: "bound by data",
}


def seconds_text(seconds: float) -> str:
    """`84.2 ms`, `1.36 s`, `2.3 min`, `1.4 h`."""
    if seconds < 0.9995:
        return f"{three(1000 * seconds)} ms"
    if seconds < 600:
        return f"{three(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def three(number: float) -> str:
    """A number with three digits that count, and with all that it has before its point."""
    if number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


def rate_of_all(samples_per_second: float | None, tokens_per_second: float | None) -> str:
    """`24,100 tokens/s`, or samples where there are no tokens; empty where no rate is known."""
    if tokens_per_second is not None:
        return f"{_grouped(tokens_per_second)} tokens/s"
    return "" if samples_per_second is None else f"{_grouped(samples_per_second)} samples/s"


def rate_text(time: Time) -> str:
    """`24,100 tokens/s per GPU`, or samples where there are no tokens."""
    if time.tokens_per_second_per_device is None:
        return f"{_grouped(time.samples_per_second / time.devices)} samples/s per GPU"
    return f"{_grouped(time.tokens_per_second_per_device)} tokens/s per GPU"


def time_words(time: Time) -> tuple[str, str, str, str, str]:
    """The time of a step, its range, the rate of a GPU, the utilisation, and what bounds it."""
    likely = seconds_text(time.step_seconds)
    between = f"{seconds_text(time.step_seconds_low)} to {seconds_text(time.step_seconds_high)}"
    bound = BOUND_WORDS[time.bound] + (f", {EXTRAPOLATED}" if time.basis == EXTRAPOLATED else "")
    return f"{likely} a step", between, rate_text(time), f"MFU {time.mfu_percent:.0f}%", bound


PART_WORDS = {
    "products": "matrix products",
    "attention": "fused attention",
    "bytes": "memory-bound kernels",
    "optimizer": "optimizer",
    "communication": "communication",
    "bubble": "pipeline bubble",
    "host": "host",
    "loop": "training loop",
    "data": "waiting for data",
}
LEAST_SHARE = 0.005


def time_facts(time: Time) -> list[tuple[str, str]]:
    """Names and values, in the order in which they are read."""
    likely, between, rate, _, bound = time_words(time)
    rates = [rate]
    if time.tokens_per_second is not None and time.devices > 1:
        rates.append(f"{_grouped(time.tokens_per_second)} in all")
    if time.tokens_per_second is not None or time.devices > 1:
        rates.append(f"{_grouped(time.samples_per_second)} samples/s")
    peak = f"{three(time.peak_flop_per_s / 1e12)} TFLOP/s"
    shares = sorted(time.shares.items(), key=lambda pair: -pair[1])
    samples = f"{time.samples_per_step:,} {'sample' if time.samples_per_step == 1 else 'samples'}"
    said = ", ".join(f"{PART_WORDS[part]} {100 * share:.0f}%" for part, share in shares if share >= LEAST_SHARE)
    return [
        ("step", f"{likely}, {between}; {time.basis}, {samples}"),
        ("rate", ", ".join(rates)),
        ("MFU", f"{time.mfu_percent:.1f}%: FLOPs of forward and backward, over the peak of {peak} per GPU"),
        ("HFU", f"{time.hfu_percent:.1f}%: the same with the recomputation of checkpoints"),
        ("time spent", f"{bound.removesuffix(f', {EXTRAPOLATED}')}: {said}"),
    ]


def _grouped(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 99.5 else three(rate)
