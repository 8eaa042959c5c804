"""Headings under which keys stand: sections of the docs, and panels of the help."""

from __future__ import annotations

SUBJECT = "What runs where"
BATCH = "Batch"
NUMBERS = "Numbers and optimizer"
FORWARD = "Forward and backward"
BETWEEN = "Between the steps"
TRAINED = "Adapters, quantization, frozen parts, offloading"
PARALLELISM = "Parallelism"
GATES = "Gates only"
TEXTBOOK = "Textbook keys"
ADVICE = "Batch advice"
RUN = "Length and cost of the run"
SECTIONS = (SUBJECT, BATCH, NUMBERS, FORWARD, BETWEEN, TRAINED, PARALLELISM, RUN, GATES, TEXTBOOK, ADVICE)

MODEL = "Model and data"
PRECISION = "Precision and optimizer"
ADAPTERS = "Adapters and quantization"
CHECKPOINTING = "Checkpointing"
DEVICES = "Devices"
TUNING = "FSDP and ZeRO tuning"
EVALUATION = "Evaluation and generation"
EQUATIONS = "Textbook and batch advice"
PANELS = {
    MODEL: (SUBJECT, FORWARD),
    BATCH: (BATCH,),
    PRECISION: (NUMBERS,),
    ADAPTERS: (TRAINED,),
    CHECKPOINTING: (),
    DEVICES: (PARALLELISM,),
    TUNING: (),
    EVALUATION: (BETWEEN,),
    RUN: (RUN,),
    EQUATIONS: (TEXTBOOK, ADVICE, GATES),
}
"""Headings of the help in their order, each with the sections whose keys stand there if their rows name no other."""
