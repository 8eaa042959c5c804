"""What people type for a word of a key: the names that other programs have for it, each with what it means here.

Case does not matter, and `_`, a space and `-` are the same. What a name does not settle is in its note, which an answer
lists under its assumptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vramplan.tuples import NamedTuple


class SpellingMeaning(NamedTuple):
    """What a spelling stands for."""

    word: str
    also: tuple[tuple[str, str], ...] = ()
    """Other keys that it sets, where the job does not give them."""

    note: str = ""
    """What the spelling leaves open, and how it is read."""

    about: str = ""
    """The key of `also` that the note is about; empty where it is about the key itself."""


def _all(word: str, *spellings: str) -> dict[str, SpellingMeaning]:
    return dict.fromkeys(spellings, SpellingMeaning(word))


NULL = "null"
NOTHING = _all(NULL, "none", "no", "off", "false")

FLOATS = {
    **_all("fp32", "float32", "float", "torch.float32", "torch.float", "f32", "32"),
    **_all("bf16", "bfloat16", "torch.bfloat16", "bf-16"),
    **_all("fp16", "float16", "half", "torch.float16", "torch.half", "f16", "16"),
}
DTYPES = {**FLOATS, **_all("fp8", "float8")}

PRECISIONS = {
    **DTYPES,
    **_all("fp32", "no", "full", "32-true"),
    **_all("bf16", "bf16-mixed"),
    **_all("fp16", "16-mixed", "fp16-mixed"),
    **_all("pure-bf16", "bf16-true"),
    **_all("pure-fp16", "16-true", "fp16-true"),
    "amp": SpellingMeaning("auto", note="autocast in the 16 bits that the GPU is made for"),
    "o0": SpellingMeaning("fp32", note="of Apex"),
    "o1": SpellingMeaning("amp-fp16", note="of Apex, read as autocast"),
    "o2": SpellingMeaning("mixed-fp16", note="of Apex: fp16 weights beside fp32 ones in the optimizer"),
    "o3": SpellingMeaning("pure-fp16", note="of Apex"),
}
"""Of torch, of accelerate's `mixed_precision`, of Lightning's `precision`, and Apex's `opt_level`."""

TRAINERS_RANK = 128  # transformers 5.23.0, trainer_optimizer.py: of GaLore and APOLLO without optim_args

BITSANDBYTES = {
    "adamw-8bit": ("AdamW8bit",),
    "adamw-paged": ("PagedAdamW", "PagedAdamW32bit"),
    "adamw-8bit-paged": ("PagedAdamW8bit",),
    "adamw-32bit": ("AdamW32bit",),
    "lion": ("Lion", "Lion32bit"),
    "lion-8bit": ("Lion8bit",),
    "lion-paged": ("PagedLion", "PagedLion32bit"),
    "lion-8bit-paged": ("PagedLion8bit",),
    "ademamix": ("AdEMAMix", "AdEMAMix32bit"),
    "ademamix-8bit": ("AdEMAMix8bit",),
    "ademamix-paged": ("PagedAdEMAMix", "PagedAdEMAMix32bit"),
    "ademamix-8bit-paged": ("PagedAdEMAMix8bit",),
    "sgd-momentum-32bit": ("SGD32bit",),
    "sgd-momentum-8bit": ("SGD8bit",),
    "rmsprop-32bit": ("RMSprop32bit",),
    "rmsprop-8bit": ("RMSprop8bit",),
    "adagrad-32bit": ("Adagrad32bit",),
    "adagrad-8bit": ("Adagrad8bit",),
    "lamb": ("LAMB", "LAMB32bit"),
    "lars": ("LARS", "LARS32bit"),
}
"""Classes of bitsandbytes.optim, by the word."""
OF_ADAM = {"Adam8bit": "adamw-8bit", "Adam32bit": "adamw-32bit", "PagedAdam": "adamw-paged"}
OF_ADAM |= {"PagedAdam32bit": "adamw-paged", "PagedAdam8bit": "adamw-8bit-paged"}
"""The same of Adam, which has the states of AdamW."""
UNLIKE_ITS_NAME = {"AdamW": "adamw-32bit", "SGD": "sgd-momentum-32bit", "RMSprop": "rmsprop-32bit"}
UNLIKE_ITS_NAME |= {"Adam": "adamw-32bit", "Adagrad": "adagrad-32bit"}
"""The same of classes that have the name of one of torch.optim, and states in fp32."""
NOTES = {
    **dict.fromkeys((*OF_ADAM, "Adam"), "Adam has the states of AdamW"),
    **dict.fromkeys(
        ("AdEMAMix32bit", "PagedAdEMAMix32bit"),
        "counted as AdEMAMix: the class of bitsandbytes 0.50.2 makes one moment too few for its kernel",
    ),
}
"""What is to be said of a class."""


