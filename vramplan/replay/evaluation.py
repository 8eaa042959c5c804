"""What runs between training steps: evaluation, which is replayed, and generation, of which a lower bound is taken.

Both find everything on the device that a step finds, but for gradients: the loop has set them to none, unless they lie
in buffers that stay.
"""

from __future__ import annotations

from vramplan.engines import imported
from vramplan.replay.kernels import Launches
from vramplan.replay.models import attends_beside, family
from vramplan.replay.models.capable import own_loss
from vramplan.replay.models.modules import CAUSAL_LM_FP32, Segment
from vramplan.replay.models.parts import full_blocks
from vramplan.replay.observers import Kernels, KeyValues, train
from vramplan.replay.precision import precision_of
from vramplan.replay.recipe import recipe_of
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import objective_of
from vramplan.replay.techniques.losses import FUSED, FUSED_BEFORE_AMPERE
from vramplan.replay.techniques.trained import all_but_one, trained_of
from vramplan.replay.tensors import FP32
from vramplan.values.model import LatentAttention, LinearAttention, ModelShape, ShortConvolution, StateSpace

OF_THE_FORWARD_PASS = ("inputs", "gradients")


def evaluation(
    setup: Setup, training: Record, *, batch: int = 2, direct: bool = False, micro: int | None = None
) -> Record:
    """One forward pass with its loss in eval mode under `torch.no_grad()`: no dropout, no checkpoints, no graph.

    Weights are rounded as in training, since torchao's layers ask for no mode.
    `training` is a record of the same job, for what stays on the device. `micro` is the micro-batch that it trains on,
    whose outputs a loop may hold until the next step has made new ones: without it these are not counted. `batch` and
    `direct` are those of `replay`.
    The results are dropped before the next batch, as the Trainer does where it computes no metrics of them.
    Source: transformers 5.23, trainer.py, Trainer.prediction_step and evaluation_loop.
    """
    precision = precision_of(setup.precision, half_weights=setup.half_weights)
    stored = tuple(Segment(1, layers, False) for layers in setup.model.stacks)
    caches = setup.use_cache and imported("vramplan.replay.techniques.key_values:caches_in_evaluation")(setup)
    setup = setup._replace(dropout=0.0, segments=stored, loss=_evaluated(setup), frozen=_frozen(setup))
    recipe = recipe_of(setup, precision, evaluates=True)
    tape = Tape(batch, direct=direct)
    if setup.liger_kernels:
        tape.enlist(Kernels, imported("vramplan.replay.techniques.liger:kernels_of")(setup))
    if setup.frozen or setup.adapter is not None:
        adapter = None if setup.adapter is None else setup.adapter._replace(dropout=0.0)
        train(tape, trained_of(setup._replace(adapter=adapter), precision))
    rounds = None
    if setup.qat is not None:
        rounds = imported("vramplan.replay.techniques.fake_quantization:RoundsInForward")(setup, tape, precision)
        rounds.before_model()
    teaches = None
    if setup.teacher is not None:
        teaches = imported("vramplan.replay.techniques.distillation:Teaches")(setup, tape, precision)
        teaches.before_model()
    ran = Launches(tape)
    model = family(setup.model.family)(tape, recipe)
    objective = objective_of(setup, tape, recipe)
    arguments, inputs = objective.inputs(model)
    tape.phase("forward")
    tape.no_grad = True
    if caches:
        kept = imported("vramplan.replay.techniques.key_values:Returned")(tape, setup.model, checkpointed=False)
        tape.enlist(KeyValues, kept)
    tape.autocast = precision.autocast
    there: list[StandingState] = []  # weights of a second model, which are there in training too
    if teaches is not None:
        arguments = teaches.given(arguments, there)
    output = objective.forward(model, arguments, there)
    tape.autocast = None
    tape.casts.clear()
    del output
    arguments.clear()
    record = Record(tape, [*resident(setup, training, micro), *inputs], 0, ran=ran)
    if rounds is not None:
        rounds.annotate(record)
    tape.tell(())  # which know the tape
    for parameter in tape.parameters:
        parameter.node = None  # it was its own accumulator: the only cycle
    tape.parameters.clear()
    return record


def _frozen(setup: Setup) -> tuple[str, ...]:
    """What is frozen then. BAdam has gone on to a block before the last one, and autocast keeps its casts.

    Source: badam 1.4, block_optim.py, step and switch_trainable_params; aten/src/ATen/autocast_mode.cpp, cached_cast.
    """
    if setup.trained_blocks != "badam" or not setup.frozen:
        return setup.frozen
    return all_but_one(setup.model, first=True)


