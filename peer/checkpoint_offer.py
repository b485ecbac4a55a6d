"""The checkpoint that a coordinator offers to joining peers, and whether it is worth fetching (pure).

The offer comes over the control plane, whose certificate is pinned; so the digests in it are to be trusted wherever the
files themselves come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from auth.errors import RequestError
from peer.protocol import control_pb2

STATE_FILES = ("model.safetensors", "optimizer.safetensors")  # all that the swarm's state consists of
MAX_ADDRESS_CHARS = 2000
DIGEST_BYTES = 32


@dataclass(frozen=True)
class OfferedFile:
    """One file of it."""

    name: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class CheckpointOffer:
    """Where the swarm's state after `step` lies, whole."""

    address: str
    step: int
    files: tuple[OfferedFile, ...]

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)

    @property
    def host(self) -> str:
        """Who is asked for the files."""
        return urlsplit(self.address).hostname or ""


def read_offer(reply: control_pb2.CheckpointReply, most_bytes: int) -> CheckpointOffer | None:
    """The offer, if its state is the swarm's of now: an older one would have to be replaced whole by a donor's.

    Raises `RequestError` for what no coordinator has reason to offer; `most_bytes`: what this run's state can have.
    """
    if not reply.address or reply.step != reply.swarm_step:
        return None
    files = tuple(OfferedFile(file.name, file.size_bytes, bytes(file.sha256)) for file in reply.files)
    offer = CheckpointOffer(reply.address, reply.step, files)
    parts = urlsplit(reply.address[:MAX_ADDRESS_CHARS])
    if len(reply.address) > MAX_ADDRESS_CHARS or parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"The coordinator offers a checkpoint at {reply.address!r:.120}, which is no web address.")
    if tuple(file.name for file in files) != STATE_FILES or any(len(file.sha256) != DIGEST_BYTES for file in files):
        raise RequestError("The coordinator offers a checkpoint without the files that the swarm's state consists of.")
    if offer.size_bytes > most_bytes:
        raise RequestError(
            f"The coordinator offers a checkpoint of {offer.size_bytes} bytes; "
            f"this run's state has at most {most_bytes}."
        )
    return offer
