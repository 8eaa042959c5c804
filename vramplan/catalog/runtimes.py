"""Runtime profiles: what a framework does where the job leaves it open, each figure with a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.profile import Profile, Read
from vramplan.errors import InputError
from vramplan.spec import Assumption, Runtime
from vramplan.units import parse_size_bytes

CONTEXT = "context_"  # context_volta, context_hopper: the exceptions, by architecture


LOSSES = ("causal-lm-fp32",)
GRADIENTS = ("set-to-none", "persistent")
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
EMBEDDING_STATES = ("as-others", "fp32")
MODEL_CODES = ("transformers", "megatron", "torchtitan", "torchtune", "litgpt", "nanogpt", "llm-foundry")


def _one_of(words: Sequence[str]) -> Read:
    def read(fields: Fields, name: str) -> str | None:
        return fields.word(name, words)

    return read


def _context(fields: Fields, name: str) -> int | None:
    return fields.parsed(name, lambda text: parse_size_bytes(text, rounding="up"))


_READERS: dict[str, Read] = {
    "optimizer_implementation": _one_of(IMPLEMENTATIONS),
    "loss": _one_of(LOSSES),
    "gradients": _one_of(GRADIENTS),
    "context": _context,
    "process_group": _context,
    "embedding_states": _one_of(EMBEDDING_STATES),
    "model_code": _one_of(MODEL_CODES),
    **{CONTEXT + architecture: _context for architecture in GENERATIONS},
}


FIELDS = tuple(_READERS)
"""The fields of a runtime profile."""


def load_runtime_profile(path: Path | str) -> Profile:
    """Read one runtime profile. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    common = profile.read(fields, "runtime", _READERS)
    optional = ("embedding_states", "model_code")  # few runtimes do anything about them
    missing = [key for key in _READERS if not key.startswith((CONTEXT, *optional)) and common.value(key) is None]
    if missing and not fields.sink.problems:
        fields.problem("fields", f"{', '.join(missing)} missing")
    fields.sink.raise_all()
    return common


def find_runtime(name: str, dirs: Sequence[Path] = ()) -> tuple[Runtime, tuple[Assumption, ...]]:
    """The runtime of that name as a policy, and whether it shadows the shipped one.

    Raises InputError, with near matches.
    """
    found = locate.find("runtimes", name, dirs, load_runtime_profile)
    if found is None:
        raise InputError([locate.unknown("runtimes", name, dirs)._replace(key="runtime")])
    exceptions = {
        key.removeprefix(CONTEXT): value.value
        for key, value in found.fields.items()
        if key.startswith(CONTEXT) and value.value is not None
    }
    runtime = Runtime(
        name=found.name,
        title=found.title or found.name,
        optimizer_implementation=found.value("optimizer_implementation"),
        loss=found.value("loss"),
        gradients=found.value("gradients"),
        context_bytes=found.value("context"),
        context_by_architecture=exceptions,
        process_group_bytes=found.value("process_group"),
        embedding_states=found.value("embedding_states") or "as-others",
        model_code=found.value("model_code") or "transformers",
    )
    return runtime, locate.shadow_told("runtimes", found)
