"""Properties that services of the system publish (systemd's login manager, NetworkManager), read with `busctl`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

TIMEOUT_S = 5.0
Property = Callable[[str, str, str, str], str | None]  # service, object, interface, name -> value


def read_property(service: str, path: str, interface: str, name: str, command: str = "busctl") -> str | None:
    """The value, as `busctl` writes it without its type; None where there is no such service, or no system bus."""
    arguments = [command, "--system", "get-property", service, path, interface, name]
    try:
        found = subprocess.run(arguments, capture_output=True, timeout=TIMEOUT_S, check=True, text=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    kind, _, value = found.stdout.strip().partition(" ")
    return value if kind else None
