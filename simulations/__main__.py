"""Runs the simulations with `python -m simulations`."""

from simulations.cli import main

main()
