"""Methods that train on answers which they sample themselves, as GRPO and PPO do.

A job has no word for their losses, and none for what samples: an inference engine, or the model with its keys and
values. What a file says of everything else is a job all the same, so the loss is left open and asked for.
"""

from __future__ import annotations

from vramplan.configs.sheet import Meaning

SHARE = "the share of each GPU that vLLM takes where it runs beside training (--reserve N GiB leaves it out)"
"""What a setting of vLLM's memory means."""


def ask_loss(meaning: Meaning, method: str, *, more: str = "") -> None:
    """Leave the loss open; `more` is what else the method has beside the policy."""
    lacking = f"that or for {more}" if more else "that"
    reason = f"{method} samples answers beside training, and a job has no key for {lacking}: a standard loss counts"
    meaning.ask("loss", f"{reason} the policy's step alone (--loss standard)")
