"""CLOSED FORM and invariants of iterations whose states several devices share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups
from tests.engine.examples import IN_ONE_ROW, ONE_BY_ONE, model, setup
from tests.engine.hosted import what_is_saved_leaves_the_device
from tests.engine.trained_draws import adapters
from tests.engine.unrolled import same_requests
from vramplan.planner.checkpoints import segments_in
from vramplan.replay.models.modules import Segment
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.sharding.replicated import BUCKET_BYTES, FIRST_BUCKET_BYTES, bucket_sizes
from vramplan.replay.sharding.units import shard_shape
from vramplan.replay.step import replay
from vramplan.replay.techniques.evidence import UNITS, adaptable, is_traced_with
from vramplan.replay.techniques.trained import has_no_biases, names_of
from vramplan.replay.tensors import FP32, Parameter
from vramplan.values.job import Adapter
from vramplan.values.model import StateSpace
from vramplan.values.parallel import DDP, FSDP, FSDP_GRAD_OP, Sharded

pytestmark = pytest.mark.closed_form

DRAWS = settings(max_examples=9, deadline=None)
PRECISIONS = st.sampled_from(["fp32", "amp-bf16", "pure-bf16", "fsdp-bf16"])
ALIGNMENT = 512  # each shard lies in allocator blocks of its own: so much of a shard may be rounding


@st.composite
def sharded(draw: st.DrawFn, *, devices: int | None = None) -> Setup:
    """An iteration of a family that can be sharded, over some devices."""
    setup = draw(setups().filter(lambda one: is_traced_with(one.model, *UNITS)))
    offload = draw(st.sampled_from([(), (), ("parameters", "gradients", "optimizer")]))
    shards = devices or draw(st.sampled_from([2, 3, 4, 8, 64]))
    kind = draw(st.sampled_from([FSDP, FSDP_GRAD_OP]))
    version = draw(st.sampled_from([1, 2, 2])) if setup.model.experts is None else 2
    return setup._replace(
        precision=draw(PRECISIONS),
        optimizer="adamw",
        optimizer_in_backward=False,
        max_gradient_norm=draw(st.sampled_from([None, 1.0])),
        frozen=draw(
            st.sampled_from(
                [(), (), ("layers.0-0",)]  # of a flat parameter all is trained, or nothing
                if version == 1
                else [(), (), ("embeddings",), ("layers.0-0",), ("embeddings", "layers.0-0"), ("norms",)]
            )
        ),
        grad_scaler=False,
        ema=False,
        persistent_gradients=False,
        fp32_gradients=False,
        offload_activations=False,
        checkpoint_reentrant=False,
        padded=False,
        half_weights=False,
        compile=False,
        loss="causal-lm-fp32",
        segments=tuple(segment._replace(selects=None) for segment in setup.segments),
        sharding=Sharded(
            kind,
            shards,
            no_sync=draw(st.booleans()) or (version == 1 and bool(offload)),
            version=version,
            reduce_dtype=draw(st.sampled_from([None, None, "fp32", "bf16"])),
            replicas=draw(st.sampled_from([1, 1, 2])),
        ),
        offload=offload,
    )


ROW_OF_IMAGES = setup(
    IN_ONE_ROW, sequence_length=5, attention="flash", image_size=16, sharding=Sharded("fsdp", 2, version=1)
)
"""One row of attention has all images, and the kernel's sums are of whole tiles of it."""


@pytest.mark.sweep(2)
@DRAWS
@given(sharded(), st.sampled_from([1, 2, 3]))
@example(setup(ONE_BY_ONE, sequence_length=8, attention="eager", image_size=16), 5)
@example(ROW_OF_IMAGES, 3)
def test_what_is_saved_on_the_host_is_not_on_the_device(setup: Setup, batch: int) -> None:
    """Beside states there or not; but for the copies that one operator gets back."""
    what_is_saved_leaves_the_device(setup, batch)


@pytest.mark.sweep(2)
@DRAWS
@given(sharded(), st.sampled_from([1, 2, 3]))
def test_the_quick_replay_equals_the_replay_of_every_block(setup: Setup, batch: int) -> None:
    short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    told = short.at_peak(batch)
    phase, moment = told.worst(batch)
    components = told.components(batch, phase, moment)
    assert sum(components.values()) == short.peak_bytes(batch)
    assert short.end_bytes(batch) == short.static_bytes(batch)


@st.composite
def with_long_checkpoints(draw: st.DrawFn) -> Setup:
    """Checkpoints of so many blocks that some of them are alike."""
    setup = draw(sharded().filter(lambda one: one.model.layers == one.model.blocks and not one.offload))
    model = setup.model._replace(layers=draw(st.integers(6, 13)))
    strategy = draw(st.sampled_from(["every:5", "every:6", "every:8"]))
    return setup._replace(model=model, segments=segments_in(strategy, model.stacks))


