"""What a training program registers: the code of its own, and what it does differently in each room."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vramplan.tuples import NamedTuple

NOTHING: Mapping[str, str] = MappingProxyType({})


class Engine(NamedTuple):
    """A training program: one folder under `vramplan/engines`, or a package that an entry point names.

    Names of modules and of values stand as text, `package.module` and `package.module:VALUE`: they are imported when a
    job asks for them, so that a program costs nothing in the answers that do not run it.
    """

    name: str  # as `engine` of a runtime profile, or the name of the profile itself
    families: Mapping[str, str] = NOTHING  # family of a model -> module with the program's own forward pass, `FORWARD`
    plain_loop: bool = False  # its step is a plain loop over the models of Transformers, which `measure` can run
    is_own_loop: bool = False  # people write it themselves: where it zeroes gradients is theirs to say
    smooths_outside: bool = False  # smoothed labels are a loss of its loop, not of the model
    casts_beside_policy: bool = False  # it has autocast around a model whose weights FSDP1 gathers in 16 bits
    casts_around_step: bool = False  # it has autocast around each forward pass, which is not replayed beside a policy
    reads_shards: bool = False  # a device loads its part of each weight alone, and no weight whole
    own_code: bool = False  # it replaces code of Transformers, whether `families` has that code or not
    only_own_code: bool = False  # it never runs the models of Transformers
    behaviour: Mapping[str, str] = NOTHING  # room -> the value that says what the program does differently there
    brings: Mapping[str, str] = NOTHING  # word of a job, such as an optimizer of its own -> its code
    rules: tuple[str, ...] = ()  # modules with rules of its own operators
    profile: str | None = None  # of an entry point: the path of its runtime profile
