"""Random adapters: a kind, what it sits on, and what else the table of options has of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from vramplan.options.words import PREFIX, VIRTUAL_TOKENS
from vramplan.replay.techniques.adapters import LORA_PARTS
from vramplan.replay.techniques.trained import Names, names_of
from vramplan.values.adapter_kinds import KINDS as KNOWN
from vramplan.values.adapter_kinds import AdapterKind, lacks
from vramplan.values.model import ModelShape

Keys = dict[str, Any]

FEW = 0.16  # share of the adapters that have a key which most of them lack

KINDS = (
    *("lora",) * 6,
    *("dora",) * 3,
    *("ia3", "ia3", "oft", "oft"),
    *("adalora", "vera", "loha", "lokr", "miss", "boft", "hra", "fourierft", "randlora"),
    *("ln-tuning", "trainable-tokens"),
    *VIRTUAL_TOKENS,
)
RANKS = {"oft": (4, 8, 16), "boft": (2, 4), "hra": (1, 2, 3)}
"""Of kinds to which other numbers mean something else, or take longer."""


class Over(NamedTuple):
    """What an adapter is drawn for."""

    kind: str
    names: Names
    precision: str

    @property
    def known(self) -> AdapterKind:
        """What PEFT says of the kind."""
        return KNOWN[self.kind]


def _rank(random: Random, over: Over, _: Keys) -> int:
    return random.choice(RANKS.get(over.kind, (1, 4, 8)))


def _targets(random: Random, over: Over, _: Keys) -> Any:
    """All linear layers, a few of them, or the table of the tokens or the head, beside layers or alone."""
    drawn, layers = random.random(), list(over.names.linears)
    if over.known.of_norms or not layers:
        return None
    if drawn < 0.4:
        return ["all-linear"]
    few = random.sample(layers, min(len(layers), random.choice([1, 2])))
    if over.known.is_lora and drawn < 0.6:
        ends = [name for name in (over.names.token_table, over.names.head) if name]
        return [*random.sample(ends, min(len(ends), 1)), *(few if random.random() < 0.6 else [])]
    return few if drawn < 0.7 else None


def _feedforward_targets(random: Random, _: Over, drawn: Keys) -> Any:
    """Some of the targets that are named, which PEFT wants of a job that names its own."""
    targets = [name for name in drawn.get("targets") or () if name != "all-linear"]
    return random.sample(targets, random.choice(range(len(targets) + 1))) or None


def _modules_to_save(random: Random, over: Over, _: Keys) -> Any:
    ends = [name for name in (over.names.token_table, over.names.head) if name]
    return [random.choice(ends)] if ends and random.random() < FEW / 2 else None


def _dtype(random: Random, over: Over, _: Keys) -> Any:
    """Of 16 bits where the model is, which a program may have in fp32."""
    half = over.precision.removeprefix("pure-")
    return random.choice(["fp32", half]) if half != over.precision and random.random() < FEW else None


def _kernels(random: Random, over: Over, drawn: Keys) -> Any:
    """Axolotl's functions, which have no dropout."""
    if over.kind != "lora" or drawn.get("targets") != ["all-linear"] or random.random() > 0.3:
        return None
    drawn["dropout"] = 0.0
    return ["mlp", "qkv", "o"]


def _trainable_tokens(random: Random, over: Over, _: Keys) -> Any:
    return random.choice([1, 3, 50]) if over.known.of_table or random.random() < FEW / 2 else None


def _prefix_projection(random: Random, over: Over, _: Keys) -> Any:
    return True if over.kind == PREFIX and random.random() < 0.4 else None


def _encoder_hidden_size(random: Random, over: Over, drawn: Keys) -> Any:
    made = over.kind == "p-tuning" or "prefix_projection" in drawn
    return random.choice([8, 48]) if made and random.random() < 0.5 else None


def _one_of(*several: Any, share: float = 1.0) -> Callable[[Random, Over, Keys], Any]:
    return lambda random, _, __: random.choice(several) if random.random() < share else None


OWN: dict[str, Callable[[Random, Over, Keys], Any]] = {
    "targets": _targets,
    "feedforward_targets": _feedforward_targets,
    "rank": _rank,
    "alpha": _one_of(1.0, 16.0, share=FEW),
    "dropout": _one_of(0.0, 0.1),
    "modules_to_save": _modules_to_save,
    "dtype": _dtype,
    "bias": _one_of("all", "targets", share=FEW),
    "decompose_factor": _one_of(2, 4, share=0.3),
    "frequencies": _one_of(7, 100),
    "kernels": _kernels,
    "trainable_tokens": _trainable_tokens,
    "virtual_tokens": _one_of(1, 5, 20),
    "prefix_projection": _prefix_projection,
    "encoder_hidden_size": _encoder_hidden_size,
}
"""How each key of an adapter is drawn, of kinds that have it; what is None is left out."""


def adapter(random: Random, model: ModelShape, precision: str) -> Keys:
    """An adapter with what its kind has; of LoRA one of the two matrices may be frozen."""
    over = Over(random.choice(KINDS), names_of(model), precision)
    drawn: Keys = {"kind": over.kind}
    for key, draw in OWN.items():
        if key not in lacks(over.kind):
            found = draw(random, over, drawn)
            if found is not None:
                drawn[key] = found
    if over.kind == "lora" and "kernels" not in drawn and random.random() < FEW:
        return {"adapter": drawn, "frozen": [random.choice(LORA_PARTS)]}
    return {"adapter": drawn}
