"""CLOSED FORM and invariants of DeepSpeed's ZeRO: what a device holds of the states, and what passes by."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups
from tests.engine.hosted import what_is_saved_leaves_the_device
from tests.engine.trained_draws import trained_setups
from vramplan.engines.deepspeed.layout import Layout, flushes
from vramplan.engines.deepspeed.traced import STAGES
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.techniques.evidence import is_traced_with
from vramplan.values.parallel import Sharded, Zero

pytestmark = pytest.mark.closed_form

DRAWS = settings(max_examples=8, deadline=None)
COMPOSED = ("chatglm",)  # whose forward pass was traced, and the stages with others
SCALARS_BYTES = {"zero1": 1024, "zero2": 1024, "zero3": 1536}  # a norm that is kept, and buffers of one element
SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=12)


def zero(kind: str, shards: int, bucket: int = 10**6, threshold: int = 0, ahead: int = 10**6) -> Sharded:
    switches = Zero(
        reduce_bucket_size=bucket,
        overlap_comm=False,
        param_persistence_threshold=threshold,
        prefetch_bucket_size=ahead,
        max_live_parameters=4 * ahead,
    )
    return Sharded(kind, shards, zero=switches)


def is_able(setup: Setup) -> bool:
    known = is_traced_with(setup.model, *STAGES) or setup.model.family in COMPOSED
    return known and setup.model.experts is None


@st.composite
def partitioned(draw: st.DrawFn, kinds: tuple[str, ...] = ("zero1", "zero2", "zero3")) -> Setup:
    """An iteration under a stage of ZeRO."""
    return draw(under_zero(draw(setups().filter(is_able)), kinds))


@st.composite
def partly_trained(draw: st.DrawFn, kinds: tuple[str, ...] = ("zero1", "zero2", "zero3")) -> Setup:
    """The same with an adapter, or with frozen parts."""
    setup = draw(under_zero(draw(trained_setups().filter(is_able)), kinds))
    assert setup.sharding is not None
    if setup.adapter is not None:
        setup = setup._replace(adapter=setup.adapter._replace(dtype=setup.precision.removeprefix("mixed-")))
    return setup._replace(quantization=None)


@st.composite
def under_zero(draw: st.DrawFn, setup: Setup, kinds: tuple[str, ...]) -> Setup:
    """An iteration's setup with a stage of ZeRO."""
    kind = draw(st.sampled_from(kinds))
    bucket, threshold = draw(st.sampled_from([3_000, 40_000, 10**7])), draw(st.sampled_from([0, 500, 10**6]))
    sharding = zero(
        kind, draw(st.sampled_from([1, 2, 3, 8, 64])), bucket, threshold, draw(st.sampled_from([10**4, 10**8]))
    )
    return setup._replace(
        precision=draw(st.sampled_from(["mixed-fp16", "mixed-bf16"])),
        optimizer="adamw",
        optimizer_implementation="fused",
        optimizer_in_backward=False,
        grad_scaler=False,
        ema=False,
        fp32_gradients=False,
        half_weights=False,
        persistent_gradients=False,
        compile=False,
        loss="causal-lm-fp32",
        sharding=sharding,
        offload=draw(st.sampled_from([(), ("optimizer",), ("optimizer", "parameters")[: 2 if kind == "zero3" else 1]])),
    )


def states(record: Record) -> Counter[str]:
    found: Counter[str] = Counter()
    for state in record.states:
        found[state.category] += state.at(2)
    return found


@pytest.mark.sweep(2)
@DRAWS
@given(partitioned(), st.sampled_from([1, 2, 3]))
def test_the_quick_replay_equals_the_replay_of_every_block(setup: Setup, batch: int) -> None:
    short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    phase, moment = short.worst(batch)
    assert sum(short.components(batch, phase, moment).values()) == short.peak_bytes(batch)
    assert short.end_bytes(batch) == short.static_bytes(batch)


@pytest.mark.sweep(4)
@DRAWS
@given(partly_trained(), st.sampled_from([1, 2, 3]))
def test_it_does_with_less_than_every_weight(setup: Setup, batch: int) -> None:
    short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.end_bytes(batch) == short.static_bytes(batch)


@pytest.mark.sweep(4)
@DRAWS
@given(partly_trained(("zero3",)))
def test_what_is_not_trained_is_cut_and_has_no_states(setup: Setup) -> None:
    """Under stage 3 all weights are over N, and the other 14 bytes only of what is trained."""
    assert setup.sharding is not None
    record = replay(setup._replace(offload=()))
    found, each = states(record), 1 / setup.sharding.shards
    tensors = len(replay(setup._replace(sharding=None, offload=(), accumulating=False), direct=True).fixed)
    slack = 512 * tensors + 4096
    assert 0 <= found["weights"] - 2 * record.parameters * each <= slack
    assert 0 <= found["master"] - 4 * record.trainable_parameters * each <= slack
    assert 0 <= found["optimizer"] - 8 * record.trainable_parameters * each <= slack
    assert 0 <= found["gradients"] - 2 * record.trainable_parameters * each <= slack


