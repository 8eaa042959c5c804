"""Writes the tables of docs/job-format.md that say what each model type has by default, from the program.

`python -m tests.docs.model_types` writes them; tests/docs/test_pages.py reads them back and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.shapes import FIELDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "job-format.md"
BEGIN, END = "<!-- model types -->\n", "<!-- end of model types -->\n"
COLUMNS = 4  # more do not fit a page

# defaults that follow from other fields, by the name of the function that computes them
IN_WORDS = {
    "same_heads": "as attention_heads",
    "_shared": "shared x intermediate_size",
    "four_times": "4 x hidden_size",
    "hidden_dropout": "as hidden_dropout",
    "hidden_size": "as hidden_size",
    "intermediate_size": "as intermediate_size",
    "as_many_layers": "as layers",
    "_attention_dropout": "as attention_dropout",
    "_all_biases": "as qkv_bias",
    "_is_learned": "true with learned positions",
    "qkv_bias": "as qkv_bias",
    "every_fourth": "every fourth block",
    "every_eighth": "every eighth block",
    "three_of_four": "all but every fourth block",
    "without_window": "the blocks without a window",
    "three_of": "the blocks 8, 16 and 24",
    "tapped": "the blocks 3, 7, 15, 23 and 30",
    "looking": "every fifth block from 3 to 38",
    "_groups": "1",
    "_is_new": "whether there are several key-value heads",
    "_norms": "1",
    "patches_and_class": "(image_size // patch_size) ** 2 + 1",
    "patches_and_two_tokens": "(image_size // patch_size) ** 2 + 2",
    "mlp_width": "4 x hidden_size, of which a gated MLP has two thirds",
    "_layers": "the sum of depths",
    "_width": "the last of widths",
    "query_size": "plain_size + rotary_size",
    "all_shared": "shared x intermediate_size",
    "expert_size": "as experts.intermediate_size",
    "space_head_size": "2 x hidden_size / heads",
    "_head_size": "1024 / heads",
    "every_block": "all blocks",
    "space_input_bias": "as input_bias",
    "usual_space": "all blocks but 4, 12, 20 and so on",
    "usual_dense": "the blocks 0, 2, 4 and so on",
    "twice_as_wide": "2 x hidden_size",
    "sixteenth": "hidden_size / 16",
    "usual_sparse": "10 of more than 10 blocks",
    "window_of_text": "4096 with a gemma2, else null",
    "bound_of_text": "true with a gemma2",
    "mlp_of_last": "4 x the last of widths",
    "head_of_first": "the first of widths / attention_heads",
    "norms_of_text": "true with a qwen3",
    "biases_of_text": "true with a qwen2",
}


def cell(value: Any, fixed: bool) -> str:
    """One default as the table spells it; a star marks what cannot be chosen."""
    text = IN_WORDS[value.__name__] if callable(value) else value if isinstance(value, str) else json.dumps(value)
    return text + "*" * fixed


def tables() -> Iterator[str]:
    """A table for every few model types: the fields that any of them has, in the order of the fields."""
    for start in range(0, len(MODEL_TYPES), COLUMNS):
        names = list(MODEL_TYPES)[start : start + COLUMNS]
        kinds = [MODEL_TYPES[name] for name in names]
        rows = {"family": [kind.family for kind in kinds], "task": [kind.tasks[0] for kind in kinds]}
        for key in FIELDS:
            if key not in rows and any(key in kind.defaults or key in kind.fixed for kind in kinds):
                rows[key] = [
                    cell({**kind.defaults, **kind.fixed}[key], key in kind.fixed)
                    if key in kind.defaults or key in kind.fixed
                    else ""
                    for kind in kinds
                ]
        lines = [f"| Key | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        lines += [f"| `{key}` | {' | '.join(cells)} |" for key, cells in rows.items()]
        yield "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    for key, words in (
        ("family", list(dict.fromkeys(kind.family for kind in MODEL_TYPES.values()))),
        ("transformers_model_type", list(MODEL_TYPES)),
    ):
        listed = "; all others refused |"
        row = next(line for line in before.splitlines() if line.startswith(f"| `{key}` |") and line.endswith(listed))
        head = row.rsplit(" | ", 1)[0]
        before = before.replace(row, f"{head} | {', '.join(f'`{word}`' for word in words)}{listed}")
    return f"{before}{BEGIN}\n" + "\n".join(tables()) + f"\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
