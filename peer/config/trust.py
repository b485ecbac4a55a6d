"""Checks of a run's sources for access beyond the public web and for changes during the run.

A run file is written by the operator, but its sources are opened on every volunteer's machine.
Files on that machine and its local network are accessible to a run only if their owner allows it
(`check_reach`). A source without a pinned revision or digest may change later (`unpinned`).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from glob import has_magic
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

from auth.errors import ConfigError
from peer.config.data import Source, is_remote
from peer.config.run import RunConfig

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PINNED = re.compile(r"hf://[^@]+@[0-9a-f]{40}/.*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PRIVATE_NAMES = (".local", ".localhost", ".internal", ".intranet", ".lan", ".home", ".corp", ".home.arpa")


@dataclass(frozen=True)
class Allowed:
    """The access beyond the public web that a machine's owner grants to runs."""

    folders: tuple[Path, ...] = ()
    private_network: bool = False


def check_reach(config: RunConfig, allowed: Allowed) -> None:
    """Raise `ConfigError` for disallowed access, with the address and the option that allows it."""
    for path in local_paths(config):
        if not _is_within(path, allowed.folders):
            raise ConfigError(
                f"The run would read `{path}` on this machine, which is not allowed: to allow this, "
                "pass its folder with `--data-folder`; otherwise do not join, and tell the run's operator."
            )
    for address, host in hosts(config):
        if is_private(host) and not allowed.private_network:
            raise ConfigError(
                f"The run would contact `{host}` (for `{address}`), which is not on the public web but on this "
                "machine or its own network: allow it with `--private-network`, or do not join."
            )


def local_paths(config: RunConfig) -> Iterator[str]:
    """Yield every path that the run would read on the volunteer's own machine."""
    for source in config.all_sources:
        yield from (path for path in source.paths if not is_remote(path) and not _is_repository(source, path))
        model = None if source.sampling is None else source.sampling.scorer.model
        if model is not None and not is_remote(model):
            yield model


def hosts(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the address and the host of each download from a host named in the run file."""
    for source in config.all_sources:
        model = None if source.sampling is None else source.sampling.scorer.model
        endpoint = source.storage_options.get("endpoint_url")
        for address in (*source.paths, model or "", endpoint if isinstance(endpoint, str) else ""):
            if address.lower().startswith(("http://", "https://")):
                yield address, host_of(address)


def host_of(address: str) -> str:
    """Return the host of a web address. Raises `ConfigError` if it cannot be parsed."""
    try:
        host = urlsplit(address).hostname
    except ValueError as error:
        raise ConfigError(f"The address `{address:.200}` of a data source cannot be read: {error}.") from error
    return (host or "").rstrip(".")


def is_private(host: str) -> bool:
    """Return whether a host is local or in a private network, without a DNS lookup."""
    number = _number(host)
    if number is not None:
        return not_public(number)
    return "." not in host or host.lower().endswith(_PRIVATE_NAMES)


def not_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is loopback, private, link-local (cloud metadata) or reserved."""
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
    return not inner.is_global or inner.is_multicast


def _number(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:  # systems also accept address forms such as 127.1 or 0x7f000001
        return IPv4Address(socket.inet_aton(host)) if re.fullmatch(r"[0-9a-fxA-FX.]+", host) else None
    except OSError:
        return None


def _is_repository(source: Source, path: str) -> bool:
    """Return whether a hub source is a repository; `datasets` prefers a folder of that name."""
    return source.kind == "hub" and _REPOSITORY.fullmatch(path) is not None and not Path(path).exists()


def _is_within(path: str, folders: tuple[Path, ...]) -> bool:
    """Return whether all matches of a pattern are in one of the folders, after resolving links."""
    parts = Path(os.path.expanduser(path)).parts  # noqa: PTH111 - like fsspec, also for unknown users
    plain = next((number for number, part in enumerate(parts) if has_magic(part)), len(parts))
    if ".." in parts[plain:]:
        return False
    real = Path(*parts[:plain]).resolve()
    return any(real.is_relative_to(folder.expanduser().resolve()) for folder in folders)


def unpinned(config: RunConfig) -> Iterator[str]:
    """Yield one sentence for each source or scorer's model without a pinned revision or digest."""
    for source in config.all_sources:
        if source.kind == "hub" and not _COMMIT.fullmatch(source.revision or ""):
            yield f"The data source {source.name} is not pinned: give the commit (40 hex digits) as its `revision`."
        elif any(is_remote(path) and not _PINNED.fullmatch(path) for path in source.paths):
            yield (
                f"The data source {source.name} is not pinned: whoever can change its files changes what volunteers "
                "train on; files of the hub can be pinned by `@COMMIT` in their address."
            )
        yield from _unpinned_model(source)


def _unpinned_model(source: Source) -> Iterator[str]:
    scorer = None if source.sampling is None else source.sampling.scorer
    if scorer is not None and scorer.model is not None and scorer.sha256 is None:
        yield f"The scorer's model {scorer.model} is not pinned: give its digest as `sha256`."
