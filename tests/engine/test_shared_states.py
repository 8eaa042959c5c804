"""CLOSED FORM of the states that devices share: ZeRO's table, Megatron's, and what holds for every model and number."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramplan import fit
from vramplan.engines.deepspeed.layout import ALIGNMENT, Layout
from vramplan.engines.deepspeed.walk import order_of
from vramplan.engines.deepspeed.zero import NORM_BYTES, OVERFLOW_BUFFER_BYTES
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.planner.textbook.states import ELEMENT_BYTES, Elements, model_states
from vramplan.replay.observers import Trained
from vramplan.replay.record import Record
from vramplan.replay.recorder import rounded
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

DRAWS = settings(max_examples=8, deadline=None)
BATCH = 2
SCALARS = OVERFLOW_BUFFER_BYTES + NORM_BYTES  # what ZeRO has beside its states
BLOCK = 512  # of the allocator
SCALARS_OF_STAGE_3 = SCALARS + BLOCK  # and whether a gradient was no number
SCALAR_OF_MEGATRON = BLOCK  # the scale of the loss, which is 1
STATES = ("weights", "master", "optimizer", "gradients")

# every matrix and every norm is a multiple of 8 x 128 elements: no part of up to eight is padded or rounded
EVEN: dict[str, Any] = {
    "name": "even",
    "family": "llama",
    "layers": 2,
    "hidden_size": 1024,
    "attention_heads": 8,
    "key_value_heads": 8,
    "intermediate_size": 2048,
    "vocabulary_size": 2048,
    "max_positions": 128,
    "tied_embeddings": False,
}
P = 2 * (4 * 1024**2 + 3 * 1024 * 2048 + 2 * 1024) + 1024 + 2 * 2048 * 1024


def setup(*, model: dict[str, Any] | None = None, accumulating: bool = True, **keys: Any) -> Setup:
    given = {
        "model": model or EVEN,
        "gpu": "a100-80gb",
        "sequence_length": 64,
        "micro_batch_size": BATCH,
        "gradient_accumulation_steps": 2 if accumulating else 1,
        "activation_checkpointing": "none",
        "attention": "flash",
        "precision": "mixed-bf16",
    }
    return setup_of(build_job({**given, **keys}), "none", accumulating)


def zero(stage: int, devices: int, **keys: Any) -> Setup:
    return setup(runtime="deepspeed", parallel={"data": devices, "sharding": f"zero{stage}"}, **keys)


def megatron(**keys: Any) -> Setup:
    return setup(runtime="megatron", **keys)


def fully_sharded(devices: int) -> Setup:
    """Shards of fp32, whose gradients are there while micro-steps accumulate; a step count is no state of ZeRO's."""
    parallel = {"data": devices, "sharding": "fsdp", "no_sync": False}
    return setup(parallel=parallel, precision="fsdp-bf16", optimizer_implementation="foreach")


def states(record: Record) -> Counter[str]:
    held: Counter[str] = Counter()
    for state in record.states:
        held[state.category] += state.at(BATCH)
    return Counter({name: held[name] for name in STATES if held[name]})


def gradients(record: Record, phase: str) -> list[int]:
    """What gradients are alive after each of their births and deaths in a phase, the states among them left out."""
    sizes, level, found = record.sizes(BATCH), 0, []
    starts = [*record.phases, (len(record.events), "")]
    for (start, name), (end, _) in pairwise(starts):
        for event in record.events[start:end]:
            storage = event if event >= 0 else ~event
            if record.categories[storage] == "gradients":
                level += sizes[storage] if event >= 0 else -sizes[storage]
                found += [level] if name == phase else []
    return found


@cache
def literal(one: Setup) -> Record:
    return replay(one, batch=BATCH, direct=True)


# ---------------------------------------------------------------------- ZeRO's table: arXiv:1910.02054, figure 1


def table(stage: int, devices: int) -> int:
    half, full = ELEMENT_BYTES["bf16"], ELEMENT_BYTES["fp32"]
    return model_states(P, Elements(half, half, full, full), "adam", stage=stage, shards=devices).total


