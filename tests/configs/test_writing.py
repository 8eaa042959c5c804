"""Files that are written: they mean the job, they say what they cost, and what they cannot say is an error."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.running import Ran, run
from tests.configs.written import IDS, JOBS, LLAMA, SOME
from vramplan.cli.app import app
from vramplan.cli.completion import complete
from vramplan.configs import forms, registry
from vramplan.configs.page import JSON, TOML, YAML, Page, SettingLine
from vramplan.configs.writers import MODULES, writer_of
from vramplan.options.words import RUNTIMES

FSDP = JOBS["axolotl"][0]


def emitted(name: str, words: tuple[str, ...], folder: Path) -> tuple[Ran, str]:
    """What `--emit-to` leaves, and the first file."""
    ran = run("fit", *words, "--emit", name, "--emit-to", str(folder))
    return ran, Path(ran.out.split("\n")[0]).read_text("utf-8") if ran.out else ""


def again(ran: Ran, text: str) -> dict[str, Any]:
    """The answer of the command that the file names."""
    told = re.search(r"read back: vramplan (.+)", text) or re.search(r"read back: vramplan (.+)", ran.err)
    assert told is not None
    files = {Path(line).name: line for line in ran.out.splitlines()}
    words = [files.get(word, word) for word in shlex.split(told[1])]
    found: dict[str, Any] = run(*words, "--format", "json").document
    return found


@pytest.mark.sweep(18)
@pytest.mark.parametrize(("name", "words"), SOME, ids=IDS)
def test_the_command_in_the_file_has_the_job_and_the_bytes_again(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    runtime = () if "--runtime" in words else ("--runtime", writer_of(name).runtimes[0])
    ran, text = emitted(name, words, tmp_path)
    instead = re.search(r"for what fit would choose: (.+) is taken instead", ran.err)
    chosen = shlex.split(instead[1]) if instead else []
    before = run("fit", *words, *chosen, *runtime, "--format", "json").document
    after = again(ran, text)
    assert after["peak"] == before["peak"]
    assert after["components"] == before["components"]
    labels = ("parameters", "recipe_global_batch_size", "name", "dtype")
    for job in (before["job"], after["job"]):
        job["model"] = {key: value for key, value in job["model"].items() if key not in labels}
        if job["adapter"]:
            job["adapter"]["alpha"] = None  # a factor, which costs nothing
            job["adapter"]["targets"].sort()
        job["global_batch_size"] = job["name"] = None  # of a plan
        job["offload"] = sorted(job["offload"])
    assert after["job"] == before["job"]


@pytest.mark.parametrize("name", ["trl", "torchtitan", "megatron-lm"])
def test_the_words_of_the_plan_are_lines_of_the_file(name: str, tmp_path: Path) -> None:
    words = JOBS[name][-1]
    document = run("fit", *words, "--runtime", writer_of(name).runtimes[0], "--format", "json").document
    text = re.sub(r"  # .*", "", emitted(name, words, tmp_path)[1])
    for setting in document["settings"]:
        key = setting["name"].rpartition(" ")[2].rpartition(".")[2]
        if "policy" not in key and (key != "global_batch_size" or name != "torchtitan"):  # code; left at its default
            assert re.search(rf"(?i){re.escape(key)}[ :=]+{re.escape(setting['value'])}(?!\w)", text), setting


@pytest.mark.plain
def test_the_launch_command_and_the_costs_are_comments() -> None:
    lines = run("fit", *FSDP, "--emit", "axolotl").out.splitlines()
    assert lines[0] == "# axolotl train axolotl.yaml --num-processes 8"
    assert "of 79.14 GiB per GPU, fits" in lines[1]
    (batch,) = (line for line in lines if line.startswith("micro_batch_size"))
    assert re.fullmatch(r"micro_batch_size: 1  # .*activations [\d.]+ GiB.*", batch)
    assert any("yours to choose" in line for line in lines)


def test_json_has_its_launch_command_on_standard_error() -> None:
    ran = run("fit", *JOBS["deepspeed"][1], "--emit", "deepspeed")
    assert ran.document["zero_optimization"]["stage"] == 2
    assert "note: launch: deepspeed --num_gpus 8" in ran.err


@pytest.mark.sweep(12)
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("axolotl", ("--optimizer", "adam"), "axolotl has no setting for optimizer=adam (nearest: optimizer=adamw"),
        ("axolotl", ("--frozen", "embeddings"), "nearest: frozen=none"),
        ("trl", ("--checkpointing", "sqrt"), "--checkpointing full"),
        ("trl", ("--label-smoothing", "0.1"), "label_smoothing=0.1"),
        ("llama-factory", ("--hold-outputs",), "--no-hold-outputs"),
        ("trl", ("--runtime", "pytorch"), "runtime=pytorch"),
        ("torchtune", ("--model", "smollm2-360m"), "model=smollm2-360m"),
    ],
)
def test_what_a_program_cannot_say_names_the_nearest(name: str, words: tuple[str, ...], said: str) -> None:
    model = () if "--model" in words else ("--model", "gpt2")
    ran = run("fit", *model, *LLAMA[2:], *words, "--emit", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: --emit: ")
    assert said in ran.err
    assert "nearest: " in ran.err


@pytest.mark.sweep
def test_of_what_does_not_fit_nothing_is_written(tmp_path: Path) -> None:
    ran = run("fit", "-m", "gpt2", "-g", "1 GiB", "--emit", "trl", "--emit-to", tmp_path)
    assert (ran.code, ran.out, list(tmp_path.iterdir())) == (3, "", [])
    assert "it does not fit" in ran.err


def test_files_that_are_there_are_kept(tmp_path: Path) -> None:
    words = ("fit", *JOBS["accelerate"][0], "--emit", "accelerate", "--emit-to", tmp_path)
    assert run(*words).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"accelerate.yaml", "trl.yaml"}
    (tmp_path / "trl.yaml").write_text("mine")
    (tmp_path / "accelerate.yaml").unlink()
    ran = run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "trl.yaml is in" in ran.err
    assert not (tmp_path / "accelerate.yaml").exists()
    assert run(*words, "--force").code == 0
    assert (tmp_path / "trl.yaml").read_text() != "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--emit", "axolotll"), "did you mean axolotl"),
        (("--emit-to", "x"), "means nothing without the name of a program"),
        (("--emit", "trl", "--force"), "means nothing without a folder"),
        (("--emit", "trl", "--print", "verdict"), "leave out --format"),
        (("--emit", "trl", "--runtime", "textbook"), "equations have no settings"),
    ],
)
def test_options_that_mean_nothing_are_refused(words: tuple[str, ...], said: str) -> None:
    ran = run("fit", "-m", "gpt2", *LLAMA[2:], *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_a_plan_is_written() -> None:
    ran = run("plan", "-m", "gpt2", "-g", "a100-80gb", "--exclude", "compile=true", "--emit", "axolotl", "--precision",
              "pure-bf16")  # fmt: skip
    assert ran.code == 0
    assert "# plan: --checkpointing none" in ran.out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text("base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 2\nbf16: true\nlearning_rate: 1e-4\n")
    return path


def test_a_file_is_converted_without_a_gpu(file: Path) -> None:
    ran = run("convert", file, "--to", "llama-factory")
    assert ran.code == 0
    assert "cutoff_len: 512" in ran.out
    assert "--gpu GPU" in ran.out
    assert "not carried over, as they change neither memory nor time: learning_rate" in ran.out
    assert "GiB per GPU" not in ran.out
    assert "of 23.64 GiB per GPU" in run("convert", file, "--to", "trl", "--gpu", "rtx-4090").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--to: is missing"),
        (("--to", "nanogpt"), "--to: 'nanogpt' is no program whose files are written"),
        (("--to", "trl", "--optimizer", "muon"), "--to: trl has no setting for optimizer=muon"),
        (("--to", "torchtune", "--loss", "standard"), "torchtune"),
    ],
)
def test_what_cannot_be_converted_is_said(file: Path, words: tuple[str, ...], said: str) -> None:
    ran = run("convert", file, *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_what_is_no_file_is_no_model() -> None:
    assert "there is no file 'gone.yaml'" in run("convert", "gone.yaml", "--to", "trl").err


def test_every_writer_has_a_reader_and_its_runtime_is_known() -> None:
    assert set(MODULES) <= set(registry.MODULES)
    assert set(JOBS) == set(MODULES)
    for name in MODULES:
        assert writer_of(name).name == name
        assert set(writer_of(name).runtimes) <= set(RUNTIMES)


def test_names_are_completed() -> None:
    root = typer.main.get_command(app)
    assert [word.text for word in complete(root, ["fit", "--emit", "ax"])] == ["axolotl"]
    assert [word.text for word in complete(root, ["convert", "--to", "torcht"])] == ["torchtune", "torchtitan"]


VALUES: dict[str, Any] = {
    "a": [True, False, None, 1, 2.5, 1e-5, "plain", "no", "1e5", "12", "a: b", "# c", "", "x y", "NO", "1.0"],
    "b.c": {"path": "org/name", "type": "alpaca"},
    "d": "tab\there",
    "b.e.f": -3,
}


@pytest.mark.parametrize("form", [YAML, JSON, TOML])
def test_a_page_reads_back(form: str) -> None:
    page = Page("any", form)
    values = {"t.a": 1.0, "t.b": "x", "t.c": ["y"], "u.d": True} if form == TOML else VALUES
    for key, value in values.items():
        page.put(key, value, "some")
    text = page.text(["first: line"], lambda line: f"of {','.join(line.of)}")
    read = forms.from_toml(text, None) if form == TOML else forms.from_yaml(text, None, json=form == JSON)
    plain = {key: item.value for key, item in read.items()}
    for key, value in values.items():
        inner = value if isinstance(value, dict) else None
        assert ({name: plain[f"{key}.{name}"] for name in inner} if inner else plain[key]) == value


def test_a_setting_that_is_put_twice_has_the_last_value_and_all_keys() -> None:
    page = Page("any")
    page.put("a", 1, "one")
    page.put("a", 2, "two")
    assert page.lines["a"] == SettingLine("a", 2, ("one", "two"))


@pytest.mark.plain
@pytest.mark.parametrize("options", ["--qlora --checkpointing none", "--loss dpo --checkpointing none"])
def test_training_arguments_have_no_keys_of_trl(options: str) -> None:
    ran = run("fit", *LLAMA, *options.split(), "--emit", "training-arguments")
    assert ran.code == 2
    assert "training-arguments has no setting for" in ran.err


@pytest.mark.plain
@pytest.mark.parametrize(
    ("options", "line", "absent"),
    [
        ("--loss dpo --lora --targets q_proj", "torchtune.rlhf.loss.DPOLoss", "IPOLoss"),
        ("--lora --targets q_proj", "apply_lora_to_mlp: false", "apply_lora_to_output"),
    ],
)
def test_torchtune_is_given_what_its_release_has(options: str, line: str, absent: str) -> None:
    words = ("--runtime", "torchtune", "--checkpointing", "none", "--gpus", "2")
    ran = run("fit", *LLAMA, *words, *options.split(), "--emit", "torchtune")
    assert line in ran.out, ran.err
    assert absent not in ran.out


# What the options leave open is what the program has


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("name", "words", "taken"),
    [
        ("axolotl", ("-g", "a100"), "--precision pure-bf16"),
        ("llama-factory", ("-g", "8xa100", "--sharding", "ddp"), "--weight-dtype fp32"),
        ("megatron-lm", ("-g", "8xh200", "--sharding", "ddp", "--micro-batch", "40"), "--checkpointing full"),
    ],
)
def test_what_is_left_open_is_what_the_program_has_a_setting_for(
    name: str, words: tuple[str, ...], taken: str, tmp_path: Path
) -> None:
    ran, text = emitted(name, ("-m", "llama-3.2-3b", *words), tmp_path)
    assert (
        ran.code,
        f"note: {name} has no setting for what fit would choose: {taken} is taken instead" in ran.err,
    ) == (0, True), ran.err
    asked = shlex.split(taken)
    plain = run(
        "fit", "-m", "llama-3.2-3b", *words, *asked, "--runtime", writer_of(name).runtimes[0], "--format", "json"
    )
    assert again(ran, text)["peak"] == plain.document["peak"]


def test_what_is_asked_for_is_not_replaced() -> None:
    ran = run("fit", "-m", "llama-3.2-3b", "-g", "a100", "--precision", "amp-bf16", "--emit", "axolotl")
    assert (ran.code, ran.out) == (2, "")
    assert "axolotl has no setting for precision=amp-bf16 (nearest: precision=pure-bf16" in ran.err


@pytest.mark.plain
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("NousResearch/Meta-Llama-3.1-8B-Instruct", "NousResearch/Meta-Llama-3.1-8B-Instruct"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_a_model_keeps_the_name_that_it_was_asked_by(model: str, said: str) -> None:
    ran = run("fit", "-m", model, "-g", "8xh100", "--fsdp", "--emit", "trl")
    assert f"model_name_or_path: {said}  #" in ran.out


def test_a_file_keeps_the_name_that_it_says(tmp_path: Path) -> None:
    before = tmp_path / "axolotl.yaml"
    before.write_text(
        "base_model: meta-llama/Llama-3.2-1B-Instruct\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\n"
        "sequence_len: 512\noptimizer: adamw_torch\nbf16: true\n",
        "utf-8",
    )
    ran = run("convert", str(before), "--to", "axolotl")
    assert ran.out.count("base_model: meta-llama/Llama-3.2-1B-Instruct") == 1, ran.err


@pytest.mark.plain
def test_a_file_of_one_device_is_written_for_several(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "checkpoint_dir: checkpoints/openlm-research/open_llama_3b\nprecision: bf16-true\ndevices: 1\nlora_r: 8\n"
        "lora_query: true\ntrain:\n  global_batch_size: 32\n  micro_batch_size: 2\n  max_seq_length: 64\n",
        "utf-8",
    )
    ran = run("fit", file, "--gpu", "a100", "--gpus", "8", "--emit", "litgpt")
    assert ran.code == 0, ran
    assert "devices: 8" in ran.out
    assert "global_batch_size: 32" in ran.out


@pytest.mark.plain
def test_what_follows_from_another_key_is_not_told() -> None:
    """Of a way of sharding that a program has no setting for nothing is said of what only that way has."""
    ran = run("fit", "-m", "llama-3.2-3b", "-g", "8xa100", "--fsdp", "--precision", "fsdp-bf16", "--emit", "deepspeed")
    assert [line for line in ran.err.splitlines() if "parallel." in line] == [
        "error: --emit: deepspeed has no setting for parallel.sharding=fsdp (nearest: parallel.sharding=zero3, "
        "--sharding zero3)"
    ]


@pytest.mark.plain
def test_the_dropout_of_a_job_goes_before_that_of_its_model(tmp_path: Path) -> None:
    sizes = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --vocab-size 1024 --micro-batch-size 2 --bf16 "
    path = tmp_path / "own.sh"
    path.write_text(command + "--global-batch-size 16 --hidden-dropout 0.1 --attention-dropout 0.1\n")
    ran = run("convert", str(path), "--to", "megatron-lm")
    assert ran.code == 0, ran.err
    assert "--hidden-dropout 0.1" in ran.out


@pytest.mark.plain
@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("torchtune", ("--qlora", "--seq", "2048"), "qlora_llama3_2_3b"),
        ("megatron-lm", ("--gpus", "8", "--sharding", "fsdp"), "--data-parallel-sharding-strategy optim_grads_params"),
        ("megatron-lm", ("--gpus", "8", "--sharding", "fsdp-grad-op"), "--data-parallel-sharding-strategy optim_grads"),
        ("megatron-lm", ("--gpus", "8", "--gradient-dtype", "bf16"), "--grad-reduce-in-bf16"),
    ],
)
def test_a_setting_of_the_program_is_found(name: str, words: tuple[str, ...], line: str) -> None:
    ran = run("fit", "-m", "llama-3.2-3b", "-g", "a100", *words, "--emit", name)
    assert ran.code == 0, ran.err
    assert line in ran.out


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("name", "words", "plan"),
    [
        ("torchtune", ("-m", "llama-3.2-1b", "-g", "rtx-4090"), "--checkpointing none --compile"),
        ("llama-factory", ("-m", "llama-3.2-1b", "-g", "rtx-4090"), "--checkpointing full --loss fused"),
    ],
)
def test_plans_are_looked_for_among_those_that_the_program_can_say(
    name: str, words: tuple[str, ...], plan: str
) -> None:
    """torchtune has no fused loss, and LLaMA-Factory trains whole models in fp32."""
    ran = run("plan", *words, "--emit", name)
    assert ran.code == 0, ran.err
    assert f"# plan: {plan}\n" in ran.out


@pytest.mark.plain
@pytest.mark.parametrize(
    ("frozen", "patterns"),
    [
        ("attention", ("^model.layers.[0-9]+.mlp.down_proj.weight$", "^model.embed_tokens.weight$")),
        ("embeddings,layers.0-13", ("^model.layers.(14|15).self_attn.q_proj.weight$", "^model.norm.weight$")),
    ],
)
def test_axolotl_is_told_what_is_trained(frozen: str, patterns: tuple[str, ...], tmp_path: Path) -> None:
    words = ("-m", "llama-3.2-1b", "-g", "h200", "--frozen", frozen)
    ran, text = emitted("axolotl", words, tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("unfrozen_parameters: "))
    assert all(pattern in line for pattern in patterns)
    plain = run("fit", *words, "--precision", "pure-bf16", "--format", "json")
    assert again(ran, text)["peak"] == plain.document["peak"]


def test_the_name_of_the_checkpoint_in_the_file_is_written_again(tmp_path: Path) -> None:
    """By which a reader also knows that its weights are GPTQ's; an option that names a model wins."""
    file = tmp_path / "lora.yaml"
    name = "TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ"
    lines = (f"model_name_or_path: {name}", "stage: sft", "finetuning_type: lora", "lora_target: q_proj", "bf16: true")
    file.write_text("\n".join((*lines, "cutoff_len: 2048", "per_device_train_batch_size: 1", "flash_attn: fa2")))
    ran = run("convert", str(file), "--to", "axolotl")
    assert f"base_model: {name}" in ran.out, ran.err
    assert f"base_model: {name}" in run("fit", str(file), "--gpu", "h100", "--emit", "axolotl").out
    file.write_text(file.read_text("utf-8").replace(name, "NousResearch/Meta-Llama-3-8B"))
    assert "base_model: NousResearch/Meta-Llama-3-8B" in run("convert", str(file), "--to", "axolotl").out
    named = run("convert", str(file), "--to", "axolotl", "-m", "llama-3.1-8b").out
    assert "base_model: meta-llama/" in named


