"""Whether the machine runs on battery, from the kernel's list of power supplies."""

from __future__ import annotations

from pathlib import Path

SUPPLIES = Path("/sys/class/power_supply")
BATTERIES = frozenset({"Battery", "UPS"})


def on_battery(supplies: Path = SUPPLIES) -> bool | None:
    """True if a battery of the machine itself (no mouse's) is being emptied and no mains supply is connected."""
    if not supplies.is_dir():
        return None
    found = [supply for supply in sorted(supplies.iterdir()) if _word(supply, "scope") != "Device"]
    if any(_word(supply, "online") == "1" for supply in found if _word(supply, "type") not in BATTERIES):
        return False
    return any(_word(supply, "status") == "Discharging" for supply in found if _word(supply, "type") in BATTERIES)


def _word(supply: Path, name: str) -> str:
    try:
        return (supply / name).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
