"""Places that checkpoints are published to: a repository on the Hugging Face Hub, or a folder of a file system.

A Hub repository gets one commit for each checkpoint, so never a partial one. Models go to model repositories, the demo
of a release to a Space. `upload_folder` is not used: with hf_xet it commits a folder in several batches.
`create_commit` uploads large files first, skips those that are there already, and then commits everything at once.

A folder may be on any file system that fsspec knows (s3://, file://, ...) and has a subfolder for each checkpoint. Its
name holds step and digest, so a published checkpoint is never overwritten. The manifest is written last: without one, a
subfolder is not complete. `latest.json` names the newest complete one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from auth.errors import PublicationError
from auth.files import sync
from coordinator.checkpoints.manifest import CHUNK_BYTES, MANIFEST, FileEntry, StoredCheckpoint, verify
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.publish_settings import HUB, PlaceSettings, Secret, read_secret

LATEST = "latest.json"


class Place:
    """A repository or folder that checkpoints are published to."""

    remedy = ""

    def __init__(self, settings: PlaceSettings, secret: Secret) -> None:
        self._settings = settings
        self._secret = secret

    def publish(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        """Bring this checkpoint's exported folder there, whole or not at all, and return where it can be fetched.

        After an interruption, a second call sends only what is missing. Raises `PublicationError`.
        """
        try:
            return self._bring(folder, checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever the clients' layers and the file systems raise
            raise PublicationError(
                f"{self._settings.to} does not take the checkpoint ({self._secret.reason(error)}): {self.remedy}."
            ) from None  # the cause may hold the credentials, or the request with its headers

    def _bring(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        raise NotImplementedError


def open_place(base: Path, settings: PlaceSettings) -> Place:
    """The place with its secret, whose file is relative to `base`; raises `ConfigError`."""
    secret = read_secret(base, settings)
    return HubPlace(settings, secret) if settings.is_hub else FolderPlace(settings, secret)


class HubPlace(Place):
    """A repository on the Hugging Face Hub; the same folder again makes no second commit."""

    remedy = "check the token, its rights and the network"

    def __init__(self, settings: PlaceSettings, secret: Secret, *, space: bool = False) -> None:
        super().__init__(settings, secret)
        self._kind = "space" if space else "model"
        self._sdk: Literal["docker"] | None = "docker" if space else None

    def _bring(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        from huggingface_hub import CommitOperationAdd, HfApi  # only where it is needed: it takes a while
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
            # somebody else's commit meanwhile: try again on top of it
            parent_commit=api.repo_info(repository, repo_type=self._kind).sha,
        )
        return str(commit.commit_url)


class FolderPlace(Place):
    """A folder of a file system, by its address; files that are there already are not sent again."""

    remedy = "check the address, `secret_file` and the network"

    def _bring(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        import fsspec  # with s3fs and the like, which take a while

        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        options |= {**self._settings.options, **self._secret.options}
        fs, root = fsspec.core.url_to_fs(self._settings.to, **options)
        name = published_name(checkpoint)
        there = f"{root.rstrip('/')}/{name}"
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
        _write_whole(fs, f"{root.rstrip('/')}/{LATEST}", json.dumps(latest).encode() + b"\n")
        return f"{self._settings.to}/{name}"


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
