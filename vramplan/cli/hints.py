"""Options and commands that there are not and that people type: what to do instead."""

from __future__ import annotations

SERVING = (
    "vramplan plans training only; for serving try gguf-parser, `accelerate estimate-memory`, or vLLM itself, "
    "which prints the memory that it profiles at start"
)
SCHEDULE = "it changes neither memory nor the time of a step; the length of a run is --tokens, --samples or --epochs"
WAYS = "what is trained is --lora, --qlora or --full, the loss --dpo or --grpo; --from-scratch loads no weights"
FILES = "give the file itself, as in `vramplan fit axolotl.yaml --gpu rtx-4090`; a job of a job file is --job FILE#NAME"


OPTIONS = {
    SERVING: (
        *("inference", "infer", "serve", "serving", "generate", "kv-cache", "kv-cache-dtype", "kvcache", "kv"),
        *("max-model-len", "gpu-memory-utilization", "max-num-seqs", "gguf", "llama-cpp", "ollama", "vllm", "chat"),
    ),
    SCHEDULE: ("max-steps", "max-train-steps", "total-steps", "train-steps", "num-steps", "max-iters", "train-iters"),
    WAYS: ("method", "mode", "stage", "train-mode", "training-mode", "training-type", "task-type"),
    FILES: ("config", "config-file", "job-file", "file", "yaml-file"),
    "give the file itself, as in `vramplan fit ds_config.json --model M`; or --zero 3 and --offload optimizer": (
        *("deepspeed", "ds-config", "deepspeed-config"),
    ),
    "--offload optimizer,gradients or --offload parameters,gradients,optimizer": (
        *("cpu-offload", "offload-to-cpu", "offload-optimizer", "offload-param", "offload-params", "cpu"),
        *("zero-offload", "zero2-offload", "zero3-offload", "zero-3-offload", "offload-parameters"),
    ),
    "--offload activations": ("activation-offloading", "offload-activations"),
    "a size stands for a GPU, as in --gpu '24 GiB'": ("memory", "mem", "max-memory", "ram"),
    "--attention sdpa": ("sdpa",),
    "--attention eager": ("eager", "eager-attention"),
    "--attention fa3": ("fa3", "flash-attn-3", "flash-attention-3"),
    "--weight-dtype bf16": ("weights-bf16", "bf16-weights"),
    "--quantization nf4": ("int4", "fp4", "q4", "nf4-4bit"),
    "--quantization int8": ("int8", "q8"),
    "--weight-dtype T is the element type of the weights that are loaded": ("weights", "weights-dtype", "weight-type"),
    "--sharding fsdp or zero3 shares states, --tensor, --pipeline and --context split the model": (
        *("parallel", "parallelism", "distributed", "dist", "sharded", "shard"),
    ),
    "--emit PROGRAM": ("export", "write", "generate-config", "gen-config", "write-config", "to"),
    "--reserve SIZE keeps free what vLLM takes of each GPU beside training; with GPUs of its own it takes none": (
        *("vllm-gpu-memory-utilization", "vllm-memory", "use-vllm", "colocate", "vllm-mode", "vllm-colocate"),
    ),
    "--reserve SIZE is memory that is kept free": ("margin", "headroom", "safety", "safety-margin", "buffer"),
    "--strict": ("fail-on-tight", "fail-on", "exit-code"),
    "exit code 3 says that it does not fit, and 4 with --strict that it is tight; what has to stay free is --reserve, "
    "in a file the key reserve": (
        *("fail-if", "fail-when", "fail-over", "fail-above", "threshold", "tolerance", "min-free", "min-free-memory"),
        *("max-memory-fraction", "memory-fraction", "max-fraction", "max-percent", "max-memory-percent", "max-vram"),
        *("min-headroom", "free-memory", "warn-above", "max-peak-memory", "memory-threshold", "usage-threshold"),
        *("max-utilization", "max-utilisation", "max-usage", "max-used", "memory-limit", "max-peak", "gate"),
    ),
    "8-bit states are --optimizer adamw-8bit-torchao, fp8 products --fp8, fake quantization --qat int4": (
        "torchao",
        "ao",
    ),
    "--svg FILE": ("png", "html", "pdf", "plot", "image", "picture", "chart"),
    "--gpus N": ("n", "count", "num"),
    "--gpus auto": ("min-gpus", "how-many-gpus", "how-many", "fewest-gpus", "gpus-needed"),
    "`vramplan scale -m M -g G --to 64` puts the run on 1 to 64 GPUs": ("max-gpus", "up-to", "until"),
    "--seq N is the length of a sequence": ("s", "l", "len", "length", "block", "block-size"),
    "--max sequence": ("longest", "longest-sequence", "max-context", "max-tokens"),
    "--max micro-batch": ("max-batch", "max-bs", "max-batch-size", "max-micro-batch", "largest-batch"),
    "--max rank": ("max-rank", "largest-rank"),
    "`vramplan compare -m A,B,C -g GPU` says which of several models fit": (
        *("largest", "largest-model", "max-model", "biggest", "biggest-model", "fits"),
    ),
    "an option replaces what a file says, as in `vramplan fit FILE -g GPU --micro-batch 4`": (
        *("set", "override", "overrides", "opts", "param"),
    ),
    "NO_COLOR=1 before the command turns colours off": ("no-color", "no-colour", "color", "colour", "nocolor"),
    "the sizes of a model belong to it: give a config.json, or a job file with model: {...}": (
        *("layers", "num-layers", "n-layer", "n-layers", "num-hidden-layers", "hidden-size", "hidden", "n-embd", "dim"),
        *("d-model", "heads", "n-head", "n-heads", "num-heads", "num-attention-heads", "ffn-hidden-size"),
        *("intermediate-size", "vocab", "vocab-size", "vocabulary-size", "padded-vocab-size"),
    ),
    "the measured steps are --iterations; accumulation is --gradient-accumulation-steps": ("steps",),
    "a model is an architecture: a name, a config.json of yours, or --model 7B --runtime textbook for equations": (
        *("params", "parameters", "n-params", "num-params", "num-parameters", "param-count", "model-size", "size"),
    ),
    "give the model as --model NAME": ("name", "checkpoint-name"),
    "--precision tf32": ("tf32",),
    "--distillation forward-kl": ("kl", "forward-kl", "kl-div", "kl-loss"),
    "--teacher MODEL": ("distill", "distil", "kd", "knowledge-distillation", "distillation-loss"),
    "--loss reward": ("rm", "reward-model", "reward-modeling", "reward-modelling"),
    "--context N shares each sequence": ("sp", "ulysses", "ring-attention", "sequence-parallel-size"),
    "--loss standard counts the step of the policy; GRPO is --loss grpo": ("ppo", "rloo", "rlhf"),
    "--eval-batch-size N": ("eval", "evaluation", "do-eval", "eval-steps"),
    "--optimizer adamw-paged or --optimizer adamw-8bit-paged": ("paged", "paged-adamw", "paged-optimizer"),
    "--adapter none": (
        *("full", "full-ft", "fft", "full-finetune", "full-finetuning", "full-fine-tune", "full-fine-tuning"),
        *("full-parameter", "full-parameters", "full-param", "no-lora", "no-peft", "no-adapter"),
    ),
    "--optimizer adamw-8bit": ("8bit-adam", "use-8bit-adam", "adam-8bit", "adam8bit", "8bit-optimizer", "bnb"),
    "`vramplan measure` runs real steps of a job": ("measure", "benchmark", "profile"),
    "`vramplan check FILE --format junit > OUT.xml` writes it": ("junit", "junit-xml", "xml", "junitxml"),
    "`vramplan check FILE --format github` writes annotations": ("github", "gha", "annotations"),
    "--format yaml": ("yaml", "yml"),
    "--format json, yaml, csv or markdown says how it is written, `> FILE` behind it where to; --svg FILE draws": (
        *("o", "output", "out", "outfile", "output-file", "output-format", "save", "fmt"),
    ),
    "the task belongs to the model: --loss classification, or a job file with model: {family: bert, task: cls, ...}": (
        *("task", "model-task"),
    ),
    "--details shows every table, and `vramplan explain` with the same options where each byte comes from": (
        *("verbose", "v", "all", "why", "explain", "breakdown", "full-output", "long"),
    ),
    "--tensor NAME follows one tensor; a part of its name will do": (
        *("logits", "what", "component", "operator", "op", "tensor-name", "of"),
    ),
    "NEFTune adds noise to a copy of the embeddings of a micro-batch, which is not counted: leave it out": (
        *("neftune", "neftune-alpha", "neftune-noise-alpha"),
    ),
    "--loss dpo, kto, orpo, simpo or grpo is the loss of preferences": ("loss-type", "pref-loss", "rlhf-type"),
    "--dpo-reference precomputed": ("precompute-ref-log-probs", "precompute-ref-logprobs"),
    "`vramplan compare -m M -g all` finds the cheapest GPU that fits": ("cheapest", "cheap", "cheaper"),
    "--job NAME": ("only", "filter", "select", "jobs"),
    "--emit-to FOLDER writes it into a folder; without it the file is printed": (
        *("o", "output", "out", "outfile", "output-file", "to-file"),
    ),
    "`vramplan fit FILE --gpu GPU` says whether it fits": ("gpu", "g"),
    "--checkpointing full recomputes every block, and every:N is one checkpoint of N blocks": (
        *("recompute-method", "recompute-num-layers", "recompute-modules"),
    ),
    "--block N": ("layer", "layer-index", "block-index", "nth-layer"),
    "--image-size N is the edge of an image in pixels, after the limits of the processor": (
        *("max-pixels", "min-pixels", "image-max-pixels", "image-min-pixels", "longest-edge", "pixels"),
    ),
    "--seq is a prompt with its completion: --seq 1536 for 512 and 1024 tokens": (
        *("max-completion-length", "max-prompt-length", "completion-length", "prompt-length", "response-length"),
        *("max-response-length", "max-new-tokens"),
    ),
    "`vramplan fit` with the same options prints the short answer": ("summary", "brief", "short", "summarize"),
    "the cost stands in the answer where --tokens, --samples or --epochs says how long the run is": (
        *("cost", "costs", "money", "rent", "cloud", "spot"),
    ),
    "--deadline 3d is a limit; the hours stand in the answer where --tokens or --samples says how long the run is": (
        *("hours", "days", "duration", "max-hours", "max-time", "max-days", "time-limit", "walltime"),
    ),
    "--attention efficient or --attention eager": ("no-flash", "no-flash-attn", "no-flash-attention"),
    "--gradient-accumulation-steps N": ("accumulate",),
    "--checkpointing full": ("checkpoint-activations", "activation-checkpoint", "ckpt"),
}
"""What to do, and the options without their dashes that ask for it."""

