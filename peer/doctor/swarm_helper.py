"""The helper's hivemind functions: starting the p2p daemon, and connecting to peers.

Each call starts a new daemon with a new identity, because a daemon that has connected to a peer
knows all of the peer's addresses and does not report which one it uses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from auth.swarm.hivemind_patches import patch_hivemind
from peer.doctor.answers import Daemon, Dialled

RELAY_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"  # protocol served by relays
LOG_LINES, LOG_LINE_CHARS = 20, 300
END_TIMEOUT_S = 3.0
DAEMON_LOGGER = "hivemind.p2p.p2p_daemon"  # logger to which hivemind forwards the daemon's output

# Error message suffixes for peers that do not answer: timeouts of libp2p, the system and QUIC.
TIMEOUTS = ("deadline exceeded", "i/o timeout", "no recent network activity", "did not complete in time")


class LastWords(logging.Handler):
    """A log handler that keeps the last lines of the daemon's output."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line printed by the daemon; drop hivemind's own messages."""
        if getattr(record, "caller", None) is not None:
            self.lines = [*self.lines, record.getMessage()[:LOG_LINE_CHARS]][-LOG_LINES:]


def start_daemon(listen: Sequence[str], timeout_s: float) -> Daemon:
    """Start the daemon on these addresses; return its listening addresses, or the error and log."""
    logger, words = logging.getLogger(DAEMON_LOGGER), LastWords()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(words)

    async def start() -> Daemon:
        async with _daemon(timeout_s, listen) as p2p:
            return Daemon(addresses=tuple(map(str, await p2p.get_visible_maddrs())))

    try:
        return asyncio.run(start())
    except Exception as error:  # noqa: BLE001  # any error is the finding
        return Daemon(error=describe(error), log=tuple(words.lines))
    finally:
        logger.removeHandler(words)


def dial(address: str, timeout_s: float) -> Dialled:
    """Connect to a peer at exactly this address; return whether the peer is a relay, or the error."""
    place, _, peer = address.rpartition("/p2p/")
    peer_id = PeerID.from_base58(peer)

    async def connect() -> Dialled:
        async with _daemon(timeout_s) as p2p:
            await asyncio.wait_for(p2p._client.connect(peer_id, [Multiaddr(place)]), timeout_s)
            return Dialled(relays=await _relays(p2p, peer_id, timeout_s))

    try:
        return asyncio.run(connect())
    except Exception as error:  # noqa: BLE001  # any error is the finding
        return Dialled(error=describe(error))


def describe(error: BaseException) -> str:
    """Describe an error in one line, with only the innermost of libp2p's nested reasons."""
    last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    reason = last[0].rpartition("] ")[2].strip()
    timed_out = isinstance(error, asyncio.TimeoutError) or reason.endswith(TIMEOUTS)
    return "no answer" if timed_out else reason[:LOG_LINE_CHARS]


async def _relays(p2p: P2P, peer_id: PeerID, timeout_s: float) -> bool:
    try:
        opening = p2p.call_binary_stream_handler(peer_id, RELAY_PROTOCOL)
        _, _, writer = await asyncio.wait_for(opening, timeout_s)
    except (P2PDaemonError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


@asynccontextmanager
async def _daemon(timeout_s: float, listen: Sequence[str] = ()) -> AsyncIterator[P2P]:
    """Run a daemon for the `with` block, as `hivemind.DHT` does but without joining a swarm."""
    options: dict[str, Any] = {"host_maddrs": list(listen)} if listen else {"host_maddrs": None, "no_listen": True}
    patch_hivemind()
    creating = P2P.create(startup_timeout=timeout_s, dht_mode="off", nat_port_map=False, use_ipfs=False, **options)
    p2p = await asyncio.wait_for(creating, timeout_s + END_TIMEOUT_S)  # `create` may exceed its own timeout
    try:
        yield p2p
    finally:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(p2p.shutdown(), END_TIMEOUT_S)
