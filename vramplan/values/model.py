"""The architecture of one network, as frozen values. Sizes are integer bytes."""

from __future__ import annotations

from math import ceil, isqrt

from vramplan.tuples import NamedTuple

DEFAULT_IMAGE_SIZE = 224  # docs/job-format.md, "Defaults", where the model has no size of its own
SHORTEST = 3  # tokens of the shortest sequence that every model takes


class Experts(NamedTuple):
    """The mixture of experts in the blocks of a model."""

    routed: int  # experts of a block among which tokens are spread; `count` in the job format
    active: int  # of them, for each token
    shared: int  # experts that every token passes
    intermediate_size: int  # of each routed expert
    shared_intermediate_size: int | None  # of all shared ones together
    normalized: bool  # whether the weights of a token's experts are divided by their sum
    dense_layers: tuple[int, ...]  # blocks without, which have a plain feed-forward layer instead or none, from 0
    groups: int | None = None  # DeepSeek: experts are chosen within so many groups of them,
    active_groups: int | None = None  # of which each token sees so many
    latent_size: int | None = None  # Nemotron 3 Super: what a token is projected to before them; None: it is not
    noisy: bool = False  # DBRX: what is routed is multiplied by noise first
    separate: bool = False  # each is a module of linear layers, as in Transformers before 5.0


class LatentAttention(NamedTuple):
    """Attention whose keys and values pass a narrow latent: the sizes of its parts, for each head but the ranks."""

    query_rank: int | None  # of the queries' own latent; None: they have none
    key_value_rank: int  # of the latent of keys and values
    plain_size: int  # elements of queries and keys without positions
    rotary_size: int  # and with; the keys' are shared by all heads
    value_size: int
    interleaved: bool  # rotary positions turn neighbours, not halves


class LinearAttention(NamedTuple):
    """Attention that is linear in the sequence, by a gated delta rule, in the place of that of some blocks."""

    key_heads: int
    value_heads: int  # a multiple of them
    key_size: int  # elements of each query and key
    value_size: int  # of each value
    kernel: int  # tokens that the convolution before it sees
    layers: tuple[int, ...]  # blocks that have it, from 0

    @property
    def keys(self) -> int:
        """Elements of all keys of a token."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Elements of all values of a token."""
        return self.value_heads * self.value_size

    @property
    def channels(self) -> int:
        """What the convolution runs over: queries, keys and values."""
        return 2 * self.keys + self.values


class StateSpace(NamedTuple):
    """State spaces of Mamba-2 or Mamba-1 in the place of the attention of some blocks, or beside it."""

    heads: int  # of Mamba-1 each channel is one
    head_size: int  # elements of each head
    state_size: int  # elements of the state of each element of a head
    groups: int  # of heads that write into their states and read from them alike
    kernel: int  # tokens that the convolution before it sees
    chunk: int  # tokens that are compared with each other
    layers: tuple[int, ...]  # blocks that have it, from 0
    feedforward_layers: tuple[int, ...] = ()  # Nemotron-H: blocks that are a feed-forward layer alone
    conv_bias: bool = True
    input_bias: bool = False  # of the projection into it
    output_bias: bool = False  # of the projection out of it
    norm: str = "gate-first"  # of the result, after the gate: gate-first | before it: norm-first | none
    step_rank: int | None = None  # Mamba-1: of the projection that says how long a step is; None: it is Mamba-2

    @property
    def values(self) -> int:
        """Elements of all heads of a token."""
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        """What the convolution runs over: the heads, and what writes into their states and reads from them.

        Of Mamba-1 both are made of its result.
        """
        if self.step_rank is not None:
            return self.values
        return self.values + 2 * self.groups * self.state_size


class ShortConvolution(NamedTuple):
    """Convolutions over a few tokens, between two gates, in the place of the attention of some blocks."""

    kernel: int  # tokens that each sees
    bias: bool  # of the convolution, and of the projections before and after it
    layers: tuple[int, ...]  # blocks that have it, from 0


