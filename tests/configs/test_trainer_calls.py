"""Scripts in Python that construct a Trainer: what they call, and what they leave to their command line."""

from __future__ import annotations

import textwrap
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.configs.reading import Wanted, read_file
from vramplan.errors import InputError

pytestmark = pytest.mark.plain

QLORA = """
    import torch
    from peft import LoraConfig, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    from trl import SFTConfig, SFTTrainer

    NAME = "meta-llama/Llama-3.2-1B"
    ROWS = 2

    def main():
        four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4")
        model = AutoModelForCausalLM.from_pretrained(NAME, quantization_config=four, torch_dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(NAME)
        model = prepare_model_for_kbit_training(model)
        adapter = LoraConfig(r=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        args = SFTConfig(
            output_dir="out", max_length=768, per_device_train_batch_size=ROWS, gradient_accumulation_steps=16 // ROWS,
            optim="paged_adamw_8bit", gradient_checkpointing=False, bf16=torch.cuda.is_bf16_supported(),
        )
        SFTTrainer(model=model, args=args, train_dataset=rows(), peft_config=adapter).train()
"""


def test_a_script_of_trl_with_a_quantized_model() -> None:
    found = meant(QLORA, "own.py")
    assert found.program == "trl"
    holds(
        job(QLORA, "own.py"),
        runtime="transformers",
        model="llama-3.2-1b",
        sequence_length=768,
        micro_batch_size=2,
        gradient_accumulation_steps=8,
        optimizer="adamw-8bit-paged",
        quantization="nf4-double",
        precision="amp-bf16",
        weight_dtype="fp32",  # of what is not quantized, by prepare_model_for_kbit_training
        adapter__rank=32,
        adapter__targets=["q_proj", "v_proj"],
        adapter__alpha=8,  # of LoraConfig, and not the 32 of TRL's command line
        adapter__dropout=0.0,
        activation_checkpointing="full",  # prepare_model_for_kbit_training turns it on
        packing=False,
    )
    assert "prepare_model_for_kbit_training" not in found.unmodelled
    rank = next(value for value in found.values if value.key == "adapter.rank")
    assert rank.sources[0].line == 14


def test_plain_arguments_keep_their_defaults_within_a_trainer_of_trl() -> None:
    plain = QLORA.replace("SFTConfig", "TrainingArguments").replace("max_length=768, ", "")
    plain = plain.replace("prepare_model_for_kbit_training(model)", "model").replace(
        "gradient_checkpointing=False, ", ""
    )
    holds(
        job(plain.replace("bf16=torch.cuda.is_bf16_supported(),", ""), "own.py"),
        activation_checkpointing="none",  # TRL's own configuration has them on
        precision="pure-bf16",  # bf16 weights without autocast, which TRL's own configuration has on
        sequence_length=1024,
    )


UNSLOTH = """
    from unsloth import FastLanguageModel, is_bfloat16_supported
    from transformers import TrainingArguments
    from trl import SFTTrainer

    length = 4096
    model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Llama-3.2-1B", max_seq_length=length)
    model = FastLanguageModel.get_peft_model(model, r=8, use_gradient_checkpointing={checkpoints})
    trainer = SFTTrainer(
        model=model, tokenizer=tokenizer, max_seq_length=length, packing=True,
        args=TrainingArguments(per_device_train_batch_size=2, fp16=not is_bfloat16_supported(),
                               bf16=is_bfloat16_supported(), optim="adamw_8bit"),
    )
"""


@pytest.mark.parametrize(
    ("trainer", "given", "loss"),
    [
        ("GRPO", "num_generations=4, max_prompt_length=100, max_completion_length=28", "grpo"),
        ("DPO", "max_length=128, beta=0.1", "dpo"),
    ],
)
def test_preferences_and_rewards_with_unsloth_are_counted_as_trl_computes_them(
    trainer: str, given: str, loss: str
) -> None:
    text = f"""
        from unsloth import FastModel
        from trl import {trainer}Config, {trainer}Trainer

        model, tokenizer = FastModel.from_pretrained("unsloth/Llama-3.2-1B", load_in_4bit=False)
        model = FastModel.get_peft_model(model, r=8)
        words = {trainer}Config(per_device_train_batch_size=2, bf16=True, {given})
        {trainer}Trainer(model=model, args=words, train_dataset=own()).train()
    """
    found = meant(text, "own.py")
    assert "the step of TRL is counted" in found.unmodelled["use_unsloth"]
    told = {value.key: value.value for value in found.values}
    holds(told, runtime="transformers", loss=loss, sequence_length=128, adapter__rank=8)


