"""Linear layers of a GPTQ checkpoint, as Transformers, optimum 2.3 and gptqmodel 7.7 load it for training.

Only linear layers in blocks are quantized, Conv1D of GPT-2 among them; what is outside keeps the 16 bits of the model.
Source: optimum 2.3.0, gptq/quantizer.py, GPTQQuantizer.convert_model; gptq/constants.py, BLOCK_PATTERNS.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.modules import Linear
from vramplan.replay.models.part_names import LAYERS
from vramplan.replay.operators.gptq import gptq_linear
from vramplan.replay.tensors import FP16, INT32, Parameter, Tensor

BITS = 4
GROUP_SIZE = 128  # inputs that share a scale and a zero: the default of GPTQConfig and of QuantizeConfig
PACKED_BITS = 32  # numbers are packed into int32
FIRST_OF_MLP = ("gate_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h")  # before which attention ends
WIDTH_MULTIPLE = 32  # of inputs and outputs (tritonv2.py, SUPPORTS_IN_FEATURES_DIVISIBLE_BY and its sibling)


def stored_bytes_gptq(inputs: int, outputs: int) -> tuple[int, ...]:
    """Bytes of the tensors of a GPTQ weight: codes, zeros, scales, the group of each input, and shifts of packed codes.

    Source: gptqmodel 7.7.0, nn_modules/qlinear/__init__.py, GPTQQuantLinear._register_gptq_buffers and
    PackableQuantLinear._init_wf_unsqueeze_buffers; arXiv:2210.17323.
    """
    groups = -(-inputs // GROUP_SIZE)
    codes = -(-inputs * BITS // PACKED_BITS) * outputs * INT32.itemsize
    zeros = groups * -(-outputs * BITS // PACKED_BITS) * INT32.itemsize
    scales = groups * outputs * FP16.itemsize
    return codes, zeros, scales, inputs * INT32.itemsize, PACKED_BITS // BITS * INT32.itemsize


def is_quantized(part: Sequence[str]) -> bool:
    """Whether linear layers of this part of a model are quantized: those in blocks."""
    return any(LAYERS in name.split(".") for name in part)


def quantize_gptq(module: Linear) -> None:
    """Store the layer's weight as a checkpoint has it, and its bias in fp16, whatever the model has."""
    weight, bias = module.weight, module.bias
    if module.transposed:
        weight.shape = weight.shape[::-1]  # Conv1D becomes an ordinary linear layer
        module.transposed = False
    weight.quantized = stored_bytes_gptq(weight.shape[1], weight.shape[0])
    if bias is not None:
        bias.quantized = (bias.elements * FP16.itemsize,)


def dequantizing(module: Linear, x: Tensor) -> Tensor:
    """What runs in place of the layer."""
    return gptq_linear(x, module.weight, module.bias)


def in_their_order(parameters: Sequence[Parameter], own: str) -> list[Parameter]:
    """Parameters as the model has them where optimum put the layers in: those of a module in the order of their names.

    It goes through what a module has by `dir`, takes each layer out and puts the new one in as the last. `own` is the
    part of a model that an adapter's weights belong to: they are those of the layers.
    Source: optimum 2.3.0, gptq/quantizer.py, GPTQQuantizer._replace_by_quant_layers.
    """
    modules: dict[tuple[object, ...], int] = {}
    keys: list[tuple[int, str]] = []
    after: tuple[object, ...] | None = None  # the block whose MLP has begun
    for at, one in enumerate(parameters):
        layer = one.name.partition(".lora_")[0]
        if one.part[-1:] != (own,):
            keys.append((at, ""))
            continue
        block = (one.path, one.part)
        if layer.rpartition(".")[2] in FIRST_OF_MLP:
            after = block
        keys.append((modules.setdefault((*block, block == after), at), layer))
    return [parameters[at] for at in sorted(range(len(keys)), key=keys.__getitem__)]
