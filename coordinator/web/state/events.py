"""The live events: each is encoded once, and the same bytes go to all who listen.

An event is only sent when it says something new; while nothing happens, one now and then shows that the line is alive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from coordinator.web.http.answers import AnswerCache
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.overview import overview_of
from coordinator.web.state.snapshot import Snapshot

ALIVE_S = 10.0  # at least so often something is sent; pages take twice as long a silence for a lost line
SHOWN_CONTRIBUTIONS = 5
EVENT_STREAM = "text/event-stream"


async def overview_events(state: Any) -> AsyncIterator[bytes]:
    """The overview of now, then each that differs; `state` is the application's. Never ends."""
    live: LiveSnapshot = state.live
    answers: AnswerCache = state.answers
    sent, sent_at = b"", float("-inf")
    async for snapshot in live.updates():
        make = partial(overview_event, snapshot, state.config, state.join_link)
        event = (await answers.get("event", snapshot.version, make, EVENT_STREAM)).content
        if _news(event) != sent or snapshot.taken_at - sent_at >= ALIVE_S:
            sent, sent_at = _news(event), snapshot.taken_at
            yield event


def overview_event(snapshot: Snapshot, config: Any, join_link: str) -> bytes:
    """One event, `event: overview` with the JSON of `/api/v1/overview`, of whose contributions it has few."""
    overview = overview_of(snapshot, config, join_link, SHOWN_CONTRIBUTIONS)
    return f"event: overview\ndata: {overview.model_dump_json()}\n\n".encode()


def _news(event: bytes) -> bytes:
    """All of an event but when it was taken, which its last field says."""
    return event[: event.rindex(b',"taken_at"')]
