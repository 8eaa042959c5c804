"""What llm-foundry's own MPT was not traced with: each is refused where it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramplan.job.resolve import Resolver

OTHER_LOSS = "fp32-logits"  # a way to cast logits that its loss, one kernel over them, has no use for


def check_foundry(resolver: Resolver) -> None:
    """Refuse adapters, frozen parts, other losses, master copies and FSDP2."""
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
