"""Megatron-core's mixtures of experts on tensors without data: its router, dispatcher and experts in a stage.

How many tokens a device sends and receives is decided by data, so that it is given: as many as on average, or what a
row says. Numbers of tokens are on the host. The router's product is Transformer Engine's, which gives its results.

Source: megatron-core 0.16.1, core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.preprocess.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import patch

from tests.traces import mcore

OF_EXPERTS = {"expert": 1, "experts": 4, "active": 2, "factor": None, "pad": False}


class Mixture(mcore.Stage):
    """A stage whose blocks have experts, which devices share."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__({**OF_EXPERTS, "norm": "RMSNorm", **row})

    @property
    def spread(self) -> int:
        """Devices of a stage: of tensors, times of experts."""
        return int(self.row["tp"] * self.row["expert"])

    def more(self) -> dict[str, Any]:
        """The experts, without a loss that balances them."""
        r = self.row
        return {
            "num_moe_experts": r["experts"],
            "moe_router_topk": r["active"],
            "moe_router_pre_softmax": r["active"] == 1,
            "moe_router_load_balancing_type": "none",
            "moe_ffn_hidden_size": r.get("expert_ffn") or 4 * r["hidden"],
            "moe_token_dispatcher_type": "alltoall",
            "moe_expert_capacity_factor": r["factor"],
            "moe_pad_expert_input_to_capacity": r["pad"],
            "expert_model_parallel_size": r["expert"],
            "expert_tensor_parallel_size": r["tp"],
        }

    def groups(self) -> dict[str, Any]:
        """Those of experts too."""
        return {"expert_model_parallel_size": self.row["expert"], "expert_tensor_parallel_size": self.row["tp"]}

    def spec(self) -> Any:
        """The modules of a block, its experts one by one."""
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

        r = self.row
        how = {"num_experts": r["experts"], "moe_grouped_gemm": False, "normalization": r["norm"]}
        return get_gpt_layer_local_spec(**how, qk_layernorm=r["qk_norm"])

    @property
    def sent(self) -> int:
        """Tokens that the device sends, each as often as it has experts."""
        r = self.row
        tokens = r["seq"] // (r["tp"] if r["sp"] else 1) * r["micro"]
        return int(r.get("sent") or tokens * r["active"])

    @property
    def received(self) -> int:
        """Those that the devices which share its experts receive together; a row says how many one does."""
        r = self.row
        return int(r["tp"] * r["received"] if "received" in r else r["seq"] * r["micro"] * r["active"])

    def scalars(self) -> list[Any]:
        """The scale of the loss that balances the experts, too."""
        from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

        return [*super().scalars(), MoEAuxLossAutoScaler.main_loss_backward_scale]

    def operators(self) -> dict[Any, Any]:
        """A mask of tokens chooses those that are sent."""
        import torch

        return {torch.ops.aten.masked_select.default: lambda x, _: x.new_empty(self.sent)}

    @contextlib.contextmanager
    def around(self) -> Any:
        """With numbers of tokens that are given."""
        import numpy
        from megatron.core.transformer.moe import moe_utils, token_dispatcher

        stage = self

        def counted(self: Any, routing_map: Any) -> Any:
            here, shared = self.num_local_experts, self.tp_size * self.ep_size
            if self.drop_and_pad:
                routed = routing_map.size(0) * self.config.moe_router_topk
                self.capacity = token_dispatcher.get_capacity(
                    num_tokens=routed,
                    num_experts=self.num_experts,
                    capacity_factor=self.moe_expert_capacity_factor,
                )
                self.num_out_tokens = self.capacity * self.num_experts
                return numpy.full(here, self.capacity * shared)
            chunks = numpy.full((shared, here), stage.received // (shared * here))
            self.num_out_tokens = stage.sent
            self.input_splits = numpy.full(self.ep_size, stage.sent // self.ep_size)
            self.output_splits = chunks[: self.ep_size].sum(axis=1)
            self.output_splits_tp = chunks.reshape(self.tp_size, -1).sum(axis=1)
            self.num_global_tokens_per_local_expert = chunks
            order = numpy.arange(shared * here)
            self.sort_input_by_local_experts = order.reshape(-1, here).T.ravel()
            self.restore_output_by_local_experts = order.reshape(here, -1).T.ravel()
            return chunks.sum(axis=0)

        with (
            patch.object(token_dispatcher.MoEAlltoAllTokenDispatcher, "preprocess", counted),
            patch.object(moe_utils, "te_general_gemm", product, create=True),
        ):
            yield


def product(left: Any, right: Any, dtype: Any, layout: str, **_: Any) -> tuple[Any]:
    """Transformer Engine's general_gemm: in its layouts the first operand comes last."""
    shapes = {
        "TN": (right.shape[0], left.shape[0]),
        "NN": (right.shape[0], left.shape[1]),
        "NT": (right.shape[1], left.shape[1]),
    }
    return (right.new_empty(shapes[layout], dtype=dtype),)


def traced(row: dict[str, Any]) -> dict[str, int]:
    """What the first device of the group allocates."""
    return mcore.traced(row, Mixture)
