"""Megatron-core on tensors without data: one micro-batch of one pipeline stage, as its own schedule runs it.

A row says a form of the model, and how tensors, sequences and experts are shared. The model is GPTModel with its local
modules, the loss is that of pretrain_gpt.py, and the gradients are in the buffers of its DistributedDataParallel. Four
things are not as on a GPU. A function that `jit_fuser` compiles allocates its results alone. The kernel of a causal
softmax, which no CPU has, gives a new tensor forward and writes in place backward. The norms are PyTorch's, also where
Megatron-core wants Apex's for sequence parallelism, which keep the same. Nobody keeps states of random generators.

Source: megatron-core 0.16.1; NVIDIA/Megatron-LM, pretrain_gpt.py, get_batch and loss_func, megatron/legacy/
fused_kernels/scaled_masked_softmax.h.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.traces.fsdp2 import CUDA, joined

FORM: dict[str, Any] = {
    "layers": 3,
    "hidden": 256,
    "heads": 8,
    "kv": None,
    "ffn": None,
    "vocab": 1000,
    "max_pos": 2048,
    "gated": False,
    "bias": True,
    "qkv_bias": False,
    "rope": False,
    "tied": True,
    "qk_norm": False,
    "tp": 1,
    "sp": False,
    "recompute": None,
    "n_recompute": 1,
    "method": "uniform",
    "dtype": "bf16",
    "dropout": 0.0,
    "micro": 2,
    "seq": 128,
    "pre": True,
    "post": True,
    "head_dim": None,
    "norm": "LayerNorm",
}
"""What a row has that says nothing else."""

VOCABULARY_MULTIPLE = 128  # make-vocab-size-divisible-by
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def compiled(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """In the place of `torch.compile`: what the function makes on its way is not counted, its result is."""

    def run(*given: Any, **named: Any) -> Any:
        if not COUNTERS or not COUNTERS[-1].counts:  # inside of another one
            return function(*given, **named)
        COUNTERS[-1].counts = False
        try:
            out = function(*given, **named)
        finally:
            COUNTERS[-1].counts = True
        COUNTERS[-1].count(out)
        return out

    return run


def dropped_and_added() -> Callable[..., Any]:
    """`bias_dropout_add_fused_train` as one operator forward and one backward: it keeps the mask of a dropout alone.

    Source: core/fusions/fused_bias_dropout.py; torch/_functorch/partitioners.py.
    """
    import torch

    class Fused(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, bias: Any, residual: Any, p: float) -> Any:
            ctx.biased, ctx.p = bias is not None and bias.requires_grad, p
            out = torch.empty_like(residual)
            if p:
                ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            of_x = torch.empty_like(gradient) if ctx.p else gradient
            of_bias = of_x.new_empty(of_x.shape[-1:]) if ctx.biased else None
            return of_x, of_bias, gradient, None

    def run(x_with_bias: Any, residual: Any, prob: float) -> Any:
        return Fused.apply(*x_with_bias, residual, prob)

    return run


class CausalSoftmax:
    """The extension `scaled_upper_triang_masked_softmax_cuda`."""

    @staticmethod
    def forward(scores: Any, _: Any) -> Any:
        """New."""
        import torch

        return torch.empty_like(scores)

    @staticmethod
    def backward(gradient: Any, *_: Any) -> Any:
        """In place of the gradient, or of a copy that is contiguous."""
        return gradient.contiguous()


def batches_of_a_block(_: int, keys: int, *__: int) -> int:
    """get_batch_per_block of scaled_masked_softmax.h."""
    power = 1 << (keys - 1).bit_length()
    return 128 // min(power, 32) * (2 if power <= 128 else 1)


COUNTERS: list[Any] = []
"""What counts now, if anything does: what was compiled when the library was imported asks for it each time."""

EXTENSIONS: dict[str, Any] = {
    "transformer_engine": None,  # it is not there for Megatron-core, whose local modules are traced
    "scaled_upper_triang_masked_softmax_cuda": CausalSoftmax,
    "scaled_masked_softmax_cuda": SimpleNamespace(get_batch_per_block=batches_of_a_block),
}


class Stage:
    """A stage of a model, and its loop of one micro-batch."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = {**FORM, **row}
        self.logged: list[Any] = []

    @property
    def stages(self) -> int:
        """Of the pipeline, as few as there are with a stage of this kind: its first, a middle one, its last, or all."""
        return 1 + (not self.row["pre"]) + (not self.row["post"])

    @property
    def spread(self) -> int:
        """Devices of a stage."""
        return int(self.row["tp"])

    @property
    def rank(self) -> int:
        """Of the device that is traced, the first of its stage."""
        return 0 if self.row["pre"] else self.spread

    @property
    def length(self) -> int:
        """Of a sequence."""
        return int(self.row["seq"])

    def mask(self) -> Any:
        """The causal one that a micro-batch brings."""
        import torch

        shape = (self.row["micro"], 1, self.length, self.length)
        return torch.empty(shape, dtype=torch.bool, device="cuda")

    def groups(self) -> dict[str, Any]:
        """Of devices, beside those of tensors and stages."""
        return {}

    def scalars(self) -> list[Any]:
        """What is left for the next iteration beside states and buffers."""
        return [self.number]

    def operators(self) -> dict[Any, Any]:
        """Of PyTorch, of which data would decide what they give."""
        return {}

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """What else is otherwise than on a GPU."""
        return contextlib.nullcontext()

    def config(self) -> Any:
        """TransformerConfig."""
        import torch
        from megatron.core.transformer import TransformerConfig

        r = self.row
        dtype = getattr(torch, DTYPES[r["dtype"]])
        return TransformerConfig(
            num_layers=r["layers"] * self.stages,
            hidden_size=r["hidden"],
            num_attention_heads=r["heads"],
            num_query_groups=r["kv"] or r["heads"],
            ffn_hidden_size=r["ffn"] or 4 * r["hidden"],
            kv_channels=r["head_dim"] or r["hidden"] // r["heads"],
            gated_linear_unit=r["gated"],
            activation_func=torch.nn.functional.silu if r["gated"] else torch.nn.functional.gelu,
            add_bias_linear=r["bias"],
            add_qkv_bias=r["bias"] or r["qkv_bias"],
            qk_layernorm=r["qk_norm"],
            normalization=r["norm"],
            hidden_dropout=r["dropout"],
            attention_dropout=r["dropout"],
            bf16=r["dtype"] == "bf16",
            fp16=r["dtype"] == "fp16",
            params_dtype=dtype,
            pipeline_dtype=dtype,
            autocast_dtype=dtype,
            attention_softmax_in_fp32=False,
            tensor_model_parallel_size=r["tp"],
            pipeline_model_parallel_size=self.stages,
            sequence_parallel=r["sp"],
            recompute_granularity=r["recompute"],
            recompute_method=r["method"] if r["recompute"] == "full" else None,
            recompute_num_layers=r["n_recompute"] if r["recompute"] == "full" else None,
            bias_activation_fusion=True,
            bias_dropout_fusion=True,
            masked_softmax_fusion=True,
            gradient_accumulation_fusion=False,
            deallocate_pipeline_outputs=True,
            perform_initialization=False,
            **self.more(),
        )

    def more(self) -> dict[str, Any]:
        """Of TransformerConfig, what other rows say."""
        return {}

    def spec(self) -> Any:
        """The modules of a block."""
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

        return get_gpt_layer_local_spec(qk_layernorm=self.row["qk_norm"], normalization=self.row["norm"])

    def build(self) -> None:
        """The model in its buffers."""
        import torch
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.models.gpt import GPTModel
        from megatron.core.transformer.module import Float16Module

        r = self.row
        self.settings = self.config()
        part = VOCABULARY_MULTIPLE * r["tp"]
        with as_it_stays(getattr(torch, DTYPES[r["dtype"]])):
            model = GPTModel(
                config=self.settings,
                transformer_layer_spec=self.spec(),
                vocab_size=-(-r["vocab"] // part) * part,
                max_sequence_length=r["max_pos"],
                pre_process=r["pre"],
                post_process=r["post"],
                share_embeddings_and_output_weights=r["tied"],
                position_embedding_type="rope" if r["rope"] else "learned_absolute",
            )
            if r["dtype"] != "fp32":
                model = Float16Module(self.settings, model)
        wide = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False)
        self.model = DistributedDataParallel(self.settings, wide, model)
        self.hidden = (self.length // (r["tp"] if r["sp"] else 1), r["micro"], r["hidden"])
        self.dtype = getattr(torch, DTYPES[r["dtype"]])

    def forward_step(self, _: Any, model: Any) -> Any:
        """That of pretrain_gpt.py."""
        import torch

        r = self.row
        shape = (r["micro"], self.length)
        tokens, labels = (torch.empty(shape, dtype=torch.int64, device="cuda") for _ in range(2))
        counted = torch.empty(shape, dtype=torch.float32, device="cuda")
        mask = self.mask()
        places = torch.empty(shape, dtype=torch.int64, device="cuda")
        out = model(tokens, places, mask, labels=labels)

        def loss(given: Any) -> Any:
            losses, seen = given.view(-1).float(), counted.view(-1).float()
            total = torch.sum(losses * seen)
            number = seen.sum().clone().detach().to(torch.int)
            return total, number, {"lm loss": torch.cat([total.clone().detach().view(1), number.view(1)])}

        return out, loss

    def iterate(self, counted: Any) -> dict[str, int]:
        """One micro-batch, forward and backward."""
        import torch
        from megatron.core.enums import ModelType
        from megatron.core.pipeline_parallel import schedules
        from megatron.core.utils import get_attr_wrapped_model

        r = self.row
        self.logged = []
        counted.enter("forward")
        began = counted.now_bytes
        received = None if r["pre"] else torch.empty(self.hidden, dtype=self.dtype, device="cuda", requires_grad=True)
        out, self.number = schedules.forward_step(
            self.forward_step, None, self.model, 1, received, self.logged, self.settings, 1, is_last_stage=r["post"]
        )
        self.number = self.number.cuda()  # added to a sum on the device, where it is on the last stage
        saved = counted.now_bytes - began
        counted.enter("backward")
        gradient = None
        if not r["post"]:
            gradient = torch.empty(self.hidden, dtype=self.dtype, device="cuda")
            schedules.deallocate_output_tensor(out, True)
        schedules.backward_step(received, out, gradient, ModelType.encoder_or_decoder, self.settings)
        get_attr_wrapped_model(self.model, "set_input_tensor")([None])  # else it is there until the next one comes
        return {"began": began, "saved": saved}


@contextlib.contextmanager
def as_it_stays(dtype: Any) -> Iterator[None]:
    """A model is made on the device in its type: parameters without data cannot be given other data."""
    import torch

    before = torch.get_default_dtype()
    with (
        torch.device("cuda"),
        patch.object(torch.nn.Module, "bfloat16", lambda self: self),
        patch.object(torch.nn.Module, "half", lambda self: self),
    ):
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


@contextlib.contextmanager
def library() -> Iterator[None]:
    """Megatron-core without what only a GPU has."""
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(torch, "compile", compiled))
        stack.enter_context(patch.dict(sys.modules, EXTENSIONS))
        from megatron.core.fusions import fused_bias_dropout
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer import torch_norm

        norms = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}

        def norm(_: Any, config: Any, hidden_size: int, eps: float = 1e-5, **__: Any) -> Any:
            return norms[config.normalization](hidden_size, eps=eps)

        tracker = SimpleNamespace(
            fork=lambda *_: contextlib.nullcontext(), get_states=dict, set_states=lambda _: None, is_initialized=bool
        )
        for module, name, own in (
            (fused_bias_dropout, "bias_dropout_add_fused_train", dropped_and_added()),
            (torch_norm.WrappedTorchNorm, "__new__", norm),
            (random, "_CUDA_RNG_STATE_TRACKER", tracker),
            (random, "_CUDA_RNG_STATE_TRACKER_INITIALIZED", True),
            (random, "_get_all_rng_states", tuple),
            (random, "_set_all_rng_states", lambda *_: None),
            (random, "_fork_rng", contextlib.nullcontext),
            *((torch.cuda, name, own) for name, own in CUDA.items()),
        ):
            stack.enter_context(patch.object(module, name, own))
        yield


