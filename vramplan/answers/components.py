"""What an answer is made of: the components at the peak with their bases, and the steps from there to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.answers import on_demand
from vramplan.answers.behaviour import WordedDevice, wording_of, wording_of_sharding
from vramplan.options import words
from vramplan.planner.budget import MULTIPLYING_THREADS, RESERVED_PERCENT, Footprint
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung
from vramplan.replay.precision import precision_of
from vramplan.replay.record import Record
from vramplan.replay.tensors import FP32
from vramplan.results import Component
from vramplan.units import format_gib
from vramplan.values.job import ResolvedJob, trains_all
from vramplan.values.parallel import DDP

if TYPE_CHECKING:
    from vramplan.replay.pipeline.stages import Stage
PAIRED = [word for word in words.PREFERENCE_LOSSES if word not in ("kto", words.POLICY)]


COMPONENTS = (
    "weights",
    "master",
    "optimizer",
    "ema",
    "reference",
    "gradients",
    "activations",
    "weight_casts",
    "gathered",
    "in_flight",
    "communication",
    "temporaries",
    "workspace",
    "buffers",
    "inputs",
)


def components_of(
    record: Record, job: ResolvedJob, rung: Rung, total: int, stage: Stage | None = None
) -> tuple[Component, ...]:
    """What is alive at the peak, by component; they sum exactly to the allocated bytes."""
    micro = rung.schedule.micro_batch_size
    record = record.at_peak(micro)
    phase, moment = record.worst(micro)
    sizes = record.components(micro, phase, moment)
    precision = precision_of(job.precision, half_weights=job.half_weights)
    width = (precision.frozen or precision.stored or precision.weights).itemsize
    gradient = FP32.itemsize if job.fp32_gradients else width
    resident = rung.schedule.accumulates or job.fp32_gradients
    sequences = "2 sequences x " if job.loss in PAIRED else ""  # a pair of a chosen and a rejected one
    basis = {
        "weights": f"{total:,} x {width} B",
        "master": "fp32 copy of the weights",
        "optimizer": f"{job.optimizer}, {job.optimizer_implementation}" + ", fp32 states" * job.fp32_states,
        "ema": "moving average of the weights",
        "reference": "reference model or teacher, its weights and buffers",
        "gradients": f"{record.reached_parameters:,} x {gradient} B, resident" if resident else "those made so far",
        "activations": f"micro-batch {micro} x {sequences}{_sample(job)}",
        "weight_casts": "16-bit copies that autocast keeps",
        "temporaries": f"alive in {record.operator_at(moment)}",
        "workspace": "scratch inside the kernel",
        "buffers": "of the model",
        "inputs": _given(job),
    }
    if not trains_all(job):
        basis |= _basis_of_less(record, job, width, resident)

    def shared() -> dict[str, str]:
        return {} if job.sharding is None else _basis_of_shared(record, job, basis, resident)

    basis |= wording_of(job).basis(WordedDevice(record, job, stage, total, shared))
    if job.planned is not None:
        known = [basis["communication"]] if "communication" in basis else []
        basis["communication"] = "; ".join((*known, "what the devices of a group send each other"))
    return tuple(Component(name, sizes[name], basis[name]) for name in COMPONENTS if sizes.get(name))


def beside_whole(parts: tuple[Component, ...], judge: Judge, rung: Rung) -> tuple[Component, ...]:
    """The parts of a shared model beside what one device alone would hold, and what divides them."""
    if judge.job.data_parallel_size == 1 and judge.job.split is None:
        return parts
    if not on_demand.is_shared(judge.job):
        return parts
    whole = on_demand.whole_sizes(judge, rung)
    by = on_demand.divided_by(judge.job, accumulates=rung.schedule.accumulates)
    return tuple(
        part._replace(unsharded_bytes=whole.get(part.name), divided_by=by.get(part.name, ())) for part in parts
    )


def _sample(job: ResolvedJob) -> str:
    """`1024 tokens`, `224 x 224 pixels`, or both."""
    length = str(job.sequence_length)
    if job.model.waveform is not None:
        return f"({length} samples and {job.target_length} letters)"
    if job.model.takes_audio:
        return f"({2 * (job.model.audio_positions or 0)} frames and {length} tokens)"
    if job.model.decoder_layers is not None:  # of the encoder and of the decoder
        length = f"({length} + {job.target_length or length})"
    parts = [f"{length} tokens"] if job.sequence_length else []
    parts += [f"{job.image_size} x {job.image_size} pixels"] if job.image_size is not None else []
    return parts[0] if len(parts) == 1 else f"({' and '.join(parts)})"


def _given(job: ResolvedJob) -> str:
    """What a micro-batch brings to the device."""
    if job.loss in words.PREFERENCE_LOSSES:
        return "token ids and masks"
    given = ["images"] if job.image_size is not None else []
    given += ["sounds"] if job.model.takes_audio else ["token ids"] if job.sequence_length else []
    given += ["labels"] if job.model.task != "contrastive" else []  # its labels are the pairs
    given += ["a mask"] if job.padding != "none" else []
    given += ["positions"] if job.packing else []
    return " and ".join([", ".join(given[:-1]), given[-1]]) if len(given) > 1 else given[0]


def _basis_of_less(record: Record, job: ResolvedJob, width: int, resident: bool) -> dict[str, str]:
    """What weights and gradients are where not every weight is trained."""
    total, trained, own = record.parameters, record.trainable_parameters, own_parameters(job, record)
    if job.adapter is None:
        frozen = f"{total:,} x {width} B, {total - trained:,} of them frozen"
        return {"weights": frozen}
    adapter = job.adapter
    kind = f"{adapter.kind} {on_demand.KINDS[adapter.kind].measure} {adapter.rank}" if adapter.rank else adapter.kind
    base = (
        f"{own:,} frozen, linear layers in {job.quantization}" if job.quantization else f"{own:,} x {width} B, frozen"
    )
    basis = {
        "weights": f"{base}; {trained:,} of {kind}, {adapter.dtype}",
        "optimizer": f"{job.optimizer}, {job.optimizer_implementation}, of {trained:,} trained",
    }
    if job.quantization:
        basis["weight_casts"] = "working copies of quantized weights, and casts of autocast"
    if resident:
        basis["gradients"] = f"of {trained:,} trained, resident"
    return basis


def _basis_of_shared(record: Record, job: ResolvedJob, alone: dict[str, str], resident: bool) -> dict[str, str]:
    """What each device has of the states, and what it gathers and sends; `alone` says what one device would have."""
    assert job.sharding is not None
    if job.sharding.way is not None:
        return wording_of(job).basis_of_shards(record, job, alone)
    if job.sharding.kind == DDP:
        views = ", which the gradients are views of" if job.sharding.bucket_views else ""
        buckets = f"buckets of {on_demand.BUCKET_BYTES // 2**20} MiB for"
        return {"communication": f"{buckets} {record.reached_parameters:,} gradients{views}"}
    own = wording_of_sharding(job.sharding.kind)
    if own is not None:
        return own.basis_of_shards(record, job, alone)
    precision, devices = precision_of(job.precision, half_weights=job.half_weights), job.sharding.shards
    width = (precision.stored or precision.weights).itemsize
    if job.sharding.no_sync:
        summed = on_demand.REDUCED.get(job.sharding.reduce_dtype or "") or precision.stored or precision.weights
        width = (precision.weights if job.sharding.version == 1 else summed).itemsize
    devices *= 1 if job.split is None else job.split.tensor
    what = "whole, until the last micro-step" if job.sharding.no_sync else f"/ {devices} devices, resident"
    each = " /" if trains_all(job) else ", all /"
    basis = {
        "weights": f"{alone['weights']}{each} {devices} devices",
        "optimizer": f"{alone['optimizer']}, / {devices} devices",
        "gathered": "whole parameters of the blocks in use",
        "communication": "buffers of all-gather and reduce-scatter",
        "in_flight": "micro-batches whose backward has yet to come, and logits of all",
    }
    if resident:
        basis["gradients"] = f"{record.reached_parameters:,} x {width} B, {what}"
    return basis


def parameters_of_all(job: ResolvedJob, record: Record) -> tuple[int, int]:
    """Parameters of the whole model, and those that are trained."""
    if job.split is None:
        return record.parameters, record.trainable_parameters
    family = job.model.published_family or job.model.family
    total = on_demand.parameters_of(job.model._replace(family=family, engine=None))
    return total, total


def own_parameters(job: ResolvedJob, record: Record) -> int:
    """Parameters of the model itself: without an adapter's weights and the copies that are trained with them."""
    return record.parameters - (0 if job.adapter is None else record.trainable_parameters)


