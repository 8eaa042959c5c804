"""What a job has of its runtime where it says nothing.

A profile's fields are named after the keys of a job. A default is taken where the key is absent, as if it had been
given, and is told among the assumptions; so the resolved job has it, and a runtime decides nothing that is not echoed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vramplan.job.behaviour import under
from vramplan.job.evidence.cells import FSDP_HALVES
from vramplan.job.inputs.sizes import DEFAULT_MAX_SEQUENCE
from vramplan.options import table, words
from vramplan.options.option import Option
from vramplan.options.words import HALVES
from vramplan.values.parallel import is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu, Runtime
    from vramplan.values.model import ModelShape

OWN = (
    *("precision", "weight_dtype", "gradient_dtype", "optimizer", "loss"),
    *("bitsandbytes", "allocator", "adapter.dropout"),
    *("parallel.sharding", "parallel.reduce_dtype", "parallel.fsdp_units"),
)
"""Keys whose default depends on more than whether the job says something."""

CLIPPING = "max_gradient_norm"
GLOBAL = "global_batch_size"  # follows from the steps, where they are given
FOUR_BITS = ("nf4", "nf4-double")


def take_defaults(resolver: Resolver, runtime: Runtime, model: ModelShape | None, gpu: Gpu | None) -> None:
    """Fill in what the job leaves open and the profile of its runtime says; each is an assumption."""
    _take_parallel(resolver, runtime)
    _take_precision(resolver, runtime, gpu)
    _take_optimizer(resolver, runtime)
    raw = resolver.raw
    _take_plain(resolver, runtime, "")
    _take_loss(resolver, runtime, model)
    if raw.quantization in FOUR_BITS and raw.bitsandbytes is None and "bitsandbytes" in runtime.defaults:
        _take(resolver, runtime, "bitsandbytes", runtime.defaults["bitsandbytes"])
    if raw.adapter is not None and not raw.adapter.present("dropout") and "adapter_dropout" in runtime.defaults:
        raw.adapter_dropout = float(runtime.defaults["adapter_dropout"])
        resolver.assume("adapter.dropout", raw.adapter_dropout, _why(runtime, "adapter_dropout"))


def _take_plain(resolver: Resolver, runtime: Runtime, group: str) -> None:
    """Take the profile's defaults for the keys of a mapping that the job leaves out.

    A default of the profile that is the program's own default too is not listed as an assumption.
    """
    raw = resolver.raw
    fields = raw.fields.fields(group) if group else raw.fields
    for name, option in _options_of(group, tuple(runtime.defaults)):
        value = runtime.defaults[name]
        if value is None or value == option.default or option.key in OWN or getattr(raw, option.attribute) is not None:
            continue
        chosen = option.nullable and fields is not None and fields.present(option.name)
        follows = option.key == GLOBAL and raw.gradient_accumulation_steps
        elsewhere = option.sharding and words.pattern_word(raw.sharding or "none") not in option.sharding
        if chosen or follows or elsewhere:
            continue
        if option.key == CLIPPING and not resolver.prefer(CLIPPING):
            resolver.assume(CLIPPING, None, f"not {value:g} as in {runtime.name}: {resolver.given_up[CLIPPING]}")
        else:
            setattr(raw, option.attribute, value)
            resolver.assume(option.key, value, _why(runtime, option.name))


@lru_cache(maxsize=64)
def _options_of(group: str, names: tuple[str, ...]) -> tuple[tuple[str, Option], ...]:
    """Those of a mapping that have one of the names, in their order."""
    return tuple((name, option) for name, option in table.nullable_last(group) if name in names)


def _take(resolver: Resolver, runtime: Runtime, key: str, value: Any, field: str | None = None) -> None:
    setattr(resolver.raw, key, value)
    resolver.assume(key, value, _why(runtime, field or key))


def _why(runtime: Runtime, field: str) -> str:
    note = runtime.notes.get(field)
    return f"the default of the {runtime.name} runtime" + (f": {note}" if note else "")


def _take_parallel(resolver: Resolver, runtime: Runtime) -> None:
    raw, defaults = resolver.raw, runtime.defaults
    if raw.data_parallel_size > 1 and raw.sharding is None and "sharding" in defaults:
        raw.sharding = defaults["sharding"]
        resolver.assume("parallel.sharding", raw.sharding, _why(runtime, "sharding"))
    _take_plain(resolver, runtime, "parallel")


def _take_precision(resolver: Resolver, runtime: Runtime, gpu: Gpu | None) -> None:
    raw, defaults = resolver.raw, runtime.defaults
    if raw.precision in {None, "auto"}:
        field = "precision"
        for other, asked in (
            ("sharded_precision", is_fsdp(raw.sharding) and under(runtime).has_policy(resolver)),
            ("quantized_precision", raw.quantization is not None),
        ):
            field = other if asked and other in defaults else field
        found = defaults.get(field)
        lacks = gpu is not None and gpu.bf16 is False and str(found).endswith("bf16")
        if lacks and found in FSDP_HALVES:  # the policy has the element type that the GPU has
            found, lacks = found.replace("bf16", "fp16"), False
        if found is not None and not lacks:
            take = _take_policy if found in FSDP_HALVES else _take_precision_of
            take(resolver, runtime, found, field)
    elif (
        raw.precision in HALVES
        and is_fsdp(raw.sharding)
        and defaults.get("sharded_precision") in FSDP_HALVES
        and under(runtime).has_policy(resolver)
    ):
        _take_policy(resolver, runtime, f"fsdp-{raw.precision}", "sharded_precision")
    half = "gradient_dtype" in defaults and (raw.precision or "").startswith("mixed-")
    if half and not raw.fields.present("gradient_dtype"):
        raw.cells["gradient_dtype"] = defaults["gradient_dtype"]
        resolver.assume("gradient_dtype", defaults["gradient_dtype"], _why(runtime, "gradient_dtype"))


def _take_policy(resolver: Resolver, runtime: Runtime, precision: str, field: str) -> None:
    """FSDP's own mixed precision, which is also what `bf16` means to a program that has it; some jobs go without."""
    if resolver.prefer("precision"):
        _take(resolver, runtime, "precision", precision, field)


def _take_precision_of(resolver: Resolver, runtime: Runtime, precision: str, field: str) -> None:
    _take(resolver, runtime, "precision", precision, field)


def _take_optimizer(resolver: Resolver, runtime: Runtime) -> None:
    field = "optimizer"
    if resolver.raw.quantization is not None and "quantized_optimizer" in runtime.defaults:
        field = "quantized_optimizer"
    if resolver.raw.optimizer is None and field in runtime.defaults:
        _take(resolver, runtime, "optimizer", runtime.defaults[field], field)


def _take_loss(resolver: Resolver, runtime: Runtime, model: ModelShape | None) -> None:
    """The loss over the head of a causal language model; other tasks have their own."""
    raw, defaults = resolver.raw, runtime.defaults
    if raw.loss is not None or model is None or model.task != "lm":
        return
    if "head_loss" in defaults:
        _take(resolver, runtime, "loss", defaults["head_loss"], "head_loss")
    elif "adapter_chunk_tokens" in defaults and raw.adapter is not None:
        length = raw.sequence_length or min(model.max_positions, DEFAULT_MAX_SEQUENCE)
        chunks = -(-length // defaults["adapter_chunk_tokens"])
        _take(resolver, runtime, "loss", f"chunked:{chunks}", "adapter_chunk_tokens")
