"""What a trace on tensors without data puts in the place of kernels that only CUDA has, and of numbers that nobody has.

A kernel that writes into what is there already allocates nothing, so that nothing is in its place. A number that is
read off a tensor is 0 or 1: what is allocated does not depend on it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.utils import clip_grad

from vramplan.measure import kernels, known, liger, lora_kernels, sounds
from vramplan.measure.runnable import APOLLO, BITSANDBYTES, GALORE_8BIT
from vramplan.options import words
from vramplan.values.job import ResolvedJob

CODES = 256  # of a code book of bitsandbytes


class Truth:
    """What a truth value is that the libraries read off the device: whether all of something is as it should be."""

    value = True


def stand_ins(truth: Truth) -> dict[Any, Callable[..., Any]]:
    """Operators that are not run, and what stands in for each."""
    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = {
        aten._local_scalar_dense.default: partial(_number, truth),
        aten.equal.default: lambda *_: True,
        aten._amp_foreach_non_finite_check_and_unscale_.default: _nothing,
        aten._amp_update_scale_.default: lambda scale, *_: scale,
        aten._grouped_mm.default: _grouped,
        aten.constant_pad_nd.default: kernels.padded,
        aten.im2col.default: kernels.unfolded,
        aten.col2im.default: kernels.folded,
        aten._fused_rms_norm.default: kernels.normed,
        aten._fused_rms_norm_backward.default: kernels.of_normed,
        aten.native_layer_norm_backward.default: kernels.of_layer_norm,
        aten.index.Tensor: _indexed,
        aten.nonzero.default: lambda mask: mask.new_empty((mask.numel(), mask.dim()), dtype=torch.int64),
        aten.masked_scatter_backward.default: lambda gradient, _, sizes: gradient.new_empty(sizes),
        aten._fused_sgd_.default: _nothing,
        aten._fused_adam_.default: _nothing,
        aten._fused_adamw_.default: _nothing,
        aten._fused_adagrad_.default: _nothing,
        **sounds.stand_ins(),
    }
    return found


def _nothing(*_: Any, **__: Any) -> None:
    """A kernel that writes into its arguments."""


def _indexed(x: Any, indices: Any) -> Any:
    """What is indexed; of a mask every place counts, as nobody knows which are true."""
    mask = indices[0]
    if mask is None or mask.dtype is not torch.bool:
        return torch.ops.aten.index.Tensor(x, indices)
    return x.new_empty(mask.numel(), *x.shape[mask.dim() :])


def _grouped(left: Any, right: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """The result of a grouped product of experts, whose rule for tensors without data knows bf16 alone.

    Source: aten/src/ATen/native/cuda/GroupedBlas.cpp, _grouped_mm_cuda; GroupedMMUtils.h.
    """
    if left.dim() == 2 and right.dim() == 2:
        return left.new_empty(offs.shape[0], left.shape[0], right.shape[1])
    if left.dim() == 2:
        return left.new_empty(left.shape[0], right.shape[-1])
    return left.new_empty(left.shape[1], right.shape[-1])


def _number(truth: Truth, x: Any) -> bool | int | float:
    """0 of what is on the device; 1 of what is on the host, where optimizers count their steps."""
    said: bool | int | float | None = known.number(x)
    if said is not None:
        return said
    if x.dtype is torch.bool:
        return truth.value
    counted = 1 if x.device.type == "cpu" else 0
    return float(counted) if x.is_floating_point() else counted


def _image_mask(self: Any, input_ids: Any, inputs_embeds: Any, image_features: Any) -> Any:
    """LlavaModel.get_placeholder_mask without its check, whose message reads a number off the GPU."""
    mask = input_ids == self.config.image_token_id
    return mask.unsqueeze(-1)


class Count:
    """A number that a model counts its updates with, beside tensors without data."""

    def __eq__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: int) -> Count:
        return self

    def to(self, device: Any) -> Any:
        """A copy on the device."""
        return torch.empty((), dtype=torch.int64, device=device)


class _Kernel:
    """A Triton kernel: called with a grid, it writes into its arguments."""

    def __getitem__(self, _: Any) -> Callable[..., None]:
        return _nothing


@contextlib.contextmanager
def without_kernels(job: ResolvedJob, truth: Truth) -> Iterator[None]:
    """The libraries of the job, without the kernels of their own, and with masks of what the job says of its tokens."""
    # programs with models of their own do without it, and so did Transformers before 4.53
    masking_utils = import_module("transformers.masking_utils") if find_spec("transformers.masking_utils") else None

    def untrue(plain: Callable[..., Any]) -> Callable[..., Any]:
        def asks(*given: Any, **named: Any) -> Any:
            truth.value = False
            try:
                return plain(*given, **named)
            finally:
                truth.value = True

        return asks

    with contextlib.ExitStack() as stack:
        without_device(job, stack)
        if masking_utils is not None:
            _masks_as_said(job, masking_utils, untrue, stack)
        if job.model.waveform is not None:
            sounds.without_randomness(job, stack)
        if job.model.any_image_size:
            stack.enter_context(patch.object(torch, "tensor", known.of_numbers(torch.tensor)))
        elif job.model.takes_images and job.model.task == "lm":
            from transformers.models.llava.modeling_llava import LlavaModel

            stack.enter_context(patch.object(LlavaModel, "get_placeholder_mask", _image_mask))
        if job.loss in ("tiled", "dpo", "grpo"):
            module = import_module("trl.kernels.chunked_logprob")
            for name in ("_forward_kernel", "_backward_kernel"):
                stack.enter_context(patch.object(module, name, _Kernel()))
            stack.enter_context(patch.object(module, "_use_triton", lambda _: True))
        if job.loss == "tiled" and job.teacher is not None:
            module = import_module("trl.kernels.chunked_divergence")
            for name in ("_stats_kernel", "_jsd_kernel", "_backward_kernel"):
                stack.enter_context(patch.object(module, name, _Kernel()))
            for one in (module, import_module("trl.trainer.distillation_trainer")):
                stack.enter_context(patch.object(one, "_use_triton", lambda _: True))
        if job.loss in ("orpo", "cpo", "simpo"):
            module = import_module("trl.kernels.logprob_entropy")
            for name in ("_forward_kernel", "_backward_kernel"):
                stack.enter_context(patch.object(module, name, _Kernel()))
        if job.loss == "tiled" and job.teacher is None:
            # backward looks there for what gathers the weights of DeepSpeed, and the file imports much else
            utils = SimpleNamespace(maybe_gather_lm_head_ctx=lambda *_: contextlib.nullcontext())
            stack.enter_context(patch.dict(sys.modules, {"trl.trainer.utils": utils}))
        if job.loss == "fused":
            module = import_module("liger_kernel.ops.fused_linear_cross_entropy")
            for name in ("liger_cross_entropy_kernel", "element_mul_kernel"):
                stack.enter_context(patch.object(module, name, _Kernel()))
        liger.without_kernels(job, stack, _Kernel())
        lora_kernels.without_kernels(job, stack, _nothing)
        word = job.optimizer.partition(":")[0]
        is_its_own = word in (*BITSANDBYTES, GALORE_8BIT) or job.fp32_states
        if is_its_own and (job.sharding is not None or not words.over_master_copy(job.precision)):
            _without_bitsandbytes(stack)
        if word == APOLLO:
            _without_seeds(stack)
        if word in words.OPTIMI_OPTIMIZERS:
            _without_kernels_of_optimi(stack)
        yield


def _without_kernels_of_optimi(stack: contextlib.ExitStack) -> None:
    """The kernels of torch-optimi, which write into their arguments."""
    for name in ("adam", "stableadamw"):
        module = import_module(f"optimi.{name}")
        for kernel in [one for one in vars(module) if one.endswith("_kernel")]:
            stack.enter_context(patch.object(module, kernel, _Kernel()))
        stack.enter_context(patch.object(module, "_device_guard", contextlib.nullcontext))


def _masks_as_said(
    job: ResolvedJob, masking_utils: Any, untrue: Callable[..., Any], stack: contextlib.ExitStack
) -> None:
    """Masks of what the job says of its tokens, where Transformers would look at them."""
    looks = {"find_packed_sequence_indices": job.packing}
    padded = job.padding != "none"
    looks["_ignore_bidirectional_mask_sdpa"] = padded
    looks["_ignore_causal_mask_sdpa"] = padded and job.model.task != "seq2seq"  # nobody masks a decoder's tokens
    for name, given in looks.items():
        if given:  # not every token is one of one sequence
            stack.enter_context(patch.object(masking_utils, name, untrue(getattr(masking_utils, name))))
    if padded:
        _patch_everywhere(stack, masking_utils, "create_recurrent_attention_mask", untrue)
    if hasattr(masking_utils, "is_tracing"):  # since Transformers 5.0
        stack.enter_context(patch.object(masking_utils, "is_tracing", lambda _=None: False))  # as with data
    if not job.packing:  # it looks for packed sequences in the data
        stack.enter_context(patch.object(masking_utils, "find_packed_sequence_indices", _nothing))


def _patch_everywhere(stack: contextlib.ExitStack, of: Any, name: str, around: Callable[..., Any]) -> None:
    """Put something around a function of a module in every one that has imported it."""
    plain = getattr(of, name)
    instead = around(plain)
    for module in [one for one in sys.modules.values() if vars(one).get(name) is plain]:
        stack.enter_context(patch.object(module, name, instead))


def without_device(job: ResolvedJob, stack: contextlib.ExitStack) -> None:
    """What PyTorch itself asks of a device that is not there."""
    stack.enter_context(patch.object(torch.cuda, "synchronize", _nothing))
    instead = kernels.layout_of_convolution
    stack.enter_context(patch.object(torch._C, "_conv_determine_backend_memory_format", instead))
    # a thread of the engine does not know that numbers become tensors without data
    stack.enter_context(torch.autograd.set_multithreading_enabled(False))
    stack.enter_context(patch.object(torch.cuda, "get_device_capability", lambda *_, **__: _capability(job)))
    # one norm of all gradients: on CUDA a tensor is of a type that it is made for
    stack.enter_context(patch.object(clip_grad, "_has_foreach_support", lambda *_: True))


def _capability(job: ResolvedJob) -> tuple[int, int]:
    """That of the job's GPU; what is unknown counts as a recent one."""
    major, _, minor = (job.gpu.compute_capability or "8.0").partition(".")
    return int(major), int(minor)


