"""How wide the band around a peak is: margins by class of evidence, in percent, from the errors of docs/measured.md.

Where what is reserved is estimated, the margins are shares of what the allocator has to hold; where it is simulated, of
what the simulation reserves. The context and communicators add a part of themselves at the lower end.

The margins of the simulation follow from published peaks by a rule (tests/measured/margins.py), of runs from which no
mechanism was learned. They have four classes: one device, or replicas of it; several devices that share or split the
states, where the allocator serves several streams; and compiled steps of each, which stated rules follow. Where the
answer has a doubt (`admitted`, `unpublished`) the band is half as wide again; where something was composed and never
traced (`COMPOSED`) it is wider at both ends.
The estimate has a class for each kind of run whose blocks lie otherwise: one device, convolutions, states that are
shared, a model that is split, and compiled steps. Each but the first holds nine of ten of the runs of its class that
were measured; on one device the upper end has room for large tensors, and more where checkpoints make them again.
`fit` estimates what is long, or what tensors alone make too large (vramplan/planner/decision.py).
"""

from __future__ import annotations

from vramplan.replay.models import peaks_published, published
from vramplan.replay.models.modules import HALF_LOGITS
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob

BAND_SIMULATED, BAND_ESTIMATED, RESERVED_ESTIMATED = "band, simulated", "band, estimated", "reserved, estimated"
"""Figures that a constant decides: the ends of the band, and what is reserved where no allocator is simulated."""


class Fitted(NamedTuple):
    """A constant that was chosen in sight of published runs, which therefore say nothing about the figure."""

    constant: str
    figure: str  # which figure it decides
    runs: tuple[str, ...]  # names of cases, * standing for any text; a run that is no case by its address or log


OUTSIDE = 50  # percent of the context and the communicators that the lower end has
# Where it is estimated; several communicators are not all small at once: none of 25 runs under Megatron had less than
# 93 % of its figure.
OUTSIDE_SPLIT = 75


class Margin(NamedTuple):
    """Percent below and above, and of what is outside of the allocator at the lower end."""

    below: int
    above: int
    outside: int = OUTSIDE

    def plus(self, other: Margin) -> Margin:
        """This margin and another whose errors have nothing to do with its own, added at each end."""
        return self._replace(below=self.below + other.below, above=self.above + other.above)

    def widest(self, other: Margin) -> Margin:
        """The wider of two at each end of what the allocator has."""
        return Margin(max(self.below, other.below), max(self.above, other.above), self.outside)


# 98 % of the peaks of these files are no further from their predictions.
COMPILED = Margin(7, 5)
COMPILED_ROWS = (
    *(f"tests/oracle/{name}.json" for name in ("compile", "compile_more", "compile_beside")),
    "tests/engines/torchtitan/titan_compiled.json",
    "tests/engines/torchtune/torchtune_compiled.json",
)

# Estimated (docs/job-format.md, "Verdict"): nothing below, and 10 % above what is allocated.
PLAIN = Margin(0, 10)
BEYOND_PLAIN = {
    # FSDP and ZeRO: gathered tensors and buckets leave holes that others do not fit; adapters under DDP. Of 20 runs
    # that were measured 18 need no more, those under ZeRO-3 31 to 43 % and those whose weights are offloaded 36 and 56.
    "shared": 30,
    "shared and compiled": 15,  # seven runs of torchtitan need 7 to 19 %
    # Tensor and pipeline parallelism: the ladder bigscience-bf16-h13312-l82 needs 13.4 %, and 14 of 15 runs of
    # new_peaks.yaml no more than this.
    "split": 10,
    "compiled": 10,  # what the allocator does with buffers of fused kernels is in no trace
    # Weights of few bits on one device: what is made of them comes and goes between tensors that stay. Of ten such runs
    # of new_peaks.yaml, and eight of families and the second set, that were estimated 14 need no more than this, and
    # the others 8 to 102 % more.
    "quantized": 25,
    # Copies of images in another layout come and go between tensors that stay: nine of ten ResNets on an H100 need 16
    # to 26 %.
    "convolved": 17,
}
"""How much higher the upper end is."""
BELOW_OTHER_MODULES = 14
"""How much lower the lower end is where a model is split and mostly runs in modules that were not traced.

In percent of what the allocator has to hold. Of FlagPerf's 17 runs 16 need no more, and ten need less than the tensors
of the traced modules; their settings are in part inferred.
"""

