"""The code of `vramplan checkpoints --emit python`, run on the real models of Transformers.

A trace of a model with the code counts the same bytes as the replay of the same placement, in every phase; and a model
with the code computes the same gradients as without it. Skipped where PyTorch and Transformers are not installed.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.running import ABLE
from tests.traces.models import CONFIGS, EXPERTS
from vramplan.answers.fit import describe
from vramplan.answers.placement import placement_code
from vramplan.catalog.config_classes import FAMILY_OF
from vramplan.job import build_job, job_to_dict
from vramplan.planner.decision import decide
from vramplan.replay.models.capable import no_checkpointing
from vramplan.report.placement_code import python

INSTALLED = find_spec("torch") is not None and find_spec("transformers") is not None
needs_models = pytest.mark.skipif(not INSTALLED, reason="needs the extra measure")
compiles = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
pytestmark = pytest.mark.truth

ROOT = Path(__file__).parents[2]
NOT_OF_TRANSFORMERS = ("chatglm",)


class Case(NamedTuple):
    """A placement of the checkpoints of a small model."""

    model_type: str
    checkpointing: str  # "mixed": a segment of three blocks in each stack, a stored block, and a segment of the rest
    precision: str
    reentrant: bool = False
    micro_batch_size: int = 2


def _cases() -> list[Case]:
    cases = []
    for number, model_type in enumerate(CONFIGS):
        # autocast's list has no product of experts in a PyTorch without CUDA
        half = number % 2 == 0 or model_type in EXPERTS
        cases.append(Case(model_type, "mixed", "pure-bf16" if half else "amp-bf16"))
    cases += [Case(one, "mixed", "amp-fp16", reentrant=True) for one in ("gpt2", "bert", "llama", "gemma2")]
    cases += [Case(one, "full", "fp32", micro_batch_size=1) for one in ("bert", "t5", "mpt")]
    cases += [Case(one, "sqrt", "amp-fp16") for one in ("t5", "gemma3_text")]
    return [*cases, Case("bart", "every:3", "fp32")]


CASES = {"-".join(map(str, case)): case for case in _cases()}


def mixed(stacks: tuple[int, ...]) -> str:
    """Checkpoints of several blocks and of fewer, with a stored block between them, in every stack."""
    ranges, at = [], 0
    for layers in stacks:
        for first, last in ((0, 2), (4, layers - 1)):
            if first <= last < layers:
                ranges.append([at + first, at + last])
        at += layers
    return "layers:" + json.dumps(ranges, separators=(",", ":"))


def judged(case: Case, folder: Path) -> Any:
    """The decision of a case; its model is read from a `config.json`."""
    config = folder / f"{case.model_type}.json"
    config.write_text(json.dumps({"model_type": case.model_type, **CONFIGS[case.model_type]}), "utf-8")
    keys: dict[str, Any] = {"model": str(config), "gpu": {"name": "a card", "memory": "400 GiB", **ABLE}}
    keys |= {"micro_batch_size": case.micro_batch_size, "gradient_accumulation_steps": 1, "precision": case.precision}
    keys |= {"attention": "eager", "optimizer": "adamw", "max_gradient_norm": None}
    if case.model_type != "vit":
        keys["sequence_length"] = 24
    if case.reentrant:
        keys["checkpoint_reentrant"] = True
    pinned = case.checkpointing
    if pinned == "mixed":
        pinned = mixed(build_job({**keys, "activation_checkpointing": "sqrt"}).model.stacks)
    return decide(build_job({**keys, "activation_checkpointing": pinned}))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the replay says of each case, and what its trace does: one process traces them all."""
    folder = tmp_path_factory.mktemp("traces")
    asked: dict[str, Any] = {}
    said: dict[str, Any] = {}
    for name, case in CASES.items():
        decision = judged(case, folder)
        peak = describe(decision).peak
        said[name] = {"forward": peak.forward_bytes, "backward": peak.backward_bytes, "step": peak.step_bytes}
        asked[name] = {
            "config": {"model_type": case.model_type, **CONFIGS[case.model_type]},
            "job": job_to_dict(decision.judged),
            "code": python(placement_code(decision.judged)),
        }
    request, reply = folder / "asked.json", folder / "answered.json"
    request.write_text(json.dumps(asked), "utf-8")
    words = [sys.executable, "-m", "tests.traces.child", str(request), str(reply)]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **quiet}, capture_output=True, text=True, check=False)
    assert reply.exists(), done.stderr[-2000:]
    return said, json.loads(reply.read_text("utf-8"))


@needs_models
@compiles
@pytest.mark.parametrize("name", CASES)
def test_the_code_allocates_what_the_replay_says(name: str, traced: tuple[dict[str, Any], dict[str, Any]]) -> None:
    said, counted = traced
    assert counted[name] == said[name]


def test_every_type_whose_blocks_can_be_checkpointed_is_traced() -> None:
    able = {one for one, family in FAMILY_OF.items() if no_checkpointing(family) is None}
    assert able - {*CONFIGS} == {*NOT_OF_TRANSFORMERS}


