"""Writes the tables of docs/peers.md: what other planners say of four jobs, what the replay says, and what is between.

`python -m tests.docs.peers` writes them; test_peers_page.py reads them back, and holds every account to its sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.answers import answer
from tests.textbook.peers import Figures, Run, Transformer, calculon, cookbook, interleaving, megatron
from vramplan import FitResult, fit
from vramplan.job import build_job
from vramplan.values.job import ResolvedJob

PAGE = Path(__file__).resolve().parents[2] / "docs" / "peers.md"
TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[\w.-]+)(?: -->\n)(?P<rows>(?:\|[^\n]*\n)*)")
FILE = re.compile(r"```yaml\n# gpt3-175b.yaml\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
GIB = 2**30

GPT2_XL = Transformer(48, 1600, 25, 6400, 50257)
LLAMA = Transformer(32, 4096, 32, 11008, 32000, gated=True, rms_norm=True, tied_embeddings=False)
GPT3 = Transformer(96, 12288, 96, 49152, 51200)
REST = "norms' statistics, inputs, small masks and rounding to blocks of 512 bytes"


class Ours(NamedTuple):
    """What the replay says, in the columns of the others."""

    parameters: int  # of the device
    weights: int
    gradients: int
    optimizer: int  # with the fp32 copy
    activations: int  # of all micro-batches in flight
    other: int

    @property
    def total(self) -> int:
        """`torch.cuda.max_memory_allocated()`."""
        return sum(self[1:])


class Peer(NamedTuple):
    """A tool's figures for a job, and the bytes that are between them and the replay's total, each with its reason."""

    tool: str
    figures: Figures
    account: tuple[tuple[int | Fraction, str], ...]

    def rest(self, ours: Ours) -> int:
        """What the account leaves over."""
        return ours.total - self.figures.total - round(sum(size for size, _ in self.account))


class Case(NamedTuple):
    """One job."""

    name: str
    ours: Ours
    peers: tuple[Peer, ...]


def replayed(**keys: Any) -> Ours:
    """The peak of a job on an A100."""
    return sorted_out(fit(gpu="a100-80gb", **keys))


def sorted_out(result: FitResult) -> Ours:
    """The components of a peak in the columns of the others."""
    parts = {part.name: part.bytes for part in result.components}
    return Ours(
        parameters=device_parameters(result),
        weights=parts.pop("weights"),
        gradients=parts.pop("gradients", 0),
        optimizer=parts.pop("master") + parts.pop("optimizer"),
        activations=parts.pop("activations") + parts.pop("in_flight", 0),
        other=sum(parts.values()),  # what the lines above have left
    )


def device_parameters(result: FitResult) -> int:
    """Parameters of the most loaded device: its 16-bit weights are two bytes each."""
    weights = next(part.basis for part in result.components if part.name == "weights")
    return int(weights.split(" x ")[0].replace(",", ""))


# ------------------------------------------------------------------------------------------------- GPT-2 XL, one GPU


def gpt2_xl(batch: int, *, checkpointed: bool) -> Case:
    """On one GPU, Transformers' own code with a written-out GELU and attention."""
    run = Run(1024, batch)
    ours = replayed(
        model="gpt2-xl",
        precision="mixed-fp16",
        attention="eager",
        micro_batch_size=batch,
        gradient_accumulation_steps=1,
        activation_checkpointing="full" if checkpointed else "none",
    )
    wide, scores = run.tokens * GPT2_XL.hidden_size, 25 * 1024 * run.tokens  # elements of sbh, and of all heads' scores
    logits, layers = run.tokens * GPT2_XL.vocabulary_size, GPT2_XL.layers
    loss = "the loss: log-probabilities in fp32, and two tensors of their size in its backward"
    ends = 5 * wide, "the output of the last block, the last norm's, and the mask of the embedding's dropout"
    mask = 2 * batch * 1024**2, "the causal mask, which eager attention adds to the scores of each sample"
    gelu = 24 * wide * layers, "the GELU of seven operators, which keeps five tensors of the MLP's width and not two"
    kept = () if checkpointed else (gelu,)
    masks = (mask,) if checkpointed else ()
    gone = "gradients: at the peak, in the backward of the loss, there are none yet"

    def unseen(counted: int, what: str) -> tuple[int, str]:
        return 14 * (ours.parameters - counted), what

    one = megatron.report(GPT2_XL, run)
    two = cookbook.report(GPT2_XL, run, zero_stage=0, checkpointed=checkpointed, gradient_bytes=2)
    three = calculon.report(GPT2_XL, run, recomputed="full" if checkpointed else "none")
    over = -(one.activations - round(one.activations / megatron.OVERHEAD))
    recomputed = -32 * wide * layers, "34sbh of each block: a checkpointed one keeps its input, 2sbh, alone"
    other_ends = 2 * wide, "the output of the last block"
    held = int(megatron.shard(GPT2_XL, run).total)
    peers = [
        Peer(
            "Megatron-LM",
            one,
            (
                unseen(held, "position embeddings and biases, which it does not count"),
                (-one.gradients, gone),
                *(
                    (recomputed,)
                    if checkpointed
                    else (gelu, (5 * scores * layers, "scores, which it takes as never kept"))
                ),
                (10 * logits, f"{loss}; it counts the logits once, in 2 bytes"),
                (over, "the 5 % that it adds to all activations"),
                *masks,
                other_ends,
            ),
        ),
        Peer(
            "cookbook",
            two,
            (
                unseen(
                    cookbook.parameters(GPT2_XL, 1024), "the tied embedding, which it counts twice, less all biases"
                ),
                (-two.gradients, gone),
                *((recomputed,) if checkpointed else kept),
                (12 * logits, loss),
                *masks,
                ends,
            ),
        ),
        Peer(
            "Calculon",
            three,
            (
                unseen(
                    layers * int(calculon.block_parameters(GPT2_XL, run)),
                    "embeddings and biases, which it does not count",
                ),
                (-three.gradients, gone),
                (-three.other, "gradients of one block's activations: at the peak no block is in work"),
                *(
                    ((2 * wide * layers - three.activations, "the block that is computed again, likewise"),)
                    if checkpointed
                    else kept
                ),
                (12 * logits, loss),
                *masks,
                ends,
            ),
        ),
    ]
    return Case(f"gpt2-xl.{batch}", ours, tuple(peers))


