"""Commands that name a file and change some of its keys: `tune run RECIPE --config FILE batch_size=4`.

Sources: pytorch/torchtune main (bd2a0fc7), torchtune/_cli/run.py and config/_utils.py (`key=value`, `~key`);
Lightning-AI/litgpt 0.5.13, litgpt/__main__.py; pytorch/torchtitan 0.2.2, run_train.sh and config/manager.py;
mosaicml/llm-foundry 0.22.0.dev0, scripts/train/train.py; NVIDIA/NeMo 2.5.0rc0, nemo/core/config/hydra_runner.py;
karpathy/nanoGPT master, configurator.py; axolotl-ai-cloud/axolotl 0.18.0, src/axolotl/cli/main.py and
cli/utils/train.py; hiyouga/LLaMA-Factory 0.9.6.dev0, src/llamafactory/launcher.py and hparams/parser.py, read_args;
huggingface/trl 1.10.0.dev0, trl/cli/commands/training.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from vramplan.configs.command import arguments, assigned, options
from vramplan.configs.sheet import Written
from vramplan.configs.shell import Argument, Script, read
from vramplan.tuples import NamedTuple


class Launched(NamedTuple):
    """What a command starts.

    `config`: the file that it names, as it stands in the script. `changes`: keys that it sets, None for one that it
    takes away. `devices`: how many processes it starts. `launcher`: options of the program that starts it, as
    `launcher.num_processes`.
    """

    program: str
    config: Written | None
    changes: Mapping[str, Written | None]
    devices: int | None
    launcher: Mapping[str, Written] = MappingProxyType({})


def of_script(script: Script, file: str) -> Launched | None:
    """The first command of a script that starts a program with a file; None where there is none."""
    for words in script.commands:
        for rule in (_axolotl, _llama_factory, _trl, _tune, _litgpt, _torchtitan, _composer, _hydra, _nanogpt):
            found = rule(words, script, file)
            if found is not None:
                return found
    return None


def of_platform(written: Mapping[str, Written], file: str) -> Launched | None:
    """What a run of MosaicML's platform starts: `parameters` are the file, or the command names one.

    Source: mosaicml/llm-foundry 0.22.0.dev0, mcli/mcli-1b-max-seq-len-8k.yaml.
    """
    command, image = written.get("command"), written.get("image")
    if command is None or image is None or not isinstance(command.value, str):
        return None
    gpus = written.get("compute.gpus")
    devices = gpus.value if gpus is not None and isinstance(gpus.value, int) else None
    own = {key.removeprefix("parameters."): item for key, item in written.items() if key.startswith("parameters.")}
    for words in read(command.value).commands:
        found = _composer(words, Script(), file)
        if found is None or found.config is None:
            continue
        line = command.line
        changes = {key: None if item is None else item._replace(line=line) for key, item in found.changes.items()}
        if own and str(found.config.value).startswith("/mnt/config/"):
            return found._replace(config=None, changes={**own, **changes}, devices=devices)
        return found._replace(config=found.config._replace(line=line), changes=changes, devices=devices)
    return None


def merged(found: Mapping[str, Written], changes: Mapping[str, Written | None]) -> dict[str, Written]:
    """The settings of the file with what the command changes."""
    kept = {key: item for key, item in found.items() if not _replaced(key, changes)}
    return {**kept, **{key: item for key, item in changes.items() if item is not None}}


def _replaced(key: str, changes: Mapping[str, Written | None]) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in changes for count in range(1, len(parts) + 1))


Words = Sequence[Argument]


_FILES = (".yaml", ".yml", ".json")
TRL_TASKS = ("sft", "dpo", "grpo", "kto", "reward", "rloo")


def _axolotl(words: Words, script: Script, file: str) -> Launched | None:
    at = next((place for place, word in enumerate(words) if word.text == "axolotl.cli.train"), None)
    if at is None:
        names = [_name(word) for word in words]
        at = next((place for place, pair in enumerate(pairwise(names), 1) if pair == ("axolotl", "train")), None)
    if at is None:
        return None
    texts = [word.text for word in words]
    end = texts.index("--", at) if "--" in texts[at:] else len(texts)
    config = next((word for word in words[at + 1 : end] if word.text.endswith(_FILES)), None)
    if config is None:
        return None
    changes = options(words[at + 1 : end], file)
    for name in ("launcher", "cloud", "sweep", "main_process_port", "use_exec"):
        changes.pop(name, None)
    started = {f"launcher.{name}": changes.pop(name) for name in ("num_processes", "num_machines") if name in changes}
    launcher = _launcher([*words[:at], *words[end + 1 :]], file) | started
    return Launched("axolotl", Written(config.text, file, config.line), changes, None, launcher)


def _llama_factory(words: Words, script: Script, file: str) -> Launched | None:
    verbs = ("train", "sft", "dpo", "rm")
    console = ("llamafactory-cli", "lmf", "llamafactory.cli")
    at = next((i for i, word in enumerate(words[:-1]) if _name(word) in console), None)
    if at is not None and words[at + 1].text in verbs:
        at += 1
    else:
        scripts = ("src/train.py", "llamafactory/launcher.py")
        at = next((i for i, word in enumerate(words[:-1]) if word.text.endswith(scripts)), None)
    if at is None or at + 1 >= len(words):
        return None
    first, rest = words[at + 1], words[at + 1 :]
    config = Written(first.text, file, first.line) if first.text.endswith(_FILES) else None
    changes = {**assigned(rest, file), **options(rest, file)}
    if words[at].text in verbs:
        changes["program"] = Written(words[at].text, file, words[at].line)
    launcher = _launcher(words[:at], file)
    if not launcher:
        held = {name: script.values[name][0] for name in ("NPROC_PER_NODE", "NNODES") if script.values.get(name)}
        names = {"NPROC_PER_NODE": "launcher.nproc_per_node", "NNODES": "launcher.nnodes"}
        launcher = {names[name]: Written(item.text, file, item.line) for name, item in held.items()}
        seen = script.values.get("CUDA_VISIBLE_DEVICES")
        if "NPROC_PER_NODE" not in held and seen and re.fullmatch(r"\d+(,\d+)*", seen[0].text):
            number = seen[0].text.count(",") + 1  # it starts as many as it sees
            launcher["launcher.nproc_per_node"] = Written(number, file, seen[0].line)
    return Launched("llama-factory", config, changes, None, launcher)


def _trl(words: Words, script: Script, file: str) -> Launched | None:
    at = next((i for i, word in enumerate(words[:-1]) if _name(word) == "trl" and words[i + 1].text in TRL_TASKS), None)
    if at is None:
        return None
    changes: dict[str, Written] = arguments(words[at + 2 :], file)
    config = changes.pop("config", None)
    changes["program"] = Written(words[at + 1].text, file, words[at + 1].line)
    started = {name: changes.pop(name) for name in ("num_processes", "num_machines") if name in changes}
    return Launched("trl", config, changes, None, {f"launcher.{name}": item for name, item in started.items()})


def _launcher(words: Words, file: str) -> dict[str, Written]:
    """The options of torchrun or `accelerate launch`, which stand before the program."""
    found = arguments([word for word in words if word.text != "-m"], file)
    return {f"launcher.{key}": item for key, item in found.items()}


def _tune(words: Words, script: Script, file: str) -> Launched | None:
    if not _starts(words, "tune", "run") and not any(word.text == "torchtune._cli.tune" for word in words):
        return None
    config = _option(words, "--config", file)
    return None if config is None else Launched("torchtune", config, assigned(words, file), _processes(words))


def _litgpt(words: Words, script: Script, file: str) -> Launched | None:
    at = next((place for place, word in enumerate(words[:-1]) if _name(word) == "litgpt"), None)
    kind = re.fullmatch(r"(finetune(?:_full|_lora)?|pretrain)", words[at + 1].text) if at is not None else None
    if at is None or kind is None:
        return None
    changes = dict(options(words[at + 2 :], file))
    config = changes.pop("config", None)
    first = words[at + 2] if at + 2 < len(words) else None
    if first is not None and not first.text.startswith("-"):
        changes["model_name" if kind[0] == "pretrain" else "checkpoint_dir"] = Written(first.text, file, first.line)
    if kind[0] in ("finetune", "finetune_lora") and config is None:
        changes.setdefault("lora_r", Written(8, file, words[at + 1].line))  # the command is what makes it LoRA
    return Launched("litgpt", config, changes, None)


def _torchtitan(words: Words, script: Script, file: str) -> Launched | None:
    names = [_name(word) for word in words]
    if not {"torchtitan.train", "run_train.sh", "run_llama_train.sh"} & set(names) and "train.py" not in names:
        return None
    changes = dict(options(words, file))
    config = changes.pop("job.config_file", None)
    held = script.values.get("CONFIG_FILE")
    if config is None and held:
        config = Written(held[0].text, file, held[0].line)
    if config is None or not str(config.value).endswith(".toml"):
        return None
    given = {key: item for key, item in changes.items() if "." in key}
    counted = script.values.get("NGPU", ())
    number = next((int(item.text) for item in counted if item.text.isdecimal()), None)
    return Launched("torchtitan", config, given, _processes(words) or number)


def _composer(words: Words, script: Script, file: str) -> Launched | None:
    first = next((place for place, word in enumerate(words) if _name(word) in ("composer", "python", "python3")), None)
    if first is None:
        return None
    at = next((place for place, word in enumerate(words) if place > first and _name(word) == "train.py"), None)
    if at is None or at + 1 >= len(words) or not words[at + 1].text.endswith((".yaml", ".yml")):
        return None
    config = Written(words[at + 1].text, file, words[at + 1].line)
    return Launched("llm-foundry", config, assigned(words[at + 2 :], file), _processes(words[:at]))


HYDRA = {
    "megatron_gpt_pretraining.py": "megatron_gpt_config",
    "megatron_gpt_finetuning.py": "megatron_gpt_finetuning_config",
}
HYDRA |= {"megatron_bert_pretraining.py": "megatron_bert_config", "megatron_t5_pretraining.py": "megatron_t5_config"}
"""The files that NeMo's scripts take without `--config-name`."""


