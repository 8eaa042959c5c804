"""Sets of published peaks that came after the first, what they were found to be at first, and why some are missed.

Each was written down and committed before any of it was predicted; `first` are the figures of that first look.
"""

from __future__ import annotations

from typing import NamedTuple


class First(NamedTuple):
    """As a set was first answered: how many ranges held, how many peaks lay above, the median error and width."""

    held: int
    above: int
    error: float  # percent
    width: float  # percent of the figure


class Later(NamedTuple):
    """One set."""

    file: str  # of this folder, without its ending
    ordinal: str
    count: int
    how: str  # how its pages came together, after their number
    mended: str  # what was done in its sight, in words of the page
    first: First
    causes: dict[str, str]  # why peaks lie outside, as far as it is known, by their names


HEAD_OF_FILE = "What was corrected in their sight is said in the head of the file."

SECOND = Later(
    "second_peaks",
    "second",
    55,
    "further pages were written down and committed in the same way after all of this but Adam over flat parts was "
    "mended",
    "Then rows were corrected in what their sources say themselves, as the head of the file tells, and one mechanism "
    "was mended in their sight: [linear layers of ZeRO-3 that keep their weights]"
    "(zero.md#linear-layers-that-keep-their-weights). A day later another was, which explains most of the runs under "
    "ZeRO: [what the allocator sees of it](zero.md#what-the-allocator-sees). Since then margins follow from these "
    "runs, too.",
    First(24, 25, 14.1, 25.1),
    {
        "axolotl-hunyuan-*": "not known; Cut Cross Entropy has a patch for its type at that date (ml-cross-entropy "
        "c6a32c5), and whole logits of one row would be what is missing",
        "fabric-*": "fp32 weights, gradients and moments of a quarter take 27 GB: the source contradicts its own "
        "settings",
        "titan-191-*": "its source reports these 16 GB as a regression of FSDP2 with tensor parallelism, mended since",
        "llmc-309-*": "it kept two tensors more in each block then (docs/runtimes.md); with them it is within 1 %",
    },
)
THIRD = Later(
    "third_peaks",
    "third",
    63,
    "further pages were written down and committed in the same way on 30 November 2026",
    "What was corrected or mended in their sight is said in the head of the file.",
    First(48, 10, 19.8, 46.2),
    {
        "peft-mm-boft": "PEFT makes it with an extension for CUDA where it finds a compiler, which is not counted",
        "ligerhf-gemma-*": "20 steps hold no batch of 512 tokens; weights, gradients and moments in fp32 alone take "
        "34 GB",
        "lab4-88m-tf32-checkpointed-b128": "not known: its code is not printed",
    },
)
FOURTH = Later(
    "fourth_peaks",
    "fourth",
    40,
    "further pages, most of them of users and small projects, were written down and committed in the same way later "
    "on 30 November 2026",
    HEAD_OF_FILE,
    First(23, 12, 10.0, 29.2),
    {
        "prime-4b-offload-pro6000": "its weights stay on the device, which a job under FSDP has no word for",
        "cs336-*-fp32": "its own code writes softmax and SiLU out, which save one tensor more each",
        "peftex-7b-packed": "not known; its script has a line for batches of 8, whose figure this would be",
        "lf-5977-8b-zero3-offload": "not known",
        "unsloth-824-*": "whether its checkpoints are kept on the host is not said: with them there the second is "
        "within 8 %, and the first 20 % below",
    },
)
FIFTH = Later(
    "fifth_peaks",
    "fifth",
    59,
    "further pages (functional tests, logs, notebooks, READMEs, issues and pull requests) were written down and "
    "committed in the same way on the same day",
    HEAD_OF_FILE,
    First(42, 13, 9.4, 41.0),
    {
        "swift5-30b-a3b-lora-*": "SWIFT adapts experts too, which no job under megatron can say",
        "litgpt-falcon-7b-lora": "it is within 2 % with one matrix of scores kept in each block, of which its code "
        "says nothing",
        "tune-tutorial-qlora-qlora": "the source says itself that 9.1 of its 9.3 GB were reserved before training: "
        "torchao before May 2024 quantized a whole weight at once",
        "axolotl-glm47-flash-qlora-fsdp2": "each device loads the whole model (cpu_ram_efficient_loading: false)",
        "axolotl-glm47-flash-lora-int8": "not known",
        "axolotl-dscoder-*": "the log is written after an evaluation of batches of many lengths, and its bitsandbytes "
        "0.43 keeps more in int8 than what is modelled",
        "unsloth-nb-qwen2-7b-alpaca": "Unsloth of 2024 kept cosines and sines of 131,072 tokens in each layer, 1.9 GB, "
        "which no release of today does",
        "unsloth-nb-gemma-3-4b": "its output is of two machines, a T4 without and an RTX 3060 with bf16; Unsloth of "
        "March 2025 made whole logits of models that take images (unsloth_zoo/compiler.py, "
        "cross_entropy_replacement_3)",
        "titan-aws-*": "not known; two sequences a device, or no checkpoints, would have it",
        "mbridge-qwen3-8b-lora-tp2": "it names no recipe: the rank, what is adapted and the loss are inferred",
    },
)
SIXTH = Later(
    "sixth_peaks",
    "sixth",
    53,
    "further pages (scripts, notebooks, reports of a course, issues, pull requests and READMEs) were written down and "
    "committed in the same way on the same day",
    HEAD_OF_FILE,
    First(32, 16, 24.0, 48.5),
    {
        "sixth-axolotl-internvl3.5-*": "its rows were taken to have as many tiles as an image may have",
        "sixth-axolotl-llama-3-70b-*": "not known; what loading leaves is not in it",
        "sixth-swift-7b-lisa": "its 62 steps train a few blocks; the answer is of the end, when each has had its turn",
        "sixth-swift-7b-lora-ddp": "not known; the same script on one device has 10 GiB less in its source",
        "sixth-swift-7b-lora-zero3": "not known; two devices have 1 GiB less than one device in its source, which "
        "would be a whole model at loading",
        "sixth-swift-0.5b-*": "it is rounded to 2 GB; 1.5 would be written so too",
        "sixth-unsloth-whisper-*": "it evaluates every five steps with compute_metrics, for which the Trainer keeps "
        "logits and encoder states of the whole evaluation on the GPU",
        "sixth-lab21-*": "a report of August has 4.00 GB less at each rank in the same notebook, which it calls an "
        "optimization of Unsloth; what its release of May kept is not known",
        "sixth-xtuner-*": "its embedding and its head are units of their own beside a loss in chunks, which no job "
        "can say",
        "sixth-llama-recipes-7b-int8": "bitsandbytes of 2024 keeps more in int8 than what is modelled",
        "sixth-litgpt-1112-*": "not known; a pull request of the same author and day prints 10.54 GB for the LoRA run",
    },
)
SEVENTH = Later(
    "seventh_peaks",
    "seventh",
    44,
    "further pages (notebooks and notes of users, model cards, scripts and a pull request) were written down and "
    "committed in the same way on the same day, after programs had the allocator that they set",
    HEAD_OF_FILE,
    First(27, 9, 14.6, 40.6),
    {
        "seventh-unsloth-qwen2.5-coder-7b-*": "its texts are cut at 32,768 tokens, and how long those are that it "
        "trains on is not printed",
        "seventh-unsloth-qwen3-4b-qat": "not known",
        "seventh-unsloth-gemma-4-*": "its 60 steps hold no batch of 8,192 tokens",
        "seventh-swift-7b-boft": "PEFT makes it with an extension for CUDA where it finds a compiler, which is not "
        "counted",
    },
)
EIGHTH = Later(
    "eighth_peaks",
    "eighth",
    42,
    "further pages (notebooks, benchmarks, example scripts, functional tests and pull requests) were written down and "
    "committed in the same way on the same day, after Unsloth's chunks of its loss were counted",
    HEAD_OF_FILE,
    First(36, 5, 5.3, 43.9),
    {
        "eighth-orca-qlora-*": "how long the longest of its rows are is not printed; 1,024 tokens were taken",
    },
)
LATER = (SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH)
