"""nanoGPT: assignments in a Python file for `train.py`, or train.py itself; read, never executed.

Source: karpathy/nanoGPT master (3adf61e1), train.py (the values above the configurator, the loop), model.py and
configurator.py (options).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.command import Words, named, options, processes
from vramplan.configs.forms import NotConstant, from_python
from vramplan.configs.neighbours import started as started_beside
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet
from vramplan.configs.shell import Script, shown
from vramplan.configs.table import ProgramRelease, Table, names
from vramplan.configs.written import Written
from vramplan.errors import InputError, closest
from vramplan.options.words import OPTIMIZERS

UNDERSTOOD = names(
    """
    init_from dataset gradient_accumulation_steps batch_size block_size n_layer n_head n_embd dropout bias grad_clip
    dtype compile device eval_only vocab_size n_ctx
    """
)
WITHOUT_EFFECT = names(
    """
    out_dir eval_interval log_interval eval_iters always_save_checkpoint wandb_log wandb_project
    wandb_run_name learning_rate max_iters weight_decay beta1 beta2 decay_lr warmup_iters lr_decay_iters min_lr
    backend config_keys config ddp tokens_per_iter device_type ptdtype ctx data_dir iter_num best_val_loss meta_path
    meta_vocab_size model_args scaler optimizer checkpoint t0 local_iter_num raw_model running_mfu seed
    scale_attn_by_inverse_layer_idx
    """
)
DEFAULTS: dict[str, Any] = {
    "init_from": "scratch",
    "dataset": "openwebtext",
    "gradient_accumulation_steps": 40,
    "batch_size": 12,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "dropout": 0.0,
    "bias": False,
    "grad_clip": 1.0,
    "dtype": "bfloat16",
    "compile": True,
    "device": "cuda",
}
OLD = "2023-03"
"""The release whose accumulation steps are those of each process; a single one takes eight times as many."""

RELEASES = (
    ProgramRelease("master", "2025-11-12", "karpathy/nanoGPT master (3adf61e1), train.py", DEFAULTS),
    ProgramRelease(
        OLD, "2023-03-12", "karpathy/nanoGPT (a82b33b5), train.py", {**DEFAULTS, "gradient_accumulation_steps": 5}
    ),
)

OF_COPIES = ("vocab_size", "n_ctx")
"""Settings of programs made from nanoGPT: tokens of the vocabulary, and positions under the name that GPT-2 has."""

PRECISIONS = {"bfloat16": "amp-bf16", "float16": "amp-fp16", "float32": "fp32"}
PUBLISHED = {(12, 12, 768): "gpt2", (24, 16, 1024): "gpt2-medium", (36, 20, 1280): "gpt2-large"}
PUBLISHED[48, 25, 1600] = "gpt2-xl"
CHARACTERS = {"shakespeare_char": 65}  # data/shakespeare_char/prepare.py writes meta.pkl
SIMULATED = 8  # train.py of 2023-03: "simulate 8 gpus"
PADDED = 50304  # train.py: GPT-2's 50257, padded

_LAUNCHED = re.compile(r"^\s*#.*--nproc_per_node=(\d+)(?:.*--nnodes=(\d+))?", re.MULTILINE)


_ABOVE = re.compile(r"(?m)^exec\(open\(['\"]configurator\.py['\"]\)")
_DIVIDES = re.compile(r"gradient_accumulation_steps\s*//=|gradient_accumulation_steps\s*=.*//")


_SIMULATES = re.compile(r"gradient_accumulation_steps\s*\*=\s*8\b")


_CHOOSES = re.compile(r"(?m)^(?P<name>model(_\w+)?|arch(itecture)?)\s*=\s*['\"](?P<value>[^'\"]*)['\"]")


def _other_model(sheet: Sheet, program: str | None) -> str | None:
    """Why the model is none of nanoGPT's, by the `train.py` around a file; None where it may be one."""
    text = program or ""
    for found in _CHOOSES.finditer(text):
        name = found["name"]
        value = str(sheet.written[name].value) if name in sheet.written else found["value"]
        if re.search(rf"\b{name}\s*==", text) and "gpt" not in value.lower():
            return f"the train.py around the file chooses it by {name}, which is {shown(value)} (--model NAME)"
    return None