@pytest.mark.sweep(2)
@DRAWS
@given(partly_trained(("zero3",)))
def test_stage_3_keeps_at_least_what_stage_2_does(setup: Setup) -> None:
    """Its linear layers save their inputs whatever needs a gradient, and what is gathered is there besides."""
    assert setup.sharding is not None
    kept, least = (
        replay(setup._replace(sharding=setup.sharding._replace(kind=kind), offload=(), accumulating=False))
        for kind in ("zero3", "zero2")
    )
    assert kept.saved_bytes(2) >= least.saved_bytes(2)


@pytest.mark.sweep(2)
@DRAWS
@given(partitioned(("zero3",)))
def test_one_device_gathers_nothing(setup: Setup) -> None:
    assert setup.sharding is not None
    one, two = (
        replay(setup._replace(sharding=setup.sharding._replace(shards=shards), offload=())) for shards in (1, 2)
    )
    assert "all_gather" not in one.operators
    assert "all_gather" in two.operators
    assert one.saved_bytes(2) <= two.saved_bytes(2)


@pytest.mark.sweep(4)
@DRAWS
@given(partitioned(("zero1",)), st.sampled_from([2, 4, 16]))
def test_a_higher_stage_never_holds_more_states(setup: Setup, shards: int) -> None:
    """But for the bucket, which stage 3 keeps, and the rounding of its parts."""
    held = []
    for kind in ("zero1", "zero2", "zero3"):
        record = replay(setup._replace(sharding=zero(kind, shards), offload=(), accumulating=False))
        found = states(record)
        held.append(found["weights"] + found["master"] + found["optimizer"])
    slack = 512 * 4 + 12 * shards * len(replay(setup._replace(sharding=None, accumulating=False)).fixed)
    assert held[0] == held[1]
    assert held[2] <= held[1] + slack


@DRAWS
@given(partitioned(), st.sampled_from([2, 8]))
def test_more_shards_never_hold_more_states(setup: Setup, times: int) -> None:
    assert setup.sharding is not None
    few, many = (
        states(replay(setup._replace(sharding=setup.sharding._replace(shards=shards)))) for shards in (2, 2 * times)
    )
    for name in ("master", "optimizer"):
        assert many[name] <= few[name]


@given(SIZES, st.integers(1, 9))
def test_parts_multiplied_back_cover_every_element(sizes: list[int], shards: int) -> None:
    layout = Layout(sizes, shards)
    assert layout.part * shards == layout.padded >= sum(sizes) > layout.padded - 2 * shards
    covered: Counter[int] = Counter()
    for rank in range(shards):
        pieces = layout.slices(rank)
        assert sum(pieces) <= layout.part
        assert layout.whole_elements(rank) >= sum(pieces)
        covered.update(dict(zip(layout.members(rank), pieces, strict=True)))
    assert [covered[one] for one in range(len(sizes))] == sizes
    for one, size in enumerate(sizes):
        assert sum(count * elements for _, count, elements in layout.owners(one)) == size
        for first, count, elements in layout.owners(one):
            for owner in range(first, first + count):
                assert one in layout.members(owner)
                assert layout.elements_in(one, owner) == elements


@given(SIZES, st.integers(1, 5), st.integers(1, 900))
def test_every_gradient_passes_a_bucket_once(sizes: list[int], shards: int, bucket: int) -> None:
    layout = Layout(sizes, shards)
    arrivals = list(reversed(range(len(sizes))))
    for rank in range(shards):
        found = flushes(layout, arrivals, bucket, rank)
        assert max(found) == len(sizes)
        assert sum(sum(flush.own) for flush in found.values()) == sum(layout.slices(rank))
        for flush in found.values():
            assert sum(flush.copies) <= max(bucket + max(sizes), max(sizes))


@pytest.mark.parametrize(
    ("kind", "weights", "gradients", "rest"),
    [("zero1", 1, 1, 64), ("zero2", 1, 64, 64), ("zero3", 64, 64, 64)],
)
def test_the_states_of_7_5_billion_parameters_over_64_devices(
    kind: str, weights: int, gradients: int, rest: int
) -> None:
    """arXiv:1910.02054, figure 1: 31.4, 16.6 and 1.9 GB, of a single parameter that the layout cuts."""
    layout = Layout([7_500_000_000], 64)
    size = {1: layout.padded, 64: layout.part}
    total = 2 * size[weights] + 2 * size[gradients] + 12 * size[rest]
    assert round(total / 1e9, 1) == {"zero1": 31.4, "zero2": 16.6, "zero3": 1.9}[kind]


