"""One forward pass per family, in the file of the family's name."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from vramplan.values.model import ModelShape

Obstacle = tuple[str, str]  # a key of a model and a message


@cache
def family(name: str) -> Any:
    """The class that builds and runs a family's forward pass: `FORWARD` of its module.

    It is imported when asked for, so that one family does not cost the start-up of the others.
    """
    return import_module(module_of(name)).FORWARD


def published(shape: ModelShape) -> str:
    """The family that Transformers has of a model, whatever program's code is replayed; that code where it has none."""
    name = shape.published_family
    return shape.family if name is None or find_spec(f"{__name__}.{name}") is None else name


def module_of(name: str) -> str:
    """The module of a family's forward pass: a file of this folder, or the module that the name is, of an engine."""
    return name if "." in name else f"vramplan.replay.models.{name}"


def _own(name: str, attribute: str, otherwise: Any) -> Any:
    """What a family says of itself, not of those that are built from it: each was traced on its own."""
    return vars(family(name)).get(attribute, otherwise)


def no_fused_attention(name: str) -> str | None:
    """Why the family's code cannot call `scaled_dot_product_attention`; None where it can."""
    reason: str | None = getattr(family(name), "no_fused_attention", None)
    return reason


def no_checkpointing(name: str) -> str | None:
    """Why the family's activations cannot be checkpointed; None where they can."""
    reason: str | None = getattr(family(name), "no_checkpointing", None)
    return reason


def no_flash_attention(name: str) -> str | None:
    """Why the family's code cannot call the flash kernels; None where it can."""
    reason: str | None = getattr(family(name), "no_flash_attention", None)
    return reason


def package_flash(name: str) -> str | None:
    """What lets the flash-attn package run where PyTorch's flash kernel cannot; None where nothing does."""
    reason: str | None = getattr(family(name), "package_flash", None)
    return reason


def flash_takes_windows(name: str) -> bool:
    """Whether the flash-attn package computes the family's windows itself: not where they are chunks."""
    return getattr(family(name), "chunked", False) is False


def no_eager_attention(name: str) -> str | None:
    """Why the family's code has no attention of its own; None where it has."""
    reason: str | None = getattr(family(name), "no_eager_attention", None)
    return reason


def only_kernel_of(shape: ModelShape) -> tuple[str, str] | None:
    """The one kernel that `scaled_dot_product_attention` can run as a model's code calls it, and why; None: any."""
    only = getattr(family(shape.family), "only_kernel", None)
    found: tuple[str, str] | None = None if only is None else only(shape)
    return found


def selective_strategies(name: str) -> tuple[str, ...]:
    """Of `selective` and `selective-op` those that the family was traced with: `selective`, else none."""
    words: tuple[str, ...] = getattr(family(name), "selective", ())
    return words


def is_sequence_first(name: str) -> bool:
    """Whether the family's hidden states are [S, B, H] instead of [B, S, H]: `sequence_first = True`."""
    return getattr(family(name), "sequence_first", False) is True


def head_losses(name: str) -> tuple[str, ...]:
    """The losses that the family's head can have instead of its own: `head_losses`, else none."""
    words: tuple[str, ...] = _own(name, "head_losses", ())
    return words


def no_head_losses(name: str) -> str | None:
    """Why no library puts another head on the family; None where one does, or where nobody said why."""
    reason: str | None = getattr(family(name), "no_head_losses", None)
    return reason


def own_loss(name: str) -> str | None:
    """The loss that the family's code computes whatever program runs it: `own_loss`; None: that of the program."""
    word: str | None = _own(name, "own_loss", None)
    return word


def is_own_code(name: str) -> bool:
    """Whether a family's code is that of a training program, which says itself what it can do."""
    return "." in name


def smooths(name: str) -> bool:
    """Whether labels can be smoothed: with the code of Transformers, and where a program's own says `smooths`."""
    return _own(name, "smooths", not is_own_code(name)) is True