@pytest.mark.plain
def test_experts_in_few_bits_are_written_for_axolotl() -> None:
    words = ("-m", "qwen3-30b-a3b", "--qlora", "--quantized-experts", "--seq", "1024", "--micro-batch", "1")
    words += ("--precision", "amp-bf16", "--weight-dtype", "bf16", "--alpha", "16", "--targets", "q_proj,v_proj")
    ran = run("fit", *words, "--gpu", "h100", "--emit", "axolotl")
    assert "quantize_moe_experts: true" in ran.out, ran.err


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("deepseek-v2-lite", ("--multi-latent-attention", "--kv-lora-rank 512", "--moe-layer-freq '([0]*1+[1]*26)'")),
        ("qwen3-30b-a3b", ("--qk-layernorm", "--moe-ffn-hidden-size 768", "--num-query-groups 4")),
        ("qwen2.5-1.5b", ("--add-qkv-bias",)),
    ],
)
def test_megatrons_arguments_say_what_sets_a_model_apart(model: str, more: tuple[str, ...]) -> None:
    """What the program itself would train; vramplan knows the model by its sizes."""
    words = ("-m", model, "-g", "b300", "--runtime", "megatron", "--gpus", "16", "--seq", "512", "--micro-batch", "1")
    split = ("--expert", "16") if "qwen2" not in model else ()
    ran = run("fit", *words, *split, "--gradient-accumulation-steps", "1", "--emit", "megatron-lm")
    for argument in more:
        assert argument in ran.out, ran.err


