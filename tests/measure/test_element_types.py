"""Tensors without data take any element types for a product; a GPU does not. Skipped where PyTorch is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra measure")


def multiplied(*dtypes: str) -> Any:
    """A layer's result as a trace makes it: of inputs, a weight and a bias of these element types."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from vramplan.measure.storages import Storages

    with FakeTensorMode(), Storages("cpu", {}):
        shapes = ((4, 8), (3, 8), (3,))
        x, *weights = (
            torch.empty(shape, dtype=getattr(torch, one)) for one, shape in zip(dtypes, shapes, strict=False)
        )
        return torch.nn.functional.linear(x, *weights)


@pytest.mark.contract
@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("float16", "float16", "float32")])
def test_a_trace_ends_where_cuda_has_no_kernel(dtypes: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match="has no kernel for operands of float16 and float32"):
        multiplied(*dtypes)


@pytest.mark.contract
@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("float32", "float32", "float32")])
def test_a_trace_goes_on_with_one_element_type(dtypes: tuple[str, ...]) -> None:
    assert str(multiplied(*dtypes).dtype).endswith(dtypes[0])
