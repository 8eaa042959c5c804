"""Of which release a script is, by arguments of its calls that later releases refuse.

Source: huggingface/trl, tags v0.11.4 to v1.9.0, trl/trainer/sft_trainer.py, dpo_trainer.py, sft_config.py and
dpo_config.py; `tokenizer` of a trainer became `processing_class` (commit 47d08a96, 2024-10-07) and is gone in 0.16,
`max_seq_length` in 0.20, `max_prompt_length` in 0.29, and GRPO's `vllm_device` in 0.18;
huggingface/transformers 4.46 and 5.23.0, trainer.py and training_args.py, whose signatures have none of these.
"""

from __future__ import annotations

from collections.abc import Collection

from vramplan.configs.table import names
from vramplan.tuples import NamedTuple

OF_TRAINERS = names(
    """
    tokenizer max_seq_length packing dataset_text_field dataset_num_proc beta max_length max_prompt_length
    max_target_length loss_type label_pad_token_id truncation_mode generate_during_eval
    """
)
"""Arguments of TRL's trainers that are gone, or are those of their configurations, since 0.16."""

BEFORE_5 = names(
    """
    overwrite_output_dir save_safetensors no_cuda use_mps_device fp16_backend half_precision_backend fp16_opt_level
    per_gpu_train_batch_size per_gpu_eval_batch_size jit_mode_eval past_index push_to_hub_token
    """
)
"""Arguments of TrainingArguments that Transformers 5 has no more."""


class Age(NamedTuple):
    """The last release known that takes an argument. `since`: which one has it no more."""

    trl: str
    transformers: str | None
    """None where the release of Transformers is not told by it."""

    argument: str
    since: str


def age_of(of_trainer: Collection[str], of_arguments: Collection[str], *, trl: bool) -> Age | None:
    """The oldest release that an argument of a trainer, or of its configuration, tells; None where all are taken yet.

    `trl`: the trainer is one of TRL.
    """
    old = sorted(OF_TRAINERS & set(of_trainer), key=lambda name: (name != "tokenizer", name)) if trl else []
    if old:
        return Age("0.15.2", "4.53.3", old[0], "TRL 0.16")
    if "evaluation_strategy" in of_arguments:
        return Age("0.15.2", "4.53.3", "evaluation_strategy", "Transformers 4.46")
    if trl and "vllm_device" in of_arguments:
        return Age("0.16.1", "4.53.3", "vllm_device", "TRL 0.18")
    if trl and "max_seq_length" in of_arguments:
        return Age("0.19.1", "4.53.3", "max_seq_length", "TRL 0.20")
    gone = sorted(BEFORE_5 & set(of_arguments))
    if gone or (not trl and "tokenizer" in of_trainer):
        return Age("0.25.0", "4.53.3", gone[0] if gone else "tokenizer", "Transformers 5")
    if trl and "max_prompt_length" in of_arguments:
        return Age("0.25.0", None, "max_prompt_length", "TRL 0.29")
    return None
