"""Llama as torchtitan has it (torchtitan/models/llama/model.py at the end of 2024), with what its parallelize_llama.py
does to it: checkpoints of single blocks, and tensor parallelism by DTensor, sequences in parts between the products.
Its Qwen3 (experiments/qwen3/model/model.py of September 2025) is that with norms of heads and another rotation.

Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.engines.torchtitan.chunked import chunked_head
from vramplan.replay.autograd import checkpoint
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import FP32_LOGITS, Linear, Output, Recipe, as_is
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, NORMS
from vramplan.replay.observers import Release, Sharding
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.dtensor import (
    compiled_cross_entropy_of_part,
    cross_entropy_of_part,
    embedding_of_part,
    gather_sequence,
    gather_vocabulary,
    scatter_sequence,
)
from vramplan.replay.operators.elementwise import add, mul, neg, silu
from vramplan.replay.operators.ends import cross_entropy, embedding
from vramplan.replay.operators.fused_norms import compiled_cross_entropy, received, rms_norm, rotate, sent
from vramplan.replay.operators.indexing import unsqueeze
from vramplan.replay.operators.ring_attention import ring_flash
from vramplan.replay.operators.views import cat, contiguous, expand, narrow, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, DType, Shape, Tensor
from vramplan.values.model import ModelShape

FREQUENCY_BYTES = 8  # complex64
COMPILES_LOSS = (2, 6)  # the PyTorch of January 2025


def devices_of(recipe: Recipe) -> int:
    """Over how many devices each product is split."""
    return 1 if recipe.split is None else recipe.split.tensor


class Norm:
    """`nn.RMSNorm`, whole on every device; under tensor parallelism it sees a part of each sequence or of the heads."""

    def __init__(self, tape: Tape, name: str, recipe: Recipe, size: int | None = None) -> None:
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", (size or recipe.shape.hidden_size,), recipe.weight_dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight)


def split_linear(tape: Tape, name: str, recipe: Recipe, inputs: int, outputs: int) -> Linear:
    """A device's part of an `nn.Linear` without bias."""
    layer = Linear(tape, name, inputs, outputs, recipe.weight_dtype, bias=False)
    layer.weight.parts = devices_of(recipe)
    return layer


def scattered(x: Tensor, devices: int) -> Tensor:
    """What RowwiseParallel does in a hook of the last product, while the module around it still has its locals."""
    return x if devices == 1 else scatter_sequence(x, devices)


