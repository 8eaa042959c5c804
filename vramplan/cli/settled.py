"""What the options of a command line say together: what one implies, what stands twice."""

from __future__ import annotations

import re
from typing import Any

from vramplan.cli import named
from vramplan.cli.refined import refined
from vramplan.cli.typed import COMPARING, SCALE, TypedOption, is_quiet, names_of
from vramplan.errors import UsageError


def settled(found: list[TypedOption], command: Any) -> list[TypedOption]:
    """The options with what they imply, each once. Raises UsageError."""
    found = _without_fused_beside_pairs(_without_replaced_words(found, command))
    found = _on_a_device(_quantized_lora(refined(_without_epochs_of_nothing(found)), command), command)
    found = _decided(found + _implied(found, command))
    return _once(_frozen_anyway(found), command)


def _without_replaced_words(found: list[TypedOption], command: Any) -> list[TypedOption]:
    """The options without what a word says, where an option behind it says another: a remedy is so pasted."""
    if command.name in COMPARING or command.name == SCALE:
        return found
    options = {one.parameter.name: one for one in found if one.parameter is not None and not one.is_word}
    result = []
    for at, one in enumerate(found):
        name = "" if one.parameter is None or one.parameter.multiple else one.parameter.name
        by = options.get(name) if one.is_word and name not in _lists() else None
        if by is None or not any(other is by for other in found[at:]) or by.is_weak:
            result.append(one)
        elif by.value != one.value and not is_quiet(found):
            option = by.name or by.spelling
            named("vramplan.cli.output:say")(f"note: {by.shown} replaces {option} {one.value} of the words before it")
    return result


def _without_fused_beside_pairs(found: list[TypedOption]) -> list[TypedOption]:
    """The options without the fused loss of Liger's switch, where another task says its loss: its kernels stay."""
    losses = [one for one in found if one.parameter is not None and one.parameter.name == "loss"]
    fused = [one for one in losses if one.is_shortcut and one.value == "fused"]
    others = [one for one in losses if one not in fused and str(one.value).lower() in OF_ITS_OWN]
    if not fused or not others:
        return found
    if not is_quiet(found):
        said = "fuses no loss of tokens, and is read as Liger's kernels alone"
        named("vramplan.cli.output:say")(f"note: {fused[0].shown} beside {others[0].shown} {said}")
    return [one for one in found if one not in fused]


OF_ITS_OWN = ("dpo", "dpo-logits", "kto", "orpo", "cpo", "simpo", "grpo", "classification", "reward", "rm")
"""Losses that are none of tokens: a file with Liger's switch beside them is read so too."""


LENGTHS = ("tokens", "samples", "compute_optimal", "job", "config")
"""What says how long a run is, or may."""


def _without_epochs_of_nothing(found: list[TypedOption]) -> list[TypedOption]:
    """The options without a number of epochs that nobody says the size of: training commands have one always."""
    given = {one.parameter.name for one in found if one.parameter is not None}
    epochs = [one for one in found if one.parameter is not None and one.parameter.name == EPOCHS]
    if not epochs or not given.isdisjoint(LENGTHS):
        return found
    if not is_quiet(found):
        said = "changes no memory, and is left out: --samples N beside it says how long the run takes"
        named("vramplan.cli.output:say")(f"note: {epochs[0].shown} {said}")
    return [one for one in found if one not in epochs]


def _quantized_lora(found: list[TypedOption], command: Any) -> list[TypedOption]:
    """The options, where `--qlora` and `--lora` say one thing: QLoRA is a LoRA. A comparison has a row of each."""
    kinds = [one for one in found if one.parameter is not None and one.parameter.name == "adapter"]
    if command.name in COMPARING or sorted(str(one.value).lower() for one in kinds) != ["lora", "qlora"]:
        return found
    return [one for one in found if one not in kinds or str(one.value).lower() == "qlora"]


OFFLOADED = {
    "offload_optimizer_device": ("optimizer", "gradients"),
    "offload_parameters_device": ("parameters",),
}
"""What a device of DeepSpeed's is for: vramplan/configs/programs/deepspeed.py reads its files so."""


