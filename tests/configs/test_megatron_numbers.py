"""What Megatron's files say of gradients, dropout, positions, gates and the ends of a pipeline."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from tests.configs.test_constructed import BRIDGE
from vramplan.errors import InputError

SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--micro-batch-size 4 --clip-grad 1.0 --vocab-size 50304 "
)
GATED = "--swiglu --normalization RMSNorm --position-embedding-type rope "


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        ("--bf16", None),  # fp32, which is what Megatron takes anyway
        ("--bf16 --accumulate-allreduce-grads-in-fp32", None),
        ("--bf16 --grad-reduce-in-bf16", "bf16"),
        ("--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16", "bf16"),
        ("--fp16", None),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32"),
        ("--bf16 --fp8-format hybrid --grad-reduce-in-bf16", "bf16"),
        ("--bf16 --deepspeed --zero-stage 0", "fp32"),  # BF16_Optimizer
        ("--bf16 --deepspeed --zero-stage 1", None),
    ],
)
def test_gradients_have_the_element_type_that_the_arguments_say(words: str, dtype: str | None) -> None:
    holds(job(SIZES + words + "\n", "-"), gradient_dtype=dtype)


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ("", None),  # 0.1, which GPT-2 has in the catalogue too
        ("--hidden-dropout 0 --attention-dropout 0", 0.0),
        (GATED, 0.1),  # Megatron's default, which no model of the catalogue with a gate has
        (GATED + "--hidden-dropout 0.0 --attention-dropout 0.0", None),
        ("--position-embedding-type rope", 0.1),
    ],
)
def test_dropout_is_megatrons_own_where_nothing_is_said(words: str, share: float | None) -> None:
    holds(job(f"{SIZES}--bf16 {words}\n", "-"), dropout=share)


@pytest.mark.parametrize("word", ["rope", "rotary"])
def test_rotary_positions_without_groups_have_keys_of_every_head(word: str) -> None:
    """The second word is that of BigScience's fork; neither has a table of positions."""
    model = job(f"{SIZES}--bf16 --position-embedding-type {word}\n", "-")["model"]
    assert (model["family"], model["key_value_heads"]) == ("starcoder2", 8)


def test_a_gate_and_norms_of_another_kind_are_told() -> None:
    found = meant(f"{SIZES}--bf16 --glu-activation swiglu --ffn-hidden-size 1024\n", "-")
    model = found.job["model"]
    assert (model["family"], model["intermediate_size"], model["positions"]) == ("megatron_gpt", 1024, "learned")
    assert "normalization" not in found.unmodelled
    rooted = meant(f"{SIZES}--bf16 --swiglu --position-embedding-type rope\n", "-")
    assert "RMSNorm is counted" in rooted.unmodelled["normalization"]
    assert "normalization" not in meant(f"{SIZES}--bf16 {GATED}\n", "-").unmodelled
    biased = job(f"{SIZES}--bf16 {GATED} --add-qkv-bias --qk-layernorm\n", "-")["model"]
    assert (biased["qkv_bias"], biased["qk_norm"]) == (True, True)
    assert job(f"{SIZES}--bf16 --qk-layernorm\n", "-")["model"]["qk_norm"] is True
    assert job(f"{SIZES}--bf16 --position-embedding-type none\n", "-")["model"]["positions"] == "none"


def test_the_ends_of_a_pipeline_count_as_blocks_where_both_do() -> None:
    staged = f"{SIZES.replace('layers 4', 'layers 6')}--bf16 --pipeline-model-parallel-size 4 "
    both = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    holds(job(f"{staged}{both}\n", "-"), parallel__pipeline_split="embedding-and-head")
    one = meant(f"{staged}--account-for-loss-in-pipeline-split\n", "-")
    assert "account_for_loss_in_pipeline_split" in one.unmodelled
    uneven = meant(f"{staged}--num-layers-in-first-pipeline-stage 3\n", "-")
    assert "num_layers_in_first_pipeline_stage" in uneven.unmodelled


