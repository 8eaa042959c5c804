"""What was read silently as another job than the one that runs: each by the smallest file that shows it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant, together
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

pytestmark = pytest.mark.contract


LEAVES_EARLY = """
    import argparse
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    parser = argparse.ArgumentParser()
    parser.add_argument("--adapt", action="store_true")
    args = parser.parse_args()

    def adapted(model, args):
        if not args.adapt:
            return model
        return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"]))

    model = adapted(AutoModelForCausalLM.from_pretrained("gpt2"), args)
    Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=2)).train()
"""


def test_what_stands_behind_a_return_is_not_run(tmp_path: Path) -> None:
    """The adapter is made where the switch is on, and the function has not returned the model as it is."""
    holds(job(LEAVES_EARLY, "own.py"), micro_batch_size=2, adapter__rank=None)
    on = together(tmp_path, {"own.py": LEAVES_EARLY, "run.sh": "python own.py --adapt\n"}, "run.sh")
    assert {value.key: value.value for value in on.values}["adapter.rank"] == 4


OF_CLASSES = """
    from dataclasses import dataclass, field
    from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
    from tools import shuffled

    @dataclass
    class Own:
        model_name: str = field(default="")
        rows: int = field(default=2)

    own = HfArgumentParser(Own).parse_args_into_dataclasses()[0]
    model = AutoModelForCausalLM.from_pretrained(own.model_name)
    Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=own.rows)).train()
"""
TOOLS = """
    import argparse

    def get_args():
        parser = argparse.ArgumentParser()
        parser.add_argument("--model_name", default="bert-base-uncased")
        return parser.parse_args()

    def shuffled(rows):
        return rows
"""


def test_options_of_a_module_beside_are_none_of_a_script_with_classes(tmp_path: Path) -> None:
    """The command gives the fields of the script's own class, whatever the other module's parser has by that name."""
    files = {"own.py": OF_CLASSES, "tools.py": TOOLS, "run.sh": "python own.py --model_name gpt2 --rows 3\n"}
    read = together(tmp_path, files, "run.sh")
    holds({value.key: value.value for value in read.values}, model="gpt2", micro_batch_size=3)


def test_a_default_that_a_lambda_makes_is_one(tmp_path: Path) -> None:
    script = """
        from dataclasses import dataclass, field
        import transformers

        @dataclass
        class Adapter:
            use_lora: bool = False
            lora_r: int = 6
            lora_target_modules: list[str] = field(default_factory=lambda: ["k_proj", "up_proj"])

        parser = transformers.HfArgumentParser((transformers.TrainingArguments, Adapter))
        words, adapter = parser.parse_args_into_dataclasses()
        train(words, adapter)
    """
    command = "torchrun --nproc_per_node 2 own.py --model_name_or_path gpt2 --use_lora --bf16 True\n"
    read = together(tmp_path, {"own.py": script, "run.sh": command}, "run.sh")
    holds(
        {value.key: value.value for value in read.values},
        adapter__rank=6,
        adapter__targets=["k_proj", "up_proj"],
    )


SECTIONS = """
    trainer_args:
      per_device_train_batch_size: 4
      learning_rate: 1.0e-4
      max_steps: 10
      {more}
    adapter_args:
      r: 8
      lora_alpha: 16
