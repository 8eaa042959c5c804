"""How fast a device is taken to be, and what a program changes."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan import fit
from vramplan.answers.roofline import roofline
from vramplan.catalog.gpus import find_gpu
from vramplan.job import build_any_job
from vramplan.planner.decision import decide
from vramplan.planner.time.behaviour import CUDNN, FLASH1, FLASH2
from vramplan.planner.time.optimizer import step_bytes
from vramplan.planner.time.rates import best_product, rates_of
from vramplan.replay.kernels import ATTENTION, BYTES, DEQUANTIZED, NOTHING, PRODUCT, Kernel
from vramplan.values.job import ResolvedJob

LORA = {
    "model": "llama-3.2-1b",
    "gpu": "a100",
    "micro_batch_size": 2,
    "sequence_length": 1024,
    "adapter": {"kind": "lora", "rank": 8},
    "precision": "pure-bf16",
}


def job(**keys: object) -> ResolvedJob:
    found = build_any_job({"model": "gpt2", **keys})
    assert isinstance(found, ResolvedJob)
    return found


@pytest.mark.contract
@pytest.mark.parametrize(
    ("precision", "gpu", "peak"),
    [
        ("fp32", "a100", 19.5e12),
        ("tf32", "a100", 156e12),
        ("amp-bf16", "a100", 312e12),
        ("amp-fp16", "v100", 125e12),
        ("tf32", "v100", 15.7e12),  # which has none
        ("fp32", "h100", 67e12),
        ("fp8", "h20", 296e12),
    ],
)
def test_the_peak_is_that_of_the_products(precision: str, gpu: str, peak: float) -> None:
    found = rates_of(job(model="llama-3.2-1b", gpu=gpu, precision=precision))  # fp8 has no layers for GPT-2's
    assert found is not None
    assert found.peak_flop_per_s == pytest.approx(peak)
    assert found.product_flop_per_s < peak


@pytest.mark.contract
def test_a_measured_product_is_taken_before_a_general_one() -> None:
    assert best_product(find_gpu("a100").gpu()) == pytest.approx(0.869, abs=1e-3)
    assert best_product(find_gpu("h100").gpu()) == pytest.approx(0.803, abs=1e-3)
    assert best_product(find_gpu("a10").gpu()) != best_product(find_gpu("a100").gpu())


@pytest.mark.contract
def test_without_a_peak_there_is_no_time_and_the_answer_says_what_is_missing() -> None:
    found = fit(model="gpt2", gpu={"name": "mine", "memory": "24 GiB", "memory_bandwidth": "1 TB/s"})
    assert found.time is None
    assert found.to_dict()["time"] is None
    assert [one.value for one in found.assumptions if one.key == "gpu.bf16_rate"] == [None]
    given = {"name": "mine", "memory": "24 GiB", "memory_bandwidth": "1 TB/s", "bf16_rate": "100 TFLOP/s"}
    assert fit(model="gpt2", gpu=given).time is not None


@pytest.mark.contract
def test_a_resolved_job_has_the_same_time() -> None:
    for keys in (
        {"model": "gpt2", "gpu": "a100", "precision": "tf32"},
        {
            "model": "llama-3.2-1b",
            "gpu": "a100",
            "parallel": {"data": 16, "sharding": "fsdp", "node_bandwidth": "100Gbps"},
        },
    ):
        first = fit(**keys)
        again = fit(**dict(first.job))
        assert again.time == first.time


@pytest.mark.sweep
@pytest.mark.closed_form
def test_more_of_what_takes_time_takes_longer() -> None:
    def seconds(**keys: object) -> float:
        time = fit(
            **{
                "model": "gpt2-medium",
                "gpu": "a100",
                "sequence_length": 1024,
                "micro_batch_size": 4,
                "gradient_accumulation_steps": 1,
                **keys,
            }
        ).time
        assert time is not None
        return time.step_seconds

    plain = seconds()
    assert seconds(micro_batch_size=8) > plain
    assert seconds(sequence_length=512) < plain
    assert seconds(activation_checkpointing="full") > plain
    assert seconds(gpu="h100") < plain
    assert seconds(precision="fp32") > plain
    accumulated = seconds(gradient_accumulation_steps=4)
    assert 3 * plain < accumulated < 4.2 * plain
    shared = {"data": 16, "sharding": "fsdp"}
    assert seconds(parallel={**shared, "node_bandwidth": "10 GB/s"}) > seconds(parallel=shared)


@pytest.mark.closed_form
def test_half_of_the_last_wave_of_a_product_is_idle() -> None:
    rates = rates_of(job(gpu="a100", precision="amp-bf16"))
    assert rates is not None
    kernel = Kernel("mm", "forward", PRODUCT, 0, "bfloat16", 0, 1, NOTHING, NOTHING, NOTHING, NOTHING, (), 1)
    wave = 108 * 256 * 128  # elements of the result that 108 multiprocessors make at once
    size = 4096
    flops, written = 2 * size**3, 2 * size * size
    seconds = flops / rates.product_flop_per_s
    assert rates.seconds(kernel, flops, 0, written) == pytest.approx(seconds * (1 + wave / 2 / size**2))
    both = kernel._replace(direction="backward", launches=2)
    assert rates.seconds(both, 2 * flops, 0, 2 * written) == pytest.approx(2 * rates.seconds(kernel, flops, 0, written))
    single = rates_of(job(gpu="a100", precision="fp32"))
    assert single is not None
    assert single.idle(kernel._replace(dtype="float32"), written) == 1  # no tensor cores, whose tiles are large


@pytest.mark.closed_form
def test_a_thin_product_has_small_tiles_at_half_of_the_rate() -> None:
    """As that of LoRA, whose result has a column for each of its ranks."""
    rates = rates_of(job(gpu="a100", precision="amp-bf16"))
    assert rates is not None
    kernel = Kernel("mm", "forward", PRODUCT, 0, "bfloat16", 0, 1, NOTHING, NOTHING, NOTHING, NOTHING, (), 1)
    rows, rank = 2048, 8
    large, small = (1 + 108 * tile / 2 / (rows * rank) for tile in (256 * 128, 64 * 64))
    assert rates.idle(kernel, 2 * rows * rank) == pytest.approx(2 * small)
    assert 2 * small < large / 3


@pytest.mark.closed_form
def test_cards_of_geforce_alone_keep_a_clock_above_the_data_sheet() -> None:
    boosted, plain = ("rtx-3050-8gb", "rtx-4080", "rtx-2070-super"), ("a40", "l40", "rtx-a5000", "rtx-6000-ada")
    assert {best_product(find_gpu(name).gpu()) for name in boosted} == {1.08}
    assert {best_product(find_gpu(name).gpu()) for name in plain} == {0.8}


@pytest.mark.truth
def test_products_that_were_measured_tell_cards_with_one_chip_apart() -> None:
    """The RTX 4090 and the L4 have tensor cores of one generation, and the L4 has 72 W for them."""
    measured = {name: best_product(find_gpu(name).gpu()) for name in ("rtx-4090", "rtx-3090", "h100-pcie", "l4")}
    assert min(measured["rtx-4090"], measured["rtx-3090"]) > 1
    assert measured["l4"] < 0.5 < measured["h100-pcie"] < 0.7
    rates = rates_of(job(gpu="p100", precision="amp-fp16"))
    assert rates is not None  # its products in fp16 sum in fp32, at half of the rate of its data sheet at best
    assert rates.products["float16"] == pytest.approx(rates.products["float32"], rel=0.05)


@pytest.mark.closed_form
def test_blackwell_for_games_attends_with_the_instructions_of_ampere() -> None:
    """Compute capability 12 has neither wgmma nor tcgen05: kernels of FlashAttention-2 lose nothing there."""
    kernel = Kernel(
        "flash_attention", "forward", ATTENTION, 0, "bfloat16", 128, 1, NOTHING, NOTHING, NOTHING, NOTHING, (), 1
    )

    def share(gpu: str) -> float:
        rates = rates_of(job(gpu=gpu, precision="amp-bf16"))
        assert rates is not None
        return rates.attention(kernel) / rates.half_flop_per_s

    assert share("rtx-5090") == share("rtx-pro-6000") == pytest.approx(share("rtx-4090"))
    assert share("b200") == pytest.approx(0.51 * share("rtx-5090"))


@pytest.mark.closed_form
def test_pytorch_before_2_2_attends_with_the_first_flash_attention() -> None:
    """Forward and backward of heads of 64 elements reach 35 and 30 % of an A100, the second's 61 and 54 %."""
    keys = {"gpu": "a100", "precision": "amp-bf16", "micro_batch_size": 12, "sequence_length": 1024}
    old, new = (rates_of(job(**keys, pytorch_version=version)) for version in ("2.0", "2.2"))
    assert old is not None
    assert new is not None
    assert (old.flash, new.flash) == (FLASH1, FLASH2)


