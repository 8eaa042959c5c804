"""Commands of NeMo's launcher: `python launcher_scripts/main.py training=gpt3/5b stages=[training] training.KEY=VALUE`.

Source: NVIDIA/NeMo-Framework-Launcher, launcher_scripts/main.py and conf/config.yaml (a group of files for each stage
with keys below its name); nemo_launcher/core/stages.py (a stage starts a script of NeMo with its own keys).
"""

from __future__ import annotations

from vramplan.configs.command import Words, assigned
from vramplan.configs.sheet import Launched
from vramplan.configs.table import names
from vramplan.configs.written import Written

MAIN = "launcher_scripts/main.py"
STAGES = {"training": "gpt3/5b", "fine_tuning": None, "peft": None, "rlhf_rm": "gpt3/2b_rm"}
"""The stages that train, with the file of each that the launcher takes where none is named."""

WITHOUT_EFFECT = names(
    """
    stages launcher_scripts_path data_dir base_results_dir container container_mounts cluster cluster.* cluster_type
    env_vars env_vars.* wandb_api_key_file wandb_api_bcp_secret_key bcp_no_redirect ci_test debug numa_mapping.*
    data_preparation data_preparation.* data_curation data_curation.* conversion conversion.* conversion_hf2nemo
    conversion_hf2nemo.* evaluation evaluation.* export export.* nccl_ib_tc nccl_ib_sl
    """
)
"""Keys of the launcher itself, which say where its files lie and what runs before and after training."""


def started(words: Words, file: str) -> Launched | None:
    """The file of the stage that a command of the launcher trains, with the keys of it that are changed."""
    main = next((word for word in words if f"/{word.text}".endswith(f"/{MAIN}")), None)
    if main is None:
        return None
    changes = assigned(words, file)
    listed = changes.get("stages")
    wanted = listed.value if listed is not None and isinstance(listed.value, list) else []
    stage = next((one for one in STAGES if one in wanted), None)
    stage = stage or next((one for one in STAGES if one in changes and not wanted), None)
    if stage is None:
        return None
    named = changes.get(stage)
    choice = STAGES[stage] if named is None else str(named.value)
    if choice is None:
        return None
    place = f"{main.text.removesuffix('main.py')}conf/{stage}/{choice}.yaml"
    config = Written(place, file, main.line) if named is None else named._replace(value=place)
    own = {key.removeprefix(f"{stage}."): item for key, item in changes.items() if key.startswith(f"{stage}.")}
    others = {
        key: item
        for key, item in changes.items()
        if key.split(".")[0] not in STAGES  # another stage has a run of its own
    }
    return Launched(config, {**others, **own}, None)
