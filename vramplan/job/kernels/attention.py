"""Which attention kernel a job runs: what it asks for, or the better one that can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job import on_demand
from vramplan.job.behaviour import under
from vramplan.options import words
from vramplan.replay.models import hands_groups_on, has_own_core, is_own_code
from vramplan.replay.models.capable import (
    adds_bias,
    calls_flash,
    flash_takes_windows,
    ignores_windows,
    no_eager_attention,
    no_flash_attention,
    no_fused_attention,
    of_package,
    only_kernel_of,
)
from vramplan.replay.operators.attention import LARGEST_FLASH_HEAD

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu
    from vramplan.values.model import ModelShape

VARLEN = (
    "flash keeps packed sequences apart by their lengths and takes no mask: flash_attn_varlen_func of the flash-attn "
    "package, on one row of all tokens of a micro-batch; composed of what was traced, and never traced as a whole"
)
UNPADDED = (
    "flash takes no mask: the flash-attn package removes what is padded, and the longest batch has none of it, so "
    "every sequence counts as full; composed, and never traced"
)
WINDOWED = (
    "{} tokens of the sliding window are an argument of the flash-attn package's kernels, which need no mask for them; "
    "composed, and never traced"
)
GROUPED = (
    "{}, and the memory-efficient kernel takes no fewer key-value heads than heads, which Transformers hands on as "
    "they are where there is no mask: what is left are products and a softmax in fp32; batches that are padded have a "
    "mask and run the kernel"
)
"""Seen on an H100 with PyTorch 2.11 and transformers 5.17, which find no other kernel (tests/measured/h100.yaml).