def test_the_batch_of_a_step_may_be_that_of_a_schedule_or_be_rounded_down() -> None:
    alone = f"torchrun --nproc_per_node 4 pretrain_gpt.py {SIZES}--bf16 "
    found = meant(f'{alone}--micro-batch-size 2 --step-batch-size-schedule "0:384 200B:768 1.5T:1152"\n', "run.sh")
    assert found.job["gradient_accumulation_steps"] == 1152 // 8
    assert any("grows to 1152" in note for note in found.notes)
    with pytest.raises(InputError, match="step_batch_size_schedule: '0:384 later' is not understood"):
        meant(f'{alone}--micro-batch-size 2 --step-batch-size-schedule "0:384 later"\n', "run.sh")
    rounded = "--micro-batch-size 2 --global-batch-size 30 --decrease-batch-size-if-needed\n"
    holds(job(alone + rounded, "run.sh"), gradient_accumulation_steps=3)


PATTERN = "MEM*-E/*E"
EXPERTS = "--num-experts 8 --moe-ffn-hidden-size 256 --moe-shared-expert-intermediate-size 384 --moe-router-topk 3"


def test_blocks_with_experts_are_read_from_their_pattern() -> None:
    found = meant(f"{SIZES}--bf16 --hybrid-layer-pattern {PATTERN} {EXPERTS} --moe-latent-size 128\n", "-")
    model = found.job["model"]
    assert (model["family"], model["layers"]) == ("nemotron_h", 6)  # what follows predicts further tokens
    assert "further tokens" in found.unmodelled["hybrid_layer_pattern"]
    assert model["state_space"]["feedforward_layers"] == [1, 4, 5]
    assert model["experts"] == {
        "count": 8,
        "active": 3,
        "intermediate_size": 256,
        "shared_intermediate_size": 384,
        "latent_size": 128,
        "dense_layers": [0, 2, 3, 4],
        "normalized": True,
        "groups": 1,
        "active_groups": 1,
    }


HYBRID = """
        cfg.model = HybridModelProvider(
            hybrid_layer_pattern="MEM*", hidden_size=512, num_attention_heads=8, num_query_groups=2, kv_channels=64,
            ffn_hidden_size=256, num_moe_experts=8, moe_ffn_hidden_size=256, moe_router_topk=3,
            moe_shared_expert_intermediate_size=384, vocab_size=1024,
        )"""


def recipe(line: str) -> dict[str, Any]:
    """The first recipe of Megatron-Bridge with another line in the place of its precision."""
    return job(BRIDGE.replace('cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"', line), "llama3.py")


def test_what_a_recipes_precision_says_of_gradients_goes_before_its_ddp() -> None:
    holds(recipe("cfg.ddp.grad_reduce_in_fp32 = False"), gradient_dtype=None, precision="mixed-bf16")
    named = "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)\n        "
    found = recipe(f"{named}cfg.mixed_precision.grad_reduce_in_fp32 = False")
    holds(found, gradient_dtype="bf16", precision="mixed-bf16")


def test_an_output_layer_of_its_own_is_one_where_the_arguments_untie_it() -> None:
    llama = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --seq-length 512 "
    words = f"{llama}--max-position-embeddings 4096 --micro-batch-size 1 --bf16 --disable-bias-linear {GATED}"
    untied = "--untie-embeddings-and-output-weights"
    assert job(f"{words} {untied}\n", "-")["model"] == "llama-2-7b"
    tied = job(f"{words} --vocab-size 32000\n", "-")["model"]
    assert (tied["tied_embeddings"], tied["vocabulary_size"]) == (True, 32000)
    found = meant(f"{words}\n", "-")
    assert (found.job["model"]["vocabulary_size"], found.open.get("model.vocabulary_size")) == (32000, None)
    assert any("the sizes of llama-2-7b" in note for note in found.notes)
    gpt = job(f"{SIZES}--bf16 {untied}\n", "-")["model"]
    assert (gpt["family"], gpt["tied_embeddings"], gpt["positions"]) == ("megatron_gpt", False, "learned")