def overheads_of(peak: Footprint, judge: Judge) -> tuple[Component, ...]:
    """The steps from the allocated bytes to what the device shows."""
    whose = f"{judge.job.runtime.name} runtime profile"
    parts, what = [], "allocated"
    if peak.stranded:
        what = "that"
        why = "cached for other CUDA streams, of no use to this one"
        if peak.returnable:
            why = "blocks of their own, as what was freed is too small"
        parts.append(Component("streams", peak.stranded, why))
    basis, unused = f"reserved is {RESERVED_PERCENT / 100:.2f} x {what}", peak.reserved - peak.allocated - peak.stranded
    libraries = min(judge.workspace_bytes, unused)  # within the factor, which is of runs that had them
    if judge.simulates:
        basis = "cached free blocks and ends of segments, simulated"
    if libraries:
        threads = f"workspaces of cuBLAS, {MULTIPLYING_THREADS} threads"
        of_all = format_gib(judge.workspace_bytes)
        cut = f"workspaces of cuBLAS, {of_all}, counted up to what the reserve factor leaves"
        parts.append(Component("libraries", libraries, threads if libraries == judge.workspace_bytes else cut))
    if judge.job.runtime.caches:
        parts.append(Component("allocator", unused - libraries, basis))
    parts += [
        Component("context", judge.context_bytes, judge.job.runtime.context_basis or f"CUDA context, {whose}"),
    ]
    if judge.groups_bytes:
        groups = on_demand.process_groups(judge.job)
        count = "a communicator" if len(groups) == 1 else f"communicators, {len(groups)}"
        parts.append(Component("nccl", judge.groups_bytes, f"{count} ({', '.join(groups)}), {whose}"))
    return tuple(parts)
