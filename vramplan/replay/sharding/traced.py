"""What FSDP or its replay cannot do with a job, which is refused, and what goes with it and no traced row has."""

from __future__ import annotations

from vramplan.engines import engine_of, is_in_autocast
from vramplan.options.words import (
    ADAM_MINI,
    BITSANDBYTES_OPTIMIZERS,
    GALORE,
    LATER_TORCH_OPTIMIZERS,
    OTHER_OPTIMIZERS,
    TORCHAO_OPTIMIZERS,
    pattern_word,
)
from vramplan.replay.models import prefetches_after, shares_by_itself
from vramplan.replay.models.capable import read_weights
from vramplan.replay.models.part_names import LAYERS
from vramplan.replay.models.parts import compiles_blocks, shards_by_blocks, shards_every_selective
from vramplan.replay.sharding import way_of
from vramplan.replay.sharding.reasons import CAME, OF_STEPS
from vramplan.replay.techniques.adapters import is_saved_as, is_target
from vramplan.replay.techniques.evidence import FLAT, UNITS, given_without_rows, is_traced_with
from vramplan.replay.techniques.expert_adapters import is_over_experts
from vramplan.replay.techniques.frozen import are_whole_blocks
from vramplan.replay.techniques.trained import adapted_end, names_of
from vramplan.values.adapter_kinds import KINDS
from vramplan.values.job import OF_TORCHAO, ResolvedJob, of_torchao
from vramplan.values.parallel import DDP, FSDP, FSDP_GRAD_OP, Sharded

ELEMENTWISE = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop", *LATER_TORCH_OPTIMIZERS)
"""Each element of a shard is stepped on its own."""
BY_MATRIX = ("muon",)  # gathers each matrix of DTensors for its step (dion/muon.py; muon_fsdp2.py)

BY_SHARDS = ("lomo", GALORE)
"""LOMO's hooks are not called: it steps its shards when backward is over. GaLore multiplies DTensors; the matrices that
it decomposes are gathered (torch/distributed/tensor/_ops/_math_ops.py)."""

OF_BITSANDBYTES = BITSANDBYTES_OPTIMIZERS  # which step no DTensors
BY_TENSOR = ("adafactor",)  # to which a flat parameter is one vector, as it is one layer to LAMB and LARS

OVER_FLAT = tuple(one for one in OTHER_OPTIMIZERS if one not in ("grokadamw", "prodigy"))
"""Prodigy has numbers that are summed over the devices there (prodigyopt/prodigy.py, fsdp_in_use)."""
OVER_DTENSORS = tuple(one for one in OTHER_OPTIMIZERS if one != CAME)

SHARDED_BITS = ("nf4", "nf4-double")

FUSED, LM_HEAD = "fused", "lm_head"
OF_LORA = ("lora", "dora")  # whose products are of a layer's input and of weights that are units of FSDP1


def steps_shards(version: int) -> tuple[str, ...]:
    """Optimizers that step what a version of FSDP gives them."""
    return (
        (*ELEMENTWISE, *BY_TENSOR, *OF_BITSANDBYTES, *TORCHAO_OPTIMIZERS, ADAM_MINI, *OVER_FLAT)
        if version == 1
        else (*ELEMENTWISE, *BY_MATRIX, *OF_TORCHAO, *BY_SHARDS, *OVER_DTENSORS)
    )


def stepped_under(sharding: Sharded) -> tuple[str, ...]:
    """Optimizers that step what a way to share gives them."""
    own = sharding.kind in (FSDP, FSDP_GRAD_OP)
    return steps_shards(sharding.version) if own else way_of(sharding.kind).steps


def refused_with_shards(job: ResolvedJob) -> dict[str, str]:
    """What of a job does not go with its shards, by its key; empty where it does.

    Either the program cannot run it, or the replay does not follow it. What was never traced is no reason: under FSDP
    `untraced` of vramplan/replay/techniques/evidence.py and `composed_with_shards` tell it.
    """
    if job.sharding is None or job.sharding.kind == DDP or shares_by_itself(job.model.family):
        return {}
    if job.sharding.kind not in (FSDP, FSDP_GRAD_OP):
        return {key: word for key, word in way_of(job.sharding.kind).refused(job).items() if word}
    found = {
        # a scalar, logit_scale: torch/distributed/fsdp/_init_utils.py and _fully_shard/_fsdp_init.py raise an error
        "sharding": job.model.code if job.model.task == "contrastive" else "",
        "precision": job.precision if _has_master(job) else _of_policy(job),
        "optimizer": "" if pattern_word(job.optimizer) in steps_shards(job.sharding.version) else job.optimizer,
        "optimizer_implementation": _of_implementation(job),
        "activation_checkpointing": _of_placement(job),
        "quantization": _of_quantization(job),
        **_of_adapter(job),
        **(_of_flat_parameters(job) if job.sharding.version == 1 else {}),
    }
    return {key: word for key, word in found.items() if word}