def test_a_recipe_whose_blocks_are_a_pattern_is_read() -> None:
    text = BRIDGE.replace("\n        cfg.model = AutoBridge.from_hf_pretrained(PATH).get_model_config()", HYBRID)
    model = job(text, "llama3.py")["model"]
    assert (model["family"], model["experts"]["count"], model["key_value_heads"]) == ("nemotron_h", 8, 2)
    assert model["experts"]["dense_layers"] == [0, 2, 3]


SPLIT = """\
    torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --bf16 \\
        --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 16 \\
        --tensor-model-parallel-size 2 --vocab-size 1024
    """


@pytest.mark.parametrize(("gpus", "data", "steps"), [("4", "2", "8"), ("16", "8", "2"), ("1", "1", "16")])
def test_gpus_beside_a_file_with_a_split_are_all_of_them(tmp_path: Path, gpus: str, data: str, steps: str) -> None:
    """The batch of the file stays; a number that makes no whole replicas is that of these."""
    path = tmp_path / "own.sh"
    path.write_text(dedent(SPLIT))
    ran = run("fit", path, "--gpu", "h100", "--gpus", gpus, "--format", "json")
    assert ran.code == 0, ran.err
    echoed = ran.document["job"]
    assert (echoed["parallel"]["data"], echoed["gradient_accumulation_steps"]) == (int(data), int(steps))


@pytest.mark.parametrize(
    ("degree", "options", "replicas", "steps"),
    [
        (2, "--tensor 4", 2, 8),  # the GPUs of the script, and its batch
        (2, "--tensor 4 --gpus 4", 4, 4),  # a number beside them is that of the replicas
        (2, "--tensor 1 --gpus 4", 4, 4),
        (2, "--pipeline 2 --gpus 2", 2, 8),
        (1, "--tensor 2 --gpus 8", 8, 2),
        (1, "--tensor 2", 4, 4),
    ],
)
def test_options_split_a_replica_in_another_way_and_the_batch_stays(
    tmp_path: Path, degree: int, options: str, replicas: int, steps: int
) -> None:
    path = tmp_path / "own.sh"
    wide = SPLIT.replace("--hidden-size 64 --num-attention-heads 2", "--hidden-size 128 --num-attention-heads 4")
    path.write_text(dedent(wide).replace("parallel-size 2", f"parallel-size {degree}"))
    ran = run("fit", path, "--gpu", "h100", "--format", "json", *options.split())
    assert ran.code == 0, ran.err
    echoed = ran.document["job"]
    assert (echoed["parallel"]["data"], echoed["gradient_accumulation_steps"]) == (replicas, steps)
    assert echoed["global_batch_size"] == 16


@pytest.mark.parametrize(
    ("modules", "word", "kept"),
    [("", "selective", None), ("core_attn mlp", "selective", "mlp recomputed"), ("moe_act layernorm", "none", "moe")],
)
def test_modules_are_recomputed_that_the_arguments_name(modules: str, word: str, kept: str | None) -> None:
    named = f"--recompute-modules {modules}" if modules else ""
    found = meant(f"{SIZES}--bf16 --recompute-granularity selective {named}\n", "-")
    assert found.job["activation_checkpointing"] == word
    assert (kept is None) == ("recompute_modules" not in found.unmodelled)
    assert kept is None or kept in found.unmodelled["recompute_modules"]


MIXED = "--num-experts 8 --expert-model-parallel-size 4 "


