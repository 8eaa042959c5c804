"""From the values of one job with `runtime: textbook` to a `spec.TextbookJob`: equations need other keys than a replay.

What an equation needs and the job does not say is named key by key. What no equation looks at (attention, dropout, ...)
is refused, so that nothing that was asked for is ignored.
"""

from __future__ import annotations

from typing import Any

from vramplan.catalog import document, gpus
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.counting import parameters_of
from vramplan.catalog.document import Mapping
from vramplan.catalog.fields import Fields, Sink
from vramplan.job.counts import parameter_count
from vramplan.job.evidence.cells import own_cells
from vramplan.job.given.read import RawJob, read_job
from vramplan.job.inputs.sizes import DEFAULT_MAX_SEQUENCE
from vramplan.job.lookup import Catalog
from vramplan.job.precision import precision_of
from vramplan.job.resolve import resolve
from vramplan.job.resolver import Resolver
from vramplan.options import table, words
from vramplan.units import format_gib
from vramplan.values.job import MAX_UTILIZATION, ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.textbook import (
    ACTIVATION_MODEL_NEEDS,
    TEXTS_GLOBAL_BATCH_SIZE,
    TextbookCells,
    TextbookJob,
    TextbookModel,
)

# Sizes that the equations of a plain stack of blocks have no place for.
_OTHER_SHAPES = ("decoder_layers", "experts", "depths", "widths", "image_size", "patch_size")


def resolve_textbook(raw: RawJob, catalog: Catalog) -> TextbookJob | None:
    """The job with every default explicit; None when the sink of `raw.fields` holds problems or refusals."""
    return _TextbookResolver(raw, catalog).textbook_job()


