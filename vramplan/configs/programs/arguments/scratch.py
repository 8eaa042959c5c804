"""A model that a script makes from a configuration, without weights of a checkpoint.

Source: huggingface/transformers 5.23.0, examples/pytorch/language-modeling/run_clm.py and run_mlm.py, `--model_type`,
`--config_name` and `--config_overrides`: without a checkpoint the type's own defaults hold, which the last changes.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.sheet import Meaning, Sheet

GPT2 = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}
"""Blocks, width and heads. The defaults of the type gpt2 are those of the first (configuration_gpt2.py)."""

DEFAULT_MODELS = {"gpt2": "gpt2", "bert": "bert-base-uncased", "opt": "opt-125m"}
"""Types of which a published model has the sizes that their configurations have by default."""

SIZES = {
    "n_layer": "layers",
    "n_embd": "hidden_size",
    "n_head": "attention_heads",
    "n_positions": "max_positions",
    "n_inner": "intermediate_size",
    "vocab_size": "vocabulary_size",
}
KINDS = ("model_type", "config_name")
OVERRIDES = "config_overrides"
QUIET = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "use_cache", "bos_token_id", "eos_token_id")
"""Overrides that give no size; a dropout of 0 is asked for by --dropout."""

CHECKPOINTS = "gradient_checkpointing"


def model(sheet: Sheet, meaning: Meaning) -> bool:
    """Say the model of a configuration; whether there is one."""
    kind = sheet.text("config_name") or sheet.text("model_type")
    given = tuple(key for key in (*KINDS, OVERRIDES) if sheet.given(key))
    overrides = sheet.text(OVERRIDES)
    if kind is None:
        return False
    name = DEFAULT_MODELS.get(kind.lower()) if sheet.text("config_name") is None else kind
    if name is None:
        meaning.ask("model", f"the default configuration of {kind} is none of a published model (--model NAME)")
        return True
    meaning.say("from_scratch", True, *given)
    if overrides is None:
        meaning.say("model", name, *given)
        return True
    sizes = GPT2.get(name.rsplit("/", 1)[-1].lower())
    if f"{CHECKPOINTS}=true" in overrides.lower():
        meaning.note(f"{OVERRIDES}: {CHECKPOINTS} was heard up to Transformers 4.10 (--checkpointing full)")
    changed = _changed(sheet, overrides)
    if changed is None:
        return True
    if sizes is None:
        meaning.ask("model", f"{OVERRIDES} changes the sizes of {name} (--model ./config.json)")
        return True
    layers, width, heads = sizes
    shape: dict[str, Any] = {
        "family": "gpt2",
        "layers": layers,
        "hidden_size": width,
        "attention_heads": heads,
        "vocabulary_size": 50257,
        "max_positions": 1024,
        **changed,
    }
    shape.setdefault("intermediate_size", 4 * shape["hidden_size"])
    meaning.say("model", {"name": f"gpt2 {shape['layers']}x{shape['hidden_size']}", **shape}, *given)
    return True


def _changed(sheet: Sheet, overrides: str) -> dict[str, int] | None:
    """The sizes that `NAME=VALUE,NAME=VALUE` gives; None where one of them is no number or no size."""
    found: dict[str, int] = {}
    for part in overrides.strip("\"' ").split(","):
        name, _, value = part.strip().partition("=")
        if name in (*QUIET, CHECKPOINTS):
            continue
        if name not in SIZES or not value.isdigit():
            sheet.problem(OVERRIDES, f"{part.strip()} is not understood", "known: " + ", ".join(SIZES))
            return None
        found[SIZES[name]] = int(value)
    return found
