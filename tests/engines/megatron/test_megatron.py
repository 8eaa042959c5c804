"""Megatron's layers, stages and buffers: rows of the library's own code, its schedules, and what must always hold.

The rows of `megatron_rows.json` are megatron-core 0.16.1 with its own modules, on tensors without
data, torch 2.13, with the fused kernels of a causal softmax and of `jit_fuser` taken as one operator each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.running import run
from tests.traces.mcore import FORM
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.replay.models.modules import CORE, Segment
from vramplan.replay.pipeline.parts import first_blocks
from vramplan.replay.pipeline.stages import Stage, blocks_of_parts, in_flight, moments_of, stages_of
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.model import ModelShape
from vramplan.values.parallel import DDP, DISTRIBUTED_OPTIMIZER, ZERO1, Sharded, Split

ROWS = json.loads((Path(__file__).parent / "megatron_rows.json").read_text())["rows"]
COUNT = 277
PRECISIONS = {"bf16": "mixed-bf16", "fp16": "mixed-fp16", "fp32": "fp32"}


def setup_of(row: dict[str, Any]) -> Setup:
    """The iteration of a row."""
    r = {**FORM, **row}
    heads, hidden, p = r["heads"], r["hidden"], r["dropout"]
    shape = ModelShape(
        name="row",
        family="vramplan.engines.megatron.model",
        published_family="gpt2",
        engine="megatron",
        transformers_model_type="gpt2",
        task="lm",
        layers=r["layers"],
        hidden_size=hidden,
        attention_heads=heads,
        key_value_heads=r["kv"] or heads,
        head_size=r["head_dim"] or hidden // heads,
        intermediate_size=r["ffn"] or 4 * hidden,
        vocabulary_size=r["vocab"],
        max_positions=r["max_pos"],
        tied_embeddings=r["tied"],
        positions="rope" if r["rope"] else "learned",
        activation="silu" if r["gated"] else "gelu_new",
        gated_mlp=r["gated"],
        qkv_bias=r["bias"] or r["qkv_bias"],
        output_bias=r["bias"],
        mlp_bias=r["bias"],
        embedding_dropout=p,
        attention_dropout=p,
        hidden_dropout=p,
        qk_norm=r["qk_norm"],
    )
    return Setup(
        model=shape,
        precision=PRECISIONS[r["dtype"]],
        sequence_length=r["seq"],
        attention="eager",
        segments=segments_of(r),
        optimizer="adam",
        optimizer_implementation="fused",
        accumulating=True,
        hold_outputs=False,
        fp32_gradients=True,
        split=Split(tensor=r["tp"], sequence_parallel=r["sp"]),
        stage=Stage(0, (r["layers"],), r["pre"], r["post"], 1),
    )


def segments_of(r: dict[str, Any]) -> tuple[Segment, ...]:
    """Full recomputation, uniform or of some blocks; that of the core; or none."""
    layers, size = r["layers"], r["n_recompute"]
    if r["recompute"] == "full" and r["method"] == "block":
        return (Segment(size, 1, True), Segment(1, layers - size, False))
    if r["recompute"] == "full":
        rest = (Segment(1, layers % size, True),) if layers % size else ()
        return (Segment(layers // size, size, True), *rest)
    return (Segment(1, layers, False, CORE if r["recompute"] == "selective" else None),)


@pytest.mark.sweep(6)
@pytest.mark.truth
@pytest.mark.parametrize("part", range(4))
def test_what_the_library_allocates(part: int) -> None:
    """Forward and backward of one micro-batch, to the byte; the optimizer's states were not there."""
    wrong = []
    for traced in ROWS[part::4]:
        row = traced["row"]
        micro = row.get("micro", FORM["micro"])
        record = replay(setup_of(row), batch=1 if micro == 1 else 2)
        apart = sum(one.at(micro) for one in record.states if one.category in ("master", "optimizer", "gradients"))
        peaks = record.peaks(micro)
        found = {
            "static_bytes": record.static_bytes(micro) - apart,
            "saved_bytes": record.saved_bytes(micro) + sent_bytes(row),
            **{
                f"{name}_bytes": peaks[name] - apart + traced["main_gradient_bytes"] + traced["other_bytes"]
                for name in ("forward", "backward")
            },
        }
        wrong += [(row, key, size, traced[key]) for key, size in found.items() if size != traced[key]]
    assert not wrong


