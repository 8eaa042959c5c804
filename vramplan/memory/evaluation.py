"""What runs between training steps: evaluation, replayed as training is, and generation, by the least that it needs.

Both find everything on the device that a step finds, but for gradients: the loop has set them to none, unless they lie
in buffers that stay.
"""

from __future__ import annotations

from vramplan.memory.inputs import inputs_of, make_inputs
from vramplan.memory.iteration import Setup, recipe_of
from vramplan.memory.objectives import forward_and_loss
from vramplan.memory.precision import precision_of
from vramplan.models import family
from vramplan.models.modules import LABEL_SMOOTHER, Segment
from vramplan.spec import ModelShape
from vramplan.tape.record import Record, State
from vramplan.tape.tape import Tape, rounded
from vramplan.tape.tensors import FP32

OF_THE_FORWARD_PASS = ("inputs", "gradients")


def evaluation(setup: Setup, training: Record, *, batch: int = 2, direct: bool = False) -> Record:
    """One forward pass with its loss in eval mode under `torch.no_grad()`: no dropout, no checkpoints, no graph.

    `training` is a record of the same job, for what stays on the device. `batch` and `direct` are those of `replay`.
    The results are dropped before the next batch, as the Trainer does where it computes no metrics of them.
    Source: transformers 5.23, trainer.py, Trainer.prediction_step and evaluation_loop.
    """
    precision = precision_of(setup.precision, half_weights=setup.half_weights)
    stored = (Segment(1, setup.model.layers, False),)
    recipe = recipe_of(setup._replace(dropout=0.0, segments=stored), precision)
    tape = Tape(batch, direct=direct)
    if setup.frozen or setup.adapter is not None:
        from vramplan.memory.trained import trained_of  # only jobs that train less than every weight pay for it

        adapter = None if setup.adapter is None else setup.adapter._replace(dropout=0.0)
        tape.trained = trained_of(setup._replace(adapter=adapter), precision)
    model = family(setup.model.family)(tape, recipe)
    arguments, inputs = make_inputs(tape, inputs_of(model, recipe))
    tape.phase("forward")
    tape.no_grad = True
    tape.autocast = tape.compute_dtype = precision.autocast
    if setup.loss == LABEL_SMOOTHER:
        output = forward_and_loss(setup, tape, model, recipe, arguments, inputs)
    else:
        output = model(*arguments)
    tape.autocast = None
    tape.casts.clear()
    del output
    arguments.clear()
    record = Record(tape, [*resident(setup, training), *inputs], 0)
    for parameter in tape.parameters:
        parameter.node = None  # it was its own accumulator: the only cycle
    tape.parameters.clear()
    return record


def resident(setup: Setup, training: Record) -> list[State]:
    """What is on the device between two steps."""
    stays = setup.persistent_gradients or setup.fp32_gradients
    gone = ("inputs",) if stays else OF_THE_FORWARD_PASS
    return [state for state in training.states if state.category not in gone]


def generation_bytes(setup: Setup, training: Record, batch: int, length: int) -> int:
    """The least that generating sequences of so many tokens allocates, when the last token is made.

    That is what stays on the device, keys and values of all tokens in every block, and the larger of two: the old
    values of the last block beside the new ones, or the logits of the last token, as they are and in fp32. The pass
    over the prompt may need more.
    The model is called as it is, outside of autocast, so keys and values have the dtype of its weights.
    Source: transformers 5.23, cache_utils.py, DynamicLayer.update; generation/utils.py, GenerationMixin._sample.
    """
    model, itemsize = setup.model, precision_of(setup.precision, half_weights=setup.half_weights).weights.itemsize
    token = batch * model.key_value_heads * model.head_size * itemsize
    full = full_blocks(model)
    kept = min(length, model.sliding_window - 1) if model.sliding_window is not None else length
    cache = 2 * (full * rounded(token * length) + (model.layers - full) * rounded(token * kept))
    again = rounded(token * (length - 1 if full else max(0, kept - 1)))
    logits = rounded(batch * model.vocabulary_size * itemsize) + rounded(batch * model.vocabulary_size * FP32.itemsize)
    return sum(state.at(batch) for state in resident(setup, training)) + cache + max(again, logits)


def full_blocks(model: ModelShape) -> int:
    """Blocks whose attention has no window."""
    if model.sliding_window is None:
        return model.layers
    if model.transformers_model_type == "gemma2":
        return model.layers // 2
    return model.layers // model.sliding_window_pattern if model.sliding_window_pattern else 0
