"""The process that traces: `python -m tests.traces.child ASKED ANSWERED`, two files of JSON.

A case is a job in the words of the job format, the `config.json` of its model, and the code that is run on the real
model before its first step. A trace counts the storages of one iteration of the loop of `vramplan measure`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vramplan.job import build_job
from vramplan.measure.batches import images_in_patches, sounds
from vramplan.measure.fake_cuda import autocast_believes, pretend

CLASSES = {
    "lm": "AutoModelForCausalLM",
    "mlm": "AutoModelForMaskedLM",
    "cls": "AutoModelForSequenceClassification",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image": "AutoModelForImageClassification",
    "contrastive": "AutoModel",
}


def skeleton(job: Any, config: dict[str, Any], *, device: str = "meta", use_cache: bool = False) -> Any:
    """The model in the element type of the precision; without storages on the device meta."""
    import torch
    import transformers

    from vramplan.measure.network import is_kept_with_images
    from vramplan.measure.steps import _cast

    said = transformers.AutoConfig.for_model(**config)
    for one in (said, getattr(said, "text_config", None)):
        if one is not None:
            one.use_cache = use_cache
    if job.model.task in ("cls", "image"):
        said.num_labels = job.model.classes
    how = {"attn_implementation": "eager" if job.attention == "eager" else "sdpa"}
    both = job.model.task == "lm" and (job.model.takes_images or is_kept_with_images(config["model_type"]))
    name = "AutoModelForImageTextToText" if both else CLASSES[job.model.task]
    if job.model.takes_audio:
        name = "AutoModelForSpeechSeq2Seq"
    with torch.device(device):
        return _cast(job, getattr(transformers, name).from_config(said, **how))


def batch(job: Any, model: Any, device: str = "cuda") -> dict[str, Any]:
    """A micro-batch of random tokens and images, and classes or tokens as labels."""
    import torch

    shape, size = job.model, job.micro_batch_size
    given: dict[str, Any] = {}
    if shape.any_image_size:
        given |= images_in_patches(job, model, device)
    elif shape.takes_images:
        images = (size, shape.channels, job.image_size, job.image_size)
        given["pixel_values"] = torch.randn(*images, dtype=next(model.parameters()).dtype, device=device)
    if shape.takes_text:
        tokens = torch.randint(2, 1000, (size, job.sequence_length), device=device)
        if shape.image_tokens:
            tokens[:, : shape.image_tokens] = model.config.image_token_id
        if shape.vision_merge is not None and not shape.any_image_size:
            given["token_type_ids"] = (tokens == model.config.image_token_id).long()
        given["input_ids"] = tokens
        given["labels"] = tokens.clone()
    if shape.takes_audio:
        given["input_features"] = sounds(job, model, device)
        del given["input_ids"]
    if shape.task in ("cls", "image"):
        given["labels"] = torch.randint(0, shape.classes, (size,), device=device)
    elif shape.task == "contrastive":
        given["return_loss"] = True
        del given["labels"]
    return given


def image_mask(self: Any, input_ids: Any, inputs_embeds: Any, image_features: Any) -> Any:
    """LlavaModel.get_placeholder_mask without its check, whose message reads a number off the GPU."""
    mask = input_ids == self.config.image_token_id
    return mask.unsqueeze(-1)


def trace(case: dict[str, Any]) -> dict[str, int]:
    """The highest level of each phase of one iteration after the first, in bytes."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import functional
    from torch.utils import checkpoint
    from transformers import masking_utils
    from transformers.models.llava.modeling_llava import LlavaModel

    from vramplan.measure.kernels import attention_by, scratch_rules
    from vramplan.measure.known import of_numbers
    from vramplan.measure.stand_ins import Truth, stand_ins
    from vramplan.measure.steps import Loop, one_step, optimizer_of
    from vramplan.measure.storages import Storages

    aten = torch.ops.aten
    job: Any = build_job(case["job"])

    class Counted(Storages):
        """The backward of indexing adds to its zeros in place, but not to tensors without data.

        Source: torch/csrc/autograd/FunctionsManual.cpp, index_backward.
        """

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is aten.index_put.default and self.phase == "backward" and not torch.is_grad_enabled():
                func = aten.index_put_.default
            return super().__torch_dispatch__(func, types, args, kwargs)

    numbers = stand_ins(Truth())
    scalar = aten._local_scalar_dense.default
    counted = Counted("cuda", scratch_rules(), {scalar: numbers[scalar]} if job.model.any_image_size else {})
    model = skeleton(job, case["config"], use_cache=job.use_cache)
    without_state = checkpoint.checkpoint

    def stateless(function: Any, *args: Any, **kwargs: Any) -> Any:
        """Without data there is no state of a random generator to keep."""
        return without_state(function, *args, **{**kwargs, "preserve_rng_state": False})

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(masking_utils, "find_packed_sequence_indices", lambda *_, **__: None))
        stack.enter_context(patch.object(LlavaModel, "get_placeholder_mask", image_mask))
        stack.enter_context(patch.object(checkpoint, "checkpoint", stateless))
        if job.model.any_image_size:
            stack.enter_context(patch.object(torch, "tensor", of_numbers(torch.tensor)))
        if job.attention != "eager":
            kernel = attention_by(job.attention)
            stack.enter_context(patch.object(functional, "scaled_dot_product_attention", kernel))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counted)
        model = model.to_empty(device="cuda")
        model.tie_weights()
        model.train()
        if case["code"]:
            namespace: dict[str, Any] = {}
            exec(case["code"], namespace)
            namespace["place_checkpoints"](model)
        micro_steps = job.gradient_accumulation_steps
        loop = Loop(job, model, optimizer_of(job, model), batch(job, model), "cuda", micro_steps, [])
        del model
        one_step(loop, counted.enter)
        gc.collect()
        gc.disable()  # tensors die when their last reference goes, here as in the replay
        stack.callback(gc.enable)
        counted.restart()
        one_step(loop, counted.enter)
        counted.settle()
    return dict(counted.phases)


def main(asked: str, answered: str) -> None:
    """Trace every case of the file."""
    pretend()
    import torch

    autocast_believes()
    torch.cuda.get_device_capability = lambda *_, **__: (8, 0)  # asked by the grouped products of experts alone
    from vramplan.measure.kernels import fused_on_cuda

    kept = fused_on_cuda()
    answers: dict[str, Any] = {}
    for name, case in json.loads(Path(asked).read_text("utf-8")).items():
        try:
            answers[name] = trace(case)
        except Exception as error:  # the test of this case fails with it
            import traceback

            answers[name] = {"error": "".join(traceback.format_exception(error)[-6:])}
    del kept
    Path(answered).write_text(json.dumps(answers), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
