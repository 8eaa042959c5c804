"""Made from the table of options by `python -m tests.options.made`: the values of a job before defaults."""

from __future__ import annotations


class Values:
    """One attribute for each key, by the kind of its row. None: absent, null or wrong."""

    name: str | None
    sequence_length: int | None
    target_length: int | None
    image_size: int | None
    channels_last: bool | None
    micro_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int | None
    precision: str | None
    from_scratch: bool | None
    optimizer: str | None
    optimizer_implementation: str | None
    optimizer_in_backward: bool | None
    zero_grad: str | None
    max_gradient_norm: float | None
    grad_scaler: bool | None
    ema: bool | None
    activation_checkpointing: str | None
    every_second_matmul: bool | None
    attention: str | None
    expert_imbalance: float | None
    expert_capacity_factor: float | None
    expert_pad_to_capacity: bool | None
    checkpoint_reentrant: bool | None
    loss: str | None
    distillation: str | None
    teacher_logprobs: int | None
    label_smoothing: float | None
    dpo_reference: str | None
    padding: str | None
    packing: bool | None
    varied_lengths: bool | None
    compile: bool | None
    mamba_kernels: bool | None
    liger_kernels: tuple[str, ...]
    tiled_mlp: int | None
    dropout: float | None
    hold_outputs: bool | None
    hold_outputs_until: str | None
    use_cache: bool | None
    adapter_kind: str | None
    adapter_targets: tuple[str, ...] | None
    adapter_feedforward_targets: tuple[str, ...] | None
    adapter_rank: int | None
    adapter_alpha: float | None
    adapter_dropout: float | None
    adapter_modules_to_save: tuple[str, ...] | None
    adapter_dtype: str | None
    adapter_bias: str | None
    adapter_decompose_factor: int | None
    adapter_frequencies: int | None
    adapter_kernels: tuple[str, ...]
    adapter_trainable_tokens: int | None
    adapter_virtual_tokens: int | None
    adapter_encoder_hidden_size: int | None
    adapter_prefix_projection: bool | None
    quantization: str | None
    quantized_experts: bool | None
    qat_weights: str | None
    qat_activations: str | None
    qat_group_size: int | None
    qat_embedding: bool | None
    bitsandbytes: str | None
    frozen: tuple[str, ...]
    trained_blocks: str | None
    eval_batch_size: int | None
    generation_batch_size: int | None
    generation_length: int | None
    offload: tuple[str, ...]
    activation_model: str | None
    activation_bytes: int | None
    checkpoint_factor: float | None
    trainable_parameters: int | None
    data_parallel_size: int
    sharding: str | None
    shards: int | None
    no_sync: bool | None
    gradient_as_bucket_view: bool | None
    fsdp_version: int | None
    reduce_dtype: str | None
    fsdp_units: str | None
    limit_all_gathers: bool | None
    devices_per_node: int | None
    runtime: str | None
    host_memory_bytes: int | None
    gpu_free_bytes: int | None
    pytorch_version: str | None
    transformers_version: str | None
    litgpt_version: str | None
    deepspeed_version: str | None
    cuda_module_loading: str | None
    allocator: str | None
    reserve_bytes: int
    expect: str | None
    max_utilization: float | None
    tokens: int | None
    samples: int | None
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
    sample_size: int | None
    base_batch_size: int | None
    base_learning_rate: float | None
