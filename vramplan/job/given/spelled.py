"""A job in the words of the job format, whatever spelling its values have in a file, in options or in the API.

Nothing is checked here: a text that is no known spelling stays, and its reader says what is wrong with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vramplan.catalog.document import Entry, Mapping, Node, Scalar, Sequence
from vramplan.catalog.fields import Fields, shown
from vramplan.catalog.gpus import names_in
from vramplan.engines import imported
from vramplan.job.counts import ungrouped
from vramplan.job.given.keyed import size_in
from vramplan.options import table
from vramplan.options.option import COUNT, NUMBER, TEXTS, WORD, Option
from vramplan.options.spellings import NULL, SpellingMeaning, meaning
from vramplan.options.words import AUTO, CHOSEN
from vramplan.tuples import NamedTuple
from vramplan.values.length import Rent

if TYPE_CHECKING:
    from vramplan.catalog.instances import Instance

_COUNTED = re.compile(
    r"\s*([1-9]\d{0,6})\s*(?:[xX*\u00d7])(?!(?i:tx?)\s*$)\s*(\S.*?)\s*|\s*(\S.*?)\s+[xX*\u00d7]\s*(?!1\s*$)([1-9]\d{0,6})\s*"
)  # an X1 at the end belongs to a name: nobody counts one device
_BEHIND = re.compile(
    r"\s*(?:gpu:)?(?!(?:local|cuda|gpu)\b)(\S.*?)(?:[:*\u00d7]|(?<=\w)x)([1-9]\d{0,6})\s*", re.IGNORECASE
)
"""A count behind a name and no space, as programs that ask for machines have it: `H100:8`, `gpu:a100:4`, `h100x8`."""
_INSTANCE = re.compile(
    r"(?:ml\.)?[a-z]\w*(?:-\w+)*\.\w+|[ag]\dx?-\w+-\d+g?|(?:standard[\s_-])?n[cd]\w*[\s_-]v\d+|gpu_\d+x_\w+"
    r"|(?:nvidia[\s_-])?dgx[\s_-]\w+",
    re.IGNORECASE | re.ASCII,
)
"""How clouds name an instance: p4d.24xlarge, a2-highgpu-8g, g2-standard-48, Standard_ND96asr_v4, gpu_8x_a100."""
_DECIMALS = r"(\d+(?:\.\d+)?)\s*([kKmM])"


class SpelledOut(NamedTuple):
    """What a job says beside its words."""

    told: list[tuple[str, Any, str]]  # what a spelling leaves open: key, value and how it is read
    rent: Rent | None


def spelled_out(fields: Fields) -> SpelledOut:
    """Put known words in the place of spellings.

    The nodes themselves stay: jobs of a file share those of its defaults.
    """
    told: list[tuple[str, Any, str]] = []
    also: list[tuple[str, str, str, str]] = []  # the key, its word, what was typed, and what is told of it
    fields.node = root = with_kind(fields.node)
    changed = _in(root, "", told, also)
    for group in table.GROUPS:
        entry = changed.get(group) or root.entries.get(group)
        if entry is None:
            continue
        if isinstance(entry.value, Mapping):
            inside = _in(entry.value, group, told, also)
            kind = inside.get(table.HEADS.get(group, ""))
            if kind is not None and len(entry.value.entries) == 1 and _is_null(kind.value):
                changed[group] = Entry(entry.key, kind.value)  # `--adapter none` is no adapter
            elif inside:
                changed[group] = Entry(entry.key, _with(entry.value, inside))
    if changed:
        fields.node = root = _with(root, changed)
    for key, word, spelling, said in also:
        if _set(fields, key, word, spelling) and said:
            told.append((key, word, said))
    return SpelledOut(told, _devices(fields, told))


def counted(text: str | None) -> tuple[int, str] | None:
    """The devices and the rest of `8xA100-80GB`, `8*h100`, `h100 x8` or `H100:8`; None if none are counted.

    The name of an instance counts those of the machine, as in `p4d.24xlarge`.
    """
    if text is None:
        return None
    return next((found for one in names_in(text) if (found := _counted(one)) is not None), None)


def _counted(text: str) -> tuple[int, str] | None:
    found = _COUNTED.fullmatch(text)
    count, name = 1, text
    if found is None:
        at_the_end = _counted_behind(text)
        if at_the_end is not None:
            return at_the_end
    if found is not None:
        before, gpu, other, behind = found.groups()
        count, name = (int(before), gpu) if before else (int(behind), other)
        if name.isdecimal() and _is_card(str(count)) and not _is_card(name):  # 4090 x2
            count, name = int(name), str(count)
    machine = instance_of(name)
    if machine is not None:
        return count * machine.gpus, machine.gpu
    if found is None:
        return None
    inside = counted(name)
    return (count, name) if inside is None else (count * inside[0], inside[1])  # 2x8xh100: two nodes of eight


def _is_card(name: str) -> bool:
    """Whether a GPU is called by that number alone, as the 4090."""
    return imported("vramplan.catalog.locate:shipped_called")("gpus", name) is not None


def _counted_behind(text: str) -> tuple[int, str] | None:
    """The same of a count that stands behind a name and no space; None where there is none.

    An x may be the end of a name, and belongs to the count where the rest is a GPU and the whole is none.
    """
    found = _BEHIND.fullmatch(text)
    if found is None:
        return None
    name, count = found[1], int(found[2])
    if text[found.end(1)] in "xX":
        called = imported("vramplan.catalog.locate:shipped_called")
        if called("gpus", text) is not None or called("gpus", name) is None:
            return None
    return count, name


def instance_of(name: str) -> Instance | None:
    """The instance of a cloud that a name, counted or not, is that of; None where it is none."""
    for one in names_in(name):
        found = _COUNTED.fullmatch(one)
        bare = one if found is None else found[2] or found[3]
        if _INSTANCE.fullmatch(bare.strip()) is None:  # most names of GPUs: the profiles of clouds are not read
            continue
        machine: Instance | None = imported("vramplan.catalog.instances:instance_named")(bare)
        if machine is not None:
            return machine
    return None


def with_kind(root: Mapping) -> Mapping:
    """A job in which `adapter: lora` or `qat: int4`, a text, is the mapping that has it as its first key."""
    changed: dict[str, Entry] = {}
    for group, head in table.HEADS.items():
        given = root.entries.get(group)
        if given is not None and isinstance(given.value, Scalar) and not given.value.is_null:
            inside = Mapping(given.value.line, given.value.column)
            inside.entries = {head: Entry(given.key, given.value)}
            changed[group] = Entry(given.key, inside)
    return _with(root, changed) if changed else root


def _with(node: Mapping, changed: dict[str, Entry]) -> Mapping:
    copy = Mapping(node.line, node.column)
    copy.entries = {**node.entries, **changed}
    return copy


def _in(
    node: Mapping, group: str, told: list[tuple[str, Any, str]], also: list[tuple[str, str, str, str]]
) -> dict[str, Entry]:
    """The entries of a mapping that have other spellings, in our words."""
    changed: dict[str, Entry] = {}
    known = table.inside(group)
    for name, entry in node.entries.items():
        option = known.get(name)
        if option is None or not (option.words or option.spellings or option.kind in (COUNT, NUMBER)):
            continue
        value = entry.value
        new: Node | None = None
        if isinstance(value, Scalar):
            new = _scalar(option, value, told, also)
        elif isinstance(value, Sequence) and option.kind == TEXTS:
            items = [_scalar(option, one, told, also) or one if isinstance(one, Scalar) else one for one in value.items]
            if any(one is not old for one, old in zip(items, value.items, strict=True)):
                new = Sequence(value.line, value.column)
                new.items = items
        if new is not None:
            changed[name] = Entry(entry.key, new)
    return changed


def _scalar(
    option: Option, value: Scalar, told: list[tuple[str, Any, str]], also: list[tuple[str, str, str, str]]
) -> Scalar | None:
    """The value in our words; None where it has them already, or none is known."""
    text = value.text
    if option.kind in (COUNT, NUMBER) and not text.isdigit():
        return _count(option, value, told)
    if option.kind not in (WORD, TEXTS) or value.is_null or len(text) > 60:
        return None
    found: SpellingMeaning | None = meaning(text, option.words, option.spellings)
    if found is None:
        return None
    said = f"{text}: {found.note}" if found.note else ""
    also += [(key, word, text, said if key == found.about else "") for key, word in found.also]
    if said and not found.about:
        told.append((option.key, found.word, said))
    style = "plain" if found.word == NULL else value.style  # a quoted "none" is nothing too
    return Scalar(found.word, style, value.line, value.column)


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


def _count(option: Option, value: Scalar, told: list[tuple[str, Any, str]]) -> Scalar | None:
    """`8k` and `1M` of a length, and `1_000`."""
    text = value.text.strip()
    if option.key in CHOSEN and text.lower() == AUTO:
        return Scalar(NULL, "plain", value.line, value.column)
    found = re.fullmatch(_DECIMALS, text, re.ASCII) if option.thousands is not None and len(text) < 20 else None
    if found is not None and option.thousands is not None:
        unit = option.thousands ** (1 if found[2] in "kK" else 2)
        number = float(found[1]) * unit
        if number.is_integer():
            told.append((option.key, int(number), f"{text}: {found[2]} is {unit} tokens"))
            return Scalar(str(int(number)), "plain", value.line, value.column)
    plain = ungrouped(text)
    if value.style != "quoted" and plain != text and re.fullmatch(r"[\d.]+", plain, re.ASCII):
        return Scalar(plain, value.style, value.line, value.column)
    return None


def _set(fields: Fields, key: str, word: str, spelling: str) -> bool:
    """Give a key the value that a spelling of another one has in it, unless the job says it itself; whether it did."""
    group, _, name = key.rpartition(".")
    root = fields.node
    entry = root.entries.get(group) if group else None
    inside = root if not group else (entry.value if entry is not None else Mapping(root.line, root.column))
    if not isinstance(inside, Mapping):
        return False
    given = inside.entries.get(name)
    if given is not None and isinstance(given.value, Scalar) and not given.value.is_null:
        text = given.value.text
        if text != word and not text.startswith(f"{word}-"):  # nf4-double is an nf4
            at = given.value
            message = f"{shown(text)} contradicts {shown(spelling)}, which is {word}"
            fields.refuse(key, message, hint="leave one of them out", at=at)
        return False
    value: Node = Scalar(word, "plain", inside.line, inside.column)
    if table.find(key).kind == TEXTS:
        several = Sequence(inside.line, inside.column)
        several.items = [Scalar(one, "plain", inside.line, inside.column) for one in word.split(",")]
        value = several
    copy = _with(inside, {name: Entry(Scalar(name), value)})
    fields.node = copy if not group else _with(root, {group: Entry(Scalar(group), copy)})
    return True


def _devices(fields: Fields, told: list[tuple[str, Any, str]]) -> Rent | None:
    """`8xA100-80GB`: the GPU, and how many devices there are in all; `p4d.24xlarge`: those of an instance.

    Returns what the instance costs.
    """
    node = fields.node_of("gpu")
    found = counted(node.text) if isinstance(node, Scalar) and not node.is_null else None
    if found is None or not isinstance(node, Scalar):
        return None
    count, name = found
    machine = instance_of(node.text)
    inside = fields.node_of("parallel")
    parallel = inside if isinstance(inside, Mapping) else Mapping(node.line, node.column)
    split = _replica(parallel)
    data = _whole(parallel, "data")
    if data is not None and machine is not None and _is_of_machines(data * split, machine.gpus):
        count = data * split
    if count % split:
        fields.refuse("gpu", f"{count} GPUs are no multiple of the {split} of a replica")
    elif data is not None and data * split != count:
        replicas = f"the {data} replicas ({table.find('parallel.data').option}, --dp)"
        which = replicas if split > 1 else table.find("parallel.data").option
        way = f"leave one of the two out: {which}, or the number before the GPU"
        fields.refuse("gpu", f"{shown(node.text)} is {count} GPUs, and the job says {data * split}", hint=way)
    gpu: Node = Scalar(name, node.style, node.line, node.column)
    size_only = size_in(name)
    if size_only is not None:
        size = Scalar(size_only, node.style, node.line, node.column)
        gpu = Mapping(node.line, node.column)
        gpu.entries = {key: Entry(Scalar(key), size) for key in ("name", "memory")}
    changed = {"gpu": Entry(Scalar("gpu"), gpu)}
    new: dict[str, str] = {}
    if data is None and count % split == 0:
        new["data"] = str(count // split)
    if machine is not None:
        told.append(("gpu", name, f"{machine.gpus} in each {machine.name} of {machine.cloud}"))
        if count > machine.gpus:
            new["devices_per_node"] = str(machine.gpus)
            if machine.network is not None:
                new["node_bandwidth"] = machine.network
        if fields.given("offload") and not fields.present("host_memory") and machine.host_memory is not None:
            changed["host_memory"] = Entry(Scalar("host_memory"), _plain(machine.host_memory, node))
    given = {key: Entry(Scalar(key), _plain(text, node)) for key, text in new.items() if key not in parallel.entries}
    if given and (inside is None or isinstance(inside, Mapping)):
        changed["parallel"] = Entry(Scalar("parallel"), _with(parallel, given))
    fields.node = _with(fields.node, changed)
    return None if machine is None else _rent(machine, count)


def _rent(machine: Instance, gpus: int) -> Rent:
    """What each GPU of a job costs where whole instances are paid."""
    whole = -(-gpus // machine.gpus)
    usd = machine.usd_per_hour
    return Rent(machine.cloud, None if usd is None else usd * whole / gpus)


def _is_of_machines(gpus: int, each: int) -> bool:
    """Whether so many GPUs are a part of one machine, or all of several."""
    return gpus <= each or gpus % each == 0


def _plain(text: str, at: Scalar) -> Scalar:
    return Scalar(text, "plain", at.line, at.column)


def replica(parallel: Entry | None) -> int:
    """The devices of one replica of the model, from the entry of `parallel`."""
    return _replica(parallel.value) if parallel is not None and isinstance(parallel.value, Mapping) else 1


def whole_in(parallel: Entry | None, key: str) -> int | None:
    """The whole number that a key of `parallel` was typed with."""
    return _whole(parallel.value, key) if parallel is not None and isinstance(parallel.value, Mapping) else None


def _replica(parallel: Mapping) -> int:
    size = 1
    for key in ("tensor", "pipeline", "context"):
        size *= _whole(parallel, key) or 1
    return size


def _whole(parallel: Mapping, key: str) -> int | None:
    entry = parallel.entries.get(key)
    text = entry.value.text if entry is not None and isinstance(entry.value, Scalar) else ""
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) else None
