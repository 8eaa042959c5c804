"""Tasks of SkyPilot: YAML with the script that a cluster runs under `run`, on the GPUs that `resources` asks for.

Source: skypilot-org/skypilot, docs/source/reference/yaml-spec.rst (`resources.accelerators`, `num_nodes`, `envs`,
`run`) and docs/source/running-jobs/environment-variables.rst (`SKYPILOT_NUM_GPUS_PER_NODE`, `SKYPILOT_NUM_NODES`).
"""

from __future__ import annotations

import re
import shlex

_RUN = re.compile(r"(?m)^run:[ \t]*[|>][-+]?[ \t]*(#.*)?$")
_BESIDE = re.compile(r"(?m)^(resources|setup|workdir|num_nodes|file_mounts):")
_GPUS = re.compile(r"\s*-?\s*accelerators:\s*\{?\s*['\"]?[\w.-]+['\"]?\s*:\s*(?P<count>\d+)")
_NODES = re.compile(r"num_nodes:\s*(?P<count>\d+)")
_VARIABLE = re.compile(r"\s+(?P<name>[A-Za-z_]\w*):\s*(?P<value>[^#]*?)\s*(#.*)?$")


def script(text: str) -> str | None:
    """The script that a task runs, each line at its place; None for a text that is no task.

    What the task gives its script stands in the first line.
    """
    if _RUN.search(text) is None or _BESIDE.search(text) is None:
        return None
    lines: list[str] = []
    given: list[str] = []
    section = ""
    for line in text.split("\n"):
        if line and not line[0].isspace() and not line.startswith("#"):
            section = line.partition(":")[0]
            nodes = _NODES.match(line)
            given += [f"SKYPILOT_NUM_NODES={nodes['count']}"] if nodes else []
            lines.append("")
            continue
        gpus = _GPUS.match(line) if section == "resources" else None
        variable = _VARIABLE.match(line) if section == "envs" else None
        given += [f"SKYPILOT_NUM_GPUS_PER_NODE={gpus['count']}"] if gpus else []
        value = "" if variable is None else variable["value"].strip("\"'")
        if variable is not None and value:
            given.append(f"{variable['name']}={shlex.quote(value)}")
        lines.append(line if section == "run" else "")
    return "\n".join([" ".join([*lines[:1], *given]), *_without_indent(lines[1:])])


def _without_indent(lines: list[str]) -> list[str]:
    """The lines without the blanks that YAML puts before each."""
    inside = [line for line in lines if line[:1].isspace() and line.strip()]
    least = min((len(line) - len(line.lstrip()) for line in inside), default=0)
    return [line[least:] if line[:1].isspace() else line for line in lines]
