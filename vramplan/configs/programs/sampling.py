"""Methods that train on answers which they sample themselves, as GRPO and PPO do.

The step of TRL's GRPO is a loss of jobs. For the others a job has no word, and none for what samples: an inference
engine, or the model with its keys and values. What a file says of everything else is a job all the same, so their loss
is left open and asked for.
"""

from __future__ import annotations

from vramplan.configs.sheet import Meaning, Sheet

SHARE = "the share of each GPU that vLLM takes where it runs beside training (--reserve N GiB leaves it out)"
"""What a setting of vLLM's memory means."""

VLLMS_SHARE = 0.3  # trl 1.16.0, GRPOConfig.vllm_gpu_memory_utilization


def ask_loss(meaning: Meaning, method: str, *, more: str = "") -> None:
    """Leave the loss open; `more` is what else the method has beside the policy."""
    lacking = f"that or for {more}" if more else "that"
    reason = f"{method} samples answers beside training, and a job has no key for {lacking}: a standard loss counts"
    meaning.ask("loss", f"{reason} the policy's step alone (--loss standard)")


def say_policy(meaning: Meaning, key: str) -> None:
    """The step of TRL's GRPO over padded completions, and what it leaves out."""
    meaning.say("loss", "grpo", key)
    meaning.say("padding", "right", key)
    meaning.note("the step of the policy is counted; sampling takes time and memory of its own")


def say_reference(meaning: Meaning, key: str, *, peft: bool) -> None:
    """Whom a divergence is from: with an adapter the model without it (trl 1.16.0, GRPOTrainer.__init__)."""
    meaning.say("dpo_reference", "adapter-off" if peft else "model", key)


def ask_share(sheet: Sheet, meaning: Meaning) -> None:
    """Leave open what vLLM keeps of the GPUs that train: a share of their memory, and a file names no GPU.

    Source: trl 1.16.0, trl/trainer/grpo_config.py (`vllm_mode`, which was "server" before 1.0: pull request 5255) and
    trl/generation/vllm_generation.py: with `enable_sleep_mode` the engine sleeps from the last answer to the next.
    """
    mode, share = sheet.text("vllm_mode"), sheet.number("vllm_gpu_memory_utilization", VLLMS_SHARE)
    sleeps = sheet.flag("vllm_enable_sleep_mode")
    if not sheet.flag("use_vllm") or mode != "colocate" or share is None:
        return
    if sleeps:
        meaning.note(f"vLLM takes {share:.0%} of each GPU while it samples, and sleeps during the step that is counted")
        return
    of_80 = f"{80 * share:g} GiB"
    what = f"vLLM keeps {share:.0%} of each GPU beside training, {of_80} of one with 80 GiB"
    meaning.ask("reserve", f"{what} (--reserve '{of_80}')")