def _without_seeds(stack: contextlib.ExitStack) -> None:
    """APOLLO draws with a generator of the device, which a PyTorch without CUDA has not (random_projector.py)."""
    module = import_module("apollo_torch.random_projector")

    def drawn(shape: Any, seed: int, device: Any = None, dtype: Any = None) -> Any:
        return torch.randn(shape, device=device, dtype=dtype)

    stack.enter_context(patch.object(module, "stable_randn", drawn))
    stack.enter_context(patch.object(module, "next_seed", lambda seed: seed))


def _without_bitsandbytes(stack: contextlib.ExitStack) -> None:
    """Its optimizers' kernels, code books and managed memory.

    Source: bitsandbytes 0.50.2, functional.py: optimizer_update_32bit and optimizer_update_8bit_blockwise write in
    place, create_dynamic_map gives 256 numbers, and get_paged is memory that the allocator of PyTorch does not have.
    Which kernels there are: backends/cuda/ops.py, str2optimizer32bit and str2optimizer8bit_blockwise.
    """
    module = import_module("bitsandbytes.functional")
    optimizer = import_module("bitsandbytes.optim.optimizer")

    def paged(*shape: int, dtype: Any, device: Any) -> Any:
        made = torch.empty(shape, dtype=dtype, device="cpu")
        made.is_paged = True
        made.page_deviceid = 0
        return made

    def update(name: str, gradient: Any, weight: Any, *_: Any, max_unorm: float = 0.0, **__: Any) -> None:
        if max_unorm > 0:
            weight.data.float().norm()  # of the weight as fp32, before the kernel
        if gradient.dtype is torch.bfloat16 and name in ("momentum", "rmsprop", "adagrad", "lars"):
            raise ValueError(f"bitsandbytes has no {name} with fp32 states for gradients in bf16")

    def update_8bit(name: str, *_: Any, **__: Any) -> None:
        if name in ("lamb", "lars"):
            raise ValueError(f"bitsandbytes has no {name} with states in 8 bits")

    books: dict[str, Any] = {"create_dynamic_map": lambda **_: torch.empty(CODES, device="cpu"), "get_paged": paged}
    books |= {"fill": _nothing, "prefetch_tensor": _nothing, "is_on_gpu": lambda _: True}
    books |= {"optimizer_update_32bit": update, "optimizer_update_8bit_blockwise": update_8bit}
    for name, instead in books.items():
        stack.enter_context(patch.object(module, name, instead))
    stack.enter_context(patch.object(optimizer, "sync_gpu", _nothing))
    stack.callback(optimizer.GlobalOptimManager.get_instance().initialize)  # it knows weights by their addresses
