"""A new profile to fill in: every field with a comment that says what it is, or a copy of another profile.

What only a person can know is TODO, which the linter reports until it is gone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from vramplan.catalog import locate, text
from vramplan.catalog.config_classes import FAMILIES, MODEL_TYPES
from vramplan.catalog.lint import FOLDER_OF, TODO, KindWord
from vramplan.catalog.profile import Profile, Sourced
from vramplan.errors import InputError, Problem
from vramplan.results.profiles import NewProfile

_EXAMPLES: dict[KindWord, tuple[tuple[str, str], ...]] = {
    "gpu": (
        ("vendor", "nvidia or amd"),
        ("architecture", "volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4: decides the context"),
        ("memory", "size on the data sheet, as in 80 GiB; data sheets print GB and mean GiB"),
        ("visible_memory", "what the framework sees, as in 79.14 GiB: 'total capacity' in an out-of-memory message"),
        ("compute_capability", '"8.0", in quotes; for AMD null'),
        ("bf16", "true or false"),
        ("flash_attention", "true or false: whether PyTorch's flash attention runs on it"),
        ("fp8", "true or false"),
        ("memory_bandwidth", "as in 2039 GB/s"),
        ("fp32", "dense peak rate without tensor cores, as in 19.5 TFLOP/s"),
        ("fp16", "dense peak rate of the tensor cores, as in 312 TFLOP/s; the sparse one is twice as large"),
        ("bf16_rate", "the same in bf16"),
        ("fp8_rate", "the same in fp8"),
        ("link_bandwidth", "to other GPUs, as in 600 GB/s, with direction: bidirectional_total or per_direction"),
        ("tdp", "as in 400 W"),
    ),
    "model": (
        ("family", f"which forward pass: {', '.join(FAMILIES)}"),
        ("transformers_model_type", f"model_type of its config.json: {', '.join(MODEL_TYPES)}"),
        ("task", "lm, mlm or cls"),
        ("layers", "num_hidden_layers"),
        ("hidden_size", "hidden_size"),
        ("attention_heads", "num_attention_heads"),
        ("key_value_heads", "num_key_value_heads; as attention_heads if there is none"),
        ("intermediate_size", "intermediate_size, the width of the MLP"),
        ("vocabulary_size", "vocab_size"),
        ("max_positions", "max_position_embeddings"),
        ("tied_embeddings", "tie_word_embeddings: true or false"),
        ("parameters", "the published number, without separators: the linter compares it with the architecture"),
    ),
    "runtime": (
        ("optimizer_implementation", "fused, foreach or for-loop: what Adam and AdamW are where a job says nothing"),
        ("loss", "causal-lm-fp32: the loss of a language model casts its logits to fp32"),
        ("gradients", "set-to-none, or persistent for buffers that stay"),
        (
            "context",
            "size of the CUDA context, as in 0.6 GiB; with `stack: pytorch` what the stack has may be left out",
        ),
        ("process_group", "what a communicator of NCCL holds on each device, as in 1.45 GiB; the same"),
    ),
    "stack": (
        ("context", "size of the CUDA context, as in 0.6 GiB; context_hopper and so on where an architecture differs"),
        ("process_group", "what a communicator of NCCL holds on each device, as in 1.45 GiB"),
        ("blas_workspace", "what each handle of cuBLAS has in the allocator, as in 8320 KiB"),
    ),
}
_UNITS = {
    **dict.fromkeys(("attention_heads", "key_value_heads"), "heads"),
    **dict.fromkeys(("hidden_size", "intermediate_size"), "elements"),
    **dict.fromkeys(("vocabulary_size", "max_positions"), "tokens"),
    "layers": "blocks",
    "parameters": "parameters",
}
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ./_-]*")


def new_profile(kind: KindWord, name: str, source: Profile | None) -> NewProfile:
    """The text of a new profile called `name`, filled in from `source` if there is one.

    Raises InputError for a name by which no file could be found.
    """
    if not _NAME.fullmatch(name) or name.endswith(locate.SUFFIXES):
        hint = "lower-case letters, digits, dots and dashes" if not name.endswith(locate.SUFFIXES) else "without suffix"
        slug = re.sub(r"[^a-z0-9.+-]+", "-", locate.slug(name)).strip("-.")
        near = f"; {slug}, say" if _NAME.fullmatch(slug) and slug != name and not slug.endswith(locate.SUFFIXES) else ""
        raise InputError([Problem(f"{name!r} cannot be the name of a profile", "NAME", hint + near)])
    lines = list(_fresh(kind, name) if source is None else _copy(kind, name, source))
    shipped = locate.shipped_file(FOLDER_OF[kind], name)
    to_do = [line.strip().split(":")[0] for line in lines if f"{TODO}" in line and not line.startswith("#")]
    return NewProfile(
        kind=kind,
        name=name,
        file=None,
        copied_from=None if source is None else source.name,
        shadows=None if shipped is None else str(shipped),
        to_do=tuple(dict.fromkeys(to_do)),
        text="".join(f"{line}\n" for line in lines),
    )


def default_file(kind: KindWord, name: str) -> Path:
    """Where a new profile goes: the first folder of `$VRAMPLAN_PROFILES`, else the user's configuration."""
    named = locate.variable_dirs()
    folder = named[0] if named else locate.config_dir()
    if folder is None:
        raise InputError([Problem("there is no home directory to write to", "--output", "name a file with --output")])
    return folder / FOLDER_OF[kind] / f"{name}.yaml"


