"""Random iterations that train less than every weight: frozen parts, adapters, quantized weights."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from tests.engine.draws import UNREAD_LAST, setups
from vramplan.job.trained.adapter_targets import known_targets
from vramplan.job.trained.quantized import loads_fp16
from vramplan.job.trained.resolve import feeds_head
from vramplan.options.table import find
from vramplan.replay.checkpoints import ALTERNATE_MATMULS, MATMULS
from vramplan.replay.models.capable import keeps_fp32, takes_only_lora
from vramplan.replay.models.lora_kernels import FUSED, LAYERS
from vramplan.replay.setup import Setup
from vramplan.replay.techniques.adapters import ALL_LINEAR, CLASSIFIERS, GPTQ
from vramplan.replay.techniques.evidence import adaptable, freezable, gptq_quantizable, quantizable
from vramplan.replay.techniques.expert_adapters import former_names, tensors_of
from vramplan.replay.techniques.frozen import matches
from vramplan.replay.techniques.trained import Names, is_adapter_reached, is_reached, names_of
from vramplan.values.job import Adapter
from vramplan.values.model import ModelShape


@st.composite
def frozen_words(draw: st.DrawFn, model: ModelShape, names: Names) -> tuple[str, ...]:
    """Words that leave something to train."""
    first = draw(st.integers(0, model.layers - 1))
    blocks = f"layers.{first}-{draw(st.integers(first, model.layers - 1))}"
    known = [*names.parts(model.layers), blocks, f"layers.{first}", f"{blocks}.norms"]
    words: list[str] = []
    for word in draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True)):
        if not all(any(matches(one, path) for one in (*words, word)) for path in names.paths):
            words.append(word)
    return tuple(words) if is_reached(model, tuple(words)) else ()


@st.composite
def adapters(draw: st.DrawFn, model: ModelShape, names: Names, precision: str, kinds: list[str]) -> Adapter:
    """An adapter over some of the model's layers."""
    kind = draw(st.sampled_from(["lora"] if takes_only_lora(model.family) else kinds))
    known = [name for name in known_targets(model, names, kind) if name not in CLASSIFIERS]
    targets = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)))
    of_experts = tensors_of(targets, former_names(kind, model), ALL_LINEAR)
    if of_experts and names.stacked:  # of them PEFT has nothing but plain LoRA
        kind = "lora"
    own = "fp32" if precision == "fp32" or precision.startswith("amp-") else precision.rpartition("-")[2]
    saved = draw(st.lists(st.sampled_from(["norm", "ln_f"]), max_size=1))
    if not model.tied_embeddings:
        saved += draw(st.lists(st.sampled_from([names.paths[0][-1], "lm_head"]), max_size=2, unique=True))
    if model.task == "cls":
        saved += CLASSIFIERS
    ia3 = kind == "ia3"
    return Adapter(
        kind=kind,
        rank=0 if ia3 else draw(st.sampled_from([1, 4, 7])),
        targets=targets,
        feedforward_targets=tuple(draw(st.lists(st.sampled_from(targets), max_size=1))) if ia3 else (),
        modules_to_save=tuple(saved),
        dropout=0.0 if ia3 or of_experts else draw(st.sampled_from([0.0, 0.1])),
        dtype=own if precision.startswith("mixed-") else draw(st.sampled_from(["fp32", own])),
    )


@st.composite
def trained_setups(draw: st.DrawFn, *, only_frozen: bool = False, adapted: bool = False) -> Setup:
    """An iteration with frozen parts, or with an adapter over a model that may be quantized."""
    model_type = draw(st.sampled_from(freezable() if only_frozen else adaptable()))
    setup = draw(setups(model_type=model_type))
    names = names_of(setup.model)
    if only_frozen or not (adapted or draw(st.booleans())):
        frozen = draw(frozen_words(setup.model, names))
        if setup.loss.startswith("fused") and not feeds_head(names.paths, frozen):
            setup = setup._replace(loss="chunked:3")
        return setup._replace(frozen=frozen)
    in_bits = setup.model.task != "cls" and not setup.precision.startswith("mixed-") and not setup.ema
    in_few = adaptable() if setup.model.task in ("lm", "image") else quantizable()
    known = [
        one
        for one in find("quantization").words
        if in_bits and model_type in (gptq_quantizable() if one == GPTQ else in_few)
    ]
    if setup.precision == "fp32":
        known = [one for one in known if one != GPTQ]
    quantization = draw(st.sampled_from([None, *known]))
    kinds = ["lora"] if quantization == GPTQ else ["lora", "dora", "ia3"]
    if quantization is not None and setup.precision.startswith("pure-"):
        kinds = [kind for kind in kinds if kind != "ia3"]
    adapter = draw(adapters(setup.model, names, setup.precision, kinds))
    may_miss = setup.model.family in UNREAD_LAST or setup.model.experts is not None
    assume(not may_miss or is_adapter_reached(setup.model, adapter))
    half = setup.precision.startswith("amp-") and (quantization == GPTQ or draw(st.booleans()))
    if quantization is not None and keeps_fp32(setup.model.family) and loads_fp16(setup.precision, half_weights=half):
        quantization = None
    found = setup._replace(adapter=adapter, quantization=quantization, half_weights=half)
    return found._replace(adapter=draw(fused(found, adapter)))


@st.composite
def fused(draw: st.DrawFn, setup: Setup, adapter: Adapter) -> Adapter:
    """The adapter, or one whose layers run as Axolotl's functions where these can."""
    known = FUSED.get(setup.model.transformers_model_type, ())
    casts = setup.precision.startswith("amp-") and not setup.half_weights
    keeps = any(segment.selects in (MATMULS, ALTERNATE_MATMULS) for segment in setup.segments)
    if adapter.kind != "lora" or not known or casts or keeps or setup.quantization not in (None, "nf4", "nf4-double"):
        return adapter
    kernels = tuple(draw(st.lists(st.sampled_from(known), max_size=3, unique=True)))
    needed = [name for word in kernels for name in LAYERS[word]]
    return adapter._replace(kernels=kernels, targets=tuple(dict.fromkeys((*adapter.targets, *needed))))
