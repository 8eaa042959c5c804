"""Settings of somebody's own, by their names: those of a section, of a switch that is off, and of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files
from vramplan.configs.own_names import is_quiet
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError


@pytest.mark.parametrize(
    "name",
    [
        "val_dataset.path",
        "dataset.bos_token",
        "training.num_decays",
        "metrics.enable_aim",
        "shuffle_docs_before_split",
        "data.pad_id",
    ],
)
def test_a_setting_of_a_section_of_data_counts_for_nothing(name: str) -> None:
    assert is_quiet(name)


@pytest.mark.parametrize(
    "name", ["dataset.max_length", "dataset.packing", "training.batch", "model.data", "train_weights"]
)
def test_a_section_of_data_may_say_more(name: str) -> None:
    assert not is_quiet(name)


def test_settings_of_a_switch_that_is_off_count_for_nothing() -> None:
    text = "n_layer = 4\nn_head = 4\nn_embd = 128\nblock_size = 64\nmax_iters = 10\nuse_swiglu = {}\nswiglu_mult = 3\n"
    text += "eval_batch_size = 4\n"
    holds(job(text.format("False"), "train_own.py"), runtime="nanogpt", sequence_length=64)
    with pytest.raises(InputError, match="swiglu_mult"):
        meant(text.format("True"), "train_own.py")


def test_a_gate_of_a_fork_of_megatron_is_no_detail(tmp_path: Path) -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    run = tmp_path / "run.sh"
    run.write_text(f"torchrun pretrain_gpt.py {sizes} --micro-batch-size 1 --t5-swiglu --own-hook\n")
    own = "parser.add_argument('--t5-swiglu', action='store_true')\nparser.add_argument('--own-hook')\n"
    (tmp_path / "pretrain_gpt.py").write_text(f"import argparse\nparser = argparse.ArgumentParser()\n{own}")
    with pytest.raises(InputError, match="t5_swiglu"):
        read_files([str(run)], Wanted())
