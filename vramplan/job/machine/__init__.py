"""Where a job runs: its GPU, what is free on it, its software, and the caching allocator."""
