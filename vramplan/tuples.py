"""`NamedTuple` as `typing` has it, made in a tenth of the time.

`typing.NamedTuple` compiles the annotation of every field, and `collections.namedtuple` a constructor for every class:
the 77 tuples that one answer of `vramplan fit` imports take a sixth of its time so. Here tuples of as many fields have
one compiled constructor, under other names. To a type checker the two are one.
"""

from __future__ import annotations

import typing
from collections import namedtuple
from functools import cache
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    class _Fields(tuple):
        """What all named tuples have in common: the methods of those of `collections`."""

        __slots__ = ()
        _fields = ()
        _field_defaults = MappingProxyType({})
        _places = MappingProxyType({})  # by name; searches change one field of a hundred, again and again

        @classmethod
        def _make(cls, iterable):
            made = tuple.__new__(cls, iterable)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            places, values = self._places, list(self)
            for name, value in changes.items():
                if name not in places:
                    raise ValueError(f"Got unexpected field names: {[one for one in changes if one not in places]!r}")
                values[places[name]] = value
            return tuple.__new__(type(self), values)

        __replace__ = _replace  # copy.replace, since Python 3.13

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            inside = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({inside})"

        def __getnewargs__(self):
            return tuple(self)

    @cache
    def _constructor(count):
        """A constructor of so many fields, whatever they are called."""
        return namedtuple("Plain", [f"field_{number}" for number in range(count)]).__new__

    def _renamed(name, fields, defaults):
        plain = _constructor(len(fields))
        code = plain.__code__.replace(co_varnames=("_cls", *fields), co_name="__new__")
        made = FunctionType(code, plain.__globals__, "__new__", defaults or None)
        made.__qualname__ = f"{name}.__new__"
        return made

    class _Maker(type):
        """Makes a named tuple of a class body; what is no plain body of fields and methods is left to `typing`."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.get("__annotations__")
            if not fields or len(bases) > 1:
                return typing.NamedTupleMeta(name, (typing._NamedTuple, *bases[1:]), body)
            defaults = {field: body[field] for field in fields if field in body}
            if list(defaults) != list(fields)[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one that has a default")
            names = tuple(fields)
            own = {
                **body,
                **{field: _tuplegetter(place, f"Alias for field number {place}") for place, field in enumerate(names)},
                "__slots__": (),
                "__match_args__": names,
                "_fields": names,
                "_field_defaults": defaults,
                "_places": {field: place for place, field in enumerate(names)},
            }
            own.setdefault("__new__", _renamed(name, names, tuple(defaults.values())))
            own.setdefault("__doc__", f"{name}({', '.join(names)})")
            return type(name, (_Fields,), own)

    class NamedTuple(metaclass=_Maker):
        """The base that a class of fields names."""
