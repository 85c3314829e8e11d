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
            ("google: grinning face", 7),
            ("google: red heart", 7),
            ("google: deciduous tree", 7),
            ("google: crescent moon", 7),
        ),
    ),
    DevicePlan(
        "hall-display",
        "none",
        "same machine",
        (
            ("twitter: smiling face with sunglasses", 7),
            ("twitter: umbrella", 7),
            ("twitter: soccer ball", 7),
            ("twitter: sunflower", 7),
        ),
    ),
    DevicePlan(
        "field-camera",
        "4g",
        "simulated 4G",
        (
            ("fluent: red apple", 7),
            ("fluent: hamburger", 7),
            ("fluent: slice of pizza", 7),
            ("fluent: smiling face with open mouth", 7),
        ),
    ),
)
