"""One job as it stands in a file or came from options: types and words are checked, nothing is looked up or defaulted.

What is broken here is a problem of the whole file; what is known and not modelled is a refusal of this job.
"""

from __future__ import annotations

import re
from typing import Any

from vramplan.catalog import shapes
from vramplan.catalog.document import Mapping, Sequence
from vramplan.catalog.fields import Fields, nearest, shown
from vramplan.catalog.hf_config import read_value
from vramplan.job import vocabulary as words
from vramplan.values.parallel import ZERO_STAGES, Split

MAX_COUNT = 2**40  # of batches, steps, devices: beyond it something was pasted wrongly
MAX_RATE = 1e6  # of learning rates: the same guard


class RawJob:
    """The values of one job. None is absent or null."""

    name: str | None = None
    model: str | dict[str, Any] | None = None
    gpu: str | Fields | None = None
    sequence_length: int | None = None
    image_size: int | None = None
    target_length: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    optimizer_implementation: str | None = None
    optimizer_in_backward: bool | None = None
    max_gradient_norm: float | None = None
    grad_scaler: bool | None = None
    ema: bool | None = None
    activation_checkpointing: str | None = None
    every_second_matmul: bool | None = None
    expert_imbalance: float | None = None
    expert_capacity_factor: float | None = None
    expert_pad_to_capacity: bool | None = None
    checkpoint_reentrant: bool | None = None
    offload_activations: bool = False
    offload: tuple[str, ...] = ()
    attention: str | None = None
    loss: str | None = None
    label_smoothing: float | None = None
    dpo_reference: str | None = None
    padding: str | None = None
    packing: bool | None = None
    eval_batch_size: int | None = None
    generation_batch_size: int | None = None
    generation_length: int | None = None
    dropout: float | None = None
    compile: bool | None = None
    hold_outputs: bool | None = None
    data_parallel_size: int = 1
    sharding: str | None = None
    shards: int | None = None
    no_sync: bool | None = None
    gradient_as_bucket_view: bool | None = None
    fsdp_version: int | None = None
    reduce_dtype: str | None = None
    split: Split | None = None
    zero: dict[str, Any] | None = None  # the switches of DeepSpeed's ZeRO that are given
    # textbook only, as are the three below
    activation_model: str | None = None
    activation_bytes: int | None = None
    checkpoint_factor: float | None = None
    trainable_parameters: int | None = None
    base_batch_size: int | None = None
    base_learning_rate: float | None = None
    runtime: str | None = None
    reserve_bytes: int = 0
    devices_per_node: int | None = None
    host_memory_bytes: int | None = None
    gpu_free_bytes: int | None = None
    gpu_free_now: bool = False
    pytorch_version: str | None = None
    cuda_module_loading: str | None = None
    allocator: str | None = None  # as written; PyTorch would take it
    expect: str | None = None
    max_utilization: float | None = None
    quantization: str | None = None
    bitsandbytes: str | None = None
    frozen: tuple[str, ...] = ()
    adapter: Fields | None = None
    adapter_dropout: float | None = None  # the runtime's, for an adapter that says nothing of it

    @property
    def shares_states(self) -> bool:
        """Whether a key says how devices share the states."""
        given = (self.no_sync, self.gradient_as_bucket_view, self.fsdp_version, self.reduce_dtype, self.zero)
        return self.sharding not in {None, "none"} or any(given)

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.cells: dict[str, str] = {}
        self.case: dict[str, Any] = {}


