"""Random iterations, small enough to replay block by block and odd enough to matter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.families import internvl, llava_next, paligemma
from vramplan.catalog.families.dinov2 import inside_width
from vramplan.catalog.shapes import shape_from_fields
from vramplan.job.losses.loss import SMOOTHED_TASKS
from vramplan.planner.checkpoints import segments_in
from vramplan.replay.models.capable import (
    head_losses,
    no_checkpointing,
    no_eager_attention,
    no_flash_attention,
    no_fused_attention,
    selective_strategies,
    smooths,
    takes_packing,
    takes_padding,
)
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.parts import blocks_are_alike, has_equal_blocks
from vramplan.replay.setup import Setup
from vramplan.values.model import ModelShape

PRECISIONS = ("fp32", "amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16")
LOSSES = ("causal-lm-fp32", "causal-lm-fp32", "fp32-logits")
LM_LOSSES = (
    *("causal-lm-fp32", "causal-lm-fp32", "causal-lm-fp32", "chunked:1", "chunked:3", "chunked:8"),
    *("fused", "fused-before-ampere"),
)
OPTIMIZERS = (
    ("adamw", "foreach"),
    ("adamw", "fused"),
    ("adamw", "for-loop"),
    ("sgd", "foreach"),
    ("sgd", "fused"),
    ("sgd-momentum", "foreach"),
    ("rmsprop", "foreach"),
    ("rmsprop", "for-loop"),
    ("adafactor", "foreach"),
    ("adafactor", "for-loop"),
    ("muon", "foreach"),
    ("muon", "fused"),
    ("adamw-8bit", "fused"),
    ("adamw-8bit-paged", "fused"),
    ("lion", "fused"),
    ("lamb", "fused"),
    ("adamw-32bit", "fused"),
    ("lomo", "for-loop"),
    ("galore-adamw:8", "for-loop"),
    ("adagrad", "foreach"),
    ("adagrad", "fused"),
    ("radam", "for-loop"),
    ("asgd", "foreach"),
    ("schedule-free-adamw", "for-loop"),
    ("stable-adamw", "fused"),
    ("came", "for-loop"),
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
    """A model of one of three families with everything given, for closed forms."""
    hidden = heads * head_size
    llama = family == "llama"
    return ModelShape(
        name="made",
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


BEYOND = (
    *("gpt2", "llama", "bert", "neox", "opt", "phi", "phi3"),
    *("gemma", "gemma2", "gemma3", "bloom", "mpt"),
)
"""Families that are drawn with techniques that meet: text alone, one stack of blocks, no experts."""

UNREAD_LAST = ("llava", "llava_next")  # they read what the last vision block but one returns
TEXTS = {
    "paligemma": paligemma.TEXTS,
    "internvl": internvl.TEXTS,
    "llava_next": llava_next.TEXTS,
}  # the types of the text inside of a type
WITH_IMAGES = {name for name, kind in MODEL_TYPES.items() if "channels" in kind.defaults}
EQUAL = sorted(name for name, kind in MODEL_TYPES.items() if has_equal_blocks(kind.family))


@st.composite
def models(
    draw: st.DrawFn,
    layers: int,
    *,
    multiple: int = 1,
    equal: bool = False,
    beyond: bool = False,
    model_type: str | None = None,
) -> ModelShape:
    """A model of any type, with whatever its type leaves open; with `equal`, one whose blocks are all alike."""
    known = EQUAL if equal else sorted(MODEL_TYPES)
    if beyond:
        known = [name for name in known if MODEL_TYPES[name].family in BEYOND]
    if multiple > 1:  # patches and a class token are never a multiple of many
        known = [name for name in known if name not in WITH_IMAGES]
    model_type = model_type or draw(st.sampled_from(known))
    kind = MODEL_TYPES[model_type]
    heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    head_size = draw(st.sampled_from([128] if multiple > 1 else [8, 12, 16, 20, 64]))
    hidden = heads * head_size
    task = draw(st.sampled_from(kind.tasks))
    fields = {
        "transformers_model_type": model_type,
        "task": task,
        "layers": layers,
        "hidden_size": hidden,
        "attention_heads": heads,
        "vocabulary_size": draw(st.sampled_from([64, 1000, 50257])),
        "max_positions": draw(st.sampled_from([100, 1024])) if "rope_scaling" in kind.defaults else 1024,
        "intermediate_size": draw(st.sampled_from([3, 4])) * hidden,
        "tied_embeddings": draw(st.booleans()) or model_type == "bert",
    }
    if "decoder_layers" in kind.defaults:
        fields["decoder_layers"] = draw(st.integers(1, 7))
    if kind.grouped:
        groups = [n for n in range(1, heads + 1) if heads % n == 0]
        fields["key_value_heads"] = draw(st.sampled_from([1, heads] if model_type == "gpt_bigcode" else groups))
    if kind.own_head_size:
        fields["head_size"] = head_size
        fields["hidden_size"] = hidden if multiple > 1 else draw(st.sampled_from([hidden, 96]))
    if model_type == "mpt":
        fields["intermediate_size"] = 4 * hidden  # another width has learned positions
    p = draw(st.sampled_from([0.0, 0.1]))
    for key, default in kind.defaults.items():
        if key.endswith("_dropout"):
            fields[key] = p
        elif isinstance(default, bool) and key not in fields:
            fields[key] = draw(st.booleans())
    if model_type in ("dinov2", "dinov2_with_registers"):
        fields["intermediate_size"] = inside_width(hidden, draw(st.integers(1, 4)), gated=fields["gated_mlp"])
    open_fields = {
        "partial_rotary_factor": [0.5, 1.0],
        "embedding_size": [hidden, 128],
        "sliding_window_pattern": [1, 2, 3, 6],
        "image_size": [16, 50, 96],
        "patch_size": [8, 14, 16],
        "channels": [1, 3],
        "vision_frames": [1, 2],
        "vision_layers": [1, 2, 5],
        "projection_size": [16, 100],
        "rope_scaling": [None, None, "dynamic", "longrope"],
    }
    if "depths" in kind.defaults:
        stages = draw(st.integers(1, 4))
        fields["depths"] = tuple(draw(st.integers(1, 5)) for _ in range(stages))
        fields["widths"] = tuple(draw(st.sampled_from([16, 24, 64])) for _ in range(stages))
    for key, values in open_fields.items():
        if key in kind.defaults:
            fields[key] = draw(st.sampled_from(values))
    if "vision_layers" in kind.defaults:
        vision_heads = draw(st.sampled_from([1, 3]))
        width = vision_heads * draw(st.sampled_from([8, 20]))
        fields |= {"vision_attention_heads": vision_heads, "vision_hidden_size": width}
        fields["vision_intermediate_size"] = 3 * width
    if "vision_merge" in kind.defaults:  # where images keep their size they are brought to a whole number of squares
        edge = fields["image_size"] // fields["patch_size"]
        fields["vision_merge"] = draw(
            st.sampled_from([n for n in (1, 2, 3) if "vision_frames" in fields or edge % n == 0])
        )
    if "vision_tiles" in kind.defaults:
        squares = [2, 5, 10]  # a square of tiles and the whole image
        fields["vision_tiles"] = draw(st.sampled_from(squares) if "vision_newline" in kind.fixed else st.integers(1, 4))
    if "depths" in kind.defaults and "vision_window" in kind.defaults:
        fields |= draw(windows_in_stages(heads, fields["depths"]))
    elif "vision_window" in kind.defaults:
        fields["vision_window"] = draw(st.sampled_from([48, 112]))
        fields["vision_full_layers"] = draw(st.sampled_from([(), (0,), (fields["vision_layers"] - 1,)]))
    if "vision_deepstack_layers" in kind.defaults:
        taken = st.sets(st.integers(0, fields["vision_layers"] - 1), max_size=layers)
        fields["vision_deepstack_layers"] = tuple(sorted(draw(taken)))
        fields["vision_positions"] = draw(st.sampled_from([1, 36]))
    if "vision_tapped_layers" in kind.defaults:
        blocks = st.sets(st.integers(0, fields["vision_layers"] - 1), min_size=1)
        fields["vision_tapped_layers"] = tuple(sorted(draw(blocks)))
        fields["vision_global_layers"] = draw(st.integers(1, 4))
        fields["cross_attention_layers"] = draw(some_blocks(layers).filter(bool))
    if "experts.count" in kind.defaults:
        fields |= draw(experts(model_type, layers))
        if equal:
            fields["experts.dense_layers"] = ()
        widths = [96, 160] if kind.own_head_size else [96]  # of which each number of heads is a divisor
        fields["hidden_size"] = draw(st.sampled_from(widths)) if multiple == 1 else hidden
    if "latent_attention.key_value_rank" in kind.defaults:
        fields |= draw(latent_attention(multiple))
    if "linear_attention.key_heads" in kind.defaults:
        fields |= draw(linear_attention(layers, equal=equal))
    if "state_space.step_rank" in kind.defaults:
        fields |= draw(state_space_by_token(layers, fields))
    elif "state_space.heads" in kind.defaults:
        fields |= draw(state_space(model_type, layers, fields, equal=equal))
    if "short_convolution.kernel" in kind.defaults:
        fields |= draw(short_convolution(layers, equal=equal))
    if "waveform.widths" in kind.defaults:
        fields |= draw(waveform(heads))
    if "sliding_window" in kind.defaults:
        windows = [1, 64, 128] if "full_head_size" in kind.defaults else [None, 1, 64, 128]
        fields["sliding_window"] = draw(st.sampled_from(windows))
    if "text_type" in kind.defaults:
        fields["text_type"] = draw(st.sampled_from(TEXTS[model_type]))
        if fields["text_type"] == "gemma":
            fields["sliding_window"] = None
    if "sliding_window_start" in kind.defaults:
        fields["sliding_window_start"] = 0 if equal else draw(st.integers(0, layers))
    if "unrotated_layers" in kind.defaults:
        fields["unrotated_layers"] = () if equal else draw(some_blocks(layers))
    if "alternating.states" in kind.defaults:
        fields |= draw(alternating(layers))
    if model_type == "falcon":
        fields |= draw(falcons(heads))
    if "full_head_size" in kind.defaults:
        fields |= draw(kinds_of_heads(layers, heads, head_size, multiple))
        if draw(st.booleans()):
            fields["experts.count"] = None
    fields = {key: value for key, value in fields.items() if key not in kind.fixed}
    return shape_from_fields(fields)


@st.composite
def windows_in_stages(draw: st.DrawFn, heads: int, depths: tuple[int, ...]) -> dict[str, Any]:
    """Sizes of stages that are twice as wide each, and an image that leaves the last one a whole window."""
    patch, window, more = draw(st.sampled_from([2, 4])), draw(st.integers(1, 3)), draw(st.integers(0, 5))
    width = heads * draw(st.sampled_from([4, 8]))
    widths = tuple(width * 2**i for i in range(len(depths)))
    return {
        "widths": widths,
        "patch_size": patch,
        "vision_window": window * patch,
        "image_size": window * patch * 2 ** (len(depths) - 1) + more,
        "intermediate_size": 2 * widths[-1],
    }


def some_blocks(layers: int, most: int | None = None) -> st.SearchStrategy[tuple[int, ...]]:
    """Numbers of blocks of another kind: anywhere, of which there may be a most, or in turns with the others."""
    anywhere = st.sets(st.integers(0, layers - 1), max_size=most).map(lambda blocks: tuple(sorted(blocks)))
    in_turns = st.integers(2, 4).map(lambda period: tuple(i for i in range(layers) if (i + 1) % period))
    return anywhere | in_turns


@st.composite
def experts(draw: st.DrawFn, model_type: str, layers: int) -> dict[str, Any]:
    """Experts of a model type, as far as they are open; grouped products want multiples of 8."""
    dense = some_blocks(layers, 3)
    active = draw(st.integers(1, 4))
    fields: dict[str, Any] = {
        "experts.count": draw(st.sampled_from([4, 6, 8])),
        "experts.active": active,
        "experts.intermediate_size": draw(st.sampled_from([24, 56, 128])),
        "experts.normalized": draw(st.booleans()),
        "experts.dense_layers": draw(dense),
        "intermediate_size": draw(st.sampled_from([64, 128])),
    }
    if model_type in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
        fields["experts.shared_intermediate_size"] = draw(st.sampled_from([20, 128]))
    if model_type.startswith("deepseek") or model_type in (
        "glm4_moe",
        "glm4_moe_lite",
        "mistral4",
        "dots1",
        "exaone_moe",
    ):
        fields["experts.shared"] = draw(st.integers(1, 2))
        fields["experts.groups"] = draw(st.sampled_from([1, 2] + [None] * (model_type == "deepseek_v2")))
        fields["experts.active_groups"] = fields["experts.groups"] and 1
    return fields


@st.composite
def latent_attention(draw: st.DrawFn, multiple: int) -> dict[str, Any]:
    """Latent attention with ranks and sizes of all kinds."""
    sizes = st.sampled_from([128] if multiple > 1 else [16, 24, 40])
    return {
        "latent_attention.query_rank": draw(st.none() | sizes),
        "latent_attention.key_value_rank": draw(sizes),
        "latent_attention.plain_size": draw(sizes),
        "latent_attention.rotary_size": draw(sizes),
        "latent_attention.value_size": draw(sizes),
        "latent_attention.interleaved": draw(st.booleans()),
    }


@st.composite
def linear_attention(draw: st.DrawFn, layers: int, *, equal: bool) -> dict[str, Any]:
    """Linear attention in any of the blocks; with `equal` in all of them."""
    key_heads = draw(st.integers(1, 3))
    return {
        "linear_attention.key_heads": key_heads,
        "linear_attention.value_heads": key_heads * draw(st.integers(1, 2)),
        "linear_attention.key_size": draw(st.sampled_from([8, 20, 128])),
        "linear_attention.value_size": draw(st.sampled_from([8, 24, 128])),
        "linear_attention.kernel": draw(st.integers(1, 5)),
        "linear_attention.layers": tuple(range(layers)) if equal else draw(some_blocks(layers)),
    }


@st.composite
def waveform(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    """Convolutions over a sound, as many as there are widths."""
    count = draw(st.integers(1, 3))
    sizes = st.integers(1, 5)
    return {
        "waveform.widths": tuple(draw(st.sampled_from([8, 24])) for _ in range(count)),
        "waveform.kernels": tuple(draw(sizes) for _ in range(count)),
        "waveform.strides": tuple(draw(st.integers(1, 3)) for _ in range(count)),
        "waveform.bias": draw(st.booleans()),
        "waveform.norm": draw(st.sampled_from(["group", "layer"])),
        "waveform.masked_share": draw(st.sampled_from([0.0, 0.05])),
        "waveform.masked_length": draw(sizes),
        "waveform.least_masks": draw(st.integers(1, 2)),
        "waveform.place_kernel": draw(st.integers(1, 8)),
        "waveform.place_groups": draw(st.sampled_from([1, heads])),
    }


@st.composite
def short_convolution(draw: st.DrawFn, layers: int, *, equal: bool) -> dict[str, Any]:
    """Short convolutions in any of the blocks, or with `equal` in all of them."""
    return {
        "short_convolution.kernel": draw(st.integers(1, 5)),
        "short_convolution.bias": draw(st.booleans()),
        "short_convolution.layers": tuple(range(layers)) if equal else draw(some_blocks(layers)),
    }


@st.composite
def state_space(
    draw: st.DrawFn, model_type: str, layers: int, fields: dict[str, Any], *, equal: bool
) -> dict[str, Any]:
    """State spaces in any of the blocks, or with `equal` in all of them; of Nemotron-H what the others are."""
    groups = draw(st.integers(1, 2))
    found: dict[str, Any] = {
        "state_space.heads": groups * draw(st.integers(1, 2)),
        "state_space.head_size": draw(st.sampled_from([4, 24])),
        "state_space.state_size": draw(st.sampled_from([3, 16])),
        "state_space.groups": groups,
        "state_space.kernel": draw(st.integers(1, 5)),
        "state_space.chunk": draw(st.sampled_from([1, 16, 64])),
        "state_space.layers": tuple(range(layers)) if equal else draw(some_blocks(layers)),
    }
    if model_type == "falcon_h1":
        found["state_space.norm"] = draw(st.sampled_from(["none", "gate-first", "norm-first"]))
    elif model_type == "granitemoehybrid":
        found["positions"] = draw(st.sampled_from(["none", "rope"]))
    if model_type in ("granitemoehybrid", "bamba"):
        found["state_space.head_size"] = fields["hidden_size"]  # of all heads a multiple of it
    if "experts.count" in fields and (equal or draw(st.booleans())):
        found["experts.count"] = None
    if model_type == "nemotron_h":
        spaces = {*found["state_space.layers"]}
        others = [i for i in range(layers) if i not in spaces]
        alone = draw(st.sets(st.sampled_from(others))) if others else set()
        moe = draw(st.sets(st.sampled_from(sorted(alone)))) if alone else set()
        found["state_space.feedforward_layers"] = tuple(sorted(alone))
        found["experts.dense_layers"] = tuple(i for i in range(layers) if i not in moe)
        found |= {"experts.shared_intermediate_size": 56, "experts.groups": 1, "experts.active_groups": 1}
        found["experts.latent_size"] = draw(st.sampled_from([None, 40]))
    return found


@st.composite
def state_space_by_token(draw: st.DrawFn, layers: int, fields: dict[str, Any]) -> dict[str, Any]:
    """State spaces of Mamba-1: each channel is a head. Attention comes every so many blocks, and so do experts."""
    found: dict[str, Any] = {
        "state_space.heads": fields["hidden_size"] * draw(st.integers(1, 2)),
        "state_space.state_size": draw(st.sampled_from([3, 16])),
        "state_space.step_rank": draw(st.sampled_from([1, 6])),
        "state_space.kernel": draw(st.integers(1, 5)),
    }
    found["state_space.output_bias"] = fields["state_space.input_bias"]
    keys = ["state_space.layers", "experts.dense_layers"] if "experts.count" in fields else []
    for key in keys:
        period = draw(st.integers(1, layers + 1))
        offset = draw(st.integers(0, period - 1))
        found[key] = tuple(i for i in range(layers) if i % period != offset)
    return found


@st.composite
def alternating(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Hidden states side by side, inputs for each block, and blocks that share keys and values."""
    pattern = draw(st.sampled_from([1, 2, 3, 5]))
    kinds = [(i + 1) % pattern == 0 for i in range(layers)]
    shares = [n for n in range(1, layers) if {*kinds[:-n]} == {*kinds}]
    return {
        "sliding_window_pattern": pattern,
        "layer_input_size": draw(st.sampled_from([8, 24])),
        "layer_input_vocabulary_size": 64,
        "key_value_sharing_layers": draw(st.sampled_from([0, *shares])),
        "alternating.states": draw(st.integers(2, 4)),
        "alternating.laurel_rank": draw(st.sampled_from([3, 16])),
        "alternating.sparse_layers": draw(st.integers(0, layers)),
    }


