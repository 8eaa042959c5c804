"""Random iterations, small enough to replay block by block and odd enough to matter."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from vramplan.memory.iteration import Setup
from vramplan.models.modules import Segment
from vramplan.planner.checkpoints import segments_of
from vramplan.spec import ModelShape

PRECISIONS = ("fp32", "amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16")
OPTIMIZERS = (
    ("adamw", "foreach"),
    ("adamw", "fused"),
    ("adamw", "for-loop"),
    ("sgd", "foreach"),
    ("sgd-momentum", "foreach"),
    ("rmsprop", "foreach"),
    ("rmsprop", "for-loop"),
    ("adafactor", "foreach"),
    ("adafactor", "for-loop"),
)


def shape(
    family: str,
    layers: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    vocabulary: int,
    tied: bool,
    task: str,
    p: float,
) -> ModelShape:
    """A model of a family."""
    hidden = heads * head_size
    llama = family == "llama"
    return ModelShape(
        name="drawn",
        family=family,
        transformers_model_type=family,
        task=task,
        layers=layers,
        hidden_size=hidden,
        attention_heads=heads,
        key_value_heads=kv_heads if llama else heads,
        head_size=head_size,
        intermediate_size=4 * hidden if not llama else 3 * hidden,
        vocabulary_size=vocabulary,
        max_positions=1024,
        tied_embeddings=tied or family == "bert",
        positions="rope" if llama else "learned",
        activation={"gpt2": "gelu_new", "llama": "silu", "bert": "gelu"}[family],
        gated_mlp=llama,
        qkv_bias=not llama,
        output_bias=not llama,
        mlp_bias=not llama,
        embedding_dropout=p,
        attention_dropout=p,
        hidden_dropout=p,
        token_types=2 if family == "bert" else 0,
    )


@st.composite
def strategies(draw: st.DrawFn, layers: int) -> str:
    """A checkpointing strategy for so many blocks, explicit segments included."""
    kind = draw(st.sampled_from(["none", "full", "sqrt", "every", "layers"]))
    if kind == "every":
        return f"every:{draw(st.integers(1, layers + 1))}"
    if kind == "layers":
        cuts = sorted(draw(st.sets(st.integers(0, layers), min_size=2, max_size=6)))
        ranges = [[first, last - 1] for first, last in pairwise(cuts) if draw(st.booleans()) or len(cuts) == 2]
        return "layers:" + str(ranges).replace(" ", "") if ranges else "none"
    return kind


@st.composite
def setups(draw: st.DrawFn, multiple: int = 1) -> Setup:
    """An iteration. With `multiple`, hidden size and sequence length are multiples of it."""
    family = draw(st.sampled_from(["gpt2", "llama", "bert"]))
    layers = draw(st.integers(1, 14))
    heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    kv_heads = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    head_size = draw(st.sampled_from([128] if multiple > 1 else [8, 12, 16, 20, 64]))
    precision = draw(st.sampled_from(PRECISIONS))
    optimizer, implementation = ("adamw", "fused") if precision[:5] == "mixed" else draw(st.sampled_from(OPTIMIZERS))
    task = draw(st.sampled_from(["mlm", "cls"])) if family == "bert" else "lm"
    attention = draw(st.sampled_from(["eager", "flash", "efficient"]))
    strategy = draw(strategies(layers))
    return Setup(
        model=shape(
            family,
            layers,
            heads,
            kv_heads,
            head_size,
            draw(st.sampled_from([64, 1000, 50257])),
            draw(st.booleans()),
            task,
            draw(st.sampled_from([0.0, 0.1])),
        ),
        precision=precision,
        sequence_length=draw(st.integers(1, 8)) * multiple if multiple > 1 else draw(st.integers(1, 700)),
        attention="efficient" if attention == "flash" and precision == "fp32" else attention,
        segments=segments_of(strategy, layers),
        optimizer=optimizer,
        optimizer_implementation=implementation,
        accumulating=draw(st.booleans()),
        hold_outputs=draw(st.booleans()),
    )


def without_checkpoints(setup: Setup) -> Setup:
    """The same iteration with every block stored."""
    return setup._replace(segments=(Segment(1, setup.model.layers, False),))
