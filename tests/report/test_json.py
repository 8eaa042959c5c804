"""The JSON documents: every key, in order, valid against schemas that would notice a missing one."""

from __future__ import annotations

import copy
import dataclasses
import json
from importlib import import_module
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.checkpoints.examples import ANSWER
from tests.explain.examples import small as small_derivation
from tests.report import profile_answers
from tests.report.roofline_answer import small_roofline
from tests.report.textbook_answers import WALK
from tests.timeline.examples import small
from vramplan.errors import Problem, UsageError
from vramplan.report import calibrated, compared, measure, plans, reading, runtimes
from vramplan.report.checkpoints import document as checkpoints_document
from vramplan.report.explain import document as explain_document
from vramplan.report.json import (
    SCHEMAS,
    check_document,
    dumps,
    error_document,
    fit_document,
    gpus_document,
    models_document,
    profile_document,
    schema,
    validate_document,
)
from vramplan.report.roofline import document as roofline_document
from vramplan.report.select import select
from vramplan.report.timeline import document as timeline_document
from vramplan.report.timeline_chart import Drawing
from vramplan.report.walkthrough import document as walkthrough_document
from vramplan.results import FitResult
from vramplan.results.compared import Cell, Comparison
from vramplan.results.listings import RuntimeRow
from vramplan.results.measure import Calibration, CountedFigures, MeasuredRow, Measurement, Predicted
from vramplan.results.plans import Bought, Plan, Search
from vramplan.results.reading import ReadJob, ReadValue, Source

# In the order of docs/job-format.md.
KEYS = [
    "schema_version",
    "vramplan_version",
    "name",
    "verdict",
    "job",
    "exit_code",
    "capacity_bytes",
    "usable_bytes",
    "headroom_bytes",
    "utilization",
    "parameters",
    "weight_dtype",
    "peak",
    "components",
    "overheads",
    "recommended",
    "settings",
    "settings_need_code",
    "checkpoints",
    "alternatives",
    "remedies",
    "assumptions",
    "warnings",
    "stages",
    "host",
    "allocator",
    "advice",
    "time",
    "run",
    "data",
    "solved",
    "run_unknown",
    "limits",
    "decisive",
]


def errors_of(name: str, document: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(schema(name)).iter_errors(json.loads(dumps(document)))]


RUNTIME = RuntimeRow(
    name="torchtune",
    title="torchtune recipes",
    version="0.6.1",
    model_code="torchtune",
    precision="pure-bf16",
    optimizer="adamw",
    optimizer_implementation="fused",
    loss="chunked:8",
    sharding="fsdp",
)


MEASUREMENT = Measurement(
    (
        MeasuredRow("ran", "measured", Predicted("fits", 100, 104, 700), CountedFigures("fits", allocated_bytes=101)),
        MeasuredRow("broken", "error", problems=(Problem("no such model", key="model"),)),
    ),
    "measured.yaml",
)


RATES = (0.5, 8.0, 4.0, 8.0, 40.0, "compute", 2.0, 69.4)
COMPARISON = Comparison(
    axes=("gpu",),
    cells=(
        Cell(
            {"gpu": "a"},
            "fits",
            None,
            1,
            10,
            20,
            2,
            1,
            "none",
            3,
            0.5,
            8.0,
            4.0,
            8.0,
            40.0,
            "compute",
            2.0,
            69.4,
            None,
            None,
            None,
        ),
        Cell({"gpu": "b"}, None, "no such GPU", *[None] * 18),
    ),
    fastest=0,
    cheapest=0,
    cheapest_hour=0,
)


SEARCH = Search(
    axes={},
    combinations=4,
    candidates=8,
    refused=1,
    too_large=1,
    over_limits=0,
    slower=1,
    within=0.1,
    fits=1,
    complete=True,
    plans=(Plan(COMPARISON.cells[0]._replace(options={}), 1, "--loss fused"),),
    fastest=0,
    simplest=0,
    front=(0,),
    ladder=(Bought("plain", "fits", 10, 4.0, None),),
)


READ = ReadJob(
    program="axolotl",
    release="0.19.0",
    released="2026-09-01",
    source="axolotl-ai-cloud/axolotl",
    files=("a.yaml",),
    job={},
    values=(
        ReadValue("micro_batch_size", 2, (Source("micro_batch_size", 2, "a.yaml", 3, 1),)),
        ReadValue("max_gradient_norm", 1.0, (Source("max_grad_norm", 1.0),)),
    ),
    open={},
    without_effect=(Source("seed", 1, "a.yaml", 4, 1),),
    unmodelled={},
    not_understood=(),
    notes=("a note",),
    points_to={},
)
CALIBRATION = Calibration(
    gpu="NVIDIA A100-SXM4-80GB",
    architecture="ampere",
    torch="2.13.0",
    cuda="13.0",
    date="2026-11-23",
    context_bytes=500 << 20,
    first_context_bytes=400 << 20,
    workspace_bytes=8 << 20,
    process_group_bytes=None,
    used_by_others_bytes=0,
    reserved_bytes=100 << 20,
    simulated_bytes=100 << 20,
    allocator_agrees=True,
    file=None,
    text="kind: stack",
)


