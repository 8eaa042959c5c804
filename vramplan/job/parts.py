"""Words for parts that a model's own modules do not have as a name: what `attention`, `mlp` and `lm_head` stand for."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.part_names import HEAD, LAYERS, NORMS
from vramplan.replay.techniques.frozen import matches
from vramplan.replay.techniques.trained import Names
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

ATTENTION, MLP, LM_HEAD = "attention", "mlp", "lm_head"
LANGUAGE_TASKS = ("lm", "mlm", "seq2seq")
MODULES = {
    ATTENTION: (
        *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj", "query_key_value", "Wqkv", "c_attn"),
        *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
        *("q", "k", "v", "o", "relative_attention_bias", "dense", "attn.c_proj"),
    ),
    MLP: (
        *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "wi", "wi_0", "wi_1", "wo"),
        *("dense_h_to_4h", "dense_4h_to_h", "experts", "gate", "shared_expert_gate"),
    ),
}
"""Modules of a block, as any family calls them; `dense` is the one behind attention.

BERT has a part of its own that is called attention, and two layers of one name in the rest, which no word tells apart.
"""


def resolve_parts(given: Sequence[str], model: ModelShape, names: Names, told: list[Assumption]) -> tuple[str, ...]:
    """The words as the model has them; what was taken for another is told."""
    found: list[str] = []
    for word in given:
        stands_for = _modules(word, model, names)
        if stands_for:
            told.append(Assumption("frozen", list(stands_for), f"what {word} is in this model"))
        found += stands_for or (word,)
    return tuple(dict.fromkeys(found))


def _modules(word: str, model: ModelShape, names: Names) -> tuple[str, ...]:
    """What a word stands for; nothing where the model has the word itself, or no such modules."""
    if any(matches(word, path) for path in names.paths):
        return ()
    if word == LM_HEAD and model.task in LANGUAGE_TASKS:
        return (HEAD,)
    inside = [path for path in names.paths if LAYERS in path and NORMS not in path]
    known = MODULES.get(word, ())
    return tuple(one for one in known if any(matches(one, path) for path in inside))
