"""torchvision's ViT on tensors without data, in a plain loop with the cross-entropy of its logits.

torchvision's own operators, of which the model has none, may be built for another PyTorch: those that it registers
a rule for when it is imported are declared where they are missing.

Source: torchvision 0.28.0, models/vision_transformer.py.
"""

from __future__ import annotations

import contextlib
from functools import partial
from importlib import import_module
from typing import Any

from tests.traces.programs import Program
from vramplan.errors import UsageError

AUTOCAST = {"amp-bf16": "bfloat16", "amp-fp16": "float16"}
WEIGHTS = {"pure-bf16": "bfloat16", "pure-fp16": "float16"}
DECLARED = ("nms", "qnms")  # for which it registers a rule


class TorchVision(Program):
    """Training of a VisionTransformer on one device."""

    PRECISIONS = ("fp32", *AUTOCAST, *WEIGHTS)
    TYPES = ("torchvision_vit",)

    def check(self) -> None:
        """Beside what no program has, what that loop has not."""
        super().check()
        job = self.job
        if job.loss != "standard" or job.adapter is not None or job.grad_scaler or job.eval_batch_size is not None:
            raise UsageError("the rig has a plain loss, no adapters, no scaler and no evaluation", key="loss")
        if job.activation_checkpointing not in ("none", "full") or job.checkpoint_reentrant:
            raise UsageError("the rig puts a checkpoint around each block, or none", key="activation_checkpointing")

    def ready(self) -> None:
        """The module of the model."""
        import torch

        self.declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in DECLARED:
            if not hasattr(torch.ops.torchvision, name):
                self.declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_module("torchvision.models.vision_transformer")

    def skeleton(self) -> Any:
        """VisionTransformer in the element type of its weights."""
        import torch

        module, shape = import_module("torchvision.models.vision_transformer"), self.job.model
        with torch.device("meta"):
            model = module.VisionTransformer(
                image_size=self.job.image_size,
                patch_size=shape.patch_size,
                num_layers=shape.layers,
                num_heads=shape.attention_heads,
                hidden_dim=shape.hidden_size,
                mlp_dim=shape.intermediate_size,
                dropout=shape.hidden_dropout if self.job.dropout is None else self.job.dropout,
                attention_dropout=shape.attention_dropout if self.job.dropout is None else self.job.dropout,
                num_classes=shape.classes,
            )
        if self.job.activation_checkpointing == "full":
            for block in model.encoder.layers:
                block.forward = checkpointed(block.forward)
        half = WEIGHTS.get(self.job.precision)
        return model if half is None else model.to(getattr(torch, half))

    def prepare(self, model: Any) -> None:
        """The optimizer, images and the class of each."""
        import torch

        from vramplan.measure.optimizers import optimizer_of

        job, shape = self.job, self.job.model
        self.model = model
        self.optimizer = optimizer_of(job, model)
        size, edge = job.micro_batch_size or 1, job.image_size or 0
        dtype = model.conv_proj.weight.dtype
        self.images = torch.randn(size, shape.channels or 0, edge, edge, dtype=dtype, device="cuda")
        self.labels = torch.randint(0, shape.classes, (size,), device="cuda")

    def forward(self) -> tuple[Any, Any]:
        """Model and loss under autocast."""
        import torch

        half = AUTOCAST.get(self.job.precision)
        around = contextlib.nullcontext() if half is None else torch.autocast("cuda", dtype=getattr(torch, half))
        with around:
            logits = self.model(self.images)
            return logits, torch.nn.functional.cross_entropy(logits, self.labels)

    def step(self) -> None:
        """The optimizer's, after gradients are clipped if they are."""
        import torch

        _norm = None  # kept until the step is over, as by the loop of `vramplan measure`
        if self.job.max_gradient_norm:
            _norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job.max_gradient_norm)
        super().step()


def checkpointed(forward: Any) -> Any:
    """The same in a checkpoint; without data there is no state of a random generator to keep."""
    from torch.utils.checkpoint import checkpoint

    return partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)


PROGRAM = TorchVision
