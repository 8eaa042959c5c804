"""What becomes of an adapter beside another technique: preference training, activations on the host, dropout."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.job.given.read import RawJob
from vramplan.options import words
from vramplan.replay.models.capable import has_conv1d
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape

DORA = "dora"
ASKED = "embedded tokens are asked for a gradient (enable_input_require_grads), or nothing in the segments would train"


def dropout_of(
    raw: RawJob, fields: Fields, kind: str, dropout: float, model: ModelShape, told: list[Assumption]
) -> float:
    """The dropout in an adapter's path: TRL turns it off with that of the model, unless the job says its own.

    PEFT takes another path through DoRA where a dropout is asked for, whatever it is; over Conv1D that path makes a
    weight of its own in every pass, with a gradient (peft 0.21.2, tuners/lora/dora.py; utils/other.py, transpose).
    Quantized layers are no Conv1D.
    """
    turns_off = raw.loss in words.PREFERENCE_LOSSES and raw.loss != words.POLICY
    own = raw.fields.present("dropout") and raw.dropout != 0  # 0 is what TRL sets it to, said or not
    turned_off = turns_off and not own
    if kind == DORA and turned_off:
        why = "TRL sets it to 0, PEFT computes as if it were not"
        message = f"{dropout:g} is not modelled with dora and {raw.loss}: {why}"
        fields.refuse("dropout", message, hint="leave it out")
    elif kind == DORA and has_conv1d(model.family) and raw.quantization is None:
        message = f"{dropout:g} is not modelled with dora for {model.transformers_model_type}, whose layers are Conv1D"
        fields.refuse("dropout", message, hint="leave it out, or use lora")
    if not turned_off:
        return dropout
    told.append(Assumption("adapter.dropout", 0.0, f"{raw.loss}: TRL turns dropout off, the adapter's {dropout:g} too"))
    return 0.0


def dtype_of_trl(fields: Fields, precision: str, told: list[Assumption]) -> str:
    """TRL turns an adapter over quantized weights to bf16 (trl 1.16.0, trainer/dpo_trainer.py)."""
    if precision.endswith("fp16"):
        message = f"is missing: TRL makes adapters over quantized weights bf16, which is not modelled with {precision}"
        fields.refuse("dtype", message, hint="use a bf16 precision")
    told.append(Assumption("adapter.dtype", "bf16", "TRL's for an adapter over quantized weights"))
    return "bf16"
