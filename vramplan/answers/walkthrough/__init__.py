"""The story that texts tell in four steps (fp32, mixed precision, checkpointing, accumulation), told twice.

Each step is a textbook job and a job that is replayed, with the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.answers.fit import describe
from vramplan.answers.walkthrough.reasons import reasons
from vramplan.errors import UsageError
from vramplan.job import build_any_job, build_job
from vramplan.job.echo import model_to_dict
from vramplan.planner.accumulation import OpenSchedules, Schedule
from vramplan.planner.decision import Decision, decide
from vramplan.planner.textbook import budget
from vramplan.results import DOES_NOT_FIT, FITS, Component
from vramplan.results.walkthrough import ReplaySide, Step, TextbookSide, Walkthrough
from vramplan.tuples import NamedTuple
from vramplan.values.job import Assumption, ResolvedJob
from vramplan.values.textbook import TEXTS_GLOBAL_BATCH_SIZE, TextbookJob

# The run that the walk-through of the texts is about.
DEFAULT_MODEL, DEFAULT_GPU, DEFAULT_MICRO_BATCH = "gpt2-xl", "v100", 32
# What texts print for it: a rounded count, activations in fp32 that they quote and do not derive, and a factor for
# "every 4 layers". The model states follow from the count by arXiv:1910.02054, section 3.1.
QUOTED_PARAMETERS, QUOTED_ACTIVATIONS, QUOTED_FACTOR = 1_500_000_000, "65 GB", 4
ABOUT_ANOTHER_RUN = ("model", "micro_batch_size", "sequence_length", *("activation_model", "activation_bytes"))
DEFAULT_ACTIVATION_MODEL = "korthikanti"  # derived from the code of a layer, and the one that papers cite

TEXTBOOK_ALONE = ("activation_model", "activation_bytes", "checkpoint_factor")
REPLAY_ALONE = (
    *("attention", "dropout", "hold_outputs", "use_cache", "loss", "optimizer_implementation", "reserve", "runtime"),
    *("optimizer_in_backward", "max_gradient_norm", "ema", "target_length"),
    *("gpu_free", "pytorch_version", "transformers_version", "litgpt_version", "deepspeed_version"),
    "cuda_module_loading",
)
BATCH = ("micro_batch_size", "global_batch_size", "gradient_accumulation_steps")
# a warning about one step alone
OF_A_VERDICT = (
    "tight: the estimate is above the usable memory and only the low end of its range fits, so more likely not",
)


class _Plan(NamedTuple):
    """One step before it is judged: the keys that it adds to the run."""

    title: str
    keys: dict[str, Any]


def walkthrough(
    given: Mapping[str, Any], *, parameters: int | None = None, profile_dirs: Sequence[Path] = ()
) -> Walkthrough:
    """The four steps of a run. `given`: job keys; `parameters`: the count that a text rounds to.

    Raises InputError for what a single job would be refused for, and for keys that a step decides by itself.
    """
    return _Story(given, parameters, profile_dirs).tell()


class _Story:
    def __init__(self, given: Mapping[str, Any], parameters: int | None, profile_dirs: Sequence[Path]) -> None:
        self.given, self.parameters, self.profile_dirs = dict(given), parameters, profile_dirs
        self.assumptions: list[Assumption] = []
        self.warnings: dict[str, None] = {}  # each once, in order
        self._micro = self._counted = 0  # micro-batch of steps 1 to 3, and parameters: known with the first step
        self._check()
        own_count = parameters is not None or self.given.get("checkpoint_factor") is not None
        if not own_count and all(self.given.get(key) is None for key in ABOUT_ANOTHER_RUN):
            self._quote()
        self._default("model", DEFAULT_MODEL, "the run of the texts")
        self._default("gpu", DEFAULT_GPU, "the run of the texts")
        self._default("micro_batch_size", DEFAULT_MICRO_BATCH, "the run of the texts; of steps 1 to 3")
        if not {"activation_model", "activation_bytes"} & set(self.given):
            self._default(
                "activation_model", DEFAULT_ACTIVATION_MODEL, "derived from a layer's code; none is the truth"
            )

    def _quote(self) -> None:
        """The figures that texts print for their run."""
        why = "quoted by texts for their run, without a derivation"
        self._default("activation_bytes", QUOTED_ACTIVATIONS, why)
        if self.given.get("activation_checkpointing") is None:
            self._default("checkpoint_factor", QUOTED_FACTOR, "texts divide the activations by it")
        self.parameters = QUOTED_PARAMETERS
        self.assumptions.append(Assumption("parameters", QUOTED_PARAMETERS, "the count that texts round to"))

    def _default(self, key: str, value: Any, why: str) -> None:
        if self.given.get(key) is None:
            self.given[key] = value
            self.assumptions.append(Assumption(key, value, why))

    def _check(self) -> None:
        """What the steps decide cannot be pinned to something else, and what no step looks at is not ignored."""
        if self.given.get("runtime") == "textbook":
            raise UsageError("textbook is one of the two sides anyway", key="runtime", hint="the replay's runtime")
        if self.given.get("precision") in ("fp32", "tf32"):
            hint = "step 1 is in fp32; precision is that of the others"
            raise UsageError("fp32 leaves nothing for step 2", key="precision", hint=hint)
        for key in ("base_batch_size", "base_learning_rate"):
            if self.given.get(key) is not None:
                raise UsageError("batch advice is given by fit", key=key, hint="leave it out")
        if self.given.get("trainable_parameters") is not None:
            raise UsageError("the steps train all parameters", key="trainable_parameters", hint="leave it out")
        if self.given.get("activation_checkpointing") == "none":
            hint = "full, sqrt or every:K, or a checkpoint_factor"
            raise UsageError("none leaves nothing for step 3", key="activation_checkpointing", hint=hint)

    def tell(self) -> Walkthrough:
        """All four steps."""
        micro = {"micro_batch_size": self.given["micro_batch_size"], "gradient_accumulation_steps": 1}
        pinned = self.given.get("precision")
        mixed = {"precision": self._mixed() if pinned in (None, "auto") else pinned}
        checkpointing = {"activation_checkpointing": self._strategy()}
        none = {"activation_checkpointing": "none"}
        plans = (
            _Plan("fp32", {"precision": "fp32", **none, **micro}),
            _Plan("mixed precision", {**mixed, **none, **micro}),
            _Plan("checkpointing", {**mixed, **checkpointing, **micro}),
            _Plan("accumulation", {**mixed, **checkpointing, **self._accumulation()}),
        )
        steps: list[Step] = []
        first = self._replayed(plans[0])
        if first.image_size is not None:
            message = f"{first.model.name} takes images, and the equations of texts are about tokens"
            raise UsageError(message, key="model", hint="fit and explain take it; here gpt2-xl, for one")
        assert first.micro_batch_size is not None
        self._micro = first.micro_batch_size  # to which a quoted figure belongs
        for number, plan in enumerate(plans, 1):
            job = first if number == 1 else self._replayed(plan)
            steps.append(self._step(number, plan, job, steps[-1] if steps else None))
        book = self._textbook(plans[-1], first)
        last = steps[-1].textbook
        return Walkthrough(
            model=first.model.name,
            gpu=first.gpu.name,
            textbook_parameters=book.model.parameters,
            architecture_parameters=self._counted,
            sequence_length=first.sequence_length,
            optimizer=first.optimizer,
            activation_model=book.activation_model,
            activation_bytes=book.activation_bytes,
            checkpoint_factor=book.checkpoint_factor,
            data_parallel_size=first.data_parallel_size,
            global_batch_size=last.micro_batch_size * last.gradient_accumulation_steps * first.data_parallel_size,
            nominal_capacity_bytes=book.gpu.capacity_bytes,
            usable_bytes=first.usable_bytes,
            steps=tuple(steps),
            assumptions=(*self.assumptions, *_taken(first, self.assumptions)),
            warnings=tuple(self.warnings),
        )

    def _mixed(self) -> str:
        """bf16 where the GPU has it, else fp16 with loss scaling, as texts say."""
        job = self._build({"micro_batch_size": self.given["micro_batch_size"], "gradient_accumulation_steps": 1})
        precision = "mixed-fp16" if job.gpu.bf16 is False else "mixed-bf16"
        why = {
            True: "the GPU has bf16",
            False: "the GPU has no bf16, so fp16 with loss scaling",
            None: "whether the GPU has bf16 is unknown; assumed yes",
        }[job.gpu.bf16]
        self.assumptions.append(Assumption("precision", precision, f"of steps 2 to 4: {why}"))
        return precision

    def _strategy(self) -> str:
        """Of steps 3 and 4: what is pinned, what a text's factor stands for, else the square root."""
        pinned, factor = self.given.get("activation_checkpointing"), self.given.get("checkpoint_factor")
        if pinned is not None:
            return str(pinned)
        strategy, why = "sqrt", "the optimum of the textbook's table"
        if factor is not None:
            strategy, why = f"every:{_whole(factor)}", "what texts mean by dividing activations by the factor"
        self.assumptions.append(Assumption("activation_checkpointing", strategy, f"of steps 3 and 4: {why}"))
        return strategy

    def _accumulation(self) -> dict[str, Any]:
        """The batch of step 4: as given, else the default global batch; the micro-batch is open."""
        keys = {key: self.given[key] for key in BATCH[1:] if self.given.get(key) is not None}
        if "global_batch_size" not in keys:
            job = self._build({**keys, "micro_batch_size": 1})
            unit = job.data_parallel_size * (job.gradient_accumulation_steps or 1)
            batch = max(1, round(TEXTS_GLOBAL_BATCH_SIZE / unit)) * unit
            why = "the default" if batch == TEXTS_GLOBAL_BATCH_SIZE else "the nearest to the default that is exact"
            keys["global_batch_size"] = batch
            self.assumptions.append(Assumption("global_batch_size", batch, f"{why}; of step 4"))
        return keys

    def _build(self, keys: Mapping[str, Any]) -> ResolvedJob:
        kept = {key: value for key, value in self.given.items() if key not in (*TEXTBOOK_ALONE, *BATCH)}
        return build_job({**kept, **keys}, profile_dirs=self.profile_dirs)

    def _replayed(self, plan: _Plan) -> ResolvedJob:
        """The step as a job that is replayed."""
        keys = dict(plan.keys)
        if keys["precision"] == "fp32" and self.given.get("attention") == "flash":
            keys["attention"] = "sdpa"  # there is no flash kernel in fp32
            self.assumptions.append(Assumption("attention", "efficient", "of step 1: flash has no fp32 kernels"))
        return self._build(keys)

    def _textbook(self, plan: _Plan, job: ResolvedJob) -> TextbookJob:
        """The step as a textbook job about the same architecture."""
        kept = {key: value for key, value in self.given.items() if key not in (*REPLAY_ALONE, *BATCH)}
        keys = {**kept, **plan.keys, "runtime": "textbook"}
        keys["model"] = {**model_to_dict(job.model), "parameters": self.parameters}
        keys["sequence_length"] = job.sequence_length
        if plan.keys["activation_checkpointing"] == "none":
            keys.pop("checkpoint_factor", None)
        book = build_any_job(keys, profile_dirs=self.profile_dirs)
        assert isinstance(book, TextbookJob)
        return book

    def _step(self, number: int, plan: _Plan, job: ResolvedJob, before: Step | None) -> Step:
        decision = self._decide(job)
        fit = describe(decision, with_remedies=False)
        self.warnings |= dict.fromkeys(text for text in fit.warnings if text not in OF_A_VERDICT)
        schedule = decision.choice.rung.schedule
        self._counted = fit.total_parameters
        replay = ReplaySide(
            micro_batch_size=schedule.micro_batch_size,
            gradient_accumulation_steps=schedule.gradient_accumulation_steps,
            components=fit.components,
            allocated_bytes=fit.peak.allocated_bytes,
            device_bytes=fit.peak.device_bytes,
            attention=job.attention,
            phase=fit.peak.phase,
            operator=fit.peak.operator,
            change=None if before is None else fit.peak.allocated_bytes / before.replay.allocated_bytes - 1,
            verdict=fit.verdict,
        )
        book = self._textbook(plan, job)
        side, at = self._side(book, None if before is None else before.textbook)
        return Step(
            number=number,
            title=plan.title,
            precision=job.precision,
            activation_checkpointing=str(plan.keys["activation_checkpointing"]),
            textbook=side,
            replay=replay,
            reasons=tuple(reasons(at, side, replay, decision, fit.total_parameters)),
        )

    def _decide(self, job: ResolvedJob) -> Decision:
        """Judge the replayed step. Accumulation splits the micro-batch of the steps before and never enlarges it."""
        decision = decide(job)
        if decision.choice.rung.schedule.micro_batch_size <= self._micro or job.gradient_accumulation_steps is not None:
            return decision
        smaller = next(one for one in decision.choice.accumulation.schedules() if one.micro_batch_size <= self._micro)
        return decide(job._replace(micro_batch_size=smaller.micro_batch_size))

    def _side(self, book: TextbookJob, before: TextbookSide | None) -> tuple[TextbookSide, TextbookJob]:
        """The textbook's figures, at the largest exact micro-batch up to that of the steps before that fits."""
        strategy = book.activation_checkpointing or "none"
        quoted_at = self._micro

        def scaled(micro: int) -> TextbookJob:
            if book.activation_bytes is None:
                return book
            return book._replace(activation_bytes=-(-book.activation_bytes * micro // quoted_at))

        def parts(schedule: Schedule) -> tuple[Component, ...]:
            return budget.components(scaled(schedule.micro_batch_size), strategy, schedule.micro_batch_size)

        def total(schedule: Schedule) -> int:
            return sum(part.bytes for part in parts(schedule))

        accumulation = OpenSchedules(
            micro=book.micro_batch_size,
            steps=book.gradient_accumulation_steps,
            global_batch=book.global_batch_size or None,
            given=book.global_batch_given,
            data=book.data_parallel_size,
        )
        schedules = list(accumulation.schedules())
        if book.gradient_accumulation_steps is None:
            schedules = [one for one in schedules if one.micro_batch_size <= self._micro]
        schedule = next((one for one in schedules if total(one) <= book.gpu.capacity_bytes), schedules[-1])
        whole = total(schedule)
        side = TextbookSide(
            micro_batch_size=schedule.micro_batch_size,
            gradient_accumulation_steps=schedule.gradient_accumulation_steps,
            components=parts(schedule),
            total_bytes=whole,
            change=None if before is None else whole / before.total_bytes - 1,
            verdict=FITS if whole <= book.gpu.capacity_bytes else DOES_NOT_FIT,
        )
        judged = scaled(schedule.micro_batch_size)._replace(micro_batch_size=schedule.micro_batch_size)
        return side, judged._replace(activation_checkpointing=strategy)


def _taken(job: ResolvedJob, told: Sequence[Assumption]) -> Iterator[Assumption]:
    """The defaults of the replayed job that the steps do not decide."""
    known = {one.key for one in told} | {"precision", "activation_checkpointing", "attention", *BATCH}
    yield from (one for one in job.assumptions if one.key not in known)


def _whole(factor: Any) -> int:
    """The whole number of layers that a factor stands for; what is no number is left to the job to refuse."""
    try:
        return max(1, round(float(factor)))
    except (ValueError, OverflowError):
        return 1
