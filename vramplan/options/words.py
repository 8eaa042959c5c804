"""The words that keys of a job take, where more than the table names them, and what is known of a word itself."""

from __future__ import annotations

import re

from vramplan.engines import FOLDERS

CASE_KEYS = (
    *("measured", "use", "trace", "source", "confidence", "inferred", "missing", "ladder", "environment", "notes"),
)
"""The keys that only a validation case has; they go to `ResolvedJob.case` as they are."""

TEXTBOOK = "textbook"  # the runtime of equations
EVERY_RUNTIME = "all"  # of `plan`: each training program that has the model
EVERY_GPU = "all"  # of `compare`: each GPU whose rent is published
TEXTBOOK_CHECKPOINTINGS = ("none", "full", "sqrt", "every:K")  # the rows of the table that texts print
TEXTBOOK_OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop", "lion", "lamb", "lars")
TEXTBOOK_SHARDINGS = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op")

CHOSEN = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size")
"""Counts that are chosen or follow where they are left out, which DeepSpeed's `auto` is for."""

AUTO = "auto"  # of precision: what the GPU can do
TF32 = "tf32"  # fp32 whose products run on tensor cores
PRECISIONS = {
    "fp32": "fp32",
    TF32: "fp32",
    "bf16": "amp-bf16",
    "fp16": "amp-fp16",
    **{name: name for name in ("amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16")},
    "fsdp-bf16": "fsdp-bf16",
    "fsdp-fp16": "fsdp-fp16",
    "fsdp-fp8": "fsdp-fp8",
    "fp8": "fp8",
}
"""Modelled precisions and the names that they resolve to."""

CELLS = ("weight_dtype", "gradient_dtype", "master_dtype", "optimizer_state_dtype", "compute_dtype")
CELL_WORDS = ("fp32", "fp16", "bf16", "fp8", "int8", "none")
HALVES = ("bf16", "fp16")

