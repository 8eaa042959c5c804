"""Files of Axolotl. Its source, with the release, is named in vramplan/configs/programs/axolotl/."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.errors import InputError

QLORA = """
    base_model: NousResearch/Llama-3.2-1B
    load_in_4bit: true
    adapter: qlora
    lora_r: 16
    lora_alpha: 32
    lora_dropout: 0.05
    lora_target_linear: true
    sequence_len: 1024
    sample_packing: true
    micro_batch_size: 3
    gradient_accumulation_steps: 4
    optimizer: paged_adamw_8bit
    bf16: auto
    gradient_checkpointing: true
    attn_implementation: flash_attention_2
    datasets:
      - path: some/data
        type: alpaca
    wandb_project:
"""
FULL = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nsequence_len: 512\n"


def test_a_quantized_adapter() -> None:
    found = meant(QLORA, "a.yml")
    assert found.program == "axolotl"
    holds(
        job(QLORA, "a.yml"),
        runtime="transformers",
        model="llama-3.2-1b",
        sequence_length=1024,
        micro_batch_size=3,
        gradient_accumulation_steps=4,
        optimizer="adamw-8bit-paged",
        quantization="nf4-double",  # double quantization is always on
        precision="amp-bf16",
        weight_dtype="bf16",
        adapter__rank=16,
        adapter__targets="all-linear",
        packing=True,
        attention="flash",
        max_gradient_norm=1.0,  # the default of TrainingArguments
    )
    assert set(found.open) == {"parallel.data"}
    assert {source.key for source in found.without_effect} == {"datasets", "wandb_project"}


def test_every_value_has_the_line_it_came_from() -> None:
    values = {value.key: value for value in meant(QLORA, "a.yml").values}
    assert (values["optimizer"].sources[0].line, values["optimizer"].sources[0].key) == (12, "optimizer")
    assert values["max_gradient_norm"].sources[0].is_default
    assert values["max_gradient_norm"].sources[0].value == 1.0


def test_defaults_of_the_release() -> None:
    holds(
        job("base_model: gpt2\nsample_packing:\n", "a.yml", program="axolotl"),
        sequence_length=512,
        micro_batch_size=1,
        activation_checkpointing="none",
        optimizer="adamw",
        precision="pure-bf16",
        packing=False,
    )


@pytest.mark.parametrize(
    ("lines", "precision", "weights"),
    [
        ("", "pure-bf16", None),
        ("bf16: true\nadapter: lora\nlora_r: 8\n", "amp-bf16", "bf16"),
        ("bf16: false\nfp16: true\nadapter: lora\nlora_r: 8\n", "amp-fp16", "fp16"),
        ("bf16: false\nfloat16: true\n", "pure-fp16", None),
        ("bf16: false\n", "fp32", "fp32"),
        ("deepspeed: deepspeed_configs/zero3_bf16.json\n", "mixed-bf16", None),
        ("fsdp_version: 1\nfsdp_config:\n  offload_params: false\n", "fsdp-bf16", None),
        ("fsdp_version: 2\nfsdp_config:\n  offload_params: false\n", "pure-bf16", None),
        ("adapter: lora\nlora_r: 8\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n", "fsdp-bf16", "bf16"),
        ("fp8: true\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n", "fsdp-fp8", None),
    ],
)
def test_bf16_means_several_things(lines: str, precision: str, weights: str | None) -> None:
    holds(job(FULL + lines, "a.yml"), precision=precision, weight_dtype=weights)


def test_shards_of_fsdp2_are_fp32_in_releases_without_its_own_function() -> None:
    text = FULL + "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\n"
    holds(job(text, "a.yml", version="0.11.0"), precision="fsdp-bf16", parallel__fsdp_version=2)


def test_the_plain_zero2_offloads_the_optimizer() -> None:
    found = meant(FULL + "deepspeed: deepspeed_configs/zero2.json\n", "a.yml")
    assert found.job["parallel"]["sharding"] == "zero2"
    assert "optimizer" in found.job["offload"]
    assert found.points_to == {"deepspeed": "deepspeed_configs/zero2.json"}


def test_a_file_of_deepspeed_that_is_not_here_is_asked_for() -> None:
    assert "parallel.sharding" in meant(FULL + "deepspeed: my/own.json\n", "a.yml").open


@pytest.mark.parametrize(
    ("lines", "reentrant"),
    [
        ("gradient_checkpointing: true\n", True),  # normalize_config says so where no arguments are given
        ("gradient_checkpointing: true\ngradient_checkpointing_kwargs:\n  use_reentrant: false\n", None),
        ("gradient_checkpointing: true\nrl: dpo\n", None),
        ("gradient_checkpointing: false\n", None),
    ],
)
def test_which_checkpoints_are_reentrant(lines: str, reentrant: bool | None) -> None:
    holds(job(FULL + lines, "a.yml"), checkpoint_reentrant=reentrant)


def test_fsdp_of_a_missing_version_is_the_first() -> None:
    text = FULL + "fsdp:\n  - full_shard\n  - auto_wrap\nfsdp_config:\n  fsdp_offload_params: true\n"
    found = job(text, "a.yml")
    holds(found, parallel__sharding="fsdp", parallel__fsdp_version=1)
    assert found["offload"] == ["parameters", "gradients", "optimizer"]


def test_expressions_say_what_is_trained() -> None:
    found = job(FULL + "unfrozen_parameters:\n  - ^lm_head.weight$\n  - model.layers.2[89]+.mlp\n", "a.yml")
    assert found["frozen"] == [r"all-but:^lm_head\.weight$", r"all-but:^model\.layers\.2[89]+\.mlp"]


def test_preferences_compare_pairs() -> None:
    holds(
        job(FULL + "rl: dpo\nadapter: lora\nlora_r: 8\n", "a.yml"),
        loss="dpo",
        dpo_reference="adapter-off",
        padding="right",
    )
    holds(job(FULL + "rl: dpo\n", "a.yml"), dpo_reference="model")
    holds(job(FULL + "rl: kto\n", "a.yml"), loss="kto", dpo_reference="model", padding="right")
    holds(job(FULL + "rl: simpo\n", "a.yml"), loss="simpo", padding="right")
    holds(job(FULL + "reward_model: true\n", "a.yml"), loss="reward", padding="right")


def test_samples_of_preferences_are_not_packed() -> None:
    assert job(FULL + "sample_packing: true\n", "a.yml")["packing"] is True
    found = meant(FULL + "sample_packing: true\nrl: dpo\n", "a.yml")
    assert found.job["packing"] is False
    assert any(note.startswith("sample_packing") for note in found.notes)


def test_adapters_of_the_head_beside_those_of_the_blocks_are_told() -> None:
    text = FULL + "adapter: lora\nlora_r: 8\nlora_target_linear: true\nlora_target_modules: [{}]\n"
    assert "lora_target_modules" not in meant(text.format("q_proj, v_proj"), "a.yml").unmodelled
    found = meant(text.format("q_proj, lm_head"), "a.yml")
    assert found.job["adapter"]["targets"] == "all-linear"
    assert "lm_head" in found.unmodelled["lora_target_modules"]


def test_what_has_no_word_is_told() -> None:
    kernels = "liger_rms_norm: true\nliger_layer_norm: true\nliger_rope: true\n"
    found = meant(FULL + kernels + "liger_fused_linear_cross_entropy: true\ntiled_mlp: false\n", "a.yml")
    assert (found.job["loss"], found.job["liger_kernels"]) == ("fused", ["rms-norm", "rope"])
    assert not found.unmodelled  # a Llama has no LayerNorm
    found = meant(FULL.replace("meta-llama/Llama-3.1-8B", "google/gemma-3-4b-it") + "liger_layer_norm: true\n", "a.yml")
    assert set(found.unmodelled) == {"liger_layer_norm"}
    found = meant(FULL + "attn_implementation: flex_attention\noptimizer: sinkgd\n", "a.yml")
    assert "SDPA's is counted" in found.unmodelled["attn_implementation"]
    assert set(found.unmodelled) == {"attn_implementation", "optimizer"}


def kernels(text: str) -> list[str] | None:
    found: list[str] | None = meant(f"{FULL}{text}\n", "a.yml").job["adapter"].get("kernels")
    return found


def test_the_kernels_that_axolotl_turns_on_for_lora_are_read() -> None:
    every, lora = ["mlp", "qkv", "o"], "adapter: lora\n"
    assert kernels(lora + "trust_remote_code: false") == every
    assert kernels("adapter: qlora\nload_in_4bit: true") == every
    assert kernels(lora + "fsdp_version: 2\nfsdp_config:\n  state_dict_type: FULL_STATE_DICT") == every
    others = ("load_in_8bit: true", "lora_qkv_kernel: false", "rl: dpo", "trust_remote_code: true")
    for other in (*others, "fsdp_version: 1\nfsdp_config:\n  state_dict_type: FULL_STATE_DICT"):
        assert kernels(lora + other) is None
    assert kernels(lora + "lora_mlp_kernel: true\nlora_o_kernel: false") == ["mlp"]


def test_where_axolotl_would_stop_by_itself_is_told() -> None:
    text = FULL.replace("meta-llama/Llama-3.1-8B", "allenai/OLMo-2-1124-7B")
    found = meant(text + "adapter: lora\n", "a.yml")
    assert "kernels" not in found.job["adapter"]
    assert "stops at the attention of olmo2" in found.unmodelled["lora_qkv_kernel"]


def test_what_samples_answers_leaves_the_loss_open() -> None:
    found = meant(FULL + "rl: ebft\n", "a.yml")
    assert "loss" not in found.job
    assert found.open["loss"].startswith("EBFT samples answers")


@pytest.mark.parametrize("method", ["grpo", "gdpo"])
def test_grpo_is_the_step_of_trls(method: str) -> None:
    """A prompt is as long as its data make it: `sequence_len` cuts none of GRPO's."""
    text = FULL + f"rl: {method}\ntrl:\n  max_completion_length: 256\n  num_generations: 4\n  temperature: 0.7\n"
    found = meant(text, "a.yml")
    assert (found.job["loss"], found.job["padding"]) == ("grpo", "right")
    assert "dpo_reference" not in found.job
    assert "trl.max_completion_length (256)" in found.open["sequence_length"]
    assert not found.unmodelled
    beside = text + "  beta: 0.04\n"
    assert meant(beside, "a.yml").job["dpo_reference"] == "model"
    adapter = "adapter: lora\nlora_r: 8\nlora_target_linear: true\n"
    assert meant(beside + adapter, "a.yml").job["dpo_reference"] == "adapter-off"


