"""Keys of what is trained: adapters, quantization, frozen parts; what runs between the steps; what the host holds."""

from __future__ import annotations

from typing import Any

from vramplan.options import spellings, words
from vramplan.options.option import COUNT, FLAG, MAPPING, MAX_COUNT, NUMBER, TEXT, TEXTS, WORD, Option
from vramplan.options.table.sections import BETWEEN, DEVICES, TRAINED


def _adapter(name: str, kind: str, help: str, **more: Any) -> Option:
    return Option(f"adapter.{name}", kind, help, slot=f"adapter_{name}", section=TRAINED, **more)


TRAINED_ROWS = (
    Option(
        "adapter",
        MAPPING,
        "An adapter beside a frozen model: its kind, or a mapping of its kind and its settings.",
        usual="`null`",
        flags=(),
        section=TRAINED,
    ),
    _adapter(
        "kind",
        WORD,
        "Adapter that is trained beside a frozen model.",
        words=words.ADAPTERS,
        usual="required in an adapter",
        flags=("--adapter",),
        metavar="KIND",
        also=("--peft",),
        spellings=spellings.ADAPTERS,
        everyday=True,
    ),
    _adapter(
        "targets",
        TEXTS,
        "Linear layers with an adapter: q_proj,v_proj or all-linear.",
        usual="PEFT's own for the model type",
        note="A list of the ends of their names.",
        also=("--target-modules", "--lora-target-modules", "--lora-target", "--lora-targets"),
    ),
    _adapter(
        "feedforward_targets",
        TEXTS,
        "With ia3: targets whose input is scaled, not their output.",
        usual="PEFT's own with its targets, else none",
    ),
    _adapter(
        "rank",
        COUNT,
        "Rank of the adapter's matrices.",
        maximum=2**20,
        default=8,
        note="Of `lora` and `dora`; of `oft` the size of a block, which is 32 where it is left out.",
        also=("--lora-r", "--lora-rank", "--r"),
        everyday=True,
    ),
    _adapter(
        "alpha",
        NUMBER,
        "Scale of the adapter; does not change memory.",
        minimum=0,
        usual="none",
        note="Of `lora` and `dora`; over experts it costs one product where it is not the rank.",
        also=("--lora-alpha",),
    ),
    _adapter(
        "dropout",
        NUMBER,
        "Dropout before the adapter.",
        minimum=0,
        below=1,
        default=0,
        flags=("--adapter-dropout",),
        metavar="P",
        note="Of `lora` and `dora`.",
        nullable=True,
        profile=("adapter_dropout",),
        also=("--lora-dropout",),
    ),
    _adapter(
        "modules_to_save",
        TEXTS,
        "Modules of which a copy is trained in full.",
        usual="none; the head of a classification",
        also=("--lora-modules-to-save",),
    ),
    _adapter(
        "dtype",
        WORD,
        "Element type of the adapter's weights.",
        words=("fp32", *words.HALVES),
        usual="`fp32`; with `mixed-*` and `pure-*` that of the model's",
        flags=("--adapter-dtype",),
        note="`fp32`, or that of the model's weights.",
        also=("--lora-dtype",),
        spellings=spellings.FLOATS,
    ),
    Option(
        "quantization",
        WORD,
        "Quantize the frozen weights of linear layers.",
        words=("nf4", "nf4-double", "int8", "gptq-int4"),
        usual="`null`",
        note="Modelled under an adapter; `gptq-int4` under `lora`, for [some models](adapters.md#gptq-checkpoints), "
        "with 16 bits.",
        also=("--quant", "--quantize"),
        spellings=spellings.QUANTIZATIONS,
        everyday=True,
        section=TRAINED,
    ),
    Option(
        "quantized_experts",
        FLAG,
        "Quantize the stacked weights of experts too, which are no linear layers.",
        default=False,
        note="Axolotl's `quantize_moe_experts`, with `nf4`, `nf4-double` or `int8`; "
        "[how they are computed with](adapters.md#quantized-experts).",
        section=TRAINED,
    ),
    Option(
        "bitsandbytes",
        TEXT,
        "Release of bitsandbytes that multiplies quantized weights, as in 0.43.0.",
        usual="the runtime's, else 0.50.2",
        note="From 0.41.1 to 0.50.2, with `int8` from 0.49.2; [what differs](adapters.md#releases-of-bitsandbytes).",
        metavar="VERSION",
        profile=("bitsandbytes",),
        section=TRAINED,
    ),
    Option(
        "frozen",
        TEXTS,
        "Parts of the model that are not trained.",
        examples=("embeddings", "layers.0-11", "norms", "head", "attention", "mlp"),
        default=(),
        absent=(),
        note="Or a module such as `q_proj`; beside LoRA `lora_A` or `lora_B`; `all-but:REGEX` says what is trained.",
        also=("--freeze",),
        section=TRAINED,
    ),
    Option(
        "trained_blocks",
        WORD,
        "Blocks that are trained at a time, of a model that is trained in turns.",
        words=words.TRAINED_BLOCKS,
        default="all",
        note="[How](adapters.md#a-few-blocks-at-a-time).",
        section=TRAINED,
    ),
    Option(
        "eval_batch_size",
        COUNT,
        "Warn where an evaluation of N sequences exceeds training.",
        maximum=MAX_COUNT,
        usual="`null`, not looked at",
        note="[Modelled](losses.md#evaluation), not with the loss `fused` and those of preferences.",
        section=BETWEEN,
    ),
    Option(
        "generation_batch_size",
        COUNT,
        "Warn where generating N sequences exceeds training.",
        maximum=MAX_COUNT,
        usual="`null`, not looked at",
        note="[The least that it needs](losses.md#generation).",
        section=BETWEEN,
    ),
    Option(
        "generation_length",
        COUNT,
        "Tokens of a generated sequence and its prompt.",
        maximum=MAX_COUNT,
        usual="`null`",
        note="Belongs to `generation_batch_size`.",
        thousands=1024,
        section=BETWEEN,
    ),
    Option(
        "offload",
        TEXTS,
        "What is offloaded to CPU memory.",
        words=words.OFFLOADS,
        default=(),
        absent=(),
        note="[Activations](checkpointing.md#activations-on-the-host); [optimizer and gradients](zero.md#offloading) "
        "with `zero1` and `zero2`, parameters too [with `zero3`](zero.md#zero-infinity); all three states together "
        "[with FSDP2](devices.md#states-on-the-host).",
        panel=DEVICES,
        everyday=True,
        section=TRAINED,
    ),
)
