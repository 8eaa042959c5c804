"""The closed forms of papers and courses: named cross-checks, none of them a prediction.

Each function names its source. "As texts quote it" marks what is printed in courses and blog posts without a derivation
or without one paper to point to. Sizes are bytes, a GB is 1e9 bytes, and P, L, H, S, B, k and D are parameters, layers,
hidden size, sequence length, micro-batch, accumulation steps and data-parallel size. Demand rounds up.
"""
