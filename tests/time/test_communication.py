"""Collectives and pipelines beside the closed forms of texts."""

from __future__ import annotations

import pytest

from vramplan.answers.roofline import roofline
from vramplan.catalog.gpus import find_gpu
from vramplan.catalog.platforms import on_platform
from vramplan.job import build_any_job
from vramplan.planner.decision import decide
from vramplan.planner.textbook import communication as text
from vramplan.planner.time.communication import (
    Link,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    copies_of,
    exchange_seconds,
    link_of,
    own_card,
)
from vramplan.planner.time.rates import rates_of
from vramplan.planner.time.step import step_of, time_of
from vramplan.planner.timed import devices_of
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.closed_form

ETHERNET = 12.5e9  # 100 Gbit/s


def test_seven_billion_gradients_over_a_hundred_gigabit() -> None:
    size = text.gradient_bytes(7 * 10**9)
    assert size == 14e9
    assert text.ring_bytes(size) == 28e9
    assert text.ring_seconds(size, ETHERNET) == pytest.approx(2.24)


@pytest.mark.parametrize("devices", [2, 8, 1024])
def test_a_ring_without_latency_is_the_texts(devices: int) -> None:
    link = Link(ETHERNET, 0.0)
    ring = 2 * all_gather_seconds(14 * 10**9, devices, link)
    assert ring == pytest.approx(text.ring_seconds(14e9, ETHERNET, devices))
    assert ring < 2.24


def test_a_tree_is_quicker_where_latency_counts() -> None:
    slow = Link(100e9, 1e-5)
    assert all_reduce_seconds(1024, 512, slow) < 2 * all_gather_seconds(1024, 512, slow)
    assert all_reduce_seconds(1 << 30, 8, slow) == pytest.approx(2 * all_gather_seconds(1 << 30, 8, slow))


def test_one_device_tells_nobody() -> None:
    link = Link(1e9, 1e-6)
    assert all_gather_seconds(10**9, 1, link) == all_reduce_seconds(10**9, 1, link) == 0
    assert all_to_all_seconds(10**9, 1, link) == 0


def test_what_goes_to_experts_of_other_machines_passes_the_card_of_each_device() -> None:
    """16 devices on two machines: of 160 MB each keeps 10, hands 70 to its machine and sends 80, all at once."""
    inside, card = Link(350e9, 0.0), Link(50e9, 0.0)
    assert exchange_seconds(160 * 10**6, 16, 8, (inside, card)) == pytest.approx(80e6 / 50e9)
    assert exchange_seconds(160 * 10**6, 16, 8, (inside, card), copies=2) == pytest.approx(40e6 / 50e9)
    assert exchange_seconds(160 * 10**6, 16, 8, (inside, Link(1e15, 0.0))) == pytest.approx(70e6 / 350e9)
    assert exchange_seconds(160 * 10**6, 8, 8, (inside, card)) == pytest.approx(140e6 / 350e9)
    h100 = on_platform(find_gpu("h100").gpu())
    assert own_card(h100, 8, None).bytes_per_s == pytest.approx(400e9 / 8 * 0.94)
    assert own_card(h100, 8, 100e9).bytes_per_s == pytest.approx(100e9 / 8 * 0.94)


@pytest.mark.parametrize(("active", "machines", "copies"), [(1, 4, 1.0), (8, 1, 8.0), (2, 2, 4 / 3), (8, 4, 2.2226)])
def test_experts_of_one_machine_share_a_copy_of_a_token(active: int, machines: int, copies: float) -> None:
    """Two experts lie on the same of two machines as often as not: of four copies to a machine three are sent."""
    assert copies_of(active, machines) == pytest.approx(copies, rel=1e-4)


