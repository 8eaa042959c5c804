"""Nested values that nobody can change: what a result hands out is not a way into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A dict that refuses to be changed, hashable if its values are.

    A `types.MappingProxyType` would do, but it can be neither pickled nor hashed, and results go through process pools
    and into sets.
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this belongs to a frozen value; dict(...) makes a copy that can be changed")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


def frozen(value: Any) -> Any:
    """The same with every mapping as a `FrozenDict` and every list as a tuple, all the way down."""
    if isinstance(value, Mapping):
        return FrozenDict((key, frozen(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return value


def plain(value: Any) -> Any:
    """The way back, as a copy: dicts and lists, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