@pytest.fixture
def documents(
    examples: dict[str, FitResult], check_rows: Any, validate_rows: Any, gpu_rows: Any, model_rows: Any, profile: Any
) -> dict[str, dict[str, Any]]:
    return {
        "fit": fit_document(examples["does not fit"], exit_code=3),
        "timeline": timeline_document(Drawing(small(), None, False)),
        "checkpoints": checkpoints_document(ANSWER),
        "explain": explain_document(small_derivation()),
        "explain-time": roofline_document(small_roofline(examples["fits"])),
        "check": check_document(check_rows),
        "validate": validate_document(validate_rows),
        "gpus": gpus_document(gpu_rows),
        "models": models_document(model_rows),
        "gpu-profile": profile_document(profile),
        "model-profile": profile_document(dataclasses.replace(profile, kind="model")),
        "runtime-profile": profile_document(dataclasses.replace(profile, kind="runtime")),
        "stack-profile": profile_document(dataclasses.replace(profile, kind="stack")),
        "runtimes": runtimes.document([RUNTIME]),
        "walkthrough": walkthrough_document(WALK),
        "measure": measure.document(MEASUREMENT),
        "calibrate": calibrated.document(CALIBRATION),
        "compare": compared.document(COMPARISON),
        "plan": plans.document(SEARCH),
        "read": reading.document(READ),
        "error": error_document([Problem("no such model", key="model", hint="did you mean gpt2?"), Problem("oh")]),
        **{
            f"profile-{kind}": import_module(f"vramplan.report.profiles.{kind}").document(answer)
            for kind, answer in profile_answers.ANSWERS.items()
        },
    }


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_schemas_and_accept_the_documents(name: str, documents: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert errors_of(name, documents[name]) == []


def test_every_answer_is_valid(example: FitResult) -> None:
    assert errors_of("fit", fit_document(example, exit_code=0)) == []


def test_every_key_is_there_in_the_order_of_the_contract(example: FitResult) -> None:
    document = fit_document(example, exit_code=0)
    assert list(document) == KEYS
    assert list(json.loads(dumps(document))) == KEYS


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of every object that the contract fixes (not the job, the change, and the fields of a profile)."""
    if isinstance(value, dict):
        found = [(*path, key) for key in value]
        return found + [
            deeper
            for key, inner in value.items()
            if key not in ("job", "change", "fields", "per_metric", "per_runtime")
            for deeper in paths(inner, (*path, key))
        ]
    if isinstance(value, list) and value:
        return paths(value[0], (*path, 0))
    return []


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_missing_key_is_noticed(name: str, documents: dict[str, Any]) -> None:
    document = copy.deepcopy(documents[name])
    validator = Draft202012Validator(schema(name))
    for path in paths(document):
        holder: Any = document
        for step in path[:-1]:
            holder = holder[step]
        value = holder.pop(path[-1])
        assert not validator.is_valid(document), path
        holder[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("utilization", "0.9"),
        ("capacity_bytes", 1.5),
        ("verdict", "maybe"),
        ("peak.phase", "loss"),
        ("checkpoints", None),
    ],
)
def test_a_wrong_type_is_noticed(path: str, value: Any, documents: dict[str, Any]) -> None:
    broken = copy.deepcopy(documents["fit"])
    *outer, last = path.split(".")
    holder = broken
    for step in outer:
        holder = holder[step]
    holder[last] = value
    assert errors_of("fit", broken)


def test_components_sum_to_allocated(example: FitResult) -> None:
    document = fit_document(example, exit_code=0)
    assert sum(part["bytes"] for part in document["components"]) == document["peak"]["allocated_bytes"]


def test_a_job_that_cannot_be_computed_has_an_error_instead_of_a_verdict(check_rows: Any, validate_rows: Any) -> None:
    last = check_document(check_rows)["results"][-1]
    assert "verdict" not in last
    assert (last["name"], last["passed"], last["exit_code"]) == ("a typing error", False, 2)
    assert last["error"]["problems"][0]["line"] == 12
    assert last["error"]["message"].startswith("jobs.yaml:12:5: model: unknown model")
    last = validate_document(validate_rows)["results"][-1]
    assert (last["exit_code"], last["predicted_bytes"]) == (2, None)


def test_not_a_number_is_refused(examples: dict[str, FitResult]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        dumps(fit_document(examples["fits"]._replace(utilization=float("nan")), exit_code=0))


def test_print_gives_bare_scalars_and_compact_json(examples: dict[str, FitResult]) -> None:
    document = fit_document(examples["fits"], exit_code=0)
    assert select(document, "verdict") == "fits"
    assert select(document, "checkpoints.0.first") == "0"
    assert select(document, "checkpoints.0") == '{"first":0,"last":6}'
    assert select(document, "recommended.micro_batch_size") == "2"
    assert select({"a": None, "b": True, "c": [False]}, "a") == "null"
    assert select({"a": None, "b": True, "c": [False]}, "b") == "true"
    assert select({"a": None, "b": True, "c": [False]}, "c.0") == "false"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("verdikt", "no key 'verdikt' .did you mean verdict"),
        ("memory", "no key 'memory' .did you mean peak.device_bytes"),
        ("fits", "did you mean verdict"),
        ("max-batch-size", "did you mean recommended.micro_batch_size"),
        ("peak.device", "no key 'device' under peak .did you mean device_bytes"),
        ("parameters.xyz", "known here: total, trainable"),
        ("checkpoints.7", "no item '7' in the list checkpoints .it has the items 0 to 6"),
        ("checkpoints.-1", "no item '-1'"),
        ("checkpoints.first", "no item 'first'"),
        ("verdict.0", "verdict is a single value"),
        ("remedies.0", "it is empty"),
        ("", "no key ''"),
    ],
)
def test_an_unknown_key_is_an_error_that_helps(path: str, message: str, examples: dict[str, FitResult]) -> None:
    with pytest.raises(UsageError, match=message):
        select(fit_document(examples["fits"], exit_code=0), path)