def evaluates(name: str) -> bool:
    """Whether an evaluation can be replayed: the same, and `evaluates`."""
    return _own(name, "evaluates", not is_own_code(name)) is True


def generates(name: str) -> bool:
    """Whether the cache of a generation is counted: the same and `generates`, but for `no_generation`."""
    return no_generation(name) is None and _own(name, "generates", not is_own_code(name)) is True


def no_generation(name: str) -> str | None:
    """Why the cache of a family's code is not counted; None where it is, or where nobody said why."""
    reason: str | None = _own(name, "no_generation", None)
    return reason


def takes_padding(name: str) -> bool:
    """Whether the family's replay makes the mask of padded sequences, which is else counted beside: `takes_padding`."""
    return _own(name, "takes_padding", False) is True


def shards_by_blocks(name: str) -> bool:
    """Whether a training program's own code makes units of FSDP of the blocks: `shards_by_blocks = True`."""
    return _own(name, "shards_by_blocks", False) is True


def shards_every_selective(name: str) -> bool:
    """Whether every selective checkpoint of the family's code was traced under FSDP: `shards_every_selective`."""
    return _own(name, "shards_every_selective", False) is True


def is_untraced_loss(name: str, word: str) -> bool:
    """Whether nobody traced a loss with a training program's own code: `untraced_losses`."""
    return word in _own(name, "untraced_losses", ())


def is_untraced(name: str) -> bool:
    """Whether nobody traced a training program's own code of a family: `untraced = True`."""
    return getattr(family(name), "untraced", False) is True


def shares_by_itself(name: str) -> bool:
    """Whether a runtime's own code shares states in ways of its own, which its engine checks: `shares_by_itself`."""
    return _own(name, "shares_by_itself", False) is True


def reads_slice(name: str) -> bool:
    """Whether the family's code reads in `recipe.slice` what a device has of each layer: `reads_slice = True`."""
    return _own(name, "reads_slice", False) is True


def iteration_of(name: str, *, in_pipeline: bool) -> str | None:
    """What replays an iteration of a runtime's own code, `package.module:function`; None: as every other model.

    The family says so: `iteration`, and `iteration_of_stage` for a stage of a pipeline. The function is called with
    the setup and the tape, and gives the record.
    """
    address: str | None = _own(name, "iteration_of_stage" if in_pipeline else "iteration", None)
    return address


def calls_flash(name: str) -> bool:
    """Whether the family's code calls flash-attn itself, beside which it has no SDPA: `calls_flash = True`."""
    return _own(name, "calls_flash", False) is True


def has_own_core(name: str) -> bool:
    """Whether attention that is not flash is code of the engine's own, which keeps the scores: `own_core = True`."""
    return _own(name, "own_core", False) is True


def hands_groups_on(name: str) -> bool:
    """Whether fewer key-value heads than heads go to PyTorch's attention as they are where there is no mask."""
    return _own(name, "hands_groups_on", False) is True


def drops_tokens(name: str) -> bool:
    """Whether the family's experts take a bounded number of tokens, and drop the others: `drops_tokens = True`."""
    return _own(name, "drops_tokens", False) is True


def not_adapted(name: str) -> tuple[str, ...]:
    """Linear layers that no adapter sits on, as the family's code adapts their parts: `not_adapted`."""
    words: tuple[str, ...] = _own(name, "not_adapted", ())
    return words


def may_miss_adapter(name: str) -> bool:
    """Whether an adapter may sit where nothing that the loss depends on is trained: `may_miss_adapter = True`."""
    return _own(name, "may_miss_adapter", False) is True


def no_float8(name: str) -> str | None:
    """Why Float8Linear cannot stand for the family's linear layers; None where it can, or where nobody said why."""
    reason: str | None = _own(name, "no_float8", None)
    return reason


def looks_up_4bit(name: str) -> bool:
    """Whether 4-bit weights of a runtime's own code are torchao's: `looks_up_4bit = True`."""
    return _own(name, "looks_up_4bit", False) is True


