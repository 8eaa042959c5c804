"""A DeepSpeed file, alone for a script of the user's own, or beside the training arguments of TRL.

Every number is spelt out: DeepSpeed itself knows no "auto". Source: deepspeedai/DeepSpeed 0.19.8,
deepspeed/runtime/config.py and runtime/zero/config.py; huggingface/transformers 5.23.0,
src/transformers/integrations/deepspeed.py (deepspeed_optim_sched: an optimizer of the Trainer with offloading).
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.configs.asked import Asked, ProgramFiles, Writer
from vramplan.configs.page import JSON, Page
from vramplan.configs.programs.deepspeed_keys import OPTIMIZERS
from vramplan.configs.writers import words
from vramplan.configs.writers.arguments import command_of, page_of

NAMES = {
    "adam": "Adam",
    "adamw": "AdamW",
    "lion": "Lion",
    "sgd": "SGD",
    "muon": "Muon",
    "adagrad": "Adagrad",
    "lamb": "Lamb",
    "rmsprop": "RMSprop",
    "adafactor": "Adafactor",
    "nadam": "NAdam",
    "radam": "RAdam",
    "adamax": "Adamax",
    "adadelta": "Adadelta",
    "asgd": "ASGD",
}
"""How DeepSpeed writes its optimizers; it takes any case, but for those that it looks up in torch.optim."""


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """The JSON first."""
    page = Page("ds_config.json", JSON)
    words.put_zero(page, asked)
    if asked["runtime"] == "deepspeed":
        word = words.turned(OPTIMIZERS).get(str(asked["optimizer"]), "adamw")
        page.put("optimizer.type", NAMES[word], "optimizer")
        page.put("optimizer.params.lr", 1e-5)
        several = f"--hostfile HOSTFILE --num_nodes {asked.nodes} " if asked.nodes > 1 else ""
        launcher = f"{asked.environment()}deepspeed {several}--num_gpus {asked.per_node}"
        launch = f"{launcher} train.py --deepspeed --deepspeed_config {page.name}"
        yield ProgramFiles((page,), (launch,), is_script=True)
        return
    if asked.offloads("optimizer"):
        page.put("zero_force_ds_cpu_optimizer", False)
    page.put("zero_allow_untested_optimizer", True)
    arguments = page_of(asked, "trl.yaml", is_trl=True)
    arguments.put("deepspeed", page.name, *words.STATES)
    launch = f"{command_of(asked)} --config {arguments.name}"
    yield ProgramFiles((page, arguments), (launch,))


WRITER = Writer("deepspeed", ("transformers", "deepspeed"), write)
