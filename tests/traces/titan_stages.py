"""torchtitan with stages: one stage of Llama by `pipeline_llama`, and a step of its schedule.

No other stage runs. What it would send is not sent, what it would be told in the first step is said: the shapes of
hidden states, which follow from the row.

Source: torchtitan 0.1.0, train.py, forward_backward_step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from tests.traces import titan
from tests.traces.programs import traced as traced_program
from tests.traces.titan_parts import keys_of, model_of
from vramplan.job import build_job
from vramplan.values.job import ResolvedJob

FORM: dict[str, Any] = {
    "dim": 256,
    "heads": 8,
    "kv": 4,
    "ffn": 704,
    "batch": 2,
    "seq": 128,
    "vocab": 1024,
    "reduce": "fp32",
    "gpipe": False,
}
"""What a row has that says nothing else."""


KEYS = ("layers", "dp", "tp", "rep", "first", "last", "stages", "micro", "flight", "ac")
"""What a row may say beside: `flight` follows from the schedule."""


def number_of(row: dict[str, Any]) -> int:
    """Of the stage: the first, the last, or the second."""
    return 0 if row["first"] else int(row["stages"]) - 1 if row["last"] else 1


def job_of(row: dict[str, Any]) -> ResolvedJob:
    """The job of a row, all stages of which have as many blocks."""
    row = FORM | row
    parallel = {
        "data": row["rep"] * row["dp"],
        "sharding": "fsdp-grad-op",
        "reduce_dtype": row["reduce"],
        "tensor": row["tp"],
        "pipeline": row["stages"],
        "schedule": "gpipe" if row["gpipe"] else "1f1b",
        "fsdp_units": "blocks",
    }
    if row["rep"] > 1:
        parallel["shards"] = row["dp"]
    whole = model_of({**row, "layers": row["layers"] * row["stages"]})
    keys = {"model": whole, "gradient_accumulation_steps": row["micro"], "hold_outputs": True, "parallel": parallel}
    found = build_job(keys_of(row) | keys)
    assert isinstance(found, ResolvedJob)
    return found


class Stage(titan.Torchtitan):
    """One stage, whose schedule has the micro-batches of a step."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(job_of(row))
        self.row = FORM | row
        self.number = number_of(row)

    def group(self, stack: contextlib.ExitStack) -> tuple[Any, Any]:
        """Its first device; nothing comes, and nothing goes. Nobody keeps states of random generators."""
        import torch
        from torch.distributed.pipelining import schedules

        found = super().group(stack)
        stack.enter_context(patch.object(torch.random, "fork_rng", lambda *_, **__: contextlib.nullcontext()))
        stack.enter_context(patch.object(schedules, "_batch_p2p", lambda *_, **__: []))
        stack.enter_context(patch.object(schedules, "_sorted_batch_p2p", lambda *_, **__: {}))
        return found

    @property
    def stages(self) -> int:
        """Of the pipeline."""
        return int(self.row["stages"])

    @property
    def rank(self) -> int:
        """Of its first device: stages are the outermost part of the mesh."""
        assert self.job.sharding is not None
        return self.number * self.job.sharding.replicas * self.job.sharding.shards * self.tensor

    def config(self) -> Any:
        """With the stages and the schedule."""
        row, config = self.row, super().config()
        config.parallelism.pipeline_parallel_degree = row["stages"]
        config.parallelism.pipeline_parallel_schedule = "GPipe" if row["gpipe"] else "1F1B"
        config.parallelism.pipeline_parallel_microbatch_size = row["batch"]
        config.parallelism.pipeline_parallel_split_points = [
            f"layers.{i * row['layers']}" for i in range(1, row["stages"])
        ]
        config.training.local_batch_size = row["micro"] * row["batch"]
        return config

    def skeleton(self) -> Any:
        """That of the stage, cut out before tensors have no data, as those cannot be copied."""
        import torch
        from torchtitan.models.llama3.infra import pipeline

        whole, device = super().skeleton(), torch.device("cuda")
        given = (whole, self.mesh["pp"], self.dims, self.config(), device, whole.model_args)
        self.cut = pipeline.pipeline_llama_manual_split(*given)
        return whole

    def shard(self, skeleton: Any) -> Any:
        """`pipeline_llama`, each stage of which goes through `parallelize_llama`."""
        import torch
        from torchtitan.components.loss import cross_entropy_loss
        from torchtitan.models.llama3.infra import pipeline

        config = self.config()
        given = (skeleton, self.mesh, self.dims, config, torch.device("cuda"), skeleton.model_args)
        with patch.object(pipeline, "pipeline_llama_manual_split", lambda *_: self.cut):
            made = pipeline.pipeline_llama(*given, self.shared, cross_entropy_loss)
        self.schedule, models, _, _ = made
        self.schedule._warmup_p2p = self.told
        return models[0]

    def shared(self, model: Any, *_: Any) -> Any:
        """`parallelize_fn`, of one stage."""
        return self.parallelized(model, self.config())

    def told(self, stages: Any, *_: Any) -> None:
        """Shapes, which the stage before sends in the first step."""
        import torch
        from torch.distributed.pipelining import _utils

        row = self.row
        shape = (row["batch"], row["seq"] // self.tensor, row["dim"])
        hidden = torch.empty(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        tokens = torch.empty((row["batch"], row["seq"]), dtype=torch.int64, device="cuda")
        for one in stages:
            one._inference_mode = _utils.InferenceMode.STATIC
            metas = (tokens if one.is_first else hidden, hidden)
            inputs, outputs = (_utils.extract_tensor_metas((meta,)) for meta in metas)
            one._user_meta = _utils._StageMeta(inputs=inputs, outputs=outputs)

    def draw(self) -> None:
        """Sequences of all micro-batches, on every stage."""
        import torch

        shape = (self.row["micro"] * self.row["batch"], self.row["seq"])
        self.tokens = self.labels = None
        self.tokens, self.labels = (torch.randint(0, self.row["vocab"], shape, device="cuda") for _ in range(2))

    def iterate(self, enter: Callable[[str], None]) -> None:
        """A step of the schedule, whose stage says what it does; then that of the optimizer."""
        import torch

        stage = self.schedule._stage
        losses: list[Any] | None = [] if self.row["last"] else None
        with contextlib.ExitStack() as stack:
            for name, phase in PHASES.items():
                stack.enter_context(patch.object(stage, name, entering(enter, phase, getattr(stage, name))))
            enter("forward")
            self.draw()
            stack.enter_context(self.around())
            given = (self.tokens,) if self.row["first"] else ()
            targets = self.labels if self.row["last"] else None
            self.schedule.step(*given, target=targets, losses=losses, input_batch=self.tokens)
        _loss = torch.mean(torch.stack(losses)) if losses is not None else torch.tensor([-1.0], device="cuda")
        enter("step")
        self.step()


PHASES = {"forward_one_chunk": "forward", "backward_one_chunk": "backward", "perform_reduce_grad": "reduce"}
"""What a stage does, by the methods that its schedule calls."""


def entering(enter: Callable[[str], None], phase: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A method that tells its phase."""

    def run(*given: Any, **named: Any) -> Any:
        enter(phase)
        return plain(*given, **named)

    return run


def traced(row: dict[str, Any]) -> dict[str, int]:
    """What the first device of the stage allocates."""
    program = Stage(row)
    program.check()
    found = traced_program(program)
    return {f"{name}_bytes": size for name, size in {"static": found.static, **found.phases}.items()}
