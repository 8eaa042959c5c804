"""Steps that torch.compile makes, on tensors without data: Dynamo, AOTAutograd, the partitioner and Inductor are real.

They compile for an A100, and the wrapper code that Inductor writes is run: it allocates, reuses and deletes as it says,
its products and attention are operators without data, and its Triton kernels, which write into buffers that are there,
compute nothing. What asks for a GPU while it compiles is told what that GPU is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from vramplan.errors import UsageError
from vramplan.values.job import ResolvedJob

OWN_KEYS = ("compile",)
"""What the loop on one device refuses and this rig has."""

A100 = {
    "name": "NVIDIA A100-SXM4-40GB",
    "major": 8,
    "minor": 0,
    "total_memory": 42_297_786_368,
    "multi_processor_count": 108,
    "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 2_048,
    "max_threads_per_block": 1_024,
    "shared_memory_per_block": 49_152,
    "shared_memory_per_block_optin": 166_912,
    "shared_memory_per_multiprocessor": 167_936,
    "warp_size": 32,
    "L2_cache_size": 41_943_040,
    "uuid": "0",
    "gcnArchName": "",
}
"""cudaGetDeviceProperties of that GPU: Inductor splits reductions by its multiprocessors.

Source: NVIDIA A100 Tensor Core GPU architecture, 2020; CUDA C++ Programming Guide, compute capability 8.0.
"""


def check(job: ResolvedJob) -> None:
    """Raise UsageError for what this rig does not compile."""
    if job.teacher is not None or job.eval_batch_size is not None or job.generation_batch_size is not None:
        raise UsageError("the rig compiles a training step of one model alone", key="compile")


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step, in bytes."""
    import torch

    from vramplan.measure import steps

    plain = steps.prepare_without_data
    with contextlib.ExitStack() as stack:

        def prepare(*given: Any, **named: Any) -> Any:
            """The loop; a model that is being built would look at a GPU."""
            loop = plain(*given, **named)
            available(stack)
            return loop._replace(model=torch.compile(loop.model))

        compiling(stack)
        stack.enter_context(patch.object(steps, "prepare_without_data", prepare))
        stack.enter_context(patch.object(steps, "Storages", counting(steps.Storages)))
        phases = steps.without_data(job._replace(compile=False))["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def compiling(stack: contextlib.ExitStack) -> None:
    """From here on the compiler is told of a GPU, and what it writes is run."""
    import torch

    torch._dynamo.reset()
    _tell_of_gpu(stack)
    _without_gpu(stack)
    _run_wrappers(stack)


def available(stack: contextlib.ExitStack) -> None:
    """From here on there is a GPU, whatever was asked before."""
    import torch
    from torch.utils import _triton

    stack.enter_context(patch.object(torch.cuda, "is_available", lambda: True))
    _triton.has_triton.cache_clear()
    stack.callback(_triton.has_triton.cache_clear)


def counting(base: Any) -> Any:
    """A counter of storages which the compiler does not see, and which runs what keeps a state of random numbers."""
    import torch

    class Counter(base):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._composed = {**self._composed, **_grouped_products()}

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def hold(self, tensor: Any) -> None:
            """What the compiler makes to see what it is told, and keeps with its graph, is on no device."""
            if torch._guards.TracingContext.try_get() is None:
                super().hold(tensor)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not isinstance(func, torch._ops.HigherOrderOperator):
                return super().__torch_dispatch__(func, types, args, kwargs)
            operator, *given = args
            named = {name: value for name, value in (kwargs or {}).items() if name != "rng_state"}
            with self:
                return operator(*given, **named)

    return Counter


def _grouped_products() -> dict[Any, Any]:
    """What Transformers takes for products grouped by expert where it compiles and weights are not bf16.

    Source: transformers 5.23, integrations/moe.py, _grouped_mm_fallback and _grouped_mm_fallback_bwd: results in zeros,
    into which products of one expert each write.
    """
    import torch

    def forward(x: Any, weight: Any, _: Any) -> Any:
        return torch.zeros(x.shape[0], weight.shape[2], device=x.device, dtype=x.dtype)

    def backward(x: Any, weight: Any, *_: Any) -> Any:
        return torch.zeros_like(x), torch.zeros_like(weight)

    operators = torch.ops.transformers
    if not hasattr(operators, "grouped_mm_fallback"):
        return {}
    return {
        operators.grouped_mm_fallback.default: forward,
        operators.grouped_mm_fallback_backward.default: backward,
    }


def _tell_of_gpu(stack: contextlib.ExitStack) -> None:
    """What PyTorch and the compiler ask of the device."""
    import torch
    from torch._dynamo.device_interface import CudaInterface
    from torch.utils import _triton

    class Generator(torch.Generator):  # type: ignore[misc]
        """Of random numbers on the device, whose states checkpoints hand from forward to backward."""

        device = property(lambda _: torch.device("cuda", 0))

        def clone_state(self) -> Any:
            return Generator()

        def graphsafe_get_state(self) -> Any:
            return Generator()

        def graphsafe_set_state(self, _: Any) -> Any:
            return self

    cuda = torch.cuda
    stream = SimpleNamespace(cuda_stream=0, device=torch.device("cuda", 0))
    asked: dict[str, Any] = {
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "_exchange_device": lambda *_: 0,
        "_maybe_exchange_device": lambda *_: 0,
        "current_stream": lambda *_: stream,
        "get_device_properties": lambda *_: SimpleNamespace(**A100),
        "get_device_capability": lambda *_: (A100["major"], A100["minor"]),
        "is_bf16_supported": lambda *_, **__: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
    }
    for name, own in asked.items():
        stack.enter_context(patch.object(cuda, name, own))
        interface = name.removeprefix("_")  # which took what PyTorch had when it was imported
        if hasattr(CudaInterface, interface):
            stack.enter_context(patch.object(CudaInterface, interface, staticmethod(own)))
    stack.enter_context(patch.object(CudaInterface, "get_raw_stream", staticmethod(lambda _: 0)))
    stack.enter_context(patch.object(cuda, "_DeviceGuard", lambda _: contextlib.nullcontext()))
    stack.enter_context(patch.object(cuda, "default_generators", (Generator(),)))
    for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice"):
        stack.enter_context(patch.object(torch._C, name, lambda *_: 0, create=True))
    for name, said in (("triton_hash_with_backend", ""), ("triton_backend", None)):  # of a driver, for its caches
        stack.enter_context(patch.object(_triton, name, lambda said=said: said))


def _without_gpu(stack: contextlib.ExitStack) -> None:
    """What the compiler would compute on the device: numbers of constants, and times of padded products.

    The patterns of attention are traced on the host: they are the same.
    """
    import torch
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.fx_passes import joint_graph
    from torch.utils._python_dispatch import TorchDispatchMode

    host = torch.device("cpu")

    class OnHost(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = {key: host if isinstance(one, torch.device) else one for key, one in (kwargs or {}).items()}
            return func(*(host if isinstance(one, torch.device) else one for one in args), **named)

    def on_host(run: Any) -> Any:
        def around(*given: Any, **named: Any) -> Any:
            with OnHost():
                return run(*given, **named)

        return around

    folder = joint_graph.UniformValueConstantFolder
    for name in ("__init__", "run"):
        stack.enter_context(patch.object(folder, name, on_host(getattr(folder, name))))
    patterns = joint_graph.lazy_init
    stack.enter_context(patch.object(joint_graph, "lazy_init", lambda *_, **__: patterns(host)))
    stack.enter_context(functorch.patch(enable_autograd_cache=False))
    stack.enter_context(inductor.patch(fx_graph_cache=False, compile_threads=1, shape_padding=False))


def _run_wrappers(stack: contextlib.ExitStack) -> None:
    """What the wrapper code calls by other ways than operators, and its kernels."""
    import torch
    from torch._inductor.async_compile import AsyncCompile

    class Kernel:
        def run(self, *_: Any, **__: Any) -> None:
            """It writes into its arguments."""

    def allocated(size: Any, stride: Any, dtype: Any) -> Any:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def reinterpreted(x: Any, size: Any, stride: Any, offset: int = 0) -> Any:
        return torch.as_strided(x, size, stride, x.storage_offset() + offset)

    guards = torch._C._dynamo.guards
    stack.enter_context(patch.object(guards, "_empty_strided_cuda", allocated, create=True))
    stack.enter_context(patch.object(guards, "_reinterpret_tensor", reinterpreted))
    stack.enter_context(patch.object(guards, "assert_size_stride", lambda *_: None))
    stack.enter_context(patch.object(AsyncCompile, "triton", lambda *_, **__: Kernel()))
    stack.enter_context(patch.object(AsyncCompile, "warm_pool", lambda *_: None))
    written = stack.enter_context(tempfile.TemporaryDirectory(prefix="vramplan-"))
    stack.enter_context(patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=written))
