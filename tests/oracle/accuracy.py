"""Generates docs/accuracy.md: `python -m tests.oracle.accuracy` writes it, `--check` says whether it is current."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from tests.measured import page as measured
from tests.oracle.compare import COMPILED, FIGURES, FILES, Row, rows

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"

INTRODUCTION = """\
# Accuracy

For people who want to know how far to trust a figure before they spend money on it.

There are two kinds of evidence, and this page has both: [runs that others published](#published-runs), measured on
GPUs, and traces of the real code, which have every byte but no GPU.

**What the traces show.** Peaks of `vramplan` against peaks of the real PyTorch model code, traced on tensors without
data (torch 2.13.0, transformers 5.23.0, CUDA dispatch, steady-state iteration).
The traced figure is comparable with `torch.cuda.max_memory_allocated()`.
The rows lie in `tests/oracle/` and, of training programs, in `tests/engines/`, most of them random small
configurations:

| File | What its rows have |
|---|---|
| `suite.json` | well-known models of the shared suite: gpt2, llama, bert |
| `random.json` | the same families |
| `families.json` | further language models, well-known ones too |
| `attention.json` | sliding windows, masks, scaled rotary positions; glm, glm4, falcon, chatglm |
| `seq2seq.json` | t5, bart, roberta |
| `moe.json` | mixtures of experts |
| `vision.json`, `resnet.json` | models that take images |
| `halves.json` | half weights under autocast, of the model types that are not in `precisions.json` |
| `optimizers.json`, `steps.json` | other optimizers, steps in backward, clipping, averages of the weights |
| `precisions.json` | half weights under autocast, fp32 states of half weights, a scaled loss |
| `selective.json`, `selective_more.json`, `checkpoints.json` | selective and reentrant checkpoints, offloading |
| `losses.json`, `heads.json`, `smoothing.json` | chunked, fused and fp32 losses, smoothed labels |
| `preference.json`, `padding.json` | preference training with TRL 1.16.0; padded sequences |
| `losses_more.json` | all of these for the other families; classification heads of causal models, packed sequences |
| `half_logits.json` | losses over logits of 16 bits |
| `adapters.json` | frozen parts, adapters of peft 0.21.2, quantized weights of bitsandbytes 0.50.2 |
| `frozen.json` | frozen parts of the model types that are not in `adapters.json` |
| `adapted.json`, `adapters_more.json` | their adapters |
| `lora_parts.json` | one matrix of LoRA alone, and parts of a model by the words `attention` and `mlp` |
| `pairs.json` | two or three at once of what the files above have one by one |
| `quantized.json` | GPTQ layers, further quantized weights under LoRA, DoRA and IA3, fused losses of frozen heads |
| `fp8.json`, `fp8_more.json` | torchao 0.18's Float8Linear |
| `galore.json`, `master.json`, `returned.json` | GaLore; optimizers over a master copy; fp32 logits that are held |
| `evaluation.json`, `evaluation_more.json`, `generation.json`, `generation_more.json`, `pairs_beside.json` | \
evaluation and generation beside training |
| `replicated.json`, `replicas.json` | PyTorch's DDP; FSDP2 over groups of replicas |
| `fully_shard.json`, `fully_shard_more.json`, `sharded_more.json`, `sharded_bits.json` | FSDP2; its states on the \
host; quantized weights under FSDP2 and DDP |
| `flat_parameter.json`, `flat_host.json`, `flat_adapters.json` | FSDP1; its states on the host, with activations \
there and without; LoRA and QLoRA in units of PEFT's policy |
| `zero.json`, `zero_offload.json`, `zero_adapters.json` | DeepSpeed 0.19.8's ZeRO; states on the host and on NVMe; \
adapters, frozen parts and t5 |
| `sharded_activations.json`, `host_activations.json` | activations on the host under DDP and FSDP; under ZeRO, and \
beside states under FSDP2 |
| `nanogpt.json`, `modded.json`, `litgpt.json`, `torchtune.json`, `titan.json`, `titan_replicas.json`, `foundry.json` \
| models of other programs' own code; torchtitan's over groups of replicas |
| `compile.json`, `compile_more.json` | compiled steps, by [stated rules](compile.md) and not to the byte |

The code of chatglm is that of THUDM/chatglm3-6b, whose TorchScript function ran in the interpreter, not fused.
The optimizers of bitsandbytes 0.50.2 are its own Python code; their kernels, which work in place, are left out.
No constant of the replay was fitted to a row; every deviation was followed to the tensor that explains it.

**What the traces do not show.** A trace of operators does not see what lies inside or below them:

- the workspaces of the attention and embedding kernels are read off their sources, in the trace as here,
  so agreement on them is agreement of two readings, not evidence;
- library workspaces, the caching allocator and the CUDA context lie below the tensors:
  what is reserved is estimated, or [simulated](allocator.md), and [the rest is stated](nvidia-smi.md).

This page is generated by `python -m tests.oracle.accuracy`; a test fails when it is stale.
"""

TRACES = """\
## Traces

Each file of traced rows, by model, precision, checkpoints, attention and optimizer.
"""

CLOSING = """\
## Reading the table

`peak` is the peak of the iteration; `forward`, `backward` and `step` are the peaks of its phases;
`saved` is what the end of the forward pass holds for backward.
An error is |predicted - traced| / traced.
The quick replay plays the first, one inner and the last of a run of identical blocks and extends exactly;
`tests/engine/` shows that it equals the replay of every block.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [INTRODUCTION, measured.accuracy(), TRACES, *(section(file) for file in (*FILES, *COMPILED)), CLOSING]
    )


