"""Temporary files: a folder for them that leaves room for a socket's name, and one that goes with its process.

hivemind, PyTorch and `multiprocessing` leave sockets and folders behind wherever temporary files go, because the
processes that made them are killed.
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
    """Make a folder of this user's alone whose path leaves room for a socket's name; raises `StorageError`."""
    too_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    try:
        return Path(tempfile.mkdtemp(prefix="manyhands-", dir="/tmp" if too_long else None))  # noqa: S108  # made at random
    except OSError as error:
        raise StorageError(f"Cannot make a folder for temporary files ({error}): set TMPDIR to one.") from error


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Keep the temporary files of this process and its children in one folder, which is deleted at the end.

    The children must have ended by then, or be of no more use.
    """
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