@st.composite
def kinds_of_heads(draw: st.DrawFn, layers: int, heads: int, head_size: int, multiple: int) -> dict[str, Any]:
    """Blocks without a window that have other heads, inputs for each block, and blocks that share keys and values."""
    pattern = draw(st.sampled_from([1, 2, 3, 6]))
    size = draw(st.sampled_from([None, 8, 24]))
    kinds = [i + 1 == layers or (i + 1) % pattern == 0 for i in range(layers)]
    shares = [n for n in range(1, layers) if size and {*kinds[:-n]} == {*kinds}]
    return {
        "full_head_size": draw(st.sampled_from([head_size, 128 if multiple > 1 else 32, 264])),
        "full_key_value_heads": draw(st.sampled_from([None, *[n for n in range(1, heads + 1) if heads % n == 0]])),
        "sliding_window_pattern": pattern,
        "layer_input_size": size,
        "layer_input_vocabulary_size": 64,
        "key_value_sharing_layers": draw(st.sampled_from([0, *shares])),
    }


@st.composite
def falcons(draw: st.DrawFn, heads: int) -> dict[str, object]:
    """The three designs of Falcon, with rotary positions or ALiBi."""
    new = draw(st.booleans())
    groups = [n for n in range(1, heads + 1) if heads % n == 0] if new else [1, heads]
    return {
        "new_decoder_architecture": new,
        "key_value_heads": draw(st.sampled_from(groups)),
        "positions": draw(st.sampled_from(["rope", "alibi"])),
        "parallel_residual": new or draw(st.booleans()),
        "parallel_norms": draw(st.sampled_from([1, 2])) if new else 1,
    }


