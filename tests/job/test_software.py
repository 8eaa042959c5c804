"""The CUDA context of a version of PyTorch, and the workspaces of cuBLAS.

The figures are printed ones; where they were printed is in the sources of profiles/runtimes/pytorch.yaml.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.catalog.runtimes import find_runtime_profile, list_runtimes
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.job.machine.software import nearest_figure, version_of
from vramplan.results import FitResult
from vramplan.values.machine import ContextFigure

MIB, GIB = 1 << 20, 1 << 30


def up(gib: float) -> int:
    return -int(-gib * GIB // 1)


def run(gpu: str, **keys: Any) -> FitResult:
    return answer(build_job({"model": "gpt2", "gpu": gpu, "micro_batch_size": 8, **keys}))


def overheads(result: FitResult) -> dict[str, int]:
    return {part.name: part.bytes for part in result.overheads}


PRINTED = [
    ("a100", "1.10.2", "eager", up(1.78)),
    ("a100", "1.13", "eager", up(0.90)),
    ("a100", "2.1.1+cu121", "eager", up(0.92)),
    ("v100", "1.3", "eager", int(1005.25 * MIB)),
    ("rtx-2080-ti", "1.6", "eager", 877 * MIB),
    ("rtx-3090", "1.7", "eager", 1486 * MIB),
]


@pytest.mark.truth
@pytest.mark.parametrize(("gpu", "version", "loading", "context"), PRINTED)
def test_a_printed_context_is_taken_as_it_stands(gpu: str, version: str, loading: str, context: int) -> None:
    job = build_job({"model": "gpt2", "gpu": gpu, "pytorch_version": version, "cuda_module_loading": loading})
    assert job.runtime.context_on(job.gpu.architecture) == context
    assert "context" not in {one.key for one in job.assumptions}


@pytest.mark.truth
def test_a_lazy_context_is_the_first_tensor_and_the_kernels_that_come_later() -> None:
    job = build_job({"model": "gpt2", "gpu": "a100", "pytorch_version": "2.1"})
    assert job.cuda_module_loading == "lazy"
    assert job.runtime.context_bytes == up(0.47) + up(0.16)


@pytest.mark.closed_form
def test_kernels_loaded_late_are_never_more_than_all_of_them() -> None:
    eager = ContextFigure("ampere", "2.1", "eager", 600)
    lazy = ContextFigure("ampere", "2.1", "lazy", 500)
    runtime = build_job({"model": "gpt2", "gpu": "a100"}).runtime._replace(contexts=(eager, lazy))
    from vramplan.job.machine.software import _size

    assert _size(runtime._replace(context_kernels_bytes=200), lazy)[0] == 600
    assert _size(runtime._replace(context_kernels_bytes=50), lazy)[0] == 550
    assert _size(runtime._replace(context_kernels_bytes=50), eager)[0] == 600


FIGURES = (
    ContextFigure("volta", "1.3", "eager", 1),
    ContextFigure("ampere", "1.10", "eager", 2),
    ContextFigure("ampere", "1.13", "eager", 3),
    ContextFigure("ada", "1.13", "eager", 4),
    ContextFigure("ampere", "2.1", "eager", 5),
)


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("version", "architecture", "taken"),
    [
        ("1.2", "volta", 1),
        ("1.5", "ampere", 1),  # the version goes before the card
        ("1.9", "volta", 2),
        ("1.13", "turing", 3),
        ("1.13", "hopper", 4),
        ("2.0", "ampere", 5),  # 1.13 is as near as 2.1, and the larger counts
        ("2.9", "blackwell", 5),
        (None, "volta", 5),  # the newest
        ("1.13", None, 4),  # an unknown card: the larger
    ],
)
def test_the_nearest_figure_is_that_of_the_nearest_version(
    version: str | None, architecture: str | None, taken: int
) -> None:
    found = nearest_figure(FIGURES, "eager", version_of(version) if version else None, architecture)
    assert found is not None
    assert found.context_bytes == taken


def test_where_no_source_has_the_software_the_answer_says_what_was_taken() -> None:
    told = {one.key: one for one in run("h100", pytorch_version="2.9").assumptions}
    assert told["cuda_module_loading"].value == "lazy"
    assert told["context"].why == "no source has lazy PyTorch 2.9 on hopper; the nearest is PyTorch 2.10 on ada"


def test_the_loading_is_taken_as_the_environment_variable_writes_it() -> None:
    job = build_job({"model": "gpt2", "gpu": "a100", "cuda_module_loading": "EAGER"})
    assert job.cuda_module_loading == "eager"


def test_without_a_word_of_software_the_context_is_that_of_the_profile() -> None:
    """The contract: 1.3 GiB on V100, else 0.6 GiB."""
    assert overheads(run("v100"))["context"] == up(1.3)
    assert overheads(run("a100"))["context"] == overheads(run("h100"))["context"] == up(0.6)


def test_every_runtime_takes_the_contexts_of_pytorch() -> None:
    keys = {"model": "llama-3.2-1b", "gpu": "a100", "pytorch_version": "1.13", "cuda_module_loading": "eager"}
    for runtime in ("torchtune", "megatron", "litgpt"):
        assert build_job({**keys, "runtime": runtime}).runtime.context_on("ampere") == up(0.90), runtime


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"pytorch_version": "1.14"}, "pytorch_version: '1.14' is no version of PyTorch"),
        ({"pytorch_version": "newest"}, "pytorch_version: 'newest' is no version of PyTorch"),
        ({"cuda_module_loading": "eagr"}, r"cuda_module_loading: 'eagr' is not a known value \(did you mean eager"),
        ({"pytorch_version": "1.12", "cuda_module_loading": "lazy"}, "lazy loading needs CUDA 11.7"),
        ({"gpu": "mi300x", "pytorch_version": "2.1"}, "no source says what a context takes on cdna3"),
        ({"gpu": "mi300x", "cuda_module_loading": "lazy"}, "cuda_module_loading: no source says"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build_job({"model": "gpt2", "gpu": "a100", **keys})


def test_the_resolved_job_gives_the_same_answer() -> None:
    for keys in ({"pytorch_version": "2.1.2"}, {"cuda_module_loading": "eager"}, {"pytorch_version": "1.9"}):
        job = build_job({"model": "gpt2", "gpu": "h100", **keys})
        again = build_job(job_to_dict(job))
        assert again.runtime == job.runtime
        assert (again.pytorch_version, again.cuda_module_loading) == (job.pytorch_version, job.cuda_module_loading)


# Workspaces


@pytest.mark.truth
def test_cublas_has_the_workspace_that_was_seen_after_a_linear_layer() -> None:
    """pytorch/pytorch issue 95668, on an A10G: 8519680 bytes after forward with PyTorch 2.0, nothing with 1.13."""
    job = build_job({"model": "gpt2", "gpu": "a10g", "pytorch_version": "2.0"})
    assert job.runtime.blas_workspace_on(job.gpu.architecture) == 8519680
    job = build_job({"model": "gpt2", "gpu": "a10g", "pytorch_version": "1.13"})
    assert job.runtime.blas_workspace_on(job.gpu.architecture) == 0


@pytest.mark.closed_form
@pytest.mark.parametrize(("gpu", "libraries"), [("v100", 2 * 8519680), ("h100", 64 * MIB), ("b200", 64 * MIB)])
def test_workspaces_are_a_part_of_what_is_reserved(gpu: str, libraries: int) -> None:
    result = run(gpu, micro_batch_size=16)
    parts = overheads(result)
    assert parts["libraries"] == libraries
    assert result.peak.reserved_bytes == -(-result.peak.allocated_bytes * 104 // 100)
    assert parts["libraries"] + parts["allocator"] == result.peak.reserved_bytes - result.peak.allocated_bytes


@pytest.mark.closed_form
def test_a_small_run_has_no_more_of_them_than_the_factor_leaves() -> None:
    result = run("h100", model="bert-tiny", micro_batch_size=1, sequence_length=64, activation_checkpointing="none")
    parts = overheads(result)
    assert parts["allocator"] == 0
    assert parts["libraries"] == result.peak.reserved_bytes - result.peak.allocated_bytes < 64 * MIB


def test_a_card_whose_libraries_nobody_has_measured_has_no_such_line() -> None:
    assert "libraries" not in overheads(run("mi300x"))
    assert "libraries" not in overheads(run("a100", pytorch_version="1.13"))


def test_every_runtime_says_where_its_workspaces_come_from() -> None:
    for profile in (find_runtime_profile(one.name) for one in list_runtimes()):
        if profile.value("caching_allocator") is False:
            continue  # they are among what it allocates
        for key in ("blas_workspace", "blas_workspace_hopper", "blas_workspace_blackwell"):
            assert profile.fields[key].source in profile.sources, profile.name
        assert profile.fields["blas_workspace_amd"].reason
