"""Rules that only some jobs need: each is imported when a job asks for it, and a plain job pays for none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import on_demand

if TYPE_CHECKING:
    from vramplan.job.checkpoints import check_offload as check_offload
    from vramplan.job.checkpoints import check_optimal as check_optimal
    from vramplan.job.checkpoints import check_reentrant as check_reentrant
    from vramplan.job.checkpoints import check_segments as check_segments
    from vramplan.job.checkpoints import check_selective as check_selective
    from vramplan.job.checkpoints import refuse_ladder as refuse_ladder
    from vramplan.job.codes import in_its_own_code as in_its_own_code
    from vramplan.job.codes import refuse_class as refuse_class
    from vramplan.job.devices.experts import check_capacity as check_capacity
    from vramplan.job.devices.experts import expert_imbalance as expert_imbalance
    from vramplan.job.devices.offload import check_offload_of_states as check_offload_of_states
    from vramplan.job.devices.offload import share_on_host as share_on_host
    from vramplan.job.devices.sharding import check_sharding as check_sharding
    from vramplan.job.devices.sharding import sharding_of as sharding_of
    from vramplan.job.devices.split import check_split as check_split
    from vramplan.job.devices.split import planned_part as planned_part
    from vramplan.job.evidence.accepted import refuse_given_words as refuse_given_words
    from vramplan.job.evidence.accepted import refuse_lacking as refuse_lacking
    from vramplan.job.evidence.accepted import refuse_words as refuse_words
    from vramplan.job.evidence.combinations import composed_of as composed_of
    from vramplan.job.given.matrix import MOST_JOBS as MOST_JOBS
    from vramplan.job.given.matrix import expanded as expanded
    from vramplan.job.inputs.images import image_size_of as image_size_of
    from vramplan.job.inputs.images import with_images as with_images
    from vramplan.job.inputs.packing import check_packing as check_packing
    from vramplan.job.inputs.sounds import letters_of as letters_of
    from vramplan.job.inputs.sounds import samples_of as samples_of
    from vramplan.job.inputs.targets import target_length as target_length
    from vramplan.job.inputs.varied import check_varied as check_varied
    from vramplan.job.kernels.compiling import check_compile as check_compile
    from vramplan.job.kernels.float8 import check_float8 as check_float8
    from vramplan.job.kernels.forced import call_by_call as call_by_call
    from vramplan.job.kernels.forced import flash_alone as flash_alone
    from vramplan.job.kernels.forced import only_kernel as only_kernel
    from vramplan.job.kernels.forced import with_large_heads as with_large_heads
    from vramplan.job.kernels.forced import with_windows as with_windows
    from vramplan.job.kernels.liger import liger_of as liger_of
    from vramplan.job.kernels.linear_attention import tell_linear as tell_linear
    from vramplan.job.kernels.lora_kernels import with_kernels as with_kernels
    from vramplan.job.kernels.old_kernels import old_choice as old_choice
    from vramplan.job.kernels.short_convolution import tell_short as tell_short
    from vramplan.job.kernels.state_space import tell_space as tell_space
    from vramplan.job.kernels.tiled_mlp import tiles_of as tiles_of
    from vramplan.job.length import length_of as length_of
    from vramplan.job.losses.classifiers import check_classifier as check_classifier
    from vramplan.job.losses.distillation import teacher_of as teacher_of
    from vramplan.job.losses.key_values import check_cache as check_cache
    from vramplan.job.losses.loss import check_beside as check_beside
    from vramplan.job.losses.loss import check_chunks as check_chunks
    from vramplan.job.losses.loss import check_padding as check_padding
    from vramplan.job.losses.loss import loss_of as loss_of
    from vramplan.job.losses.loss import reference_of as reference_of
    from vramplan.job.losses.loss import smoothed as smoothed
    from vramplan.job.machine.allocator import text_of as text_of
    from vramplan.job.machine.allocator_default import launched_allocator as launched_allocator
    from vramplan.job.machine.allocator_default import offered_allocator as offered_allocator
    from vramplan.job.machine.allocator_default import resolve_allocator as resolve_allocator
    from vramplan.job.machine.free import check_free as check_free
    from vramplan.job.machine.machines import in_its_machine as in_its_machine
    from vramplan.job.machine.releases import as_released as as_released
    from vramplan.job.machine.releases import tell_whole as tell_whole
    from vramplan.job.machine.software import with_software as with_software
    from vramplan.job.preferred import without_preferred as without_preferred
    from vramplan.job.runtime import take_defaults as take_defaults
    from vramplan.job.stepping.galore import check_galore as check_galore
    from vramplan.job.stepping.master import no_master_copy as no_master_copy
    from vramplan.job.stepping.step_kernels import check_step_kernels as check_step_kernels
    from vramplan.job.stepping.zeroing import check_zeroing as check_zeroing
    from vramplan.job.trained.bitsandbytes import check_bitsandbytes as check_bitsandbytes
    from vramplan.job.trained.qat import qat_of as qat_of
    from vramplan.job.trained.quantized import as_written as as_written
    from vramplan.job.trained.quantized import check_quantized_experts as check_quantized_experts
    from vramplan.job.trained.resolve import resolve_trained as resolve_trained
    from vramplan.job.trained.trained_blocks import frozen_by_blocks as frozen_by_blocks
    from vramplan.replay.models.windows import windowed_blocks as windowed_blocks
    from vramplan.values.adapter_kinds import lacks as lacks

MODULES = {
    "vramplan.values.adapter_kinds": ("lacks",),
    "vramplan.job.machine.allocator": ("text_of",),
    "vramplan.job.evidence.accepted": (
        "refuse_given_words",
        "refuse_lacking",
        "refuse_words",
    ),
    "vramplan.job.machine.allocator_default": ("launched_allocator", "offered_allocator", "resolve_allocator"),
    "vramplan.job.trained.bitsandbytes": ("check_bitsandbytes",),
    "vramplan.job.trained.qat": ("qat_of",),
    "vramplan.job.trained.quantized": ("as_written", "check_quantized_experts"),
    "vramplan.job.checkpoints": (
        "check_offload",
        "check_reentrant",
        "check_segments",
        "check_optimal",
        "check_selective",
        "refuse_ladder",
    ),
    "vramplan.job.losses.classifiers": ("check_classifier",),
    "vramplan.job.codes": (
        "in_its_own_code",
        "refuse_class",
    ),
    "vramplan.job.evidence.combinations": ("composed_of",),
    "vramplan.job.kernels.compiling": ("check_compile",),
    "vramplan.job.losses.distillation": ("teacher_of",),
    "vramplan.job.devices.experts": (
        "check_capacity",
        "expert_imbalance",
    ),
    "vramplan.job.kernels.float8": ("check_float8",),
    "vramplan.job.machine.free": ("check_free",),
    "vramplan.job.stepping.galore": ("check_galore",),
    "vramplan.job.inputs.images": ("image_size_of", "with_images"),
    "vramplan.job.kernels.forced": ("call_by_call", "flash_alone", "only_kernel", "with_large_heads", "with_windows"),
    "vramplan.job.losses.key_values": ("check_cache",),
    "vramplan.job.length": ("length_of",),
    "vramplan.job.kernels.liger": ("liger_of",),
    "vramplan.job.kernels.lora_kernels": ("with_kernels",),
    "vramplan.job.machine.machines": ("in_its_machine",),
    "vramplan.job.stepping.master": ("no_master_copy",),
    "vramplan.job.given.matrix": ("MOST_JOBS", "expanded"),
    "vramplan.job.kernels.linear_attention": ("tell_linear",),
    "vramplan.job.kernels.state_space": ("tell_space",),
    "vramplan.job.stepping.step_kernels": ("check_step_kernels",),
    "vramplan.job.kernels.short_convolution": ("tell_short",),
    "vramplan.job.losses.loss": (
        "check_beside",
        "check_chunks",
        "check_padding",
        "loss_of",
        "reference_of",
        "smoothed",
    ),
    "vramplan.job.devices.offload": ("check_offload_of_states", "share_on_host"),
    "vramplan.job.inputs.packing": ("check_packing",),
    "vramplan.job.runtime": ("take_defaults",),
    "vramplan.job.devices.sharding": (
        "check_sharding",
        "sharding_of",
    ),
    "vramplan.job.preferred": ("without_preferred",),
    "vramplan.job.machine.releases": ("as_released", "tell_whole"),
    "vramplan.job.kernels.old_kernels": ("old_choice",),
    "vramplan.job.machine.software": ("with_software",),
    "vramplan.job.devices.split": ("check_split", "planned_part"),
    "vramplan.job.inputs.sounds": ("letters_of", "samples_of"),
    "vramplan.job.inputs.targets": ("target_length",),
    "vramplan.job.kernels.tiled_mlp": ("tiles_of",),
    "vramplan.job.trained.resolve": ("resolve_trained",),
    "vramplan.job.trained.trained_blocks": ("frozen_by_blocks",),
    "vramplan.job.inputs.varied": ("check_varied",),
    "vramplan.job.stepping.zeroing": ("check_zeroing",),
    "vramplan.replay.models.windows": ("windowed_blocks",),
}
"""The names that there are here, by the file that has each: the imports above again, for a run."""

__getattr__ = on_demand(__name__, MODULES)
