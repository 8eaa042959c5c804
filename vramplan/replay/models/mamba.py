"""Mamba and Falcon-Mamba, as transformers 5.23 computes them (models/mamba/modeling_mamba.py and models/falcon_mamba):
blocks that are a state space each, around which the hidden states are summed in fp32.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import SELECTIVE, Output, Recipe, RMSNorm, output_embedding, words
from vramplan.replay.models.recurrent import Recurrent
from vramplan.replay.models.selective_scan import SelectiveMixer
from vramplan.replay.models.state_space import space_of
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor
from vramplan.values.model import ModelShape

FALCON = "falcon_mamba"


def weightless_norm(x: Tensor) -> Tensor:
    """FalconMambaWeightlessRMSNorm."""
    wide = to(x, FP32)
    return to(mul(wide, rsqrt(add_scalar(mean_last(pow_scalar(wide))))), x.dtype)


class Mixer(SelectiveMixer):
    """MambaMixer, FalconMambaMixer: all weights are handed to mamba_inner_fn, which runs where a kernel has it."""

    at_once = True

    def make_norms(self, tape: Tape, recipe: Recipe) -> None:
        """Those of Falcon-Mamba have no weights, and Mamba has none."""
        if recipe.shape.transformers_model_type == FALCON:
            self.norms = [weightless_norm] * 3

    def read(self) -> tuple[Parameter | None, ...]:
        """Weights of layers that the module looks at itself."""
        return (*super().read(), self.x_proj.weight, self.out_proj.weight, self.out_proj.bias)


class Block:
    """MambaBlock, FalconMambaBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None) -> None:
        self.norm = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)
        self.mixer = Mixer(tape, recipe)
        self.mask = mask

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.norm(to(hidden, self.norm.weight.dtype))
        residual = to(residual, FP32)
        hidden = self.mixer(hidden, self.mask)
        hidden = add(residual, hidden)
        return hidden


class Mamba(Recurrent):
    """MambaForCausalLM, FalconMambaForCausalLM, with their loss."""

    selective = SELECTIVE
    head_losses: tuple[str, ...] = ("dpo",)
    has_tensor_plan = False
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    masks_positions = False
    reads_any_mask = True  # apply_mask_to_padding_states multiplies by one that says nothing, too
    casts_logits = True
    caches_in_training = False  # MambaModel.forward: config.use_cache is read where it does not train
    no_all_linear = "as PEFT ends with an error for out_proj, which that word stands for too"
    all_linear_beyond_lora = True  # tuners/tuners_utils.py, _check_lora_target_modules_mamba, looks at LoRA and its kin
    not_adapted = ("out_proj",)
    read_weights = ("dt_proj",)  # of layers that it does not call

    @staticmethod
    def no_quantization(shape: ModelShape) -> str | None:
        """Of Mamba alone; the mixer of Falcon-Mamba asks whether weights are quantized."""
        if shape.transformers_model_type == FALCON:
            return None
        return "its mixer multiplies by the weight of dt_proj itself, whatever that is stored in"

    def buffers(self) -> list[int]:
        """Bytes of the buffers: three weights of ones in each block of Falcon-Mamba, of norms that have none."""
        recipe = self.recipe
        if recipe.shape.transformers_model_type != FALCON:
            return []
        space = space_of(recipe)
        sizes = (space.values, space.state_size, space.state_size)
        return [recipe.buffer_dtype.itemsize * size for size in sizes] * recipe.shape.layers

    def kept(self) -> list[int]:
        """Nothing is kept from one step to the next."""
        return []

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.padding = given
        _hidden = self.model(input_ids)  # in fp32, which the output of the model holds
        self.padding = None
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(_hidden, weight, labels, self.recipe, cast_to=self.recipe.weight_dtype)

    def model(self, input_ids: Tensor) -> Tensor:
        """MambaModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_tokens)
        hidden = _embeds
        mask = self.padding

        def block(_: int) -> Block:
            return Block(tape, recipe, mask)

        hidden = run_blocks(tape, recipe.segments, block, hidden)
        hidden = RMSNorm(tape, "norm_f", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Mamba
