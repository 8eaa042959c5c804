"""Scripts that call recipes of NeMo 2, whose files are not beside them."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.programs.nemo_library import recipes
from vramplan.errors import InputError

START = "import nemo_run as run\nfrom nemo.collections import llm\n"
SCRIPT = """\
def configure(nodes: int = 2, each: int = 8):
    recipe = llm.llama3_70b.pretrain_recipe(dir="/own", name="own", num_nodes=nodes, num_gpus_per_node=each)
    recipe.trainer.strategy.pipeline_model_parallel_size = 2
    recipe.trainer.strategy.virtual_pipeline_model_parallel_size = None
    recipe.data.global_batch_size = 64
    return recipe


def executor(devices: int = 8):
    return run.LocalExecutor(ntasks_per_node=devices, launcher="torchrun")


def train():
    recipe = configure()
    recipe.trainer.strategy.context_parallel_size = 1
    run.run(recipe, executor=executor())


if __name__ == "__main__":
    train()
"""


def test_a_recipe_that_a_script_hands_to_nemo_run() -> None:
    found = job(START + SCRIPT, "train.py")
    holds(found, model="llama-3-70b", sequence_length=8192, micro_batch_size=1, precision="mixed-bf16")
    holds(found, parallel__tensor=4, parallel__pipeline=2, parallel__context=None, parallel__schedule=None)
    holds(found, parallel__sequence_parallel=True, parallel__data=2, gradient_accumulation_steps=32)
    holds(found, parallel__sharding="distributed-optimizer", max_gradient_norm=1.0)


def test_recipes_of_an_experiment_and_of_the_file_itself() -> None:
    made = 'recipe = llm.llama32_1b.finetune_recipe(name="own", num_nodes=1, num_gpus_per_node=2)\n'
    started = 'with run.Experiment("own") as exp:\n    exp.add(recipe, executor=None)\n    exp.run()\n'
    holds(job(START + made + started, "a.py"), model="llama-3.2-1b", parallel__data=2, adapter__kind="lora")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", {"adapter__rank": 8, "adapter__alpha": 16, "sequence_length": 2048, "parallel__tensor": None}),
        ('peft_scheme="dora"', {"adapter__rank": 8, "adapter__kind": "dora"}),
        ("peft_scheme=None", {"adapter__kind": None, "parallel__tensor": 2, "packing": None}),
        ('peft_scheme="none", seq_length=1024', {"adapter__kind": None, "sequence_length": 1024}),
        ("packed_sequence=True", {"packing": True, "sequence_length": 4096}),
        ("performance_mode=True", {"packing": True, "sequence_length": 4096, "gradient_dtype": "bf16"}),
        ("performance_mode=True, packed_sequence=False", {"packing": None, "sequence_length": 2048}),
    ],
)
def test_arguments_of_a_recipe_for_finetuning(given: str, expected: dict[str, object]) -> None:
    text = f"{START}def own():\n    return llm.llama3_8b.finetune_recipe(num_gpus_per_node=8, {given})\n"
    holds(job(text, "own.py"), **expected)


def test_what_is_assigned_as_a_whole_leaves_nothing_of_the_recipe() -> None:
    text = """
    import nemo_run as run
    from nemo.collections.llm.recipes.mixtral_8x7b import finetune_recipe as made
    from nemo.collections.llm.recipes import mixtral_8x7b

    def own():
        recipe = mixtral_8x7b.pretrain_recipe(num_nodes=2)
        recipe.data = run.Config(OwnData, seq_length=1024, micro_batch_size=2, global_batch_size=64)
        recipe.trainer.plugins = bf16_with_fp8_mixed()
        return recipe
    """
    holds(job(text, "own.py"), model="mixtral-8x7b", sequence_length=1024, micro_batch_size=2, precision="fp8")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("llm.own_model.pretrain_recipe(num_nodes=1)", "llm.own_model.pretrain_recipe is in a file that is not here"),
        ("llm.llama3_8b.finetune_recipe(peft_scheme=args.peft)", "peft_scheme is args.peft, which only the caller"),
        (
            "llm.qwen3_8b.pretrain_recipe(performance_mode=True)",
            "for pretrain with performance_mode",
        ),
    ],
)
def test_what_is_not_known_of_a_recipe_is_an_error(call: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        meant(f"{START}def own():\n    return {call}\n", "own.py")


def test_a_size_that_only_the_caller_knows_is_not_that_of_the_recipe() -> None:
    more = "recipe.trainer.strategy.tensor_model_parallel_size = args.tp\nrun.run(recipe)\n"
    with pytest.raises(InputError, match=r"is args\.tp, which only the caller knows"):
        meant(f"{START}recipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n{more}", "own.py")


def test_devices_that_only_the_caller_knows_are_not_those_of_the_recipe() -> None:
    text = (
        f"{START}recipe = llm.llama3_8b.pretrain_recipe(num_nodes=args.nodes, num_gpus_per_node=8)\nrun.run(recipe)\n"
    )
    assert "parallel.data" in meant(text, "own.py").open


@pytest.mark.parametrize("name", sorted(recipes()))
def test_each_recipe_has_a_model_a_length_and_a_batch(name: str) -> None:
    for settings in recipes()[name].values():
        assert {"model._class", "data.seq_length", "data.global_batch_size"} <= settings.keys()
