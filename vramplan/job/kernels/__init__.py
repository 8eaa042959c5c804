"""Which kernels a job runs: attention, fused layers, compiled graphs, fp8."""
