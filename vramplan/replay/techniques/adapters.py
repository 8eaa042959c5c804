"""Adapters as PEFT 0.21 has them, over the linear layers of any family: LoRA, DoRA and IA3.

The model itself is frozen. A layer that is a target runs with the adapter in place of the layer alone; a module to save
is a copy of the original, trained in full, while the original stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vramplan.replay.autograd import dropped
from vramplan.replay.models.modules import Linear
from vramplan.replay.observers import Outer, Sharding
from vramplan.replay.operators.adapters import div, eye, row_norms, sub
from vramplan.replay.operators.elementwise import add, add_scalar, dropout, mul, mul_scalar
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import clone, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.adapter_target import Adapting
from vramplan.replay.tensors import DType, Parameter, Tensor
from vramplan.values.job import Adapter

ALL_LINEAR = "all-linear"
GPTQ = "gptq-int4"
LORA_PARTS = ("lora_A", "lora_B")  # of which one may be frozen: LoRA-FA trains the second alone (arXiv:2308.03303)
OWN = "adapter"  # the part of a model that an adapter's weights belong to
SCORE = "score"  # of causal models, which Transformers leaves whole as the last weight that a model names
CLASSIFIERS = ("classifier", SCORE)
"""Heads that are linear layers: no targets of all-linear, though bitsandbytes takes them.