def test_keys_of_whoever_starts_axolotl_are_passed_over_as_it_does() -> None:
    found = meant("image: someone/own\ngpu: 8\n" + FULL, "a.yml")
    assert {"image", "gpu"} <= {source.key for source in found.without_effect}
    assert "image, gpu: no keys of axolotl, which passes over them" in found.notes
    for line in ("sequence_length: 512\n", "freeze_some_layers: true\n"):  # a slip, and what may decide
        with pytest.raises(InputError, match="is not understood"):
            meant(FULL + line, "a.yml")


def test_an_unknown_setting_is_an_error_with_its_line() -> None:
    with pytest.raises(InputError) as caught:
        meant(FULL + "gradient_checkpoint: true\n", "a.yml")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == ("a.yml", 4, "gradient_checkpoint")
    assert "gradient_checkpointing" in (problem.hint or "")


def test_an_unknown_setting_may_be_ignored_and_is_listed() -> None:
    found = meant(FULL + "gradient_checkpoint: true\n", "a.yml", ignore_unknown=True)
    assert [source.key for source in found.not_understood] == ["gradient_checkpoint"]


@pytest.mark.parametrize(
    "line", ["optimizer: adamw_tourch\n", "bf16: maybe\n", "micro_batch_size: two\n", "rl: dpoo\n"]
)
def test_a_value_that_is_not_understood_is_an_error(line: str) -> None:
    with pytest.raises(InputError) as caught:
        meant("base_model: gpt2\nsequence_len: 512\n" + line, "a.yml", program="axolotl")
    assert caught.value.problems[0].line == 3


