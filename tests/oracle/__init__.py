"""Traced truth: peaks of real PyTorch model code on fake CUDA tensors (torch 2.13.0, transformers 5.23.0).

`suite.json` holds well-known models, `random.json` random small configurations (odd head counts, grouped and single
key-value heads, short and long sequences, micro-batch 1, every precision and optimizer). No byte of them came from this
program.
"""
