"""torchtitan's registry: flavors that no checkpoint has, optimizers in groups, fp8, and one device that FSDP wraps."""

from __future__ import annotations

from math import isclose
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.running import fit
from tests.configs.meant import holds, job, meant, together
from vramplan.catalog.counting import parameters_of
from vramplan.catalog.models import find_model
from vramplan.configs.programs.torchtitan_shapes import NEWER, SHAPES
from vramplan.configs.writers import torchtitan
from vramplan.job.file import build_job

pytestmark = pytest.mark.contract

REGISTRY = """
    from torchtitan.trainer import Trainer
    from . import model_registry

    def FUNCTION() -> Trainer.Config:
        return Trainer.Config(
            model_spec=model_registry("FLAVOR"),
            optimizer=OPTIMIZER,
            training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2048, max_context_length=2048),
            parallelism=ParallelismConfig(tensor_parallel_degree=TENSOR),
            activation_checkpoint=FullAC.Config(),
        )
"""
ADAMW = "default_adamw(lr=1e-4)"


def registry(function: str, flavor: str, optimizer: str = ADAMW, tensor: int = 1) -> str:
    """A file with one configuration."""
    named = REGISTRY.replace("FUNCTION", function).replace("FLAVOR", flavor)
    return named.replace("OPTIMIZER", optimizer).replace("TENSOR", str(tensor))


def test_qwen3_5_has_its_encoder_of_images_and_a_head_of_its_own() -> None:
    model = job(registry("qwen35_27b", "27B", tensor=4), "config_registry.py")["model"]
    assert (model["family"], model["layers"], model["hidden_size"]) == ("qwen3_5", 64, 5120)
    assert (model["vision_layers"], model["vision_hidden_size"], model["tied_embeddings"]) == (27, 1152, False)
    assert len(model["linear_attention"]["layers"]) == 48


@pytest.mark.closed_form
@pytest.mark.parametrize("flavor", ["4B", "9B", "27B", "35B-A3B"])
def test_the_text_of_a_flavor_has_the_parameters_of_its_checkpoint(flavor: str) -> None:
    described = build_job({"model": SHAPES["qwen3_5", flavor], "gpu": "h100", "micro_batch_size": 1}).model
    text, _ = find_model(f"qwen3.5-{flavor.lower()}")
    head = text.vocabulary_size * text.hidden_size if text.tied_embeddings else 0
    encoder = parameters_of(described) - parameters_of(text) - head
    width, inner, layers = described.vision_hidden_size, described.vision_intermediate_size, described.vision_layers
    assert None not in (width, inner, layers)
    blocks = layers * (4 * width * width + 2 * width * inner)
    merger = 4 * width * (4 * width + described.hidden_size)
    assert isclose(encoder, blocks + merger, rel_tol=0.02)


def test_groups_of_parameters_name_their_optimizers() -> None:
    first = 'ParamGroupConfig(pattern=r".*attention.*", optimizer_name="NAME")'
    last = 'ParamGroupConfig(pattern=r".*", optimizer_name="AdamW")'
    container = f"OptimizersContainer.Config(param_groups=[{first}, {last}])"
    other = registry("qwen3_0_6b", "0.6B", f"TorchFTOptimizersContainer.Config(param_groups={ADAMW}.param_groups)")
    assert job(other, "config_registry.py")["optimizer"] == "adamw"
    for name, word in (("AdamW", "adamw"), ("DistMuon", "muon")):
        text = registry("qwen3_0_6b", "0.6B", container.replace("NAME", name))
        assert job(text, "config_registry.py")["optimizer"] == word


def test_what_is_beside_the_text_of_kimi_is_told() -> None:
    found = meant(registry("kimi_k2_5", "Kimi-K2.5"), "config_registry.py")
    assert found.job["model"] == "kimi-k2"
    assert any("MoonViT" in why for why in found.unmodelled.values())


def test_products_in_fp8_that_nothing_compiles_are_counted_in_bf16() -> None:
    text = registry("llama3_debugmodel", "debugmodel").replace(
        'model_registry("debugmodel")', 'model_registry("debugmodel", converters=[Float8LinearConverter.Config()])'
    )
    found = meant(text, "config_registry.py")
    assert found.job["precision"] == "fsdp-bf16"
    assert any("fp8" in why for why in found.unmodelled.values())


def test_fsdp_wraps_the_one_device_that_tensor_parallelism_leaves(tmp_path: Path) -> None:
    file = tmp_path / "config_registry.py"
    file.write_text(dedent(registry("llama3_debugmodel", "debugmodel", tensor=8)))
    holds(fit(str(file), "--gpu", "8xh100")["job"]["parallel"], data=1, tensor=8, sharding="fsdp")


def test_flavors_that_came_after_the_toml_are_not_written_into_it() -> None:
    assert not [key for key in torchtitan.MODELS.values() if key[0] in NEWER]
    assert torchtitan.MODELS[str(SHAPES["qwen3", "debugmodel"]["name"])] == ("qwen3", "debugmodel")


def test_what_is_stepped_in_backward_is_not_clipped() -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 512\n[optimizer]\nname = "AdamW"\n'
    assert job(text, "a.toml")["max_gradient_norm"] == 1.0
    found = job(text + "early_step_in_backward = true\n", "a.toml")
    holds(found, optimizer_in_backward=True, max_gradient_norm=None)


