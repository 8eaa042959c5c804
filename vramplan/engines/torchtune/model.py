"""Llama and Mistral as torchtune 0.6.1 computes them (torchtune/modules/transformer.py, attention.py,
feed_forward.py, rms_norm.py, position_embeddings.py), with the losses of its recipes.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.engines.litgpt.operators import cross_entropy_each
from vramplan.engines.torchtitan.model import CheckpointedBlock, CompiledBlock
from vramplan.engines.torchtune.operators import difference
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.llama import repeat_kv
from vramplan.replay.models.modules import ACTIVATIONS, ALL_SCORES, SCORES, Linear, Output, Recipe, times_head
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, NORMS
from vramplan.replay.observers import Comparing, Rounding, Sharding, Teacher, Trained
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import (
    add,
    add_in_place,
    add_scalar,
    div_by,
    dropout,
    mean_last,
    mul,
    mul_scalar,
    pow_scalar,
    rsqrt,
)
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.fused_loss import fused_linear_cross_entropy
from vramplan.replay.operators.fused_norms import compiled_cross_entropy, rms_norm
from vramplan.replay.operators.indexing import stack_last
from vramplan.replay.operators.loss_parts import sum_all
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import contiguous, select, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.losses import CHUNKED, FUSED, FUSED_BEFORE_AMPERE, both_losses, chunked_cross_entropy
from vramplan.replay.techniques.preference import Scored
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Parameter, Tensor
from vramplan.values.model import ModelShape

UNSCALED_POSITIONS = 32768  # Llama 2 and 3 and Mistral have less, Llama 3.1 and 3.2 have more, by scaled angles


class RMSNorm:
    """RMSNorm of rms_norm.py: PyTorch has a kernel for fp32 inputs and weights, and composes those over 16 bits.

    Source: aten/src/ATen/native/layer_norm.cpp, rms_norm_symint.
    """

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType) -> None:
        with tape.building(NORMS):
            self.scale = tape.parameter(f"{name}.scale", (width,), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        return to(self.normalised(to(x, FP32)), dtype)

    def normalised(self, x: Tensor) -> Tensor:
        """The kernel, or rms_norm_composite."""
        if self.scale.dtype is FP32:
            return rms_norm(x, self.scale)
        _root = rsqrt(mean_last(pow_scalar(x)))
        result = mul(x, _root)  # x is a local there, too
        result = mul(result, self.scale)
        return result


class LoRALinear(Linear):
    """LoRALinear of modules/peft/lora.py: the same as PEFT's in one element type."""

    def __init__(self, tape: Tape, name: str, inputs: int, outputs: int, dtype: DType, *, bias: bool) -> None:
        super().__init__(tape, name, inputs, outputs, dtype, bias=bias)
        lora = self.adapter
        adapter = tape.role(Trained).adapter  # DoRALinear is as PEFT's (modules/peft/dora.py)
        self.lora: Any = lora if adapter is not None and adapter.kind == "lora" and hasattr(lora, "lora_A") else None
        if self.lora is not None:
            self.adapter = None

    def __call__(self, x: Tensor) -> Tensor:
        rounded = x.tape.role(Rounding).operands if self.converted is not None else None
        if self.lora is None or rounded is None:
            out = super().__call__(x)
        else:  # QATLoRALinear, whose locals outlive the product
            _x, _weight = rounded(self.weight, x)
            out = linear(_x, _weight)
        if self.lora is None:
            return out
        _lora_out = linear(dropout(x, self.lora.p), self.lora.lora_A)
        _lora_out = mul_scalar(linear(_lora_out, self.lora.lora_B))
        return add(out, _lora_out)