@pytest.mark.parametrize(("checkpoints", "offload"), [('"unsloth"', ["activations"]), ("True", None)])
def test_unsloth_has_four_bits_and_all_layers_without_a_word(checkpoints: str, offload: list[str] | None) -> None:
    holds(
        job(UNSLOTH.format(checkpoints=checkpoints), "own.py"),
        runtime="unsloth",
        model="llama-3.2-1b",
        sequence_length=4096,
        quantization="nf4-double",
        adapter__rank=8,
        adapter__alpha=16,
        adapter__targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        activation_checkpointing="full",
        offload=offload,
        precision=None,  # the GPU's
        packing=True,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fp16=not is_bfloat16_supported(),", "fp16=own,"),
        ("bf16=is_bfloat16_supported(), ", ""),
        ("fp16=not is_bfloat16_supported(),", ""),
        ("TrainingArguments", "SFTConfig"),
    ],
)
def test_unsloth_computes_in_the_half_type_that_the_gpu_has(old: str, new: str, tmp_path: Path) -> None:
    own = "length = 4096\n    own = not is_bfloat16_supported()"
    text = UNSLOTH.format(checkpoints="True").replace("length = 4096", own)
    file = tmp_path / "own.py"
    file.write_text(textwrap.dedent(text.replace(old, new)), "utf-8")
    for gpu, half in (("t4", "fp16"), ("l4", "bf16")):
        found = run("fit", str(file), gpu, "--format", "json").document["job"]
        assert (found["precision"], found["weight_dtype"]) == (f"amp-{half}", half)


PLAIN = """
    import argparse
    from dataclasses import dataclass, field
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    parser = argparse.ArgumentParser()
    parser.add_argument("--model-name", {default})
    parser.add_argument("--rows", type=int, default=3)
    args = parser.parse_args()

    @dataclass
    class Own:
        steps: int = field(default=5)

    own = Own()

    def cut(texts, tokenizer):
        return tokenizer(texts, truncation=True, max_length=384)

    def arguments(rows):
        return TrainingArguments(
            "out", per_device_train_batch_size=rows, gradient_accumulation_steps=own.steps, bf16=True
        )

    model = AutoModelForCausalLM.from_pretrained(args.model_name)
    Trainer(model=model, args=arguments(args.rows), train_dataset=cut(texts, tokenizer)).train()
"""


def test_what_argparse_data_classes_and_the_one_call_of_a_function_say_is_followed() -> None:
    text = PLAIN.format(default='default="Qwen/Qwen2.5-0.5B"')
    found = meant(text, "own.py")
    assert found.program == "training-arguments"
    holds(
        job(text, "own.py"),
        model="qwen2.5-0.5b",
        sequence_length=384,  # to which the tokenizer cuts
        micro_batch_size=3,
        gradient_accumulation_steps=5,
        activation_checkpointing="none",
        precision="amp-bf16",
        adapter__kind=None,
    )


def test_an_option_without_a_default_is_nothing() -> None:
    text = PLAIN.format(default='default="gpt2"').replace(
        "bf16=True", "bf16=True, deepspeed=args.deepspeed, max_steps=f()"
    )
    text = text.replace("args = parser", 'parser.add_argument("--deepspeed", type=str)\n    args = parser')
    found = meant(text.replace("bf16=True", "bf16=True, eval_strategy=g()"), "own.py")
    assert "deepspeed" not in {source.key for value in found.values for source in value.sources}
    assert found.job["model"] == "gpt2"