NO_EFFECT = frozenset(
    (
        *("lr", "warmup", "wd", "betas", "beta1", "beta2", "eps", "scheduler", "lr-scheduler", "lr-warmup-steps"),
        *("min-lr", "lr-decay-iters", "lr-decay-style", "warmup-iters", "lr-warmup-iters", "lr-warmup-fraction"),
        *("wandb", "wandb-project", "wandb-run-name", "wandb-entity", "tensorboard", "tensorboard-dir", "workers"),
        *("num-workers", "log-interval", "save-interval", "eval-interval", "save", "save-dir", "log-dir", "plot-loss"),
        *("overwrite-cache", "preprocessing-num-workers", "dataset-num-proc", "max-train-samples", "val-size"),
        *("deterministic", "random-seed", "init-seed", "exp-name", "experiment-name", "trust-remote-code", "use-wandb"),
        *("adam-beta-1", "adam-beta-2", "logging", "val-set-size", "pin-memory", "use-rslora", "bnb-4bit-quant-type"),
        *("line-by-line", "train-file", "validation-file", "test-file", "text-column", "dataset-config-name"),
        *("dataset-text-field", "dataset-train-split", "dataset-test-split", "max-eval-samples", "keep-linebreaks"),
        *("mlm-probability", "mlm-prob", "fsdp-state-dict-type", "fsdp-cpu-ram-efficient-loading"),
        *("fsdp-sync-module-states", "fsdp-use-orig-params", "fsdp-backward-prefetch"),
        *(
            "desirable-weight",
            "undesirable-weight",
            "dataset",
            "data-path",
            "dataset-name",
            "template",
            "random-state",
            "pref-beta",
            "eos-token",
            "pad-token",
        ),
        *("num-generations", "reward-funcs", "temperature", "top-p", "top-k", "beta", "epsilon", "reward-weights"),
    )
)
"""Options of training programs, beside the Trainer's, that change neither memory nor the time of a step."""