def test_experts_without_gates_are_no_mixtrals() -> None:
    """Megatron-LM's have two matrices each where no gate is asked for, and stand in the blocks that a list names."""
    model = job(f"{SIZES}--bf16 {MIXED}--moe-layer-freq [0]*1+[1]*3 --moe-router-topk 2\n", "-")["model"]
    assert (model["family"], model["gated_mlp"], model["positions"]) == ("megatron_gpt", False, "learned")
    assert model["experts"] == {"count": 8, "active": 2, "intermediate_size": 2048, "dense_layers": [0]}
    every = job(f"{SIZES}--bf16 {MIXED}--moe-layer-freq 2 {GATED}\n", "-")["model"]
    assert (every["family"], every["gated_mlp"], every["experts"]["dense_layers"]) == ("megatron_gpt", True, [1, 3])
    plain = job(f"{SIZES}--bf16 {MIXED}{GATED}--disable-bias-linear\n", "-")["model"]
    assert plain["family"] == "mixtral"
    told = meant(f"{SIZES}--bf16 {MIXED}--moe-layer-freq [0]*[1]\n", "-")
    assert "every block" in told.unmodelled["moe_layer_freq"]


DEEPSPEED = (
    f"{SIZES}--fp16 --deepspeed --deepspeed_config own.json --num-experts 8 --moe-expert-parallel-size 4 "
    "--moe-train-capacity-factor 1.25 "
)


def test_deepspeeds_experts_take_their_capacity_and_stand_in_every_second_block() -> None:
    found = job(f"{DEEPSPEED}--zero-stage 0\n", "-")
    assert found["model"]["experts"] == {"count": 8, "active": 1, "intermediate_size": 2048, "dense_layers": [0, 2]}
    holds(found, expert_capacity_factor=1.25, expert_pad_to_capacity=True, parallel__expert=4, parallel__sharding="ddp")
    residual = job(f"{DEEPSPEED}--mlp-type residual --topk 2 --zero-stage 1\n", "-")
    assert residual["model"]["experts"]["shared_intermediate_size"] == 2048
    holds(residual, parallel__sharding="distributed-optimizer")


def test_the_stage_that_a_script_writes_into_its_template_counts() -> None:
    script = f"""
        sed "s/CONFIG_BATCH_SIZE/8/" template.json | sed "s/ZERO_STAGE/0/" > own.json
        deepspeed pretrain_gpt.py {SIZES}--fp16 --deepspeed --deepspeed_config own.json
    """
    holds(job(script, "run.sh"), parallel__sharding="ddp")
    holds(job(script.replace("ZERO_STAGE/0", "ZERO_STAGE/1"), "run.sh"), parallel__sharding="zero1")


@pytest.mark.parametrize(
    ("path", "counted"),
    [
        ("zai-org/GLM-4.5V", "glm-4.5-air"),
        ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16", "nemotron-3-nano-30b-a3b"),
        ("zai-org/GLM-5.2", "glm-5.2"),
    ],
)
def test_models_beyond_the_catalogue_are_those_that_they_are_built_on(path: str, counted: str) -> None:
    found = meant(BRIDGE.replace("meta-llama/Meta-Llama-3-8B", path), "recipe.py")
    assert found.job["model"] == counted


MADE = "cfg.model = AutoBridge.from_hf_pretrained(PATH).get_model_config()"


def test_a_recipe_whose_model_is_made_elsewhere_trains_that_of_its_tokenizer() -> None:
    own = "cfg.model = provider_of_my_own()\n        cfg.tokenizer.tokenizer_model = PATH"
    found = meant(BRIDGE.replace(MADE, own), "recipe.py")
    assert found.job["model"] == "llama-3-8b"
    assert "that of its tokenizer is counted" in found.unmodelled["tokenizer.tokenizer_model"]


def test_a_recipe_that_draws_images_says_so() -> None:
    own = "cfg.model = WanModelProvider(num_layers=2, hidden_size=64, num_attention_heads=2)"
    with pytest.raises(InputError, match="images alone"):
        meant(BRIDGE.replace(MADE, own), "recipe.py")