@pytest.mark.parametrize(
    ("makes", "given", "open_keys"),
    [
        ("model = apply_lora(model, settings)", "", {"adapter.rank", "adapter.targets"}),
        ("model = apply_lora(model, r=8, target_modules=['q_proj'])", "", set()),
        ("", "peft_config=adapter_of(settings),", {"adapter.rank", "adapter.targets"}),
        ("", "peft_config=get_peft_config(settings),", None),
        ("", "peft_config=None,", None),
        ("save_lora_weights(model)", "", None),
    ],
)
def test_an_adapter_that_another_module_makes_is_asked_for(makes: str, given: str, open_keys: set[str] | None) -> None:
    text = f"""
        from own import adapter_of, apply_lora, save_lora_weights, settings
        from transformers import AutoModelForCausalLM
        from trl import SFTConfig, SFTTrainer, get_peft_config
        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
        {makes}
        words = SFTConfig(per_device_train_batch_size=2, max_length=64, bf16=True)
        SFTTrainer(model=model, args=words, {given} train_dataset=own()).train()
    """
    found = meant(text, "own.py")
    assert ("adapter" in found.job) == (open_keys is not None)
    assert {key for key in found.open if key.startswith("adapter.")} == (open_keys or set())


def test_a_dictionary_that_a_function_hands_on_has_the_arguments_of_the_trainer() -> None:
    text = """
        from trl import DPOConfig, DPOTrainer
        words = {"per_device_train_batch_size": 3, "max_length": 96, "bf16": True, "output_dir": "o"}
        words["gradient_accumulation_steps"] = 7
        given = {"model": "gpt2", "args": DPOConfig(**known(DPOConfig, words)), "train_dataset": own()}
        DPOTrainer(**known(DPOTrainer.__init__, given)).train()
    """
    holds(job(text, "own.py"), model="gpt2", micro_batch_size=3, sequence_length=96, gradient_accumulation_steps=7)
    with pytest.raises(InputError):  # of two nobody knows which
        job(text.replace("known(DPOTrainer.__init__, given)", "known({}, given)"), "own.py")


def test_the_type_of_the_weights_that_only_the_run_knows() -> None:
    text = PLAIN.format(default='default="gpt2"').replace("bf16=True", 'model_init_kwargs={"dtype": own()[0]}')
    assert "own()[0]" in meant(text, "own.py").open["precision"]


def test_an_option_without_a_default_is_no_batch_of_the_trainers() -> None:
    found = meant(PLAIN.format(default="required=True").replace("type=int, default=3", "type=int"), "own.py")
    assert "rows, which only the caller knows" in found.open["micro_batch_size"]


def test_what_only_the_command_line_says_is_asked_for() -> None:
    found = meant(PLAIN.format(default="required=True"), "own.py")
    assert "args.model_name is known to the caller alone" in found.open["model"]


def test_a_step_that_depends_on_what_only_the_run_knows_is_a_problem_with_its_place() -> None:
    text = QLORA.replace("optim=", "use_cache=load()['rank'], optim=")
    with pytest.raises(InputError) as caught:
        meant(text, "own.py")
    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == ("use_cache", 17)


def test_what_only_the_run_knows_is_asked_for_by_the_key_that_it_decides() -> None:
    text = QLORA.replace("r=32", "r=load()['rank']").replace("bf16=torch.cuda.is_bf16_supported()", "bf16=own.half")
    found = meant(text.replace("lora_alpha=16", "lora_alpha=load()"), "own.py")
    assert found.open["adapter.rank"] == "lora_r is load()['rank'], which only the caller knows"
    assert found.open["precision"] == "bf16 is own.half, which only the caller knows (--precision amp-bf16)"
    assert not {"adapter.rank", "precision", "weight_dtype"} & {value.key for value in found.values}
    assert found.job["adapter"]["kind"] == "lora"


FROM_A_FILE = """
    import yaml
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    def load(path="settings/own.yaml"):
        with open(path) as file:
            return yaml.safe_load(file)

    settings = load()
    rows = settings["rows"]
    model = AutoModelForCausalLM.from_pretrained(settings["model"], torch_dtype="bfloat16")
    args = SFTConfig(per_device_train_batch_size=rows["each"], max_length=rows.get("length", 64), bf16=rows["half"])
    lora = settings["lora"]
    adapter = LoraConfig(r=lora["r"], target_modules=list(lora["target_modules"]))
    SFTTrainer(model=model, args=args, peft_config=adapter).train()
"""


