"""Closed form: what was never traced together is answered, says so, and is no answer of another run."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan import api

ONE: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "sequence_length": 512, "micro_batch_size": 1}


def answered(**keys: Any) -> Any:
    given = {**ONE, "activation_checkpointing": "none", **keys}
    return api.fit(**{key: value for key, value in given.items() if value is not None})


def component(answer: Any, name: str) -> int:
    return sum(one.bytes for one in answer.components if one.name == name)


COMPILED: list[tuple[dict[str, Any], str]] = [
    ({"model": "falcon-rw-1b"}, "compile true was never traced with falcon"),
    ({"model": "vit-base-patch16-224", "sequence_length": None}, "compile true was never traced with vit"),
    ({"loss": "fused"}, "compile true was never traced together with loss fused"),
    ({"loss": "chunked:8"}, "compile true was never traced together with loss chunked:8"),
    ({"attention": "eager"}, "compile true was never traced with attention eager"),
    ({"model": "bert-base-uncased", "loss": "classification"}, "compile true was never traced with a classifier"),
    ({"runtime": "litgpt"}, "compile true was never traced with llama under litgpt"),
    (
        {"adapter": {"kind": "lora"}, "activation_checkpointing": "full"},
        "compile true was never traced with an adapter together with activation_checkpointing full",
    ),
]


@pytest.mark.parametrize(("keys", "sentence"), COMPILED, ids=str)
def test_a_compiled_step_is_composed_and_says_so(keys: dict[str, Any], sentence: str) -> None:
    eager, compiled = (answered(**keys, compile=one) for one in (False, True))
    assert any(sentence in one for one in compiled.warnings)
    assert component(compiled, "weights") == component(eager, "weights")
    assert component(compiled, "optimizer") == component(eager, "optimizer")
    # fused chains keep less of a forward pass
    assert compiled.peak.saved_bytes <= eager.peak.saved_bytes
