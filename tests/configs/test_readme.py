"""Pages that tell how a program is used: the commands in their blocks."""

from __future__ import annotations

import pytest

from vramplan.configs.combine import read_texts
from vramplan.configs.reading import ReadJob, Wanted
from vramplan.errors import InputError

PAGE = """\
# Own

Install it first:

```bash
pip install -r requirements.txt
export MODEL=Qwen/Qwen2.5-0.5B
python tools/clean.py --rows 4
```

An example of a row:

```json
{"per_device_train_batch_size": 64}
```

~~~console
$ torchrun --nproc_per_node 4 sft.py --model_name_or_path $MODEL \\
    --per_device_train_batch_size 2 --max_length 512 --bf16 --output_dir out
~~~

Preferences come next:

```
torchrun --nproc_per_node 8 dpo.py --model_name_or_path $MODEL --per_device_train_batch_size 1 --beta 0.1 --output_dir o
```
"""


def _read(text: str, **others: str) -> ReadJob:
    texts = {name.replace("__", "."): one for name, one in others.items()}
    return read_texts({"README.md": text, **texts}, Wanted())


def test_the_first_block_that_trains_is_read_with_the_variables_before_it() -> None:
    found = _read(PAGE)
    assert found.job["model"] == "qwen2.5-0.5b"
    assert (found.job["micro_batch_size"], found.job["parallel"]["data"]) == (2, 4)
    source = next(value for value in found.values if value.key == "micro_batch_size").sources[0]
    assert PAGE.splitlines()[(source.line or 0) - 1].strip().startswith("--per_device_train_batch_size 2")
    assert any("other commands from lines 25 on; those from line 18 on are read" in note for note in found.notes)


def test_a_page_without_a_command_that_trains_is_told() -> None:
    with pytest.raises(InputError, match="no page of a model"):
        _read("# Own\n\n```bash\npip install own\npython app.py --port 80\n```\n")


def test_the_page_of_a_model_is_read_as_such() -> None:
    text = PAGE + "\n### Training hyperparameters\n\n- train_batch_size: 16\n"
    assert _read(text).job["micro_batch_size"] == 16