"""


def test_sections_with_arguments_of_seq2seq_are_of_the_plain_trainer() -> None:
    """TRL turns checkpoints and bf16 on where nothing is said; Seq2SeqTrainingArguments do not."""
    plain = job(SECTIONS.format(more="predict_with_generate: true"), "own.yaml")
    holds(plain, activation_checkpointing="none", precision="fp32", adapter__rank=8)
    holds(job(SECTIONS.format(more="packing: true"), "own.yaml"), activation_checkpointing="full")


@pytest.mark.parametrize("fills", ["mapfile -t WORDS < <(python make.py)", "readarray -t WORDS < words.txt"])
def test_arguments_that_nobody_knows_are_no_defaults(tmp_path: Path, fills: str) -> None:
    """An array that is filled with the lines of an output is not empty."""
    with pytest.raises(InputError, match=r"\$WORDS is known to the caller alone"):
        together(tmp_path, {"run.sh": f'{fills}\nswift sft "${{WORDS[@]}}"\n'}, "run.sh")


def test_an_empty_value_is_no_switch() -> None:
    read = meant("python train.py --model_name_or_path '' --per_device_train_batch_size 2 --bf16\n", "run.sh")
    assert "model" in read.open
    assert "model" not in read.job
    assert read.job["micro_batch_size"] == 2


@pytest.mark.parametrize("switch", ["--do_infer", "--inference_only", "--eval_only true"])
def test_a_command_that_answers_trains_nothing(tmp_path: Path, switch: str) -> None:
    """Also where the script constructs its arguments itself, and would train without the switch."""
    script = LEAVES_EARLY.replace('"--adapt"', f'"{switch.split()[0]}"').replace("args.adapt", "False")
    (tmp_path / "own.py").write_text(dedent(script), "utf-8")
    (tmp_path / "run.sh").write_text(f"accelerate launch own.py --per_device_train_batch_size 1 {switch}\n", "utf-8")
    with pytest.raises(InputError, match="answers or evaluates and trains nothing"):
        read_files([str(tmp_path / "run.sh")], Wanted())


@pytest.mark.parametrize("key", ["optimizer_name", "optimizer", "opt_type"])
def test_an_optimizer_by_its_word_is_not_taken_for_adamw(key: str) -> None:
    """`train.py` of nanoGPT has AdamW alone; programs made from it choose by a word of their own."""
    sizes = "n_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 1024\nbatch_size = 4\n"
    other = meant(f"{sizes}{key} = 'own-kind'\n", "config.py")
    assert "optimizer" in other.open
    assert "optimizer" not in other.job
    assert job(f"{sizes}{key} = 'AdamW'\n", "config.py")["optimizer"] == "adamw"


def test_a_loss_of_somebodys_own_is_left_open() -> None:
    recipe = """
        # tune run lora_finetune_single_device --config own.yaml
        model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_attn_modules: [q_proj], lora_rank: 8}
        tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 512}
        optimizer: {_component_: torch.optim.AdamW, lr: 1.0e-4}
        loss: {_component_: ours.RankLoss, rank_share: 0.5}
        batch_size: 2
        dtype: bf16
    """
    read = meant(recipe, "own.yaml")
    assert "loss" in read.open
    assert "loss" not in read.job
    assert "loss.rank_share" in read.unmodelled
    assert read.job["micro_batch_size"] == 2


def test_what_the_gpus_decide_is_asked_for_with_their_number(tmp_path: Path) -> None:
    """An option of another library, as ZeRO of torchtitan, is no answer."""
    path = tmp_path / "own.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 1\nseq_len = 512\n'
        "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = -1\n",
        "utf-8",
    )
    asked = run("fit", str(path), "--gpu", "h100")
    assert asked.code == 2
    assert "--gpus 8" in asked.err
    assert "zero3" not in asked.err
    assert run("fit", str(path), "--gpu", "h100", "--gpus", "8", "--print", "verdict").code in (0, 3)


def test_a_function_beside_that_wraps_the_model_leaves_the_adapter_open(tmp_path: Path) -> None:
    """The command says nothing of the adapter, and a module that the script imports makes one."""
    script = """
        from transformers import HfArgumentParser, Trainer, TrainingArguments
        from models import prepared

        words = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
        Trainer(model=prepared(words), args=words).train()
    """
    module = """
        from peft import LoraConfig, get_peft_model

        def prepared(words):
            return get_peft_model(loaded(words), LoraConfig(r=8))
    """
    command = "python own.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --output_dir out\n"
    read = together(tmp_path, {"own.py": script, "models.py": module, "run.sh": command}, "run.sh")
    assert "adapter.kind" in read.open
    plain = module.replace("get_peft_model(loaded(words), LoraConfig(r=8))", "loaded(words)")
    read = together(tmp_path, {"own.py": script, "models.py": plain, "run.sh": command}, "run.sh")
    assert "adapter.kind" not in read.open


def test_quantization_that_hangs_on_an_unknown_setting_is_left_open() -> None:
    script = """
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

        def main(path):
            settings = load(path)
            bits = None
            if {test}:
                bits = BitsAndBytesConfig(load_in_8bit=True)
            model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=bits)
            Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=2)).train()
    """
    read = meant(script.format(test="settings['bits']['on']"), "own.py")
    assert "quantization" in read.open
    assert "quantization" not in read.job
    assert meant(script.format(test="has_bitsandbytes()"), "own.py").job["quantization"] == "int8"


def test_model_type_of_somebodys_own_program_makes_no_model_of_its_file(tmp_path: Path) -> None:
    """`model_type` is a key of config.json too; a file with the batch of a trainer is none."""
    path = tmp_path / "own.json"
    path.write_text(
        '{"trainer": {"per_device_train_batch_size": 2, "fp16": true, "learning_rate": 1e-4},'
        ' "model_name": "gpt2", "model_type": "causal", "max_length": 256}',
        "utf-8",
    )
    assert run("fit", str(path), "--gpu", "h100", "--print", "verdict").out.strip() == "fits"


def test_checkpoints_of_a_section_of_the_model_hold() -> None:
    text = """
        model: {name: gpt2, gradient_checkpointing: true, use_flash_attention: true}
        training: {per_device_train_batch_size: 2, learning_rate: 1.0e-4, max_steps: 9, predict_with_generate: true}
    """
    holds(job(text, "own.yaml"), activation_checkpointing="full", attention="flash")


OWN_TRAINER = """
    from pairs import PairsDPOTrainer
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    class {name}(Trainer):
        def compute_loss(self, model, inputs):
            return model(**inputs).loss

    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=2)
    {made}(model=model, args=args).train()
