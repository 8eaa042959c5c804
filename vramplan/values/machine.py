"""A GPU and a training program's policy, as frozen values. Sizes are integer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vramplan.tuples import NamedTuple

PCIE_MOST = 130e9
"""Bytes per second of both ways of the fastest PCIe; a faster link is NVLink or Infinity Fabric."""


WITH_TF32 = ("ampere", "ada", "hopper", "blackwell")
WITH_TENSOR_CORES = ("volta", "turing", *WITH_TF32)
"""Generations of NVIDIA's GPUs that multiply in TF32, and in 16 bits (NVIDIA, CUDA C++ Programming Guide, 16.1)."""


class LinkShares(NamedTuple):
    """What collectives reach of the rate of a link, one way, and copies between a GPU and its host."""

    nvlink: float
    network: float
    pcie: float
    host: float


class Gpu(NamedTuple):
    """One accelerator. None means unknown: it never refuses a kernel, and is listed as an assumption."""

    name: str
    capacity_bytes: int  # what the framework sees, rounded down
    capacity_basis: str  # "visible" (a source says so) | "nominal" (data sheet) | "given" (by the user)
    title: str | None = None
    architecture: str | None = None  # volta, turing, ampere, ...
    compute_capability: str | None = None  # "7.0"
    bf16: bool | None = None
    flash_attention: bool | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    note: str | None = None  # said with the answer: "v100 is the 32 GiB part; the other is v100-16gb"
    free_bytes: int | None = None  # now, of a card of this machine; a resolved job has it as `gpu_free_bytes`
    # dense rates of the data sheet
    fp32_flop_per_s: float | None = None  # without tensor cores
    fp16_flop_per_s: float | None = None
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    link_bytes_per_s: float | None = None  # to other GPUs of the machine, both directions added
    tdp_watts: float | None = None
    multiprocessors: int | None = None
    product_flop_per_s: float | None = None  # of the best 16-bit product that somebody measured
    # of fused attention by kernel, measured without a mask: forward and backward of heads of 64, then of 128
    attention_flop_per_s: tuple[tuple[str, tuple[float, ...]], ...] = ()
    # of the usual machine of such GPUs, each way (profiles/platforms): its network cards together, a GPU and its host
    network_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None
    link_shares: LinkShares | None = None
    link_peers: int | None = None  # others that it has a link each to, among which its rate is split; None: a switch
    link_domain: int | None = None  # GPUs that its links join, of several machines; None: those of one machine

    @property
    def has_nvlink(self) -> bool:
        """Whether its link to other GPUs is faster than any PCIe."""
        return self.link_bytes_per_s is not None and self.link_bytes_per_s > PCIE_MOST


class ContextFigure(NamedTuple):
    """A CUDA context that somebody measured: on which architecture, of which PyTorch, and how its kernels come."""

    architecture: str
    version: str  # 2.1
    loading: str  # lazy | eager
    context_bytes: int


