"""One job as it stands in a file or came from options: types and words are checked, nothing is looked up or defaulted.

What is broken here is a problem of the whole file; what is known and not modelled is a refusal of this job.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from vramplan.catalog import shapes
from vramplan.catalog.document import Mapping, Sequence
from vramplan.catalog.fields import Fields, shown
from vramplan.catalog.hf_config import read_value
from vramplan.engines import imported
from vramplan.errors import UsageError
from vramplan.job.counts import parameter_count
from vramplan.job.given.spelled import spelled_out
from vramplan.options import table, words
from vramplan.options.draft import Values
from vramplan.options.read import read
from vramplan.units import parse_bandwidth_bytes_per_s
from vramplan.values.length import Rent
from vramplan.values.parallel import Split

OF_LENGTH = tuple(option.attribute for option in table.TABLE if option.section == table.RUN)


class RawJob(Values):
    """The values of one job by the attributes of the table, and what belongs together in one value."""

    model: str | dict[str, Any] | None = None
    teacher: str | dict[str, Any] | None = None
    gpu: str | Fields | None = None
    gpu_free_now: bool = False
    offload_activations: bool = False
    split: Split | None = None  # how a replica is split over devices; None: each has a whole one
    zero: dict[str, Any] | None = None  # the switches of DeepSpeed's ZeRO that are given
    adapter: Fields | None = None
    qat: Fields | None = None
    node_bandwidth_bytes_per_s: float | None = None

    @property
    def shares_states(self) -> bool:
        """Whether a key says how devices share the states."""
        given = (
            self.no_sync,
            self.gradient_as_bucket_view,
            self.fsdp_version,
            self.reduce_dtype,
            self.fsdp_units,
            self.limit_all_gathers,
            self.zero,
        )
        return self.sharding not in {None, "none"} or self.shards is not None or any(given)

    @property
    def tokens_before(self) -> int:
        """Virtual tokens that stand before those of the text."""
        if self.adapter_kind not in words.EMBEDDED_PROMPTS:
            return 0
        return self.adapter_virtual_tokens or words.USUAL_VIRTUAL_TOKENS

    @property
    def asks_for_length(self) -> bool:
        """Whether a key says how long the whole run is, or what it may cost."""
        return any(getattr(self, key) is not None for key in OF_LENGTH)

    def __init__(self, fields: Fields) -> None:
        self.__dict__ |= table.absent()
        self.fields = fields
        self.given: dict[str, Any] = {}  # the value of each key that is there, as it was read
        self.cells: dict[str, str] = {}
        self.case: dict[str, Any] = {}
        self.rent: Rent | None = None
        self.spelled: list[tuple[str, Any, str]] = []  # values whose spelling leaves something open, and how it is read

    def copy(self) -> RawJob:
        """The same values, to be filled in apart from these; the fields, and what is wrong with them, are shared."""
        other = object.__new__(RawJob)
        other.__dict__ |= self.__dict__
        other.cells, other.zero = dict(self.cells), None if self.zero is None else dict(self.zero)
        return other


def read_job(fields: Fields, *, in_file: bool) -> RawJob:
    """Read every key of a job. Problems and refusals go to the sink of `fields`.

    `in_file`: the job has a name and may be a validation case.
    """
    known = table.inside()
    if in_file:
        fields.for_a_list = "matrix: {{{}: [...]}} makes a job of each value"
    fields.reject_unknown((*known, *words.CASE_KEYS) if in_file else known, _meant)
    spelled = spelled_out(fields)
    raw = RawJob(fields)
    raw.spelled, raw.rent = spelled
    if in_file and not fields.given("name"):
        fields.problem("name", "required key is missing: it names the job in reports")
    values = _take(raw, fields, "")
    raw.cells = {key: values[key] for key in words.CELLS if values.get(key) is not None}
    raw.offload_activations = "activations" in raw.offload
    for option in table.of_one_runtime():
        if option.only != raw.runtime and fields.given(option.key):
            fields.refuse(option.key, f"belongs to the runtime {option.only}", hint=f"runtime: {option.only}")
    _base(raw)
    if in_file:
        raw.case = _case(fields)
    return raw


def _meant(name: str) -> str | None:
    """The hint for a key that is the name of an option of the command line."""
    option = table.named_by_flag(name)
    if option is None:
        return _shortcut(name)
    return f"did you mean {option.group}: {{{option.name}: ...}}?" if option.group else f"did you mean {option.key}?"


BESIDE = {"adapter": "rank: 16"}
"""What people say beside the kind of a group."""


def _shortcut(name: str) -> str | None:
    """The hint for a key that is a shortcut of the command line: the keys that it stands for."""
    flag = "--" + name.replace("_", "-")
    shortcuts = imported("vramplan.options.shortcuts:SHORTCUTS")
    means = next((one.means for one in shortcuts if flag in one.flags and not one.metavar), ())
    said: dict[str, list[str]] = {}
    for option, value in zip(means[::2], means[1::2], strict=True):
        row = table.named_by_flag(option.removeprefix("--"))
        assert row is not None
        group = next((group for group, head in table.HEADS.items() if row.key == f"{group}.{head}"), "")
        beside = [BESIDE[group]] if group in BESIDE else []
        said.setdefault(row.group, []).extend([f"{row.name}: {value.replace('{}', flag[2:])}", *beside])
    keys = [f"{group}: {{{', '.join(each)}}}" if group else ", ".join(each) for group, each in said.items()]
    return f"did you mean {', '.join(keys)}?" if keys else None


def _take(raw: RawJob, fields: Fields, group: str) -> dict[str, Any]:
    """Read the keys of a mapping that are there: what has an attribute is put there. The values by their names."""
    known = table.inside(group)
    values: dict[str, Any] = {}
    for name in fields.names:
        option = known.get(name)
        if option is None:
            continue
        own = OWN.get(option.key)
        value = read(option, fields) if own is None else own(raw, fields)
        values[name] = raw.given[option.key] = value
        if value is not None and option.attribute:
            setattr(raw, option.attribute, value)
    return values


def _gpu(raw: RawJob, fields: Fields) -> str | Fields | None:
    return fields.fields("gpu") if isinstance(fields.node_of("gpu"), Mapping) else fields.text("gpu")


def _gpu_free(raw: RawJob, fields: Fields) -> int | None:
    raw.gpu_free_now = fields.scalar_text("gpu_free") == words.FREE_NOW
    return None if raw.gpu_free_now else read(table.find("gpu_free"), fields)


def _runtime(raw: RawJob, fields: Fields) -> str | None:
    """As written: an unknown one is an error of this job and not of its file."""
    return fields.text("runtime")


def _allocator(raw: RawJob, fields: Fields) -> str | None:
    if not fields.given("allocator"):
        return None
    from vramplan.job.machine.allocator import read_allocator  # only jobs that name it pay for it

    return read_allocator(fields)


def _counted(key: str, what: str, also: str = "") -> Callable[[RawJob, Fields], int | None]:
    """Reads a count as texts write it, `2.8B`, or as a number."""

    def read_count(raw: RawJob, fields: Fields) -> int | None:
        text = fields.text(key)
        count = None if text is None else parameter_count(text)
        if text is not None and count is None:
            fields.problem(key, f"{shown(text)} is no count of {what}", hint=f"2.8B, 2.8e9 or 2800000000{also}")
        return count

    return read_count


_BITS = re.compile(r"(?<=[\d\s])([kMGT]?)(?:b/s|bps|bit/s)\s*$")
"""Bits per second as people write them: 400Gbps, 400 Gb/s."""


def _node_bandwidth(raw: RawJob, fields: Fields) -> str | None:
    """A rate in bytes or in bits, as network cards are sold."""
    text = fields.text("node_bandwidth")
    if text is None:
        return None
    try:
        raw.node_bandwidth_bytes_per_s = parse_bandwidth_bytes_per_s(_BITS.sub(r"\1bit/s", text))
    except UsageError as error:
        problem = error.problems[0]
        fields.problem("node_bandwidth", problem.message, hint="write for example 200 GB/s or 100 Gbit/s")
    return text


def read_model_mapping(fields: Fields) -> dict[str, Any]:
    """The typed values of an inline model. Explicit nulls stay as None."""
    plain = [key for key in shapes.FIELDS if "." not in key]
    nested = {key.partition(".")[0]: None for key in shapes.FIELDS if "." in key}
    fields.reject_unknown(("name", *plain, *nested))
    values: dict[str, Any] = {}
    for key in fields.names:
        if not fields.given(key):
            values[key] = None
        elif key in nested:
            values |= _nested(fields, key)
        elif key in shapes.FIELDS:
            values[key] = read_value(fields, key, shapes.FIELDS[key])
        elif key == "name":
            values[key] = fields.text(key)
    return values


def _nested(fields: Fields, key: str) -> dict[str, Any]:
    """The keys of a mapping inside the model, each by its full name."""
    inside = fields.fields(key)
    if inside is None:
        return {}
    known = {name.partition(".")[2]: name for name in shapes.FIELDS if name.startswith(f"{key}.")}
    inside.reject_unknown(known)
    return {
        known[name]: read_value(inside, name, shapes.FIELDS[known[name]]) if inside.given(name) else None
        for name in inside.names
        if name in known
    }


def _model(raw: RawJob, fields: Fields, key: str = "model") -> str | dict[str, Any] | None:
    if not isinstance(fields.node_of(key), Mapping):
        return fields.text(key)
    inline = fields.fields(key)
    assert inline is not None
    return read_model_mapping(inline)


def _checkpointing(raw: RawJob, fields: Fields) -> str | None:
    key = "activation_checkpointing"
    node = fields.node_of(key)
    if isinstance(node, Mapping):
        # {layers: [[0, 6], [7, 13]]}: the text form has characters that YAML's flow style takes for itself
        nested = fields.fields(key)
        assert nested is not None
        nested.reject_unknown(("layers",))
        if not isinstance(nested.node_of("layers"), Sequence):
            nested.problem("layers", "expected a list of segments", hint="layers: [[0, 6], [7, 13]]")
            return None
        text = f"layers:{nested.value('layers')}"
    else:
        given: str | None = fields.scalar_text(key)
        if given is None or not given.startswith("layers:"):
            word: str | None = read(table.find(key), fields)
            return word
        text = given
    text = re.sub(r"\s+", "", text)
    if re.fullmatch(r"layers:\[\[\d{1,6},\d{1,6}\](?:,\[\d{1,6},\d{1,6}\])*\]", text, re.ASCII):
        pairs = re.findall(r"(\d+),(\d+)", text)
        return "layers:[" + ",".join(f"[{int(first)},{int(last)}]" for first, last in pairs) + "]"
    fields.problem(key, f"{shown(text)} is not a list of segments", hint="layers:[[0,6],[7,13]]: first and last block")
    return None


def _parallel(raw: RawJob, fields: Fields) -> None:
    """Data-parallel devices, how their states are sharded, and over how many of them."""
    parallel = fields.fields("parallel")
    if parallel is None:
        return
    parallel.reject_unknown(table.inside("parallel"))
    values = _take(raw, parallel, "parallel")
    raw.split = _split(parallel, values)
    switches = table.switches_of_zero()
    raw.zero = {key: value for key, value in values.items() if key in switches and value is not None} or None
    sharing = raw.data_parallel_size * (1 if raw.split is None else raw.split.context)
    if raw.shards is not None and (raw.shards > sharing or sharing % raw.shards):
        message = f"{raw.shards} do not divide the {sharing} data-parallel devices"
        parallel.refuse("shards", message, hint="leave it out for all of them")


def _split(parallel: Fields, values: dict[str, Any]) -> Split | None:
    """How a replica is split over devices; None where each has a whole one."""
    sizes = {key: values.get(key) or 1 for key in ("tensor", "pipeline", "context", "expert")}
    along = bool(values.get("sequence_parallel"))
    schedule, by, around = (values.get(key) for key in ("schedule", "pipeline_split", "context_communication"))
    if by is not None and sizes["pipeline"] == 1:
        parallel.refuse("pipeline_split", f"{by} belongs to a pipeline", hint="leave it out, or --pipeline 4")
    if around is not None and sizes["context"] == 1:
        message = f"{around} belongs to devices that share a sequence"
        parallel.refuse("context_communication", message, hint="leave it out, or --context 2")
    group = values.get("microbatch_group_size")
    if group is not None and not str(schedule).startswith("interleaved:"):
        hint = "leave it out, or --pipeline 4 --schedule interleaved:2"
        parallel.refuse("microbatch_group_size", f"{group} belongs to an interleaved schedule", hint=hint)
    if sizes["pipeline"] == 1 and schedule not in {None, "1f1b"}:
        parallel.refuse("schedule", f"{schedule} belongs to a pipeline", hint="leave it out, or --pipeline 4")
    if max(sizes.values()) == 1 and not along:
        return None
    word, _, virtual = (schedule or "1f1b").partition(":")
    tensor, pipeline, context, expert = sizes.values()
    return Split(tensor, pipeline, context, expert, along, word, int(virtual or 1), by, around, group)


def _headed(group: str) -> Callable[[RawJob, Fields], Fields | None]:
    """Types and words of a mapping whose head says what it is (`table.HEADS`); what they mean together is for
    `job/trained.py` and `job/qat.py`.
    """
    head = table.HEADS[group]

    def read(raw: RawJob, fields: Fields) -> Fields | None:
        inside = fields.fields(group)
        if inside is None:
            return None
        known = table.inside(group)
        inside.reject_unknown(known)
        _take(raw, inside, group)
        if not inside.given(head):
            inside.problem(head, "required key is missing", hint="known: " + ", ".join(known[head].words))
        return inside

    return read


OWN: dict[str, Callable[[RawJob, Fields], Any]] = {
    "model": _model,
    "teacher": lambda raw, fields: _model(raw, fields, "teacher"),
    "gpu": _gpu,
    "activation_checkpointing": _checkpointing,
    **{group: _headed(group) for group in table.HEADS},
    "parallel": _parallel,
    "runtime": _runtime,
    "gpu_free": _gpu_free,
    "allocator": _allocator,
    "trainable_parameters": _counted("trainable_parameters", "parameters"),
    "tokens": _counted("tokens", "tokens", "; 20 for each parameter is compute_optimal (--compute-optimal)"),
    "samples": _counted("samples", "samples"),
    "parallel.node_bandwidth": _node_bandwidth,
}
"""Keys that are more than a value of their kind."""


def _base(raw: RawJob) -> None:
    """The run that batch advice scales from: its batch and its learning rate, both or neither."""
    fields, keys = raw.fields, ("base_batch_size", "base_learning_rate")
    for key, other in (keys, keys[::-1]):
        if fields.given(key) and not fields.given(other):
            hint = f"give {other} too, as an option {table.find(other).option}"
            fields.refuse(other, f"is missing: {key} alone scales nothing", hint=hint)


def _case(fields: Fields) -> dict[str, Any]:
    """The keys of a validation case, checked as far as `validate` computes with them."""
    measured = fields.fields("measured")
    if measured is not None:
        measured.reject_unknown(words.MEASURED_KEYS)
        measured.integer("peak_bytes")
        measured.integer("sum_over_devices_bytes")
        measured.integer("stage", minimum=0)
        measured.word("metric", words.METRICS)
        measured.word("outcome", words.OUTCOMES)
        for key in words.MEASURED_RATES:
            measured.number(key, minimum=0)
    for use in (fields.texts("use") if fields.given("use") else None) or ():
        if use not in words.USES:
            fields.problem("use", f"{shown(use)} is not a known value", hint="known: " + ", ".join(words.USES))
    fields.word("confidence", words.CONFIDENCES)
    for key in ("inferred", "missing"):
        if fields.given(key):
            fields.texts(key)
    fields.text("ladder")
    fields.prose("notes")
    return {key: fields.value(key) for key in words.CASE_KEYS if fields.given(key)}
