"""How the learning rate follows the batch size: rules for the optimizers that texts have rules for."""

from __future__ import annotations

from math import sqrt

LINEAR_UP_TO = 8192  # sequences or images; "about 8k" in arXiv:1706.02677 trains up to 8192

SGD_LIKE = ("sgd", "sgd-momentum", "asgd", "schedule-free-sgd", "lars")
"""Steps in proportion to the gradient, for which the linear rule was derived. LARS is SGD with a rate per layer.

RMSprop, Adafactor and Lion divide by the size of the gradients, as Adam does, and follow the square root
(arXiv:2205.10287, for RMSprop and Adam).
"""

# (largest batch, fewest steps, most steps), as texts quote it
WARM_UP = ((512, 0, 500), (2048, 1000, 1000), (8192, 5000, 5000), (32768, 10000, 10000))
WARM_UP_BEYOND = (20000, 20000)

LAYERWISE_FROM, LAYERWISE_UP_TO = 8192, 32768  # where texts send people to LARS and LAMB


def linear(base_rate: float, base_batch: int, batch: int) -> float:
    """lr * new / base (arXiv:1706.02677, section 2.1)."""
    return base_rate * batch / base_batch


def square_root(base_rate: float, base_batch: int, batch: int) -> float:
    """lr * sqrt(new / base) (arXiv:1404.5997; for Adam and RMSprop arXiv:2205.10287)."""
    return base_rate * sqrt(batch / base_batch)


def rule_for(optimizer: str, batch: int) -> str:
    """`linear` or `square-root`: the optimizer decides, and above about 8k it is the square root for all."""
    return "linear" if optimizer in SGD_LIKE and batch <= LINEAR_UP_TO else "square-root"


def warm_up_steps(batch: int) -> tuple[int, int]:
    """Fewest and most optimizer steps of warm-up for a batch, as texts quote it."""
    return next(((least, most) for upper, least, most in WARM_UP if batch <= upper), WARM_UP_BEYOND)


def layerwise_optimizer(batch: int, *, convolutional: bool) -> str | None:
    """LARS for CNNs (arXiv:1708.03888) and LAMB for transformers (arXiv:1904.00962), from 8k to 32k; None outside."""
    if not LAYERWISE_FROM <= batch <= LAYERWISE_UP_TO:
        return None
    return "lars" if convolutional else "lamb"
