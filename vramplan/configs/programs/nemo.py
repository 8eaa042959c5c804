"""NeMo: a recipe in Python, or one YAML file for the scripts under `examples/nlp/language_modeling`.

Those scripts are configured by Hydra, and older than the recipes of NeMo 2.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and its variants,
examples/nlp/language_modeling/tuning/conf/megatron_gpt_finetuning_config.yaml,
nemo/collections/nlp/models/language_modeling/megatron_base_model.py and megatron_gpt_model.py (what each key does),
nemo/collections/nlp/parts/megatron_trainer_builder.py (`megatron_amp_O2`: a master copy in fp32),
nemo/core/config/hydra_runner.py (commands).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from vramplan.configs.command import Words, assigned, named, option
from vramplan.configs.neighbours import is_of_hydra
from vramplan.configs.programs import nemo_cli as cli
from vramplan.configs.programs import nemo_defaults as defaults
from vramplan.configs.programs import nemo_keys as keys_of
from vramplan.configs.programs import nemo_launcher as launcher
from vramplan.configs.programs import nemo_models as model
from vramplan.configs.programs import nemo_recipes as recipes
from vramplan.configs.programs import trainer
from vramplan.configs.programs.megatron.recomputing import whole_blocks
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet
from vramplan.configs.shell import Script
from vramplan.configs.table import ProgramRelease, Table
from vramplan.configs.written import Written

DEFAULTS: dict[str, Any] = {
    "trainer.devices": 1,
    "trainer.num_nodes": 1,
    "model.tensor_model_parallel_size": 1,
    "model.pipeline_model_parallel_size": 1,
    "model.context_parallel_size": 1,
    "model.expert_model_parallel_size": 1,
    "model.megatron_amp_O2": False,
    "model.optim.name": "fused_adam",
    "model.peft.lora_tuning.adapter_dim": 32,
    "model.peft.lora_tuning.adapter_dropout": 0.0,
    "model.fsdp_sharding_strategy": "full",
}
RELEASES = (
    ProgramRelease(
        "2.5.0",
        "2025-09-20",
        "NVIDIA/NeMo 2.5.0rc0 (8cfedd72), examples/nlp/language_modeling/conf/megatron_gpt_config.yaml",
        {**DEFAULTS, **recipes.DEFAULTS},
    ),
)

HALVES = {
    **dict.fromkeys(("bf16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("16", "16-mixed", "16-true", "fp16"), "fp16"),
    **dict.fromkeys(("32", "32-true", "fp32"), "fp32"),
}
OPTIMIZERS = {
    "fused_adam": "adam",
    "adam": "adam",
    "adamw": "adamw",
    "distributed_fused_adam": "adam",
    "mcore_distributed_optim": "adam",
    "megatron_fused_adam": "adam",
    "sgd": "sgd",
    "adafactor": "adafactor",
}
GRADIENTS = {**HALVES, "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float": "fp32", "half": "fp16"}
ALIGNER = ("sft", "rm", "dpo", "kto", "knowledge_distillation")
"""Parts of `trainer` in files of NeMo-Aligner, whose own loops clip gradients."""

DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")
TARGETS = {
    "attention_qkv": ("q_proj", "k_proj", "v_proj"),
    "attention_dense": ("o_proj",),
    "mlp_fc1": ("gate_proj", "up_proj"),
    "mlp_fc2": ("down_proj",),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


_LOADS = ("gpt_model_file", "megatron_amp_O2", "inference.greedy", "common_inference_params.top_k")
"""Keys of files that load a checkpoint to generate, to evaluate or to export."""


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are NeMo's alone."""
    own: tuple[str, ...]
    own = ("model.megatron_amp_O2", "model.tensor_model_parallel_size", "model.encoder_seq_length", "trainer.num_nodes")
    own += ("trainer.strategy._class", "trainer.strategy.tensor_model_parallel_size", "data.micro_batch_size")
    found = sum(name in keys for name in (*own, "model.restore_from_path", "exp_manager.exp_dir"))
    return found + 10 * any(name in keys for name in _LOADS)  # such a file's degrees are named as Megatron-LM's are


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a NeMo file."""
    defaults.compose(sheet, meaning)
    if recipes.is_recipe(sheet.written):
        recipes.read(sheet, meaning)
        return
    if not _trains_text(sheet):
        return
    meaning.say("runtime", "megatron", "model.mcore_gpt")
    positions = sheet.count("model.encoder_seq_length") or sheet.count("model.seq_length")
    length, of_length = positions, "model.encoder_seq_length"
    for key, is_cut in (("model.data.train_ds.max_seq_length", True), ("model.data.seq_length", False)):
        found = sheet.written.get(key)
        if found is not None and str(found.value).isdigit() and (is_cut or length is None):
            length, of_length = sheet.count(key), key  # samples for fine-tuning are cut to their own length
            break
    sheet.taken |= {"model.data.train_ds.max_seq_length", "model.data.seq_length"}
    model.read(sheet, meaning, positions or length)
    if length:
        meaning.say("sequence_length", length, of_length)
    else:
        meaning.ask("sequence_length", "the file has no model.encoder_seq_length (--seq N)")
    _batch(sheet, meaning)
    _numbers(sheet, meaning)
    _checkpointing(sheet, meaning)
    if sheet.flag("model.use_flash_attention"):
        meaning.say("attention", "flash", "model.use_flash_attention")
    _adapter(sheet, meaning)


_IMAGES, _SAMPLES = "a job has no word for a model of images alone", "sampling answers beside training is not modelled"
_OTHER = "it is for another kind of model, which is not modelled"
_FROZEN = "what is trained stands beside a frozen model, which is not modelled"
_TRANSLATES = "a model of its own for translation, with a tokenizer for each language, is not modelled"
_RECURRENT = "model.activations_checkpoint_recurrent"  # of Griffin's recurrent layers
OTHERS = {
    **dict.fromkeys(("model.unet_config", "model.first_stage_config", "model.vision.num_layers"), _IMAGES),
    **dict.fromkeys(("model.unet", "model.patch_dim"), _IMAGES),
    **dict.fromkeys(("trainer.ppo", "trainer.reinforce", "trainer.rs", "trainer.spin"), _SAMPLES),
    **dict.fromkeys(("base_model.version", "model.head.num_fc_layers", "model.language_model", "model.retro"), _OTHER),
    "model.perception": "a model of speech before a language model is not modelled",
    **dict.fromkeys(("model.virtual_prompt_style", "model.prompt_tuning"), _FROZEN),
    **dict.fromkeys(("model.adapter_tuning", "model.ia3_tuning", "model.p_tuning"), _FROZEN),
    **dict.fromkeys(("model.encoder_tokenizer", "model.decoder_tokenizer"), _TRANSLATES),
    _RECURRENT: _OTHER,
}
"""Keys of files that train no language model on a data set, and why each is refused."""


_EVALUATES = ("model.data.test_ds.", "model.data.validation_ds.")


def _trains_text(sheet: Sheet) -> bool:
    """Refuse files of models without a word here, and those that only generate or evaluate."""
    for key, why in OTHERS.items():
        if key == _RECURRENT and "model.hybrid_override_pattern" in sheet.written:
            continue  # of Mamba's files, which have it too
        found = next((one for one in sheet.written if one == key or one.startswith(f"{key}.")), None)
        if found is not None:
            sheet.refuse(found, why, "give the file of a language model that trains on texts")
            return False
    frozen = "model.mm_cfg.llm.freeze"
    if frozen in sheet.written and sheet.flag(frozen):
        why = "what is trained stands between an encoder of images and a frozen language model, which is not modelled"
        sheet.refuse(frozen, why, "give the file of a language model that trains on texts")
        return False
    steps = any(key.startswith(("model.optim.", "model.data.train_ds.")) for key in sheet.written)
    tests = next((key for key in sheet.written if key.startswith(("inference.", *_EVALUATES))), None)
    trains = steps or ((tests is None or not tests.startswith(_EVALUATES)) and "trainer.max_steps" in sheet.written)
    if all(key in sheet.written for key in ("top_k", "output_path")):  # compute_topk_logits.py of NeMo-Aligner
        tests, trains = "top_k", False
    if tests is None and not any(key.startswith("model.") for key in sheet.written):
        tests, trains = next((key for key in sheet.written if key in _LOADS), None), False
    if tests is not None and not trains:
        sheet.refuse(tests, "the file generates or evaluates and trains nothing", "give the file of a training run")
        return False
    return True


def _batch(sheet: Sheet, meaning: Meaning) -> None:
    for key in ("model.hidden_dropout", "model.attention_dropout", "model.ffn_dropout", "model.rampup_batch_size"):
        sheet.get(key)
    sizes = {
        "parallel.tensor": "model.tensor_model_parallel_size",
        "parallel.pipeline": "model.pipeline_model_parallel_size",
        "parallel.context": "model.context_parallel_size",
        "parallel.expert": "model.expert_model_parallel_size",
    }
    degrees = {}
    for ours, key in sizes.items():
        degrees[ours] = sheet.count(key) or 1
        if degrees[ours] == 1 and ours == "parallel.tensor" and sheet.given("model.model_parallel_size"):
            degrees[ours], key = sheet.count("model.model_parallel_size") or 1, "model.model_parallel_size"
        if degrees[ours] > 1:
            meaning.say(ours, degrees[ours], key)
    if sheet.flag("model.sequence_parallel") and degrees["parallel.tensor"] > 1:
        meaning.say("parallel.sequence_parallel", True, "model.sequence_parallel")
    chunks = sheet.count("model.virtual_pipeline_model_parallel_size")
    if chunks and chunks > 1:
        meaning.say("parallel.schedule", f"interleaved:{chunks}", "model.virtual_pipeline_model_parallel_size")
    each = degrees["parallel.tensor"] * degrees["parallel.pipeline"] * degrees["parallel.context"]
    trainer.renamed(sheet, {"trainer.gpus": "trainer.devices"})  # of Lightning 1
    devices = sheet.text("trainer.devices") or "1"
    world = sheet.devices or ((sheet.count("trainer.num_nodes") or 1) * int(devices) if devices.isdigit() else 0)
    sheet.count("trainer.num_nodes")
    data = world // each if world and world % each == 0 else 0
    if data:
        meaning.say("parallel.data", data, "trainer.devices", "trainer.num_nodes")
    else:
        meaning.ask("parallel.data", f"the file starts {world or 'all'} GPUs, and groups of {each} (--gpus N)")
        if world:
            meaning.note(f"trainer.devices x trainer.num_nodes is {world}, and {each} GPUs are needed")
        data = max(1, degrees["parallel.expert"] // degrees["parallel.context"])  # the fewest that experts need
    of = ["model.micro_batch_size", "model.global_batch_size"]
    for place, name in enumerate(of):  # NeMo-Aligner's files for SFT have them with the data
        own = name.replace("model.", "model.data.train_ds.")
        if sheet.given(own) and not sheet.given(name):
            of[place] = own
        sheet.get(own)
    micro, total = (sheet.count(name) for name in of)
    sheet.count("trainer.accumulate_grad_batches")
    if micro:
        meaning.say("micro_batch_size", micro, of[0])
    if micro and total:
        if total % (micro * data):
            message = f"{total} is no multiple of {micro} samples x {data} data-parallel devices"
            sheet.problem(of[1], message)
        else:
            meaning.say("gradient_accumulation_steps", total // (micro * data), of[1])


def _numbers(sheet: Sheet, meaning: Meaning) -> None:
    half = sheet.word("trainer.precision", HALVES, "32")
    master = sheet.flag("model.megatron_amp_O2")
    sheet.flag("model.fp8_hybrid")
    sheet.flag("model.fp8_e4m3")
    of = ("trainer.precision", "model.megatron_amp_O2")
    if sheet.flag("model.fp8"):
        meaning.say("precision", "fp8", "model.fp8")
    elif half == "fp32":
        meaning.say("precision", "fp32", *of)
    elif half:
        meaning.say("precision", f"{'mixed' if master else 'amp'}-{half}", *of)
    name = sheet.text("model.optim.name") or ""
    word = sheet.word("model.optim.name", OPTIMIZERS)
    if word:
        meaning.say("optimizer", word, "model.optim.name")
    if name in DISTRIBUTED:
        meaning.say("parallel.sharding", "distributed-optimizer", "model.optim.name")
    _gradients(sheet, meaning, half if master and name in DISTRIBUTED else None)
    strategy = sheet.text("model.fsdp_sharding_strategy") or "full"
    if sheet.flag("model.fsdp"):
        words = {"full": "fsdp", "grad": "fsdp-grad-op", "hybrid": "hsdp:8"}
        meaning.say("parallel.sharding", words.get(strategy, "fsdp"), "model.fsdp", "model.fsdp_sharding_strategy")
        meaning.say("parallel.fsdp_version", 1, "model.fsdp")
    clips = ("trainer.gradient_clip_val", *(f"trainer.{part}.gradient_clip_val" for part in ALIGNER))
    norms = {key: sheet.number(key) for key in clips}
    if of_dpo := [key for key in sheet.written if key == "model.dpo" or key.startswith("model.dpo.")]:
        meaning.say("loss", "dpo", of_dpo[0])
        _reference(sheet, meaning, of_dpo[0])
    kind = sheet.text("model.reward_model_type")  # NeMo-Aligner, examples/nlp/gpt/train_reward_model.py
    if kind == "binary_ranking":
        meaning.say("loss", "reward", "model.reward_model_type")
    elif kind is not None:
        meaning.lack("model.reward_model_type", f"{kind} scores single answers, and a language model's loss is counted")
    if any(key.startswith("model.kto.") for key in sheet.written):
        meaning.say("loss", "kto", "model.kto")
        _reference(sheet, meaning, "model.kto")
    if (sheet.count("model.num_moe_experts") or 1) > 1 and sheet.number("model.moe_expert_capacity_factor"):
        factor = sheet.number("model.moe_expert_capacity_factor")
        meaning.say("expert_capacity_factor", factor, "model.moe_expert_capacity_factor")
        if sheet.flag("model.moe_pad_expert_input_to_capacity"):
            meaning.say("expert_pad_to_capacity", True, "model.moe_pad_expert_input_to_capacity")
    clip = next((key for key in reversed(clips) if norms[key]), clips[0])
    meaning.say("max_gradient_norm", norms[clip] or None, clip)


def _gradients(sheet: Sheet, meaning: Meaning, half: str | None) -> None:
    """Say in which element type gradients are summed, where the file does and it is not what the precision has.

    Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), megatron_gpt_model.py, setup_mcore_distributed_parallel, and
    core/optim/distributed_adam.py.
    """
    key = "model.optim.grad_sync_dtype"
    summed = sheet.word(key, GRADIENTS) if sheet.given(key) else None
    if (half, summed) in (("bf16", "bf16"), ("fp16", "fp32")):
        meaning.say("gradient_dtype", summed, key)


def _checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    granularity = sheet.text("model.activations_checkpoint_granularity")
    method = sheet.text("model.activations_checkpoint_method")
    if granularity is None and "model.activations_checkpoint_granularity" not in sheet.written and method is not None:
        granularity = "full"  # of files up to July 2022, where the method alone said it
        meaning.note("activations_checkpoint_method without a granularity: whole blocks, as in releases before 1.11")
    each = 1
    if granularity == "full":  # another reads none
        count = sheet.count("model.activations_checkpoint_num_layers")
        each = count if count or (count == 0 and method == "block") else 1
    sheet.get("model.activations_checkpoint_num_layers")
    of = ("model.activations_checkpoint_granularity", "model.activations_checkpoint_num_layers")
    if granularity == "selective":
        meaning.say("activation_checkpointing", "selective", of[0])
    elif granularity == "full":
        layers = sheet.count("model.num_layers")
        whole_blocks(meaning, method, each, layers, *of, method_key="model.activations_checkpoint_method")
    elif granularity in (None, "null", "None"):
        meaning.say("activation_checkpointing", "none", of[0])
    else:
        sheet.problem(of[0], f"{granularity!r} is not understood", "full, selective or null")


def _reference(sheet: Sheet, meaning: Meaning, key: str) -> None:
    """The weights of the reference lie on the host, and take the place of the policy's before a step.

    Source: NVIDIA/NeMo-Aligner 0.7.0, examples/nlp/gpt/train_gpt_dpo.py; nemo_aligner/algorithms/dpo.py,
    augment_dataloader; models/nlp/gpt/megatron_gpt_dpo_model.py, get_ref_policy_logprobs.
    """
    whole = (sheet.text("model.peft.peft_scheme") or "none").lower() in ("none", "null")
    meaning.say("dpo_reference", "precomputed" if whole else "adapter-off", key, "model.peft.peft_scheme")


def _adapter(sheet: Sheet, meaning: Meaning) -> None:
    scheme = (sheet.text("model.peft.peft_scheme") or "").lower()
    rank, dropout = (
        sheet.count("model.peft.lora_tuning.adapter_dim"),
        sheet.number("model.peft.lora_tuning.adapter_dropout"),
    )
    named = sheet.texts("model.peft.lora_tuning.target_modules") or ["attention_qkv"]
    alpha = sheet.get("model.peft.lora_tuning.alpha")
    if sheet.flag("model.data.train_ds.packed_sequence"):
        meaning.say("packing", True, "model.data.train_ds.packed_sequence")
        meaning.say("attention", "flash", "model.data.train_ds.packed_sequence")  # it takes lengths alone
    if scheme in ("", "none", "null"):
        return
    if scheme in ("adapter", "ptuning", "ia3", "selective", "mora"):
        why = f"peft_scheme {scheme} trains modules beside a frozen model that a job has no key for"
        meaning.ask("adapter.kind", f"{why}; those of LoRA are near (--adapter lora --rank N --targets NAMES)")
        return
    if scheme not in ("lora", "qlora"):
        sheet.problem("model.peft.peft_scheme", f"{scheme!r} is not understood", "lora, or null")
        return
    targets: Any = []
    for name in named:
        if name == "all":
            targets = "all-linear"
            break
        if name not in TARGETS:
            sheet.problem("model.peft.lora_tuning.target_modules", f"{name!r} is not understood", ", ".join(TARGETS))
            continue
        targets += TARGETS[name]
    meaning.say("adapter.kind", "lora", "model.peft.peft_scheme")
    meaning.say("adapter.rank", rank, "model.peft.lora_tuning.adapter_dim")
    meaning.say("adapter.targets", targets, "model.peft.lora_tuning.target_modules")
    meaning.say("adapter.dropout", dropout, "model.peft.lora_tuning.adapter_dropout")
    number = int(alpha) if str(alpha).isdigit() else rank
    meaning.say("adapter.alpha", number, "model.peft.lora_tuning.alpha")
    if "attention_qkv" in named:
        meaning.note("attention_qkv is one layer in NeMo; its adapter is counted as one each for q, k and v")


TABLE = Table(
    keys_of.UNDERSTOOD | model.UNDERSTOOD | recipes.UNDERSTOOD,
    keys_of.WITHOUT_EFFECT | recipes.WITHOUT_EFFECT | launcher.WITHOUT_EFFECT,
    {**keys_of.UNMODELLED, **recipes.UNMODELLED},
)
HYDRA = {
    "megatron_gpt_pretraining.py": "megatron_gpt_config",
    "megatron_gpt_finetuning.py": "megatron_gpt_finetuning_config",
}
HYDRA |= {"megatron_bert_pretraining.py": "megatron_bert_config", "megatron_t5_pretraining.py": "megatron_t5_config"}
"""The files that NeMo's scripts take without `--config-name`."""


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    launched = launcher.started(words, file) or cli.started(words, file)
    if launched is not None:
        return launched
    folder, name = (option(words, key, file) for key in ("--config-path", "--config-name"))
    at = next((word for word in words if named(word) in HYDRA), None)
    module = next((word.text for before, word in pairwise(words) if before.text == "-m"), "nemo")
    if (name is None and at is None) or not module.startswith(("nemo", "torch.")):
        return None
    if at is None and any(is_of_hydra(word.text, file) for word in words if word.text.endswith(".py")):
        return None
    if name is None and at is not None:
        name = Written(HYDRA[named(at)], file, at.line)
    assert name is not None
    path = str(name.value) if str(name.value).endswith((".yaml", ".yml")) else f"{name.value}.yaml"
    if folder is not None:
        path = f"{str(folder.value).rstrip('/')}/{path}"
    return Launched(name._replace(value=path), assigned(words, file), None)


PROGRAM = Program("nemo", RELEASES, TABLE, read, recognise, started=started)
