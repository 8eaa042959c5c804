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


@pytest.mark.parametrize(
    ("text", "file", "program"),
    [(EVALUATION, "t.yaml", None), (MERGE, "m.yaml", "llama-factory"), (SERVER, "s.sh", None)],
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
