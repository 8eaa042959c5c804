"""Numbers that are known in a trace on tensors without data, because the model's code asks for them.

How large the grid of an image is, and which tokens stand for it, decides how many tensors the code makes. So these few
tensors have a twin on the host with their numbers, and what is computed of them alone has one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

TWINS: list[Any] = []  # one table: a tensor without data -> its twin; none where every number is there
MOST = 2**20  # elements of a list of numbers that are counted up, which is followed too


WHILE_STEPPING: dict[tuple[str, bool], Any] = {}
"""What is read off a tensor of a kind of device while an optimizer steps: of truth values, and of numbers."""


def known(numbers: Sequence[Any], device: str) -> Any:
    """A tensor on the device whose numbers are known, also where tensors have no data."""
    given = torch.tensor(numbers, device=device)
    if isinstance(given, FakeTensor):
        if not TWINS:
            TWINS.append(WeakTensorKeyDictionary())
        with unset_fake_temporarily():
            TWINS[0][given] = torch.tensor(numbers, device="cpu")
    return given


def with_ones(given: Any) -> Any:
    """A tensor that is there, of which it is known that no number is 0: it counts as ones."""
    if isinstance(given, FakeTensor):
        if not TWINS:
            TWINS.append(WeakTensorKeyDictionary())
        with unset_fake_temporarily():
            TWINS[0][given] = torch.ones((), dtype=given.dtype, device="cpu").expand(given.shape)
    return given


def number(x: Any) -> Any:
    """The number of a tensor of one element; None where it is not known."""
    twin = TWINS[0].get(x) if TWINS else None
    if twin is None:
        return WHILE_STEPPING.get((x.device.type, x.dtype is torch.bool))
    with unset_fake_temporarily():
        return twin.item()


def true_of(mask: Any) -> int:
    """At how many places a mask is true; at all of them where that is not known."""
    twin = TWINS[0].get(mask) if TWINS else None
    if twin is None:
        return int(mask.numel())
    with unset_fake_temporarily():
        return int(twin.sum())


def of_numbers(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.tensor`, which reads numbers off tensors that are in its list, past all that follows operators."""

    def tensor(given: Any, **how: Any) -> Any:
        if isinstance(given, list):
            given = [one if not hasattr(one, "untyped_storage") else number(one) or 0 for one in given]
        return plain(given, **how)

    return tensor


def run(func: Any, args: Any, kwargs: Any, plain: Callable[..., Any]) -> Any:
    """What an operator gives: with a twin where all that it is given has one, and of the size that these say."""
    constant = _taken_to_device(func, args, kwargs)
    if not TWINS:
        return plain(*args, **kwargs)
    twin = _twin(func, args, kwargs) if constant is None else constant
    out = _sized(func, args, twin)
    if out is None:
        out = plain(*args, **kwargs)
    if twin is not None:
        _pair(out, twin)
    return out


def _taken_to_device(func: Any, args: Any, kwargs: Any) -> Any:
    """The numbers of a list in the code that becomes a tensor of the device; None of all else.

    A mode without data that believes in CUDA would compute the real tensor there, which is not.
    """
    if func is not torch.ops.aten._to_copy.default or torch.device(kwargs.get("device") or "cpu").type == "cpu":
        return None
    found = getattr(args[0], "constant", None)
    if found is not None:
        args[0].constant = None
    return found


def _twin(func: Any, args: Any, kwargs: Any) -> Any:
    def numbers(one: Any) -> Any:
        """Its twin; of what was made of a list in the code, that itself."""
        has = type(one) is torch.Tensor and not one.is_floating_point() and one.device.type == "cpu"
        return one if has else TWINS[0].get(one)

    if func is torch.ops.aten.copy_.default:  # of what was there nothing stays
        return TWINS[0].get(args[1])
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    if any(numbers(one) is None for one in given):
        return None
    if not given and func.overloadpacket is not torch.ops.aten.arange:
        return None
    args, kwargs = tree_map_only(torch.Tensor, numbers, (args, kwargs))
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    with unset_fake_temporarily():
        found = func(*args, **kwargs)
    return None if not given and found.numel() > MOST else found


def _sized(func: Any, args: Any, twin: Any) -> Any:
    """The result of an operator whose size depends on the numbers; None of all others."""
    aten = torch.ops.aten
    if func in (aten.repeat_interleave.Tensor, aten.unique_consecutive.default) and twin is not None:
        first = twin[0] if isinstance(twin, tuple) else twin
        made = args[0].new_empty(first.shape)
        return (made, *[args[0].new_empty(one.shape) for one in twin[1:]]) if isinstance(twin, tuple) else made
    if func is not aten.index.Tensor:
        return None
    places = [TWINS[0].get(one) if one is not None and one.dtype is torch.bool else None for one in args[1]]
    if len(places) != 1 or places[0] is None:
        return None
    with unset_fake_temporarily():
        count = int(places[0].sum())
    return args[0].new_empty((count, *args[0].shape[places[0].dim() :]))


def _pair(out: Any, twin: Any) -> None:
    for one, other in zip(tree_leaves(out), tree_leaves(twin), strict=True):
        if type(one) is not torch.Tensor and isinstance(one, torch.Tensor) and one not in TWINS[0]:
            TWINS[0][one] = other
