"""`from vramplan import fit, Job` answers what the command line answers, as a value that nobody can change."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import vramplan
from tests.cli import draws
from tests.cli.running import TINY, refused, run, valid, write_jobs
from vramplan import FitResult, InputError, Job, fit
from vramplan.options.flags import arguments_of

JOBS: tuple[dict[str, Any], ...] = (
    {"model": "gpt2-xl", "gpu": "v100"},
    {"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 32, "activation_checkpointing": "full"},
    {"model": "gpt2", "gpu": "24 GiB", "global_batch_size": 60, "parallel": {"data": 3}, "dropout": 0.25},
    {"model": "llama-3.2-1b", "gpu": "a100-40gb", "precision": "pure-bf16", "reserve": "2 GiB", "attention": "eager"},
    {"model": "llama-3-8b", "gpu": "h100", "sequence_length": 4096, "optimizer": "adafactor", "hold_outputs": True},
    {"model": "bert-large-uncased", "gpu": "t4", "runtime": "pytorch", "optimizer": "sgd-momentum"},
    {"model": "gpt2-large", "gpu": "v100-16gb", "activation_checkpointing": "layers:[[0,6],[7,13]]"},
    {"model": "1.5B", "gpu": "v100", "runtime": "textbook", "activation_bytes": "65 GB"},
    {"model": "gpt2", "gpu": "v100", "base_batch_size": 256, "base_learning_rate": 1e-4, "parallel": {"data": 4}},
    {"model": "gpt2-medium", "gpu": "13 GiB", "micro_batch_size": 3, "gradient_accumulation_steps": 5},
)

VOLTA = {"architecture": "volta", "bf16": False, "flash_attention": False, "compute_capability": "7.0"}


def from_options(keys: Mapping[str, Any], *more: str) -> Any:
    """What `vramplan fit --format json` prints for the same job."""
    return valid("fit", run("fit", *arguments_of(keys), "--format", "json", *more).document)


# The same answer


@pytest.mark.sweep(8)
@pytest.mark.parametrize("keys", JOBS, ids=lambda keys: f"{keys['model']} on {keys['gpu']}")
def test_to_dict_is_the_json_document(keys: dict[str, Any]) -> None:
    assert fit(Job(**keys)).to_dict() == from_options(keys)


@pytest.mark.sweep
def test_strict_is_the_option_strict() -> None:
    card = {"name": "just so", "memory": f"{fit(**JOBS[0]).peak.device_bytes + (1 << 27)} B", **VOLTA}
    pinned = {"micro_batch_size": 2, "activation_checkpointing": "sqrt", "gradient_accumulation_steps": 256}
    result = fit(model="gpt2-xl", gpu=card, **pinned)
    assert result.verdict == "tight"
    assert (result.to_dict()["exit_code"], result.to_dict(strict=True)["exit_code"]) == (0, 4)
    assert result.to_dict(strict=True) == result.to_dict() | {"exit_code": 4}


@pytest.mark.sweep(8)
@settings(max_examples=8, deadline=None)
@given(keys=draws.jobs())
def test_a_job_has_the_answer_that_it_has_in_a_file(keys: dict[str, Any], tmp_path_factory: Any) -> None:
    keys = {**keys, "allocator": "estimate"}  # else a gate looks closer than that only where it is in doubt
    file = write_jobs(tmp_path_factory.mktemp("jobs") / "jobs.json", keys)
    (row,) = run("check", file, "--format", "json", "--remedies").document["results"]
    answered = fit(name="job 0", **keys).to_dict()
    for other in ("exit_code",):  # a gate has codes of its own
        answered.pop(other), row.pop(other)
    of_gates = ("passed", "reasons", "status", "file", "line", "baseline_bytes")
    assert answered == {key: value for key, value in row.items() if key not in of_gates}


@pytest.mark.sweep(8)
@settings(max_examples=8, deadline=None)
@given(keys=draws.jobs())
def test_the_resolved_job_fed_back_has_the_same_answer(keys: dict[str, Any]) -> None:
    first = fit(**keys)
    again = fit(**first.job)
    same = ("verdict", "peak", "components", "overheads", "checkpoints", "capacity_bytes", "usable_bytes", "job")
    assert [getattr(again, name) for name in same] == [getattr(first, name) for name in same]


def test_the_short_form_is_the_long_form() -> None:
    assert fit(**JOBS[2]) == fit(Job(**JOBS[2]))


def test_profiles_are_searched_first(tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir()
    source = "sources: {s: {title: t, url: 'https://example.com', accessed: '2026-01-01'}}"
    text = f"kind: gpu\nname: mine\n{source}\nfields:\n  memory: {{value: 17 GiB, source: s}}\n"
    (tmp_path / "gpus" / "mine.yaml").write_text(text, "utf-8")
    for profiles in ([tmp_path], [str(tmp_path)], tmp_path, str(tmp_path), iter([tmp_path])):
        assert fit(model="gpt2", gpu="mine", profiles=profiles).capacity_bytes == 17 << 30
    with pytest.raises(InputError, match="no GPU profile 'mine'"):
        fit(model="gpt2", gpu="mine")


def test_a_path_may_be_a_path(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}), "utf-8")
    assert fit(model=config, gpu="24 GiB") == fit(model=str(config), gpu="24 GiB")


class Count:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_numbers_of_other_libraries_are_numbers() -> None:
    count: Any = Count(3)
    assert Job(model="gpt2", gpu="v100", micro_batch_size=count) == Job(model="gpt2", gpu="v100", micro_batch_size=3)


# Frozen


def leaves(value: Any) -> list[Any]:
    """Everything inside a value, containers included."""
    inner = list(value.values()) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else []
    return [value, *(leaf for item in inner for leaf in leaves(item))]


@pytest.fixture(scope="module")
def result() -> FitResult:
    """An answer with everything in it: remedies, assumptions, a ladder."""
    answered = fit(**JOBS[1])
    assert answered.remedies
    assert answered.assumptions
    return answered


@pytest.mark.sweep(5)
@pytest.mark.parametrize("keys", JOBS, ids=lambda keys: f"{keys['model']} on {keys['gpu']}")
def test_nothing_in_a_result_can_be_changed(keys: dict[str, Any]) -> None:
    result = fit(**keys)
    for value in leaves(result):
        assert isinstance(value, tuple | Mapping | str | int | float | None), type(value)
        if isinstance(value, Mapping):
            for change in (
                lambda it: it.__setitem__("x", 1),
                lambda it: it.__delitem__("name"),
                lambda it: it.update(x=1),
                lambda it: it.setdefault("x", 1),
                lambda it: it.pop("name", None),
                lambda it: it.popitem(),
                lambda it: it.clear(),
                lambda it: it.__ior__({"x": 1}),
            ):
                with pytest.raises(TypeError, match="frozen"):
                    change(value)
    with pytest.raises(AttributeError):
        result.verdict = "fits"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        result.peak.device_bytes = 0  # type: ignore[misc]


@pytest.mark.sweep
def test_a_changed_document_does_not_change_the_result(result: FitResult) -> None:
    document = result.to_dict()
    document["job"]["model"]["layers"] = 1
    document["remedies"][0]["change"].clear()
    document["checkpoints"].clear()
    assert result.to_dict() != document
    assert result == fit(**JOBS[1])


@pytest.mark.plain
@pytest.mark.sweep(8)
# made in the test: every process that runs some of the tests collects all
@pytest.mark.parametrize("make", [partial(Job, **JOBS[2]), *(partial(fit, **keys) for keys in JOBS)])
def test_values_are_equal_hashed_copied_and_pickled(make: Callable[[], Any]) -> None:
    value = make()
    for other in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert other == value
        assert hash(other) == hash(value)
        assert type(other) is type(value)


@pytest.mark.sweep
def test_a_document_is_plain_json(result: FitResult) -> None:
    document = result.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert all(type(value) in (dict, list, str, int, float, bool, type(None)) for value in everything(document))


def everything(value: Any) -> list[Any]:
    """Everything inside a document."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(leaf for item in inner for leaf in everything(item))]


