"""verl's trainers of PPO, GRPO and their kin: `python3 -m verl.trainer.main_ppo key=value`, and the YAML of its keys.

The update of the policy under FSDP is read. The inference engine samples on the same GPUs and sleeps meanwhile, unless
`free_cache_engine` is off; a critic trains in turn. Megatron's workers are refused.

Source: volcengine/verl 0.7.0 (b178a3cd), verl/trainer/config/ppo_trainer.yaml with the files that its `defaults` name
(keys and defaults), verl/workers/fsdp_workers.py (`__init__`: batches of a GPU; `_build_model_optimizer`: fp32 weights
gathered in bf16, gradients reduced in fp32, the reference model always on the host; `update_actor`: states that were
put on the host come back), verl/workers/actor/dp_actor.py (`update_policy`); ppo_trainer.yaml of February 2025, whose
values are the same but for `use_remove_padding`.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.programs import sampling
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import names

MODULE = "verl.trainer.main_ppo"
FILE = "verl/trainer/config/ppo_trainer.yaml"
MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout"))

UNDERSTOOD = names(
    f"""
    {MODEL}.path {MODEL}.enable_gradient_checkpointing {MODEL}.lora_rank {MODEL}.lora_alpha {MODEL}.target_modules
    {MODEL}.use_liger {MODEL}.use_remove_padding {MODEL}.override_config.attn_implementation
    {ACTOR}.strategy {ACTOR}.ppo_mini_batch_size {ACTOR}.ppo_micro_batch_size {ACTOR}.ppo_micro_batch_size_per_gpu
    {ACTOR}.use_dynamic_bsz {ACTOR}.ppo_max_token_len_per_gpu {ACTOR}.grad_clip
    {ACTOR}.ulysses_sequence_parallel_size {ACTOR}.optim.optimizer {ACTOR}.fsdp_config.param_offload
    {ACTOR}.fsdp_config.optimizer_offload {ACTOR}.fsdp_config.offload_policy {ACTOR}.fsdp_config.reshard_after_forward
    {ACTOR}.fsdp_config.fsdp_size {ACTOR}.fsdp_config.model_dtype {ROLLOUT}.n {ROLLOUT}.name
    {ROLLOUT}.gpu_memory_utilization {ROLLOUT}.free_cache_engine algorithm.adv_estimator trainer.n_gpus_per_node
    trainer.nnodes reward_model.enable data.max_prompt_length data.max_response_length
    """
)
WITHOUT_EFFECT = names(
    f"""
    actor_rollout_ref.hybrid_engine actor_rollout_ref.nccl_timeout actor_rollout_ref.ref.* {ROLLOUT}.*
    {MODEL}.trust_remote_code {MODEL}.use_shm {MODEL}.external_lib {MODEL}.hf_config_path {MODEL}.tokenizer_path
    {MODEL}.custom_chat_template {MODEL}.fused_kernel_options.* {MODEL}.override_config.* {MODEL}.override_config
    {MODEL}._target_ {ACTOR}._target_ {ACTOR}.clip_* {ACTOR}.loss_* {ACTOR}.policy_loss.* {ACTOR}.kl_* {ACTOR}.use_kl_*
    {ACTOR}.ppo_epochs {ACTOR}.shuffle {ACTOR}.data_loader_seed {ACTOR}.checkpoint.* {ACTOR}.optim.*
    {ACTOR}.use_torch_compile {ACTOR}.profiler.* {ACTOR}.rollout_n {ACTOR}.fsdp_config.wrap_policy.*
    {ACTOR}.fsdp_config.forward_prefetch {ACTOR}.fsdp_config.use_orig_params {ACTOR}.tau_* {ACTOR}.router_replay.*
    {ACTOR}.use_remove_padding {ACTOR}.entropy_from_logits_with_chunking {ACTOR}.freeze_vision_tower
    critic.* reward_model.*
    algorithm.* custom_reward_function.* reward_manager.* global_profiler.* transfer_queue.* ray_kwargs.* ray_init.*
    """
)
UNMODELLED = {
    f"{MODEL}.enable_activation_offload": "activations that wait on the host: they are counted on the GPU",
    f"{MODEL}.use_fused_kernels": "probabilities without whole logits: logits are counted",
    f"{MODEL}.tiled_mlp.*": "a gated layer in parts: whole ones are counted",
    f"{MODEL}.lora_adapter_path": "an adapter that is trained on: that of lora_rank is counted",
    f"{MODEL}.exclude_modules": "layers without an adapter: all that target_modules names are counted",
    f"{ACTOR}.entropy_coeff": "the entropy of the answers, which is computed from the logits",
    f"{ACTOR}.entropy_checkpointing": "the entropy of the answers, which is computed from the logits",
    f"{ACTOR}.fsdp_config.dtype": "the type in which weights are gathered: bf16 is counted",
}
DEFAULTS: dict[str, Any] = {
    f"{MODEL}.enable_gradient_checkpointing": True,
    f"{MODEL}.lora_rank": 0,
    f"{MODEL}.lora_alpha": 16,
    f"{MODEL}.target_modules": "all-linear",
    f"{MODEL}.use_liger": False,
    f"{MODEL}.use_remove_padding": True,
    f"{MODEL}.override_config.attn_implementation": "flash_attention_2",
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.use_dynamic_bsz": False,
    f"{ACTOR}.ppo_max_token_len_per_gpu": 16384,
    f"{ACTOR}.grad_clip": 1.0,
    f"{ACTOR}.ulysses_sequence_parallel_size": 1,
    f"{ACTOR}.optim.optimizer": "AdamW",
    f"{ACTOR}.fsdp_config.offload_policy": False,
    f"{ACTOR}.fsdp_config.reshard_after_forward": True,
    f"{ACTOR}.fsdp_config.fsdp_size": -1,
    f"{ACTOR}.fsdp_config.model_dtype": "fp32",
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{ROLLOUT}.free_cache_engine": True,
    "algorithm.adv_estimator": "gae",
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
}
OF_PADDED: dict[str, Any] = {**DEFAULTS, f"{MODEL}.use_remove_padding": False}
"""Of releases before hf_model.yaml."""

VERSIONS = {"fsdp": 1, "fsdp2": 2}


def has_its_keys(keys: Any) -> bool:
    """Whether settings are of these trainers."""
    return any(key.startswith(f"{part}.") for key in keys for part in (MODEL, ACTOR))


def read(sheet: Sheet, meaning: Meaning, halves: dict[str, str], optimizers: dict[str, str]) -> None:
    """The update of the policy; `halves` and `optimizers`: words of types and of optimizers."""
    of_megatron = any(key.startswith(f"{ACTOR}.megatron.") for key in sheet.written)
    if of_megatron or sheet.get(f"{ACTOR}.strategy") not in VERSIONS:
        sheet.refuse(
            f"{ACTOR}.strategy",
            "verl's workers of Megatron are not modelled",
            "vramplan fit MODEL --runtime megatron --tensor N counts the policy's step alone",
        )
        return
    meaning.say("runtime", "transformers", f"{MODEL}.path")
    name = sheet.text(f"{MODEL}.path")
    if name is None:
        meaning.ask("model", f"nothing names {MODEL}.path (--model NAME)")
    else:
        meaning.say("model", name, f"{MODEL}.path")
    both = ("data.max_prompt_length", "data.max_response_length")
    length = sum(sheet.count(key) or 0 for key in both)
    meaning.say("sequence_length", length, *both)
    devices, split = _devices(sheet, meaning)
    _batch(sheet, meaning, length, max(1, devices // split), split)
    word = sheet.word(f"{ACTOR}.optim.optimizer", optimizers)
    if word:
        meaning.say("optimizer", word, f"{ACTOR}.optim.optimizer")
    meaning.say("max_gradient_norm", sheet.number(f"{ACTOR}.grad_clip"), f"{ACTOR}.grad_clip")
    _weights(sheet, meaning, halves)
    checkpoints = sheet.flag(f"{MODEL}.enable_gradient_checkpointing")
    meaning.say("activation_checkpointing", "full" if checkpoints else "none", f"{MODEL}.enable_gradient_checkpointing")
    kernel = sheet.text(f"{MODEL}.override_config.attn_implementation") or ""
    attention = kernel if kernel in ("sdpa", "eager") else "flash"
    meaning.say("attention", attention, f"{MODEL}.override_config.attn_implementation")
    if sheet.flag(f"{MODEL}.use_liger"):
        meaning.say("liger_kernels", ["rms-norm", "glu", "rope"], f"{MODEL}.use_liger")
    if not sheet.flag(f"{MODEL}.use_remove_padding"):
        meaning.say("padding", "right", f"{MODEL}.use_remove_padding")
    _beside(sheet, meaning)


def _devices(sheet: Sheet, meaning: Meaning) -> tuple[int, int]:
    """All GPUs, and how many of them share the parts of one batch."""
    counts = ("trainer.n_gpus_per_node", "trainer.nnodes")
    each, nodes = (sheet.count(key) or 1 for key in counts)
    devices = sheet.devices or each * nodes
    split = sheet.count(f"{ACTOR}.ulysses_sequence_parallel_size") or 1
    group = sheet.count(f"{ACTOR}.fsdp_config.fsdp_size") or -1
    stays = sheet.flag(f"{ACTOR}.fsdp_config.reshard_after_forward") is False
    word = f"hsdp:{group}" if 0 < group < devices else "fsdp-grad-op" if stays else "fsdp"
    meaning.say("parallel.sharding", word, f"{ACTOR}.fsdp_config.fsdp_size")
    version = VERSIONS[str(sheet.get(f"{ACTOR}.strategy"))]
    meaning.say("parallel.fsdp_version", version, f"{ACTOR}.strategy")
    meaning.say("parallel.reduce_dtype", "fp32", "fsdp_workers.py reduces gradients in fp32")
    meaning.say("parallel.no_sync", False, "dp_actor.py reduces gradients in every micro-step")
    meaning.say("parallel.data", max(1, devices // split), *counts)
    if split > 1:
        meaning.say("parallel.context", split, f"{ACTOR}.ulysses_sequence_parallel_size")
    for part in ("param", "optimizer"):
        if sheet.flag(f"{ACTOR}.fsdp_config.{part}_offload"):
            meaning.note(f"{ACTOR}.fsdp_config.{part}_offload: what lies on the host comes back for the update")
    if sheet.flag(f"{ACTOR}.fsdp_config.offload_policy") and version == 2:
        meaning.say("offload", ["parameters", "gradients", "optimizer"], f"{ACTOR}.fsdp_config.offload_policy")
    return devices, split


def _batch(sheet: Sheet, meaning: Meaning, length: int, replicas: int, split: int) -> None:
    """The answers of a mini-batch on one replica, in parts of so many answers or of so many tokens."""
    mini, micro = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    whole, tokens = f"{ACTOR}.ppo_micro_batch_size", f"{ACTOR}.ppo_max_token_len_per_gpu"
    answers = (sheet.count(mini) or 1) * (sheet.count(f"{ROLLOUT}.n") or 1)
    each = max(1, answers // replicas)
    size, of_all, room = sheet.count(micro), sheet.count(whole), sheet.count(tokens) or length
    of: tuple[str, ...] = (micro,)
    if sheet.flag(f"{ACTOR}.use_dynamic_bsz"):
        size, of = max(1, room * split // max(1, length)), (tokens,)
        meaning.note(f"parts of at most {room} tokens are counted as {min(size, each)} of the longest answers")
    elif of_all is not None:
        size, of = max(1, of_all // replicas), (whole,)
    if size is None:
        meaning.ask("micro_batch_size", f"nothing gives {micro}, without which verl stops (--micro-batch N)")
        meaning.ask("gradient_accumulation_steps", f"{each} answers on each GPU are run in parts of {micro}")
        return
    size = min(size, each)
    meaning.say("micro_batch_size", size, *of)
    meaning.say("gradient_accumulation_steps", -(-each // size), mini, f"{ROLLOUT}.n", *of)


def _weights(sheet: Sheet, meaning: Meaning, halves: dict[str, str]) -> None:
    """Weights of `model_dtype` that FSDP gathers in bf16, and the adapter."""
    rank, key = sheet.count(f"{MODEL}.lora_rank"), f"{ACTOR}.fsdp_config.model_dtype"
    alpha, targets = sheet.count(f"{MODEL}.lora_alpha"), sheet.texts(f"{MODEL}.target_modules") or ["all-linear"]
    word = sheet.word(key, halves)
    if word == "bf16" and not rank:
        meaning.say("precision", "pure-bf16", key)
    else:
        meaning.say("precision", "fsdp-bf16", key)
    if word == "bf16" and rank:
        meaning.say("weight_dtype", "bf16", key)
    if rank:
        meaning.say("adapter.kind", "lora", f"{MODEL}.lora_rank")
        meaning.say("adapter.rank", rank, f"{MODEL}.lora_rank")
        whole = targets == ["all-linear"]
        meaning.say("adapter.targets", "all-linear" if whole else targets, f"{MODEL}.target_modules")
        meaning.say("adapter.alpha", alpha, f"{MODEL}.lora_alpha")
        meaning.say("adapter.dropout", 0.0, "PEFT's LoraConfig")


def _beside(sheet: Sheet, meaning: Meaning) -> None:
    """What is on the GPUs beside the policy: the engine, and a critic."""
    estimator = str(sheet.get("algorithm.adv_estimator"))
    method, critic = estimator.upper(), estimator == "gae"
    sampling.ask_loss(meaning, "PPO" if critic else method, more="the critic that trains in turn" if critic else "")
    if sheet.flag("reward_model.enable"):
        meaning.lack("reward_model.enable", "a reward model on the same GPUs")
    engine, share = sheet.text(f"{ROLLOUT}.name") or "", sheet.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.0
    if sheet.flag(f"{ROLLOUT}.free_cache_engine"):
        meaning.note(f"{engine} takes {share:.0%} of each GPU while it samples, and sleeps in the step that is counted")
    else:
        of_80 = f"{80 * share:g} GiB"
        what = f"{engine} keeps {share:.0%} of each GPU beside training, {of_80} of one with 80 GiB"
        meaning.ask("reserve", f"{what} (--reserve '{of_80}')")
