"""An exported log in Python: polars frames, tokens one by one, pictures of what they say."""

from fleet.analysis.log import Log
from fleet.analysis.plots import heat_map, reliability_diagram

__all__ = ["Log", "heat_map", "reliability_diagram"]