class Attention:
    """MultiHeadAttention."""

    def __init__(self, tape: Tape, recipe: Recipe, cache: Tensor) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key, bias = shape.key_value_heads * shape.head_size, shape.qkv_bias
        self.recipe, self.cache = recipe, cache
        self.q_proj = LoRALinear(tape, "q_proj", hidden, query, dtype, bias=bias)
        self.k_proj = LoRALinear(tape, "k_proj", hidden, key, dtype, bias=bias)
        self.v_proj = LoRALinear(tape, "v_proj", hidden, key, dtype, bias=bias)
        self.output_proj = LoRALinear(tape, "o_proj", query, hidden, dtype, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = x.shape
        heads, groups, size = shape.attention_heads, shape.key_value_heads, shape.head_size
        q = self.q_proj(x)
        q = view(q, (batch, length, heads, size))
        q = turned(q, self.cache)
        q = transpose(q, 1, 2)
        k = self.k_proj(x)
        v = self.v_proj(x)
        k = view(k, (batch, length, groups, size))
        v = view(v, (batch, length, groups, size))
        k = turned(k, self.cache)
        k = transpose(k, 1, 2)
        v = transpose(v, 1, 2)
        k = repeat_kv(k, heads // groups)
        v = repeat_kv(v, heads // groups)
        output = scaled_dot_product(q, k, v, recipe.attention, 0.0, None)
        output = contiguous(transpose(output, 1, 2))
        output = view(output, (batch, length, heads * size))
        return self.output_proj(output)


def turned(x: Tensor, cache: Tensor) -> Tensor:
    """RotaryPositionalEmbeddings: neighbours are turned in fp32."""
    batch, length, heads, size = x.shape
    _shaped = view(to(x, FP32), (batch, length, heads, size // 2, 2))
    cos = cache.alias((1, length, 1, size // 2), (0, size, 0, 2), None)
    first = difference(mul(select(_shaped, 4), cos), mul(select(_shaped, 4), cos))
    second = add(mul(select(_shaped, 4), cos), mul(select(_shaped, 4), cos))
    pairs = [first, second]
    del first, second
    out = stack_last(pairs)
    del pairs
    out = view(out, (batch, length, heads, size))
    return to(out, x.dtype)


class FeedForward:
    """FeedForward."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.w1 = LoRALinear(tape, "gate_proj", hidden, inner, dtype, bias=bias)
        self.w2 = LoRALinear(tape, "down_proj", inner, hidden, dtype, bias=bias)
        self.w3 = LoRALinear(tape, "up_proj", hidden, inner, dtype, bias=bias)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, x: Tensor) -> Tensor:
        h = self.act(self.w1(x))
        h = mul(h, self.w3(x))
        h = self.w2(h)
        return h


class Block:
    """TransformerSelfAttentionLayer."""

    devices = 1

    def __init__(self, tape: Tape, recipe: Recipe, cache: Tensor) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.compiled = recipe.compiled
        self.attn = Attention(tape, recipe, cache)
        self.mlp = FeedForward(tape, recipe)
        self.sa_norm = RMSNorm(tape, "sa_norm", width, dtype)
        self.mlp_norm = RMSNorm(tape, "mlp_norm", width, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        h = self.sa_norm(x)
        _attn_out = self.attn(h)
        h = add(_attn_out, x)
        if self.compiled:  # a graph has no local variables
            del _attn_out
        _mlp_out = self.mlp(self.mlp_norm(h))
        return add(h, _mlp_out)


class TransformerDecoder:
    """TransformerDecoder, and `_loss_step` of the recipes."""

    shards_by_blocks = True
    drops_out = False
    compiles_blocks = True
    may_miss_adapter = True
    looks_up_4bit = True
    offloads = True
    own_units = (EMBEDDINGS, HEAD)
    ladder = ("none", "full")  # training.set_activation_checkpointing wraps every layer
    ignores_windows = True  # torchtune/models/mistral/_component_builders.py gives MultiHeadAttention no mask
    no_eager_attention = "torchtune calls scaled_dot_product_attention alone"
    head_losses = ("chunked:N", "fused", "dpo")
    head_outside = ("fused",)

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether it is what the builders of Llama and Mistral make."""
        known = shape.transformers_model_type in ("llama", "mistral") and shape.task == "lm"
        plain = not (shape.qkv_bias or shape.output_bias or shape.mlp_bias or shape.rope_scaling)
        return known and plain and shape.attention_heads * shape.head_size == shape.hidden_size

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            name = "tok_embeddings.weight"
            self.tok_embeddings = tape.parameter(name, (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype)

    def buffers(self) -> list[int]:
        """Bytes of the model's buffers, and of what stands in for the last label."""
        return [*self.own_buffers(), INT64.itemsize]

    def own_buffers(self) -> list[int]:
        """Bytes of the buffers of the model: the angles of one position, and those of all.

        The builders of LoRA models make rotary positions for each block, but those of Llama 3.1 and 3.2 for all
        (models/llama3_1/_component_builders.py, lora_llama3_1).
        """
        shape = self.recipe.shape
        half = shape.head_size // 2
        each = self.tape.role(Trained).adapter is not None and shape.max_positions <= UNSCALED_POSITIONS
        return [4 * half, 4 * shape.max_positions * half * 2] * (shape.layers if each else 1)

    def kept(self) -> list[int]:
        """Scaled rotary positions keep nothing more."""
        return []

    def __call__(self, tokens: Tensor, labels: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        if recipe.loss in (FUSED, FUSED_BEFORE_AMPERE):
            return self.fused(tokens, labels)
        logits = self.decoder(tokens)
        logits[-1] = tape.role(Sharding).after_model(logits[-1])  # the loss is no part of the model
        compare = tape.role(Teacher).asked()
        labels = tape.new("cat", labels.shape, INT64, True)
        if compare is not None:
            return Output(taught(logits, labels, compare, chunked=recipe.loss.startswith(CHUNKED)), logits)
        if recipe.loss.startswith(CHUNKED) and recipe.compiled:
            return Output(compiled_chunks(logits, labels), logits)
        if recipe.loss.startswith(CHUNKED):
            return Output(chunked_cross_entropy(logits, labels, logits[0].shape[1]), logits)
        (whole,) = logits
        batch, length, vocabulary = whole.shape
        if recipe.loss in (SCORES, ALL_SCORES):
            del logits
            return Output(None, scores(whole, labels))
        rows = view(whole, (batch * length, vocabulary))
        return Output(cross_entropy(rows, view(labels, (batch * length,))), whole)

    def logits_of(self, tokens: Tensor) -> list[Tensor]:
        """What it gives where no loss is made of it."""
        logits = self.decoder(tokens)
        logits[-1] = self.tape.role(Sharding).after_model(logits[-1])
        return logits

    def fused(self, tokens: Tensor, labels: Tensor) -> Output:
        """Liger's loss in place of the head, over the last hidden states, which are all that the model returns then.

        FSDP has the root's weights whole until its backward is over, or there would be no whole head to give.
        Source: liger_kernel/torchtune/modules/transformers.py, decoder_forward; the recipe of the PyTorch blog,
        "Peak Performance, Minimized Memory", 27 February 2025.
        """
        h = self.decoder(tokens)[0]
        _labels = self.tape.new("cat", labels.shape, INT64, True)
        batch, length, width = h.shape
        accumulates = self.recipe.loss == FUSED
        return Output(
            fused_linear_cross_entropy(view(h, (batch * length, width)), self.head, accumulates=accumulates), None
        )

    def decoder(self, tokens: Tensor) -> list[Tensor]:
        """TransformerDecoder.forward: logits in chunks of the sequence, or all in fp32."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        h = tape.role(Sharding).within(EMBEDDINGS, lambda ids: embedding(ids, self.tok_embeddings), tokens)
        cache = tape.constant((shape.max_positions, shape.head_size), FP32, False)
        state = [h]
        del h
        if recipe.compiled:
            h = self.compiled_blocks(state, cache)
        elif Sharding in tape.roles:
            h = self.sharded_blocks(state, cache)
        else:
            h = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, cache), state)
        return self.unembed(h)

    def sharded_blocks(self, state: list[Tensor], cache: Tensor) -> Tensor:
        """The blocks as units of FSDP, each around its checkpoint (recipes/full_finetune_distributed.py)."""
        tape, recipe = self.tape, self.recipe
        checkpointed = [one.checkpointed for one in recipe.segments for _ in range(one.times * one.blocks)]

        def block(i: int) -> Any:
            made: Any = Block(tape, recipe, cache)
            return CheckpointedBlock(tape, made, None) if checkpointed[i] else made

        plain = tuple(segment._replace(checkpointed=False, selects=None) for segment in recipe.segments)
        return run_blocks(tape, plain, block, state)

    def compiled_blocks(self, state: list[Tensor], cache: Tensor) -> Tensor:
        """The blocks, each in a graph of its own, around which there is its checkpoint.

        Source: torchtune/training/_compile.py, compile_model; recipes/full_finetune_distributed.py, _setup_model.
        """
        tape, recipe = self.tape, self.recipe
        checkpointed = [one.checkpointed for one in recipe.segments for _ in range(one.times * one.blocks)]

        def block(i: int) -> Any:
            made = CompiledBlock(tape, Block(tape, recipe, cache), None, checkpointed=False)
            return CheckpointedBlock(tape, made, None) if checkpointed[i] else made

        plain = tuple(segment._replace(checkpointed=False, selects=None) for segment in recipe.segments)
        return run_blocks(tape, plain, block, state)

    def unembed(self, h: Tensor) -> list[Tensor]:
        """TransformerDecoder.unembed.

        What the last norm, the head and the loss save stays on the device where activations are offloaded: the head
        and the loss are left out, and the last five tensors that forward handed over wait until backward asks for one.
        Source: torchtune/training/_activation_offloading.py, get_act_offloading_ctx_manager (NoOpManager) and
        OffloadActivations (max_fwd_stash_size); recipes/full_finetune_single_device.py, _loss_step.
        """
        tape, recipe = self.tape, self.recipe
        tape.leave_model()
        shape = recipe.shape
        h = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(h)
        weight: Parameter = self.tok_embeddings
        if not shape.tied_embeddings:
            with tape.building(HEAD):
                size = (shape.vocabulary_size, shape.hidden_size)
                weight = tape.parameter("output.weight", size, recipe.weight_dtype)
        if recipe.loss in (FUSED, FUSED_BEFORE_AMPERE):
            self.head = weight
            return [h]

        times = linear if shape.tied_embeddings else times_head  # TiedLinear is no layer of PyTorch

        def output(x: Tensor) -> Tensor:
            found: Tensor = tape.role(Sharding).within(HEAD, lambda given: times(given, weight), x)
            return found

        if not recipe.loss.startswith(CHUNKED):
            return [to(output(h), FP32)]
        size_of = -(-h.shape[1] // int(recipe.loss.removeprefix(CHUNKED)))
        return [output(chunk) for chunk in split(h, size_of, 1)]


def scores(logits: Tensor, labels: Tensor) -> Scored:
    """rlhf.get_batch_log_probs: the log-probabilities of all words in fp32, and of them those of the labels.

    The logits go when their means are taken (recipes/lora_dpo_single_device.py, concatenated_forward and train).
    """
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    each = cross_entropy_each(view(logits, (batch * length, vocabulary)), view(labels, (batch * length,)))
    mask = tape.new("ne", (batch, length), BOOL, True)
    count = tape.new("sum", (), INT64, False)
    return Scored(view(each, (batch, length)), (), mask, sum_all(each.alias(each.shape, None, None)), count)


def taught(logits: list[Tensor], labels: Tensor, compare: Comparing, *, chunked: bool) -> Tensor:
    """`_loss_step` of distillation, and the sum of both losses, each times a number."""
    if chunked:
        _kd_loss = compare(logits, labels)
        _class_loss = chunked_cross_entropy(logits, labels, logits[0].shape[1])
        return both_losses(_class_loss, _kd_loss)
    (whole,) = logits
    batch, length, vocabulary = whole.shape
    rows = view(whole, (batch * length, vocabulary))
    _kd_loss = compare([rows], labels)
    _class_loss = cross_entropy(rows, view(labels, (batch * length,)))
    return both_losses(_class_loss, _kd_loss)


def compiled_chunks(logits: list[Tensor], labels: Tensor) -> Tensor:
    """CEWithChunkedOutputLoss with its cast and cross-entropy compiled: nothing of a chunk is kept but its logits."""
    tape, size = labels.tape, logits[0].shape[1]
    _total_elements = tape.new("sum", (), INT64, False)
    targets = [view(one, (one.shape[0] * one.shape[1],)) for one in split(labels, size, 1)]
    rows = [view(one, (one.shape[0] * one.shape[1], one.shape[2])) for one in logits]
    total: Tensor | None = None
    for chunk, target in zip(rows, targets, strict=True):
        loss = compiled_cross_entropy(chunk, target)
        total = add_scalar(loss) if total is None else add_in_place(total, loss)
    assert total is not None
    return div_by(total, _total_elements)


FORWARD = TransformerDecoder
