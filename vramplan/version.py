"""Which vramplan this is; the only place that says so."""

__version__ = "0.1.0"