@pytest.mark.closed_form
def test_products_in_fp32_reach_less_where_integers_share_the_lanes() -> None:
    shares = {}
    for gpu in ("v100", "a100", "rtx-3090", "rtx-4090"):
        rates = rates_of(job(gpu=gpu, precision="fp32"))
        assert rates is not None
        shares[gpu] = rates.product_flop_per_s / rates.peak_flop_per_s
    assert shares["v100"] == pytest.approx(shares["a100"])
    assert shares["rtx-3090"] == pytest.approx(shares["rtx-4090"])
    assert shares["rtx-3090"] < 0.9 * shares["v100"]


@pytest.mark.closed_form
def test_megatron_attends_with_the_kernel_that_transformer_engine_prefers() -> None:
    def kernel(gpu: str) -> str:
        rates = rates_of(job(gpu=gpu, runtime="megatron", precision="mixed-bf16"))
        assert rates is not None
        return rates.flash

    assert [kernel(gpu) for gpu in ("a100", "h100", "b200")] == [FLASH2, CUDNN, CUDNN]


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("precision", "gpu", "turned"),
    # in fp32 convolutions run on tensor cores too, where there are some for TF32: cudnn.allow_tf32 is true by default
    [("amp-fp16", "a100", True), ("tf32", "a100", True), ("fp32", "a100", True), ("fp32", "v100", False)],
)
def test_images_with_their_channels_first_are_turned_around_each_convolution(
    precision: str, gpu: str, turned: bool
) -> None:
    keys = {"model": "resnet-50", "gpu": gpu, "precision": precision, "micro_batch_size": 128}
    first, last = fit(**keys), fit(**keys, channels_last=True)
    assert first.peak.allocated_bytes == last.peak.allocated_bytes
    assert first.peak.reserved_bytes >= last.peak.reserved_bytes  # less by the copies
    assert (first.peak == last.peak) is not turned
    assert first.time is not None
    assert last.time is not None
    assert (first.time.step_seconds > 1.2 * last.time.step_seconds) == turned
    assert turned or first.time == last.time
    with pytest.raises(Exception, match="takes no images"):
        fit(model="gpt2", gpu="a100", channels_last=True)


