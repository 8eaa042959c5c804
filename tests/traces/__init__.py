"""Real models of Transformers, traced without data; skipped where PyTorch and Transformers are not installed."""