def test_lisa_trains_blocks_in_turns() -> None:
    assert meant(FULL + "lisa_n_layers: 4\nlisa_step_interval: 20\n", "a.yml").job["trained_blocks"] == "lisa:4"
    assert "trained_blocks" not in meant(FULL + "lisa_n_layers: 4\n", "a.yml").job


def test_experts_that_are_one_tensor_are_no_linear_layers() -> None:
    text = QLORA.replace("NousResearch/Llama-3.2-1B", "mistralai/Mixtral-8x7B-v0.1")
    holds(job(text, "a.yml"), model="mixtral-8x7b", adapter__targets=["q_proj", "k_proj", "v_proj", "o_proj"])
    holds(job(QLORA, "a.yml"), adapter__targets="all-linear")


def test_devices_of_ray_and_of_experts() -> None:
    holds(job(FULL + "use_ray: true\nray_num_workers: 4\n", "a.yml"), parallel__data=4)
    holds(job(FULL + "ray_num_workers: 4\n", "a.yml"), parallel__data=None)
    holds(job(FULL + "expert_parallel_size: 4\n", "a.yml"), parallel__expert=4, parallel__data=None)
    sharded = "expert_parallel_size: 2\ndp_shard_size: 2\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n"
    holds(job(FULL + sharded, "a.yml"), parallel__expert=2, parallel__data=4, parallel__sharding="fsdp")


