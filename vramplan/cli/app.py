"""The Typer app, and `main`: the only place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Annotated, Any

import typer

from vramplan.cli import named
from vramplan.cli.commands import COMMANDS, HELP, Commands, build
from vramplan.cli.output import DOCUMENTS, FORMAT_WORDS, dumps, say, write
from vramplan.cli.typed import names_of
from vramplan.errors import InputError, Problem
from vramplan.exit_codes import ExitCode
from vramplan.version import __version__

COMPLETE = "_VRAMPLAN_COMPLETE"

app = typer.Typer(
    name="vramplan",
    cls=Commands,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,  # Typer's own takes no name of a shell, and reads Rich at every key
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vramplan {__version__}")
        raise typer.Exit


def _show_completion(shell: str | None) -> None:
    if shell is not None:
        named("vramplan.cli.runs.completion:show")(shell)
        raise typer.Exit


def _install_completion(shell: str | None) -> None:
    if shell is not None:
        named("vramplan.cli.runs.completion:install")(shell)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    install_completion: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            callback=_install_completion,
            is_eager=True,
            help="Install completion for bash, zsh or fish; without a name for this shell.",
        ),
    ] = None,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="[SHELL]",
            callback=_show_completion,
            is_eager=True,
            help="Print the script of that completion.",
        ),
    ] = None,
) -> None:
    """Says before a training run starts whether it fits in GPU memory, what fills it, and how to run it.

    \b
    Examples:
      vramplan fit --model gpt2-xl --gpu v100
      vramplan fit llama-3.1-8b 4090 --qlora
      vramplan compare llama-3.1-8b 4090,l40s,a100 --lora
      vramplan check training.yaml --strict
      vramplan gpus
    """


def main(arguments: list[str] | None = None) -> None:
    """Console-script entry point."""
    words = sys.argv[1:] if arguments is None else arguments
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: whatever is written there is unwanted
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it lives as long as the process
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()  # the reader of our output went away: nothing to say
        code = ExitCode.BROKEN_PIPE
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except OSError as error:  # a full disk, say: the answer is known and cannot be written
        _drop_stdout()
        say(f"error: the answer cannot be written: {error.strerror or error}")
        code = ExitCode.UNWRITABLE
    sys.exit(code)


def _drop_stdout() -> None:
    """What is still buffered must not be flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@cache  # a program may invoke commands many times, as the tests do
def _command() -> Any:
    return typer.main.get_command(app)


def _run(words: list[str]) -> int:
    try:
        if COMPLETE in os.environ:
            return _offer(words)
        result = _command().main(args=words, prog_name="vramplan", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as stopped:  # how click ends when the reader of our output went away
        if isinstance(stopped.__context__, BrokenPipeError):
            raise stopped.__context__ from None
        raise
    except InputError as error:
        return _refuse(words, error.problems)
    except (OSError, KeyboardInterrupt):
        raise
    except Exception as error:
        if isinstance(error, typer.Exit):
            return error.exit_code
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(str(error))
            return 0
        if isinstance(error, typer.Abort):
            return ExitCode.INTERRUPTED
        if hasattr(error, "format_message"):  # a usage error of the command line
            context = getattr(error, "ctx", None)
            hint = f"see {context.command_path} --help" if context is not None else None
            return _refuse(words, (Problem(error.format_message(), hint=hint),))
        return _bug(error)


def _offer(words: list[str]) -> int:
    """What a shell asks for at TAB: whatever is wrong, nothing else may be on stdout."""
    answer = named("vramplan.cli.completion:answer")
    try:
        write(answer(os.environ[COMPLETE], words, _command()))
    except InputError as error:
        say(f"error: {error}")
        return ExitCode.BAD_INPUT
    return ExitCode.OK


def _refuse(words: list[str], problems: tuple[Problem, ...]) -> int:
    """Bad input: the message on stderr, and where documents are wanted the error object on stdout."""
    wanted = _document_format(words)
    if wanted is not None:
        sys.stdout.write(dumps(named("vramplan.report.json:error_document")(problems), wanted))
    for problem in problems:
        say(f"error: {problem}")
    return ExitCode.BAD_INPUT


def _bug(error: Exception) -> int:
    say(f"internal error: {type(error).__name__}: {error}")
    say("This is a bug in vramplan. Set VRAMPLAN_TRACEBACK=1 to see where, and please report it.")
    if os.environ.get("VRAMPLAN_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    return ExitCode.INTERNAL_ERROR


def _document_format(words: list[str]) -> str | None:
    """JSON or YAML if the last `--format` asks for it and nothing wins over it.

    Parsing may have failed: read the words.
    """
    asked = "text"
    own = names_of(build(words[0])) if words and words[0] in COMMANDS else {}  # as `timeline --json FILE`
    short = {flag: means for flag, means in named("vramplan.options.shortcuts:FORMATS").items() if flag not in own}
    for i, word in enumerate(words):
        asked = short[word][1] if word in short else asked
        if word == "--format" and i + 1 < len(words):
            asked = words[i + 1]
        elif word.startswith("--format="):
            asked = word.removeprefix("--format=")
        elif word == "--print" or word.startswith("--print=") or word in ("--quiet", "-q"):
            return None
    asked = FORMAT_WORDS.get(asked.lower(), asked)
    return asked if asked in DOCUMENTS else None


if __name__ == "__main__":
    main()
