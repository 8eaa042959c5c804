"""open-instruct's GRPO: `open_instruct/grpo_fast.py`, which trains a policy on the answers that vLLM samples.

What is counted is the policy on the GPUs that learn; vLLM has GPUs of its own, unless one GPU has both. Two scripts
before it, of GRPO and of PPO, have rows of a prompt and an answer in the place of packs.

Source: allenai/open-instruct main (e6c3044a), open_instruct/grpo_fast.py (main's defaults, PolicyTrainerRayProcess),
grpo_utils.py (GRPOConfig), data_loader.py (StreamingDataLoaderConfig), utils.py (get_train_ds_config); copies of 2025,
open_instruct/{grpo,ppo}_vllm_thread_ray_gtrl.py (Args, calculate_runtime_args, PolicyTrainerRayProcess).
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.programs import sampling
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import names

PROGRAM = "grpo_fast"
OLMO = "grpo"
"""The same with OLMo-core under FSDP2. Source: open_instruct/grpo_olmo_core_actor.py, PolicyTrainerOLMoCoreProcess."""

OLDER = {
    "grpo_vllm_thread_ray_gtrl": ("GRPO", "the reference policy"),
    "ppo_vllm_thread_ray_gtrl": ("PPO", "the reference policy, the value model and the reward model"),
}
"""Scripts before it: their methods, and what is beside the policy."""

OF_FILES = ("pack_length", "num_samples_per_prompt_rollout")
"""Keys of which a file of settings for it has one."""

UNDERSTOOD = names(
    """
    pack_length response_length max_prompt_token_length local_mini_batch_size actor_num_gpus_per_node
    deepspeed_stage deepspeed_offload_param deepspeed_offload_optimizer num_learners_per_node
    load_ref_policy single_gpu_mode num_mini_batches
    """
)
WITHOUT_EFFECT = names(
    """
    apply_* non_stop_penalty* ground_truths_key local_eval_every kl_estimator save_freq save_traces
    checkpoint_state_* stop_strings stop_token mask_truncated_completions code_* llm_judge_* tools tool_* max_tool_calls
    pass_tools_to_chat_template search_api_* system_prompt_* clip_higher clip_lower advantage_normalization_type
    backend_timeout no_filter_zero_std_samples filter_zero_std_samples no_resampling_pass_rate eval_on_step_0
    eval_pass_at_k eval_top_p number_samples_per_prompt add_r1_style_format_reward reward_* penalty_reward_value
    pool_size beaker_eval_freq remap_verifier masked_mean_axis max_active_rubrics rho_* per_turn_max_tokens
    only_reward_good_outputs num_training_steps max_steps temperature num_samples_per_prompt_rollout
    num_unique_prompts_rollout active_sampling async_steps inflight_updates oe_eval_* no_try_launch_* try_launch_*
    set_weight_decay_on_bias_and_norm additive_format_reward verification_reward record_entropy warmup_steps
    min_response_length whiten_rewards gamma lam cliprange cliprange_value vf_coef num_epochs warm_up_steps eps
    local_rollout_batch_size truncated_importance_* enable_prefix_caching async_mode value_model_revision
    length_penalty* update_progress_every active_fill_completions no_resample_solve_rate ref_policy_update_freq
    launcher.active launcher.env launcher.artifact_ttl launcher.gpus launcher.extra arithmetic_reward
    """
)
UNMODELLED = {
    "vllm_gpu_memory_utilization": sampling.SHARE,
    "vllm_*": "an inference engine beside training",
    "rm_*": "a reward model, in copies of open-instruct",
    "use_fp8_kv_cache": "an inference engine beside training",
    "local_rollout_forward_batch_size": "how many answers are scored at a time",
    "inference_batch_size": "an inference engine beside training",
    "gather_whole_model": "how weights are handed to vLLM",
    "deepspeed_zpg": "ZeRO++: weights are kept in each node too",
    "allow_world_padding": "packs that pad the last step",
}
DEFAULTS: dict[str, Any] = {
    "pack_length": 512,
    "per_device_train_batch_size": 1,
    "deepspeed_stage": 0,
    "response_length": 53,
    "max_prompt_token_length": 256,
    "local_mini_batch_size": 64,
}


def read(sheet: Sheet, meaning: Meaning, program: str = PROGRAM) -> None:
    """The policy's step; the runtime and the model are said already."""
    micro = "per_device_train_batch_size"
    meaning.say("micro_batch_size", _count(sheet, micro), _of(sheet, micro))
    if program in OLDER:
        both, rows = ("max_prompt_token_length", "response_length"), "local_mini_batch_size"
        meaning.say("sequence_length", sum(_count(sheet, key) for key in both), *both)
        meaning.say("padding", "right", "program")
        steps = max(1, _count(sheet, rows) // _count(sheet, micro))
        meaning.say("gradient_accumulation_steps", steps, rows, micro)
    else:
        key = "pack_length"
        meaning.say("sequence_length", _count(sheet, key), _of(sheet, key))
        meaning.say("packing", True, key)
        mini = sheet.count("num_mini_batches") or 1
        meaning.ask("gradient_accumulation_steps", f"the packs of a step on each GPU, in {mini} parts")
        sheet.get("response_length"), sheet.get("max_prompt_token_length")
    norm = sheet.number("max_grad_norm", 1.0)
    meaning.say("max_gradient_norm", norm or None, _of(sheet, "max_grad_norm"))
    sheet.flag("gradient_checkpointing")
    if program != OLMO:  # whose checkpoints are said already
        meaning.say("activation_checkpointing", "full", f"{PROGRAM}.py")
    kernel = sheet.text("attn_implementation") or ""
    meaning.say("attention", kernel if kernel in ("sdpa", "eager") else "flash", _of(sheet, "attn_implementation"))
    meaning.say("optimizer", "adamw", f"{PROGRAM}.py")
    if program == OLMO:
        _devices_of_olmo(sheet, meaning)
    else:
        meaning.say("precision", "mixed-bf16", f"{PROGRAM}.py")
        _devices(sheet, meaning, "actor_num_gpus_per_node" if program in OLDER else "num_learners_per_node")
    if sheet.flag("single_gpu_mode"):
        meaning.lack(
            "single_gpu_mode", "vLLM is on the same GPU, with the share of it that vllm_gpu_memory_utilization says"
        )
    kept = sheet.flag("load_ref_policy") is not False
    method, more = OLDER.get(program, ("GRPO", "the reference policy" if kept else ""))
    sampling.ask_loss(meaning, method, more=more)
    for name in ("beta", "fused_optimizer", "max_token_length"):
        sheet.get(name)


def _devices(sheet: Sheet, meaning: Meaning, key: str) -> None:
    stage, context = _count(sheet, "deepspeed_stage"), sheet.count("sequence_parallel_size") or 1
    learners = [int(word) for word in sheet.texts(key) or ["1"] if word.isdigit()]
    devices = max(1, sum(learners) // context)
    if context > 1:
        meaning.say("parallel.context", context, "sequence_parallel_size")
        meaning.lack("sequence_parallel_size", "ulysses splits heads, and a ring is counted")
    meaning.say("parallel.data", devices, _of(sheet, key))
    offload = ["optimizer", "gradients"] if sheet.flag("deepspeed_offload_optimizer") else []
    offload += ["parameters"] if sheet.flag("deepspeed_offload_param") else []
    if stage:
        meaning.say("parallel.sharding", f"zero{stage}", "deepspeed_stage")
        if offload:
            meaning.say("offload", offload, "deepspeed_offload_optimizer", "deepspeed_offload_param")
    elif devices > 1:
        meaning.say("parallel.sharding", "ddp", _of(sheet, "deepspeed_stage"))


def _devices_of_olmo(sheet: Sheet, meaning: Meaning) -> None:
    """Groups of one node each share the model, unless degrees say which do; one device shares it with nobody."""
    key, alone = "num_learners_per_node", bool(sheet.flag("single_gpu_mode"))
    for other in ("deepspeed_stage", "deepspeed_offload_param", "deepspeed_offload_optimizer"):
        sheet.get(other)
    learners = [int(word) for word in sheet.texts(key) or ["1"] if word.isdigit()] or [1]
    devices = 1 if alone else sum(learners)
    meaning.say("parallel.data", devices, "single_gpu_mode" if alone else _of(sheet, key))
    shards, replicas = sheet.count("fsdp_shard_degree"), sheet.count("fsdp_num_replicas")
    if alone:
        meaning.say("precision", "pure-bf16", "single_gpu_mode")
        return
    if devices == 1:
        meaning.ask("precision", f"one learner outside of single_gpu_mode has the type of {OLMO}.py (--precision)")
        return
    shards = shards or (devices // replicas if replicas else learners[0])
    word = "fsdp" if shards >= devices else f"hsdp:{shards}"
    given = tuple(one for one in ("fsdp_shard_degree", "fsdp_num_replicas") if sheet.given(one)) or (_of(sheet, key),)
    meaning.say("parallel.sharding", word, *given)
    meaning.say("parallel.fsdp_version", 2, f"{OLMO}.py")
    meaning.say("parallel.reduce_dtype", "fp32", f"{OLMO}.py")
    meaning.say("precision", "fsdp-bf16", f"{OLMO}.py")


def _count(sheet: Sheet, key: str) -> int:
    return (sheet.count(key) if sheet.given(key) else None) or int(DEFAULTS[key])


def _of(sheet: Sheet, key: str) -> str:
    return key if sheet.given(key) else f"{PROGRAM}.py"