@pytest.mark.closed_form
def test_products_over_an_odd_vocabulary_have_slow_kernels_where_they_were_measured() -> None:
    def seconds(vocabulary: int, gpu: str) -> float:
        shape = {
            "family": "gpt2",
            "layers": 1,
            "hidden_size": 768,
            "attention_heads": 12,
            "vocabulary_size": vocabulary,
        }
        keys = {"micro_batch_size": 8, "gradient_accumulation_steps": 1, "sequence_length": 1024}
        time = fit(model=shape, gpu=gpu, precision="pure-bf16", activation_checkpointing="none", **keys).time
        assert time is not None
        return time.step_seconds

    assert seconds(50257, "h100") > seconds(50258, "h100") > seconds(50304, "h100")
    assert seconds(50257, "a100") > 1.1 * seconds(50304, "a100")
    assert abs(seconds(50257, "b200") / seconds(50304, "b200") - 1) < 0.01


@pytest.mark.closed_form
def test_batch_norm_in_bf16_is_pytorchs_own_and_slow() -> None:
    def seconds(precision: str, **keys: Any) -> float:
        time = fit(model="resnet-50", gpu="h100", precision=precision, micro_batch_size=64, **keys).time
        assert time is not None
        return time.step_seconds

    assert seconds("amp-bf16") > 1.3 * seconds("amp-fp16")
    last = {"channels_last": True}
    assert seconds("amp-bf16", **last) < 1.1 * seconds("amp-fp16", **last)