@st.composite
def strategies(draw: st.DrawFn, layers: int, selective: tuple[str, ...] = ("selective", "selective-op")) -> str:
    """A checkpointing strategy for so many blocks, explicit segments included."""
    known = ["none", "full", "sqrt", "every", "layers", "selective-layer"]
    kind = draw(st.sampled_from([*known, *selective]))
    if kind == "selective-layer":
        return f"{kind}:{draw(st.integers(1, layers + 1))}"
    if kind == "every":
        return f"every:{draw(st.integers(1, layers + 1))}"
    if kind == "layers":
        cuts = sorted(draw(st.sets(st.integers(0, layers), min_size=2, max_size=6)))
        ranges = [[first, last - 1] for first, last in pairwise(cuts) if draw(st.booleans()) or len(cuts) == 2]
        return "layers:" + str(ranges).replace(" ", "") if ranges else "none"
    return kind


@st.composite
def losses(draw: st.DrawFn, model: ModelShape, *, inside: bool = False) -> str:
    """A loss that the model's head can have; with `inside` one that is made in the model."""
    smoothed = ("smoothed",) if inside else ("label-smoother", "smoothed")
    if model.task == "contrastive":
        return LOSSES[0]
    if model.task != "lm":
        return draw(
            st.sampled_from((*LOSSES, *(smoothed if model.task in SMOOTHED_TASKS and smooths(model.family) else ())))
        )
    able = {word.partition(":")[0] for word in ("causal-lm-fp32", *head_losses(model.family))}
    own = [loss for loss in LM_LOSSES if loss.partition(":")[0].partition("-before")[0] in able]
    return draw(st.sampled_from([*own, *smoothed] if smooths(model.family) else own))


