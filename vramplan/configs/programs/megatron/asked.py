"""What a Megatron command asks for, and what only its caller knows."""

from __future__ import annotations

from vramplan.configs import shell
from vramplan.configs.programs.megatron.options import UNDECIDED
from vramplan.configs.sheet import Meaning, Sheet

OF_MODEL = (
    *("num_layers", "encoder_num_layers", "decoder_num_layers", "hidden_size", "ffn_hidden_size", "intermediate_size"),
    *(
        "num_attention_heads",
        "num_key_value_heads",
        "num_query_groups",
        "kv_channels",
        "num_experts",
        "moe_router_topk",
    ),
    *("topk", "moe_ffn_hidden_size", "max_position_embeddings", "vocab_size", "padded_vocab_size"),
)
"""Arguments that a model says by itself: where only the caller knows one, the model is asked for."""


class MegatronMeaning:
    """The settings of a command, and the job that they mean."""

    def __init__(self, sheet: Sheet, meaning: Meaning) -> None:
        self.sheet, self.meaning = sheet, meaning
        self._undecided: tuple[str, ...] = tuple(sheet.get(UNDECIDED) or ())

    def count(self, key: str, asks: str | None = None) -> int | None:
        """A whole number; what only the caller knows is asked for under `asks`."""
        value = self.sheet.get(key)
        if isinstance(value, str) and shell.unknowns(value):
            name = shell.unknowns(value)[0]
            asks = asks or ("model" if key in OF_MODEL else key)
            self.meaning.ask(asks, f"--{key.replace('_', '-')} is ${name}, which only the caller gives")
            return None
        return self.sheet.count(key)

    def undecided(self, *names: str) -> str | None:
        """The first of these options that only a branch adds which the caller decides; None where there is none."""
        return next((name for name in names if name in self._undecided), None)

    def part(self, key: str) -> float:
        """A part of one, which is taken whole where only the caller knows it."""
        value = self.sheet.get(key)
        if isinstance(value, str) and shell.unknowns(value):
            self.meaning.note(f"--{key.replace('_', '-')} is ${shell.unknowns(value)[0]}, and 1 is taken")
            return 1.0
        return self.sheet.number(key, 1.0) or 0.0
