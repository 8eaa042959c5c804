"""The answer of one screen: its height and width, its words for each training program, and figures that add up."""

from __future__ import annotations

import io
import re
from typing import Any
from unittest import mock

import pytest
from hypothesis import example as pinned
from hypothesis import given, settings
from hypothesis import strategies as st

import vramplan
from tests.cli.draws import jobs
from tests.cli.running import run
from vramplan.answers.session import opened
from vramplan.answers.settings import DEFAULT, SettingsBehaviour, SettingsPlan
from vramplan.engines import FOLDERS, behaviour_of
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.report.lines import BLOCK, OF_SIXTEEN, print_rich, to_plain, width_of
from vramplan.report.summary import AT_STAKE, MOST_LINES, REMEDIES, render_opening, render_summary
from vramplan.results import TIGHT, Component, FitResult, Remedy
from vramplan.values.job import Assumption

WIDTHS = (60, 80, 120)
LARGE = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "sequence_length": 2048}
PARALLEL: dict[str, dict[str, Any]] = {
    "ddp": {"data": 8, "sharding": "ddp"},
    "fsdp": {"data": 8, "sharding": "fsdp"},
    "zero3": {"data": 4, "sharding": "zero3"},
}


def plain(result: FitResult, width: int = 80) -> str:
    return to_plain(render_summary(result, width=width))


def check_screen(result: FitResult, widths: tuple[int, ...] = WIDTHS) -> None:
    """At most a screen of 16 lines, no line wider than it may be, the verdict in the first, and the same opening."""
    for width in widths:
        lines = render_summary(result, width=width)
        assert len(lines) <= MOST_LINES, (width, to_plain(lines))
        opening = render_opening(result._replace(remedies=None), width=width)  # which a terminal shows before the rest
        assert lines[: len(opening)] == opening
        assert max(map(width_of, lines)) <= min(width, 100), (width, to_plain(lines))
        text = to_plain(lines)
        assert text.isascii()
        assert not re.search(r" $", text, re.MULTILINE)
        assert text.split()[0] == {"fits": "FITS", "tight": "TIGHT", "does-not-fit": "DOES"}[result.verdict]
        assert " GiB per GPU" in text


def test_every_example_is_one_screen(example: FitResult) -> None:
    check_screen(example, tuple(range(40, 201, 4)))


@pytest.mark.sweep
@pytest.mark.contract
def test_what_makes_most_of_the_memory_so_large_is_said_where_it_does_not_fit() -> None:
    keys: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "rtx-4090", "quantization": "nf4", "micro_batch_size": 1}
    keys |= {"adapter": {"kind": "lora"}, "sequence_length": 512}
    result = vramplan.fit(**keys)
    (said,) = result.decisive
    assert said.startswith("nf4 is of linear layers, which experts are not in Transformers 5: they stay in 16 bits")
    assert said in result.warnings
    check_screen(result, (60, 80, 100))
    text = plain(result)
    assert said in " ".join(text.split())
    assert text.count("fits") == REMEDIES
    roomy = vramplan.fit(**keys | {"gpu": "h200"})
    assert (roomy.verdict, roomy.decisive) == ("fits", ())
    assert roomy.warnings == result.warnings[: len(roomy.warnings)]


@pytest.mark.sweep(24)
@settings(max_examples=16)
@given(jobs())
def test_a_random_job_is_one_screen(job: dict[str, Any]) -> None:
    check_screen(vramplan.fit(**job))