def test_a_file_of_data_that_the_script_reads(tmp_path: Path) -> None:
    script, data = tmp_path / "own.py", tmp_path / "settings" / "own.yaml"
    script.write_text(textwrap.dedent(FROM_A_FILE))
    left = read_file(str(script), Wanted()).open
    whole = FROM_A_FILE.replace("""r=lora["r"], target_modules=list(lora["target_modules"])""", "**lora")
    script.write_text(textwrap.dedent(whole))
    assert read_file(str(script), Wanted()).open == {**left, "adapter.rank": ANY, "adapter.targets": ANY}
    asked = {"model", "micro_batch_size", "sequence_length", "precision", "adapter.rank", "adapter.targets"}
    assert asked <= set(left)
    data.parent.mkdir()
    rows = "rows: {each: 3, length: 96, half: false}\n"
    data.write_text("model: Qwen/Qwen2.5-0.5B\n" + rows + "lora: {r: 4, target_modules: [q_proj]}\n")
    found = read_file(str(script), Wanted())
    assert not asked & set(found.open)
    holds(
        {value.key: value.value for value in found.values},
        model="qwen2.5-0.5b",
        micro_batch_size=3,
        sequence_length=96,
        precision="pure-bf16",
        adapter__rank=4,
        adapter__targets=["q_proj"],
    )


@pytest.mark.parametrize("form", ["json.load(open('own.json'))", "EasyDict(json.load(open(Path('own.json'))))"])
def test_settings_of_a_json_file_have_names_or_are_a_dictionary(tmp_path: Path, form: str) -> None:
    rows = "settings.rows" if "Easy" in form else "settings['rows']"
    (tmp_path / "own.json").write_text('{"rows": 5, "more": {"optim": "adafactor"}}')
    script = tmp_path / "own.py"
    script.write_text(
        f"settings = {form}\n"
        f"args = TrainingArguments('out', per_device_train_batch_size={rows}, **{rows.replace('rows', 'more')})\n"
        "Trainer(model=AutoModelForCausalLM.from_pretrained('gpt2'), args=args)\n"
    )
    found = {value.key: value.value for value in read_file(str(script), Wanted()).values}
    holds(found, micro_batch_size=5, optimizer="adafactor")


def test_a_model_that_classifies_sequences_has_that_loss() -> None:
    text = """
        tokens = AutoTokenizer.from_pretrained("bert-base-uncased")(texts, truncation=True, max_length=96)
        model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=3)
        Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=2, fp16=True))
    """
    holds(job(text, "own.py"), loss="classification", model="bert-base-uncased", sequence_length=96)
    pairs = text.replace("Trainer(", "RewardTrainer(").replace("TrainingArguments", "RewardConfig")
    assert job(pairs, "own.py")["loss"] == "reward"


def test_arguments_from_the_command_line_ask_for_the_command() -> None:
    text = """
        from transformers import HfArgumentParser, Trainer, TrainingArguments
        (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
        Trainer(model=model, args=args)
    """
    with pytest.raises(InputError, match="takes the arguments of its trainer from its command line"):
        meant(text, "own.py")


@pytest.mark.parametrize(("trainer", "loss"), [("DPO", "dpo"), ("ORPO", "orpo"), ("KTO", "kto")])
def test_the_trainer_says_the_loss(trainer: str, loss: str) -> None:
    text = f"""
        from trl import {trainer}Config, {trainer}Trainer
        args = {trainer}Config(max_length=512, per_device_train_batch_size=2, fp16=True)
        {trainer}Trainer(model="Qwen/Qwen2.5-0.5B", args=args)
    """
    holds(job(text, "own.py"), loss=loss, model="qwen2.5-0.5b", padding="right", precision="amp-fp16")


def test_all_linear_layers_that_a_function_finds(tmp_path: Path) -> None:
    text = QLORA.replace(
        "def main():",
        """def names_of(model):
        found = {name.split(".")[-1] for name, one in model.named_modules() if isinstance(one, bnb.nn.Linear4bit)}
        return list(found - {"lm_head"})

    def main():""",
    ).replace('["q_proj", "v_proj"]', "names_of(model)")
    holds(job(text, "own.py"), adapter__targets="all-linear")