@DRAWS
@given(partitioned())
def test_states_are_those_of_the_paper(setup: Setup) -> None:
    """arXiv:1910.02054, section 5: 2 + 12/N bytes of each parameter under stages 1 and 2, 4 + 12 all over N under 3."""
    assert setup.sharding is not None
    kind, shards = setup.sharding.kind, setup.sharding.shards
    record = replay(setup._replace(offload=()))
    found, size = states(record), record.trainable_parameters
    each = size / shards
    padding = 2 * shards if kind != "zero3" else len(record.fixed)  # elements: of the buffer, or of each parameter
    rounding = 4 * 512
    assert 0 <= found["master"] - 4 * each <= 4 * padding + rounding
    assert 0 <= found["optimizer"] - SCALARS_BYTES[kind] - 8 * each <= 8 * padding + rounding
    weights = record.parameters  # Whisper never trains the positions of its encoder
    assert 0 <= found["weights"] - 2 * (weights / shards if kind == "zero3" else weights) <= 2 * padding + rounding
    if kind == "zero3":
        assert 0 <= found["gradients"] - 2 * each <= 2 * padding + rounding


@DRAWS
@given(partitioned(("zero1", "zero2")))
def test_an_offloaded_optimizer_leaves_no_state_of_it(setup: Setup) -> None:
    on, off = replay(setup._replace(offload=())), replay(setup._replace(offload=("optimizer",)))
    assert states(off)["optimizer"] == states(off)["master"] == 0
    assert states(on)["master"] > 0
    host = off.host_states
    assert host is not None
    assert host.pinned_bytes + host.pageable_bytes >= host.bytes
    assert on.host_states is None


@pytest.mark.sweep(2)
@DRAWS
@given(partitioned(), st.sampled_from([1, 2, 3]))
def test_what_is_saved_on_the_host_is_not_on_the_device(setup: Setup, batch: int) -> None:
    """But for the copies that one operator gets back: of weights that are there, and of what others have too."""
    plain, record = what_is_saved_leaves_the_device(setup, batch)
    assert record.peaks(batch)["step"] == plain.peaks(batch)["step"]
    assert states(record) == states(plain)


@pytest.mark.sweep(4)
@DRAWS
@given(partitioned(("zero3",)), st.sampled_from([2, 8]))
def test_what_is_offloaded_is_not_on_the_device(setup: Setup, shards: int) -> None:
    """Of stage 3 the host has the master copy and the moments, and of the device's states the bucket is left."""
    sharding = zero("zero3", shards, 3_000, 10**4)
    device, host, both = (
        replay(setup._replace(sharding=sharding, offload=words))
        for words in ((), ("optimizer", "gradients"), ("parameters", "optimizer", "gradients"))
    )
    assert {name for name, size in states(host).items() if size} <= {"weights", "communication", "buffers", "inputs"}
    assert states(host)["weights"] == states(device)["weights"] > states(both)["weights"] == 0
    assert states(device)["communication"] == states(both)["communication"]
    assert both.peak_bytes(2) <= host.peak_bytes(2) + 2 * both.parameters + 512 * len(both.fixed)
    kept, more = host.host_states, both.host_states
    assert kept is not None
    assert more is not None
    part = kept.pageable_bytes // 12
    assert shards * part >= host.trainable_parameters  # tables of sines are none
    assert kept.bytes == (2 + 4 + 12) * part
    assert more.bytes == kept.bytes + 2 * part
    assert kept.to_host_bytes == 6 * part == more.to_host_bytes
    assert more.each_to_device_bytes >= kept.each_to_device_bytes


@pytest.mark.sweep(4)
@DRAWS
@given(partitioned(("zero3",)))
def test_a_drive_takes_what_the_host_had(setup: Setup) -> None:
    sharding = zero("zero3", 1, 10**7)
    assert sharding.zero is not None
    away = sharding._replace(zero=sharding.zero._replace(drive_buffers=4))
    host, drive = (replay(setup._replace(sharding=one, offload=("optimizer", "gradients"))) for one in (sharding, away))
    kept, left = host.host_states, drive.host_states
    assert kept is not None
    assert left is not None
    part = kept.pageable_bytes // 12
    if part * 4 < 2**20:  # too small for the drive
        assert left.drive_bytes == 0
        assert drive.peaks(2) == host.peaks(2)
        return
    assert 12 * part <= left.drive_bytes <= 16 * part + 3 * 1024
    assert left.pageable_bytes == 0
    assert 16 * part <= left.bytes - 2 * part < 16 * part + 4 * 1024
    assert drive.peak_bytes(2) >= host.peak_bytes(2)
