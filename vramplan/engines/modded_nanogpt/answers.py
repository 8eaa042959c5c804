"""What is said of the runs of modded-nanogpt."""

from __future__ import annotations

from vramplan.answers.behaviour import AnswersBehaviour, WordedDevice
from vramplan.engines.modded_nanogpt.muon import basis_of_modded


class ModdedAnswers(AnswersBehaviour):
    """Weights of two element types, and an optimizer that devices share."""

    def basis(self, device: WordedDevice) -> dict[str, str]:
        """The words for the script's own weights and states."""
        return basis_of_modded(device.parameters) | device.shared()


BEHAVIOUR = ModdedAnswers()