def test_a_module_beside_the_script_is_followed(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text('NAME = "meta-llama/Llama-3.2-3B"\n', encoding="utf-8")
    script = tmp_path / "own.py"
    text = textwrap.dedent(QLORA).replace('NAME = "meta-llama/Llama-3.2-1B"', "from settings import NAME")
    script.write_text(text, encoding="utf-8")
    assert read_file(str(script), Wanted()).job["model"] == "llama-3.2-3b"


def test_an_adapter_or_a_head_that_is_not_modelled_is_said() -> None:
    with pytest.raises(InputError, match=r"XLoraConfig is not read from a script.*LoraConfig, AdaLoraConfig"):
        meant(QLORA.replace("LoraConfig", "XLoraConfig"), "own.py")
    with pytest.raises(InputError, match="has a head that is not read"):
        meant(QLORA.replace("AutoModelForCausalLM.from", "AutoModelForTokenClassification.from"), "own.py")


WRAPPED = """
    from peft import EvaConfig, {name}, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    config = {made}
    model = get_peft_model(AutoModelForCausalLM.from_pretrained("gpt2"), config)
    Trainer(model=model, args=TrainingArguments("out"))
"""


def test_any_other_adapter_of_peft_is_no_full_training() -> None:
    """Its newer ones have names of their own; what initialises LoRA, as EVA, is a part of its configuration."""
    with pytest.raises(InputError, match="DeloraConfig is not read from a script"):
        meant(WRAPPED.format(name="DeloraConfig", made="DeloraConfig(r=4)"), "own.py")
    lora = "LoraConfig(r=4, target_modules=['c_attn'], eva_config=EvaConfig(rho=2.0))"
    found = meant(WRAPPED.format(name="LoraConfig", made=lora), "own.py")
    assert found.job["adapter"]["rank"] == 4
    kept = meant(WRAPPED.format(name="PeftConfig", made='PeftConfig.from_pretrained("me/adapter")'), "own.py")
    assert {"adapter.rank", "adapter.targets"} <= kept.open.keys()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("IA3Config(target_modules=['c_attn'], feedforward_modules=['c_proj'])", {"feedforward_targets": ["c_proj"]}),
        ("AdaLoraConfig(init_r=6, target_r=3, lora_alpha=16)", {"rank": 6, "alpha": 16}),
        ("VeraConfig(r=64, vera_dropout=0.1, target_modules='all-linear')", {"rank": 64, "targets": "all-linear"}),
        ("HRAConfig(r=2, modules_to_save=['lm_head'])", {"rank": 2, "modules_to_save": ["lm_head"]}),
        ("OFTConfig(oft_block_size=16)", {"rank": 16}),
        ("BOFTConfig(boft_block_size=8, boft_n_butterfly_factor=2)", {"rank": 8}),
        ("FourierFTConfig(n_frequency=500)", {"frequencies": 500}),
        ("PromptTuningConfig(task_type='CAUSAL_LM', num_virtual_tokens=12)", {"virtual_tokens": 12}),
        ("PrefixTuningConfig(num_virtual_tokens=8, prefix_projection=True)", {"prefix_projection": True}),
        ("LNTuningConfig(target_modules=['norm'])", {"kind": "ln-tuning", "targets": ["norm"]}),
        ("TrainableTokensConfig(token_indices=[1, 2, 3])", {"kind": "trainable-tokens", "trainable_tokens": 3}),
        ("HRAConfig(r=8, bias='hra_only')", {"kind": "hra", "bias": "targets"}),
    ],
)
def test_adapters_beside_lora_by_their_configurations(made: str, expected: dict[str, object]) -> None:
    found = meant(WRAPPED.format(name=made.partition("(")[0], made=made), "own.py")
    kind = found.job["adapter"]
    assert {key: kind.get(key) for key in expected} == expected
    assert kind["kind"] != "lora"


