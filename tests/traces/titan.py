"""torchtitan on tensors without data: its Llama and `parallelize_llama`, over FSDP2, DTensor and groups of replicas.

Source: torchtitan 0.1.0, train.py, whose Trainer reads data and cannot be called alone. It is the last release whose
units of FSDP are the blocks and the whole. Later ones wrap the embedding, and the last norm with the
head, too; that is done here as 0.2.0 does it.
"""

from __future__ import annotations

import contextlib
from functools import cached_property, partial
from typing import Any
from unittest.mock import patch

from tests.traces.fsdp2 import CUDA, joined
from tests.traces.programs import Program
from vramplan.errors import UsageError
from vramplan.values.parallel import ALL_GATHER, BLOCKS, FSDP, FSDP_GRAD_OP, RING, WITH_NORM

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
ROTATION = {ALL_GATHER: "allgather", RING: "alltoall"}
WHOLE, OF_PARTS = ("standard", "fp32-logits"), "vocab-parallel"


class Torchtitan(Program):
    """Training of Llama on several devices, with or without tensor parallelism."""

    PACKAGE = "torchtitan.models.llama3.infra.parallelize"
    KINDS = (FSDP, FSDP_GRAD_OP)
    PRECISIONS = ("fsdp-bf16",)
    TYPES = ("llama",)
    COMPILES = True

    def check(self) -> None:
        """Beside what no program has, what that release has not: other checkpoints, and stages."""
        super().check()
        job = self.job
        split = job.split
        if job.sharding is None:
            raise UsageError("the rig is of several devices", key="parallel")
        if job.sharding.kind == FSDP and self.stages > 1:
            raise UsageError("torchtitan keeps parameters whole in stages", key="parallel")
        if job.sharding.no_sync:
            raise UsageError("torchtitan reduces in each micro-step", key="parallel.no_sync")
        if split is not None and split.pipeline != self.stages:
            raise UsageError("a stage is not a whole job", key="parallel")
        word = (job.activation_checkpointing or "none").partition(":")[0]
        if word not in ("none", "full", "selective-op", "selective-layer"):
            raise UsageError(f"the rig has no {word}", key="activation_checkpointing")
        if job.sharding.units not in (BLOCKS, WITH_NORM):
            raise UsageError("torchtitan wraps both ends of a model or none", key="parallel")
        if job.loss not in (*WHOLE, OF_PARTS) or job.adapter is not None:
            raise UsageError("torchtitan has one loss and no adapters", key="loss")

    @property
    def tensor(self) -> int:
        """Devices that share each product."""
        return 1 if self.job.split is None else self.job.split.tensor

    @property
    def context(self) -> int:
        """Devices that share a sequence."""
        return 1 if self.job.split is None else self.job.split.context

    @property
    def stages(self) -> int:
        """Of a pipeline."""
        return 1

    @property
    def rank(self) -> int:
        """Of the last device of a sequence, which sees more of it before its own part than any other."""
        return (self.context - 1) * self.tensor

    def group(self, stack: contextlib.ExitStack) -> tuple[Any, Any]:
        """The mesh that torchtitan builds, of stages, replicas, shards, sequences and tensors."""
        import torch
        from torchtitan.distributed import ParallelDims

        job = self.job
        assert job.sharding is not None
        world = self.stages * job.sharding.replicas * job.sharding.shards * self.tensor
        counter = joined(world, stack, self.rank)
        self.dims = ParallelDims(
            dp_replicate=job.sharding.replicas,
            dp_shard=job.sharding.shards // self.context,
            cp=self.context,
            tp=self.tensor,
            pp=self.stages,
            world_size=world,
            enable_loss_parallel=job.loss == OF_PARTS,
        )
        with patch.multiple(torch.cuda, **CUDA):
            return self.dims.build_mesh("cuda"), counter

    def skeleton(self) -> Any:
        """Transformer; its inner width comes of a multiple, so that any can be had."""
        import torch
        from torchtitan.models.llama3 import Transformer, TransformerModelArgs

        shape = self.job.model
        plain = int(2 * (4 * shape.hidden_size) / 3)
        sizes = TransformerModelArgs(
            dim=shape.hidden_size,
            n_layers=shape.layers,
            n_heads=shape.attention_heads,
            n_kv_heads=shape.key_value_heads,
            vocab_size=shape.vocabulary_size,
            multiple_of=shape.intermediate_size,
            ffn_dim_multiplier=min(1.0, shape.intermediate_size / plain),
            max_seq_len=self.job.sequence_length,
        )
        with torch.device("meta"):
            return Transformer(sizes)

    def config(self) -> Any:
        """JobConfig, as far as the job says something."""
        from torchtitan.config_manager import JobConfig

        job = self.job
        assert job.sharding is not None
        config = JobConfig()
        config.training.mixed_precision_reduce = DTYPES[job.sharding.reduce_dtype or "fp32"]
        word, _, every = (job.activation_checkpointing or "none").partition(":")
        config.activation_checkpoint.mode = "selective" if word.startswith("selective") else word
        config.activation_checkpoint.selective_ac_option = every or "op"
        config.training.compile = job.compile
        if job.sharding.kind == FSDP_GRAD_OP and self.stages == 1:
            config.parallelism.fsdp_reshard_after_forward = "never"
        return config

    def shard(self, skeleton: Any) -> Any:
        """`parallelize_llama`."""
        return self.parallelized(skeleton, self.config())

    def parallelized(self, skeleton: Any, config: Any) -> Any:
        """The same of a model or a stage of one."""
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torchtitan.models.llama3.infra import parallelize

        assert self.job.sharding is not None
        checkpoint_wrapper._count = 0  # of blocks, which it keeps for itself
        model = skeleton.to_empty(device="cuda")
        alone = partial(parallelize.parallelize_module, src_data_rank=None)  # no device sends what it has not
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(parallelize, "parallelize_module", alone))
            if self.job.sharding.units != BLOCKS:
                stack.enter_context(patch.object(parallelize, "apply_fsdp", wrap_the_ends_too))
            return parallelize.parallelize_llama(model, self.mesh, self.dims, config)

    @contextlib.contextmanager
    def believing(self) -> Any:
        """With a policy that keeps every product, where the job says so; attention by the name that is looked for."""
        from torch.nn import functional
        from torchtitan.models.llama3.infra import parallelize

        functional.scaled_dot_product_attention.__name__ = "scaled_dot_product_attention"
        with contextlib.ExitStack() as stack:
            if not self.job.every_second_matmul:
                stack.enter_context(patch.object(parallelize, "defaultdict", Uneven))
            yield

    def place(self, skeleton: Any) -> Any:
        """It is there."""
        return skeleton

    def draw(self) -> None:
        """Whole sequences, anew in each step where devices share them: they are cut in place.

        Source: train.py, batch_generator.
        """
        import torch

        if self.context > 1:
            shape, words = (self.job.micro_batch_size or 1, self.job.sequence_length), self.job.model.vocabulary_size
            self.tokens = self.labels = None
            self.tokens, self.labels = (torch.randint(0, words, shape, device="cuda") for _ in range(2))

    def around(self) -> Any:
        """Of forward and backward: a loss of parts, and parts of sequences.

        Source: train.py, forward_backward_step.
        """
        from torchtitan.distributed import utils

        parts = None
        if self.context > 1:
            assert self.job.split is not None
            parts = utils.create_context_parallel_ctx(
                cp_mesh=self.mesh["cp"],
                cp_buffers=[self.tokens, self.labels, self.model.freqs_cis],
                cp_seq_dims=[1, 1, 0],
                cp_no_restore_buffers={self.tokens, self.labels},
                cp_rotate_method=ROTATION[str(self.job.split.context_communication)],
            )
        return utils.get_train_context(self.dims.loss_parallel_enabled, False)(parts)

    def forward(self) -> tuple[Any, Any]:
        """Of `Trainer.train_step`."""
        self.draw()
        self.open = contextlib.ExitStack()
        self.open.enter_context(self.around())
        logits = self.model(self.tokens)
        return logits, self.loss(logits, self.labels)

    @cached_property
    def loss(self) -> Any:
        """Compiled where the blocks are, but not where the job says that there is a whole copy of the logits in fp32.

        Source: components/loss.py, build_cross_entropy_loss; torchtitan compiles it since January 2025.
        """
        import torch
        from torchtitan.components.loss import cross_entropy_loss

        compiles = self.job.compile and self.job.loss != "fp32-logits"
        return torch.compile(cross_entropy_loss) if compiles else cross_entropy_loss

    def backward(self, loss: Any) -> None:
        """Around which there is what is around the forward pass."""
        with self.open:
            loss.backward()

    def step(self) -> None:
        """Clipping by torchtitan's own function, then the optimizer."""
        from torchtitan.distributed.utils import clip_grad_norm_

        most, stages = self.job.max_gradient_norm, self.mesh["pp"] if self.stages > 1 else None
        if most is not None:  # kept, to be logged
            _norm = clip_grad_norm_(self.model.parameters(), most, foreach=True, pp_mesh=stages)
        super().step()


class Uneven(dict[str, int]):
    """A count of products that is never even, so that the policy keeps all of them, as it does with one line less."""

    def __init__(self, _: type[int]) -> None:
        super().__init__()

    def __getitem__(self, key: str) -> int:
        return 1


def wrap_the_ends_too(
    model: Any,
    dp_mesh: Any,
    param_dtype: Any,
    reduce_dtype: Any,
    pp_enabled: bool,
    reshard_after_forward_policy: str = "default",
    **_: Any,
) -> None:
    """Without a pipeline.

    Source: torchtitan 0.2.0, models/llama3/infra/parallelize.py, apply_fsdp.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    assert not pp_enabled
    how = {"mesh": dp_mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)}
    reshards = reshard_after_forward_policy != "never"
    fully_shard(model.tok_embeddings, **how, reshard_after_forward=reshards)
    for block in model.layers.values():
        fully_shard(block, **how, reshard_after_forward=reshards)
    fully_shard([model.norm, model.output], **how, reshard_after_forward=False)
    fully_shard(model, **how)


PROGRAM = Torchtitan
