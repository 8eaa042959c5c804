"""States and steps of Adagrad to ASGD of torch.optim, and of the optimizers of small libraries, by hand."""

from __future__ import annotations

from importlib import import_module

import pytest

from vramplan.replay.optimizers import LIBRARIES, Library, library_of, own_states, step_group
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import BF16, FP32, DType, Parameter

pytestmark = pytest.mark.closed_form

ROWS, COLUMNS = 96, 160
WHOLE = ROWS * COLUMNS
NUMBER = 512  # of the smallest block


def weight(dtype: DType = FP32, shape: tuple[int, ...] = (ROWS, COLUMNS), name: str = "weight") -> Parameter:
    return Tape(1, direct=True).parameter(name, shape, dtype)


def states_of(word: str, how: str, one: Parameter) -> int:
    library = library_of(word)
    return own_states(one, word, how) if library is None else library.states(one, word, how, False)


@pytest.mark.parametrize(
    ("word", "how", "moments", "numbers"),
    [
        ("adagrad", "foreach", 1, 0),
        ("adagrad", "fused", 1, 1),
        ("nadam", "for-loop", 2, 0),
        ("radam", "foreach", 2, 0),
        ("adamax", "foreach", 2, 0),
        ("adadelta", "for-loop", 2, 0),
        ("asgd", "foreach", 1, 3),
        ("asgd", "for-loop", 1, 3),
        ("schedule-free-adamw", "foreach", 2, 0),
        ("schedule-free-sgd", "foreach", 1, 0),
        ("schedule-free-radam", "for-loop", 2, 0),
        ("adopt", "foreach", 2, 0),
        ("adamc", "for-loop", 2, 0),
        ("prodigy", "for-loop", 4, 0),
        ("grokadamw", "for-loop", 0, 0),
    ],
)
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_states_have_the_type_of_the_weight(word: str, how: str, moments: int, numbers: int, dtype: DType) -> None:
    assert states_of(word, how, weight(dtype)) == moments * WHOLE * dtype.itemsize + numbers * NUMBER


@pytest.mark.parametrize(
    ("word", "how", "dtype", "tensors", "numbers"),
    [
        ("adamw-optimi", "for-loop", FP32, 2, 0),
        ("adamw-optimi", "fused", FP32, 2, 1),
        ("adamw-optimi", "fused", BF16, 3, 0),
        ("stable-adamw", "for-loop", FP32, 2, 1),
        ("stable-adamw", "fused", FP32, 2, 3),
        ("stable-adamw", "fused", BF16, 3, 2),
    ],
)
def test_kahan_summation_has_a_tensor_of_weights_in_16_bits(
    word: str, how: str, dtype: DType, tensors: int, numbers: int
) -> None:
    assert states_of(word, how, weight(dtype)) == tensors * WHOLE * dtype.itemsize + numbers * NUMBER


def test_came_factors_matrices_twice_in_fp32() -> None:
    factors = rounded(4 * ROWS) + rounded(4 * COLUMNS)
    for dtype in (FP32, BF16):
        assert states_of("came", "for-loop", weight(dtype)) == 4 * WHOLE + 2 * factors + NUMBER
        assert states_of("came", "for-loop", weight(dtype, (WHOLE,))) == 2 * 4 * WHOLE + NUMBER


def test_prodigy_keeps_one_number_of_what_begins_with_zeros() -> None:
    second = weight(name="base_model.layers.0.q_proj.lora_B.weight")
    assert states_of("prodigy", "for-loop", second) == 3 * 4 * WHOLE + NUMBER


def test_every_file_has_what_a_library_has() -> None:
    """A name in the table is a file, and the file has all that `Library` says."""
    asked = [name for name in vars(Library) if not name.startswith("_")]
    for file in LIBRARIES.values():
        module = import_module(f"vramplan.replay.optimizers.{file}")
        assert [name for name in asked if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    ("word", "how", "most"),
    [
        ("adagrad", "foreach", 4),  # of two weights: roots and numerators
        ("adagrad", "for-loop", 2),  # the root of one weight, until that of the next is there
        ("nadam", "for-loop", 3),
        ("radam", "for-loop", 5),
        ("adamax", "foreach", 2),
        ("adadelta", "for-loop", 3),
        ("asgd", "for-loop", 0),
        ("schedule-free-adamw", "foreach", 2),
        ("schedule-free-sgd", "for-loop", 0),
        ("adamw-optimi", "foreach", 0),
        ("adamw-optimi", "for-loop", 1),
        ("stable-adamw", "for-loop", 2),
        ("stable-adamw", "fused", 0),
        ("adopt", "foreach", 4),
        ("adopt", "for-loop", 4),
        ("grokadamw", "for-loop", 6),  # the moments of two weights, and the average and the gradient of the first
    ],
)
def test_the_step_has_as_many_tensors_of_a_weight_at_a_time(word: str, how: str, most: int) -> None:
    tape = Tape(1, direct=True)
    parameters = [tape.parameter(f"weight {number}", (ROWS, COLUMNS), FP32) for number in range(2)]
    tape.category = "temporaries"
    begin = len(tape.events)
    step_group(tape, parameters, word, how)
    level = highest = 0
    for event in tape.events[begin:]:
        level += tape.fixed[event] if event >= 0 else -tape.fixed[~event]
        highest = max(highest, level)
    assert (highest // (4 * WHOLE), level) == (most, 0)
