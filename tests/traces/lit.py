"""LitGPT on tensors without data: its models and LoRA, its losses, and what Fabric puts around them.

Source: litgpt 0.5.13, finetune/full.py, finetune/lora.py and pretrain.py, whose `fit` reads data and cannot be called
alone; lightning 2.6.6, fabric/wrappers.py.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from tests.traces import fsdp1
from tests.traces.fsdp2 import last_reduces
from tests.traces.programs import Program
from vramplan.errors import UsageError
from vramplan.values.parallel import FSDP

LLAMA = {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "bias": False, "parallel_residual": False}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": {**LLAMA, "attn_bias": True},
    "qwen3": {**LLAMA, "norm_qk": True},
    "gpt_neox": {},
    "phi": {"shared_attention_norm": True, "lm_head_bias": True, "gelu_approximate": "tanh"},
    "falcon": {"bias": False},
}
"""What a type of model has otherwise than the default of litgpt's Config (litgpt/config.py)."""

WORDS = {
    "lora_query": ("q_proj",),
    "lora_key": ("k_proj",),
    "lora_value": ("v_proj",),
    "lora_projection": ("o_proj",),
    "lora_mlp": ("gate_proj", "up_proj", "down_proj"),
}
FLAT = {
    "fsdp-bf16": "bf16-mixed",
    "fsdp-fp16": "16-mixed",
    "pure-bf16": "bf16-true",
    "pure-fp16": "16-true",
    "fp32": "32-true",
}
"""Words of Fabric's `precision` under FSDP1, by what they mean there."""

BITS = {"nf4": "nf4", "nf4-double": "nf4-dq"}
LITGPT = "0.5.13"
"""The release of the rigs but `litgpt-0.4`."""

BITSANDBYTES = "0.49.2"
"""The release of the rig `litgpt`; that of `litgpt-bits` is the one that Lightning 2.2 asked for."""

KERNELS = ("lib", "get_ptr", "is_on_gpu", "pre_call", "post_call")
"""What calls kernels in releases of bitsandbytes without operators: they write into what is there."""

FABRIC = {"pure-bf16": "bf16-true", "pure-fp16": "16-true", "amp-bf16": "bf16-mixed", "amp-fp16": "16-mixed"}


