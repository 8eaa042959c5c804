"""Python files that construct configurations: NeMo's recipes and torchtitan's registry, followed and never run."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.errors import InputError

pytestmark = pytest.mark.contract

REGISTRY = """
    from torchtitan.trainer import Trainer
    from . import model_registry
    from .model import Llama3Model

    raise SystemExit("a reader must not run this")

    def llama3_debugmodel() -> Trainer.Config:
        return Trainer.Config(model_spec=model_registry("debugmodel"), activation_checkpoint=None)

    def llama3_8b() -> Trainer.Config:
        spec = model_registry("8B", attn_backend="flex")
        return Trainer.Config(
            loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(), num_chunks=4),
            model_spec=spec,
            optimizer=default_adamw(lr=3e-4),
            training=TrainingConfig(
                num_tokens_per_microbatch_per_dp_rank=2 * 8192,
                max_context_length=8192,
                steps=1000,
            ),
            activation_checkpoint=SelectiveAC.Config(),
            validator=Validator.Config(freq=500),
        )

    def llama3_8b_split(shards: int = 4) -> Trainer.Config:
        config = llama3_8b()
        config.parallelism.tensor_parallel_degree = 8 if shards > 2 else 1
        config.parallelism.data_parallel_shard_degree = shards
        config.activation_checkpoint = FullAC.Config()
        if unknown_of_the_machine():
            config.training.max_context_length = 1
        config.compile = CompileConfig(enable=True)
        return config
"""


def test_a_registry_of_torchtitan_is_followed() -> None:
    found = meant(REGISTRY, "config_registry.py")
    assert (found.program, found.release) == ("torchtitan", "main")
    holds(
        job(REGISTRY, "config_registry.py"),
        model="llama-3.1-8b",
        sequence_length=8192,
        micro_batch_size=2,
        gradient_accumulation_steps=1,
        loss="chunked:4",
        optimizer="adamw",
        activation_checkpointing="selective-op",
        every_second_matmul=True,
        parallel__sharding="fsdp",
        compile=None,
    )
    micro = next(value for value in found.values if value.key == "micro_batch_size")
    assert micro.sources[0].line == 17
    assert any("config_registry.py:NAME" in note and "llama3_8b_split" in note for note in found.notes)


def test_a_function_is_named_behind_its_file() -> None:
    holds(
        job(REGISTRY, "config_registry.py:llama3_8b_split"),
        sequence_length=8192,
        activation_checkpointing="full",
        every_second_matmul=None,
        parallel__tensor=8,
        parallel__sequence_parallel=True,
        parallel__data=4,
        compile=True,
    )
    assert job(REGISTRY, "config_registry.py:llama3_debugmodel")["activation_checkpointing"] == "none"
    with pytest.raises(InputError, match="has no function llama3_9b"):
        meant(REGISTRY, "config_registry.py:llama3_9b")


def test_a_setting_of_a_registry_that_is_not_understood_has_its_line() -> None:
    text = REGISTRY.replace("steps=1000", "stepz=1000")
    with pytest.raises(InputError) as caught:
        meant(text, "config_registry.py")
    problem = caught.value.problems[0]
    assert (problem.key, problem.line) == ("training.stepz", 19)


RECIPE = """
    import nemo_run as run
    from nemo.collections.llm.recipes.series import series_trainer

    NAME = "qwen25_7b"

    def model():
        return run.Config(Qwen2Model, config=run.Config(Qwen25Config7B))

    @run.cli.factory(target=pretrain, name=NAME)
    def pretrain_recipe(num_nodes: int = 2, num_gpus_per_node: int = 8, performance_mode: bool = False):
        recipe = run.Partial(
            pretrain,
            model=model(),
            trainer=series_trainer(
                tensor_parallelism=2,
                pipeline_parallelism=2,
                virtual_pipeline_parallelism=7,
                context_parallelism=1,
                sequence_parallelism=True,
                num_nodes=num_nodes,
                num_gpus_per_node=num_gpus_per_node,
            ),
            data=run.Config(MockDataModule, seq_length=4096, global_batch_size=32, micro_batch_size=1),
            optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
        )
        if performance_mode:
            recipe.data.micro_batch_size = 8
        return recipe

    @run.cli.factory(target=finetune, name=NAME)
    def finetune_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8, peft_scheme: str = "lora"):
        recipe = default_finetune_recipe(model(), "Qwen/Qwen2.5-7B", None, "run", num_nodes, num_gpus_per_node)
        if peft_scheme is None or peft_scheme.lower() == "none":
            recipe.trainer.strategy.tensor_model_parallel_size = 4
        elif peft_scheme.lower() in ["lora", "dora"]:
            recipe.peft = run.Config(PEFT_STR2CLS[peft_scheme.lower()])
            recipe.peft.dim = 8
            recipe.peft.target_modules = ["linear_qkv"]
            recipe.optim.config.use_distributed_optimizer = False
        return recipe
