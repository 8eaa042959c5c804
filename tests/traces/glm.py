"""ChatGLM2 and ChatGLM3 on tensors without data: their own code, which is no class of Transformers, in the same loop.

Source: THUDM/language_filter_chatglm3 at the commit of the rig, which has the modeling_chatglm.py of
THUDM/chatglm3-6b; it is no package, so that a rig has a checkout beside its libraries. Its function of TorchScript runs
in the interpreter.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vramplan.errors import UsageError
from vramplan.values.job import ResolvedJob

SOURCE = Path(sys.prefix) / "source"
"""Where `setup` lays the checkout."""

TYPE = "chatglm"
OWN_KEYS = ("model",)
"""What the loop on one device refuses and this rig has."""


def check(job: ResolvedJob) -> None:
    """Raise UsageError where the code is not there; else make it known to Transformers."""
    if not (SOURCE / "modeling_chatglm.py").exists():
        raise UsageError("the rig chatglm has its code", key="model")
    if job.sharding is not None or job.compile or job.quantization is not None:
        raise UsageError("the rig runs it on one device, not compiled and not quantized", key="model")
    _register()


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step, in bytes."""
    from vramplan.measure import checkpoints, steps

    if job.activation_checkpointing == "full":  # its own switch does not say which kind of checkpoint it wants
        job = job._replace(activation_checkpointing="every:1")
    with patch.object(checkpoints, "_is_of_every_block", lambda *_: False):
        phases = steps.without_data(job)["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def _register() -> None:
    """The classes for those that AutoModel finds, with what is in every `config.json` of theirs."""
    import transformers

    if TYPE in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        return
    if sys.prefix not in sys.path:
        sys.path.insert(0, sys.prefix)
    module: Any = import_module(f"{SOURCE.name}.modeling_chatglm")

    class Configuration(module.ChatGLMConfig):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            self.max_length = 20  # which Transformers had as the default until its release 5
            super().__init__(**{"multi_query_attention": True, "original_rope": True, **given})

    for name in ("ChatGLMModel", "ChatGLMForConditionalGeneration"):
        getattr(module, name)._supports_sdpa = True  # it calls the function itself
    whole = module.ChatGLMForConditionalGeneration
    whole.config_class = Configuration
    transformers.AutoConfig.register(TYPE, Configuration)
    transformers.AutoModelForCausalLM.register(Configuration, whole)
