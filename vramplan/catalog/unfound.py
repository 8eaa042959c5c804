"""The error of a name that no profile has, with the nearest names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vramplan.catalog.fields import shown
from vramplan.catalog.instances import instance_named, instance_names
from vramplan.catalog.locate import LABELS, Kind, aliases_by_name, files, shipped_called, slug
from vramplan.catalog.model_names import BASES
from vramplan.catalog.scope import out_of
from vramplan.errors import Problem, closest, each_once, near_matches
from vramplan.options.spellings import OTHER_RUNTIMES, RUNTIMES, bare
from vramplan.options.words import EVERY_GPU

SHOWN = 4  # names in a hint
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LONGEST = 60  # letters of a name that others are compared with
NODES_OF_NVIDIA, GPUS_OF_A_NODE = ("dgx", "hgx"), "8"  # as most of them are sold
MOST_PARTS = 8  # of a name in which that of a GPU is looked for
LISTS = "lists all"
FEW = 16  # names that a hint lists in full
_SIZE = re.compile(r"(?<![\w.])(\d+)\s?gi?b(?!\w)", re.IGNORECASE)
_LINK = re.compile(r"[\s_-]*(?:\((?:with\s)?)?(?:\bwith[\s_-]+)?nv-?link(?:ed)?\)?$", re.IGNORECASE)
_FAMILY = re.compile("[.-]")  # behind p4d of p4d.24xlarge, a2 of a2-highgpu-8g
LISTED = ("gpus", "models", "runtimes")  # kinds that a command of that name lists
ASKS_FOR_ANY = (EVERY_GPU, "any", "auto", "cheapest")  # in the place of a GPU
OF_ALL = f"vramplan compare -g {EVERY_GPU} looks at every GPU whose rent is published, and names the cheapest that fits"
ASKS_FOR_A_MODEL = re.compile(
    r"(the-)?(largest|biggest|max(imum)?|best|any|all|every|which|what|smallest)(-?(models?|llms?|one|size))?"
)  # in the place of a model
SIZES_OF_ONE_FAMILY = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b")
OF_SEVERAL = f"which of several models fit: vramplan compare -m {','.join(SIZES_OF_ONE_FAMILY)} -g GPU"
NEARLY_A_SIZE = re.compile(r"\s*[-+\d.,_e]+\s*[kmgt]i?b\s*", re.IGNORECASE)
TECHNIQUE = re.compile(r"\s(q?lora|dora|fsdp|zero[123]|[48]bit|full|dpo|grpo)\b", re.IGNORECASE)  # behind a model
NEAR_FAMILY = 0.7  # as the beginnings of two models of one kind: llama and lama, gemma and gema
NEAR_WORD = 0.75  # as of `all` and a word with a letter more or less
NEAR, NEAR_BEGINNING = 0.85, 0.9  # of words that differ by a letter in seven, or in ten, as difflib counts


def unknown(kind: Kind, name: str, dirs: Sequence[Path]) -> Problem:
    """The problem of a name that nothing has, with the nearest names and aliases as a hint."""
    by_name = aliases_by_name(kind, dirs)
    names = list(by_name)
    label = LABELS[kind]
    hint = _of_instance(name, dirs) if kind == "gpus" else None
    if kind == "runtimes":
        meant = RUNTIMES.get(bare(name))  # which a job takes, as `trl` is the loop of transformers
        hint = f"did you mean {meant.word}?" if meant is not None else OTHER_RUNTIMES.get(bare(name))
    if kind == "gpus" and NEARLY_A_SIZE.fullmatch(name):
        hint = "a size is digits and a unit, as in '24 GiB'"
    if kind in ("gpus", "models") and "," in name:
        hint = "`vramplan compare` takes a list"
    hint = hint or (_of_another_size(name) or _with_a_link(name) if kind == "gpus" else None)
    if kind == "models" and ASKS_FOR_A_MODEL.fullmatch(slug(name)):
        hint = OF_SEVERAL
    hint = hint or out_of(kind, name) or (OF_ALL if kind == "gpus" and slug(name) in ASKS_FOR_ANY else None)
    if hint is None and len(name) <= LONGEST:
        word, named = slug(name), _named_by_words(by_name)
        plain = [one for one in named if "/" not in one]
        hint = _sizes(word, names) or _begun(word, named, named)
        hint = hint or near_matches(word, plain, NEAR, named)
        hint = (
            hint
            or (_with_a_gpu(word, named) if kind == "gpus" else None)
            or _begun(_near_beginning(word, plain), plain, named)
        )
        hint = (
            hint or near_matches(word, plain, named=named) or near_matches(word, _of_its_kind(word, named), named=named)
        )
    if hint is None and kind == "gpus" and near_matches(name, ASKS_FOR_ANY, NEAR_WORD):
        hint = OF_ALL
    if hint is None and kind == "gpus" and re.fullmatch(r"[\d.]+", name):
        hint = f"for a size write '{name} GiB' or '{name} GB'"
    if "\0" not in name and len(name) < 256 and os.path.exists(name):
        hint = f"for the file of that name write ./{name}"
    if hint is None and kind == "models" and (technique := TECHNIQUE.search(name)) is not None:
        hint = f"how it is trained is an option: vramplan fit MODEL GPU --{technique[1].lower()}"
    if hint is None and name.count("/") > 1:
        hint = "no such file; a model of the Hugging Face hub is ORG/NAME"
    if hint is None:
        hint = _known(kind, names)
        if kind == "gpus" and LISTS in hint:
            hint += "; of a card that is not among them the size will do, as in --gpu '24 GiB'"
    return Problem(f"there is no {label} profile {shown(name)}", hint=hint)


def of_size(count: str, dirs: Sequence[Path]) -> str | None:
    """The models of a number of parameters, as in `7b`: the newest of each family, those of large families first.

    None where there is none.
    """
    size = re.compile(rf"(?<![\w.]){re.escape(count.strip().lower())}(?![\w.])")
    names = list(files("models", dirs))
    families = Counter(_family_of(name) for name in names)
    known = [name for name in names if size.search(name) and BASES.match(name)]
    found = sorted(known, key=lambda name: (_numbers(name), -len(name)))
    newest = {_family_of(name): name for name in found}  # the last of each
    shown = sorted(newest.values(), key=lambda name: (-families[_family_of(name)], name))
    return ", ".join(shown[:SHOWN]) or None


def _family_of(name: str) -> str:
    return name[: len(name) - len(name.lstrip(LETTERS))]


def _numbers(name: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", name)]


def _of_instance(name: str, dirs: Sequence[Path]) -> str | None:
    """What an instance of a cloud has, where only the GPU is asked for; else those of its family whose name is near."""
    machine = instance_named(name, dirs)
    if machine is not None:
        return f"an instance of {machine.cloud} with {machine.gpus} x {machine.gpu}"
    family = [one for one in instance_names(dirs) if _FAMILY.split(one.lower())[0] == _FAMILY.split(name.lower())[0]]
    is_of_a_node = slug(name).startswith(NODES_OF_NVIDIA)  # whose GPU the rest of the name says
    near = near_matches(name, family, NEAR) if len(name) <= LONGEST and not is_of_a_node else None
    return None if near is None else " ".join(filter(None, (near, out_of("gpus", name))))


def _of_another_size(name: str) -> str | None:
    """What to write for a card that there is, and not with that memory: `rtx 4090 48gb`."""
    for size in _SIZE.finditer(name):
        card = shipped_called("gpus", (name[: size.start()] + name[size.end() :]).strip(" -_"))
        if card is not None:
            return f"did you mean {card}? one like it with that memory is --gpu '{size[1]} GiB'"
    return None


def _with_a_link(name: str) -> str | None:
    """What to write for a card whose name has the bridge to others with it: `3090 nvlink`."""
    card, bridges = _LINK.subn("", name)
    found = shipped_called("gpus", card) if bridges else None
    if found is None:
        return None
    return f"leave NVLink out: how {found} is linked is link_bandwidth in its profile, and of another one in its file"


def _with_a_gpu(word: str, named: Mapping[str, str]) -> str | None:
    """The GPU that is a part of a name, as in `dgx-h100`, with the number that stands beside it: `gpu_8x_h100_sxm5`."""
    parts = re.split(r"[\W_]+", word)[:MOST_PARTS]
    spans = ((start, end) for end in range(len(parts), 0, -1) for start in range(end))
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        gpu = "-".join(parts[start:end])
        if gpu in named and not gpu.isdecimal() and (start, end) != (0, len(parts)):
            rest = parts[:start] + parts[end:]
            counts = [one.rstrip("x") for one in rest if re.fullmatch(r"[1-9]\d?x?", one)]
            counts += [GPUS_OF_A_NODE for one in rest if one in NODES_OF_NVIDIA]
            return f"did you mean {counts[0]}x{gpu}?" if counts else f"did you mean {gpu}?"
    return None


def _known(kind: Kind, names: Sequence[str]) -> str:
    """All names where they are few, else who lists them."""
    if not names:
        return "no profiles are installed; name a folder with --profiles"
    if kind in LISTED and len(names) > FEW:
        return f"vramplan {kind} {LISTS} {len(names)}"
    return "known: " + ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")


def _of_its_kind(word: str, known: Iterable[str]) -> list[str]:
    """The names that begin as a word does behind its organisation: `facebook/dinov2-large` is no `facebook/bart-large`.

    The organisation and the size are most of such names, and alike in models of all kinds.
    """
    begin = _family_of(word.rpartition("/")[2])
    beginnings = {one: _family_of(one.rpartition("/")[2]) for one in known}
    near = set(closest(begin, set(beginnings.values()), len(beginnings), NEAR_FAMILY)) if begin else set()
    return [one for one, family in beginnings.items() if family in near]


def _sizes(word: str, known: Sequence[str]) -> str | None:
    """The names that go on where `word` ends: a card in several sizes."""
    longer = [name for name in known if word and name.startswith(f"{word}-")]
    return _either(longer) if 0 < len(longer) <= SHOWN else None


def _begun(word: str, known: Iterable[str], named: Mapping[str, str]) -> str | None:
    """The shortest names that a word begins, which somebody cut short; of a card in several sizes the card alone."""
    longer = {name for name in known if len(word) > 1 and name.startswith(word)}
    cards = [name for name in longer if not any(name.startswith(f"{one}-") for one in longer)]

    def rank(name: str) -> tuple[bool, int, str]:
        goes_on = word[-1].isdigit() and name[len(word) :][:1].isdigit()  # llama-30b is no llama-3
        return goes_on, len(name), name

    return _either(each_once(sorted(cards, key=rank), named)[:SHOWN]) if cards else None


def _near_beginning(word: str, known: Sequence[str]) -> str:
    """The beginning of a name that is a letter or so from the word, as `llama-3` from `lama-3`; else nothing."""
    lengths = (len(word), len(word) + 1, len(word) - 1)
    beginnings = dict.fromkeys(name[:length] for length in lengths for name in known if length > 2)
    return next(iter(closest(word, beginnings, 1, NEAR_BEGINNING)), "")


def _either(names: Sequence[str]) -> str:
    return "did you mean " + " or ".join(names) + "?"


def _named_by_words(by_name: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Of each name and alias, the name of its profile: one that is a name itself is no alias of another."""
    aliases = {slug(alias): name for name, others in by_name.items() for alias in others}
    return aliases | {name: name for name in by_name}
