"""What configurations of models with images among a text have alike: the text's configuration inside of one, which may
be of one of several types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vramplan.catalog.config_classes import MODEL_TYPES, Keys
from vramplan.catalog.families.clip import read_inside
from vramplan.catalog.fields import Fields, shown
from vramplan.engines import imported

WINDOW_FIELDS = ("sliding_window", "sliding_window_start")


def text_keys(text: str) -> Keys:
    """The keys of a text's configuration; whether its head is tied the whole model's says."""
    return {key: one for key, one in MODEL_TYPES[text].keys.items() if key != "tie_word_embeddings"}


def only(fields: Fields, key: str, words: Sequence[str], of: str) -> str | None:
    """What a key says; anything but these words is refused."""
    found = fields.text(key)
    if found is not None and found not in words:
        fields.refuse(key, f"{shown(found)} is not modelled inside of {of} (modelled: {', '.join(words)})")
        return None
    return found


def read_text(
    fields: Fields, values: dict[str, Any], texts: Sequence[str], of: str, taken: Collection[str]
) -> tuple[str, Fields | None]:
    """The type of the text and its configuration, whose own class has the defaults of what it leaves out.

    `texts`: the types that are modelled, of which the first is read where nothing says it; `taken`: the fields that
    have such defaults.
    """
    inside = fields.fields("text_config") if fields.given("text_config") else None
    text = texts[0] if inside is None else only(inside, "model_type", texts, of) or texts[0]
    read_inside(fields, "text_config", text_keys(text), values)
    if inside is None:
        return text, None
    kind = MODEL_TYPES[text]
    if kind.adjust is not None:
        kind.adjust(inside, values)
    for key, default in kind.defaults.items():
        if key in taken and key not in values and not callable(default):
            values[key] = default
    return text, inside


def tied_of_text(fields: Fields, text: Fields, values: dict[str, Any]) -> None:
    """Whether the head is tied, of a class that would tie it.

    from_pretrained does not tie it where the checkpoint's head is not its table, which the text's configuration says:
    those of the hub have the key there or nowhere.
    """
    if not fields.given("tie_word_embeddings"):
        values["tied_embeddings"] = text.boolean("tie_word_embeddings") is True


def rope_scaling_of(text: Fields, model_type: str) -> str | None:
    """The kind of scaled rotary positions of the text, where it is one that keeps tensors of its own."""
    found: str | None = imported("vramplan.catalog.hf_config:rope_scaling_in")(text, model_type)
    return found


def without_windows(text: Fields, values: dict[str, Any]) -> None:
    """Refuse windows of the text, and take out what says from which block on there are some."""
    if values.get("sliding_window") is not None:
        text.refuse("sliding_window", "windows of a text beside images are not modelled")
    for key in WINDOW_FIELDS:
        values.pop(key, None)


def uncovered(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Squares of patches that do not cover an image."""
    edge, merge = values["image_size"] // values["patch_size"], values["vision_merge"]
    if edge % merge:
        return [("vision_merge", f"squares of {merge} do not cover the {edge} patches of an edge")]
    return []
