"""How a job steps its weights: the optimizer, its kernels, master copies, gradients that are zeroed."""