def bounds_positions(name: str) -> bool:
    """Whether positions are a tensor of `max_positions`, though they are no weights: `bounded_positions = True`."""
    return _own(name, "bounded_positions", False) is True


def asks_no_inputs(name: str) -> bool:
    """Whether the family's own switch for checkpoints asks no embeddings for a gradient: `asks_no_inputs = True`."""
    return _own(name, "asks_no_inputs", False) is True


def has_conv1d(name: str) -> bool:
    """Whether the family's linear layers are Conv1D of Transformers, not nn.Linear: `conv1d = True`."""
    return _own(name, "conv1d", False) is True


def divides_scores_in_place(shape: ModelShape) -> bool:
    """Whether the family's eager attention divides scores in place: `divides_scores_in_place(shape)`, else no."""
    asked = vars(family(shape.family)).get("divides_scores_in_place")
    return asked is not None and bool(asked.__func__(shape))


def no_code_for(shape: ModelShape) -> Obstacle | None:
    """Which key of the model the family's code cannot compute, and why: `no_code_for(shape)`, else none."""
    asked = vars(family(shape.family)).get("no_code_for")
    found: Obstacle | None = None if asked is None else asked.__func__(shape)
    return found


def stands_for(name: str, shape: ModelShape) -> bool:
    """Whether a runtime's own code can have this shape: `stands_for(shape)` of its family, else any of its family."""
    fits = vars(family(name)).get("stands_for")
    return fits is None or bool(fits.__func__(shape))


def ladder_of(name: str) -> tuple[str, ...] | None:
    """The strategies of checkpointing that the family's code offers, in the order of extra compute; None: the usual."""
    words: tuple[str, ...] | None = _own(name, "ladder", None)
    return words


def compiles_blocks(name: str) -> bool:
    """Whether the family's own code compiles each block by itself, and its forward pass says what that keeps."""
    return _own(name, "compiles_blocks", False) is True


def keeps_last_unit(name: str) -> bool:
    """Whether FSDP keeps the last unit before the root whole from forward to backward, as the code that shards asks."""
    return _own(name, "keeps_last_unit", False) is True


def keeps_root(name: str) -> bool:
    """Whether FSDP keeps what is in no block whole from forward to backward, as the code that shards it leaves open.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _lazy_init, for `reshard_after_forward=None`.
    """
    return _own(name, "keeps_root", False) is True


def reads_head_outside(name: str, loss: str) -> bool:
    """Whether a loss outside of the model reads the head's weight, which FSDP then has to keep: `head_outside`."""
    return loss.partition("-")[0] in _own(name, "head_outside", ())


def is_only_compiled(name: str) -> bool:
    """Whether a runtime's own code is modelled under `torch.compile` alone: `only_compiled = True`."""
    return _own(name, "only_compiled", False) is True


def own_units(name: str) -> tuple[str, ...]:
    """Parts of the model around which the family's code calls `Sharding.within`, so that FSDP may wrap them."""
    parts: tuple[str, ...] = _own(name, "own_units", ())
    return parts


def steps_views(name: str) -> bool:
    """Whether FSDP1 gives the optimizer each weight of a flat parameter, as the runtime asks for: use_orig_params."""
    return _own(name, "steps_views", False) is True


def norm_with_head(name: str) -> bool:
    """Whether the family's code can have its last norm in the unit of the head."""
    return _own(name, "norm_with_head", False) is True


def prefetches_after(name: str) -> bool:
    """Whether FSDP gathers the next unit of backward when one is over, not before it: the runtime asks for that."""
    return _own(name, "prefetches_after", False) is True


def splits_of(name: str) -> tuple[str, ...]:
    """Of tensor, sequence_parallel, pipeline, context and expert the ways to split that the code models: `splits`."""
    ways: tuple[str, ...] = _own(name, "splits", ())
    return ways