def _on_a_device(found: list[TypedOption], command: Any) -> list[TypedOption]:
    """The options, where a device for states says that they are offloaded, as `accelerate launch` has it."""
    given = {one.parameter.name: one for one in found if one.parameter is not None}
    devices = {name: one for name, one in given.items() if name in OFFLOADED}
    if not devices or given.keys() & {"offload", "job", "config"}:
        return found
    found = [one for one in found if one not in devices.values() or not _is_none(one)]
    parts = [part for name, one in devices.items() if not _is_none(one) for part in OFFLOADED[name]]
    if not parts:
        return found
    said = next(iter(devices.values())).spelling
    return [*found, TypedOption(names_of(command)["--offload"], said, ",".join(parts), "--offload")]


def _is_none(one: TypedOption) -> bool:
    return str(one.value).lower() == "none"


def _implied(found: list[TypedOption], command: Any) -> list[TypedOption]:
    """LoRA, where one of its settings is given and no adapter: no other adapter has a rank of its own name.

    Quantized weights cannot be trained, so that they mean it too. A file has adapters of its own, whose settings may be
    changed.
    """
    _rank_of_the_optimizer(found)
    given = {one.parameter.name for one in found if one.parameter is not None}
    _refuse_settings_of_none(found)
    if given & {"adapter", "job", "config"} or "--adapter" not in names_of(command):
        return []
    for one in found:
        if one.parameter is not None and one.parameter.name in LORA_SETTINGS and not _is_nothing(one):
            if "lora" not in one.spelling and not is_quiet(found):
                is_setting = one.parameter.name != QUANTIZATION
                said = "is read as a setting of" if is_setting else "needs an adapter, and is read with"
                named("vramplan.cli.output:say")(f"note: {one.spelling} {said} LoRA (--adapter lora)")
            return [TypedOption(names_of(command)["--adapter"], one.spelling, "lora", "--adapter", True, True)]
    return []


FROZEN_ANYWAY = ("vision_encoder", "projector", "embeddings")


def _frozen_anyway(found: list[TypedOption]) -> list[TypedOption]:
    """The options without those that freeze a part beside an adapter, which freezes all of the model.

    In LLaMA-Factory such a part has no adapters either (hiyouga/LLaMA-Factory ff6d4d12, model_utils/visual.py); those
    of layers with the names of the targets are counted, as its files are read.
    """
    kinds = [one for one in found if one.parameter is not None and one.parameter.name == "adapter"]
    frozen = [one for one in found if one.is_shortcut and one.parameter is not None and one.parameter.name == "frozen"]
    frozen = [one for one in frozen if one.value in FROZEN_ANYWAY]
    if not frozen or len(kinds) != 1 or _is_nothing(kinds[0]):
        return found
    if not is_quiet(found):
        said = ", ".join(one.spelling for one in frozen)
        counted = "; adapters are counted wherever a layer has the name of a target"
        named("vramplan.cli.output:say")(f"note: {said} is left out: an adapter freezes the whole model{counted}")
    return [one for one in found if one not in frozen]


def _rank_of_the_optimizer(found: list[TypedOption]) -> None:
    """A rank beside an optimizer of a low rank, where no adapter is typed, is the optimizer's: --galore --rank 128.

    `found` loses the rank, and its optimizer has it.
    """
    named_so = {name: [one for one in found if one.parameter and one.parameter.name == name] for name in OF_A_RANK}
    optimizers, ranks, adapters = named_so.values()
    if len(optimizers) != 1 or len(ranks) != 1 or not all(map(_is_nothing, adapters)):
        return
    [optimizer], [rank] = optimizers, ranks
    row = named("vramplan.options.table:parameters")()[OF_A_RANK[0]]
    word, has_rank, _ = str(optimizer.value).partition(":")
    meant = row.spellings.get(named("vramplan.options.spellings:bare")(word))
    if meant is not None and meant.also:  # as a layerwise one, which is more than a word and a rank
        return
    kind = (meant.word if meant is not None else word).partition(":")[0]
    low_rank = {one.partition(":")[0] for one in named("vramplan.options.words:LOW_RANK_OPTIMIZERS")}
    if has_rank or kind not in low_rank or not str(rank.value).isdecimal():
        return
    value = f"{kind}:{rank.value}"
    found.remove(rank)
    found[found.index(optimizer)] = optimizer._replace(value=value)
    if not is_quiet(found):
        said = f"note: {rank.shown} is read as the rank of the optimizer (--optimizer {value})"
        named("vramplan.cli.output:say")(said)