class Waveform(NamedTuple):
    """Convolutions over the samples of a sound, one after another, and the one that tells the blocks where they are."""

    widths: tuple[int, ...]  # channels of each convolution
    kernels: tuple[int, ...]  # samples, or results of the one before, that each sees
    strides: tuple[int, ...]
    bias: bool  # of the convolutions
    norm: str  # group: of the channels of the first one; layer: of what each gives
    projection_norm: bool  # whether what they give is normalised before it is projected
    projection_dropout: float
    final_dropout: float  # before the head
    masks: bool  # whether frames are masked in training
    masked_share: float  # of the frames, to which one learned vector is written in training; 0: none is
    masked_length: int  # frames in a row
    least_masks: int  # rows of such frames in a sound
    place_kernel: int  # frames that the convolution for places sees
    place_groups: int

    def frames(self, samples: int) -> int:
        """What the convolutions make of so many samples; 0 or less where they are too few."""
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples

    def samples(self, frames: int) -> int:
        """The fewest samples that so many frames are made of."""
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            frames = (frames - 1) * stride + kernel
        return frames

    def masked(self, frames: int) -> int:
        """The most frames of a sound that are masked: rows of them that do not overlap, and rounded up.

        Source: transformers 5.23, models/wav2vec2/modeling_wav2vec2.py, _compute_mask_indices.
        """
        if not (self.masks and self.masked_share):
            return 0
        rows = max(ceil(self.masked_share * frames / self.masked_length), self.least_masks)
        return min(rows, frames // self.masked_length) * self.masked_length


class Alternating(NamedTuple):
    """Hidden states side by side, of which each block computes with the first and moves the others along."""

    states: int
    laurel_rank: int  # of the narrow layer beside each attention
    sparse_layers: int  # of the first so many blocks a feed-forward layer leaves most of its elements out


class UNet(NamedTuple):
    """What modded-nanogpt's models have beside a plain transformer, record by record (job format, `model.unet`)."""

    value_embeddings: int  # tables whose rows are added to the values of the first and of the last so many blocks
    mirrored: bool  # the last block takes the first table; else the first of the last so many blocks does
    embedding_rows: int  # of the tables; the head may be padded to more
    fp32_rotary: bool  # queries and keys are turned in fp32, by buffers of all positions; else by a cache in 16 bits
    attention_free: tuple[int, ...] = ()  # blocks without attention, from 0

    def table_of(self, block: int, layers: int) -> int | None:
        """The table whose rows are added to the values of a block; None: it has none."""
        count = self.value_embeddings
        if block < count:
            return block
        if block < layers - count:
            return None
        return layers - 1 - block if self.mirrored else block - (layers - count)


class ModelShape(NamedTuple):
    """The architecture of one network: what decides the shapes of its tensors."""

    name: str
    family: str  # which forward pass: a file of vramplan/models
    transformers_model_type: str  # gpt2, llama, mistral, qwen2, bert, ...
    task: str  # lm | mlm | cls | seq2seq | image | contrastive: which head and loss
    layers: int
    hidden_size: int
    attention_heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int
    vocabulary_size: int
    max_positions: int
    tied_embeddings: bool
    positions: str  # learned | sinusoidal | rope | alibi | relative | none
    activation: str  # gelu_new | gelu | gelu_pytorch_tanh | relu | silu | quick_gelu
    gated_mlp: bool
    qkv_bias: bool  # bias of the query, key and value projections
    output_bias: bool  # bias of the attention's output projection
    mlp_bias: bool
    embedding_dropout: float
    attention_dropout: float
    hidden_dropout: float  # residual dropout
    token_types: int = 0  # BERT's segment embeddings
    classes: int = 2  # classification only
    sliding_window: int | None = None  # Mistral: no effect while longer than the sequence
    declared_parameters: int | None = None
    qk_norm: bool = False  # Qwen3: queries and keys are normalised, head by head
    position_span: int | None = None  # DeBERTa: relative positions to each side that are told apart
    mean_pooling: bool = False  # ModernBERT: a class is told from the mean of all tokens, not from the first
    partial_rotary_factor: float = 1.0  # GPT-NeoX, Phi: the share of each head that rotary positions turn
    parallel_residual: bool = False  # GPT-NeoX: attention and feed-forward layer beside each other
    pre_norm: bool = True  # OPT-350m normalises after each residual sum instead of before attention and MLP
    embedding_size: int | None = None  # OPT-350m: width of the token embedding, projected to the hidden size
    attention_softcap: bool = False  # Gemma 2: a tanh bounds the attention scores
    logit_softcap: bool = False  # Gemma 2: a tanh bounds the logits
    sliding_window_pattern: int | None = None  # Gemma 3: every so many blocks one has no window
    image_size: int | None = None  # pixels of an edge, of the images that it was made for
    patch_size: int | None = None  # pixels of an edge of a patch; None: no vision transformer in it
    channels: int | None = None  # of an image; None: it takes none
    depths: tuple[int, ...] | None = None  # ResNet, ConvNeXt: layers of each stage
    widths: tuple[int, ...] | None = None  # ResNet, ConvNeXt: channels of each stage
    bottleneck: bool = False  # ResNet-50 and above: layers of three convolutions, the middle one narrow
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False
    drops_paths: bool = False  # ConvNeXt, Swin: what a block adds is left out at random, of all blocks but the first
    vision_layers: int | None = None  # CLIP, LLaVA: blocks of a vision encoder beside the text's; None: there is none
    vision_hidden_size: int | None = None
    vision_attention_heads: int | None = None
    vision_intermediate_size: int | None = None
    vision_activation: str | None = None
    vision_attention_dropout: float = 0.0
    vision_qkv_bias: bool | None = None  # InternVL: bias of its query, key and value projections
    vision_merge: int | None = None  # Qwen2-VL, Gemma 3, Idefics3: edge of the squares of patches that make a token
    vision_frames: int | None = None  # Qwen2-VL: images of a film that a patch takes in; one image is repeated
    vision_window: int | None = None  # Qwen2.5-VL: pixels of an edge of the windows that most vision blocks look at
    vision_full_layers: tuple[int, ...] = ()  # Qwen2.5-VL: vision blocks that look at the whole image, from 0
    vision_positions: int | None = None  # Qwen3-VL: learned positions, interpolated to the patches of an image
    vision_deepstack_layers: tuple[int, ...] = ()  # Qwen3-VL: vision blocks whose results the first text blocks get too
    vision_rotary: bool = False  # Pixtral: patches of whole images of any size, told apart by rotary positions alone
    vision_global_layers: int | None = None  # Llama 3.2 Vision: gated blocks of a second encoder, after the first
    vision_tapped_layers: tuple[int, ...] = ()  # of it: vision blocks whose results the text gets beside the last one
    vision_newline: bool = False  # LLaVA-NeXT: a learned token after each row of patches of the tiles beside the first
    vision_tiles: int | None = None  # Llama 3.2 Vision, InternVL, Idefics3: parts of an image of `image_size` each
    cross_attention_layers: tuple[int, ...] = ()  # of it: text blocks that look at the images, not at the text
    scaled_queries: bool = False  # Ministral 3: queries are scaled by their places
    text_type: str | None = (
        None  # PaliGemma, InternVL, LLaVA-NeXT: the model type of the text, where it may be one of several
    )
    projection_size: int | None = None  # CLIP: elements of the vectors that images and texts are compared by
    decoder_layers: int | None = None  # encoder-decoder models: `layers` is the encoder's
    activation_dropout: float = 0.0  # BART: inside the feed-forward layer
    mel_bins: int | None = None  # Whisper: features of each frame of a sound; None: it takes none
    audio_positions: int | None = None  # of the encoder, each of which stands for two frames

    @property
    def stacks(self) -> tuple[int, ...]:
        """Blocks of each stack, in the order in which forward runs them; of most models it is one stack."""
        if self.decoder_layers is not None:
            return (self.layers, self.decoder_layers)
        if self.vision_layers is None or self.stored_blocks:
            return (self.layers,)
        if not self.takes_text:
            return (self.vision_layers,)
        # where no patches are merged, the block after the one that is used is apart: nobody asks for its result
        if self.image_tokens and self.vision_merge is None:
            return (self.vision_layers - 1, 1, self.layers)
        if self.vision_deepstack_layers:  # between the blocks something else runs
            return self._between_deepstack(self.vision_layers)
        return (self.vision_layers, self.layers)

    def _between_deepstack(self, vision_layers: int) -> tuple[int, ...]:
        ends = [block + 1 for block in self.vision_deepstack_layers]
        images = [end - start for start, end in zip([0, *ends], [*ends, vision_layers], strict=True)]
        return (*images, *[1] * len(ends), self.layers - len(ends))

    @property
    def stored_blocks(self) -> tuple[int, ...]:
        """Blocks of each stack that no checkpoint can be around; they are numbered after those that can have some."""
        if self.vision_layers is None or self.vision_global_layers is None:
            return ()
        return (self.vision_layers, self.vision_global_layers)

    @property
    def vision_head_size(self) -> int:
        """Elements of a head of the vision encoder; 0 without one."""
        return (self.vision_hidden_size or 0) // (self.vision_attention_heads or 1)

    @property
    def image_tokens(self) -> int:
        """Tokens of a text that stand for an image, one for each patch of its tiles; 0 where it is not among it."""
        if self.task != "lm" or self.image_size is None or self.patch_size is None or self.cross_attention_layers:
            return 0
        tiles = self.vision_tiles or 1
        rows = isqrt(tiles - 1) * isqrt(self.image_patches) if self.vision_newline else 0
        return self.image_patches // (self.vision_merge or 1) ** 2 * tiles + rows

    @property
    def image_patches(self) -> int:
        """Patches of an image; where squares of them make tokens, the image is brought to a whole number of squares.

        Pixtral's processor fills the last square up, that of Qwen2-VL takes the nearest number of squares.
        Source: transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize;
        models/pixtral/image_processing_pixtral.py, _num_image_tokens.
        """
        if self.image_size is None or self.patch_size is None:
            return 0
        merge = self.vision_merge
        if merge is None or not self.any_image_size:
            return int((self.image_size // self.patch_size) ** 2)
        square = self.patch_size * merge
        squares = -(-self.image_size // square) if self.vision_rotary else max(1, round(self.image_size / square))
        return (squares * merge) ** 2

    @property
    def patch(self) -> tuple[int, ...]:
        """The sizes of a patch that a processor has cut: channels, frames, height, width."""
        assert self.channels is not None
        assert self.patch_size is not None
        return (self.channels, self.vision_frames or 1, self.patch_size, self.patch_size)

    @property
    def any_image_size(self) -> bool:
        """Whether images keep about their size, whatever it is, and with it their number of tokens."""
        return self.vision_frames is not None or self.vision_rotary

    @property
    def code(self) -> str:
        """What messages call the code of the model: its family, and whose it is if it is not that of Transformers."""
        return self.family if self.engine is None else f"{self.published_family} under {self.engine}"

    @property
    def blocks(self) -> int:
        """All blocks, numbered through the stacks."""
        return sum(self.stacks)

    @property
    def numbered_blocks(self) -> int:
        """The same, and those that no checkpoint can be around."""
        return self.blocks + sum(self.stored_blocks)

    def with_layers(self, layers: int) -> ModelShape:
        """The same with another number of blocks. What all blocks are, all of those are too; what some are, as far."""

        def some(blocks: tuple[int, ...]) -> tuple[int, ...]:
            if len(blocks) == self.layers:
                return tuple(range(layers))
            return tuple(one for one in blocks if one < layers)

        experts, linear, space = self.experts, self.linear_attention, self.state_space
        convolution = self.short_convolution
        return self._replace(
            layers=layers,
            experts=None if experts is None else experts._replace(dense_layers=some(experts.dense_layers)),
            linear_attention=None if linear is None else linear._replace(layers=some(linear.layers)),
            state_space=None
            if space is None
            else space._replace(layers=some(space.layers), feedforward_layers=some(space.feedforward_layers)),
            short_convolution=None if convolution is None else convolution._replace(layers=some(convolution.layers)),
            unrotated_layers=some(self.unrotated_layers),
            cross_attention_layers=some(self.cross_attention_layers),
        )

    def keys_of(self, *, full: bool) -> int:
        """Elements of the keys of a token, in blocks without a window if `full`, and in those with one."""
        if not full:
            return self.key_value_heads * self.head_size
        return (self.full_key_value_heads or self.key_value_heads) * (self.full_head_size or self.head_size)

    @property
    def largest_head_size(self) -> int:
        """Elements of the largest heads of attention."""
        return max(self.head_size, self.full_head_size or 0)

    @property
    def takes_images(self) -> bool:
        """Whether a sample has an image."""
        return self.channels is not None

    @property
    def takes_audio(self) -> bool:
        """Whether a sample has a sound, and its text is what the model says of it."""
        return self.mel_bins is not None or self.waveform is not None

    @property
    def takes_text(self) -> bool:
        """Whether a sample has tokens, and so a sequence length."""
        return self.task != "image" and self.waveform is None

    @property
    def shortest(self) -> int:
        """The fewest tokens, or samples of a sound, that every part of the model can run over."""
        return self.image_tokens + SHORTEST if self.waveform is None else self.waveform.samples(SHORTEST)

    def with_dropout(self, share: float) -> ModelShape:
        """The same with one share of dropout beside those of the hidden states, wherever its code has some."""
        if self.waveform is None:
            return self
        return self._replace(waveform=self.waveform._replace(projection_dropout=share, final_dropout=share))

    experts: Experts | None = None  # mixtures of experts
    latent_attention: LatentAttention | None = None  # DeepSeek
    linear_attention: LinearAttention | None = None  # Qwen3-Next, Qwen3.5
    state_space: StateSpace | None = None  # Granite 4, Nemotron-H, Falcon-H1, Bamba, Jamba
    short_convolution: ShortConvolution | None = None  # LFM2
    waveform: Waveform | None = None  # Wav2Vec2, HuBERT
    sliding_window_start: int | None = None  # Qwen2, Qwen3, ModernBERT: the first block with a window
    new_decoder_architecture: bool = False  # Falcon 40B, 180B, 11B: each group's queries, key and value side by side
    clipped_qkv: bool = False  # OLMo 1, DBRX: queries, keys and values are clipped
    scaled_embeddings: bool = False  # AFMoE: embeddings are multiplied by a number, and kept as they were
    unrotated_layers: tuple[int, ...] = ()  # SmolLM3: blocks without rotary positions, from 0
    rope_scaling: str | None = None  # dynamic | longrope; the other kinds are made of the same tensors as none
    parallel_norms: int | None = None  # Falcon: layer norms before attention and MLP that run beside each other
    full_head_size: int | None = None  # Gemma 4: of the blocks without a window; None: as in those with one
    full_key_value_heads: int | None = None  # the same
    keys_as_values: bool = False  # Gemma 4: blocks without a window have no projection of values, but normalised keys
    layer_input_size: int | None = None  # Gemma 4: elements that each block gets beside the hidden state
    layer_input_vocabulary_size: int | None = None  # of their table
    key_value_sharing_layers: int = 0  # Gemma 4: the last so many blocks take keys and values of blocks before them
    wide_sharing_layers: bool = False  # and have a feed-forward layer twice as wide
    alternating: Alternating | None = None  # Gemma 3n
    unet: UNet | None = None  # modded-nanogpt
    published_family: str | None = None  # where a runtime's own code replaced the family: what it was
    engine: str | None = None  # whose own code that is; None: the code of Transformers
    unknown_type: str | None = None  # `model_type` of a config.json that is not modelled, whose place this shape takes
    recipe_global_batch_size: int | None = None  # of the published training; None: unknown
    dtype: str | None = None  # element type of the published checkpoint: fp32 | fp16 | bf16; None: unknown


class OldCode(NamedTuple):
    """What older releases of Transformers, or of LitGPT, do in models that are built like Llama, and today's not."""

    repeats_keys: bool = False  # and values for their query heads, before every fused kernel
    copies_heads: bool = False  # queries, keys and values are made contiguous before it
    shifts_logits: bool = False  # the loss copies the logits of all tokens but the last, and pads no labels
    casts_logits: bool = False  # forward returns its logits in fp32
    one_table: bool = False  # of inverse frequencies, of which today's keep the original too
    one_mask: bool = False  # a causal mask is one for all sequences of a batch
    own_rotary: bool = False  # each attention makes its cosines and sines, in the type of its values
    quantizes_own_layers: bool = False  # bitsandbytes is given classes made of nn.Linear too
    half_norms: bool = False  # of LitGPT: a norm multiplies by its weight in the type of its input
    buffered_places: bool = False  # of LitGPT: the places of LoRA's parts are those of a buffer, and no copy
    mixed_projections: bool = False  # of LitGPT: queries, keys and values of a group of heads lie beside each other

    def without_sdpa(self) -> OldCode:
        """The same where the flash-attn package is called, which takes keys and values as they are."""
        return self._replace(repeats_keys=False, copies_heads=False)


NEWEST = OldCode()
