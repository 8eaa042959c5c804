"""Images and sounds that a policy of FSDP casts on their way into the model."""

from __future__ import annotations

from math import prod

from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, INT64, DType, Tensor


class CastsImages(Technique):
    """The loader gives fp32 images, and the model a copy of them in 16 bits, which lives as long as it is used.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _pre_forward (cast_forward_inputs); _runtime_utils.py,
    _root_pre_forward (cast_root_forward_inputs).
    """

    def given(self, arguments: list[Tensor], states: list[StandingState]) -> list[Tensor]:
        """A copy of each image or sound, which is itself an input in fp32."""
        return [one if one.dtype is INT64 else self._cast(one, states) for one in arguments]

    def _cast(self, image: Tensor, states: list[StandingState]) -> Tensor:
        states[states.index(self._state(image, image.dtype))] = self._state(image, FP32)
        return self.tape.new("_to_copy", image.shape, image.dtype, image.batched)

    def _state(self, image: Tensor, dtype: DType) -> StandingState:
        """The bytes of a micro-batch of images as they are counted among the inputs."""
        size = prod(image.shape[1:]) * dtype.itemsize
        return (
            StandingState("inputs", size * self.tape.batch, 0) if self.tape.direct else StandingState("inputs", 0, size)
        )
