"""llm-foundry on tensors without data: its own MPT with flash-attn's functions, and Composer's loop around it.

Of llm-foundry the files of the model run, without the packages that import its data sets; of flash-attn its Python
code, with stand-ins for its kernels. Composer does not run with this PyTorch: in its place are a module around the
model, its precisions, and what it does to a loss.

Source: llm-foundry 0.6.0, llmfoundry/models/mpt; flash-attn 2.5.8; mosaicml 0.20.1, composer/trainer/trainer.py,
_train_microbatch, and composer/trainer/dist_strategy.py, prepare_fsdp_module.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.traces import fsdp1
from tests.traces.fsdp2 import DTYPES
from tests.traces.programs import Program
from vramplan.errors import UsageError
from vramplan.replay.tensors import round_up
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP

METRICS = (
    *("InContextLearningCodeEvalAccuracy", "InContextLearningLMAccuracy", "InContextLearningQAAccuracy"),
    *("InContextLearningLMExpectedCalibrationError", "InContextLearningMCExpectedCalibrationError"),
    *("InContextLearningMultipleChoiceAccuracy", "LanguageCrossEntropy", "LanguagePerplexity", "TokenAccuracy"),
)
BARE = ("llmfoundry", "llmfoundry.models", "llmfoundry.utils")
"""Packages whose own files import data sets and trainers."""

AUTOCAST = {"amp-bf16": "bfloat16", "amp-fp16": "float16"}
ROWS_OF_BLOCK, WIDTH_OF_BLOCK = 128, 32  # of flash-attn's backward kernel


class Foundry(Program):
    """Training of all weights, on one device or under FSDP1."""

    KINDS = (FSDP, FSDP_GRAD_OP)
    PRECISIONS = (*AUTOCAST, "pure-bf16", "fsdp-bf16")
    TYPES = ("mpt",)

    def check(self) -> None:
        """Beside what no program has, what that loop has not."""
        super().check()
        job = self.job
        if job.loss != "standard" or job.adapter is not None or job.grad_scaler:
            raise UsageError("the rig has the loss of llm-foundry, no adapters and no scaler", key="loss")
        if job.attention != "flash":
            raise UsageError("the rig has flash-attn's kernels", key="attention")
        if job.activation_checkpointing not in ("none", "full"):
            raise UsageError("Composer checkpoints every block or none", key="activation_checkpointing")
        if job.sharding is not None and job.sharding.version != 1:
            raise UsageError("Composer has FSDP1", key="parallel")

    def ready(self) -> None:
        """llm-foundry's files of the model, beside stand-ins for what is not there."""
        found = find_spec("llmfoundry") if "llmfoundry" not in sys.modules else None
        if found is not None and found.origin is not None:
            root = Path(found.origin).parent
            for name in BARE:
                made = ModuleType(name)
                made.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
                sys.modules[name] = made
            sys.modules.update(composer() | {"flash_attn_2_cuda": kernels()})
        import_module("llmfoundry.models.mpt.modeling_mpt")
        triton = import_module("flash_attn.ops.triton.cross_entropy")
        for name in ("cross_entropy_fwd_kernel", "cross_entropy_bwd_kernel"):
            setattr(triton, name, _NoKernel())

    def group(self, stack: contextlib.ExitStack) -> tuple[Any, Any]:
        """Of FSDP1, which has no mesh."""
        return (), fsdp1.joined(self.job, stack)

    def skeleton(self) -> Any:
        """ComposerMPTCausalLM."""
        import torch
        from omegaconf import OmegaConf

        shape = self.job.model
        config = {
            "d_model": shape.hidden_size,
            "n_heads": shape.attention_heads,
            "n_layers": shape.layers,
            "expansion_ratio": shape.intermediate_size / shape.hidden_size,
            "max_seq_len": shape.max_positions,
            "vocab_size": shape.vocabulary_size,
            "attn_config": {
                "attn_impl": "flash",
                "attn_pdrop": shape.attention_dropout,
                "alibi": shape.positions == "alibi",
            },
            "learned_pos_emb": shape.positions == "learned",
            "no_bias": shape.positions == "alibi",
            "emb_pdrop": shape.embedding_dropout,
            "resid_pdrop": shape.hidden_dropout,
            "tie_word_embeddings": shape.tied_embeddings,
            "use_cache": False,
            "init_device": "meta",
        }
        if float(config["expansion_ratio"]).is_integer():
            config["expansion_ratio"] = int(config["expansion_ratio"])
        module = import_module("llmfoundry.models.mpt.modeling_mpt")
        made = module.ComposerMPTCausalLM(OmegaConf.create(config))
        return made.to(torch.bfloat16) if self.job.precision == "pure-bf16" else made

    def place(self, skeleton: Any) -> Any:
        """On the device, its blocks in checkpoints; it is there already where it is sharded."""
        if self.mesh is not None:
            return skeleton
        model = super().place(skeleton)
        self.checkpointed(model)
        return model

    def checkpointed(self, model: Any) -> None:
        """`activation_checkpointing`."""
        from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

        if self.job.activation_checkpointing == "none":
            return
        block = import_module("llmfoundry.models.layers.blocks").MPTBlock

        def wrapped(module: Any) -> Any:
            word = checkpoint_wrapper.CheckpointImpl.NO_REENTRANT
            return checkpoint_wrapper.checkpoint_wrapper(module, checkpoint_impl=word, preserve_rng_state=False)

        checkpoint_wrapper.apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=wrapped, check_fn=lambda one: isinstance(one, block)
        )

    def shard(self, skeleton: Any) -> Any:
        """As Composer does it, with gathering after what comes next in backward."""
        import torch
        from torch.distributed import fsdp

        job = self.job
        assert job.sharding is not None
        block = import_module("llmfoundry.models.layers.blocks").MPTBlock
        full = fsdp.ShardingStrategy.FULL_SHARD
        strategy = full if job.sharding.kind == FSDP else fsdp.ShardingStrategy.SHARD_GRAD_OP
        usual = "bf16" if job.precision.startswith("pure-") else "fp32"  # Composer's PURE, and DEFAULT
        reduced = getattr(torch, DTYPES[job.sharding.reduce_dtype or usual])
        whole = fsdp.FullyShardedDataParallel(
            skeleton.to_empty(device="cuda"),
            sharding_strategy=strategy,
            auto_wrap_policy=fsdp.wrap.ModuleWrapPolicy({block}),
            mixed_precision=fsdp.MixedPrecision(
                param_dtype=torch.bfloat16, reduce_dtype=reduced, buffer_dtype=torch.bfloat16
            ),
            backward_prefetch=fsdp.BackwardPrefetch.BACKWARD_POST,
            limit_all_gathers=True,
            use_orig_params=False,
        )
        self.checkpointed(whole)
        if job.sharding.no_sync:
            fsdp1.last_syncs(whole, self.micro_steps)
        return whole

    def operators(self, truth: Any) -> dict[Any, Any]:
        """Every token is one, so that each of them has a place."""
        import torch

        def places(mask: Any) -> Any:
            return torch.empty(mask.numel(), mask.dim(), dtype=torch.int64, device=mask.device)

        # one kernel on CUDA (aten/src/ATen/native/cuda/TensorTransformations.cu), several operators without data
        return {torch.ops.aten.nonzero.default: places, torch.ops.aten.roll.default: lambda x, *_: torch.empty_like(x)}

    def believing(self) -> contextlib.AbstractContextManager[Any]:
        """flash-attn's loss goes to the device before it calls a kernel."""
        import torch

        return patch.object(torch.cuda, "device", lambda _: contextlib.nullcontext())

    def forward(self) -> tuple[Any, Any]:
        """Under the precision of Composer; the loss is of its module."""
        import torch

        half = AUTOCAST.get(self.job.precision) or ("bfloat16" if self.job.precision == "fsdp-bf16" else None)
        batch = {"input_ids": self.tokens, "labels": self.labels}
        around = contextlib.nullcontext() if half is None else torch.autocast("cuda", dtype=getattr(torch, half))
        inner = self.model.module if self.mesh is not None else self.model
        with around:
            outputs = self.model(batch)
            return outputs, inner.loss(outputs, batch)


