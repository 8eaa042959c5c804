"""The element type of adapters, where TRL or PEFT decide it and no precision does."""

from __future__ import annotations

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job

SFT = "model_name_or_path: gpt2\nmax_length: 64\nper_device_train_batch_size: 2\nuse_peft: true\n"
TUNED = "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\nadapter: lora\nlora_r: 4\nlora_target_linear: true\n"


@pytest.mark.parametrize(
    ("lines", "release", "kind"),
    [
        ("load_in_4bit: true\n", None, "bf16"),
        ("load_in_8bit: true\n", None, "bf16"),
        ("load_in_8bit: true\nbf16: true\n", "0.22.0", None),  # 4 bits alone, until 0.25
        ("load_in_4bit: true\nbf16: true\n", "0.22.0", "bf16"),
        ("load_in_4bit: true\nbf16: false\ntorch_dtype: bfloat16\n", "0.22.0", "fp32"),
        ("dtype: bfloat16\n", None, None),  # autocast, under which a job has PEFT's fp32
        ("dtype: bfloat16\nbf16: false\n", None, "fp32"),
        ("load_in_4bit: true\nbf16: true\nfsdp: full_shard\n", None, None),  # Accelerate makes fp32 of it
        ("load_in_4bit: true\nbeta: 0.1\n", None, None),  # a job of DPO has bf16 by itself
    ],
)
def test_sft_turns_adapters_over_quantized_weights_to_bf16(lines: str, release: str | None, kind: str | None) -> None:
    assert job(SFT + lines, "sft.yaml", version=release, program="trl").get("adapter.dtype") == kind


def test_the_plain_trainer_leaves_adapters_as_peft_has_them() -> None:
    text = SFT + "load_in_4bit: true\nbf16: true\n"
    assert "adapter.dtype" not in job(text, "sft.yaml", program="training-arguments")


@pytest.mark.parametrize(
    ("lines", "precision", "kind"),
    [
        ("bf16: true\n", "amp-bf16", None),
        ("bf16: full\n", "pure-bf16", "fp32"),  # no autocast, and PEFT's own type
        ("bf16: full\npeft_autocast_adapter_dtype: false\n", "pure-bf16", "bf16"),
        ("bf16: true\npeft_autocast_adapter_dtype: false\n", "amp-bf16", "bf16"),
        ("bf16: true\npeft_autocast_adapter_dtype: true\n", "amp-bf16", None),
    ],
)
def test_axolotl_says_whether_peft_widens_adapters(lines: str, precision: str, kind: str | None) -> None:
    holds(job(TUNED + lines, "own.yaml"), precision=precision, adapter__dtype=kind)


def test_axolotl_in_full_bf16_has_no_policy_of_fsdp() -> None:
    text = TUNED.partition("adapter:")[0] + "fsdp_version: 1\nfsdp_config: {offload_params: false}\nbf16: %s\n"
    assert job(text % "full", "own.yaml")["precision"] == "pure-bf16"
    assert job(text % "true", "own.yaml")["precision"] == "fsdp-bf16"


def test_an_adapter_in_bf16_is_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "sft.yaml"
    for lines, program, expected in (
        ("dtype: bfloat16\nbf16: false\nload_in_4bit: true\n", "trl", "bf16: false"),
        ("dtype: bfloat16\nbf16: true\nload_in_4bit: true\n", "axolotl", "peft_autocast_adapter_dtype: false"),
    ):
        file.write_text(SFT + "lora_target_modules: all-linear\n" + lines)
        ran = run("convert", file, "--to", program)
        assert ran.code == 0, ran
        assert expected in ran.out
    file.write_text(SFT + "load_in_4bit: true\n")  # over weights in fp32
    assert run("fit", file, "--gpu", "h100").code == 0


@pytest.mark.parametrize(
    ("text", "file", "to", "told"),
    [
        (TUNED + "load_in_4bit: true\nbf16: true\n", "axolotl.yaml", "trl", "adapter.dtype=bf16 (fp32 in axolotl)"),
        (
            SFT + "load_in_4bit: true\ndtype: bfloat16\n",
            "sft.yaml",
            "llama-factory",
            "adapter.dtype=fp32 (bf16 in trl)",
        ),
    ],
)
def test_the_type_that_a_program_gives_adapters_is_told_where_no_file_says_it(  # type: ignore[no-untyped-def]
    tmp_path, text: str, file: str, to: str, told: str
) -> None:
    (tmp_path / file).write_text(text.replace("adapter: lora", "adapter: qlora"))
    ran = run("convert", tmp_path / file, "--to", to, "--gradient-accumulation-steps", "1")
    assert ran.code == 0, ran
    assert told in ran.out
    asked = run("convert", tmp_path / file, "--to", to, "--adapter-dtype", told.partition("(")[2].partition(" ")[0])
    assert "has no setting for adapter.dtype" in asked.err  # an option is a file's word
