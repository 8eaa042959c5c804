"""Batches that are padded to their longest sample: what says nothing beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.machine.allocator import ESTIMATE

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape

KEY, HINT = "varied_lengths", "leave it out"


def check_varied(resolver: Resolver, model: ModelShape, runtime: Runtime, sequence_length: int) -> None:
    """Refuse lengths that vary where every batch has the same, or where nobody looks at what they leave behind."""
    raw, fields = resolver.raw, resolver.fields
    reasons = {
        f"true means nothing to {model.name}, which takes no text": not model.takes_text,
        "true means nothing to packed sequences, which are as long as sequence_length": bool(raw.packing),
        f"true means nothing to sequences of {sequence_length} tokens": sequence_length < SHORTEST,
        "true is not modelled with compile, which makes kernels for each length": bool(raw.compile),
        "true is not modelled with a pipeline": raw.split is not None and raw.split.pipeline > 1,
        f"true means nothing to {runtime.name}, which allocates everything once": not runtime.caches,
    }
    said = next((words for words, holds in reasons.items() if holds), None)
    if said is not None:
        fields.refuse(KEY, said, hint=HINT)
    elif raw.allocator == ESTIMATE:
        fields.refuse(KEY, "true is told by a simulated allocator alone", hint="leave out allocator: estimate")


SHORTEST = 8  # tokens; of fewer a quarter is one, and lengths hardly differ
