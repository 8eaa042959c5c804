"""Rules that only some jobs need: each is imported when a job asks for it, and a plain job pays for none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import on_demand

if TYPE_CHECKING:
    from vramplan.job.accepted import refuse_given_words as refuse_given_words
    from vramplan.job.accepted import refuse_lacking as refuse_lacking
    from vramplan.job.accepted import refuse_words as refuse_words
    from vramplan.job.allocator import text_of as text_of
    from vramplan.job.allocator_default import launched_allocator as launched_allocator
    from vramplan.job.allocator_default import resolve_allocator as resolve_allocator
    from vramplan.job.bitsandbytes import check_bitsandbytes as check_bitsandbytes
    from vramplan.job.checkpoints import check_offload as check_offload
    from vramplan.job.checkpoints import check_optimal as check_optimal
    from vramplan.job.checkpoints import check_reentrant as check_reentrant
    from vramplan.job.checkpoints import check_segments as check_segments
    from vramplan.job.checkpoints import check_selective as check_selective
    from vramplan.job.checkpoints import refuse_ladder as refuse_ladder
    from vramplan.job.classifiers import check_classifier as check_classifier
    from vramplan.job.codes import in_its_own_code as in_its_own_code
    from vramplan.job.codes import refuse_class as refuse_class
    from vramplan.job.combinations import composed_of as composed_of
    from vramplan.job.compiling import check_compile as check_compile
    from vramplan.job.distillation import teacher_of as teacher_of
    from vramplan.job.experts import check_capacity as check_capacity
    from vramplan.job.experts import expert_imbalance as expert_imbalance
    from vramplan.job.float8 import check_float8 as check_float8
    from vramplan.job.free import check_free as check_free
    from vramplan.job.galore import check_galore as check_galore
    from vramplan.job.images import image_size_of as image_size_of
    from vramplan.job.images import with_images as with_images
    from vramplan.job.kernels import call_by_call as call_by_call
    from vramplan.job.kernels import flash_alone as flash_alone
    from vramplan.job.kernels import only_kernel as only_kernel
    from vramplan.job.kernels import with_large_heads as with_large_heads
    from vramplan.job.kernels import with_windows as with_windows
    from vramplan.job.key_values import check_cache as check_cache
    from vramplan.job.length import length_of as length_of
    from vramplan.job.liger import liger_of as liger_of
    from vramplan.job.linear_attention import tell_linear as tell_linear
    from vramplan.job.lora_kernels import with_kernels as with_kernels
    from vramplan.job.losses import check_beside as check_beside
    from vramplan.job.losses import check_chunks as check_chunks
    from vramplan.job.losses import check_padding as check_padding
    from vramplan.job.losses import loss_of as loss_of
    from vramplan.job.losses import reference_of as reference_of
    from vramplan.job.losses import smoothed as smoothed
    from vramplan.job.machines import in_its_machine as in_its_machine
    from vramplan.job.master import no_master_copy as no_master_copy
    from vramplan.job.matrix import MOST_JOBS as MOST_JOBS
    from vramplan.job.matrix import expanded as expanded
    from vramplan.job.offload import check_offload_of_states as check_offload_of_states
    from vramplan.job.offload import share_on_host as share_on_host
    from vramplan.job.old_kernels import old_choice as old_choice
    from vramplan.job.packing import check_packing as check_packing
    from vramplan.job.preferred import without_preferred as without_preferred
    from vramplan.job.qat import qat_of as qat_of
    from vramplan.job.quantized import as_written as as_written
    from vramplan.job.quantized import check_quantized_experts as check_quantized_experts
    from vramplan.job.releases import as_released as as_released
    from vramplan.job.releases import tell_whole as tell_whole
    from vramplan.job.runtime import take_defaults as take_defaults
    from vramplan.job.sharding import check_sharding as check_sharding
    from vramplan.job.sharding import sharding_of as sharding_of
    from vramplan.job.short_convolution import tell_short as tell_short
    from vramplan.job.software import with_software as with_software
    from vramplan.job.sounds import letters_of as letters_of
    from vramplan.job.sounds import samples_of as samples_of
    from vramplan.job.split import check_split as check_split
    from vramplan.job.split import planned_part as planned_part
    from vramplan.job.state_space import tell_space as tell_space
    from vramplan.job.step_kernels import check_step_kernels as check_step_kernels
    from vramplan.job.targets import target_length as target_length
    from vramplan.job.tiled_mlp import tiles_of as tiles_of
    from vramplan.job.trained import resolve_trained as resolve_trained
    from vramplan.job.trained_blocks import frozen_by_blocks as frozen_by_blocks
    from vramplan.job.varied import check_varied as check_varied
    from vramplan.job.zeroing import check_zeroing as check_zeroing
    from vramplan.replay.models.windows import windowed_blocks as windowed_blocks
    from vramplan.values.adapter_kinds import lacks as lacks

MODULES = {
    "vramplan.values.adapter_kinds": ("lacks",),
    "vramplan.job.allocator": ("text_of",),
    "vramplan.job.accepted": (
        "refuse_given_words",
        "refuse_lacking",
        "refuse_words",
    ),
    "vramplan.job.allocator_default": ("launched_allocator", "resolve_allocator"),
    "vramplan.job.bitsandbytes": ("check_bitsandbytes",),
    "vramplan.job.qat": ("qat_of",),
    "vramplan.job.quantized": ("as_written", "check_quantized_experts"),
    "vramplan.job.checkpoints": (
        "check_offload",
        "check_reentrant",
        "check_segments",
        "check_optimal",
        "check_selective",
        "refuse_ladder",
    ),
    "vramplan.job.classifiers": ("check_classifier",),
    "vramplan.job.codes": (
        "in_its_own_code",
        "refuse_class",
    ),
    "vramplan.job.combinations": ("composed_of",),
    "vramplan.job.compiling": ("check_compile",),
    "vramplan.job.distillation": ("teacher_of",),
    "vramplan.job.experts": (
        "check_capacity",
        "expert_imbalance",
    ),
    "vramplan.job.float8": ("check_float8",),
    "vramplan.job.free": ("check_free",),
    "vramplan.job.galore": ("check_galore",),
    "vramplan.job.images": ("image_size_of", "with_images"),
    "vramplan.job.kernels": ("call_by_call", "flash_alone", "only_kernel", "with_large_heads", "with_windows"),
    "vramplan.job.key_values": ("check_cache",),
    "vramplan.job.length": ("length_of",),
    "vramplan.job.liger": ("liger_of",),
    "vramplan.job.lora_kernels": ("with_kernels",),
    "vramplan.job.machines": ("in_its_machine",),
    "vramplan.job.master": ("no_master_copy",),
    "vramplan.job.matrix": ("MOST_JOBS", "expanded"),
    "vramplan.job.linear_attention": ("tell_linear",),
    "vramplan.job.state_space": ("tell_space",),
    "vramplan.job.step_kernels": ("check_step_kernels",),
    "vramplan.job.short_convolution": ("tell_short",),
    "vramplan.job.losses": (
        "check_beside",
        "check_chunks",
        "check_padding",
        "loss_of",
        "reference_of",
        "smoothed",
    ),
    "vramplan.job.offload": ("check_offload_of_states", "share_on_host"),
    "vramplan.job.packing": ("check_packing",),
    "vramplan.job.runtime": ("take_defaults",),
    "vramplan.job.sharding": (
        "check_sharding",
        "sharding_of",
    ),
    "vramplan.job.preferred": ("without_preferred",),
    "vramplan.job.releases": ("as_released", "tell_whole"),
    "vramplan.job.old_kernels": ("old_choice",),
    "vramplan.job.software": ("with_software",),
    "vramplan.job.split": ("check_split", "planned_part"),
    "vramplan.job.sounds": ("letters_of", "samples_of"),
    "vramplan.job.targets": ("target_length",),
    "vramplan.job.tiled_mlp": ("tiles_of",),
    "vramplan.job.trained": ("resolve_trained",),
    "vramplan.job.trained_blocks": ("frozen_by_blocks",),
    "vramplan.job.varied": ("check_varied",),
    "vramplan.job.zeroing": ("check_zeroing",),
    "vramplan.replay.models.windows": ("windowed_blocks",),
}
"""The names that there are here, by the file that has each: the imports above again, for a run."""

__getattr__ = on_demand(__name__, MODULES)
