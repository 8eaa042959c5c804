"""What the host takes to launch kernels: small steps wait for it, large ones and compiled ones do not."""

from __future__ import annotations

import pytest

from vramplan import fit
from vramplan.planner.time.fitted import COMPILED_KERNELS, COMPILED_SECONDS, HOOK_SECONDS, HOST_SECONDS
from vramplan.results.time import Time

pytestmark = pytest.mark.closed_form

BASE = {
    "model": "gpt2",
    "sequence_length": 128,
    "gradient_accumulation_steps": 1,
    "activation_checkpointing": "none",
    "precision": "pure-bf16",
}


def time_of(**keys: object) -> Time:
    found = fit(**{**BASE, **keys}).time
    assert found is not None
    return found


def seconds(found: Time, *parts: str) -> float:
    return found.step_seconds * sum(found.shares[part] for part in parts)


KERNELS = ("products", "attention", "bytes", "host")


def test_a_small_step_takes_what_its_launches_take() -> None:
    """Whatever the card, and the micro-batch as long as it is small: one host launches the same kernels."""
    found = [time_of(gpu=gpu, micro_batch_size=micro) for gpu, micro in (("h100", 2), ("b200", 2), ("h100", 4))]
    assert all(one.bound == "host" for one in found)
    first, *others = (seconds(one, *KERNELS) for one in found)
    assert others == pytest.approx([first, first], rel=1e-3)
    blocks, in_forward = 12, (20, 45)  # kernels of a block at least and at most, those of GPT-2 without autocast
    least, most = (blocks * each * HOST_SECONDS["forward"] for each in in_forward)
    forward_and_backward = 2  # which launches about one and a half times as many, each in two thirds of the time
    assert least * forward_and_backward < first < most * forward_and_backward


def test_each_micro_batch_is_launched() -> None:
    one, four = (time_of(gpu="h100", micro_batch_size=2, gradient_accumulation_steps=steps) for steps in (1, 4))
    assert seconds(four, *KERNELS) == pytest.approx(4 * seconds(one, *KERNELS), rel=0.02)


def test_large_steps_do_not_wait() -> None:
    for compiled in (False, True):
        assert time_of(gpu="h100", micro_batch_size=64, sequence_length=1024, compile=compiled).shares["host"] == 0


def test_a_small_compiled_step_waits_for_its_products_and_what_is_fused_between_them() -> None:
    """Of each of 12 blocks 4 products and an attention in forward and 9 in backward, and of the head one and two."""
    least = (12 * (5 + 9) + 3) * COMPILED_KERNELS * COMPILED_SECONDS
    for gpu, micro in (("b200", 1), ("b200", 2), ("h100", 1)):
        found = seconds(time_of(gpu=gpu, micro_batch_size=micro, compile=True), *KERNELS)
        assert found == pytest.approx(least, rel=0.03)
    eager = time_of(gpu="b200", micro_batch_size=1)
    assert seconds(eager, *KERNELS) > 3 * least


def test_communication_runs_while_the_device_waits_for_its_host() -> None:
    """Gathers of 16-bit weights over NVLink take less than the launches beside which they run."""
    alone = time_of(gpu="h100", micro_batch_size=1)
    shared = time_of(gpu="h100", micro_batch_size=1, parallel={"data": 8, "sharding": "fsdp"})
    assert seconds(shared, "communication") < 0.2 * seconds(alone, "host")


def test_hooks_of_checkpoints_take_the_hosts_time_but_for_reentrant_ones() -> None:
    """GPT-2's 12 blocks launch 20 to 45 kernels each in forward, which are launched again."""
    keys = {"gpu": "b200", "micro_batch_size": 2, "activation_checkpointing": "full"}
    none, hooked = (seconds(time_of(**{**keys, "checkpoint_reentrant": one}), *KERNELS) for one in (True, False))
    assert 12 * 20 * HOOK_SECONDS < hooked - none < 12 * 45 * HOOK_SECONDS
    large = {**keys, "micro_batch_size": 64, "sequence_length": 1024, "gpu": "a100"}
    assert time_of(**large, checkpoint_reentrant=False).shares["host"] == 0


@pytest.mark.plain
def test_a_backward_in_python_takes_as_long_as_forward_and_casts_the_adapter() -> None:
    """Unsloth's: 14 casts more of the seven layers of a block, 18 us each in both directions."""
    keys = {
        "model": "llama-3.2-1b",
        "gpu": "b200",
        "micro_batch_size": 1,
        "sequence_length": 128,
        "activation_checkpointing": "none",
        "runtime": "unsloth",
    }
    wide, half = (fit(**keys, adapter={"kind": "lora", "rank": 16, "dtype": dtype}).time for dtype in ("fp32", "bf16"))
    assert wide is not None
    assert half is not None
    casts = 16 * 14 * 2 * HOST_SECONDS["forward"]  # of 16 blocks, in forward and in backward
    more = seconds(wide, *KERNELS) - seconds(half, *KERNELS)
    assert casts < more < 1.5 * casts  # gradients in fp32 are summed by kernels of their own
