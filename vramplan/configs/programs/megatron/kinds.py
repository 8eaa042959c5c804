"""The kinds of models that Megatron's arguments make, each with the family of the catalogue whose blocks it has.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py, validate_args;
pretrain_gpt.py, examples/{bert,t5}/pretrain_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.tuples import NamedTuple


class Kind(NamedTuple):
    """What sets a kind of models apart where its arguments are read and written."""

    family: str

    program: str = "pretrain_gpt.py"
    """Those of BERT and T5 stand in examples/ from core 0.18 on."""

    is_encoder_decoder: bool = False

    is_gated: bool = False
    """It is written with SwiGLU, RMSNorm and rotary positions, and without biases."""

    has_experts: bool = False

    other_experts: tuple[str, ...] = ()
    """Families that the same arguments may describe; with latent attention, and without."""

    drops_out: bool = False
    """Models of the catalogue have the dropout that Megatron has where nothing is said; others have none."""

    says_tied: bool = False
    """The arguments say whether the output is tied to the embedding; else it always is."""

    says_biases: bool = False
    """The arguments say whether its products have biases."""

    norms_heads: bool = False
    """Queries and keys may be normalized."""

    biases_queries: bool = False
    """Queries, keys and values may have biases where nothing else has."""

    counts_heads: bool = True
    """A model of the catalogue with as many heads of another size is another model."""

    is_in_catalogue: bool = True
    """Models of the catalogue with the same sizes have the same blocks."""

    own_vocabulary: bool = False
    """The tokens of Megatron's models are not those of the catalogue's."""

    vocabulary_size: int | None = None
    """Of the tokenizer that its scripts take."""

    usual_vocabulary_size: int = 32000
    """Of the tokenizer that is assumed where nothing tells."""


GPT = Kind("gpt2", drops_out=True, is_in_catalogue=False, usual_vocabulary_size=50257)
BERT = Kind("bert", "examples/bert/pretrain_bert.py", drops_out=True, counts_heads=False, vocabulary_size=30522)
T5 = Kind(
    "t5",
    "examples/t5/pretrain_t5.py",
    is_encoder_decoder=True,
    drops_out=True,
    counts_heads=False,
    own_vocabulary=True,
    vocabulary_size=32128,
)
LLAMA = Kind("llama", is_gated=True, says_tied=True, norms_heads=True, biases_queries=True)
MIXTRAL = Kind("mixtral", is_gated=True, has_experts=True, other_experts=("deepseek", "qwen_moe"), says_tied=True)
GPT_OSS = Kind("gpt_oss", has_experts=True, says_tied=True)
STARCODER = Kind("starcoder2", says_tied=True, says_biases=True)
BLOOM = Kind("bloom", usual_vocabulary_size=250880)
"""Megatron-DeepSpeed's GPT with ALiBi, which BigScience trained."""

ANY = Kind(
    "megatron_gpt",
    has_experts=True,
    drops_out=True,
    says_tied=True,
    says_biases=True,
    norms_heads=True,
    biases_queries=True,
    is_in_catalogue=False,
    usual_vocabulary_size=50257,
)
"""What is of none of the others: gates beside learned positions, experts without gates, beside others and in some
blocks alone."""

GEMMA, GEMMA_2, CHATGLM, FALCON, NEMOTRON = (
    Kind(family, says_tied=True, usual_vocabulary_size=tokens)
    for family, tokens in (
        *(("gemma", 256000), ("gemma2", 256000), ("chatglm", 65024), ("falcon", 65024), ("nemotron", 256000)),
    )
)
"""Of NeMo's files alone, which describe models of the catalogue."""

KINDS = {kind.family: kind for kind in (GPT, BERT, T5, LLAMA, MIXTRAL, GPT_OSS, STARCODER)} | {
    family: LLAMA._replace(family=family) for family in ("mistral", "qwen2", "qwen3")
}
KINDS |= {family: MIXTRAL._replace(family=family) for family in MIXTRAL.other_experts}
"""By family. The last five are only written: their arguments are read as Llama's or Mixtral's, and looked up by their
sizes."""


def tell_vocabulary(sheet: Sheet, meaning: Meaning, known: str) -> None:
    """Say how many tokens are counted, where the sizes alone tell the model, which others may share."""
    shape = sheet.shape_of(known)
    if shape is not None:
        tokens = f"whose {shape.vocabulary_size} tokens are counted"
        meaning.note(f"model: it has the sizes of {known}, {tokens}; nothing here tells the vocabulary")


def vocabulary_of_size(sheet: Sheet, meaning: Meaning, sizes: Mapping[str, Any]) -> int | None:
    """The tokens of a model of the catalogue with these sizes, where only its output layer is another."""
    known = sheet.shape_named(sizes)
    shape = None if known is None else sheet.shape_of(known)
    if shape is None:
        return None
    meaning.note(
        f"model: it has the sizes of {known}, whose {shape.vocabulary_size} tokens are counted, and its own head"
    )
    return shape.vocabulary_size