@st.composite
def setups(
    draw: st.DrawFn,
    multiple: int = 1,
    *,
    equal: bool = False,
    beyond: bool = False,
    model_type: str | None = None,
) -> Setup:
    """An iteration. With `multiple`, hidden size and sequence length are multiples of it; `equal` is that of models."""
    layers = draw(st.integers(1, 14))
    model = draw(models(layers, multiple=multiple, equal=equal, beyond=beyond, model_type=model_type))
    precision = draw(st.sampled_from(PRECISIONS))
    optimizer, implementation = ("adamw", "fused") if precision[:5] == "mixed" else draw(st.sampled_from(OPTIMIZERS))
    fused = no_fused_attention(model.family) is None
    latent = model.latent_attention
    flash = no_flash_attention(model.family) is None and (latent is None or latent.value_size == model.head_size)
    kernels = ["flash", "efficient"] if flash else ["efficient"]
    eager = ["eager"] if no_eager_attention(model.family) is None else []
    attention = draw(st.sampled_from([*eager, *kernels] if fused else eager))
    selective = selective_strategies(model.family)
    strategy = draw(strategies(model.blocks, selective)) if no_checkpointing(model.family) is None else "none"
    # 3 and more for chatglm: with 2, [S, B] and [B, S] of the representative batch could not be told apart
    shortest = 3 if model.family == "chatglm" else 1
    lengths = st.integers(1, 8).map(lambda n: n * multiple) if multiple > 1 else st.integers(shortest, 700)
    target = st.none() if model.decoder_layers is None else st.none() | lengths
    mixed = precision.startswith("mixed-")
    length = (model.image_tokens + draw(lengths)) * model.takes_text
    if model.waveform is not None:
        length = model.shortest + draw(lengths)
        target = st.integers(1, 5)
    assume(not equal or blocks_are_alike(model, length, attention))
    masked = None if attention == "flash" else draw(st.sampled_from([None, None, "padded", "packed"]))
    in_backward = not mixed and (optimizer == "lomo" or draw(st.sampled_from([False, False, True])))
    return Setup(
        model=model,
        precision=precision,
        sequence_length=length,
        target_length=draw(target),
        image_size=model.image_size or (draw(st.integers(33, 130)) if model.takes_images else None),
        attention="efficient" if attention == "flash" and precision == "fp32" else attention,
        segments=segments_in(strategy, model.stacks, every_second_matmul=draw(st.booleans())),
        optimizer=optimizer,
        optimizer_implementation=implementation,
        accumulating=not in_backward and draw(st.booleans()),
        optimizer_in_backward=in_backward,
        max_gradient_norm=None if in_backward else draw(st.sampled_from([None, None, 1.0])),
        grad_scaler=precision == "amp-fp16" and optimizer != "muon" and not in_backward and draw(st.booleans()),
        ema=draw(st.booleans()),
        fp32_gradients=mixed and draw(st.booleans()),
        half_weights=precision.startswith("amp-") and draw(st.sampled_from([False, False, True])),
        wide_embeddings=draw(st.booleans()),
        hold_outputs=draw(st.booleans()),
        mamba_kernels=model.state_space is not None and draw(st.booleans()),
        loss=draw(losses(model, inside=equal)),
        padded=masked == "padded" and takes_padding(model.family),
        packed=masked == "packed" and takes_packing(model.family) and model.task == "lm",
    )


def without_checkpoints(setup: Setup) -> Setup:
    """The same iteration with every block stored."""
    return setup._replace(segments=tuple(Segment(1, layers, False) for layers in setup.model.stacks))
