"""docs/cli.md, made from the commands themselves: `python -m tests.docs.cli` writes it, a test holds it to that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tests.options.made import default_of
from vramplan.cli.app import app
from vramplan.cli.commands import COMMANDS, build
from vramplan.options import table
from vramplan.options.shortcuts import SHORTCUTS
from vramplan.options.spellings import SpellingMeaning

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "cli.md"

# one sentence per line, as on every page
HEAD = """\
# The command line

For people who look up a command, an option or an example.
This page is made from the commands: it says what `--help` says, of all of them.

Options may stand in any order, before or behind arguments, as `--option value` or `--option=value`.
Every command has `--help`, or `-h`, which shows what stands here about it.
Several commands take a job as options: these are described [once](#options-of-a-job), and what each key means is in [the job format](job-format.md).
The exit codes are explained in [exit codes](exit-codes.md), the formats in [the job format](job-format.md#formats), completion of all that stands here in [completion](completion.md).
Everything an answer has in JSON, a program in Python has from [the API](api.md).
"""  # noqa: E501


class Command(NamedTuple):
    """One command as its help has it."""

    name: str  # with the program and the group before it
    paragraphs: tuple[str, ...]
    examples: tuple[str, ...]
    exit_codes: str | None
    built: Any


def commands() -> list[Command]:
    """The program, every command in the order of its help, and every sub-command behind its group."""
    found = [_read("vramplan", typer.main.get_command(app))]
    for name in COMMANDS:
        built = build(name)
        found.append(_read(f"vramplan {name}", built))
        found += [
            _read(f"vramplan {name} {inner}", command) for inner, command in getattr(built, "commands", {}).items()
        ]
    return found


def _read(name: str, built: Any) -> Command:
    paragraphs, examples, exit_codes = [], (), None
    for part in re.split(r"\n\s*\n", built.help.replace("\b", "")):
        text = part.strip()
        if text.startswith("Examples:"):
            examples = tuple(line.strip() for line in text.splitlines()[1:])
        elif text.startswith("Exit codes:"):
            exit_codes = " ".join(text.removeprefix("Exit codes:").split())
        elif text:
            paragraphs.append(" ".join(text.split()))
    return Command(name, tuple(paragraphs), examples, exit_codes, built)


def page() -> str:
    """The whole page."""
    every = commands()
    parts = [HEAD, *(_section(command) for command in every), _job_section(), _other_names()]
    return "\n".join(parts)


JOB = tuple(table.parameters())  # the names of the options that describe a job


def _jobs(command: Command) -> bool:
    return {"model", "gpu"} <= {parameter.name for parameter in command.built.params}


@cache
def _of_a_job() -> frozenset[tuple[str, str | None]]:
    """Name and help of the options that describe a job: a command may have an option of its own by such a name."""
    return frozenset((one.name, one.help) for one in build("fit").params if one.name in JOB)


def _section(command: Command) -> str:
    own = [one for one in command.built.params if one.param_type_name == "option" and one.name != "help"]
    own = [one for one in own if not one.hidden and not (_jobs(command) and (one.name, one.help) in _of_a_job())]
    arguments = [one for one in command.built.params if one.param_type_name == "argument"]
    lines = [f"## {command.name}", ""]
    lines += [line for paragraph in command.paragraphs for line in (*_sentences(paragraph), "")]
    lines += ["```text", f"{command.name} {_usage(command, arguments)}", "```", ""]
    if command.name == "vramplan":
        table = [(f"[`{name}`](#vramplan-{name})", entry.short_help) for name, entry in COMMANDS.items()]
        lines += [*_table(("Command", "What it is for"), table), ""]
    elif hasattr(command.built, "commands"):
        table = [
            (f"[`{name}`](#{command.name.replace(' ', '-')}-{name})", _cell(inner.help.split("\n")[0]))
            for name, inner in command.built.commands.items()
        ]
        lines += [*_table(("Sub-command", "What it is for"), table), ""]
    if arguments:
        table = [(f"`{_metavar(one).strip('[].')}`", _cell(one.help)) for one in arguments]
        lines += [*_table(("Argument", "Meaning"), table), ""]
    if _jobs(command):
        lines += ["It takes the [options of a job](#options-of-a-job), and:", ""]
    if own:
        lines += [*_table(("Option", "Default", "Meaning"), [_option(one) for one in own]), ""]
    if command.examples:
        lines += ["```sh", *(as_shell(example) for example in command.examples), "```", ""]
    if command.exit_codes:
        lines += [f"Exit codes: {_cell(command.exit_codes)}", ""]
    return "\n".join(lines)


def _job_section() -> str:
    shown = {one.name: one for one in build("fit").params}
    lines = [
        "## Options of a job",
        "",
        "Each sets a key of a job, which [the job format](job-format.md) describes.",
        "An answer lists every default that it took, under its assumptions.",
        "",
    ]
    for section in table.SECTIONS:
        rows = [
            (
                _names(shown[name]),
                _code(row.key),
                default_of(row).replace("](#", "](job-format.md#"),
                _cell(row.description),
            )
            for name, row in table.parameters().items()
            if row.section == section
        ]
        if rows:
            lines += [f"### {section}", "", *_table(("Option", "Job key", "Default", "Meaning"), rows), ""]
    return "\n".join(lines)


NAMES = """\
## Names of other programs

These are taken in every command that takes a job; case does not matter, and `_` and `-` are the same.
What such a name leaves open is in the assumptions of an answer.
A word that can only be one value of an everyday option is read as that, with a note: `--dpo` is `--loss dpo`.

### Words beside the options

The same names are taken without their dashes, in any order, one by one or as a sentence in quotes:
`fit "Qwen2.5 7B QLoRA r=16 on 2 x 3090, 4k context, bs 2"`.

| Words | Are read as |
|---|---|
| an option without a value, or a value of one option | `qlora`, `fsdp`, `zero 3 offload`, `flash attn 2`, `grad ckpt` |
| a number beside what it counts | `bs 8`, `bs8`, `8 gpus`, `2 nodes`, `rank 16`, `r=16`, `4096 tokens` |
| a number with k, or a power of two from 512 on | the length of a sequence: `8k`, `4096` |
| a size in GB or GiB | the GPU |
| a list, in `compare` and `plan` | each: `rank 8,16`, `rank 8 16`, `zero 2 or 3`; `with and without checkpointing` |
| numbers, in `scale` | numbers of GPUs: `1 2 4 8`, `up to 16`, `from 2 to 16` |
| an option of one command, and its value | `budget 16gb`, `exclude offload`, `tensor NAME`; `to trl` of `convert` |
| `max batch size`, `longest context`, `how many gpus` | `--max micro-batch`, `--max sequence`, `--gpus auto` |
| a name with one wrong letter, other points or dashes | that name, if only one is so near; no digit is corrected |
| a word that says nothing of a run, as `can`, `train`, `with` | nothing |

What is not said by the option of the same name is told in a note on stderr.
A word that is not understood is an error, with near words; none is dropped.
An option behind the words replaces what they say of the same, and a note says so.
"""


def _other_names() -> str:
    """Options and words that other programs have for ours."""
    rows = [row for row in table.parameters().values() if row.option]
    options: list[tuple[str, ...]] = [
        (_code(row.option), ", ".join(map(_code, row.also))) for row in rows if row.option and row.also
    ]
    shortcuts: list[tuple[str, ...]] = [
        (", ".join(map(_code, one.flags)), _cell(one.help), "" if not one.denied else _code(" ".join(one.denied)))
        for one in SHORTCUTS
    ]
    of: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for word, spelt in _by_word(row.spellings):
            also = ", ".join(_code(name) for name, _ in spelt if name != word)
            if also:
                of.setdefault((_code(word), also), []).append(_code(row.option or ""))
    words: list[tuple[str, ...]] = [(word, also, ", ".join(names)) for (word, also), names in of.items()]
    lines = [NAMES, "### Options", "", *_table(("Option", "Also taken"), options), ""]
    lines += ["### Options that stand for others", ""]
    lines += [*_table(("Typed", "Meaning", "With `false` behind it"), shortcuts), ""]
    lines += ["### Words", "", *_table(("Word", "Also taken", "Of"), words), ""]
    return "\n".join(lines)


def _by_word(spellings: Mapping[str, SpellingMeaning]) -> list[tuple[str, list[tuple[str, SpellingMeaning]]]]:
    """The spellings of each word of a key, with what else it sets."""
    found: dict[str, list[tuple[str, SpellingMeaning]]] = {}
    for spelling, meant in spellings.items():
        beside = "".join(f", {table.find(key).option} {value}" for key, value in meant.also)
        found.setdefault(meant.word + beside, []).append((spelling, meant))
    return list(found.items())


def _usage(command: Command, arguments: list[Any]) -> str:
    words = ["--model MODEL --gpu GPU"] if command.name == "vramplan fit" else []
    words.append("[OPTIONS]")
    words += [_metavar(argument) for argument in arguments]
    if hasattr(command.built, "list_commands"):
        words.append("COMMAND [ARGUMENTS]" if command.name == "vramplan" else "[COMMAND [ARGUMENTS]]")
    return " ".join(words)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(option: Any) -> tuple[str, str, str]:
    default = option.default
    shown = "" if default is None or default is False or callable(default) else f"`{default}`"
    meaning = _cell(option.help)
    return _names(option), shown, meaning + (" Repeatable." if option.multiple and "epeatable" not in meaning else "")


def _names(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'TEXT'}"
    names = sorted((*option.opts, *option.secondary_opts), key=lambda name: not name.startswith("--"))
    return ", ".join(_code(f"{name}{value if name == names[0] else ''}") for name in names)


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("*", "\\*")


def _sentences(paragraph: str) -> list[str]:
    """One sentence per line."""
    return re.split(r"(?<=[a-z`)][.?!]) (?=[A-Z`])", _cell(paragraph))


def as_shell(example: str) -> str:
    """An example as a shell takes it: what is said behind it in brackets becomes a comment."""
    return re.sub(r"\s{2,}\((.+)\)$", r"  # \1", example)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(head)} |"
        yield "|" + "---|" * len(head)
        yield from (f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
