"""`python -m vramplan`."""

from vramplan.cli.start import main

main()
