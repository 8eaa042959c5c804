"""What `vramplan --show-completion` and `vramplan --install-completion` do."""

from __future__ import annotations

import typer

from vramplan.cli import shells


def show(shell: str) -> None:
    """Print the script of a shell; an empty name is the shell that calls."""
    typer.echo(shells.SCRIPTS[shells.shell_of(shell, "--show-completion")], nl=False)


def install(shell: str) -> None:
    """Write the script where the shell reads it, and say where that is; an empty name is the shell that calls."""
    name = shells.shell_of(shell, "--install-completion")
    done = shells.install(name)
    typer.echo(f"{name} completion is in {done.script}")
    if done.start_file is not None:
        typer.echo(f"{done.start_file} reads it")
    typer.echo(f"Start a new {name} to use it.")
