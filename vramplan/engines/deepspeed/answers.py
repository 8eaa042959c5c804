"""What is said of states that DeepSpeed's ZeRO shares."""

from __future__ import annotations

from vramplan.answers.behaviour import AnswersBehaviour
from vramplan.engines.deepspeed.basis import basis_of_zero
from vramplan.replay.record import Record
from vramplan.values.job import ResolvedJob


class DeepSpeedAnswers(AnswersBehaviour):
    """Flat buffers, and partitions of them."""

    underived = (
        "the flat copies that DeepSpeed makes of weights and gradients are not derived",
        "fit and timeline answer it; or explain another --runtime",
    )

    def basis_of_shards(self, record: Record, job: ResolvedJob, alone: dict[str, str]) -> dict[str, str]:
        """The words for a device's part of each stage of ZeRO."""
        return basis_of_zero(record, job, alone)


BEHAVIOUR = DeepSpeedAnswers()
