"""A checkpoint as one tar: readable by every tar program, of a length known before, never padded for a short file."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from auth.errors import StorageError
from coordinator.checkpoints.manifest import FORMAT_VERSION, MANIFEST, Manifest, StoredCheckpoint, file_entry
from coordinator.checkpoints.tarball import Tarball

SIZES = {"empty": 0, "block": 512, "odd": 513, "pieces": 200_000}


@pytest.fixture
def stored(tmp_path: Path) -> StoredCheckpoint:
    """A checkpoint of files of such sizes."""
    for name, size in SIZES.items():
        (tmp_path / name).write_bytes(name[:1].encode() * size)
    (tmp_path / MANIFEST).write_text("{}")
    files = {name: file_entry(tmp_path / name) for name in SIZES}
    manifest = Manifest(
        format_version=FORMAT_VERSION, run="run", step=7, era=0, created_at=1.5, probe_loss=None, files=files
    )
    return StoredCheckpoint(tmp_path, manifest, "ab" * 32)


def test_its_length_is_known_before_and_its_bytes_are_always_the_same(stored: StoredCheckpoint) -> None:
    """Whatever the sizes of the files are, they come out as they went in, and belong to nobody."""
    tarball = Tarball.of(stored, "run-step-7")
    made = b"".join(tarball.pieces())
    assert len(made) == tarball.size_bytes
    assert made == b"".join(Tarball.of(stored, "run-step-7").pieces())
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        members = tar.getmembers()
        assert {each.name: each.size for each in members} == {
            f"run-step-7/{name}": size for name, size in {MANIFEST: 2, **SIZES}.items()
        }
        assert {(each.mode, each.uid, each.uname, each.mtime) for each in members} == {(0o644, 0, "", 1)}
        odd = tar.extractfile("run-step-7/odd")
        assert odd is not None
        assert odd.read() == b"o" * 513


def test_a_file_that_became_shorter_ends_the_download(stored: StoredCheckpoint) -> None:
    """The reader sees that it broke off, and not other bytes in its place."""
    tarball = Tarball.of(stored, "run-step-7")
    (stored.path / "pieces").write_bytes(b"p" * 10)
    with pytest.raises(StorageError, match="pieces is shorter"):
        b"".join(tarball.pieces())


def test_a_file_of_many_gigabytes_has_a_header(stored: StoredCheckpoint) -> None:
    """Beyond the eight gigabytes that the oldest form of tar can name."""
    entry = stored.manifest.files["odd"].model_copy(update={"size_bytes": 20 * 2**30})
    large = stored.manifest.model_copy(update={"files": {"odd": entry}})
    tarball = Tarball.of(StoredCheckpoint(stored.path, large, ""), "run-step-7")
    header = next(header for header, path, _ in tarball.files if path.name == "odd")
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == 20 * 2**30
    assert tarball.size_bytes > 20 * 2**30