# Where a few large tensors are much of what is held, as the logits, their copy in fp32 and its gradient are: a free
# block that smaller tensors have split serves none of them, so the allocator asks for another. Of 121 drawn runs on
# one device (tests/measured/estimate.py, seed 11) the simulation reserves no more than that of 101, and no more than
# PLAIN of 85. What checkpoints make again meets more of such blocks. Of 115 jobs measured on an H100
# (tests/measured/h100.yaml) the range has what 92 reserve with 150 % for all, 96 with 300 % behind checkpoints, and 105
# with the margin of convolutions too.
LARGEST_PERCENT = 150  # of the largest tensor, for which the upper end has room
LARGEST_AGAIN_PERCENT = 300  # the same where checkpoints are computed again
MOST_FOR_LARGEST = 30  # percent of what is held, which it has for that at most

# By the rule of tests/measured/margins.py, of published runs from which no mechanism was learned: 337 of them
# (tests/measured/new_peaks.py). The newest set, on which the code was mended since, narrows no end.
ALONE = Margin(8, 16)  # one device, or replicas of it
SEVERAL = Margin(12, 24)  # that share or split the states
ALONE_COMPILED = COMPILED.widest(Margin(0, 18))
SEVERAL_COMPILED = COMPILED.widest(Margin(15, 14))
# How much wider the band is where the answer has a doubt, as a fraction, in whole halves: the least that held eight of
# nine peaks of FlagPerf under ZeRO, before peaks under ZeRO were in the rule.
DOUBTED = (3, 2)
# The share of the context and the communicators that the lower end has where they were measured on the machine.
OUTSIDE_CALIBRATED = 95
READ_SINCE = (2, 0)  # the oldest release of PyTorch whose operators and autocast were read
# Added for a model type that is not modelled: each known decoder was read as if nobody knew it, and 264 of these 280
# peaks are within this of the peak of its own code. Those outside are of Gemma 2 and 3 and of gpt-oss, whose attention
# has no fused kernel or whose norms are more, of OLMo 1 and of Nemotron, whose norms save less.
UNKNOWN_TYPE = Margin(3, 15)
# Over several data-parallel devices alone: of ZeRO 1 one peak of a program of its own is published.
MEASURED_SHARING = ("ddp", "fsdp", "zero2", "zero3")

# Combinations that were never traced, at both ends: of 147 jobs of two to five techniques that were drawn at random and
# traced afterwards 145 were exact, and none was off by 2 %. What is composed under shards is farther from a trace.
COMPOSED = Margin(5, 5)

FITTED_FROM = (
    Fitted("ALONE", BAND_SIMULATED, ("*",)),
    Fitted("SEVERAL", BAND_SIMULATED, ("*",)),
    Fitted("ALONE_COMPILED", BAND_SIMULATED, ("*",)),
    Fitted("SEVERAL_COMPILED", BAND_SIMULATED, ("*",)),
    Fitted("DOUBTED", BAND_SIMULATED, ("flagperf-*",)),
    Fitted("unpublished", BAND_SIMULATED, ("*",)),
    Fitted("MEASURED_SHARING", BAND_SIMULATED, ("*",)),
    Fitted("COMPILED", BAND_SIMULATED, COMPILED_ROWS),
    Fitted("COMPILED", BAND_ESTIMATED, COMPILED_ROWS),
    Fitted("UNKNOWN_TYPE", BAND_SIMULATED, ("tests/planner/test_unknown_type.py",)),
    Fitted("UNKNOWN_TYPE", BAND_ESTIMATED, ("tests/planner/test_unknown_type.py",)),
    Fitted("LARGEST_AGAIN_PERCENT", BAND_ESTIMATED, ("h100 *",)),
    Fitted("BEYOND_PLAIN[convolved]", BAND_ESTIMATED, ("h100 resnet-*",)),
    Fitted("BEYOND_PLAIN[shared]", BAND_ESTIMATED, ("fsdpqlora-7b-*", "peft-docs-70b-*", "flagperf-*")),
    Fitted("BEYOND_PLAIN[split]", BAND_ESTIMATED, ("bigscience-*", "nanotron-*", "swift*-megatron-*", "mcore-*")),
    Fitted("BEYOND_PLAIN[quantized]", BAND_ESTIMATED, ("axolotl-*-qlora", "xtuner-*", "copilot-*")),
    Fitted("BELOW_OTHER_MODULES", BAND_ESTIMATED, ("flagperf-*",)),
    Fitted("OUTSIDE_SPLIT", BAND_ESTIMATED, ("bigscience-*",)),
)
"""Of the constants above, and which families `unpublished` names, as the rule of tests/measured/families.py has it.

PLAIN and OUTSIDE are those of docs/job-format.md, which no run has moved. The peaks of
tests/measured/family_peaks.yaml have moved nothing else: they decide which families have the doubt, and no figure.
"""