def composed_with_shards(job: ResolvedJob) -> dict[str, str]:
    """What a job has that was not traced with its shards and composes with them, by its key."""
    if job.sharding is None or job.sharding.kind == DDP or shares_by_itself(job.model.family):
        return {}
    if job.sharding.kind not in (FSDP, FSDP_GRAD_OP):
        return {key: word for key, word in way_of(job.sharding.kind).composed(job).items() if word}
    is_traced = shards_by_blocks(job.model.family) or is_traced_with(job.model, *UNITS)
    flat = job.sharding.version == 1
    experts = flat and job.model.experts is not None
    found = {
        "model": job.model.code if experts or not is_traced else "",
        "precision": f"{job.precision} over images" if _casts_images(job) else "",
        "activation_checkpointing": _untraced_selective(job),
        "quantization": f"{job.quantization} beneath {_over_bits(job)}" if _over_bits(job) not in ("", "lora") else "",
        "compile": "true" if job.compile and not compiles_blocks(job.model.family) else "",
        "optimizer": job.optimizer if job.optimizer in BY_MATRIX or of_torchao(job) else "",
        "adapter": "over experts" if _is_over_experts(job) else "",
        "loss": given_without_rows(job, "loss", *((FLAT,) if flat else UNITS)),
        "label_smoothing": smoothing_of_the_trainer(job),
        "weight_dtype": "16 bits" if job.half_weights and job.adapter is None else "",
    }
    return {key: word for key, word in found.items() if word}


def _of_policy(job: ResolvedJob) -> str:
    """FSDP1's policy without autocast, beneath adapters whose input is cast to the type that their weights have, or a
    prefix to that of the model's.

    Source: peft 0.21.2, tuners/tuners_utils.py, BaseTunerLayer._cast_input_dtype, as tuners/lora/layer.py calls it;
    peft_model.py, PeftModel.get_prompt.
    """
    assert job.sharding is not None
    adapter = job.adapter
    if adapter is None or (adapter.kind not in OF_LORA and not adapter.is_prefix) or job.sharding.version != 1:
        return ""
    if is_in_autocast(job) or engine_of(job.runtime.engine).casts_around_step:
        return ""
    return f"{job.precision} with {adapter.kind}" if job.precision.startswith("fsdp-") else ""


def _of_implementation(job: ResolvedJob) -> str:
    """A way to step that PyTorch knows no shards of."""
    assert job.sharding is not None
    how = job.optimizer_implementation
    return f"{how} {job.optimizer}" if job.sharding.version == 2 and OF_STEPS.get((job.optimizer, how)) else ""


def smoothing_of_the_trainer(job: ResolvedJob) -> str:
    """The Trainer's label smoothing, which is made of the logits outside of the model."""
    return f"{job.label_smoothing:g}" if job.label_smoothing and engine_of(job.runtime.engine).smooths_outside else ""


def _of_flat_parameters(job: ResolvedJob) -> dict[str, str]:
    """FSDP1 wants a unit to be trained as a whole or not at all: LoRA has units of its own for that.

    Source: torch/distributed/fsdp/_flat_param.py, FlatParamHandle._validate_tensors_to_flatten.
    """
    found = {
        "adapter": _of_leaves(job),
        "loss": _of_loss(job),
        "frozen": _of_frozen(job),
        # which weights a turn finds among the thin layers' own flat parameters is not followed
        "trained_blocks": "badam over an adapter" if job.adapter is not None and job.trained_blocks == "badam" else "",
        "activation_checkpointing": _of_checkpoints(job),
        "offload": "states on the host" if job.offload and _is_wrapped_otherwise(job) else "",
    }
    return {key: word for key, word in found.items() if word}


def _of_frozen(job: ResolvedJob) -> str:
    """Whole blocks are units that are not trained.

    A thin layer of LoRA that is not trained is in the unit of its block, which is not trained either.
    """
    return "" if job.adapter is not None or are_whole_blocks(job.frozen) else ", ".join(job.frozen)


def _of_leaves(job: ResolvedJob) -> str:
    """LoRA and DoRA are wrapped by PEFT's policy, where PEFT puts them on: each weight of theirs is a module's."""
    adapter = job.adapter
    if adapter is None:
        return ""
    if job.model.published_family is not None:
        return f"{adapter.kind} of {job.runtime.name}'s own code"
    idle = next((name for name in read_weights(job.model.family) if is_target(name, adapter.targets)), None)
    if idle is not None:  # a unit that no gradient comes to
        return f"{adapter.kind} over {idle}, which never runs,"
    if end := adapted_end(names_of(job.model), adapter):
        return f"{adapter.kind} over {end}"
    if adapter.bias != "none" and names_of(job.model).has_biases:
        return f"{adapter.kind} with bias {adapter.bias}"
    return "" if KINDS[adapter.kind].own_modules else adapter.kind


