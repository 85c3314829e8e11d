"""Where the device's current comes from, as Linux tells it."""

from pathlib import Path

_SUPPLIES = Path("/sys/class/power_supply")


def is_on_battery(supplies: Path = _SUPPLIES) -> bool:
    """Whether a battery of the device itself is being emptied; False where nothing is known.

    Batteries of mice and pens say so in their scope and do not count.
    """
    return any(_is_emptied(supply) for supply in supplies.glob("*"))


def _is_emptied(supply: Path) -> bool:
    is_own = _read(supply / "type") == "Battery" and _read(supply / "scope") != "Device"
    return is_own and _read(supply / "status") == "Discharging"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