@pytest.mark.closed_form
def test_numbers_are_made_of_4_bit_codes_as_fast_as_a_card_computes_or_writes() -> None:
    def seconds(gpu: str, **keys: Any) -> float:
        rates = rates_of(job(gpu=gpu, precision="pure-bf16", **keys))
        assert rates is not None
        kernel = Kernel(DEQUANTIZED, "forward", BYTES, 0, "bfloat16", 0, 1, NOTHING, NOTHING, NOTHING, NOTHING, (), 1)
        return rates.seconds(kernel, 0, 2 * 2 * numbers, 2 * numbers)  # read in the type that they had, and written

    numbers = 11008 * 4096
    # 19.5 TFLOP/s in fp32 beside 2.0 TB/s; 82.6 TFLOP/s beside 1.0 TB/s
    assert seconds("a100-80gb") == pytest.approx(numbers * 74 / 19.5e12)
    assert seconds("rtx-4090") > numbers * 2.5 / 1.008e12
    old = {"adapter": {"kind": "lora"}, "quantization": "nf4", "model": "llama-3.2-1b"}
    assert seconds("a100-80gb", **old, bitsandbytes="0.43.3") == pytest.approx(1.7 * seconds("a100-80gb"))
    assert seconds("a100-80gb", **old, bitsandbytes="0.50.2") == pytest.approx(seconds("a100-80gb"))


@pytest.mark.closed_form
@pytest.mark.parametrize("quantization", ["nf4", "nf4-double", "int8"])
def test_weights_in_few_bits_take_longer_than_in_sixteen(quantization: str) -> None:
    """As nothing else changes: the products are the same, and what makes their operands comes besides."""
    plain, quantized = (fit(**LORA, **more).time for more in ({}, {"quantization": quantization}))
    assert plain is not None
    assert quantized is not None
    assert quantized.step_seconds > 1.02 * plain.step_seconds
    assert quantized.model_flops == plain.model_flops


@pytest.mark.sweep
@pytest.mark.closed_form
def test_compiled_float8_multiplies_twice_as_fast_in_the_blocks() -> None:
    keys = {"model": "llama-3.1-8b", "gpu": "h100", "runtime": "torchtitan", "compile": True, "micro_batch_size": 1}
    shared = {"data": 8, "sharding": "fsdp"}
    half, eight = (fit(**keys, precision=word, parallel=shared).time for word in ("fsdp-bf16", "fsdp-fp8"))
    assert half is not None
    assert eight is not None
    products = half.shares["products"] * half.step_seconds, eight.shares["products"] * eight.step_seconds
    # each operand is read twice and written once in 8 bits
    assert eight.shares["bytes"] * eight.step_seconds > half.shares["bytes"] * half.step_seconds
    assert products[0] / 2 < products[1] < products[0] / 1.6  # all but the last layer
    assert eight.model_flops == half.model_flops


@pytest.mark.closed_form
def test_unsloth_makes_numbers_of_4_bit_codes_before_each_product() -> None:
    """Each matrix is needed forward and backward, and the first pass is repeated under its checkpoints."""
    keys = {**LORA, "model": "llama-3.1-8b", "runtime": "unsloth"}
    plain, quantized = (fit(**keys, **more).time for more in ({}, {"quantization": "nf4"}))
    assert plain is not None
    assert quantized is not None
    numbers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    least = 2 * numbers * 74 / 19.5e12
    assert quantized.step_seconds - plain.step_seconds >= least


