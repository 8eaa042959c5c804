"""Job files: what spoils a file, what spoils one job, and defaults."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramplan.errors import InputError
from vramplan.job import JobEntry, read_job_file
from vramplan.options import table, words

HEAD = "version: 1\ndefaults:\n  gpu: {name: some label, memory: 80 GiB}\n  model: {family: gpt2}\n"
TRACED = Path(__file__).resolve().parents[1] / "oracle"


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, name: str = "jobs.yaml") -> list[JobEntry]:
        path = tmp_path / name
        path.write_text(text)
        return read_job_file(path)

    return read


def refused(read, text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text)
    return [str(problem).rpartition("/")[2] for problem in caught.value.problems]


def test_jobs_come_in_the_order_of_the_file(read) -> None:
    entries = read(HEAD + "jobs:\n- name: b\n- {name: a, micro_batch_size: 4}\n")
    assert [(entry.name, entry.line, entry.problems) for entry in entries] == [("b", 6, ()), ("a", 7, ())]
    assert entries[1].job is not None
    assert entries[1].job.micro_batch_size == 4
    assert entries[1].job.name == "a"


def test_json_is_a_job_file_too(read) -> None:
    job = {"name": "x", "model": {"family": "llama"}, "gpu": {"memory": "80 GiB"}, "dropout": 1e-05}
    entries = read(json.dumps({"version": 1, "jobs": [job]}), "jobs.json")
    assert entries[0].job is not None
    assert entries[0].job.dropout == 1e-05


def test_defaults_are_merged_deeply_and_lists_replaced(read) -> None:
    entries = read(
        "version: 1\n"
        "defaults:\n"
        "  gpu: {name: label, memory: 80 GiB}\n"
        "  model: {family: llama, layers: 3, hidden_size: 256, attention_heads: 4}\n"
        "  parallel: {data: 4}\n"
        "  use: [peak, fit]\n"
        "jobs:\n"
        "- {name: a, model: {layers: 5}, parallel: {sharding: none}, use: [mfu]}\n"
        "- {name: b, model: gpt2-xl, gpu: {memory: 40 GiB}}\n"
    )
    first, second = (entry.job for entry in entries)
    assert first is not None
    assert second is not None
    assert (first.model.layers, first.model.hidden_size, first.data_parallel_size, first.case) == (
        5,
        256,
        4,
        {"use": ["mfu"]},
    )
    assert (second.model.name, second.gpu.capacity_bytes, second.gpu.name) == ("gpt2-xl", 40 * 2**30, "label")


def test_one_job_that_is_not_modelled_does_not_spoil_the_others(read) -> None:
    entries = read(
        HEAD + "jobs:\n- name: a\n- name: b\n  offload: [optimizer]\n  precision: fsdp-bf16\n- {name: c, gpu: nosuch}\n"
        "- {name: d, micro_batch_size: 3, gradient_accumulation_steps: 2, global_batch_size: 7}\n"
    )
    assert [entry.job is not None for entry in entries] == [True, False, False, False]
    assert str(entries[1].problems[0]).endswith(
        "/jobs.yaml:8:12: jobs.1.offload: optimizer: offloading is not modelled with parallel.sharding none "
        "(offload: [activations] without sharding; [optimizer, gradients] with zero2; all with zero3 or fsdp)"
    )
    assert len(entries[1].problems) == 2
    assert "there is no GPU profile 'nosuch'" in entries[2].problems[0].message
    assert "3 * gradient_accumulation_steps 2 * data 1 = 6, not 7" in entries[3].problems[0].message


def test_the_whole_file_is_broken_by_its_form_and_everything_is_said(read) -> None:
    assert refused(
        read,
        "version: 2\nextra: 1\ndefaults:\n  precison: fp16\n  name: x\njobs:\n"
        "- name: a\n  micro_batch_size: four\n  compile: true\n"
        "- name: a\n  model: {family: gpt2, layers: 1.5}\n"
        "- micro_batch_size: 1\n  micro_batch_size: 2\n"
        "- 5\n",
    ) == [
        "jobs.yaml:1:10: version: 2 is not supported (this vramplan reads version 1)",
        "jobs.yaml:2:1: extra: unknown key (known: version, defaults, jobs)",
        "jobs.yaml:4:3: defaults.precison: unknown key (did you mean precision?)",
        "jobs.yaml:5:9: defaults.name: a name belongs to one job, not to the defaults",
        "jobs.yaml:8:21: jobs.0.micro_batch_size: expected a whole number, not 'four'",
        "jobs.yaml:10:9: jobs.1.name: 'a' names another job too, at line 7",
        "jobs.yaml:11:33: jobs.1.model.layers: expected a whole number, not 1.5",
        "jobs.yaml:13:3: micro_batch_size: the key is given twice; first at line 12, column 3",
        "jobs.yaml:14:3: jobs.3: expected keys and values, not '5'",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs: [{name: a}]", "version: required key is missing (version: 1)"),
        ("model: gpt2\ngpu: t4", "jobs.yaml:1:1: model: is a key of a job, and belongs below jobs (a file of jobs has"),
        ("version: 1", "jobs: required key is missing"),
        ("version: 1\njobs: []", "there are no jobs"),
        ("version: 1\njobs: 5", "expected a list"),
        ("version: 1\njobs: {a: 1}", "expected a list"),
        ("version: 1\njobs:\n- precision: fp32", "name: required key is missing"),
        ("version: 1\njobs:\n- {name: null, precision: fp32}", "name: required key is missing"),
        ("version: '1'\njobs: [{name: a}]", "expected a whole number"),
        ("version: 1\ndefaults: [1]\njobs: [{name: a}]", "defaults: expected keys and values, not a list"),
        ("version: 1\njobs: [{name: a, measured: {peak: 1}}]", "measured.peak: unknown key"),
        ("version: 1\njobs: [{name: a, measured: {metric: vram}}]", "'vram' is not a known value"),
        ("version: 1\njobs: [{name: a, use: [pek]}]", "'pek' is not a known value"),
        ("version: 1\njobs: [{name: a, gpu: {memory: 32}}]", "jobs.0.gpu.memory: '32' has no unit of bytes"),
        ("version: 1\njobs: [{name: a, trace: {x: .nan}}]", "not a finite number"),
        ("version: 1\njobs: [{name: a, activation_checkpointing: none of it}]", "is not a known value"),
    ],
)
def test_broken_files(read, text: str, message: str) -> None:
    assert any(message in problem for problem in refused(read, text))


def test_problems_of_the_defaults_are_said_once(read) -> None:
    jobs = "".join(f"- name: job{n}\n" for n in range(50))
    assert len(refused(read, f"version: 1\ndefaults: {{precision: fp61}}\njobs:\n{jobs}")) == 1


def test_a_flood_of_problems_is_cut_short(read) -> None:
    jobs = "".join(f"- {{name: job{n}, precision: x}}\n" for n in range(500))
    found = refused(read, f"version: 1\njobs:\n{jobs}")
    assert len(found) == 51
    assert "and 450 more problems" in found[-1]


def test_a_validation_case_keeps_what_is_measured(read) -> None:
    entries = read(
        HEAD + "jobs:\n- name: a\n  measured: {peak_bytes: 1e9, metric: allocated, outcome: fits, mfu: 45.2}\n"
        "  use: [peak]\n  trace: {a: {b: 1.5}}\n  source: {title: t}\n  confidence: high\n"
        "  notes: >\n    two\n    lines\n"
    )
    assert entries[0].job is not None
    case = entries[0].job.case
    assert case["measured"] == {"peak_bytes": 1e9, "metric": "allocated", "outcome": "fits", "mfu": 45.2}
    assert set(case) == {"measured", "use", "trace", "source", "confidence", "notes"}


def test_a_relative_model_is_found_beside_the_file(read, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 5}')
    monkeypatch.chdir("/")
    entries = read("version: 1\njobs:\n- {name: a, model: ./config.json, gpu: {memory: 80 GiB}}\n")
    assert entries[0].job is not None
    assert entries[0].job.model.layers == 5


def test_standard_input_is_a_job_file(monkeypatch) -> None:
    import io
    import sys
    from types import SimpleNamespace

    data = (HEAD + "jobs: [{name: a}]").encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_job_file("-")[0].job is not None


@pytest.mark.plain
@pytest.mark.parametrize("file", ["random", "families"])
def test_every_entry_of_a_large_file_is_a_job(file: str) -> None:
    entries = read_job_file(TRACED / f"{file}.json")
    assert len(entries) > 250
    assert [entry.problems for entry in entries if entry.job is None] == []


WORDS = ["fp32", "amp-fp16", "full", "every:2", "flash", "32 GiB", "v100", "gpt2", "1 GB/s", "llama", "layers:[[0,1]]"]
NESTED = ["name", "memory", "family", "layers", "data", "kind", "x", "peak_bytes"]
numbers = st.integers(-(10**6), 10**12) | st.floats()
scalar = st.none() | st.booleans() | numbers | st.text(max_size=6) | st.sampled_from(WORDS)
junk = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NESTED), inner, max_size=4),
    max_leaves=6,
)
keys = st.sampled_from([*table.inside(), *words.CASE_KEYS, "x"])
documents = st.fixed_dictionaries(
    {"version": st.just(1) | junk, "jobs": st.lists(st.dictionaries(keys, junk, max_size=8) | junk, max_size=3) | junk},
    optional={"defaults": st.dictionaries(keys, junk, max_size=4) | junk, "x": junk},
)


@pytest.mark.sweep(6)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300)
@given(documents)
def test_junk_documents_raise_nothing_else(tmp_path: Path, document: object) -> None:
    path = tmp_path / "junk.json"
    path.write_text(json.dumps(document))
    with contextlib.suppress(InputError):
        read_job_file(path)


@pytest.mark.sweep(6)
@settings(deadline=None, max_examples=300)
@given(st.dictionaries(keys, junk, max_size=8))
def test_junk_options_raise_nothing_else(raw: dict[str, object]) -> None:
    from vramplan.job import build_job

    with contextlib.suppress(InputError):
        build_job({"model": {"family": "gpt2"}, "gpu": {"memory": "80 GiB"}, **raw})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("sharding", "parallel: {sharding: ...}"),
        ("gpus", "parallel: {data: ...}"),
        ("batch_size", "micro_batch_size"),
        ("seq_len", "sequence_length"),
        ("adapterr", "adapter"),
    ],
)
def test_a_key_that_the_command_line_has_leads_to_ours(read, key: str, meant: str) -> None:
    found = refused(read, f"version: 1\njobs:\n- {{name: a, model: gpt2, gpu: v100, {key}: 8}}\n")
    assert found == [f"jobs.yaml:3:37: jobs.0.{key}: unknown key (did you mean {meant}?)"]


def test_an_adapter_may_be_its_kind_alone(read) -> None:
    entries = read("""version: 1
defaults: {model: mistral-7b, gpu: rtx-4090, adapter: lora}
jobs:
- {name: of the defaults}
- {name: beside a setting, adapter: {rank: 16}}
- {name: another, adapter: qlora}
- {name: none, adapter: none, micro_batch_size: 1}
- {name: each, matrix: {adapter: [none, lora]}}
""")
    jobs = [entry.job for entry in entries]
    found = [(job.adapter and (job.adapter.kind, job.adapter.rank), job.quantization) for job in jobs if job]
    lora, none = (("lora", 8), None), (None, None)
    assert found == [lora, (("lora", 16), None), (("lora", 8), "nf4"), none, none, lora]
