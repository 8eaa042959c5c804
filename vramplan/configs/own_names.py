"""Settings that people add to a program: what their names say of data, of what is logged, and of the schedule.

Scripts around the Trainer and programs made from nanoGPT have settings of their own, and no table can have all of them.
One counts for nothing where every word of its name says where data lie, which part of them is taken, what is written
down, or how fast a model learns. A name with any other word stays not understood, and so does one with a slip, as
`eval_dtaa_path`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SUBJECTS = _words(
    """
    data dataset datasets corpus train training eval evaluation evaluate valid validation val dev test tests
    json jsonl csv parquet arrow mds subset mixture curriculum shuffle sampling seed annotation annotations
    log logs logging wandb tensorboard swanlab mlflow tracking report run experiment exp project entity notes
    save saving saved cache cached tokenizer tokenized preprocess preprocessing preprocessed processing
    message messages conversation dialogue instruction question answer template column columns field fields
    lr learning scheduler schedule warmup decay decays metric metrics aim verbose deterministic reasoning think
    assistant role roles disk prompt prompts doc docs document documents
    """
)
"""What a setting may be of; one of these words must be there."""

FURTHER = _words(
    """
    file files dir dirs directory folder path paths root url uri name names id ids json split splits ratio percent
    percentage perc proportion fraction num number count max min samples sample examples example size percentage format
    formats type kind style strategy mode freq frequency interval every steps step iters iter epoch epochs text texts
    sort by from to in out output outputs input inputs source user system keys key tags tag
    on off do use is no not of all only add new own extra local remote overwrite force skip best last first final
    start end eta rate proc procs workers worker threads load loader dataloader manager index indices inds sampler
    extract once prefix suffix limit cfg config configs enable enabled experimental logical shards chunks col cols
    weight weights before after
    """
)
"""Words that say more of it, and nothing of a model, a batch or a length."""

ALONE = _words("name subset limit notes comment tags")
"""Names of one word that say how a run is called, or which data it takes."""

HOW = _words("type kind style strategy mode cfg config configs weight weights")
OF_TRAINING = _words("train training run experiment exp learning data")
"""`train_type: lora` and `data_type: bf16` are of no data: such words need another subject, as `dataset_type` has."""

DECISIVE = _words(
    """
    lora qlora dora peft adapter adapters quant quantize quantization bits freeze frozen unfreeze unfrozen tune
    trainable spectrum moe
    expert experts parallel offload zero fsdp optimizer optim 8bit 4bit dtype precision attn attention flash batch
    length len dpo kto orpo grpo ppo rlhf distill swiglu geglu reglu glu gated
    """
)
"""Words of what is trained, how, how much of it at a time, and on how many devices: a setting with one of them is not
passed over."""


OF_JOB = (
    ("optimizer", _words("optimizer optim")),
    ("quantization", _words("quant quantize quantization 4bit 8bit")),
    ("precision", _words("dtype precision")),
    ("attention", _words("attn attention flash")),
    ("loss", _words("dpo kto orpo grpo")),
    ("frozen", _words("freeze frozen unfreeze unfrozen tune trainable spectrum")),
    ("sequence_length", _words("length len")),
    ("micro_batch_size", _words("batch")),
)
"""Keys of a job that one option answers, and the words by which a setting may be of them."""

OF_STEP = _words("effective global total")
"""Words of the batch of a step, which says how many passes make one."""

KEPT = _words("save export merge merged log push upload eval evaluation valid validation test predict preprocess group")
"""Words with which settings begin that say what becomes of a model or of data, or how it is evaluated.

Samples that are grouped by their lengths keep these."""


def may_decide(name: str) -> bool:
    """Whether a setting that a script declares may say what is trained: not `save_lora` or `eval_batch_size`."""
    first, *words = re.split(r"[._]", name.lower())
    return first not in KEPT and "save" not in words and any(word in DECISIVE for word in (first, *words))


ANSWERS = _words("generation generate inference infer serve serving deploy deployment benchmark demo chat")
"""Names of sections of what a model does once it is trained."""


def is_beside_training(section: str) -> bool:
    """Whether a section of somebody's own program says how a model answers or is evaluated, by its name."""
    return bool({*re.split(r"[._]", section.lower())} & (ANSWERS | KEPT))


def asked_by(name: str) -> str | None:
    """The key of a job that a setting which may decide is of by its name; None where it is of none, or of several."""
    words = {*re.split(r"[._]", name.lower())}
    if words & OF_STEP and "batch" in words:
        return "gradient_accumulation_steps"
    found = [key for key, of in OF_JOB if words & of]
    others = words & DECISIVE - frozenset().union(*(of for _, of in OF_JOB))
    return found[0] if found and not others and (len(found) == 1 or found[0] == "optimizer") else None


_SWITCH = re.compile(r"(use|enable|with)_\w+|\w+_enabled?|quantized?")


def is_off(name: str, value: object) -> bool:
    """Whether a setting has no value, or is a switch that its name says and that is off."""
    return value is None or (value is False and _SWITCH.fullmatch(name.rpartition(".")[2]) is not None)


def is_of_what_is_off(name: str, settings: Mapping[str, object]) -> bool:
    """Whether a setting is of a switch that is off, as `swiglu_mult` beside `use_swiglu = False`."""
    above, _, last = name.rpartition(".")
    words = last.split("_")
    switches = [
        f"{above}.{switch}".lstrip(".")
        for count in range(1, len(words))
        for switch in (f"use_{'_'.join(words[:count])}", f"{'_'.join(words[:count])}_enabled")
    ]
    return any(settings.get(switch) is False for switch in switches)


_OF_TOKENS = re.compile(r"(bos|eos|pad|unk|sep)_(token(_id)?|id)")
"""A token by its name, which is in the vocabulary already."""


_PLACE = re.compile(r"(^|[._])(save|saved|output|merged|export|log|logging)_(dir|directory|path|folder)$")
"""How a name ends that says where something is written, whatever that is: `lora_save_dir`."""


def is_quiet(name: str) -> bool:
    """Whether a name says of data, of what is written down, or of the schedule, and of nothing else.

    Of a setting within a section, as `val_dataset.path`, the names of both count.
    """
    if _PLACE.search(name.lower()):
        return True
    *above, last = name.lower().split(".")
    words = [word for part in (*above, _OF_TOKENS.sub("tokenizer", last)) for word in part.split("_")]
    if words[-1] in ("prompt", "prompts"):  # of the model, as FastChat's copies have it
        words = [word for word in words if word != "model"]
    known = all(word in SUBJECTS or word in FURTHER for word in words)
    subjects = [word for word in words if word in SUBJECTS]
    if any(word in HOW for word in words):
        subjects = [word for word in subjects if word not in OF_TRAINING]
    return name in ALONE or (known and bool(subjects))
