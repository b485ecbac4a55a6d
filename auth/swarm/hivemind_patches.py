"""Fixes for hivemind, applied by `patch_hivemind()` before a process creates its first node.

Messages have at most `MAX_NESTING` levels of nesting. hivemind encodes a tuple as a message within
a message, and decodes messages recursively without a limit. Ten kilobytes of nested tuples overflow
the C stack, so a single record could crash every node that reads it.

DHT nodes use `auth.swarm.protocol`, which serves only members and sends only new entries. Of two
versions of an entry, storage keeps the one that expires later. hivemind does so too, but deletes
that version when the earlier one expires, and keeps expiration times of old versions; this fix
drops these times when they far outnumber the entries. Otherwise, they would fill the memory.

A node can use given relays immediately; hivemind has no such option and needs minutes to find
relays. The daemon's own DHT can be disabled; `P2P.reach`, if set, then resolves unknown addresses
(`auth.swarm.addresses`).

When a p2p daemon dies, its exit code and last output lines are logged; no other log has them.

hivemind uses swarm time (`auth.clock`). MANYHANDS_P2PD can select another p2p daemon. The daemon's
sockets are in the temporary directory instead of /tmp, because hivemind never deletes them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import hivemind.dht.node
import hivemind.p2p.p2p_daemon
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import TimedStorage

from auth.clock import swarm_time
from auth.errors import ConfigError
from auth.swarm.addresses import is_reached
from auth.swarm.protocol import MemberProtocol
from auth.swarm.streams import SHOWN_CHARS

logger = logging.getLogger(__name__)
SPARE_TIMES = 64  # outdated expiration times tolerated in addition to one per entry
LAST_LINES = 8  # number of the daemon's last output lines that are logged when it dies
DAEMON, DAEMON_VARIABLE = "p2pd", "MANYHANDS_P2PD"  # program name, and environment variable for a replacement
MAX_NESTING = 16  # hivemind's own messages have three levels
_reading = threading.local()
_decode: Any = MSGPackSerializer._decode_ext_types  # hivemind's original function


@cache
def patch_hivemind() -> None:
    """Patch hivemind in this process and its forks; repeated calls have no effect.

    Raises `ConfigError` if MANYHANDS_P2PD is not the path of an executable named `p2pd`.
    """
    if own := os.environ.get(DAEMON_VARIABLE):
        program = _daemon_at(Path(own))
        vars(hivemind.p2p.p2p_daemon)["path"] = lambda *_: nullcontext(program)  # replaces hivemind's bundled daemon
    P2P._call_unary_protobuf_handler = _call_reached
    P2P.call_binary_stream_handler = _open_reached
    P2P._read_outputs = _follow_daemon
    P2P.DHT_MODE_MAPPING["off"] = {}
    P2P._UNIX_SOCKET_PREFIX = f"/unix{tempfile.gettempdir()}/hivemind-"
    P2P.FORCE_REACHABILITY_MAPPING["relayed"] = {**P2P.FORCE_REACHABILITY_MAPPING["private"], "relayDiscovery": 0}
    MSGPackSerializer._decode_ext_types = _decode_bounded
    hivemind.dht.node.DHTProtocol = MemberProtocol
    TimedStorage.store = _store_newer
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "hivemind"]:
        if hasattr(module, "get_dht_time"):  # each module has its own reference to the function
            vars(module)["get_dht_time"] = swarm_time


def _daemon_at(program: Path) -> Path:
    """Return the replacement daemon's path. Raises `ConfigError` if its name or file is wrong."""
    if program.name != DAEMON or not program.is_file() or not os.access(program, os.X_OK):
        raise ConfigError(
            f"{DAEMON_VARIABLE} names {program}, which is no program `{DAEMON}` that can be run: name the one that you "
            "built, or unset the variable to use hivemind's."
        )
    return program


_store = TimedStorage.store


def _store_newer(storage: Any, key: Any, value: Any, expiration_time: float) -> bool:
    """Store a value if it expires later than the stored value. Return whether it was stored."""
    held = storage.data.get(key)
    if held is not None and expiration_time <= held.expiration_time:
        return False
    is_stored = bool(_store(storage, key, value, expiration_time))
    if len(storage.expiration_heap) > 2 * len(storage.data) + SPARE_TIMES:
        storage.expiration_heap = sorted(storage.key_to_heap.values())  # a sorted list is a valid heap
    return is_stored


def _decode_bounded(type_code: int, data: bytes) -> Any:
    """Decode a message. Raises `ValueError` if the nesting is too deep."""
    depth = getattr(_reading, "depth", 0)
    if depth >= MAX_NESTING:
        raise ValueError(f"a message is nested more than {MAX_NESTING} levels deep")
    _reading.depth = depth + 1
    try:
        return _decode(type_code, data)
    finally:
        _reading.depth = depth


async def _follow_daemon(p2p: P2P, ready: asyncio.Future[None]) -> None:
    """Log the daemon's output and any unexpected exit; a normal shutdown cancels this task."""
    child: asyncio.subprocess.Process = p2p._child
    assert child.stdout is not None
    lines = deque[str](maxlen=LAST_LINES)
    while read := await child.stdout.readline():
        if line := read.rstrip().decode(errors="ignore"):
            lines.append(line)
            p2p._log_p2pd_message(line)
            if line.startswith("Peer ID:"):
                ready.set_result(None)
    code = await child.wait()
    ending = f"exit code {code}" + (f", {signal.Signals(-code).name}" if code < 0 else "")
    if ready.done():
        last = " | ".join(line[:SHOWN_CHARS] for line in lines)
        logger.error("The p2p daemon has died (%s); its last lines: %s", ending, last)
    else:
        ready.set_exception(P2PDaemonError(f"Daemon failed to start ({ending}): {lines[-1] if lines else 'no word'}"))


_call: Any = P2P._call_unary_protobuf_handler
_open: Any = P2P.call_binary_stream_handler


async def _call_reached(p2p: P2P, peer_id: PeerID, *call: Any) -> Any:
    try:
        return await _call(p2p, peer_id, *call)
    except P2PDaemonError as error:
        if not await is_reached(p2p, peer_id, error):
            raise
    return await _call(p2p, peer_id, *call)


async def _open_reached(p2p: P2P, peer_id: PeerID, name: str) -> Any:
    try:
        return await _open_or_close(p2p, peer_id, name)
    except P2PDaemonError as error:
        if not await is_reached(p2p, peer_id, error):
            raise
    return await _open_or_close(p2p, peer_id, name)


async def _open_or_close(p2p: P2P, peer_id: PeerID, name: str) -> Any:
    """Open a stream. If the caller is cancelled meanwhile, close it; hivemind leaves it open."""
    opening = asyncio.ensure_future(_open(p2p, peer_id, name))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise
    finally:
        del opening  # otherwise, an opening error keeps this frame alive, and hivemind's socket open


def _close_opened(opening: asyncio.Future[Any]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[2].close()
