"""The agent's sign of life."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from peer.heartbeat import FILE, beat


def test_each_beat_makes_the_file_young_again(tmp_path: Path) -> None:
    """The file is as old as the last beat, and nobody else's to read."""
    beat(tmp_path)
    os.utime(tmp_path / FILE, (0, 0))
    beat(tmp_path)
    status = (tmp_path / FILE).stat()
    assert status.st_mtime > 0
    assert stat.S_IMODE(status.st_mode) & 0o077 == 0


def test_directory_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    """The agent goes on where the sign cannot be given."""
    beat(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
