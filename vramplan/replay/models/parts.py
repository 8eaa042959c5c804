"""How a family's modules are made and called: its blocks, what they return and hold, and what units they are."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from vramplan.replay.models import family, module_of, own
from vramplan.values.model import ModelShape


def shards_by_blocks(name: str) -> bool:
    """Whether a training program's own code makes units of FSDP of the blocks: `shards_by_blocks = True`."""
    return own(name, "shards_by_blocks", False) is True


def shards_every_selective(name: str) -> bool:
    """Whether every selective checkpoint of the family's code was traced under FSDP: `shards_every_selective`."""
    return own(name, "shards_every_selective", False) is True


def asks_no_inputs(name: str) -> bool:
    """Whether the family's own switch for checkpoints asks no embeddings for a gradient: `asks_no_inputs = True`."""
    return own(name, "asks_no_inputs", False) is True


def compiles_blocks(name: str) -> bool:
    """Whether the family's own code compiles each block by itself, and its forward pass says what that keeps."""
    return own(name, "compiles_blocks", False) is True


def keeps_last_unit(name: str) -> bool:
    """Whether FSDP keeps the last unit before the root whole from forward to backward, as the code that shards asks."""
    return own(name, "keeps_last_unit", False) is True


def keeps_root(name: str) -> bool:
    """Whether FSDP keeps what is in no block whole from forward to backward, as the code that shards it leaves open.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _lazy_init, for `reshard_after_forward=None`.
    """
    return own(name, "keeps_root", False) is True


def reshards_root(name: str) -> bool:
    """Whether FSDP shards what is in no block again after forward, also where blocks stay whole until backward."""
    return own(name, "reshards_root", False) is True


def reads_head_outside(name: str, loss: str) -> bool:
    """Whether a loss outside of the model reads the head's weight, which FSDP then has to keep: `head_outside`."""
    return loss.partition("-")[0] in own(name, "head_outside", ())


def is_only_compiled(name: str) -> bool:
    """Whether a runtime's own code is modelled under `torch.compile` alone: `only_compiled = True`."""
    return own(name, "only_compiled", False) is True


def own_units(name: str) -> tuple[str, ...]:
    """Parts of the model around which the family's code calls `Sharding.within`, so that FSDP may wrap them."""
    parts: tuple[str, ...] = own(name, "own_units", ())
    return parts


def norm_with_head(name: str) -> bool:
    """Whether the family's code can have its last norm in the unit of the head."""
    return own(name, "norm_with_head", False) is True


def compiled_graphs(name: str) -> int | None:
    """Into how many graphs `torch.compile` cuts the family's forward pass with its loss; None: it is not modelled."""
    graphs: int | None = own(name, "compiled_graphs", None)
    return graphs


def takes_samples_apart(name: str) -> bool:
    """Whether code of the family takes the samples of a micro-batch one after another: `takes_samples_apart = True`.

    Then each micro-batch has events of its own. A replay that is valid for several has the levels of all, and one event
    in place of many.
    """
    return getattr(family(name), "takes_samples_apart", False) is True


def kept_of_samples(name: str) -> tuple[int, ...]:
    """Bytes for each sample of tensors that a model keeps from one step to the next: `kept_of_samples`, else none."""
    sizes: tuple[int, ...] = getattr(family(name), "kept_of_samples", ())
    return sizes


def takes_one(name: str) -> bool:
    """Whether the family's code takes a micro-batch of 1 alone: `takes_one = True`."""
    return own(name, "takes_one", False) is True


def returns_logits(name: str) -> bool:
    """Whether the family's model returns its logits beside the loss: without `returns_logits = False`."""
    return own(name, "returns_logits", True) is True


def gives_views(name: str) -> bool:
    """Whether what a block of the family gives is a view of its result: `gives_views = True`."""
    return getattr(family(name), "gives_views", False) is True


def sees_both_sides(name: str) -> bool:
    """Whether each token of the family sees those after it too, whatever head it has: `both_sides = True`."""
    return getattr(family(name), "both_sides", False) is True


def has_equal_blocks(name: str) -> bool:
    """Whether the blocks of the family differ in nothing but what they share: without `equal_blocks = False`."""
    return getattr(family(name), "equal_blocks", True) is not False


def counts_blocks(name: str) -> bool:
    """Whether a weight outside the blocks is as large as there are blocks: `counts_blocks = True`."""
    return getattr(family(name), "counts_blocks", False) is True


