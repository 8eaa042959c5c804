"""The answers of `vramplan profiles`, one module per kind of answer."""