@pytest.mark.parametrize(
    ("model", "targets", "left", "over"),
    [
        ("zai-org/GLM-4-32B-0414", "[q_proj, gate_proj]", ["q_proj"], "gate_proj"),
        ("meta-llama/Llama-3.1-8B", "[q_proj, out_proj, c_fc]", ["q_proj"], "out_proj, c_fc"),
        ("databricks/dbrx-base", "[Wqkv, out_proj]", ["Wqkv", "out_proj"], None),
        ("meta-llama/Llama-3.1-8B", "[c_fc]", ["c_fc"], None),
    ],
)
def test_peft_passes_over_targets_that_match_nothing(
    model: str, targets: str, left: list[str], over: str | None
) -> None:
    text = (
        f"base_model: {model}\nmicro_batch_size: 1\nsequence_len: 512\nadapter: lora\nlora_target_modules: {targets}\n"
    )
    read = meant(text, "lora.yaml", program="axolotl")
    assert {value.key: value.value for value in read.values}["adapter.targets"] == left
    assert any(over in note for note in read.notes) if over else not any("PEFT passes" in note for note in read.notes)


def test_patterns_of_a_class_with_a_tower_are_those_of_its_language_model() -> None:
    text = FULL.replace("meta-llama/Llama-3.1-8B", "mistralai/Ministral-3-3B-Base-2512")
    text += "unfrozen_parameters:\n  - model.language_model.+\n  - language_model.+\n  - nothing_of_it\n"
    read = meant(text, "text.yaml", program="axolotl")
    assert {value.key: value.value for value in read.values}["frozen"] == ["all-but:^model.+"]
    assert any("1 patterns match no weight" in note for note in read.notes)


def test_a_model_without_a_fused_kernel_has_what_sdpa_takes() -> None:
    lines = "xformers_attention: true\n"
    assert job(FULL + lines, "a.yaml", program="axolotl")["attention"] == "efficient"
    assert job(FULL.replace("meta-llama/Llama-3.1-8B", "tiiuae/falcon-7b") + lines, "a.yaml")["attention"] == "sdpa"


EXPERTS = """
    base_model: Qwen/Qwen3-30B-A3B
    load_in_4bit: true
    quantize_moe_experts: true
    adapter: qlora
    lora_r: 16
    lora_target_modules: [q_proj]
    sequence_len: 2048
    micro_batch_size: 1
"""


def test_experts_in_four_bits() -> None:
    holds(job(EXPERTS, "axolotl.yaml"), quantization="nf4-double", quantized_experts=True)
    dense = meant(EXPERTS.replace("Qwen3-30B-A3B", "Qwen3-8B"), "axolotl.yaml")
    assert "quantized_experts" not in dense.job
    assert any("no weight is a stack of experts" in note for note in dense.notes)
    text = EXPERTS.replace("Qwen/Qwen3-30B-A3B", "meta-llama/Llama-4-Scout-17B-16E")
    of_llama = meant(text.replace("quantize_moe_experts", "llama4_linearized_experts"), "axolotl.yaml")
    assert of_llama.job["quantized_experts"] is True
    assert "llama4_linearized_experts" in of_llama.unmodelled


