"""micro * steps * data == global, solved exactly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from vramplan.errors import UsageError
from vramplan.tuples import NamedTuple

MOST_SEQUENCES = 2**40  # of a step: beyond it something was pasted wrongly (vramplan/options/option.py, MAX_COUNT)
LARGEST_MICRO_BATCH = 1 << 24  # beyond any device: bounds the search where nothing else does


class Schedule(NamedTuple):
    """One way to reach a global batch."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int

    @property
    def accumulates(self) -> bool:
        """Whether gradients stay resident between micro-steps."""
        return self.gradient_accumulation_steps > 1


class OpenSchedules:
    """The schedules that a job leaves open.

    `micro`, `steps` and `global_batch` are None where they are free; `given` says that the global batch is the user's
    and must be reached exactly, while the default one moves to the nearest that can be.
    """

    def __init__(
        self,
        *,
        micro: int | None,
        steps: int | None,
        global_batch: int | None,
        given: bool,
        data: int,
        multiple: int = 1,
    ) -> None:
        self.micro, self.steps, self.data = micro, steps, data
        self.multiple = multiple  # of which the steps have to be: an interleaved pipeline goes round in groups
        self.moved_from: int | None = None
        self.global_batch = self._settle(global_batch, given)

    def _settle(self, wanted: int | None, given: bool) -> int | None:
        if self.steps is not None and self.steps * (self.micro or 1) * self.data > MOST_SEQUENCES:
            size = self.steps * (self.micro or 1) * self.data
            message = f"a step of {size:,} sequences is too large; the most is {MOST_SEQUENCES:,}"
            raise UsageError(message, key="gradient_accumulation_steps", hint="fewer steps")
        if self.steps is not None and (wanted is None or not given):
            return None if self.micro is None else self.micro * self.steps * self.data
        assert wanted is not None
        unit = self.data * (self.micro or 1) * (self.steps or self.multiple)
        if wanted % unit == 0 and (self.micro is None or self.steps is None or wanted == unit):
            return wanted
        below, above = wanted // unit * unit, (wanted // unit + 1) * unit
        if self.micro is not None and self.steps is not None:
            below = above = unit
        if given:
            raise UsageError(
                f"global batch size {wanted} cannot be reached exactly {self._made_of()}",
                key="global_batch_size",
                hint="reachable: " + " and ".join(str(n) for n in dict.fromkeys((below, above)) if n),
            )
        self.moved_from = wanted
        return below if below and wanted - below <= above - wanted else above

    def _made_of(self) -> str:
        parts = []
        if self.micro is not None:
            parts.append(f"micro-batch {self.micro}")
        if self.steps is not None:
            parts.append(f"{self.steps} accumulation steps")
        elif self.multiple > 1:
            parts.append(f"accumulation steps in multiples of the {self.multiple} stages")
        if self.data > 1:
            parts.append(f"{self.data} data-parallel GPUs")
        return "with " + " and ".join(parts)

    def schedules(self) -> Iterator[Schedule]:
        """All exact schedules, the largest micro-batch (so the fewest steps) first."""
        data = self.data
        if self.global_batch is None:
            assert self.steps is not None
            raise AssertionError("any micro-batch is exact: ask for_micro")
        per_rank = self.global_batch // data
        for micro in [self.micro] if self.micro is not None else divisors(per_rank):
            steps = per_rank // micro
            if steps * micro == per_rank and (self.steps is None or steps == self.steps) and not steps % self.multiple:
                yield Schedule(micro, steps, self.global_batch)

    def for_micro(self, micro: int) -> Schedule:
        """The schedule of a micro-batch when only the steps are fixed; of no more than makes the largest batch."""
        assert self.steps is not None
        micro = min(micro, MOST_SEQUENCES // (self.steps * self.data))
        return Schedule(micro, self.steps, micro * self.steps * self.data)

    def smallest(self) -> Schedule:
        """The schedule with the smallest micro-batch."""
        return self.for_micro(1) if self.free else list(self.schedules())[-1]

    @property
    def free(self) -> bool:
        """Whether every micro-batch is exact: steps given, no global batch, micro-batch open."""
        return self.global_batch is None


@lru_cache(4)
def divisors(*factors: int) -> list[int]:
    """All divisors of a product, the largest first; each factor is at most 2^40, and quickly taken apart."""
    powers: dict[int, int] = {}
    for factor in factors:
        for prime in _primes(factor):
            powers[prime] = powers.get(prime, 0) + 1
    found = [1]
    for prime, most in powers.items():
        found = [one * prime**power for one in found for power in range(most + 1)]
    return sorted(found, reverse=True)


def _primes(number: int) -> Iterator[int]:
    """The prime factors of a number, each as often as it divides it."""
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            yield prime
            number //= prime
        prime += 1 if prime == 2 else 2
    if number > 1:
        yield number