# ------------------------------------------------------------------- Llama-2-7B, 8 GPUs with the distributed optimizer


def llama() -> Case:
    """Under Megatron-LM, each block checkpointed."""
    run = Run(4096, 1, data=8)
    ours = replayed(
        model="llama-2-7b",
        runtime="megatron",
        sequence_length=4096,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        activation_checkpointing="full",
        parallel={"data": 8, "sharding": "distributed-optimizer"},
    )
    wide, layers, logits = run.tokens * LLAMA.hidden_size, LLAMA.layers, run.tokens * LLAMA.vocabulary_size
    loss = "the logits in bf16, and a copy in fp32 that becomes the softmax"
    ends = "the output of the last block, and the last norm's"
    mask = 4096**2, "the causal mask that its data loader makes, a byte for each pair of tokens"
    one = megatron.report(LLAMA, run, distributed_optimizer=True)
    two = cookbook.report(LLAMA, run, zero_stage=1, checkpointed=True)
    three = calculon.report(LLAMA, run, recomputed="full", shards_optimizer=True)
    each = Fraction(2 + 4 + 12, 1) - Fraction(12 * 7, 8)
    blocks = layers * int(calculon.block_parameters(LLAMA, run))
    input_of_each = 2 * wide * layers
    over = -(one.activations - round(one.activations / megatron.OVERHEAD))
    peers = [
        Peer(
            "Megatron-LM",
            one,
            (
                (-32 * wide * layers, "34sbh of each block: a checkpointed one keeps its input, 2sbh, alone"),
                (4 * logits, f"{loss}: it counts 2 bytes of each"),
                (over, "the 5 % that it adds to all activations"),
                mask,
                (wide, "the output of the last block, less a dropout after the embedding, which Llama has not"),
            ),
        ),
        Peer(
            "cookbook",
            two,
            (
                (
                    each * (ours.parameters - cookbook.parameters(LLAMA, 4096)),
                    "position embeddings and biases of norms, which Llama has not",
                ),
                (-32 * wide * layers, "34sbh of each block: a checkpointed one keeps its input, 2sbh, alone"),
                (6 * logits, loss),
                (-two.other, "a bucket of DeepSpeed's: Megatron gathers the weights into the buffer that they live in"),
                mask,
                (4 * wide, ends),
            ),
        ),
        Peer(
            "Calculon",
            three,
            (
                (
                    Fraction(2 * 8 + 12, 8) * (ours.parameters - blocks),
                    "weights and states of the embedding, the head and the gate's matrix, which it does not count",
                ),
                (ours.gradients - three.gradients, "gradients: whole and in fp32, where it shares them in 2 bytes"),
                (input_of_each - three.activations, "the block that is computed again: at the peak none is in work"),
                (-three.other, "gradients of one block's activations, likewise"),
                (6 * logits, loss),
                mask,
                (4 * wide, ends),
            ),
        ),
    ]
    return Case("llama-2-7b", ours, tuple(peers))


# ----------------------------------------------------------------------- GPT-3 175B, tensor 8 x pipeline 8, 64 GPUs


def gpt3_job() -> ResolvedJob:
    """The job file that the page shows."""
    body = FILE.search(PAGE.read_text("utf-8"))
    assert body
    defaults, entry = (yaml.safe_load(body["body"])[key] for key in ("defaults", "jobs"))
    job = build_job({**defaults, **entry[0]})
    assert isinstance(job, ResolvedJob)
    return job