def sent_bytes(row: dict[str, Any]) -> int:
    """The trace looks before a stage's output is freed, and ours after, when one element is left of it."""
    r = {**FORM, **row}
    if r["post"]:
        return 0
    return r["micro"] * r["seq"] // (r["tp"] if r["sp"] else 1) * r["hidden"] * 2 - 512


@pytest.mark.truth
def test_no_row_is_lost() -> None:
    assert len(ROWS) == COUNT


STATES = [  # weights, fp32 copies with the scalars beside them, gradients: of DistributedDataParallel and its optimizer
    ({"tp": 2, "layers": 1}, DISTRIBUTED_OPTIMIZER, 2, True, (2103296, 2103808, 4206080)),
    (
        {"tp": 2, "gated": True, "bias": False, "rope": True, "kv": 4, "tied": False},
        *(DISTRIBUTED_OPTIMIZER, 4, True, (3476992, 1739264, 6953984)),
    ),
    ({"tp": 2, "layers": 2}, DDP, 2, True, (2894848, 5789184, 5788672)),
    ({"tp": 2, "layers": 2, "dtype": "fp16"}, DDP, 2, False, (2894848, 5790208, 2894336)),
    ({"tp": 2, "layers": 2, "dtype": "fp16"}, DISTRIBUTED_OPTIMIZER, 2, False, (2894336, 2895872, 2894336)),
]


@pytest.mark.truth
@pytest.mark.parametrize(("row", "kind", "devices", "wide", "traced"), STATES)
def test_buffers_and_states_of_the_library(
    row: dict[str, Any], kind: str, devices: int, wide: bool, traced: tuple[int, int, int]
) -> None:
    setup = setup_of(row)._replace(sharding=Sharded(kind, devices), fp32_gradients=wide)
    record = replay(setup)
    sizes: dict[str, int] = {}
    for state in record.states:
        sizes[state.category] = sizes.get(state.category, 0) + state.at(2)
    scalars = sizes["optimizer"] - 2 * sizes["master"]
    assert (sizes["weights"], sizes["master"] + scalars, sizes["gradients"]) == traced


def test_16_bit_gradients_are_cast_for_the_step() -> None:
    """All at once before the optimizer steps (_copy_model_grads_to_main_grads); of a shared state its part alone."""
    setup = setup_of({"tp": 2, "layers": 2, "dtype": "fp16"})._replace(fp32_gradients=False)
    record = replay(setup)
    whole = record.peaks(2)["step"] - record.static_bytes(2)
    shared = replay(setup._replace(sharding=Sharded(DISTRIBUTED_OPTIMIZER, 2)))
    assert whole == sum(state.at(2) for state in record.states if state.category == "master")
    assert shared.peaks(2)["step"] - shared.static_bytes(2) < whole * 0.51  # half of it, each part rounded


SCHEDULES = [  # forward and backward of a stage of four, by the library's own schedule, without gradients and states
    ({}, 0, 34333184, 34454016),
    ({}, 1, 26159104, 26013696),
    ({}, 3, 13046272, 12625920),
    ({"recompute": "full"}, 0, 9888256, 11328000),
]
LOGGED_BYTES = 8 * 512  # of the last stage: what the micro-batches of a step leave for the log, not modelled


