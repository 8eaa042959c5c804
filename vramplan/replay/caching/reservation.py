"""What a simulated run reserves, and where it ends."""

from __future__ import annotations

from vramplan.tuples import NamedTuple


class Failure(NamedTuple):
    """Where a run ends: no segment could be had."""

    iteration: int  # from 1
    phase: str
    operator: str
    wanted_bytes: int
    allocated_bytes: int  # in use then
    reserved_bytes: int  # with free blocks that could not go back
    largest_free_bytes: int


class Reservation(NamedTuple):
    """What a run reserves. Peaks are over all iterations; `first_*` over the first alone."""

    reserved_bytes: int
    allocated_bytes: int  # with what is not split off blocks
    first_reserved_bytes: int
    first_allocated_bytes: int
    later_allocated_bytes: int  # of those after it; 0 if there was none
    held_bytes: int  # at the end: reserved, free, and in segments of which others are in use
    largest_free_bytes: int  # at the end
    retries: int
    last_retries: int  # of the last iteration
    iterations: int
    failure: Failure | None
    expandable_survives: bool | None = (
        None  # where it fails: whether it does with expandable segments; None: it had them
    )
    start_reserved_bytes: int = 0  # the peak before the first iteration
    step_reserved_bytes: int = 0  # and that of all iterations
    decided_below_bytes: int = 0  # a device that gives less than this starts in another way

    @property
    def loading_is_worst(self) -> bool:
        """Whether more than the iterations use is reserved before them, and they add less than what that is more."""
        idle = self.start_reserved_bytes - self.allocated_bytes
        return idle > max(0, self.step_reserved_bytes - self.start_reserved_bytes)
