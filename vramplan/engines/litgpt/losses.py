"""The losses of LitGPT's training loops (litgpt/utils.py, chunked_cross_entropy).

Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from vramplan.engines.litgpt.operators import cross_entropy_by_rows, cross_entropy_each
from vramplan.replay.models.modules import Recipe
from vramplan.replay.operators.elementwise import div_by
from vramplan.replay.operators.loss_parts import sum_all
from vramplan.replay.operators.views import cat, split, view
from vramplan.replay.tensors import BOOL, INT64, Tensor

CHUNKED = "chunked:"
CHUNK_TOKENS = 128  # litgpt/finetune/lora.py, lm_head_chunk_size; litgpt/utils.py, chunk_size


def chunk_tokens(recipe: Recipe) -> int:
    """Tokens of a chunk: LitGPT's own number if that makes as many chunks as the job says."""
    length = recipe.sequence_length
    if not recipe.loss.startswith(CHUNKED):
        return length
    count = int(recipe.loss.removeprefix(CHUNKED))
    return CHUNK_TOKENS if -(-length // CHUNK_TOKENS) == count else -(-length // count)


def chunked_cross_entropy(logits: list[Tensor], targets: Tensor) -> Tensor:
    """chunked_cross_entropy, of logits that are chunked already: one loss for each token, then their mean."""
    _rows = [view(one, (one.shape[0] * one.shape[1], one.shape[2])) for one in logits]
    _targets = [view(one, (one.shape[0] * one.shape[1],)) for one in split(targets, logits[0].shape[1], 1)]
    losses = [cross_entropy_each(chunk, target) for chunk, target in zip(_rows, _targets, strict=False)]
    return mean_of(losses, targets)


def cross_entropy_in_chunks(logits: list[Tensor], targets: Tensor) -> Tensor:
    """chunked_cross_entropy, which splits whole logits by rows itself; they are taken out of their list."""
    whole = logits.pop()
    batch, length, vocabulary = whole.shape
    whole = view(whole, (batch * length, vocabulary))
    targets = view(targets, (batch * length,))
    return mean_of([cross_entropy_by_rows(whole, targets, CHUNK_TOKENS)], targets)


def mean_of(losses: list[Tensor], targets: Tensor) -> Tensor:
    """The sum of all losses over the number of targets that count."""
    tape = targets.tape
    mask = tape.new("ne", targets.shape, BOOL, True)
    _count = tape.new("sum", (), INT64, False)
    del mask
    total = sum_all(cat(losses, 0))
    one = tape.new("ones_like", (), INT64, False)
    divisor = tape.new("maximum", (), INT64, False)
    del one
    return div_by(total, divisor)