def test_a_checkpoint_in_nvfp4_is_counted_in_as_many_bytes() -> None:
    text = EXPERTS.replace("Qwen/Qwen3-30B-A3B", "nvidia/Qwen3-30B-A3B-NVFP4").replace("load_in_4bit: true", "")
    found = meant(text.replace("quantize_moe_experts: true", "").replace("qlora", "lora"), "axolotl.yaml")
    holds(dict(found.job), model="qwen3-30b-a3b", quantization="nf4", quantized_experts=True)
    assert "NVFP4" in found.unmodelled["base_model"]


PATTERN = r"model.language_model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj"


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        ("meta-llama/Llama-3.1-8B", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        ("deepseek-ai/DeepSeek-V2-Lite", ["q_proj", "o_proj"]),  # its experts are stacks, and their names no layers
    ],
)
def test_targets_by_a_pattern_are_the_layers_that_it_is_of(model: str, targets: list[str]) -> None:
    text = QLORA.replace("lora_target_linear: true", f"lora_target_modules: '{PATTERN}'")
    found = meant(text.replace("NousResearch/Llama-3.2-1B", model), "a.yml")
    assert found.job["adapter"]["targets"] == targets
    assert "lora_target_modules" not in found.unmodelled


def test_a_pattern_over_some_blocks_is_told() -> None:
    some = r"model\.layers\.(1|3)\.self_attn\.q_proj"
    found = meant(QLORA.replace("lora_target_linear: true", f"lora_target_modules: '{some}'"), "a.yml")
    assert found.job["adapter"]["targets"] == ["q_proj"]
    assert "blocks" in found.unmodelled["lora_target_modules"]


VISION = """
    base_model: alpindale/Llama-3.2-11B-Vision-Instruct
    processor_type: AutoProcessor
    sample_packing: false
    adapter: lora
    sequence_len: 8192
    lora_r: 32
    lora_alpha: 16
    lora_dropout: 0.05
    lora_target_modules: 'model.language_model.layers.[\\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj'
    gradient_accumulation_steps: 4
    micro_batch_size: 1
    optimizer: adamw_bnb_8bit
    bf16: true
    gradient_checkpointing: true
    attn_implementation: sdpa
    gradient_checkpointing_kwargs:
      use_reentrant: REENTRANT
"""
"""Source: axolotl-ai-cloud/axolotl, examples/llama-3-vision/lora-11b.yaml, without what changes nothing."""


def test_a_model_that_looks_at_images() -> None:
    keys = job(VISION.replace("REENTRANT", "false"), "a.yml")
    holds(keys, model="llama-3.2-11b-vision-instruct", activation_checkpointing="full", optimizer="adamw-8bit")
    assert {*keys["adapter.targets"]} == {f"{one}_proj" for one in ("up", "down", "gate", "q", "k", "v", "o")}
    assert job(VISION.replace("REENTRANT", "true"), "a.yml")["checkpoint_reentrant"]


def test_targets_that_no_layer_of_the_blocks_in_its_place_has_are_passed_over() -> None:
    lines = """
    base_model: zai-org/GLM-4.6V-Flash
    adapter: lora
    lora_r: 8
    lora_target_modules: [gate_proj, up_proj, down_proj, q_proj]
    micro_batch_size: 1
    sequence_len: 512
    bf16: true
    """
    found = {value.key: value.value for value in meant(lines, "a.yml").values}
    assert found["adapter.targets"] == ["down_proj", "q_proj"]


def test_a_processor_beside_a_model_that_is_answered_without_its_tower_is_told() -> None:
    assert "processor_type" not in meant(VISION.replace("REENTRANT", "false"), "a.yml").unmodelled
    lines = VISION.replace("REENTRANT", "false").replace(
        "alpindale/Llama-3.2-11B-Vision-Instruct", "LiquidAI/LFM2-VL-450M"
    )
    assert "what reads them is not counted" in meant(lines, "a.yml").unmodelled["processor_type"]


