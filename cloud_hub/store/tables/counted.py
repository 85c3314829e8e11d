"""What is counted of a picture, in its own row and summed over many."""

from sqlalchemy.orm import Mapped


class Counted:
    """Columns that a picture's row and a sum over pictures share; docs/metrics.md defines each."""

    tokens: Mapped[int]
    prefix: Mapped[int]
    local: Mapped[int]
    verified: Mapped[int]
    corrected: Mapped[int]
    unverified: Mapped[int]
    wasted: Mapped[int]
    forwards: Mapped[int]
    round_trips: Mapped[int]
    retries: Mapped[int]
    bytes_up: Mapped[int]
    bytes_down: Mapped[int]
    duration_s: Mapped[float]
    device_s: Mapped[float]
    wait_s: Mapped[float]
    queue_s: Mapped[float]
    forward_s: Mapped[float]


# The columns of whole numbers.
COUNTS = tuple(name for name, kind in Counted.__annotations__.items() if kind == Mapped[int])