def gpt3() -> Case:
    """As arXiv:2205.05198 trains it: three parts on each stage, sequence parallelism, scores recomputed."""
    run = Run(2048, 1, tensor=8, pipeline=8, virtual=3, micro_batches=64, sequence_parallel=True)
    ours = sorted_out(answer(gpt3_job()))
    part = Fraction(run.tokens * GPT3.hidden_size, 8)  # elements of sbh/t
    scores = Fraction(96 * 2048 * run.tokens, 8)
    one = megatron.report(GPT3, run, selective=True)
    two = cookbook.report(GPT3, run, checkpointed=True, partitioned=True)
    three = calculon.report(GPT3, run, recomputed="attn_only", gathers_again=True)
    held = megatron.shard(GPT3, run).total
    blocks = 12 * calculon.block_parameters(GPT3, run)
    positions = 2048 * GPT3.hidden_size
    waiting = 30  # parts of earlier micro-batches, four blocks each, beside the one that is in backward
    assert 4 * (waiting + 1) == 12 * 8 * interleaving(run)
    firsts = 16  # micro-batches in flight whose first part is
    masks = firsts * part, "the mask of the embedding's dropout of each micro-batch whose first part is in flight"
    in_work = (
        (7 * scores, "the scores of the block in work, computed again: three tensors of 2 bytes and a mask"),
        (2 * scores, "the buffer that collectives and eager attention share, as large as the scores"),
        ((waiting + 1) * 2048**2, "a causal mask of each micro-batch in flight, a byte for each pair of tokens"),
        (2 * 2 * part, "gradients of inputs of the micro-batch before, which variables of the schedule still hold"),
        (-14 * part, "what the block in work has freed of its 34sbh/t, less four gradients on their way"),
    )
    peers = [
        Peer(
            "Megatron-LM",
            one,
            (
                (18 * positions, "position embeddings, whole on each device of the first stage"),
                (
                    18 * (ours.parameters - positions - held),
                    "norms and the biases after split matrices, whole on each device, and all other biases",
                ),
                *in_work,
                (
                    masks[0] - 8 * part * interleaving(run),
                    f"{masks[1]}: 16 of them, where it has 8 x 31/24",
                ),
            ),
        ),
        Peer(
            "cookbook",
            two,
            (
                (2 * ours.parameters - two.weights, "weights of the most loaded stage, not of the average device"),
                (
                    ours.gradients - two.gradients,
                    "gradients, which it divides by neither tensor nor pipeline parallelism",
                ),
                (12 * ours.parameters - two.optimizer, "states of the most loaded stage, not of the average device"),
                (-two.other, "a bucket of ZeRO's, which nothing shares here"),
                (28 * 34 * part, "activations of 124 blocks of a pipeline that is interleaved, not of 96"),
                *in_work,
                masks,
            ),
        ),
        Peer(
            "Calculon",
            three,
            (
                (
                    14 * (ours.parameters - blocks),
                    "weights and states of embeddings and biases, which it does not count",
                ),
                (
                    ours.gradients - three.gradients,
                    "gradients: in fp32, also those of the embeddings, where it has 2 bytes",
                ),
                (124 * 34 * part - three.activations, "the block in work, which it adds to those that wait"),
                (-three.other, "gradients of one block's activations, all at once"),
                *in_work,
                masks,
            ),
        ),
    ]
    return Case("gpt3-175b", ours, tuple(peers))


@cache
def cases() -> tuple[Case, ...]:
    """All jobs of the page."""
    return gpt2_xl(1, checkpointed=False), gpt2_xl(32, checkpointed=True), llama(), gpt3()


def gib(size: float | Fraction, places: int = 2) -> str:
    """In GiB."""
    return f"{float(size) / GIB:.{places}f}"


def signed(size: float | Fraction) -> str:
    """What is added or taken away, in GiB."""
    return f"{float(size) / GIB:+.3f}"


def figures(case: Case) -> Iterator[str]:
    """One row for each tool."""
    yield "| GiB of one GPU | Weights | Gradients | Optimizer | Activations | Other | Total |\n"
    yield "|---|---:|---:|---:|---:|---:|---:|\n"
    for peer in case.peers:
        cells = [gib(size) for size in (*peer.figures, peer.figures.total)]
        yield f"| {peer.tool} | {' | '.join(cells)} |\n"
    cells = [gib(size) for size in (*case.ours[1:], case.ours.total)]
    yield f"| vramplan, replayed | {' | '.join(cells)} |\n"


def account(case: Case) -> Iterator[str]:
    """From each tool's total to the replay's."""
    yield "| From | GiB | Because of |\n"
    yield "|---|---:|---|\n"
    for peer in case.peers:
        yield f"| {peer.tool} | {gib(peer.figures.total, 3)} | |\n"
        rows = sorted(peer.account, key=lambda row: abs(Fraction(row[0])), reverse=True)
        for size, reason in rows:
            yield f"| | {signed(size)} | {reason} |\n"
        yield f"| | {signed(peer.rest(case.ours))} | {REST} |\n"
        yield f"| replay | {gib(case.ours.total, 3)} | |\n"


@cache
def tables() -> dict[str, str]:
    """By the names that the page has."""
    found = {}
    for case in cases():
        found[f"figures.{case.name}"] = "".join(figures(case))
        found[f"account.{case.name}"] = "".join(account(case))
    return found


def page(text: str) -> str:
    """The page with its tables made anew."""
    return TABLE.sub(lambda found: f"{found['name']} -->\n{tables()[found['name']]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
