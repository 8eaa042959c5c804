"""From the values of one job to a `ResolvedJob`: defaults are taken and told, contradictions refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramplan.engines import engine_of, with_code_of
from vramplan.job import on_demand
from vramplan.job.behaviour import under
from vramplan.job.evidence.cells import FSDP_FP8, FSDP_HALVES, Cells, check_scaled_halves, check_scaler
from vramplan.job.given.read import RawJob
from vramplan.job.inputs.sizes import devices_per_node_of, sequence_length_of
from vramplan.job.kernels.attention import attention_of, within_window
from vramplan.job.lookup import Catalog
from vramplan.job.precision import cells_of, load_weights, precision_of
from vramplan.job.resolver import Resolver
from vramplan.job.stepping.optimizer import check_clipping, optimizer_of, steps_in_backward
from vramplan.job.whole import as_given, has_a_state_space, is_special, tell_of_the_model, warn
from vramplan.options import words
from vramplan.replay.models import is_in_transformers, ladder_of, no_code_for
from vramplan.replay.models.capable import no_checkpointing
from vramplan.tuples import NamedTuple
from vramplan.values.allocator import DEFAULT
from vramplan.values.job import Adapter, ResolvedJob
from vramplan.values.length import NO_LENGTH
from vramplan.values.machine import Gpu, Runtime
from vramplan.values.model import ModelShape
from vramplan.values.parallel import Sharded, Split

if TYPE_CHECKING:
    from vramplan.values.allocator import Settings

RECIPE = "the batch that {} was trained with, as its profile says"


def resolve(raw: RawJob, catalog: Catalog) -> ResolvedJob | None:
    """The job of a replay, every default explicit; None when the sink of `raw.fields` holds problems or refusals."""
    sink = raw.fields.sink
    before = len(sink.problems), len(sink.refusals)
    resolver = _ReplayResolver(raw.copy(), catalog)
    job = resolver.job()
    if job is not None or not resolver.preferred:
        return job

    def attempt(given_up: dict[str, str]) -> ResolvedJob | None:
        again = _ReplayResolver(raw.copy(), catalog)
        again.given_up = given_up
        return again.job()

    return on_demand.without_preferred(sink, before, resolver.preferred, attempt)


class Substitutes(NamedTuple):
    """What runs in the place of the model's own modules, under the names of the job."""

    adapter: Adapter | None
    liger_kernels: tuple[str, ...]
    teacher: ModelShape | None
    distillation: str | None
    tiled_mlp: int | None


