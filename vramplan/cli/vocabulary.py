"""What people say of a run in words, and what it stands for: tables alone."""

from __future__ import annotations

FILLERS = frozenset(
    (
        *("a", "an", "and", "are", "at", "be", "by", "can", "could", "do", "does", "for", "from", "have"),
        *("how", "i", "if", "in", "into", "is", "it", "its", "just", "me", "much", "my", "need", "needed"),
        *("of", "on", "one's", "or", "our", "please", "required", "run", "running", "should", "so", "some"),
        *("that", "the", "this", "to", "use", "using", "via", "want", "we", "what", "what's", "whats"),
        *("when", "will", "with", "would", "you", "your", "per", "each", "only", "possible", "able"),
        *("enough", "about", "there", "has", "got", "get", "am", "trying", "try", "fit", "fits", "train"),
        *("trained", "tune", "tuning", "model", "llm", "memory", "vram", "gpu", "gpus", "machine"),
        *("setup", "done", "make", "work", "works", "job", "also", "still", "then", "but", "not-sure"),
        *("tuned", "w/", "cards", "devices", "single-gpu", "version", "run's", "my", "mine", "want", "wanna", "gonna"),
        *("adapter", "adapters", "technique", "method", "type", "mode", "enabled", "card", "device", "set"),
    )
)
"""Words of a sentence that say nothing of a run."""

OF_OTHER_LANGUAGES = frozenset(
    (
        *("auf", "mit", "einer", "einem", "eine", "ein", "für", "und", "grafikkarte", "speicher", "trainieren"),
        *("sur", "une", "un", "avec", "pour", "et", "de", "carte", "mémoire", "entraîner"),
        *("en", "una", "con", "para", "y", "tarjeta", "memoria", "entrenar"),
        *("на", "с", "карте", "видеокарте", "видеокарта", "памяти", "и", "обучение"),
        *("で", "を", "の", "に", "と", "学習", "微調整", "は", "上", "用", "在", "训练", "微调", "显存", "够吗", "能"),
        *("吗", "能跑吗", "可以吗", "显卡", "模型", "训", "跑", "的", "和"),
    )
)
"""The same in other languages: German, French, Spanish, Russian, Japanese, Chinese."""

SAID_OF = {
    "plan": ("fastest", "quickest", "best", "way"),
    "compare": ("fastest", "cheapest", "best", "faster", "cheaper", "better", "between", "which"),
    "scale": ("max", "maximum", "until", "till"),  # before the last number of GPUs
    "explain": ("why", "where", "peak", "breakdown"),
    "timeline": ("step", "peak"),
}
"""The same of one command, whose answer says it anyway."""
BY_DASHES = ("--max", "--print", "--job", "--config", "--from")
"""Options that a word does not stand for beside a number."""
NUMBERS = r"[1-9]\d*(,[1-9]\d*)*"
BIASES = "adapter.bias"

JOINS = ("and", "or")
DIGITS = {"single": "1", "one": "1", "dual": "2", "two": "2", "three": "3", "four": "4", "quad": "4", "eight": "8"}
"""Numbers of GPUs in letters."""

COUNTED = {
    "--seq": (
        *("context", "ctx", "token", "tokens", "tok", "toks", "length", "len", "long", "seq", "sequence", "sequences"),
        *("context-window", "max-tokens", "max-context", "max-context-length", "context-size", "max-ctx", "length-of"),
        *("kontext", "kontextlänge", "contexte", "contexto", "контекст", "上下文", "长度", "序列长度"),
    ),
    "--gpus": (
        *("gpu", "gpus", "card", "cards", "device", "devices", "accelerators", "graphics-cards"),
        *("karten", "grafikkarten", "cartes", "tarjetas", "карты", "видеокарты", "видеокарт"),
    ),
    "--nodes": ("node", "nodes", "machine", "machines", "server", "servers", "host", "hosts"),
    "--epochs": ("epoch", "epochs"),
    "--samples": ("sample", "samples", "example", "examples", "rows", "pairs"),
    "--micro-batch": (
        *("batch", "batch-size", "batch-size-of", "batch-of", "bs", "per-device-batch", "per-device-batch-size"),
        *("per-gpu-batch", "per-gpu-batch-size", "batch-per-gpu", "batch-size-per-gpu", "batch-size-per-device"),
    ),
    "--global-batch": ("global-batch", "effective-batch", "total-batch", "overall-batch-size"),
    "--gradient-accumulation-steps": (
        *("accumulation", "accumulation-steps", "grad-acc", "grad-accum", "gradient-accumulation", "accum-steps"),
    ),
    "--image-size": ("px", "pixel", "pixels", "resolution"),
    "--zero": ("stage", "zero-stage", "zero", "deepspeed-zero", "deepspeed-stage"),
    "--rank": ("lora-rank", "lora-r", "ranks", "rang", "rango"),
}
"""What people say beside a number, by the option that takes it, where that is no name of the option."""
BEFORE = ("--seq", "--gpus", "--nodes", "--epochs", "--samples")  # what follows its number: 8 gpus
OF_UNIT = {unit: name for name, units in COUNTED.items() for unit in units}

PHRASES = {
    ("--max", "sequence"): (
        *("longest-context", "longest-context-length", "max-context-length", "max-sequence-length", "max-seq-len"),
        *("max-seq-length", "max-seq", "longest-seq", "longest-sequence-length", "maximum-context", "max-length"),
        *("how-long", "how-long-can-the-context", "how-long-a-context", "how-long-a-sequence", "how-much-context"),
        *("maximum-context-length", "maximum-sequence-length", "largest-context", "max-ctx", "biggest-context"),
    ),
    ("--max", "micro-batch"): (
        *("what-batch-size", "which-batch-size", "what-batch", "how-big-a-batch", "how-large-a-batch"),
        *("biggest-batch", "biggest-batch-size", "largest-batch-size", "maximum-batch-size", "maximum-batch"),
        *("max-micro-batch-size", "largest-micro-batch"),
    ),
    ("--runtime", "all"): ("all-runtimes", "any-runtime", "every-runtime", "all-programs", "any-program"),
    ("--adapter", "none"): ("全参微调", "全量微调", "全参数微调", "全参", "全量", "全参数"),
    ("--gpus", "auto"): ("how-many-cards", "number-of-gpus", "minimum-gpus", "minimum-number-of-gpus"),
    ("--targets", "all-linear"): ("all-linear", "all-linear-layers", "all-linear-modules", "every-linear-layer"),
    ("--offload", "none"): ("no-offload", "no-offloading", "no-cpu-offload", "no-cpu-offloading"),
    ("--precision", "amp"): ("mixed-precision", "automatic-mixed-precision"),
    ("--precision", "fp32"): ("full-precision", "single-precision"),
    ("--checkpointing=true",): ("checkpointing", "activation-checkpointing", "recomputation", "gradient-checkpoint"),
}
"""What people say for a setting that has no option of that name."""
OF_PHRASE = {phrase: list(words) for words, phrases in PHRASES.items() for phrase in phrases}
