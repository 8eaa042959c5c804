"""Whatever is typed or read: an exit code that has a meaning, a message when it is 2, one document in JSON mode."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.cli.running import ABLE, TINY, run, valid

OPTIONS = (
    *("--model", "-m", "--gpu", "-g", "--seq", "--sequence-length", "--micro-batch", "--global-batch", "--steps"),
    *("--gradient-accumulation-steps", "--precision", "--optimizer", "--optimizer-implementation", "--checkpointing"),
    *("--attention", "--dropout", "--hold-outputs", "--no-hold-outputs", "--runtime", "--reserve", "--gpus"),
    *("--sharding", "--profiles", "--print", "--strict", "--loss", "--compile", "--adapter", "--rank", "--targets"),
    *("--quantization", "--frozen", "--offload", "--tensor", "--schedule", "--shards", "--weight-dtype", "--nonsense"),
    *("--activation-model", "--checkpoint-factor", "--gradient-dtype", "--base-lr", "--base-batch-size"),
    *("--modules-to-save", "--activation-bytes", "--image-size", "--quiet", "--job", "--", "--=", "--format"),
)
NUMBERS = (
    *("nan", "inf", "-inf", "-1", "0", "1", "2", "7", "512", "1e999", "-1e999", "1e3", "4.0", "0.5", "true", "null"),
    *("1_000", "0x10", "010", "1e-400", "9" * 30, "9" * 400, "\u0663", "\u00bd", "+1", " 1", "1 ", "1,000"),
)
WORDS = (
    *("gpt2", "bert-tiny", "gpt2-xl", "v100", "t4", "24 GiB", "24", "0 GiB", "1e400 GB", "-3 GiB", "1 furlong"),
    *("none", "full", "sqrt", "every:2", "every:0", "every:-1", "layers:[[0,1]]", "layers:[[9,1]]", "layers:", "auto"),
    *("amp-fp16", "bf16", "fp32", "mixed-fp16", "adamw", "sgd", "foreach", "fused", "flash", "eager", "verdict"),
    *("peak.phases", "checkpoints.0.first", "json", "text", "lora", "q_proj,v_proj", "", " ", ".", "/", "\U0001f40d"),
)
COMMANDS = (
    ["fit"],
    ["fit"],
    ["fit"],
    ["fit", "--runtime", "textbook"],
    ["walkthrough"],
    ["check"],
    ["validate"],
    ["gpus"],
    ["gpus", "show"],
    ["models"],
    ["models", "show"],
)
ANSWERED = {"fit": "fit", "check": "check", "validate": "validate", "walkthrough": "walkthrough"}

values = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.text(max_size=12).filter(lambda text: "\0" not in text),
)


def said(text: str) -> str:
    """What is on stderr behind notes of how a name was read."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("note: "))


