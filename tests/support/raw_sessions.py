"""A session's stream without the peer's own handling of it: what tests send and read there by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from auth.errors import UnreachableError
from auth.keys import DeviceKey
from peer.control.session import SessionSides, SessionStream
from peer.protocol import control_pb2
from tests.support.control_plane import QUICK, Member
from tests.support.waiting import PATIENCE_S


async def greeted(member: Member, key: DeviceKey | None = None) -> Any:
    """A raw, welcomed session stream."""
    call = member.client.open_session()
    tell = member.heard.events.append
    sides = SessionSides(member.outbox, member.suspicions, lambda: None, member.credentials, tell)
    stream = SessionStream(call, sides, QUICK, set())
    await stream.greet(key or member.credentials.device_key, "", "")
    return call


async def next_of(call: Any, kind: str) -> control_pb2.CoordinatorMessage:
    """The next message of a kind."""
    while (message := await asyncio.wait_for(call.read(), PATIENCE_S)).WhichOneof("body") != kind:
        continue
    return message


async def drained(call: Any) -> None:
    """Read a stream to its end; raises why the coordinator ended it."""
    nobody: Any = SimpleNamespace(outbox=None, tell=None)
    reader = SessionStream(call, nobody, QUICK, set())
    while await asyncio.wait_for(reader._read(), PATIENCE_S) is not None:
        continue
    raise UnreachableError("the stream ended in order")