def apply_rotary(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_emb: in fp32, as complex numbers."""
    wide_query = to(query, FP32)
    wide_key = to(key, FP32)
    query_out = rotate(wide_query)
    key_out = rotate(wide_key)
    return to(query_out, query.dtype), to(key_out, key.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """rotate_half: minus the second half, then the first."""
    half = x.shape[-1] // 2
    first, second = narrow(x, -1, half), narrow(x, -1, half)
    return cat([neg(second), first], -1)


def apply_real_rotary(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_emb of its Qwen3: by cosines and sines of the cache, cast to the dtype of the queries."""
    shape = (1, query.shape[1], 1, query.shape[-1])
    cache = query.tape.constant(shape, FP32, False)
    cos, sin = to(cache, query.dtype), to(cache, query.dtype)
    query_out = add(mul(query, cos), mul(rotate_half(query), sin))
    key_out = add(mul(key, cos), mul(rotate_half(key), sin))
    return query_out, key_out


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """repeat_kv: each head as often as it has query heads, a copy."""
    if times == 1:
        return x
    batch, length, heads, width = x.shape
    wide = expand(unsqueeze(x, 3), (batch, length, heads, times, width))
    return view(wide, (batch, length, heads * times, width))


class Attention:
    """Attention: heads of one device."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, devices = recipe.shape, devices_of(recipe)
        hidden, size = shape.hidden_size, shape.head_size
        self.recipe, self.devices = recipe, devices
        self.heads = shape.attention_heads // devices
        self.key_heads = shape.key_value_heads // devices
        self.wq = split_linear(tape, "wq", recipe, hidden, self.heads * size)
        self.wk = split_linear(tape, "wk", recipe, hidden, self.key_heads * size)
        self.wv = split_linear(tape, "wv", recipe, hidden, self.key_heads * size)
        self.wo = split_linear(tape, "wo", recipe, self.heads * size, hidden)
        self.q_norm = Norm(tape, "q_norm", recipe, size) if shape.qk_norm else as_is
        self.k_norm = Norm(tape, "k_norm", recipe, size) if shape.qk_norm else as_is
        self.turn = apply_real_rotary if shape.qk_norm else apply_rotary

    def __call__(self, x: Tensor) -> Tensor:
        size = self.recipe.shape.head_size
        batch, length, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = view(xq, (batch, length, self.heads, size))
        xk = view(xk, (batch, length, self.key_heads, size))
        xv = view(xv, (batch, length, self.key_heads, size))
        xq, xk = self.q_norm(xq), self.k_norm(xk)
        xq, xk = self.turn(xq, xk)
        _keys = repeat_kv(xk, self.heads // self.key_heads)
        _values = repeat_kv(xv, self.heads // self.key_heads)
        xq = transpose(xq, 1, 2)
        xk = transpose(_keys, 1, 2)
        xv = transpose(_values, 1, 2)
        if self.recipe.slice.context > 1:
            part = self.recipe.slice
            output = ring_flash(xq, xk, xv, part.context, gathers=not part.ring)
        else:
            output = scaled_dot_product(xq, xk, xv, self.recipe.attention, 0.0)
        output = contiguous(transpose(output, 1, 2))
        output = view(output, (batch, length, self.heads * size))
        return scattered(self.wo(output), self.devices)


class FeedForward:
    """FeedForward: a part of the inner width."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.devices = devices_of(recipe)
        hidden, inner = shape.hidden_size, shape.intermediate_size // self.devices
        self.w1 = split_linear(tape, "w1", recipe, hidden, inner)
        self.w2 = split_linear(tape, "w2", recipe, inner, hidden)
        self.w3 = split_linear(tape, "w3", recipe, hidden, inner)

    def __call__(self, x: Tensor) -> Tensor:
        inner = mul(silu(self.w1(x)), self.w3(x))  # which the call of w2 holds
        return scattered(self.w2(inner), self.devices)


class Block:
    """TransformerBlock."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.devices = devices_of(recipe)
        self.attention = Attention(tape, recipe)
        self.feed_forward = FeedForward(tape, recipe)
        self.attention_norm = Norm(tape, "attention_norm", recipe)
        self.ffn_norm = Norm(tape, "ffn_norm", recipe)

    def __call__(self, x: Tensor) -> Tensor:
        h = add(x, self.attend(self.attention_norm(x)))
        return add(h, self.feed(self.ffn_norm(h)))

    def attend(self, x: Tensor) -> Tensor:
        """Attention over whole sequences."""
        if self.devices == 1:
            return self.attention(x)
        return self.attention(gather_sequence(x, self.devices))

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward network over whole sequences."""
        if self.devices == 1:
            return self.feed_forward(x)
        return self.feed_forward(gather_sequence(x, self.devices))


class CheckpointedBlock:
    """CheckpointWrapper around a block: what FSDP does around a block is outside of it."""

    def __init__(self, tape: Tape, block: Callable[[Tensor], Tensor], keeps: str | None) -> None:
        self.tape, self.block, self.keeps = tape, block, keeps

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.tape, self.block, x, keeps=self.keeps)
        return result


class CompiledBlock(CheckpointedBlock):
    """torch.compile around it, and around its checkpoint if it has one.

    Of what a selective checkpoint keeps the graph saves what its backward asks for: all but the block's last product,
    and with it what is scattered of it.
    Source: torch/_functorch/partitioners.py, min_cut_rematerialization_partition and default_partition's dead outputs.
    """

    def __init__(self, tape: Tape, block: Callable[[Tensor], Tensor], keeps: str | None, *, checkpointed: bool) -> None:
        super().__init__(tape, block, keeps)
        self.checkpointed = checkpointed

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.tape.graph(self.run if self.checkpointed else self.block, x)
        return result

    def run(self, x: Tensor) -> Tensor:
        """The block's checkpoint."""
        result: Tensor = checkpoint(self.tape, self.again, x, keeps=self.keeps)
        return result

    def again(self, x: Tensor) -> Tensor:
        """The block, the first time and again."""
        tape = self.tape
        result = self.block(x)
        if tape.frame is not None and self.keeps is not None:
            unasked = 1 if getattr(self.block, "devices", 1) == 1 else 2
            tape.frame.kept[-unasked:] = [None] * unasked
        return result