def _evaluated(setup: Setup) -> str:
    """The loss in eval mode: Liger's fused one is for training, and a model that is evaluated returns logits.

    Source: liger-kernel 0.8.5, transformers/model/llama.py, lce_forward, and its siblings.
    """
    if setup.loss in (FUSED, FUSED_BEFORE_AMPERE):
        return own_loss(setup.model.family) or CAUSAL_LM_FP32
    return setup.loss


def resident(setup: Setup, training: Record, micro: int | None = None) -> list[StandingState]:
    """What is on the device between two steps; of outputs that a loop holds, what a micro-batch has left."""
    stays = setup.persistent_gradients or setup.fp32_gradients
    gone = ("inputs",) if stays else OF_THE_FORWARD_PASS
    stay = [state for state in training.states if state.category not in gone]
    if micro is None:
        return stay
    sizes, categories = training.sizes(micro), training.categories
    return [*stay, *(StandingState(categories[one.stand_in], sizes[one.stand_in], 0) for one in training.carried)]


def generation_bytes(setup: Setup, training: Record, batch: int, length: int, micro: int | None = None) -> int:
    """The least that generating sequences of so many tokens allocates, when the last token is made.

    That is what stays on the device, keys and values of all tokens in every block, and the larger of two: the old
    values of the last block beside the new ones, or the logits of the last token, as they are and in fp32. The pass
    over the prompt may need more. Latent attention keeps its latents instead, and makes keys and values of them.
    The model is called as it is, outside of autocast, so keys and values have the dtype of its weights.
    Source: transformers 5.23, cache_utils.py, DynamicLayer.update; generation/utils.py, GenerationMixin._sample.
    """
    model, itemsize = setup.model, precision_of(setup.precision, half_weights=setup.half_weights).weights.itemsize
    length += 0 if setup.adapter is None else setup.adapter.virtual_tokens  # which have keys and values too
    logits = rounded(batch * model.vocabulary_size * itemsize) + rounded(batch * model.vocabulary_size * FP32.itemsize)
    static = sum(state.at(batch) for state in resident(setup, training, micro))
    if model.latent_attention is not None:
        cache, heads = _latent_cache_bytes(model, model.latent_attention, batch * length * itemsize)
        return static + cache + max(heads, logits)
    if model.linear_attention is not None:
        return static + _state_cache_bytes(model, model.linear_attention, (batch, length, itemsize), logits)
    if model.state_space is not None:
        return static + _space_cache_bytes(model, model.state_space, (batch, length, itemsize), logits)
    if model.short_convolution is not None:
        return static + _short_cache_bytes(model, model.short_convolution, (batch, length, itemsize), logits)
    if model.decoder_layers is not None:
        return static + _pair_cache_bytes(setup, batch, length, itemsize, logits)
    return static + _cache_bytes(model, batch, length, itemsize, logits)


def _cache_bytes(model: ModelShape, batch: int, length: int, itemsize: int, logits_bytes: int) -> int:
    """Keys and values of the blocks that have some of their own, and what is there while the last token is made."""
    sharing = full_blocks(model) - full_blocks(model.with_layers(model.layers - model.key_value_sharing_layers))
    full = full_blocks(model) - sharing
    windowed = model.layers - model.key_value_sharing_layers - full
    token, whole = (batch * model.keys_of(full=each) * itemsize for each in (False, True))
    kept = min(length, model.sliding_window - 1) if model.sliding_window is not None else length
    cache = 2 * (full * rounded(whole * length) + windowed * rounded(token * kept))
    again = rounded(whole * (length - 1)) if full else rounded(token * max(0, kept - 1))
    return cache + max(again, logits_bytes)


def _pair_cache_bytes(setup: Setup, batch: int, length: int, itemsize: int, logits_bytes: int) -> int:
    """What generating with an encoder and a decoder needs: the encoder's results, and two caches of each block.

    The encoder runs once over the job's sequence; keys and values of it stay beside those of the decoder's own tokens.
    Source: transformers 5.23, cache_utils.py, EncoderDecoderCache.
    """
    model = setup.model
    assert model.decoder_layers is not None
    encoder = model.audio_positions or setup.sequence_length
    encoded = rounded(batch * encoder * model.hidden_size * itemsize)
    token = batch * model.attention_heads * model.head_size * itemsize
    caches = 2 * model.decoder_layers * (rounded(token * length) + rounded(token * encoder))
    return encoded + caches + max(rounded(token * (length - 1)), logits_bytes)


