"""Says before a training run starts whether it fits in GPU memory, what fills it, and how to run it."""

__version__ = "0.1.0"