@st.composite
def large_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Jobs of real models under every training program, shared between GPUs, with what makes an answer long."""
    job: dict[str, Any] = {
        "model": draw(st.sampled_from(["gpt2", "gpt2-xl", "llama-3.2-1b", "t5-base", "resnet-50", "vit-b-16"])),
        "gpu": draw(st.sampled_from(["v100", "a100-80gb", "rtx-4090", "t4"])),
        "runtime": draw(st.sampled_from([*FOLDERS])),
    }
    if draw(st.booleans()):
        job["parallel"] = draw(st.sampled_from([*PARALLEL.values()]))
    if draw(st.booleans()):
        job["adapter"] = {"kind": "lora"}
    if draw(st.booleans()):
        job["quantization"] = "nf4"
    if draw(st.booleans()):
        job |= {"base_batch_size": 256, "base_learning_rate": 1e-4}
    if draw(st.booleans()):
        job["activation_checkpointing"] = draw(st.sampled_from(["none", "full", "sqrt", "layers:[[0,1],[3,3]]"]))
    if draw(st.booleans()):
        job["micro_batch_size"] = draw(st.sampled_from([1, 7, 64]))
    return job


@pytest.mark.sweep(24)
@settings(max_examples=20)
@given(large_jobs())
@pinned({**LARGE, "gpu": "a100-80gb", "parallel": {"data": 8, "sharding": "fsdp"}})
@pinned({**LARGE, "parallel": {"data": 8, "tensor": 8, "pipeline": 2}, "runtime": "megatron", "model": "llama-3-70b"})
@pinned({**LARGE, "gpu": "a10g", "parallel": {"data": 4, "sharding": "zero3"}, "offload": ["optimizer", "parameters"]})
def test_a_job_of_any_program_is_one_screen(job: dict[str, Any]) -> None:
    try:
        result = vramplan.fit(**job)
    except InputError:
        return  # the program has no such run
    check_screen(result)


def test_long_names_are_shortened_and_the_figures_stay(examples: dict[str, FitResult]) -> None:
    result = examples["fits"]
    model, gpu = {"name": "a-very-long-name-" * 9}, {"name": "another-" * 20}
    check_screen(result._replace(job={**result.job, "model": model, "gpu": gpu}), tuple(range(40, 130)))


def test_parts_and_what_is_free_add_up(example: FitResult) -> None:
    text = plain(example)
    needed, usable = map(float, re.findall(r"([\d.]+) of ([\d.]+) GiB per GPU", text)[0])
    legend = re.findall(r"[A-Za-z0-9#] [A-Za-z0-9_ -]+? (\d+\.\d\d)(?=  |$)", text.split("] ")[0], re.MULTILINE)
    assert sum(map(float, legend)) <= needed + 0.01
    free = re.findall(r"([\d.]+) GiB (?:free|too much)", text)[0]
    assert abs(abs(usable - needed) - float(free)) < 0.011


@pytest.mark.contract
def test_the_first_lines_say_verdict_weights_and_memory(examples: dict[str, FitResult]) -> None:
    result = examples["fits"]._replace(weight_dtype="fp32")
    lines = plain(result).splitlines()
    assert lines[0] == "FITS  gpt2-xl on v100, amp-fp16, fp32 weights, 1024 tokens"
    assert lines[1] == "  memory  29.58 of 31.74 GiB per GPU, range 27.84 to 31.21, 2.16 GiB free"


SETTINGS = {
    "transformers": "per_device_train_batch_size 2, gradient_accumulation_steps 4, gradient_checkpointing True",
    "pytorch": "DataLoader batch_size 2, backward() calls per optimizer.step() 4, "
    "model.gradient_checkpointing_enable()",
    "deepspeed": "train_micro_batch_size_per_gpu 2, gradient_accumulation_steps 4, "
    "model.gradient_checkpointing_enable()",
    "torchtitan": '[training] local_batch_size 2, [training] global_batch_size 16, [activation_checkpoint] mode "full"',
    "torchtune": "batch_size 2, gradient_accumulation_steps 4, enable_activation_checkpointing True",
    "litgpt": "train.micro_batch_size 2, train.global_batch_size 16, "
    "FSDPStrategy activation_checkpointing_policy {Block}",
    "megatron": "--micro-batch-size 2, --global-batch-size 16, --recompute-granularity full, "
    "--recompute-method uniform, --recompute-num-layers 1",
    "llm-foundry": "device_train_microbatch_size 2, global_train_batch_size 8, "
    "fsdp_config.activation_checkpointing true",
    "fms-fsdp": "batch_size 2, gradient accumulation in the loop 4, fsdp_activation_checkpointing True",
}


@pytest.mark.sweep(6)
@pytest.mark.contract
@pytest.mark.parametrize("runtime", SETTINGS)
def test_a_plan_has_the_words_of_its_program(runtime: str) -> None:
    job: dict[str, Any] = {
        "model": "mpt-7b" if runtime == "llm-foundry" else "llama-3.2-1b",
        "gpu": "a100-80gb",
        "sequence_length": 128,
        "runtime": runtime,
        "parallel": {"llm-foundry": {}, "deepspeed": {"data": 2, "sharding": "zero2"}}.get(runtime, {"data": 2}),
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "activation_checkpointing": "full",
    }
    result = vramplan.fit(**job)
    assert ", ".join(f"{one.name} {one.value}".rstrip() for one in result.settings) == SETTINGS[runtime]
    assert not result.settings_need_code


@pytest.mark.contract
@pytest.mark.parametrize(
    ("runtime", "strategy", "words"),
    [
        ("llm.c", "gelu", ["-b 2", "-t 128", "-d 1024", "-r 1"]),
        ("nanogpt", "none", ["batch_size 2", "gradient_accumulation_steps 4"]),
    ],
)
def test_a_plan_for_gpt2_has_the_words_of_its_program(runtime: str, strategy: str, words: list[str]) -> None:
    job = {
        "model": "gpt2",
        "gpu": "a100-80gb",
        "sequence_length": 128,
        "runtime": runtime,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "activation_checkpointing": strategy,
    }
    result = vramplan.fit(**job)
    assert [f"{one.name} {one.value}" for one in result.settings] == words


@pytest.mark.contract
@pytest.mark.parametrize("program", FOLDERS)
def test_every_program_has_words_of_its_own(program: str) -> None:
    assert behaviour_of(program, "settings", None) is not None


@pytest.mark.contract
def test_what_the_program_has_no_switch_for_is_said_to_be_code() -> None:
    job = {**LARGE, "model": "llama-3.2-1b", "activation_checkpointing": "sqrt"}
    code = vramplan.fit(**job)
    assert code.settings_need_code
    assert "sqrt is code, not a switch: vramplan checkpoints ... --emit python" in plain(code)
    switch = vramplan.fit(**{**job, "activation_checkpointing": "every:1"})  # the same checkpoints as full
    assert not switch.settings_need_code
    assert "gradient_checkpointing True" in plain(switch)


@pytest.mark.sweep
@pytest.mark.contract
def test_checkpoints_in_equal_parts_are_a_switch_of_megatron() -> None:
    job: dict[str, Any] = {**LARGE, "runtime": "megatron", "parallel": {"data": 1, "tensor": 2}}
    for strategy, count in (("full", "1"), ("every:4", "4"), ("sqrt", "6")):
        result = vramplan.fit(**{**job, "activation_checkpointing": strategy})
        assert result.settings[-1][:2] == ("--recompute-num-layers", count)
    assert vramplan.fit(**{**job, "activation_checkpointing": "layers:[[0,3],[9,9]]"}).settings_need_code


def test_without_a_recommendation_nothing_is_recommended(examples: dict[str, FitResult]) -> None:
    tight = examples["tight, more likely not"]
    none = tight.recommended._replace(
        **dict.fromkeys(
            ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "activation_checkpointing")
        ),
        flags=None,
    )
    text = plain(tight._replace(recommended=none))
    assert "nothing to recommend" in text
    assert "judged " in text
    assert "repeat" not in text
    assert "more likely than not, it runs out of memory" in text


def test_the_assumptions_with_most_at_stake_are_named(examples: dict[str, FitResult]) -> None:
    taken = tuple(
        Assumption(key, value, "a default")
        for key, value in (
            *(("dropout", 0.1), ("packing", False), ("attention", "flash"), ("optimizer", "adamw")),
            *(("weight_dtype", "bf16"), ("global_batch_size", 512), ("micro_batch_size", 2)),
        )
    )
    parts = tuple(
        Component(name, size << 30, "") for name, size in (("weights", 6), ("optimizer", 12), ("gradients", 5))
    )
    text = plain(examples["fits"]._replace(assumptions=taken, components=parts))
    words = re.sub(r"\s+", " ", text.split("assumed")[1])
    assert words.startswith(
        " weight dtype bf16, optimizer adamw, global batch size 512, dropout 0.1 (--details for all 7)"
    )


@pytest.mark.contract
def test_what_is_at_stake_are_keys_of_a_job() -> None:
    from vramplan.options import table

    known = {*table.inside(), *(f"{group}.{key}" for group in table.GROUPS for key in table.inside(group))}
    assert set(AT_STAKE) <= known


def test_remedies_are_lines_that_can_be_pasted(examples: dict[str, FitResult]) -> None:
    no = examples["does not fit"]
    long = Remedy({"model": "m" * 200}, 1, "", "fits", option="--model " + "m" * 200)
    text = plain(no._replace(remedies=(long, *no.remedies)))
    assert "mmm" not in text
    assert re.search(r"to fit  --precision pure-bf16 --optimizer adafactor +17\.39 GiB fits\n", text)


@pytest.mark.contract
def test_a_remedy_that_no_line_holds_has_several(examples: dict[str, FitResult]) -> None:
    no = examples["does not fit"]
    options = "--loss fused --micro-batch 1 --gradient-accumulation-steps 4 --qlora --rank 16 --targets all-linear"
    text = plain(no._replace(remedies=(Remedy({"loss": "fused"}, 1, "", "fits", option=options), *(no.remedies or ()))))
    assert options in re.sub(r"\s+", " ", text)


@pytest.mark.contract
def test_what_makes_a_run_fit_comes_before_what_it_would_cost() -> None:
    result = vramplan.fit(model="gpt2-xl", gpu="v100", micro_batch_size=64, tokens=1_000_000_000)
    assert len(result.remedies or ()) >= REMEDIES
    shown = plain(result)
    assert all(one.option in shown for one in (result.remedies or ())[:REMEDIES])


@pytest.mark.contract
def test_what_makes_a_tight_run_fit_has_a_line_however_much_else_there_is() -> None:
    result = vramplan.fit(model="gpt2-large", gpu="t4", micro_batch_size=1, tokens=1_000_000_000)
    assert result.verdict == TIGHT
    assert result.remedies
    shown = plain(result)
    assert f"to fit  {result.remedies[0].option}" in shown
    assert "  repeat" not in shown


@pytest.mark.parametrize("system", ["standard", "256"])
def test_sixteen_colours_keep_the_letters(system: str, examples: dict[str, FitResult]) -> None:
    import rich.console

    written = io.StringIO()
    real = rich.console.Console

    def console(**options: Any) -> Any:
        return real(**options, force_terminal=True, color_system=system, _environ={"COLUMNS": "80"})

    with mock.patch("rich.console.Console", console):
        print_rich(render_summary(examples["fits"], width=80), written)
    assert (BLOCK in written.getvalue()) == (system == "256")
    bar = next(line for line in written.getvalue().splitlines() if "[" in re.sub(r"\x1b\[[0-9;]*m", "", line))
    colours = re.findall(r"\x1b\[([0-9;]+)m[A-Z█]", bar)
    assert len(colours) == len(set(colours)) > 4


def test_states_have_colours_of_their_own() -> None:
    states = ("weights", "optimizer", "gradients", "activations", "weight_casts", "temporaries", "overhead", "master")
    assert len({OF_SIXTEEN[name] for name in states}) == len(states)


@pytest.mark.sweep(16)
@pytest.mark.contract
@pytest.mark.parametrize("runtime", [*SETTINGS, "llm.c", "nanogpt", "unsloth"])
@pytest.mark.parametrize(
    "strategy", ["none", "full", "sqrt", "every:3", "layers:[[0,1],[3,3]]", "selective-op", "gelu"]
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_words_and_planner_agree_on_what_is_a_switch(runtime: str, strategy: str, gpus: int) -> None:
    models = {"llm-foundry": "mpt-7b", "llm.c": "gpt2", "nanogpt": "gpt2"}
    job: dict[str, Any] = {
        "model": models.get(runtime, "llama-3.2-1b"),
        "gpu": "h100-80gb",
        "runtime": runtime,
        "parallel": {"data": gpus, **({"sharding": "zero2"} if runtime == "deepspeed" and gpus > 1 else {})},
        "sequence_length": 128,
        "activation_checkpointing": strategy,
    }
    try:
        job_ = build_job({**job, "micro_batch_size": 1, "gradient_accumulation_steps": 1})
    except InputError:
        return  # the program has no such run
    session = opened()
    assert session is not None
    result = session.compared(job_)  # the other strategies say nothing of this one
    words: SettingsBehaviour = behaviour_of(job_.runtime.engine, "settings", DEFAULT)
    stacks = job_.model.stacks
    plan = SettingsPlan(job_, 1, 1, strategy, result.checkpoints, stacks)
    assert (words.checkpointing(plan) is None) == result.settings_need_code


@pytest.mark.plain
def test_checkpoints_of_unsloth_on_the_host_are_called_as_it_calls_them() -> None:
    job: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "t4", "runtime": "unsloth", "adapter": {"kind": "lora"}}
    job |= {"sequence_length": 512, "micro_batch_size": 1, "activation_checkpointing": "full"}
    for offload, word in ((None, "True"), (["activations"], '"unsloth"')):
        settings = {one.name: one.value for one in vramplan.fit(**job, offload=offload).settings}
        assert settings["use_gradient_checkpointing"] == word


@pytest.mark.contract
def test_a_wide_range_says_what_narrows_it_and_it_does() -> None:
    job: dict[str, Any] = {
        **LARGE,
        "model": "llama-3.1-405b",
        "gpu": "h200",
        "parallel": {"data": 128, "sharding": "fsdp"},
        "precision": "fsdp-bf16",
        "micro_batch_size": 1,
        "activation_checkpointing": "full",
        "gradient_accumulation_steps": 1,
    }
    wide, eager = vramplan.fit(**job, compile=True), vramplan.fit(**job)
    said = "as compiled steps are modelled by rules: --no-compile is tighter"
    assert said in re.sub(r"\s+", " ", plain(wide))
    assert said not in re.sub(r"\s+", " ", plain(eager))
    widths = [result.peak.high_bytes - result.peak.low_bytes for result in (wide, eager)]
    assert widths[1] < widths[0]


@pytest.mark.plain
def test_a_run_that_does_not_fit_names_the_checkpoints_that_were_judged() -> None:
    said = run("fit", "-m", "gpt2-xl", "-g", "rtx-3090").out
    assert "with checkpointing sqrt" in said


def test_a_change_of_several_lines_is_worth_more_than_the_time_of_what_does_not_fit() -> None:
    no = vramplan.fit(model="gpt2", gpu="2xrtx-3060", parallel={"sharding": "fsdp"}, micro_batch_size=64)
    option = "--micro-batch 1 --gradient-accumulation-steps 4 --qlora --rank 16 --targets all-linear"
    change = Remedy({"loss": "fused"}, 1, "", "fits", option=option)
    text = plain(no._replace(remedies=(change, *(no.remedies or ()))), 50)
    assert no.verdict == "does-not-fit"
    assert "  time " not in text
    assert option in re.sub(r"\s+", " ", text)
    assert "  time " in plain(no, 80)
    for width in (44, 50, 60):  # what is shown of it is whole
        shown = re.sub(r"\s+", " ", plain(no._replace(remedies=(change, *(no.remedies or ()))), width))
        assert "--gradient-accumulation-steps 4" not in shown or f"{option} 0.00 GiB" in shown


@pytest.mark.contract
def test_a_number_stays_beside_its_unit(example: FitResult) -> None:
    for width in range(50, 101):
        title = plain(example, width).split("\n  memory")[0]
        assert not re.search(r"(, [\d,]+|weights?,? \w*fp\d+)$", title, re.MULTILINE), title
        assert "\u2423" not in title