class Titan:
    """Transformer, and the loss function of train.py."""

    iteration_of_stage = "vramplan.engines.torchtitan.pipeline:replay_pipelined"
    shards_by_blocks = True
    shards_every_selective = True  # tests/oracle/titan.json
    no_eager_attention = "torchtitan calls scaled_dot_product_attention"
    compiles_blocks = True
    keeps_last_unit = True  # apply_fsdp: reshard_after_forward of all but the last
    reshards_root = True  # apply_fsdp: reshard_after_forward of the whole, but in a pipeline
    selective = ("selective-op",)
    ladder = ("none", "selective-op", "full")  # apply_ac wraps single blocks
    splits = ("tensor", "sequence_parallel", "pipeline", "context")
    own_units = (EMBEDDINGS, HEAD)
    norm_with_head = True
    head_losses = untraced_losses = ("chunked:N",)
    untraced_parts = ("qk_norm",)

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether the code has no more than the model: no biases, windows or tied tables.

        Heads of any size are Qwen3's alone, with the norms of each.
        """
        more = (shape.qkv_bias, shape.output_bias, shape.mlp_bias, shape.tied_embeddings)
        plain = shape.task == "lm" and shape.activation == "silu" and shape.sliding_window is None
        fills = shape.qk_norm or shape.attention_heads * shape.head_size == shape.hidden_size
        return plain and not any(more) and fills

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe, self.devices = tape, recipe, devices_of(recipe)
        if not recipe.slice.first:
            return
        part = shape.vocabulary_size // self.devices
        with tape.building(EMBEDDINGS):
            self.tok_embeddings = tape.parameter(
                "tok_embeddings.weight", (part, shape.hidden_size), recipe.weight_dtype
            )
            self.tok_embeddings.parts = self.devices

    def buffers(self) -> list[int]:
        """Bytes of the buffer of complex frequencies, one for each pair of a head and each position.

        That of Qwen3 has a cosine and a sine in fp32 for each number of a head: twice as many bytes.
        """
        part = self.recipe.slice
        own, whole = self.frequency_bytes, self.frequency_bytes * part.context
        return [whole, whole, own, own] if self.shares_a_step else [whole]

    @property
    def frequency_bytes(self) -> int:
        """Of the buffer for the positions that a device has."""
        shape = self.recipe.shape
        numbers = shape.head_size if shape.qk_norm else shape.head_size // 2
        return self.recipe.sequence_length * numbers * FREQUENCY_BYTES

    @property
    def shares_a_step(self) -> bool:
        """Whether it is a stage whose devices share sequences: one context is around all its micro-batches."""
        part = self.recipe.slice
        return part.context > 1 and not (part.first and part.last)

    def cut(self) -> None:
        """`context_parallel` keeps a whole copy of the frequencies, to put it back, and what it has cut of each tensor.

        That of the last one is there twice, as a loop's variable is a copy. All of it goes when the context is left,
        after backward.
        Source: torch/distributed/tensor/experimental/_context_parallel/_attention.py, context_parallel.
        """
        tape, context = self.tape, self.recipe.slice.context
        tokens = (tape.batch, self.recipe.sequence_length)
        pairs = (self.frequency_bytes // FP32.itemsize,)
        tape.held.append(tape.new("clone", (context * pairs[0],), FP32, False))
        tape.held += [tape.new("shard", tokens, INT64, True) for _ in ("input_ids", "labels")]
        tape.held += [tape.new("shard", pairs, FP32, False), tape.new("clone", pairs, FP32, False)]

    def kept(self) -> list[int]:
        """Scaled rotary positions are in the same buffer."""
        return []

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids where the embeddings are, labels where the head is; what stages receive is no input of the step."""
        part = self.recipe.slice
        shape = (self.recipe.sequence_length * part.context,)  # context_parallel shortens them within their memory
        ids = (("input_ids", shape, INT64),) if part.first else ()
        return (*ids, ("labels", shape, INT64)) if part.last else ids

    def __call__(self, *given: Tensor) -> Output:
        tape, recipe = self.tape, self.recipe
        part = recipe.slice
        if part.context > 1 and not self.shares_a_step:
            self.cut()
        local = (tape.batch, recipe.sequence_length)
        pred = self.logits(given[0].alias(local, None, None) if part.first else None)
        pred = tape.role(Sharding).after_model(pred)  # the loss is no part of the model
        if not part.last:
            return Output(sent(pred), pred)
        if self.chunks:
            return Output(pred, None)
        labels = given[-1].alias(local, None, None)
        batch, length, width = pred.shape
        targets = view(labels, (batch * length,))
        rows = view(pred, (batch * length, width))
        is_part = width < recipe.shape.vocabulary_size
        if recipe.compiled and recipe.loss != FP32_LOGITS and not is_part:
            return Output(compiled_cross_entropy(rows, targets), pred)
        if recipe.compiled and is_part and self.compiles_parts:
            return Output(compiled_cross_entropy_of_part(rows, targets), pred)
        rows = to(rows, FP32)
        if is_part:
            return Output(cross_entropy_of_part(rows, targets), pred)
        return Output(cross_entropy(rows, targets), pred)

    @property
    def compiles_parts(self) -> bool:
        """Whether the release compiles a loss of parts of the vocabulary: all do since January 2025.

        A job that names no PyTorch and wraps both ends of the model is of July 2025 at least; one that does not may be
        older, and is taken for that. A loss of the whole vocabulary that is not compiled is `fp32-logits`.
        """
        release = self.tape.role(Release).pytorch
        return self.tape.role(Sharding).norm_with_head if release is None else release >= COMPILES_LOSS

    def logits(self, input_ids: Tensor | None) -> Tensor:
        """Transformer.forward, or the part of it that a stage of a pipeline has; with the loss if it is in chunks."""
        tape, recipe, devices = self.tape, self.recipe, self.devices
        shape = recipe.shape
        kinds = {}
        at = 0
        for times, size, checkpointed, selects in recipe.segments:
            for i in range(at, at + times * size):
                kinds[i] = (checkpointed, selects)
            at += times * size

        def block(i: int) -> Block | CheckpointedBlock:
            checkpointed, selects = kinds[i]
            made = Block(tape, recipe)
            if recipe.compiled:
                return CompiledBlock(tape, made, selects, checkpointed=checkpointed)
            return CheckpointedBlock(tape, made, selects) if checkpointed else made

        if input_ids is None:
            h = received(tape, (tape.batch, recipe.sequence_length // devices, shape.hidden_size), recipe.weight_dtype)
        else:
            h = tape.role(Sharding).within(EMBEDDINGS, self.embedded, input_ids)
        plain = tuple(segment._replace(checkpointed=False, selects=None) for segment in recipe.segments)
        given = [h]
        del h
        h = run_blocks(tape, plain, block, given)
        if not recipe.slice.last:
            return h
        norm = Norm(tape, "norm", recipe)
        with tape.building(HEAD):
            output = split_linear(tape, "output", recipe, shape.hidden_size, shape.vocabulary_size // devices)
        sharding = tape.role(Sharding)
        if sharding.norm_with_head:
            logits: Tensor = sharding.within(HEAD, lambda x: self.unembedded(output, norm(x)), h)
        else:
            h = norm(h)
            logits = sharding.within(HEAD, lambda x: self.unembedded(output, x), h)
        return logits

    def embedded(self, input_ids: Tensor) -> Tensor:
        """The embedding; under tensor parallelism of a part of each sequence."""
        if self.devices == 1:
            return embedding(input_ids, self.tok_embeddings)
        return scatter_sequence(embedding_of_part(input_ids, self.tok_embeddings, self.devices), self.devices)

    @property
    def chunks(self) -> int:
        """In how many parts of the tokens the loss is computed, each with its backward; 0: all at once."""
        word, _, number = self.recipe.loss.partition(":")
        return int(number) if word == "chunked" else 0

    def unembedded(self, output: Linear, h: Tensor) -> Tensor:
        """The head; under tensor parallelism over whole sequences. In parts of the tokens it is the loss too."""
        if self.chunks:
            whole = h if self.devices == 1 else gather_sequence(h, self.devices)
            return chunked_head(whole, output.weight, self.chunks, self.recipe.loaded_dtype or whole.dtype)
        if self.devices == 1:
            return output(h)
        logits = output(gather_sequence(h, self.devices))
        return logits if self.recipe.loss == "vocab-parallel" else gather_vocabulary(logits, self.devices)


FORWARD = Titan
