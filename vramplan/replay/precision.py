"""What each precision of the job format means: the dtypes that exist at the optimizer step, and autocast."""

from __future__ import annotations

from vramplan.replay.tensors import BF16, FP16, FP32, DType
from vramplan.tuples import NamedTuple


class Precision(NamedTuple):
    """One row of the precision table (docs/job-format.md, "Precision, spelled out")."""

    name: str
    weights: DType
    autocast: DType | None  # torch.autocast around forward
    master: bool  # fp32 master weights and fp32 optimizer states beside half weights, stepped by one fused kernel
    float8: bool = False  # linear layers multiply in fp8 (replay/operators/float8.py)
    stored: DType | None = None  # of the shards of the weights, where they are gathered in another type
    frozen: DType | None = None  # of the shards of those that are not trained, where it is another than `stored`


def precision_of(name: str, *, half_weights: bool = False) -> Precision:
    """A precision by its name; with `half_weights` the weights have autocast's element type, as after `model.to`.

    Under a policy of FSDP it is the frozen ones that have 16 bits: what is trained is fp32.
    """
    found = PRECISIONS[name]
    if half_weights and found.stored is not None:
        return found._replace(frozen=found.weights)
    if half_weights:
        assert found.autocast is not None
        return found._replace(weights=found.autocast)
    return found


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", FP32, None, False),
        Precision("amp-fp16", FP32, FP16, False),
        Precision("amp-bf16", FP32, BF16, False),
        Precision("mixed-fp16", FP16, None, True),
        Precision("mixed-bf16", BF16, None, True),
        Precision("mixed-fp32", FP32, None, True),  # fp32 under ZeRO, which steps a copy of whatever weights there are
        Precision("pure-fp16", FP16, None, False),
        Precision("pure-bf16", BF16, None, False),
        Precision("fsdp-bf16", BF16, None, False, stored=FP32),
        Precision("fsdp-fp16", FP16, None, False, stored=FP32),
        Precision("fsdp-autocast-bf16", BF16, BF16, False, stored=FP32),  # FSDP1 of a program that has both
        Precision("fsdp-autocast-fp16", FP16, FP16, False, stored=FP32),
        Precision("fsdp-fp8", BF16, None, False, stored=FP32),  # compiled: casts to fp8 are parts of kernels
        Precision("fp8", BF16, None, True, float8=True),
    )
}