def beside(margin: Margin, *, composed: bool) -> Margin:
    """The margin with that of what was never compared as a whole, if something was not."""
    return margin.plus(COMPOSED) if composed else margin


def room_for(largest_bytes: int, *, again: bool) -> int:
    """What the upper end of an estimate has for the largest tensor; `again`: checkpoints are computed again."""
    return -(-(LARGEST_AGAIN_PERCENT if again else LARGEST_PERCENT) * largest_bytes // 100)


def estimated(
    *,
    compiled: bool,
    shared: bool,
    split: bool,
    convolved: bool = False,
    quantized: bool = False,
    other_modules: bool = False,
    doubted: bool = False,
) -> Margin:
    """The margin where what is reserved is a factor of what is allocated."""
    situations = {
        "compiled": compiled,
        "shared": shared and not compiled,
        "shared and compiled": shared and compiled,
        "split": split,
        "convolved": convolved,
        "quantized": quantized and not (shared or split),
    }
    above = max((BEYOND_PLAIN[name] for name, holds in situations.items() if holds), default=0)
    below = COMPILED.below if compiled else PLAIN.below
    if split and other_modules:
        below = max(below, BELOW_OTHER_MODULES)
    found = Margin(below, PLAIN.above + above, OUTSIDE_SPLIT if split else OUTSIDE)
    return _wider(found) if doubted else found


def _wider(margin: Margin) -> Margin:
    times, of = DOUBTED
    return margin._replace(below=-(-margin.below * times // of), above=-(-margin.above * times // of))


def is_measured(family: str, sharing: str | None) -> bool:
    """Whether published peaks confirm it; `sharing` is how several data-parallel devices do, if that is all."""
    return peaks_published(family) and is_measured_sharing(sharing)


def is_measured_sharing(sharing: str | None) -> bool:
    """The same of how data-parallel devices share."""
    return sharing is None or sharing.startswith(MEASURED_SHARING)


def unpublished(job: ResolvedJob, sharing: str | None) -> tuple[str, ...]:
    """Of what of a job no peaks on a GPU have confirmed the range, in words; `sharing` is that of `is_measured`.

    The margins of the estimate are wider than that.
    """
    family = job.model.published_family or job.model.family
    lacking = {
        f"few published peaks of {family} confirm the range": not is_measured(published(job.model), None),
        f"no peak under {sharing} alone is published": not is_measured_sharing(sharing),
    }
    return tuple(words for words, holds in lacking.items() if holds)


def admitted(job: ResolvedJob) -> tuple[str, ...]:
    """What the answer of a job says itself that it does not know, in words."""
    release = job.pytorch_version
    doubts = {
        f"PyTorch {release} is older than what was read": release is not None and _number(release) < READ_SINCE,
        "the loss is that of a model's own code": job.loss == HALF_LOGITS,
    }
    return tuple(words for words, holds in doubts.items() if holds)


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def is_calibrated(job: ResolvedJob, *, groups: bool) -> bool:
    """Whether what is outside of the allocator was measured on this machine; `groups`: communicators are among it."""
    runtime, architecture = job.runtime, job.gpu.architecture
    own = architecture is not None and runtime.calibrated == architecture and job.pytorch_version is None
    return own and (not groups or runtime.calibrated_groups == architecture)


def simulated(*, several: bool, compiled: bool, doubted: bool) -> Margin:
    """The margin where the allocator is simulated."""
    found = SEVERAL if several else ALONE
    if compiled:
        found = SEVERAL_COMPILED if several else ALONE_COMPILED
    return _wider(found) if doubted else found
