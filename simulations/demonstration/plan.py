"""What the demonstration does: which devices there are, and what they draw."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One device: its node id, the link it is behind, and its captions with their seeds."""

    node: str
    link: str  # a name of `fleet.transport.link.PROFILES`, or "none"
    place: str  # what the link is, for readers
    orders: tuple[tuple[str, int], ...]


DEVICES = (
    DevicePlan(
        "kitchen-tablet",
        "none",
        "same machine",
        (
            ("google: red heart", 7),
            ("google: sunflower", 3),
            ("google: tangerine", 5),
            ("google: evergreen tree", 2),
        ),
    ),
    DevicePlan(
        "hall-display",
        "none",
        "same machine",
        (
            ("twitter: slice of pizza", 1),
            ("twitter: four leaf clover", 4),
            ("twitter: umbrella", 6),
            ("twitter: grinning face", 8),
        ),
    ),
    DevicePlan(
        "field-camera",
        "4g",
        "simulated 4G",
        (
            ("fluent: green apple", 2),
            ("fluent: soccer ball", 5),
            ("fluent: rocket", 9),
            ("fluent: mushroom", 1),
        ),
    ),
)