Source: peft 0.21.2, peft_model.py, PeftModelForSequenceClassification; utils/constants.py, SEQ_CLS_HEAD_NAMES.
"""
UNQUANTIZED = ("wo",)  # what T5PreTrainedModel._keep_in_fp32_modules names


def is_named(path: str, word: str) -> bool:
    """Whether a module is the one that a word names: the end of its path, part by part."""
    return path == word or path.endswith(f".{word}")


def leaf(name: str) -> str:
    """The last part of a name."""
    return name.rpartition(".")[2]


def is_saved_as(path: str, word: str) -> bool:
    """Whether a module to save is the one that a word names: the end of its path, letter by letter, as in PEFT.

    A classifier may be a module with layers inside.
    """
    return path.endswith(word) or (word in CLASSIFIERS and word in path.split("."))


def is_target(name: str, targets: Sequence[str]) -> bool:
    """Whether a linear layer is a target: the names are ends of its path, as in PEFT.

    `all-linear` leaves out the heads of language models, which are no layers here, and what is trained in full, as the
    classifier of a text is; that of an image is a layer like the others.
    Source: peft 0.21.2, tuners/tuners_utils.py, _maybe_include_all_linear_layers.
    """
    return ALL_LINEAR in targets or any(is_named(name, word) for word in targets)


def is_end(name: str, targets: Sequence[str]) -> bool:
    """Whether a table or a head is a target, which has to be named."""
    return any(is_named(name, word) for word in targets)


def widths(module: Linear) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    first, second = module.weight.shape
    return (first, second) if module.transposed else (second, first)


def project(x: Tensor, weight: Parameter) -> Tensor:
    """A small linear layer of an adapter; as a module it holds its input until it returns."""
    wrapped = x.tape.role(Sharding).wrapped
    return linear(x, weight) if wrapped is None else wrapped(weight, lambda given: linear(x, given))


class LowRank:
    """The weights of two thin layers, one after the other, in place of a whole matrix (arXiv:2106.09685)."""

    def __init__(self, tape: Tape, name: str, inputs: int, outputs: int, adapter: Adapter, dtype: DType) -> None:
        self.p = adapter.dropout
        self.lora_A = tape.parameter(f"{name}.lora_A.weight", (adapter.rank, inputs), dtype)
        self.lora_B = tape.parameter(f"{name}.lora_B.weight", (outputs, adapter.rank), dtype)
        self.lora_A.in_linear = self.lora_B.in_linear = True


class LoRA(LowRank):
    """lora.Linear: the layer's own result, and a product of two thin matrices added to it (arXiv:2106.09685).

    Over a GPTQ layer, which then runs in place of the layer's own code, it is the same.
    Source: peft 0.21.2, tuners/lora/layer.py, Linear.forward; tuners/lora/gptq.py, GPTQLoraLinear.forward.
    """

    def __init__(
        self,
        tape: Tape,
        name: str,
        inputs: int,
        outputs: int,
        adapter: Adapter,
        dtype: DType,
        base: Adapting | None = None,
    ) -> None:
        super().__init__(tape, name, inputs, outputs, adapter, dtype)
        self.base = base

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        with Outer(x, read=(self.lora_A,)):
            result = module.base(x) if self.base is None else self.base(module, x)
            dtype = result.dtype
            x = to(x, self.lora_A.dtype)
            result = add(result, mul_scalar(project(project(dropout(x, self.p), self.lora_A), self.lora_B)))
            result = to(result, dtype)
        return result


class QuantizedLoRA(LoRA):
    """LoRA over a quantized layer; the result of one with 4-bit weights is cloned first.

    Source: peft 0.21.2, tuners/lora/bnb.py, Linear4bit.forward and Linear8bitLt.forward.
    """

    def __init__(
        self,
        tape: Tape,
        name: str,
        inputs: int,
        outputs: int,
        adapter: Adapter,
        dtype: DType,
        *,
        quantized: Adapting,
        clones: bool,
    ) -> None:
        super().__init__(tape, name, inputs, outputs, adapter, dtype)
        self.quantized, self.clones = quantized, clones

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        converts = x.tape.autocast is None
        with Outer(x, read=(self.lora_A,) if converts else ()):
            result = self.quantized(module, x)
            if self.clones:
                result = clone(result)
            dtype = result.dtype
            if converts:
                x = to(x, self.lora_A.dtype)
            output = mul_scalar(project(project(dropout(x, self.p), self.lora_A), self.lora_B))
            if converts:
                output = to(output, dtype)
            result = add(result, output)
        return result


class DoRA(LowRank):
    """DoRA: LoRA whose result is scaled to a trained magnitude for each output (arXiv:2402.09353, section 4.3).

    The norm of the whole weight is computed anew in every forward pass: a product of the size of the weight is made by
    sending an identity matrix through the adapter, and its graph leads nowhere, as the norm counts as a constant.
    Source: peft 0.21.2, tuners/lora/dora.py, DoraLinearLayer.forward; tuners/lora/variants.py, DoraLinearVariant.
    """

    def __init__(self, tape: Tape, name: str, inputs: int, outputs: int, adapter: Adapter, dtype: DType) -> None:
        super().__init__(tape, name, inputs, outputs, adapter, dtype)
        self.inputs = inputs
        self.magnitude = tape.parameter(f"{name}.lora_magnitude_vector.weight", (outputs,), dtype)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        with Outer(x, read=(self.lora_A,)):
            result = module.base(x)
            dtype = result.dtype
            x = to(x, self.lora_A.dtype)
            if self.p:
                result = add(result, self.scaled(module, dropout(x, self.p), None))
            else:
                result = add(result, self.scaled(module, x, result))
            result = to(result, dtype)
        return result

    def scaled(self, module: Linear, x: Tensor, base: Tensor | None) -> Tensor:
        """The module of the magnitude, which asks the layer beside it for its weight, and for the bias it takes off."""
        asked = (module.weight,) if base is None or module.bias is None else (module.weight, module.bias)
        wrapped = x.tape.role(Sharding).wrapped
        with Outer(x, own=(self.magnitude, *asked)):
            if wrapped is not None:
                return wrapped(self.magnitude, lambda magnitude: self.within(module, x, base, magnitude))
            return self.within(module, x, base, self.magnitude)

    def within(self, module: Linear, x: Tensor, base: Tensor | None, magnitude: Tensor) -> Tensor:
        """DoraLinearLayer.forward."""
        with dropped(x.tape) as _graph:
            _lora_weight = self.lora_weight(x)
            _lora_weight = to(_lora_weight, x.dtype)
        _weight = self.weight(module, x.dtype)
        norm = self.norm(_weight, _lora_weight, transposed=module.transposed)
        scale = view(div(magnitude, norm), (1, magnitude.shape[0]))
        lora_result = project(project(x, self.lora_A), self.lora_B)
        if base is None:
            base = linear(x, _weight, transposed=module.transposed)
        else:
            bias = self.bias(module, base)
            if bias is not None:
                base = sub(base, bias)
        return add(mul(add_scalar(scale), base), mul_scalar(mul(scale, lora_result)))

    def weight(self, module: Linear, dtype: DType) -> Tensor:
        """The whole weight of the layer."""
        return to(module.weight, dtype)

    def bias(self, module: Linear, result: Tensor) -> Tensor | None:
        """The bias of the layer that gave a result."""
        return module.bias

    def lora_weight(self, x: Tensor) -> Tensor:
        """DoraLinearLayer.get_lora_weight: [out, in], a transposed view."""
        identity = eye(x.tape, self.inputs, self.lora_A.dtype)
        wide = project(project(identity, self.lora_A), self.lora_B)
        return wide.alias(wide.shape[::-1], (1, wide.shape[1]), wide.node)

    def norm(self, weight: Tensor, lora_weight: Tensor, *, transposed: bool) -> Tensor:
        """DoraLinearLayer.get_weight_norm, without gradients."""
        if transposed:
            weight = transpose(weight, 0, 1)
        weight = add(weight, mul_scalar(lora_weight.alias(lora_weight.shape, lora_weight.strides, None)))
        return row_norms(weight)


class IA3:
    """IA3: a trained factor for each output of the layer, or for each input where it is a feedforward one.

    Source: peft 0.21.2, tuners/ia3/layer.py, Linear.forward; arXiv:2205.05638, section 3.3.
    """

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType, *, feedforward: bool) -> None:
        self.feedforward = feedforward
        self.ia3_l = tape.parameter(f"{name}.ia3_l", (1, width) if feedforward else (width, 1), dtype)

    def __call__(self, module: Linear, x: Tensor) -> Tensor:
        dtype = x.dtype
        with Outer(x, own=(self.ia3_l,), read=(module.weight,) if self.feedforward else ()):
            scaling = self.scaling()
            if self.feedforward:
                x = to(x, self.ia3_l.dtype)
                scaled = to(mul(x, scaling), dtype)
                result = module.base(scaled)
            else:
                result = module.base(x)
                result = to(mul(result, scaling), result.dtype)
        return result

    def scaling(self) -> Tensor:
        """The factors, of which one adapter's is multiplied by 1."""
        return view(mul_scalar(self.ia3_l), (prod(self.ia3_l.shape),))