@pytest.mark.parametrize(("tensor", "near"), [(1, 8), (2, 4)])
def test_experts_on_two_machines_are_as_slow_as_the_cards(tensor: int, near: int) -> None:
    keys = {"model": "qwen3-30b-a3b", "gpu": "h100", "runtime": "megatron", "micro_batch_size": 1}
    keys |= {"sequence_length": 4096, "precision": "mixed-bf16"}
    shared = {"data": 16, "sharding": "distributed-optimizer", "tensor": tensor, "expert": 16}
    job = build_any_job({**keys, "parallel": {**shared, "sequence_parallel": tensor > 1}})
    assert isinstance(job, ResolvedJob)
    found = [one.seconds for one in roofline(job).collectives if one.kind == "all-to-all"]
    hidden = 4096 * 2048 * 2 * 8 // tensor  # 8 experts take each token, in 16 bits
    machines = 16 // near
    each = 8 / machines / (1 - (1 - 1 / machines) ** 8)  # copies of a token for the experts of a machine
    sent = hidden * (16 - near) / 16 / each
    assert found == pytest.approx([sent / (400e9 / 8 * 0.94)] * len(found), rel=0.05)
    assert len(found) >= 2  # forward and backward


def test_links_of_a_rack_join_its_machines() -> None:
    gb200 = on_platform(find_gpu("gb200").gpu())
    inside = link_of(gb200, 8, 1, 4, None).bytes_per_s
    assert inside == link_of(gb200, 72, 1, 4, None).bytes_per_s == pytest.approx(900e9 * 0.78)
    alone = gb200._replace(link_domain=None)
    assert link_of(alone, 8, 1, 4, None).bytes_per_s == pytest.approx(400e9 * 0.75)


def test_the_network_wall_is_where_nothing_is_hidden_any_more() -> None:
    wall = text.network_wall_bytes_per_s(14e9, 1.0)
    assert wall == pytest.approx(28e9)
    below = text.scaling(1.0, text.ring_seconds(14e9, wall / 2), 1.0)
    assert below.exposed_seconds == pytest.approx(1.0)
    assert text.scaling(1.0, text.ring_seconds(14e9, wall), 1.0).efficiency == pytest.approx(1.0)


def test_accumulation_without_synchronisation_keeps_one_of_k() -> None:
    assert text.accumulated_share(4) == 1 - 0.75
    four = text.scaling(4.0, 2.24, 0.0)
    assert four.efficiency == pytest.approx(4 / 6.24)


def test_the_bubble_of_schedules() -> None:
    assert text.bubble_share(4, 8) == pytest.approx(3 / 8)
    assert text.bubble_share(4, 8, virtual=2) == pytest.approx(3 / 16)
    assert text.bubble_share(1, 8) == 0


def test_links_of_platforms() -> None:
    a100, rtx = (on_platform(find_gpu(name).gpu()) for name in ("a100-80gb", "rtx-4090"))
    inside, between = (link_of(a100, members, 1, 8, None) for members in (8, 16))
    assert inside.bytes_per_s == pytest.approx(234e9)  # of 300 GB/s
    assert between.bytes_per_s == pytest.approx(150e9)  # eight cards of 200 Gbit/s
    assert link_of(a100, 16, 8, 8, None).bytes_per_s == pytest.approx(150e9 / 8)  # each device has a card of its own
    assert link_of(a100, 16, 1, 8, 25e9).bytes_per_s == pytest.approx(25e9 * 0.75)
    assert link_of(rtx, 8, 1, 8, None).bytes_per_s == pytest.approx(31.5e9 / 2)
    h100 = on_platform(find_gpu("h100").gpu())
    assert link_of(h100, 8, 1, 8, None).bytes_per_s == pytest.approx(450e9 * 0.82)
    assert link_of(h100, 16, 1, 8, None).bytes_per_s == pytest.approx(min(450e9 * 0.82, 400e9 * 0.94))


@pytest.mark.parametrize("members", [2, 4, 8])
def test_gpus_that_are_linked_one_by_one_reach_as_many_links_as_their_group_has(members: int) -> None:
    mi300x = on_platform(find_gpu("mi300x").gpu())
    each = 64e9 * 0.70  # of one link, one way
    assert link_of(mi300x, members, 1, 8, None).bytes_per_s == pytest.approx((members - 1) * each)
    # groups of several machines have one member in each, or all of a machine
    assert link_of(mi300x, 8 * members, 1, 8, None).bytes_per_s == pytest.approx(min(7 * each, 400e9 * 0.75))
    assert link_of(mi300x, members, 8, 8, None).bytes_per_s == pytest.approx(min(each, 400e9 / 8 * 0.75))


