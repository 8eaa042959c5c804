"""Prefix tuning as PEFT 0.21 has it: keys and values that are trained stand before those of every block.

They are the rows of one table, or what an encoder of two layers makes of the rows of a smaller one. A cache takes them
before the model runs, a copy for each block, and each block goes on with what the cache gives: its own keys and values
behind them. The cache lives as long as the model's forward pass, with its loss.
Source: peft 0.21.2, peft_model.py, PeftModel.get_prompt; tuners/prefix_tuning/model.py, PrefixEncoder; transformers
5.23, cache_utils.py, DynamicCache and DynamicLayer.update.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models.capable import drops_given_cache
from vramplan.replay.models.modules import Output, Recipe
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.elementwise import tanh
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import permute
from vramplan.replay.operators.ragged import unbind
from vramplan.replay.operators.views import cat, split, to, view
from vramplan.replay.precision import Precision, precision_of
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.adapted import Adapted
from vramplan.replay.techniques.adapter_target import DTYPES
from vramplan.replay.techniques.adapters import OWN
from vramplan.replay.techniques.objectives import forward_and_smoothed_loss
from vramplan.replay.techniques.trained import gathered_adapter
from vramplan.replay.techniques.virtual_tokens import Layer
from vramplan.replay.tensors import FP32, INT64, DType, Tensor
from vramplan.values.job import Adapter
from vramplan.values.parallel import is_fsdp

PAIR = 2  # keys and values
FLAT = 1  # the version of FSDP whose units have one parameter each


class AdaptedByPrefix(Adapted):
    """A frozen model each of whose blocks has a prefix of its own, so that none stands for another."""

    def block(self, number: int) -> object:
        """The number of the block."""
        return number


class Prefix(KeyValues):
    """The cache that a forward pass is given, and what makes it."""

    keeps = True

    def __init__(self, tape: Tape, adapter: Adapter, recipe: Recipe, seen: DType | None) -> None:
        shape, dtype = recipe.shape, DTYPES[adapter.dtype]
        self.tape, self.past, self.dtype = tape, adapter.virtual_tokens, seen or recipe.weight_dtype
        self.blocks, self.heads, self.head_size = shape.layers, shape.key_value_heads, shape.head_size
        width = self.heads * self.head_size
        whole, inner = self.blocks * PAIR * width, adapter.encoder_hidden_size or width
        self.layers: tuple[Layer, ...] = ()
        with tape.building(OWN):
            size = (self.past, width if adapter.prefix_projection else whole)
            self.table = tape.parameter("prompt_encoder.embedding.weight", size, dtype)
            if adapter.prefix_projection:
                first = Layer(tape, "prompt_encoder.transform.0", width, inner, dtype)
                self.layers = (first, Layer(tape, "prompt_encoder.transform.2", inner, whole, dtype))
        self.given: list[tuple[Tensor, Tensor]] = []  # of the blocks that have yet to run
        self.cached: list[Tensor] = []
        self.held: list[Tensor] = []  # by the caller of the model

    def make(self) -> None:
        """PeftModel.get_prompt: a copy of the keys and of the values of each block."""
        batch, tokens = self.tape.batch, self.past
        past = self.encoded(self.tape.new("to", (batch, tokens), INT64, True))
        past = to(past, self.dtype)
        past = view(past, (batch, tokens, PAIR * self.blocks, self.heads, self.head_size))
        past = permute(past, (2, 0, 3, 1, 4))
        for layer in split(past, PAIR, 0):
            key, value = unbind(layer)
            self.given.append((cat([key], -2), cat([value], -2)))

    def encoded(self, ids: Tensor) -> Tensor:
        """PrefixEncoder.forward."""
        prefix_tokens = embedding(ids, self.table, returned=False)
        if not self.layers:
            return prefix_tokens
        first, second = self.layers
        return second(tanh(first(prefix_tokens)))

    def kept(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """DynamicLayer.update: autocast widens to the wider of the two."""
        before_key, before_value = self.given.pop(0)
        key, value = behind(before_key, key), behind(before_value, value)
        self.cached += (key, value)
        return key, value


def _seen_by_peft(setup: Setup, precision: Precision) -> DType | None:
    """The element type that PEFT takes for the model's, which it brings the prefix to; None: it is that of the weights.

    Under FSDP1 the first parameter is the shard of a block, which no policy has cast yet.
    Source: peft 0.21.2, peft_model.py, PeftModel.get_prompt (base_model_torch_dtype).
    """
    if setup.sharding is None or not is_fsdp(setup.sharding.kind) or setup.sharding.version != FLAT:
        return None
    return precision.frozen or precision.stored


def behind(before: Tensor, own: Tensor) -> Tensor:
    """What a block has made, concatenated to what is before it."""
    widest = max(before.dtype, own.dtype, key=lambda one: one.itemsize)
    return cat([to(before, widest), to(own, widest)], -2)


class Prefixed(Objective):
    """The model is given the cache beside the tokens, and a mask that is as long as both where there is one."""

    def __init__(self, setup: Setup, tape: Tape, recipe: Recipe) -> None:
        super().__init__(setup, tape, recipe)
        assert setup.adapter is not None
        precision = precision_of(setup.precision, half_weights=setup.half_weights)
        self.prefix = Prefix(tape, gathered_adapter(setup.adapter, precision), recipe, _seen_by_peft(setup, precision))

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """PeftModelForCausalLM.forward."""
        tape, prefix = self.tape, self.prefix
        if self.recipe.padded:
            length = self.recipe.sequence_length + prefix.past
            prefix.held.append(tape.new("to", (tape.batch, prefix.past), FP32, True))
            prefix.held.append(tape.new("cat", (tape.batch, length), FP32, True))
        prefix.make()
        tape.enlist(KeyValues, prefix)
        output: Output = model(*arguments)
        dropped = drops_given_cache(self.recipe.shape) and not self.setup.use_cache
        cached = [] if dropped else prefix.cached
        prefix.held, prefix.cached = [], []
        tape.dismiss(KeyValues)
        return Output(output.loss, (output.logits, cached))


class SmoothsBesidePrefix(Prefixed):
    """The same, with the Trainer's smoothed labels: the loss is made of the logits that come back beside the cache."""

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """A forward pass, and the loss that the Trainer makes of its results."""
        kept: list[object] = []

        def run(*given: Tensor) -> Output:
            returned: Any = super(SmoothsBesidePrefix, self).forward(model, [*given], states).logits
            logits, cached = returned
            kept.append(cached)
            return Output(None, logits)

        output = forward_and_smoothed_loss(self.setup, self.tape, run, arguments)
        return Output(output.loss, (output.logits, kept))

    def returned(self, output: Output) -> Output:
        """The loss is no part of it."""
        return output._replace(loss=None)
