"""Floating-point operations of training, as papers count them: cross-checks of what the replay counts."""

from __future__ import annotations


def megatron_flops(*, batch: int, sequence: int, layers: int, hidden: int, vocabulary: int) -> float:
    """Of one step of a GPT without recomputation: 72 B l s h^2 (1 + s/6h + V/12lh).

    Attention is counted without its mask; a multiplication and its addition are two.
    Source: arXiv:2205.05198, appendix A.
    """
    correction = 1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden)
    return 72 * batch * layers * sequence * hidden**2 * correction


def palm_flops_per_token(*, parameters: int, layers: int, heads: int, head_size: int, sequence: int) -> int:
    """Of one token: 6 N + 12 L H Q T. Source: arXiv:2204.02311, appendix B."""
    return 6 * parameters + 12 * layers * heads * head_size * sequence


def training_flops(parameters: int, tokens: float, *, recomputed: bool = False) -> float:
    """Of a whole run: 6 P for each token, 8 P of hardware operations where forward runs twice."""
    return (8 if recomputed else 6) * parameters * tokens


def utilisation(flops: float, seconds: float, devices: int, peak_flop_per_s: float) -> float:
    """MFU with model operations, HFU with those of the hardware: a share of the peak of all devices."""
    return flops / seconds / (devices * peak_flop_per_s)
