"""What an iteration leaves to the next: outputs, what hangs on them, and gradients that are zeroed late."""

from __future__ import annotations

import pytest

from tests.engine.examples import model, setup
from vramplan.replay.caching.run import reserve
from vramplan.replay.evaluation import resident
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.job import Adapter
from vramplan.values.parallel import Sharded

pytestmark = pytest.mark.closed_form

LORA = Adapter(kind="lora", rank=4, targets=("q_proj", "v_proj"))


def held(bitsandbytes: str | None = None, **keys: object) -> Setup:
    shape = model("llama", layers=5, hidden_size=64, attention_heads=4, key_value_heads=4, intermediate_size=192)
    adapted = {"adapter": LORA, "quantization": "nf4", "precision": "pure-bf16", "bitsandbytes": bitsandbytes}
    return setup(shape, hold_outputs=True, **(adapted if bitsandbytes else {}), **keys)


def left_bytes(record: Record, batch: int) -> int:
    (left,) = record.carried
    return record.sizes(batch)[left.stand_in]


@pytest.mark.parametrize("bitsandbytes", [None, "0.42.0", "0.49.2"])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_both_replays_leave_as_much(bitsandbytes: str | None, batch: int) -> None:
    one = held(bitsandbytes, outlives=True)
    quick, direct = replay(one, batch=min(batch, 2)), replay(one, batch=batch, direct=True)
    assert left_bytes(quick, batch) == left_bytes(direct, batch) > 0
    assert quick.peaks(batch) == direct.peaks(batch)


def test_forward_begins_with_the_logits_of_the_iteration_before() -> None:
    one = held()
    plain, after = replay(one), replay(one._replace(outlives=True))
    logits = 2 * one.sequence_length * one.model.vocabulary_size * 4
    assert logits <= left_bytes(after, 2) <= logits + 1024
    for phase in ("forward", "step"):
        assert after.peaks(2)[phase] > plain.peaks(2)[phase]
    assert after.peaks(2)["backward"] == plain.peaks(2)["backward"]
    assert after.left_before_bytes(2) <= left_bytes(after, 2)


def test_inputs_of_quantized_products_hang_on_the_graph_until_bitsandbytes_0_43_2() -> None:
    old, new = (replay(held(release, outlives=True, sequence_length=256)) for release in ("0.42.0", "0.43.2"))
    shape = held().model
    assert shape.intermediate_size is not None
    # The normalised input of gate and up, that of down_proj, and that of o_proj.
    inputs = shape.hidden_size + shape.intermediate_size + shape.attention_heads * shape.head_size
    # The first block's q, k and v take embeddings that need no gradient, so that nothing is recorded of them.
    each, others = shape.layers * inputs, (shape.layers - 1) * shape.hidden_size
    assert left_bytes(old, 2) - left_bytes(new, 2) == 2 * 256 * 2 * (each + others)


def test_the_first_simulated_iteration_finds_nothing() -> None:
    one = held("0.42.0", sequence_length=256)
    found, alone = (reserve(replay(one._replace(outlives=after), unrolled=True), 16) for after in (True, False))
    assert found.first_allocated_bytes == alone.first_allocated_bytes
    assert found.later_allocated_bytes > alone.later_allocated_bytes
    record = replay(one._replace(outlives=True), unrolled=True)
    peak = record.peak_bytes(16)
    assert peak <= found.later_allocated_bytes <= 1.05 * peak  # with what is not split off blocks


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("keeps_outputs", [False, True])
def test_gradients_that_are_zeroed_late_are_beside_the_next_forward(batch: int, keeps_outputs: bool) -> None:
    one = held(outlives=keeps_outputs)._replace(hold_outputs=keeps_outputs)
    plain, late = (replay(one._replace(zeroes_late=after), batch=min(batch, 2)) for after in (False, True))
    direct = replay(one._replace(zeroes_late=True), batch=batch, direct=True)
    gradients = sum(state.at(batch) for state in plain.states if state.category == "weights")  # each as its weight
    assert late.peaks(batch) == direct.peaks(batch)
    assert late.peaks(batch)["forward"] == plain.peaks(batch)["forward"] + gradients
    assert [late.peaks(batch)[name] for name in ("backward", "step")] == [
        plain.peaks(batch)[name] for name in ("backward", "step")
    ]


def test_the_first_simulated_iteration_finds_no_gradients() -> None:
    one = held()._replace(hold_outputs=False)
    plain, late = (reserve(replay(one._replace(zeroes_late=after), unrolled=True), 16) for after in (False, True))
    record = replay(one._replace(zeroes_late=True), unrolled=True)
    peak = record.peak_bytes(16)
    assert late.first_allocated_bytes == plain.first_allocated_bytes
    assert plain.later_allocated_bytes < peak <= late.later_allocated_bytes <= 1.05 * peak


def test_between_steps_the_gradients_are_there() -> None:
    one = held()._replace(hold_outputs=False)
    record = replay(one._replace(zeroes_late=True))
    gradients = [state.at(2) for state in resident(one, record, 2) if state.category == "gradients"]
    assert gradients == [left_bytes(record, 2)]


@pytest.mark.parametrize(("quantization", "loads"), [("nf4", True), ("gptq-int4", False)])
def test_what_a_weight_is_quantized_from_stays_reserved(quantization: str, loads: bool) -> None:
    """Of a run without a step: the layers in 16 bits are gone, and their segments are not."""
    shape = model("llama", layers=2, hidden_size=2048, attention_heads=16, key_value_heads=16, intermediate_size=8192)
    one = setup(shape, adapter=LORA, quantization=quantization, precision="pure-bf16", sequence_length=3)
    records = [replay(one, batch=1, unrolled=True) for _ in range(2)]
    assert ((2048 * 8192 * 2,) in records[0].load_bytes) == loads
    records[1].load_bytes = ()
    for record in records:
        record.__dict__["requests"] = []
    found, without = (reserve(record, 1) for record in records)
    assert (found.reserved_bytes > without.reserved_bytes) == loads
    assert found.allocated_bytes == without.allocated_bytes


@pytest.mark.parametrize(("version", "reads_shards"), [(1, False), (2, False), (2, True)])
def test_what_a_shard_is_cut_from_stays_reserved(version: int, reads_shards: bool) -> None:
    """Of a run without a step: FSDP2 has had each weight whole, FSDP1 each unit twice, one beside the other."""
    shape = model("llama", layers=2, hidden_size=2048, attention_heads=16, key_value_heads=16, intermediate_size=8192)
    shared = Sharded("fsdp", 64, version=version)
    one = setup(shape, precision="pure-bf16", sequence_length=3, sharding=shared, reads_shards=reads_shards)
    record = replay(one, batch=1, unrolled=True)
    record.__dict__["requests"] = []
    found = reserve(record, 1)
    largest = 2 * 2048 * 8192
    whole = {1: 2 * 3 * largest, 2: largest}[version]  # the three of a block, and where they are copied to
    assert (found.reserved_bytes > whole) != reads_shards
    assert found.allocated_bytes < whole
    assert (record.load_bytes == ()) == reads_shards