def offloads(name: str) -> bool:
    """Whether a runtime's own code offloads activations on a stated basis: `offloads = True`."""
    return _own(name, "offloads", False) is True


def is_hosted(name: str) -> bool:
    """Whether what forward saves can live on the host: save_on_cpu around the code of Transformers; else `offloads`."""
    return not is_own_code(name) or offloads(name)


def drops_out(name: str) -> bool:
    """Whether the family's code has dropout at all: without `drops_out = False`."""
    return getattr(family(name), "drops_out", True) is not False


def takes_packing(name: str) -> bool:
    """Whether the family's replay makes the mask of packed sequences, which is else counted beside: `takes_packing`."""
    return _own(name, "takes_packing", False) is True


def masks_padding(shape: ModelShape, length: int) -> bool:
    """Whether the family's code makes the mask of padded sequences in the replay."""
    return takes_padding(shape.family)


def compiled_graphs(name: str) -> int | None:
    """Into how many graphs `torch.compile` cuts the family's forward pass with its loss; None: it is not modelled."""
    graphs: int | None = _own(name, "compiled_graphs", None)
    return graphs


def takes_samples_apart(name: str) -> bool:
    """Whether code of the family takes the samples of a micro-batch one after another: `takes_samples_apart = True`.

    Then each micro-batch has events of its own. A replay that is valid for several has the levels of all, and one event
    in place of many.
    """
    return getattr(family(name), "takes_samples_apart", False) is True


def kept_of_samples(name: str) -> tuple[int, ...]:
    """Bytes for each sample of tensors that a model keeps from one step to the next: `kept_of_samples`, else none."""
    sizes: tuple[int, ...] = getattr(family(name), "kept_of_samples", ())
    return sizes


def takes_one(name: str) -> bool:
    """Whether the family's code takes a micro-batch of 1 alone: `takes_one = True`."""
    return _own(name, "takes_one", False) is True


def returns_logits(name: str) -> bool:
    """Whether the family's model returns its logits beside the loss: without `returns_logits = False`."""
    return _own(name, "returns_logits", True) is True


def makes_gradients_in_backward(name: str) -> bool:
    """Whether backward makes the gradients: without `gradient_buffers = True`, which are there from the start."""
    return getattr(family(name), "gradient_buffers", False) is not True


def gives_views(name: str) -> bool:
    """Whether what a block of the family gives is a view of its result: `gives_views = True`."""
    return getattr(family(name), "gives_views", False) is True


def has_equal_blocks(name: str) -> bool:
    """Whether the blocks of the family differ in nothing but what they share: without `equal_blocks = False`."""
    return getattr(family(name), "equal_blocks", True) is not False


def block_kinds(shape: ModelShape) -> tuple[object, ...]:
    """The kind of each block: blocks of one kind hold the same shared tensors (`block_kind` of the family)."""
    kind = getattr(family(shape.family), "block_kind", None)
    return tuple(None if kind is None else kind(shape, i) for i in range(shape.layers))


def block_returns(name: str) -> int | None:
    """How many values a block of the original returns, the hidden state first; None: not known."""
    own: int | None = getattr(family(name), "block_returns", 2 if holds_outputs(name) else 1)
    return own


def block_lists(shape: ModelShape) -> tuple[str, ...]:
    """How the name of the list of blocks ends in the original, for each stack that has blocks.

    The family says so: `block_lists`, or `lists_of(shape)` where the stacks are as many as the shape says.
    """
    asked = vars(family(shape.family)).get("lists_of")
    names: tuple[str, ...] = getattr(family(shape.family), "block_lists", ("layers",))
    if asked is not None:
        names = asked.__func__(shape)
    return tuple(name for name, layers in zip(names, shape.stacks, strict=True) if layers)


def tells_parts(name: str) -> bool:
    """Whether modules inside of a block ask if it is checkpointed: `asks_for_checkpoints = True`."""
    return getattr(family(name), "asks_for_checkpoints", False) is True