"""


def test_the_loss_of_an_own_trainer_over_pairs_is_asked_for() -> None:
    """By its name it has two answers of a prompt in a step, and perhaps a reference model."""
    for made in ("OurDPOTrainer", "PairsDPOTrainer", "OurRewardTrainer"):
        read = meant(OWN_TRAINER.format(name=made.replace("Pairs", "Other"), made=made), "own.py")
        assert made in read.open["loss"]
    assert "loss" not in meant(OWN_TRAINER.format(name="WeightedTrainer", made="WeightedTrainer"), "own.py").open


def test_the_adapter_behind_a_switch_is_that_of_the_script(tmp_path: Path) -> None:
    script = """
        from dataclasses import dataclass
        from peft import LoraConfig, get_peft_model
        from transformers import HfArgumentParser, Trainer, TrainingArguments

        @dataclass
        class Ours:
            model_name_or_path: str = "gpt2"
            use_peft: bool = False

        def main():
            ours, words = HfArgumentParser((Ours, TrainingArguments)).parse_args_into_dataclasses()
            model = loaded(ours)
            if ours.use_peft:
                model = get_peft_model(model, LoraConfig(r=24, lora_dropout=0.25, task_type="CAUSAL_LM"))
            Trainer(model=model, args=words).train()
    """
    command = "python own.py --per_device_train_batch_size 2 --use_peft True --output_dir out\n"
    adapter = together(tmp_path, {"own.py": script, "run.sh": command}, "run.sh").job["adapter"]
    assert (adapter["rank"], adapter["dropout"]) == (24, 0.25)
    full = command.replace("--use_peft True ", "")
    assert "adapter" not in together(tmp_path, {"own.py": script, "run.sh": full}, "run.sh").job


FURTHER = """
    import fire
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    def train(batch: int = 2, **more):
        model = AutoModelForCausalLM.from_pretrained("gpt2")
        Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=batch, **more)).train()

    {call}
