"""Images that a policy of FSDP casts on their way into the model."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.record import State
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32


class CastsImages(Technique):
    """The fp32 images that the loader gave, beside those that the model gets, which count as its inputs.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _pre_forward (cast_forward_inputs); _runtime_utils.py,
    _root_pre_forward (cast_root_forward_inputs).
    """

    def states(self, buffers: Sequence[int]) -> list[State]:
        """Of a micro-batch."""
        setup, tape = self.setup, self.tape
        assert setup.model.channels is not None
        assert setup.image_size is not None
        size = setup.model.channels * setup.image_size**2 * FP32.itemsize
        return [State("inputs", size * tape.batch, 0) if tape.direct else State("inputs", 0, size)]