class Runtime(NamedTuple):
    """A training framework as a policy: what it does where the model and the job leave it open.

    Its figures are read from `profiles/runtimes/` and `profiles/stacks/`, each with a source.
    """

    name: str
    title: str
    optimizer_implementation: str  # of Adam and AdamW, where the job leaves it open
    loss: str  # "causal-lm-fp32": the causal loss upcasts the logits | "causal-lm": it does not | "causal-lm-in-place"
    gradients: str  # "set-to-none": made in backward, gone after the step | "persistent": buffers that stay
    context_bytes: int  # CUDA context and modules, outside the allocator
    context_by_architecture: Mapping[str, int] = MappingProxyType({})
    context_basis: str = ""  # what it is a figure of; empty: the profile's own, of no version
    contexts: tuple[ContextFigure, ...] = ()  # where a job names a version
    context_kernels_bytes: int = 0  # what a lazy context loads after the first tensor
    blas_workspace_bytes: int | None = None  # of each thread that multiplies, in the allocator; None: not known
    blas_workspace_by_architecture: Mapping[str, int | None] = MappingProxyType({})
    process_group_bytes: int = 0  # of a communicator of NCCL, outside the allocator too
    calibrated: str | None = None  # the architecture on which context and workspaces were measured on this machine
    calibrated_groups: str | None = None  # and the communicator
    # releases of PyTorch, from which on
    lazy_loading_since: tuple[int, int] = (1, 13)  # it asks CUDA to load kernels when they are first used
    workspaces_since: tuple[int, int] = (2, 0)  # the workspaces of cuBLAS are in the caching allocator
    gradients_set_to_none_since: tuple[int, int] = (2, 0)  # zero_grad frees gradients unless it is told not to
    foreach_adam_in_place_since: tuple[int, int] = (2, 1)  # its denominators are the square roots, in place
    limited_gathers_since: tuple[int, int] = (2, 1)  # FSDP1 waits before it gathers a third unit
    second_flash_since: tuple[int, int] = (2, 2)  # its flash kernel is FlashAttention 2
    # and of Transformers, in models that are built like Llama
    logits_returned_since: tuple[int, int] = (4, 46)  # as they are, not in fp32
    shifted_labels_since: tuple[int, int] = (4, 49)  # its loss shifts labels, not logits
    one_attention_since: tuple[int, int] = (4, 48)  # all models call sdpa_attention_forward
    grouped_attention_since: tuple[int, int] = (4, 54)  # kernels are given fewer key-value heads
    batched_masks_since: tuple[int, int] = (4, 53)  # a causal mask of each sequence
    strided_attention_since: tuple[int, int] = (4, 56)  # and queries, keys and values as they lie
    stacked_experts_since: tuple[int, int] = (5, 0)  # the weights of all experts are one tensor
    read_on_device_since: tuple[int, int] = (4, 50)  # a weight that is quantized comes to the device as it is read
    quantized_room_since: tuple[int, int] = (4, 51)  # and a block is asked for first, as for others: of half of them
    tied_once_since: tuple[int, int] = (4, 54)  # with a weight that is tied counted once
    counted_bits_since: tuple[int, int] = (5, 0)  # of the bits that they will have
    quantized_as_read_since: tuple[int, int] = (5, 0)  # one of 4 bits is not moved to the host and back before
    exact_layers_since: tuple[int, int] = (5, 5)  # bitsandbytes is given nn.Linear, and no class made of it
    # of LitGPT
    wide_norms_since: tuple[int, ...] = (0, 4, 6)  # RMSNorm multiplies by its weight in fp32
    copied_places_since: tuple[int, ...] = (0, 5, 13)  # places of LoRA's parts are copied out of their buffer
    projections_apart_since: tuple[int, ...] = (0, 5, 5)  # queries, keys and values of all heads lie behind each other
    # of DeepSpeed
    flat_on_device_since: tuple[int, ...] = (0, 18, 7)  # ZeRO 1 and 2 copy the weights into one buffer on the device
    fused_rms_norm_since: tuple[int, int] = (2, 9)  # nn.RMSNorm is one kernel; before that it is composed of its parts
    cache_objects_since: tuple[int, int] = (2, 2)  # Transformers has a cache that blocks fill, and no tuples
    embedding_states: str = "as-others"  # of 8-bit optimizers: "fp32": embeddings are left out
    quantized_from: str | None = None  # the element type that it brings weights to, to quantize them; None: their own
    caches: bool = True  # whether an allocator keeps what is freed; else everything is allocated once
    engine: str = "transformers"  # the training program, as it is registered (vramplan/engines)
    defaults: Mapping[str, Any] = MappingProxyType({})  # what a job has where it says nothing (job/runtime.py)
    only: Mapping[str, Any] = MappingProxyType({})  # the words that it knows of a key; "one_device": True
    checkpointing_settings: tuple[str, ...] | None = None  # strategies that it has a setting for; None: not known
    notes: Mapping[str, str] = MappingProxyType({})  # what its profile says of a field

    @property
    def last_with_own_layers(self) -> str:
        """The last release of Transformers before `exact_layers_since`."""
        return f"{self.exact_layers_since[0]}.{self.exact_layers_since[1] - 1}"

    def context_on(self, architecture: str | None) -> int:
        """Bytes of the CUDA context on a GPU of this architecture."""
        return self.context_by_architecture.get(architecture or "", self.context_bytes)

    def blas_workspace_on(self, architecture: str | None) -> int | None:
        """Bytes of the workspace that PyTorch gives a handle of cuBLAS; None: not known."""
        return self.blas_workspace_by_architecture.get(architecture or "", self.blas_workspace_bytes)