"""
SERIES = """
    def series_trainer(tensor_parallelism=1, pipeline_parallelism=1, virtual_pipeline_parallelism=None,
                       context_parallelism=1, sequence_parallelism=False, num_nodes=1, num_gpus_per_node=8):
        strategy = run.Config(
            nl.MegatronStrategy,
            tensor_model_parallel_size=tensor_parallelism,
            pipeline_model_parallel_size=pipeline_parallelism,
            virtual_pipeline_model_parallel_size=virtual_pipeline_parallelism,
            microbatch_group_size_per_vp_stage=4,
            context_parallel_size=context_parallelism,
            sequence_parallel=sequence_parallelism,
        )
        plugins = run.Config(nl.MegatronMixedPrecision, precision="bf16-mixed")
        return run.Config(
            nl.Trainer, devices=num_gpus_per_node, num_nodes=num_nodes, plugins=plugins, strategy=strategy
        )
"""


def test_a_recipe_of_nemo_is_followed(tmp_path: Path) -> None:
    expected = {
        "runtime": "megatron",
        "model": "qwen2.5-7b",
        "sequence_length": 4096,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 8,
        "parallel__data": 4,
        "parallel__tensor": 2,
        "parallel__pipeline": 2,
        "parallel__schedule": "interleaved:7",
        "parallel__sequence_parallel": True,
        "parallel__sharding": "distributed-optimizer",
        "precision": "mixed-bf16",
        "optimizer": "adam",
        "max_gradient_norm": 1.0,
        "activation_checkpointing": "none",
    }
    holds(job(RECIPE, "alone.py"), **expected)  # without the file of the trainer: by the names of its arguments
    (tmp_path / "series.py").write_text(dedent(SERIES))
    holds(job(RECIPE, str(tmp_path / "beside.py")), **expected, parallel__microbatch_group_size=4)
    more = job(RECIPE, str(tmp_path / "beside.py"), devices=32)
    assert (more["parallel.data"], more["gradient_accumulation_steps"]) == (8, 4)


def test_the_other_recipe_of_a_file_is_fine_tuning() -> None:
    holds(
        job(RECIPE, "qwen.py:finetune_recipe"),
        sequence_length=2048,
        gradient_accumulation_steps=16,
        adapter__kind="lora",
        adapter__rank=8,
        adapter__alpha=32,
        adapter__targets=["q_proj", "k_proj", "v_proj"],
        parallel__tensor=None,
        parallel__data=8,
        parallel__sharding=None,
        precision="mixed-bf16",
    )


LONGER = """
    import nemo_run as run
    from nemo.collections.llm.recipes import llama3_70b

    def model():
        model_config = llama3_70b.model()
        model_config.config.seq_length = 16384
        return model_config

    def trainer(num_nodes: int = 4, num_gpus_per_node: int = 8):
        return llama3_70b.trainer(
            tensor_parallelism=4, pipeline_parallelism=4, context_parallelism=2,
            num_nodes=num_nodes, num_gpus_per_node=num_gpus_per_node,
        )

    def pretrain_recipe(dir=None, name="default", num_nodes: int = 4, num_gpus_per_node: int = 8):
        recipe = llama3_70b.pretrain_recipe(name=name, dir=dir, num_nodes=num_nodes)
        recipe.model = model()
        recipe.trainer = trainer(num_nodes=num_nodes, num_gpus_per_node=num_gpus_per_node)
        recipe.data = run.Config(MockDataModule, seq_length=16384, global_batch_size=512, micro_batch_size=1)
        recipe.trainer.strategy.tensor_model_parallel_size = 2
        return recipe

    def finetune_recipe(num_nodes: int = 1):
        recipe = default_finetune_recipe(model(), "own", None, "run", num_nodes, 8)
        recipe.trainer.plugins = [bf16_with_fp8_current_scaling_mixed()]
        recipe.peft = run.Config(LoRA, target_modules=["linear_q_down_proj", "linear_kv_up_proj"])
        recipe.optim.config.lr = 1e-4
        return recipe