@pytest.mark.sweep
def test_reprs_are_short_and_say_what_matters(result: FitResult) -> None:
    assert repr(Job(model="gpt2", gpu="v100", parallel={"data": 2})) == (
        "Job(model='gpt2', gpu='v100', parallel={'data': 2})"
    )
    assert repr(result).startswith("<FitResult 'gpt2-xl on v100': does-not-fit, ")
    assert repr(result).endswith(" GiB, nothing fits>")
    fitting = fit(model=TINY, gpu="24 GiB")
    assert f"micro-batch {fitting.recommended.micro_batch_size} x" in repr(fitting)


# A library


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"modle": "gpt2", "gpu": "v100"}, "modle: unknown key (did you mean model?)"),
        ({"model": "gpt2", "gpu": "v100", "parallel": {"dta": 2}}, "parallel.dta: unknown key (did you mean data?)"),
        ({"model": "gpt2", "gpu": "v100", "precision": "fp17"}, "precision: 'fp17' is not a known value"),
        ({"model": "gpt2", "gpu": "v100", "micro_batch_size": "x"}, "micro_batch_size: expected a whole number"),
        ({"model": "gpt2", "gpu": "v100", "micro_batch_size": float("nan")}, "micro_batch_size: "),
        ({"model": object(), "gpu": "v100"}, "model: a value cannot be a object"),
    ],
    ids=lambda part: part[:40] if isinstance(part, str) else None,
)
def test_a_mistake_in_the_keys_is_found_where_they_are_written(keys: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Job(**keys)
    assert str(caught.value).startswith(message)
    with pytest.raises(InputError):
        fit(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "gpt2-xxl", "gpu": "v10"},
        {"model": "gpt2", "gpu": "v100", "precision": "fsdp-bf16"},
        {"model": "gpt2", "gpu": "v100", "global_batch_size": 7, "micro_batch_size": 2},
    ],
    ids=str,
)
def test_an_error_has_the_message_of_the_command_line(keys: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        fit(Job(**keys))
    said = refused("fit", *arguments_of(keys)).err.splitlines()
    assert [f"error: {problem}" for problem in caught.value.problems] == said
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)