def _state_cache_bytes(
    model: ModelShape, linear: LinearAttention, sizes: tuple[int, int, int], logits_bytes: int
) -> int:
    """What generating needs where some blocks have linear attention: their states in the place of keys and values.

    `sizes` are the micro-batch, the tokens and the bytes of an element. A state is in fp32 and is made anew for each
    token; the convolution keeps the tokens that it sees.
    Source: transformers 5.23, cache_utils.py, LinearAttentionLayer; models/qwen3_next/modeling_qwen3_next.py,
    torch_recurrent_gated_delta_rule.
    """
    batch, length, itemsize = sizes
    token = batch * model.key_value_heads * model.head_size * itemsize
    state = rounded(batch * linear.value_heads * linear.key_size * linear.value_size * FP32.itemsize)
    window = rounded(batch * linear.channels * linear.kernel * itemsize)
    cache = 2 * (model.layers - len(linear.layers)) * rounded(token * length) + len(linear.layers) * (state + window)
    again = rounded(token * (length - 1)) if len(linear.layers) < model.layers else 0
    return cache + max(again, 3 * state, logits_bytes)  # the decayed state, what is added to it, and their sum


def _space_cache_bytes(model: ModelShape, space: StateSpace, sizes: tuple[int, int, int], logits_bytes: int) -> int:
    """What generating needs where some blocks have a state space, beside keys and values of those with attention.

    `sizes` are the micro-batch, the tokens and the bytes of an element. A state is in fp32 and is made anew for each
    token: the decay, what is written in two steps in the dtype of the weights, the decayed state, and the sum are there
    together. The convolution keeps the tokens that it sees.
    Source: transformers 5.23, cache_utils.py, LinearAttentionLayer;
    models/granitemoehybrid/modeling_granitemoehybrid.py, mamba2_selective_state_update.
    """
    batch, length, itemsize = sizes
    spaces = len(space.layers)
    attended = model.layers - len(space.feedforward_layers) - (0 if attends_beside(model.family) else spaces)
    token = batch * model.key_value_heads * model.head_size * itemsize
    elements = batch * space.values * space.state_size
    state, written = rounded(elements * FP32.itemsize), rounded(elements * itemsize)
    window = rounded(batch * space.channels * space.kernel * itemsize)
    cache = 2 * attended * rounded(token * length) + spaces * (state + window)
    again = rounded(token * (length - 1)) if attended else 0
    return cache + max(again, 3 * state + 2 * written if spaces else 0, logits_bytes)


def _short_cache_bytes(
    model: ModelShape, convolution: ShortConvolution, sizes: tuple[int, int, int], logits_bytes: int
) -> int:
    """What generating needs where some blocks have a short convolution, which keeps the tokens that it sees.

    `sizes` are the micro-batch, the tokens and the bytes of an element.
    Source: transformers 5.23, cache_utils.py, LinearAttentionLayer; models/lfm2/modeling_lfm2.py, Lfm2ShortConv.
    """
    batch, length, itemsize = sizes
    token = batch * model.key_value_heads * model.head_size * itemsize
    window = rounded(batch * model.hidden_size * convolution.kernel * itemsize)
    attended = model.layers - len(convolution.layers)
    cache = 2 * attended * rounded(token * length) + len(convolution.layers) * window
    return cache + max(rounded(token * (length - 1)) if attended else 0, logits_bytes)


def _latent_cache_bytes(model: ModelShape, latent: LatentAttention, token_bytes: int) -> tuple[int, int]:
    """What all blocks keep of latent attention, and the keys and values of all heads, made anew in each block.

    What is kept is the latent and the one rotary key; `token_bytes` are those of one element of every token.
    Source: transformers 5.23, models/deepseek_v3/modeling_deepseek_v3.py, DeepseekV3Attention.forward and expand_kv.
    """
    cache = model.layers * (rounded(token_bytes * latent.key_value_rank) + rounded(token_bytes * latent.rotary_size))
    wide = token_bytes * model.attention_heads
    expanded = rounded(wide * (latent.plain_size + latent.value_size))
    return cache, expanded + rounded(wide * (latent.plain_size + latent.rotary_size))
