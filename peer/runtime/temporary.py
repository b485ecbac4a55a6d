"""Folders for temporary files: one with a short path for sockets, and one that is deleted with its process.

hivemind, PyTorch and `multiprocessing` leave sockets and folders behind in it when their processes are killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auth.errors import StorageError

LONGEST_FOLDER = 48  # bytes, before ours: a UNIX socket's whole path has 104 on macOS, and hivemind's name takes 36


def make_short_folder() -> Path:
    """Make a private folder whose path leaves room for a socket's name; raises `StorageError`."""
    too_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    try:
        return Path(tempfile.mkdtemp(prefix="manyhands-", dir="/tmp" if too_long else None))  # noqa: S108  # made at random
    except OSError as error:
        raise StorageError(f"Cannot make a folder for temporary files ({error}): set TMPDIR to one.") from error


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Keep temporary files in a folder that is deleted after the block, when no child process may need it any more."""
    folder, before = make_short_folder(), os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # ask again
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)
