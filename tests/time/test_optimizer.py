"""The step of an optimizer: kernels that are shorter than their launches, and the products of Muon."""

from __future__ import annotations

import pytest

from vramplan import fit
from vramplan.planner.time.fitted import HOST_SECONDS

pytestmark = pytest.mark.closed_form

BASE = {"gpu": "h100", "micro_batch_size": 2, "gradient_accumulation_steps": 1, "activation_checkpointing": "none"}


def step_seconds(**keys: object) -> float:
    time = fit(**{**BASE, **keys}).time
    assert time is not None
    return time.shares["optimizer"] * time.step_seconds


def test_a_loop_over_tensors_launches_a_kernel_for_each() -> None:
    """GPT-2 has 148 tensors, of which 98 are vectors, whose 4 bytes an element take no time beside a launch."""
    keys = {"model": "gpt2", "sequence_length": 512, "optimizer": "sgd"}
    each = {how: step_seconds(**keys, optimizer_implementation=how) for how in ("foreach", "for-loop")}
    waiting = each["for-loop"] - each["foreach"]
    each_launch = HOST_SECONDS["forward"]
    assert 98 * each_launch * 0.9 < waiting < 148 * each_launch


def test_devices_of_fsdp1_step_the_weights_of_which_they_have_a_part() -> None:
    """GPT-2 has 13 units of 11.4 tensors on average: cut in 8 pieces they meet 18.4 times, 2.3 on each device."""
    keys = {"model": "gpt2", "sequence_length": 512, "optimizer": "sgd"}

    def waiting(version: int) -> float:
        shared = {"parallel": {"data": 8, "sharding": "fsdp", "fsdp_version": version}}
        each = {how: step_seconds(**keys, **shared, optimizer_implementation=how) for how in ("foreach", "for-loop")}
        return each["for-loop"] - each["foreach"]

    fewer = waiting(1) / waiting(2) * 11.4 / 2.3
    assert 0.8 < fewer <= 1  # the bytes of a piece of the embedding take a part of the time of its launch


def test_muon_multiplies_each_matrix_with_itself_five_times() -> None:
    """Of a matrix of s rows and l columns 5 (4 s s l + 2 s s s) operations, at the rate of products."""
    keys = {"model": "llama-3.2-1b", "sequence_length": 1024}
    hidden, wide, heads = 2048, 8192, 512
    sizes = [(hidden, hidden)] * 2 + [(heads, hidden)] * 2 + [(hidden, wide)] * 3
    flops = 16 * sum(5 * (4 * short**2 * long + 2 * short**3) for short, long in sizes)
    best = 0.803 * 0.765 * 989e12  # of an H100: the share of the best product, and of products in a step
    alone = step_seconds(**keys, optimizer="muon")
    bytes_alone = step_seconds(**keys, optimizer="adamw", optimizer_implementation="foreach")
    assert flops / best < alone < 1.5 * flops / best + bytes_alone
    among = {"parallel": {"data": 8, "sharding": "fsdp"}}
    assert step_seconds(**keys, **among, optimizer="muon") == pytest.approx(alone / 8, rel=0.1)


def test_what_the_kernels_of_a_step_move_is_their_reads_and_writes() -> None:
    """Of a model whose bytes outlast every launch: 13 tensors of Adagrad's foreach step, 5 of its fused one."""
    keys = {"model": "llama-3.2-1b", "sequence_length": 512, "optimizer": "adagrad", "runtime": "pytorch"}
    fused = step_seconds(**keys, optimizer_implementation="fused")
    assert step_seconds(**keys, optimizer_implementation="foreach") / fused == pytest.approx(13 / 5, rel=0.02)
    looped = step_seconds(**keys, optimizer_implementation="for-loop") / fused
    assert 11 / 5 < looped < 13 / 5  # two kernels less of all weights, and a launch for each kernel of a vector


def test_the_states_of_grokadamw_cross_the_link_of_the_host_twice() -> None:
    """Three tensors of each weight, each way, over half of what the PCIe 5.0 of an H100's machine has at most."""
    keys = {"model": "llama-3.2-1b", "sequence_length": 512, "optimizer": "grokadamw", "precision": "pure-bf16"}
    moved = 2 * 3 * 2 * 1_235_814_400
    assert moved / 64e9 < step_seconds(**keys) < moved / 20e9


def test_a_scaler_reads_and_writes_every_gradient() -> None:
    """Of 1.24 billion gradients in fp32, at what kernels reach of 3.35 TB/s."""
    keys = {"model": "llama-3.2-1b", "sequence_length": 512, "precision": "amp-fp16", "weight_dtype": "fp32"}
    scaled = step_seconds(**keys, grad_scaler=True) - step_seconds(**keys)
    assert scaled == pytest.approx(2 * 4 * 1.2358e9 / (0.62 * 3.35e12), rel=0.01)
