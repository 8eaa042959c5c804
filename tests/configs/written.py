"""Jobs that each program has settings for, as `vramplan fit` takes them; for the tests of what is written."""

from __future__ import annotations

LLAMA = ("-m", "llama-3.2-1b", "-g", "a100-80gb", "--micro-batch", "1")
OF_THE_TRAINER = (
    (*LLAMA, "--gpus", "8", "--fsdp", "--checkpointing", "full"),
    (*LLAMA, "--gpus", "8", "--sharding", "fsdp-grad-op", "--fsdp-version", "1", "--checkpointing", "none"),
    (*LLAMA, "--gpus", "8", "--zero", "3", "--offload", "optimizer,gradients,parameters", "--checkpointing", "full"),
    (*LLAMA, "--qlora", "--rank", "16", "--targets", "all-linear", "--checkpointing", "full", "--reserve", "1 GiB"),
    (*LLAMA, "--precision", "pure-bf16", "--optimizer", "adamw-8bit", "--loss", "fused", "--checkpointing", "none"),
    (*LLAMA, "--gpus", "2", "--precision", "fp32", "--gradient-accumulation-steps", "4", "--checkpointing", "none"),
)
JOBS: dict[str, tuple[tuple[str, ...], ...]] = {
    "trl": (
        *OF_THE_TRAINER,
        (*LLAMA, "--loss", "dpo", "--lora", "--checkpointing", "full"),
        (*LLAMA, "--optimizer", "schedule-free-adamw", "--precision", "pure-bf16", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "adalomo", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "paged_ademamix_8bit", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "apollo_adamw_layerwise", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "galore_adafactor", "--precision", "pure-bf16", "--checkpointing", "none"),
        (*LLAMA, "--precision", "amp-bf16", "--eval-batch-size", "2", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "sgd-momentum", "--precision", "pure-bf16", "--checkpointing", "none"),
    ),
    "training-arguments": OF_THE_TRAINER[:3],
    "accelerate": (
        *OF_THE_TRAINER[:4],
        (*LLAMA, "--gpus", "8", "--sharding", "hsdp:4", "--checkpointing", "full"),
        (*LLAMA, "--gpus", "8", "--zero", "2", "--reduce-bucket-size", "1000000", "--checkpointing", "none"),
    ),
    "deepspeed": (
        OF_THE_TRAINER[2],
        (*LLAMA, "--gpus", "8", "--zero", "2", "--runtime", "deepspeed", "--checkpointing", "full"),
        (
            *LLAMA,
            "--gpus",
            "8",
            "--zero",
            "2",
            "--runtime",
            "deepspeed",
            "--optimizer",
            "radam",
            "--checkpointing",
            "full",
        ),
    ),
    "axolotl": (
        *OF_THE_TRAINER,
        (*LLAMA, "--loss", "kto", "--lora", "--weight-dtype", "bf16", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "came", "--precision", "pure-bf16", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "rmsprop_bnb_8bit", "--weight-dtype", "fp32", "--checkpointing", "none"),
        (*OF_THE_TRAINER[0], "--qat", "int4-mslk", "--qat-activations", "int8", "--qat-group-size", "64"),
        (
            *LLAMA,
            "--optimizer",
            "galore-adamw:16",
            "--precision",
            "pure-bf16",
            "--weight-dtype",
            "bf16",
            "--checkpointing",
            "full",
        ),
    ),
    "llama-factory": (
        *OF_THE_TRAINER,
        (*LLAMA, "--optimizer", "galore-adafactor:16", "--precision", "pure-bf16", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "galore_adamw_8bit_layerwise", "--precision", "pure-bf16", "--checkpointing", "none"),
        ("-m", "gpt2", "-g", "v100", "--grad-scaler", "--frozen", "embeddings,head,norms,layers.0-7", *LLAMA[4:]),
    ),
    "torchtune": (
        (*LLAMA, "--gpus", "8", "--checkpointing", "full"),
        (*LLAMA, "--lora", "--targets", "q_proj,v_proj,up_proj,gate_proj,down_proj", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "adamw-8bit", "--loss", "standard", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "nadam", "--optimizer-implementation", "for-loop", "--checkpointing", "none"),
        (*LLAMA, "--gpus", "2", "--loss", "dpo", "--checkpointing", "none"),
        (*LLAMA, "--optimizer", "paged_lion_8bit", "--loss", "standard", "--checkpointing", "none"),
        ("-m", "qwen2.5-0.5b", *LLAMA[2:], "--optimizer", "rmsprop", "--checkpointing", "none"),
        ("-m", "phi-4", "-g", "b300", *LLAMA[4:], "--checkpointing", "none"),
        (*LLAMA, "--gpus", "4", "--qat", "int4", "--qat-activations", "int8", "--checkpointing", "full"),
    ),
    "torchtitan": (
        ("-m", "llama-3.1-8b", "-g", "8xh100", *LLAMA[4:], "--gradient-accumulation-steps", "4"),
        ("-m", "llama-3.1-8b", "-g", "8xh100", *LLAMA[4:], "--checkpointing", "selective-op"),
    ),
    "litgpt": (
        (*LLAMA, "--optimizer", "ademamix", "--precision", "pure-bf16", "--checkpointing", "none"),
        (*LLAMA, "--precision", "pure-bf16", "--checkpointing", "none"),
        (*LLAMA, "--precision", "pure-bf16", "--optimizer", "prodigy", "--checkpointing", "none"),
        (*LLAMA, "--lora", "--targets", "all-linear", "--precision", "pure-bf16", "--checkpointing", "none"),
        (*LLAMA, "--gpus", "8", "--fsdp-version", "1", "--precision", "fsdp-bf16", "--checkpointing", "full"),
    ),
    "megatron-lm": (
        (*LLAMA, "--gpus", "4", "--tensor", "2", "--sequence-parallel", "--checkpointing", "full"),
        ("-m", "gpt2-xl", "-g", "8xh100", *LLAMA[4:], "--pipeline", "2", "--checkpointing", "selective"),
    ),
}
SOME = [(name, jobs[-1]) for name, jobs in JOBS.items()] + [
    ("trl", JOBS["trl"][2]),
    ("axolotl", JOBS["axolotl"][0]),
    ("torchtune", JOBS["torchtune"][0]),
]
"""For the suite the last of each, ZeRO, FSDP, and a recipe for several GPUs; all are for the programs' own parsers."""

IDS = [f"{name}-{number}" for number, (name, _) in enumerate(SOME)]
