"""The commands that a script starts: its program, other scripts, and shells that run a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from vramplan.configs.shell.branches import Branches
from vramplan.configs.shell.commands import (
    LAUNCHERS,
    installed,
    is_training,
    named_by_caller,
    without_redirections,
)
from vramplan.configs.shell.expanding import Argument, Expansion, shown, split_of
from vramplan.configs.shell.scanning import ShellWord, statements_of
from vramplan.configs.shell.script import Script, placed, whole

_PLACES = re.compile(r"=\"?\$\{?\d|\$[@*]")
OF_PROCESSES = ("mpirun", "mpiexec", "srun")
_PROGRAM = re.compile(r"(^|/)[\w.\-]+\.py$")
_NODES = ("--num_nodes", "--num-nodes", "--nodes", "--nnodes")
_GPUS = ("--gpus", "--num_gpus", "--num-gpus", "--gpus_per_node", "--gpus-per-node")
_MODULES = ("torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch")

SHELLS = ("bash", "sh", "zsh")
QUEUES = ("sbatch", "qsub", "bsub")
OF_THE_SHELL = ("activate", "conda.sh", "setvars.sh", ".bashrc", ".bash_profile", ".profile", ".zshrc")
"""Scripts that set up a shell, as of virtual environments and of a login, and set no variable of a run."""


TYPING = ("send-keys", "send", "new-session", "new", "new-window", "neww", "split-window")
"""Commands of tmux that hand a text to a shell."""

MANY = 3  # a program with more flags than these may train


def _before_and(item: Argument) -> list[Argument]:
    """A word `&&NAME` of another shell as the two that they are there."""
    joined = item.text.startswith("&&") and item.text != "&&"
    return [item._replace(text="&&"), item._replace(text=item.text[2:])] if joined else [item]


class StartedCommands(Expansion):
    """Finds the command that trains among those that a script starts."""

    def __init__(self, sourced: Callable[[str], str | None]) -> None:
        super().__init__()
        self.script = Script()
        self.sourced = sourced
        self.depth = 0
        """How many scripts that start one another are open."""
        self.looked_for: set[str] = set()
        """Files of which the script asks whether they are there: `[ -f FILE ] && source FILE`."""
        self.branches = Branches()
        self.goes_on = False
        """Whether the last command is that of the program: an option that begins the next one is cut off from it."""

    def run_all(self, statements: list[list[ShellWord]]) -> None:
        """Run statements in their order."""
        raise NotImplementedError

    def called(self, statements: list[list[ShellWord]], given: list[Argument]) -> None:
        """Run statements with arguments."""
        raise NotImplementedError

    def inner(self, text: str, line: int) -> bool:
        """Run a script within this one; whether there was room for it."""
        if self.depth >= 5:
            return False
        self.depth += 1
        self.run_all([[placed(word, line) for word in words] for words in statements_of(text)])
        self.depth -= 1
        return True

    def written(self, arguments: list[Argument]) -> bool:
        """Run a script that this one has written, `bash run.sh`, `sbatch run.sh` or `./run.sh`."""
        for place, item in enumerate(arguments):
            text = self.script.files.get(item.text, self.script.files.get(item.text.removeprefix("./")))
            before = arguments[place - 1].text.rsplit("/", 1)[-1] if place else ""
            if text is not None and (not place or before in (*SHELLS, *QUEUES) or before.startswith("-")):
                starts = arguments[0].text.rsplit("/", 1)[-1]
                return (not place or starts in (*SHELLS, *QUEUES, "srun")) and self.inner(text, arguments[0].line)
        return False

    def source(self, path: str) -> None:
        """Run the script of a path within this one, where it is here."""
        text = self.sourced(shown(path)) if self.depth < 5 else None
        if text is None:
            last = shown(path).rsplit("/", 1)[-1]
            if last in OF_THE_SHELL or path in self.looked_for:
                return
            self.script.notes.append(f"it sources {last}, which is not here")
            return
        self.depth += 1
        self.run_all(statements_of(text))
        self.depth -= 1

    def command(self, words: list[ShellWord]) -> None:
        """Run a command: another script, a shell, or a program, of which the one that trains is kept."""
        self.goes_on = False
        arguments = [argument for word in words for argument in self.expand(word)]
        if not arguments:
            return
        if self.another(arguments) or self.shell_of(arguments) or self.written(arguments) or self.typed(arguments):
            return
        first = arguments[0].text.rsplit("/", 1)[-1]
        if first in ("bash", "sh", "eval", "nohup", "run_cmd", "exec"):
            arguments = [part for item in arguments[1:] for part in split_of(item)]
        arguments = self.inside(without_redirections(arguments))
        self.script.commands.append(arguments)
        self.script.held.append(dict(self.values))
        at = next((index for index, item in enumerate(arguments) if _PROGRAM.search(item.text)), None)
        if at is None:
            at = named_by_caller(arguments)
        if at is None:
            at = installed(arguments)
        if at is None:
            module = next((i for i, item in enumerate(arguments) if item.text == "-m"), None)
            if module is None or module + 1 >= len(arguments) or arguments[module + 1].text in _MODULES:
                return
            at = module + 1
        flags = [item for item in arguments[at + 1 :] if item.text.startswith("-")]
        if len(flags) > MANY or any(item.text.partition("=")[0] == "--config" for item in flags):
            self.script.runs[arguments[at].line] = arguments[at].text
        if self.script.program is not None and len(arguments) - at < len(self.script.arguments):
            return  # a helper beside the training
        held = self.script.program
        prepared = held is not None and not is_training(held.text, self.script.launcher)
        if held is None or len(flags) > MANY or (prepared and is_training(arguments[at].text, arguments[:at])):
            self.script.launcher = arguments[:at]
            self.script.program = arguments[at]
            self.script.arguments = arguments[at + 1 :]
            self.script.values = dict(self.values)
            self.script.supposed = self.branches.needed(whole(word) for word in words)
            self.script.cut_off, self.goes_on = [], True

    def shell_of(self, arguments: list[Argument]) -> bool:
        """`srun ... bash -c '$LAUNCHER $CMD'`: what that shell runs, which knows the variables that are exported.

        A text in double quotes has their values already.
        """
        for place in range(len(arguments) - 2):
            shell, flag, text = (item.text for item in arguments[place : place + 3])
            if (
                shell.rsplit("/", 1)[-1] in ("bash", "sh")
                and re.fullmatch(r"-\w*c", flag)
                and re.search(r"\$|\S\s+\S", text)
            ):
                break
        else:
            return False
        return self.inner(text, arguments[place + 2].line)

    def typed(self, arguments: list[Argument]) -> bool:
        """`tmux send-keys -t NAME "python train.py" C-m`: what another shell is handed as text."""
        if arguments[0].text != "tmux" or not any(item.text in TYPING for item in arguments):
            return False
        for item in arguments:
            if re.search(r"\S\s+\S", item.text):
                self.inner(item.text, item.line)
        return True

    def another(self, arguments: list[Argument]) -> bool:
        """`bash run.sh a b`: run the script of that name with these arguments, where it reads them by their place.

        A launcher of processes may stand before it: `mpirun -np 8 run.sh a b`.
        """
        starts = [at for at, item in enumerate(arguments) if item.text.endswith(".sh")]
        by_launcher = starts and arguments[0].text.rsplit("/", 1)[-1] in OF_PROCESSES
        outer = arguments[: starts[0]] if by_launcher else []
        given = arguments[len(outer) :]
        given = given[1:] if given[0].text in ("bash", "sh", "exec", "nohup") else given
        if not given or not given[0].text.endswith(".sh") or len(given) < 2 or self.depth >= 5:
            return False
        text = self.sourced(given[0].text.rsplit("/", 1)[-1])
        if text is None or not _PLACES.search(text) or re.search(r"\bgetopts\b", text):
            return False
        self.depth, before = self.depth + 1, self.script.program
        self.called([[placed(word, given[0].line) for word in words] for words in statements_of(text)], given[1:])
        self.depth -= 1
        if self.script.program is not before:
            self.script.launcher = [*outer, *self.script.launcher]
        return True

    def inside(self, arguments: list[Argument]) -> list[Argument]:
        """The command behind `--` of a program that starts others on a cluster, with the processes that it starts."""
        texts = [item.text for item in arguments]
        if "--" not in texts:
            return arguments
        at = texts.index("--")
        outer, inner = texts[:at], [part for item in arguments[at + 1 :] for part in _before_and(item)]
        while "&&" in (item.text for item in inner):  # handed on as a word, for the shell of the cluster
            inner = inner[[item.text for item in inner].index("&&") + 1 :]
        starts = inner[0].text.rsplit("/", 1)[-1] in LAUNCHERS if inner else False
        if not starts or not any(_PROGRAM.search(text) for text in outer):
            return arguments  # the program's own arguments
        given = dict(pairwise(outer))
        nodes, each = (next((given[name] for name in names if name in given), "") for names in (_NODES, _GPUS))
        if nodes.isdecimal() and each.isdecimal():
            for place, item in enumerate(inner[:-1]):
                if item.text in ("--num_processes", "--num-processes"):
                    inner[place + 1] = inner[place + 1]._replace(text=str(int(nodes) * int(each)))
        return inner

    def gather(self) -> None:
        """Where no command is seen: the arguments that variables hold, as of a file that another one sources."""
        seen: set[str] = set()
        for value in self.values.values():
            parts = [part for item in value for part in split_of(item)]
            if not any(part.text.startswith("--") for part in parts):
                continue
            text = " ".join(part.text for part in parts)
            if text not in seen:
                seen.add(text)
                self.script.arguments += parts
