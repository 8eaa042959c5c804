"""Random jobs and broken files against oracles: `python -m tests.fuzz --help`."""
