"""A job under torchtune: weights in 4 bits are torchao's, and Liger's loss is for recipes that train every weight."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from vramplan.job.behaviour import JobBehaviour, Refusal
from vramplan.options.words import pattern_word

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import FakeQuantization
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape

QUANTIZERS = (("int4", "int8"), ("int4-tinygemm", None))
"""Formats of weights and inputs: Int8DynActInt4WeightQATQuantizer and Int4WeightOnlyQATQuantizer."""

TORCHAO = "torchao's tensors of 4 bits, as large as those of bitsandbytes"


JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), ("qkv_proj",)),
    **dict.fromkeys(("gate_proj", "up_proj"), ("gate_up_proj",)),
}
"""Matrices of Transformers' Phi-3, in the place of layers that torchtune keeps apart.

Source: torchtune/models/phi3/_component_builders.py.
"""


class TorchtuneJob(JobBehaviour):
    """What its recipes do otherwise, with its own code of a model."""

    has_preference_training = True  # recipes/lora_dpo_single_device.py, full_dpo_distributed.py
    preferences_by = "torchtune"
    distils = ("forward-kl", "reverse-kl", "symmetric-kl")  # recipes/knowledge_distillation_single_device.py
    joined = MappingProxyType(JOINED)
    splits = ("tensor",)  # full_finetune_distributed.py, tensor_parallel_dim

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """Say whose weights in 4 bits are."""
        super().check_own_code(resolver, own, model, runtime)
        raw = resolver.raw
        if raw.quantization == "nf4":
            raw.quantization = "nf4-double"  # there is no other: NF4Tensor quantizes the scales of blocks
        if raw.quantization is not None:
            how = "in fused kernels" if raw.compile else "with indices of 8 bytes for each weight of a product"
            resolver.assume("quantization", raw.quantization, f"{TORCHAO}, {how}")

    rounds_own_code = True

    def fake_quantization(self, resolver: Resolver, model: ModelShape, asked: FakeQuantization) -> FakeQuantization:
        """Zero points are in fp32; beside adapters the layers that have one round, and no others.

        Source: torchtune 0.6.1, recipes/qat_distributed.py and qat_lora_finetune_distributed.py,
        training/quantization.py, swap_lora_linear_with_qat; torchao 0.14.1, quantization/qat/linear.py.
        """
        raw = resolver.raw
        if raw.compile:
            message = "torchtune's recipes of quantization-aware training do not compile"
            resolver.fields.refuse("compile", message, hint="leave it out")
        if raw.adapter_kind not in (None, "lora"):
            message = f"torchtune has no {raw.adapter_kind} beside quantization-aware training"
            resolver.fields.refuse("adapter", message, hint="use lora")
        if (asked.weights, asked.activations) not in QUANTIZERS or asked.embedding:
            message = f"torchtune has no quantizer of {asked.weights} weights, {asked.activations or 'no'} inputs"
            hint = "use int4 with int8 inputs, or int4-tinygemm alone, and not of the embedding"
            resolver.fields.refuse("qat", message, hint=hint)
        skips = raw.adapter is None and asked.weights == "int4"
        return asked._replace(zero_points="fp32", adapted_only=raw.adapter is not None, skips=skips)

    def no_head_loss(self, resolver: Resolver, model: ModelShape, loss: str) -> Refusal | None:
        """Liger's loss beside an adapter."""
        if model.engine is None or pattern_word(loss) != "fused" or resolver.raw.adapter is None:
            return None
        message = "fused is modelled under torchtune for recipes that train every weight, as its integration does"
        return message, "use chunked:8, or leave the adapter out"

    def no_bitsandbytes(self, model: ModelShape) -> str | None:
        """Whose the weights in 4 bits are."""
        return None if model.engine is None else "torchtune, whose 4-bit weights are torchao's"


BEHAVIOUR = TorchtuneJob()
