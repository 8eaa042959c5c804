"""What a job's devices share, split and keep on the host."""
