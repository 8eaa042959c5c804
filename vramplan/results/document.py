"""An answer as a document: the keys of docs/job-format.md, all of them, in a stable order, bytes as integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vramplan.results import Component, FitResult
from vramplan.results.frozen import plain
from vramplan.version import __version__

if TYPE_CHECKING:
    from vramplan.results.advice import Advice
    from vramplan.results.allocator import Allocator

SCHEMA_VERSION = 1


def fit_document(result: FitResult, *, exit_code: int) -> dict[str, Any]:
    """The JSON document of `vramplan fit`: plain dicts and lists that belong to the caller."""
    peak, recommended = result.peak, result.recommended
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "name": result.name,
        "verdict": result.verdict,
        "job": plain(result.job),
        "exit_code": exit_code,
        "capacity_bytes": result.capacity_bytes,
        "usable_bytes": result.usable_bytes,
        "headroom_bytes": result.headroom_bytes,
        "utilization": result.utilization,
        "parameters": {
            "total": result.total_parameters,
            "trainable": result.trainable_parameters,
            "active": result.active_parameters,
        },
        "peak": {
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "device_bytes": peak.device_bytes,
            "low_bytes": peak.low_bytes,
            "high_bytes": peak.high_bytes,
            "phase": peak.phase,
            "operator": peak.operator,
            "phases": {
                "forward_bytes": peak.forward_bytes,
                "backward_bytes": peak.backward_bytes,
                "step_bytes": peak.step_bytes,
            },
            "saved_bytes": peak.saved_bytes,
        },
        "components": [_component(part) for part in result.components],
        "overheads": _parts(result.overheads),
        "recommended": {
            "micro_batch_size": recommended.micro_batch_size,
            "gradient_accumulation_steps": recommended.gradient_accumulation_steps,
            "global_batch_size": recommended.global_batch_size,
            "largest_micro_batch_size": recommended.largest_micro_batch_size,
            "activation_checkpointing": recommended.activation_checkpointing,
            "flags": recommended.flags,
        },
        "checkpoints": [{"first": first, "last": last} for first, last in result.checkpoints],
        "alternatives": [
            {
                "activation_checkpointing": row.activation_checkpointing,
                "verdict": row.verdict,
                "micro_batch_size": row.micro_batch_size,
                "gradient_accumulation_steps": row.gradient_accumulation_steps,
                "allocated_bytes": row.allocated_bytes,
                "device_bytes": row.device_bytes,
                "largest_micro_batch_size": row.largest_micro_batch_size,
                "recomputed_fraction": row.recomputed_fraction,
            }
            for row in result.alternatives
        ],
        "remedies": [
            {
                "change": plain(remedy.change),
                "saves_bytes": remedy.saves_bytes,
                "cost": remedy.cost,
                "verdict": remedy.verdict,
            }
            for remedy in result.remedies
        ],
        "assumptions": [{"key": item.key, "value": plain(item.value), "why": item.why} for item in result.assumptions],
        "warnings": list(result.warnings),
        "stages": None if result.stages is None else [row._asdict() for row in result.stages],
        "host": None if result.host is None else result.host._asdict(),
        "allocator": None if result.allocator is None else _allocator(result.allocator),
        "advice": None if result.advice is None else _advice(result.advice),
    }


def _allocator(allocator: Allocator) -> dict[str, Any]:
    end = allocator.out_of_memory
    return {**allocator._asdict(), "out_of_memory": None if end is None else end._asdict()}


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "base_batch_size": advice.base_batch_size,
        "base_learning_rate": advice.base_learning_rate,
        "micro_batch_size": advice.micro_batch_size,
        "gradient_accumulation_steps": advice.gradient_accumulation_steps,
        "data_parallel_size": advice.data_parallel_size,
        "effective_batch_size": advice.effective_batch_size,
        "learning_rate": {
            "linear": advice.linear_learning_rate,
            "square_root": advice.square_root_learning_rate,
            "rule": advice.rule,
            "recommended": advice.learning_rate,
            "why": advice.why,
        },
        "warm_up": {"least_steps": advice.warm_up_least_steps, "most_steps": advice.warm_up_most_steps},
        "layerwise_optimizer": advice.layerwise_optimizer,
        "accumulation_overhead": advice.overhead,
        "communication_saved_fraction": advice.communication_saved,
        "loss": {"by": advice.loss_by, "text": advice.loss},
        "clipping": advice.clipping,
        "schedule": advice.schedule,
        "synchronisation": advice.synchronisation,
        "batch_normalisation": advice.batch_normalisation,
    }


def _component(part: Component) -> dict[str, Any]:
    """A part of the peak, with what it would be on one device and what divides it."""
    return {
        **_parts([part])[0],
        "unsharded_bytes": part.unsharded_bytes,
        "divided_by": dict(part.divided_by) or None,
    }


def _parts(parts: Iterable[Component]) -> list[dict[str, Any]]:
    return [{"name": part.name, "bytes": part.bytes, "basis": part.basis} for part in parts]