CLASSES = {name: word for word, several in BITSANDBYTES.items() for name in several} | OF_ADAM | UNLIKE_ITS_NAME
"""The words of all these classes."""


def _of_bitsandbytes() -> dict[str, SpellingMeaning]:
    """Its classes as they are imported, and by the name alone where torch.optim has none of it."""
    found: dict[str, SpellingMeaning] = {}
    for name, word in CLASSES.items():
        heads = ("bitsandbytes.optim.", "bnb.optim.", *([""] if name not in UNLIKE_ITS_NAME else ()))
        found |= dict.fromkeys(
            (f"{head}{name}".lower() for head in heads), SpellingMeaning(word, note=NOTES.get(name, ""))
        )
    return found


FUSED = (("optimizer_implementation", "fused"),)
IN_BACKWARD = (("optimizer_in_backward", "true"),)
FOREACH = (("optimizer_implementation", "foreach"),)
OPTIMIZERS = {
    "adamw-torch": SpellingMeaning("adamw", FOREACH),  # the Trainer asks torch.optim for nothing then: foreach on a GPU
    "adamw-torch-fused": SpellingMeaning("adamw", FUSED),
    "adamw-fused": SpellingMeaning("adamw", FUSED),
    "fused-adamw": SpellingMeaning("adamw", FUSED),
    "fused-adam": SpellingMeaning("adam", FUSED),
    **_of_bitsandbytes(),
    **_all("adamw-8bit", "adamw-bnb-8bit", "8bit-adamw", "bnb-adamw-8bit"),
    **_all("adamw-32bit", "adamw-bnb-32bit", "adamw-bnb", "bnb-adamw"),
    **_all("lion-8bit", "8bit-lion", "lion-bnb-8bit", "bnb-lion-8bit"),
    **_all("lion-8bit-paged", "paged-lion-8bit", "lion-paged-8bit"),
    **_all("lion-paged", "paged-lion", "paged-lion-32bit", "lion-paged-32bit"),
    **_all("ademamix", "ademamix-32bit"),
    **_all("ademamix-8bit", "8bit-ademamix"),
    **_all("ademamix-8bit-paged", "paged-ademamix-8bit", "ademamix-paged-8bit"),
    **_all("ademamix-paged", "paged-ademamix", "paged-ademamix-32bit", "ademamix-paged-32bit"),
    **_all("rmsprop-32bit", "rmsprop-bnb", "rmsprop-bnb-32bit"),
    **_all("rmsprop-8bit", "rmsprop-bnb-8bit"),
    **_all("adagrad-32bit", "adagrad-bnb", "adagrad-bnb-32bit"),
    **_all("adagrad-8bit", "adagrad-bnb-8bit"),
    **_all("sgd-momentum-32bit", "sgd-32bit", "sgd-bnb-32bit"),
    **_all("sgd-momentum-8bit", "sgd-8bit", "sgd-bnb-8bit"),
    **_all("lamb", "lamb-32bit"),
    **_all("lars", "lars-32bit"),
    **_all("adalomo", "ada-lomo"),
    **_all("adamw-8bit-torchao", "adamw-torch-8bit", "ao-adamw-8bit", "torchao-adamw-8bit"),
    **_all("adamw-4bit-torchao", "adamw-torch-4bit", "ao-adamw-4bit", "torchao-adamw-4bit", "adamw-4bit"),
    **_all("adamw-fp8-torchao", "ao-adamw-fp8", "torchao-adamw-fp8", "adamw-fp8"),
    **_all("adamw-8bit-paged", "paged-adamw-8bit", "adamw-paged-8bit"),
    **_all("adamw-paged", "paged-adamw", "paged-adamw-32bit"),
    **_all("lion", "lion-32bit"),
    **_all("sgd-momentum", "momentum"),
    "adamw-apex-fused": SpellingMeaning("adamw", FUSED),
    **_all("adamw", "torch.optim.adamw"),
    **_all("adam", "torch.optim.adam"),
    **_all("sgd", "torch.optim.sgd"),
    **{
        spelling: SpellingMeaning(word)
        for word in ("rmsprop", "adagrad", "nadam", "radam", "adamax", "adadelta", "asgd")
        for spelling in (word, f"torch.optim.{word}")
    },
    **{
        spelling: SpellingMeaning(f"schedule-free-{word}")
        for word in ("adamw", "sgd", "radam")
        for spelling in (
            *(f"schedulefree-{word}", f"{word}-schedule-free", f"{word}-schedulefree", f"{word}schedulefree"),
            f"schedulefree.{word}schedulefree",
        )
    },
    "schedule-free": SpellingMeaning("schedule-free-adamw"),
    **_all("stable-adamw", "stableadamw", "optimi.stableadamw"),
    **_all("adamw-optimi", "optimi-adamw", "optimi.adamw"),
    **_all("grokadamw", "grok-adamw"),
    **_all("came", "came-pytorch", "came-pytorch.came"),
    **_all("prodigy", "prodigyopt", "prodigyopt.prodigy"),
    **_all("adopt", "adopt-adamw"),
    "adam-8bit": SpellingMeaning("adamw-8bit", note=NOTES["Adam"]),
    "adam-32bit": SpellingMeaning("adamw-32bit", note=NOTES["Adam"]),
    **{
        spelling: SpellingMeaning(
            f"{word}:{TRAINERS_RANK}",
            IN_BACKWARD if spelling.endswith("layerwise") else (),
            note=f"rank {TRAINERS_RANK}, that of Hugging Face's Trainer",
        )
        for word, spellings in (
            ("galore-adamw", ("galore-adamw", "galore", "galore-adamw-layerwise")),
            ("galore-adamw-8bit", ("galore-adamw-8bit", "galore-adamw-8bit-layerwise", "galore-8bit")),
            ("galore-adafactor", ("galore-adafactor",)),
            ("apollo-adamw", ("apollo-adamw", "apollo", "apollo-adamw-layerwise")),
        )
        for spelling in spellings
    },
    **dict.fromkeys(
        ("apollo-mini", "apollo-adamw-mini"),
        SpellingMeaning("apollo-adamw:1", note="APOLLO-Mini is APOLLO of rank 1, whose one scale is of a whole tensor"),
    ),
}
"""Names of `optim` in Hugging Face's TrainingArguments, and of the classes of bitsandbytes."""

