"""Time, money and energy of a run as texts compute them: operations over a rate, hours times a price or a power."""

from __future__ import annotations

SECONDS_PER_DAY = 86400.0


def run_seconds(flops: float, devices: int, peak_flop_per_s: float, utilisation: float) -> float:
    """T = operations / (peak x utilisation) on all devices together. `utilisation` is a share."""
    return flops / (devices * peak_flop_per_s * utilisation)


def rent_usd(devices: int, seconds: float, usd_per_device_hour: float) -> float:
    """What renting `devices` for so long costs."""
    return devices * seconds / 3600 * usd_per_device_hour


def break_even_runs(purchase_usd: float, rent_per_run_usd: float) -> float:
    """How many runs cost as much rented as the devices cost to buy."""
    return purchase_usd / rent_per_run_usd


def energy_kwh(hours: float, devices: int, device_watts: float, hosts: int = 0, host_watts: float = 0.0) -> float:
    """Power of devices and hosts over the hours of a run, in kilowatt hours."""
    return hours * (devices * device_watts + hosts * host_watts) / 1000


def co2_kg(energy_kwh: float, kg_per_kwh: float) -> float:
    """Carbon dioxide of electricity."""
    return energy_kwh * kg_per_kwh


def household_months(energy_kwh: float, kwh_per_month: float = 900.0) -> float:
    """In how many months a household of texts uses as much."""
    return energy_kwh / kwh_per_month


def pipeline_utilisation(data_per_s: float, consumed_per_s: float) -> float:
    """Share of the time in which the GPUs have data: the rate of the pipeline over theirs, at most 1."""
    return min(1.0, data_per_s / consumed_per_s)


def disk_rate(rated_bytes_per_s: float) -> float:
    """What texts plan on: half of the rated bandwidth of a disk."""
    return rated_bytes_per_s / 2


def host_buffer_bytes(batch_bytes: float, prefetched: int, processed: int = 1, moved: int = 1) -> float:
    """(prefetch + processing + transfer) x the bytes of a batch."""
    return (prefetched + processed + moved) * batch_bytes
