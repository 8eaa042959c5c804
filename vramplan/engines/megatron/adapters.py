"""LoRA beside Megatron's layers, as NeMo 2 and Megatron-Bridge have it: two thin layers that devices share.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d, src/megatron/bridge/peft/utils.py, ParallelLinearAdapter;
peft/lora_layers.py, LoRALinear; NVIDIA/NeMo 2.5.0rc0 (8cfedd72), nemo/collections/llm/peft/lora.py, which are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vramplan.engines.megatron.tensor_parallel import gather_last, gather_sequence, parallel_linear, scatter
from vramplan.replay.asked import asked
from vramplan.replay.models.modules import Recipe
from vramplan.replay.observers import Trained
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar
from vramplan.replay.operators.views import contiguous
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapted import Adapted
from vramplan.replay.techniques.adapter_target import DTYPES
from vramplan.replay.techniques.adapters import OWN, is_target
from vramplan.replay.tensors import Parameter, Tensor
from vramplan.tuples import NamedTuple
from vramplan.values.job import Adapter

if TYPE_CHECKING:
    from vramplan.replay.setup import Setup

Beside = Callable[[Tensor, Tensor], Tensor]
"""Of a layer's result and its input: the sum with what the adapter gives."""


class LinearLayer(NamedTuple):
    """A linear layer, as who adapts it asks for it."""

    weight: Parameter
    bias: Parameter | None = None  # no adapter looks at it
    transposed: bool = False


class ParallelLinearAdapter:
    """The rank is split over devices and gathered; behind it outputs are split as those of the layer are.

    Of a layer whose inputs are split, the first product is summed over devices, and outputs are gathered.
    """

    def __init__(self, tape: Tape, name: str, weight: Parameter, recipe: Recipe, adapter: Adapter, form: Form) -> None:
        outputs, inputs = weight.shape[0] // form.groups, weight.shape[1]
        devices = 1 if form.whole else recipe.slice.tensor
        dtype, rank = DTYPES[adapter.dtype], adapter.rank
        self.p, self.form, self.devices = adapter.dropout, form, devices
        rows = rank if form.row else rank // devices
        self.linear_in = tape.parameter(f"{name}.linear_in.weight", (rows, inputs), dtype)
        columns = outputs // devices if form.row else outputs
        self.linear_out = tape.parameter(f"{name}.linear_out.weight", (columns, rank), dtype)

    def __call__(self, result: Tensor, x: Tensor) -> Tensor:
        return add(result, self.delta(contiguous(x)))

    def delta(self, x: Tensor) -> Tensor:
        """ParallelLinearAdapter.forward."""
        x = dropout(x, self.p)
        if not self.form.row:
            x = gather_sequence(x, self.form.gathered)
        x = parallel_linear(x, self.linear_in)
        if not self.form.row:
            x = gather_last(x, self.devices)
        x = parallel_linear(x, self.linear_out)
        if self.form.row:
            x = scatter(gather_last(x, self.devices), self.form.gathered)
        return mul_scalar(x)


class Form(NamedTuple):
    """How devices share a layer: whether its inputs are split, and over how many the sequence is between layers.

    `whole`: each has all of it. `groups`: the weight is those of so many experts, which share an adapter.
    """

    row: bool = False
    gathered: int = 1
    whole: bool = False
    groups: int = 1


class AdaptedMegatron(Adapted):
    """A frozen model with such adapters."""

    def __init__(self, adapter: Adapter, precision: Precision) -> None:
        super().__init__(adapter, None, precision.weights, precision.autocast)

    def beside(self, tape: Tape, layer: LinearLayer, name: str, recipe: Recipe, form: Form) -> Beside | None:
        """The adapter of a layer that is a target."""
        if not is_target(name, self.targets):
            return None
        with tape.building(OWN):
            return ParallelLinearAdapter(tape, name, layer.weight, recipe, self.adapter, form)


def beside(tape: Tape, weight: Parameter, name: str, recipe: Recipe, form: Form) -> Beside | None:
    """The adapter of a layer, if it has one; whoever only asks for the names of layers is told this one."""
    trained = tape.role(Trained)
    if isinstance(trained, AdaptedMegatron):
        return trained.beside(tape, LinearLayer(weight), name, recipe, form)
    trained.linear(tape, LinearLayer(weight), name)
    return None


def trained_of(setup: Setup, precision: Precision) -> Trained:
    """What decides which weights are trained."""
    return Trained() if setup.adapter is None else AdaptedMegatron(setup.adapter, precision)


def asked_for_gradient(tape: Tape, recipe: Recipe, hidden: Tensor) -> Tensor:
    """The input of the blocks, a leaf where checkpoints of frozen blocks have to be walked.

    Source: Megatron-Bridge, src/megatron/bridge/peft/recompute.py, maybe_enable_recompute_inputs_grad.
    """
    walked = hidden.node is None and any(one.checkpointed for one in recipe.segments)
    return asked(hidden) if walked and tape.role(Trained).adapter is not None else hidden
