"""Where a spawned process prints: to a file, with everything that its libraries and its own children print."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOG_FILE = "worker.log"  # in the device's data directory


def write_output_to(path: Path, max_bytes: int) -> None:
    """Send this process's output to the end of a private file, which begins anew if it has grown beyond `max_bytes`.

    Not only Python's: what libraries write in C, and forked and started processes, goes there too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.exists() and path.stat().st_size > max_bytes
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if fresh else os.O_APPEND), 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in 1, 2:
        os.dup2(descriptor, stream)
    os.close(descriptor)


def last_lines(path: Path, count: int, max_line_chars: int = 300) -> list[str]:
    """The end of a log, without empty lines; nothing where there is no log."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line[:max_line_chars] for line in text.splitlines() if line.strip()][-count:]
