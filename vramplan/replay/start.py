"""What a program asks the caching allocator for before its first iteration."""

from __future__ import annotations

from vramplan.tuples import NamedTuple

Event = int | None
"""The number of what is asked for, ~number of what is freed; None: free segments go back to the device."""


class Room(NamedTuple):
    """One block that is asked for before all others and let go at once, so that they are cut from it."""

    whole_bytes: int
    parts: int  # of which it is one
    left_bytes: int  # of the device beside the whole

    def within(self, limit_bytes: int) -> int:
        """Bytes of it where the allocator can have so many."""
        return min(self.whole_bytes, max(0, limit_bytes - self.left_bytes)) // self.parts


class Start(NamedTuple):
    """Requests in their order. What is not freed stays as long as the run does."""

    sizes: tuple[int, ...]  # bytes of each
    events: tuple[Event, ...]
    needed_bytes: int = 0  # where the device has less:
    if_short: tuple[Event, ...] = ()
    room: Room | None = None

    @property
    def decided_below_bytes(self) -> int:
        """A device that gives the allocator less than this starts in another way."""
        return max(self.needed_bytes, 0 if self.room is None else self.room.whole_bytes + self.room.left_bytes)


class Starting:
    """Collects them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.events: list[Event] = []

    def make(self, size: int) -> int:
        """Ask for so many bytes; its number."""
        self.sizes.append(size)
        self.events.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def let_go(self, *numbers: int) -> None:
        """They are used no more."""
        self.events += [~one for one in numbers]

    def pass_by(self, size: int) -> None:
        """What is made and let go at once."""
        self.let_go(self.make(size))

    def give_back(self) -> None:
        """torch.cuda.empty_cache()."""
        self.events.append(None)
