"""Folders for temporary files, removed after use, with paths short enough for Unix sockets.

hivemind, PyTorch and `multiprocessing` leave files behind if their processes are killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auth.errors import StorageError

LONGEST_FOLDER = 48  # bytes; macOS limits a socket's path to 104 bytes, of which hivemind's names take 36


def make_short_folder() -> Path:
    """Create a private folder with a path short enough for Unix sockets. Raises `StorageError`."""
    too_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    try:
        return Path(tempfile.mkdtemp(prefix="manyhands-", dir="/tmp" if too_long else None))  # noqa: S108
    except OSError as error:
        raise StorageError(f"Cannot make a folder for temporary files ({error}): set TMPDIR to one.") from error


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Put temporary files in a folder that is removed after the block; end all children first."""
    folder, before = make_short_folder(), os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # makes Python read TMPDIR again
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)
