"""What a setting costs, as the comment that stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vramplan.configs.page import SettingLine
from vramplan.report.headline import HEADLINES, name_of
from vramplan.report.memory import ShownFigures
from vramplan.report.numbers import gib_up, text_of
from vramplan.report.summary import AT_STAKE, EVERYTHING, NAMES, STATES
from vramplan.results import FitResult
from vramplan.version import __version__

OF_A_CHOICE: Mapping[str, tuple[str, ...]] = {
    "model": ("weights",),
    "micro_batch_size": ("activations", "temporaries"),
    "activation_checkpointing": ("activations",),
    "max_gradient_norm": (),
    "adapter.kind": ("weights",),
    "adapter.modules_to_save": ("weights", "gradients", "optimizer"),
    "qat.weights": ("activations", "temporaries"),
    "qat.activations": ("activations", "temporaries"),
    "qat.embedding": ("activations",),
    "offload": ("in_flight",),
    "parallel.tensor": (*STATES, "activations"),
    "parallel.pipeline": (*STATES, "activations"),
    "parallel.context": ("activations",),
    "parallel.expert": STATES,
    "parallel.sequence_parallel": ("activations",),
    "parallel.fsdp_version": ("gathered", "communication"),
    "parallel.reduce_bucket_size": ("communication",),
    "parallel.allgather_bucket_size": ("communication",),
    "parallel.stage3_max_live_parameters": ("gathered",),
    "parallel.stage3_prefetch_bucket_size": ("gathered",),
    "parallel.stage3_param_persistence_threshold": ("gathered",),
    "eval_batch_size": (),
}
"""Parts of the memory that a key of a plan decides, beside those of `AT_STAKE`."""

MOST = 3  # parts that a comment names


def comments_of(result: FitResult) -> Callable[[SettingLine], str]:
    """What stands behind a setting: the largest parts of the memory of a GPU that its keys decide, and its note."""
    sizes = {part.name: part.bytes for part in (*result.components, *result.overheads)}

    def comment(line: SettingLine) -> str:
        parts: dict[str, int] = {}
        for key in line.of:
            for name in OF_A_CHOICE.get(key, AT_STAKE.get(key, ())):
                if name != EVERYTHING and sizes.get(name):
                    parts[name] = sizes[name]
        largest = sorted(parts, key=lambda name: -parts[name])[:MOST]
        words = [f"{NAMES.get(name, name)} {text_of(gib_up(parts[name]))} GiB" for name in largest]
        return "; ".join([*([", ".join(words)] if words else []), *([line.note] if line.note else [])])

    return comment


def header_of(result: FitResult, devices: int, *, judged: bool = True) -> list[str]:
    """What the files were made of: the run, and what it needs. `judged`: whether the GPU is that of the run."""
    job, figures = result.job, ShownFigures(result)
    model = name_of(job.get("model"))
    if not judged:
        return [f"vramplan {__version__}: {model} on {devices} GPU{'s' * (devices > 1)}"]
    need = f"{text_of(figures.device)} of {text_of(figures.usable)} GiB per GPU"
    verdict = HEADLINES.get(result.verdict, result.verdict).lower()
    return [f"vramplan {__version__}: {model} on {devices} x {name_of(job.get('gpu'))}, {need}, {verdict}"]
