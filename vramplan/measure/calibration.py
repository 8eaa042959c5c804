"""The software stack of this machine, from a few small steps on its GPU, as a profile."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vramplan.catalog import locate, stacks
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.profile import Profile, Sourced
from vramplan.errors import InputError, Problem
from vramplan.measure.apart import used_bytes
from vramplan.replay.caching.allocator import CachingAllocator
from vramplan.replay.caching.blocks import Block
from vramplan.results.measure import Calibration

Probe = Callable[[], Mapping[str, Any]]
SOURCE = "calibration"

MIB = 2**20
SEQUENCE = (*(3 * MIB,) * 4, -1, -3, 5 * MIB, 30 * MIB, 700 * 1024, -0, 12 * MIB, -7, 25 * MIB)
"""Sizes that are asked for, in bytes; -N frees the Nth of them, counted from 0."""


def probe() -> Mapping[str, Any]:
    """The readings of a process of its own. Raises InputError where there is no PyTorch, or it ends without an answer.

    `used_before` is what others use of the GPU; None where no tool says it.
    """
    if find_spec("torch") is None:
        hint = "pip install 'vramplan[measure]', with the build of PyTorch for your GPU"
        raise InputError([Problem("needs PyTorch", "calibrate", hint)])
    used = used_bytes()
    with tempfile.TemporaryDirectory(prefix="vramplan-") as folder:
        answered = Path(folder, "reply.json")
        words = [sys.executable, "-m", "vramplan.measure.probe", str(answered)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if not answered.exists():
            said = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
            why = said[-1].strip()[:200] if said else f"exit code {done.returncode}"
            raise InputError([Problem(f"the steps failed: {why}", "calibrate")])
        found: dict[str, Any] = json.loads(answered.read_text("utf-8"))
    return {**found, "used_before": used}


def calibrate(runner: Probe, base: Profile) -> Calibration:
    """The figures of this machine, and the profile that has them in place of those of `base`."""
    read = runner()
    if "problem" in read:
        hint = "run it on the machine that trains, where nvidia-smi sees the GPU"
        raise InputError([Problem(str(read["problem"]), "calibrate", hint)])
    architecture = architecture_of(str(read["compute_capability"]))
    if architecture is None:
        text = f"no GPU generation of compute capability {read['compute_capability']} is known"
        raise InputError([Problem(text, "calibrate", "vramplan profiles new stack NAME begins a profile by hand")])
    others = read["used_before"] or 0
    context = max(int(read["steps"]), int(read["first"])) - others
    if context <= 0:
        text = "the GPU has less in use than before the steps: another process ended meanwhile"
        raise InputError([Problem(text, "calibrate", "run it again while nothing else uses the GPU")])
    workspaces = int(read["forward_workspace"]), int(read["backward_workspace"])
    today = datetime.now(UTC).date().isoformat()
    found = Calibration(
        gpu=str(read["gpu"]),
        architecture=architecture,
        torch=str(read["torch"]),
        cuda=None if read["cuda"] is None else str(read["cuda"]),
        date=today,
        context_bytes=context,
        first_context_bytes=int(read["first"]) - others,
        workspace_bytes=max(workspaces),
        process_group_bytes=read["process_group"],
        used_by_others_bytes=read["used_before"],
        reserved_bytes=int(read["sequence"][-1]),
        simulated_bytes=simulated()[-1],
        allocator_agrees=list(read["sequence"]) == simulated(),
        file=None,
        text="",
    )
    return found._replace(text=profile_text(found, base))


def architecture_of(capability: str) -> str | None:
    """The generation of a compute capability of NVIDIA; None where it is not known."""
    for name, generation in GENERATIONS.items():
        if generation.vendor == "nvidia" and capability in generation.targets:
            return name
    return None


def simulated() -> list[int]:
    """What the simulated allocator reserves after each part of the sequence."""
    allocator, blocks, reserved = CachingAllocator(), list[Block](), []
    for one in SEQUENCE:
        if one > 0:
            blocks.append(allocator.malloc(one))
        else:
            allocator.free(blocks[-one])
        reserved.append(allocator.reserved_bytes)
    return reserved


def profile_text(found: Calibration, base: Profile) -> str:
    """The profile: the fields of `base`, and in their place those of this machine, on GPUs of its architecture."""
    where = f"vramplan calibrate on this machine: {found.gpu}, PyTorch {found.torch}, CUDA {found.cuda}"
    own = {
        f"context_{found.architecture}": _size(found.context_bytes, "in use beside the allocator after three steps"),
        f"blas_workspace_{found.architecture}": _size(found.workspace_bytes, "of the larger of two threads"),
        "calibrated": {"value": found.architecture, "source": SOURCE, "note": f"{found.gpu}, PyTorch {found.torch}"},
    }
    if found.process_group_bytes is not None:
        own["process_group"] = _size(found.process_group_bytes, "of a communicator of two ranks")
        own["calibrated_groups"] = {"value": found.architecture, "source": SOURCE}
    fields = {key: field_of(field) for key, field in base.fields.items()} | own
    lines = [f"# Written by `vramplan calibrate` on {found.date}; delete it to have the shipped figures again."]
    lines += ["kind: stack", f"name: {base.name}", f"title: {json.dumps(f'{base.title}, calibrated')}", "sources:"]
    sources = {key: tuple(source) for key, source in base.sources.items()}
    sources[SOURCE] = (where, "file:calibrate", found.date)
    for key, (title, url, accessed) in sources.items():
        lines.append(f"  {key}: " + json.dumps({"title": title, "url": url, "accessed": accessed}))
    lines += ["fields:", *(f"  {key}: {json.dumps(value)}" for key, value in fields.items())]
    return "\n".join(lines) + "\n"


def field_of(field: Sourced) -> dict[str, Any]:
    """A field as a file has it."""
    value = field.text if field.text is not None else field.value
    parts = {"value": value, **{key: getattr(field, key) for key in ("source", "reason", "note", "derived_from")}}
    kept = {key: part for key, part in parts.items() if part is not None or key == "value"}
    return kept | ({"fitted_from": list(field.fitted_from)} if field.fitted_from else {})


def _size(size: int, note: str) -> dict[str, Any]:
    return {"value": f"{size} B", "source": SOURCE, "note": note}


def shipped() -> Path:
    """The file of the stack that most training programs name, as it is shipped."""
    (tree,) = locate.shipped_dirs()
    return tree / "stacks" / f"{stacks.DEFAULT}.yaml"