def _of_loss(job: ResolvedJob) -> str:
    """A loss that takes the weight of a head that is trained, and so a unit by itself."""
    adapter = job.adapter
    if adapter is None or job.loss != FUSED or not any(is_saved_as(LM_HEAD, word) for word in adapter.modules_to_save):
        return ""
    return f"{job.loss} with a trained copy of the head"


def _of_checkpoints(job: ResolvedJob) -> str:
    """Those of several blocks where forward may be at its highest before its last block.

    Gradients of earlier micro-steps are known block by block. What forward leaves hides that, unless it goes to the
    host; and the second block of a checkpoint has one hidden state more beside it than the first of the last one.
    """
    strategy = job.activation_checkpointing or ""
    away = bool(job.offload) and job.offload_activations and job.gradient_accumulation_steps != 1
    if away and strategy not in ("none", "full"):
        return f"{strategy or 'a choice of them'} beside activations on the host and accumulation"
    return _of_placement(job)


def _of_placement(job: ResolvedJob) -> str:
    """Checkpoints that are placed by the sizes of blocks on one device."""
    strategy = job.activation_checkpointing or ""
    return strategy if strategy == "optimal" else ""


def _untraced_selective(job: ResolvedJob) -> str:
    """Selective checkpoints of which no row says that they compose: under FSDP2 rows have those of operators."""
    strategy = job.activation_checkpointing or ""
    if not strategy.startswith("selective"):
        return ""
    assert job.sharding is not None
    known = strategy in ("selective", "selective-op") or shards_every_selective(job.model.family)
    return "" if known and job.sharding.version == 2 else strategy


def _is_wrapped_otherwise(job: ResolvedJob) -> bool:
    """Blocks that are compiled, or gathered in another order, were not traced with states on the host."""
    return job.compile or prefetches_after(job.model.family)


def _of_quantization(job: ResolvedJob) -> str:
    """Weights of 4 bits shard, beneath whatever adapter there is."""
    if job.quantization not in SHARDED_BITS:
        return job.quantization or ""
    if job.sharding is not None and job.sharding.version == 1 and job.precision.startswith("fsdp-"):
        # packed as what is gathered, beside norms as they are stored: _flat_param.py, _validate_tensors_to_flatten
        return "" if job.half_weights else f"{job.quantization} beside fp32 weights"
    return ""


def _over_bits(job: ResolvedJob) -> str:
    """The kind of the adapter over weights of few bits."""
    return "" if job.quantization is None or job.adapter is None else job.adapter.kind


def _has_master(job: ResolvedJob) -> bool:
    """A master copy, which no program under FSDP makes, and fp8, of which FSDP has its own."""
    return job.precision.startswith("mixed-") or job.precision == "fp8"


def _casts_images(job: ResolvedJob) -> bool:
    """Images and sounds, which a policy of FSDP casts: vramplan/replay/sharding/cast_images.py."""
    return job.precision.startswith("fsdp-") and (job.model.takes_images or job.model.takes_audio)


def _is_over_experts(job: ResolvedJob) -> bool:
    adapter, experts = job.adapter, job.model.experts
    if adapter is None or experts is None or {*range(job.model.layers)} <= {*experts.dense_layers}:
        return False
    return is_over_experts(adapter.kind, job.model, adapter.targets)


def _of_adapter(job: ResolvedJob) -> dict[str, str]:
    adapter = job.adapter
    if adapter is None:
        return {}
    assert job.sharding is not None
    if job.sharding.version == 1 and _is_over_experts(job):
        return {"adapter": f"{adapter.kind} over experts"}
    half = job.precision.startswith("pure-") or (job.half_weights and job.precision.startswith("amp-"))
    if job.sharding.version == 2 and adapter.dtype == "fp32" and half and _are_in_one_unit(job):
        return {"adapter": "an fp32 adapter beside modules_to_save in 16 bits"}
    return {}


def _are_in_one_unit(job: ResolvedJob) -> bool:
    """Whether a block, or the root, has both an adapter and the copy of a module.

    Such a unit is of one element type: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _init_mp_dtypes.
    """
    assert job.adapter is not None
    names, words, targets = names_of(job.model), job.adapter.modules_to_save, job.adapter.targets
    if not words:
        return False
    outside = {".".join(path) for path in names.paths if path[0] != LAYERS}
    if any(is_saved_as(".".join(path), word) for path in names.paths if path[0] == LAYERS for word in words):
        return True
    left = [one for one in outside if not any(is_saved_as(one, word) for word in words)]
    return any(is_target(one, targets) for one in left if one in names.linears)
