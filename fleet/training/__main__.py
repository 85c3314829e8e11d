"""Runs the training command with `python -m fleet.training`."""

from fleet.training.cli import main

main()
