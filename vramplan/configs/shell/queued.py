"""What a queue sets for a script by the options at its head: `#SBATCH --nodes=4` makes SLURM_NNODES 4.

Options of the command that queues the script win over these, and nobody knows them here.
Source: Slurm 25.05, the manual of sbatch, its options and "output environment variables".
"""

from __future__ import annotations

import re

_HEAD = "#SBATCH"
FROM = {_HEAD: "SLURM_SUBMIT_DIR", "#PBS": "PBS_O_WORKDIR"}
"""The folder in which a script is queued, by what its options begin with: paths are looked for from there upwards."""

_OPTION = re.compile(r"(?<=\s)(?P<name>--[\w-]+|-[Nn])(\s*=\s*|\s+|(?<=-[Nn]))(?P<value>(?!-)[\w:.,=-]+)")
_SHORT = {"-N": "nodes", "-n": "ntasks"}
_GPUS = re.compile(r"([A-Za-z][\w.-]*:)?(?P<count>\d+)")


def variables_of(text: str) -> dict[str, str]:
    """The variables of Slurm that the head of a script decides; its options end where the first command stands."""
    found = _options(text)
    nodes, tasks, each = (_number(found.get(name)) for name in ("nodes", "ntasks", "ntasks-per-node"))
    resources = [_gpus(one.removeprefix("gpu:")) for one in found.get("gres", "").split(",") if one.startswith("gpu:")]
    gpus = _gpus(found.get("gpus-per-node")) or next(iter(resources), None)
    values = {
        ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"): nodes,
        ("SLURM_NTASKS_PER_NODE",): each,
        ("SLURM_NTASKS", "SLURM_NPROCS"): tasks or (nodes * each if nodes and each else None),
        ("SLURM_GPUS_ON_NODE",): gpus,
        ("SLURM_GPUS_PER_NODE",): _gpus(found.get("gpus-per-node")),
    }
    given = {name: str(value) for names, value in values.items() if value for name in names}
    return given | {name: "." for head, name in FROM.items() if head in text}


def _options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        for option in _OPTION.finditer(line.partition(" #")[0]) if line.startswith(_HEAD) else ():
            found[_SHORT.get(option["name"], option["name"].removeprefix("--"))] = option["value"]
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _gpus(text: str | None) -> int | None:
    """Of `8` and `a100:8`."""
    found = _GPUS.fullmatch(text or "")
    return None if found is None else int(found["count"])