def test_v100_have_links_to_four_others_but_on_boards_with_a_switch() -> None:
    meshed, switched = (on_platform(find_gpu(name).gpu()) for name in ("v100-16gb", "v100-sxm3-32gb"))
    whole = link_of(switched, 2, 1, 8, None).bytes_per_s
    assert [link_of(meshed, members, 1, 8, None).bytes_per_s for members in (2, 4, 8)] == pytest.approx(
        [whole / 4, whole * 3 / 4, whole]
    )


@pytest.mark.parametrize(("precision", "itemsize"), [("mixed-bf16", 4), ("mixed-fp16", 2)])
@pytest.mark.parametrize("sharding", ["ddp", "distributed-optimizer"])
def test_megatron_sums_gradients_in_the_type_of_their_buffer(precision: str, itemsize: int, sharding: str) -> None:
    """accumulate_allreduce_grads_in_fp32 is set with --bf16 alone."""
    keys = {"model": "gpt2", "gpu": "a100", "runtime": "megatron", "micro_batch_size": 1, "precision": precision}
    job = build_any_job({**keys, "parallel": {"data": 8, "sharding": sharding}})
    assert isinstance(job, ResolvedJob)
    found = roofline(job)
    moved = sum(one.size_bytes * one.times for one in found.collectives if one.when == "backward")
    weights = sum(one.size_bytes * one.times for one in found.collectives if one.kind == "all-gather") / 2
    assert moved == pytest.approx(itemsize * (weights or 124_439_808), rel=0.01)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("split", "weights", "gathers"), [({}, 1, 4), ({"tensor": 4}, 4, 4), ({"tensor": 4, "pipeline": 2}, 8, 1)]
)
def test_what_torchtitan_gathers(split: dict[str, int], weights: int, gathers: int) -> None:
    """A part of the weights, in each of four micro-batches, or under a pipeline once."""
    keys = {"model": "llama-3.1-8b", "gpu": "h100", "runtime": "torchtitan", "micro_batch_size": 1}
    shared = {"data": 8, "sharding": "fsdp-grad-op" if "pipeline" in split else "fsdp", **split}
    job = build_any_job({**keys, "gradient_accumulation_steps": 4, "parallel": shared})
    assert isinstance(job, ResolvedJob)
    found = [one for one in roofline(job).collectives if (one.kind, one.when) == ("all-gather", "forward")]
    moved = sum(one.size_bytes * one.times for one in found)
    assert moved == pytest.approx(gathers * 2 * 8_030_261_248 / weights, rel=0.1)


