"""The Python API: `fit` answers about a `Job` as `vramplan fit` does. Nothing prints, nothing exits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from typing import Any, Required, TypeAlias, TypedDict, Unpack, overload

from vramplan.answers.fit import answer, known_gpus
from vramplan.job import build_any_job, check_keys
from vramplan.results import FitResult
from vramplan.results.frozen import FrozenDict

PathText: TypeAlias = str | os.PathLike[str]
Folders: TypeAlias = Iterable[PathText] | PathText


class JobKeys(TypedDict, total=False):
    """The keys of a job, as keyword arguments; docs/job-format.md says what each means and what it defaults to."""

    model: Required[PathText | Mapping[str, Any]]
    gpu: Required[PathText | Mapping[str, Any]]
    name: str | None
    sequence_length: int | None
    target_length: int | None
    image_size: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int | None
    precision: str | None
    optimizer: str | None
    optimizer_implementation: str | None
    optimizer_in_backward: bool | None
    max_gradient_norm: float | None
    grad_scaler: bool | None
    ema: bool | None
    activation_checkpointing: str | Mapping[str, Any] | None
    every_second_matmul: bool | None
    expert_imbalance: float | None
    expert_capacity_factor: float | None
    expert_pad_to_capacity: bool | None
    checkpoint_reentrant: bool | None
    attention: str | None
    loss: str | None
    label_smoothing: float | None
    dpo_reference: str | None
    compile: bool | None
    dropout: float | None
    hold_outputs: bool | None
    padding: str | None
    packing: bool | None
    eval_batch_size: int | None
    generation_batch_size: int | None
    generation_length: int | None
    adapter: Mapping[str, Any] | None
    quantization: str | None
    bitsandbytes: str | None
    frozen: Sequence[str] | None
    offload: Sequence[str] | None
    parallel: Mapping[str, Any] | None
    runtime: str | None
    host_memory: str | None
    gpu_free: str | None
    pytorch_version: str | None
    cuda_module_loading: str | None
    allocator: str | None
    reserve: str | None
    expect: str | None
    max_utilization: float | None
    weight_dtype: str | None
    gradient_dtype: str | None
    master_dtype: str | None
    optimizer_state_dtype: str | None
    compute_dtype: str | None
    activation_model: str | None
    activation_bytes: str | None
    checkpoint_factor: float | None
    trainable_parameters: int | str | None
    base_batch_size: int | None
    base_learning_rate: float | None


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Job:
    """The description of one training run, in the keys of the job format: frozen, hashable, picklable.

    A key that is None is left out: its default is taken, or it is chosen, when the job is answered. What can be said
    without looking anything up is checked here, so that a misspelt key or word is found where it is written: raises
    InputError with every problem. `dataclasses.replace(job, gpu="h100-80gb")` gives another job.

    (`vramplan.spec.Job` is what the program makes of it: profiles read, defaults taken.)
    """

    model: str | Mapping[str, Any] | None
    gpu: str | Mapping[str, Any] | None
    name: str | None
    sequence_length: int | None
    target_length: int | None
    image_size: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int | None
    precision: str | None
    optimizer: str | None
    optimizer_implementation: str | None
    optimizer_in_backward: bool | None
    max_gradient_norm: float | None
    grad_scaler: bool | None
    ema: bool | None
    activation_checkpointing: str | Mapping[str, Any] | None
    every_second_matmul: bool | None
    expert_imbalance: float | None
    expert_capacity_factor: float | None
    expert_pad_to_capacity: bool | None
    checkpoint_reentrant: bool | None
    attention: str | None
    loss: str | None
    label_smoothing: float | None
    dpo_reference: str | None
    compile: bool | None
    dropout: float | None
    hold_outputs: bool | None
    padding: str | None
    packing: bool | None
    eval_batch_size: int | None
    generation_batch_size: int | None
    generation_length: int | None
    adapter: Mapping[str, Any] | None
    quantization: str | None
    bitsandbytes: str | None
    frozen: tuple[str, ...] | None
    offload: tuple[str, ...] | None
    parallel: Mapping[str, Any] | None
    runtime: str | None
    host_memory: str | None
    gpu_free: str | None
    pytorch_version: str | None
    cuda_module_loading: str | None
    allocator: str | None
    reserve: str | None
    expect: str | None
    max_utilization: float | None
    weight_dtype: str | None
    gradient_dtype: str | None
    master_dtype: str | None
    optimizer_state_dtype: str | None
    compute_dtype: str | None
    activation_model: str | None
    activation_bytes: str | None
    checkpoint_factor: float | None
    trainable_parameters: int | str | None
    base_batch_size: int | None
    base_learning_rate: float | None

    def __init__(self, **keys: Unpack[JobKeys]) -> None:
        given = {key: _settled(value) for key, value in keys.items() if value is not None}
        check_keys(given)
        for field in fields(self):
            object.__setattr__(self, field.name, given.get(field.name))

    def to_dict(self) -> dict[str, Any]:
        """The keys that are given, in the order of the job format: a job of a job file, but for its name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {key: value for key, value in values if value is not None}

    def __repr__(self) -> str:
        return f"Job({', '.join(f'{key}={value!r}' for key, value in self.to_dict().items())})"


@overload
def fit(job: Job, /, *, profiles: Folders = ()) -> FitResult: ...
@overload
def fit(*, profiles: Folders = (), **keys: Unpack[JobKeys]) -> FitResult: ...
def fit(job: Job | None = None, /, *, profiles: Folders = (), **keys: Any) -> FitResult:
    """Whether a training run fits in GPU memory, what fills it, and how to run it: the answer of `vramplan fit`.

    `fit(job)`, or `fit(model="gpt2-xl", gpu="v100", ...)` for short. `profiles`: folders of profiles that are searched
    before the shipped ones. A run that does not fit is an answer like any other; raises InputError, with every problem
    that was found, for what cannot be computed. Reads profiles, keeps no state: threads and processes may share it.
    """
    if job is None:
        job = Job(**keys)
    elif keys:
        raise TypeError("fit() takes a Job or the keys of one, not both; dataclasses.replace(job, ...) changes a job")
    elif not isinstance(job, Job):
        raise TypeError(f"fit() takes a vramplan.Job or the keys of one, not a {type(job).__name__}")
    folders = [Path(folder) for folder in ([profiles] if isinstance(profiles, str | os.PathLike) else profiles)]
    return answer(build_any_job(job.to_dict(), profile_dirs=folders), lambda: known_gpus(folders))


def _settled(value: Any) -> Any:
    """The value frozen all the way down, paths as text, numbers of other libraries as Python's."""
    if isinstance(value, Mapping):
        return FrozenDict((key, _settled(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_settled(item) for item in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    return index(value) if hasattr(value, "__index__") else value
