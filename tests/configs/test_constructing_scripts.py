"""Commands that start a script which constructs the arguments of its trainer itself."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted

SCRIPT = """
    import argparse
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    parser = argparse.ArgumentParser()
    parser.add_argument("--base", dest="name", default="gpt2")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--Rank", type=int, default=4)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--zero", type=str, default=None)
    args = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(args.name)
    model = get_peft_model(model, LoraConfig(r=args.Rank, target_modules=["q_proj"]))
    words = TrainingArguments(
        output_dir="out", per_device_train_batch_size=args.rows, gradient_accumulation_steps=6, bf16=args.half,
        max_grad_norm=0.5, deepspeed=args.zero,
    )
    Trainer(model=model, args=words, train_dataset=rows()).train()
"""
ZERO = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'


def values(folder: Path, files: dict[str, str], run: str = "run.sh") -> dict[str, Any]:
    """What the files say together, by key."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text), "utf-8")
    found = read_files([str(folder / run)], Wanted())
    return {value.key: value.value for value in found.values}


def test_arguments_of_the_command_reach_what_the_script_constructs(tmp_path: Path) -> None:
    """The defaults of TrainingArguments hold where the script gives nothing, and not where it gives something."""
    command = "torchrun --nproc_per_node 2 own.py --base meta-llama/Llama-3.2-1B --rows 3 --rank 16 --half\n"
    told = values(tmp_path, {"run.sh": command, "own.py": SCRIPT})
    holds(
        told,
        model="llama-3.2-1b",
        micro_batch_size=3,
        gradient_accumulation_steps=6,
        max_gradient_norm=0.5,
        precision="amp-bf16",
        adapter__rank=16,
        adapter__targets=["q_proj"],
        parallel__data=2,
    )


def test_what_the_command_leaves_out_has_the_default_of_the_script(tmp_path: Path) -> None:
    told = values(tmp_path, {"run.sh": "python own.py --rows 1\n", "own.py": SCRIPT.replace('"q_proj"', '"c_attn"')})
    holds(told, model="gpt2", micro_batch_size=1, precision="fp32", adapter__rank=4)


def test_a_file_of_deepspeed_behind_an_option_of_the_scripts_own(tmp_path: Path) -> None:
    command = "deepspeed --num_gpus 4 own.py --rows 1 --half --zero conf/ds.json\n"
    files = {"run.sh": command, "own.py": SCRIPT.replace('"q_proj"', '"c_attn"'), "conf/ds.json": ZERO}
    holds(values(tmp_path, files), parallel__sharding="zero2", precision="mixed-bf16", parallel__data=4)


def test_a_script_without_a_command_line_of_its_own(tmp_path: Path) -> None:
    script = """
        from transformers import AutoModelForCausalLM
        from trl import SFTConfig, SFTTrainer

        model = AutoModelForCausalLM.from_pretrained("gpt2")
        args = SFTConfig(output_dir="o", max_length=256, per_device_train_batch_size=5, bf16=False, max_grad_norm=0.3)
        SFTTrainer(model=model, args=args, train_dataset=rows()).train()
    """
    told = values(tmp_path, {"run.sh": "accelerate launch --num_processes 2 train_own.py\n", "train_own.py": script})
    holds(told, model="gpt2", sequence_length=256, micro_batch_size=5, max_gradient_norm=0.3, parallel__data=2)


@pytest.mark.parametrize(
    "start",
    [
        "import fire\n\nfire.Fire(main)",
        "from fire import Fire\n\nFire(main)",
        'import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument("--rows", type=int, default=1)\n'
        'parser.add_argument("--steps", type=int)\nwords = parser.parse_args()\nwords = vars(words)\nmain(**words)',
    ],
)
def test_parameters_of_the_function_that_takes_the_command_line(tmp_path: Path, start: str) -> None:
    script = dedent("""
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        def main(rows=1, steps=2):
            model = AutoModelForCausalLM.from_pretrained("gpt2")
            args = TrainingArguments("o", per_device_train_batch_size=rows, gradient_accumulation_steps=8 // steps)
            Trainer(model=model, args=args).train()
    """)
    told = values(tmp_path, {"run.sh": "python own.py --rows 3 --steps 4\n", "own.py": f"{script}\n{start}\n"})
    holds(told, micro_batch_size=3, gradient_accumulation_steps=2)


