"""`vramplan read` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import VALIDATORS, run

pytestmark = pytest.mark.plain

TEXT = "base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 2\nwandb_project: own\nliger_rope: true\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "axolotl.yaml"
    path.write_text(TEXT)
    return path


def test_text_has_the_place_of_each_value_and_what_is_not_in_the_job(file: Path) -> None:
    ran = run("read", str(file))
    assert ran.code == 0
    assert "line 2" in ran.out
    assert "sequence_len" in ran.out
    assert "default of axolotl" in ran.out
    assert "liger_rope" in ran.out
    assert "wandb_project" in ran.out


def test_the_document_holds_to_its_schema(file: Path) -> None:
    answer = json.loads(run("read", str(file), "--format", "json").out)
    VALIDATORS["read"].validate(answer)
    assert answer["job"]["micro_batch_size"] == 2
    assert answer["open"] == {"parallel.data": answer["open"]["parallel.data"]}
    assert [source["key"] for source in answer["without_effect"]] == ["wandb_project"]
    (value,) = (value for value in answer["values"] if value["key"] == "micro_batch_size")
    assert value["from"] == [{"key": "micro_batch_size", "value": 2, "file": str(file), "line": 3}]


@pytest.mark.parametrize("form", ["csv", "markdown", "yaml"])
def test_every_format(file: Path, form: str) -> None:
    ran = run("read", str(file), "--format", form)
    assert ran.code == 0
    assert "micro_batch_size" in ran.out


def test_one_value_is_printed(file: Path) -> None:
    assert run("read", str(file), "--print", "job.sequence_length").out == "512\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "axolot"), "did you mean axolotl"),
        (("--engine-version", "0.1"), "0.18.0"),
        (("--from", "torchtune"), "is not understood"),
    ],
)
def test_what_is_wrong_is_said(file: Path, words: tuple[str, ...], said: str) -> None:
    ran = run("read", str(file), *words)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_misspelt_setting_has_its_line_and_the_near_one(file: Path) -> None:
    file.write_text(TEXT + "sequence_lenn: 3\n")
    ran = run("read", str(file))
    assert ran.code == 2
    assert f"{file}:6:1: sequence_lenn" in ran.err
    assert "sequence_len" in ran.err.split("did you mean")[1]
    assert run("read", str(file), "--ignore-unknown").code == 0


def test_a_file_with_the_words_of_a_model_profile_is_still_a_program_s(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(TEXT.replace("wandb_project: own", "model_type: LlamaForCausalLM"))
    assert run("fit", str(path), "--gpu", "a100-80gb").code == 0


SHARED = (
    "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\nbf16: true\n"
    "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
)


@pytest.mark.parametrize(
    "words",
    [("--gpu", "8xa100-80gb"), ("8xa100-80gb",), ("--gpu", "a100-80gb", "--gpus", "8"), ("a100-80gb", "--gpus", "8")],
)
def test_the_devices_that_a_file_leaves_open_are_those_that_are_typed(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A count before the GPU is one, and a word behind a file that is a GPU is the GPU."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(SHARED)
    left = run("fit", str(path), "--gpu", "a100-80gb")
    assert left.code == 2
    assert "--gpus 8" in left.err
    answer = run("fit", str(path), *words, "--format", "json").document
    assert answer["job"]["parallel"]["data"] == 8
    before = run("fit", *words, str(path), "--format", "json").document
    assert before == answer


def test_a_count_before_the_gpu_goes_before_the_count_of_a_file(tmp_path: Path) -> None:
    accelerate = tmp_path / "accelerate.yaml"
    accelerate.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: bf16\n")
    path = tmp_path / "axolotl.yaml"
    path.write_text(SHARED.split("fsdp")[0])
    files = (str(accelerate), str(path))
    assert run("fit", *files, "--gpu", "a100-80gb", "--format", "json").document["job"]["parallel"]["data"] == 4
    assert run("fit", *files, "--gpu", "2xa100-80gb", "--format", "json").document["job"]["parallel"]["data"] == 2


def test_a_model_that_nobody_knows_is_called_by_the_name_that_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "base_model: deepseek-ai/DeepSeek-V4-Pro\nsequence_len: 64\nmicro_batch_size: 1\nadapter: lora\n", "utf-8"
    )
    ran = run("fit", file, "--gpu", "8xa100")
    assert ran.code == 2
    assert "there is no model profile 'DeepSeek-V4-Pro' (hf download deepseek-ai/DeepSeek-V4-Pro config.json" in ran.err
    file.write_text(file.read_text("utf-8").replace("deepseek-ai/DeepSeek-V4-Pro", "me/Qwen3-8B-own-words"), "utf-8")
    told = run("fit", file, "--gpu", "8xa100").err
    assert "(--model qwen3-8b if it has the sizes of that; or hf download me/Qwen3-8B-own-words config.json" in told


@pytest.mark.parametrize(("gpus", "replicas"), [("8", 4), ("2", 1), ("3", 3)])
def test_gpus_are_all_of_them_for_a_file_that_leaves_their_number_to_its_launcher(
    tmp_path: Path, gpus: str, replicas: int
) -> None:
    """A number that makes no whole replicas is that of these, as beside files that divide it themselves."""
    path = tmp_path / "own.yaml"
    path.write_text(
        "base_model: NousResearch/Llama-3.2-1B\ndatasets: [{path: own, type: alpaca}]\nsequence_len: 64\n"
        "micro_batch_size: 1\ngradient_accumulation_steps: 1\noptimizer: adamw_torch\nbf16: true\nfsdp_version: 2\n"
        "fsdp_config: {reshard_after_forward: true}\ntensor_parallel_size: 2\n"
    )
    ran = run("fit", path, "--gpu", "h100", "--gpus", gpus, "--format", "json")
    split = ran.document["job"]["parallel"]
    assert (split["data"], split["tensor"]) == (replicas, 2), ran.err


def test_a_type_of_model_within_settings_makes_no_model_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ltd.json"
    routing = '{"data_routing": {"random_ltd": {"enabled": true, "model_type": "decoder"}}}'
    path.write_text(
        f'{{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": 1}}, "data_efficiency": {routing}}}'
    )
    ran = run("fit", path, "--gpu", "h100")
    assert ran.code == 2
    assert "leaves model open" in ran.err
    path.write_text('{"model_type": "llama", "hidden_size": 64}')
    assert "leaves model open" not in run("fit", path, "--gpu", "h100").err


def test_the_precision_that_a_hint_names_goes_with_the_sharding(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    for kind, word in (("FSDP", "fsdp-bf16"), ("DEEPSPEED", "mixed-bf16")):
        more = "deepspeed_config: {zero_stage: 2}\n" if kind == "DEEPSPEED" else "fsdp_config: {fsdp_version: 2}\n"
        path.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nnum_processes: 4\n{more}")
        assert f"(--precision {word}" in run("fit", path, "--gpu", "h100").err


def test_brackets_within_brackets_are_no_internal_error(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"a":' * 3000 + "1" + "}" * 3000, "utf-8")
    ran = run("read", str(path))
    assert ran.code == 2
    assert "more than 40 levels deep" in ran.err
