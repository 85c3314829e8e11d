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
            ("google: grinning face", 107),
            ("google: smiling face with heart-shaped eyes", 307),
            ("google: large red circle", 307),
            ("google: crescent moon", 207),
        ),
    ),
    DevicePlan(
        "hall-display",
        "none",
        "same machine",
        (
            ("twitter: smiling face with sunglasses", 107),
            ("twitter: large yellow circle", 107),
            ("twitter: black heart", 207),
            ("twitter: bear face", 307),
        ),
    ),
    DevicePlan(
        "field-camera",
        "4g",
        "simulated 4G",
        (
            ("fluent: grinning face", 107),
            ("fluent: sun with face", 307),
            ("fluent: smiling face with open mouth", 107),
            ("fluent: red apple", 107),
        ),
    ),
)
