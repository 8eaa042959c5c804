"""A frozen model with an adapter, and the same with its adapter switched off: what PEFT 0.21 makes of each layer.

The model itself is frozen. A layer that is a target runs with the adapter in place of the layer alone; a module to save
is a copy of the original, trained in full, while the original stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from vramplan.replay.models.lora_kernels import MLP, OUTPUT, OUTPUT_LAYER, QKV
from vramplan.replay.models.modules import Linear
from vramplan.replay.models.part_names import HEAD_LAYER, LAYERS, TIED_HEAD, is_of_tokens
from vramplan.replay.observers import Trained
from vramplan.replay.operators.quantized import FourBits
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapter_layers import over
from vramplan.replay.techniques.adapter_target import DTYPES, Adapting, Target
from vramplan.replay.techniques.adapters import (
    ALL_LINEAR,
    GPTQ,
    OWN,
    UNQUANTIZED,
    LoRA,
    is_end,
    is_saved_as,
    is_target,
    leaf,
    widths,
)
from vramplan.replay.techniques.convolution_adapters import LoraConvolution
from vramplan.replay.techniques.expert_adapters import LoraTensors, over_weight, tensors_of
from vramplan.replay.techniques.frozen import matches, path_of, words_of_block
from vramplan.replay.techniques.gptq import is_quantized
from vramplan.replay.techniques.lora_kernels import OutputAtOnce, all_at_once, gated_at_once
from vramplan.replay.techniques.quantized import four_bits, quantize, shared_bytes
from vramplan.replay.techniques.quantized_experts import QuantizedTensors
from vramplan.replay.techniques.table_adapters import HeadLayer, LoraTable, TrainedTokens
from vramplan.replay.tensors import DType, Parameter, Shape, Tensor
from vramplan.values.job import Adapter

TABLE_AXES = 2  # of a table: the first weight of an image model's embeddings is of a convolution


class Adapted(Trained):
    """A frozen model with an adapter: what is trained, and what becomes of its linear layers.

    Source: peft 0.21.2, tuners/tuners_utils.py, BaseTuner.inject_adapter and cast_adapter_dtype; utils/other.py,
    ModulesToSaveWrapper.
    """

    def __init__(
        self,
        adapter: Adapter,
        quantization: str | None,
        weights: DType,
        autocast: DType | None,
        former: dict[str, str] | None = None,
        frozen: Sequence[str] = (),
        bitsandbytes: str | None = None,
        quantized_from: str | None = None,
        by_index: bool = False,
        experts: bool = False,
    ) -> None:
        self.adapter: Adapter = adapter
        self.makes_original = False  # of a module to save, which nobody trains
        self.makes_copy = False  # of what is made already
        self.frozen = tuple(frozen)  # of LORA_PARTS
        self.own_places: list[tuple[int, int]] = []  # of each layer: bytes of a buffer, and how many of the same size
        self.shared: dict[str, Any] = {}  # what layers share
        self.found_table = False  # that of the tokens was made
        self.adapted_table: Parameter | None = None  # if it has an adapter
        self.table_adapter: LoraTable | TrainedTokens | None = None
        self.tokens: TrainedTokens | None = None  # the same, where it trains tokens
        self.has_bits = False  # whether a layer of the model is quantized: of a few families none is
        self.quantization = quantization
        self.bitsandbytes = bitsandbytes
        self.quantized_from = None if quantized_from is None else DTYPES[quantized_from]
        self.by_index = by_index  # 4-bit weights are torchao's, and nothing is compiled
        self.experts = experts  # whether the stacked weights of experts are quantized too
        self.compute = autocast or weights
        self.former = former or {}  # names of layers that stand for tensors of experts
        self.bits = self._four_bits()
        self.targets = tuple(word for word in adapter.targets if leaf(word) not in self.former)

    def again(self) -> Trained:
        """The same, with places of its own."""
        other = copy(self)
        other.own_places, other.shared = [], {}
        other.found_table, other.adapted_table, other.table_adapter, other.tokens = False, None, None, None
        return other

    @property
    def places(self) -> list[tuple[int, int]]:  # type: ignore[override]
        """Buffers of adapters: of each layer, and those that layers share."""
        return [*self.own_places, *((size, 1) for one in self.shared.values() for size in one.places())]

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """Whether a weight is trained: the adapter's own, and the copies of modules to save."""
        if self.makes_original:
            return trainable
        if self.makes_copy:
            return True
        if tape.part and tape.part[-1] == OWN:
            return trainable and not any(word in path_of(tape.part, name) for word in self.frozen)
        if not self.is_saved(tape, name):
            return self.is_trained_bias(tape, name)
        self.makes_original = True
        tape.parameter(name, shape, dtype, trainable=False)  # the original, which stays beside the copy
        self.makes_original = False
        return True

    def is_trained_bias(self, tape: Tape, name: str) -> bool:
        """Whether a weight is a bias that is trained beside the adapter: all of them, or those of its layers.

        Source: peft 0.21.2, tuners/tuners_utils.py, BaseTuner._mark_only_adapters_as_trainable.
        """
        layer, _, part = name.rpartition(".")
        if self.adapter.bias == "none" or part != "bias":
            return False
        is_of_linear = tape.parameters[-1].in_linear and tape.parameters[-1].name == f"{layer}.weight"
        if is_of_linear and self.quantization == GPTQ and is_quantized(tape.part):  # whose biases are buffers
            return False
        return self.adapter.bias == "all" or (is_of_linear and self.is_adapted(layer))

    def is_adapted(self, name: str) -> bool:
        """Whether a linear layer is a target."""
        return leaf(name) not in self.former and is_target(name, self.targets)

    def is_tensor(self, name: str) -> bool:
        """Whether PEFT takes a linear layer's name for a tensor which is the weight of that very layer."""
        former = self.former.get(leaf(name))
        return former == f"{leaf(name)}.weight" and former in tensors_of(self.adapter.targets, self.former, ALL_LINEAR)

    def tied(self, tape: Tape, table: Parameter, name: str) -> Parameter:
        """A head that is a module to save is a copy of its own, and another keeps the original of the table.

        PEFT copies module by module and ties no copies, unless it is told to (`ensure_weight_tying`).
        """
        if self.is_saved(tape, name):
            self.makes_copy = True
            copied = tape.parameter(name, table.shape, table.dtype)
            self.makes_copy = False
            return copied
        path = path_of(table.part, table.name)
        alike = (one for one in tape.parameters if one.node is None and path_of(one.part, one.name) == path)
        return next(alike, table)

    def is_saved(self, tape: Tape, name: str) -> bool:
        """Whether a weight or a layer belongs to a module of which a copy is trained."""
        path = ".".join(path_of(tape.part, name))
        return any(is_saved_as(path, word) for word in self.adapter.modules_to_save)

    def made(self, parameter: Parameter) -> None:
        """The first weight of the embeddings is the table of the tokens, which has an adapter where it is named."""
        if self.found_table or not is_of_tokens(parameter.part):
            return
        self.found_table, tape, adapter = True, parameter.tape, self.adapter
        name = parameter.name.removesuffix(".weight")
        if self.is_saved(tape, parameter.name) or self.makes_original or len(parameter.shape) != TABLE_AXES:
            return
        dtype = DTYPES[adapter.dtype]
        with tape.building(OWN):
            if adapter.trainable_tokens:
                tokens = TrainedTokens(tape, name, parameter, adapter.trainable_tokens, dtype)
                self.table_adapter, self.tokens = tokens, tokens
                self.own_places += [(size, 1) for size in tokens.places]
            elif is_end(name, self.targets):
                self.table_adapter = LoraTable(tape, name, parameter, adapter.rank, dtype)
        if self.table_adapter is not None:
            self.adapted_table = parameter

    def table(self, weight: Parameter) -> Callable[[Tensor, Parameter, Tensor | None], Tensor] | None:
        """What runs in place of the table of the tokens."""
        return self.table_adapter if weight is self.adapted_table else None

    def makes_head(self, tape: Tape, weight: Parameter) -> None:
        """The adapter over the head, or trained tokens of the table that it is tied to."""
        self.head = None
        if self.is_saved(tape, TIED_HEAD):
            return
        if self.tokens is not None and weight is self.adapted_table:
            self.head = self.tokens.head
        elif is_end(HEAD_LAYER, self.targets):
            layer = HeadLayer(weight)
            with tape.building(OWN):
                given = tape, layer, HEAD_LAYER, self.adapter, None, None, self.compute
                self.head = layer.adapted(over(Target(*given, self.shared)))

    def linear(self, tape: Tape, module: Linear, name: str) -> Adapting | None:
        """The adapter over a layer, or what runs in place of a quantized one."""
        if self.is_saved(tape, name):
            return None
        quantized = self.quantized(tape, module, name)
        is_tensor = self.is_tensor(name)
        if not (self.is_adapted(name) or is_tensor):
            return quantized
        with tape.building(OWN):
            if is_tensor and quantized is None:  # a layer of few bits is one for an adapter, which it asks for first
                weights = {self.former[leaf(name)]: module.weight}
                tensors = LoraTensors(tape, weights, self.adapter, tuple(weights), DTYPES[self.adapter.dtype])
                return over_weight(tensors)
            if name == OUTPUT_LAYER and OUTPUT in self.adapter.kernels:
                lora = LoRA(tape, name, *widths(module), self.adapter, DTYPES[self.adapter.dtype])
                return OutputAtOnce(module, lora, None if quantized is None else self.bits)
            given = tape, module, name, self.adapter, quantized, self.quantization, self.compute
            found = over(Target(*given, self.shared))
            self.own_places += [(size, tape.copies) for size in getattr(found, "places", ())]
            return found

    def at_once(self, layers: Sequence[Linear], output: Linear | None) -> Callable[[Tensor], list[Tensor]] | None:
        """Queries, keys and values by one function."""
        return all_at_once(layers, output, self.bits) if QKV in self.adapter.kernels else None

    def gated_at_once(self, layers: Sequence[Linear]) -> Callable[[Tensor], Tensor] | None:
        """A gated MLP by one function."""
        return gated_at_once(layers, self.bits) if MLP in self.adapter.kernels else None

    def _four_bits(self) -> FourBits | None:
        """How the weights of fused layers are stored; None where they are not in 4 bits."""
        if self.quantization not in ("nf4", "nf4-double"):
            return None
        nested = self.quantization == "nf4-double"
        return four_bits(
            self.compute, nested=nested, bitsandbytes=self.bitsandbytes, quantized_from=self.quantized_from
        )

    def quantized(self, tape: Tape, module: Linear, name: str) -> Adapting | None:
        """What runs in place of a layer whose weight is stored in few bits."""
        if self.quantization is None or name in UNQUANTIZED:
            return None

        how = self.bitsandbytes, self.quantized_from, self.by_index
        found = quantize(module, self.quantization, self.compute, tape.part, *how)
        self.has_bits = self.has_bits or found is not None
        return found

    def convolution(self, tape: Tape, module: Any, name: str) -> Callable[[Any, Tensor], Tensor] | None:
        """The adapter over a convolution that is a target by its name."""
        if ALL_LINEAR in self.targets or not is_target(name, self.targets) or self.is_saved(tape, name):
            return None

        with tape.building(OWN):
            return LoraConvolution(tape, module, name, self.adapter, DTYPES[self.adapter.dtype])

    def tensors(self, tape: Tape, weights: dict[str, Parameter]) -> Callable[..., Any] | None:
        """The adapter over weights of experts or of a router, of which some are targets; or what dequantizes them."""
        bits = self.quantized_tensors(weights)
        targets = tensors_of(self.adapter.targets, self.former, ALL_LINEAR)
        if not any(name in targets for name in weights):
            return bits
        base = None if bits is None else bits.weight
        with tape.building(OWN):
            return LoraTensors(tape, weights, self.adapter, targets, DTYPES[self.adapter.dtype], base)

    def quantized_tensors(self, weights: dict[str, Parameter]) -> QuantizedTensors | None:
        """What dequantizes the stacked weights of experts; None where they are as the model has them."""
        if (
            self.quantization is None
            or not self.experts
            or not any(map(QuantizedTensors.is_quantized, weights.values()))
        ):
            return None
        self.has_bits = True
        return QuantizedTensors(weights, self.quantization)

    def shared_bytes(self) -> int:
        """What all quantized layers share."""
        if self.quantization is None or not self.has_bits:
            return 0

        return shared_bytes(self.quantization)