def _refuse_settings_of_none(found: list[TypedOption]) -> None:
    """Raise UsageError for a setting of an adapter beside a word that says that all is trained, as --full does.

    `--adapter null` takes back what a file or the words before it say, whose settings count for nothing then.
    """
    kinds = [one for one in found if one.parameter is not None and one.parameter.name == "adapter"]
    settings = [one for one in found if one.parameter is not None and one.parameter.name in LORA_SETTINGS]
    settings = [one for one in settings if not _is_nothing(one)]
    if len(kinds) == 1 and _is_nothing(kinds[0]) and kinds[0].value != "null" and settings:
        message = f"is a setting of an adapter, and with {kinds[0].shown} there is none"
        raise UsageError(message, key=settings[0].shown, hint="leave one of the two out")


def _is_nothing(one: TypedOption) -> bool:
    """`--quantization none`, and `--adapter full`."""
    if one.value is None or one.parameter is None:
        return False
    null, bare = named("vramplan.options.spellings:NULL"), named("vramplan.options.spellings:bare")(one.value)
    row = named("vramplan.options.table:parameters")()[one.parameter.name]
    meant = row.spellings.get(bare) or named("vramplan.options.spellings:NOTHING").get(bare)
    return bare == null or (meant is not None and meant.word == null)


QUANTIZATION = "quantization"
EPOCHS = "epochs"
OF_A_RANK = ("optimizer", "rank", "adapter")
LORA_SETTINGS = ("rank", "alpha", "adapter_dropout", "targets", QUANTIZATION)


def _decided(found: list[TypedOption]) -> list[TypedOption]:
    """What is said, without what says nothing as the same is said otherwise."""
    said = {one.parameter.name for one in found if one.parameter is not None and not one.is_weak}
    result: list[TypedOption] = []
    for one in found:
        if one.is_weak and one.parameter is not None:
            if one.parameter.name in said:
                continue
            said.add(one.parameter.name)
        result.append(one)
    return result


def _once(found: list[TypedOption], command: Any) -> list[TypedOption]:
    """Each option once: several values of a list are joined, and anything else twice is refused.

    Where every option may be a list, its values are.
    """
    given: dict[str, list[TypedOption]] = {}
    for one in found:
        if one.parameter is not None and not one.parameter.multiple:
            given.setdefault(one.parameter.name, []).append(one)
    joined: dict[str, TypedOption] = {}
    for name, several in given.items():
        if len(several) == 1:
            continue
        values = [one.value for one in several if one.value is not None]
        may_vary = command.name in COMPARING and name in named("vramplan.options.table:parameters")()
        if name in _lists():
            joined[name] = several[0]._replace(value=",".join(values))
        elif may_vary and len(values) == len(several):
            joined[name] = several[0]._replace(
                value=(";" if re.search(r"[\[;]", "".join(values)) else ",").join(values)
            )
        else:
            twice(several)
    if not joined:
        return found
    result = []
    for one in found:
        name = "" if one.parameter is None or one.parameter.multiple else one.parameter.name
        if name not in joined:
            result.append(one)
        elif one is given[name][0]:
            result.append(joined[name])
    return result


def _lists() -> set[str]:
    """Names of the parameters that take several values, separated by commas."""
    rows = named("vramplan.options.table:parameters")()
    kind = named("vramplan.options.option:TEXTS")
    return {"key", *(name for name, row in rows.items() if row.kind == kind)}


def twice(several: list[TypedOption]) -> None:
    """Refuse an option that is given twice."""
    first, second = several[0], several[1]
    option = first.name or first.spelling
    if first.spelling == second.spelling:
        message = f"is given twice: {first.shown} and {second.shown}"
    else:
        message = f"is given twice, as {first.shown} and as {second.shown}"
    hint = "keep one of them"
    if first.value != second.value:
        hint += f": to change {first.shown}, as a remedy does, put {second.shown} in its place"
    raise UsageError(message, key=option, hint=hint)
