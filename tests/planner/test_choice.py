"""The best choice of docs/job-format.md, found here by trying everything, and the largest micro-batch."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.answers import answer
from tests.cli.draws import jobs
from vramplan.job import build_job
from vramplan.planner.judge import Judge
from vramplan.planner.setups import setup_of
from vramplan.replay.record import Record
from vramplan.replay.step import replay
from vramplan.results import FitResult
from vramplan.values.job import ResolvedJob

LADDER = ("none", "sqrt", "full")


class Try(NamedTuple):
    """One strategy and schedule."""

    strategy: str
    micro: int
    steps: int
    allocated: int


class Trials:
    """Every strategy and micro-batch, each from a record of its own: no envelope, no search, no limits."""

    def __init__(self, job: ResolvedJob) -> None:
        self.job, self.records = job, dict[tuple[str, bool, bool], Record]()
        self.usable = job.gpu.capacity_bytes - job.reserve_bytes
        self.context = job.runtime.context_on(job.gpu.architecture)
        if job.sharding is not None and job.data_parallel_size > 1:
            self.context += job.runtime.process_group_bytes

    def allocated(self, strategy: str, micro: int, steps: int) -> int:
        key = (strategy, steps > 1, micro == 1)
        if key not in self.records:
            setup = setup_of(self.job, strategy, steps > 1)
            self.records[key] = replay(setup, batch=1 if micro == 1 else 2)
        return self.records[key].peak_bytes(micro)

    def all(self, strategy: str) -> list[Try]:
        per_rank = self.job.global_batch_size // self.job.data_parallel_size
        return [
            Try(strategy, micro, per_rank // micro, self.allocated(strategy, micro, per_rank // micro))
            for micro in range(1, per_rank + 1)
            if per_rank % micro == 0
        ]

    def high(self, one: Try) -> Fraction:
        """The upper end, with room for the largest tensor where it is much of what is held."""
        largest = max(self.records[one.strategy, one.steps > 1, one.micro == 1].sizes(one.micro))
        plain, most = (Fraction(times, 10) * one.allocated for times in (11, 13))
        room = largest * (Fraction(3, 2) if one.strategy == "none" else 3)
        return max(plain, min(most, one.allocated + room)) + self.context

    def is_fit(self, one: Try) -> bool:
        return self.high(one) <= self.usable

    def is_tight(self, one: Try) -> bool:
        return one.allocated + Fraction(self.context, 2) <= self.usable

    def device(self, one: Try) -> Fraction:
        return Fraction(104, 100) * one.allocated + self.context

    def extra(self, strategy: str) -> Fraction:
        """Extra forward FLOPs over those of a step without checkpointing."""
        flops = next(record.flops for (name, *_), record in self.records.items() if name == strategy)
        return Fraction(flops["recompute"], flops["forward"] + flops["backward"])

    def best(self) -> tuple[str, Try, bool]:
        """The rule, word for word: the verdict, what is judged, and whether it is recommended."""
        tries = {strategy: self.all(strategy) for strategy in LADDER}
        every = [one for strategy in LADDER for one in tries[strategy]]
        by_cost = {one: (self.extra(one.strategy), -one.micro, one.strategy == "sqrt") for one in every}
        good = [one for one in every if self.is_fit(one)]
        if good:
            return "fits", min(good, key=by_cost.__getitem__), True
        least = min(every, key=lambda one: (self.device(one), by_cost[one]))
        is_likely = self.device(least) <= self.usable
        return "tight" if self.is_tight(least) else "does-not-fit", least, is_likely


def judged(result: FitResult) -> tuple[Any, ...]:
    job = result.job
    return job["activation_checkpointing"], job["micro_batch_size"], job["gradient_accumulation_steps"]


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=12)
@given(st.data())
def test_the_best_choice_is_the_one_of_a_search_through_everything(data: st.DataObject) -> None:
    raw = data.draw(jobs(pin_micro=False))
    raw.pop("activation_checkpointing", None)
    raw.setdefault("global_batch_size", 512 // raw["parallel"]["data"] * raw["parallel"]["data"])
    # a capacity at, just below or somewhere around the need of some choice: there the rule has to decide
    job = build_job({**raw, "gpu": {**raw["gpu"], "memory": "100 GiB"}})
    trials = Trials(job)
    one = data.draw(st.sampled_from([one for strategy in LADDER for one in trials.all(strategy)]))
    edges = [trials.high(one), trials.device(one)]
    edges.append(one.allocated + Fraction(trials.context, 2))
    edge = data.draw(st.sampled_from(edges)) + job.reserve_bytes
    capacity = -(-edge // 1) + data.draw(st.sampled_from([-1, 0, 0, 12345, 10**7]))
    job = job._replace(gpu=job.gpu._replace(capacity_bytes=int(capacity)))
    trials.job, trials.usable = job, job.gpu.capacity_bytes - job.reserve_bytes

    verdict, best, is_recommended = trials.best()
    result = answer(job)
    assert result.verdict == verdict
    assert judged(result) == (best.strategy, best.micro, best.steps)
    assert result.peak.allocated_bytes == best.allocated
    recommended = result.recommended
    if not is_recommended:
        assert recommended.micro_batch_size is recommended.activation_checkpointing is recommended.flags is None
    else:
        assert judged(result) == (
            recommended.activation_checkpointing,
            recommended.micro_batch_size,
            recommended.gradient_accumulation_steps,
        )


@pytest.mark.sweep(2)
@settings(deadline=None, max_examples=6)
@given(jobs())
def test_every_row_of_the_ladder_is_judged_at_its_own_best_micro_batch(raw: dict[str, Any]) -> None:
    result = answer(build_job(raw))
    assert [row.activation_checkpointing for row in result.alternatives][:3] == list(LADDER)
    for row in result.alternatives:
        alone = answer(build_job({**raw, "activation_checkpointing": row.activation_checkpointing}))
        assert (alone.verdict, alone.peak.allocated_bytes) == (row.verdict, row.allocated_bytes)
        assert judged(alone)[1:] == (row.micro_batch_size, row.gradient_accumulation_steps)
        assert alone.recommended.largest_micro_batch_size == row.largest_micro_batch_size


@pytest.mark.sweep(2)
@settings(deadline=None, max_examples=12)
@given(jobs())
def test_the_largest_micro_batch_is_within_the_device_and_the_next_one_is_not(raw: dict[str, Any]) -> None:
    result = answer(build_job(raw))
    largest = result.recommended.largest_micro_batch_size
    assume(largest < 1 << 24)
    strategy, _, steps = judged(result)

    def device(micro: int) -> int:
        # the same number of steps, so that the gradients are resident or not, as in the judged run
        pins = {"micro_batch_size": micro, "gradient_accumulation_steps": steps, "activation_checkpointing": strategy}
        rest = {key: value for key, value in raw.items() if key != "global_batch_size"}
        pinned = answer(build_job({**rest, **pins}))
        assert judged(pinned) == (strategy, micro, steps)
        return pinned.peak.device_bytes

    if largest:
        assert device(largest) <= result.usable_bytes
    assert device(largest + 1) > result.usable_bytes


@pytest.mark.sweep(2)
@settings(deadline=None, max_examples=12)
@given(jobs())
def test_nothing_above_the_usable_memory_is_recommended(raw: dict[str, Any]) -> None:
    """Neither for a choice nor for what is pinned, whatever the low end of the band says."""
    result = answer(build_job(raw))
    within = result.verdict != "does-not-fit" and result.peak.device_bytes <= result.usable_bytes
    assert (result.recommended.micro_batch_size is not None) == within


def test_without_a_certain_fit_the_riskiest_plan_is_not_chosen() -> None:
    """A published band that holds nothing for certain: the likely figure of what is recommended is within the card."""
    job = {"model": "llama-3.1-8b", "gpu": "a100-80gb", "sequence_length": 2048, "precision": "amp-bf16"}
    job |= {"parallel": {"data": 8, "sharding": "fsdp"}, "weight_dtype": "fp32", "global_batch_size": 512}
    result = answer(build_job(job))
    assert result.verdict == "tight"
    assert result.peak.device_bytes <= result.usable_bytes
    assert result.recommended.micro_batch_size == 1 < result.recommended.largest_micro_batch_size
    assert result.warnings[0].startswith("no open choice surely fits: the plan is the one most likely to fit")
    pinned = answer(build_job({**job, "micro_batch_size": 4, "activation_checkpointing": "sqrt"}))
    assert pinned.verdict == "tight"
    assert pinned.recommended.micro_batch_size is pinned.recommended.flags is None


def test_of_two_strategies_that_fit_the_one_with_less_extra_compute_is_chosen() -> None:
    """`full` recomputes less than `sqrt` where blocks end in a product whose result nobody needs again."""
    job = {"model": "qwen2.5-0.5b", "gpu": "rtx-4080", "sequence_length": 2048, "global_batch_size": 64}
    result = answer(build_job({**job, "precision": "amp-fp16"}))
    rows = {row.activation_checkpointing: row for row in result.alternatives}
    assert rows["full"].verdict == rows["sqrt"].verdict == "fits"
    assert rows["full"].recomputed_fraction < rows["sqrt"].recomputed_fraction
    assert rows["none"].verdict != "fits"
    assert result.recommended.activation_checkpointing == "full"


def test_no_micro_batch_at_all() -> None:
    result = answer(build_job({"model": "llama-3-8b", "gpu": "t4"}))
    assert (result.verdict, result.recommended.largest_micro_batch_size) == ("does-not-fit", 0)
    assert {row.largest_micro_batch_size for row in result.alternatives} == {0}


@settings(deadline=None, max_examples=12)
@given(jobs(), st.integers(0, 10**9))
def test_the_search_agrees_with_trying_one_micro_batch_after_the_other(raw: dict[str, Any], room: int) -> None:
    judge = Judge(build_job(raw))
    smallest = judge.allocated_bytes("none", 1, True)
    limit = smallest - 1000 + room % (5 * smallest)
    micro = 0
    while judge.allocated_bytes("none", micro + 1, True) <= limit and micro < 3000:
        micro += 1
    assume(micro < 3000)
    assert judge.largest_micro_batch("none", True, limit) == micro