OF_EFFECT = (
    "max-steps",
    "tf32",
    "use-cpu",
    "no-cuda",
    "use-mps-device",
    "fp16-opt-level",
    "per-device-eval-batch-size",
)
"""Arguments that a file may have without effect, and that a person types to some."""

SWITCHES = frozenset(
    (
        *("do-train", "do-eval", "do-predict", "overwrite-output-dir", "overwrite-cache", "load-best-model-at-end"),
        *("push-to-hub", "remove-unused-columns", "full-determinism", "prediction-loss-only", "logging-first-step"),
        *("logging-nan-inf-filter", "log-on-each-node", "save-only-model", "save-on-each-node", "save-safetensors"),
        *("eval-on-start", "batch-eval-metrics", "include-tokens-per-second", "include-inputs-for-metrics"),
        *("greater-is-better", "ignore-data-skip", "dataloader-drop-last", "dataloader-pin-memory", "disable-tqdm"),
        *("dataloader-persistent-workers", "dataloader-in-order", "group-by-length", "skip-memory-metrics"),
        *("ddp-find-unused-parameters", "ddp-broadcast-buffers", "ddp-static-graph", "predict-with-generate"),
        *("hub-private-repo", "hub-always-push", "bf16-full-eval", "fp16-full-eval", "enable-jit-checkpoint"),
        *("jit-mode-eval", "split-batches", "dispatch-batches", "sortish-sampler", "plot-loss", "wandb", "use-wandb"),
        *("pin-memory", "use-rslora", "line-by-line", "keep-linebreaks", "fsdp-cpu-ram-efficient-loading"),
        *("fsdp-sync-module-states", "fsdp-use-orig-params"),
        *("completion-only-loss", "assistant-only-loss", "shuffle-dataset", "disable-dropout", "use-fast-tokenizer"),
        *("log-completions", "mask-truncated-completions", "streaming", "dataset-streaming", "low-cpu-mem-usage"),
        *("generate-during-eval", "use-logits-to-keep", "train-on-prompt", "mask-history", "ignore-mismatched-sizes"),
        *("train-on-inputs", "auto-resume-from-checkpoints", "ddp-find-unused-parameters-false", "eval-packing"),
        *("tensorboard", "deterministic", "trust-remote-code", "use-ipex", "eval-do-concat-batches", "debug"),
        *("restore-callback-states-from-checkpoint", "average-tokens-across-devices", "eval-use-gather-object"),
    )
)
"""Of these the ones that say something without a value."""

