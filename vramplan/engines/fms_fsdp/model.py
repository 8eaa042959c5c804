"""Llama as foundation-model-stack has it (fms/models/llama.py), compiled block by block, with the loss of fms-fsdp.

Of a compiled block it matters what its products, norms and attention are, which are those of torchtitan's Llama; what
else they are written with are parts of kernels. The loss is made outside of what is compiled.
Source: foundation-model-stack/fms-fsdp, main_training_llama.py and fms_fsdp/utils/train_utils.py, train.
"""

from __future__ import annotations

from vramplan.engines.torchtitan.model import Titan
from vramplan.replay.models.modules import Output
from vramplan.replay.observers import Sharding
from vramplan.replay.operators.ends import cross_entropy
from vramplan.replay.operators.views import view
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape


class Llama(Titan):
    """LLaMA under torch.compile, labels that the loader has shifted, and a cross-entropy of the logits as they are."""

    shards_by_blocks = True
    only_compiled = True
    no_eager_attention = "its code calls scaled_dot_product_attention"
    compiles_blocks = True
    drops_out = False

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether the code has no more than the model."""
        return Titan.stands_for(shape)

    def buffers(self) -> list[int]:
        """Bytes of the rotations in fp32, two by two numbers for each pair of a head and each position."""
        shape = self.recipe.shape
        return [shape.max_positions * (shape.head_size // 2) * 4 * FP32.itemsize]

    def __call__(self, *given: Tensor) -> Output:
        tape = self.tape
        input_ids, labels = given
        output = self.logits(input_ids)
        output = tape.role(Sharding).after_model(output)
        batch, length, width = output.shape
        loss = cross_entropy(view(output, (batch * length, width)), view(labels, (batch * length,)))
        return Output(loss, output)


FORWARD = Llama