def test_one_device_holds_16_bytes_of_each_parameter() -> None:
    record = literal(setup())
    assert record.parameters == P
    assert states(record).total() == 16 * P == table(0, 1)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_zero_1_holds_4_and_12_nths(devices: int) -> None:
    """Its gradients are whole when backward is over."""
    record = literal(zero(1, devices, accumulating=False))
    held = states(record).total() - SCALARS + max(gradients(record, "backward"))
    assert held == 4 * P + 12 * P // devices == table(1, devices)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_zero_2_holds_2_and_14_nths(devices: int) -> None:
    """The gradients of its part are one flat buffer in the step; until then each that has a piece in it is whole.

    A part of eight lies in one large matrix, whose gradient is no copy then.
    """
    one = zero(2, devices, accumulating=False)
    record = literal(one)
    before, flat = gradients(record, "backward")[-1], gradients(record, "step")[0]
    held = states(record).total() - SCALARS + flat - before
    assert held == 2 * P + 14 * P // devices == table(2, devices)
    layout = layout_of(one)
    assert before == 2 * max(layout.whole_elements(rank) for rank in range(devices)) >= flat - before


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_zero_3_holds_16_nths(devices: int) -> None:
    """All of it stays, the 16-bit gradients of the part too."""
    held = states(literal(zero(3, devices)))
    assert (held["weights"], held["gradients"]) == (2 * P // devices, 2 * P // devices)
    assert (held["master"], held["optimizer"] - SCALARS_OF_STAGE_3) == (4 * P // devices, 8 * P // devices)
    assert held.total() - SCALARS_OF_STAGE_3 == 16 * P // devices == table(3, devices)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_full_shards_hold_16_nths(devices: int) -> None:
    """FSDP's are of fp32, so they are 4 + 4 + 8 and no copy: the same 16."""
    held = states(literal(fully_sharded(devices)))
    assert held == {"weights": 4 * P // devices, "gradients": 4 * P // devices, "optimizer": 8 * P // devices}
    assert held.total() == 16 * P // devices == table(3, devices)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_megatrons_distributed_optimizer_holds_6_and_12_nths(devices: int) -> None:
    """Its gradients are fp32 and whole: 18 bytes alone."""
    assert states(literal(megatron())).total() - SCALAR_OF_MEGATRON == 18 * P
    shared = states(literal(megatron(parallel={"data": devices, "sharding": "distributed-optimizer"})))
    assert shared.total() - SCALAR_OF_MEGATRON == 6 * P + 12 * P // devices


# ------------------------------------------------------------------------------------ any model, any number


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Small ones, most of whose sizes no number divides."""
    heads = draw(st.sampled_from([2, 4]))
    return {
        **EVEN,
        "family": draw(st.sampled_from(["llama", "gpt2"])),
        "layers": draw(st.integers(1, 4)),
        "hidden_size": heads * 8 * draw(st.integers(1, 12)),
        "attention_heads": heads,
        "key_value_heads": heads,
        "intermediate_size": draw(st.integers(10, 500)),
        "vocabulary_size": draw(st.integers(50, 3000)),
        "tied_embeddings": True,
    }


def layout_of(one: Setup) -> Layout:
    from vramplan.replay.precision import precision_of
    from vramplan.replay.recipe import recipe_of

    assert one.sharding is not None
    order = order_of(recipe_of(one, precision_of(one.precision)), Trained(), ((), None, None, one.precision))
    return Layout(order.sizes, one.sharding.shards)


@DRAWS
@given(models(), st.integers(1, 9), st.booleans())
def test_a_higher_stage_never_holds_more(model: dict[str, Any], devices: int, accumulating: bool) -> None:
    """But for the gradients of a device's own part, of which stage 2 has a second copy while it accumulates."""
    one, two = (zero(stage, devices, model=model, accumulating=accumulating) for stage in (1, 2))
    first, second = literal(one), literal(two)
    assert states(second).total() <= states(first).total()
    own = rounded(2 * max(layout_of(two).whole_elements(rank) for rank in range(devices)))
    assert max(gradients(second, "backward")) <= max(gradients(first, "backward")) + own * accumulating
    assert second.peak_bytes(BATCH) <= first.peak_bytes(BATCH) + own
    alone = literal(setup(model=model, accumulating=accumulating))
    assert states(first).total() - SCALARS <= states(alone).total() + 3 * (4 * ALIGNMENT * devices + BLOCK)


@DRAWS
@given(models(), st.sampled_from([1, 2]), st.integers(1, 6), st.sampled_from([2, 3, 5]))
def test_more_devices_never_hold_more_states(model: dict[str, Any], stage: int, devices: int, times: int) -> None:
    """But for the padding that makes parts equal."""
    few, many = zero(stage, devices, model=model), zero(stage, devices * times, model=model)
    padding = (layout_of(many).padded - layout_of(few).padded) * 2
    assert states(literal(many)).total() <= states(literal(few)).total() + max(0, rounded(padding))


@DRAWS
@given(models(), st.sampled_from([1, 2]), st.integers(1, 9))
def test_parts_multiplied_back_cover_every_byte(model: dict[str, Any], stage: int, devices: int) -> None:
    """With less than two elements of padding for each device, and each part in allocator blocks of its own."""
    one = zero(stage, devices, model=model)
    record, layout = literal(one), layout_of(one)
    held, elements = states(record), layout.elements
    assert elements == record.parameters
    assert elements <= layout.padded < elements + ALIGNMENT * devices
    for name, each, beside in (("master", 4, 0), ("optimizer", 8, SCALARS)):
        together = (held[name] - beside) * devices
        assert each * elements <= together < each * layout.padded + devices * each // 4 * BLOCK
    assert 2 * elements <= held["weights"] < 2 * layout.padded + 2 * BLOCK
    assert sum(sum(layout.slices(rank)) for rank in range(devices)) == elements


@DRAWS
@given(models(), st.integers(1, 9))
def test_parts_of_stage_3_multiplied_back_cover_every_byte(model: dict[str, Any], devices: int) -> None:
    """Each parameter is cut by itself, so each may have an element of padding on all devices but one."""
    one = zero(3, devices, model=model)
    record, sizes = literal(one), layout_of(one).sizes
    held, elements = states(record), record.parameters
    assert sum(sizes) == elements
    padded = devices * sum(-(-size // devices) for size in sizes)
    for name, each, beside in (("weights", 2, 0), ("gradients", 2, 0), ("master", 4, 0), ("optimizer", 8, 1)):
        together = (held[name] - beside * SCALARS_OF_STAGE_3) * devices
        assert each * elements <= together < each * padded + devices * 2 * BLOCK, name
    less = states(literal(zero(2, devices, model=model)))
    padding = 8 * (padded - elements) // devices + 4 * BLOCK
    for name in ("weights", "master", "optimizer"):
        assert held[name] <= less[name] + padding, name


@DRAWS
@given(models(), st.booleans())
def test_one_device_under_zero_holds_what_it_holds_alone(model: dict[str, Any], accumulating: bool) -> None:
    """All parameters are one tensor there, which is rounded once, and two scalars are beside it."""
    alone = literal(setup(model=model, accumulating=accumulating))
    one = literal(zero(1, 1, model=model, accumulating=accumulating))
    elements = alone.parameters + alone.parameters % ALIGNMENT
    held = states(one)
    assert held["weights"] == rounded(2 * elements)
    assert (held["master"], held["optimizer"] - SCALARS) == (rounded(4 * elements), 2 * rounded(4 * elements))
    for name in ("weights", "master"):
        assert held[name] <= states(alone)[name] + BLOCK


def test_one_shard_of_fsdp_holds_what_one_device_does() -> None:
    two = fully_sharded(2)
    assert two.sharding is not None
    one = literal(two._replace(sharding=two.sharding._replace(shards=1)))
    alone = literal(setup(precision="amp-bf16", optimizer_implementation="foreach"))
    assert states(one) == states(alone)


@pytest.mark.parametrize("runtime", ["transformers", "megatron"])
@pytest.mark.parametrize("words", [{"data": 1}, {"tensor": 1}, {"pipeline": 1}, {"context": 1}, {"expert": 1}])
def test_one_of_anything_is_the_answer_of_one_device(runtime: str, words: dict[str, int]) -> None:
    keys: dict[str, Any] = {
        "model": EVEN,
        "gpu": "a100-80gb",
        "runtime": runtime,
        "sequence_length": 64,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "activation_checkpointing": "none",
    }
    alone, one = fit(**keys), fit(**keys, parallel=words)
    assert (one.peak, one.components, one.total_parameters) == (alone.peak, alone.components, alone.total_parameters)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_split_matrices_multiplied_back_are_the_model_and_its_norms_again(devices: int) -> None:
    """Tensor parallelism divides every matrix and the embeddings; each device has all norms."""
    alone, split = states(literal(megatron())), states(literal(megatron(parallel={"tensor": devices})))
    norms = (2 * 2 + 1) * 1024
    for held in (alone, split):
        held["optimizer"] -= SCALAR_OF_MEGATRON
    for name, each in (("weights", 2), ("master", 4), ("optimizer", 8), ("gradients", 4)):
        assert split[name] * devices - alone[name] == (devices - 1) * norms * each
