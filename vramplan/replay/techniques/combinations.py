"""Model types of which adapters and quantized weights need a word of their own."""

from __future__ import annotations

KEEPS_FP32 = ("t5",)
"""Model types of which Transformers leaves layers in fp32 where it loads the rest in fp16: that was not traced."""

NO_ALL_LINEAR = {
    "chatglm": "whose own code does not say which layer is its head, so PEFT makes a target of that too",
    "resnet": "whose only linear layer is its head",
}
"""Model types of which a linear layer is the head alone, or the head is one of them; and why that is."""

ONLY_LORA = ("resnet",)
"""Model types whose adapters were traced with LoRA alone."""


def loads_fp32(model_type: str, precision: str, *, half_weights: bool) -> bool:
    """Whether a model that is loaded to be quantized would have layers in fp32 among others in fp16."""
    return model_type in KEEPS_FP32 and (precision == "pure-fp16" or (precision == "amp-fp16" and half_weights))
