"""The textbook's table of activation checkpointing, in whole layers' activations A.

It gives a checkpoint the size of a whole layer's activations. A real one stores the layer's input, B*S*H elements, so
the true optimum is elsewhere: the replay places by real sizes.
"""

from __future__ import annotations

from math import sqrt


def best_checkpoints(layers: int) -> int:
    """k = sqrt(L), rounded, where k*A + (L/k)*A is least (arXiv:1604.06174)."""
    return max(1, round(sqrt(layers)))


def checkpoint_count(strategy: str, layers: int) -> int | None:
    """k of a strategy of the job format: 0 for none, L for one per layer; None if the table has no such row."""
    if strategy == "none":
        return 0
    if strategy in ("full", "every:1"):
        return layers
    if strategy == "sqrt":
        return best_checkpoints(layers)
    if strategy.startswith("every:"):
        return -(-layers // int(strategy.removeprefix("every:")))
    return None


def checkpointed_bytes(stored_bytes: int, layers: int, checkpoints: int) -> int:
    """What is left of `stored_bytes` = L*A with k checkpoints.

    None: L*A. A checkpoint per layer: A, as texts quote it, which leaves out the L layer inputs. Otherwise
    k*A + (L/k)*A: the checkpoints, and the one segment that is being recomputed.
    """
    if checkpoints == 0:
        return stored_bytes
    if checkpoints >= layers:
        return -(-stored_bytes // layers)
    return -(-stored_bytes * (checkpoints * checkpoints + layers) // (layers * checkpoints))


def recomputed_layers(layers: int, checkpoints: int) -> int:
    """Layer forwards that are run again: none, L - 1 with a checkpoint per layer, L - k otherwise."""
    if checkpoints == 0:
        return 0
    return layers - 1 if checkpoints >= layers else layers - checkpoints


def recomputed_fraction(layers: int, checkpoints: int) -> float:
    """The same over the work of a step, of which forward is a third (forward : backward = 1 : 2)."""
    return recomputed_layers(layers, checkpoints) / (3 * layers)


ONE_MORE_FORWARD = 1 / 3
"""The extra work of recomputing everything once, where a text does not say how many layers there are."""
