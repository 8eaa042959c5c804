"""Scripts in Python whose trainer, model or arguments go by another name, or come from elsewhere."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

TRAINS = """
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer
"""


def test_a_class_that_is_imported_under_another_name() -> None:
    text = """
    from transformers import AutoModelForCausalLM
    from trl import CPOConfig as Settings, CPOTrainer as Trainer
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    trainer = Trainer(model=model, args=Settings(per_device_train_batch_size=2, bf16=True), train_dataset=rows)
    """
    assert job(text, "own.py")["loss"] == "cpo"


BY_BRANCH = """
import argparse
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="sft")
parser.add_argument("--batch_of_one", type=int, default=4)
args = parser.parse_args()
if args.kind == "dpo":
    from trl import DPOTrainer as Trainer
    from trl import DPOConfig as Settings
else:
    from trl import SFTTrainer as Trainer
    from trl import SFTConfig as Settings
model = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = Trainer(model=model, args=Settings(per_device_train_batch_size=args.batch_of_one), train_dataset=rows)
"""


@pytest.mark.parametrize(("command", "loss"), [("", None), ("--kind dpo", "dpo")])
def test_the_branch_that_a_command_takes_says_which_class_it_is(tmp_path, command: str, loss: str | None) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "own.py").write_text(BY_BRANCH)
    (tmp_path / "run.sh").write_text(f"python own.py --batch_of 3 {command}\n")  # argparse takes the beginning
    found = read_files([str(tmp_path / "run.sh")], Wanted()).job
    assert (found.get("loss"), found["micro_batch_size"]) == (loss, 3)


def test_arguments_without_a_name() -> None:
    text = TRAINS + (
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        "args = TrainingArguments(per_device_train_batch_size=3)\n"
        "trainer = Trainer(model, args, train_dataset=rows)\n"
    )
    assert job(text, "own.py")["micro_batch_size"] == 3


def test_a_model_of_another_function_is_another_model() -> None:
    text = TRAINS + (
        "def main():\n"
        "    own = BitsAndBytesConfig(load_in_4bit=True)\n"
        '    model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=own)\n'
        "    trainer = Trainer(model=model, args=TrainingArguments(bf16=True), train_dataset=rows)\n"
        "main()\n"
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
    )
    assert job(text, "own.py")["quantization"] == "nf4"


def test_how_weights_are_quantized_may_stand_beside_it() -> None:
    how = 'load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4"'
    text = TRAINS + (
        f'model = AutoModelForCausalLM.from_pretrained("gpt2", {how})\n'
        "trainer = Trainer(model=model, args=TrainingArguments(bf16=True), train_dataset=rows)\n"
    )
    assert job(text, "own.py")["quantization"] == "nf4-double"


@pytest.mark.parametrize("made", ["self.model", "load_with_adapters(config)", "tools.ready_model()"])
def test_a_model_that_comes_ready_made_may_have_an_adapter(made: str) -> None:
    text = (
        TRAINS + f"model = {made}\ntrainer = SFTTrainer(model=model, args=SFTConfig(bf16=True), train_dataset=rows)\n"
    )
    found = meant(text, "own.py")
    assert {"model", "adapter.kind"} <= found.open.keys()
    assert "--adapter null" in found.open["adapter.kind"]
    wrapped = text.replace("bf16=True)", "bf16=True), peft_config=LoraConfig(r=4)")
    assert "adapter.kind" not in meant(wrapped, "own.py").open


def test_a_model_of_a_class_is_asked_for_and_no_adapter() -> None:
    text = (
        TRAINS + "model = OwnModel(config)\ntrainer = Trainer(model=model, args=TrainingArguments(), train_dataset=x)\n"
    )
    assert "adapter.kind" not in meant(text, "own.py").open


SOUND = """
from transformers import Trainer, TrainingArguments, {kind}
model = {kind}.from_pretrained("{name}")
{freezes}
trainer = Trainer(model=model, args=TrainingArguments(fp16=True), train_dataset=rows)
"""


def test_models_of_sound_and_of_translations() -> None:
    frozen = "model.freeze_feature_encoder()"
    text = SOUND.format(kind="Wav2Vec2ForCTC", name="facebook/wav2vec2-base", freezes=frozen)
    holds(job(text, "own.py"), model="wav2vec2-base", frozen=["feature_extractor"])
    assert "frozen" not in job(text.replace(frozen, ""), "own.py")
    text = SOUND.format(kind="MarianMTModel", name="Helsinki-NLP/opus-mt-en-de", freezes="")
    assert job(text, "own.py")["model"] == "opus-mt-en-de"


def test_a_branch_that_is_not_taken_adds_nothing() -> None:
    text = TRAINS + (
        "words = {'per_device_train_batch_size': 2}\n"
        "if torch.cuda.is_available() and torch.cuda.is_bf16_supported():\n    words['bf16'] = True\n"
        "else:\n    words['fp16'] = torch.cuda.is_available()\n"
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        "trainer = Trainer(model=model, args=TrainingArguments(**words), train_dataset=rows)\n"
    )
    assert job(text, "own.py")["precision"] == "amp-bf16"


def test_a_field_that_a_command_turns_off(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "own.py").write_text(
        TRAINS + "from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n"
        "@dataclass\nclass Own:\n    gradient_checkpointing: bool = True\n"
        "own = HfArgumentParser(Own).parse_args_into_dataclasses()[0]\n"
        "settings = TrainingArguments(gradient_checkpointing=own.gradient_checkpointing, bf16=True)\n"
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        "trainer = Trainer(model=model, args=settings, train_dataset=rows)\n"
    )
    (tmp_path / "run.sh").write_text("python own.py --no_gradient_checkpointing\n")
    assert read_files([str(tmp_path / "run.sh")], Wanted()).job["activation_checkpointing"] == "none"


LENGTH = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def rows_of(texts, longest):
    def cut(row):
        return tokenizer(row["text"], truncation=True, padding="max_length", max_length=longest)
    return texts.map(cut)
model = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = Trainer(model=model, args=TrainingArguments(bf16=True), train_dataset=rows_of(texts, 320))
"""


