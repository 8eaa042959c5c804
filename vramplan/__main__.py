"""`python -m vramplan`."""

from vramplan.cli.app import main

main()