def carried_between_blocks(name: str) -> tuple[tuple[int, int], ...]:
    """What the original hands from block to block beside the hidden state: (argument after it, value returned)."""
    own: tuple[tuple[int, int], ...] = getattr(family(name), "carried_between_blocks", ())
    return own


def holds_outputs(name: str) -> bool:
    """Whether the loop keeps all that a block returned until the next has returned: `holds_outputs = True`."""
    return getattr(family(name), "holds_outputs", False) is True


def blocks_are_alike(shape: ModelShape, sequence_length: int, attention: str) -> bool:
    """Whether all blocks of a model are made of the same modules, and compute the same.

    They do not where some have experts and others none, where some have no rotary positions or linear attention, where
    some of Qwen's have a window, and where fused attention has a mask only in those whose window the sequence reaches.
    """
    dense = () if shape.experts is None else shape.experts.dense_layers
    if not has_equal_blocks(shape.family) or len(dense) not in (0, shape.layers):
        return False
    if len(shape.unrotated_layers) not in (0, shape.layers):
        return False
    if shape.linear_attention is not None and len(shape.linear_attention.layers) not in (0, shape.layers):
        return False
    window = shape.sliding_window
    if window is None or (shape.sliding_window_start is None and (attention == "eager" or sequence_length < window)):
        return True
    return shape.sliding_window_pattern is None and not shape.sliding_window_start  # whatever the number of blocks


def masks_positions(name: str) -> bool:
    """Whether the family's code makes a mask of position ids, or can: without `masks_positions = False`."""
    return _own(name, "masks_positions", True) is True


def no_all_linear(name: str) -> str | None:
    """Why PEFT's word for every linear layer is not modelled with the family: `no_all_linear`; None where it is."""
    reason: str | None = _own(name, "no_all_linear", None)
    return reason


def takes_only_lora(name: str) -> bool:
    """Whether the family's adapters were traced with LoRA alone: `only_lora = True`."""
    return _own(name, "only_lora", False) is True


def keeps_fp32(name: str) -> bool:
    """Whether Transformers leaves layers in fp32 where it loads the rest in fp16: `keeps_fp32 = True`."""
    return _own(name, "keeps_fp32", False) is True


def is_batch_normalised(name: str) -> bool:
    """Whether the family is convolutions with batch normalisation between them: `batch_normalised = True`.

    Of a family that an engine alone replays, and a textbook counts, nothing says so.
    """
    if find_spec(module_of(name)) is None:
        return False
    return _own(name, "batch_normalised", False) is True


def has_tensor_plan(name: str) -> bool:
    """Whether the family has a plan for tensor parallelism, and layers of heads times the size of a head."""
    return _own(name, "has_tensor_plan", False) is True


def has_no_biases(shape: ModelShape) -> bool:
    """Whether no linear layer of the blocks has a bias: `without_biases = True`, and none that the shape asks for."""
    asked = shape.qkv_bias or shape.output_bias or shape.mlp_bias
    return not asked and _own(shape.family, "without_biases", False) is True


def adapted_experts(shape: ModelShape) -> dict[str, str]:
    """What PEFT's LoRA takes for tensors of experts and routers, by names of layers: `adapted_experts(shape)`."""
    asked = vars(family(published(shape))).get("adapted_experts")
    return {} if asked is None else dict(asked.__func__(shape))


def full_blocks(shape: ModelShape) -> int:
    """Blocks whose attention has no window: `full_blocks(shape)` of the family, else those of the shape's pattern."""
    if shape.sliding_window is None:
        return shape.layers
    asked = vars(family(shape.family)).get("full_blocks")
    if asked is not None:
        return int(asked.__func__(shape))
    return shape.layers // shape.sliding_window_pattern if shape.sliding_window_pattern else 0


def peaks_published(name: str) -> bool:
    """Whether the bands were measured on published peaks of the family, those of docs/measured.md."""
    return _own(name, "peaks_published", False) is True