ATTENTIONS = {
    **_all("flash", "flash-attention", "flash-attention-2", "flash-attn", "flash-attn-2", "fa2"),
    **_all("efficient", "mem-efficient", "memory-efficient", "efficient-attention", "xformers"),
    **dict.fromkeys(
        ("flash-attention-3", "flash-attn-3", "flash-3", "fa3", "flash-attention-4", "flash-attn-4", "flash-4", "fa4"),
        SpellingMeaning(
            "flash", note="counted as FlashAttention 2, which keeps the same tensors, needs more scratch and is slower"
        ),
    ),
    **dict.fromkeys(
        ("flex", "flex-attention", "cudnn", "cudnn-attention"),
        SpellingMeaning("flash", note="counted as FlashAttention 2, which keeps the same tensors"),
    ),
}

OFFLOADS = {
    **_all("parameters", "params", "param", "weights", "model"),
    **_all("gradients", "grads", "gradient"),
    **_all("optimizer", "optim", "states", "optimizer-states"),
    **_all("activations", "acts", "activation"),
}
"""What is on the host, as programs name it."""


CHECKPOINTINGS = {
    **_all("full", "true", "yes", "on", "all"),
    **_all("none", "false", "no", "off"),
    **_all(NULL, "auto"),
}
"""`gradient_checkpointing: true` is a checkpoint around every block."""

