"""LN tuning as PEFT 0.21 has it: of some norms a copy is trained, and the original stays beside it."""

from __future__ import annotations

from vramplan.replay.models.part_names import NORMS
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapted import Adapted
from vramplan.replay.techniques.adapters import is_end
from vramplan.replay.techniques.frozen import path_of
from vramplan.replay.tensors import DType, Shape


class AdaptedNorms(Adapted):
    """A frozen model of which copies of norms run in their place.

    A copy has the element type of the original: of this kind alone PEFT brings nothing to fp32.
    Source: peft 0.21.2, tuners/ln_tuning/layer.py, LNTuningLayer; tuners/ln_tuning/model.py, _cast_adapter_dtype.
    """

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """Whether a weight is trained: the copy of a norm, beside which the original is made."""
        if self.makes_original or not self.is_copied(tape.part, name) or self.is_saved(tape, name):
            return super().making(tape, name, shape, dtype, trainable)
        self.makes_original = True
        tape.parameter(name, shape, dtype, trainable=False)
        self.makes_original = False
        return True

    def is_copied(self, part: tuple[str, ...], name: str) -> bool:
        """Whether a weight is that of a norm that a target names."""
        return NORMS in part and is_end(".".join(path_of(part, name)), self.adapter.targets)