def test_distillation_from_saved_log_probabilities() -> None:
    """The plugin has to be there; how many log-probabilities a token has is in the data, or asked of a server."""
    keys = "kd_trainer: true\nkd_ce_alpha: 0.1\nkd_alpha: 0.9\nkd_temperature: 1.0\n"
    plugin = FULL + "plugins: [axolotl.integrations.kd.KDPlugin]\n" + keys
    found = meant(plugin, "a.yml")
    assert (found.job["teacher_logprobs"], found.job["distillation"], found.job["loss"]) == (
        20,
        "forward-kl",
        "standard",
    )
    assert "how many log-probabilities a token has is in the data" in str(found.notes)
    assert not found.unmodelled
    online = meant(plugin + "kd_online_server_base_url: http://a\nkd_online_topk: 64\nkd_beta: 0.5\n", "a.yml")
    assert (online.job["teacher_logprobs"], online.job["distillation"]) == (64, "jsd")
    assert "teacher_logprobs" not in meant(FULL + keys, "a.yml").job
    without = meant(plugin.replace("kd_ce_alpha: 0.1", "kd_ce_alpha: 0.0"), "a.yml")
    assert "leaves the cross-entropy out" in str(without.notes)


def test_an_mlp_in_tiles() -> None:
    tiles = FULL + "tiled_mlp: true\n"
    shards = meant(tiles + "tiled_mlp_num_shards: 4\n", "a.yml")
    assert shards.job["tiled_mlp"] == 4
    assert not {source.key for source in shards.without_effect} & {"tiled_mlp", "tiled_mlp_num_shards"}
    assert meant(tiles.replace("512", "65537"), "a.yml").job["tiled_mlp"] == 3  # one of each 32,768 tokens
    assert "tiled_mlp" not in meant(FULL + "tiled_mlp: false\ntiled_mlp_num_shards: 4\n", "a.yml").job
    compiled = meant(tiles + "tiled_mlp_use_original_mlp: false\n", "a.yml")
    assert "tiled_mlp_use_original_mlp" in str(compiled.unmodelled)


@pytest.mark.parametrize(
    ("qat", "expected"),
    [
        ("weight_dtype: int4, activation_dtype: int8, group_size: 64", ("int4-mslk", "int8", 64)),
        ("weight_dtype: int4", ("int4-mslk-fp8", None, 32)),  # torchao's own, unless it is told of bf16
        ("weight_dtype: int4, activation_dtype: fp8", ("int4-mslk-fp8", "fp8", 32)),
        ("weight_dtype: float8_e4m3fn, activation_dtype: fp8", ("fp8", "fp8", None)),
    ],
)
def test_quantization_aware_training(qat: str, expected: tuple[str, str | None, int | None]) -> None:
    text = FULL + f"bf16: true\nqat: {{{qat}, fake_quant_after_n_steps: 100, quantize_embedding: true}}\n"
    weights, activations, group = expected
    found = meant(text, "a.yml")
    values = {value.key: value.value for value in found.values if value.key.startswith("qat.")}
    said = {"weights": weights, "activations": activations, "group_size": group, "embedding": True}
    assert values == {f"qat.{key}": value for key, value in said.items() if value is not None}
    assert any("before step 100" in note for note in found.notes)


def test_a_format_that_is_not_modelled_is_told() -> None:
    found = meant(FULL + "bf16: true\nqat: {weight_dtype: ternary}\n", "a.yml", ignore_unknown=True)
    assert "qat.weights" not in {value.key for value in found.values}
    assert found.unmodelled["qat.weight_dtype"] == "weights rounded to ternary; no rounding is counted"


@pytest.mark.parametrize(
    ("qat", "word"),
    [
        ("weight_dtype: mxfp4", "mxfp4"),
        ("weight_dtype: mxfp4, activation_dtype: int8, group_size: 32", "mxfp4"),
        ("weight_dtype: nvfp4, activation_dtype: nvfp4, group_size: 16", "nvfp4"),
    ],
)
def test_formats_in_which_layers_multiply(qat: str, word: str) -> None:
    """Axolotl gives both operands one configuration, whatever it is told of the inputs."""
    found = meant(FULL + f"bf16: true\nqat: {{{qat}}}\n", "a.yml")
    values = {value.key: value.value for value in found.values if value.key.startswith("qat.")}
    assert values == {"qat.weights": word, "qat.activations": word}
    assert any("torchao 0.17 raises an error" in note for note in found.notes) is (word == "nvfp4")