LOSSES = {
    **_all("standard", "cross-entropy", "ce", "causal-lm", "causallm", "text-generation", "lm"),
    **_all("classification", "text-classification", "sequence-classification", "seq-cls", "sequence-cls", "cls"),
    **dict.fromkeys(
        ("token-classification", "ner", "question-answering", "qa", "regression"),
        SpellingMeaning(
            "classification", note="counted with the head of a classifier of texts, whose logits are as few"
        ),
    ),
    **_all("reward", "reward-modeling", "reward-modelling", "rm"),
    **dict.fromkeys(
        ("sigmoid", "hinge", "ipo"), SpellingMeaning("dpo", note="a loss of pairs, which takes the memory of DPO's")
    ),
    "liger": SpellingMeaning("fused"),
    "fused-linear-cross-entropy": SpellingMeaning("fused"),
}

QUANTIZATIONS = {
    **NOTHING,
    **dict.fromkeys(
        ("4bit", "4-bit", "4", "bnb-4bit", "load-in-4bit"),
        SpellingMeaning("nf4", note="4 bits without double quantization; bitsandbytes' fp4 takes the same memory"),
    ),
    **dict.fromkeys(("fp4", "bnb-fp4"), SpellingMeaning("nf4", note="fp4 of bitsandbytes takes the memory of nf4")),
    **_all("nf4", "bnb-nf4", "bnb-nf4-4bit", "bnb.nf4"),
    **_all("nf4-double", "nf4-dq", "nf4-double-quant", "double-quant", "bnb.nf4-dq"),
    **dict.fromkeys(
        ("8bit", "8-bit", "8"), SpellingMeaning("int8", note="8 bits are those of bitsandbytes' LLM.int8()")
    ),
    **_all("int8", "llm.int8", "llm-int8", "bnb-8bit", "load-in-8bit"),
    **_all("gptq-int4", "gptq", "gptq-4bit"),
    **dict.fromkeys(
        ("awq-int4", "awq", "awq-4bit"),
        SpellingMeaning("gptq-int4", note="weights of AWQ are packed as those of GPTQ; its kernels were never traced"),
    ),
    **dict.fromkeys(
        ("aqlm-int2", "aqlm", "aqlm-2bit"),
        SpellingMeaning("gptq-int4", note="AQLM's 2 bits counted as GPTQ's 4, too many; its kernels were never traced"),
    ),
}

QAT = {
    **NOTHING,
    **_all("fp8", "float8", "float8-e4m3fn", "torch.float8-e4m3fn", "e4m3"),
    **_all("int4", "torch.int4"),
    **_all("int8", "torch.int8"),
    **_all("mxfp4", "mx-fp4", "fp4", "torch.float4-e2m1fn-x2"),
    **_all("nvfp4", "nv-fp4"),
}
"""Element types of torchao's configurations of fake quantization."""
QAT_ACTIVATIONS = {text: one for text, one in QAT.items() if one.word != "int4"}