def test_what_a_configuration_of_another_adapter_leaves_to_its_layers_or_to_the_run_is_asked_for() -> None:
    """A number of blocks is a size for each layer, and tokens have no number by themselves."""
    found = meant(WRAPPED.format(name="OFTConfig", made="OFTConfig(r=4)"), "own.py")
    assert "adapter.rank" in found.open
    found = meant(WRAPPED.format(name="PromptTuningConfig", made="PromptTuningConfig()"), "own.py")
    assert "adapter.virtual_tokens" in found.open
    found = meant(WRAPPED.format(name="HRAConfig", made="HRAConfig(r=int(input()))"), "own.py")
    assert "input()" in found.open["adapter.rank"]


def test_arguments_in_a_dictionary_and_fields_of_a_class_that_a_parameter_is_of() -> None:
    text = """
        from dataclasses import dataclass
        from transformers import AutoModelForCausalLM
        from trl import SFTConfig, SFTTrainer

        @dataclass
        class Settings:
            name: str = "Qwen/Qwen2.5-0.5B"
            rows: int = 6

        class Run:
            def __init__(self, settings: Settings | None = None) -> None:
                self.settings = settings or Settings()

            def train(self):
                words = {"torch_dtype": "bfloat16"}
                words["attn_implementation"] = "flash_attention_2"
                model = AutoModelForCausalLM.from_pretrained(self.settings.name, **words)
                more = dict(model=model, args=SFTConfig(per_device_train_batch_size=self.settings.rows, OWN))
                SFTTrainer(**more).train()
    """
    found = job(text.replace("OWN", "max_length=256"), "own.py")
    holds(found, model="qwen2.5-0.5b", micro_batch_size=6, attention="flash", precision="pure-bf16")
    left = meant(text.replace("OWN", "**load()"), "own.py").open
    assert "load()" in left["precision"]
    assert {"precision", "optimizer", "activation_checkpointing", "sequence_length"} <= set(left)


def test_a_model_of_a_class_of_the_scripts_own_is_asked_for() -> None:
    text = """
        class Both(torch.nn.Module):
            def __init__(self):
                self.one = AutoModelForMaskedLM.from_pretrained("xlm-roberta-large")
                self.other = AutoModelForMaskedLM.from_pretrained("xlm-roberta-large")

        both = Both()
        Trainer(model=both, args=TrainingArguments("out", per_device_train_batch_size=2))
    """
    found = meant("from transformers import *\nimport torch\n" + textwrap.dedent(text), "own.py")
    assert "model" not in found.job
    assert "the model that the script makes" in found.open["model"]


def test_a_branch_that_an_option_leaves_out_loads_no_model(tmp_path: Path) -> None:
    script = tmp_path / "tune.py"
    script.write_text(
        textwrap.dedent("""
        import argparse, inspect
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--use-qlora", action="store_true")
            parser.add_argument("--rows", type=int, default=3)
            args = parser.parse_args()
            if args.use_qlora:
                four = BitsAndBytesConfig(load_in_4bit=True)
                model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=four)
            else:
                model = AutoModelForCausalLM.from_pretrained("gpt2")
            words = {"output_dir": "out", "per_device_train_batch_size": args.rows, "bf16": True}
            valid = set(inspect.signature(TrainingArguments.__init__).parameters)
            words = {k: v for k, v in words.items() if k in valid}
            tokens = tokenizer(text, truncation=True, max_length=64)
            Trainer(model=model, args=TrainingArguments(**words), train_dataset=tokens).train()
        """)
    )
    found = read_file(str(script), Wanted())
    holds(found.job, model="gpt2", micro_batch_size=3, precision="amp-bf16", sequence_length=64)
    assert "quantization" not in found.job


def test_a_trainer_of_a_name_of_trls_from_elsewhere_has_none_of_its_defaults(tmp_path: Path) -> None:
    script = tmp_path / "tune.py"
    text = "from {} import SFTTrainer\nSFTTrainer(model='gpt2', train_dataset=rows)\n"
    script.write_text(text.format("trl"))
    assert read_file(str(script), Wanted()).job["sequence_length"] == 1024
    script.write_text(text.format("own_trainer"))
    with pytest.raises(InputError, match="is of no training program"):
        read_file(str(script), Wanted())


