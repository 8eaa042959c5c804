"""Megatron-LM, and Megatron-DeepSpeed."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="megatron",
    families={
        **dict.fromkeys(("gpt2", "llama", "bloom", "mixtral"), "vramplan.engines.megatron.model"),
        **dict.fromkeys(
            ("starcoder2", "gemma", "qwen_moe", "chatglm", "phi3", "nemotron", "ministral3"),
            "vramplan.engines.megatron.alike",
        ),
        "megatron_gpt": "vramplan.engines.megatron.any_model",
        "bert": "vramplan.engines.megatron.bert_model",
        "deepseek": "vramplan.engines.megatron.latent",
        **dict.fromkeys(("glm4_moe", "llama4"), "vramplan.engines.megatron.mixtures"),
        "olmoe": "vramplan.engines.megatron.olmoe_model",
        "falcon": "vramplan.engines.megatron.beside",
        "gemma2": "vramplan.engines.megatron.bounded",
        "gemma3": "vramplan.engines.megatron.sandwich",
        "gpt_oss": "vramplan.engines.megatron.sinks",
        "qwen3_next": "vramplan.engines.megatron.delta_blocks",
        "nemotron_h": "vramplan.engines.megatron.hybrid",
        "t5": "vramplan.engines.megatron.t5_model",
    },
    only_own_code=True,
    rules=(
        "vramplan.engines.megatron.fp8",
        "vramplan.engines.megatron.context_parallel",
        "vramplan.engines.megatron.delta_kernels",
        "vramplan.engines.megatron.token_dispatcher",
        "vramplan.engines.megatron.expert_capacity",
        "vramplan.engines.megatron.tensor_parallel",
        "vramplan.engines.megatron.vocabulary",
    ),
    behaviour={
        "answers": "vramplan.engines.megatron.answers:BEHAVIOUR",
        "job": "vramplan.engines.megatron.job:BEHAVIOUR",
        "planner": "vramplan.engines.megatron.planner:BEHAVIOUR",
        "settings": "vramplan.engines.megatron.settings:BEHAVIOUR",
        "time": "vramplan.engines.megatron.time:BEHAVIOUR",
    },
)