@needs_models
def test_without_a_backward_nothing_is_a_checkpoint(tmp_path: Path) -> None:
    """An evaluation under `torch.no_grad()`, in the mode for training too, as a reference that shares the weights."""
    import torch

    from tests.traces.child import batch, skeleton

    job = judged(Case("gpt2", "mixed", "fp32"), tmp_path).judged
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)

    def checkpoint(*_: Any, **__: Any) -> None:
        raise RuntimeError("a checkpoint")

    namespace["checkpoint"] = checkpoint
    model = skeleton(job, {"model_type": "gpt2", **CONFIGS["gpt2"]}, device="cpu")
    namespace["place_checkpoints"](model)
    model.train()
    with torch.no_grad():
        assert model(**batch(job, model, device="cpu")).loss > 0
    with pytest.raises(RuntimeError, match="a checkpoint"):
        model(**batch(job, model, device="cpu"))


@needs_models
@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_code_changes_no_gradient(model_type: str, tmp_path: Path) -> None:
    """On the CPU with data, dropout and the cache that Transformers keeps by default."""
    import torch

    from tests.traces.child import batch, skeleton

    job = judged(Case(model_type, "mixed", "fp32"), tmp_path).judged
    config = {"model_type": model_type, **CONFIGS[model_type]}
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)

    def gradients(*, placed: bool) -> tuple[dict[str, Any], Any]:
        torch.manual_seed(0)
        model = skeleton(job, config, device="cpu", use_cache=True)
        if placed:
            namespace["place_checkpoints"](model)
        model.train()
        given = batch(job, model, device="cpu")
        torch.manual_seed(1)
        model(**given).loss.backward()
        model.eval()
        with torch.no_grad():
            loss = model(**given).loss
        return {name: weight.grad for name, weight in model.named_parameters()}, loss

    (plain, plain_loss), (placed, placed_loss) = gradients(placed=False), gradients(placed=True)
    differ = {
        name: (gradient, placed[name])
        for name, gradient in plain.items()
        if (gradient is None) != (placed[name] is None) or (gradient is not None and not gradient.equal(placed[name]))
    }
    assert differ == {}
    assert plain_loss.equal(placed_loss)
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in plain.values())


@needs_models
@pytest.mark.parametrize("first", ["code", "shards"])
def test_the_code_goes_with_blocks_that_fsdp_shards(first: str, tmp_path: Path) -> None:
    """`fully_shard` frees the whole weights of a block when the block has run."""
    import torch
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    from tests.traces.child import batch, skeleton

    job = judged(Case("llama", "mixed", "fp32"), tmp_path).judged
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)
    torch.manual_seed(0)
    plain = skeleton(job, {"model_type": "llama", **CONFIGS["llama"]}, device="cpu")
    placed = copy.deepcopy(plain)
    given = batch(job, plain, device="cpu")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        if first == "code":
            namespace["place_checkpoints"](placed)
        for block in placed.model.layers:
            fully_shard(block)
        fully_shard(placed)
        if first == "shards":
            namespace["place_checkpoints"](placed)
        for model in (plain, placed):
            model.train()
            model(**given).loss.backward()
        gradients = [weight.grad.full_tensor() for weight in placed.parameters()]
    finally:
        distributed.destroy_process_group()
    for expected, found in zip(plain.parameters(), gradients, strict=True):
        torch.testing.assert_close(found, expected.grad)


@needs_models
def test_a_copy_of_the_model_computes_with_its_own_weights(tmp_path: Path) -> None:
    import torch

    from tests.traces.child import batch, skeleton

    job = judged(Case("gpt2", "mixed", "fp32"), tmp_path).judged
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)
    model = skeleton(job, {"model_type": "gpt2", **CONFIGS["gpt2"]}, device="cpu")
    names = list(model.state_dict())
    namespace["place_checkpoints"](model)
    assert list(model.state_dict()) == names
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    other(**batch(job, other, device="cpu")).loss.backward()
    assert all(weight.grad is None for weight in model.parameters())
    assert all(weight.grad is not None for weight in other.parameters())


@needs_models
def test_a_model_without_such_blocks_is_refused(tmp_path: Path) -> None:
    from torch import nn

    job = judged(Case("gpt2", "sqrt", "fp32"), tmp_path).judged
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)
    other = nn.Module()
    other.h = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    with pytest.raises(ValueError, match="the model has no list h of 5 blocks"):
        namespace["place_checkpoints"](other)


@needs_models
def test_a_step_that_failed_is_forgotten_and_a_skipped_block_is_an_error(tmp_path: Path) -> None:
    import torch
    from torch import nn

    job = judged(Case("gpt2", "layers:[[0,4]]", "fp32"), tmp_path).judged
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)
    model = nn.Module()
    model.h = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))
    namespace["place_checkpoints"](model)

    def forward(blocks: Any) -> Any:
        hidden = torch.ones(1, 2, requires_grad=True)
        for block in blocks:
            hidden = block(hidden)
        return hidden

    forward(model.h[:3])  # and then it runs out of memory
    forward(model.h).sum().backward()
    with pytest.raises(RuntimeError, match="a block was skipped"):
        forward([*model.h[:2], *model.h[3:]])