FREEZING = """
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
    {more}
    model = {made}.from_pretrained("gpt2")
    {body}
    tokens = tokenizer(text, truncation=True, max_length=64)
    args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1)
    Trainer(model=model, args=args, train_dataset=tokens).train()
"""


@pytest.mark.parametrize(
    ("body", "is_open"),
    [
        ("for p in model.parameters(): p.requires_grad = 'head' in p.name", True),
        ("model.transformer.requires_grad_(False)", True),
        ("ref_model.requires_grad_(False)", False),
        ("for p in teacher.parameters(): p.requires_grad = False", False),
        ("hook = lambda m, i, output: output.requires_grad_(True)", False),
        ("model = get_peft_model(model, LoraConfig(r=4)); model.lm_head.requires_grad_(True)", False),
    ],
)
def test_what_a_script_freezes_itself_is_asked_for(body: str, is_open: bool) -> None:
    text = textwrap.dedent(FREEZING.format(more="from peft import *", made="AutoModelForCausalLM", body=body))
    found = meant(text, "tune.py")
    assert ("frozen" in found.open) is is_open
    holds(found.job, model="gpt2", sequence_length=64)


def test_a_model_of_a_class_of_ones_own_and_an_adapter_of_a_copy_of_peft_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text("class OwnForCausalLM(LlamaForCausalLM): ...\n")
    body = "model = PeftModel.from_pretrained_multi(model, several)"
    text = FREEZING.format(more="from own_model import OwnForCausalLM", made="OwnForCausalLM", body=body)
    (tmp_path / "tune.py").write_text(textwrap.dedent(text))
    found = read_file(str(tmp_path / "tune.py"), Wanted())
    assert {"model", "adapter.rank", "adapter.targets"} <= set(found.open)


def test_a_name_has_the_model_that_it_was_given_last() -> None:
    """Cells of a notebook load a model to look at it, again in four bits to train it, and once more to merge it."""
    line = "        model = AutoModelForCausalLM.from_pretrained(NAME"
    looked_at = f"{line}, torch_dtype=torch.float32)\n"
    start = QLORA.index(line)
    text = QLORA[:start] + looked_at + QLORA[start:] + looked_at
    assert job(text, "own.py")["quantization"] == "nf4-double"
    behind = QLORA[:start] + QLORA[start:].replace("        tokenizer =", f"{looked_at}        tokenizer =", 1)
    assert "quantization" not in job(behind, "own.py")


def test_arguments_of_one_class_are_handed_to_another() -> None:
    """trl 1.16.0: GRPOConfig has bf16 and checkpoints on by itself; to_dict() says what the plain ones have."""
    text = """
        from transformers import TrainingArguments
        from trl import GRPOConfig, GRPOTrainer

        args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=2)
        config = GRPOConfig(**args.to_dict(), **{})
        GRPOTrainer(model="gpt2", args=config, train_dataset=rows(), reward_funcs=[own]).train()
    """
    holds(
        job(text, "own.py"),
        micro_batch_size=4,
        gradient_accumulation_steps=2,
        activation_checkpointing="none",
        precision="fp32",
        loss="grpo",
    )


def test_an_option_says_how_long_samples_are_where_no_tokenizer_cuts_them() -> None:
    text = """
        import argparse
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        parser = argparse.ArgumentParser()
        parser.add_argument("--max_len", type=int, default=384)
        args = parser.parse_args()
        model = AutoModelForCausalLM.from_pretrained("gpt2")
        training = TrainingArguments(output_dir="out", per_device_train_batch_size=4)
        Trainer(model=model, args=training, train_dataset=rows(args.max_len)).train()
    """
    assert job(text, "own.py")["sequence_length"] == 384
    cut = text.replace("        Trainer(", "        tokenizer(texts, truncation=True, max_length=96)\n        Trainer(")
    assert job(cut, "own.py")["sequence_length"] == 96
    two = text.replace(
        "        args = parser", "        parser.add_argument('--seq_len', type=int, default=8)\n        args = parser"
    )
    assert "sequence_length" not in job(two, "own.py")