FLAT_BITSANDBYTES = (
    *("adamw-8bit", "adamw-paged", "adamw-8bit-paged", "adamw-32bit"),
    *("lion", "lion-8bit", "lion-paged", "lion-8bit-paged"),
    *("ademamix", "ademamix-8bit", "ademamix-paged", "ademamix-8bit-paged"),
    *("sgd-momentum-32bit", "sgd-momentum-8bit", "rmsprop-32bit", "rmsprop-8bit", "adagrad-32bit", "adagrad-8bit"),
)
BITSANDBYTES_OPTIMIZERS = (*FLAT_BITSANDBYTES, "lamb", "lars")
WITHOUT_BF16 = ("sgd-momentum", "rmsprop", "adagrad", "lars")
"""Of bitsandbytes those whose kernels with fp32 states take no gradients in bf16 (backends/cuda/ops.py)."""
TORCHAO_OPTIMIZERS = ("adamw-8bit-torchao", "adamw-4bit-torchao", "adamw-fp8-torchao")
FLAT_OPTIMIZERS = (*FLAT_BITSANDBYTES, *TORCHAO_OPTIMIZERS)
VECTOR_OPTIMIZERS = ("adafactor", "lamb", "lars")  # to which a flat part of a model is one vector
"""Of both those that step element by element or block by block, and so a flat part of a model as well."""
LATER_TORCH_OPTIMIZERS = ("adagrad", "nadam", "radam", "adamax", "adadelta", "asgd")
TORCH_OPTIMIZERS = (
    *("adamw", "adam", "sgd", "sgd-momentum", "rmsprop", "adafactor", "muon"),
    *LATER_TORCH_OPTIMIZERS,
)
SCHEDULE_FREE_OPTIMIZERS = ("schedule-free-adamw", "schedule-free-sgd", "schedule-free-radam")
OPTIMI_OPTIMIZERS = ("stable-adamw", "adamw-optimi")
AXOLOTL_OPTIMIZERS = ("adopt", "adamc")
OTHER_OPTIMIZERS = (
    *(*SCHEDULE_FREE_OPTIMIZERS, *OPTIMI_OPTIMIZERS, *AXOLOTL_OPTIMIZERS),
    *("grokadamw", "came", "prodigy"),
)
"""Of small libraries, each of which is one of `MAKERS`."""
MAKERS = {
    **dict.fromkeys(SCHEDULE_FREE_OPTIMIZERS, "schedulefree"),
    **dict.fromkeys(OPTIMI_OPTIMIZERS, "torch-optimi"),
    **dict.fromkeys(AXOLOTL_OPTIMIZERS, "Axolotl"),
    "grokadamw": "grokadamw",
    "came": "came-pytorch",
    "prodigy": "prodigyopt",
}
BY_PART_OPTIMIZERS = (*FLAT_OPTIMIZERS, *VECTOR_OPTIMIZERS, *LATER_TORCH_OPTIMIZERS, *OTHER_OPTIMIZERS)
"""Those to which a flat part of a model may be given, beside those of `OVER_A_MASTER_COPY`."""
STATES_ON_HOST = ("grokadamw",)  # between steps
LOOPS_ALONE = ("grokadamw", "came", "prodigy")  # which have one step: one weight after the other
GALORE = "galore-adamw:RANK"
LOW_RANK_OPTIMIZERS = (
    GALORE,
    "galore-adamw-8bit:RANK",
    "galore-adafactor:RANK",
    "apollo-adamw:RANK",
)  # which project gradients of linear layers
ADAM_MINI = "adam-mini"
PRODIGY = "prodigy"
MINDS_WEIGHTS = (*WITHOUT_BF16, "adalomo", PRODIGY)
"""Those that do not step every weight: vramplan/job/stepping/step_kernels.py."""
LOMO, ADALOMO = STEPPED_IN_BACKWARD = ("lomo", "adalomo")  # which have no other step than that of their hooks
OPTIMIZERS = (
    *(*TORCH_OPTIMIZERS, *BITSANDBYTES_OPTIMIZERS, *STEPPED_IN_BACKWARD, *LOW_RANK_OPTIMIZERS),
    *(ADAM_MINI, *TORCHAO_OPTIMIZERS, *OTHER_OPTIMIZERS),
)
BACKWARD, NEXT_FORWARD = HELD_UNTIL = ("backward", "next-forward")
AFTER_STEP, BEFORE_BACKWARD = ZEROING = ("after-step", "before-backward")  # where a loop calls zero_grad
OF_TRANSFORMERS = "transformers"  # a class of Transformers, which has one Adafactor of its own
IMPLEMENTATIONS = ("foreach", "fused", "for-loop", OF_TRANSFORMERS)
NEVER_FUSED = (
    *("rmsprop", "adafactor", "nadam", "radam", "adamax", "adadelta", "asgd"),
    *(*SCHEDULE_FREE_OPTIMIZERS, *AXOLOTL_OPTIMIZERS),
)
"""Their libraries have no fused kernel for them."""
FUSED_BY_ITSELF = OPTIMI_OPTIMIZERS  # Triton's kernels where nobody says how they step
FUSED_BY_RUNTIME = ("adamw", "adam", "muon")  # where a runtime says how they step; muon's AdamW, that is
FP32_STATES = ("adamw", "adam", "sgd-momentum", "rmsprop")  # of bitsandbytes, whatever the weights are
STATELESS = ("sgd", LOMO)  # they keep nothing from step to step
STATES_IN_FP32 = ("came",)  # whatever the weights are
OWN_STATES = (*BITSANDBYTES_OPTIMIZERS, *TORCHAO_OPTIMIZERS, *STATES_IN_FP32, "sgd", *STEPPED_IN_BACKWARD)
"""Those whose states do not follow the weights."""
OVER_A_MASTER_COPY = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop")  # modelled with mixed-* and fp8

OPTIMAL = "optimal"
LLMC_CHECKPOINTINGS = ("gelu", "gelu-norms")  # the options -r 1 and -r 2 of llm.c
CHECKPOINTINGS = (
    *("none", "full", "sqrt", "every:K", "layers:[[0,6],[7,13]]", "optimal"),
    *("selective", "selective-op", "selective-layer:K"),
    *LLMC_CHECKPOINTINGS,
)

HALF_LOGITS = "half-logits"
OVER_LOGITS = "dpo-logits"  # DPO of releases of TRL that made whole logits
REFERENCED_LOSSES = ("dpo", OVER_LOGITS, "kto")  # which compare with a reference model
PAIR_LOSSES = ("orpo", "cpo", "simpo")  # over the logits of pairs
REWARD = "reward"
POLICY = "grpo"  # TRL's over completions that a policy has sampled
PREFERENCE_LOSSES = (*REFERENCED_LOSSES, *PAIR_LOSSES, REWARD, POLICY)  # TRL's, of preferences and rewards
BY_SIZE = "fused-chunks:GIB"  # Unsloth's
TILED = "tiled"  # TRL's of supervised training, by the head of its preferences
LM_LOSSES = (HALF_LOGITS, "chunked:N", "fused", BY_SIZE, TILED, *REFERENCED_LOSSES, *PAIR_LOSSES, POLICY)
"""Over the head of a causal language model."""

LOSSES = ("standard", "fp32-logits", *LM_LOSSES, "classification", REWARD, "vocab-parallel")
"""The last is what Megatron does anyway, and torchtitan by default."""

RUNTIMES = (*FOLDERS, TEXTBOOK)

