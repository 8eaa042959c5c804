"""What a family's code can run: attention kernels, checkpoints, losses, adapters, masks, evaluations."""

from __future__ import annotations

from vramplan.engines import imported
from vramplan.replay.models import family, is_own_code, own, published
from vramplan.values.model import ModelShape


def no_fused_attention(name: str) -> str | None:
    """Why the family's code cannot call `scaled_dot_product_attention`; None where it can."""
    reason: str | None = getattr(family(name), "no_fused_attention", None)
    return reason


def scores_text(shape: ModelShape) -> bool:
    """Whether the text of a model with images makes scores whatever attention the images have: `scores_text(shape)`."""
    asked = own(shape.family, "scores_text", None)
    return asked is not None and asked.__func__(shape)


def marks_images(name: str) -> bool:
    """Whether the processor gives `token_type_ids`, which say what is of an image: `marks_images = True`."""
    return getattr(family(name), "marks_images", False) is True


def named_units(name: str) -> str | None:
    """What Transformers names as units of FSDP in the place of the family's blocks: `named_units`; None: the blocks.

    Source: transformers 5.23, models/*/modeling_*.py, _no_split_modules; accelerate 1.15, utils/fsdp_utils.py,
    fsdp2_prepare_auto_wrap_policy.
    """
    said: str | None = getattr(family(name), "named_units", None)
    return said


def no_image(shape: ModelShape, image_size: int) -> str | None:
    """Why the family's code cannot take images of this size: `no_image(shape, image_size)`; None where it can."""
    asked = own(shape.family, "no_image", None)
    return None if asked is None else asked.__func__(shape, image_size)


def fills_images(name: str) -> bool:
    """Whether the processor fills images up to as many tiles, and gives a mask of their pixels: `fills_images`."""
    return getattr(family(name), "fills_images", False) is True


def no_checkpointing(name: str) -> str | None:
    """Why the family's activations cannot be checkpointed; None where they can."""
    reason: str | None = getattr(family(name), "no_checkpointing", None)
    return reason


def has_switch(name: str) -> bool:
    """Whether the family's class can turn its checkpoints on: without `has_switch = False`, which leaves it to code."""
    return getattr(family(name), "has_switch", True) is not False


def no_reentrant(name: str) -> str | None:
    """Why checkpoints of the family's blocks cannot be reentrant; None where they can, or where nobody said why."""
    reason: str | None = own(name, "no_reentrant", None)
    return reason


def reads_first_stack(name: str) -> bool:
    """Whether each block of the second stack reads what the first one gave: without `reads_first_stack` it does not."""
    return own(name, "reads_first_stack", False) is True


def no_flat_parameters(name: str) -> str | None:
    """Why FSDP1 is not answered for the family; None where it is, or where nobody said why."""
    reason: str | None = own(name, "no_flat_parameters", None)
    return reason


def read_weights(name: str) -> tuple[str, ...]:
    """Layers of whose weights the family's code makes products by itself, so that an adapter over them never runs."""
    found: tuple[str, ...] = own(name, "read_weights", ())
    return found


def no_flat_training(shape: ModelShape) -> str | None:
    """Why FSDP1 cannot train the family's own weights; None where it can. Beneath an adapter none of them is.

    It may depend on the shape.
    """
    asked = own(shape.family, "no_flat_training", None)
    reason: str | None = asked(shape) if callable(asked) else asked
    return reason


def no_int8(shape: ModelShape) -> str | None:
    """Why the family's layers do not run in 8 bits; None where they do. It may depend on the shape.

    Source: bitsandbytes 0.50.2, backends/cuda/ops.py, _int8_linear_matmul_impl; transformers 5.23, models/mllama/
    modeling_mllama.py, MllamaModel.forward (multi_modal_projector).
    """
    asked = own(shape.family, "no_int8", None)
    reason: str | None = asked(shape) if callable(asked) else asked
    return reason


def no_flat_policy(name: str) -> str | None:
    """Why FSDP1 is not answered for the family where it casts what it gathers; None as above."""
    reason: str | None = own(name, "no_flat_policy", None)
    return reason


def separates_experts(name: str) -> bool:
    """Whether Transformers before 5.0 had the family's experts as modules, and that code is modelled."""
    return own(name, "separates_experts", False) is True


def loops_over_experts(name: str) -> bool:
    """Whether the family's experts run one after another though their weights are stacked: `loops_over_experts`."""
    return own(name, "loops_over_experts", False) is True


def knows_old_code(name: str) -> bool:
    """Whether attention and loss of the family are traced with older releases of Transformers."""
    return own(name, "knows_old_code", False) is True


def own_linear(name: str) -> str | None:
    """The class made of nn.Linear that the family's linear layers are, without the head; None where they are that."""
    found: str | None = own(name, "own_linear", None)
    return found


def repeats_keys_itself(model: ModelShape) -> bool:
    """Whether the attention of a model type in Transformers 4 repeated keys and values before every kernel."""
    return model.transformers_model_type in own(model.family, "with_old_attention", ())


def no_flash_attention(name: str) -> str | None:
    """Why the family's code cannot call the flash kernels; None where it can."""
    reason: str | None = getattr(family(name), "no_flash_attention", None)
    return reason


