"""What every kind of answer asks of a job: its runtime, its model and its GPU, by name or described, and its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.catalog import locate, models, shapes
from vramplan.catalog.config_classes import MODEL_TYPES, type_of
from vramplan.catalog.fields import Fields, nearest, shown
from vramplan.errors import InputError
from vramplan.job.counts import parameter_count
from vramplan.job.given.read import RawJob
from vramplan.job.lookup import Catalog, gpu_from_mapping
from vramplan.options import words
from vramplan.options.spellings import OTHER_RUNTIMES, bare
from vramplan.units import format_gib
from vramplan.values.job import Assumption
from vramplan.values.machine import Gpu, Runtime
from vramplan.values.model import NEWEST, ModelShape, OldCode
from vramplan.values.parallel import Split

STEPS_EACH_STAGE = 4
"""Micro-batches of a pipeline for each of its stages, from which on its bubble is small.

Source: Huang et al., "GPipe" (arXiv:1811.06965), section 2.3: negligible when M >= 4 x K.
"""
SPLITTING_RUNTIME = "megatron"  # where a job splits its model over devices and names no runtime
SHARED_BESIDE_PLANS = ("zero2", "zero3")  # what that has not: states beside a plan of Transformers, AutoTP or Ulysses
NO_SPLIT = Split()


class Resolver:
    """Resolves one job: what is assumed is told, and what is refused is noted where it was given."""

    def __init__(self, raw: RawJob, catalog: Catalog) -> None:
        self.raw, self.fields, self.catalog = raw, raw.fields, catalog
        self.assumptions = [Assumption(*one) for one in raw.spelled]
        self.warnings: list[str] = []
        self.reasons: list[tuple[str, str]] = []  # a part of the memory, and the warning that says why it is that large
        self.model_shape: ModelShape | None = None  # these once they are known
        self.runtime: Runtime | None = None
        self.precision = ""
        self.first_flash = False  # whether sdpa comes to FlashAttention 1
        self.old_code: OldCode = NEWEST  # of the release of Transformers that the job names
        self.written: tuple[Assumption, ...] = ()  # how the checkpoint quantizes its weights, if it does
        self.preferred: list[str] = []  # keys whose default was taken, and may be given up if nothing goes with it
        self.given_up: dict[str, str] = {}  # those that were, each with the reason

    def assume(self, key: str, value: Any, why: str) -> None:
        """Tell of a value that the job does not give."""
        self.assumptions.append(Assumption(key, value, why))

    def prefer(self, key: str) -> bool:
        """Whether a default that not every job goes with is to be taken: one that was given up is not."""
        if key in self.given_up:
            return False
        self.preferred.append(key)
        return True

    @property
    def is_refused(self) -> bool:
        """Whether something is wrong with the job."""
        return bool(self.fields.sink.problems or self.fields.sink.refusals)

    def find_runtime(self) -> Runtime | None:
        """The runtime's profile; None if that is refused."""
        runtime = self.raw.runtime
        if runtime is None:
            runtime = "transformers"
            why = "the default"
            shared = self.raw.sharding in SHARED_BESIDE_PLANS and (self.raw.split or NO_SPLIT).pipeline == 1
            if self.raw.split is not None and not shared and SPLITTING_RUNTIME in words.RUNTIMES:
                runtime, why = SPLITTING_RUNTIME, f"{runtime} keeps a replica on one device"
            self.assume("runtime", runtime, why)
        if runtime not in words.RUNTIMES and runtime not in self.catalog.other_runtimes():
            modelled = (*words.RUNTIMES, *self.catalog.other_runtimes())
            instead = OTHER_RUNTIMES.get(bare(runtime))
            listed = f" (modelled: {', '.join(modelled)})" if instead is None else ""
            hint = instead or nearest(runtime, modelled)
            self.fields.refuse("runtime", f"{shown(runtime)} is not modelled{listed}", hint=hint)
            return None
        try:
            found, told = self.catalog.runtime(runtime)
        except InputError as error:
            self.pass_on(error, "runtime", None)
            return None
        self.assumptions += told
        self.runtime = found
        return found

    def find_model(self) -> ModelShape | None:
        """The model, by name or described; None if that is refused."""
        given = self.raw.model
        if given is None:
            if not self.fields.given("model"):
                self.fields.refuse("model", "required key is missing", hint="a profile name, a path or a mapping")
            return None
        try:
            if isinstance(given, str):
                shape, taken = self._for_texts(given, *self._for_classes(*self.catalog.model(given)))
                self.written = tuple(one for one in taken if one.key in ("quantization", "quantized_experts"))
                taken = tuple(one for one in taken if one not in self.written)
            else:
                shape, taken = self._inline(self.described(dict(given)))
        except InputError as error:
            if isinstance(given, str) and self._is_count(given):
                return None
            self.pass_on(error, "model", self.fields.fields("model") if isinstance(given, dict) else None)
            return None
        if shape.classes == 1 and shape.task in shapes.CLASSIFIERS and self.raw.loss != words.REWARD:
            message = "1 is not modelled (one class is a regression with another loss)"
            self.fields.refuse("model.classes", message, hint="--loss reward, where it is the score of a reward model")
            return None
        self.assumptions += taken
        if shape.unknown_type is not None:
            said = (
                f"{shape.unknown_type} is not modelled: the usual keys of its config.json are answered with the blocks"
            )
            self.warnings.insert(0, f"{said} of {shape.transformers_model_type}, and the range is wider for that")
        self._warn_of_aliases(taken, "model", given)
        return shape

    def _warn_of_aliases(self, told: Sequence[Assumption], key: str, given: object) -> None:
        """Warn where the name that was given is that of a shipped profile, and a user's profile takes it."""
        for one in told:
            named = isinstance(given, str) and not locate.is_path(given)
            if one.key == key and named and locate.slug(str(given)) != locate.slug(str(one.value)):
                self.warnings.append(f"{given} is answered as {one.value}: {one.why}")

    def described(self, values: dict[str, Any]) -> dict[str, Any]:
        """What a described model says. Raises InputError where the runtime has no code for such a description."""
        return values

    def _is_count(self, model: str) -> bool:
        """Whether a model that no profile has is a bare number of parameters, which is refused for what it is."""
        if parameter_count(model) is None:
            return False
        message = f"{model} is a number of parameters, and a replay needs an architecture"
        named = self.catalog.models_of_size(model)
        models = "a profile name" if named is None else f"of that size are {named}"
        self.fields.refuse("model", message, hint=f"{models}; or runtime textbook, whose equations need no more")
        return True

    def _for_classes(
        self, shape: ModelShape, taken: tuple[Assumption, ...]
    ) -> tuple[ModelShape, tuple[Assumption, ...]]:
        """A profile has the head that its model was pre-trained with; a classification loss takes another."""
        if self.raw.loss == words.REWARD and shape.task in ("mlm", "lm", "cls"):
            return self._for_a_score(shape, taken)
        if self.raw.loss != "classification" or shape.task not in ("mlm", "lm"):
            return shape, taken
        if not classifies(shape.transformers_model_type):
            return shape, taken
        why = f"the loss is a classification, with {shape.classes} classes"
        # the declared count is of the other head
        return shape._replace(task="cls", declared_parameters=None), (*taken, Assumption("model.task", "cls", why))

    def _for_texts(
        self, name: str, shape: ModelShape, taken: tuple[Assumption, ...]
    ) -> tuple[ModelShape, tuple[Assumption, ...]]:
        """An embedding model or a reranker makes one vector or number of a text where the job names no loss."""
        if self.raw.loss is not None or shape.task not in ("mlm", "lm") or not self.catalog.is_of_texts(name, taken):
            return shape, taken
        is_lost = shape.task == "mlm" and self.raw.quantization is not None  # the classifier would be quantized too
        if is_lost or not classifies(shape.transformers_model_type):
            return shape, taken
        why = f"{name} makes vectors or scores of texts, and is not trained to predict tokens"
        self.warnings.append(
            f"{name} is judged with a classifier's head in the place of its own: of embeddings a pair of texts counts "
            "as two of the micro-batch (--loss standard: with the head that predicts tokens)"
        )
        return shape._replace(task="cls", declared_parameters=None), (*taken, Assumption("model.task", "cls", why))

    def _for_a_score(
        self, shape: ModelShape, taken: tuple[Assumption, ...]
    ) -> tuple[ModelShape, tuple[Assumption, ...]]:
        """A reward model is a classifier of one class (trl 1.16.0, trainer/reward_trainer.py)."""
        if not classifies(shape.transformers_model_type):
            return shape, taken
        why = "the head of a reward model gives one score"
        changed = shape._replace(task="cls", classes=1, declared_parameters=None)
        return changed, (*taken, Assumption("model.task", "cls", why))

    def _inline(self, values: dict[str, Any]) -> tuple[ModelShape, tuple[Assumption, ...]]:
        name = values.pop("name", None)
        extra: tuple[Assumption, ...] = ()
        family = values.get("transformers_model_type") or values.get("family")
        if self.raw.loss == "classification" and values.get("task") is None and classifies(family):
            values["task"] = "cls"
            extra = (Assumption("model.task", "cls", "the loss is a classification"),)
        shape = shapes.shape_from_fields(values, name=name)
        if self.raw.loss == words.REWARD:
            shape, extra = self._for_a_score(shape, extra)
        return shape, (*extra, *models.sizes_taken(values, shape))

    def described_shape(self, values: dict[str, Any]) -> ModelShape:
        """The shape of a second model that is described. Raises InputError where something is wrong."""
        name = values.pop("name", None)
        return shapes.shape_from_fields(values, name=name)

    def find_gpu(self) -> Gpu | None:
        """The GPU, by name or described; None if that is refused."""
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
            self.pass_on(error, "gpu", given if isinstance(given, Fields) else None)
            return None
        if found is None:
            return None
        gpu, told = found
        self.assumptions += told
        self._warn_of_aliases(told, "gpu", given)
        if gpu.capacity_basis == "nominal" and all(one.key != "gpu.memory" for one in told):
            self.assume("gpu.memory", format_gib(gpu.capacity_bytes), "nominal; the framework sees a little less")
        return gpu

    def usable(self, gpu: Gpu) -> Gpu:
        """Check what is held back from the card; what is free on it is settled before (`machine/free.py`)."""
        free = self.raw.gpu_free_bytes
        if self.raw.reserve_bytes >= (gpu.capacity_bytes if free is None else free):
            of = f"{format_gib(gpu.capacity_bytes)} of {gpu.name}"
            of = of if free is None else f"{format_gib(free)} that are free on {gpu.name}"
            self.fields.refuse("reserve", f"leaves nothing of the {of}")
        return gpu._replace(free_bytes=None) if gpu.free_bytes is not None else gpu

    def batch(self, recipe: int | None, why: str) -> tuple[int, bool]:
        """The global batch and whether it was given. 0: the planner multiplies the steps with the micro-batch.

        Where the job has no batch at all, it is that of a published `recipe`, and `why` says whose; without one
        nothing is accumulated, except that a pipeline has several micro-batches for each of its stages.
        """
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
        if recipe is not None:
            self.assume("global_batch_size", recipe, why)
            return recipe, False
        steps, why = 1, "one micro-batch in each optimizer step"
        if raw.split is not None and raw.split.pipeline > 1:
            steps, why = _steps_of_pipeline(raw.split)
        raw.gradient_accumulation_steps = steps
        self.assume("gradient_accumulation_steps", steps, f"no batch size is given: {why}")
        return 0, False

    def pass_on(self, error: InputError, key: str, inside: Fields | None) -> None:
        """Refuse what a lookup found wrong: with the place in the file that has it, else at the key in the job."""
        for problem in error.problems:
            if problem.file is not None:
                self.fields.sink.refusals.append(problem)
            elif inside is not None and problem.key != key:
                inside.refuse(problem.key, problem.message, hint=problem.hint)
            else:
                self.fields.refuse(key, problem.message, hint=problem.hint)


def _steps_of_pipeline(split: Split) -> tuple[int, str]:
    """The micro-batches of a pipeline whose job has no batch, and why.

    GPipe has all of them in flight, so that more of them take more memory.
    """
    stages = split.pipeline
    if split.schedule == "gpipe":
        return stages, f"with fewer micro-batches some of the {stages} stages would have nothing to do"
    steps = STEPS_EACH_STAGE * stages
    return steps, f"{STEPS_EACH_STAGE} micro-batches for each of the {stages} stages, which leave a small bubble"


def classifies(name: object) -> bool:
    """Whether a model type, or the first type of a family, has a classification head that is modelled."""
    if not isinstance(name, str) or name not in MODEL_TYPES:
        try:
            name = type_of(str(name))
        except StopIteration:
            return False
    return "cls" in MODEL_TYPES[name].tasks
