"""Reads the rules of the engine: the docstrings of the functions that say what an operator costs.

A function is a rule if its docstring has a line `Source: ...`. Lines of a rule that begin with a label are read:

    Saves `x`: which gradient needs it      one for each tensor, by the name of the local variable
    Backward: what is allocated there
    Source: where it was read

Everything else is description. A label goes on until the next one, or until an empty line.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from types import CodeType
from typing import Any

from vramplan.engines import engine_of, names
from vramplan.results.explain import Rule

OWN = (
    "vramplan.replay.operators.elementwise",
    "vramplan.replay.operators.products",
    "vramplan.replay.operators.normalised",
    "vramplan.replay.operators.ends",
    "vramplan.replay.operators.attention",
    "vramplan.replay.operators.ring_attention",
    "vramplan.replay.operators.convolution",
    "vramplan.replay.operators.images",
    "vramplan.replay.operators.dropped_paths",
    "vramplan.replay.operators.windows_of_images",
    "vramplan.replay.operators.responses",
    "vramplan.replay.operators.contrastive",
    "vramplan.replay.operators.biased",
    "vramplan.replay.operators.masked_attention",
    "vramplan.replay.operators.multimodal",
    "vramplan.replay.operators.packed_tiles",
    "vramplan.replay.operators.image_tiles",
    "vramplan.replay.operators.tiles",
    "vramplan.replay.operators.patches",
    "vramplan.replay.operators.ragged",
    "vramplan.replay.operators.one_row",
    "vramplan.replay.operators.fused_loss",
    "vramplan.replay.operators.chunks_by_size",
    "vramplan.replay.operators.in_place_loss",
    "vramplan.replay.operators.log_softmax_by_row",
    "vramplan.replay.operators.liger",
    "vramplan.replay.operators.lora_kernels",
    "vramplan.replay.operators.tiled_mlp",
    "vramplan.replay.operators.top_tokens",
    "vramplan.replay.operators.experts",
    "vramplan.replay.operators.scattered",
    "vramplan.replay.operators.expert_loops",
    "vramplan.replay.operators.relative",
    "vramplan.replay.operators.repeats",
    "vramplan.replay.operators.latent",
    "vramplan.replay.operators.delta_rule",
    "vramplan.replay.operators.state_space",
    "vramplan.replay.operators.mamba_kernels",
    "vramplan.replay.operators.mamba1_kernels",
    "vramplan.replay.operators.alternating",
    "vramplan.replay.operators.piecewise",
    "vramplan.replay.operators.loss_parts",
    "vramplan.replay.operators.mixtures",
    "vramplan.replay.operators.log_probabilities",
    "vramplan.replay.operators.policy",
    "vramplan.replay.operators.selected_log_softmax",
    "vramplan.replay.operators.adapters",
    "vramplan.replay.operators.folded",
    "vramplan.replay.operators.skew",
    "vramplan.replay.operators.cayley",
    "vramplan.replay.operators.changes",
    "vramplan.replay.operators.repeated",
    "vramplan.replay.operators.quantized",
    "vramplan.replay.operators.gptq",
    "vramplan.replay.operators.float8",
    "vramplan.replay.operators.fake_integers",
    "vramplan.replay.operators.fake_groups",
    "vramplan.replay.operators.fake_blocks",
    "vramplan.replay.operators.transformer_engine",
    "vramplan.replay.operators.views",
    "vramplan.replay.operators.waveforms",
    "vramplan.replay.operators.indexing",
    "vramplan.replay.operators.plain_products",
    "vramplan.replay.operators.scripted",
    "vramplan.replay.operators.sinks",
    "vramplan.replay.operators.fused_norms",
    "vramplan.replay.operators.flex_attention",
    "vramplan.replay.operators.first_flash",
    "vramplan.replay.operators.tiled_divergence",
    "vramplan.replay.operators.dtensor",
    "vramplan.replay.autograd",
    "vramplan.replay.reentrant",
    "vramplan.replay.optimizers",
    "vramplan.replay.optimizers.adafactor_transformers",
    "vramplan.replay.optimizers.muon",
    "vramplan.replay.optimizers.bitsandbytes",
    "vramplan.replay.optimizers.lomo",
    "vramplan.replay.optimizers.adalomo",
    "vramplan.replay.optimizers.galore",
    "vramplan.replay.optimizers.galore_8bit",
    "vramplan.replay.optimizers.galore_adafactor",
    "vramplan.replay.optimizers.apollo",
    "vramplan.replay.optimizers.adam_mini",
    "vramplan.replay.optimizers.torchao",
    "vramplan.replay.optimizers.adafactor",
    "vramplan.replay.optimizers.of_torch",
    "vramplan.replay.optimizers.schedule_free",
    "vramplan.replay.optimizers.optimi",
    "vramplan.replay.optimizers.grokadamw",
    "vramplan.replay.optimizers.came",
    "vramplan.replay.optimizers.prodigy",
    "vramplan.replay.optimizers.of_axolotl",
    "vramplan.replay.techniques.clipping",
    "vramplan.replay.techniques.scaling",
    "vramplan.replay.techniques.averaging",
)
"""Files with rules that belong to no engine, in the order of the page of all rules."""

FILE = re.compile(r"\b((?:\w+/)*\w+\.py)\b")
LIBRARIES = ("torch/", "torchtune/")  # files that are named with theirs
# Files whose rules have the name of what they are about.
PUBLIC = {"replay.autograd": "engine"} | {
    f"replay.operators.{file}": "operators" for file in ("elementwise", "products", "normalised", "ends")
}
LABELS = ("Saves `", "Backward:", "Source:")


@lru_cache(maxsize=1)
def rooms() -> tuple[str, ...]:
    """The modules with rules: our own, and those that engines name."""
    return (*OWN, *(room for name in names() for room in engine_of(name).rules))


def is_rule(function: Any) -> bool:
    """Whether a function is a rule."""
    document = getattr(function, "__doc__", None) or ""
    return any(line.strip().startswith("Source: ") for line in document.splitlines())


def read(function: Any) -> Rule:
    """The rule that a function is."""
    document = function.__doc__
    paragraphs: list[list[str]] = []
    fresh = True
    for raw in document.strip().splitlines():
        line = raw.strip()
        if not line:
            fresh = True
        elif fresh or line.startswith(LABELS):
            paragraphs.append([line])
            fresh = False
        else:
            paragraphs[-1].append(line)
    summary, *rest = (" ".join(lines) for lines in paragraphs)
    saves, details, backward, source = [], [], None, ""
    for text in rest:
        if text.startswith("Saves `"):
            name, _, why = text.removeprefix("Saves `").partition("`: ")
            saves.append((name, why.rstrip(".")))
        elif text.startswith("Backward: "):
            backward = text.removeprefix("Backward: ")
        elif text.startswith("Source: "):
            source = text.removeprefix("Source: ").rstrip(".")
        else:
            details.append(text)
    return Rule(
        name=name_of(function.__module__, function.__name__),
        where=f"{function.__module__}.{function.__qualname__}",
        summary=summary,
        details=tuple(details),
        saves=tuple(saves),
        backward=backward,
        source=source,
    )


def read_model(module: Any, path: str) -> Rule:
    """The rule that a function of a model is, such as a mask; its source is the file of the original that it names."""
    function = module
    for part in path.split("."):
        function = getattr(function, part)
    document = " ".join((function.__doc__ or "").split())
    file = FILE.search(document) or FILE.search(" ".join((module.__doc__ or "").split()))
    if file is None:
        raise RuntimeError(f"{module.__name__}.{path} does not say where its original is")
    library = "trl" if " of trl " in document else "transformers"
    return Rule(
        name=f"{public_name(module.__name__)}.{path}",
        where=f"{module.__name__}.{path}",
        summary=document,
        details=(),
        saves=(),
        backward=None,
        source=file[1] if file[1].startswith(LIBRARIES) else f"{library}, {file[1]}",
    )


def name_of(module: str, function: str) -> str:
    """`operators.linear`; of an engine's own code its name and the function's: `litgpt.chunked_loss`."""
    return f"{public_name(module)}.{function.lstrip('_')}"


def public_name(module: str) -> str:
    """What rules and code of models are called after: their file, or the engine whose own code it is."""
    inside = module.removeprefix("vramplan.")
    folder, _, file = inside.rpartition(".")
    if folder.startswith("engines.") and file in ("operators", "model"):
        return folder.removeprefix("engines.")
    return PUBLIC.get(inside, file)


def home_of(name: str) -> str:
    """The module of the model's code that has a public name."""
    own = [module for one in names() for module in engine_of(one).families.values()]
    homes = [module for module in own if public_name(module) == name]
    homes += [f"vramplan.replay.models.{name}", f"vramplan.replay.techniques.{name}"]
    homes += [f"{module.rpartition('.')[0]}.{name}" for module in own]  # another file of an engine's folder
    return next(home for home in homes if find_spec(home) is not None)


def rules_of(room: Any) -> list[Any]:
    """The functions of a module that are rules, in the order of the file."""
    found = [one for one in vars(room).values() if callable(one) and getattr(one, "__module__", "") == room.__name__]
    unique = {id(one): one for one in found if is_rule(one)}
    return sorted(unique.values(), key=lambda one: int(one.__code__.co_firstlineno))


def function_of(code: CodeType, names: dict[str, Any]) -> Any:
    """The function of a module that a running code belongs to: itself, or the one that it is defined in."""
    return names.get(code.co_qualname.partition(".")[0])
