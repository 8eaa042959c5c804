"""What a release of PyTorch changes, and that words in a case change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job, read_job_file
from vramplan.results import FitResult
from vramplan.values.job import ResolvedJob

LAYERS, HEADS, SEQUENCE, MICRO = 4, 8, 256, 2
MODEL = {
    "family": "bert",
    "task": "cls",
    "layers": LAYERS,
    "hidden_size": 256,
    "attention_heads": HEADS,
    "intermediate_size": 1024,
    "vocabulary_size": 1000,
    "max_positions": 512,
}
RUN = {
    "model": MODEL,
    "gpu": "v100",
    "precision": "fp32",
    "optimizer": "sgd",
    "attention": "eager",
    "sequence_length": SEQUENCE,
    "micro_batch_size": MICRO,
    "gradient_accumulation_steps": 1,
    "activation_checkpointing": "none",
}


def run(**keys: Any) -> FitResult:
    return answer(build_job({**RUN, **keys}))


def read(folder: Path, **keys: Any) -> ResolvedJob:
    file = folder / "cases.json"
    file.write_text(json.dumps({"version": 1, "jobs": [{"name": "one", **RUN, **keys}]}), "utf-8")
    (entry,) = read_job_file(file)
    assert isinstance(entry.job, ResolvedJob), entry.problems
    return entry.job


def case(folder: Path, notes: str, **keys: Any) -> ResolvedJob:
    return read(folder, measured={"peak_bytes": 1, "metric": "device"}, notes=notes, **keys)


@pytest.mark.closed_form
def test_a_softmax_kept_its_input_before_1_11() -> None:
    scores, logits = LAYERS * MICRO * HEADS * SEQUENCE**2 * 4, 512  # the loss has a softmax too
    old, new = (run(pytorch_version=version).peak.saved_bytes for version in ("1.10", "1.11"))
    assert old - new == scores + logits


@pytest.mark.closed_form
def test_gradients_stayed_as_zeros_before_2_0() -> None:
    old, new = (run(pytorch_version=version) for version in ("1.13", "2.0"))
    parts = {part.name: part.bytes for part in old.components}
    weights = parts["weights"]
    assert parts["gradients"] == weights
    assert old.peak.forward_bytes - new.peak.forward_bytes == weights


VIT = {
    "family": "torchvision_vit",
    "task": "image",
    "layers": LAYERS,
    "hidden_size": 256,
    "attention_heads": HEADS,
    "intermediate_size": 1024,
    "max_positions": 197,
    "image_size": 224,
    "patch_size": 16,
    "channels": 3,
    "classes": 10,
}


@pytest.mark.closed_form
def test_first_flash_leaves_an_output_that_the_projection_copies() -> None:
    micro, tokens = 32, 197
    of_vit = {
        "model": VIT,
        "gpu": "a100-40gb",
        "precision": "pure-bf16",
        "attention": "sdpa",
        "micro_batch_size": micro,
    }
    of_vit |= {"runtime": "pytorch", "sequence_length": None}
    old, new = (run(**of_vit, pytorch_version=version) for version in ("2.0", "2.2"))
    copies = LAYERS * micro * tokens * 256 * 2
    padded = LAYERS * micro * HEADS * (-tokens % 16) * 4  # of the logarithms of sums, whose rows are rounded to 16
    assert old.peak.saved_bytes - new.peak.saved_bytes == copies + padded


@pytest.mark.parametrize(
    ("version", "keys", "kernel"),
    [
        ("2.0", {"micro_batch_size": 8}, "flash"),
        ("2.0", {"micro_batch_size": 7}, "efficient"),  # 56 samples times heads
        ("2.0", {"micro_batch_size": 7, "sequence_length": 127}, "flash"),
        ("2.1", {"micro_batch_size": 5}, "flash"),  # 240 < 256 tokens
        ("2.1", {"micro_batch_size": 6}, "efficient"),
        ("2.2", {"micro_batch_size": 6}, "flash"),
        ("2.0", {"model": {**MODEL, "attention_heads": 2}, "micro_batch_size": 64}, "efficient"),  # heads of 128
        ("2.0", {"model": {**MODEL, "attention_heads": 2}, "gpu": "rtx-4090"}, "math"),
        ("2.1", {"model": {**MODEL, "attention_heads": 2}, "gpu": "rtx-4090"}, "efficient"),
        ("2.1", {"model": {**MODEL, "attention_heads": 2}, "gpu": "a100-40gb", "micro_batch_size": 1}, "flash"),
        ("2.1", {"model": {**MODEL, "attention_heads": 1}, "micro_batch_size": 1}, "efficient"),  # heads of 256
    ],
)
def test_what_sdpa_chose(version: str, keys: dict[str, Any], kernel: str) -> None:
    of_half = {"gpu": "a100-40gb", "precision": "pure-bf16", "attention": "sdpa", "dropout": 0.0}
    job = build_job({**RUN, **of_half, **keys, "pytorch_version": version})
    assert job.attention == kernel
    assert job.first_flash == (kernel == "flash" and version != "2.2")


LLAMA = {
    "family": "llama",
    "task": "lm",
    "layers": LAYERS,
    "hidden_size": 256,
    "attention_heads": HEADS,
    "key_value_heads": 2,
    "intermediate_size": 512,
    "vocabulary_size": 1000,
    "max_positions": 512,
}
MIXTRAL = {**LLAMA, "family": "mixtral", "experts": {"count": 4, "active": 2}}
OF_16_BITS = {"gpu": "a100", "precision": "pure-bf16", "attention": "sdpa"}


def saved(release: str | None, **keys: Any) -> int:
    return run(model=LLAMA, transformers_version=release, **{**OF_16_BITS, **keys}).peak.saved_bytes


@pytest.mark.closed_form
def test_sdpa_was_given_repeated_keys_and_values_before_4_54() -> None:
    tokens, size = MICRO * SEQUENCE * LAYERS * 2, 256 // HEADS
    assert saved("4.53") - saved("4.54") == 2 * (HEADS - 2) * size * tokens
    copies = (HEADS + 2 + 2 + HEADS) * size * tokens  # of queries, keys and values, and what comes out lies like these
    rotated = (HEADS + 2) * size * tokens  # queries and keys are saved as copies alone
    assert saved("4.55") - saved("4.56") == copies - rotated - 2 * size * tokens  # and so are values
    assert saved("4.53", attention="flash") == saved("4.56", attention="flash") == saved(None)


@pytest.mark.closed_form
def test_keys_were_of_the_type_of_values_under_autocast_before_4_43() -> None:
    """Each attention made its own cosines and sines in it; today's are in that of the hidden states, which are fp32.

    Transformers 4.42.4 under autocast to bf16 returns bf16 keys and values, 5.23.0 fp32.
    """
    size, held = 256 // HEADS, {"precision": "amp-bf16", "attention": "eager", "use_cache": True, "hold_outputs": True}
    returned = 2 * MICRO * 2 * SEQUENCE * size * LAYERS  # keys and values of two heads
    tables = 2 * SEQUENCE * size * (2 * LAYERS - 4)  # cosines and sines, which multiplying saves
    assert saved("4.43", **held) - saved("4.42", **held) == (4 - 2) * returned - tables
    qwen2 = {**LLAMA, "transformers_model_type": "qwen2"}
    old, new = (run(model=qwen2, transformers_version=one, **{**OF_16_BITS, **held}).peak for one in ("4.44", "4.45"))
    assert new.saved_bytes - old.saved_bytes == (4 - 2) * returned - tables


@pytest.mark.closed_form
def test_the_loss_copied_logits_before_4_49() -> None:
    """In the type of the loss: the cast logits, the copy and the log-probabilities are there together in it."""
    logits, copied = (MICRO * tokens * 30_000 * 4 for tokens in (SEQUENCE, SEQUENCE - 1))
    model = {**LLAMA, "vocabulary_size": 30_000}
    old, new = (run(model=model, transformers_version=one, **OF_16_BITS).peak for one in ("4.48", "4.49"))
    labels = SEQUENCE * MICRO * 8 * 2  # those that are padded
    assert old.forward_bytes - new.forward_bytes == pytest.approx(2 * copied - logits, abs=labels)


@pytest.mark.closed_form
def test_experts_are_layers_before_5_0_and_quantized() -> None:
    keys = {**OF_16_BITS, "model": MIXTRAL, "quantization": "nf4", "adapter": {"kind": "lora", "rank": 8}}
    old, new = (run(**keys, transformers_version=one) for one in ("4.57", "5.0"))
    weights = [next(part.bytes for part in one.components if part.name == "weights") for one in (old, new)]
    experts = LAYERS * 4 * 3 * 256 * 512
    assert weights[1] - weights[0] == pytest.approx(experts * (2 - 0.5 - 4 / 64), rel=0.01)  # a number for 64 weights


FALCON = {"family": "falcon", "layers": LAYERS, "hidden_size": 256, "attention_heads": HEADS, "key_value_heads": 1}
FALCON |= {"vocabulary_size": 1000, "max_positions": 512, "intermediate_size": 1024, "task": "lm"}


@pytest.mark.closed_form
def test_layers_of_a_class_of_their_own_are_quantized_before_5_5() -> None:
    keys = {**OF_16_BITS, "model": FALCON, "quantization": "nf4", "adapter": {"kind": "lora", "rank": 8}}
    old, new = (run(**keys, transformers_version=one) for one in ("5.4", "5.5"))
    weights = [next(part.bytes for part in one.components if part.name == "weights") for one in (old, new)]
    fused = 256 + 2 * 256 // HEADS
    layers = LAYERS * (256 * fused + 256 * 256 + 2 * 256 * 1024)
    assert weights[1] - weights[0] == pytest.approx(layers * (2 - 0.5 - 4 / 64), rel=0.01)  # a number for 64 weights


def test_layers_that_are_not_quantized_are_told_and_can_be() -> None:
    keys = {"model": "falcon-40b", "gpu": "a100-40gb", "quantization": "nf4", "adapter": {"kind": "lora", "rank": 8}}
    found = answer(build_job({**keys, "micro_batch_size": 1, "sequence_length": 512}))
    assert any("has FalconLinear in its place: it stays in 16 bits" in one for one in found.warnings)
    older = answer(build_job({**keys, "micro_batch_size": 1, "sequence_length": 512, "transformers_version": "5.4"}))
    assert older.verdict == "fits"
    assert not any("FalconLinear" in one for one in older.warnings)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"transformers_version": "four"}, "no release of Transformers"),
        ({"transformers_version": "3.4"}, "not modelled"),
        ({"transformers_version": "4.57", "model": "gpt-oss-20b"}, "other code of the experts"),
        ({"transformers_version": "4.57", "model": MIXTRAL, "compile": True}, "not modelled with compile"),
        ({"transformers_version": "4.57", "runtime": "litgpt", "model": "llama-2-7b"}, "in the code of litgpt"),
    ],
)
def test_what_of_a_release_is_not_known_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build_job({**RUN, **OF_16_BITS, **keys})


def test_what_a_release_changes_is_told() -> None:
    def told(model: Any, release: str) -> str:
        job = build_job({**RUN, **OF_16_BITS, "model": model, "transformers_version": release})
        return next(one.why for one in job.assumptions if one.key == "transformers_version")

    assert "repeated keys" in told(LLAMA, "4.50")
    assert "copies" in told(LLAMA, "4.55")
    assert "each expert is a module" in told(MIXTRAL, "4.57")
    assert "today's code" in told("gpt2", "4.50")
    assert "today's code" in told(LLAMA, "5.2")


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("optimizer", "implementation", "twice"),
    [("adamw", "foreach", True), ("adam", "foreach", True), ("adamw", "fused", False), ("rmsprop", "foreach", False)],
)
def test_foreach_adam_made_denominators_beside_square_roots_before_2_1(
    optimizer: str, implementation: str, *, twice: bool
) -> None:
    keys = {"optimizer": optimizer, "optimizer_implementation": implementation}
    old, new = (run(pytorch_version=version, **keys) for version in ("2.0", "2.1"))
    weights = next(part.bytes for part in old.components if part.name == "weights")
    assert old.peak.step_bytes - new.peak.step_bytes == (weights if twice else 0)


def test_a_loop_that_zeroes_gradients_late_is_one_of_your_own() -> None:
    loop = {"runtime": "pytorch", "zero_grad": "before-backward"}
    assert run(**loop).peak.forward_bytes > run(runtime="pytorch").peak.forward_bytes
    old = [
        run(**{**loop, "zero_grad": word}, pytorch_version="1.13").peak for word in ("after-step", "before-backward")
    ]
    assert old[0] == old[1]  # they stay anyway
    for keys in (
        {"runtime": "transformers"},
        {"parallel": {"data": 2, "sharding": "zero2"}},
        {"optimizer_in_backward": True},
        {"parallel": {"data": 1, "tensor": 2}},
    ):
        with pytest.raises(InputError, match="zero_grad: before-backward"):
            build_job({**RUN, **loop, **keys})


@pytest.mark.parametrize("notes", ["Default batch 8; PyTorch 1.6.", "Run in January 2022 (nvidia-smi on the page)."])
def test_a_release_in_the_notes_of_a_case_is_no_key(tmp_path: Path, notes: str) -> None:
    told, plain = case(tmp_path, notes), read(tmp_path)
    assert told.pytorch_version is None
    assert answer(told).peak == answer(plain).peak
    assert case(tmp_path, notes, pytorch_version="1.10").pytorch_version == "1.10"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"transformers_version": "4.40"}, "4.40 was never traced: its code was read"),
        ({"transformers_version": "4.50", "model": "gpt2"}, "never traced with gpt2, which is today's code"),
        ({"transformers_version": "4.50", "packing": True, "attention": "eager"}, "together with packing"),
        ({"transformers_version": "4.50"}, None),
        ({"transformers_version": "4.50", "parallel": {"data": 4, "sharding": "fsdp"}}, None),
        ({"transformers_version": "5.2", "model": "gpt2"}, None),
    ],
)
def test_a_release_that_was_never_traced_so_is_said_and_widens_the_range(
    keys: dict[str, Any], said: str | None
) -> None:
    job = build_job({**RUN, **OF_16_BITS, "model": LLAMA, **keys})
    found = [one for one in job.composed if "transformers_version" in one]
    assert [said in one for one in found] == [True] if said else found == []


def test_quantized_experts_that_change_nothing_are_told() -> None:
    keys = {"model": MIXTRAL, "quantization": "nf4", "adapter": {"kind": "lora"}, "transformers_version": "4.57"}
    jobs = [build_job({**RUN, **OF_16_BITS, **keys, "quantized_experts": asked}) for asked in (True, False)]
    assert answer(jobs[0]).peak == answer(jobs[1]).peak
    assert [any("changes nothing" in one.why for one in job.assumptions) for job in jobs] == [True, False]


@pytest.mark.parametrize(
    ("written", "meant"), [("5", "5.0"), ("v4.57", "4.57"), ("4.57.6", "4.57"), ("4.58.0.dev0", "4.58")]
)
def test_a_release_may_be_written_as_people_write_it(written: str, meant: str) -> None:
    assert (
        build_job({**RUN, **OF_16_BITS, "model": LLAMA, "transformers_version": written}).transformers_version == meant
    )


TINY: dict[str, Any] = {
    "model": "tinyllama-1.1b",
    "gpu": "a100-40gb",
    "runtime": "litgpt",
    "from_scratch": True,
    "sequence_length": 2048,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 128,
    "precision": "pure-bf16",
    "optimizer_implementation": "fused",
    "max_gradient_norm": 0,
    "activation_checkpointing": "none",
    "loss": "fp32-logits",
    "hold_outputs": False,
    "pytorch_version": "2.4",
}


@pytest.mark.truth
def test_an_old_litgpt_keeps_norms_in_16_bits() -> None:
    """29.84 GB are published of May 2024, with the model.py of 0.4.0 (extensions/thunder/README.md at 101e31d)."""
    old, new = (answer(build_job({**TINY, "litgpt_version": one})).peak.allocated_bytes for one in ("0.4.0", "0.5.13"))
    assert old == pytest.approx(29.84e9, rel=0.002)
    tokens, width, norms = 4 * 2048, 2048, 2 * 22 + 1
    assert new - old == pytest.approx(tokens * width * 2 * norms, rel=0.005)  # a factor in fp32 that is 16 bits there


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"litgpt_version": "0.4"}, "no release of LitGPT"),
        ({"litgpt_version": "0.3.1"}, "0.3.1 is not modelled"),
        ({"litgpt_version": "0.4.5", "runtime": "pytorch"}, "0.4.5 says nothing of pytorch"),
        ({"litgpt_version": "0.4.5", "model": "gemma-2b"}, "runs with the operators of Transformers"),
    ],
)
def test_of_which_litgpt_nothing_is_known(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build_job({**TINY, **keys})


@pytest.mark.contract
def test_what_a_release_of_litgpt_changes_is_told() -> None:
    def told(release: str) -> str:
        job = build_job({**TINY, "litgpt_version": release})
        return next(one.why for one in job.assumptions if one.key == "litgpt_version")

    assert "norms multiply by their weight in 16 bits" in told("0.4.5")
    assert "norms" not in told("0.4.6")
    assert "copied out of groups of heads" in told("0.5.4")
    assert told("0.5.12") == "the places of LoRA's parts are not copied"
    assert "today's code" in told("0.5.13")