ALWAYS_SO = {
    **dict.fromkeys(
        ("sft", "train", "training", "finetune", "fine-tune", "finetuning", "fine-tuning", "supervised"),
        "is what is planned where no option says another",
    ),
    **dict.fromkeys(
        ("auto-find-batch-size", "find-batch-size", "auto-batch", "auto-batch-size"),
        "is what is done where no batch is given",
    ),
    **dict.fromkeys(
        ("pad-to-sequence-len", "pad-to-max-length", "max-length-padding"),
        "says what is planned without it: every sequence counts at its full length",
    ),
    **dict.fromkeys(
        ("use-deepspeed", "use-fsdp", "multi-gpu", "use-accelerate", "accelerate"),
        "says no way to share the states: that is --zero 1, 2 or 3, or --fsdp",
    ),
    **dict.fromkeys(("mlm", "masked-lm"), "is the loss of an encoder where no option says another"),
    **dict.fromkeys(("clm", "causal-lm"), "is the loss of a decoder where no option says another"),
    **dict.fromkeys(
        ("fsdp-transformer-layer-cls-to-wrap", "fsdp-auto-wrap-policy", "fsdp-wrap-policy"),
        "says what is planned without it: each block is a unit of FSDP",
    ),
}
"""Options that ask for what is planned without them."""

