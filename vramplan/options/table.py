"""Every key of a job, once. The order is that of the echoed job; the sections are those of the help and of the docs."""

from __future__ import annotations

from functools import cache
from typing import Any

from vramplan.options import words
from vramplan.options.option import COUNT, FLAG, MAPPING, MAX_COUNT, NUMBER, PARAMETERS, SIZE, TEXT, TEXTS, WORD, Option

MAX_RATE = 1e6  # of learning rates and gradient norms: beyond it something was pasted wrongly
MAX_PIXELS = 2**16  # of an edge of an image
MAX_DEVICES = 2**20
MAX_ELEMENTS = 2**50  # of a buffer

SUBJECT = "What runs where"
BATCH = "Batch"
NUMBERS = "Numbers and optimizer"
FORWARD = "Forward and backward"
BETWEEN = "Between the steps"
TRAINED = "Adapters, quantization, frozen parts, offloading"
PARALLELISM = "Parallelism"
GATES = "Gates only"
TEXTBOOK = "Textbook keys"
ADVICE = "Batch advice"
SECTIONS = (SUBJECT, BATCH, NUMBERS, FORWARD, BETWEEN, TRAINED, PARALLELISM, GATES, TEXTBOOK, ADVICE)

FSDP = ("fsdp", "fsdp-grad-op", "hsdp:N")
ZERO = ("zero1", "zero2", "zero3")
ZERO3 = ("zero3",)


def _adapter(name: str, kind: str, help: str, **more: Any) -> Option:
    return Option(f"adapter.{name}", kind, help, slot=f"adapter_{name}", section=TRAINED, **more)


def _parallel(name: str, kind: str, help: str, **more: Any) -> Option:
    return Option(f"parallel.{name}", kind, help, section=PARALLELISM, **more)


def _devices(name: str, help: str, note: str, **more: Any) -> Option:
    return _parallel(name, COUNT, help, maximum=MAX_DEVICES, default=1, slot="", note=note, **more)


def _zero(name: str, kind: str, help: str, **more: Any) -> Option:
    return _parallel(name, kind, help, slot="", **{"sharding": ZERO3, **more})


def _cell(name: str, help: str, **more: Any) -> Option:
    return Option(name, WORD, help, words=words.CELL_WORDS, slot="", textbook=True, section=NUMBERS, **more)