def judge(words: list[str], stdin: bytes = b"") -> None:
    """The promise of every command."""
    ran = run(*words, stdin=stdin)
    assert ran.code in (0, 2, 3, 4), ran
    assert "Traceback" not in ran.err
    assert "internal error" not in ran.err
    if ran.code == 2:
        assert said(ran.err).startswith("error: ")
    elif not ran.out:
        assert {"--quiet", "-q"} & set(words)
    assert ran.err.replace("\n", "").isprintable()
    if words[-2:] == ["--format", "json"] and not any(
        word in ("--quiet", "-q", "--print", "--help", "-h", "--version", "--") or word.startswith("--print=")
        for word in words
    ):
        document = ran.document
        if "error" in document:
            valid("error", document)
            assert ran.code == 2
        elif words[0] in ANSWERED:
            valid(ANSWERED[words[0]], document)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Options that exist, in any order, with values that may mean something."""
    words = list(draw(st.sampled_from(COMMANDS)))
    if words == ["fit"] and draw(st.booleans()):
        words += ["-m", "bert-tiny", "-g", draw(st.sampled_from(["v100", "1 GiB", "700 MiB"]))]
    for option in draw(st.lists(st.sampled_from(OPTIONS), max_size=4)):
        words.append(option)
        if draw(st.integers(0, 9)):
            words.append(draw(values))
    if draw(st.integers(0, 4)) == 0:
        words.append(draw(values))
    return words + (["--format", "json"] if draw(st.booleans()) else [])


@pytest.mark.sweep(12)
@settings(deadline=None, max_examples=21, suppress_health_check=[HealthCheck.too_slow])
@given(command_lines())
@example(["fit", "-m", "bert-tiny", "-g", "v100", "--micro-batch", "9" * 30, "--format", "json"])
@example(["fit", "-m", "bert-tiny", "-g", "v100", "--micro-batch", "1099511627776", "--steps", "1099511627776"])
@example(["fit", "-m", "bert-tiny", "-g", "v100", "--global-batch", "1099511627775", "--format", "json"])
@example(["fit", "-m", "bert-tiny", "-g", "1 B", "--seq", "1", "--format", "json"])
@example(["fit", "-m", "bert-tiny", "-g", "v100", "--dropout", "1e-400", "--format", "json"])
@example(["fit", "-m", "~", "-g", "~", "--format", "json"])
@example(["fit", "--format", "json", "--format"])
@example(["gpus", "--print", "gpus.0", "--format", "json", "show"])
def test_any_command_line_is_answered_or_refused(words: list[str]) -> None:
    judge(words)


@pytest.mark.sweep(48)
@pytest.mark.parametrize("number", NUMBERS)
def test_any_number_is_answered_or_refused(number: str) -> None:
    options = ("--seq", "--micro-batch", "--global-batch", "--steps", "--dropout", "--gpus", "--reserve", "--rank")
    for option in options:
        judge(["fit", "-m", "bert-tiny", "-g", "v100", option, number, "--format", "json"])
    judge(["fit", "-m", "bert-tiny", "-g", number, "--format", "json"])
    judge(["fit", "-m", "bert-tiny", "-g", f"{number} GiB", "--format", "json"])
    judge(["gpus", "--min-memory", number, "--format", "json"])


JOB = {
    "version": 1,
    "defaults": {"runtime": "pytorch", "parallel": {"data": 2}},
    "jobs": [
        {
            "name": "one",
            "model": TINY,
            "gpu": {"name": "card", "memory": "2 GiB", **ABLE},
            "micro_batch_size": 2,
            "activation_checkpointing": "every:2",
            "dropout": 0.1,
            "measured": {"peak_bytes": 10**9, "metric": "allocated", "outcome": "fits"},
            "use": ["peak", "fit"],
        },
        {
            "name": "two",
            "model": "bert-tiny",
            "gpu": "t4",
            "expect": "fits",
            "max_utilization": 0.9,
            "reserve": "1 GiB",
        },
    ],
}
TEXT = json.dumps(JOB, indent=1)
SCRAPS = (
    *(
        ".nan",
        ".inf",
        "-1",
        "0",
        "1e999",
        "true",
        "null",
        "~",
        "[]",
        "{}",
        "''",
        "- ",
        ": ",
        "&a",
        "*a",
        "<<: ",
        "!!x ",
    ),
    *("\t", "\n", "\r", "\x00", "\x85", "\u2028", "\ufeff", "\U0001f40d", "'", '"', "|", ">", "%", "@", "`", "---\n"),
    *("9" * 50, "24 G", "gpt2", "{", "}", "[", "]", ",", "#", "\\", "every:0", "layers:[[0,1]]", "tensor", "version"),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid job file with a few cuts and insertions."""
    text = TEXT
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        until = draw(st.sampled_from([at, at, at + 1, at + 5, at + 40]))
        text = text[:at] + draw(st.sampled_from(("", *SCRAPS))) + text[until:]
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=24, suppress_health_check=[HealthCheck.too_slow])
@given(mutated(), st.sampled_from(["check", "validate"]))
@example(TEXT.encode(), "check")
@example(TEXT.encode(), "validate")
def test_a_damaged_file_is_answered_or_refused(content: bytes, command: str) -> None:
    judge([command, "-", "--format", "json"], stdin=content)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in _paths(part, (*path, key)))]


PLACES = _paths(JOB)[1:]  # without the document itself
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    # copies, as a change is put into the one before it
    st.sampled_from(
        [2**70, 1e308, -0.0, 0.5, "", "x", "every:K", "24 G", [], {}, [[]], {"x": 1}, [1, "a"], "gpt2"]
    ).map(deepcopy),
)


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=24, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=3), st.sampled_from(["check", "validate"])
)
@example(changes=[(("jobs", 0, "activation_checkpointing"), "every:K")], command="check")
def test_a_file_with_values_of_the_wrong_kind_is_answered_or_refused(
    changes: list[tuple[tuple[Any, ...], Any]], command: str
) -> None:
    document = json.loads(TEXT)
    for path, value in changes:
        at = document
        with suppress(LookupError, TypeError):  # an earlier change may have taken the place away
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
    judge([command, "-", "--format", "json"], stdin=json.dumps(document).encode())


@settings(deadline=None, max_examples=18)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(content: bytes) -> None:
    judge(["check", "-", "--format", "json"], stdin=content)


CONFIG_KEYS = (
    *("model_type", "n_layer", "n_embd", "n_head", "vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "architectures", "head_dim", "rope_scaling", "sliding_window"),
)
TYPES = ("gpt2", "llama", "bert", "mistral", "rwkv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


@pytest.mark.sweep(8)
@settings(deadline=None, max_examples=18)
@given(
    config=st.dictionaries(
        st.sampled_from(CONFIG_KEYS), st.one_of(JUNK, st.sampled_from(TYPES), st.integers(1, 64)), max_size=6
    )
)
def test_any_hugging_face_config_is_answered_or_refused(config: dict[str, Any], folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", **config}))
    judge(["fit", "-m", str(file), "-g", "t4", "--seq", "8", "--format", "json"])