def block_kinds(shape: ModelShape) -> tuple[object, ...]:
    """The kind of each block: blocks of one kind hold the same shared tensors (`block_kind` of the family)."""
    kind = getattr(family(shape.family), "block_kind", None)
    return tuple(None if kind is None else kind(shape, i) for i in range(shape.layers))


def make_ups(shape: ModelShape) -> Callable[[int], object]:
    """What a block is made of, by its number in the model: `made_of(shape, number)` of a family whose blocks differ."""
    asked = getattr(family(shape.family), "made_of", None)
    return lambda number: None if asked is None else asked(shape, number)


def block_returns(name: str) -> int | None:
    """How many values a block of the original returns, the hidden state first; None: not known."""
    own: int | None = getattr(family(name), "block_returns", 2 if holds_outputs(name) else 1)
    return own


def block_lists(shape: ModelShape) -> tuple[str, ...]:
    """How the name of the list of blocks ends in the original, for each stack that has blocks.

    The family says so: `block_lists`, or `lists_of(shape)` where the stacks are as many as the shape says.
    """
    asked = vars(family(shape.family)).get("lists_of")
    names: tuple[str, ...] = getattr(family(shape.family), "block_lists", ("layers",))
    if asked is not None:
        names = asked.__func__(shape)
    return tuple(name for name, layers in zip(names, shape.stacks, strict=True) if layers)


def lists_in_stages(shape: ModelShape) -> dict[str, int]:
    """The lists of blocks of a stack that the original has in several, and the number of the first block of each.

    The family says so: `lists_in_stages(shape)`, else it is in one.
    """
    asked = vars(family(shape.family)).get("lists_in_stages")
    return {} if asked is None else dict(asked.__func__(shape))


def stored_lists(name: str) -> tuple[str, ...]:
    """The same of blocks that no checkpoint can be around, in the order of the parts of the model: `stored_lists`."""
    names: tuple[str, ...] = getattr(family(name), "stored_lists", ())
    return names


def tells_parts(name: str) -> bool:
    """Whether modules inside of a block ask if it is checkpointed: `asks_for_checkpoints = True`."""
    return getattr(family(name), "asks_for_checkpoints", False) is True


def carried_between_blocks(name: str) -> tuple[tuple[int, int], ...]:
    """What the original hands from block to block beside the hidden state: (argument after it, value returned)."""
    own: tuple[tuple[int, int], ...] = getattr(family(name), "carried_between_blocks", ())
    return own


def holds_outputs(name: str) -> bool:
    """Whether the loop keeps all that a block returned until the next has returned: `holds_outputs = True`."""
    return getattr(family(name), "holds_outputs", False) is True


def blocks_are_alike(shape: ModelShape, sequence_length: int, attention: str) -> bool:
    """Whether all blocks of a model are made of the same modules, and compute the same.

    They do not where some have experts and others none, where some have no rotary positions, linear attention, state
    space or convolution, where some of Qwen's have a window, and where fused attention has a mask only in those whose
    window the sequence reaches.
    """
    dense = () if shape.experts is None else shape.experts.dense_layers
    if not has_equal_blocks(shape.family) or len(dense) not in (0, shape.layers):
        return False
    if len(shape.unrotated_layers) not in (0, shape.layers):
        return False
    if shape.linear_attention is not None and len(shape.linear_attention.layers) not in (0, shape.layers):
        return False
    if shape.state_space is not None and len(shape.state_space.layers) not in (0, shape.layers):
        return False
    if shape.short_convolution is not None and len(shape.short_convolution.layers) not in (0, shape.layers):
        return False
    window = shape.sliding_window
    if window is None or (shape.sliding_window_start is None and (attention == "eager" or sequence_length < window)):
        return True
    return shape.sliding_window_pattern is None and not shape.sliding_window_start  # whatever the number of blocks


def is_batch_normalised(name: str) -> bool:
    """Whether the family is convolutions with batch normalisation between them: `batch_normalised = True`.

    Of a family that an engine alone replays, and a textbook counts, nothing says so.
    """
    if find_spec(module_of(name)) is None:
        return False
    return own(name, "batch_normalised", False) is True


def full_blocks(shape: ModelShape) -> int:
    """Blocks whose attention has no window: `full_blocks(shape)` of the family, else those of the shape's pattern."""
    if shape.sliding_window is None:
        return shape.layers
    asked = vars(family(shape.family)).get("full_blocks")
    if asked is not None:
        return int(asked.__func__(shape))
    return shape.layers // shape.sliding_window_pattern if shape.sliding_window_pattern else 0
