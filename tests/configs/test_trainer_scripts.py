"""Scripts around the Trainer that have arguments and defaults of their own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

SAME = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir out --bf16 True "


def test_fastchats_adapters_are_there_without_a_word() -> None:
    words = "--model_name_or_path lmsys/vicuna-7b-v1.5 --model_max_length 2048 --flash_attn False --q_lora {}"
    plain = job(f"deepspeed fastchat/train/train_lora.py {SAME} {words.format(False)}\n", "run.sh")
    holds(plain, adapter__kind="lora", adapter__rank=8, adapter__targets=["q_proj", "v_proj"], quantization=None)
    quantized = job(f"deepspeed fastchat/train/train_lora.py {SAME} {words.format(True)} --lora_r 16\n", "run.sh")
    holds(quantized, adapter__rank=16, quantization="nf4-double", attention=None)
    fast = job(f"deepspeed train_lora.py {SAME} --model_max_length 512 --flash_attn True\n", "run.sh")
    assert fast["attention"] == "flash"
    whole = f"{SAME} --fsdp 'full_shard auto_wrap' --model_name_or_path llama-7b --lazy_preprocess True\n"
    patched = job(f"torchrun --nproc_per_node=8 fastchat/train/train_mem.py {whole}", "run.sh")
    holds(patched, attention="flash", sequence_length=512, optimizer_implementation="foreach", adapter__kind=None)
    holds(job(f"torchrun --nproc_per_node=8 fastchat/train/train.py {whole}", "run.sh"), attention=None)


def test_the_first_qwens_layers_have_the_names_of_the_model_that_is_counted() -> None:
    words = "--lazy_preprocess True --use_lora --model_max_length 512 --model_name_or_path Qwen/Qwen-7B"
    base = job(f"torchrun finetune.py {SAME} {words}\n", "run.sh")
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"]
    holds(base, model="qwen-7b", adapter__rank=64, adapter__targets=layers)
    assert base["adapter.modules_to_save"] == ["embed_tokens", "lm_head"]
    chat = job(f"torchrun finetune.py {SAME} {words}-Chat\n", "run.sh")
    holds(chat, adapter__modules_to_save=None)
    four = meant(f"torchrun finetune.py {SAME} {words}-Chat-Int4 --q_lora\n", "run.sh")
    assert four.job["quantization"] == "nf4-double"
    assert "GPTQ" in four.unmodelled["q_lora"]


def test_minicpms_weights_are_loaded_in_what_is_computed_in() -> None:
    words = "--train_data_path data --use_lora --model_max_length 384"
    holds(
        job(f"python finetune.py {SAME} {words}\n", "run.sh"),
        weight_dtype="bf16",
        precision="amp-bf16",
        adapter__rank=64,
        adapter__dropout=0.1,
        sequence_length=384,
    )


def test_qlora_quantizes_without_a_word_and_joins_both_texts() -> None:
    own = job("python qlora.py --model_name_or_path huggyllama/llama-7b --bf16 --target_max_len 512\n", "run.sh")
    holds(
        own,
        model="llama-7b",
        sequence_length=1024 + 512,
        quantization="nf4-double",
        optimizer="adamw-paged",
        micro_batch_size=1,
        gradient_accumulation_steps=16,
        max_gradient_norm=0.3,
        activation_checkpointing="full",
        adapter__targets="all-linear",
        adapter__dtype="bf16",
    )
    single = job("python qlora.py --model_name_or_path huggyllama/llama-7b --bits 8 --double_quant False\n", "run.sh")
    holds(single, quantization="int8", precision="fp32")
    whole = job("python qlora.py --model_name_or_path huggyllama/llama-7b --bits 16 --full_finetune --bf16\n", "run.sh")
    holds(whole, quantization=None, adapter__kind=None, precision="pure-bf16")
    with pytest.raises(InputError, match="trains nothing"):
        meant("python qlora.py --model_name_or_path huggyllama/llama-7b --do_train False\n", "run.sh")


def test_the_scripts_of_chinese_llama_take_an_adapter_unless_they_are_told_otherwise() -> None:
    words = "--lora_rank 64 --trainable q_proj,v_proj --modules_to_save embed_tokens,lm_head --load_in_kbits 4"
    found = job(f"torchrun run_clm_sft_with_peft.py {SAME} {words} --model_name_or_path llama-2-7b\n", "run.sh")
    holds(
        found, adapter__rank=64, adapter__targets=["q_proj", "v_proj"], quantization="nf4-double", sequence_length=1024
    )
    assert found["adapter.modules_to_save"] == ["embed_tokens", "lm_head"]
    whole = job(
        f"torchrun run_clm_pt_with_peft.py {SAME} --full_finetuning True --model_name_or_path llama-2-7b\n", "a.sh"
    )
    holds(whole, adapter__kind=None)


def test_lmflow_trains_few_blocks_adapters_or_with_an_optimizer_of_its_own() -> None:
    words = f"python examples/finetune.py {SAME} --dataset_path data --block_size 512 --model_name_or_path llama-3.2-3b"
    holds(job(f"{words} --use_lisa 1 --lisa_activated_layers 1\n", "a.sh"), trained_blocks="lisa:1", adapter__kind=None)
    holds(job(f"{words} --use_lora 1\n", "run.sh"), adapter__kind="lora", adapter__rank=8, quantization=None)
    holds(job(f"{words} --use_qlora 1\n", "run.sh"), adapter__kind="lora", quantization="nf4-double")
    found = meant(f"{words} --use_customized_optim 1 --customized_optim yogi --optim_beta1 0.9\n", "run.sh")
    assert found.job["optimizer"] == "adamw"
    assert "yogi" in found.unmodelled["customized_optim"]


def test_pefts_script_stores_what_it_does_not_quantize_as_it_stores_what_it_does() -> None:
    words = f"{SAME} --use_peft_lora True --use_4bit_quantization True --model_name_or_path llama-2-7b --max_length 512"
    stored = job(f"python train.py {words} --bnb_4bit_quant_storage_dtype bfloat16\n", "run.sh")
    holds(stored, weight_dtype="bf16", adapter__rank=64, adapter__alpha=16, quantization="nf4", packing=False)
    holds(job(f"python train.py {words}\n", "run.sh"), weight_dtype="fp32", runtime="transformers")
    holds(job(f"python train.py {words} --use_unsloth True --lora_r 8\n", "a.sh"), runtime="unsloth", adapter__rank=8)


def test_what_a_script_computes_of_its_caller_is_asked_for() -> None:
    script = f"""
        torchrun --nproc-per-node $(nvidia-smi -L | wc -l) --node_rank=$RANK --rdzv_id 1 --rdzv_backend=c10d \\
            --rdzv_conf 'read_timeout=420' --rdzv_endpoint=$HOST:29401 train/sft.py {SAME} \\
            --model_name_or_path llama-3.2-1b --block_size 512 --gradient_accumulation_steps $STEPS
    """
    found = meant(script, "run.sh")
    assert "$STEPS" in found.open["gradient_accumulation_steps"]
    assert found.job["sequence_length"] == 512


@pytest.mark.parametrize("name", ["path/to/llama-2/dir", "your_model", "checkpoints/sft/step_1"])
def test_a_name_that_is_to_be_filled_in_is_asked_for(name: str) -> None:
    found = meant(f"python train.py {SAME} --block_size 512 --model_name_or_path {name}\n", "run.sh")
    assert "model" in found.open


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"deepspeed examples/chatbot.py {SAME} --model_name_or_path gpt2\n",
            "chatbot.py answers, evaluates or merges",
        ),
        (f"python merge_lora.py {SAME} --model_name_or_path gpt2\n", "trains nothing"),
        (f"python llava/train/train_mem.py {SAME} --vision_tower openai/clip\n", "in the code of LLaVA"),
        (
            f"deepspeed main.py {SAME} --model_name_or_path gpt2 --actor_zero_stage 2 --deepspeed\n",
            "step 3 of DeepSpeed-Chat",
        ),
    ],
)
def test_a_script_that_is_none_for_a_job_is_told_so_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        meant(text, "run.sh")
    assert len(caught.value.problems) == 1


def test_a_file_that_filters_a_data_set_or_is_of_another_program_is_told_so() -> None:
    with pytest.raises(InputError, match="filters a data set"):
        meant("model_name_or_path: gpt2\nnum_generations: 8\npass_rate_min: 0.2\nseed: 1\n", "a.yaml")
    with pytest.raises(InputError, match="is of nanotron, whose runs are not modelled"):
        meant("general: {}\nparallelism: {dp: 8}\ntokens: {}\nmodel: {}\noptimizer: {}\n", "a.yaml")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("NPROC_PER_NODE=4 megatron sft --load own --packing true", "Megatron-SWIFT"),
        ("python -m swift.cli._megatron.sft --load own", "Megatron-SWIFT"),
        ("python3 -m verl.trainer.main_generation data.path=rows", "another trainer of verl"),
        ("deepspeed --module openrlhf.cli.train_sft --pretrain gpt2 --micro_train_batch_size 2", "OpenRLHF"),
        ("xtuner train own.py --deepspeed deepspeed_zero2", "XTuner"),
        ("python src/scripts/train/sft/OLMo-sft.py train own --seq_len=32768 --launch.num_gpus=8", "OLMo-core"),
    ],
)
def test_a_command_of_another_program_is_told_so(command: str, name: str) -> None:
    text = command + " --per_device_train_batch_size 2 --max_length 64 --bf16 True --output_dir o\n"
    with pytest.raises(InputError, match=f"is of {name}, whose runs are not modelled") as caught:
        read_texts({"run.sh": text}, Wanted())
    assert len(caught.value.problems) == 1
    trained = f"python train.py {SAME} --model_name_or_path gpt2 --max_seq_length 64\n"
    assert read_texts({"run.sh": text + trained}, Wanted()).job["model"] == "gpt2"


def test_a_part_of_a_configuration_of_hydra_is_told_so() -> None:
    text = "_target_: trl.SFTConfig\nmodel_name_or_path: gpt2\nmax_length: {}\nbf16: true\nlogging_steps: 1\n"
    with pytest.raises(InputError, match="max_length stands in another") as caught:
        meant(text.format("${own.length}"), "a.yaml")
    assert len(caught.value.problems) == 1
    assert meant(text.format(64), "a.yaml").job["sequence_length"] == 64


def test_a_script_of_lmflows_name_alone_is_another() -> None:
    words = f"python own/finetune.py {SAME} --dataset_path data --model_name gpt2 --max_seq_length 64\n"
    assert not any("LMFlow" in note for note in meant(words, "run.sh").notes)


def test_the_name_of_a_script_says_which_loss_it_has() -> None:
    words = f"{SAME} --model_max_length 512 --flash_attn True --model_name_or_path llama-7b"
    holds(job(f"torchrun examples/reward_modeling.py {words}\n", "a.sh"), loss="reward", attention="flash")
    holds(job(f"torchrun examples/finetune_dpo.py {words}\n", "a.sh"), loss="dpo", dpo_reference="model")
    holds(job(f"torchrun examples/supervised.py {words}\n", "a.sh"), loss=None)


CLM = (
    "torchrun --nproc_per_node 2 run_clm.py --tokenizer_name gpt2 --block_size 512 --do_train --output_dir own {more}\n"
)


@pytest.mark.parametrize(
    ("more", "model", "scratch"),
    [
        ("--model_type gpt2", "gpt2", True),
        ("--config_name gpt2-medium", "gpt2-medium", True),
        ("--model_type gpt2 --model_name_or_path gpt2-large", "gpt2-large", None),
    ],
)
def test_a_model_from_a_configuration(more: str, model: str, scratch: bool | None) -> None:
    holds(job(CLM.format(more=more), "run.sh"), model=model, from_scratch=scratch, sequence_length=512)


def test_a_configuration_with_other_sizes() -> None:
    changes = "n_embd=256,n_head=4,n_layer=3,n_positions=512,use_cache=False"
    found = job(CLM.format(more=f'--model_type gpt2 --config_overrides "{changes}"'), "run.sh")
    sizes = {"layers": 3, "hidden_size": 256, "attention_heads": 4, "intermediate_size": 1024, "max_positions": 512}
    assert found["model"] | sizes == found["model"]
    assert found["model"]["vocabulary_size"] == 50257
    with pytest.raises(InputError, match="n_layers=3 is not understood"):
        job(CLM.format(more="--model_type gpt2 --config_overrides n_layers=3"), "run.sh")
    asked = meant(CLM.format(more="--model_type own_type"), "run.sh")
    assert "none of a published model" in asked.open["model"]


def test_a_script_that_trains_a_model_to_chat_trains() -> None:
    text = "torchrun --nproc_per_node 2 {} --model_name_or_path gpt2 --max_seq_length 64 --bf16 True --output_dir own\n"
    assert job(text.format("own_chat_finetune.py"), "run.sh")["sequence_length"] == 64
    for name in ("own_chat.py", "merge_sft.py", "eval_dpo.py"):
        with pytest.raises(InputError, match="trains nothing"):
            job(text.format(name), "run.sh")


def test_another_script_of_fastchats_name_has_its_own_defaults(tmp_path: Path) -> None:
    own = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lora_r', type=int, default=32)\n"
    (tmp_path / "train_lora.py").write_text(own + "p.add_argument('--use_lora', default=True)\np.parse_args()\n")
    script = tmp_path / "run.sh"
    words = "--model_name_or_path gpt2 --model_max_length 256 --use_lora True"
    script.write_text(f"python train_lora.py {SAME} {words}\n")
    found = read_files([str(script)], Wanted())
    assert found.job["adapter"]["rank"] == 32
    (tmp_path / "train_lora.py").write_text(own + "p.add_argument('--q_lora', default=False)\np.parse_args()\n")
    assert read_files([str(script)], Wanted()).job["adapter"]["rank"] == 8


def test_fields_of_a_data_class_have_the_values_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(
        textwrap.dedent("""
        from dataclasses import dataclass, field
        from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
        from trl import SFTTrainer

        @dataclass
        class ScriptArguments:
            model_name: str = field(default="meta-llama/Llama-2-7b-hf")
            batch_size: int = field(default=64)
            seq_length: int = field(default=512)

        script_args = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()[0]
        model = AutoModelForCausalLM.from_pretrained(script_args.model_name)
        training_args = TrainingArguments(output_dir="out", per_device_train_batch_size=script_args.batch_size)
        SFTTrainer(model=model, args=training_args, max_seq_length=script_args.seq_length).train()
        """)
    )
    run = tmp_path / "run.sh"
    run.write_text("torchrun --nproc_per_node 2 tune.py --model_name gpt2 --batch_size 3\n")
    found = read_files([str(run)], Wanted())
    holds(found.job, model="gpt2", micro_batch_size=3, sequence_length=512, gradient_accumulation_steps=1)
    assert found.job["parallel"]["data"] == 2
    script = (tmp_path / "tune.py").read_text().replace(", max_seq_length=script_args.seq_length", "")
    (tmp_path / "tune.py").write_text(script.replace("seq_length", "max_length"))  # which the script uses elsewhere
    run.write_text("torchrun --nproc_per_node 2 tune.py --model_name gpt2 --batch_size 3 --max_length 96\n")
    assert read_files([str(run)], Wanted()).job["sequence_length"] == 96


def test_a_prompt_and_an_answer_of_preferences_are_one_text() -> None:
    text = "torchrun --nproc_per_node 8 dpo_training.py --model_name_or_path {} --max_source_length 48 "
    text += "--max_target_length 16 --per_device_train_batch_size 2 --output_dir out --bf16\n"
    assert meant(text.format("./own-model"), "run.sh").job["sequence_length"] == 64
    assert meant(text.format("google-t5/t5-small"), "run.sh").job["target_length"] == 16
