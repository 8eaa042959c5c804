"""Small steps on the GPU at hand: `python -m vramplan.measure.probe REPLY` writes what each of them takes, as JSON.

In order: a first tensor; a product in the thread of the program; its backward, in the thread of the device; three steps
of a small network with AdamW; a fixed sequence of allocations; and, with two GPUs, a communicator of NCCL.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from vramplan.measure.calibration import SEQUENCE

MIB = 2**20
WIDTH, ROWS = 512, 64
GROUP = "--group"  # of a process that is one of two ranks


def main(reply: str) -> None:
    """Write the reply in one piece, so that half of one is never read."""
    beside = Path(reply + ".part")
    beside.write_text(json.dumps(run()), "utf-8")
    os.replace(beside, reply)


def run() -> dict[str, Any]:
    """What the steps take, in bytes; `problem` where there is no GPU."""
    cuda = torch.cuda
    if not cuda.is_available():
        return {"problem": "PyTorch finds no GPU"}
    sequence = allocations()  # first, while the allocator has nothing
    cuda.empty_cache()
    kept = torch.ones(1, device="cuda")
    found: dict[str, Any] = {"first": _outside()}
    x, weight = (torch.randn(n, WIDTH, device="cuda", requires_grad=n == WIDTH) for n in (ROWS, WIDTH))
    before = cuda.memory_allocated()
    y = x @ weight
    found["forward_workspace"] = cuda.memory_allocated() - before - _stored(y)
    before = cuda.memory_allocated()
    y.sum().backward()
    cuda.synchronize()
    found["backward_workspace"] = cuda.memory_allocated() - before - _stored(weight.grad)
    del x, weight, y
    _steps()
    found["steps"] = _outside()
    del kept
    seen = cuda.get_device_properties(0)
    return {
        **found,
        "sequence": sequence,
        "process_group": _groups() if cuda.device_count() > 1 else None,
        "gpu": seen.name,
        "compute_capability": f"{seen.major}.{seen.minor}",
        "total_bytes": seen.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "platform": platform.platform(terse=True),
    }


def allocations() -> list[int]:
    """What the allocator reserves after each part of the sequence."""
    blocks: list[Any] = []
    reserved = []
    for one in SEQUENCE:
        if one > 0:
            blocks.append(torch.empty(one, dtype=torch.uint8, device="cuda"))
        else:
            blocks[-one] = None
        reserved.append(torch.cuda.memory_reserved())
    return reserved


def _stored(tensor: Any) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return -(-size // 512) * 512


def _outside() -> int:
    """Bytes of the GPU that are in use and not in the allocator of this process."""
    free, total = torch.cuda.mem_get_info()
    used: int = total - free - torch.cuda.memory_reserved()
    return used


def _steps() -> None:
    """Three steps of a network that uses the kernels of most: products in bf16, attention, norm, softmax, AdamW."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True).cuda()
    head = torch.nn.Linear(WIDTH, 4096).cuda()
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = head(layer(torch.randn(4, ROWS, WIDTH, device="cuda")))
            labels = torch.zeros(4 * ROWS, dtype=torch.int64, device="cuda")
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def _groups() -> int | None:
    """What a communicator of two ranks takes of the first GPU; None where it cannot be made."""
    words = [sys.executable, "-m", "vramplan.measure.probe", GROUP]
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [*words, str(rank)], env={**os.environ, **at, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        for rank in ranks:
            rank.kill()
        return None
    return int(said[0]) if said[0].strip().isdigit() else None


def group(rank: int) -> int:
    """As one of two ranks: bytes that the first collectives take of its GPU."""
    torch.cuda.set_device(rank)
    value = torch.ones(MIB, device="cuda")
    distributed.init_process_group("nccl")
    before = _outside()
    distributed.all_reduce(value)
    distributed.barrier()
    torch.cuda.synchronize()
    taken = _outside() - before
    distributed.destroy_process_group()
    return taken


if __name__ == "__main__":
    if sys.argv[1] == GROUP:
        print(group(int(sys.argv[2])))
    else:
        main(sys.argv[1])
