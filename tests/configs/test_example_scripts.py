"""Commands that start the example scripts of Transformers, whose models and lengths are those of the script."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.configs.reading import Wanted, read

pytestmark = pytest.mark.contract


def read_of(command: str) -> dict[str, Any]:
    return dict(read(f"{command}\n", "train.sh", Wanted()).job)


@pytest.mark.parametrize(
    ("command", "loss", "tokens"),
    [
        ("python run_glue.py --model_name_or_path bert-base-cased --task_name mrpc", "classification", 128),
        ("python a/run_glue.py --model_name_or_path bert-base-cased --max_seq_length 64", "classification", 64),
        ("accelerate launch run_glue_no_trainer.py --model_name_or_path bert-base-cased", "classification", 128),
        ("python run_glue_no_trainer.py --model_name_or_path bert-base-cased --max_length 32", "classification", 32),
        ("python run_qa.py --model_name_or_path bert-base-cased --dataset_name squad", "classification", 384),
        ("python run_summarization.py --model_name_or_path google-t5/t5-small", None, 1024),
        ("python run_mlm.py --model_name_or_path bert-base-cased --max_seq_length 128", None, 128),
    ],
)
def test_a_script_has_its_own_head_and_length(command: str, loss: str | None, tokens: int) -> None:
    job = read_of(f"{command} --per_device_train_batch_size 4 --output_dir out")
    assert (job.get("loss"), job["sequence_length"]) == (loss, tokens)


def test_nobody_is_asked_how_long_an_image_is() -> None:
    command = "python run_image_classification.py --model_name_or_path google/vit-base-patch16-224-in21k"
    found = read(f"{command} --per_device_train_batch_size 8\n", "train.sh", Wanted())
    assert "sequence_length" not in found.open
    assert "sequence_length" not in found.job
