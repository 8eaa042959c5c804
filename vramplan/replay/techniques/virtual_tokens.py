"""Virtual tokens before those of a text, as PEFT 0.21 trains them in place of layers: prompt tuning and p-tuning.

The model is frozen, and gradients go through all of it, as its first block is what stands behind what is trained. The
embedded tokens are given to it, longer by those that are virtual, with labels and a mask that are as long.
Source: peft 0.21.2, peft_model.py, PeftModel.get_prompt, PeftModelForCausalLM.forward and its siblings;
tuners/prompt_tuning/model.py, PromptEmbedding; tuners/p_tuning/model.py, PromptEncoder.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from vramplan.replay.inputs import Input, Objective, inputs_of, make_inputs
from vramplan.replay.models.modules import Output, Recipe
from vramplan.replay.observers import VirtualTokens
from vramplan.replay.operators.changes import without_gradients
from vramplan.replay.operators.elementwise import relu
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.repeated import repeat_samples
from vramplan.replay.operators.views import cat, narrow, to
from vramplan.replay.precision import precision_of
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.adapter_target import DTYPES
from vramplan.replay.techniques.adapters import OWN, is_saved_as
from vramplan.replay.techniques.trained import gathered_adapter, names_of
from vramplan.replay.tensors import FP32, INT64, DType, Tensor
from vramplan.values.job import Adapter

BEFORE_TEXT = ("input_ids", "attention_mask")
"""Arguments that are longer by the virtual tokens, whatever the task; the labels of a language model are too."""


class PromptEmbedding:
    """A table with a row for each virtual token."""

    def __init__(self, tape: Tape, adapter: Adapter, rows: int, width: int) -> None:
        self.table = tape.parameter("prompt_encoder.embedding.weight", (rows, width), DTYPES[adapter.dtype])

    def __call__(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.table, returned=False)


class PromptEncoder(PromptEmbedding):
    """The same, and three linear layers over what it gives (PromptEncoderReparameterizationType.MLP)."""

    def __init__(self, tape: Tape, adapter: Adapter, rows: int, width: int) -> None:
        super().__init__(tape, adapter, rows, width)
        inner, dtype = adapter.encoder_hidden_size or width, DTYPES[adapter.dtype]
        self.layers = tuple(
            Layer(tape, f"prompt_encoder.mlp_head.{2 * number}", *widths, dtype)
            for number, widths in enumerate(((width, inner), (inner, inner), (inner, width)))
        )

    def __call__(self, ids: Tensor) -> Tensor:
        _embeds = super().__call__(ids)
        first, second, third = self.layers
        return third(relu(second(relu(first(_embeds)))))


class Layer:
    """A linear layer of an encoder: PEFT makes it after the model, where nothing quantizes or adapts it any more."""

    def __init__(self, tape: Tape, name: str, inputs: int, outputs: int, dtype: DType) -> None:
        self.weight = tape.parameter(f"{name}.weight", (outputs, inputs), dtype)
        self.bias = tape.parameter(f"{name}.bias", (outputs,), dtype)
        self.weight.in_linear = True

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@contextmanager
def past_copy(tape: Tape) -> Iterator[None]:
    """A table is looked up whose copy is trained: nothing is recorded, and what is asked of the copy is not asked."""
    asks, tape.told.looked_up = tape.told.looked_up, ()
    try:
        with without_gradients(tape):
            yield
    finally:
        tape.told.looked_up = asks


ENCODERS: dict[str, Callable[[Tape, Adapter, int, int], Callable[[Tensor], Tensor]]] = {
    "prompt-tuning": PromptEmbedding,
    "p-tuning": PromptEncoder,
}


class Before(VirtualTokens):
    """Puts them before the embedded tokens, as `forward` of PEFT's model does, which keeps them until it returns.

    It looks tokens up in the original of a table that is a module to save, so that no gradient reaches the copy.
    Source: peft 0.21.2, peft_model.py, PeftModel._setup_prompt_encoder, which comes before the modules to save.
    """

    puts_some = True

    def __init__(self, tape: Tape, adapter: Adapter, recipe: Recipe) -> None:
        shape = recipe.shape
        self.number = adapter.virtual_tokens
        self.rows = self.number * len(shape.stacks)  # a prompt for the decoder too, which nobody looks at
        with tape.building(OWN):
            self.encoder = ENCODERS[adapter.kind](tape, adapter, self.rows, shape.hidden_size)
        self.held: list[Tensor] = []
        saved = adapter.modules_to_save
        self.has_copy = any(is_saved_as(names_of(shape).token_table, word) for word in saved)

    def embedded(self, ids: Tensor, look_up: Callable[[Tensor], Tensor]) -> Tensor:
        tape, (batch, length) = ids.tape, ids.shape
        with past_copy(tape) if self.has_copy else nullcontext():
            embeds = look_up(tape.constant((batch, length - self.number), INT64, True))
        tokens = tape.new("to", (batch, self.rows), INT64, True)
        first = tokens.alias((1, self.rows), None, None)
        first.batched = False
        prompts = self.encoder(first)
        prompts = repeat_samples(prompts, batch)
        prompts = to(prompts, embeds.dtype)
        own = prompts if self.rows == self.number else narrow(prompts, 1, self.number)
        joined = cat([own, embeds], 1)
        self.held += (prompts, joined)
        return joined


class Prompted(Objective):
    """The model is given embedded tokens, and its loss is over the virtual ones too, whose labels are ignored."""

    def __init__(self, setup: Setup, tape: Tape, recipe: Recipe) -> None:
        super().__init__(setup, tape, recipe)
        assert setup.adapter is not None
        self.number = setup.adapter.virtual_tokens
        self.before = Before(
            tape,
            gathered_adapter(setup.adapter, precision_of(setup.precision, half_weights=setup.half_weights)),
            recipe,
        )

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """Those of the text alone."""
        given = [one if self.own(one) is None else self.shorter(one) for one in inputs_of(model, self.recipe)]
        return make_inputs(self.tape, tuple(Input(*one) for one in given))

    def own(self, one: Input) -> str | None:
        """The name of an argument that is longer in the model."""
        name = one[0]
        return name if name in BEFORE_TEXT or (name == "labels" and self.recipe.shape.task == "lm") else None

    def shorter(self, one: Input) -> Input:
        """It without the virtual tokens."""
        name, (length,), dtype = one
        return Input(name, (length - self.number,), dtype)

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """PeftModelForCausalLM.forward: the mask, then the embeddings, and labels where they are of each token."""
        tape, batch = self.tape, self.tape.batch
        names = [one[0] for one in inputs_of(model, self.recipe)]
        given = []
        for name, argument in zip(names, arguments, strict=True):
            if name == "input_ids":
                whole = tape.constant((batch, argument.shape[1] + self.number), INT64, True)
            elif self.own(Input(name, argument.shape, argument.dtype)) is None:
                whole = argument
            else:
                # of a mask these are ones in fp32, and so is the whole of it
                dtype = FP32 if name == "attention_mask" else INT64
                _prefix = tape.new("to", (batch, self.number), dtype, True)
                self.before.held.append(_prefix)
                whole = tape.new("cat", (batch, argument.shape[1] + self.number), dtype, True)
            given.append(whole)
        tape.enlist(VirtualTokens, self.before)
        output: Output = model(*given)
        self.before.held.clear()
        tape.dismiss(VirtualTokens)
        return output
