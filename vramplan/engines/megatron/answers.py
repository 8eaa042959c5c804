"""What is said of the runs of Megatron-LM."""

from __future__ import annotations

from vramplan.answers.behaviour import AnswersBehaviour, WordedDevice
from vramplan.engines.megatron.basis import basis_of_split


class MegatronAnswers(AnswersBehaviour):
    """Each device has a part of the layers, and buffers of Megatron's own."""

    underived = (
        "the layers of Megatron-LM, which are split over devices, are not derived",
        "fit and timeline answer it; or explain another --runtime",
    )
    counts_a_part = True

    def basis(self, device: WordedDevice) -> dict[str, str]:
        """The words for a device of Megatron-LM."""
        return basis_of_split(device.record, device.job, device.stage)


BEHAVIOUR = MegatronAnswers()