TABLE = (
    Option(
        "name",
        TEXT,
        "What reports call the job.",
        usual="`MODEL on GPU` for `fit`; required in a file",
        note="Unique in the file.",
        flags=(),
        textbook=True,
        section=SUBJECT,
    ),
    Option(
        "model",
        MAPPING,
        "Profile, file, config.json or cached ORG/NAME.",
        usual="required",
        note="A profile name or alias, the path of a profile, of a Hugging Face `config.json` or of its folder, "
        "`ORG/NAME` of a model in the local Hugging Face cache, or a mapping ([Models](#models)).",
        flags=("--model", "-m"),
        metavar="MODEL",
        textbook=True,
        section=SUBJECT,
    ),
    Option(
        "gpu",
        MAPPING,
        "Profile name or file, a size as in '24 GiB', or local.",
        usual="required",
        note="[`local`](local-gpu.md) is the GPU of this machine; in a file also a mapping ([GPUs](#gpus)), "
        "which has the size under `memory`.",
        flags=("--gpu", "-g"),
        metavar="GPU",
        textbook=True,
        section=SUBJECT,
    ),
    Option(
        "sequence_length",
        COUNT,
        "Tokens per sequence.",
        maximum=MAX_COUNT,
        usual="the smaller of the model's `max_positions` and 2048",
        note="`null` for models of images alone.",
        flags=("--seq", "--sequence-length"),
        profile=("sequence_length",),
        textbook=True,
        section=SUBJECT,
    ),
    Option(
        "target_length",
        COUNT,
        "Tokens of the decoder, where an encoder has those of --seq.",
        maximum=MAX_COUNT,
        usual="as `sequence_length`",
        note="Modelled for t5 and bart.",
        section=SUBJECT,
    ),
    Option(
        "image_size",
        COUNT,
        "Pixels of an edge, for models that take images.",
        maximum=MAX_PIXELS,
        usual="the model's own, or 224 where it has none",
        section=SUBJECT,
    ),
    Option(
        "micro_batch_size",
        COUNT,
        "Batch size per GPU and forward pass (default: the largest that fits).",
        maximum=MAX_COUNT,
        usual="recommended",
        flags=("--micro-batch", "--micro-batch-size"),
        profile=("micro_batch_size",),
        textbook=True,
        section=BATCH,
    ),
    Option(
        "global_batch_size",
        COUNT,
        "Total batch size per optimizer step over all GPUs.",
        maximum=MAX_COUNT,
        usual="follows; the published batch of a model whose profile has one",
        flags=("--global-batch", "--global-batch-size"),
        profile=("global_batch_size",),
        textbook=True,
        section=BATCH,
    ),
    Option(
        "gradient_accumulation_steps",
        COUNT,
        "Gradient accumulation: micro-batches per optimizer step.",
        maximum=MAX_COUNT,
        usual="follows; 1 where no batch is given",
        flags=("--gradient-accumulation-steps", "--steps"),
        textbook=True,
        section=BATCH,
    ),
    Option(
        "precision",
        WORD,
        "Number formats of weights, gradients and products.",
        words=(words.AUTO, *words.PRECISIONS),
        usual="`auto`",
        note="See [Precision](#precision).",
        profile=("precision", "sharded_precision", "quantized_precision"),
        textbook=True,
        section=NUMBERS,
    ),
    _cell(
        "weight_dtype",
        "Element type of the weights.",
        usual="that of the checkpoint under `transformers`, else the precision's",
        nullable=True,
        note="[How a checkpoint is loaded](precision.md#weights-as-they-are-loaded); "
        "[modelled](precision.md#other-element-types) where some program has the combination; "
        "`null` is the precision's.",
        profile=("weight_dtype",),
        profile_words=("checkpoint", "autocast"),
    ),
    Option(
        "from_scratch",
        FLAG,
        "The model is built from its configuration, so no checkpoint gives its weights their element type.",
        default=False,
        note="The weights are then fp32, unless `weight_dtype` or the precision says otherwise.",
        section=NUMBERS,
    ),
    _cell(
        "gradient_dtype",
        "Element type of the gradients.",
        usual="the weights', unless the precision says otherwise",
        note="Modelled: `fp32` with `mixed-*`.",
        profile=("gradient_dtype",),
    ),
    _cell(
        "master_dtype",
        "Element type of the master copy of the weights.",
        usual="the precision's",
        note="`none` for no copy, which is modelled with `mixed-*`.",
    ),
    _cell(
        "optimizer_state_dtype",
        "Element type of the optimizer's states.",
        usual="the weights', fp32 beside a master copy",
        note="Modelled: `fp32` beside half weights.",
    ),
    _cell(
        "compute_dtype",
        "Element type of matrix products and attention.",
        usual="the precision's",
        note="Modelled with fp32 weights: `bf16` or `fp16` is then `amp-*`.",
    ),
    Option(
        "optimizer",
        WORD,
        "Optimizer.",
        words=words.OPTIMIZERS,
        usual="`adamw`",
        note="See [Optimizers](#optimizers).",
        profile=("optimizer", "quantized_optimizer"),
        textbook=words.TEXTBOOK_OPTIMIZERS,
        section=NUMBERS,
    ),
    Option(
        "optimizer_implementation",
        WORD,
        "How the optimizer goes through the weights.",
        words=words.IMPLEMENTATIONS,
        usual="see [Optimizers](#optimizers)",
        profile=("optimizer_implementation",),
        section=NUMBERS,
    ),
    Option(
        "optimizer_in_backward",
        FLAG,
        "Run the optimizer step inside backward and free each gradient at once.",
        default=False,
        note="[How](#around-the-step).",
        section=NUMBERS,
    ),
    Option(
        "max_gradient_norm",
        NUMBER,
        "Clip gradients to this total norm; 0 turns clipping off.",
        minimum=0,
        maximum=MAX_RATE,
        usual="the runtime's: 1 in the Trainer, none in a plain loop",
        note="[How](#around-the-step); `0` or `null` for no clipping.",
        nullable=True,
        profile=("max_gradient_norm",),
        section=NUMBERS,
    ),
    Option(
        "grad_scaler",
        FLAG,
        "With amp-fp16: scale the loss, and unscale the gradients before the optimizer step (GradScaler).",
        default=False,
        note="[How](precision.md#a-scaled-loss).",
        section=NUMBERS,
    ),
    Option(
        "ema",
        FLAG,
        "Keep an exponential moving average of the weights.",
        default=False,
        note="[How](#around-the-step).",
        section=NUMBERS,
    ),
    Option(
        "activation_checkpointing",
        WORD,
        "Activation (gradient) checkpointing: what is recomputed in backward.",
        words=words.CHECKPOINTINGS,
        usual="recommended",
        note="See [Activation checkpointing](#activation-checkpointing); `gelu` and `gelu-norms` belong to `llm.c`.",
        flags=("--checkpointing", "--activation-checkpointing"),
        textbook=words.TEXTBOOK_CHECKPOINTINGS,
        section=FORWARD,
    ),
    Option(
        "every_second_matmul",
        FLAG,
        "With selective-op: keep only the first, third, ... product of a block's linear layers.",
        default=False,
        section=FORWARD,
    ),
    Option(
        "attention",
        WORD,
        "Kernel of scaled dot-product attention.",
        words=("eager", "flash", "efficient", "math", "sdpa"),
        default="sdpa",
        note="See [Attention](#attention).",
        profile=("attention",),
        section=FORWARD,
    ),
    Option(
        "expert_imbalance",
        NUMBER,
        "Tokens of the most loaded expert over the mean.",
        minimum=1,
        maximum=MAX_COUNT,
        usual="1",
        note="Belongs to models with experts; [changes no figure](experts.md#routing-is-data) but where "
        "[devices share the experts](megatron.md#experts).",
        section=FORWARD,
    ),
    Option(
        "expert_capacity_factor",
        NUMBER,
        "Tokens that an expert takes over the mean, as in 1.25; those above are dropped.",
        minimum=0,
        maximum=MAX_COUNT,
        zero="0 leaves no tokens; leave it out and none is dropped",
        usual="`null`, none is dropped",
        note="Megatron's `moe_expert_capacity_factor`; [modelled](experts.md#a-capacity-for-each-expert) under "
        "`megatron`.",
        section=FORWARD,
    ),
    Option(
        "expert_pad_to_capacity",
        FLAG,
        "With a capacity factor: every expert gets as many tokens as it takes.",
        default=False,
        note="Megatron's `moe_pad_expert_input_to_capacity`; [modelled](experts.md#a-capacity-for-each-expert) under "
        "`megatron`.",
        section=FORWARD,
    ),
    Option(
        "checkpoint_reentrant",
        FLAG,
        "Checkpoints with use_reentrant=True.",
        default=False,
        note="[Modelled](checkpointing.md#reentrant-checkpoints), not for bloom and mpt.",
        profile=("checkpoint_reentrant",),
        section=FORWARD,
    ),
    Option(
        "loss",
        WORD,
        "Loss, and how its logits are computed.",
        words=words.LOSSES,
        default="standard",
        note="See [Loss](#loss).",
        profile=("head_loss",),
        section=FORWARD,
    ),
    Option(
        "label_smoothing",
        NUMBER,
        "Smooth the labels, as in 0.1; 0 is none.",
        minimum=0,
        below=1,
        default=0,
        note="[Modelled](losses.md#smoothed-labels) with the standard loss.",
        section=FORWARD,
    ),
    Option(
        "dpo_reference",
        WORD,
        "Where the loss dpo has the reference model's log-probabilities from.",
        words=("model", "precomputed", "adapter-off"),
        usual="with the loss `dpo` `model`, with an adapter `adapter-off`",
        note="[How](losses.md#preference-training).",
        section=FORWARD,
    ),
    Option(
        "padding",
        WORD,
        "Side on which sequences are padded, which needs a mask.",
        words=("none", "right"),
        default="none",
        note="[Modelled](losses.md#padding-and-packing) for the families named there.",
        section=FORWARD,
    ),
    Option(
        "packing",
        FLAG,
        "Each sequence is packed from several short ones, which a mask keeps apart.",
        default=False,
        note="[Modelled](losses.md#padding-and-packing) for gpt2 and the types of llama.",
        section=FORWARD,
    ),
    Option(
        "compile",
        FLAG,
        "torch.compile around the model and its loss.",
        default=False,
        note="[Modelled](compile.md) by stated rules for most text models.",
        profile=("compile",),
        section=FORWARD,
    ),
    Option(
        "dropout",
        NUMBER,
        "Override every dropout of the model.",
        minimum=0,
        below=1,
        usual="the model's own",
        metavar="P",
        nullable=True,
        profile=("dropout",),
        section=FORWARD,
    ),
    Option(
        "hold_outputs",
        FLAG,
        "Keep the logits until backward has ended, as some training loops do.",
        default=False,
        profile=("hold_outputs",),
        section=FORWARD,
    ),
    Option(
        "adapter",
        MAPPING,
        "An adapter beside a frozen model: a mapping of its kind and its settings.",
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
    ),
    _adapter(
        "targets",
        TEXTS,
        "Linear layers with an adapter: q_proj,v_proj or all-linear.",
        usual="PEFT's own for the model type",
        note="A list of the ends of their names.",
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
        note="Of `lora` and `dora`.",
    ),
    _adapter(
        "alpha",
        NUMBER,
        "Scale of the adapter; does not change memory.",
        minimum=0,
        usual="none",
        note="Of `lora` and `dora`; over experts it costs one product where it is not the rank.",
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
    ),
    _adapter(
        "modules_to_save",
        TEXTS,
        "Modules of which a copy is trained in full.",
        usual="none; the head of a classification",
    ),
    _adapter(
        "dtype",
        WORD,
        "Element type of the adapter's weights.",
        words=("fp32", *words.HALVES),
        usual="`fp32`; with `mixed-*` and `pure-*` that of the model's",
        flags=("--adapter-dtype",),
        note="`fp32`, or that of the model's weights.",
    ),
    Option(
        "quantization",
        WORD,
        "Quantize the frozen weights of linear layers.",
        words=("nf4", "nf4-double", "int8", "gptq-int4"),
        usual="`null`",
        note="Modelled under an adapter; `gptq-int4` under `lora`, for [some models](adapters.md#gptq-checkpoints), "
        "with 16 bits.",
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
        note="Or a module such as `q_proj`; beside LoRA `lora_A` or `lora_B`.",
        section=TRAINED,
    ),
    Option(
        "eval_batch_size",
        COUNT,
        "Warn where an evaluation of N sequences exceeds training.",
        maximum=MAX_COUNT,
        usual="`null`, not looked at",
        note="[Modelled](losses.md#evaluation), not with the losses `fused` and `dpo`.",
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
        section=TRAINED,
    ),
    Option(
        "activation_model",
        WORD,
        "Formula for activations.",
        words=("book", "zero-paper", "korthikanti"),
        usual="none",
        textbook=True,
        only=words.TEXTBOOK,
        section=TEXTBOOK,
    ),
    Option(
        "activation_bytes",
        SIZE,
        "Activations that a text quotes in fp32, as in '65 GB'.",
        usual="none",
        note="Scaled by the element size of `compute_dtype`.",
        textbook=True,
        only=words.TEXTBOOK,
        section=TEXTBOOK,
    ),
    Option(
        "checkpoint_factor",
        NUMBER,
        "What checkpointing divides activations by.",
        minimum=1,
        maximum=MAX_COUNT,
        usual="none",
        textbook=True,
        only=words.TEXTBOOK,
        section=TEXTBOOK,
    ),
    Option(
        "trainable_parameters",
        PARAMETERS,
        "How many parameters are trained, as in 2.8B.",
        usual="all",
        note="The others have weights, and neither gradients nor states.",
        textbook=True,
        only=words.TEXTBOOK,
        section=TEXTBOOK,
    ),
    Option(
        "parallel",
        MAPPING,
        "How devices share the work: a mapping of degrees, sharding and switches.",
        usual="one device",
        flags=(),
        textbook=True,
        section=PARALLELISM,
    ),
    _parallel(
        "data",
        COUNT,
        "Data-parallel devices, beside --tensor, --pipeline, --context; auto in fit: the fewest that fit.",
        maximum=MAX_DEVICES,
        default=1,
        flags=("--gpus", "--data"),
        slot="data_parallel_size",
        absent=1,
        textbook=True,
    ),
    _devices(
        "tensor",
        "Tensor parallelism: GPUs that share each matrix.",
        "Where the code of the runtime splits it.",
    ),
    _devices(
        "pipeline",
        "Pipeline parallelism: stages.",
        "Where the code of the runtime splits it.",
    ),
    _parallel(
        "schedule",
        WORD,
        "Schedule of a pipeline.",
        words=words.SCHEDULES,
        default="1f1b",
        slot="",
    ),
    _devices(
        "context",
        "Context parallelism: GPUs that share each sequence.",
        "Where the code of the runtime splits it.",
    ),
    _devices(
        "expert",
        "Expert parallelism: data-parallel GPUs that share the experts.",
        "Where the code of the runtime splits them.",
    ),
    _parallel(
        "sequence_parallel",
        FLAG,
        "Sequence parallelism: with --tensor, norms and dropout share the sequence too.",
        default=False,
        slot="",
    ),
    _parallel(
        "pipeline_split",
        WORD,
        "What the stages of a pipeline share evenly.",
        words=("blocks", "embedding-and-head"),
        usual="what divides them",
        slot="",
        metavar="HOW",
        note="[How stages are cut](megatron.md#pipelines).",
    ),
    _parallel(
        "context_communication",
        WORD,
        "With --context: how devices get the keys and values of the others.",
        words=("ring", "all-gather"),
        usual="`ring` under megatron, `all-gather` under [torchtitan](torchtitan.md#context-parallelism)",
        slot="",
        metavar="HOW",
        note="[How](megatron.md#context-parallelism).",
    ),
    _parallel(
        "sharding",
        WORD,
        "How data-parallel GPUs share weights, gradients and optimizer states.",
        words=words.SHARDINGS,
        usual="`ddp` with several devices, else `none`",
        note="[Modelled](devices.md); [ZeRO](zero.md) with a `mixed-*` precision; "
        "[`distributed-optimizer`](megatron.md#states) under `megatron`.",
        profile=("sharding",),
        textbook=words.TEXTBOOK_SHARDINGS,
    ),
    _parallel(
        "shards",
        COUNT,
        "Devices that share sharded states, where not all.",
        maximum=MAX_DEVICES,
        usual="all",
        note="With FSDP and by the `textbook` any divisor of the data-parallel devices; under `torchtitan` "
        "[of `data` x `context`](torchtitan.md#groups-of-replicas).",
        textbook=True,
    ),
    _parallel(
        "no_sync",
        FLAG,
        "With FSDP: accumulate under no_sync, with whole gradients on each GPU.",
        usual="`true` under `transformers`, else `false`",
        note="[How](devices.md#fsdp).",
        off="--sync",
        sharding=FSDP,
        profile=("no_sync",),
    ),
    _parallel(
        "gradient_as_bucket_view",
        FLAG,
        "With DDP: gradients are views of its buckets.",
        usual="`false`",
        note="[How](devices.md#ddp).",
        sharding=("ddp",),
        profile=("gradient_as_bucket_view",),
    ),
    _parallel(
        "fsdp_version",
        COUNT,
        "With FSDP: FullyShardedDataParallel or fully_shard.",
        words=("1", "2"),
        usual="2",
        hint="1: FullyShardedDataParallel, 2: fully_shard",
        note="[What differs](devices.md#fsdp1).",
        sharding=FSDP,
        profile=("fsdp_version",),
    ),
    _parallel(
        "reduce_dtype",
        WORD,
        "With FSDP: element type of gradients while they are summed.",
        words=("fp32", *words.HALVES),
        usual="that of the shards; with `fsdp-bf16` and `fsdp-fp16` under `transformers`, `llm-foundry` and "
        "`fms-fsdp` that of the products",
        note="[How](devices.md#precision-under-fsdp).",
        sharding=FSDP,
        profile=("reduce_dtype",),
        profile_words=(words.AS_GATHERED,),
    ),
    _zero(
        "reduce_bucket_size",
        COUNT,
        "ZeRO: gradients averaged at a time, in elements.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        zero="a bucket of 0 elements holds no gradient",
        usual="500000000; under `transformers` with `zero3` the square of the hidden size",
        note="[How](zero.md#switches).",
        sharding=ZERO,
    ),
    _zero(
        "allgather_bucket_size",
        COUNT,
        "ZeRO: accepted, but does not change memory.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="-",
        note="In elements; read with a [warning](zero.md#switches).",
        sharding=ZERO,
    ),
    _zero(
        "sub_group_size",
        COUNT,
        "ZeRO-3: elements that the optimizer updates at a time.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="1000000000",
        note="[How](zero.md#stage-3).",
    ),
    _zero(
        "stage3_max_live_parameters",
        COUNT,
        "ZeRO-3: most elements that are gathered at a time.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="1000000000",
    ),
    _zero(
        "stage3_prefetch_bucket_size",
        COUNT,
        "ZeRO-3: elements gathered ahead of their use.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="50000000; under `transformers` 0.9 times the square of the hidden size",
        note="[How](zero.md#stage-3).",
    ),
    _zero(
        "stage3_param_persistence_threshold",
        COUNT,
        "ZeRO-3: parameters up to this many elements are never sharded.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="100000; under `transformers` 10 times the hidden size",
        note="[How](zero.md#stage-3).",
    ),
    _zero(
        "overlap_comm",
        FLAG,
        "ZeRO: a second bucket is filled while the first is averaged.",
        usual="`false`; with `zero3` `true`",
        note="[How](zero.md#switches).",
        sharding=ZERO,
    ),
    _zero(
        "contiguous_gradients",
        FLAG,
        "ZeRO: gradients are copied into a contiguous bucket.",
        usual="`true`",
        note="`false` is refused.",
        sharding=ZERO,
    ),
    _zero(
        "offload_optimizer_device",
        WORD,
        "ZeRO-3: where an offloaded optimizer lives.",
        words=words.OFFLOAD_DEVICES,
        usual="`cpu`",
        note="[NVMe](zero.md#nvme).",
    ),
    _zero(
        "offload_optimizer_buffer_count",
        COUNT,
        "ZeRO-3: buffers on the host through which an optimizer on NVMe passes.",
        minimum=4,
        maximum=1024,
        usual="4",
    ),
    _zero(
        "offload_parameters_device",
        WORD,
        "ZeRO-3: where offloaded parameters live.",
        words=words.OFFLOAD_DEVICES,
        usual="`cpu`",
        note="[NVMe](zero.md#parameters-on-nvme).",
    ),
    _zero(
        "offload_parameters_buffer_count",
        COUNT,
        "ZeRO-3: buffers on the host, one for each parameter that comes from NVMe.",
        maximum=65536,
        usual="5",
    ),
    _zero(
        "offload_parameters_buffer_size",
        COUNT,
        "ZeRO-3: elements of each of these buffers.",
        maximum=MAX_ELEMENTS,
        usual="100000000",
    ),
    _zero(
        "offload_parameters_max_in_cpu",
        COUNT,
        "ZeRO-3: elements of a device's part that stay on the host.",
        minimum=0,
        maximum=MAX_ELEMENTS,
        usual="1000000000",
    ),
    _parallel(
        "devices_per_node",
        COUNT,
        "GPUs per node, which share the host memory.",
        maximum=MAX_DEVICES,
        usual="all, but at most 8",
        note="What is [offloaded](zero.md#offloading) lives there.",
    ),
    Option(
        "runtime",
        WORD,
        "Training program; `vramplan runtimes` lists them.",
        words=words.RUNTIMES,
        usual="`transformers`",
        note="See [Runtimes](#runtimes).",
        textbook=True,
        section=SUBJECT,
    ),
    Option(
        "host_memory",
        SIZE,
        "Host memory of a node, e.g. '512 GiB'; checked when something is offloaded.",
        rounding="down",
        usual="not checked",
        note="With `offload`: what a node needs is [compared with it](zero.md#offloading); without it a warning says "
        "what that is.",
        slot="host_memory_bytes",
        section=TRAINED,
    ),
    Option(
        "gpu_free",
        SIZE,
        "Free on a shared card before this run, as in '19 GiB'; or now.",
        rounding="down",
        usual="all of it",
        note="`now` is what [`--gpu local`](local-gpu.md) reports.",
        slot="gpu_free_bytes",
        section=SUBJECT,
    ),
    Option(
        "pytorch_version",
        TEXT,
        "PyTorch version (sets the CUDA context size), e.g. 2.1.",
        usual="`null`: today's, with the context of the runtime's profile",
        note="[What a release changes](versions.md); modelled for NVIDIA cards.",
        metavar="X.Y",
        section=SUBJECT,
    ),
    Option(
        "cuda_module_loading",
        WORD,
        "When the CUDA context loads its kernels, as CUDA_MODULE_LOADING.",
        words=("lazy", "eager"),
        any_case=True,
        usual="that of the version: `lazy` since 1.13",
        note="Modelled for NVIDIA cards.",
        metavar="HOW",
        section=SUBJECT,
    ),
    Option(
        "allocator",
        TEXT,
        "Caching allocator: estimated, or simulated with settings as PYTORCH_ALLOC_CONF has them.",
        examples=("estimate", "simulate", "expandable_segments:True"),
        usual="`estimate`; the runtime's",
        note="[Simulated](allocator.md) block by block.",
        metavar="SETTINGS",
        profile=("allocator", "allocator_of_several_nodes"),
        section=TRAINED,
    ),
    Option(
        "reserve",
        SIZE,
        "GPU memory to keep free, e.g. '1 GiB'.",
        minimum=0,
        default=0,
        slot="reserve_bytes",
        absent=0,
        section=SUBJECT,
    ),
    Option(
        "expect",
        WORD,
        "Verdict that a gate asks for.",
        words=("fits", "does-not-fit", "tight"),
        usual="`fits`",
        flags=(),
        textbook=True,
        section=GATES,
    ),
    Option(
        "max_utilization",
        NUMBER,
        "Share of the usable memory that a gate lets pass, above 0 and at most 1.",
        minimum=0,
        maximum=1,
        zero="0 lets nothing pass; give a share of the usable memory, 0.95 for example",
        usual="0.95",
        flags=(),
        textbook=True,
        section=GATES,
    ),
    Option(
        "base_batch_size",
        COUNT,
        "Sequences per optimizer step of the run that --base-lr was found for: gives batch advice.",
        maximum=MAX_COUNT,
        usual="none",
        textbook=True,
        section=ADVICE,
    ),
    Option(
        "base_learning_rate",
        NUMBER,
        "Learning rate at --base-batch-size.",
        minimum=0,
        maximum=MAX_RATE,
        zero="0 trains nothing; a learning rate is more than zero",
        usual="none",
        flags=("--base-lr", "--base-learning-rate"),
        metavar="RATE",
        textbook=True,
        section=ADVICE,
    ),
)


@cache
def _by_key() -> dict[str, Option]:
    return {option.key: option for option in TABLE}


def find(key: str) -> Option:
    """The row of a key such as `parallel.data`. Raises KeyError."""
    return _by_key()[key]


@cache
def inside(group: str = "") -> dict[str, Option]:
    """The rows of a mapping by their names in it: of `parallel`, of `adapter`, or of the job itself."""
    return {option.name: option for option in TABLE if option.group == group}


@cache
def absent() -> dict[str, Any]:
    """What the draft of a job has where every key is left out, by attribute. Not to be changed."""
    return {option.attribute: option.absent for option in TABLE if option.attribute}


@cache
def parameters() -> dict[str, Option]:
    """The rows that have options on the command line, section by section, by the name of the parameter."""
    return {
        option.parameter: option
        for section in SECTIONS
        for option in TABLE
        if option.section == section and option.options
    }


@cache
def profile_fields() -> dict[str, Option]:
    """The fields of runtime profiles that hold defaults for keys, and the rows of the keys."""
    return {field: option for option in TABLE for field in option.profile}
