"""Completion in bash, zsh and fish: the script of each, which shell is meant, and where a script is installed."""

from __future__ import annotations

import os
from pathlib import Path

from vramplan.cli import named
from vramplan.errors import InputError, Problem, UsageError, near_matches
from vramplan.tuples import NamedTuple

SHELLS = ("bash", "zsh", "fish")

# The words are handed over one by one: nothing is quoted, joined or evaluated. `completion.py` says what comes back.
BASH = r"""# bash completion for vramplan
_vramplan_completion() {
    local line
    COMPREPLY=()
    compopt +o default 2>/dev/null
    while IFS= read -r line; do
        case $line in
            $'\tfiles') compopt -o default 2>/dev/null ;;
            $'\tdirectories') compopt -o dirnames 2>/dev/null ;;
            *)
                COMPREPLY+=("$line")
                case $line in *[:=]) compopt -o nospace 2>/dev/null ;; esac
                ;;
        esac
    done < <(_VRAMPLAN_COMPLETE=bash "${1/#\~/$HOME}" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _vramplan_completion vramplan
"""

ZSH = r"""#compdef vramplan
# zsh completion for vramplan
_vramplan_completion() {
    local line value program=${(Q)words[1]}
    local -a finished unfinished
    local files=
    while IFS= read -r line; do
        case $line in
            $'\tfiles') files=_files ;;
            $'\tdirectories') files='_files -/' ;;
            *)
                value=${${line%%$'\t'*}//:/\\:}
                [[ $line == *$'\t'* ]] && line="$value:${line#*$'\t'}" || line=$value
                if [[ $value == *[:=] ]]; then unfinished+=("$line"); else finished+=("$line"); fi
                ;;
        esac
    done < <(_VRAMPLAN_COMPLETE=zsh ${~program} "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    (( $#finished )) && _describe -t values vramplan finished
    (( $#unfinished )) && _describe -t values vramplan unfinished -S ''
    if [[ -n $files ]]; then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        ${=files}
    fi
}
if [[ ${funcstack[1]} == _vramplan ]]; then  # called from a folder of $fpath
    _vramplan_completion "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _vramplan_completion vramplan
fi
"""

FISH = r"""# fish completion for vramplan
function __vramplan_completion
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l prefix (string match -r -- '^--[^=]*=' "$current")
    set -l rest (string replace -r -- '^--[^=]*=' '' "$current")
    for line in (env _VRAMPLAN_COMPLETE=fish $before[1] $before[2..-1] "$current" 2>/dev/null)
        switch $line
            case \tfiles
                for path in (__fish_complete_path "$rest")
                    echo "$prefix$path"
                end
            case \tdirectories
                for path in (__fish_complete_directories "$rest")
                    echo "$prefix$path"
                end
            case '*'
                echo $line
        end
    end
end
complete --command vramplan --no-files --arguments '(__vramplan_completion)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class Installed(NamedTuple):
    """What was written where."""

    script: Path
    start_file: Path | None  # the shell's own, when a line in it reads the script


def shell_of(name: str, option: str) -> str:
    """The shell that is meant: the one that is named, else the one that calls, else that of $SHELL. Or UsageError."""
    if name:
        if name not in SHELLS:
            hint = near_matches(name, SHELLS) or "bash, zsh or fish"
            raise UsageError(f"there is no completion for {name!r}", key=option, hint=hint)
        return name
    for found in (_caller(), Path(os.environ.get("SHELL", "")).name):
        if found in SHELLS:
            return str(found)
    raise UsageError("which shell is not clear", key=option, hint=f"name it: {option} bash, zsh or fish")


def install(shell: str) -> Installed:
    """Write the script where the shell finds it in its next session; a second time changes nothing.

    Raises InputError when a file cannot be written.
    """
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "fish":  # it reads this folder itself
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        script, start_file = config / "fish" / "completions" / "vramplan.fish", None
    elif shell == "zsh":
        script = data / "vramplan" / "completion.zsh"
        start_file = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    else:
        script, start_file = data / "bash-completion" / "completions" / "vramplan", home / ".bashrc"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPTS[shell], "utf-8")
        if start_file is not None:
            _add_line(start_file, f". {_quoted(str(script))}")
    except OSError as error:
        problem = Problem(f"cannot be written: {error.strerror}", file=str(error.filename or script))
        raise InputError([problem]) from None
    return Installed(script, start_file)


def _add_line(file: Path, line: str) -> None:
    text = file.read_text("utf-8", "surrogateescape") if file.exists() else ""
    if line not in text.splitlines():
        text += "" if text.endswith("\n") or not text else "\n"
        file.write_text(f"{text}{line}\n", "utf-8", "surrogateescape")


def _quoted(text: str) -> str:
    return str(named("vramplan.options.flags:quoted")(text))


def _caller() -> str | None:
    """The shell that called this process, as far as that can be seen."""
    try:
        return str(named("shellingham").detect_shell()[0])  # it comes with Typer
    except Exception:  # none is found, the system is not known to it, or it is not there
        return None
