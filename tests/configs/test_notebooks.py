"""Notebooks of Jupyter: their cells as a script of Python or of a shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted, read, read_file
from vramplan.errors import InputError


def notebook(*cells: str, indent: int | None = 1) -> str:
    """A notebook with these cells of code, behind one of text."""
    told: dict[str, Any] = {"cell_type": "markdown", "source": ["# A run\n", "model = ...\n"]}
    made = [{"cell_type": "code", "outputs": [], "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": [told, *made], "nbformat": 4, "nbformat_minor": 5}, indent=indent)


SETUP = """%%capture
import os
if "COLAB_" not in "".join(os.environ):
    !pip install unsloth
else:
    !pip install --no-deps \\
        trl peft
%env HF_HUB_OFFLINE=1
version = !nvidia-smi
os.environ?
"""
LOADED = """from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Llama-3.2-1B", max_seq_length=1024)
model = FastLanguageModel.get_peft_model(model, r=32, target_modules=["q_proj", "v_proj"])
"""
TRAINED = """from trl import SFTConfig, SFTTrainer
args = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4, optim="adamw_8bit")
SFTTrainer(model=model, args=args, train_dataset=rows).train()
"""
ANOTHER = "%%javascript\nalert(1)\n"
BROKEN = "await = 3 and\n"


@pytest.mark.parametrize("indent", [1, None])
def test_cells_are_one_script_of_python(indent: int | None) -> None:
    text = notebook(SETUP, LOADED, ANOTHER, BROKEN, TRAINED, indent=indent)
    holds(
        job(text, "own.ipynb"),
        runtime="unsloth",
        model="llama-3.2-1b",
        sequence_length=1024,
        micro_batch_size=2,
        gradient_accumulation_steps=4,
        adapter__rank=32,
        adapter__targets=["q_proj", "v_proj"],
        optimizer="adamw-8bit",
    )


def test_a_setting_has_the_line_of_the_notebook() -> None:
    text = notebook(SETUP, LOADED, TRAINED)
    found = read(text, "own.ipynb", Wanted())
    (source,) = next(value for value in found.values if value.key == "micro_batch_size").sources
    assert source.line is not None
    assert "per_device_train_batch_size" in text.splitlines()[source.line - 1]


COMMANDS = (
    'NAME = "Qwen/Qwen2.5-0.5B"\nrows = load()\n',
    "%cd /content\n%env CUDA_VISIBLE_DEVICES=0\n!pip install trl\n",
    "!trl sft --model_name_or_path {NAME} \\\n    --max_length 512 --per_device_train_batch_size 4\nprint(NAME)\n",
)


def test_commands_of_a_notebook_are_a_script_of_a_shell() -> None:
    found = read_texts({"own.ipynb": notebook(*COMMANDS)}, Wanted()).job
    assert (found["model"], found["sequence_length"], found["micro_batch_size"]) == ("qwen2.5-0.5b", 512, 4)
    held = read_texts({"own.ipynb": notebook("%%bash\ntrl sft --model_name_or_path gpt2 --max_length 256\n")}, Wanted())
    assert (held.job["model"], held.job["sequence_length"]) == ("gpt2", 256)


def test_a_file_that_a_cell_writes_is_read_with_the_command(tmp_path: Path) -> None:
    config = "%%writefile run/own.yaml\nbase_model: Qwen/Qwen2.5-0.5B\nsequence_len: 768\nmicro_batch_size: 3\n"
    path = tmp_path / "own.ipynb"
    path.write_text(notebook(config + "adapter: lora\nlora_r: 4\n", "!axolotl train run/own.yaml\n"))
    found = read_files([str(path)], Wanted())
    assert found.program == "axolotl"
    assert (found.job["model"], found.job["sequence_length"], found.job["micro_batch_size"]) == ("qwen2.5-0.5b", 768, 3)


def test_an_old_notebook_has_its_cells_in_a_sheet() -> None:
    cells = [{"cell_type": "code", "input": (LOADED + TRAINED).splitlines(keepends=True)}]
    text = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}, indent=1)
    assert meant(text, "own.ipynb").job["micro_batch_size"] == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 1}'])
def test_what_is_no_notebook_is_told(text: str) -> None:
    with pytest.raises(InputError, match="is no notebook"):
        read(text, "own.ipynb", Wanted())


def test_a_function_of_a_notebook_is_named_as_that_of_a_script(tmp_path: Path) -> None:
    whole = TRAINED.replace("args =", "def long():\n  args =").replace("SFTTrainer(model", "  SFTTrainer(model")
    path = tmp_path / "own.ipynb"
    path.write_text(notebook(LOADED, TRAINED, whole.replace("batch_size=2", "batch_size=7")))
    assert read_file(f"{path}:long", Wanted()).job["micro_batch_size"] == 7


@pytest.mark.plain
def test_a_notebook_stands_where_a_model_may(tmp_path: Path) -> None:
    path = tmp_path / "own.ipynb"
    path.write_text(notebook(SETUP, LOADED, TRAINED))
    ran = run("fit", str(path), "--gpu", "a100-80gb", "--gpus", "1", "--print", "verdict")
    assert (ran.code, ran.out) == (0, "fits\n")


@pytest.mark.parametrize(
    ("name", "layers"),
    [("unsloth/Phi-4", 40), ("unsloth/Phi-3.5-mini-instruct", 32), ("microsoft/Phi-3-medium-4k-instruct", 40)],
)
def test_unsloths_copies_of_phi_have_the_layers_of_llama(name: str, layers: int) -> None:
    found = meant(notebook(LOADED.replace("unsloth/Llama-3.2-1B", name), TRAINED), "own.ipynb")
    model = found.job["model"]
    assert (model["family"], model["layers"]) == ("llama", layers)
    assert found.job["adapter"]["targets"] == ["q_proj", "v_proj"]


def test_other_phis_and_other_programs_keep_their_fused_layers() -> None:
    other = meant(notebook(LOADED.replace("unsloth/Llama-3.2-1B", "unsloth/Phi-4-mini-instruct"), TRAINED), "own.ipynb")
    assert isinstance(other.job["model"], str)
    plain = meant("model_name_or_path: microsoft/phi-4\nmax_length: 512\n", "trl.yaml")
    assert plain.job["model"] == "phi-4"


def test_unsloth_trains_a_table_among_the_targets_as_a_whole() -> None:
    text = LOADED.replace('"v_proj"', '"v_proj", "embed_tokens"')
    found = meant(notebook(text, TRAINED), "own.ipynb").job["adapter"]
    assert (found["targets"], found["modules_to_save"]) == (["q_proj", "v_proj"], ["embed_tokens"])
    kept = text.replace("model, r=32", 'model, modules_to_save=["lm_head"], r=32')
    assert meant(notebook(kept, TRAINED), "own.ipynb").job["adapter"]["modules_to_save"] == ["lm_head", "embed_tokens"]