def read_job(fields: Fields, *, in_file: bool) -> RawJob:
    """Read every key of a job. Problems and refusals go to the sink of `fields`.

    `in_file`: the job has a name and may be a validation case.
    """
    fields.reject_unknown((*words.JOB_KEYS, *words.CASE_KEYS) if in_file else words.JOB_KEYS)
    raw = RawJob(fields)
    raw.name = _name(fields, required=in_file)
    raw.model = _model(fields)
    gpu = fields.node_of("gpu")
    raw.gpu = fields.fields("gpu") if isinstance(gpu, Mapping) else fields.text("gpu")
    raw.sequence_length = fields.integer("sequence_length", maximum=MAX_COUNT)
    raw.image_size = fields.integer("image_size", maximum=shapes.MAX_PIXELS)
    raw.target_length = fields.integer("target_length", maximum=MAX_COUNT)
    raw.micro_batch_size = fields.integer("micro_batch_size", maximum=MAX_COUNT)
    raw.global_batch_size = fields.integer("global_batch_size", maximum=MAX_COUNT)
    raw.gradient_accumulation_steps = fields.integer("gradient_accumulation_steps", maximum=MAX_COUNT)
    raw.precision = fields.word("precision", words.KNOWN_PRECISIONS)
    raw.optimizer = _pattern(fields, "optimizer", words.KNOWN_OPTIMIZERS)
    raw.optimizer_implementation = fields.word("optimizer_implementation", words.IMPLEMENTATIONS)
    raw.optimizer_in_backward = fields.boolean("optimizer_in_backward")
    norm = fields.number("max_gradient_norm", minimum=0, maximum=MAX_RATE)
    if norm == 0:
        fields.problem("max_gradient_norm", "0 leaves no gradients; leave it out for no clipping")
    raw.max_gradient_norm = None if norm is None else float(norm)
    raw.grad_scaler = fields.boolean("grad_scaler")
    raw.ema = fields.boolean("ema")
    raw.activation_checkpointing = _checkpointing(fields)
    raw.every_second_matmul = fields.boolean("every_second_matmul")
    imbalance = fields.number("expert_imbalance", minimum=1, maximum=MAX_COUNT)
    raw.expert_imbalance = None if imbalance is None else float(imbalance)
    capacity = fields.number("expert_capacity_factor", minimum=0, maximum=MAX_COUNT)
    if capacity == 0:
        fields.problem("expert_capacity_factor", "0 leaves no tokens; leave it out and none is dropped")
    raw.expert_capacity_factor = None if capacity is None else float(capacity)
    raw.expert_pad_to_capacity = fields.boolean("expert_pad_to_capacity")
    raw.checkpoint_reentrant = fields.boolean("checkpoint_reentrant")
    raw.attention = fields.word("attention", words.ATTENTIONS)
    raw.loss = _pattern(fields, "loss", words.LOSSES)
    smoothing = fields.number("label_smoothing", minimum=0, below=1)
    for key in ("eval_batch_size", "generation_batch_size", "generation_length"):
        setattr(raw, key, fields.integer(key, maximum=MAX_COUNT))
    raw.padding = fields.word("padding", words.PADDINGS)
    raw.packing = fields.boolean("packing")
    raw.dpo_reference = fields.word("dpo_reference", words.DPO_REFERENCES)
    raw.label_smoothing = None if smoothing is None else float(smoothing)
    dropout = fields.number("dropout", minimum=0, below=1)
    raw.compile = fields.boolean("compile")
    raw.dropout = None if dropout is None else float(dropout)
    raw.hold_outputs = fields.boolean("hold_outputs")
    raw.runtime = fields.text("runtime")
    raw.host_memory_bytes = fields.size_bytes("host_memory", rounding="down")
    raw.gpu_free_now = fields.scalar_text("gpu_free") == words.FREE_NOW
    if not raw.gpu_free_now:
        raw.gpu_free_bytes = fields.size_bytes("gpu_free", rounding="down")
    raw.pytorch_version = fields.text("pytorch_version")
    raw.cuda_module_loading = fields.word("cuda_module_loading", words.MODULE_LOADINGS, any_case=True)
    if fields.given("allocator"):
        from vramplan.job.allocator import read_allocator  # only jobs that name it pay for it

        raw.allocator = read_allocator(fields)
    raw.reserve_bytes = fields.size_bytes("reserve", rounding="up", allow_zero=True) or 0
    raw.expect = fields.word("expect", words.EXPECTATIONS)
    utilization = fields.number("max_utilization", minimum=0, maximum=1)
    if utilization == 0:
        fields.problem("max_utilization", "0 lets nothing pass; give a share of the usable memory, 0.95 for example")
    raw.max_utilization = None if utilization is None else float(utilization)
    for cell in words.CELLS:
        word = fields.word(cell, words.CELL_WORDS)
        if word is not None:
            raw.cells[cell] = word
    textbook = raw.runtime == words.TEXTBOOK
    _parallel(raw, textbook)
    raw.offload = tuple(_offload(fields))
    raw.offload_activations = "activations" in raw.offload
    raw.quantization = fields.word("quantization", words.QUANTIZATIONS)
    raw.bitsandbytes = fields.text("bitsandbytes")
    raw.frozen = tuple(fields.texts("frozen") or ()) if fields.given("frozen") else ()
    raw.adapter = fields.fields("adapter")
    if raw.adapter is not None:
        _adapter(raw.adapter)
    if textbook:
        raw.activation_model = fields.word("activation_model", words.ACTIVATION_MODELS)
        raw.activation_bytes = fields.size_bytes("activation_bytes", rounding="up")
        raw.checkpoint_factor = fields.number("checkpoint_factor", minimum=1, maximum=MAX_COUNT)
        raw.trainable_parameters = _count_of_parameters(fields, "trainable_parameters")
    else:
        for key in words.TEXTBOOK_KEYS:
            if fields.given(key):
                fields.refuse(key, "belongs to the runtime textbook", hint="runtime: textbook")
    _base(raw)
    if in_file:
        raw.case = _case(fields)
    return raw


