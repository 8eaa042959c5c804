"""Names of copies on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.catalog import locate
from vramplan.catalog.mirrors import FILE, load_mirrors
from vramplan.catalog.model_names import begun_from
from vramplan.catalog.models import find_model, list_models
from vramplan.errors import InputError
from vramplan.job.lookup import Catalog

pytestmark = pytest.mark.contract


def test_each_is_of_a_profile_and_none_is_an_alias() -> None:
    profiles = list_models()
    names, aliases = {one.name for one in profiles}, {word.lower() for one in profiles for word in one.aliases}
    shipped = load_mirrors(locate.shipped_dirs()[0] / FILE)
    assert {one.model for one in shipped.values()} <= names
    assert not aliases & set(shipped)
    assert all("/" in name and one.source for name, one in shipped.items())


def test_a_copy_has_the_shape_of_its_original_and_says_so() -> None:
    shape, told = find_model("NousResearch/Meta-Llama-3-8B")
    assert shape == find_model("llama-3-8b")[0]
    assert told[0].value == "llama-3-8b"
    assert "NousResearch/Meta-Llama-3-8B" in told[0].why
    with pytest.raises(InputError, match="no profile is called 'foo/bar'"):
        find_model("foo/bar")


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistral-7b-instruct", "mistral-7b"),
        ("Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("Llama-2-7b-chat-hf", "llama-2-7b"),
        ("gemma-3-4b-it", "gemma-3-4b"),
        ("zephyr-7b-beta", "mistral-7b"),
        ("deepseek-r1-distill-qwen-7b", "qwen2.5-math-7b"),  # of the table, whose owner nobody types
        ("all-MiniLM-L6-v2", "minilm-l6-h384-uncased"),
        ("bge-small-en-v1.5", "minilm-l12-h384-uncased"),
        ("multilingual-e5-small", "multilingual-minilm-l12-h384"),
        ("aya-expanse:8b", "aya-23-8b"),  # as Ollama writes it
    ],
)
def test_a_name_without_its_owner_is_that_of_the_repository(name: str, profile: str) -> None:
    shape, told = find_model(name)
    assert shape == find_model(profile)[0]
    assert told[0].value == profile
    assert told[0].why.startswith("the shape ")


@pytest.mark.parametrize(
    ("name", "profile"),
    [("qwen3:8b", "qwen3-8b"), ("llama3.1:8b", "llama-3.1-8b"), ("gemma3:27b", "gemma-3-27b")],
)
def test_a_colon_stands_for_a_dash_as_in_ollamas_names(name: str, profile: str) -> None:
    shape, told = find_model(name)
    assert shape == find_model(profile)[0]
    assert (told[0].value, told[0].why) == (profile, f"{name}, as Ollama writes its name")


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("llama3.1:8b-instruct-q4_K_M", "llama-3.1-8b"),
        ("gemma3:27b-it-qat", "gemma-3-27b"),
        ("phi4:14b", "phi-4"),
        ("deepseek-v3:671b", "deepseek-v3"),
        ("qwen3:30b", "qwen3-30b-a3b"),
        ("llama4:scout", "llama-4-scout-17b-16e"),
        ("deepseek-r1:14b", "qwen2.5-14b"),
    ],
)
def test_a_tag_of_ollama_is_the_one_model_that_it_can_mean(name: str, profile: str) -> None:
    shape, told = find_model(name)
    assert shape == find_model(profile)[0]
    rounded = name.endswith(("q4_K_M", "qat"))
    assert ("are for serving, and those that it was made of count" in told[0].why) == rounded


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("deepseek-r1:8b", "deepseek-r1-distill-llama-8b or qwen3-8b"),
        ("devstral:24b", "devstral-small-2-24b"),
        ("phi4:70b", "phi-4"),
    ],
)
def test_a_tag_that_may_mean_several_or_a_later_one_is_asked_back(name: str, near: str) -> None:
    with pytest.raises(InputError, match="did you mean") as refused:
        find_model(name)
    assert near in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        *("llama-3.9-8b-instruct", "gpt2-xxl", "lama-3-8b", "instruct", "whisper-smal"),
        *("qwen3:9b", "deepseek-r1:8b", "mistral:", "phi4:-14b"),
    ],
)
def test_a_name_that_nothing_has_is_still_an_error_with_the_near_ones(name: str) -> None:
    with pytest.raises(InputError, match="there is no model profile"):
        find_model(name)


def test_quantized_weights_count_without_an_owner_too() -> None:
    told = find_model("llama-3-8b-bnb-4bit")[1]
    assert {one.key for one in told} >= {"model", "quantization"}


def test_a_number_of_parameters_names_models_of_that_size() -> None:
    said = Catalog().models_of_size("7b")
    assert said is not None
    assert "llama-2-7b" in said.split(", ")
    assert "qwen2-7b" not in said.split(", ")  # of each family the newest
    assert Catalog().models_of_size("3.3b") is None


def test_a_folder_of_profiles_may_have_a_table_of_its_own(tmp_path: Path) -> None:
    head = "kind: mirrors\nsources:\n  card: {title: a card, url: https://x.y, accessed: '2026-11-23'}\nmirrors:\n"
    table = tmp_path / FILE
    table.write_text(f"{head}  - {{model: gpt2, source: card, repositories: [me/mine]}}\n", "utf-8")
    assert find_model("me/mine", [tmp_path])[0].name == "gpt2"
    table.write_text(f"{head}  - {{model: gpt2, source: none, repositories: [me/mine, me/mine]}}\n", "utf-8")
    with pytest.raises(InputError) as caught:
        find_model("me/mine", [tmp_path])
    said = [problem.message for problem in caught.value.problems]
    assert said == ["none is not among the sources", "me/mine is there twice"]


@pytest.mark.parametrize(
    ("repository", "profile"),
    [
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("EleutherAI/pythia-160m-deduped", "pythia-160m"),
        ("codellama/CodeLlama-7b-Instruct-hf", "codellama-7b"),
        ("me/Ministral-3-3B-Reasoning-2512", "ministral-3-3b"),
        ("me/dolphin-2.9-llama3-8b", "llama-3-8b"),
        ("me/Llama-3-Base-8B-SFT", "llama-3-8b"),
    ],
)
def test_a_name_that_says_its_shape_is_taken_and_told(repository: str, profile: str) -> None:
    shape, told = find_model(repository)
    assert shape.name == profile
    assert (told[0].value, told[0].why.startswith("the shape that the name says")) == (profile, True)


@pytest.mark.parametrize(
    "repository",
    [
        *("Qwen/Qwen2.5-Omni-7B", "me/llama-3-8b-and-more", "google/gemma-3n-E9B-it", "me/llava-llama-3-8b"),
        *("me/OpenR1-Qwen-7B-2", "microsoft/Phi-4-multimodal-instruct", "Qwen/Qwen3.5-1200B-A10B"),
    ],
)
def test_a_name_that_may_be_of_another_shape_is_not(repository: str) -> None:
    with pytest.raises(InputError):
        find_model(repository)


@pytest.mark.parametrize(
    ("repository", "why"),
    [
        ("moonshotai/Kimi-Linear-48B-A3B-Base", "linear attention"),
        ("LiquidAI/LFM2-24B-A2B", "short convolution"),
        ("Zyphra/Zamba2-7B", "state-space and recurrent models"),
    ],
)
def test_why_a_model_is_not_modelled_is_said(repository: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        find_model(repository)
    assert why in str(caught.value.problems[0].hint)


@pytest.mark.parametrize(
    ("repository", "base"),
    [
        ("me/Qwen2.5-7B-Instruct-own-v3", "qwen2.5-7b"),
        ("me/Llama-3.1-Own-Words-8B", "llama-3.1-8b"),
        ("me/zephyr-7b-sft-full-own-iter0", "mistral-7b"),
        ("me/llama-3-8b-and-more", "llama-3-8b"),
        ("me/Llama-3.1-Own-51B", None),
        ("me/Qwen2.5-Omni-7B-own", None),
        ("me/own-words", None),
    ],
)
def test_the_base_that_a_name_begins_with_is_named_and_not_taken(repository: str, base: str | None) -> None:
    assert begun_from(repository) == base
    with pytest.raises(InputError):
        find_model(repository)


def test_embedding_models_over_mpnet_have_no_logits() -> None:
    """They are copies for comparing texts, and no names of MPNet itself."""
    for name in ("all-mpnet-base-v2", "sentence-transformers/multi-qa-mpnet-base-dot-v1"):
        assert Catalog().is_of_texts(name, Catalog().model(name)[1]), name
    assert not Catalog().is_of_texts("mpnet-base", Catalog().model("mpnet-base")[1])
