"""What is said of the runs of llm.c."""

from __future__ import annotations

from vramplan.answers.behaviour import AnswersBehaviour, WordedDevice
from vramplan.engines.llmc.iteration import basis_of_llmc, falls_back
from vramplan.planner.decision import Decision
from vramplan.results import DOES_NOT_FIT


class LlmcAnswers(AnswersBehaviour):
    """All tensors are allocated before the first step."""

    underived = (
        "llm.c has no operator that allocates: its tensors are there before the first step",
        "fit and timeline answer it; or explain another --runtime",
    )

    allocated_by = "all that cudaMalloc is asked for"

    def basis(self, device: WordedDevice) -> dict[str, str]:
        """The words for llm.c's own arenas."""
        return basis_of_llmc(device.record, device.job)

    def remarks(self, decision: Decision) -> tuple[str, ...]:
        """What llm.c does where a device cannot hold all states."""
        rung, judge = decision.choice.rung, decision.judge
        if rung.verdict != DOES_NOT_FIT:
            return ()
        return falls_back(decision.record, rung.peak.device, judge.usable_bytes)


BEHAVIOUR = LlmcAnswers()
