"""PyTorch's caching allocator, simulated: what it reserves of the device for a run, and where it fails."""
