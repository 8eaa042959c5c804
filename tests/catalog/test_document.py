"""Files into nodes: places, what YAML 1.1 would have made of it, and files that were written to hurt."""

import contextlib
import json
import os
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramplan.catalog import document
from vramplan.catalog.document import Mapping, Scalar, Sequence
from vramplan.catalog.fields import Fields, Sink
from vramplan.catalog.text import MAX_BYTES
from vramplan.errors import InputError


def read(text: str, file: str = "x.yaml") -> Fields:
    loaded = document.parse(text, file)
    return Fields(loaded.root, Sink(file, loaded.problems))


def problems_of(text: str, file: str = "x.yaml") -> list[str]:
    try:
        return [str(problem) for problem in document.parse(text, file).problems]
    except InputError as error:
        return [str(problem) for problem in error.problems]


def test_nodes_remember_line_and_column() -> None:
    root = document.parse("a: 1\nb:\n  - c: x\n", "x.yaml").root
    item = root.entries["b"].value
    assert isinstance(item, Sequence)
    inner = item.items[0]
    assert isinstance(inner, Mapping)
    value = inner.entries["c"].value
    assert (value.line, value.column, inner.entries["c"].key.column) == (3, 8, 5)


@pytest.mark.parametrize(
    ("written", "as_number"),
    [("1e9", 10**9), ("1e-05", 1e-05), ("4.0", 4), ("+3", 3), ("0", 0), ("-2", -2), ("017", None), ("3:20", None)],
)
def test_numbers_are_json_numbers(written: str, as_number: float | None) -> None:
    fields = read(f"k: {written}")
    assert fields.text("k") == written
    assert fields.number("k") == as_number
    assert bool(fields.sink.problems) == (as_number is None)


@pytest.mark.parametrize("word", ["no", "on", "yes", "off", "y", "true", "1e9", "3:20", "017", "2026-11-20", "1_000"])
def test_a_text_stays_the_text_that_was_written(word: str) -> None:
    assert read(f"k: {word}").text("k") == word


def test_only_true_and_false_are_booleans() -> None:
    assert [read(f"k: {word}").boolean("k") for word in ("true", "False", "TRUE")] == [True, False, True]
    for word in ("no", "yes", "on", "1", '"true"', "[true]"):
        fields = read(f"k: {word}")
        assert fields.boolean("k") is None
        assert "expected true or false" in str(fields.sink.problems[0])


def test_a_boolean_is_no_number_and_a_quoted_number_neither() -> None:
    for word in ("true", '"4"', "four", "4.5", "[4]", "{a: 4}"):
        fields = read(f"k: {word}")
        assert fields.integer("k") is None
        assert len(fields.sink.problems) == 1, word
    fields = read('k: "4"')
    fields.integer("k")
    assert "remove the quotes" in str(fields.sink.problems[0])


@pytest.mark.parametrize("word", [".nan", ".inf", "-.inf", "NaN", "Infinity", "1e999", "9" * 5000, "9" * 61])
def test_numbers_that_cannot_be_computed_with(word: str) -> None:
    fields = read(f"k: {word}")
    assert fields.number("k") is None
    assert len(fields.sink.problems) == 1
    assert len(str(fields.sink.problems[0])) < 200


def test_limits_say_the_value_and_the_limit() -> None:
    fields = read("a: 0\nb: 1.0\nc: 5000000000000000000")
    fields.integer("a")
    fields.number("b", minimum=0, below=1)
    fields.integer("c")
    assert [str(problem) for problem in fields.sink.problems] == [
        "x.yaml:1:4: a: 0 is too small; the least is 1",
        "x.yaml:2:4: b: 1.0 is too large; it is less than 1",
        f"x.yaml:3:4: c: 5000000000000000000 is too large; the most is {2**62}",
    ]


def test_null_is_absent() -> None:
    for word in ("null", "~", "", "NULL"):
        fields = read(f"k: {word}")
        assert (fields.text("k"), fields.integer("k"), fields.given("k"), fields.present("k")) == (
            None,
            None,
            False,
            True,
        )
        assert not fields.sink.problems
    assert read('k: "null"').text("k") == "null"


def test_duplicate_keys_name_both_places_and_do_not_hide_each_other() -> None:
    assert problems_of("a: 1\nb: {x: 1, x: 2}\na: 3\n") == [
        "x.yaml:2:11: x: the key is given twice; first at line 2, column 5",
        "x.yaml:3:1: a: the key is given twice; first at line 1, column 1",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("null", "is empty"),
        ("- 1\n- 2", "not a list"),
        ("word", "not a single value"),
        ("a: 1\n---\nb: 2\n", "3:1: a second document"),
        ("a: &x 1\n<<: {b: 2}", "merge keys are not supported"),
        ("a: !!python/object:os.system x", "is not supported"),
        ("a: !secret x", "is not supported"),
        ("[a]: 1", "a key must be text"),
        ("? {a: 1}\n: 1", "a key must be text"),
        ("a: *b", "has no &b before it"),
        ("a: &b [*b]", "inside its own"),
        ("a: [1", "not YAML"),
        ("a: 'b", "not YAML"),
        ("a: 1\n b: 2", "not YAML"),
        ("\ta: 1", "not YAML"),
        ("a: @b", "not YAML"),
    ],
)
def test_broken_files(text: str, message: str) -> None:
    found = problems_of(text)
    assert found
    assert message in found[0]


