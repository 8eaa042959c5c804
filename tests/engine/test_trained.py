"""CLOSED FORM and invariants of iterations that train less than every weight."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.drawing import Drawn
from tests.engine.examples import model
from tests.engine.examples import setup as plain
from tests.engine.trained_draws import frozen_words, trained_setups
from vramplan.job.trained.resolve import feeds_head
from vramplan.replay.checkpoints import MATMULS
from vramplan.replay.envelope import Envelope
from vramplan.replay.models.modules import Segment
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.techniques.adapters import ALL_LINEAR
from vramplan.replay.techniques.gptq import in_their_order, stored_bytes_gptq
from vramplan.replay.techniques.quantized import stored_bytes_4bit
from vramplan.replay.techniques.trained import is_adapter_reached, is_reached, names_of
from vramplan.values.job import Adapter
from vramplan.values.model import Experts

pytestmark = pytest.mark.closed_form


BATCHES = st.sampled_from([1, 2, 3, 4, 7])
DRAWS = settings(max_examples=15, deadline=None)
# experts alone are trained: the attention of the second block with experts is the first that gradients come to
EXPERTS_ALONE_ARE_TRAINED = plain(
    model(
        "qwen3_moe",
        layers=5,
        hidden_size=96,
        attention_heads=1,
        key_value_heads=1,
        experts=Experts(4, 1, 0, 24, None, False, dense_layers=(0,)),
    ),
    optimizer_implementation="foreach",
    adapter=Adapter(kind="lora", rank=1, targets=("gate_proj",)),
)
# what a selective checkpoint keeps of an image, for those between the first and the last
IMAGES_UNDER_SELECTIVE_CHECKPOINTS = plain(
    model(
        "qwen2_vl",
        layers=1,
        hidden_size=96,
        attention_heads=2,
        image_size=28,
        patch_size=7,
        channels=1,
        vision_layers=1,
        vision_hidden_size=24,
        vision_attention_heads=3,
        vision_intermediate_size=36,
        vision_merge=2,
        vision_frames=1,
    ),
    sequence_length=8,
    image_size=28,
    segments=(Segment(1, 1, True, MATMULS), Segment(1, 1, True, MATMULS)),
    optimizer_implementation="foreach",
)


def recomputes(setup: Setup) -> bool:
    """Whether a part of the model, large or small, is computed again."""
    return any(segment.checkpointed or segment.selects is not None for segment in setup.segments)


@pytest.mark.sweep(4)
@DRAWS
@given(trained_setups(), BATCHES)
@example(EXPERTS_ALONE_ARE_TRAINED, 1)
@example(IMAGES_UNDER_SELECTIVE_CHECKPOINTS, 5)
@example(IMAGES_UNDER_SELECTIVE_CHECKPOINTS._replace(attention="eager", frozen=("language_model",)), 3)
def test_the_quick_replay_equals_the_replay_of_every_block(setup: Setup, batch: int) -> None:
    """Phase peaks, what forward saves, and every component at the peak, to the byte; and nothing leaks."""
    short, literal = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    assert (short.parameters, short.trainable_parameters) == (literal.parameters, literal.trainable_parameters)
    phase, moment = short.worst(batch)
    literal_phase, literal_moment = literal.worst(batch)
    assert phase == literal_phase
    components = short.components(batch, phase, moment)
    assert components == literal.components(batch, literal_phase, literal_moment)
    assert sum(components.values()) == short.peak_bytes(batch)
    for record in (short, literal):
        assert record.end_bytes(batch) == record.static_bytes(batch)


@pytest.mark.sweep(2)
@DRAWS
@given(trained_setups(), st.sampled_from([2, 3, 8]))
def test_the_affine_peak_never_exceeds_the_exact_one(setup: Setup, batch: int) -> None:
    assert Envelope(replay(setup)).peak_bytes(batch) <= replay(setup, batch=batch, direct=True).peak_bytes(batch)


@example(
    setup=plain(
        model("granite", layers=1, hidden_size=8, attention_heads=1, intermediate_size=24, vocabulary_size=1000),
        sequence_length=1,
        optimizer="rmsprop",
        optimizer_implementation="for-loop",
        frozen=("norms", "layers"),
    ),
    batch=1,
    data=Drawn(("embeddings",)),
)
@pytest.mark.sweep(4)
@DRAWS
@given(st.data(), trained_setups(only_frozen=True), BATCHES)
def test_a_further_frozen_part_never_needs_more(data: st.DataObject, setup: Setup, batch: int) -> None:
    """Weights that are not trained have no gradients and no states, and less is saved for them.

    So it is where nothing is computed again: a checkpoint runs again when a first gradient needs what it saves, and
    what is saved decides when that is. Autocast keeps one cast of a trained weight, where one that is frozen is cast
    for each chunk of the loss. LOMO keeps a gradient until the next one
    comes: without the small ones between, large ones meet. So do denominators in the step of a loop over weights
    (`denom` of torch/optim/adam.py, `avg` of rmsprop.py), which keeps one until the next one is made: of such a step
    nothing is said.
    """
    by_chunks = ":" in setup.loss or setup.loss.startswith("fused")
    if setup.optimizer == "lomo" or recomputes(setup) or (setup.precision.startswith("amp") and by_chunks):
        return
    loops = setup.optimizer_implementation == "for-loop" or setup.optimizer.startswith("galore")
    names = names_of(setup.model)
    words = (*setup.frozen, *data.draw(frozen_words(setup.model, names)))
    if not is_reached(setup.model, words) or (setup.loss.startswith("fused") and not feeds_head(names.paths, words)):
        return
    chain = [setup._replace(frozen=()), setup, setup._replace(frozen=words)]
    phases = [dict(replay(one, batch=min(batch, 2)).peaks(batch)) for one in chain]
    peaks = [max(size for phase, size in one.items() if phase != "step" or not loops) for one in phases]
    assert peaks == sorted(peaks, reverse=True)


@example(
    setup=plain(
        model(
            "apertus",
            layers=1,
            hidden_size=8,
            attention_heads=1,
            key_value_heads=1,
            intermediate_size=24,
            max_positions=100,
        ),
        sequence_length=54,
        attention="efficient",
        segments=(Segment(times=1, blocks=1, checkpointed=True),),
        optimizer_implementation="foreach",
        optimizer_in_backward=True,
        adapter=Adapter(kind="lora", rank=1, targets=("q_proj", "k_proj", "down_proj")),
        quantization="nf4",
    ),
    batch=1,
)
@DRAWS
@given(trained_setups(adapted=True), BATCHES)
def test_a_further_target_never_needs_less(setup: Setup, batch: int) -> None:
    """Its weights are trained, and a second path runs beside the layer.

    So it is where nothing is computed again. A factor behind the last product of a block has the block computed again
    before its gradient is made: traces of qwen2 with IA3 have 1,859,584 bytes on q_proj and 1,825,792 on q_proj and
    down_proj. Products of weights in 4 bits save nothing, so that the gradient of the last one is there when the block
    is computed again, unless it has an adapter: traces of apertus with LoRA have 577,024 bytes on q_proj and k_proj
    and 572,928 on these and down_proj.
    """
    adapter = setup.adapter
    assert adapter is not None
    if recomputes(setup):
        return
    adapter = adapter._replace(kernels=())  # which run where all of their layers are targets
    setup = setup._replace(adapter=adapter)
    fewer = adapter.targets[:-1]
    feedforward = tuple(name for name in adapter.feedforward_targets if name in fewer)
    less = setup._replace(adapter=adapter._replace(targets=fewer, feedforward_targets=feedforward))
    if ALL_LINEAR in adapter.targets or not fewer or not is_adapter_reached(setup.model, less.adapter or adapter):
        return
    peaks = [replay(one, batch=min(batch, 2)).peak_bytes(batch) for one in (less, setup)]
    assert peaks == sorted(peaks)


@pytest.mark.sweep(6)
@settings(max_examples=9, deadline=None)
@given(trained_setups(), BATCHES)
def test_lifetimes_are_reference_counts_alone(setup: Setup, batch: int) -> None:
    """No cycle keeps a storage alive: with the collector off it finds nothing of ours afterwards."""
    replay(setup, batch=batch, direct=True)  # imports and caches of the first time
    gc.freeze()  # what is there already is not looked through again
    gc.disable()
    try:
        replay(setup, batch=batch, direct=True)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(("elements", "double"), [(4096 * 4096, False), (4096 * 11008, True), (65, False), (65, True)])
def test_the_bits_of_a_quantized_weight(elements: int, double: bool) -> None:
    """QLoRA (arXiv:2305.14314, section 3): 4 bits and 32 / 64 of one; 8 / 64 + 32 / (64 * 256) if double.

    The rest are codes, an offset and blocks that are not full.
    """
    bits = 4 + (8 / 64 + 32 / (64 * 256) if double else 32 / 64)
    full = elements * bits / 8
    assert full <= sum(stored_bytes_4bit(elements, nested=double)) <= full + 16 * 4 + double * (256 * 4 + 4) + 8


@pytest.mark.parametrize(("version", "copied"), [("0.41.1", 0), ("0.45.5", 0), ("0.46.0", 1), (None, 1)])
def test_a_release_copies_the_code_of_double_quantization_for_each_layer_or_not(
    version: str | None, copied: int
) -> None:
    """bitsandbytes 0.45.5 and 0.46.0, functional.py, quantize_blockwise: `code.to(A.device, copy=True)`."""
    found = stored_bytes_4bit(4096 * 4096, nested=True, bitsandbytes=version)
    assert found.count(256 * 4) == copied
    assert stored_bytes_4bit(4096, nested=False, bitsandbytes=version) == stored_bytes_4bit(4096, nested=False)


def test_layers_of_gptq_have_the_order_of_their_names_in_each_module() -> None:
    """optimum 2.3.0, gptq/quantizer.py, _replace_by_quant_layers: by `dir`, each put in as the last."""
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    made: list[Any] = [
        SimpleNamespace(name=f"{name}.lora_{half}.weight", part=(f"layers.{block}", "adapter"), path=((block, 1),))
        for block in (0, 1)
        for name in names
        for half in "AB"
    ]
    head: Any = SimpleNamespace(name="lm_head.weight", part=(), path=())
    found = [one.name.partition(".weight")[0] for one in in_their_order([head, *made], "adapter")]
    block = ("k_proj", "o_proj", "q_proj", "v_proj", "down_proj", "gate_proj", "up_proj")
    assert found == ["lm_head", *[f"{name}.lora_{half}" for name in block for half in "AB"] * 2]


@pytest.mark.parametrize(("inputs", "outputs"), [(4096, 4096), (4096, 14336), (1600, 6400)])
def test_the_bits_of_a_gptq_weight(inputs: int, outputs: int) -> None:
    """4 bits, and for each group of 128 inputs 16 + 4 bits of an output's scale and zero; 4 B of each input's group.

    Source: gptqmodel 7.7.0, nn_modules/qlinear/__init__.py, GPTQQuantLinear._register_gptq_buffers.
    """
    groups = -(-inputs // 128)
    shifts = 8 * 4
    assert sum(stored_bytes_gptq(inputs, outputs)) == outputs * (inputs * 4 + groups * 20) // 8 + 4 * inputs + shifts