@pytest.mark.truth
@pytest.mark.parametrize(("row", "number", "forward", "backward"), SCHEDULES)
def test_stages_as_the_schedule_of_the_library_runs_them(
    row: dict[str, Any], number: int, forward: int, backward: int
) -> None:
    """forward_backward_pipelining_without_interleaving of eight micro-batches."""
    split = Split(tensor=2, pipeline=4, pipeline_split="blocks")
    setup = setup_of({"tp": 2, "seq": 256, "layers": 2, **row})
    record = replay(setup._replace(split=split, stage=stages_of(split, 8, 8)[number]))
    apart = sum(one.at(2) for one in record.states if one.category in ("master", "optimizer", "gradients"))
    peaks = record.peaks(2)
    logged = LOGGED_BYTES if number == 3 else 0
    assert (peaks["forward"] - apart + logged, peaks["backward"] - apart + logged) == (forward, backward)


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("split", "stage", "micro_batches", "expected"),
    [
        (Split(pipeline=4), 0, 8, 4),  # 1F1B: p - i, arXiv:2104.04473 section 2.2.1
        (Split(pipeline=4), 3, 8, 1),
        (Split(pipeline=4), 0, 2, 2),
        (Split(pipeline=4, schedule="gpipe"), 0, 8, 8),  # all of them, arXiv:1811.06965
        (Split(pipeline=4, schedule="interleaved", virtual=2), 0, 8, 11),  # 2 (p - 1) + (v - 1) p, and the newest
        (Split(pipeline=4, schedule="interleaved", virtual=2), 3, 8, 5),
        (Split(pipeline=4, schedule="interleaved", virtual=2, group=6), 0, 12, 13),  # (v - 1) times the group instead
    ],
)
def test_micro_batches_in_flight(split: Split, stage: int, micro_batches: int, expected: int) -> None:
    assert in_flight(split, stage, micro_batches) == expected


@pytest.mark.closed_form
def test_blocks_of_the_stages() -> None:
    assert blocks_of_parts(80, 10, counts_ends=False) == [8] * 10
    assert blocks_of_parts(70, 12, counts_ends=True) == [5, *[6] * 10, 5]  # BLOOM: 70 blocks and two ends over 12
    assert blocks_of_parts(10, 4, counts_ends=False) == [3, 3, 2, 2]