def test_what_a_mapping_says_is_read_when_it_is_answered() -> None:
    job = Job(model="gpt2", gpu={"memory": 24})
    with pytest.raises(InputError, match=r"^gpu\.memory: '24' has no unit"):
        fit(job)


def test_a_job_without_a_model_and_a_gpu_is_refused_when_it_is_answered() -> None:
    with pytest.raises(InputError) as caught:
        fit(Job(micro_batch_size=2))  # type: ignore[call-arg]
    assert [problem.key for problem in caught.value.problems] == ["model", "gpu"]


@pytest.mark.parametrize("wrong", [(Job(**JOBS[0]), {"gpu": "v100"}), ({"model": "gpt2"}, {}), ("gpt2", {})], ids=str)
def test_a_call_that_means_nothing_is_a_type_error(wrong: tuple[Any, dict[str, Any]]) -> None:
    with pytest.raises(TypeError, match="Job or the keys of one"):
        fit(wrong[0], **wrong[1])


def test_nothing_is_printed_and_no_setting_of_the_process_is_changed(capfd: pytest.CaptureFixture[str]) -> None:
    before = (gc.get_threshold(), gc.isenabled())
    fit(**JOBS[0])
    with pytest.raises(InputError):
        fit(model="no such model", gpu="v100")
    assert (gc.get_threshold(), gc.isenabled()) == before
    gc.disable()
    try:
        fit(model=TINY, gpu="24 GiB")
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert capfd.readouterr() == ("", "")


@pytest.mark.sweep
def test_threads_have_the_answers_that_one_thread_has() -> None:
    jobs = JOBS[:4]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda keys: fit(**keys), jobs * 2))
    assert answers == [fit(**keys) for keys in jobs] * 2
    assert gc.isenabled()


def test_what_is_exported_is_what_there_is() -> None:
    assert set(vramplan.__all__) <= set(dir(vramplan))
    for name in vramplan.__all__:
        assert getattr(vramplan, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        vramplan.fitt  # noqa: B018


@pytest.mark.contract
@pytest.mark.parametrize("profiles", [5, b"x", [5], [None], object()])
def test_folders_that_are_none_are_bad_input(profiles: Any) -> None:
    with pytest.raises(InputError, match="expected a folder or several"):
        fit(model="gpt2", gpu="v100", profiles=profiles)