@pytest.mark.parametrize(
    "qat",
    [
        "{weight_dtype: mxfp4, group_size: 16}",
        "{weight_dtype: mxfp4, quantize_embedding: true}",
        "{group_size: 32}",
        "{weight_dtype: int8, activation_dtype: int8}",
    ],
)
def test_formats_for_which_axolotl_raises_an_error(qat: str) -> None:
    with pytest.raises(InputError, match="Axolotl raises an error for"):
        meant(FULL + f"bf16: true\nqat: {qat}\n", "a.yml")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ao_adamw_8bit", "adamw-8bit-torchao"),
        ("ao_adamw_4bit", "adamw-4bit-torchao"),
        ("ao_adamw_fp8", "adamw-fp8-torchao"),
        ("adamw_torch_4bit", "adamw-4bit-torchao"),
    ],
)
def test_states_of_torchao_are_what_they_are(name: str, word: str) -> None:
    found = meant(f"{FULL}optimizer: {name}\n", "a.yml")
    assert {value.key: value.value for value in found.values}["optimizer"] == word
    assert "optimizer" not in found.unmodelled


@pytest.mark.parametrize(
    ("name", "word", "how"),
    [
        ("optimi_adamw", "adamw-optimi", "for-loop"),
        ("adopt_adamw", "adopt", None),
        ("adamc", "adamc", None),
        ("came_pytorch", "came", None),
        ("stable_adamw", "stable-adamw", None),
        ("schedule_free_radam", "schedule-free-radam", None),
        ("adagrad", "adagrad", None),
    ],
)
def test_optimizers_of_small_libraries_are_what_they_are(name: str, word: str, how: str | None) -> None:
    found = meant(f"{FULL}optimizer: {name}\n", "a.yml")
    assert (found.job["optimizer"], found.job.get("optimizer_implementation")) == (word, how)
    assert not found.unmodelled


@pytest.mark.parametrize(("loss", "version", "refused"), [("kto", 2, True), ("kto", 1, False), ("simpo", 2, False)])
def test_quantized_weights_and_preferences_are_refused_under_fsdp2(loss: str, version: int, refused: bool) -> None:
    text = f"base_model: meta-llama/Llama-3.2-1B\nsequence_len: 64\nmicro_batch_size: 1\nbf16: true\nrl: {loss}\n"
    text += f"load_in_4bit: true\nadapter: qlora\nlora_r: 8\nlora_target_linear: true\nfsdp_version: {version}\n"
    text += "fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP}\ndatasets: []\n"
    if not refused:
        assert meant(text, "a.yaml").job["loss"] == loss
        return
    with pytest.raises(InputError, match="load_in_4bit: is on beside FSDP2 and rl: kto"):
        meant(text, "a.yaml")


def test_llama_adapter_is_no_lora() -> None:
    with pytest.raises(InputError, match="llama-adapter is not modelled"):
        job(FULL + "adapter: llama-adapter\n", "a.yml")


def test_four_bits_are_those_of_qlora_alone() -> None:
    lines = "load_in_4bit: true\nlora_r: 8\nlora_target_linear: true\nbf16: true\n"
    whole = meant(f"{FULL}adapter: lora\n{lines}", "a.yml")
    assert ("quantization" in whole.job, "load_in_4bit" in whole.unmodelled) == (False, True)
    holds(job(f"{FULL}adapter: qlora\n{lines}", "a.yml"), quantization="nf4-double")


def test_the_settings_of_the_allocator_that_axolotl_makes_are_told() -> None:
    """They are no setting of the file, so the job has none."""
    for version, settings in (
        (None, "expandable_segments:True"),
        ("0.11.0", "expandable_segments:True,roundup_power2_divisions:16"),
    ):
        read = meant(FULL, "a.yml", version=version)
        assert "allocator" not in read.job
        assert any(f"--allocator {settings} always simulates" in note for note in read.notes)


@pytest.mark.parametrize("word", ["offload", "offload_disk", "unsloth"])
def test_checkpoints_that_stay_on_the_host(word: str) -> None:
    text = "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\nbf16: true\ngradient_checkpointing: "
    found = job(text + word, "a.yml")
    holds(found, activation_checkpointing="full", offload=["activations"], checkpoint_reentrant=None)
    holds(job(text + "true", "a.yml"), activation_checkpointing="full", offload=None, checkpoint_reentrant=True)