class AdaptedInTurns(Adapted):
    """BAdam over a frozen model with LoRA: the adapters of the blocks that no word names are trained.

    Copies of modules to save are outside of the blocks: nobody trains them.
    Source: badam 1.4, block_optim.py, _switch_trainable_params_single_gpu (lora_mode).
    """

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """Whether a weight is trained: an adapter's own, in the block whose turn it is."""
        path = path_of(tape.part, name)
        own = super().making(tape, name, shape, dtype, trainable)
        return own and LAYERS in path and not any(matches(word, path) for word in self.frozen)

    def block(self, number: int) -> object:
        """Which words say something about the block: of that whose turn it is, none of its own stack."""
        return words_of_block(self.frozen, number)


class AdapterOff(Trained):
    """The model with its adapter switched off: the layers themselves, and the originals of modules to save.

    Source: peft 0.21.2, peft_model.py, PeftModel.disable_adapter.
    """

    def __init__(self, adapted: Adapted) -> None:
        self.adapted = adapted

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """Nothing is trained."""
        return False

    def linear(self, tape: Tape, module: Linear, name: str) -> Adapting | None:
        """The layer, or what runs in place of a quantized one."""
        return None if self.adapted.is_saved(tape, name) else self.adapted.quantized(tape, module, name)

    def tensors(self, tape: Tape, weights: dict[str, Parameter]) -> Callable[..., Any] | None:
        """What dequantizes the stacked weights of experts."""
        return self.adapted.quantized_tensors(weights)
