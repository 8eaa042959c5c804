"""A job under Unsloth, whose own kernels are not replayed."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from vramplan.job.behaviour import JobBehaviour
from vramplan.options.words import OF_TRANSFORMERS
from vramplan.values.job import trains_all

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import ResolvedJob

WHOLE = "Unsloth trains an adapter unless full_finetuning=True is given: --qlora or --lora"
UPPER = "Unsloth's own kernels are not replayed, but for those of LoRA: the answer is an upper estimate"


class UnslothJob(JobBehaviour):
    """Says that the figures are an upper estimate.

    Source: unslothai/unsloth 015bdef0, unsloth/models/llama.py, FastLlamaModel.from_pretrained (`bnb_config`); the same
    in vision.py.
    """

    adapter_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # get_peft_model
    adapter_rank = 16
    implementations = MappingProxyType({"adafactor": OF_TRANSFORMERS})  # trainer_optimizer.py, _get_adafactor
    scales_fp16 = True  # the Trainer's
    fuses_adapters = True  # kernels/fast_lora.py
    has_own_attention = True  # models/llama.py: xformers, or keys and values that are expanded
    four_bits = ("nf4-double", "Unsloth quantizes the scales too (bnb_4bit_use_double_quant)")

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """The job with notes of what is trained and of what is not replayed."""
        whole = (WHOLE,) if trains_all(job) else ()
        return job._replace(warnings=(*whole, *job.warnings, UPPER))


BEHAVIOUR = UnslothJob()