"""


def test_a_recipe_that_changes_another_is_read_without_its_file() -> None:
    holds(
        job(LONGER, "llama3_70b_16k.py"),
        model="llama-3-70b",
        sequence_length=16384,
        micro_batch_size=1,
        gradient_accumulation_steps=256,
        parallel__tensor=2,  # an assignment to the attribute comes after the call
        parallel__pipeline=4,
        parallel__context=2,
        parallel__data=2,
        parallel__sharding="distributed-optimizer",
        precision="mixed-bf16",
    )
    holds(
        job(LONGER, "llama3_70b_16k.py:finetune_recipe"),
        precision="fp8",
        adapter__targets=["q_a_proj", "kv_b_proj"],
        parallel__sharding="distributed-optimizer",
        parallel__data=8,
    )
    distilled = LONGER.replace("recipe = llama3_70b.pretrain_recipe(name=name, dir=dir, num_nodes=num_nodes)", "raise")
    assert any(note.startswith("finetune_recipe is read") for note in meant(distilled, "distilled.py").notes)
    own = LONGER.replace("bf16_with_fp8_current_scaling_mixed", "own_plugin")
    assert "precision" in meant(own, "own.py:finetune_recipe").open


def test_a_file_that_calls_itself_ends() -> None:
    text = """
        import nemo_run as run
        def pretrain_recipe():
            return pretrain_recipe()
        run.Config()
    """
    with pytest.raises(InputError, match="is of no training program"):
        meant(text, "circle.py")


def test_the_command_reads_a_function_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(dedent(REGISTRY))
    ran = run("read", f"{path}:llama3_8b_split", "--format", "json")
    assert ran.code == 0, ran.err
    assert '"llama-3.1-8b"' in ran.out
    ran = run("fit", f"{path}:llama3_8b_split", "--gpu", "h100", "--loss", "standard", "--print", "job.sequence_length")
    assert ran.out.strip() == "8192", ran.err


BRIDGE = """
    import torch
    from megatron.bridge import AutoBridge
    from megatron.bridge.recipes.common import _peft_common, _pretrain_common, _sft_common
    from megatron.bridge.training.config import ConfigContainer

    PATH = "meta-llama/Meta-Llama-3-8B"
    raise SystemExit("a reader must not run this")

    def llama3_8b_pretrain_16gpu_h100_bf16_config() -> ConfigContainer:
        cfg = _pretrain_common()
        cfg.model = AutoBridge.from_hf_pretrained(PATH).get_model_config()
        cfg.dataset.seq_length = 8192
        cfg.model.tensor_model_parallel_size = 2
        cfg.model.sequence_parallel = True
        cfg.model.recompute_granularity = "selective"
        cfg.model.recompute_modules = ["core_attn", "mlp"]
        cfg.train.global_batch_size = 512
        cfg.train.micro_batch_size = 1
        cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
        cfg.ddp.use_distributed_optimizer = True
        cfg.env_vars = {"A": "1"}
        return cfg

    def llama3_8b_peft_config(peft_scheme: str = "lora") -> ConfigContainer:
        cfg = _peft_common()
        cfg.model = AutoBridge.from_hf_pretrained(PATH).to_megatron_provider(load_weights=False)
        if isinstance(peft_scheme, str) and peft_scheme.lower() in ["lora", "dora"]:
            cfg.peft = default_peft_config(peft_scheme, dim=8)
        opt_cfg, scheduler_cfg = distributed_fused_adam_with_cosine_annealing(clip_grad=0.5)
        cfg.optimizer = opt_cfg
        return cfg

    def gpt_sft_config() -> ConfigContainer:
        cfg = _sft_common()
        cfg.model = GPTModelProvider(num_layers=12, hidden_size=768, num_attention_heads=12, vocab_size=50304)
        cfg.ddp.use_megatron_fsdp = True
        cfg.ddp.data_parallel_sharding_strategy = "optim_grads_params"
        cfg.ddp.unheard_of = 1
        return cfg
"""


def test_recipes_of_megatron_bridge_are_followed() -> None:
    found = meant(BRIDGE, "llama3.py")
    assert (found.program, found.release) == ("megatron-bridge", "0.7.0")
    holds(
        job(BRIDGE, "llama3.py"),
        runtime="megatron",
        model="llama-3-8b",
        sequence_length=8192,
        micro_batch_size=1,
        gradient_accumulation_steps=64,
        precision="fp8",
        optimizer="adam",
        max_gradient_norm=1.0,
        activation_checkpointing="selective",
        parallel__tensor=2,
        parallel__data=8,
        parallel__sequence_parallel=True,
        parallel__sharding="distributed-optimizer",
    )
    assert "mlp" in found.unmodelled["model.recompute_modules"]
    adapted = job(BRIDGE, "llama3.py:llama3_8b_peft_config")
    holds(adapted, sequence_length=2048, micro_batch_size=1, packing=True, attention="flash", precision="mixed-bf16")
    holds(adapted, adapter__kind="lora", adapter__rank=8, adapter__alpha=32, max_gradient_norm=0.5)
    assert "parallel.data" in meant(BRIDGE, "llama3.py:llama3_8b_peft_config").open
    own = job(BRIDGE, "llama3.py:gpt_sft_config")
    holds(own, parallel__sharding="fsdp", packing=True)
    assert own["model"]["layers"] == 12


CHANGES = """
    model: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, recompute_granularity: selective}
    train: {train_iters: 10, global_batch_size: 16, micro_batch_size: 2}
    optimizer: {lr: 1.0e-4, clip_grad: 0.5}
    scheduler: {lr_warmup_iters: 2}
    checkpoint: {save: out}
    dataset: {seq_length: 1024, packed_sequence_specs: {packed_sequence_size: 1024}}