def package_flash(name: str) -> str | None:
    """What lets the flash-attn package run where PyTorch's flash kernel cannot; None where nothing does."""
    reason: str | None = getattr(family(name), "package_flash", None)
    return reason


SOFTCAPPED = (
    "the flash-attn package bounds scores itself since 2.6 (softcap), and takes windows as an argument; composed, and "
    "never traced"
)


def of_package(model: ModelShape) -> str | None:
    """Why flash means the flash-attn package for a model: what PyTorch's kernel has no argument for."""
    if model.latent_attention is not None and model.latent_attention.value_size == model.head_size:
        return None
    return SOFTCAPPED if model.attention_softcap else package_flash(model.family)


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


def head_losses(name: str) -> tuple[str, ...]:
    """The losses that the family's head can have instead of its own: `head_losses`, else none."""
    words: tuple[str, ...] = own(name, "head_losses", ())
    return words


def no_head_losses(name: str) -> str | None:
    """Why no library puts another head on the family; None where one does, or where nobody said why."""
    reason: str | None = getattr(family(name), "no_head_losses", None)
    return reason


def own_loss(name: str) -> str | None:
    """The loss that the family's code computes whatever program runs it: `own_loss`; None: that of the program."""
    word: str | None = own(name, "own_loss", None)
    return word


def smooths(name: str) -> bool:
    """Whether labels can be smoothed: with the code of Transformers, and where a program's own says `smooths`."""
    return own(name, "smooths", not is_own_code(name)) is True


def evaluates(name: str) -> bool:
    """Whether an evaluation can be replayed: the same, and `evaluates`."""
    return own(name, "evaluates", not is_own_code(name)) is True


def generates(name: str) -> bool:
    """Whether the cache of a generation is counted: the same and `generates`, but for `no_generation`."""
    return no_generation(name) is None and own(name, "generates", not is_own_code(name)) is True


def no_generation(name: str) -> str | None:
    """Why the cache of a family's code is not counted; None where it is, or where nobody said why."""
    reason: str | None = own(name, "no_generation", None)
    return reason


def takes_padding(name: str) -> bool:
    """Whether the family's replay makes the mask of padded sequences, which is else counted beside: `takes_padding`."""
    return own(name, "takes_padding", False) is True


def is_untraced_loss(name: str, word: str) -> bool:
    """Whether nobody traced a loss with a training program's own code: `untraced_losses`."""
    return word in own(name, "untraced_losses", ())


def untraced_parts(model: ModelShape) -> tuple[str, ...]:
    """Keys of a model that nobody traced a training program's own code with, of those that it has: `untraced_parts`."""
    names: tuple[str, ...] = own(model.family, "untraced_parts", ())
    return tuple(one for one in names if getattr(model, one))


def is_untraced_adapter(name: str) -> bool:
    """Whether nobody traced an adapter with a training program's own code: `untraced_adapters = True`."""
    return own(name, "untraced_adapters", False) is True


def calls_flash(name: str) -> bool:
    """Whether the family's code calls flash-attn itself, beside which it has no SDPA: `calls_flash = True`."""
    return own(name, "calls_flash", False) is True


def not_adapted(name: str) -> tuple[str, ...]:
    """Linear layers that no adapter sits on, as the family's code adapts their parts: `not_adapted`."""
    words: tuple[str, ...] = own(name, "not_adapted", ())
    return words


def may_miss_adapter(name: str) -> bool:
    """Whether an adapter may sit where nothing that the loss depends on is trained: `may_miss_adapter = True`."""
    return own(name, "may_miss_adapter", False) is True


def no_float8(name: str) -> str | None:
    """Why Float8Linear cannot stand for the family's linear layers; None where it can, or where nobody said why."""
    reason: str | None = own(name, "no_float8", None)
    return reason


def no_fake_quantization(name: str) -> str | None:
    """Why no layers that round can stand for the family's linear layers; None where they can."""
    reason: str | None = own(name, "no_fake_quantization", None)
    return reason


def no_rounded_tables(name: str) -> str | None:
    """The same of its tables of embeddings."""
    reason: str | None = own(name, "no_rounded_tables", None)
    return reason


def looks_up_4bit(name: str) -> bool:
    """Whether 4-bit weights of a runtime's own code are torchao's: `looks_up_4bit = True`."""
    return own(name, "looks_up_4bit", False) is True


def bounds_positions(name: str) -> bool:
    """Whether positions are a tensor of `max_positions`, though they are no weights: `bounded_positions = True`."""
    return own(name, "bounded_positions", False) is True


def has_conv1d(name: str) -> bool:
    """Whether the family's linear layers are Conv1D of Transformers, not nn.Linear: `conv1d = True`."""
    return own(name, "conv1d", False) is True


def divides_scores_in_place(shape: ModelShape) -> bool:
    """Whether the family's eager attention divides scores in place: `divides_scores_in_place(shape)`, else no."""
    asked = vars(family(shape.family)).get("divides_scores_in_place")
    return asked is not None and bool(asked.__func__(shape))


