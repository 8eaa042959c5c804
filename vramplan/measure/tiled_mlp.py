"""Axolotl's tiles of an MLP in a real model, as Axolotl puts them there before the model is made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from unittest.mock import patch

from vramplan.measure.lora_kernels import without_callbacks
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ZERO_STAGES


@contextlib.contextmanager
def in_tiles(job: ResolvedJob) -> Iterator[None]:
    """The class of the model's MLP runs in tiles; afterwards it is as it was.

    Source: axolotl 0.19.0, loaders/patch_manager.py, _apply_tiled_mlp, with `tiled_mlp_use_original_mlp`.
    """
    if job.tiled_mlp is None:
        yield
        return
    without_callbacks()
    module: Any = import_module("axolotl.monkeypatch.tiled_mlp.patch")
    found: list[Any] = []

    def prepared(target: Any) -> None:
        target._compute_params, target._tiled_mlp_dist_impl = [], None
        found.append(target)

    kind = job.model.transformers_model_type
    names = import_module(f"transformers.models.{kind}.modeling_{kind}")
    before = {one: one.forward for one in vars(names).values() if isinstance(one, type) and hasattr(one, "forward")}
    zero = job.sharding is not None and job.sharding.kind in ZERO_STAGES
    with (
        patch.object(module, "_prepare_target_class", prepared),
        patch.dict(os.environ, {"ACCELERATE_USE_DEEPSPEED": "true"} if zero else {}),
    ):
        module.patch_tiled_mlp(kind, use_original_mlp=True, cfg_num_shards=job.tiled_mlp)
        try:
            yield
        finally:
            for target in found:
                target.forward = before[target]
