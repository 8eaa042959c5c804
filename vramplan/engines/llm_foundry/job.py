"""A job under llm-foundry: what Composer's loop around its own MPT does, and what it was not traced with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import JobBehaviour
from vramplan.replay.techniques.float8 import SINCE, runs_float8
from vramplan.values.machine import Gpu
from vramplan.values.model import ModelShape
from vramplan.values.parallel import FSDP, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime

TOKENS, FEATURES = 8, 16  # what the sides of a product in fp8 are multiples of (assert_dim_for_fp8_exec)

OTHER_LOSS = "fp32-logits"  # a way to cast logits that its loss, one kernel over them, has no use for


class FoundryJob(JobBehaviour):
    """Composer's loop around llm-foundry's own MPT."""

    has_sharded_float8 = True

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """Refuse adapters, frozen parts, other losses, master copies and FSDP2."""
        super().check_own_code(resolver, own, model, runtime)
        raw, fields = resolver.raw, resolver.fields
        given = {
            "adapter": None if raw.adapter is None else "an adapter",
            "frozen": "a frozen part" if raw.frozen else None,
            "loss": raw.loss if raw.loss == OTHER_LOSS else None,
            "precision": raw.precision if (raw.precision or "").startswith("mixed-") else None,
        }
        for key, word in given.items():
            if word is not None:
                fields.refuse(key, f"{word} is not modelled with llm-foundry's own MPT", hint="leave it out")
        if raw.fsdp_version == 2:
            parallel = fields.fields("parallel") or fields
            parallel.refuse("fsdp_version", "2 is not Composer's, which has FSDP1 alone", hint="leave it out")

    def check_sharded_float8(
        self, resolver: Resolver, model: ModelShape, gpu: Gpu | None, sequence_length: int
    ) -> None:
        """Refuse fp8 where Transformer Engine's layers cannot run."""
        if model.engine is None:
            super().check_sharded_float8(resolver, model, gpu, sequence_length)
        else:
            _check_te(resolver, model, gpu, sequence_length)


BEHAVIOUR = FoundryJob()


def _check_te(resolver: Resolver, model: ModelShape, gpu: Gpu | None, sequence_length: int) -> None:
    raw, fields, key = resolver.raw, resolver.fields, "precision"
    if raw.data_parallel_size == 1 or not is_fsdp(raw.sharding or FSDP):
        fields.refuse(key, "fp8 of llm-foundry is modelled under FSDP", hint="--gpus 8 --sharding fsdp")
    if sequence_length % TOKENS:
        message = f"{sequence_length} is no multiple of {TOKENS}, which the products in fp8 need"
        fields.refuse("sequence_length", message, hint=f"use {sequence_length // TOKENS * TOKENS or TOKENS}")
    if model.hidden_size % FEATURES or model.intermediate_size % FEATURES:
        fields.refuse("model", f"products in fp8 need widths that are multiples of {FEATURES}", hint="fsdp-bf16")
    able = None if gpu is None else runs_float8(gpu)
    if gpu is not None and able is None:
        resolver.assume("gpu.fp8", True, f"unknown for {gpu.name}, which counts as able")
    elif gpu is not None and not able:
        message = f"{gpu.name} has no fp8, which needs compute capability {SINCE[0]}.{SINCE[1]}"
        fields.refuse(key, message, hint="use fsdp-bf16")
    basis = "every linear layer of a block is Transformer Engine's (fc_type: te), by a stated rule"
    resolver.assume("precision.fp8", "te", basis)
