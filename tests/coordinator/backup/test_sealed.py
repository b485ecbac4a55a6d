"""A folder in one encrypted file: whole and only for who knows the passphrase, or nothing."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pyrage
import pytest

from auth.errors import ConfigError, StorageError
from coordinator.backup.sealed import FOLDER, IDENTITY, seal, unseal
from tests.support.small_disks import small_disk

PASSPHRASE = "four words and a horse"
CONTENT = {"a": b"", "keys/authority.key": b"k" * 64, "checkpoints/" + "long/" * 40 + "weights": os.urandom(700_001)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of no size, of some and of many chunks, in folders."""
    for name, content in CONTENT.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "folder"


@pytest.fixture
def archive(folder: Path, tmp_path: Path) -> Path:
    """All of it."""
    seal(folder, tmp_path / "archive", PASSPHRASE)
    return tmp_path / "archive"


def test_what_went_in_comes_out(archive: Path, tmp_path: Path) -> None:
    """Every file, for its owner alone; the archive too, which says nothing of what is in it."""
    unseal(archive, PASSPHRASE, tmp_path / "out")
    found = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in found} == CONTENT
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*found, archive)} == {0o600}
    assert b"authority" not in archive.read_bytes()
    assert CONTENT["keys/authority.key"] not in archive.read_bytes()


def test_plain_tar_and_age_open_it(archive: Path) -> None:
    """So nobody needs this program to come by the run."""
    with tarfile.open(archive) as outer:
        assert outer.getnames() == [IDENTITY, FOLDER]
        begun = [content.read(21) for name in outer.getnames() if (content := outer.extractfile(name)) is not None]
    assert begun == [b"age-encryption.org/v1"] * 2


def test_only_the_passphrase_opens_it(archive: Path, tmp_path: Path) -> None:
    """Another one is told so, and leaves nothing behind."""
    with pytest.raises(ConfigError, match="passphrase is not the archive's"):
        unseal(archive, PASSPHRASE + "!", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.5, 0.999])
def test_what_was_cut_off_is_noticed(archive: Path, tmp_path: Path, part: float) -> None:
    """Wherever that was: in the key, in the middle, or at the very end of the folder."""
    content = archive.read_bytes()
    archive.write_bytes(content[: int(part * (len(content) - 2048))])
    with pytest.raises((StorageError, ConfigError)) as raised:
        unseal(archive, PASSPHRASE, tmp_path / "out")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_what_was_changed_is_noticed(archive: Path, tmp_path: Path, place: float) -> None:
    """A single bit is enough."""
    content = bytearray(archive.read_bytes())
    content[int(place * len(content))] ^= 1
    archive.write_bytes(content)
    with pytest.raises(StorageError, match="nothing was made of it"):
        unseal(archive, PASSPHRASE, tmp_path / "out")


def test_a_folder_for_another_key_is_not_taken(archive: Path, folder: Path, tmp_path: Path) -> None:
    """Who does not know the passphrase cannot put another run in place of this one."""
    seal(folder, tmp_path / "other", PASSPHRASE)
    mixed = tmp_path / "mixed"
    with tarfile.open(mixed, "w") as out, tarfile.open(archive) as one, tarfile.open(tmp_path / "other") as two:
        for source, name in ((one, IDENTITY), (two, FOLDER)):
            out.addfile(source.getmember(name), source.extractfile(name))
    with pytest.raises(StorageError):
        unseal(mixed, PASSPHRASE, tmp_path / "out")


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    """Even by an archive whose maker knew the passphrase."""
    identity = pyrage.x25519.Identity.generate()
    inner, key, sealed = tmp_path / "inner", tmp_path / IDENTITY, tmp_path / FOLDER
    with tarfile.open(inner, "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    sealed.write_bytes(pyrage.encrypt(inner.read_bytes(), [identity.to_public()]))
    key.write_bytes(pyrage.passphrase.encrypt(str(identity).encode(), PASSPHRASE))
    with tarfile.open(tmp_path / "archive", "w") as outer:
        outer.add(key, IDENTITY)
        outer.add(sealed, FOLDER)
    with pytest.raises(StorageError, match="damaged"):
        unseal(tmp_path / "archive", PASSPHRASE, tmp_path / "out" / "in")
    assert not (tmp_path / "out" / "outside").exists()


def test_a_full_disk_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    """Neither half an archive nor a file aside; what is there already is never overwritten."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, 256 * 1024):
        with pytest.raises(StorageError, match="No space left"):
            seal(folder, disk / "archive", PASSPHRASE)
        assert list(disk.iterdir()) == []
        (disk / "archive").write_text("another")
        with pytest.raises(ConfigError, match="exists already"):
            seal(folder, disk / "archive", PASSPHRASE)
