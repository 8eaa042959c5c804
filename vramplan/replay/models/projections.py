"""Queries, keys and values of an attention: each as its layer makes it, or all at once by a fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vramplan.replay.observers import Trained
from vramplan.replay.tensors import Tensor

Made = Callable[[], Tensor]


def three(attention: Any, hidden: Tensor) -> tuple[Made, Made, Made]:
    """Functions that give the results of `q_proj`, `k_proj` and `v_proj`, each of which is to be asked once, in order.

    What is made at once is let go of when it is asked for.
    """
    layers = attention.q_proj, attention.k_proj, attention.v_proj
    run = hidden.tape.role(Trained).at_once(layers, getattr(attention, "o_proj", None))
    if run is None:
        query, key, value = (partial(layer, hidden) for layer in layers)
        return query, key, value
    take = partial(run(hidden).pop, 0)
    return take, take, take
