"""Files of somebody's own program whose sections have the arguments of a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

pytestmark = pytest.mark.contract

OWN = """
    project: shades
    model:
      name: Qwen/Qwen2.5-0.5B
      max_seq_length: 512
      trust_remote_code: false
    lora:
      rank: 16
      alpha: 32
      dropout: 0.1
      target_modules: [q_proj, v_proj]
      bias: all
    training:
      per_device_train_batch_size: 2
      gradient_accumulation_steps: 4
      learning_rate: 2.0e-4
      optim: adamw_torch
      bf16: true
      gradient_checkpointing: false
    data: {train_file: own.jsonl, shade: red}
    export: {merge_weights: true}
"""


def test_sections_are_read_as_what_they_are() -> None:
    found = meant(OWN, "own.yaml")
    holds(
        job(OWN, "own.yaml"),
        model="qwen2.5-0.5b",
        sequence_length=512,
        micro_batch_size=2,
        gradient_accumulation_steps=4,
        optimizer="adamw",
        precision="amp-bf16",
        activation_checkpointing="none",
        adapter__kind="lora",
        adapter__rank=16,
        adapter__alpha=32,
        adapter__targets=["q_proj", "v_proj"],
        adapter__bias="all",
    )
    assert any("the sections training, model, lora are read" in note for note in found.notes)
    told = {*found.unmodelled, *(item.key for item in found.without_effect)}
    assert {"data.shade", "export.merge_weights", "train_file", "trust_remote_code", "project"} <= told


def test_a_job_of_sections_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("\n".join(line[4:] for line in OWN.splitlines()))
    ran = run("fit", path, "--gpu", "h100", "--format", "json")
    assert ran.code == 0, ran.err
    assert ran.document["job"]["adapter"]["rank"] == 16


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rank: 16", "rank: 16\n      enabled: false", {"adapter__kind": None, "micro_batch_size": 2}),
        ("max_seq_length: 512", "max_seq_length: 512\n      load_in_4bit: true", {"quantization": "nf4"}),
        (
            "bias: all",
            "use_gradient_checkpointing: unsloth",
            {"runtime": "unsloth", "activation_checkpointing": "full"},
        ),
        ("project: shades", "dpo: {beta: 0.1}", {"loss": "dpo"}),
        ("project: shades", "reward: {weight: 0.5}\n    grpo: {num_generations: 4}", {"loss": "grpo"}),
        ("rank: 16", "r: 8", {"adapter__rank": 8}),
    ],
)
def test_what_sections_say(old: str, new: str, expected: dict[str, object]) -> None:
    text = OWN.replace(old, new)
    if "unsloth" in new:  # which turns them on itself
        text = text.replace("\n      gradient_checkpointing: false", "")
    holds(job(text, "own.yaml"), **expected)


def test_a_section_may_be_a_file_of_a_program() -> None:
    text = """
        name: shades
        llamafactory:
          model_name_or_path: Qwen/Qwen2.5-0.5B
          stage: sft
          finetuning_type: lora
          lora_rank: 4
          cutoff_len: 256
          bf16: true
        server: {port: 80}
    """
    found = meant(text, "own.yaml")
    assert (found.program, found.job["adapter"]["rank"]) == ("llama-factory", 4)
    assert any("the section llamafactory is a file of llama-factory" in note for note in found.notes)
    assert "server.port" in found.unmodelled


def test_a_setting_that_may_say_what_is_trained_stays_an_error() -> None:
    with pytest.raises(InputError, match=r"own.lora_layers: is not understood"):
        meant(OWN.replace("project: shades", "own: {lora_layers: 2}"), "own.yaml")


@pytest.mark.parametrize("gone", ["per_device_train_batch_size: 2", "training:"])
def test_sections_without_a_trainers_arguments_are_of_no_program(gone: str) -> None:
    with pytest.raises(InputError, match="of no training program"):
        meant("model: {name: gpt2}\ndata: {path: own}\nsteps: {batch: 2}\n", "own.yaml")
    if gone.startswith("per_device"):
        with pytest.raises(InputError, match="of no training program"):
            meant(OWN.replace(gone, "batch: 2"), "own.yaml")


def test_a_script_that_is_handed_such_a_file(tmp_path: Path) -> None:
    """What is typed wins, and settings of the file's own are told beside those of the script."""
    (tmp_path / "own.yaml").write_text("\n".join(line[4:] for line in OWN.splitlines()))
    (tmp_path / "own.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--config')\n"
        "parser.add_argument('--hue', default='green')\nargs = parser.parse_args()\n"
    )
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nproc_per_node 2 own.py --config own.yaml --hue blue --gradient_accumulation_steps 8\n")
    found = read_files([str(path)], Wanted())
    assert (found.job["micro_batch_size"], found.job["gradient_accumulation_steps"]) == (2, 8)
    assert {"data.shade", "hue"} <= {*found.unmodelled}


def test_an_adapter_without_its_factor_has_pefts() -> None:
    """peft 0.18, tuners/lora/config.py: `lora_alpha` is 8; a rank alone is no adapter's."""
    own = OWN.replace("rank: 16", "r: 16").replace("      alpha: 32\n", "")
    holds(job(own, "own.yaml"), adapter__rank=16, adapter__alpha=8, adapter__targets=["q_proj", "v_proj"])
    alone = "".join(line for line in own.splitlines(keepends=True) if not line.strip().startswith(("target", "bias")))
    assert "adapter.rank" not in job(alone.replace("      dropout: 0.1\n", ""), "own.yaml")
