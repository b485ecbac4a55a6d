"""Validation and download of checkpoints that a coordinator offers to joining peers.

Files are downloaded with HTTP range requests, so that an interrupted download can be resumed. Their
digests can be trusted because the control plane's certificate is pinned.

To protect the volunteer's local network, the offer's host must be named in the join link or have a
public address, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import shutil
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from auth.errors import RequestError, StorageError, UnreachableError
from auth.files import sha256_of
from peer.network.downloads import has_digest
from peer.network.least_rate import at_least_rate
from peer.network.public_web import public_client
from peer.network.traffic import Throttle
from peer.protocol import STATE_FILES, control_pb2
from peer.reporting.messages import CheckpointWanted

MAX_ADDRESS_CHARS = 2000
DIGEST_BYTES = 32
ATTEMPTS = 4
FIRST_PAUSE_S = 2.0  # mean delay before the first retry; doubles with each retry
CHUNK_BYTES = 1 << 18
SPARE_BYTES = 64 * 2**20  # disk space to leave free
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=60.0)
Rest = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class OfferedFile:
    """A file of an offered checkpoint, with its expected digest."""

    name: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class CheckpointOffer:
    """An offer of the complete training state after `step`."""

    address: str
    step: int
    files: tuple[OfferedFile, ...]

    @property
    def size_bytes(self) -> int:
        """The total size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def host(self) -> str:
        """The host that serves the files."""
        return urlsplit(self.address).hostname or ""


def read_offer(reply: control_pb2.CheckpointReply, wanted: CheckpointWanted) -> CheckpointOffer | None:
    """Validate an offer; return None if there is none or if the checkpoint is too old to catch up from.

    Raises `RequestError` for an invalid address, unexpected files, or more bytes than are wanted.
    """
    if not (reply.address and 0 <= reply.swarm_step - reply.step <= wanted.most_steps):
        return None
    files = tuple(OfferedFile(file.name, file.size_bytes, bytes(file.sha256)) for file in reply.files)
    offer = CheckpointOffer(reply.address, reply.step, files)
    parts = urlsplit(reply.address[:MAX_ADDRESS_CHARS])
    if len(reply.address) > MAX_ADDRESS_CHARS or parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"The coordinator offers a checkpoint at {reply.address!r:.120}, which is no web address.")
    if tuple(file.name for file in files) != STATE_FILES or any(len(file.sha256) != DIGEST_BYTES for file in files):
        raise RequestError("The coordinator offers a checkpoint without the files that the swarm's state consists of.")
    if offer.size_bytes > wanted.most_bytes:
        raise RequestError(
            f"The coordinator offers a checkpoint of {offer.size_bytes} bytes; "
            f"this run's state has at most {wanted.most_bytes}."
        )
    return offer


async def download_checkpoint(
    offer: CheckpointOffer,
    into: Path,
    *,
    link_hosts: Collection[str],
    throttle: Throttle,
    rng: random.Random,
    rest: Rest = asyncio.sleep,
) -> None:
    """Download the offered files to the directory `into`, resuming an earlier download.

    `link_hosts`, the join link's hosts, may have private addresses. Raises `StorageError` if the
    disk is full or a file is damaged, `UnreachableError` on other failures. Keeps partial files.
    """
    await asyncio.to_thread(_make_room, offer, into)
    own = offer.host in link_hosts
    growing = wait_exponential(multiplier=FIRST_PAUSE_S)
    retrying = AsyncRetrying(
        retry=retry_if_exception(_may_pass),
        stop=stop_after_attempt(ATTEMPTS),
        wait=lambda call: rng.uniform(0.5, 1.5) * growing(call),
        sleep=rest,
        reraise=True,
    )
    async with aiohttp.ClientSession(timeout=TIMEOUT) if own else await public_client(timeout=TIMEOUT) as http:
        for file in offer.files:
            await _fetch(http, f"{offer.address}/{file.name}", file, into / file.name, throttle, retrying)


async def _fetch(
    http: aiohttp.ClientSession,
    url: str,
    file: OfferedFile,
    target: Path,
    throttle: Throttle,
    retrying: AsyncRetrying,
) -> None:
    if await asyncio.to_thread(has_digest, target, file.sha256):
        return
    part = part_of(target, file)
    try:
        await retrying(_fetch_rest, http, url, file, part, throttle)
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        failed = "downloaded" if _may_pass(error) else "reached"
        raise UnreachableError(f"The checkpoint at {url} cannot be {failed} ({error or 'no answer'}).") from error
    except OSError as error:
        raise StorageError(f"Cannot write {part}: {error.strerror}.") from error
    await asyncio.to_thread(_put_in_place, file, part, target)


def _may_pass(error: BaseException) -> bool:
    """Return whether to retry after this error; False if the server accepts no connections."""
    nobody_there = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
    return isinstance(error, (aiohttp.ClientError, asyncio.TimeoutError)) and not nobody_there


async def _fetch_rest(http: aiohttp.ClientSession, url: str, file: OfferedFile, part: Path, throttle: Throttle) -> None:
    """Download the missing bytes of a file; start over if the file has changed on the server."""
    there = await asyncio.to_thread(_size_of, part)
    if there >= file.size_bytes:  # complete or damaged; the digest is checked later
        return
    headers = {"Range": f"bytes={there}-", "If-Range": f'"{file.sha256.hex()}"'} if there else {}
    async with http.get(url, headers=headers, allow_redirects=False) as answer:
        if answer.status not in (200, 206):
            raise aiohttp.ClientError(f"it answers {answer.status}")
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {there}-")
        left = file.size_bytes - there if goes_on else file.size_bytes
        with part.open("ab" if goes_on else "wb") as written:
            async for chunk in at_least_rate(answer.content.iter_chunked(CHUNK_BYTES), len):
                left -= len(chunk)
                if left < 0:
                    raise aiohttp.ClientError("it is longer than announced")
                written.write(chunk)
                await asyncio.sleep(throttle.reserve(len(chunk)))
        if left:
            raise aiohttp.ClientError("it ended too early")


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def part_of(target: Path, file: OfferedFile) -> Path:
    """Return the path of a partial file; the digest in its name identifies the checkpoint."""
    return target.with_name(f".{file.sha256.hex()}.part")


def _make_room(offer: CheckpointOffer, into: Path) -> None:
    """Delete other checkpoints' files. Raises `StorageError` if this checkpoint does not fit."""
    try:
        into.mkdir(parents=True, exist_ok=True)
        mine = {name for file in offer.files for name in (file.name, part_of(into / file.name, file).name)}
        for path in into.iterdir():
            if path.name not in mine:
                path.unlink()
        there = sum(path.stat().st_size for path in into.iterdir())
        needed = offer.size_bytes - there + SPARE_BYTES
        free = shutil.disk_usage(into).free
    except OSError as error:
        raise StorageError(f"Cannot use {into}: {error.strerror}.") from error
    if free < needed:
        raise StorageError(
            f"The run's checkpoint does not fit into {into}: "
            f"{needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB free."
        )


def _put_in_place(file: OfferedFile, part: Path, target: Path) -> None:
    try:
        if not hmac.compare_digest(sha256_of(part), file.sha256):
            part.unlink()
            raise StorageError(f"The file {file.name} arrived damaged: its SHA-256 is not the announced one.")
        part.replace(target)
    except OSError as error:
        raise StorageError(f"Cannot write {target}: {error.strerror}.") from error
