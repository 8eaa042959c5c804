"""Of which model types Liger's kernels replace what.

Source: liger-kernel 0.8.5, transformers/monkey_patch.py. It replaces the modules of a model that is there, as the
Trainer of Transformers and TRL let it; what is replaced in the classes before a model is made (Axolotl) differs for the
norms of OLMo's queries and keys alone.
"""

from __future__ import annotations

from vramplan.tuples import NamedTuple
from vramplan.values.model import ModelShape

NORM, GLU, ROPE = EVERY = ("rms-norm", "glu", "rope")


class Patch(NamedTuple):
    """What Liger replaces of a model type."""

    kernels: tuple[str, ...] = EVERY
    why: str = ""  # it has no others
    in_place: tuple[str, ...] | None = None  # norms that write their gradient over the incoming; None: all of them
    left: tuple[str, ...] = ()  # norms that stay the model's own
    layer_norms: tuple[str, ...] = ()  # of its vision encoder, which become Liger's with the others
    activation: str = "silu"  # of its gated layers
    turns_images: bool = False  # whether its vision encoder has rotary positions of Liger's too
    stops: bool = False  # whether it asks Transformers 5.23 for a class that is no longer there, and stops
    generates: bool = False  # whether it takes a model of the type with another head for a mistake


NOWHERE: tuple[str, ...] = ()
FINAL = ("norm",)
HEADS = ("q_norm", "k_norm")
TANH = "gelu_pytorch_tanh"
OWN_EXPERTS = "the kernel that Liger has for all experts together is not modelled"
NEIGHBOURS = "Liger has no rotary positions that turn neighbours"
UNPATCHED = "Liger's patch of it replaces no gated layer"
CLAMPED = "Liger has no gated activation that is clamped"
OTHERWISE_TURNED = "the rotary positions that Liger replaces are no longer those of its text in Transformers 5.23"
COMPLEX = "the kernel that Liger has for complex rotations is not modelled"

PATCHES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "llava"), Patch()),
    "gemma": Patch(activation=TANH),
    "gemma2": Patch(activation=TANH, in_place=NOWHERE),
    "gemma3_text": Patch(activation=TANH, in_place=NOWHERE, generates=True),
    **dict.fromkeys(("olmo2", "olmo3"), Patch(in_place=FINAL, left=HEADS)),
    "glm4": Patch((NORM, GLU), NEIGHBOURS, in_place=NOWHERE),
    "gpt_oss": Patch((NORM, ROPE), CLAMPED),
    **dict.fromkeys(("mixtral", "qwen3_moe"), Patch((NORM, ROPE), OWN_EXPERTS)),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), Patch((NORM,), OWN_EXPERTS)),
    "llama4_text": Patch((NORM, GLU), COMPLEX, generates=True),
    "qwen3_vl": Patch((NORM, ROPE), UNPATCHED, turns_images=True, stops=True),
    "qwen2_vl": Patch((NORM, GLU), OTHERWISE_TURNED, layer_norms=("norm1", "norm2"), stops=True),
    "qwen2_5_vl": Patch((NORM, GLU), OTHERWISE_TURNED, left=("ln_q",), stops=True),
    "gemma3": Patch(activation=TANH, in_place=NOWHERE, layer_norms=("layer_norm1", "layer_norm2", "post_layernorm")),
}
"""By the model type of Transformers."""


def patch_of(model: ModelShape) -> Patch | None:
    """What Liger replaces of a model; None: nothing."""
    return PATCHES.get(model.transformers_model_type) if model.engine is None else None
