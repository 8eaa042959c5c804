"""Shell scripts read for the arguments of the command that they run; nothing is executed.

What is understood: options of Slurm at the head (`#SBATCH --nodes=4`), assignments, `+=`, arrays, `$X`, `${X}`,
`${X:-default}`, `${X:=default}`, `${X[@]}`, `$((arithmetic))`, quotes, lines that go on behind a backslash, `export`,
`if`, `elif`, `else`, `case`, `TEST && A || B`, `((A > 1))`, `$(echo ...)` with a test before it, sourced files, a
function or a script beside it that is called with arguments (`bash run.sh 7B 4096`), and the command behind `--` of a
Python program that starts it on a cluster (`python mason.py --gpus 8 -- accelerate launch ...`). What only the caller
knows (`$1`, a variable that nothing sets) stays in the arguments as an unknown with its name. A test of a variable that
nothing sets sees it empty, as the shell does.
Source: the GNU Bash manual, sections 3.1.2 (quoting), 3.3 (functions), 3.4.1 (positional parameters), 3.5 (expansions)
and 6.4 (conditional expressions).
"""

from __future__ import annotations

from vramplan.configs.shell.expanding import CLOSE as CLOSE
from vramplan.configs.shell.expanding import OPEN as OPEN
from vramplan.configs.shell.expanding import Argument as Argument
from vramplan.configs.shell.expanding import commands_among as commands_among
from vramplan.configs.shell.expanding import shown as shown
from vramplan.configs.shell.expanding import unknowns as unknowns
from vramplan.configs.shell.numbers import arithmetic as arithmetic
from vramplan.configs.shell.reading import read as read
from vramplan.configs.shell.reading import words_of as words_of
from vramplan.configs.shell.script import Script as Script