def test_whole_experts_on_tensor_parallel_devices_need_fewer_gpus() -> None:
    """Eight GPUs of two for each tensor have experts over all of them, where each has whole ones."""
    split = f"--nproc_per_node 8 pretrain_gpt.py {SIZES}--bf16 --tensor-model-parallel-size 2 --sequence-parallel "
    script = f"torchrun {split}--num-experts 8 --expert-model-parallel-size 8 --expert-tensor-parallel-size"
    holds(job(f"{script} 1\n", "run.sh"), parallel__data=4, parallel__expert=8)
    assert "parallel.data" in meant(f"{script} 2\n", "run.sh").open


def test_deepspeeds_megatron_has_no_flash_attention_unless_it_is_asked_for() -> None:
    words = f"{SIZES}--fp16 --deepspeed --zero-stage 1 "
    holds(job(f"{words}\n", "-"), attention="eager")
    holds(job(f"{words}--use-flash-attn-v2\n", "-"), attention="flash")
    holds(job(f"{SIZES}--use-flash-attn\n", "-"), attention="eager", precision="fp32")  # it has no such kernels


@pytest.mark.parametrize(
    ("name", "spaces", "ffn"), [("BaseMambaConfig2_7B", 64, 0), ("NVIDIAMambaHybridConfig8B", 24, 28)]
)
def test_models_of_state_spaces_of_nemo_are_made_of_their_blocks(name: str, spaces: int, ffn: int) -> None:
    text = f"""
        import nemo_run as run
        from nemo.collections import llm

        def model() -> run.Config:
            return run.Config(llm.MambaModel, config=run.Config(llm.{name}))

        def pretrain_recipe() -> run.Partial:
            return run.Partial(
                llm.pretrain,
                model=model(),
                trainer=run.Config(nl.Trainer, strategy=run.Config(nl.MegatronStrategy, tensor_model_parallel_size=1)),
                data=run.Config(MockDataModule, seq_length=4096, global_batch_size=8, micro_batch_size=1),
            )
    """
    shape = meant(text, "mamba2.py:pretrain_recipe").job["model"]
    assert len(shape["state_space"]["layers"]) == spaces
    assert len(shape["state_space"]["feedforward_layers"]) == ffn
    assert shape["tied_embeddings"] is False


@pytest.mark.parametrize(("width", "model"), [(2048, "qwen3-next-80b-a3b"), (1024, None)])
def test_a_pattern_of_pais_qwen3_next_has_delta_nets_and_experts(width: int, model: str | None) -> None:
    text = f"""
        torchrun --nproc_per_node 8 pretrain_qwen3_next.py --num-layers 96 --hidden-size {width} --seq-length 2048 \\
            --num-attention-heads 16 --num-experts 512 --hybrid-override-pattern {"M-M-M-*-" * 12} --bf16 --swiglu \\
            --padded-vocab-size 151936 --micro-batch-size 1 --global-batch-size 16 --normalization RMSNorm
    """
    found = meant(text, "run.sh")
    assert found.job.get("model") == model
    assert ("model" in found.open) is (model is None)
    assert "normalization" not in found.unmodelled


@pytest.mark.parametrize(("more", "model"), [("", "llama-7b"), ("--add-qkv-bias ", "qwen-7b")])
def test_of_models_of_the_same_sizes_the_one_with_these_biases_is_meant(more: str, model: str) -> None:
    """At a length that none of them was trained at, and a tokenizer that only the caller knows."""
    text = (
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 "
        "--swiglu --disable-bias-linear --normalization RMSNorm --use-rotary-position-embeddings --seq-length 512 "
        "--untie-embeddings-and-output-weights --max-position-embeddings 512 --micro-batch-size 1 --bf16 "
        f"{more}--tokenizer-type HuggingFaceTokenizer --tokenizer-model $OWN\n"
    )
    found = job(text, "own.sh")["model"]
    assert found == model or (found["vocabulary_size"], found["qkv_bias"]) == (151936, True)
