"""Operators that Inductor fuses: results that a compiled step need not store.

Every other operator is a kernel of its own for the replay of a compiled step, whether it is one of cuBLAS or cuDNN, one
that a library brings (bitsandbytes, Triton, TransformerEngine) or one that nobody has looked into: what it reads and
gives is stored.

Source: torch/_inductor/lowering.py (`make_pointwise`, `make_reduction`, views) and decomposition.py; what is not
there is called as it is (`make_fallback`, `FallbackKernel`), as any operator of another library.
"""

from __future__ import annotations

ARITHMETIC = frozenset(
    (
        *("add", "add_", "sub", "rsub", "mul", "mul_", "div", "div_", "floor_divide", "neg", "abs", "pow", "sqrt"),
        *("rsqrt", "reciprocal", "exp", "expm1", "log", "sin", "cos", "lerp", "maximum", "minimum", "clamp", "clamp_"),
        *("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "where"),
        *("masked_fill", "tril", "triu", "to", "_to_copy", "float"),
    )
)
ACTIVATIONS = frozenset(
    (
        *("relu", "threshold_backward", "gelu", "gelu_backward", "silu", "silu_backward", "sigmoid"),
        *("sigmoid_backward", "tanh", "tanh_backward", "softplus", "softplus_backward", "log_sigmoid"),
        *("log_sigmoid_backward", "native_dropout", "native_dropout_backward"),
    )
)
REDUCTIONS = frozenset(
    (
        *("sum", "mean", "max", "amax", "any", "all", "cumsum", "norm", "linalg_vector_norm"),
        *("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
        *("native_batch_norm", "native_batch_norm_backward", "_softmax", "_safe_softmax", "_softmax_backward_data"),
        *("_log_softmax", "_log_softmax_backward_data", "nll_loss", "nll_loss_backward"),
    )
)
MOVEMENTS = frozenset(
    (
        *("view", "transpose", "permute", "unsqueeze", "expand", "flatten", "contiguous", "clone", "flip", "roll"),
        *("slice", "slice_backward", "select", "select_backward", "split", "split_with_sizes", "unbind", "cat"),
        *("stack", "repeat", "repeat_interleave", "gather", "constant_pad_nd", "constant_pad_nd_backward"),
        *("embedding_dense_backward", "arange", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"),
        *("full", "full_like", "scalar_tensor", "eye"),
    )
)
"""Views, and copies that a kernel reads through."""

FUSIBLE = ARITHMETIC | ACTIVATIONS | REDUCTIONS | MOVEMENTS
