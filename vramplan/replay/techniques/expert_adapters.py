"""LoRA over weights that are no layers: the stacked weights of experts and their routers, as PEFT 0.21 has it.

Transformers 5 keeps the weights of all experts in two tensors, and the router's in one. PEFT takes the names of the
layers that they once were for these tensors, and folds a low-rank change into the whole of each before it is used.
Source: peft 0.21.2, utils/transformers_weight_conversion.py, _convert_peft_config_moe; tuners/lora/layer.py,
ParamWrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from vramplan.replay.autograd import dropped
from vramplan.replay.models.capable import adapted_experts
from vramplan.replay.models.modules import Linear
from vramplan.replay.models.part_names import DOWN, GATE_UP, ROUTER
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, mul_scalar
from vramplan.replay.operators.folded import factors_product, fold
from vramplan.replay.operators.indexing import permute
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapters import ALL_LINEAR, leaf
from vramplan.replay.tensors import DType, Parameter, Tensor
from vramplan.values.adapter_kinds import KINDS
from vramplan.values.job import Adapter
from vramplan.values.model import ModelShape

OUTER_TO_INNER = (DOWN, GATE_UP)  # a wrapper for each tensor, the one around the other

DEFAULT_ALPHA = 8  # tuners/lora/config.py, LoraConfig.lora_alpha

Look = Callable[[str], Tensor]  # a weight of a module by its name


def former_names(kind: str, model: ModelShape) -> dict[str, str]:
    """The names of layers that stand for tensors of experts, for an adapter of a kind: LoRA's alone."""
    return adapted_experts(model) if KINDS[kind].is_lora else {}


def is_over_experts(kind: str, model: ModelShape, targets: Sequence[str]) -> bool:
    """Whether an adapter with these targets changes tensors of experts or of their routers."""
    return bool(tensors_of(targets, former_names(kind, model), ALL_LINEAR))


def tensors_of(targets: Sequence[str], names: dict[str, str], everything: str) -> tuple[str, ...]:
    """The tensors that are targets."""
    return tuple(
        dict.fromkeys(names[name] for name in names if everything in targets or any(leaf(t) == name for t in targets))
    )


def inactive_parameters(adapter: Adapter, shape: ModelShape) -> int:
    """The adapter's own weights in one expert, which a token that is not sent there does not pass."""
    names = former_names(adapter.kind, shape)
    tensors = tensors_of(adapter.targets, names, ALL_LINEAR)
    assert shape.experts is not None
    hidden, inner = shape.hidden_size, shape.experts.intermediate_size
    sizes = {GATE_UP: 2 * (hidden + 2 * inner), DOWN: hidden + inner}
    return adapter.rank * sum(sizes.get(name, 0) for name in tensors)


class LoraTensors:
    """ParamWrapper around a module: LoRA over some of its tensors.

    Each of them is folded twice in a forward pass: `register_parametrization` tries it out, and the first time that the
    module looks at the weight it is made again, and kept until the module has returned.
    Source: peft 0.21.2, tuners/lora/layer.py, ParamWrapper.forward; torch/nn/utils/parametrize.py,
    ParametrizationList.__init__ and cached.
    """

    def __init__(
        self,
        tape: Tape,
        weights: dict[str, Parameter],
        adapter: Adapter,
        tensors: Sequence[str],
        dtype: DType,
        base: Look | None = None,
    ) -> None:
        self.weights = weights
        self.base = weights.__getitem__ if base is None else base  # a weight as it is without the adapter
        self.scaled = (DEFAULT_ALPHA if adapter.alpha is None else adapter.alpha) != adapter.rank
        self.factors: dict[str, tuple[Parameter, Parameter]] = {}
        for name in reversed(OUTER_TO_INNER) if ROUTER not in weights else (ROUTER,):
            if name in tensors:
                rank = adapter.rank * (2 if name == GATE_UP else 1)  # two projections, fused
                self.factors[name] = self.make(tape, name, rank, dtype)

    def make(self, tape: Tape, name: str, rank: int, dtype: DType) -> tuple[Parameter, Parameter]:
        """lora_A and lora_B: of all experts together, each a linear layer."""
        shape = self.weights[name].shape
        outputs, inputs = shape[-2:]
        wide = rank * (shape[0] if len(shape) == 3 else 1)
        lora_a = tape.parameter(f"{name}.lora_A.weight", (wide, inputs), dtype)
        lora_b = tape.parameter(f"{name}.lora_B.weight", (outputs, wide), dtype)
        lora_a.in_linear = lora_b.in_linear = True
        return lora_a, lora_b

    def __call__(self, run: Callable[..., Any], *arguments: Tensor) -> Any:
        """The module with its weights looked up through the adapter."""
        outer = [name for name in (*OUTER_TO_INNER, ROUTER) if name in self.factors]
        with ExitStack() as modules:
            for name in outer:
                modules.enter_context(Outer(*arguments, own=(self.weights[name], *self.factors[name])))
            return self.within(outer, run, arguments)

    def within(self, outer: list[str], run: Callable[..., Any], arguments: tuple[Tensor, ...]) -> Any:
        """What the wrappers do before they run the module inside."""
        changes: dict[str, Callable[[], Tensor]] = {}
        for name in outer:
            changes[name] = self.change(name)
            with dropped(arguments[0].tape) as _graph:
                _tried = changes[name]()
            del _graph, _tried
        kept: dict[str, Tensor] = {}

        def look(name: str) -> Tensor:
            if name not in changes:
                return self.base(name)
            if name not in kept:
                kept[name] = changes[name]()
            return kept[name]

        return run(*arguments, look)

    def change(self, name: str) -> Callable[[], Tensor]:
        """What gives the weight with its change; what it needs is made now, and lives as long as it does."""
        weight, (lora_a, lora_b) = self.weights[name], self.factors[name]
        if len(weight.shape) == 2:
            delta = to(mul_scalar(factors_product(lora_b, lora_a)), weight.dtype)
            return lambda: add(self.base(name), delta)
        experts, outputs, inputs = weight.shape
        rank = lora_a.shape[0] // experts
        rows = view(lora_a, (experts, rank, inputs))
        columns = permute(view(lora_b, (outputs, rank, experts)), (2, 0, 1))
        left = to(columns, weight.dtype)
        right = to(rows, weight.dtype)
        del rows, columns
        return lambda: fold(self.base(name), left, right, scaled=self.scaled)


def over_weight(tensors: LoraTensors) -> Callable[[Linear, Tensor], Tensor]:
    """What runs in place of a linear layer whose weight is a tensor to PEFT, as that of AFMoE's router is."""
    (name,) = tensors.weights

    def run(module: Linear, x: Tensor) -> Tensor:
        output: Tensor = tensors(lambda given, look: linear(given, look(name), module.bias), x)
        return output

    return run
