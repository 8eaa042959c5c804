"""At which micro-batches the sizes of a compiled step compare as they do at the one that is played.

Each size is a line over the micro-batch, and so is the difference of two. Which of them is larger changes where that
line crosses 0. Whether they are equal is otherwise at that one micro-batch alone, and all others have the same answer.
"""

from __future__ import annotations

MOST = 1 << 40  # micro-batches that no device has room for


class ComparedSizes:
    """What the comparisons of one step have in common with those at other micro-batches.

    They are the same from `first` to `last`, but for those `apart`. The first comparison that comes out otherwise is at
    a micro-batch that is not among these, so that up to there the step is the same.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.first, self.last = 2, MOST
        self.apart: set[int] = set()
        self.are_lines = True

    def differ(self, one: int, one_scales: bool, other: int, other_scales: bool) -> bool:
        """Whether two sizes are not equal. `*_scales`: the size has no part that is the same at every micro-batch."""
        if one_scales is not other_scales:
            fixed, scaled = (other, one) if one_scales else (one, other)
            at, rest = divmod(fixed * self.batch, scaled) if scaled else (0, 1)
            if not rest and at == self.batch:
                self.first, self.last = max(self.first, at), min(self.last, at)
            elif not rest:
                self.apart.add(at)
        return one != other

    def reaches(self, fixed: int, each: int) -> bool:
        """Whether a size is as large as another, or larger: their difference is fixed bytes and bytes per sample."""
        found = fixed + each * self.batch >= 0
        if each > 0:
            self._bound(-(fixed // each), found=found)
        elif each < 0:
            self._bound(fixed // -each + 1, found=not found)
        return found

    def reached_by(self, size: int, least: int) -> bool:
        """Whether a size that is the same at every micro-batch is as large as one that scales with it."""
        each, rest = divmod(least, self.batch)
        if rest:
            self.are_lines = False
        return self.reaches(size, -each)

    def _bound(self, at: int, *, found: bool) -> None:
        """From a micro-batch on it comes out one way, below the other; `found`: whether the one played is there."""
        if found:
            self.first = max(self.first, at)
        else:
            self.last = min(self.last, at - 1)