def offloads(name: str) -> bool:
    """Whether a runtime's own code offloads activations on a stated basis: `offloads = True`."""
    return own(name, "offloads", False) is True


def classifies_itself(name: str) -> bool:
    """Whether the family's classifier is more than one projection: its code says `classify` what it is."""
    return own(name, "classify", None) is not None


def drops_out(name: str) -> bool:
    """Whether the family's code has dropout at all: without `drops_out = False`."""
    return getattr(family(name), "drops_out", True) is not False


def freezes_parts(name: str) -> bool:
    """Whether a program that trains adapters also freezes parts of its own code of a family: `freezes_parts = True`."""
    return getattr(family(name), "freezes_parts", False) is True


def ignores_windows(name: str) -> bool:
    """Whether a program's own code computes a sliding window as attention to everything: `ignores_windows = True`."""
    return own(name, "ignores_windows", False) is True


def takes_packing(name: str) -> bool:
    """Whether the family's replay makes the mask of packed sequences, which is else counted beside: `takes_packing`."""
    return own(name, "takes_packing", False) is True


def adds_bias(name: str) -> bool:
    """Whether what the family's attention adds to its scores is no mask of images but a bias of its own, which plain
    operators take as well: `adds_bias = True`."""
    return own(name, "adds_bias", False) is True


def reads_any_mask(name: str) -> bool:
    """Whether the family's blocks look at a mask of padding that has none, too: `reads_any_mask = True`."""
    return own(name, "reads_any_mask", False) is True


def takes_virtual_tokens(name: str) -> bool:
    """Whether the family's code asks who puts virtual tokens before those of a text: `takes_virtual_tokens`."""
    return own(name, "takes_virtual_tokens", False) is True


def takes_prefix(name: str) -> bool:
    """Whether the family's attention takes keys and values that stand before its own: `takes_prefix`."""
    return own(name, "takes_prefix", False) is True


def drops_given_cache(shape: ModelShape) -> bool:
    """Whether a model type returns a cache only if it is asked for one, also where it was given one.

    Source: transformers 5.23, models/*/modeling_*.py: `past_key_values if use_cache else None`.
    """
    return shape.transformers_model_type in own(shape.family, "dropping_caches", ())


def masks_padding(shape: ModelShape, length: int) -> bool:
    """Whether the family's code makes the mask of padded sequences in the replay."""
    return takes_padding(shape.family)


def masks_positions(name: str) -> bool:
    """Whether the family's code makes a mask of position ids, or can: without `masks_positions = False`."""
    return own(name, "masks_positions", True) is True


def no_all_linear(model: ModelShape, kind: str) -> str | None:
    """Why PEFT's word for every linear layer is not modelled with the family: `no_all_linear`; None where it is.

    With `all_linear_beyond_lora` adapters that are no kin of LoRA to PEFT take it all the same, and so does a model
    without the state spaces that the family has in some blocks. `no_all_linear_classifier`: why PEFT refuses it with a
    classification head.
    """
    name = published(model)
    if model.task == "cls" and own(name, "no_all_linear_classifier", None):
        return str(own(name, "no_all_linear_classifier", None))
    kinds = imported("vramplan.values.adapter_kinds:KINDS")  # of which a job without an adapter knows nothing
    beyond = own(name, "all_linear_beyond_lora", False) and kinds[kind].beyond_lora
    if beyond or (model.state_space is not None and not model.state_space.layers):
        return None
    reason: str | None = own(name, "no_all_linear", None)
    return reason


def takes_only_lora(name: str) -> bool:
    """Whether the family's adapters were traced with LoRA alone: `only_lora = True`."""
    return own(name, "only_lora", False) is True


def crops_to(name: str) -> int | None:
    """Pixels of an edge of the images that the family's processor gives, where its code takes any size: `crops_to`.

    None where images have the size that the model was made for, or any that the family's other rules allow.
    """
    found: int | None = own(name, "crops_to", None)
    return found


def keeps_fp32(name: str) -> bool:
    """Whether Transformers leaves layers in fp32 where it loads the rest in fp16: `keeps_fp32 = True`."""
    return own(name, "keeps_fp32", False) is True


def left_unquantized(name: str) -> tuple[str, ...]:
    """Linear layers that quantization passes over, as the family's code needs their weights: `left_unquantized`."""
    words: tuple[str, ...] = own(name, "left_unquantized", ())
    return words


def no_quantization(shape: ModelShape) -> str | None:
    """Why a step with quantized weights ends in an error: `no_quantization(shape)`; None where it does not."""
    asked = vars(family(published(shape))).get("no_quantization")
    return None if asked is None else asked.__func__(shape)


def adapted_experts(shape: ModelShape) -> dict[str, str]:
    """What PEFT's LoRA takes for tensors of experts and routers, by names of layers: `adapted_experts(shape)`."""
    asked = vars(family(published(shape))).get("adapted_experts")
    return {} if asked is None else dict(asked.__func__(shape))


def is_hosted(name: str) -> bool:
    """Whether what forward saves can live on the host: save_on_cpu around the code of Transformers; else `offloads`."""
    return not is_own_code(name) or offloads(name)
