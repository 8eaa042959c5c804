"""The kinds of adapters of PEFT 0.21: which keys each has, and over which layers PEFT has a layer of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vramplan.tuples import NamedTuple

BITSANDBYTES = ("nf4", "nf4-double", "int8")
EVERY_QUANTIZATION = (*BITSANDBYTES, "gptq-int4")

ALL, FULL, HALF = "all", "fp32", "half"  # adapters of every element type, of fp32, of 16 bits

LOW_RANK = ("rank", "alpha", "dropout")
BIASED = (*LOW_RANK, "bias")


class AdapterKind(NamedTuple):
    """What PEFT says of one kind of adapter."""

    keys: tuple[str, ...]  # of an adapter, beside targets, modules_to_save and dtype
    rank: int = 0  # PEFT's default of the rank, or of what stands in its place
    measure: str = "rank"  # what `rank` is, in words before the number
    usual: Mapping[str, int] = MappingProxyType({})  # PEFT's defaults of the other keys that are numbers
    quantizations: tuple[str, ...] = EVERY_QUANTIZATION  # over whose layers PEFT has the kind
    conv1d: bool = True  # whether over Conv1D of Transformers
    unlike: Mapping[str, str] = MappingProxyType({})  # by quantization, what fails over 16 bits: ALL, FULL, HALF
    beyond_lora: bool = True  # whether PEFT takes it for no kin of LoRA, of which Mamba's layers are kept
    reads_weight: bool = False  # whether it multiplies by the layer's weight without calling the layer
    shared_rows: bool = False  # whether traces have it on several devices, and compiled
    own_modules: bool = False  # whether each weight that is trained is that of a module, which FSDP1 may wrap
    adds_to_loss: bool = False  # whether PEFT's classes for tasks add a term to the loss, by `task_type`
    of_norms: bool = False  # whether it trains copies of norms, which are its targets
    of_table: bool = False  # whether it trains rows of the table of the tokens in place of layers
    of_tokens: bool = False  # whether it trains virtual tokens in place of layers
    is_lora: bool = False  # whether it is LoRA to PEFT, with the matrices lora_A and lora_B, and over experts


KINDS: Mapping[str, AdapterKind] = {
    "lora": AdapterKind(
        (*BIASED, "kernels", "trainable_tokens"), 8, beyond_lora=False, shared_rows=True, own_modules=True, is_lora=True
    ),
    "dora": AdapterKind(
        (*BIASED, "kernels", "trainable_tokens"),
        8,
        quantizations=BITSANDBYTES,
        beyond_lora=False,
        shared_rows=True,
        own_modules=True,
        is_lora=True,
    ),
    "ia3": AdapterKind(
        ("feedforward_targets",),
        quantizations=BITSANDBYTES,
        unlike=dict.fromkeys(BITSANDBYTES, ALL),
        beyond_lora=False,
        shared_rows=True,
    ),
    "oft": AdapterKind(("rank", "bias"), 32, "blocks of", conv1d=False, shared_rows=True, own_modules=True),
    "adalora": AdapterKind(BIASED, 12, unlike={"int8": ALL}, beyond_lora=False, adds_to_loss=True),
    "vera": AdapterKind(("rank", "dropout", "bias"), 256, unlike={"int8": HALF}),
    "loha": AdapterKind(("rank", "alpha"), 8, quantizations=("int8",), conv1d=False),
    "lokr": AdapterKind(("rank", "alpha", "decompose_factor"), 8, quantizations=("int8",), conv1d=False),
    "hra": AdapterKind(("rank", "bias"), 8, quantizations=(), conv1d=False, reads_weight=True),
    "boft": AdapterKind(("rank", "bias"), 4, "blocks of", conv1d=False),
    "fourierft": AdapterKind(("frequencies", "bias"), usual={"frequencies": 1000}, quantizations=BITSANDBYTES),
    "randlora": AdapterKind(
        BIASED,
        32,
        quantizations=BITSANDBYTES,
        unlike={"nf4": FULL, "nf4-double": FULL, "int8": ALL},
        beyond_lora=False,
    ),
    "miss": AdapterKind(("rank", "dropout", "bias"), 64, conv1d=False),
    "ln-tuning": AdapterKind((), of_norms=True),
    "trainable-tokens": AdapterKind(("trainable_tokens",), of_table=True, shared_rows=True),
    "prompt-tuning": AdapterKind(("virtual_tokens",), of_tokens=True, own_modules=True),
    "p-tuning": AdapterKind(("virtual_tokens", "encoder_hidden_size"), of_tokens=True, own_modules=True),
    "prefix-tuning": AdapterKind(
        ("virtual_tokens", "encoder_hidden_size", "prefix_projection"), of_tokens=True, own_modules=True
    ),
}
"""Source: peft 0.21.2, tuners/*/config.py for the defaults, tuners/*/model.py (_create_new_module) for the layers."""

OF_SOME = tuple(dict.fromkeys(key for kind in KINDS.values() for key in kind.keys))
"""Keys of an adapter that some kinds have and others lack."""


def lacks(word: str) -> tuple[str, ...]:
    """Keys of an adapter that have no meaning for a kind."""
    kind = KINDS[word]
    beside = ("targets",) if kind.of_tokens else ("targets", "modules_to_save") if kind.of_table else ()
    beside = ("dtype",) if kind.of_norms else beside
    return (*beside, *(key for key in OF_SOME if key not in KINDS[word].keys))