@pytest.mark.closed_form
def test_kernels_of_unsloth_move_less_than_the_operators_of_transformers() -> None:
    adapter = {"kind": "lora", "targets": ["all-linear"], "rank": 16}  # each has defaults of its own
    theirs, ours = (fit(**{**LORA, "adapter": adapter}, runtime=name).time for name in ("transformers", "unsloth"))
    assert theirs is not None
    assert ours is not None
    assert ours.shares["bytes"] * ours.step_seconds < theirs.shares["bytes"] * theirs.step_seconds
    # its functions make the gradient of the first block's input, which nobody needs, and one thin product twice
    assert theirs.model_flops < ours.model_flops < 1.01 * theirs.model_flops


@pytest.mark.plain
@pytest.mark.truth
def test_tinyllama_was_trained_at_24_000_tokens_per_second_and_56_percent() -> None:
    """On 16 A100 of 40 GB, micro-batches of 16,384 tokens, with kernels that join point-wise operators.

    Source: jzhang38/TinyLlama, README.md: a throughput of 24 k tokens per second and A100-40G, 56 % MFU.
    """
    time = fit(
        model="tinyllama-1.1b",
        gpu="a100-40gb",
        runtime="litgpt",
        sequence_length=2048,
        micro_batch_size=8,
        gradient_accumulation_steps=8,
        activation_checkpointing="none",
        parallel={"data": 16, "sharding": "fsdp"},
    ).time
    assert time is not None
    assert time.tokens_per_second_per_device == pytest.approx(24_000, rel=0.1)
    assert time.mfu_percent == pytest.approx(56, rel=0.1)


@pytest.mark.closed_form
@pytest.mark.parametrize(("head_size", "tensor_cores"), [(64, True), (104, True), (108, False), (150, False)])
def test_heads_that_begin_at_no_multiple_of_sixteen_bytes_have_no_tensor_cores(
    head_size: int, tensor_cores: bool
) -> None:
    shape = {"family": "bloom", "layers": 2, "hidden_size": 8 * head_size, "attention_heads": 8}
    shape["vocabulary_size"] = 1024
    keys = {"gpu": "a100", "precision": "amp-bf16", "attention": "eager", "micro_batch_size": 8}
    made = job(**keys, model=shape, sequence_length=1024)
    batched = [one for one in roofline(made).kernels if one.operator in ("bmm", "baddbmm")]
    fastest = max(one.flop_per_s or 0.0 for one in batched)
    plain = 19.5e12 * 0.9 * 0.83  # the fp32 rate of the data sheet, and what products reach of it
    assert (fastest > 2 * plain) == tensor_cores
    assert tensor_cores or fastest <= plain * 1.001


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("optimizer", "implementation", "moved"),
    [
        ("adamw", "fused", 28),  # weight, gradient and two moments read, all but the gradient written
        ("sgd", "foreach", 12),
        ("sgd-momentum", "foreach", 8 + 12 + 12),  # mul_ and add_ of the moment, add_ of the weight
        ("adafactor", "for-loop", 76),
        ("adalomo", "for-loop", 84),
        ("lion", "fused", 20),  # weight and moment twice, the gradient once
        ("lion-paged", "fused", 20),  # in managed memory, which stays on the GPU
        ("ademamix", "fused", 36),
        ("ademamix-8bit", "fused", 8 + 4 + 2 * 3 * (1 + 4 / 256)),
    ],
)
def test_bytes_that_an_optimizer_moves_for_each_parameter_in_fp32(
    optimizer: str, implementation: str, moved: int
) -> None:
    keys = {"optimizer": optimizer, "optimizer_implementation": implementation}
    keys |= {
        "runtime": "pytorch",
        "gpu": "a100",
        "precision": "fp32",
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
    }
    decision = decide(job(**keys), whole_ladder=False)
    stepping, clipping = step_bytes(decision.judged, decision.record)
    assert (stepping, clipping) == (pytest.approx(moved * 124_439_808, rel=0.01), 0)