Source: transformers, integrations/sdpa_attention.py, use_gqa_in_sdpa (since 4.54), and its issue 48633, on a T4;
pytorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, can_use_mem_efficient_attention.
"""
NO_KERNEL = (
    "attention efficient is computed as asked, but Transformers cannot run it here: without a mask it hands fewer "
    "key-value heads than heads on as they are, and the memory-efficient kernel takes none such (sdpa says what runs)"
)


def attention_of(resolver: Resolver, model: ModelShape | None, gpu: Gpu | None, precision: str) -> str:
    """The kernel, with `sdpa` resolved to the better one that the GPU, the precision and the model can run."""
    given = resolver.raw.attention
    if model is not None and not model.attention_heads:
        if given not in {None, "eager", "sdpa"}:  # sdpa leaves the choice, and is the default of some programs
            resolver.fields.refuse("attention", f"{given} means nothing to {model.name}, which has none")
        elif given is not None:
            resolver.warnings.append(f"attention {given} changes nothing: {model.name} has none")
        return "eager"
    obstacle = None if model is None else no_fused_attention(model.family)
    why = None if model is None or given != "flash" else of_package(model)
    if why is not None and _flash_obstacle(model, gpu, precision, package=True) is None:
        resolver.assume("attention", "flash", why)
        return "flash"
    if model is not None and obstacle is not None and given != "eager":
        if given in {None, "sdpa"}:
            resolver.assume("attention", "eager", f"no fused attention for {model.code}: {obstacle}")
        else:
            message = f"{given} cannot run for {model.code}: {obstacle}"
            resolver.fields.refuse("attention", message, hint="use eager")
        return "eager"
    only = None if model is None else only_kernel_of(model)
    if model is not None and only is not None:
        return on_demand.only_kernel(resolver.fields, given, model, *only, resolver.assumptions)
    grouped = model is not None and _is_grouped_without_mask(resolver, model)
    if given == "math" and grouped and _flash_obstacle(model, gpu, precision) is not None:
        return given
    if given == "math":
        if model is not None and not _takes_plain(model):
            message = f"math is not modelled for {model.code} but where nothing else can run: in groups, without flash"
            resolver.fields.refuse("attention", message, hint="use efficient")
        return given
    if given == "eager" and model is not None:
        obstacle = no_eager_attention(model.family)
        if obstacle is not None:
            message = f"eager cannot run for {model.code}: {obstacle}"
            hint = "use sdpa, or the type glm" if model.engine is None else "use sdpa"
            resolver.fields.refuse("attention", message, hint=hint)
    if model is not None and calls_flash(model.family) and given != "eager":
        return on_demand.flash_alone(resolver, given, _flash_obstacle(model, gpu, precision))
    if given in {"eager", "efficient"}:
        assert given is not None
        if given == "efficient" and grouped:
            resolver.warnings.append(NO_KERNEL)
        return given
    obstacle = _flash_obstacle(model, gpu, precision)
    if resolver.raw.padding == "right" and given != "flash":
        obstacle = obstacle or "it takes no mask, which padded sequences need"
    elif resolver.raw.adapter_kind == words.PREFIX and given != "flash":
        obstacle = obstacle or "it takes no mask, which a prefix before the tokens needs"
    elif resolver.raw.packing and given != "flash":
        obstacle = obstacle or "it takes no mask, which keeps packed sequences apart"
    if given == "flash":
        if obstacle is not None:
            resolver.fields.refuse("attention", f"flash cannot run: {obstacle}", hint="use efficient")
        elif gpu is not None and gpu.flash_attention is None:
            resolver.assume("gpu.flash_attention", True, f"unknown for {gpu.name}; assumed yes")
        if resolver.raw.packing:
            resolver.assume("packing", True, VARLEN)
        if resolver.raw.padding == "right":
            resolver.assume("padding", "right", UNPADDED)
        return "flash"
    why = obstacle or "the GPU and the precision can run it"
    if obstacle is None and gpu is not None and gpu.flash_attention is None:
        why = f"whether {gpu.name} runs it is unknown; assumed yes"
    chosen = "flash" if obstacle is None else "efficient"
    if obstacle is None and model is not None and resolver.raw.pytorch_version is not None:
        found = on_demand.old_choice(resolver, model, gpu, takes_plain=_takes_plain(model))
        if found is not None:
            resolver.assume("attention", found[0], f"sdpa: {found[1]}")
            return found[0]
    if obstacle is not None and model is not None and has_own_core(model.family):
        chosen = "eager"  # its own core is the other one that it has
    elif obstacle is not None and model is not None and _is_grouped_without_mask(resolver, model):
        chosen, why = "math", GROUPED.format(obstacle)
    resolver.assume("attention", chosen, f"sdpa: {why}")
    return chosen


def within_window(
    resolver: Resolver, model: ModelShape | None, sequence_length: int, attention: str
) -> tuple[ModelShape | None, str]:
    """The model and its attention, where the sequence reaches a sliding window.

    PyTorch's kernel takes no mask, so that a window needs another one. Who asks for flash where every block has a
    window means the flash-attn package, whose kernels have windows of their own: nothing else of a model depends on
    them. Where some blocks have one, flash is also what `sdpa` comes to, and its meaning is that.
    """
    window = None if model is None else model.sliding_window
    if model is not None and window is not None and sequence_length >= window and ignores_windows(model.family):
        resolver.assume("attention", attention, f"{model.code} has no windows: each token sees all before it")
        return model._replace(sliding_window=None), attention
    if model is not None and attention == "math" and resolver.raw.attention != "math":
        return model, on_demand.call_by_call(model, sequence_length, resolver.assumptions)
    if model is None or attention != "flash":
        return model, attention
    if model.largest_head_size > LARGEST_FLASH_HEAD:
        on_demand.with_large_heads(model, resolver.assumptions)
    if window is None or sequence_length < window:
        return model, attention
    if of_package(model) is not None:
        return model, attention
    asked = resolver.raw.attention == "flash" or has_own_core(model.family)  # which has no SDPA
    by_package = asked and flash_takes_windows(model.family)
    if by_package and on_demand.windowed_blocks(model) == model.layers:
        resolver.assume("attention", "flash", WINDOWED.format(window))
        return model._replace(sliding_window=None), attention
    return model, on_demand.with_windows(model, sequence_length, resolver.assumptions)


def _is_grouped_without_mask(resolver: Resolver, model: ModelShape) -> bool:
    """Whether the code of Transformers hands fewer key-value heads than heads on to PyTorch, without a mask."""
    raw = resolver.raw
    if (
        model.engine is not None
        or under(resolver.runtime).has_own_attention
        or raw.padding not in (None, "none")
        or raw.packing
        or raw.adapter_kind == words.PREFIX
        or model.task != "lm"
        or resolver.old_code.repeats_keys
    ):
        return False
    return model.key_value_heads < model.attention_heads and hands_groups_on(model.family)


def _takes_plain(model: ModelShape) -> bool:
    """Whether plain operators are in the replay: of Transformers' code, without a row or a mask of images."""
    masks_images = model.takes_images and no_flash_attention(model.family) is not None and not adds_bias(model.family)
    return not is_own_code(model.family) and model.vision_frames is None and not masks_images


def _flash_obstacle(model: ModelShape | None, gpu: Gpu | None, precision: str, *, package: bool = False) -> str | None:
    """Why PyTorch's flash attention, or that of the package, cannot run; None when it can. What is unknown is able."""
    if precision == "fp32":
        return "it has no fp32 kernels"
    if gpu is not None and gpu.flash_attention is False:
        capability = f" (compute capability {gpu.compute_capability})" if gpu.compute_capability else ""
        return f"{gpu.name}{capability} has no flash attention"
    if not package and model is not None and no_flash_attention(model.family) is not None:
        return f"{model.name}: {no_flash_attention(model.family)}"
    head = 0 if model is None else max(model.head_size, model.vision_head_size)
    if head > LARGEST_FLASH_HEAD:
        return f"its heads have at most {LARGEST_FLASH_HEAD} elements, not {head}"
    latent = None if model is None else model.latent_attention
    if package or model is None or latent is None or has_own_core(model.family):
        return None  # a program's own core asks Transformer Engine, whose kernels take values of another width
    if latent.value_size != model.head_size:
        return f"its queries, keys and values are equally long, not {model.head_size} and {latent.value_size} elements"
    return None
