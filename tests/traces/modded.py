"""modded-nanogpt on tensors without data: the classes in the logs of two of its records, in DDP as their scripts do it.

A log begins with its script, which trains when it is run: its classes alone are run here. What a script says of its own
model, 12 blocks and sequences of 512 blocks of a mask, is of the job instead. FlexAttention's kernel gives its result
and the sums of its rows. `F.rms_norm` is composed as by PyTorch 2.6, which the records ran with. The function that
orthogonalizes a matrix is compiled there: in its place is what Inductor allocates for it
(vramplan/engines/modded_nanogpt/muon.py). NCCL gathers into one tensor, which its work holds.

Source: KellerJordan/modded-nanogpt at the commit of the rig.
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Callable
from typing import Any

from tests.traces import ddp
from tests.traces.nano import SOURCE
from tests.traces.programs import Program
from tests.traces.rigs import LOGS
from vramplan.errors import UsageError
from vramplan.values.parallel import DDP

WITH_VALUES = "self.lambdas[0] * v + self.lambdas[1] * vi.view_as(v)"
INSTEAD = {
    WITH_VALUES: f"self.lambdas[0] * v if vi is None else {WITH_VALUES}",
    "torch.arange(512,": "torch.arange(BLOCKS,",
    "layer_idx != 7": "layer_idx not in FREE",
    "for _ in range(3)": "for _ in range(TABLES)",
    "for _ in range(6)": "for _ in range(TABLES)",
    "max_seq_len=65536": "max_seq_len=POSITIONS",
    "int(os.environ['WORLD_SIZE'])": "world_size",
    "int(os.environ['RANK'])": "rank",
}
"""What a script says of its own model and processes, and what is said of those of a job.

A block of the first record without a value embedding, which its own 12 have not, is as in the second one.
"""


class Modded(Program):
    """A record's model on several devices, its optimizers, and its loop."""

    KINDS = (DDP,)
    PRECISIONS = ("pure-bf16",)
    TYPES = ("modded_nanogpt",)

    def check(self) -> None:
        """Beside what no program has, what those scripts have not."""
        super().check()
        job = self.job
        if job.sharding is None or job.model.unet is None:
            raise UsageError("the rig is of several devices", key="parallel")
        if job.activation_checkpointing != "none" or job.adapter is not None:
            raise UsageError("modded-nanogpt has no checkpoints and no adapters", key="activation_checkpointing")

    def ready(self) -> None:
        """The classes of the record."""
        shape, world = self.job.model, self.job.data_parallel_size
        assert shape.unet is not None
        text = (SOURCE / LOGS[shape.unet.mirrored]).read_text("utf-8").partition("=" * 100)[0]
        for said, own in INSTEAD.items():
            text = text.replace(said, own)
        body = [
            one
            for one in ast.parse(text).body
            if isinstance(one, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef) and _is_wanted(one)
        ]
        self.code: dict[str, Any] = {
            "os": os,
            "BLOCKS": self.job.sequence_length // 128,
            "FREE": shape.unet.attention_free,
            "TABLES": shape.unet.value_embeddings,
            "POSITIONS": shape.max_positions,
            "world_size": world,
            "rank": 0,
            "zeropower_via_newtonschulz5": orthogonalized,
        }
        exec(compile(ast.Module(body, []), "record", "exec"), self.code)
        self.code["flex_attention"] = flex_attention()
        self.code["F"] = Functional(self.code["F"])
        self.code["dist"] = Collectives()

    def group(self, stack: contextlib.ExitStack) -> tuple[Any, Any]:
        """A process group that sends nothing."""
        from torch import distributed
        from torch.testing._internal.distributed.fake_pg import FakeStore

        from vramplan.measure.storages import Storages

        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=self.job.data_parallel_size)
        stack.callback(distributed.destroy_process_group)
        return "cuda", Storages

    def skeleton(self) -> Any:
        """GPT in bf16, but for its linear layers."""
        import torch

        code, shape = self.code, self.job.model
        assert shape.unet is not None
        unet, layers = shape.unet, shape.layers
        config = code["GPTConfig"](unet.embedding_rows, layers, shape.attention_heads, shape.hidden_size)
        with torch.device("meta"):
            model = code["GPT"](config)
            model.lm_head = code["CastedLinear"](shape.hidden_size, shape.vocabulary_size)
        model.bfloat16()
        for one in model.modules():
            if isinstance(one, code["CastedLinear"]):
                one.float()
        places = [unet.table_of(i, layers) for i in range(layers)]

        def of_blocks(inputs: Any) -> list[Any]:
            tables = [table(inputs) for table in model.value_embeds.embed]
            return [None if one is None else tables[one] for one in places]

        model.value_embeds.forward = of_blocks
        return model

    def shard(self, skeleton: Any) -> Any:
        """When it is on the device."""
        return skeleton

    def prepare(self, model: Any) -> None:
        """DDP, and the optimizers of the script."""
        import torch

        length, words = self.job.sequence_length, self.job.model.vocabulary_size
        self.tokens = torch.randint(0, words, (length,), dtype=torch.int32, device="cuda")
        self.labels = torch.randint(0, words, (length,), device="cuda")
        self.window = torch.ones((), dtype=torch.int32, device="cuda")
        self.raw = self.model = model
        blocks = list(model.blocks.parameters())
        embeddings = [*model.embed.parameters(), *model.value_embeds.parameters()]
        scalars = [one for one in blocks if one.ndim < 2] + [model.skip_weights]
        self.optimizers = [
            torch.optim.Adam(embeddings, betas=(0.8, 0.95), fused=True),
            torch.optim.Adam([model.lm_head.weight], betas=(0.8, 0.95), fused=True),
            self.code["Muon"]([one for one in blocks if one.ndim == 2], lr=0.05, momentum=0.95),
            torch.optim.Adam(scalars, betas=(0.8, 0.95), fused=True),
        ]
        self.model = ddp.replicated(self.job, model, self.order())

    def order(self) -> list[Any]:
        """The weights in the order in which their gradients come."""
        found: list[Any] = []
        weights = list(self.raw.parameters())
        hooks = [one.register_post_accumulate_grad_hook(found.append) for one in weights]
        self.forward()[1].backward()
        for hook in hooks:
            hook.remove()
        self.raw.zero_grad(set_to_none=True)
        return found + [one for one in weights if all(one is not other for other in found)]

    def forward(self) -> tuple[Any, Any]:
        """The model gives its loss."""
        return None, self.model(self.tokens, self.labels, self.window)

    def step(self) -> None:
        """All optimizers', then no gradients."""
        for one in self.optimizers:
            one.step()
        self.model.zero_grad(set_to_none=True)