"""


def test_a_file_that_changes_a_recipe_of_megatron_bridge_leaves_the_rest_to_it() -> None:
    """Its settings below `train` are those of LitGPT too, which has no scheduler or checkpoint beside them."""
    found = meant(CHANGES, "changes.yaml")
    assert found.program == "megatron-bridge"
    told = {value.key: value.value for value in found.values}
    holds(told, sequence_length=1024, micro_batch_size=2, max_gradient_norm=0.5, parallel__tensor=2, packing=True)
    holds(told, parallel__pipeline=2, activation_checkpointing="selective", precision=None, optimizer=None)
    for key in ("model", "precision", "optimizer", "parallel.sharding", "gradient_accumulation_steps"):
        assert key in found.open, key
    holds(job(CHANGES, "changes.yaml", devices=8), parallel__data=2, gradient_accumulation_steps=4)


def test_a_recipe_of_megatron_bridge_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "llama3.py"
    path.write_text(dedent(BRIDGE))
    ran = run("fit", f"{path}:llama3_8b_peft_config", "--gpu", "h100", "--gpus", "8", "--print", "verdict")
    assert ran.code in (0, 3), ran.err


def test_the_graph_trainers_copies_are_those_of_their_models() -> None:
    text = f"""{REGISTRY}
    def graph_trainer_llama3_8b() -> GraphTrainer.Config:
        config = to_graph_trainer_config(llama3_8b_split(), model_registry)
        config.model_spec = replace(config.model_spec, pipelining_fn=own)
        config.training = replace(config.training, steps=2)
        return config
    """
    holds(
        job(text, "config_registry.py:graph_trainer_llama3_8b"),
        model="llama-3.1-8b",
        sequence_length=8192,
        activation_checkpointing="selective-op",
    )


@pytest.mark.parametrize(
    ("path", "counted"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3-8b"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-30b-a3b"),
        ("google/gemma-3-12b-it", "gemma-3-12b-text"),
    ],
)
def test_of_a_model_with_images_the_language_model_is_counted(path: str, counted: str) -> None:
    file = "recipe.py:llama3_8b_pretrain_16gpu_h100_bf16_config"
    found = meant(BRIDGE.replace("meta-llama/Meta-Llama-3-8B", path), file)
    assert found.job["model"] == counted
    assert "without the encoder" in found.unmodelled["model._of.0"]


def test_a_frozen_language_model_is_asked_for_unless_it_has_adapters() -> None:
    text = BRIDGE.replace("    cfg.env_vars", "    cfg.model.freeze_language_model = True\n        cfg.env_vars")
    assert text != BRIDGE
    assert "--frozen none" in meant(text, "recipe.py:llama3_8b_pretrain_16gpu_h100_bf16_config").open["frozen"]
    assert "frozen" not in meant(text, "recipe.py:llama3_8b_peft_config").open


def test_a_variable_of_the_environment_is_what_is_taken_without_it() -> None:
    file = "recipe.py:llama3_8b_pretrain_16gpu_h100_bf16_config"
    text = BRIDGE.replace('"meta-llama/Meta-Llama-3-8B"', 'os.environ.get("MODEL", "Qwen/Qwen3-8B")')
    assert text != BRIDGE
    assert meant(text, file).job["model"] == "qwen3-8b"


@pytest.mark.parametrize(("frozen", "read"), [("", True), (", freeze_language_model=False", False)])
def test_adapters_of_a_model_with_images_are_those_of_its_language_model(frozen: str, read: bool) -> None:
    made = f'VLMLoRA(target_modules=["*vision_model*.linear_proj", "linear_qkv"].copy(), dim=16{frozen})'
    text = BRIDGE.replace("default_peft_config(peft_scheme, dim=8)", made)
    assert text != BRIDGE
    if read:
        targets = ["o_proj", "q_proj", "k_proj", "v_proj"]
        holds(job(text, "recipe.py:llama3_8b_peft_config"), adapter__rank=16, adapter__targets=targets)
    else:
        with pytest.raises(InputError, match="VLMLoRA"):
            meant(text, "recipe.py:llama3_8b_peft_config")