def test_the_length_of_a_function_around_the_one_that_cuts() -> None:
    assert job(LENGTH, "own.py")["sequence_length"] == 320


def test_whether_a_reference_is_precomputed_may_be_known_to_the_caller_alone() -> None:
    text = TRAINS + (
        "from trl import DPOConfig, DPOTrainer\n"
        'args = DPOConfig(precompute_ref_log_probs=settings.get("before", False))\n'
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        "trainer = DPOTrainer(model=model, args=args, train_dataset=rows)\n"
    )
    found = meant(text, "own.py")
    assert "dpo_reference" in found.open
    assert "dpo_reference" not in found.job


def test_widened_weights_are_in_fp32_where_nothing_is_cast() -> None:
    text = TRAINS + (
        "own = BitsAndBytesConfig(load_in_4bit=True)\n"
        'model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=own)\n'
        "model = prepare_model_for_kbit_training(model)\n"
        "settings = TrainingArguments(evaluation_strategy='no')\n"
        "trainer = SFTTrainer(model=model, args=settings, train_dataset=rows, peft_config=LoraConfig(r=4))\n"
    )
    assert job(text, "own.py")["precision"] == "fp32"


HANDED = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from copy import deepcopy
usual = {{"per_device_train_batch_size": 3, "gradient_accumulation_steps": 5}}
{words}
model = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = Trainer(model=model, args=TrainingArguments(bf16=True, **words), train_dataset=rows)
"""


@pytest.mark.parametrize(
    ("words", "batch"),
    [
        ("words = dict(usual)", 3),
        ("words = dict(usual, per_device_train_batch_size=7)", 7),
        ("words = usual.copy()", 3),
        ("words = deepcopy(usual)", 3),
        ("words = {**usual, 'per_device_train_batch_size': 7}", 7),
        ("words = usual | {'per_device_train_batch_size': 7}", 7),
        ("words = dict(usual)\nwords.update({'per_device_train_batch_size': 7})", 7),
        ("words = dict(usual)\nwords.update(per_device_train_batch_size=7)", 7),
        ("words = dict(usual)\nif None:\n    words.update(per_device_train_batch_size=7)", 3),
    ],
)
def test_a_copy_of_a_dictionary_has_its_items(words: str, batch: int) -> None:
    holds(job(HANDED.format(words=words), "own.py"), micro_batch_size=batch, gradient_accumulation_steps=5)


@pytest.mark.parametrize("words", ["words = dict(elsewhere)", "words = {**elsewhere}", "words = elsewhere.copy()"])
def test_a_copy_of_what_nobody_knows_is_asked_for(words: str) -> None:
    found = meant(HANDED.format(words=words), "own.py")
    assert {"micro_batch_size", "gradient_accumulation_steps", "optimizer"} <= found.open.keys()


def test_a_name_that_the_trainer_loads_is_no_model_made_elsewhere() -> None:
    text = TRAINS + "trainer = SFTTrainer(model=args.model_name, args=SFTConfig(bf16=True), train_dataset=rows)\n"
    assert "adapter.kind" not in meant(text, "own.py").open


def test_an_adapter_around_a_model_by_its_class() -> None:
    text = TRAINS + (
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        "model = PeftModel(model, peft_config=LoraConfig(r=4))\n"
        "trainer = Trainer(model=model, args=TrainingArguments(bf16=True), train_dataset=rows)\n"
    )
    assert job(text, "own.py")["adapter.rank"] == 4


def test_arguments_that_a_file_of_json_has_are_not_in_the_script() -> None:
    text = TRAINS + (
        "parser = HfArgumentParser((Own, TrainingArguments))\n"
        "own, settings = parser.parse_json_file('own.json')\n"
        "trainer = Trainer(model=model, args=settings, train_dataset=rows)\n"
    )
    with pytest.raises(InputError, match="from its command line"):
        meant(text, "own.py")


@pytest.mark.parametrize(("file", "asked"), [("dpo.yaml", True), ("own_orpo_run.yaml", True), ("sft.yaml", False)])
def test_a_file_that_is_named_after_a_trainer_of_trl(file: str, asked: bool) -> None:
    text = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nnum_train_epochs: 1\nsave_strategy: steps\n"
    found = meant(text, file)
    assert (found.program, "loss" in found.open) == ("training-arguments", asked)


TWO = (
    TRAINS
    + """
