"""The fuzzer itself: a few rounds that find nothing, the same for everybody, and oracles that can find something."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from tests.fuzz import draws, oracles
from tests.fuzz.__main__ import main
from tests.fuzz.run import Slow, asked, judged, limited, rounds, smaller
from vramplan import FitResult
from vramplan.options import table
from vramplan.results import Recommendation

pytestmark = pytest.mark.contract

KEYS: draws.Keys = {"model": "bert-tiny", "gpu": "v100", "sequence_length": 64, "micro_batch_size": 4}
ROUNDS = 8  # jobs and files, one of which is refused


@pytest.fixture(scope="module")
def result() -> FitResult:
    return oracles.Asker()(KEYS)


@pytest.mark.sweep
def test_a_few_rounds_find_nothing() -> None:
    drawn = list(islice(rounds(18), ROUNDS))
    assert not [one for one in drawn if one.fault is not None]
    assert {one.answered for one in drawn} == {True, False, None}


@pytest.mark.sweep(8)
@pytest.mark.parametrize("oracle", [*oracles.ALWAYS, *oracles.ONE_OF])
def test_an_oracle_finds_nothing_in_a_right_answer(oracle: oracles.Oracle, result: FitResult) -> None:
    assert oracle(oracles.Asker(), KEYS, result) is None


def broken(result: FitResult) -> dict[str, tuple[draws.Keys, FitResult]]:
    """Wrong answers, and the jobs that they are to, by the oracle that must see it."""
    peak, best = result.peak, result.recommended
    steps = best.gradient_accumulation_steps
    scaled: draws.Keys = {**KEYS, "grad_scaler": True}  # as the Trainer does in fp16, so that its files can say it
    written = oracles.Asker()(scaled)
    return {
        "schema": (KEYS, result._replace(utilization="much")),  # type: ignore[arg-type]
        "sums": (KEYS, result._replace(peak=peak._replace(allocated_bytes=peak.allocated_bytes + 1))),
        "round_trip": (KEYS, result._replace(warnings=("of what is not echoed",))),
        "pinned": (KEYS, result._replace(peak=peak._replace(device_bytes=peak.device_bytes + 1))),
        "largest": (KEYS, result._replace(recommended=_with_largest(best, 5))),
        "larger_gpu": (KEYS, result._replace(job={**result.job, "reserve": "47 GiB"}, verdict="fits")),
        "more_work": (KEYS, result._replace(peak=peak._replace(allocated_bytes=10**12))),
        "commands": ({**KEYS, "gradient_accumulation_steps": steps, "global_batch_size": 1}, result),
        "written": (scaled, written._replace(peak=written.peak._replace(device_bytes=written.peak.device_bytes + 1))),
        "echo": ({**KEYS, "label_smoothing": 0.25}, result),
    }


def _with_largest(best: Recommendation, largest: int) -> Recommendation:
    return best._replace(largest_micro_batch_size=largest)


@pytest.mark.parametrize("oracle", [*oracles.ALWAYS, *(one for one in oracles.ONE_OF if one is not oracles.remedies)])
def test_an_oracle_finds_what_is_wrong(oracle: oracles.Oracle, result: FitResult) -> None:
    keys, wrong = broken(result)[oracle.__name__]
    assert oracle(oracles.Asker(), keys, wrong)


def test_a_remedy_that_breaks_its_promise_is_found() -> None:
    keys: draws.Keys = {"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 32, "activation_checkpointing": "none"}
    result = oracles.Asker()(keys)
    assert result.remedies
    wrong = result._replace(remedies=tuple(one._replace(saves_bytes=one.saves_bytes + 1) for one in result.remedies))
    assert oracles.remedies(oracles.Asker(), keys, wrong)


def test_an_exception_and_a_hang_are_found() -> None:
    def fails() -> str | None:
        raise KeyError("x")

    assert "KeyError" in (asked("any", fails) or "")

    def hangs() -> None:
        while True:
            pass

    with pytest.raises(Slow), limited(0.05):
        hangs()


@pytest.mark.sweep
def test_a_find_is_made_smaller() -> None:
    def seen(ask: oracles.Asker, keys: draws.Keys, result: FitResult) -> str | None:
        return "found" if keys.get("label_smoothing") else None

    keys = {**KEYS, "label_smoothing": 0.1, "optimizer": "sgd", "parallel": {"data": 2}}
    assert judged(keys, (seen,)) == ("seen", "found")
    least = smaller(keys, (seen,), "seen")
    assert least == {"model": "gpt2", "gpu": "a100-80gb", "label_smoothing": 0.1}


def test_every_key_has_a_value_to_draw() -> None:
    random = Random(0)
    for option in table.TABLE:
        if option.key not in draws.SUBJECT:
            drawn = [draws.value(random, option) for _ in range(60)]
            assert len({str(one) for one in drawn}) > 1, option.key


def test_a_seed_draws_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert draws.job(Random(7)) == draws.job(Random(7))
    assert main(["--seed", "3", "--rounds", "2", "--seconds", "60"]) == 0
    assert "2 rounds from seed 3" in capsys.readouterr().out
