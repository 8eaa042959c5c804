"""From the values of one job to a `spec.Job`: defaults are taken and told, contradictions refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vramplan.catalog import models, shapes
from vramplan.catalog.fields import Fields, nearest, shown
from vramplan.errors import InputError
from vramplan.job import vocabulary as words
from vramplan.job.attention import attention_of, within_window
from vramplan.job.cells import FSDP_FP8, FSDP_HALVES, FSDP_PRECISION, Cells, check_scaler, compose
from vramplan.job.lookup import Catalog, gpu_from_mapping
from vramplan.job.read import RawJob
from vramplan.job.stepping import check_clipping, optimizer_of, steps_in_backward
from vramplan.models import no_checkpointing, splits_of
from vramplan.spec import (
    DEFAULT_GLOBAL_BATCH_SIZE,
    ZERO_STAGES,
    Adapter,
    AnyJob,
    Assumption,
    Gpu,
    Job,
    ModelShape,
    Runtime,
)
from vramplan.units import format_gib

if TYPE_CHECKING:
    from vramplan.allocator_settings import Settings

DEFAULT_MAX_SEQUENCE = 2048
DEFAULT_MAX_UTILIZATION = 0.95
FP8_OF_SHARDS = ("torchtitan", "llm-foundry")  # runtimes whose fp8 means FSDP
SPLITTING_RUNTIME = "megatron"  # where a job splits its model over devices and names no runtime
BOUNDED_FAMILIES = ("mpt", "chatglm")  # their positions are no weights, but a tensor of max_positions all the same


def resolve(raw: RawJob, catalog: Catalog) -> AnyJob | None:
    """The job with every default explicit; None when the sink of `raw.fields` holds problems or refusals."""
    if raw.runtime == words.TEXTBOOK:
        from vramplan.job.textbook import resolve_textbook  # only these jobs pay for it

        return resolve_textbook(raw, catalog)
    return Resolver(raw, catalog).job()


class Resolver:
    """Resolves one job: each method one key, with what is assumed and what is refused."""

    def __init__(self, raw: RawJob, catalog: Catalog) -> None:
        self.raw, self.fields, self.catalog = raw, raw.fields, catalog
        self.assumptions: list[Assumption] = []
        self.warnings: list[str] = []
        self.model_shape: ModelShape | None = None  # these once they are known
        self.runtime: Runtime | None = None
        self.precision = ""

    def job(self) -> Job | None:
        """The job; None when something is wrong, which is noted."""
        raw = self.raw
        runtime = self._runtime()
        model, gpu = self._model(), self._gpu()
        if model is not None and runtime is not None and runtime.model_code != "transformers":
            from vramplan.job.codes import in_its_own_code  # only runtimes with code of their own pay for it

            model = in_its_own_code(self, model, runtime)
        if model is not None and model.family == "mpt" and model.positions == "learned":
            hint = "runtime: llm-foundry, as an option --runtime llm-foundry"
            self.fields.refuse("model.positions", "learned is not modelled as Transformers computes it", hint=hint)
        if raw.case.get("measured") and runtime is not None and runtime.caches:
            from vramplan.job.releases import take_releases  # only measured cases pay for it

            take_releases(self, gpu)
        several = raw.data_parallel_size > 1 or raw.shares_states or raw.split is not None
        if runtime is not None and (runtime.defaults if several else runtime.defaults.keys() - words.OF_SEVERAL):
            from vramplan.job.runtime import take_defaults  # only runtimes that say more than the first two pay for it

            take_defaults(self, runtime, model, gpu)
        cells = self._cells(self._precision(gpu), gpu)
        precision = cells.precision
        optimizer, implementation = optimizer_of(self, runtime, cells)
        in_backward = steps_in_backward(self, runtime, optimizer, precision)
        if raw.max_gradient_norm is not None:
            check_clipping(self, in_backward)
        if words.pattern_word(optimizer) == words.GALORE:
            from vramplan.job.galore import check_galore  # only these jobs pay for it

            self.assumptions += check_galore(self.fields, optimizer, model, runtime)
        if raw.grad_scaler:
            check_scaler(self.fields, cells, optimizer, in_backward=in_backward)
        attention = attention_of(self, model, gpu, precision)
        sequence_length, image_size = self._sequence_length(model), None
        if raw.image_size is not None or (model is not None and model.takes_images):
            from vramplan.job.images import image_size_of  # only these jobs pay for it

            image_size = image_size_of(self, model)
        attention = within_window(self, model, sequence_length, attention)
        target = raw.target_length
        if target is not None:
            from vramplan.job.targets import target_length  # only these jobs pay for it

            target = target_length(target, model, self.fields)
        self._checkpointing(model, attention)
        if raw.checkpoint_reentrant and model is not None:
            from vramplan.job.checkpoints import check_reentrant  # only these jobs pay for it

            check_reentrant(self.fields, model, raw.activation_checkpointing)
        if raw.offload_activations and model is not None:
            from vramplan.job.checkpoints import check_offload  # only these jobs pay for it

            check_offload(self.fields, model)
        loss = self._loss(model, gpu, runtime, precision)
        if raw.label_smoothing and model is not None:
            from vramplan.job.losses import check_smoothing  # only these jobs pay for it

            check_smoothing(self, loss, model)
        reference = None
        if loss == "dpo" or raw.dpo_reference is not None:
            from vramplan.job.losses import reference_of  # only these jobs pay for it

            reference = reference_of(self, loss)
        if raw.eval_batch_size or raw.generation_batch_size or raw.generation_length:
            from vramplan.job.losses import check_beside  # only these jobs pay for it

            check_beside(self, loss, model)
        if raw.padding == "right" and model is not None:
            from vramplan.job.losses import check_padding  # only these jobs pay for it

            check_padding(self, loss, model, sequence_length)
        if raw.packing and model is not None:
            from vramplan.job.packing import check_packing  # only these jobs pay for it

            check_packing(self, model, sequence_length)
        frozen, adapter = self._trained(model, precision, loss)
        if raw.bitsandbytes is not None:
            from vramplan.job.bitsandbytes import check_bitsandbytes  # only these jobs pay for it

            check_bitsandbytes(raw, model)
        if model is not None and model.task == "cls":
            from vramplan.job.classifiers import check_classifier  # only these jobs pay for it

            check_classifier(self, model)
        imbalance = None
        dropping = raw.expert_capacity_factor is not None or raw.expert_pad_to_capacity
        if raw.expert_imbalance is not None or dropping or (model is not None and model.experts is not None):
            from vramplan.job.experts import check_capacity, expert_imbalance  # only these jobs pay for it

            check_capacity(raw, model, runtime)
            imbalance = expert_imbalance(raw, model, self.assumptions, self.warnings)
        if raw.compile:
            from vramplan.job.compiling import check_compile  # only these jobs pay for it

            self.assumptions += check_compile(self.fields, raw, model, attention, loss, in_backward, adapter)
        if precision == "fp8":
            from vramplan.job.float8 import check_float8  # only these jobs pay for it

            self.assumptions += check_float8(self.fields, raw, model, gpu, sequence_length, loss)
        if precision == FSDP_FP8 and model is not None and model.family != "titan":
            from vramplan.job.foundry import check_te  # only these jobs pay for it

            check_te(self, model, gpu, sequence_length)
        sharding = None
        along = raw.split is not None and raw.split.context > 1  # these sum their gradients too
        if raw.data_parallel_size > 1 or along or raw.shares_states or precision in {*FSDP_HALVES, FSDP_FP8}:
            from vramplan.job.sharding import sharding_of  # only jobs with several devices pay for it

            self.model_shape, self.runtime, self.precision = model, runtime, precision
            sharding = sharding_of(self)
        if runtime is not None and runtime.name == "deepspeed" and (sharding is None or sharding.zero is None):
            from vramplan.job.zero import needs_a_stage  # only a mistake pays for it

            needs_a_stage(self)
        split = raw.split
        if split is not None and model is not None and runtime is not None:
            from vramplan.job.split import check_split  # only jobs that split a replica pay for it

            check_split(self, split, model, runtime, sequence_length)
        if model is not None and model.family == "titan":
            from vramplan.job.titan import titan_split  # only the jobs of torchtitan pay for it

            split, loss = titan_split(self, split, loss, sequence_length)
        host = tuple(word for word in raw.offload if word != "activations")
        if host:
            from vramplan.job.offload import check_offload_of_states  # only these jobs pay for it

            check_offload_of_states(self, host, sharding)
        global_batch, given = self._batch()
        if gpu is not None:
            gpu = self._usable(gpu)
        if runtime is not None and gpu is not None and (raw.pytorch_version or raw.cuda_module_loading):
            from vramplan.job.software import with_software  # only jobs that name their software pay for it

            runtime = with_software(self, runtime, gpu)
        if self.fields.sink.problems or self.fields.sink.refusals or model is None or gpu is None or runtime is None:
            return None
        if (
            not self.fields.present("dropout")
            and raw.dropout is None
            and max(model.embedding_dropout, model.attention_dropout, model.hidden_dropout) > 0
        ):
            shares = (model.embedding_dropout, model.attention_dropout, model.hidden_dropout)
            self._assume("dropout", shares[0] if len(set(shares)) == 1 else list(shares), "the model's own")
        if raw.packing is None and model.takes_text:
            self._assume("packing", False, "every sequence counts at its full sequence_length")
        self._warn(model, sequence_length, attention)
        job = Job(
            name=raw.name or f"{model.name} on {gpu.name}",
            model=model,
            gpu=gpu,
            sequence_length=sequence_length,
            micro_batch_size=raw.micro_batch_size,
            global_batch_size=global_batch,
            global_batch_given=given,
            gradient_accumulation_steps=raw.gradient_accumulation_steps,
            precision=precision,
            optimizer=optimizer,
            optimizer_implementation=implementation,
            activation_checkpointing=raw.activation_checkpointing,
            attention=attention,
            dropout=raw.dropout,
            hold_outputs=bool(raw.hold_outputs),
            data_parallel_size=raw.data_parallel_size,
            runtime=runtime,
            reserve_bytes=raw.reserve_bytes,
            assumptions=tuple(self.assumptions),
            warnings=tuple(self.warnings),
            expect=raw.expect or "fits",
            max_utilization=DEFAULT_MAX_UTILIZATION if raw.max_utilization is None else raw.max_utilization,
            case=raw.case,
            base_batch_size=raw.base_batch_size,
            base_learning_rate=raw.base_learning_rate,
            optimizer_in_backward=in_backward,
            max_gradient_norm=raw.max_gradient_norm,
            grad_scaler=bool(raw.grad_scaler),
            ema=bool(raw.ema),
            half_weights=cells.half_weights,
            fp32_gradients=cells.fp32_gradients,
            fp32_states=cells.fp32_states,
            every_second_matmul=bool(raw.every_second_matmul),
            expert_imbalance=imbalance,
            expert_capacity_factor=raw.expert_capacity_factor,
            expert_pad_to_capacity=bool(raw.expert_pad_to_capacity),
            offload_activations=raw.offload_activations,
            checkpoint_reentrant=bool(raw.checkpoint_reentrant),
            loss=loss,
            image_size=image_size,
            target_length=target,
            frozen=frozen,
            adapter=adapter,
            quantization=raw.quantization,
            bitsandbytes=raw.bitsandbytes,
            label_smoothing=raw.label_smoothing or 0.0,
            dpo_reference=reference,
            padding=raw.padding or "none",
            packing=bool(raw.packing),
            eval_batch_size=raw.eval_batch_size,
            generation_batch_size=raw.generation_batch_size,
            generation_length=raw.generation_length,
            compile=bool(raw.compile),
            sharding=sharding,
            split=split,
            offload=host,
            devices_per_node=self._devices_per_node(),
            host_memory_bytes=raw.host_memory_bytes,
            gpu_free_bytes=raw.gpu_free_bytes,
            pytorch_version=raw.pytorch_version,
            cuda_module_loading=raw.cuda_module_loading,
            allocator=self._allocator(runtime),
        )
        if runtime.only:
            from vramplan.job.runtime import check_only  # only runtimes that cannot do everything pay for it

            check_only(self, job)
            if self.fields.sink.refusals:
                return None
        if model.family == "megatron":
            from vramplan.job.megatron import check_megatron  # only its jobs pay for it

            job = check_megatron(self, job)
            if self.fields.sink.refusals:
                return None
        elif model.family == "llmc":
            from vramplan.job.llmc import check_llmc  # only its jobs pay for it

            job = check_llmc(self, job)
            if self.fields.sink.refusals:
                return None
        elif sharding is not None:
            from vramplan.job.sharding import check_sharding

            check_sharding(self, job)
            if self.fields.sink.refusals:
                return None
        if model.family == "titan":
            from vramplan.job.titan import check_titan  # only the jobs of torchtitan pay for it

            job = check_titan(self, job)
            if self.fields.sink.refusals:
                return None
        if _is_special(job):
            from vramplan.job.combinations import check_combinations  # only these jobs pay for it

            check_combinations(self.fields, job)
            if self.fields.sink.refusals:
                return None
        return job

    def _trained(self, model: ModelShape | None, precision: str, loss: str) -> tuple[tuple[str, ...], Adapter | None]:
        """What is trained, where that is not every weight."""
        if not (self.raw.frozen or self.raw.adapter or self.raw.quantization):
            return (), None
        if model is not None and model.family == "llmc":
            from vramplan.job.llmc import refuse_parts  # only a mistake pays for it

            refuse_parts(self)
            return (), None
        from vramplan.job.trained import resolve_trained  # only these jobs pay for it

        frozen, adapter, told = resolve_trained(self.raw, model, precision, loss)
        self.assumptions += told
        return frozen, adapter

    def _assume(self, key: str, value: Any, why: str) -> None:
        self.assumptions.append(Assumption(key, value, why))

    assume = _assume  # for the checks of a key that have a file of their own

    def _runtime(self) -> Runtime | None:
        runtime = self.raw.runtime
        if runtime is None:
            runtime = "transformers"
            why = "the default"
            if self.raw.split is not None and SPLITTING_RUNTIME in words.RUNTIMES:
                runtime, why = SPLITTING_RUNTIME, f"{runtime} keeps a replica on one device"
            self._assume("runtime", runtime, why)
        if runtime not in words.RUNTIMES:
            reason = words.UNMODELLED_RUNTIMES.get(runtime)
            hint = nearest(runtime, words.KNOWN_RUNTIMES) if reason is None else None
            because = "" if reason is None else f": {reason}"
            modelled = ", ".join(words.RUNTIMES)
            message = f"{_word(runtime)} is not modelled{because} (modelled: {modelled})"
            self.fields.refuse("runtime", message, hint=hint)
            return None
        try:
            found, told = self.catalog.runtime(runtime)
        except InputError as error:
            self._pass_on(error, "runtime", None)
            return None
        self.assumptions += told
        return found

    def _model(self) -> ModelShape | None:
        given = self.raw.model
        if given is None:
            if not self.fields.given("model"):
                self.fields.refuse("model", "required key is missing", hint="a profile name, a path or a mapping")
            return None
        try:
            if isinstance(given, str):
                shape, taken = self._for_classes(*self.catalog.model(given))
            else:
                shape, taken = self._inline(dict(given))
        except InputError as error:
            if isinstance(given, str) and self._is_count(given):
                return None
            self._pass_on(error, "model", self.fields.fields("model") if isinstance(given, dict) else None)
            return None
        self.assumptions += taken
        return shape

    def _is_count(self, model: str) -> bool:
        """Whether a model that no profile has is a bare number of parameters, which is refused for what it is."""
        from vramplan.job.textbook import parameter_count  # only a mistake pays for it

        if parameter_count(model) is None:
            return False
        message = f"{model} is a number of parameters, and a replay needs an architecture"
        self.fields.refuse("model", message, hint="a profile name; or runtime textbook, whose equations need no more")
        return True

    def _for_classes(
        self, shape: ModelShape, taken: tuple[Assumption, ...]
    ) -> tuple[ModelShape, tuple[Assumption, ...]]:
        """A profile has the head that its model was pre-trained with; a classification loss takes another."""
        if self.raw.loss != "classification" or shape.task not in ("mlm", "lm"):
            return shape, taken
        from vramplan.job.classifiers import classifies  # only these jobs pay for it

        if not classifies(shape.transformers_model_type):
            return shape, taken
        why = f"the loss is a classification, with {shape.classes} classes"
        # the declared count is of the other head
        return shape._replace(task="cls", declared_parameters=None), (*taken, Assumption("model.task", "cls", why))

    def _inline(self, values: dict[str, Any]) -> tuple[ModelShape, tuple[Assumption, ...]]:
        name = values.pop("name", None)
        extra: tuple[Assumption, ...] = ()
        family = values.get("transformers_model_type") or values.get("family")
        if self.raw.loss == "classification" and values.get("task") is None:
            from vramplan.job.classifiers import classifies  # only these jobs pay for it

            if classifies(family):
                values["task"] = "cls"
                extra = (Assumption("model.task", "cls", "the loss is a classification"),)
        shape = shapes.shape_from_fields(values, name=name)
        return shape, (*extra, *models.sizes_taken(values, shape))

    def _gpu(self) -> Gpu | None:
        given = self.raw.gpu
        try:
            if isinstance(given, str):
                found: tuple[Gpu, tuple[Assumption, ...]] | None = self.catalog.gpu(given)
            elif given is not None:
                found = gpu_from_mapping(given, self.catalog)
            else:
                if not self.fields.given("gpu"):
                    hint = 'a profile name, a path or {name: LABEL, memory: "32 GiB"}'
                    self.fields.refuse("gpu", "required key is missing", hint=hint)
                return None
        except InputError as error:
            self._pass_on(error, "gpu", given if isinstance(given, Fields) else None)
            return None
        if found is None:
            return None
        gpu, told = found
        self.assumptions += told
        if gpu.capacity_basis == "nominal" and all(one.key != "gpu.memory" for one in told):
            self._assume("gpu.memory", format_gib(gpu.capacity_bytes), "nominal; the framework sees a little less")
        return gpu

    def _usable(self, gpu: Gpu) -> Gpu:
        """Check what is free on the card and what is held back from it; what is free now is settled here."""
        if self.raw.gpu_free_now or self.raw.gpu_free_bytes is not None:
            from vramplan.job.free import check_free  # only these jobs pay for it

            check_free(self, gpu)
        free = self.raw.gpu_free_bytes
        if self.raw.reserve_bytes >= (gpu.capacity_bytes if free is None else free):
            of = f"{format_gib(gpu.capacity_bytes)} of {gpu.name}"
            of = of if free is None else f"{format_gib(free)} that are free on {gpu.name}"
            self.fields.refuse("reserve", f"leaves nothing of the {of}")
        return gpu._replace(free_bytes=None) if gpu.free_bytes is not None else gpu

    def _precision(self, gpu: Gpu | None) -> str:
        given = self.raw.precision
        if given in {None, "auto"}:
            able = gpu is None or gpu.bf16 is not False
            name = "mixed" if self.raw.sharding in ZERO_STAGES else "amp"
            why = "the GPU has bf16" if able else "the GPU has no bf16"
            if self.raw.runtime == "torchtitan" and able and self._is_fully_sharded():
                self._assume("precision", "fsdp-bf16", "torchtitan gathers the weights in bf16")
                return "fsdp-bf16"
            if gpu is not None and gpu.bf16 is None:
                why = f"whether {gpu.name} has bf16 is unknown, which counts as able"
            if self.raw.runtime == SPLITTING_RUNTIME or (self.raw.runtime is None and self.raw.split is not None):
                name = "mixed"
            self._assume("precision", f"{name}-bf16" if able else f"{name}-fp16", why)
            return f"{name}-bf16" if able else f"{name}-fp16"
        assert given is not None
        if given not in words.PRECISIONS:
            self.fields.refuse("precision", f"{given} is not modelled (modelled: {', '.join(words.PRECISIONS)})")
            return given
        precision = words.PRECISIONS[given]
        if precision == FSDP_PRECISION and self.raw.cells.get("compute_dtype") == "fp16":
            precision = precision.replace("bf16", "fp16")
            self._assume("precision", precision, "what the element types amount to")
        if gpu is not None and precision.endswith("bf16"):
            if gpu.bf16 is False:
                instead = precision.replace("bf16", "fp16")
                self.fields.refuse("precision", f"{gpu.name} has no bf16, which {given} needs", hint=f"use {instead}")
            elif gpu.bf16 is None:
                self._assume("gpu.bf16", True, f"unknown for {gpu.name}, which counts as able")
        return precision

    def _is_fully_sharded(self) -> bool:
        return self.raw.data_parallel_size > 1 and self.raw.sharding in {None, "fsdp", "fsdp-grad-op"}

    def _room(self, model: ModelShape, length: int) -> None:
        if model.image_tokens:
            from vramplan.job.images import room_for_images  # only these jobs pay for it

            room_for_images(self, model, length)

    def _sequence_length(self, model: ModelShape | None) -> int:
        given = self.raw.sequence_length
        if model is not None and not model.takes_text:
            from vramplan.job.images import no_tokens  # only these jobs pay for it

            return no_tokens(self, model)
        if model is None:
            return given or DEFAULT_MAX_SEQUENCE
        if given is None:
            length = min(model.max_positions, DEFAULT_MAX_SEQUENCE)
            self._assume("sequence_length", length, f"min(max_positions, {DEFAULT_MAX_SEQUENCE})")
            self._room(model, length)
            return length
        self._room(model, given)
        bounded = model.positions == "learned" or model.family in BOUNDED_FAMILIES
        if given > model.max_positions and bounded:
            has = {"learned": "has learned", "alibi": "has a bias for"}.get(model.positions, "has")
            message = f"{given} is more than the {model.max_positions} positions that {model.name} {has}"
            self.fields.refuse("sequence_length", message, hint=f"use at most {model.max_positions}")
        return given

    def _checkpointing(self, model: ModelShape | None, attention: str) -> None:
        key, given = "activation_checkpointing", self.raw.activation_checkpointing
        if self.raw.every_second_matmul and given != "selective-op":
            message = "true belongs to activation_checkpointing selective-op"
            self.fields.refuse("every_second_matmul", message, hint="pin selective-op, or leave it out")
        obstacle = None if model is None else no_checkpointing(model.family)
        if obstacle is not None:
            if given is None:
                self.raw.activation_checkpointing = "none"
                self._assume(key, "none", obstacle)
            elif given != "none":
                self.fields.refuse(key, f"{given} is not possible: {obstacle}", hint="use none")
            return
        if given is None or model is None:
            return
        if given in words.LLMC_CHECKPOINTINGS and model.family != "llmc":
            self.fields.refuse(key, f"{given} is llm.c's", hint="use sqrt or full, or --runtime llm.c")
        if given in ("selective", "selective-op"):
            from vramplan.job.checkpoints import check_selective  # only these jobs pay for it

            check_selective(self.fields, model, given, attention)
        if given.startswith("layers:"):
            end = -1
            for first, last in re.findall(r"(\d+),(\d+)", given):
                segment = f"[{first},{last}]"
                if int(first) > int(last):
                    self.fields.refuse(key, f"the segment {segment} ends before it begins")
                elif int(last) >= model.blocks:
                    message = f"the segment {segment} is out of range: the blocks of {model.name} are 0 to"
                    self.fields.refuse(key, f"{message} {model.blocks - 1}")
                elif int(first) <= end:
                    self.fields.refuse(key, f"the segment {segment} begins before the one before it has ended")
                else:
                    starts = [sum(model.stacks[:k]) for k in range(1, len(model.stacks))]
                    start = next((one for one in starts if int(first) < one <= int(last)), None)
                    if start is not None:
                        which = "second" if start == starts[0] else "third"
                        message = f"the {which} stack of {model.name} begins with block {start}"
                        message = f"the segment {segment} reaches from one stack into the other: {message}"
                        self.fields.refuse(key, message)
                end = max(end, int(last))

    def _loss(self, model: ModelShape | None, gpu: Gpu | None, runtime: Runtime | None, precision: str) -> str:
        """The loss; `standard` where the word means what the runtime does anyway."""
        loss = self.raw.loss
        if loss is None or loss == "standard" or model is None:
            return "standard"
        if loss == "vocab-parallel" and model.family == "megatron":  # what it does anyway
            return "standard"
        if loss == "classification" and model.task in shapes.CLASSIFIERS:
            return "standard"
        if loss == "fp32-logits" and model.task == "contrastive":
            self.fields.refuse("loss", f"{loss} means nothing to a contrastive loss", hint="use standard")
            return "standard"
        if loss == "fp32-logits":
            upcasts = runtime is not None and runtime.loss == "causal-lm-fp32"  # its code's own loss does
            if upcasts and _holds_logits(self.raw, model, precision):
                return loss  # what is held is in fp32 then
            return "standard" if precision == "fp32" or (upcasts and model.task == "lm") else loss
        word = words.pattern_word(loss)
        if word in words.LM_LOSSES:
            from vramplan.job.losses import check_head_loss  # only these jobs pay for it

            check_head_loss(self, loss, model, gpu, precision)
            return loss
        if loss == "vocab-parallel" and splits_of(model.family):
            return loss
        if loss == "classification":
            message = f"{loss} needs a model with a classification head, and the task of {model.name} is {model.task}"
            self.fields.refuse("loss", message, hint="use standard")
        else:
            hint = "--runtime megatron" if loss == "vocab-parallel" else None
            modelled = ", ".join(one for one in words.MODELLED_LOSSES if one != loss)
            self.fields.refuse("loss", f"{loss} is not modelled (modelled: {modelled})", hint=hint)
        return "standard"

    def _cells(self, precision: str, gpu: Gpu | None) -> Cells:
        """The precision with the element types that the job has of its own."""
        if precision == "fp8" and self.raw.runtime in FP8_OF_SHARDS:
            precision = FSDP_FP8
            self._assume("precision", precision, f"{self.raw.runtime}'s products in fp8 are of fp32 shards")
        cells = compose(self.fields, self.raw.cells, precision, self.raw.optimizer, gpu)
        if cells.precision != precision:
            self._assume("precision", cells.precision, "what the element types amount to")
        return cells

    def _batch(self) -> tuple[int, bool]:
        """The global batch and whether it was given. 0: the steps were given, and the planner multiplies."""
        raw = self.raw
        if raw.global_batch_size is not None:
            micro, steps, data = raw.micro_batch_size, raw.gradient_accumulation_steps, raw.data_parallel_size
            if micro is not None and steps is not None and micro * steps * data != raw.global_batch_size:
                product = f"micro_batch_size {micro} * gradient_accumulation_steps {steps} * data {data}"
                self.fields.refuse(
                    "global_batch_size", f"{product} = {micro * steps * data}, not {raw.global_batch_size}"
                )
            return raw.global_batch_size, True
        if raw.gradient_accumulation_steps is not None:
            return 0, False
        self._assume("global_batch_size", DEFAULT_GLOBAL_BATCH_SIZE, "the default")
        return DEFAULT_GLOBAL_BATCH_SIZE, False

    def _devices_per_node(self) -> int:
        """Devices that share a host: as many as there are, up to the eight of a usual node."""
        raw, split = self.raw, self.raw.split
        devices = raw.data_parallel_size * (1 if split is None else split.devices)
        usual = min(words.DEVICES_PER_NODE, devices)
        if raw.devices_per_node is None and raw.offload and devices > 1:
            self._assume("parallel.devices_per_node", usual, "they share the memory of a host")
        return min(raw.devices_per_node or usual, devices)

    def _allocator(self, runtime: Runtime) -> Settings | None:
        """What the caching allocator is simulated with; None: it is estimated."""
        if self.raw.allocator is None and "allocator" not in runtime.defaults:
            return None
        from vramplan.job.allocator import resolve_allocator  # only jobs that simulate it pay for it

        return resolve_allocator(self, runtime)

    def _warn(self, model: ModelShape, sequence_length: int, attention: str) -> None:
        length, most = f"sequence_length {sequence_length}", model.max_positions
        if sequence_length > most:
            self.warnings.append(f"{length} is more than the max_positions {most} of {model.name}")
        checkpointing = self.raw.activation_checkpointing or ""
        if checkpointing.startswith("selective-layer:") and int(checkpointing.partition(":")[2]) > max(model.stacks):
            self.warnings.append(f"{checkpointing} recomputes nothing: {model.name} has {_blocks(model)}")
        if checkpointing == "selective" and attention != "eager":
            what = f"selective runs the {attention} kernel twice and saves nothing but its row statistics"
            self.warnings.append(f"{what}: fused attention stores no scores that could be recomputed")
        devices = self.raw.data_parallel_size
        if devices > 1 and self.raw.sharding == "none":
            what = "data-parallel devices without sharding"
            self.warnings.append(f"{devices} {what}: communication buffers are not counted")

    def _pass_on(self, error: InputError, key: str, inside: Fields | None) -> None:
        """Refuse what a lookup found wrong: with the place in the file that has it, else at the key in the job."""
        for problem in error.problems:
            if problem.file is not None:
                self.fields.sink.refusals.append(problem)
            elif inside is not None and problem.key != key:
                inside.refuse(problem.key, problem.message, hint=problem.hint)
            else:
                self.fields.refuse(key, problem.message, hint=problem.hint)


def _holds_logits(raw: RawJob, model: ModelShape, precision: str) -> bool:
    """Whether the loop keeps logits that the model, as Transformers has it, could have cast itself."""
    return bool(raw.hold_outputs) and model.task == "lm" and model.published_family is None and precision != "fp32"


def _is_special(job: Job) -> bool:
    """Whether a job has a technique that does not go with all the others (vramplan/job/combinations.py)."""
    one = job.compile or job.precision == "fp8" or job.loss == "dpo" or job.padding != "none" or job.packing
    return one or job.half_weights or bool(job.frozen) or job.adapter is not None


def _blocks(model: ModelShape) -> str:
    return " and ".join(str(layers) for layers in model.stacks) + " blocks"


def _word(text: str) -> str:
    return text if text in words.KNOWN_RUNTIMES else shown(text)