SAID_BY_A_VALUE = ("fsdp-transformer-layer-cls-to-wrap", "fsdp-auto-wrap-policy", "fsdp-wrap-policy")
"""Of these the ones that have a value."""

COMMANDS = {
    SERVING: ("infer", "inference", "serve", "serving", "generate", "chat", "estimate-inference", "kv-cache"),
    "fit": (
        *("estimate", "predict", "run", "train", "finetune", "fine-tune", "calc", "calculate", "can-i-run", "fits"),
        *("mem", "memory", "vram", "check-fit", "estimate-memory", "memory-estimate", "estimate-vram"),
    ),
    "plan": ("optimize", "optimise", "recommend", "best", "tune", "autotune", "suggest", "advise", "fastest", "search"),
    "`vramplan fit -m M -g G --gpus auto` finds the fewest GPUs": (
        *("gpus-needed", "how-many", "how-many-gpus", "howmany", "min-gpus", "ngpus", "num-gpus"),
    ),
    "`vramplan fit -m M -g G --max sequence` finds the largest, as do micro-batch, rank and layers": (
        *("solve", "maximize", "maximise", "largest-fit"),
    ),
    "`vramplan fit -m M -g G --max sequence` finds the longest sequence": (
        *("max-seq", "max-sequence", "longest", "max-length", "max-context", "context", "seq"),
    ),
    "`vramplan fit -m M -g G --max micro-batch` finds the largest batch": ("max-batch", "batch", "batch-size", "bs"),
    "`vramplan compare -m A,B,C -g G` says which of several models fit": (
        *("largest", "biggest", "max-model", "max", "largest-model", "biggest-model", "which-model", "best-model"),
    ),
    "`vramplan compare -m M -g all` finds the cheapest GPU that fits": ("cheapest", "which-gpu", "cloud", "rent"),
    "`vramplan fit -m M -g G --tokens N` says how long a run takes and what it costs": (
        *("cost", "costs", "price", "budget", "time", "duration", "hours", "days", "throughput", "speed"),
    ),
    "gpus": ("gpu", "devices", "cards", "hardware", "list-gpus"),
    "models": ("model", "list", "ls", "list-models"),
    "runtimes": ("runtime", "frameworks", "engines"),
    "measure": ("benchmark", "bench", "trace"),
    "timeline": ("plot", "draw", "chart", "graph"),
    "explain": ("why", "breakdown", "detail", "details"),
    "check": ("gate", "ci", "verify", "lint"),
    "--help, or behind a command: vramplan fit --help": ("help", "man", "usage"),
    "--version prints it": ("version",),
    "`vramplan --install-completion` sets it up in your shell, and --show-completion prints the script": (
        *("completion", "completions", "complete", "autocomplete"),
    ),
}