def test_what_a_program_has_by_itself_is_left_out_where_another_has_it_not(tmp_path: Path) -> None:
    text = "base_model: NousResearch/Llama-3.2-1B\nadapter: lora\nlora_target_linear: true\nmicro_batch_size: 1\n"
    text += "gradient_checkpointing: false\nsequence_len: 512\nbf16: true\n"
    (tmp_path / "a.yml").write_text(text, "utf-8")
    ran = run("convert", str(tmp_path / "a.yml"), "--to", "trl")
    assert ran.code == 0, ran.err
    assert "# decided by trl itself: adapter.kernels=none (mlp,qkv,o in axolotl)" in ran.out
    assert ran.err.count("is read as axolotl") == 1
    (tmp_path / "a.yml").write_text(f"{text}lora_mlp_kernel: true\n", "utf-8")
    ran = run("convert", str(tmp_path / "a.yml"), "--to", "trl")
    assert ran.code == 2
    assert "trl has no setting for adapter.kernels=mlp (nearest: adapter.kernels=none, --lora-kernels none)" in ran.err


GRPO = ("-m", "llama-3.2-1b", "-g", "h100", "--loss", "grpo", "--checkpointing", "full", "--precision", "pure-bf16")
QUANTIZED = (
    "-m",
    "llama-3.2-1b",
    "-g",
    "h100",
    "--gpus",
    "2",
    "--lora",
    "--quantization",
    "nf4",
    "--checkpointing",
    "full",
)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        ("trl", (*GRPO, "--micro-batch", "1"), "micro_batch_size=1 (nearest: micro_batch_size=2"),
        ("axolotl", (*GRPO, "--micro-batch", "1"), "micro_batch_size=1 (nearest: micro_batch_size=2"),
        (
            "llama-factory",
            (
                *QUANTIZED[:4],
                "--lora",
                "--optimizer",
                "galore-adamw:16",
                "--micro-batch",
                "1",
                "--checkpointing",
                "none",
            ),
            "optimizer=galore-adamw:16 (nearest: optimizer=adamw",
        ),
        (
            "axolotl",
            (*QUANTIZED, "--fsdp", "--fsdp-version", "2", "--loss", "kto", "--micro-batch", "1"),
            "parallel.fsdp_version=2 (nearest: parallel.fsdp_version=1",
        ),
    ],
)
def test_what_the_programs_own_validators_refuse_is_not_written(
    program: str, words: tuple[str, ...], said: str
) -> None:
    ran = run("fit", *words, "--emit", program)
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.plain
@pytest.mark.parametrize(("batch", "devices", "completions"), [(4, 1, 4), (2, 8, 2), (11, 1, 11), (12, 2, 6)])
def test_completions_fill_the_batches_of_a_device_in_axolotl(batch: int, devices: int, completions: int) -> None:
    words = (*GRPO, "--micro-batch", str(batch), "--gpus", str(devices), "--weight-dtype", "bf16", "--seq", "64")
    ran = run("fit", *words, "--emit", "axolotl")
    assert f"num_generations: {completions} " in ran.out, ran.err
    assert (f"generation_batch_size: {batch * devices} " in ran.out) == (devices > 1)