def test_the_first_registry_has_the_keys_of_the_toml_files() -> None:
    text = """
    from torchtitan.trainer import Trainer
    from . import model_registry

    def llama3_own() -> Trainer.Config:
        return Trainer.Config(
            model_spec=model_registry("8B"),
            optimizer=OptimizersInBackwardContainer.Config(lr=1e-4),
            training=TrainingConfig(local_batch_size=3, seq_len=1024),
            activation_checkpoint=ActivationCheckpointConfig(mode="selective", selective_ac_option="op"),
        )
    """
    found = meant(text, "config_registry.py", devices=1)
    assert found.release == "2026-03"
    told = {value.key: value.value for value in found.values}
    holds(told, sequence_length=1024, micro_batch_size=3, activation_checkpointing="selective-op")
    holds(told, optimizer_in_backward=True, precision="amp-bf16", max_gradient_norm=None)
    first = 'ActivationCheckpointConfig(mode="selective", selective_ac_option="op")'
    later = text.replace(first, "SelectiveAC.Config()").replace("local_batch_size=3, ", "")
    assert meant(later.replace("seq_len", "max_context_length"), "config_registry.py").release == "main"
    between = meant(text.replace(first, "SelectiveAC.Config()"), "config_registry.py", devices=1)  # of June 2026
    assert (between.release, between.job["activation_checkpointing"]) == ("2026-04", "selective-op")
    holds(job(text.replace(first, "FullAC.Config()"), "config_registry.py"), activation_checkpointing="full")
    holds(job(text.replace(first, "None"), "config_registry.py"), activation_checkpointing="none")


def test_the_registry_without_an_option_of_selective_checkpoints_keeps_by_operation() -> None:
    function = """
    def llama3_{name}() -> Trainer.Config:
        return Trainer.Config(
            model_spec=model_registry("8B"),
            training=TrainingConfig(local_batch_size=1, seq_len=1024),
            activation_checkpoint=ActivationCheckpointConfig({arguments}),
        )
    """
    first = function.format(name="own", arguments='mode="selective"')
    found = meant(first, "config_registry.py", devices=2)
    assert (found.release, found.job["activation_checkpointing"]) == ("2026-04", "selective-op")
    # Where another configuration names the option, the registry is an earlier one, with its default.
    other = function.format(name="other", arguments='mode="selective", selective_ac_option="op"')
    found = meant(first + other, "config_registry.py", devices=2)
    assert (found.release, found.job["activation_checkpointing"]) == ("2026-03", "selective-layer:2")


def test_a_cuda_graph_of_forward_and_backward_is_told_unless_it_is_turned_off() -> None:
    text, key = registry("qwen3_0_6b", "0.6B"), "training.disable_cuda_graphs"
    assert "gradients stay between steps" in meant(text, "config_registry.py").unmodelled[key]
    off = text.replace("TrainingConfig(", "TrainingConfig(disable_cuda_graphs=True, ")
    assert off != text
    assert key not in meant(off, "config_registry.py").unmodelled


def test_tables_of_2024_have_degrees_and_fp8_under_training() -> None:
    text = """\
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 2048
data_parallel_degree = -1
tensor_parallel_degree = 4
pipeline_parallel_degree = 1
fp8_linear = "{fp8}"
fsdp_reshard_after_forward = "never"
"""
    found = meant(text.format(fp8=""), "titan.toml")
    holds(found.job["parallel"], tensor=4, sharding="fsdp-grad-op")
    values = {value.key: value.sources[0].key for value in found.values}
    assert (values["micro_batch_size"], values["parallel.tensor"]) == (
        "training.batch_size",
        "training.tensor_parallel_degree",
    )
    assert not found.unmodelled
    assert "training.fp8_linear" in meant(text.format(fp8="dynamic"), "titan.toml").unmodelled


TOML = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 2048
[activation_checkpoint]
mode = "none"
[compile]
enable = true
components = ["loss"]
"""


def test_a_compiled_loss_alone_is_told() -> None:
    found = meant(TOML, "a.toml")
    assert "compile" not in found.job
    assert "the loss alone is compiled" in str(found.unmodelled["compile.components"])
    whole = meant(TOML.replace('["loss"]', '["model", "loss"]'), "a.toml")
    assert whole.job["compile"] is True
    assert "compile.components" not in whole.unmodelled


def test_a_program_around_torchtitans_names_the_file_as_it_does(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(TOML)
    line = "mpiexec -n 4 python -u wrapper.py --job.config_file ./own.toml --training.local_batch_size 3\n"
    found = together(tmp_path, {"run.sh": line}, "run.sh")
    assert (found.program, found.job["micro_batch_size"], found.job["parallel"]["data"]) == ("torchtitan", 3, 4)


@pytest.mark.parametrize(
    ("stages", "policy", "sharding", "shards"),
    [
        (2, "", ("fsdp-grad-op", "fsdp-grad-op"), (None, 2)),
        (2, "always", ("fsdp", "hsdp:2"), (None, None)),
        (1, "", ("fsdp", "hsdp:2"), (None, None)),
        (1, "never", ("fsdp-grad-op", "fsdp-grad-op"), (None, 2)),
    ],
)
def test_parameters_stay_whole_between_micro_batches_of_a_pipeline(
    stages: int, policy: str, sharding: tuple[str, str], shards: tuple[int | None, int | None]
) -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 64\n[parallelism]\n'
        f"data_parallel_shard_degree = 2\npipeline_parallel_degree = {stages}\n"
    )
    text += f'fsdp_reshard_after_forward = "{policy}"\n' if policy else ""
    for more, word, group in zip(("", "data_parallel_replicate_degree = 2\n"), sharding, shards, strict=True):
        found = meant(text + more, "titan.toml").job
        holds(found["parallel"], sharding=word, shards=group, pipeline=stages if stages > 1 else None)
