"""Operator rules: what each operator of PyTorch produces, saves for backward, and allocates there.

One function per operator; nothing else in the program knows these numbers. Letters: B micro-batch, S sequence,
H hidden size, V vocabulary, a heads, d head size; "new" is one allocation. Unless said otherwise a rule was read off
`tools/autograd/derivatives.yaml` of PyTorch 2.13 and the kernel it names, and is checked byte by byte against traces of
the real model code (tests/oracle). Composite functions of model libraries (gelu_new, RMSNorm, rotary embeddings, eager
attention) are written where the models are, from these operators.

Autocast casts are the lists of `aten/src/ATen/autocast_mode.h`: matrix products and attention run in the autocast
dtype, normalisation, softmax, pow and losses in fp32, everything else promotes.
"""
