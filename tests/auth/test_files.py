"""Private files: whole or not at all, and noticed when they change."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from auth.errors import ConfigError, StorageError
from auth.files import WatchedFile, make_private_directory, new_directory, write_private


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


def test_a_new_directory_has_its_name_only_when_it_is_full(tmp_path: Path) -> None:
    """Parents are made; an empty directory may be there already."""
    target = tmp_path / "parent" / "target"
    target.mkdir(parents=True)
    with new_directory(target, mode=0o700) as aside:
        (aside / "file").write_text("content")
        assert list(target.iterdir()) == []
    assert (target / "file").read_text() == "content"
    assert target.stat().st_mode & 0o777 == 0o700
    assert list(target.parent.iterdir()) == [target]


def test_a_directory_that_cannot_be_filled_leaves_nothing(tmp_path: Path) -> None:
    """Whatever the error; a full disk becomes one of ours."""
    with pytest.raises(ConfigError, match="mistake"), new_directory(tmp_path / "target"):
        raise ConfigError("a mistake")
    with pytest.raises(StorageError, match=r"Cannot make the directory .*target"), new_directory(tmp_path / "target"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_new_directory_takes_nobodys_place(tmp_path: Path) -> None:
    """A file or a full directory of that name stays, and the message says what to do."""
    (tmp_path / "file").write_text("content")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="not empty: go away"), new_directory(taken, remedy="go away"):
            pytest.fail("there is something already")
    assert (tmp_path / "file").read_text() == "content"


def test_a_link_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """No directory can take its place: neither of a link to an empty directory nor of one to nothing."""
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nothing"):
        (link := tmp_path / f"link to {name}").symlink_to(tmp_path / name)
        with pytest.raises(ConfigError, match="link or a mount point: name a directory in it"), new_directory(link):
            pytest.fail("the link cannot be replaced")
