"""Any file system that fsspec knows (s3://, file://, ...) as a place to publish to: a folder for each checkpoint.

A folder is named for step and checkpoint, so nothing that is published is ever written over, and its manifest is
written last: without it the folder is nothing yet. `latest.json` names the newest whole folder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from auth.errors import PublicationError
from auth.files import sync
from coordinator.manifests import CHUNK_BYTES, MANIFEST, FileEntry, StoredCheckpoint, checkpoint_name, verify
from coordinator.place_settings import PlaceSettings, Secret

LATEST = "latest.json"


class FolderPlace:
    """One address."""

    def __init__(self, settings: PlaceSettings, secret: Secret) -> None:
        self._address = settings.to
        self._options = {**settings.options, **secret.options}
        self._secret = secret

    def publish(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        """Bring the exported folder of this checkpoint, which was verified, there and return its address.

        What is there already is not sent again. Raises `PublicationError`.
        """
        name = published_name(checkpoint)
        try:
            self._send(folder, name, checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever the file systems raise
            raise PublicationError(
                f"{self._address} does not take the checkpoint ({self._secret.reason(error)}): "
                "check the address, `secret_file` and the network."
            ) from None  # the cause may hold the credentials
        return f"{self._address}/{name}"

    def _send(self, folder: Path, name: str, checkpoint: StoredCheckpoint) -> None:
        fs, root = self._open()
        there = f"{root}/{name}"
        if fs.exists(f"{there}/{MANIFEST}"):  # brought whole before
            manifest = fs.cat_file(f"{there}/{MANIFEST}")
        else:
            manifest = (folder / MANIFEST).read_bytes()
            fs.makedirs(there, exist_ok=True)
            for file, entry in verify(folder, files=()).manifest.files.items():
                _send_file(fs, folder / file, f"{there}/{file}", entry)
            _write_whole(fs, f"{there}/{MANIFEST}", manifest)
        digest = hashlib.sha256(manifest).hexdigest()
        latest = {"step": checkpoint.manifest.step, "folder": name, "manifest_sha256": digest}
        _write_whole(fs, f"{root}/{LATEST}", json.dumps(latest).encode() + b"\n")

    def _open(self) -> tuple[Any, str]:
        import fsspec  # with s3fs and the like, which take a while

        options = {"use_listings_cache": False, "skip_instance_cache": True, **self._options}
        fs, root = fsspec.core.url_to_fs(self._address, **options)
        return fs, root.rstrip("/")


def published_name(checkpoint: StoredCheckpoint) -> str:
    """The folder of this checkpoint and of no other of its step."""
    return f"{checkpoint_name(checkpoint.manifest.step)}-{checkpoint.manifest_sha256[:12]}"


def _send_file(fs: Any, source: Path, target: str, entry: FileEntry) -> None:
    """Send one file, unless just this is there, and read back what arrived."""
    if fs.exists(target) and fs.size(target) == entry.size_bytes and _sha256(fs, target) == entry.sha256:
        return
    fs.put_file(str(source), target)
    if _is_local(fs):
        sync(Path(target))
    if _sha256(fs, target) != entry.sha256:
        raise OSError(f"{source.name} did not arrive whole")


def _sha256(fs: Any, path: str) -> str:
    digest = hashlib.sha256()
    with fs.open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_whole(fs: Any, path: str, content: bytes) -> None:
    """Write a small file that takes its name only when it is written, as every object of an object store does.

    fsspec's own transactions move local files here from another disk, which is not done at once.
    """
    if not _is_local(fs):
        fs.pipe_file(path, content)
        return
    aside = Path(f"{path}.writing")
    aside.write_bytes(content)
    sync(aside)
    sync(aside.parent)  # the names of what was written before
    aside.replace(path)


def _is_local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
