"""Files of the same programs that train nothing: generation, evaluation, conversion."""

from __future__ import annotations

import pytest

from tests.configs.meant import meant
from vramplan.errors import InputError

pytestmark = pytest.mark.contract

EVALUATION = """
    model:
      _component_: torchtune.models.llama3_2.llama3_2_1b
    checkpointer:
      _component_: torchtune.training.FullModelHFCheckpointer
    tokenizer:
      _component_: torchtune.models.llama3.llama3_tokenizer
    tasks: [truthfulqa_mc2]
    batch_size: 8
"""
MERGE = """
    model: Qwen/Qwen3-4B
    model_class: llm
    peft_config:
      name: lora
      adapter_name_or_path: ./out
      export_dir: ./merged
"""
SERVER = """
    torchrun --nproc_per_node 1 tools/run_text_generation_server.py --num-layers 24 --hidden-size 1024 \\
        --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1
"""

TESTS = """
    trainer:
      devices: 1
      precision: 16
      max_steps: 20000
    exp_manager:
      exp_dir: null
    model:
      micro_batch_size: 1
      global_batch_size: 1
      tensor_model_parallel_size: 1
      megatron_amp_O2: false
      data:
        test_ds:
          file_names: [a.jsonl]
"""
PERPLEXITY = """
    batch_size = 8
    eval_iters = 500
    eval_only = True
    init_from = 'gpt2-large'
"""


@pytest.mark.parametrize(
    ("text", "file", "program"),
    [
        (TESTS, "n.yaml", "nemo"),
        (PERPLEXITY, "eval_gpt2.py", "nanogpt"),
        (EVALUATION, "t.yaml", None),
        (MERGE, "m.yaml", "llama-factory"),
        (SERVER, "s.sh", None),
    ],
)
def test_a_file_that_trains_nothing_is_no_job(text: str, file: str, program: str | None) -> None:
    with pytest.raises(InputError, match="trains nothing"):
        meant(text, file, program=program)
    with pytest.raises(InputError, match="trains nothing"):
        meant(text, file, program=program, ignore_unknown=True)


def test_a_quantizer_beside_an_optimizer_is_training() -> None:
    more = """
    quantizer:
      _component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer
    optimizer:
      _component_: torch.optim.AdamW
    loss:
      _component_: torchtune.modules.loss.LinearCrossEntropyLoss
"""
    text = EVALUATION.replace("tasks: [truthfulqa_mc2]", "max_steps_per_epoch: 1").rstrip("\n") + more
    assert meant(text, "t.yaml", ignore_unknown=True).job["model"] == "llama-3.2-1b"


def test_what_a_file_of_nemo_is_for_is_told_by_its_data_and_layers() -> None:
    more = "    train_ds:\n          file_names: [b.jsonl]\n"
    assert meant(TESTS + f"    {more}", "n.yaml", program="nemo").job["micro_batch_size"] == 1
    recurrent = TESTS.replace("megatron_amp_O2: false", "activations_checkpoint_recurrent: false")
    with pytest.raises(InputError, match="another kind of model"):
        meant(recurrent, "n.yaml", program="nemo")
