"""EuroBERT (models/eurobert/configuration_eurobert.py): Llama's keys, and tokens that see those behind them too."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, Peft
from vramplan.catalog.families.llama import KEYS, all_projections
from vramplan.catalog.families.llama import TYPES as LLAMA
from vramplan.catalog.fields import Fields, shown

_LLAMA = LLAMA["llama"]
LATE = "late"


def _eurobert(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    for key in ("classifier_pooling", "clf_pooling"):  # the second is of the code that lies with the weights
        pooling = fields.text(key) if fields.given(key) else LATE
        if pooling not in {None, LATE}:
            fields.refuse(key, f"{shown(str(pooling))} is not modelled (modelled: {LATE}, as in every published model)")


TYPES = {
    "eurobert": _LLAMA._replace(
        config="EuroBertConfig",
        family="eurobert",
        tasks=("mlm", "cls"),
        peft=Peft(),
        defaults={
            **{key: one for key, one in _LLAMA.defaults.items() if key != "sliding_window"},
            "vocabulary_size": 128256,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "layers": 12,
            "attention_heads": 12,
            "max_positions": 8192,
        },
        fixed={**_LLAMA.fixed, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
        adjust=_eurobert,
    ),
}