class _ReplayResolver(Resolver):
    """Of a job that is replayed: each method one part of it, in the order in which a report tells them."""

    def job(self) -> ResolvedJob | None:
        """The job; None when something is wrong, which is noted."""
        raw = self.raw
        runtime, model, gpu = self._subject()
        precision = precision_of(self, gpu)
        load_weights(self, model, precision)
        cells = cells_of(self, precision, gpu)
        precision = cells.precision
        optimizer, implementation, in_backward = self._stepping(runtime, model, cells)
        attention = attention_of(self, model, gpu, precision)
        sequence_length, image_size = self._sizes(model)
        whole_length = sequence_length + raw.tokens_before  # of what the model is given
        model, attention = within_window(self, model, whole_length, attention)
        target = self._target(model, sequence_length)
        self._saving(model, attention)
        loss, reference = self._objective(model, gpu, runtime, precision, sequence_length)
        frozen, adapter = self._trained(model, optimizer, precision, loss)
        self._check_outputs(model, loss)
        imbalance = self._experts(model, runtime)
        own = self._own_code(model, runtime, gpu, cells, adapter, loss, reference, sequence_length)
        if raw.compile:
            self.assumptions += on_demand.check_compile(self.fields, raw, model, in_backward, own.adapter)
        qat = on_demand.qat_of(self, model, cells, own.adapter, gpu) if raw.qat is not None else None
        self._products(precision, model, gpu, sequence_length)
        sharding = self._sharing(runtime, model, precision)
        split, loss = self._splitting(runtime, model, sequence_length, loss)
        host = self._on_host(sharding)
        recipe = None if model is None else model.recipe_global_batch_size
        global_batch, given = self.batch(recipe, "" if model is None else RECIPE.format(model.name))
        length = on_demand.length_of(self, model, gpu) if raw.asks_for_length else NO_LENGTH
        runtime, gpu = self._as_it_is_here(runtime, gpu)
        if self.is_refused or model is None or gpu is None or runtime is None:
            return None
        tell_of_the_model(self, model)
        warn(self, model, gpu, whole_length, attention)
        devices_per_node, gpu = self._machine(gpu)
        if raw.varied_lengths:
            on_demand.check_varied(self, model, runtime, sequence_length)
        allocator = self._allocator(runtime)
        decided: dict[str, Any] = {
            "name": raw.name or f"{model.name} on {gpu.name}",
            "model": model,
            "gpu": gpu,
            "runtime": runtime,
            "sequence_length": sequence_length,
            "target_length": target,
            "image_size": image_size,
            "global_batch_size": global_batch,
            "global_batch_given": given,
            "precision": precision,
            "tf32": raw.precision == words.TF32 and precision == "fp32",  # element types may make it another
            "half_weights": cells.half_weights,
            "fp32_gradients": cells.fp32_gradients,
            "fp32_states": cells.fp32_states,
            "optimizer": optimizer,
            "optimizer_implementation": implementation,
            "optimizer_in_backward": in_backward,
            "attention": attention,
            "hold_outputs_until": (raw.hold_outputs_until or words.NEXT_FORWARD) if raw.hold_outputs else None,
            "loss": loss,
            "dpo_reference": reference,
            "frozen": frozen,
            **own._asdict(),
            "mamba_kernels": bool(raw.mamba_kernels) and has_a_state_space(model),
            "expert_imbalance": imbalance,
            "qat": qat,
            "sharding": sharding,
            "split": split,
            "planned": None if split is None else on_demand.planned_part(split, model),
            "offload": host,
            "offload_activations": raw.offload_activations,
            "devices_per_node": devices_per_node,
            "node_bandwidth_bytes_per_s": raw.node_bandwidth_bytes_per_s,
            "first_flash": self.first_flash,
            "old_code": self.old_code.without_sdpa() if raw.attention == "flash" else self.old_code,
            "allocator": allocator,
            "allocator_offered": self._offered_allocator(runtime) if allocator is None else None,
            "length": length,
            "rent": raw.rent,
            "case": raw.case,
            "assumptions": tuple(self.assumptions),
            "warnings": tuple(self.warnings),
            "reasons": tuple(self.reasons),
        }
        return self._checked(ResolvedJob(**as_given(raw, decided), **decided))

    def _subject(self) -> tuple[Runtime | None, ModelShape | None, Gpu | None]:
        """What runs, what is trained and where, with the defaults that the runtime has for the rest."""
        raw = self.raw
        runtime = self.find_runtime()
        model, gpu = self.find_model(), self.find_gpu()
        if model is not None and runtime is not None:
            model = self._in_code(model, runtime)
            if self.written and model.engine is None:  # other programs convert a checkpoint that is whole
                on_demand.as_written(self, self.written)
        own_bits = under(runtime).four_bits
        if own_bits is not None and raw.quantization == "nf4":
            raw.quantization = own_bits[0]
            self.assumptions = [one for one in self.assumptions if one.key != "quantization"]  # of its spelling
            self.assume("quantization", *own_bits)
        if model is not None and runtime is not None and raw.transformers_version is not None:
            model = on_demand.as_released(self, model, runtime)
        if model is not None and runtime is not None and raw.litgpt_version is not None:
            under(runtime).note_release(self, model, runtime, raw.litgpt_version)
        if model is not None and raw.image_size is not None:
            model = on_demand.with_images(model, raw.image_size)
        if raw.offload and raw.sharding is None and under(runtime).offloads_by_zero:
            on_demand.share_on_host(self)
        several = raw.data_parallel_size > 1 or raw.shares_states or raw.split is not None
        if runtime is not None and (runtime.defaults if several else runtime.defaults.keys() - words.OF_SEVERAL):
            on_demand.take_defaults(self, runtime, model, gpu)
        return runtime, model, gpu

    def described(self, values: dict[str, Any]) -> dict[str, Any]:
        """What a described model says, as the training program understands it."""
        return under(self.runtime).described(self, values)

    def _in_code(self, model: ModelShape, runtime: Runtime) -> ModelShape:
        """The model in the code of the runtime's program; refused is what no code of it can compute."""
        engine = engine_of(runtime.engine)
        if engine.families or engine.own_code:
            model = on_demand.in_its_own_code(self, model, runtime, engine)
        if runtime.only or under(runtime).accepts:
            on_demand.refuse_given_words(self, runtime)
        if under(runtime).lacks and (model.engine is not None or not engine.families):
            on_demand.refuse_lacking(self, runtime)
        if model.engine is not None:
            return model
        if not is_in_transformers(model.family):
            return on_demand.refuse_class(self, model, runtime)
        obstacle = no_code_for(model)
        if obstacle is not None:
            name = with_code_of(model.family)[0]
            self.fields.refuse(*obstacle, hint=f"runtime: {name}, as an option --runtime {name}")
        return model

    def _stepping(self, runtime: Runtime | None, model: ModelShape | None, cells: Cells) -> tuple[str, str, bool]:
        """The optimizer, its implementation, and whether it steps in backward."""
        raw = self.raw
        optimizer, implementation = optimizer_of(self, runtime, model, cells)
        in_backward = steps_in_backward(self, runtime, optimizer, cells.precision)
        raw.max_gradient_norm = raw.max_gradient_norm or None  # 0 turns it off
        if raw.max_gradient_norm is not None:
            check_clipping(self, in_backward)
        if words.pattern_word(optimizer) in words.LOW_RANK_OPTIMIZERS:
            self.assumptions += on_demand.check_galore(self, optimizer, model, runtime)
        if raw.grad_scaler:
            half = cells.half_weights and (raw.adapter is None or raw.adapter_dtype not in (None, "fp32"))
            check_scaler(self.fields, cells, optimizer, in_backward=in_backward, trains_half=half)
        elif raw.grad_scaler is None and under(runtime).scales_fp16:
            copied = raw.adapter is not None
            if not copied or (raw.quantization is None and self._trains_halves(model)):
                check_scaled_halves(self.fields, cells, runtime, copied=copied)
        if raw.zero_grad == words.BEFORE_BACKWARD and runtime is not None:
            on_demand.check_zeroing(self, runtime, in_backward)
        return optimizer, implementation, in_backward

    def _trains_halves(self, model: ModelShape | None) -> bool:
        """Whether something that an adapter trains has the type of the weights: PEFT's copies of modules, biases."""
        raw = self.raw
        copies = raw.adapter_modules_to_save or (model is not None and model.task == "cls")
        return bool(copies) or raw.adapter_bias not in (None, "none") or raw.adapter_dtype not in (None, "fp32")

    def _sizes(self, model: ModelShape | None) -> tuple[int, int | None]:
        """Tokens of a sequence, or samples of a sound, and pixels of an image's edge."""
        if model is not None and model.waveform is not None:
            sequence_length = on_demand.samples_of(self, model)
        else:
            sequence_length = sequence_length_of(self, model)
        asked = self.raw.image_size is not None or self.raw.channels_last
        if not asked and (model is None or not model.takes_images):
            return sequence_length, None
        return sequence_length, on_demand.image_size_of(self, model)

    def _target(self, model: ModelShape | None, sequence_length: int) -> int | None:
        if model is not None and model.waveform is not None:
            return on_demand.letters_of(self, model, sequence_length)
        if self.raw.target_length is None:
            return None
        return on_demand.target_length(self.raw.target_length, model, self.fields)

    def _saving(self, model: ModelShape | None, attention: str) -> None:
        """What forward saves: checkpoints, and activations on the host."""
        raw = self.raw
        self._checkpointing(model, attention)
        if raw.checkpoint_reentrant and raw.activation_checkpointing == "none":
            self.warnings.append("checkpoint_reentrant changes nothing: nothing is checkpointed")
        elif raw.checkpoint_reentrant and model is not None:
            on_demand.check_reentrant(self.fields, model, raw.activation_checkpointing, attention)
        if raw.offload_activations and model is not None:
            on_demand.check_offload(self.fields, model)

    def _checkpointing(self, model: ModelShape | None, attention: str) -> None:
        key, given = "activation_checkpointing", self.raw.activation_checkpointing
        if self.raw.every_second_matmul and given != "selective-op":
            message = "true belongs to activation_checkpointing selective-op"
            self.fields.refuse("every_second_matmul", message, hint="pin selective-op, or leave it out")
        obstacle = None if model is None else no_checkpointing(model.family)
        if obstacle is not None:
            if given is None:
                self.raw.activation_checkpointing = "none"
                self.assume(key, "none", obstacle)
            elif given != "none":
                self.fields.refuse(key, f"{given} is not possible: {obstacle}", hint="use none")
            return
        if given is None or model is None:
            return
        if given in words.LLMC_CHECKPOINTINGS and given not in (ladder_of(model.family) or ()):
            on_demand.refuse_ladder(self.fields, given)
        if given in ("selective", "selective-op"):
            on_demand.check_selective(self.fields, model, given, attention)
        if given == words.OPTIMAL:
            on_demand.check_optimal(self.fields, model)
        if given.startswith("layers:"):
            on_demand.check_segments(self.fields, model, given)

    def _objective(
        self, model: ModelShape | None, gpu: Gpu | None, runtime: Runtime | None, precision: str, sequence_length: int
    ) -> tuple[str, str | None]:
        """The loss and the reference that it compares with, and what samples look like."""
        raw, loss = self.raw, "standard"
        if raw.loss not in (None, "standard") and model is not None:
            loss = on_demand.loss_of(self, raw.loss, model, gpu, runtime, precision)
            if loss == "standard" and raw.loss != "classification":
                self.assume("loss", loss, f"{raw.loss} is what the code of this run does anyway")
        if loss.startswith("chunked:"):
            loss = on_demand.check_chunks(self, loss, sequence_length)
        if raw.label_smoothing and model is not None:
            loss = on_demand.smoothed(self, loss, model)
        reference = None
        if loss in words.REFERENCED_LOSSES or raw.dpo_reference is not None:
            reference = on_demand.reference_of(self, loss)
        if raw.eval_batch_size or raw.generation_batch_size or raw.generation_length:
            on_demand.check_beside(self, loss, model)
        if raw.padding == "right" and model is not None:
            on_demand.check_padding(self, model, sequence_length)
        if raw.packing and model is not None:
            on_demand.check_packing(self, model, sequence_length)
        return loss, reference

    def _trained(
        self, model: ModelShape | None, optimizer: str, precision: str, loss: str
    ) -> tuple[tuple[str, ...], Adapter | None]:
        """What is trained, where that is not every weight."""
        if self.raw.trained_blocks not in (None, "all") and model is not None:
            self.raw.frozen = on_demand.frozen_by_blocks(self, model, optimizer, precision)
        if not (self.raw.frozen or self.raw.adapter or self.raw.quantization):
            return (), None
        own = under(self.runtime)
        frozen, adapter, told = on_demand.resolve_trained(
            self.raw, model, precision, loss, joined=own.joined, usual=own.adapter_targets, rank=own.adapter_rank
        )
        self.assumptions += told
        if self.raw.quantization and model is not None:
            on_demand.tell_whole(self, model)
        return frozen, adapter

    def _check_outputs(self, model: ModelShape | None, loss: str) -> None:
        """What goes with outputs that are held, a cache, quantized weights and a head of classes."""
        raw = self.raw
        if raw.hold_outputs_until and not raw.hold_outputs:
            message = f"{raw.hold_outputs_until} changes nothing where no outputs are held"
            self.fields.refuse("hold_outputs_until", message, hint="hold_outputs: true; or leave it out")
        if raw.use_cache and model is not None:
            on_demand.check_cache(self, model, loss)
        if raw.quantized_experts:
            on_demand.check_quantized_experts(raw, model)
        if raw.bitsandbytes is not None:
            on_demand.check_bitsandbytes(raw, model, self.runtime)
        if model is not None and model.task == "cls":
            on_demand.check_classifier(self, model)

    def _own_code(
        self,
        model: ModelShape | None,
        runtime: Runtime | None,
        gpu: Gpu | None,
        cells: Cells,
        adapter: Adapter | None,
        loss: str,
        reference: str | None,
        sequence_length: int,
    ) -> Substitutes:
        """What runs in the place of the model's own modules, and a teacher beside it."""
        raw = self.raw
        if (raw.adapter_kernels or under(runtime).fuses_adapters) and model is not None and adapter is not None:
            adapter = on_demand.with_kernels(self, model, adapter, cells, reference)
            adapter = adapter._replace(asked_kernels=tuple(raw.adapter_kernels))
        liger = on_demand.liger_of(self, model, reference) if raw.liger_kernels and model is not None else ()
        teacher = word = tiles = None
        distils = raw.teacher is not None or raw.distillation or raw.teacher_logprobs
        if distils and model is not None and runtime is not None:
            teacher, word = on_demand.teacher_of(self, model, runtime, loss, adapter)
        if raw.tiled_mlp and model is not None:
            sums_apart = cells.fp32_gradients
            tiles = on_demand.tiles_of(self, model, adapter, sequence_length, reference, fp32_gradients=sums_apart)
        return Substitutes(adapter, liger, teacher, word, tiles)

    def _as_it_is_here(self, runtime: Runtime | None, gpu: Gpu | None) -> tuple[Runtime | None, Gpu | None]:
        """The device with what of it is free, and the program with its releases."""
        raw = self.raw
        if gpu is not None:
            if raw.gpu_free_now or raw.gpu_free_bytes is not None:
                on_demand.check_free(self, gpu)
            gpu = self.usable(gpu)
        if runtime is not None and gpu is not None and (raw.pytorch_version or raw.cuda_module_loading):
            runtime = on_demand.with_software(self, runtime, gpu)
        return runtime, gpu

    def _machine(self, gpu: Gpu) -> tuple[int, Gpu]:
        """The devices of a machine, and the device with the links of the usual one."""
        raw = self.raw
        devices_per_node = devices_per_node_of(self)
        every = raw.data_parallel_size * (1 if raw.split is None else raw.split.devices)
        if raw.node_bandwidth_bytes_per_s is not None and every <= devices_per_node:
            self.warnings.append("parallel.node_bandwidth is not looked at: all devices are in one node")
        leaves = raw.split is not None or raw.offload or raw.offload_activations
        if every > 1 or leaves or raw.optimizer in words.STATES_ON_HOST:
            gpu = on_demand.in_its_machine(self, gpu)
        return devices_per_node, gpu

    def _experts(self, model: ModelShape | None, runtime: Runtime | None) -> float | None:
        """How uneven the load of experts is."""
        raw = self.raw
        dropping = raw.expert_capacity_factor is not None or raw.expert_pad_to_capacity
        if raw.expert_imbalance is not None or dropping or (model is not None and model.experts is not None):
            on_demand.check_capacity(raw, model, runtime)
            return on_demand.expert_imbalance(raw, model, self.assumptions, self.warnings)
        return None

    def _products(self, precision: str, model: ModelShape | None, gpu: Gpu | None, sequence_length: int) -> None:
        """Products in 8 bits."""
        own = precision == "fp8" and under(self.runtime).check_own_float8(self, gpu, sequence_length)
        if precision == "fp8" and not own:
            self.assumptions += on_demand.check_float8(self.fields, self.raw, model, gpu, sequence_length)
        if precision == FSDP_FP8 and model is not None:
            under(self.runtime).check_sharded_float8(self, model, gpu, sequence_length)

    def _sharing(self, runtime: Runtime | None, model: ModelShape | None, precision: str) -> Sharded | None:
        """How data-parallel devices share the states."""
        raw = self.raw
        sharding = None
        along = raw.split is not None and raw.split.context > 1  # these sum their gradients too
        asked = raw.data_parallel_size > 1 or along or raw.shares_states or precision in {*FSDP_HALVES, FSDP_FP8}
        asked = asked or raw.deepspeed_version is not None  # which decides nothing where nothing is shared
        if asked or under(runtime).way_of_replicas is not None:
            self.model_shape, self.precision = model, precision
            sharding = on_demand.sharding_of(self)
        under(runtime).check_sharing(self, sharding)
        return sharding

    def _splitting(
        self, runtime: Runtime | None, model: ModelShape | None, sequence_length: int, loss: str
    ) -> tuple[Split | None, str]:
        """How a replica is split over devices, and the loss that it has then."""
        split = self.raw.split
        if split is not None and model is not None and runtime is not None:
            split = on_demand.check_split(self, split, model, runtime, sequence_length)
        if model is None:
            return split, loss
        return under(runtime).split_of(self, split, model, loss, sequence_length)

    def _on_host(self, sharding: Sharded | None) -> tuple[str, ...]:
        """Which states are there."""
        host = tuple(word for word in self.raw.offload if word != "activations")
        if host:
            on_demand.check_offload_of_states(self, host, sharding)
        return host

    def _allocator(self, runtime: Runtime) -> Settings | None:
        """What the caching allocator is simulated with; None: it is estimated."""
        if self.raw.allocator is None and "allocator" not in runtime.defaults:
            return DEFAULT if self.raw.varied_lengths else None
        found = on_demand.resolve_allocator(self, runtime)
        return self._offered_allocator(runtime) if found is None and self.raw.varied_lengths else found

    def _offered_allocator(self, runtime: Runtime) -> Settings | None:
        """The settings of a run whose job leaves open how they are looked at; None: it does not."""
        if self.raw.allocator is not None:
            return on_demand.offered_allocator(self.raw.allocator)
        return on_demand.launched_allocator(self, runtime) if "allocator" in runtime.defaults else DEFAULT

    def _checked(self, job: ResolvedJob) -> ResolvedJob | None:
        """The job as its engine runs it; None if something in it cannot be."""
        engine = under(job.runtime)
        if job.runtime.only or engine.accepts:
            on_demand.refuse_words(self, job)
            if self.is_refused:
                return None
        if words.kernel_of(job.optimizer) in words.MINDS_WEIGHTS:
            on_demand.check_step_kernels(self.fields, job)
        if job.sharding is not None and not engine.shares_by_itself:
            composed = on_demand.check_sharding(self, job)
            if self.is_refused:
                return None
            job = job._replace(composed=composed)
        job = engine.check(self, job)
        if self.is_refused:
            return None
        if is_special(job):
            job = job._replace(composed=tuple(dict.fromkeys((*job.composed, *on_demand.composed_of(job)))))
        return job
