"""Broken job files and config.json files: bytes and values change, and every exit code is one of the pages."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from tests.cli.running import run
from tests.fuzz import draws
from vramplan.catalog.config_classes import MODEL_TYPES

STRANGE: tuple[Any, ...] = (
    *(None, "", " ", 0, -1, 1, 10**9, 2**63, 10**400, 1e308, 0.5, True, [], {}, [[]], [1, 2], [None], {"a": 1}),
    *("null", "1e9", "8 GB", "\x1b[31m", "=cmd", "../..", "é" * 300, "x" * 20000, ["q_proj", 5], [10**9], [10**9] * 5),
)
BITS = (
    b"\x00",
    b"\xff",
    b"\x1b",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\n",
    b"\t",
    b"&a ",
    b"*a ",
    b"!!int ",
    b"- ",
    b"9" * 50,
)
CONFIG_KEYS = (
    "architectures",
    "_name_or_path",
    "rope_scaling",
    "id2label",
    "layer_types",
    "mlp_only_layers",
    "first_k_dense_replace",
)


def job_file(random: Random, folder: Path) -> list[str]:
    """The words of a command about a broken job file."""
    jobs = [{"name": f"job {i}", **draws.job(random)} for i in range(random.choice([1, 1, 2]))]
    document: Any = {"version": 1, "jobs": jobs}
    for _ in range(random.choice([0, 1, 1, 2])):
        _change(random, document)
    path = folder / "jobs.yaml"
    path.write_bytes(_bytes(random, document))
    return ["check", str(path), "--format", random.choice(["text", "json", "csv", "markdown", "junit", "github"])]


def config(random: Random, folder: Path) -> list[str]:
    """The words of a command about a broken config.json."""
    model_type = random.choice(list(MODEL_TYPES))
    document: Any = {"model_type": model_type}
    known = [*MODEL_TYPES[model_type].keys, *CONFIG_KEYS]
    for key in random.sample(known, min(len(known), random.choice([0, 1, 2, 3]))):
        document[key] = random.choice([*STRANGE, 1, 2, 8, 64, 128, 4096])
    path = folder / "config.json"
    path.write_bytes(_bytes(random, document) if random.random() < 0.3 else json.dumps(document).encode())
    return ["fit", "--model", str(path), "--gpu", "a100-80gb", "--format", random.choice(["text", "json", "csv"])]


def wrong(words: list[str]) -> str | None:
    """What is wrong with how a command ends; None: nothing."""
    ran = run(*words)
    if ran.code not in (0, 2, 3):
        return f"ends with {ran.code}: {ran.err[:300]}"
    if ran.code == 2 and not ran.out and "error: " not in ran.err:
        return f"is refused without a word: {ran.err[:300]}"
    strange = [char for char in ran.out + ran.err if not char.isprintable() and char not in "\n\t"]
    if strange:
        return f"writes the character {strange[0]!r}"
    if "json" in words:
        json.loads(ran.out)
    return None


def _change(random: Random, node: Any) -> None:
    """Change one value somewhere inside."""
    while True:
        places = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not places:
            return
        place = random.choice(places)
        inner = node[place]
        if isinstance(inner, dict | list) and inner and random.random() < 0.8:
            node = inner
            continue
        how = random.random()
        if how < 0.6:
            node[place] = deepcopy(random.choice(STRANGE))
        elif how < 0.8:
            del node[place]
        elif isinstance(node, dict):
            node[f"{place}{random.choice(['x', ' ', ''])}"] = deepcopy(random.choice(STRANGE))
        return


def _bytes(random: Random, document: Any) -> bytes:
    """The text of a document, with some of its bytes changed."""
    text = bytearray(json.dumps(document, indent=random.choice([None, 1]), ensure_ascii=random.random() < 0.5).encode())
    for _ in range(random.choice([0, 0, 1, 2, 5])):
        at = random.randrange(len(text) + 1)
        end = min(len(text), at + random.choice([0, 1, 5, 40]))
        how = random.random()
        if how < 0.4:
            text[at:end] = random.choice(BITS)
        elif how < 0.7:
            del text[at:end]
        else:
            text[at:at] = text[at:end] * random.choice([1, 3])
    return bytes(text)