"""


def test_further_arguments_of_a_function_are_those_of_its_call() -> None:
    assert not {"max_gradient_norm", "optimizer"} & meant(FURTHER.format(call="fire.Fire(train)"), "own.py").open.keys()
    read = meant(FURTHER.format(call="train(batch=3, max_grad_norm=0.0, gradient_checkpointing=True)"), "own.py")
    assert (read.job["micro_batch_size"], read.job["activation_checkpointing"]) == (3, "full")
    assert "max_gradient_norm" in meant(FURTHER.format(call=""), "own.py").open


def test_an_adapter_behind_an_argument_of_another_name_is_asked_for(tmp_path: Path) -> None:
    """`--method lora` says it by its value alone; where the defaults leave the call out there is none."""
    script = """
        import argparse
        from peft import LoraConfig, get_peft_model
        from transformers import Trainer, TrainingArguments

        parser = argparse.ArgumentParser()
        parser.add_argument("--model_name_or_path")
        parser.add_argument("--fp16", action="store_true")
        parser.add_argument("--per_device_train_batch_size", type=int, default=2)
        parser.add_argument("--method", default="all")
        words = parser.parse_args()
        model = loaded(words)
        if words.method == "lora":
            model = get_peft_model(model, LoraConfig(r=8))
        train(model, words)
    """
    command = "python own.py --model_name_or_path gpt2 --per_device_train_batch_size 3 --fp16 {method}\n"

    def read(method: str) -> ReadJob:
        text = command.format(method=method)
        return together(tmp_path, {"own.py": script, "run.sh": text}, "run.sh")

    assert "behind method" in read("--method lora").open["adapter.kind"]
    assert "adapter.kind" not in read("").open


def test_an_adapter_that_the_text_decides_is_not_asked_for(tmp_path: Path) -> None:
    script = """
        import argparse
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        parser = argparse.ArgumentParser()
        parser.add_argument("--method", default="lora")
        words = parser.parse_args()
        model = AutoModelForCausalLM.from_pretrained("gpt2")
        if words.method == "lora":
            model = get_peft_model(model, LoraConfig(r=8))
        Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=3)).train()
    """
    read = together(tmp_path, {"own.py": script, "run.sh": "python own.py --method all --seed 3\n"}, "run.sh")
    assert "adapter" not in read.job
    assert "adapter.kind" not in read.open
    assert together(tmp_path, {"own.py": script, "run.sh": "python own.py\n"}, "run.sh").job["adapter"]["rank"] == 8


def test_a_norm_below_zero_clips_nothing() -> None:
    text = "python own_train.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --max_grad_norm -1\n"
    assert job(text, "own.sh")["max_gradient_norm"] is None


def test_a_file_of_llama_factory_that_only_answers_trains_nothing() -> None:
    text = "model_name_or_path: gpt2\nadapter_name_or_path: saves/own\ntemplate: qwen\nfinetuning_type: lora\n"
    with pytest.raises(InputError, match="trains nothing"):
        meant(text, "own.yaml")
    assert job(text + "do_train: true\nstage: sft\n", "own.yaml")["adapter.kind"] == "lora"


def test_words_of_peft_in_a_flat_file_make_an_adapter() -> None:
    text = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nmax_length: 64\noptim: adamw_torch\n"
    peft = "r: 4\nlora_alpha: 8\ntarget_modules: [c_attn]\ninit_lora_weights: true\nlora_save_dir: out\n"
    holds(job(text + peft, "own.yaml"), adapter__rank=4, adapter__targets=["c_attn"])
    assert "adapter.kind" not in job(
        text + "lora_r: 4\nlora_target_modules: [c_attn]\n", "own.yaml"
    )  # without use_peft


@pytest.mark.parametrize(("step", "is_known"), [("scaler.step(optimizer)", True), ("wrapper.step()", False)])
def test_a_train_py_that_steps_an_optimizer_of_its_own(tmp_path: Path, step: str, is_known: bool) -> None:
    program = f"batch_size = 4\nexec(open('configurator.py').read())\nfor step in steps:\n    {step}\n"
    config = "block_size = 64\nn_layer = 2\nn_head = 2\nn_embd = 32\nmax_iters = 10\nvocab_size = 512\n"
    found = together(tmp_path, {"train.py": program, "own.py": config}, "own.py")
    assert ("optimizer" in found.job, "optimizer" in found.open) == (is_known, not is_known)


def test_the_name_of_the_argument_in_its_place_is_no_model() -> None:
    text = "python own.py --model_name_or_path model_name_or_path --per_device_train_batch_size 2 --max_length 64\n"
    found = meant(text, "own.sh")
    assert ("model" in found.job, "model" in found.open) == (False, True)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("    model_args['vocab_size'] = 256\n", True),
        ("    # model_args['vocab_size'] = 256\n", False),
        ("    model_args['vocab_size'] = meta_vocab_size if meta_vocab_size is not None else 50304\n", False),
    ],
)
def test_another_vocabulary_of_the_train_py_around_a_file_is_told(tmp_path: Path, line: str, told: bool) -> None:
    (tmp_path / "train.py").write_text(
        "vocab = 'byte'\nexec(open('configurator.py').read())\nif vocab == 'byte':\n    pass\n" + line
    )
    (tmp_path / "small.py").write_text("block_size = 32\nn_layer = 2\nn_head = 2\nn_embd = 64\nbatch_size = 2\n")
    found = read_files([str(tmp_path / "small.py")], Wanted())
    assert any("has 256 too" in note for note in found.notes) is told
