"""Disks that are soon full: a tmpfs of their own, so the tests that use them need root, as CI has it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

from tests.support.programs import require_root

FILLER = "filler"


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """Mount an empty disk of this size over the folder until the end of the block."""
    require_root()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path, left_bytes: int) -> None:
    """A file that leaves so many bytes of the disk at `path`."""
    (path / FILLER).write_bytes(b"\0" * (disk_usage(path).free - left_bytes))


def make_room(path: Path) -> None:
    """Remove that file."""
    (path / FILLER).unlink()
