"""Made from the table of options by `python -m tests.options.made`: the keys of a job for type checkers and editors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypeAlias, TypedDict

PathText: TypeAlias = str | os.PathLike[str]


class JobKeys(TypedDict, total=False):
    """The keys of a job, as keyword arguments; docs/job-format.md says what each means and what it defaults to."""

    model: Required[PathText | Mapping[str, Any]]
    gpu: Required[PathText | Mapping[str, Any]]
    name: str | None
    sequence_length: int | None
    target_length: int | None
    image_size: int | None
    channels_last: bool | None
    micro_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int | None
    precision: str | None
    weight_dtype: str | None
    from_scratch: bool | None
    gradient_dtype: str | None
    master_dtype: str | None
    optimizer_state_dtype: str | None
    compute_dtype: str | None
    optimizer: str | None
    optimizer_implementation: str | None
    optimizer_in_backward: bool | None
    zero_grad: str | None
    max_gradient_norm: float | None
    grad_scaler: bool | None
    ema: bool | None
    activation_checkpointing: str | Mapping[str, Any] | None
    every_second_matmul: bool | None
    attention: str | None
    expert_imbalance: float | None
    expert_capacity_factor: float | None
    expert_pad_to_capacity: bool | None
    checkpoint_reentrant: bool | None
    loss: str | None
    teacher: Mapping[str, Any] | None
    distillation: str | None
    teacher_logprobs: int | None
    label_smoothing: float | None
    dpo_reference: str | None
    padding: str | None
    packing: bool | None
    varied_lengths: bool | None
    compile: bool | None
    mamba_kernels: bool | None
    liger_kernels: Sequence[str] | None
    tiled_mlp: int | None
    dropout: float | None
    hold_outputs: bool | None
    hold_outputs_until: str | None
    use_cache: bool | None
    adapter: Mapping[str, Any] | None
    quantization: str | None
    quantized_experts: bool | None
    qat: Mapping[str, Any] | None
    bitsandbytes: str | None
    frozen: Sequence[str] | None
    trained_blocks: str | None
    eval_batch_size: int | None
    generation_batch_size: int | None
    generation_length: int | None
    offload: Sequence[str] | None
    activation_model: str | None
    activation_bytes: str | None
    checkpoint_factor: float | None
    trainable_parameters: int | str | None
    parallel: Mapping[str, Any] | None
    runtime: str | None
    host_memory: str | None
    gpu_free: str | None
    pytorch_version: str | None
    transformers_version: str | None
    litgpt_version: str | None
    deepspeed_version: str | None
    cuda_module_loading: str | None
    allocator: str | None
    reserve: str | None
    expect: str | None
    max_utilization: float | None
    tokens: int | str | None
    samples: int | str | None
    epochs: float | None
    compute_optimal: bool | None
    goodput: float | None
    price: str | None
    purchase_price: str | None
    deadline: str | None
    budget: str | None
    pue: float | None
    grid: str | None
    data_rate: str | None
    sample_size: str | None
    base_batch_size: int | None
    base_learning_rate: float | None


@dataclass(frozen=True, slots=True, init=False, repr=False)
class JobFields:
    """The same as attributes of a job; a key that is None is left out."""

    model: str | Mapping[str, Any] | None
    gpu: str | Mapping[str, Any] | None
    name: str | None
    sequence_length: int | None
    target_length: int | None
    image_size: int | None
    channels_last: bool | None
    micro_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int | None
    precision: str | None
    weight_dtype: str | None
    from_scratch: bool | None
    gradient_dtype: str | None
    master_dtype: str | None
    optimizer_state_dtype: str | None
    compute_dtype: str | None
    optimizer: str | None
    optimizer_implementation: str | None
    optimizer_in_backward: bool | None
    zero_grad: str | None
    max_gradient_norm: float | None
    grad_scaler: bool | None
    ema: bool | None
    activation_checkpointing: str | Mapping[str, Any] | None
    every_second_matmul: bool | None
    attention: str | None
    expert_imbalance: float | None
    expert_capacity_factor: float | None
    expert_pad_to_capacity: bool | None
    checkpoint_reentrant: bool | None
    loss: str | None
    teacher: Mapping[str, Any] | None
    distillation: str | None
    teacher_logprobs: int | None
    label_smoothing: float | None
    dpo_reference: str | None
    padding: str | None
    packing: bool | None
    varied_lengths: bool | None
    compile: bool | None
    mamba_kernels: bool | None
    liger_kernels: tuple[str, ...] | None
    tiled_mlp: int | None
    dropout: float | None
    hold_outputs: bool | None
    hold_outputs_until: str | None
    use_cache: bool | None
    adapter: Mapping[str, Any] | None
    quantization: str | None
    quantized_experts: bool | None
    qat: Mapping[str, Any] | None
    bitsandbytes: str | None
    frozen: tuple[str, ...] | None
    trained_blocks: str | None
    eval_batch_size: int | None
    generation_batch_size: int | None
    generation_length: int | None
    offload: tuple[str, ...] | None
    activation_model: str | None
    activation_bytes: str | None
    checkpoint_factor: float | None
    trainable_parameters: int | str | None
    parallel: Mapping[str, Any] | None
    runtime: str | None
    host_memory: str | None
    gpu_free: str | None
    pytorch_version: str | None
    transformers_version: str | None
    litgpt_version: str | None
    deepspeed_version: str | None
    cuda_module_loading: str | None
    allocator: str | None
    reserve: str | None
    expect: str | None
    max_utilization: float | None
    tokens: int | str | None
    samples: int | str | None
    epochs: float | None
    compute_optimal: bool | None
    goodput: float | None
    price: str | None
    purchase_price: str | None
    deadline: str | None
    budget: str | None
    pue: float | None
    grid: str | None
    data_rate: str | None
    sample_size: str | None
    base_batch_size: int | None
    base_learning_rate: float | None