def test_aliases_are_read() -> None:
    fields = read("a: &x {k: 1}\nb: *x\nc: [*x, *x]\nd: &t text\ne: *t")
    assert fields.value("c") == [{"k": 1}, {"k": 1}]
    assert fields.text("e") == "text"


def test_a_billion_laughs_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)]
    start = time.perf_counter()
    assert "aliases stand for more" in problems_of("\n".join(lines))[0]
    assert time.perf_counter() - start < 20  # what is exponential takes for ever


def test_depth_is_limited_through_aliases_too() -> None:
    chain = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 2000)]
    for text in ("[" * 5000, "{a: " * 5000, "- " * 5000 + "x", "\n".join(chain)):
        assert any("levels deep" in problem for problem in problems_of(text)), text[:20]


def test_many_problems_are_cut_short() -> None:
    found = problems_of("\n".join(["a: 1"] * 5000))
    assert len(found) <= document.MAX_PROBLEMS + 1


@pytest.mark.parametrize(
    "text",
    ['{"a": NaN}', '{"a": Infinity}', '{"a": -Infinity}', "{'a': no}", '{"a": 0x10}', '{"a": 017}', '{"a": True}'],
)
def test_json_files_hold_json(text: str) -> None:
    assert "JSON" in problems_of(text, "config.json")[0]


@pytest.mark.sweep(4)
@settings(max_examples=40)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.text(max_size=8).filter(lambda s: s.isprintable()),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc<=*&!", max_size=3), inner, max_size=3),
        max_leaves=10,
    ),
    st.booleans(),
)
def test_json_reads_as_json_does(value: object, ascii_only: bool) -> None:
    text = json.dumps({"k": value}, ensure_ascii=ascii_only, indent=1)
    fields = read(text, "x.json")
    assert fields.value("k") == value
    assert not fields.sink.problems


def test_json_with_tabs_and_surrogate_pairs() -> None:
    fields = read('{\n\t"a": "\\ud83d\\ude00 \\\\ud83d \\/",\n\t"b": 1e-05\n}', "x.json")
    assert fields.value("a") == "\U0001f600 \\ud83d /"
    assert fields.number("b") == 1e-05


@given(st.text(max_size=60))
def test_junk_raises_nothing_else(text: str) -> None:
    for file in ("x.yaml", "x.json"):
        with contextlib.suppress(InputError):
            document.parse(text, file)


@given(st.binary(max_size=60))
def test_binary_junk_raises_nothing_else(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "x.yaml"
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        document.load(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: \xff\xfe\n", ":1:4: is not UTF-8"),
        (b"a: 1\nb: \x00\n", ":2:4: holds the control character U+0000"),
        (b"\x7fELF\x02\x01\x01\x00", "control character"),
        ("a: 1".encode("utf-16"), "is not UTF-8"),
    ],
)
def test_files_that_are_no_text(tmp_path, data: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"x\.yaml") as caught:
        document.load(path)
    assert message in str(caught.value)


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: text\r\n")
    root = document.load(path).root
    assert list(root.entries) == ["a", "b"]
    value = root.entries["b"].value
    assert isinstance(value, Scalar)
    assert value.text == "text"


def test_only_regular_files_are_opened(tmp_path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    for path, message in [
        (tmp_path, "is a directory"),
        (tmp_path / "nothing.yaml", "no such file"),
        (fifo, "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
    ]:
        with pytest.raises(InputError, match=message):
            document.load(path)


def test_a_large_file_is_refused(tmp_path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="larger than 8 MiB"):
        document.load(path)


def test_yaml_is_not_imported_before_something_is_read() -> None:
    import subprocess

    code = "import sys, vramplan.job, vramplan.catalog.gpus, vramplan.catalog.models; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_python_parser_gives_the_same_nodes(monkeypatch) -> None:
    import yaml

    text = "a: 1\nb: [x, 'y', \"z\"]\nc: |\n  block\nd: &k {e: ~}\nf: *k\n"
    fast = read(text)
    monkeypatch.delattr(yaml, "CSafeLoader")
    slow = read(text)
    assert [fast.value(key) for key in fast.names] == [slow.value(key) for key in slow.names]
    assert slow.value("b") == ["x", "y", "z"]


def test_unknown_keys_get_the_nearest_ones() -> None:
    fields = read("sequense_length: 3\nzzz: 1")
    fields.reject_unknown(("sequence_length", "model"))
    assert [str(problem) for problem in fields.sink.problems] == [
        "x.yaml:1:1: sequense_length: unknown key (did you mean sequence_length?)",
        "x.yaml:2:1: zzz: unknown key (known: sequence_length, model)",
    ]


def test_a_key_of_a_million_letters_is_reported_fast() -> None:
    fields = read(f"? {'x' * 1_000_000}\n: 1")
    start = time.perf_counter()
    fields.reject_unknown(("sequence_length",))
    assert time.perf_counter() - start < 20  # what is exponential takes for ever
    assert len(str(fields.sink.problems[0])) < 300


def test_terminal_escapes_are_not_passed_on() -> None:
    fields = read('"a\\e[31m": "b\\e[31m"')
    fields.word("a\x1b[31m", ("x",))
    fields.reject_unknown(("x",))
    assert "\x1b" not in "".join(map(str, fields.sink.problems))