ADAPTERS = {
    **NOTHING,
    **_all(NULL, "full", "full-parameter"),
    "qlora": SpellingMeaning(
        "lora",
        (("quantization", "nf4"),),
        "QLoRA: LoRA over nf4; with double quantization: nf4-double",
        about="quantization",
    ),
    **dict.fromkeys(
        ("rslora", "rs-lora"), SpellingMeaning("lora", note="rsLoRA is LoRA with another scale (use_rslora)")
    ),
    "olora": SpellingMeaning("lora", note="OLoRA is LoRA initialized with factors of the weights"),
    "eva": SpellingMeaning("lora", note="EVA is LoRA with other ranks in other layers; counted with one rank"),
    **{
        word: SpellingMeaning("lora", note=f"{name} is LoRA whose first product is subtracted from the frozen weights")
        for word, name in (("pissa", "PiSSA"), ("corda", "CorDA"))
    },
    "loftq": SpellingMeaning(
        "lora",
        note="LoftQ is LoRA initialized with the error of quantization, which is a key of its own",
    ),
    **dict.fromkeys(
        ("lora-plus", "loraplus", "lora+"), SpellingMeaning("lora", note="LoRA+ is LoRA with two learning rates")
    ),
    **dict.fromkeys(
        ("lora-fa", "lorafa"),
        SpellingMeaning(
            "lora", (("frozen", "lora_A"),), "LoRA-FA is LoRA whose first matrix is frozen", about="frozen"
        ),
    ),
    **_all("ln-tuning", "lntuning", "layernorm-tuning", "norm-tuning"),
    **_all("trainable-tokens", "trainable-token-indices"),
    **_all("miss", "bone"),
    **_all("adalora", "ada-lora"),
    **_all("randlora", "rand-lora"),
    **_all("fourierft", "fourier-ft"),
}
"""Beginnings and scales of LoRA that its memory does not depend on, and other ways to write a kind."""

BIASES = _all(
    "targets",
    *("lora-only", "oft-only", "boft-only", "hra-only", "vera-only", "randlora-only", "fourier-only", "miss-only"),
)
"""PEFT's words for the biases of the layers that have the adapter, of each kind its own."""

TARGETS = _all("all-linear", "all")
"""LLaMA-Factory's word for every linear layer."""

PARTS = {
    **_all(
        "vision_encoder", "vision", "visual", "vision-tower", "vision-model", "vision-encoder", "vit", "image-encoder"
    ),
    **_all("language_model", "language", "language-model", "llm", "text-model"),
    **_all("projector", "aligner", "merger", "connector", "multi-modal-projector", "mm-projector"),
}
"""What programs that train models of images and text call the parts of one."""

SHARDINGS = {
    **{
        spelling: SpellingMeaning(f"zero{stage}")
        for stage in (1, 2, 3)
        for spelling in (
            *(f"zero-{stage}", f"stage{stage}", f"stage-{stage}", f"zero-stage-{stage}", f"deepspeed-{stage}"),
            *(f"z{stage}", f"deepspeed-zero{stage}", f"deepspeed-zero-{stage}", f"deepspeed-stage-{stage}"),
        )
    },
    **{
        f"{begin}{stage}{end}": SpellingMeaning(
            f"zero{stage}",
            (("offload", what),),
            note=f"with the offloading of DeepSpeed's example for stage {stage}",
            about="offload",
        )
        for stage, what in ((2, "optimizer,gradients"), (3, "parameters,gradients,optimizer"))
        for begin in ("zero", "zero-", "stage", "stage-", "zero-stage-", "deepspeed-zero", "deepspeed-zero-", "z")
        for end in ("-offload", "+offload", "-offloading", "-cpu-offload")
    },
    **dict.fromkeys(
        ("fsdp-offload", "fsdp-cpu-offload", "fsdp+offload", "full-shard-offload"),
        SpellingMeaning("fsdp", (("offload", "parameters,gradients,optimizer"),)),
    ),
    **{
        spelling: SpellingMeaning("fsdp", (("parallel.fsdp_version", version),))
        for version in ("1", "2")
        for spelling in (f"fsdp{version}", f"fsdp-{version}", f"fsdp-v{version}", f"fsdpv{version}")
    },
    "fully-shard": SpellingMeaning("fsdp", (("parallel.fsdp_version", "2"),)),
    **_all("fsdp", "full-shard", "full", "fsdp-full-shard"),
    **_all("fsdp-grad-op", "shard-grad-op", "grad-op"),
    **_all("ddp", "no-shard", "zero0", "zero-0", "stage0", "distributed-data-parallel"),
}
"""Stages of DeepSpeed, and strategies of FSDP as torch and accelerate name them."""