OF_THE_RUN = ("DistributedDataLoader", "Hyperparameters", "zeropower_via_newtonschulz5", "get_lr", "print0")


def _is_wanted(one: Any) -> bool:
    """Whether it is of the model or an optimizer, and neither of data nor of the run, nor compiled."""
    return getattr(one, "name", "") not in OF_THE_RUN


class Functional:
    """torch.nn.functional with the norm of PyTorch 2.6.

    Source: aten/src/ATen/native/layer_norm.cpp of 2.6, rms_norm_symint.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    @staticmethod
    def rms_norm(x: Any, _: Any) -> Any:
        """Without a weight."""
        upcasted_input = x.float()
        rqrst_input = upcasted_input.pow(2).mean(-1, keepdim=True).add_(1e-7).rsqrt()
        return upcasted_input.mul(rqrst_input).type_as(x)


class Collectives:
    """torch.distributed, of which Muon gathers."""

    @staticmethod
    def all_gather(buffers: list[Any], given: Any, *, async_op: bool) -> Any:
        """A work that holds what all devices give.

        Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, allgather (newLikeFlat).
        """
        assert async_op
        return Work(given.new_empty((len(buffers), given.numel())))


class Work:
    """One that is done."""

    def __init__(self, gathered: Any) -> None:
        self.gathered = gathered

    def wait(self) -> None:
        """Nothing is pending."""


def orthogonalized(matrix: Any, steps: int = 10, eps: float = 1e-7) -> Any:
    """zeropower_via_newtonschulz5, as Inductor of 2.13 allocates it: six of a square, else three and a square."""
    import torch

    rows, columns = matrix.shape
    side = min(rows, columns)
    sizes = [(side, side)] * 5 if rows == columns else [(rows, columns), (rows, columns), (side, side)]
    update = matrix.new_empty((rows, columns), dtype=torch.bfloat16)
    _scratch = [matrix.new_empty(size, dtype=torch.bfloat16) for size in sizes]
    return update


def flex_attention() -> Callable[..., Any]:
    """FlexAttention as its own kernel, with what its backward reads of a mask.

    Source: torch/_inductor/kernel/flex_attention.py of 2.6, flex_attention and flex_attention_backward.
    """
    import torch

    class Kernel(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, *mask: Any) -> Any:
            out = torch.empty_like(q)
            sums = q.new_empty(q.shape[:3], dtype=torch.float32)
            ctx.save_for_backward(q, k, v, *mask, out, sums)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            q, k, v, *mask = ctx.saved_tensors
            sums = gradient.new_empty(q.shape[:3])
            _delta = sums.float()
            del sums
            return (*(torch.empty_like(one) for one in (q, k, v)), *(None for _ in mask[:-2]))

    def run(q: Any, k: Any, v: Any, block_mask: Any, **_: Any) -> Any:
        documents = [cell.cell_contents for cell in block_mask.mask_mod.__closure__ or ()]
        blocks = [one for one in vars(block_mask).values() if isinstance(one, torch.Tensor)]
        return Kernel.apply(q, k, v, *documents, *blocks)

    return run


PROGRAM = Modded