class _NoKernel:
    """A kernel of Triton, called with a grid: it writes into its arguments."""

    def __getitem__(self, _: Any) -> Any:
        return lambda *_, **__: None


def composer() -> dict[str, ModuleType]:
    """Composer and llm-foundry's metrics: a module around a model, and names."""
    import torch

    class HuggingFaceModel(torch.nn.Module):  # type: ignore[misc]
        """composer/models/huggingface.py: the model is a part of it."""

        def __init__(self, model: Any, **_: Any) -> None:
            super().__init__()
            self.model = model

    names = ("composer", "composer.metrics", "composer.metrics.nlp", "composer.models", "composer.utils")
    made = {name: ModuleType(name) for name in (*names, "llmfoundry.metrics")}
    for metric in METRICS:
        for name in ("composer.metrics", "composer.metrics.nlp", "llmfoundry.metrics"):
            setattr(made[name], metric, object)
    made["composer.models"].HuggingFaceModel = HuggingFaceModel  # type: ignore[attr-defined]
    made["composer.utils"].dist = None  # type: ignore[attr-defined]
    return made


def kernels() -> ModuleType:
    """flash-attn's kernels of rows, by what they allocate.

    Source: flash-attn 2.5.8, csrc/flash_attn/flash_api.cpp, mha_varlen_fwd and mha_varlen_bwd.
    """
    import torch

    made = ModuleType("flash_attn_2_cuda")

    def varlen_fwd(q: Any, k: Any, v: Any, _: Any, ends: Any, *__: Any) -> tuple[Any, ...]:
        samples = ends.numel() - 1
        lse = torch.empty(samples, q.shape[1], q.shape[0] // samples, dtype=torch.float32, device=q.device)
        state = torch.empty(2, dtype=torch.int64, device=q.device)
        out = torch.empty_like(q)
        return out, q, k, v, out, lse, None, state

    def varlen_bwd(*given: Any) -> tuple[Any, ...]:
        q, dq, dk, dv, ends = given[1], given[6], given[7], given[8], given[9]
        (rows, heads, width), samples = q.shape, ends.numel() - 1
        length = round_up(rows // samples, ROWS_OF_BLOCK)
        sums = torch.empty(samples, heads, length, dtype=torch.float32, device=q.device)
        size = rows + ROWS_OF_BLOCK * samples, heads, round_up(width, WIDTH_OF_BLOCK)
        _accumulator = torch.empty(size, dtype=torch.float32, device=q.device)
        return dq, dk, dv, sums

    made.varlen_fwd, made.varlen_bwd = varlen_fwd, varlen_bwd  # type: ignore[attr-defined]
    return made


PROGRAM = Foundry
