"""The scripts around the Trainer whose own arguments and defaults are known.

Source: lm-sys/FastChat (0e6d3e4b), fastchat/train/train*.py; QwenLM/Qwen (2df8e8a), finetune.py; OpenBMB/MiniCPM
(0fcc3d0), finetune/finetune.py; artidoro/qlora (7f4e95a), qlora.py; ymcui/Chinese-LLaMA-Alpaca-2 (2a334d1),
scripts/training/run_clm_pt_with_peft.py and run_clm_sft_with_peft.py; OptimalScale/LMFlow (f3597dba),
src/lmflow/args.py, models/hf_model_mixin.py and pipeline/finetuner.py; huggingface/peft, examples/sft/train.py and
utils.py; allenai/open-instruct (d6818cf3^), open_instruct/finetune_trainer.py; huggingface/transformers 5.23.0,
examples/pytorch: text-classification, question-answering, summarization and translation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramplan.configs.programs.arguments import chat_loops, llava
from vramplan.configs.programs.arguments.idle import GIVE
from vramplan.configs.programs.arguments.keys import CLASSIFIER
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.written import Written
from vramplan.tuples import NamedTuple

FUSED_QWEN = {"c_attn": ("q_proj", "k_proj", "v_proj"), "c_proj": ("o_proj", "down_proj"), "w1": ("up_proj",)}
"""The layers of the first Qwen by the names of the model that is counted; `c_proj` is two, and `w2` is the gate."""


class TrainerScript(NamedTuple):
    """A script around the Trainer.

    `programs`: how the name of the file may end. `keys`: arguments of which it has all, and no other script of that
    name has. `renamed`: what it calls arguments of TRL. `defaults`: its own, by these names. `settle`: what else its
    arguments mean, after that. `of_trl`: it runs a trainer of TRL, whose defaults hold beside its own. `declares`: an
    argument by which its text is known where the script is there.
    """

    name: str
    programs: tuple[str, ...]
    keys: tuple[str, ...] = ()
    renamed: Mapping[str, str] = {}
    defaults: Mapping[str, Any] = {}
    settle: Callable[[Sheet, Meaning], None] = lambda sheet, meaning: None
    of_trl: bool = False
    declares: str | None = None


def put(sheet: Sheet, key: str, value: Any, of: str) -> None:
    """A setting that follows from another one, at its place."""
    if key not in sheet.written:
        sheet.written[key] = sheet.written.get(of, Written(None))._replace(value=value)


def default(sheet: Sheet, **defaults: Any) -> None:
    """Other defaults than those of the release."""
    sheet.release = sheet.release._replace(defaults={**sheet.release.defaults, **defaults})


def _longlora(sheet: Sheet, meaning: Meaning) -> None:
    """What is trained beside the adapter.

    Source: dvlab-research/LongLoRA, fine-tune.py and supervised-fine-tune.py.
    """
    if sheet.flag("use_peft", True):
        trained = sheet.text("trainable_params", "embed,norm")
        meaning.lack("trainable_params", f"{trained} is trained beside the adapter, and the adapter alone is counted")
    for key in ("use_full_attn", "trainable_params"):
        sheet.get(key)


def _classifies(sheet: Sheet, meaning: Meaning) -> None:
    """The model is an AutoModelForSequenceClassification."""
    put(sheet, CLASSIFIER, True, "program")


def _answers(sheet: Sheet, meaning: Meaning) -> None:
    """The model is an AutoModelForQuestionAnswering, whose head has two numbers for each token."""
    _classifies(sheet, meaning)
    meaning.note("the head of a classification of texts is counted in the place of that for answers")


def load_in_bits(sheet: Sheet, key: str, default: int) -> int:
    """`--bits 4` and its kin as the switches of TRL."""
    bits = sheet.count(key, default) or 16
    if bits in (4, 8):
        put(sheet, f"load_in_{bits}bit", True, key)
    elif bits not in (16, 32):
        sheet.problem(key, f"{bits} is not understood", "4, 8, 16 or 32")
    return bits


def _qlora(sheet: Sheet, meaning: Meaning) -> None:
    """Adapters on every linear layer but the head, unless the whole model is trained; both texts make a sequence."""
    bits = load_in_bits(sheet, "bits", 4)
    whole = bool(sheet.flag("full_finetune"))
    default(sheet, use_peft=not whole)
    half = bool(sheet.flag("bf16"))
    default(sheet, dtype="bfloat16" if half and not sheet.flag("fp16") else "float32")
    if not whole and half:
        meaning.say("adapter.dtype", "bf16", "bf16")
    if not whole and bits in (4, 8):
        meaning.lack("bits", "the norms are in fp32 here, and are counted in the type of the other weights")
    if sheet.flag("adam8bit"):
        meaning.lack("adam8bit", "the script reads it nowhere; --optim says the optimizer")
    source, target = sheet.count("source_max_len", 1024), sheet.count("target_max_len", 256)
    meaning.say("sequence_length", (source or 0) + (target or 0), "source_max_len", "target_max_len")
    if not sheet.flag("do_train", True):
        sheet.refuse("do_train", "the script generates or evaluates and trains nothing", GIVE)


def _qwen(sheet: Sheet, meaning: Meaning) -> None:
    """The layers by the names of the model that is counted; of a base model the embeddings are trained too."""
    if not sheet.flag("use_peft"):
        return
    targets = sheet.texts("lora_target_modules") or ["c_attn", "c_proj", "w1", "w2"]
    if set(targets) & {*FUSED_QWEN, "w2"}:
        names = [name for word in targets for name in FUSED_QWEN.get(word, ("gate_proj",) if word == "w2" else (word,))]
        default(sheet, lora_target_modules=names)
        sheet.written.pop("lora_target_modules", None)
        meaning.lack("use_lora", "an adapter of c_attn is one of three matrices, and one for each is counted")
    if sheet.flag("q_lora"):
        put(sheet, "load_in_4bit", True, "q_lora")
        meaning.lack("q_lora", "GPTQ's weights of 4 bits are counted as nf4")
    elif "chat" not in (sheet.text("model_name_or_path") or "").lower():
        default(sheet, lora_modules_to_save=["embed_tokens", "lm_head"])


def _minicpm(sheet: Sheet, meaning: Meaning) -> None:
    """The weights are loaded in the type that is computed in."""
    half = "bfloat16" if sheet.flag("bf16") else "float16" if sheet.flag("fp16") else "float32"
    default(sheet, dtype=half, lora_r=64, lora_alpha=32, lora_dropout=0.1, lora_target_modules=["q_proj", "v_proj"])


def _chinese(sheet: Sheet, meaning: Meaning) -> None:
    """Adapters unless `full_finetuning` is asked for."""
    load_in_bits(sheet, "load_in_kbits", 16)
    default(sheet, use_peft=not sheet.flag("full_finetuning"))
    if sheet.given("peft_path"):
        meaning.note(
            f"peft_path: the adapter there is trained on, whose rank may be another ({sheet.get('peft_path')})"
        )


def _lmflow(sheet: Sheet, meaning: Meaning) -> None:
    """Adapters on all linear layers, quantized weights in units of FSDP, LISA, and optimizers of its own."""
    lora, qlora = bool(sheet.flag("use_lora")), bool(sheet.flag("use_qlora"))
    default(sheet, use_peft=lora or qlora or bool(sheet.flag("use_dora")))
    if qlora:
        load_in_bits(sheet, "quant_bit", 4)
    for key in ("use_lora", "use_qlora", "quant_bit", "bits"):
        sheet.get(key)
    blocks, interval = sheet.count("lisa_activated_layers", 2), sheet.count("lisa_interval_steps", 20)
    if sheet.flag("use_lisa") and interval:
        meaning.say("trained_blocks", f"lisa:{blocks}", "use_lisa", "lisa_activated_layers")
    if sheet.flag("use_customized_optim"):
        name = sheet.text("customized_optim", "sign_sgd") or ""
        word, what = LMFLOWS_OPTIMIZERS.get(name, (name, None))
        put(sheet, "optim", "adamw_torch", "customized_optim")
        meaning.say("optimizer", word, "customized_optim")
        if what is not None:
            meaning.lack("customized_optim", what)
    if sheet.flag("do_rope_scaling"):
        meaning.lack("do_rope_scaling", "positions are scaled, and those of the model are counted")


def _of_peft(sheet: Sheet, meaning: Meaning) -> None:
    """Weights in fp32, beside quantized ones in the type that these are stored in; or all of it by Unsloth."""
    storage = sheet.text("bnb_4bit_quant_storage_dtype") or ""
    if sheet.flag("use_4bit_quantization") and storage in ("bfloat16", "float16", "float32"):
        default(sheet, dtype=storage)
    if sheet.flag("use_unsloth"):
        meaning.say("runtime", "unsloth", "use_unsloth")
        default(sheet, dtype="bfloat16" if sheet.flag("bf16") else "float16")


_AS_ADAMW = "{} has the states of AdamW, which is counted"
LMFLOWS_OPTIMIZERS: Mapping[str, tuple[str, str | None]] = {
    "muon": ("muon", None),
    **{name: (name, None) for name in ("lamb", "lars")},
    "adam": ("adam", None),
    **{name: ("adamw", _AS_ADAMW.format(name)) for name in ("nadam", "adabelief", "adamp", "yogi", "sophia")},
    "adamw_schedule_free": ("adamw", "the schedule-free AdamW has two states, as AdamW has"),
    "sgd_schedule_free": ("sgd-momentum", "the schedule-free SGD has one state, as momentum is"),
    "sgdp": ("sgd-momentum", "SGDP has the one state of momentum"),
    "dummy": ("adam", "the example optimizer of LMFlow has two states, as Adam has"),
}
"""LMFlow's words of `customized_optim`. Source: src/lmflow/optim, src/lmflow/pipeline/finetuner.py."""

