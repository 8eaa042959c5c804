"""A replica that a program splits by a plan over devices, where the model's own code knows nothing of it.

Tensor parallelism gives each device some heads of each attention layer and some columns of each feed-forward layer and
of each expert; what a device has is the same model with fewer heads and narrower feed-forward layers. The sums that
follow attention and feed-forward layer are of the whole hidden state. Embedding, head and logits count as whole: some
plans split them. Devices that share a sequence have its part of everything; in each attention layer keys and values of
the others come.

Source: transformers 5.23.0, integrations/tensor_parallel.py (ColwiseParallel, RowwiseParallel) and base_model_tp_plan
of each configuration; deepspeed/module_inject/auto_tp.py (AutoTP); torchtune, models/llama3/_parallelism.py
(base_llama_tp_plan); accelerate 1.12.0, parallelism_config.py (tp_size, cp_size, cp_comm_strategy) and
torch/distributed/tensor/experimental/_attention.py (_AllToAllRotater, _AllGatherRotater); arXiv:2309.14509 (Ulysses).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models import has_tensor_plan, published
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.values.model import Experts, ModelShape
from vramplan.values.parallel import RING, Split

COMMUNICATION = "communication"  # component of the answer


def has_plan(model: ModelShape) -> bool:
    """Whether some plan splits the layers of a model."""
    return has_tensor_plan(published(model))


def shape_of_part(model: ModelShape, split: Split) -> ModelShape:
    """The model that one device of a tensor-parallel group has; key and value heads are at least one."""
    if split.tensor == 1:
        return model
    return model._replace(
        attention_heads=model.attention_heads // split.tensor,
        key_value_heads=max(1, model.key_value_heads // split.tensor),
        full_key_value_heads=model.full_key_value_heads and max(1, model.full_key_value_heads // split.tensor),
        intermediate_size=model.intermediate_size // split.tensor,
        experts=None if model.experts is None else _experts_of_part(model.experts, split.tensor),
    )


def _experts_of_part(experts: Experts, tensor: int) -> Experts:
    """Every device has some columns of each expert: packed_colwise, and torchtune's ExpertTensorParallel."""
    shared = experts.shared_intermediate_size
    return experts._replace(
        intermediate_size=experts.intermediate_size // tensor,
        shared_intermediate_size=None if shared is None else shared // tensor,
    )


class PlannedSplit(Technique):
    """What the devices of a group send each other."""

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """The largest of it at a time, which counts from the beginning to the end."""
        setup, planned = self.setup, self.setup.planned
        assert planned is not None
        width = (self.precision.autocast or self.precision.weights).itemsize
        most = setup.sequence_length * setup.model.hidden_size if planned.tensor > 1 else 0
        if planned.context > 1:
            # keys and values: of one other device and the next, or of all; and as many gradients of them
            others = 2 if planned.context_communication == RING else planned.context
            part = max(setup.model.keys_of(full=full) for full in (False, True)) * setup.sequence_length
            most = max(most, 2 * 2 * others * part)
        return [StandingState(COMMUNICATION, 0, most * width)]