CONTEXT_COMMUNICATIONS = {
    **_all("ring", "p2p", "ring-attention", "alltoall"),
    **_all("all-gather", "allgather"),
}
"""Of Megatron's `cp_comm_type`, and of torch's context parallelism, whose ring is `alltoall`."""

LIGER_KERNELS = {
    **_all("rms-norm", "rmsnorm", "norm"),
    **_all("glu", "swiglu", "geglu", "glu-activation"),
    **_all("rope", "rotary"),
}
"""Switches of Liger's `apply_liger_kernel_to_*`, and of Axolotl's plugin."""

UNPACKED = "nf4, int8 or gptq-int4; weights of other libraries are packed otherwise, and not modelled"
OPEN = {
    "hybrid-shard": "hsdp:N, with N the GPUs that share the states: hsdp:8 for nodes of 8",
    "hsdp": "hsdp:N, with N the GPUs that share the states: hsdp:8 for nodes of 8",
    "fsdp-hybrid-shard": "hsdp:N, with N the GPUs that share the states: hsdp:8 for nodes of 8",
    "hybrid": "hsdp:N, with N the GPUs that share the states: hsdp:8 for nodes of 8",
    **dict.fromkeys(
        ("lamb-8bit", "lamb8bit"), "lamb: bitsandbytes has no kernel for states of LAMB in 8 bits, which LAMB8bit calls"
    ),
    **dict.fromkeys(
        ("lars-8bit", "lars8bit"), "lars: bitsandbytes has no kernel for states of LARS in 8 bits, which LARS8bit calls"
    ),
    "galore-adafactor-layerwise": (
        f"galore-adafactor:{TRAINERS_RANK} and --optimizer-in-backward: the Trainer makes Adafactor of a rate and "
        "relative steps then, which galore-torch refuses"
    ),
    "freeze": "no adapter, and --frozen names the parameters that are not trained",
    "int4": "nf4 of bitsandbytes or gptq-int4",
    **dict.fromkeys(
        (
            *("shira", "c3a", "waveft", "delora", "gralora", "road", "vblora", "xlora", "x-lora", "poly"),
            *("hira", "pvera", "beft", "lily", "adamss", "tinylora", "psoft", "osf", "cpt"),
            *("llama-adapter", "adaption-prompt", "bitfit", "adapter"),
        ),
        "not modelled; near in memory is lora, or miss, whose rank gives as many weights",
    ),
    **dict.fromkeys(("hqq", "eetq", "quanto", "torchao", "aqt", "higgs", "vptq", "gguf"), UNPACKED),
    **dict.fromkeys(("mxfp4", "fp8-weights"), "leave it out: such a checkpoint is trained dequantized, in 16 bits"),
    **dict.fromkeys(
        ("dp", "data-parallel", "dataparallel"), "ddp, a process for each GPU; torch.nn.DataParallel is not modelled"
    ),
    **dict.fromkeys(
        ("ulysses", "a2a"),
        "exchanging heads is DeepSpeed's: --sharding zero3 --context N; under other programs it is not modelled",
    ),
    "zero-infinity": "zero3, with --offload optimizer,parameters",
    **dict.fromkeys(("zero++", "zeropp", "zero-plus-plus"), "zero3; what ZeRO++ adds to it is not modelled"),
    **dict.fromkeys(
        ("contrastive", "info-nce", "infonce", "triplet", "mnrl", "multiple-negatives-ranking", "cosent", "simcse"),
        "classification: a model of embeddings keeps as much, and a pair of texts counts as two of --micro-batch",
    ),
    "mics": "hsdp:N of FSDP, or zero3; DeepSpeed's MiCS is not modelled",
    "offload": "--offload parameters,optimizer",
    **dict.fromkeys(("cpu", "host", "nvme", "disk"), "what is there: --offload optimizer, or parameters,optimizer"),
    **dict.fromkeys(
        ("gdpo", "rloo", "ppo", "gkd", "online-dpo", "ebft"),
        "not modelled: it samples answers beside training; of such losses grpo is modelled, and dpo, kto, orpo, cpo, "
        "simpo and reward",
    ),
}
"""Spellings that need one more word, and what is to be written."""