def unused():
    Trainer(model="gpt2", args=TrainingArguments(per_device_train_batch_size=7), train_dataset=rows, tokenizer=words)

def main():
    Trainer(model="gpt2", args={settings}, train_dataset=rows)

if __name__ == "__main__":
    main()
"""
)


def test_a_trainer_of_a_function_that_nothing_calls_is_passed_over(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert job(TWO.replace("{settings}", "TrainingArguments(bf16=True)"), "own.py")["micro_batch_size"] == 8
    parsed = TWO.replace("{settings}", "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]")
    (tmp_path / "own.py").write_text(parsed)
    (tmp_path / "run.sh").write_text("python own.py --model_name_or_path gpt2 --per_device_train_batch_size 3\n")
    assert read_files([str(tmp_path / "run.sh")], Wanted()).job["micro_batch_size"] == 3
    assert job(parsed.replace("    main()\n", "    pass\n"), "own.py")["micro_batch_size"] == 7


def test_a_folder_of_windows_is_no_name_on_the_hub() -> None:
    text = TRAINS + "model = AutoModelForCausalLM.from_pretrained(r'C:\\own\\gpt2-medium-7')\n"
    text += "trainer = Trainer(model=model, args=TrainingArguments(bf16=True), train_dataset=rows)\n"
    assert "is a folder of the machine" in meant(text, "own.py").open["model"]


@pytest.mark.parametrize(
    ("path", "model", "hint"),
    [
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/9c3a", "qwen3-8b", ""),
        ("hub/models--gpt2", "gpt2", ""),
        ("/data/Llama-3.2-3B-Instruct-greedy", None, "--model llama-3.2-3b"),
        ("runs/deepseek-coder-6.7b-base/second", None, "--model deepseek-coder-6.7b"),
        ("/data/base", None, "--model NAME"),
    ],
)
def test_a_path_says_its_model_or_the_likeliest(path: str, model: str | None, hint: str) -> None:
    found = meant(f"model_name_or_path: {path}\nmax_length: 64\nbf16: true\nuse_peft: false\n", "sft.yaml")
    assert found.job.get("model") == model
    assert hint in found.open.get("model", "")


@pytest.mark.parametrize("switch", ["use_gradient_checkpointing", "enable_gradient_checkpointing"])
def test_checkpoints_behind_a_switch_of_the_script(tmp_path, switch: str) -> None:  # type: ignore[no-untyped-def]
    command = f"python own.py --model_name_or_path gpt2 --bf16 True --output_dir o --{switch} "
    assert job(command + "True\n", "run.sh")["activation_checkpointing"] == "full"
    assert job(command + "False\n", "run.sh")["activation_checkpointing"] == "none"
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        f"@dataclass\nclass Own:\n    model_name_or_path: str = 'gpt2'\n    {switch}: bool = True\n"
        "own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()\n"
    )
    (tmp_path / "run.sh").write_text("python own.py --bf16 True --output_dir o\n")
    assert read_files([str(tmp_path / "run.sh")], Wanted()).job["activation_checkpointing"] == "full"


def test_two_names_of_one_setting_may_say_the_same() -> None:
    text = "model_name_or_path: gpt2\nmax_length: 64\nbf16: true\nuse_peft: false\ngradient_checkpointing: true\n"
    text += "gradient_checkpointing_use_reentrant: {first}\ngradient_checkpointing_kwargs:\n  use_reentrant: false\n"
    assert job(text.format(first="false"), "sft.yaml")["activation_checkpointing"] == "full"
    with pytest.raises(InputError, match="gradient_checkpointing_use_reentrant"):
        meant(text.format(first="true"), "sft.yaml")


CHOOSES = """
from dataclasses import dataclass
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Own:
    model_name_or_path: str = "gpt2"
    use_lora: bool = False

def chosen(model):
    if model.config.n_layer > 2:
        return ["c_attn"]
    return ["c_attn", "c_proj"]

own, settings = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(own.model_name_or_path)
if own.use_lora:
    names = {names}
    model = get_peft_model(model, LoraConfig(r=4, target_modules=names))
Trainer(model=model, args=settings, train_dataset=rows).train()
"""


@pytest.mark.parametrize(("names", "targets"), [("chosen(model)", None), ('["c_proj"]', ["c_proj"])])
def test_modules_that_a_function_of_the_script_chooses_are_asked_for(tmp_path, names, targets) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "own.py").write_text(CHOOSES.replace("{names}", names))
    (tmp_path / "run.sh").write_text("python own.py --use_lora --per_device_train_batch_size 3 --bf16\n")
    found = read_files([str(tmp_path / "run.sh")], Wanted())
    assert (found.job["adapter"].get("targets"), "adapter.targets" in found.open) == (targets, targets is None)
