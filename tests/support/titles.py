"""The titles of processes, as `ps` shows them."""

from __future__ import annotations

from pathlib import Path


def title_of(pid: int) -> str:
    """Return a process's title or command line; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ").replace(b"\0", b" ").decode()
    except OSError:
        return ""
