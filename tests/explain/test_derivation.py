"""The derivation of random iterations: the same events as an ordinary replay, sums that are exact, one block for many.

The reference is the literal replay of every block, in which each tensor of each block is a storage of its own.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups
from tests.engine.examples import model
from tests.engine.examples import setup as plain
from vramplan.answers.explanation import rule_of
from vramplan.answers.explanation.life import life
from vramplan.answers.explanation.sections import sections
from vramplan.answers.explanation.states import states
from vramplan.answers.explanation.trace import Trace, full_name
from vramplan.planner.replays import Replays
from vramplan.replay.models.parts import takes_samples_apart
from vramplan.replay.recorder import Tape
from vramplan.replay.rules import FILE
from vramplan.replay.setup import Segment, Setup
from vramplan.replay.step import replay
from vramplan.values.model import LinearAttention, StateSpace

DRAWS = settings(max_examples=10, deadline=None)
BATCHES = st.integers(1, 5)
# the scale is multiplied into the loss, and by the count of bad gradients before a step that knows scales
PADDED_STACKS = plain(model("t5", layers=1, decoder_layers=1), attention="efficient", padded=True)
SCALED_LOSS = plain(model("bert", layers=1), precision="amp-fp16", grad_scaler=True)
SMALL = {"layers": 1, "hidden_size": 8, "attention_heads": 1, "key_value_heads": 1, "intermediate_size": 24}
TOWER = {"image_size": 16, "patch_size": 8, "channels": 1, "vision_layers": 1, "vision_hidden_size": 8}
TOWER |= {"vision_attention_heads": 1, "vision_intermediate_size": 24, "vision_merge": 1, "vision_frames": 1}
WINDOWS = {"vision_window": 48, "vision_full_layers": ()}
# what the images between the first and the last give, and what a model keeps of its samples, which is no buffer
IMAGES = plain(model("qwen2_vl", **SMALL, **TOWER), sequence_length=5, attention="efficient", image_size=16)
IMAGES_AVERAGED = plain(model("qwen2_5_vl", **SMALL, **TOWER, **WINDOWS), sequence_length=5, ema=True, image_size=16)
# gradients of all images in a row of one head; and where images end, which is one number more than there are images
IMAGES_IN_A_ROW = plain(
    model("qwen2_vl", **SMALL, **TOWER | {"vision_hidden_size": 20, "vision_intermediate_size": 60, "vision_merge": 3}),
    precision="mixed-fp16",
    sequence_length=2,
    image_size=16,
)
# the mask that a recurrent block is handed
LINEAR = LinearAttention(key_heads=1, value_heads=1, key_size=8, value_size=8, kernel=1, layers=())
PADDED_LINEAR = plain(
    model("qwen3_5_text", **SMALL, head_size=8, partial_rotary_factor=0.5, linear_attention=LINEAR),
    sequence_length=1,
    padded=True,
)
# the kernels of mamba-ssm, whose last projection is a weight or a cast of it
SPACE = StateSpace(heads=2, head_size=8, state_size=8, groups=1, kernel=4, chunk=16, layers=(0,))
SPACES = model("bamba", **SMALL, head_size=8, state_space=SPACE, partial_rotary_factor=0.5)
KERNELS = plain(SPACES, sequence_length=9, mamba_kernels=True)
KERNELS_AUTOCAST = plain(SPACES, sequence_length=9, mamba_kernels=True, precision="amp-bf16")
AGAIN = {"segments": (Segment(1, 1, True), Segment(1, 1, True)), "accumulating": True, "hold_outputs": True}
IMAGES_TWICE = plain(model("qwen2_5_vl", **SMALL, **TOWER, **WINDOWS), sequence_length=45, image_size=16, **AGAIN)
# embeddings of texts that are turned round: which number is that of the samples cannot be told from [16, 3]
TWO_TOWERS = {key: value for key, value in TOWER.items() if key not in ("vision_merge", "vision_frames")}
TURNED_ROUND = plain(
    model("clip", **SMALL, **TWO_TOWERS, projection_size=16),
    precision="amp-fp16",
    sequence_length=1,
    image_size=16,
    optimizer_implementation="foreach",
    optimizer_in_backward=True,
    half_weights=True,
)
SIZES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "bool": 1,
    "uint8": 1,
    "complex64": 8,
    "float64": 8,
}


def names(trace: Trace, *, at_peak: bool) -> Counter[str]:
    """Every tensor of every block by its name: those alive at the peak, or those that forward keeps."""
    found: Counter[str] = Counter()
    for birth in trace.births:
        for block in birth.blocks.numbers() if birth.blocks else (None,):
            alive = bool(trace.sizes[birth.index]) and trace.copies.is_alive(birth, block, trace.phase, trace.moment)
            found[full_name(birth.blocks, birth.label, block)] += alive if at_peak else trace.is_kept(birth)
    return +found


class WithoutLoops(Tape):
    """Chunks of linear attention have names of their own: each is played."""

    loops = False


@pytest.mark.sweep(12)
@DRAWS
@given(setups(), BATCHES)
def test_notes_change_nothing(setup: Setup, batch: int) -> None:
    """Births, deaths and their order, sizes, components and repeated units are those of a replay without notes."""
    trace = Trace(setup, batch)
    plain = Replays().shown(setup, batch)
    if setup.model.linear_attention is not None and not takes_samples_apart(setup.model.family):
        plain = replay(setup, tape=WithoutLoops(min(batch, 2)))
    assert trace.record.events == plain.events
    assert trace.record.sizes(batch) == plain.sizes(batch)
    assert trace.record.categories == plain.categories
    assert trace.record.marks == plain.marks
    assert trace.record.peaks(batch) == plain.peaks(batch)


@pytest.mark.sweep(8)
@DRAWS
@given(setups(), BATCHES)
@example(IMAGES_AVERAGED, 1)
def test_what_is_alive_sums_to_the_peak_and_what_is_kept_to_saved(setup: Setup, batch: int) -> None:
    trace = Trace(setup, batch)
    held = states(trace)
    standing = sum(tensor.total_bytes for state in held for tensor in state.tensors)
    assert standing == sum(state.bytes for state in held) == trace.record.static_bytes(batch)
    assert standing + sum(size for _, size in trace.alive.values()) == trace.record.peak_bytes(batch)
    assert sum(size for _, size in trace.kept.values()) == trace.record.saved_bytes(batch)
    assert all(copies >= 0 for copies, _ in (*trace.alive.values(), *trace.kept.values()))


@pytest.mark.sweep(16)
@DRAWS
@given(setups(), BATCHES)
@example(IMAGES_TWICE, 1)
@example(IMAGES, 2)
def test_tensors_of_a_replayed_block_are_those_of_every_block(setup: Setup, batch: int) -> None:
    quick, direct = Trace(setup, batch), Trace(setup, batch, direct=True)
    assert quick.phase == direct.phase
    assert names(quick, at_peak=True) == names(direct, at_peak=True)
    assert names(quick, at_peak=False) == names(direct, at_peak=False)


TOLD = (
    *("name", "shape", "dtype", "bytes", "component", "components", "born", "born_phase", "rule", "keepers", "views"),
    *("at_peak", "died", "died_phase"),
)


@pytest.mark.sweep(16)
@DRAWS
@given(setups(), BATCHES, st.randoms(use_true_random=False))
@example(IMAGES_IN_A_ROW, 3, random.Random(0))
def test_a_life_is_the_same_in_the_replay_of_every_block(setup: Setup, batch: int, chance: random.Random) -> None:
    quick, direct = Trace(setup, batch), Trace(setup, batch, direct=True)
    known = [full_name(birth.blocks, birth.label) for birth in direct.heads()]
    lives_are_the_same(quick, direct, chance.sample(known, min(6, len(known))))


@pytest.mark.sweep
def test_embeddings_that_are_turned_round_have_the_shape_of_their_samples() -> None:
    quick, direct = Trace(TURNED_ROUND, 3), Trace(TURNED_ROUND, 3, direct=True)
    lives_are_the_same(quick, direct, [full_name(birth.blocks, birth.label) for birth in direct.heads()])


def test_the_gradient_of_an_encoder_ends_in_the_decoder_block_before() -> None:
    """Its sum goes from block to block, also where several blocks alike are replayed once."""
    part = plain(model("t5", layers=1, decoder_layers=6), precision="mixed-fp16")
    quick, direct = Trace(part, 2), Trace(part, 2, direct=True)
    known = [full_name(birth.blocks, birth.label) for birth in direct.heads()]
    summed = [name for name in known if "final_layer_norm.mul.2.grad" in name]
    assert len(summed) > 6
    lives_are_the_same(quick, direct, summed)


def test_the_numbers_of_asgd_are_named_for_their_weights() -> None:
    part = plain(model("ernie4_5", layers=4), optimizer="asgd", optimizer_implementation="foreach")
    quick, direct = Trace(part, 2), Trace(part, 2, direct=True)
    known = [full_name(birth.blocks, birth.label) for birth in direct.heads() if birth.step.direction == "step"]
    assert not [name for name in known if name.startswith("loss.")]
    lives_are_the_same(quick, direct, [name for name in known if ".mul" in name or "_copy" in name])


def test_where_images_end_is_the_same() -> None:
    quick, direct = Trace(IMAGES, 3), Trace(IMAGES, 3, direct=True)
    lives_are_the_same(quick, direct, ["visual.cumsum"])


def test_all_tokens_for_each_expert_grow_with_the_micro_batch() -> None:
    part = plain(model("llama4_text", layers=1), sequence_length=8, precision="amp-fp16", attention="flash")
    quick, direct = Trace(part, 3), Trace(part, 3, direct=True)
    known = [full_name(birth.blocks, birth.label) for birth in direct.heads()]
    lives_are_the_same(quick, direct, [name for name in known if "experts" in name and "grad" not in name])


def lives_are_the_same(quick: Trace, direct: Trace, known: list[str]) -> None:
    for name in known:
        short = life(quick, rule_of, states(quick), name, 0)
        long = life(direct, rule_of, states(direct), name, 0)
        assert short.name == name
        for key in TOLD:
            assert getattr(short, key) == getattr(long, key), (name, key)


@pytest.mark.sweep(16)
@DRAWS
@given(setups(), BATCHES, st.integers(0, 13))
@example(IMAGES, 3, 0)
@example(PADDED_STACKS, 1, 0)
@example(IMAGES_IN_A_ROW, 3, 0)
@example(PADDED_LINEAR, 1, 0)
@example(KERNELS, 1, 0)
@example(KERNELS_AUTOCAST, 1, 0)
def test_every_operator_has_a_rule_and_every_saved_tensor_a_reason(setup: Setup, batch: int, block: int) -> None:
    trace = Trace(setup, batch)
    shown = sections(trace, rule_of, block % setup.model.blocks)
    for section in shown:
        for operator in section.operators:
            assert operator.rule is not None, operator.name
            assert rule_of(operator.rule).source, operator.rule
            assert all(made.rule is not None and rule_of(made.rule).source for made in operator.makes), operator.name
            assert all(saved.why for saved in operator.saves)
    made = [tensor for section in shown for operator in section.operators for tensor in operator.makes]
    for tensor in made:
        if tensor.shape is not None and tensor.dtype is not None:
            size = SIZES[tensor.dtype]
            for dimension in tensor.shape:
                size *= dimension
            assert tensor.bytes == -(-size // 512) * 512, tensor.name


MODELS = Path(__file__).resolve().parents[2] / "vramplan" / "replay" / "models"


def functions_with_tensors(file: Path) -> Iterator[tuple[str, str]]:
    """The functions of a file that make tensors, each with its documentation and that of the file."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "tape.new(" in ast.unparse(node):
            yield node.name, f"{ast.get_docstring(node)} {ast.get_docstring(tree)}"


@pytest.mark.contract
def test_every_function_of_a_model_that_makes_a_tensor_names_the_file_of_its_original() -> None:
    found = [(file.name, *one) for file in sorted(MODELS.glob("*.py")) for one in functions_with_tensors(file)]
    assert len(found) > 10
    assert [(file, name) for file, name, text in found if not FILE.search(" ".join(text.split()))] == []


@pytest.mark.sweep(6)
@DRAWS
@given(setups(), BATCHES)
@example(SCALED_LOSS, 1)
@example(IMAGES, 3)
def test_names_are_unique_within_a_block_and_outside(setup: Setup, batch: int) -> None:
    trace = Trace(setup, batch)
    known = [(birth.blocks, birth.label) for birth in trace.heads()]
    assert len(set(known)) == len(known)
    assert all(" " not in label and "(" not in label for _, label in known)