def section(file: str) -> str:
    """What the page says of one file."""
    found = rows(file)
    parts = [f"## {file}.json: {len(found)} rows\n"]
    parts.append(table(found, "all", lambda row: "all"))
    parts.append(table(found, "model", _name if file == "suite" else _kind))
    parts.append(table(found, "precision", lambda row: row.job.precision))
    parts.append(table(found, "checkpointing", _checkpointing))
    if file == "losses":
        parts.append(table(found, "loss", lambda row: row.job.loss))
    if file in {"adapters", "adapted", "adapters_more", "quantized"}:
        parts.append(table(found, "trained", _trained))
    parts.append(table(found, "attention", lambda row: row.job.attention))
    parts.append(table(found, "optimizer", lambda row: f"{row.job.optimizer}, {row.job.optimizer_implementation}"))
    return "\n".join(parts)


def _name(row: Row) -> str:
    return row.job.model.name


def _kind(row: Row) -> str:
    return f"{row.job.model.transformers_model_type}, {row.job.model.task}"


def _checkpointing(row: Row) -> str:
    return (row.job.activation_checkpointing or "none") + (", every second" if row.job.every_second_matmul else "")


def _trained(row: Row) -> str:
    job = row.job
    if job.adapter is None:
        return "frozen parts"
    saved = ", modules to save" if job.adapter.modules_to_save else ""
    weights = f", {job.quantization}" if job.quantization else ", 16 bits under autocast" if job.half_weights else ""
    return job.adapter.kind + weights + saved


def table(found: Iterable[Row], title: str, key: Callable[[Row], str]) -> str:
    """Rows grouped by a key: how many are exact, and the errors of each figure."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(key(row), []).append(row)
    lines = [
        f"| {title} | rows | exact to the byte | median peak | "
        + " | ".join(f"worst {figure}" for figure in FIGURES)
        + " |",
        "|---|" + "---:|" * (3 + len(FIGURES)),
    ]
    for name, group in groups.items():
        exact = sum(all(row.predicted[figure] == row.traced[figure] for figure in FIGURES) for row in group)
        worst = [max(row.error(figure) for row in group) for figure in FIGURES]
        errors = [median(row.error("peak") for row in group), *worst]
        lines.append(f"| {name} | {len(group)} | {exact} | " + " | ".join(f"{e:.4%}" for e in errors) + " |")
    return "\n".join(lines) + "\n"


def with_published() -> str:
    """The page with what it says of published runs made anew, and the tables of traces as they are."""
    old = PAGE.read_text("utf-8")
    return "\n".join([INTRODUCTION, measured.accuracy(), old[old.index(TRACES.partition("\n")[0]) :]])


def main(arguments: list[str]) -> int:
    """Write the page, or what it says of published runs alone (`--published`, in seconds), or check it."""
    text = with_published() if "--published" in arguments else page()
    if "--check" in arguments:
        return 0 if PAGE.read_text("utf-8") == text else 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
