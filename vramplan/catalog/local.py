"""Which GPU of this machine `local` means: what a process here would see, in its order.

What a reported GPU means for a plan is decided in `local_profile.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from vramplan.catalog import smi
from vramplan.catalog.gpu_profile import LOCAL
from vramplan.catalog.smi import REMEDY, LocalGpu, refused


def find(name: str) -> tuple[LocalGpu, list[LocalGpu]]:
    """The GPU that `local` (the first) or `local:N` means, and all that a process here would see, in its order.

    N counts as `cuda:N` does: what CUDA_VISIBLE_DEVICES (on AMD also ROCR_ and HIP_VISIBLE_DEVICES) hides is not
    counted. Raises InputError.
    """
    word = name.strip().lower()
    number = word.removeprefix(LOCAL).removeprefix(":") or "0"
    if not re.fullmatch(r"\d{1,3}", number, re.ASCII) or word == LOCAL + ":":
        raise refused(f"{name!r} is no GPU of this machine", hint="local, or local:1 for the second")
    gpus = smi.ask()
    seen, hidden_by = visible(gpus, os.environ)
    if not seen:
        raise refused(f"{hidden_by} hides all {len(gpus)} GPUs of this machine", hint=f"unset it, or {REMEDY}")
    if int(number) >= len(seen):
        known = ", ".join(f"local:{place} {gpu.name or gpu.tool}" for place, gpu in enumerate(seen))
        because = f" ({hidden_by} hides {len(gpus) - len(seen)})" if len(seen) < len(gpus) else ""
        raise refused(f"there is no {word} here{because}", hint=f"there is {known}")
    chosen = seen[int(number)]
    if chosen.partitioned:
        message = f"GPU {chosen.number} is in MIG mode: a process sees an instance of it, whose size is not asked for"
        raise refused(message, hint="give the memory of the instance, as in --gpu '20 GiB'")
    return chosen, seen


def visible(gpus: Sequence[LocalGpu], environment: Mapping[str, str]) -> tuple[list[LocalGpu], str]:
    """The GPUs that a process would see, in its order, and the variable that decided last.

    As the CUDA C++ programming guide has it: a list of numbers or of beginnings of UUIDs; the first entry that is
    neither hides itself and all after it. ROCm applies ROCR_VISIBLE_DEVICES first, then HIP's or CUDA's to the rest.
    """
    amd = bool(gpus) and gpus[0].tool != "nvidia-smi"
    variables = ["CUDA_VISIBLE_DEVICES"]
    if amd:
        hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else "CUDA_VISIBLE_DEVICES"
        variables = ["ROCR_VISIBLE_DEVICES", hip]
    seen, decided = list(gpus), variables[-1]
    for variable in variables:
        listed = environment.get(variable)
        if listed is None:
            continue
        decided = variable
        chosen: list[LocalGpu] = []
        for entry in listed.split(","):
            word = entry.strip()
            if word.upper().startswith("MIG-"):
                message = f"{word} in {variable} is a MIG instance, whose size is not asked for"
                raise refused(message, hint="give its memory, as in --gpu '20 GiB'")
            match = _listed(word, seen)
            if match is None or match in chosen:
                break
            chosen.append(match)
        seen = chosen
    return seen, decided


def _listed(word: str, gpus: Sequence[LocalGpu]) -> LocalGpu | None:
    if re.fullmatch(r"\d{1,4}", word, re.ASCII):
        return gpus[int(word)] if int(word) < len(gpus) else None
    if not word.upper().startswith("GPU-"):
        return None
    matches = [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.lower().startswith(word.lower())]
    return matches[0] if len(matches) == 1 else None
