"""Words for parts that a model's own modules do not have as a name: what `attention`, `mlp` and `lm_head` stand for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vramplan.catalog.fields import Fields, shown
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, LAYERS, NORMS
from vramplan.replay.models.parts import block_lists
from vramplan.replay.techniques.frozen import matches
from vramplan.replay.techniques.trained import Names, names_of
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

ATTENTION, MLP, LM_HEAD = "attention", "mlp", "lm_head"
LANGUAGE_TASKS = ("lm", "mlm", "seq2seq")
MODULES = {
    ATTENTION: (
        *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj", "query_key_value", "Wqkv", "c_attn"),
        *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
        *("q", "k", "v", "o", "relative_attention_bias", "dense", "attn.c_proj"),
    ),
    MLP: (
        *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "wi", "wi_0", "wi_1", "wo"),
        *("dense_h_to_4h", "dense_4h_to_h", "experts", "gate", "shared_expert_gate"),
    ),
}
"""Modules of a block, as any family calls them; `dense` is the one behind attention.

BERT has a part of its own that is called attention, and two layers of one name in the rest, which no word tells apart.
"""


ALL_BUT = "all-but:"
"""Before a regular expression: all parts are frozen whose name in Transformers no such expression matches."""


def resolve_parts(
    given: Sequence[str], model: ModelShape, names: Names, told: list[Assumption], fields: Fields
) -> tuple[str, ...]:
    """The words as the model has them; what was taken for another is told."""
    found: list[str] = []
    expressions = [word.removeprefix(ALL_BUT) for word in given if word.startswith(ALL_BUT)]
    if expressions:
        found += _all_but(expressions, model, names, fields)
        told.append(Assumption("frozen", found.copy(), f"all but what {' and '.join(expressions)} matches"))
    for word in given:
        if word.startswith(ALL_BUT):
            continue
        stands_for = _modules(word, model, names)
        if stands_for:
            told.append(Assumption("frozen", list(stands_for), f"what {word} is in this model"))
        found += stands_for or (word,)
    return tuple(dict.fromkeys(found))


def matches_weight(word: str, model: ModelShape) -> bool:
    """Whether the regular expression of `all-but:REGEX` matches a weight of a model, or cannot be read as one."""
    try:
        expression = re.compile(word.partition(":")[2])
    except re.error:
        return True
    names = ("lm_head.weight", *(one for path in names_of(model).paths for one in spelled(path, model)))
    return any(expression.search(name) for name in names)


def _all_but(expressions: Sequence[str], model: ModelShape, names: Names, fields: Fields) -> list[str]:
    """Words for everything that none of the expressions matches; blocks that are frozen alike stand together."""
    trained: set[tuple[str, ...]] = set()
    for text in expressions:
        try:
            expression = re.compile(text)
        except re.error as error:
            fields.problem("frozen", f"{shown(text)} is no regular expression: {error}")
            return []
        found = {path for path in names.paths if any(expression.search(one) for one in spelled(path, model))}
        if not found and not expression.search("lm_head.weight"):  # a tied head is no weight of its own
            first = spelled(names.paths[0], model)[0]
            fields.refuse("frozen", f"{shown(text)} matches no weight", hint=f"as in {first}")
        trained |= found
    norms = [path for path in names.paths if NORMS in path]
    alone = [NORMS] if norms and not trained.intersection(norms) else []  # one word for all of them
    left = [path for path in names.paths if path not in trained and not (alone and NORMS in path)]
    whole = {part for part in (EMBEDDINGS, HEAD) if not any(path[0] == part for path in trained)}
    outside = [path[0] if path[0] in whole else ".".join(path) for path in left if LAYERS not in path]
    some = {path[: path.index(LAYERS) + 2] for path in trained if LAYERS in path}  # blocks that are trained in part
    blocks: dict[tuple[str, ...], list[int]] = {}
    for path in left:
        if LAYERS in path:
            at = path.index(LAYERS) + 1
            module = path[at + 1 :] if path[: at + 1] in some else ()
            numbers = blocks.setdefault((*path[:at], "", *module), [])
            if int(path[at]) not in numbers[-1:]:
                numbers.append(int(path[at]))
    return [
        *outside,
        *alone,
        *(_in_blocks(path, numbers) for path, numbers in blocks.items() for numbers in _runs(numbers)),
    ]


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers that follow each other, together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _in_blocks(path: Sequence[str], numbers: Sequence[int]) -> str:
    some = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    return ".".join(part or some for part in path)


def spelled(path: Sequence[str], model: ModelShape) -> list[str]:
    """A weight as models of Transformers call it that are built like Llama, and as the words of a job do.

    Experts and their gate lie in `mlp` since Transformers 5, and in `block_sparse_moe` of a Mixtral before. Models
    whose blocks are `h` or `blocks`, as GPT-2, Falcon and DBRX, are a `transformer`.
    """
    inner = [part for part in path if part not in (NORMS, HEAD, EMBEDDINGS)]
    if HEAD in path:
        return [".".join((*inner, "weight")), ".".join(path)]
    lists = block_lists(model)
    older = lists[0] if len(lists) == 1 and lists[0] in OLDER_LISTS else None
    if LAYERS not in path:
        return [".".join(("model" if older is None else "transformer", *inner, "weight")), ".".join(path)]
    at = inner.index(LAYERS) + 2
    block, module = inner[:at], inner[at:]
    if older is not None:
        return [".".join(("transformer", older, *block[1:], *module, "weight")), ".".join(path)]
    inside = [()] if NORMS in path else [("self_attn",)] if {*module} & {*MODULES[ATTENTION]} else MLP_FOLDERS
    names = [".".join(("model", *block, *folder, *module, "weight")) for folder in inside]
    return [*names, ".".join(path)]


MLP_FOLDERS = [("mlp",), ("block_sparse_moe",)]
OLDER_LISTS = ("h", "blocks")


def _modules(word: str, model: ModelShape, names: Names) -> tuple[str, ...]:
    """What a word stands for; nothing where the model has the word itself, or no such modules."""
    if any(matches(word, path) for path in names.paths):
        return ()
    if word == LM_HEAD and model.task in LANGUAGE_TASKS:
        return (HEAD,)
    inside = [path for path in names.paths if LAYERS in path and NORMS not in path]
    known = MODULES.get(word, ())
    return tuple(one for one in known if any(matches(one, path) for path in inside))
