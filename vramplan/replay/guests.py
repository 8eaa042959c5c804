"""Who takes part in an iteration beside its operators: whom a tape tells of events, and who plays which role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Role = TypeVar("Role")
Methods = tuple[Callable[..., Any], ...]


class Follower(Protocol):
    """Whom a tape tells of what it records: vramplan/replay/observers.py, Observer."""

    follows: tuple[str, ...]  # the events that it has methods for
    unpacks: bool
    weights_first: bool
    walks_others: bool
    replaces_layers: bool


class Told:
    """Who is told of what: of each event, the methods of the observers that follow it, in their order.

    `Observer` in vramplan/replay/observers.py says what each event means, and what its methods take and return.
    """

    making: Methods = ()
    made: Methods = ()
    made_linear: Methods = ()
    module_entered: Methods = ()
    module_over: Methods = ()
    outer_entered: Methods = ()
    outer_over: Methods = ()
    asked_by_model: Methods = ()
    recorded: Methods = ()
    launched: Methods = ()
    packing: Methods = ()
    unpacking: Methods = ()
    model_left: Methods = ()
    worked: Methods = ()
    one_by_one: Methods = ()
    stood_in: Methods = ()
    checkpointed: Methods = ()
    passed_by_name: Methods = ()
    abandoned: Methods = ()
    recomputing: Methods = ()
    looked_up: Methods = ()
    leaf_reached: Methods = ()
    module_reached: Methods = ()
    outputs_bound: Methods = ()
    graph_walked: Methods = ()
    before_accumulate: Methods = ()
    after_accumulate: Methods = ()
    partly_accumulated: Methods = ()
    reduced: Methods = ()

    def __init__(self, observers: Sequence[Follower] = ()) -> None:
        self.observers = tuple(observers)
        self.weights_first = any(one.weights_first for one in observers)
        for one in observers:
            for event in one.follows:
                setattr(self, event, (*getattr(self, event), getattr(one, event)))


_nobodies: dict[type, Any] = {}  # of each role an object of the class itself: each layer and each weight asks


def _nobody(role: type[Role]) -> Role:
    found: Role | None = _nobodies.get(role)
    if found is None:
        found = _nobodies[role] = role()
    return found


class Guests:
    """The guests of an iteration: observers and players of roles.

    An observer is told of events. A role is a class that models and operators ask about something, for example about
    how devices share the states. The class itself describes an iteration without such a guest.
    """

    def __init__(self) -> None:
        self.told = Told()
        self.roles: dict[type, Any] = {}

    def observe(self, observer: Follower) -> None:
        """Tell an observer of all that comes, after those that are there."""
        self.tell((*self.told.observers, observer))

    def ignore(self, observer: Follower) -> None:
        """Tell an observer no more."""
        self.tell([one for one in self.told.observers if one is not observer])

    def tell(self, observers: Sequence[Follower]) -> None:
        """Tell these observers and no others."""
        self.told = Told(observers)

    def enlist(self, role: type[Role], guest: Role) -> None:
        """From here on this guest plays a role, in place of any other."""
        self.roles[role] = guest

    def dismiss(self, role: type[Any]) -> None:
        """From here on nobody plays a role."""
        self.roles.pop(role, None)

    def role(self, role: type[Role]) -> Role:
        """Who plays a role. If nobody does, an object of the class itself."""
        guest: Role | None = self.roles.get(role)
        return _nobody(role) if guest is None else guest