class _TextbookResolver(Resolver):
    def textbook_job(self) -> TextbookJob | None:
        raw, fields = self.raw, self.fields
        model, gpu = self._partly_trained(self._textbook_model()), self._nominal_gpu()
        precision = self._textbook_precision(gpu)
        optimizer = self._textbook_optimizer()
        self._meaningless()
        cells = {**own_cells(precision), **raw.cells}
        strategy = self._strategy(model)
        length = self._equation_needs(model)
        global_batch, given = self.batch(TEXTS_GLOBAL_BATCH_SIZE, "the default")
        if fields.sink.problems or fields.sink.refusals or model is None or gpu is None:
            return None
        if raw.activation_model is None and raw.activation_bytes is None:
            self.assume("activation_model", None, "no activation key is given: activations are left out")
        job = TextbookJob(
            name=raw.name or f"{model.name} on {gpu.name}",
            model=model,
            gpu=gpu,
            precision=precision,
            cells=TextbookCells(
                weights=cells["weight_dtype"],
                gradients=cells["gradient_dtype"],
                master=cells["master_dtype"],
                optimizer=cells["optimizer_state_dtype"],
                compute=cells["compute_dtype"],
            ),
            optimizer=optimizer,
            sequence_length=length,
            micro_batch_size=raw.micro_batch_size,
            global_batch_size=global_batch,
            global_batch_given=given,
            gradient_accumulation_steps=raw.gradient_accumulation_steps,
            activation_checkpointing=strategy,
            activation_model=raw.activation_model,
            activation_bytes=raw.activation_bytes,
            checkpoint_factor=raw.checkpoint_factor,
            data_parallel_size=raw.data_parallel_size,
            sharding=raw.sharding or "none",
            shards=raw.shards,
            assumptions=tuple(self.assumptions),
            warnings=tuple(self.warnings),
            expect=raw.expect or "fits",
            max_utilization=MAX_UTILIZATION if raw.max_utilization is None else raw.max_utilization,
            case=raw.case,
            base_batch_size=raw.base_batch_size,
            base_learning_rate=raw.base_learning_rate,
        )
        return job._replace(replay=self._replayable(job))

    def _textbook_model(self) -> TextbookModel | None:
        """A count of parameters is enough; a modelled family is counted from its architecture."""
        given = self.raw.model
        if isinstance(given, str):
            count = parameter_count(given)
            if count is not None:
                return TextbookModel(f"{given.strip()} parameters", count)
        if isinstance(given, dict):
            family = given.get("transformers_model_type") or given.get("family")
            if family not in MODEL_TYPES:
                return self._bare(given)
        shape = self.find_model()
        if shape is None or self.fields.sink.problems:
            return None
        if shape.experts is not None and self.raw.activation_model is not None:
            message = f"{self.raw.activation_model} has no place for the experts of {shape.name}"
            self.fields.refuse("activation_model", message, hint="activation_bytes takes a quoted figure")
        counted = parameters_of(shape)
        declared, inline = shape.declared_parameters, isinstance(given, dict)
        if declared is not None and declared != counted:
            what = "the text's count is used" if inline else "the answer is for the architecture"
            self.warnings.append(
                f"{shape.name} declares {declared:,} parameters, but its architecture has {counted:,}: {what}"
            )
        return TextbookModel(
            name=shape.name,
            parameters=declared if inline and declared is not None else counted,
            family=shape.family,
            layers=shape.blocks,
            hidden_size=shape.hidden_size,
            attention_heads=shape.attention_heads,
            shape=shape,
        )

    def _partly_trained(self, model: TextbookModel | None) -> TextbookModel | None:
        """The model with what the job says is trained of it."""
        count = self.raw.trainable_parameters
        if model is None or count is None:
            return model
        if count > model.parameters:
            message = f"{count:,} is more than all {model.parameters:,} parameters"
            self.fields.refuse("trainable_parameters", message)
        return model._replace(trainable_parameters=count)

    def _bare(self, values: dict[str, Any]) -> TextbookModel | None:
        """A model of a family that is unknown or not modelled: what the mapping says, and nothing by default."""
        inside, family = self.fields.fields("model"), values.get("family")
        assert inside is not None
        if values.get("parameters") is None:
            if not inside.given("parameters"):
                why = "without a family" if family is None else f"because the family {family} is not modelled"
                inside.refuse("parameters", f"required key is missing {why}", hint="parameters: 1500000000")
            return None
        if self.raw.activation_model is not None:
            for key in _OTHER_SHAPES:
                if any(values[name] is not None for name in values if name.partition(".")[0] == key):
                    message = f"has no place in activation_model {self.raw.activation_model}, a plain stack of blocks"
                    inside.refuse(key, message, hint="activation_bytes takes a quoted figure")
        return TextbookModel(
            name=values.get("name") or f"{values['parameters']:,} parameters",
            parameters=values["parameters"],
            family=family,
            layers=values.get("layers"),
            hidden_size=values.get("hidden_size"),
            attention_heads=values.get("attention_heads"),
        )

    def _nominal_gpu(self) -> Gpu | None:
        """The GPU with the capacity that its name promises, as texts count; no reserve is held back from it."""
        gpu = self.find_gpu()
        if gpu is None:
            return None
        self.assumptions = [one for one in self.assumptions if one.key != "gpu.memory"]
        if gpu.capacity_basis != "visible":
            return gpu
        given = self.raw.gpu
        name = given if isinstance(given, str) else gpu.name
        nominal = None
        if isinstance(given, str):
            nominal = gpus.find_gpu(name, self.catalog.dirs, base_dir=self.catalog.base_dir).value("memory")
        elif given is not None and not given.given("memory"):
            profile = gpus.match_gpu(name, self.catalog.dirs)
            nominal = None if profile is None else profile.value("memory")
        if nominal is None:
            return gpu
        self.assume("gpu.memory", format_gib(nominal), "nominal, as texts count; the framework sees a little less")
        return gpu._replace(capacity_bytes=nominal, capacity_basis="nominal")

    def _textbook_precision(self, gpu: Gpu | None) -> str:
        """What texts call mixed precision has a half model and a master copy, so that is the default here."""
        if self.raw.precision == "fp8":
            message = "the equations have no place for copies in fp8"
            self.fields.refuse("precision", message, hint="use mixed-bf16, which has the same states")
        if self.raw.precision not in {None, "auto"}:
            return precision_of(self, gpu)
        bf16 = True if gpu is None else gpu.bf16
        precision = "mixed-fp16" if bf16 is False else "mixed-bf16"
        which = {True: "the GPU has bf16", False: "the GPU has no bf16", None: "unknown bf16 counts as able"}[bf16]
        self.assume("precision", precision, f"what texts call mixed precision; {which}")
        return precision

    def _textbook_optimizer(self) -> str:
        optimizer = self.raw.optimizer
        if optimizer is None:
            self.assume("optimizer", "adamw", "the default")
            return "adamw"
        if optimizer not in words.TEXTBOOK_OPTIMIZERS:
            known = ", ".join(words.TEXTBOOK_OPTIMIZERS)
            hint = "adamw with optimizer_state_dtype int8" if optimizer.startswith("adamw-8bit") else None
            message = f"the states of {optimizer} are no multiple of the weights (in the textbook: {known})"
            self.fields.refuse("optimizer", message, hint=hint)
        return optimizer

    def _meaningless(self) -> None:
        """Refuse what no equation looks at, unless it says what is so anyway."""
        parallel = self.fields.fields("parallel") or self.fields
        for option in table.TABLE:
            at = {"": self.fields, "parallel": parallel}.get(option.group)
            if option.textbook or at is None or not at.given(option.name):
                continue
            if option.default is None or self.raw.given[option.key] != option.default:
                at.refuse(option.name, "no equation of the textbook looks at it", hint="leave it out")
        sharding = self.raw.sharding
        if sharding is not None and sharding not in words.TEXTBOOK_SHARDINGS:
            known = ", ".join(words.TEXTBOOK_SHARDINGS)
            parallel.refuse("sharding", f"{sharding} is not among the textbook's (modelled: {known})")

    def _strategy(self, model: TextbookModel | None) -> str | None:
        """The checkpointing that is pinned; a factor of the text's own stands for "every so many layers"."""
        raw, key = self.raw, "activation_checkpointing"
        given, factor = raw.activation_checkpointing, raw.checkpoint_factor
        if given is not None and words.pattern_word(given) not in words.TEXTBOOK_CHECKPOINTINGS:
            known = ", ".join(words.TEXTBOOK_CHECKPOINTINGS)
            self.fields.refuse(key, f"{given} is no row of the textbook's table (its rows: {known})")
            return given
        quoted = raw.activation_model is not None or raw.activation_bytes is not None
        if factor is not None and not quoted:
            message = "divides activations, and there are none"
            self.fields.refuse("checkpoint_factor", message, hint="give activation_model or activation_bytes")
        if factor is not None and given == "none":
            message = "contradicts activation_checkpointing none: it is what checkpointing divides by"
            self.fields.refuse("checkpoint_factor", message, hint="leave one of them out")
        if factor is not None and given is None:
            strategy = f"every:{max(1, round(factor))}"
            self.assume(key, strategy, "what texts mean by dividing activations by the factor")
            return strategy
        if given not in {None, "none"} and factor is None and quoted and model is not None and model.layers is None:
            self._missing("layers", f"activation_checkpointing {given}")
        return given

    def _equation_needs(self, model: TextbookModel | None) -> int | None:
        """Check that the activation model has what it needs; the sequence length."""
        raw = self.raw
        name, length = raw.activation_model, raw.sequence_length
        if name is None:
            return length
        if raw.activation_bytes is not None:
            message = "is an equation and activation_bytes a quoted figure: a job has one of them"
            self.fields.refuse("activation_model", message, hint="leave one of them out")
            return length
        if model is None:
            return length
        for key in ACTIVATION_MODEL_NEEDS[name]:
            if getattr(model, key) is None:
                self._missing(key, f"activation_model {name}")
        if length is None and not self.fields.given("sequence_length"):
            if model.shape is None:
                self.fields.refuse(
                    "sequence_length", f"required key is missing: activation_model {name} needs sequence_length"
                )
            else:
                length = min(model.shape.max_positions, DEFAULT_MAX_SEQUENCE)
                self.assume("sequence_length", length, f"min(max_positions, {DEFAULT_MAX_SEQUENCE})")
        return length

    def _missing(self, key: str, what: str) -> None:
        """Refuse a model that lacks a size, once, unless what stands there was wrong anyway."""
        inside = self.fields.fields("model") if isinstance(self.raw.model, dict) else None
        if inside is None:
            self.fields.refuse(f"model.{key}", f"required key is missing: {what} needs {key}")
        elif not inside.given(key) and all(one.key != f"{inside.path}{key}" for one in self.fields.sink.refusals):
            inside.refuse(key, f"required key is missing: {what} needs {key}")

    def _replayable(self, job: TextbookJob) -> ResolvedJob | None:
        """The same run for the replay; None where it has none: other states, sharding, a family or word it lacks."""
        cells = job.cells
        own = own_cells(job.precision)
        plain = (cells.weights, cells.gradients, cells.master, cells.optimizer, cells.compute) == tuple(own.values())
        if job.model.shape is None or not plain or job.sharding not in ("none", "ddp"):
            return None
        if job.model.trained != job.model.parameters:  # which ones, no text says
            return None
        kept = {
            key: self.fields.value(key)
            for key in self.fields.names
            if key in table.inside()
            and table.find(key).only is None
            and key not in (*words.CELLS, "runtime", "parallel")
            and self.fields.given(key)
        }
        shape = job.model.shape
        if not shape.takes_text and job.sequence_length == shape.max_positions:
            kept.pop("sequence_length", None)  # the tokens that its images make
        kept |= {"precision": job.precision, "parallel": {"data": job.data_parallel_size, "sharding": "none"}}
        node = document.from_value(kept)
        assert isinstance(node, Mapping)
        twin = read_job(Fields(node, Sink(None)), in_file=False)
        found = resolve(twin, self.catalog)
        return None if twin.fields.sink.problems or twin.fields.sink.refusals else found
