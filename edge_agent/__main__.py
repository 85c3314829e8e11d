"""`python -m edge_agent` is `edge_agent`."""

from edge_agent.cli import main

main()