@pytest.mark.closed_form
def test_each_part_of_an_interleaved_device_has_its_own_blocks() -> None:
    """Six blocks over four devices of two parts, where both ends count as a block (Megatron's functional tests)."""
    split = Split(pipeline=4, schedule="interleaved", virtual=2, pipeline_split="embedding-and-head")
    stages = stages_of(split, 6, 8)
    assert [stage.parts for stage in stages] == [(0, 1), (1, 1), (1, 1), (1, 0)]
    setup = setup_of({"seq": 256, "layers": 1, "tied": False})
    first, *middle, last = [replay(setup._replace(split=split, stage=stage)).parameters for stage in stages]
    shape = setup.model
    rows = -(-shape.vocabulary_size // 128) * 128  # --make-vocab-size-divisible-by
    tables = (rows + shape.max_positions) * shape.hidden_size
    head = rows * shape.hidden_size + 2 * shape.hidden_size  # and the last norm
    assert middle == [2 * (first - tables)] * 2 == [2 * (last - head)] * 2


@pytest.mark.closed_form
def test_the_first_blocks_of_a_walk() -> None:
    """A part that is shorter than the longest one of its device: its last checkpoint ends early."""
    walk = (Segment(2, 3, True), Segment(1, 2, False))
    assert first_blocks(walk, 8) == walk
    assert first_blocks(walk, 7) == (Segment(2, 3, True), Segment(1, 1, False))
    assert first_blocks(walk, 4) == (Segment(1, 3, True), Segment(1, 1, True))
    assert first_blocks(walk, 0) == ()


@pytest.mark.closed_form
def test_groups_of_an_interleaved_schedule_are_those_of_megatrons_table() -> None:
    """PP2 N3M5 with VP2: the parts are 0 0 0 1 1 1 0 0 1 1 (megatron-core 0.16.1, pipeline_parallel/schedules.py).

    The last device begins backward after the (v - 1) times 3 passes of its warm-up and one more.
    """
    split = Split(pipeline=2, schedule="interleaved", virtual=2, group=3)
    order = [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    waiting, seen = [0, 0], []
    for number, part in enumerate(order):
        seen.append((part, tuple(waiting)))
        waiting[part] += 1
        if number >= 3:
            back = 1 - order[number - 3]
            waiting[back] -= 1
            seen.append((back, tuple(waiting)))
    assert [tuple(moment) for moment in moments_of(split, 1, 5)] == list(dict.fromkeys(seen))


@given(
    pipeline=st.integers(2, 6),
    virtual=st.integers(2, 4),
    groups=st.integers(1, 4),
    number=st.integers(0, 5),
    more=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_an_interleaved_schedule_never_has_more_in_flight_than_its_warm_up(
    pipeline: int, virtual: int, groups: int, number: int, more: int
) -> None:
    group = pipeline + more
    split, number = Split(pipeline=pipeline, schedule="interleaved", virtual=virtual, group=group), number % pipeline
    moments = moments_of(split, number, groups * group)
    most = max(sum(moment.waiting) + 1 for moment in moments)
    assert most == in_flight(split, number, groups * group)
    assert all(count >= 0 for moment in moments for count in moment.waiting)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Networks that a group of devices can share."""
    tensor = draw(st.sampled_from((1, 2, 4)))
    rope = draw(st.booleans())
    return {
        "layers": draw(st.integers(1, 6)),
        "heads": 16,
        "hidden": 64,
        "kv": draw(st.sampled_from((4, 16))) if rope else None,
        "rope": rope,
        "gated": rope,
        "bias": not rope,
        "tied": draw(st.booleans()),
        "tp": tensor,
        "sp": tensor > 1 and draw(st.booleans()),
        "recompute": draw(st.sampled_from((None, "full", "selective"))),
        "n_recompute": draw(st.integers(1, 2)),
        "dropout": draw(st.sampled_from((0.0, 0.1))),
        "dtype": draw(st.sampled_from(("bf16", "fp16", "fp32"))),
        "pre": draw(st.booleans()),
        "post": draw(st.booleans()),
        "seq": draw(st.sampled_from((64, 136))),
        "micro": draw(st.sampled_from((1, 2, 3, 5))),
    }


@given(row=rows())
@settings(max_examples=25, deadline=None)
def test_one_replay_stands_for_every_micro_batch_and_block(row: dict[str, Any]) -> None:
    micro, setup = row["micro"], setup_of(row)
    record = replay(setup, batch=1 if micro == 1 else 2)
    literal = replay(setup, batch=micro, direct=True)
    assert record.peaks(micro) == literal.peaks(micro)
    assert record.saved_bytes(micro) == literal.saved_bytes(micro)
    assert record.end_bytes(micro) == record.static_bytes(micro)


def test_the_answer_is_the_most_loaded_stage() -> None:
    given_job = job_of(parallel={"pipeline": 4}, gradient_accumulation_steps=8)
    from vramplan.answers.fit import answer

    result = answer(given_job)
    assert result.stages is not None
    assert len(result.stages) == 4
    assert result.peak.device_bytes == max(row.device_bytes for row in result.stages)
    assert [row.micro_batches_in_flight for row in result.stages] == [4, 3, 2, 1]
    assert sum(row.blocks for row in result.stages) == given_job.model.blocks


def test_a_pipeline_keeps_what_its_micro_batches_have_saved() -> None:
    """Beside the newest one each other in flight keeps what forward saved, as much as the replay of one says."""
    setup = setup_of({"tp": 2, "post": False})
    alone = replay(setup)
    stage = setup.stage
    assert stage is not None
    beside = replay(setup._replace(stage=stage._replace(in_flight=5)))
    assert beside.peak_bytes(2) - alone.peak_bytes(2) == 4 * alone.saved_bytes(2)


def job_of(**keys: Any) -> Any:
    """A job of a small network under Megatron."""
    base = {
        "model": {
            "name": "small",
            "family": "gpt2",
            "layers": 8,
            "hidden_size": 128,
            "attention_heads": 8,
            "intermediate_size": 512,
            "vocabulary_size": 1000,
            "max_positions": 256,
        },
        "gpu": {"name": "card", "memory": "8 GiB", "bf16": True},
        "sequence_length": 256,
        "micro_batch_size": 2,
        "activation_checkpointing": "none",
        "runtime": "megatron",
    }
    return build_job({**base, **keys})


@pytest.mark.closed_form
def test_autocast_has_weights_in_fp32_and_no_copy_of_them() -> None:
    """NeMo without megatron_amp_O2: 4 + 4 + 8 bytes of a weight, where a master copy makes 2 + 4 + 4 + 8."""
    from vramplan.answers.fit import answer

    found = (answer(job_of(precision=word)).components for word in ("mixed-bf16", "amp-bf16"))
    half, autocast = ({one.name: one.bytes for one in components} for components in found)
    sizes = [{part: found.get(part, 0) for part in ("weights", "master", "optimizer")} for found in (half, autocast)]
    assert sizes[1]["weights"] == pytest.approx(2 * sizes[0]["weights"], rel=1e-2)
    assert sizes[0]["master"] == pytest.approx(sizes[1]["weights"], rel=1e-2)
    assert sizes[1]["master"] == 0
    assert sizes[1]["optimizer"] == pytest.approx(sizes[0]["optimizer"], rel=1e-2)
    assert autocast["activations"] > half["activations"]  # norms and biased results are in fp32


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("model", "parameters"),
    [("starcoder2-7b", 7_173_923_840), ("gemma-7b", 8_537_680_896), ("qwen3-30b-a3b", 30_532_122_624)],
)
def test_other_families_have_as_many_weights_as_published(model: str, parameters: int) -> None:
    words = ("--attention", "flash", "--precision", "mixed-bf16", "--print", "parameters.total")
    ran = run("fit", "-m", model, "-g", "h100", "--runtime", "megatron", "--seq", "512", "--micro-batch", "1", *words)
    assert int(ran.out.replace(",", "")) == parameters


@pytest.mark.sweep
def test_126_blocks_are_8_stages_of_2_parts_with_embedding_and_head() -> None:
    words = ("-m", "llama-3.1-405b", "-g", "h100", "--runtime", "megatron", "--tensor", "8", "--pipeline", "8")
    words += ("--schedule", "interleaved:2", "--steps", "16", "--seq", "512", "--attention", "flash")
    ran = run("fit", *words, "--print", "job.parallel.pipeline_split")
    assert ran.out.strip() == "embedding-and-head", ran.err


def test_the_embedding_and_the_head_may_be_a_stage_each() -> None:
    """BLOOM was fine-tuned so: 70 blocks on 72 stages (bigscience, tr13-mtf)."""
    from vramplan.answers.fit import answer

    def split(blocks: int, **more: Any) -> dict[str, Any]:
        return {"pipeline": blocks + 2, "sharding": ZERO1, "data": 2, **more}

    blocks = job_of(parallel={"data": 2, "sharding": ZERO1}).model.blocks
    found = answer(job_of(parallel=split(blocks, pipeline_split="embedding-and-head")))
    assert [stage.blocks for stage in found.stages or ()] == [0, *[1] * blocks, 0]
    with pytest.raises(InputError, match=f"{blocks + 2} stages are more than the {blocks} blocks"):
        job_of(parallel=split(blocks))


def test_bloom_may_have_megatrons_own_buffers() -> None:
    """As under stage 0 of DeepSpeed, which shares no states; other ways of sharing are not Megatron-DeepSpeed's."""
    words = ("-m", "bloom-560m", "-g", "8xh100", "--runtime", "megatron", "--micro-batch", "1", "--tensor", "2")
    assert run("fit", *words, "--sharding", "ddp", "--print", "verdict").out.strip() == "fits"
    refused = run("fit", *words, "--sharding", "distributed-optimizer")
    assert "whose states are shared by zero1" in refused.err


@pytest.mark.parametrize(
    "keys",
    [
        {"parallel": {"tensor": 2, "sequence_parallel": True, "data": 2, "sharding": DISTRIBUTED_OPTIMIZER}},
        {"parallel": {"pipeline": 2, "schedule": "interleaved:2"}, "gradient_accumulation_steps": 4},
        {"parallel": {"pipeline": 5, "sharding": ZERO1, "data": 2, "pipeline_split": "embedding-and-head"}},
        {"parallel": {"tensor": 2, "data": 2}, "gradient_dtype": "bf16"},
        {"precision": "mixed-fp16", "parallel": {"tensor": 4}, "activation_checkpointing": "every:2"},
        {"parallel": {"tensor": 2, "data": 2, "sharding": ZERO1}, "activation_checkpointing": "full"},
    ],
)
def test_an_echoed_job_gives_the_same_answer(keys: dict[str, Any]) -> None:
    from vramplan.answers.fit import answer

    first = answer(job_of(**keys))
    again = answer(build_job(first.to_dict()["job"]))
    assert again.peak == first.peak
    assert again.components == first.components
    assert again.stages == first.stages


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--adapter dora", "adapter"),
        ("--packing --attention eager --seq 512", "packing"),
        ("--compile", "compile"),
        ("--precision pure-bf16", "precision"),
        ("--optimizer adafactor", "optimizer"),
        ("--checkpointing selective-op", "activation_checkpointing"),
        ("--tensor 3", "parallel.tensor"),
        ("--pipeline 4 --schedule gpipe", "gradient_accumulation_steps"),
        ("--pipeline 4 --schedule interleaved:5", "parallel.schedule"),
        ("--pipeline 4 --schedule interleaved:2 --microbatch-group-size 3", "parallel.microbatch_group_size"),
        ("--pipeline 4 --schedule 1f1b --microbatch-group-size 8", "parallel.microbatch_group_size"),
        ("--padding right", "padding"),
        ("--offload activations", "offload"),
        ("--all-stages", "--all-stages"),
        ("--gpus 2 --sharding zero1 --precision mixed-fp16 --reduce-bucket-size 1000", "parallel.reduce_bucket_size"),
        ("--gpus 2 --overlap-comm", "parallel.overlap_comm"),
    ],
)
def test_what_megatron_was_not_traced_with_is_refused(options: str, word: str) -> None:
    ran = run("fit", "--model", "gpt2-xl", "--gpu", "a100", "--runtime", "megatron", *options.split())
    assert ran.code == 2
    assert word in ran.err


def test_switches_that_say_what_deepspeed_does_by_itself_change_nothing() -> None:
    words = "--model gpt2 --gpu a100 --runtime megatron --gpus 2 --sharding zero1 --precision mixed-fp16 --seq 64"
    plain = run("fit", *words.split(), "--micro-batch", "1", "--format", "json").document
    said = "--reduce-bucket-size 500000000 --no-overlap-comm --contiguous-gradients --allgather-bucket-size 1000"
    assert (
        run("fit", *words.split(), *said.split(), "--micro-batch", "1", "--format", "json").document["peak"]
        == plain["peak"]
    )


@pytest.mark.parametrize("command", ["explain", "checkpoints"])
def test_what_needs_blocks_of_one_device_is_refused(command: str) -> None:
    ran = run(command, "--model", "gpt2", "--gpu", "a100", "--pipeline", "2", "--steps", "4")
    assert ran.code == 2
    assert "runtime" in ran.err


def test_timeline_draws_the_most_loaded_stage() -> None:
    ran = run("timeline", "--model", "gpt2", "--gpu", "a100", "--pipeline", "2", "--steps", "4", "--format", "json")
    assert ran.code == 0


def test_without_flash_it_is_megatrons_own_core() -> None:
    ran = run("fit", "--model", "gpt2", "--gpu", "v100", "--runtime", "megatron", "--print", "job.attention")
    assert ran.out.strip() == "eager"


def test_a_split_asks_for_megatron() -> None:
    ran = run("fit", "--model", "gpt2-xl", "--gpu", "a100", "--tensor", "5", "--format", "json")
    document = json.loads(ran.out)
    assert document["job"]["runtime"] == "megatron"
    assert document["job"]["parallel"]["tensor"] == 5
    assert document["stages"] is None
    assert document["parameters"]["total"] == 1_557_611_200