def _count_of_parameters(fields: Fields, key: str) -> int | None:
    """A count as texts write it, `2.8B`, or as a number."""
    from vramplan.job.textbook import parameter_count  # only textbook jobs pay for it

    text = fields.text(key)
    count = None if text is None else parameter_count(text)
    if text is not None and count is None:
        fields.problem(key, f"{shown(text)} is no count of parameters", hint="2.8B, 2.8e9 or 2800000000")
    return count


def read_model_mapping(fields: Fields) -> dict[str, Any]:
    """The typed values of an inline model. Explicit nulls stay as None."""
    plain = [key for key in shapes.FIELDS if "." not in key]
    nested = {key.partition(".")[0]: None for key in shapes.FIELDS if "." in key}
    fields.reject_unknown(("name", *plain, *nested, *shapes.UNMODELLED_FIELDS))
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
        elif key in shapes.UNMODELLED_FIELDS:
            values[key] = fields.value(key)
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


def _name(fields: Fields, *, required: bool) -> str | None:
    name = fields.text("name")
    if name is None and required and not fields.given("name"):
        fields.problem("name", "required key is missing: it names the job in reports")
    return name


def _model(fields: Fields) -> str | dict[str, Any] | None:
    if not isinstance(fields.node_of("model"), Mapping):
        return fields.text("model")
    inline = fields.fields("model")
    assert inline is not None
    return read_model_mapping(inline)


def _pattern(fields: Fields, name: str, known: tuple[str, ...]) -> str | None:
    """A word, or a parametrised word such as `chunked:8`."""
    text = fields.text(name)
    if text is None or text in known:
        return text
    word = words.pattern_word(text)
    if word in known and re.fullmatch(r"[a-z0-9-]+:[1-9]\d{0,8}", text, re.ASCII):
        return text
    if word in known and word != text:
        example = f"for example {_example(word)}"
        fields.problem(name, f"{shown(text)} is not of the form {word}, with a number from 1", hint=example)
        return None
    bare = [one for one in known if one.partition(":")[0] == text and "[" not in one]
    if bare:
        hint: str | None = f"{bare[0]}, for example {_example(bare[0])}"
    else:
        hint = nearest(text, known) or "known: " + ", ".join(known)
    fields.problem(name, f"{shown(text)} is not a known value", hint=hint)
    return None


EXAMPLES = {"galore-adamw": 128}  # numbers that people use, where 4 is none


def _example(word: str) -> str:
    """`galore-adamw:RANK` -> `galore-adamw:128`."""
    head = word.partition(":")[0]
    return f"{head}:{EXAMPLES.get(head, 4)}"


def _checkpointing(fields: Fields) -> str | None:
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
        given = fields.text(key)
        if given is None:
            return None
        text = given
    if text.startswith("layers:"):
        text = re.sub(r"\s+", "", text)
        if re.fullmatch(r"layers:\[\[\d{1,6},\d{1,6}\](?:,\[\d{1,6},\d{1,6}\])*\]", text, re.ASCII):
            pairs = re.findall(r"(\d+),(\d+)", text)
            return "layers:[" + ",".join(f"[{int(first)},{int(last)}]" for first, last in pairs) + "]"
        fields.problem(
            key, f"{shown(text)} is not a list of segments", hint="layers:[[0,6],[7,13]]: first and last block"
        )
        return None
    return _pattern(fields, key, words.CHECKPOINTINGS)


def _parallel(raw: RawJob, textbook: bool) -> None:
    """Data-parallel devices, how their states are sharded, and over how many of them."""
    parallel = raw.fields.fields("parallel")
    if parallel is None:
        return
    parallel.reject_unknown(words.PARALLEL_KEYS)
    raw.data_parallel_size = data = parallel.integer("data", maximum=2**20) or 1
    raw.split = _split(parallel)
    raw.sharding = sharding = _pattern(parallel, "sharding", words.SHARDINGS)
    raw.shards = shards = parallel.integer("shards", maximum=2**20)
    raw.devices_per_node = parallel.integer("devices_per_node", maximum=2**20)
    raw.no_sync = parallel.boolean("no_sync")
    raw.gradient_as_bucket_view = parallel.boolean("gradient_as_bucket_view")
    if parallel.given("fsdp_version") or parallel.given("reduce_dtype"):
        from vramplan.job.fsdp import read_fsdp  # only jobs with FSDP pay for it

        read_fsdp(raw, parallel)
    if any(parallel.given(key) for key in words.ZERO_KEYS):
        from vramplan.engines import OF_SHARDINGS, behaviour_of  # only these jobs pay for it

        ways: Any = behaviour_of(OF_SHARDINGS[ZERO_STAGES[0]], "sharing", None)
        raw.zero = ways.read(parallel)
    known = words.TEXTBOOK_SHARDINGS if textbook else words.MODELLED_SHARDINGS
    if sharding is not None and words.pattern_word(sharding) not in known:
        whose = "among the textbook's" if textbook else "modelled"
        parallel.refuse("sharding", f"{sharding} is not {whose} (modelled: {', '.join(known)})")
    sharing = data if raw.split is None else data * raw.split.context
    if shards is not None and (shards > sharing or sharing % shards):
        message = f"{shards} do not divide the {sharing} data-parallel devices"
        parallel.refuse("shards", message, hint="leave it out for all of them")
    if textbook:
        keys = ("no_sync", "gradient_as_bucket_view", "fsdp_version", "reduce_dtype", "devices_per_node")
        for key in (*keys, *words.ZERO_KEYS):
            if parallel.given(key):
                parallel.refuse(key, "no equation of the textbook looks at it", hint="leave it out")


