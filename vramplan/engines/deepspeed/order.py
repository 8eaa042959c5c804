"""What ZeRO has to know of a model's parameters before the model runs: their order, and that of their use."""

from __future__ import annotations

from vramplan.tuples import NamedTuple

Place = tuple[int, int]  # the walk over blocks, and the block's number in it


class Order(NamedTuple):
    """What is to be known of a model's trained parameters before it runs, block by block."""

    sizes: tuple[int, ...]  # elements
    places: tuple[Place | None, ...]  # None: in no block
    arrivals: tuple[int, ...]  # in which order backward completes their gradients
    uses: tuple[tuple[int, ...], ...] = ()  # the parameters of each module that has some, as the iteration comes to it
    made: tuple[int, ...] = ()  # the number of each parameter, in the order in which the replay makes them
    trained: tuple[bool, ...] = ()  # whether each parameter is, where those that are not are counted too
    leaves: tuple[tuple[int, ...], ...] = ()  # the parameters of each block that DeepSpeed takes for a leaf
    eight_bits: tuple[bool, ...] = ()  # whether each parameter has a byte for each element; empty: none has
    asked: tuple[int, ...] = ()  # that the module of the whole model asks for, where their own modules do not run
    kept_bytes: int = 0  # of quantized weights what is no parameter, so that every device has all of it
