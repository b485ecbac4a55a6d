"""Private files: whole or not at all, and noticed when they change."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from auth.errors import StorageError
from auth.files import WatchedFile, make_private_directory, write_private


def test_written_file_is_private_and_alone(tmp_path: Path) -> None:
    """The file has mode 0600 and no temporary file stays beside it."""
    write_private(tmp_path / "secret", b"one")
    write_private(tmp_path / "secret", b"two")
    assert (tmp_path / "secret").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_existing_file_can_be_kept(tmp_path: Path) -> None:
    """With `replace=False` the first content wins."""
    write_private(tmp_path / "key", b"first", replace=False)
    write_private(tmp_path / "key", b"second", replace=False)
    assert (tmp_path / "key").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_unwritable_place_is_a_storage_error(tmp_path: Path) -> None:
    """A missing directory, or a file where a directory should be, is one clear error."""
    with pytest.raises(StorageError, match="Cannot write"):
        write_private(tmp_path / "missing" / "secret", b"")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot make"):
        make_private_directory(tmp_path / "file" / "directory")


def test_watched_file_is_parsed_only_when_it_changed(tmp_path: Path) -> None:
    """A reader sees each new content, and parses none twice."""
    parsed: list[bytes] = []
    watched = WatchedFile(tmp_path / "file", lambda content: parsed.append(content) or content)
    assert watched.read() is None
    write_private(tmp_path / "file", b"one")
    assert [watched.read(), watched.read()] == [b"one", b"one"]
    write_private(tmp_path / "file", b"two")  # same size, and maybe the same time: the inode tells
    assert watched.read() == b"two"
    assert parsed == [b"one", b"two"]