def _hydra(words: Words, script: Script, file: str) -> Launched | None:
    folder, name = (_option(words, option, file) for option in ("--config-path", "--config-name"))
    at = next((word for word in words if _name(word) in HYDRA), None)
    module = next((word.text for before, word in pairwise(words) if before.text == "-m"), "nemo")
    if (name is None and at is None) or not module.startswith(("nemo", "torch.")):
        return None
    if name is None and at is not None:
        name = Written(HYDRA[_name(at)], file, at.line)
    assert name is not None
    path = str(name.value) if str(name.value).endswith((".yaml", ".yml")) else f"{name.value}.yaml"
    if folder is not None:
        path = f"{str(folder.value).rstrip('/')}/{path}"
    return Launched("nemo", name._replace(value=path), assigned(words, file), None)


def _nanogpt(words: Words, script: Script, file: str) -> Launched | None:
    at = next((place for place, word in enumerate(words) if _name(word) == "train.py"), None)
    rest = words[at + 1 :] if at is not None else []
    if not rest or not all(word.text.endswith(".py") or re.match(r"--\w+=", word.text) for word in rest):
        return None
    named = next((word for word in rest if word.text.endswith(".py")), None)
    config = None if named is None else Written(named.text, file, named.line)
    if config is None and not any(re.match(r"--(n_embd|n_layer|block_size)=", word.text) for word in rest):
        return None
    return Launched("nanogpt", config, dict(options(rest, file)), _processes(words[:at]))


def _name(word: Argument) -> str:
    return word.text.rsplit("/", 1)[-1]


def _starts(words: Words, *names: str) -> bool:
    """Whether the words hold these names one behind the other, as behind `srun` and `nsys profile`."""
    held = [_name(word) for word in words]
    return any(held[place : place + len(names)] == list(names) for place in range(len(held)))


def _option(words: Words, name: str, file: str) -> Written | None:
    for place, word in enumerate(words):
        if word.text == name and place + 1 < len(words):
            return Written(words[place + 1].text, file, words[place + 1].line)
        if word.text.startswith(f"{name}="):
            return Written(word.text.partition("=")[2], file, word.line)
    return None


def _processes(words: Words) -> int | None:
    """How many processes a launcher starts, on all nodes."""
    found = {}
    for name in ("--nproc_per_node", "--nproc-per-node", "--nproc", "-n", "--nnodes"):
        value = _option(words, name, "")
        if value is not None and str(value.value).isdecimal():
            found[name] = int(value.value)
    nodes = found.pop("--nnodes", 1)
    return nodes * next(iter(found.values())) if found else None