class LitGPT(Program):
    """Training of all weights or of LoRA, on one device or sharded."""

    PACKAGE = "litgpt.finetune.lora"
    KINDS = (FSDP,)
    PRECISIONS = ("fp32", *FABRIC, "fsdp-bf16", "fsdp-fp16")
    TYPES = tuple(MODELS)

    def check(self) -> None:
        """Beside what no program has, adapters that are no LoRA, and weights in 4 bits."""
        super().check()
        job = self.job
        if job.adapter is not None and (job.adapter.kind != "lora" or job.adapter.modules_to_save):
            raise UsageError(f"the rig has no {job.adapter.kind} of this kind", key="adapter")
        if job.quantization is not None and (job.quantization not in BITS or job.adapter is None or job.sharding):
            raise UsageError("the rig has weights in 4 bits under LoRA on one device", key="quantization")
        if job.quantization is not None and (job.bitsandbytes or BITSANDBYTES) != release("bitsandbytes", BITSANDBYTES):
            raise UsageError("the rig has another release", key="bitsandbytes")
        if self.is_flat and (job.adapter is not None or job.precision not in FLAT):
            raise UsageError("under FSDP1 the rig trains all weights, in Fabric's precisions of it", key="parallel")
        word, _, half = job.precision.partition("-")
        if self.is_flat and word == "fsdp" and (job.sharding is None or job.sharding.reduce_dtype != half):
            raise UsageError("Fabric's FSDP1 sums in the type of its mixed precision", key="parallel.reduce_dtype")
        if not self.is_flat and job.precision.startswith("fsdp-"):
            raise UsageError("of FSDP1 alone", key="precision")
        if (job.litgpt_version or LITGPT) != release("litgpt", LITGPT):
            raise UsageError("the rig has another release", key="litgpt_version")
        if job.grad_scaler:
            raise UsageError("the rig scales no loss", key="grad_scaler")
        word = (job.activation_checkpointing or "none").partition(":")[0]
        if word not in ("none", "full", "every"):
            raise UsageError(f"the rig has no {word}", key="activation_checkpointing")
        if word == "every" and job.sharding is not None:
            raise UsageError("Fabric checkpoints each block that it shards", key="activation_checkpointing")
        if job.loss.partition(":")[0] not in ("standard", "chunked"):
            raise UsageError("the rig has LitGPT's own losses", key="loss")

    def skeleton(self) -> Any:
        """GPT, as Fabric makes it; beside LoRA all else is frozen."""
        import torch
        from lightning.fabric.strategies import SingleDeviceStrategy
        from litgpt import lora, model

        self.precision = self._precision()
        self.strategy = SingleDeviceStrategy(torch.device("cuda"), precision=self.precision)
        with self.precision.module_init_context(), torch.device("meta"):
            if self.job.adapter is None:
                made = model.GPT(model.Config(**self._sizes()))
            else:
                made = lora.GPT(lora.Config(**self._sizes(), **self._adapter()))
                lora.mark_only_lora_as_trainable(made)
        made = self.precision.convert_module(made)
        strategy = self.job.activation_checkpointing or "none"
        if strategy != "none" and self.job.sharding is None:  # else what shards it does that too
            every = int(strategy.partition(":")[2] or 1)
            blocks = list(made.transformer.h)
            segments = [blocks[first : first + every] for first in range(0, len(blocks), every)]
            made.transformer.h = torch.nn.ModuleList(_segment(one) for one in segments)
        return made

    def _precision(self) -> Any:
        """Fabric's plugin; without a scaler, as the job has none."""
        from lightning.fabric.plugins import precision

        if self.is_flat:
            made = precision.FSDPPrecision(FLAT[self.job.precision])
            made.scaler = None
            return made
        word = FABRIC.get(self.job.precision)
        if self.job.quantization is not None:
            return precision.BitsandbytesPrecision(BITS[self.job.quantization], self._dtype())
        if word is None:
            return precision.Precision()
        if word.endswith("true"):
            return precision.HalfPrecision(word)
        made = precision.MixedPrecision(word, "cuda")
        made.scaler = None
        return made

    def _dtype(self) -> Any:
        """Of what is neither quantized nor autocast."""
        import torch

        return {"pure-bf16": torch.bfloat16, "pure-fp16": torch.float16}.get(self.job.precision, torch.float32)

    def _sizes(self) -> dict[str, Any]:
        shape = self.job.model
        found = {
            **MODELS[str(shape.transformers_model_type)],
            "block_size": shape.max_positions,
            "n_layer": shape.layers,
            "n_embd": shape.hidden_size,
            "n_head": shape.attention_heads,
            "n_query_groups": shape.key_value_heads,
            "head_size": shape.head_size,
            "padded_vocab_size": shape.vocabulary_size,
            "intermediate_size": shape.intermediate_size,
            "rotary_percentage": shape.partial_rotary_factor,
        }
        if shape.transformers_model_type == "gpt_neox":
            found["parallel_residual"] = shape.parallel_residual
        if shape.transformers_model_type == "falcon":
            found["shared_attention_norm"] = shape.parallel_norms == 1
        return found

    def _adapter(self) -> dict[str, Any]:
        adapter = self.job.adapter
        assert adapter is not None
        found = {word: bool({*names} & {*adapter.targets}) for word, names in WORDS.items()}
        return {
            **found,
            "lora_r": adapter.rank,
            "lora_alpha": adapter.alpha or 2 * adapter.rank,
            "lora_dropout": adapter.dropout,
        }

    @property
    def is_flat(self) -> bool:
        """Whether `FSDPStrategy` wraps it, as finetune/full.py does, and not `parallelize_fn` of finetune/lora.py."""
        return self.job.sharding is not None and self.job.sharding.version == 1

    def group(self, stack: contextlib.ExitStack) -> tuple[Any, Any]:
        """Of FSDP1, which has no mesh, another one."""
        if not self.is_flat:
            return super().group(stack)
        return (), fsdp1.joined(self.job, stack)

    def flat(self, skeleton: Any) -> Any:
        """`FSDPStrategy.setup_module` (fabric/strategies/fsdp.py), as finetune/full.py asks for it."""
        from lightning.fabric.strategies import fsdp
        from litgpt.model import Block
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        assert self.job.sharding is not None
        self.inner = skeleton
        whole = FullyShardedDataParallel(
            skeleton.to_empty(device="cuda"),
            mixed_precision=self.precision.mixed_precision_config,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=True,
            limit_all_gathers=True,
        )
        if self.job.activation_checkpointing != "none":
            how = fsdp._activation_checkpointing_kwargs(None, {Block})
            fsdp._setup_activation_checkpointing(whole, how)
        if self.job.sharding.no_sync:
            fsdp1.last_syncs(whole, self.micro_steps)
        self.whole = whole
        return whole

    def place(self, skeleton: Any) -> Any:
        """It is there, where it is sharded by FSDP1."""
        if self.is_flat:
            return skeleton
        model = super().place(skeleton)
        if self.job.quantization is not None:
            quantize(model, nested=self.job.quantization == "nf4-double")
        return model

    def operators(self, truth: Any) -> dict[Any, Any]:
        """Those of bitsandbytes too."""
        from vramplan.measure import quantized

        return quantized.operators(truth) if self.job.quantization is not None and has_operators() else {}

    @contextlib.contextmanager
    def believing(self) -> Any:
        """Kernels are asked for on a stream; of an adapter there is no code of PEFT."""
        import torch

        from vramplan.measure import quantized

        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, create=True))
            if self.job.quantization is not None and not has_operators():
                functional = import_module("bitsandbytes.functional")
                stack.enter_context(patch.multiple(functional, **dict.fromkeys(KERNELS, quantized.NO_KERNELS)))
            stack.enter_context(quantized.by_value(self.job._replace(adapter=None)))
            yield

    def shard(self, skeleton: Any) -> Any:
        """`parallelize_fn` of finetune/lora.py, or the strategy of finetune/full.py."""
        if self.is_flat:
            return self.flat(skeleton)
        from litgpt.finetune.lora import parallelize_fn

        assert self.job.sharding is not None
        checkpoints = self.job.activation_checkpointing != "none"
        model = parallelize_fn(skeleton, {"data_parallel": self.mesh}, activation_checkpointing=checkpoints)
        if self.job.sharding.no_sync:
            last_reduces(model, self.micro_steps)
        return model

    def prepare(self, model: Any) -> None:
        """Rotary positions of the length that is trained, and Fabric's module around the model."""
        from lightning.fabric.wrappers import _FabricModule

        (self.inner if self.is_flat else model).max_seq_length = self.job.sequence_length  # _FabricModule.__setattr__
        super().prepare(model)
        self.model = _FabricModule(model, self.strategy)

    def forward(self) -> tuple[Any, Any]:
        """A micro-step of `fit`."""
        from litgpt.utils import chunked_cross_entropy

        word, _, chunks = self.job.loss.partition(":")
        if word == "standard":
            logits = self.model(self.tokens)
            self.outputs = None  # the variable of the logits is bound anew, and that of the loss has a number by then
            return logits, chunked_cross_entropy(logits[..., :-1, :], self.labels[..., 1:])
        length = self.job.sequence_length
        size = 128 if -(-length // 128) == int(chunks) else -(-length // int(chunks))
        logits = self.model(self.tokens, lm_head_chunk_size=size)
        self.outputs = None
        logits[-1] = logits[-1][..., :-1, :]
        return logits, chunked_cross_entropy(logits, self.labels[..., 1:])

    def step(self) -> None:
        """With what the next forward would do first: FSDP1 lets go of gradients that nobody has any more."""
        super().step()
        if self.is_flat:
            from torch.distributed.fsdp import FullyShardedDataParallel, _runtime_utils

            handles = [one._handle for one in FullyShardedDataParallel.fsdp_modules(self.whole)]
            _runtime_utils._reset_flat_param_grad_info_if_needed(handles)

    def backward(self, loss: Any) -> None:
        """`Fabric.backward`."""
        from lightning.fabric import wrappers

        with patch.object(wrappers, "_in_fabric_backward", True):
            self.strategy.backward(loss, None)


def release(package: str, otherwise: str) -> str:
    """Of a package in this environment; without it, that of the rig `litgpt`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return otherwise


def has_operators() -> bool:
    """Whether this release of bitsandbytes has operators of PyTorch's, and not functions around its kernels."""
    return find_spec("bitsandbytes._ops") is not None


def quantize(model: Any, *, nested: bool) -> None:
    """4-bit numbers in the place of weights, from fp16 whatever the precision is.

    A parameter of bitsandbytes' own class would not be a tensor without data (vramplan/measure/quantized.py).
    Source: lightning 2.6.6, fabric/plugins/precision/bitsandbytes.py, _Linear4bit.quantize.
    """
    import torch
    from bitsandbytes import functional

    from vramplan.measure import quantized

    for _, layer in quantized.layers(model):
        whole = torch.empty(layer.out_features, layer.in_features, dtype=torch.float16, device="cuda")
        codes, state = functional.quantize_4bit(whole, compress_statistics=nested, quant_type="nf4")
        layer.weight = torch.nn.Parameter(codes, requires_grad=False)
        layer.weight.quant_state = layer.quant_state = state


def _segment(blocks: list[Any]) -> Any:
    """Blocks in one checkpoint."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Segment(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(blocks)

        def run(self, x: Any, *more: Any) -> Any:
            for block in self.blocks:
                x = block(x, *more)
            return x

        def forward(self, *given: Any) -> Any:
            return checkpoint(self.run, *given, use_reentrant=False, preserve_rng_state=False)

    return Segment()


PROGRAM = LitGPT