_SAYS_TOKENS = re.compile(r"(?m)^[^#\n]*\bvocab_size['\"]?\]?\s*=\s*(\d+)\s*(?:#.*)?$")


def _tell_vocabulary(meaning: Meaning, program: str | None) -> None:
    """Tell that the `train.py` around a file gives its models another number of tokens, where it names one."""
    told = meaning.job.get("model")
    if told is None or not isinstance(told.value, Mapping):
        return
    counted = told.value["vocabulary_size"]
    others = sorted({int(found) for found in _SAYS_TOKENS.findall(program or "")} - {counted})
    if others:
        words = " or ".join(map(str, others))
        own = "by settings of its own; vocab_size in the file goes before it"
        meaning.note(f"{counted} tokens are counted, and the train.py around the file has {words} too, {own}")


def _of_its_program(sheet: Sheet, meaning: Meaning) -> str | None:
    """The text of the `train.py` around a file; what it sets above its configurator holds where nanoGPT has another."""
    file = next((item.file for item in sheet.written.values() if item.file), None)
    beside = None if file is None or os.path.basename(file) == "train.py" else started_beside("train.py", file)
    ends = None if beside is None else _ABOVE.search(beside[0])
    if beside is None or ends is None:
        return None
    try:
        own = from_python(beside[0][: ends.start()], beside[1])
    except InputError:
        return None
    for key in UNDERSTOOD & own.keys() - sheet.written.keys():
        value = own[key].value
        if not isinstance(value, NotConstant) and value != sheet.release.defaults.get(key):
            sheet.written[key] = own[key]
    return beside[0]


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are nanoGPT's alone, times two beside its sizes: TrainingArguments have `block_size` too."""
    own = (
        "block_size",
        "n_embd",
        "n_layer",
        "n_head",
        "eval_iters",
        "wandb_run_name",
        "always_save_checkpoint",
        "init_from",
        "lr_decay_iters",
        "max_iters",
        "eval_interval",
        "wandb_log",
        "warmup_iters",
        "grad_clip",
    )
    found = sum(name in keys for name in own)
    sized = any(name in keys for name in ("block_size", "n_embd", "n_layer", "n_head"))  # Megatron-LM has the others
    if "program" in keys and not sized:  # its own takes `--name=value`
        return 0
    return 2 * found if sized and found > 1 else found


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a nanoGPT configuration."""
    program = _of_its_program(sheet, meaning)
    for key in UNDERSTOOD:
        if key in sheet.written and isinstance(sheet.written[key].value, NotConstant):
            text = sheet.written[key].value.text
            sheet.problem(key, f"{text} is known only when the program runs", f"write {key} as a number or a word")
            del sheet.written[key]
    _passed_over(sheet, meaning)
    if sheet.flag("eval_only"):
        message = "it evaluates and trains nothing: train.py ends before its first step"
        sheet.refuse("eval_only", message, "eval_only = False is read as the training run of the same model")
        return
    meaning.say("runtime", "nanogpt", "init_from")
    for key in (name for name in OF_COPIES if sheet.given(name)):
        meaning.note(f"{key} is a name of programs made from nanoGPT, and is counted; its own train.py reads none")
    if sheet.given("n_ctx") and not sheet.given("block_size"):
        sheet.written["block_size"] = sheet.written["n_ctx"]
    elif sheet.given("n_ctx") and sheet.count("n_ctx") != sheet.count("block_size"):
        sheet.problem("n_ctx", "is not block_size", "leave one of the two out")
    sheet.get("n_ctx")
    length = sheet.count("block_size")
    meaning.say("sequence_length", length, "block_size")
    meaning.say("micro_batch_size", sheet.count("batch_size"), "batch_size")
    _model(sheet, meaning, length)
    _tell_vocabulary(meaning, program)
    other = _other_model(sheet, program)
    if other is not None:
        meaning.job.pop("model", None)
        meaning.ask("model", other)
    _devices(sheet, meaning, program)
    _optimizer(sheet, meaning, program)
    precision = sheet.word("dtype", PRECISIONS)
    if precision:
        meaning.say("precision", precision, "dtype")
        if precision == "amp-fp16":
            meaning.say("grad_scaler", True, "dtype")
    meaning.say("max_gradient_norm", sheet.number("grad_clip") or None, "grad_clip")
    if sheet.flag("compile"):
        meaning.say("compile", True, "compile")
    meaning.say("activation_checkpointing", "none", "model.py has none")
    meaning.say("dropout", sheet.number("dropout"), "dropout")
    device = sheet.text("device") or "cuda"
    if not device.startswith("cuda"):
        meaning.note(f"device: {device} is no GPU; the step is counted on one")


OF_MODELS = re.compile(
    r"(^n_|moe|expert|rope|rotary|norm|glu|latent|mla|mlp|ffn|attn|attention|head|layer|hidden|embd|embed|vocab|width"
    r"|depth|dim(_|$)|block|lora|adapter|freeze|frozen|distill|teacher|ref_|optim|muon|lion|batch|length|len(_|$)|size"
    r"|param|weight|precision|fp8|fsdp|flash|^pe$|llama|gemma|llava|mamba|conv|expan|rank|patch|channel|checkpointing)"
)
"""Parts of names that may say of what model, step or batch a program made from nanoGPT is."""
OF_OPTIMIZER = re.compile(r"(optim|optimizer|opt)(_(name|type|class))?")
"""How programs made from nanoGPT call the optimizer that they choose by a word."""

OF_EVALUATION = ("eval_", "val_", "test_")
"""How settings begin that say how a program evaluates, and nothing of its model."""

SLIP = 0.8  # of difflib: `blok_size` is a slip, `start` is another program's


def _passed_over(sheet: Sheet, meaning: Meaning) -> None:
    """Tell names that train.py has not: configurator.py executes the file, and nothing looks at them.

    A program made from nanoGPT may read them. What may be of the model or of a step stays not understood.
    """
    known = PROGRAM.table.known()
    for key in sheet.written:
        if _names_optimizer(sheet, key):
            sheet.taken.add(key)
            meaning.lack(key, "train.py of nanoGPT has AdamW alone, and reads no such name")
            continue
        decides = OF_MODELS.search(key) is not None or closest(key, known, 1, SLIP)
        if PROGRAM.table.class_of(key) is None and (key.startswith(OF_EVALUATION) or not decides):
            sheet.taken.add(key)
            meaning.lack(
                key, "train.py of nanoGPT reads no such name, and what another program makes of it is not counted"
            )


def _names_optimizer(sheet: Sheet, key: str) -> bool:
    """Whether a setting is the word by which a program made from nanoGPT chooses its optimizer."""
    return OF_OPTIMIZER.fullmatch(key) is not None and isinstance(sheet.written[key].value, str)


_STEPS = re.compile(r"\b(scaler\.step\(\s*optimizer\b|optimizer\.step\()")
_STEP = re.compile(r"(?m)^\s*(?P<call>[\w.]+\.step\([^)\n]*\))")


def _optimizer(sheet: Sheet, meaning: Meaning, program: str | None) -> None:
    """Say AdamW, unless a program made from nanoGPT steps another optimizer, or reads a setting with the name of one.

    `program`: the text of its `train.py`.
    """
    other = None if program is None or _STEPS.search(program) else _STEP.search(program)
    if other is not None:
        meaning.ask("optimizer", f"the train.py around the file steps by {other['call']} (--optimizer NAME)")
        return
    for key in meaning.lacking:
        word = str(sheet.written[key].value).lower().replace("_", "-") if key in sheet.written else ""
        if word != "adamw" and (word in OPTIMIZERS or (word and _names_optimizer(sheet, key))):
            usual = word if word in OPTIMIZERS else "NAME"
            meaning.ask("optimizer", f"{key} is {word}, which train.py of nanoGPT reads nowhere (--optimizer {usual})")
            return
    meaning.say("optimizer", "adamw", "model.py configure_optimizers")


def _model(sheet: Sheet, meaning: Meaning, length: int | None) -> None:
    start = sheet.text("init_from") or "scratch"
    sizes = (sheet.count("n_layer"), sheet.count("n_head"), sheet.count("n_embd"))
    dataset = sheet.text("dataset") or ""
    sheet.flag("bias")
    if start.startswith("gpt2"):
        meaning.say("model", start, "init_from")
        return
    if start not in ("scratch", "resume"):
        sheet.problem(
            "init_from", f"{start!r} is not understood", "scratch, resume, gpt2, gpt2-medium, gpt2-large or gpt2-xl"
        )
        return
    if start == "resume":
        meaning.note("init_from: resume takes the sizes of the checkpoint in out_dir; those of the file are counted")
    own = sheet.count("vocab_size")
    vocabulary = own or CHARACTERS.get(dataset)
    if sizes in PUBLISHED and vocabulary is None and length == 1024:
        meaning.say("model", PUBLISHED[sizes], "n_layer", "n_head", "n_embd")
        meaning.note(f"nanoGPT pads the vocabulary to {PADDED}, and its layers have no biases by default")
        return
    blocks, heads, width = sizes
    shape = {
        "name": f"nanogpt {blocks}x{width}",
        "family": "gpt2",
        "layers": blocks,
        "hidden_size": width,
        "attention_heads": heads,
        "intermediate_size": 4 * (width or 0),
        "vocabulary_size": vocabulary or PADDED,
        "max_positions": length,
    }
    meaning.say("model", shape, "n_layer", "n_head", "n_embd", "block_size", "vocab_size" if own else "dataset")
    if vocabulary is not None and not own:
        meaning.note(f"data/{dataset}/prepare.py finds {vocabulary} characters")
    if dataset.endswith("_char") and vocabulary is None:
        meaning.ask("model.vocabulary_size", f"data/{dataset}/meta.pkl says how many characters there are")


def _devices(sheet: Sheet, meaning: Meaning, program: str | None) -> None:
    """Say how many devices there are, and how the accumulation steps are shared; `program`: its `train.py`."""
    devices = sheet.devices
    launched = _LAUNCHED.search(sheet.source)
    if devices is None and launched:
        devices = int(launched[1]) * int(launched[2] or 1)
        meaning.note(f"a comment of the file starts it on {devices} GPUs")
    key = "gradient_accumulation_steps"
    steps = sheet.count(key)
    alone = sheet.devices is None and launched is not None and steps is not None and steps % (devices or 1) != 0
    simulates = sheet.release.version == OLD
    if program is not None:
        alone, simulates = _DIVIDES.search(program) is None, _SIMULATES.search(program) is not None
    elif alone and not simulates:
        meaning.note(f"{key}: {steps} are those of each GPU, as in train.py until 2023-04: {devices} do not divide it")
    if simulates or alone:
        if devices and devices > 1:
            meaning.say("parallel.data", devices, "the launcher")
            meaning.say("parallel.sharding", "ddp", "the launcher")
        elif steps is not None and (simulates or program is None):
            steps *= SIMULATED
        meaning.say(key, steps, key, "the launcher")
        return
    if devices and devices > 1:
        meaning.say("parallel.data", devices, "the launcher")
        meaning.say("parallel.sharding", "ddp", "the launcher")
        if steps is not None and steps % devices:
            sheet.problem(key, f"{steps} is no multiple of {devices} GPUs, as train.py asserts")
            return
        steps = None if steps is None else steps // devices
    meaning.say(key, steps, key, "the launcher")


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    at = next((place for place, word in enumerate(words) if named(word) == "train.py"), None)
    rest = words[at + 1 :] if at is not None else []
    if not rest or not all(word.text.endswith(".py") or re.match(r"--\w+=", word.text) for word in rest):
        return None
    given = next((word for word in rest if word.text.endswith(".py")), None)
    config = None if given is None else Written(given.text, file, given.line)
    if config is None and not any(re.match(r"--(n_embd|n_layer|block_size)=", word.text) for word in rest):
        return None
    return Launched(config, dict(options(rest, file)), processes(words[:at]))


PROGRAM = Program(
    "nanogpt", RELEASES, Table(UNDERSTOOD, WITHOUT_EFFECT, is_extended=True), read, recognise, started=started
)
