"""What the commands do. `vramplan.cli.named` imports a module of these when its command runs; nothing else does."""
