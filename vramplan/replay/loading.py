"""How weights of few bits come to a device before the first iteration, as the caching allocator sees it.

Transformers asks for one block that is as large as it takes the model to be, and lets it go: what follows is cut from
that. Then the weights come one by one, each in 16 bits first, unless the checkpoint has few bits. Where what is not
quantized is in fp32, `prepare_model_for_kbit_training` of PEFT has made it so of 16 bits, when all was there. Adapters
follow, and the Trainer gives back what is free before its first step.

The order of the weights is that of the model; Transformers has that of names, which moves what stays reserved by less
than 2 %.
Source: transformers 4.44.2, 4.49.0, 4.50.3, 4.51.3, 4.53.3, 4.57.3, 5.0.0 and 5.23.0, modeling_utils.py
(caching_allocator_warmup, _load_state_dict_into_meta_model), core_model_loading.py, integrations/bitsandbytes.py and
quantizers/quantizer_bnb_4bit.py and quantizer_bnb_8bit.py; bitsandbytes 0.50.2, nn/modules.py (Params4bit._quantize,
Int8Params._quantize) and functional.py (quantize_4bit); peft 0.21.2, utils/other.py; accelerate 1.15.0,
utils/memory.py, release_memory, which Trainer._inner_training_loop calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vramplan.replay.operators.quantized import BLOCK
from vramplan.replay.recorder import rounded
from vramplan.replay.start import Room, Start, Starting
from vramplan.replay.tensors import FP16, FP32, Parameter
from vramplan.tuples import NamedTuple

HALF, STORED = "half", "stored"
"""How large the block is that Transformers asks for first: half of what the model has in the element type that it is
loaded in, or what it has with the linear layers in few bits."""

HALF_BYTES = FP16.itemsize
LEFT_BYTES = 1288490188  # of a device beside that block, 1.2 GiB
ADAPTER = "adapter"  # the part of a model that comes behind the rest
MOST_TENSORS_8BIT = 2  # of a weight: the numbers and the scales


class Loading(NamedTuple):
    """How a program brings the weights of few bits to the device."""

    stored: bool = False  # the checkpoint has few bits
    room: str | None = None  # HALF | STORED; None: it asks for none
    twice: bool = False  # a 4-bit weight is there in 16 bits as it was read, and once more while it is quantized
    twice_8bit: bool = False  # the same of one of 8 bits
    tied_again: bool = False  # the head has the weight of the embedding, which the block counts for both
    empties: bool = False  # free segments go back before the first step


def start_of(owned: Sequence[Parameter], loading: Loading, *, wide_checkpoint: bool, narrow_adapters: bool) -> Start:
    """What a device is asked for until the first iteration.

    `wide_checkpoint`: what is not quantized is in fp32 from the beginning, if it is in the end. `narrow_adapters`: an
    adapter is brought to the 16 bits that a layer of 4 bits multiplies in, before it is in fp32.
    """
    made = Starting()
    base = [one for one in owned if not is_added(one)]
    wide: list[tuple[int, Parameter]] = []
    for one in base:
        for _ in range(one.copies):
            if is_quantized(one):
                _quantize(made, one, loading)
            elif one.dtype is FP32 and not one.quantized and not wide_checkpoint:
                wide.append((made.make(rounded(one.elements * HALF_BYTES)), one))
            else:
                made.make(one.stored_bytes)
    _widen(made, wide)
    if wide:
        made.give_back()
    narrow: list[tuple[int, Parameter]] = []
    for one in owned:
        for _ in range(one.copies if is_added(one) else 0):
            if narrow_adapters and one.dtype is FP32:
                narrow.append((made.make(rounded(one.elements * HALF_BYTES)), one))
            else:
                made.make(one.stored_bytes)
    _widen(made, narrow)
    if loading.empties:
        made.give_back()
    return Start(tuple(made.sizes), tuple(made.events), room=_room(base, loading, wide_checkpoint=wide_checkpoint))


def is_added(weight: Parameter) -> bool:
    """Whether it is PEFT's: an adapter's, or a copy that is trained in the place of a weight of the model."""
    return ADAPTER in weight.part or weight.node is not None


def _widen(made: Starting, halves: Sequence[tuple[int, Parameter]]) -> None:
    """Each in fp32, and what it is made of goes."""
    for half, one in halves:
        made.make(one.stored_bytes)
        made.let_go(half)


def is_quantized(weight: Parameter) -> bool:
    """Whether a weight is numbers of few bits and what belongs to them."""
    return len(weight.quantized) > 1


def _quantize(made: Starting, weight: Parameter, loading: Loading) -> None:
    """One weight: in 16 bits, then its tensors in the order in which they are made, and what passes by meanwhile."""
    pieces = [rounded(size) for size in weight.quantized]
    if loading.stored:
        for size in pieces:
            made.make(size)
        return
    whole = rounded(weight.elements * HALF_BYTES)
    is_8bit = len(pieces) == MOST_TENSORS_8BIT
    passing = [made.make(whole) for _ in range(2 if (loading.twice_8bit if is_8bit else loading.twice) else 1)]
    if is_8bit:
        numbers, scales = pieces
        made.make(scales)
        made.make(numbers)
    else:
        _four_bits(made, pieces, rounded(-(-weight.elements // BLOCK) * FP32.itemsize))
    made.let_go(*reversed(passing))


def _four_bits(made: Starting, pieces: Sequence[int], maxima: int) -> None:
    """`quantize_4bit`: maxima and numbers; with double quantization the maxima become numbers of 8 bits themselves."""
    first = made.make(maxima)
    numbers, codes, code, *nested = pieces
    made.make(numbers)
    made.make(code)
    if not nested:
        return
    offset, nested_maxima, *copied = nested
    made.make(offset)
    shifted = made.make(maxima)
    made.make(nested_maxima)
    made.make(codes)
    for size in copied:
        made.make(size)
    made.let_go(shifted, first)


def _room(base: Iterable[Parameter], loading: Loading, *, wide_checkpoint: bool) -> Room | None:
    """The block that is asked for before all others."""
    if loading.room is None:
        return None
    packed = elements = 0
    others = max((one.elements for one in base if one.is_table), default=0) * HALF_BYTES if loading.tied_again else 0
    for one in base:
        itemsize = one.dtype.itemsize if one.dtype is not FP32 or wide_checkpoint else HALF_BYTES
        if is_quantized(one):
            packed += one.copies * one.quantized[0]
            elements += one.copies * one.elements
        else:
            others += one.copies * one.elements * itemsize
    if loading.room == HALF:
        return Room(elements * HALF_BYTES + others, 2, LEFT_BYTES)
    return Room(packed + others, 1, LEFT_BYTES)