def test_arguments_that_a_module_beside_the_script_parses(tmp_path: Path) -> None:
    """They are no slips, and one by the name of what it decides is taken for it."""
    own = """
        import argparse

        def words():
            parser = argparse.ArgumentParser()
            parser.add_argument("--per_device_train_batch_size", type=int, default=1)
            parser.add_argument("--pieces", type=int, default=1)
            return parser.parse_args()
    """
    script = """
        from own import words
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        given = words()
        args = TrainingArguments("o", per_device_train_batch_size=given.per_device_train_batch_size)
        Trainer(model=AutoModelForCausalLM.from_pretrained("gpt2"), args=args).train()
    """
    command = "python train_own.py --per_device_train_batch_size 6 --pieces 3\n"
    files = {"run.sh": command, "train_own.py": script, "own.py": own}
    holds(values(tmp_path, files), model="gpt2", micro_batch_size=6)


def test_what_a_script_parses_into_data_classes_stays_of_its_command(tmp_path: Path) -> None:
    script = """
        from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

        args, = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
        Trainer(model=AutoModelForCausalLM.from_pretrained("gpt2"), args=args).train()
    """
    command = "python own.py --model_name_or_path gpt2 --per_device_train_batch_size 7 --output_dir o\n"
    holds(values(tmp_path, {"run.sh": command, "own.py": script}), micro_batch_size=7)


def test_a_module_of_an_installed_package_behind_a_step_that_prepares_data(tmp_path: Path) -> None:
    """Of two programs without arguments the one that trains is read, from where packages lie that are installed."""
    command = "python -m own.rows\ntorchrun --nproc_per_node 3 -m own.learn\n"
    script = SCRIPT.replace("required=True", "default=2").replace('"q_proj"', '"c_attn"')
    files = {"run.sh": command, "src/own/learn.py": script, "src/own/rows.py": "print(1)\n"}
    holds(values(tmp_path, files), micro_batch_size=2, parallel__data=3)


def test_a_model_of_a_class_of_another_module_is_asked_for() -> None:
    """The first call that loads it counts, and not the first whose class is known."""
    text = """
        from own import OtherForWords
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        if own:
            model = OtherForWords.from_pretrained("own/model").cuda()
        else:
            model = AutoModelForCausalLM.from_pretrained("gpt2")
        Trainer(model=model, args=TrainingArguments("o")).train()
    """
    assert "model" in meant(dedent(text), "own.py").open


def test_the_configuration_of_quantized_weights_goes_before_a_word_beside_it() -> None:
    text = """
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

        four = BitsAndBytesConfig(load_in_4bit=True)
        model = AutoModelForCausalLM.from_pretrained("gpt2", load_in_8bit=True, quantization_config=four)
        Trainer(model=model, args=TrainingArguments("o")).train()
    """
    assert job(dedent(text), "own.py")["quantization"] == "nf4"


def test_a_file_in_utf16_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_bytes("trl sft --model_name_or_path gpt2 --max_length 64\n".replace("\n", "\r\n").encode("utf-16"))
    found = {value.key: value.value for value in read_files([str(file)], Wanted()).values}
    holds(found, model="gpt2", sequence_length=64)


BRANCHES = """
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from trl import SFTConfig, SFTTrainer
    from own_words import *

    def main(args):
        if args.quantize:
            bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        else:
            bits = None
        model = AutoModelForCausalLM.from_pretrained(args.model, quantization_config=bits)
        adapter = None
        if args.method == "lora":
            adapter = LoraConfig(r=args.rank, target_modules="all-linear")
        if loops and not adapter:
            loops = adapter
        words = SFTConfig(per_device_train_batch_size=args.rows, max_length=256)
        SFTTrainer(model=model, args=words, peft_config=adapter).train()

    main(reader_of_words().parse_args())
"""
OPTIONS = """
    import argparse

    def reader_of_words():
        parser = argparse.ArgumentParser()
        parser.add_argument("--model", required=True)
        parser.add_argument("--method", default="full")
        parser.add_argument("--quantize", action="store_true")
        parser.add_argument("--rank", type=int, default=4)
        parser.add_argument("--rows", type=int, default=2)
        return parser
"""


@pytest.mark.parametrize(
    ("words", "rank", "quantization"),
    [
        ("", None, None),
        ("--method lora", 4, None),
        ("--method lora --rank 16 --quantize", 16, "nf4"),
    ],
)
def test_of_branches_those_are_read_that_the_arguments_take(
    tmp_path: Path, words: str, rank: int | None, quantization: str | None
) -> None:
    """The options may stand in a module beside the script."""
    command = f"torchrun --nproc_per_node 2 own.py --model gpt2 --rows 3 {words}\n"
    told = values(tmp_path, {"run.sh": command, "own.py": BRANCHES, "own_words.py": OPTIONS})
    holds(told, model="gpt2", micro_batch_size=3, adapter__rank=rank, quantization=quantization)
    assert ("adapter.kind" in told) is (rank is not None)