RUNTIMES = {
    **_all("transformers", "hf", "huggingface", "hugging-face", "trainer", "hf-trainer", "trl", "accelerate", "peft"),
    **_all("pytorch", "torch"),
    **_all("litgpt", "lit-gpt"),
    **_all("megatron", "megatron-lm", "megatron-core"),
    **_all("llm.c", "llmc", "llm-c"),
    **_all("torchtitan", "titan"),
    **_all("torchtune", "tune"),
}

OF_FILES = "its files are read, as in `vramplan fit {}`; its loop is that of --runtime transformers"
OTHER_RUNTIMES = {
    "axolotl": OF_FILES.format("axolotl.yaml"),
    **dict.fromkeys(("llama-factory", "llamafactory"), OF_FILES.format("llama_factory.yaml")),
    **dict.fromkeys(("open-instruct", "alignment-handbook", "autotrain"), OF_FILES.format("recipe.yaml")),
    **dict.fromkeys(
        ("lightning", "pytorch-lightning", "fabric", "ignite", "timm", "fastai"),
        "its loop is one of plain PyTorch: --runtime pytorch; LitGPT's models are --runtime litgpt",
    ),
    **dict.fromkeys(("composer", "mosaicml"), "MosaicML's LLM Foundry is --runtime llm-foundry"),
    **dict.fromkeys(
        ("nemo", "nemo-framework", "megatron-bridge", "gpt-neox", "nanotron", "picotron", "colossalai"),
        "models that are split over GPUs are --runtime megatron; NeMo's files are read, as in `vramplan fit nemo.yaml`",
    ),
    "megatron-deepspeed": "with ZeRO it is --runtime deepspeed, without it --runtime megatron",
    **dict.fromkeys(
        ("ms-swift", "swift", "xtuner", "h2o", "h2o-llmstudio", "llmstudio"),
        "it runs the loop of Transformers: --runtime transformers, with the options of what it trains",
    ),
    **dict.fromkeys(
        ("verl", "openrlhf", "nemo-rl", "skyrl", "areal"),
        "of training that samples answers the step of TRL's GRPO is modelled, as --loss grpo",
    ),
    **dict.fromkeys(
        ("jax", "flax", "maxtext", "keras", "tensorflow", "tf", "mlx", "mindspore", "paddle", "paddlenlp"),
        "PyTorch is modelled, and no other framework",
    ),
}
"""Programs that are no runtime, and what to do."""


def bare(text: str) -> str:
    """A spelling as the tables have it: small letters, and `-` between its parts."""
    return re.sub(r"[\s_]+", "-", text.strip().lower())


def meaning(text: str, words: tuple[str, ...], spellings: Mapping[str, SpellingMeaning]) -> SpellingMeaning | None:
    """What a text means among the words and the spellings of a key; None if it is none of them.

    `Every:4` is `every:4`: the number behind the colon is kept.
    """
    if text in words:
        return None
    small = bare(text)
    if small in words:
        return SpellingMeaning(small)
    head, colon, rest = text.partition(":")
    if not colon:
        return spellings.get(small)
    known = bare(head)
    if head != known and any(word.startswith(f"{known}:") for word in words):
        return SpellingMeaning(f"{known}:{rest}")
    return None