def write(new: NewProfile, file: Path, *, force: bool) -> NewProfile:
    """Write the text to `file`, making its folder; an existing file is kept unless `force`. Raises InputError."""
    try:
        if not os.path.isdir(file.parent):
            os.makedirs(file.parent)
    except OSError as error:  # FileExistsError: a file is where the folder should be
        raise text.fail(f"its folder cannot be made: {error.strerror}", str(file)) from None
    try:
        with open(file, "w" if force else "x", encoding="utf-8", newline="\n") as stream:
            stream.write(new.text)
    except FileExistsError:
        hint = "edit it, or replace it with --force"
        raise InputError([Problem("there is such a file", "--output", hint, str(file))]) from None
    except (OSError, ValueError) as error:
        raise text.fail(f"cannot be written: {getattr(error, 'strerror', None) or error}", str(file)) from None
    return new._replace(file=str(file))


def _head(kind: KindWord, name: str) -> Iterator[str]:
    yield f"# A profile of a {kind if kind != 'gpu' else 'GPU'}; docs/profiles.md describes every key."
    yield f"# What is {TODO} is still to be written: `vramplan profiles lint FILE` lists it."
    yield "# Every value names its source; what you did not find is {value: null, reason: why}."
    yield f"kind: {kind}"
    yield f"name: {name}"


def _fresh(kind: KindWord, name: str) -> Iterator[str]:
    yield from _head(kind, name)
    yield f"title: {TODO} what people call it in full"
    yield "aliases: []  # other names that find it; they must be nobody else's"
    if kind == "gpu":
        yield '# note: "one sentence that is said with every answer; for what people confuse"'
    yield "sources:"
    yield "  first:"
    yield f"    title: {TODO} what the page or paper is called"
    yield f"    url: {TODO} where it is"
    yield f"    accessed: {TODO} the day on which you read it, as in 2026-11-20"
    yield "fields:"
    for key, what in _EXAMPLES[kind]:
        unit = f", unit: {_UNITS[key]}" if key in _UNITS else ""
        yield f"  # {what}"
        yield f"  {key}: {{value: {TODO}{unit}, source: first}}"
    if kind == "model":
        yield "  # What is left out has the default of the model type: head_size, activation, biases, experts, ..."


def _copy(kind: KindWord, name: str, source: Profile) -> Iterator[str]:
    yield from _head(kind, name)
    yield f"# Copied from {source.name}: change what differs, and its source with it; delete what you do not replace."
    yield f"title: {_scalar(f'{TODO} what it is called; it was copied from {source.title or source.name}')}"
    yield "aliases: []  # other names that find it; they must be nobody else's"
    if source.note:
        yield f"# note: {_scalar(source.note)}"
    if source.stack is not None:
        yield f"stack: {_scalar(source.stack)}"
    yield "sources:"
    for key, one in source.sources.items():
        yield f"  {_scalar(key)}:"
        for part in ("title", "url", "accessed"):
            yield f"    {part}: {json.dumps(getattr(one, part), ensure_ascii=False)}"
    yield "fields:"
    about = dict(_EXAMPLES[kind])
    for key, field in source.fields.items():
        if key in about:
            yield f"  # {about[key]}"
        yield f"  {key}: {{{', '.join(_parts(field))}}}"


def _parts(field: Sourced) -> Iterator[str]:
    yield f"value: {_value(field)}"
    for key in ("unit", "source", "direction", "reason", "note", "derived_from"):
        word = getattr(field, key)
        if word is not None:
            yield f"{key}: {_scalar(word)}"
    if field.fitted_from:
        yield f"fitted_from: {json.dumps(field.fitted_from, ensure_ascii=False)}"


def _value(field: Sourced) -> str:
    if field.value is None:
        return "null"
    if isinstance(field.value, tuple) and field.text is None:
        return json.dumps(field.value)
    written = field.text or str(field.value)
    return written if isinstance(field.value, (bool, int, float)) else _scalar(written)


def _scalar(written: str) -> str:
    """As YAML reads it back; quoted unless it is a plain word that means itself."""
    plain = _PLAIN.fullmatch(written) and not written[0].isdigit() and written == written.strip()
    return written if plain and written.lower() not in _WORDS else json.dumps(written, ensure_ascii=False)


_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
