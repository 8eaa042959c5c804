"""Where checkpoints lie: placed by real sizes, so that the least is computed again."""
