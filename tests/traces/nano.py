"""nanoGPT on tensors without data: its model.py as it stands in the repository, and the loop of its train.py.

Source: karpathy/nanoGPT at the commit of the rig; it is no package, so that a rig has a checkout beside its libraries.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.traces.programs import Program
from vramplan.errors import UsageError

SOURCE = Path(sys.prefix) / "source"
"""Where `setup` lays the checkout."""

DTYPES = {"amp-bf16": "bfloat16", "amp-fp16": "float16"}


class NanoGPT(Program):
    """Training of GPT-2 on one device, as its train.py has it; a run in fp16 without its scaler of the loss."""

    PRECISIONS = ("fp32", *DTYPES)
    TYPES = ("gpt2",)

    def check(self) -> None:
        """Beside what no program has, what that loop has not."""
        super().check()
        job = self.job
        if job.loss != "standard" or job.adapter is not None or job.grad_scaler:
            raise UsageError("the rig has the loss of model.py, no adapters and no scaler", key="loss")
        if job.activation_checkpointing != "none":
            raise UsageError("nanoGPT has no checkpoints", key="activation_checkpointing")

    def ready(self) -> None:
        """The module `model` of the checkout."""
        if str(SOURCE) not in sys.path:
            sys.path.insert(0, str(SOURCE))
        import_module("model")

    def skeleton(self) -> Any:
        """GPT, whose word of its size is not printed."""
        import torch

        module, shape = import_module("model"), self.job.model
        config = module.GPTConfig(
            block_size=shape.max_positions,
            vocab_size=shape.vocabulary_size,
            n_layer=shape.layers,
            n_head=shape.attention_heads,
            n_embd=shape.hidden_size,
            dropout=self.job.dropout or 0.0,
        )
        with torch.device("meta"), contextlib.redirect_stdout(None):
            return module.GPT(config)

    def place(self, skeleton: Any) -> Any:
        """On the device, and the head tied to the embedding again."""
        model = super().place(skeleton)
        model.transformer.wte.weight = model.lm_head.weight
        return model

    def forward(self) -> tuple[Any, Any]:
        """Under autocast."""
        import torch

        half = DTYPES.get(self.job.precision)
        around = contextlib.nullcontext() if half is None else torch.autocast("cuda", dtype=getattr(torch, half))
        with around:
            found: tuple[Any, Any] = self.model(self.tokens, self.labels)
            return found


PROGRAM = NanoGPT