_BITSANDBYTES = {"double_quant": "use_bnb_nested_quant", "quant_type": "bnb_4bit_quant_type"}
_OF_FASTCHAT = {"optim": "adamw_torch", "lora_dropout": 0.05, "use_bnb_nested_quant": True}

OF_LORA_CONFIG = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""The defaults of PEFT's LoraConfig, which scripts construct themselves."""

SCRIPTS = (
    TrainerScript("the script", ("trainer",), defaults=OF_LORA_CONFIG),
    TrainerScript(
        "the script",
        tuple(
            f"{name}_trainer" for name in ("sft", "dpo", "kto", "orpo", "cpo", "grpo", "rloo", "ppo", "gkd", "reward")
        ),
        defaults=OF_LORA_CONFIG,
        of_trl=True,
    ),
    TrainerScript(
        "PEFT's examples/sft/train.py",
        ("train.py",),
        ("use_peft_lora",),
        defaults={
            "lora_r": 64,
            "lora_alpha": 16,
            "lora_dropout": 0.1,
            "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"],
        },
        settle=_of_peft,
        of_trl=True,
    ),
    TrainerScript(
        "fastchat/train/train_lora.py",
        ("train_lora.py",),
        ("model_max_length",),
        {"q_lora": "load_in_4bit"},
        {
            **_OF_FASTCHAT,
            "model_max_length": 512,
            "use_peft": True,
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_target_modules": ["q_proj", "v_proj"],
        },
        declares="q_lora",
    ),
    TrainerScript(
        "fastchat/train/train_mem.py",
        ("fastchat/train/train_mem.py",),
        defaults={"optim": "adamw_torch", "model_max_length": 512, "use_flash_attention_2": True},
    ),
    TrainerScript(
        "fastchat/train/train.py",
        ("fastchat/train/train.py",),
        defaults={"optim": "adamw_torch", "model_max_length": 512},
    ),
    TrainerScript(
        "open-instruct's finetune_trainer.py",
        ("open_instruct/finetune_trainer.py",),
        defaults={"dtype": "auto", "use_flash_attention_2": True},
    ),
    TrainerScript(
        "Qwen's finetune.py",
        ("finetune.py",),
        ("use_lora", "lazy_preprocess"),
        {"use_lora": "use_peft"},
        {**_OF_FASTCHAT, "model_max_length": 8192, "lora_r": 64, "lora_alpha": 16},
        _qwen,
    ),
    TrainerScript(
        "MiniCPM's finetune.py",
        ("finetune.py",),
        ("use_lora", "train_data_path"),
        {"use_lora": "use_peft", "qlora": "load_in_4bit"},
        {"model_max_length": 512, "optim": "adamw_torch", "use_bnb_nested_quant": True},
        _minicpm,
    ),
    TrainerScript(
        "LongLoRA's scripts",
        ("fine-tune.py", "supervised-fine-tune.py"),
        ("low_rank_training",),
        {"low_rank_training": "use_peft", "use_flash_attn": "use_flash_attention_2"},
        {
            "model_max_length": 32768,
            "optim": "adamw_torch",
            "dtype": "bfloat16",
            "gradient_checkpointing": True,
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_dropout": 0.0,
            "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        },
        _longlora,
    ),
    TrainerScript(
        "qlora.py",
        ("qlora.py",),
        (),
        _BITSANDBYTES,
        {
            "use_bnb_nested_quant": True,
            "lora_r": 64,
            "lora_alpha": 16,
            "lora_dropout": 0.0,
            "lora_target_modules": ["all-linear"],
            "optim": "paged_adamw_32bit",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 16,
            "max_grad_norm": 0.3,
            "gradient_checkpointing": True,
        },
        _qlora,
    ),
    TrainerScript(
        "Transformers' classification of texts",
        ("run_glue.py", "run_xnli.py", "run_classification.py"),
        defaults={"max_seq_length": 128},
        settle=_classifies,
    ),
    TrainerScript(
        "Transformers' run_glue_no_trainer.py",
        ("run_glue_no_trainer.py",),
        defaults={"max_length": 128},
        settle=_classifies,
    ),
    TrainerScript("Transformers' run_qa.py", ("run_qa.py",), defaults={"max_seq_length": 384}, settle=_answers),
    TrainerScript(
        "Transformers' scripts of summaries and translations",
        ("run_summarization.py", "run_translation.py"),
        defaults={"max_source_length": 1024, "max_target_length": 128},
    ),
    TrainerScript(
        "DeepSpeed-Chat's main.py",
        ("main.py",),
        ("zero_stage", "model_name_or_path"),
        chat_loops.RENAMED,
        chat_loops.DEFAULTS,
        chat_loops.settle,
    ),
    TrainerScript(
        "LLaVA's scripts",
        tuple(f"train/{name}.py" for name in ("train", "train_mem", "train_xformers")),
        (llava.KEY,),
        llava.RENAMED,
        llava.DEFAULTS,
        llava.settle,
    ),
    TrainerScript(
        "the scripts of Chinese-LLaMA-Alpaca-2",
        ("run_clm_pt_with_peft.py", "run_clm_sft_with_peft.py"),
        (),
        {
            **_BITSANDBYTES,
            "trainable": "lora_target_modules",
            "lora_rank": "lora_r",
            "modules_to_save": "lora_modules_to_save",
        },
        {
            "use_bnb_nested_quant": True,
            "max_seq_length": 1024,
            "lora_r": 8,
            "lora_alpha": 32,
            "lora_dropout": 0.1,
            "lora_target_modules": ["q_proj", "v_proj"],
        },
        _chinese,
    ),
    TrainerScript(
        "LMFlow",
        ("finetune.py",),
        ("dataset_path", "model_name_or_path"),
        {**_BITSANDBYTES, "use_flash_attention": "use_flash_attention_2"},
        {
            "use_bnb_nested_quant": True,
            "lora_r": 8,
            "lora_alpha": 32,
            "lora_dropout": 0.1,
        },
        _lmflow,
    ),
)