TRAINED_BLOCKS = ("all", "lisa:N", "badam")  # how many of a model are trained at a time
SPLITS = ("tensor", "pipeline", "context")  # a replica of the model has so many devices
REVERSE_KL = "reverse-kl"
DISTILLATIONS = ("forward-kl", REVERSE_KL, "symmetric-kl", "jsd")  # of a student from its teacher
BIASES = ("none", "all", "targets")  # of a model, beside an adapter
LORA_KERNELS = ("mlp", "qkv", "o")  # of which layers the functions of Axolotl are
LIGER_KERNELS = ("rms-norm", "glu", "rope")  # that replace modules of a model; its loss is the loss `fused`

EMBEDDED_PROMPTS = ("prompt-tuning", "p-tuning")  # adapters that put virtual tokens before those of a text
PREFIX = "prefix-tuning"  # and the one that puts keys and values before those of every block
USUAL_VIRTUAL_TOKENS = 20
VIRTUAL_TOKENS = (*EMBEDDED_PROMPTS, PREFIX)
ADAPTERS = (
    *("lora", "dora", "ia3", "oft"),
    *("adalora", "vera", "loha", "lokr", "miss", "boft", "hra", "fourierft", "randlora"),
    *("ln-tuning", "trainable-tokens"),
    *VIRTUAL_TOKENS,
)
QAT_WEIGHTS = ("int4", "int8", "int4-mslk", "int4-mslk-fp8", "int4-tinygemm", "fp8", "mxfp4", "nvfp4")
QAT_ACTIVATIONS = ("int8", "fp8", "mxfp4", "nvfp4")
OFFLOADS = ("parameters", "gradients", "optimizer", "activations")
OFFLOAD_DEVICES = ("cpu", "nvme")
FSDP_UNITS = ("blocks", "embedding", "head", "embedding-and-head", "embedding-and-norm-head")

SHARDINGS = (
    *("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp:N"),
    "distributed-optimizer",
)
DEVICES_PER_NODE = 8  # where a job does not say: of an HGX board, and of the DGX and p4d, p5, a3, ND nodes around it
OF_SEVERAL = {"reduce_dtype"}  # defaults of a runtime that jobs on one device do not take
AS_GATHERED = "as-gathered"
"""Of reduce_dtype in a runtime profile: gradients are summed in the type of the parameters that are gathered."""

SCHEDULES = ("1f1b", "gpipe", "interleaved:V")
PARAMETER_DRIVE_KEYS = (
    *("offload_parameters_device", "offload_parameters_buffer_count", "offload_parameters_buffer_size"),
    "offload_parameters_max_in_cpu",
)

FREE_NOW = "now"  # of gpu_free: what the tool that is asked for `gpu: local` reports

UNKNOWNS = ("sequence", "micro-batch", "rank", "layers")  # of --max: what is solved for

METRICS = ("allocated", "reserved", "device", "unspecified")
OUTCOMES = ("fits", "oom")
USES = ("peak", "fit", "mfu", "rate")
CONFIDENCES = ("high", "medium", "low")
MEASURED_RATES = ("tokens_per_second", "samples_per_second", "step_seconds", "tflops_per_device", "mfu")
MEASURED_KEYS = ("peak_bytes", "metric", "stage", "outcome", "sum_over_devices_bytes", *MEASURED_RATES)

GPU_KEYS = (
    *("name", "memory", "capacity_basis", "title", "architecture", "compute_capability", "bf16", "flash_attention"),
    *("memory_bandwidth", "note", "fp32", "fp16", "bf16_rate", "fp8_rate", "link_bandwidth", "tdp"),
)
CAPACITY_BASES = ("visible", "nominal", "given")


def over_master_copy(precision: str) -> bool:
    """Whether a precision has half-precision weights and steps an fp32 copy of them."""
    return precision.startswith("mixed-") or precision == "fp8"


def kernel_of(optimizer: str) -> str:
    """`lion-8bit-paged` -> `lion`: what an optimizer of bitsandbytes steps, whatever its states are."""
    return re.sub("-(8bit|32bit|paged)", "", optimizer) if optimizer in BITSANDBYTES_OPTIMIZERS else optimizer


def pattern_word(text: str) -> str:
    """`every:4` -> `every:K`: the known word that a parametrised value belongs to, or the text itself."""
    return pattern_of(text, (*CHECKPOINTINGS, *OPTIMIZERS, *LOSSES, *SHARDINGS, *SCHEDULES, *TRAINED_BLOCKS))


def pattern_of(text: str, words: tuple[str, ...]) -> str:
    """The same among `words`."""
    head, colon, _ = text.partition(":")
    if not colon:
        return text
    return next((word for word in words if word.startswith(f"{head}:")), text)