def test_weights_in_four_bits_are_gathered_as_they_are_packed() -> None:
    """Two in each byte, and what is not quantized in 16 bits: the embeddings, the head, the norms and the adapter."""
    keys = {"model": "llama-2-7b", "gpu": "rtx-3090", "micro_batch_size": 1, "sequence_length": 512}
    keys |= {"precision": "pure-bf16", "weight_dtype": "bf16", "parallel": {"data": 2, "sharding": "fsdp"}}
    job = build_any_job({**keys, "quantization": "nf4", "adapter": {"kind": "lora", "rank": 16}})
    assert isinstance(job, ResolvedJob)
    moved = sum(one.size_bytes * one.times for one in roofline(job).collectives if one.kind == "all-gather")
    quantized = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    adapter = 32 * 16 * (2 * (4096 + 4096))  # on queries and values
    assert moved == pytest.approx(2 * (quantized // 2 + 2 * (6_738_415_616 - quantized + adapter)), rel=1e-6)


@pytest.mark.parametrize(("sharding", "transfers"), [("none", 2), ("zero1", 4)])
def test_a_pipeline_waits_for_what_it_sends(sharding: str, transfers: int) -> None:
    """Megatron-LM's sends and receives run at once, DeepSpeed's in turn; devices of a tensor group share each."""
    split = {"tensor": 2, "pipeline": 2, "schedule": "1f1b", "data": 2 if sharding == "zero1" else 1}
    keys = {"model": "gpt2-large", "gpu": "a100", "runtime": "megatron", "micro_batch_size": 4}

    def exposed(steps: int) -> float:
        job = build_any_job({**keys, "gradient_accumulation_steps": steps, "parallel": {**split, "sharding": sharding}})
        assert isinstance(job, ResolvedJob)
        found = roofline(job)
        assert found.time is not None
        return found.time.step_seconds * found.time.shares["communication"]

    sums = (
        2 * 2 * 18 * all_reduce_seconds(4 * 1024 * 1280 * 2, 2, Link(234e9, 3e-6))
    )  # two in each direction of a block
    sends = transfers * (4 * 1024 * 1280 * 2 / 2 / 234e9 + 3e-6)
    assert (exposed(12) - exposed(8)) / 4 == pytest.approx(sums + sends, rel=1e-3)


def test_the_slowest_stage_waits_once_for_each_of_the_others() -> None:
    """The last of four stages of GPT-2 has the head, so that the bubble is less than three times its own work."""
    keys = {"model": "gpt2", "gpu": "a100", "runtime": "megatron", "micro_batch_size": 4, "precision": "mixed-bf16"}
    shared = {"pipeline": 4, "schedule": "1f1b", "data": 1}
    job = build_any_job({**keys, "gradient_accumulation_steps": 8, "parallel": shared})
    assert isinstance(job, ResolvedJob)
    decision = decide(job)
    judged, rung, rates = decision.judged, decision.choice.rung, rates_of(decision.judged)
    assert rates is not None
    devices = devices_of(decision.judge, rung.placement, rung.schedule)
    own = [step_of(judged, one, 4, 8, rates).micro for one in devices]
    working = [sum(one.seconds.values()) + sum(map(one.waiting, one.launching)) for one in own]
    stages = [seconds for seconds, one in zip(working, devices, strict=True) for _ in range(one.devices)]
    assert len(stages) == 4
    time = time_of(judged, devices, 4, 8)
    assert time is not None
    bubble = time.shares["bubble"] * time.step_seconds
    assert bubble == pytest.approx(sum(stages) - max(stages), rel=1e-3)
    assert bubble < 0.9 * 3 * max(stages)


def test_devices_of_fsdp_that_share_experts_send_tokens_and_gather_the_rest() -> None:
    """Of Qwen3 30B's 48 blocks, whose 128 experts are 3 x 2048 x 768 elements each."""
    keys = {"model": "qwen3-30b-a3b", "gpu": "h200", "runtime": "torchtitan", "micro_batch_size": 1}
    keys |= {"sequence_length": 4096, "activation_checkpointing": "none", "gradient_accumulation_steps": 1}
    gathered, exchanged = {}, {}
    for spread in (1, 4, 8):
        job = build_any_job({**keys, "parallel": {"data": 8, "sharding": "fsdp", "expert": spread}})
        assert isinstance(job, ResolvedJob)
        found = roofline(job).collectives
        forward = [one for one in found if (one.kind, one.when) == ("all-gather", "forward")]
        gathered[spread] = sum(one.size_bytes * one.times for one in forward) / 2
        exchanged[spread] = sum(one.size_bytes * one.times for one in found if one.kind == "all-to-all")
    experts = 48 * 128 * 3 * 2048 * 768
    assert gathered[1] - gathered[8] == pytest.approx(experts, rel=1e-3)
    assert gathered[4] - gathered[8] == pytest.approx(experts / 4, rel=1e-3)
    assert exchanged[1] == 0
    assert exchanged[4] == exchanged[8] == 48 * 2 * 2 * 4096 * 2048 * 2 * 8  # there and back in both directions
