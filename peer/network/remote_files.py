"""Files of a data source, read with fsspec from local folders, web servers or object storage.

Web connections are limited to public addresses (`peer.network.public_web`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from glob import has_magic
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from auth.errors import ConfigError
from peer.config.data import Source, is_remote
from peer.config.trust import host_of, is_private

ENDINGS = {"text": (".txt",), "jsonl": (".jsonl", ".ndjson", ".json"), "parquet": (".parquet",)}
PACKED_ENDINGS = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
OBJECT_STORES = {"s3", "s3a", "abfs", "abfss", "az"}
LOGINS = {"key", "account_key", "sas_token"}
NETWORK_TIMEOUT_S = 30.0  # timeout for the connection, and for each chunk of data


@dataclass(frozen=True)
class FileLocation:
    """A file, identified by its file system and path."""

    filesystem: AbstractFileSystem
    path: str  # path in the file system's notation

    @property
    def url(self) -> str:
        """The full address, for users and for `datasets`."""
        return self.path if "file" in _protocols(self.filesystem) else str(self.filesystem.unstrip_protocol(self.path))

    @property
    def is_web(self) -> bool:
        """Whether the file is on a web server, which may lack sizes or byte ranges."""
        return "http" in _protocols(self.filesystem)


def find_files(source: Source) -> list[FileLocation]:
    """Return a source's distinct files, in the same order on all peers. Raises `ConfigError`."""
    found: dict[FileLocation, None] = {}
    for path in source.paths:
        filesystem, inner = _open_filesystem(path, source)
        files = _matches(filesystem, inner, ENDINGS[source.kind])
        if not files:
            where = "" if is_remote(path) else " on this machine"
            raise ConfigError(f"No file{where} matches the data source `{path}`: check its `path`.")
        found.update((FileLocation(filesystem, file), None) for file in sorted(files))
    return list(found)


def storage_options(source: Source) -> dict[str, Any]:
    """Return fsspec's options for a source: no local credentials, and a restricted client for public hosts."""
    options = {**_without_login(source), **source.storage_options}
    web = [path for path in source.paths if path.startswith(("http://", "https://"))]
    if not web:
        return options
    import aiohttp  # slow to import

    from peer.network.public_web import public_client
    from peer.network.rate_limits import wait_as_told

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=NETWORK_TIMEOUT_S, sock_read=NETWORK_TIMEOUT_S)
    options["client_kwargs"] = {"timeout": timeout, "trust_env": True, "middlewares": (wait_as_told,)}
    if not any(is_private(host_of(path)) for path in web):
        options["get_client"] = public_client
    return options


def _without_login(source: Source) -> dict[str, Any]:
    """Return options for anonymous access to object storage unless the run file has credentials."""
    schemes = {path.partition("://")[0] for path in source.paths}
    if schemes & {"gs", "gcs"}:
        return {"token": "anon"}
    return {} if set(source.storage_options) & LOGINS or not schemes & OBJECT_STORES else {"anon": True}


def _open_filesystem(path: str, source: Source) -> tuple[AbstractFileSystem, str]:
    try:
        filesystem, inner = url_to_fs(path, **storage_options(source))
    except ImportError as error:  # the error names the missing package
        raise ConfigError(f"Cannot open the data source `{path}`: {error}.") from error
    return filesystem, str(inner)


def _matches(filesystem: AbstractFileSystem, path: str, endings: Sequence[str]) -> list[str]:
    """Return the files that match a path, folder or pattern."""
    if "http" in _protocols(filesystem):  # any web address may be a file; only patterns need a listing
        return list(filesystem.glob(path)) if "*" in path else [path]
    if has_magic(path):
        found = filesystem.glob(path, detail=True).items()
        return [name for name, info in found if info["type"] == "file" and not is_hidden(name)]
    if filesystem.isdir(path):
        wanted = tuple(ending + packed for ending in endings for packed in PACKED_ENDINGS)
        names = filesystem.ls(path, detail=False)
        return [name for name in names if name.lower().endswith(wanted) and not is_hidden(name)]
    return [path] if filesystem.exists(path) else []


def is_hidden(path: str) -> bool:
    """Return whether a file is hidden or a system's metadata, such as macOS's `._name`."""
    name = path.rpartition("/")[2]
    return name.startswith(".") or "__MACOSX/" in path


def _protocols(filesystem: AbstractFileSystem) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
