"""Destinations for published checkpoints: a repository on the Hugging Face Hub, or a folder.

Each checkpoint is one Hub commit, so a checkpoint is never partially visible. Models are pushed to
model repositories, the demo of a release to a Space. `create_commit` uploads large files first and
then commits everything at once, whereas `upload_folder` with hf_xet would make several commits.

A folder may be on any file system that fsspec supports (s3://, file://, ...). Each checkpoint has
its own subfolder, named by step and digest, and is never overwritten. The manifest is written last,
so a subfolder without a manifest is incomplete. `latest.json` names the newest complete subfolder.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

from auth.errors import PublicationError
from auth.files import sync
from coordinator.checkpoints.manifest import CHUNK_BYTES, MANIFEST, FileEntry, StoredCheckpoint, verify
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.publish_settings import HUB, PlaceSettings, Secret, read_secret

LATEST = "latest.json"


class Place(ABC):
    """A destination for published checkpoints."""

    remedy = ""

    def __init__(self, settings: PlaceSettings, secret: Secret) -> None:
        self._settings = settings
        self._secret = secret

    def publish(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        """Upload a checkpoint's exported folder atomically, and return its address at the destination.

        After an interruption, uploads only missing files. Raises `PublicationError` on failure.
        """
        try:
            return self._bring(folder, checkpoint)
        except Exception as error:  # noqa: BLE001 - HTTP clients and file systems raise errors of many kinds
            raise PublicationError(
                f"{self._settings.to} does not take the checkpoint ({self._secret.reason(error)}): {self.remedy}."
            ) from None  # the cause may contain credentials or request headers

    @abstractmethod
    def _bring(self, folder: Path, checkpoint: StoredCheckpoint) -> str: ...


def open_place(base: Path, settings: PlaceSettings) -> Place:
    """Open a destination with its secret file in `base`; raises `ConfigError` if that fails."""
    secret = read_secret(base, settings)
    return HubPlace(settings, secret) if settings.is_hub else FolderPlace(settings, secret)


class HubPlace(Place):
    """A repository on the Hugging Face Hub; publishing an unchanged folder adds no commit."""

    remedy = "check the token, its rights and the network"

    def __init__(self, settings: PlaceSettings, secret: Secret, *, space: bool = False) -> None:
        super().__init__(settings, secret)
        self._kind = "space" if space else "model"
        self._sdk: Literal["docker"] | None = "docker" if space else None

    def _bring(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        from huggingface_hub import CommitOperationAdd, HfApi  # imported here, because the import is slow
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        api = HfApi(token=self._secret.token or False)
        repository = self._settings.to.removeprefix(HUB)
        private = self._settings.private
        api.create_repo(repository, repo_type=self._kind, space_sdk=self._sdk, private=private, exist_ok=True)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        commit = api.create_commit(
            repository,
            [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in files],
            commit_message=f"Step {checkpoint.manifest.step} of {checkpoint.manifest.run}",
            repo_type=self._kind,
            # The call fails after a concurrent commit; the next attempt is based on that commit.
            parent_commit=api.repo_info(repository, repo_type=self._kind).sha,
        )
        return str(commit.commit_url)


class FolderPlace(Place):
    """A folder on any file system; files that already exist are not uploaded again."""

    remedy = "check the address, `secret_file` and the network"

    def _bring(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        import fsspec  # imported here: fsspec and its backends are slow to import

        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        options |= {**self._settings.options, **self._secret.options}
        fs, root = fsspec.core.url_to_fs(self._settings.to, **options)
        name = published_name(checkpoint)
        there = f"{root.rstrip('/')}/{name}"
        if fs.exists(f"{there}/{MANIFEST}"):  # already uploaded
            manifest = fs.cat_file(f"{there}/{MANIFEST}")
        else:
            manifest = (folder / MANIFEST).read_bytes()
            fs.makedirs(there, exist_ok=True)
            for file, entry in verify(folder, files=()).manifest.files.items():
                _send_file(fs, folder / file, f"{there}/{file}", entry)
            _write_whole(fs, f"{there}/{MANIFEST}", manifest)
        digest = hashlib.sha256(manifest).hexdigest()
        latest = {"step": checkpoint.manifest.step, "folder": name, "manifest_sha256": digest}
        _write_whole(fs, f"{root.rstrip('/')}/{LATEST}", json.dumps(latest).encode() + b"\n")
        return f"{self._settings.to}/{name}"


def published_name(checkpoint: StoredCheckpoint) -> str:
    """Return the checkpoint's subfolder: step and digest, because steps repeat after a rewind."""
    return f"{checkpoint_name(checkpoint.manifest.step)}-{checkpoint.manifest_sha256[:12]}"


def _send_file(fs: Any, source: Path, target: str, entry: FileEntry) -> None:
    """Upload a file unless it exists, and verify the digest by reading the file back."""
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
    """Write a small file atomically: by renaming it on a local disk, by a single write elsewhere.

    fsspec's transactions may copy local files between disks, which is not atomic.
    """
    if not _is_local(fs):
        fs.pipe_file(path, content)
        return
    aside = Path(f"{path}.writing")
    aside.write_bytes(content)
    sync(aside)
    sync(aside.parent)  # so that earlier files survive a power failure
    aside.replace(path)


def _is_local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