def traced(row: dict[str, Any], made: type[Stage] = Stage) -> dict[str, int]:
    """What the first device of the group allocates: of the second iteration."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from vramplan.measure.kernels import scratch_rules
    from vramplan.measure.stand_ins import Truth, stand_ins
    from vramplan.replay.recorder import rounded

    stage = made(row)
    with contextlib.ExitStack() as stack:
        counter = joined(stage.spread * stage.stages, stack, stage.rank)
        stack.enter_context(library())
        from megatron.core import parallel_state

        groups = {**stage.groups(), "create_gloo_process_groups": False}
        parallel_state.initialize_model_parallel(stage.row["tp"], stage.stages, **groups)
        stack.callback(parallel_state.destroy_model_parallel)
        stack.enter_context(stage.around())
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        counted = counter("cuda", scratch_rules(), {**stand_ins(Truth()), **stage.operators()})
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counted)
        COUNTERS.append(counted)
        stack.callback(COUNTERS.clear)
        stage.build()
        stage.iterate(counted)
        gc.collect()
        gc.disable()  # tensors die when their last reference goes, here as in the replay
        stack.callback(gc.enable)
        counted.restart()
        found = stage.iterate(counted)
        counted.settle()
        buffers = (*stage.model.buffers, *stage.model.expert_parallel_buffers)
        gradients = sum(rounded(one.grad_data.nbytes) for one in buffers)
        other = sum(rounded(one.nbytes) for one in stage.scalars())
    figures = {"static": found["began"] - gradients - other, "main_gradient": gradients, "other": other}
    figures |= {**counted.phases, "saved": found["saved"]}
    return {f"{name}_bytes": size for name, size in figures.items()}