def _split(parallel: Fields) -> Split | None:
    """How a replica is split over devices; None where each has a whole one."""
    sizes = {key: parallel.integer(key, maximum=2**20) or 1 for key in ("tensor", "pipeline", "context", "expert")}
    along = bool(parallel.boolean("sequence_parallel"))
    schedule = _pattern(parallel, "schedule", words.SCHEDULES)
    by = parallel.word("pipeline_split", words.PIPELINE_SPLITS)
    if by is not None and sizes["pipeline"] == 1:
        parallel.refuse("pipeline_split", f"{by} belongs to a pipeline", hint="leave it out, or --pipeline 4")
    around = parallel.word("context_communication", words.CONTEXT_COMMUNICATIONS)
    if around is not None and sizes["context"] == 1:
        message = f"{around} belongs to devices that share a sequence"
        parallel.refuse("context_communication", message, hint="leave it out, or --context 2")
    if sizes["pipeline"] == 1 and schedule not in {None, "1f1b"}:
        parallel.refuse("schedule", f"{schedule} belongs to a pipeline", hint="leave it out, or --pipeline 4")
    if max(sizes.values()) == 1 and not along:
        return None
    word, _, virtual = (schedule or "1f1b").partition(":")
    tensor, pipeline, context, expert = sizes.values()
    return Split(tensor, pipeline, context, expert, along, word, int(virtual or 1), by, around)


def _base(raw: RawJob) -> None:
    """The run that batch advice scales from: its batch and its learning rate, both or neither."""
    fields, keys = raw.fields, ("base_batch_size", "base_learning_rate")
    raw.base_batch_size = fields.integer(keys[0], maximum=MAX_COUNT)
    rate = fields.number(keys[1], minimum=0, maximum=MAX_RATE)
    if rate == 0:
        fields.problem(keys[1], "0 trains nothing; a learning rate is more than zero")
    raw.base_learning_rate = None if rate is None else float(rate)
    options = dict(zip(keys, ("--base-batch-size", "--base-lr"), strict=True))
    for key, other in (keys, keys[::-1]):
        if fields.given(key) and not fields.given(other):
            hint = f"give {other} too, as an option {options[other]}"
            fields.refuse(other, f"is missing: {key} alone scales nothing", hint=hint)


def _offload(fields: Fields) -> list[str]:
    """What is offloaded to the host; the words that are not modelled are refused."""
    offload = fields.texts("offload") if fields.given("offload") else None
    for word in offload or ():
        if word not in words.OFFLOADS:
            hint = nearest(word, words.OFFLOADS) or "known: " + ", ".join(words.OFFLOADS)
            fields.problem("offload", f"{shown(word)} is not a known value", hint=hint)
    return [word for word in dict.fromkeys(offload or ()) if word in words.OFFLOADS]


def _adapter(adapter: Fields) -> None:
    """Types and words of an adapter; what they mean together is for `job/trained.py`."""
    adapter.reject_unknown(words.ADAPTER_KEYS)
    kind = adapter.word("kind", words.ADAPTERS)
    if kind is None and not adapter.given("kind"):
        adapter.problem("kind", "required key is missing", hint="known: " + ", ".join(words.ADAPTERS))


def _case(fields: Fields) -> dict[str, Any]:
    """The keys of a validation case, checked as far as `validate` computes with them."""
    measured = fields.fields("measured")
    if measured is not None:
        measured.reject_unknown(words.MEASURED_KEYS)
        measured.integer("peak_bytes")
        measured.integer("sum_over_devices_bytes")
        measured.word("metric", words.METRICS)
        measured.word("outcome", words.OUTCOMES)
        measured.number("mfu", minimum=0)
        measured.number("tokens_per_second", minimum=0)
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