T5_OF_TWELVE = model("t5", layers=12, decoder_layers=12, attention_heads=1, key_value_heads=1, head_size=8)
WITH_A_LARGER_FIRST_BLOCK = setup(
    T5_OF_TWELVE,
    sequence_length=8,
    sharding=Sharded(FSDP, 2),
    segments=segments_in("every:6", T5_OF_TWELVE.stacks),
)
"""The first block has the weights of the biases of all."""


@pytest.mark.sweep(2)
@DRAWS
@given(with_long_checkpoints(), st.sampled_from([1, 2, 3]))
@example(WITH_A_LARGER_FIRST_BLOCK, 2)
def test_blocks_of_a_checkpoint_are_played_once_where_they_are_alike(setup: Setup, batch: int) -> None:
    """All but the first two and the last two, as these find what no others do."""
    short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    assert short.stranded_bytes(batch) == literal.stranded_bytes(batch)
    assert short.end_bytes(batch) == short.static_bytes(batch)


def test_a_longer_checkpoint_plays_no_more_blocks() -> None:
    one = setup(model("llama", layers=24), sequence_length=8, sharding=Sharded(FSDP, 2))
    eight, twelve = (replay(one._replace(segments=(Segment(24 // size, size, True),))) for size in (8, 12))
    assert len(twelve.events) < 0.8 * len(eight.events)


@pytest.mark.sweep(2)
@DRAWS
@given(sharded(), st.sampled_from([1, 2, 3]))
def test_an_unrolled_replay_asks_for_what_the_replay_at_the_batch_does(setup: Setup, batch: int) -> None:
    same_requests(setup, batch)


@st.composite
def with_leaves(draw: st.DrawFn) -> Setup:
    """LoRA under FSDP1, over a model that may be quantized."""
    setup = draw(sharded().filter(lambda one: one.model.transformers_model_type in adaptable()))
    assume(setup.model.experts is None and setup.sharding is not None)
    assert setup.sharding is not None
    adapter = draw(adapters(setup.model, names_of(setup.model), setup.precision, ["lora"]))
    offload = draw(st.sampled_from([(), ("parameters", "gradients", "optimizer")]))
    half = setup.precision == "fsdp-bf16" and draw(st.booleans())
    may_pack = half and has_no_biases(setup.model)
    return setup._replace(
        sharding=setup.sharding._replace(version=1, no_sync=setup.sharding.no_sync or bool(offload)),
        adapter=adapter._replace(modules_to_save=(), dtype="fp32"),
        half_weights=half,
        quantization=draw(st.sampled_from([None, "nf4", "nf4-double"])) if may_pack else None,
        frozen=(),
        offload=offload,
    )


@pytest.mark.sweep(2)
@DRAWS
@given(with_leaves(), st.sampled_from([1, 2, 3]))
@example(  # the last weights that are trained are of a block that repeats
    setup(
        model(
            "nemotron_h",
            layers=9,
            hidden_size=96,
            key_value_heads=1,
            head_size=8,
            tied_embeddings=True,
            state_space=StateSpace(
                heads=1, head_size=4, state_size=3, groups=1, kernel=1, chunk=1, layers=(0, 2, 4, 6, 8), conv_bias=False
            ),
        ),
        sequence_length=1,
        optimizer_implementation="for-loop",
        adapter=Adapter(kind="lora", rank=1, targets=("q_proj",)),
        sharding=Sharded(kind="fsdp", shards=2, version=1),
    ),
    1,
)
def test_units_of_thin_layers_are_the_same_in_the_quick_replay(setup: Setup, batch: int) -> None:
    short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    assert short.host_states == literal.host_states
    assert short.end_bytes(batch) == short.static_bytes(batch)


@DRAWS
@given(sharded(devices=2), st.sampled_from([2, 4, 16]))
def test_more_shards_never_hold_more_states(setup: Setup, times: int) -> None:
    """But for the rounding of each shard to an allocator block: the parts of many devices are small."""
    assert setup.sharding is not None
    more = setup._replace(sharding=setup.sharding._replace(shards=2 * times))
    two, many = replay(setup), replay(more)
    assert many.static_bytes(2) <= two.static_bytes(2)


@DRAWS
@given(sharded(), st.sampled_from([2, 3, 8]))
def test_shards_multiplied_back_cover_every_byte(setup: Setup, batch: int) -> None:
    assert setup.sharding is not None
    # each parameter has a shard of its own, and on the device
    setup = setup._replace(sharding=setup.sharding._replace(version=2), offload=())
    one = setup._replace(sharding=None, precision=setup.precision.replace("fsdp", "amp"))
    whole, part = replay(one), replay(setup)
    held: Counter[str] = Counter()
    for state in part.states:
        if state.category in ("weights", "optimizer"):
            held[state.category] += state.at(batch)
    for state in whole.states:
        if state.category in held and setup.optimizer_implementation != "fused":
            assert held[state.category] * setup.sharding.shards >= state.at(batch)


@DRAWS
@given(sharded())
def test_flat_shards_multiplied_back_cover_every_element(setup: Setup) -> None:
    """A flat parameter has no gaps, and no more padding than a device for each unit."""
    assert setup.sharding is not None
    setup = setup._replace(sharding=setup.sharding._replace(version=1), frozen=(), offload=())
    if setup.model.experts is not None:
        return
    record = replay(setup)
    held = sum(state.at(2) for state in record.states if state.category == "weights")
    itemsize = 2 if setup.precision.startswith("pure-") else 4
    units = setup.model.numbered_blocks + 1
    assert held * setup.sharding.shards - record.parameters * itemsize >= 0
    assert held <= record.parameters * itemsize / setup.sharding.shards + units * (ALIGNMENT + itemsize)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=3), st.integers(2, 70))
def test_a_shard_is_the_largest_of_equal_parts(shape: list[int], devices: int) -> None:
    part = shard_shape(tuple(shape), devices)
    assert part[0] * devices >= shape[0] > (part[0] - 1) * devices
    assert part[1:] == tuple(shape[1:])


@pytest.mark.sweep(2)
@DRAWS
@given(setups().filter(lambda one: not one.fp32_gradients), st.sampled_from([2, 3]))
def test_ddp_is_one_device_and_its_buckets(setup: Setup, batch: int) -> None:
    """As many bytes as all gradients, once more and for the whole run."""
    setup = setup._replace(optimizer_in_backward=False, persistent_gradients=False, optimizer="adamw", compile=False)
    one, many = replay(setup), replay(setup._replace(sharding=Sharded(DDP, 8)))
    buckets = sum(state.at(batch) for state in many.states if state.category == "communication")
    assert many.peaks(batch) == {phase: size + buckets for phase, size in one.peaks(batch).items()}


def test_buckets_fill_as_gradients_come() -> None:
    """The first is of 1 MiB, the others of 25 MiB; the last ones hold what is left."""
    tape = Tape(2)
    mib = 2**20 // FP32.itemsize
    for name, size in (("first", 3), ("second", 20), ("third", 10), ("last", 2)):
        tape.parameters.append(Parameter(tape, name, (size * mib,), FP32, 1, trainable=True))
    assert FIRST_BUCKET_BYTES == 2**20
    assert BUCKET_BYTES == 25 * 2**20
    assert bucket_sizes(tape.parameters) == [2 * 2**20, 30 * 2**20, 3 * 2**20]
    for one in tape.parameters:
        one.node = None


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_in_backward_has_its_scratch_there(version: int) -> None:
    sharding = Sharded(kind="fsdp", shards=2, version=version)
    how: dict[str, Any] = {"precision": "fp32", "optimizer_implementation": "foreach", "sharding": sharding}
    tape = Tape(2)
    replay(setup(model("gpt2", layers=2), optimizer_in_backward=True, **how), tape=tape)
    began = next(event for event, name in tape.phases if name == "step")
    scratch = [event for event, index in enumerate(tape.events) if index >= 0 and "sqrt" in tape.operators[index]]
    assert scratch
    assert all(event < began for event in scratch)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("steps_in_backward", [False, True])
@pytest.mark.parametrize("offloads", [False, True])
@pytest.mark.parametrize("model_type", ["gpt2", "bert", "bart", "mixtral"])
def test_reentrant_checkpoints_of_every_block_are_those_of_one(
    model_type: str, offloads: bool, steps_in_backward: bool
) -> None:
    """The hooks of FSDP2 stay outside of them, and each block is stepped when its gradients are reduced."""
    shape = model(model_type, layers=4)
    played = setup(
        shape,
        precision="fsdp-bf16",
        attention="eager",
        segments=(Segment(shape.blocks, 1, True),),
        checkpoint_reentrant=True,
        offload_activations=offloads,
        optimizer_in_backward=steps_in_backward,
        sharding=Sharded(kind="fsdp", shards=3),
    )
    assert replay(played, batch=2).peaks(3) == replay(played, batch=3, direct=True).peaks(3)
    others = replay(played._replace(checkpoint_reentrant=False), batch=2)
    assert replay(played, batch=2).flops["recompute"] >= others.flops["recompute"]
