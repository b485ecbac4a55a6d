"""Which relays a peer offers and takes."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Literal

import pytest

from peer.agent.presence import OwnPresence, answering_relays, offered_relays
from peer.limits.limits import NO_LIMITS, Limits
from peer.network.placement import Placement
from peer.reporting.messages import Progress, Ready

ID = "12D3KooWKaFFZoDcaeoXcKKtGG79gpXfkDnuMKKy8wSkXiy3gTBu"
ANNOUNCED = "/ip4/192.0.2.1/tcp/4001"


def test_a_peer_with_too_slow_a_line_does_not_claim_to_train() -> None:
    """Until its line is faster."""
    presence, waiting = OwnPresence("trainer"), Progress(3, 0, 40, 100, 2, 5.0, None, stands_by=True)
    presence.hear(Ready("Qm", 3, "cpu"))
    presence.hear(waiting)
    assert (presence.now.state, presence.now.step) == ("standby", 3)
    presence.hear(replace(waiting, stands_by=False))
    assert presence.now.state == "training"


@pytest.mark.parametrize(("role", "doing"), [("trainer", "training"), ("auxiliary", "assisting")])
def test_a_peer_of_a_paused_run_does_not_claim_to_train(role: Literal["trainer", "auxiliary"], doing: str) -> None:
    """Nor a speed, until the operator lets the run go on."""
    presence, waiting = OwnPresence(role), Progress(3, 7, 40, 100, 2, 5.0, None, paused=True)
    presence.hear(Ready("Qm", 3, "cpu"))
    presence.hear(waiting)
    assert (presence.now.state, presence.now.own_samples, presence.now.samples_per_second) == ("paused", 7, 0.0)
    presence.hear(replace(waiting, paused=False))
    assert (presence.now.state, presence.now.samples_per_second) == (doing, 5.0)


def test_who_is_reached_relays() -> None:
    """Unless its volunteer limits traffic, of which the relay's is not counted."""
    direct = Placement(announce_maddrs=(ANNOUNCED,))
    assert offered_relays(direct, NO_LIMITS, ID) == (f"{ANNOUNCED}/p2p/{ID}",)
    assert offered_relays(direct, Limits(upload_rate=1e6), ID) == ()
    assert offered_relays(direct, Limits(download_bytes=10**9), ID) == ()
    assert offered_relays(Placement("relayed"), NO_LIMITS, ID) == ()
    assert offered_relays(Placement(), NO_LIMITS, ID) == ()


async def test_only_relays_that_answer_are_taken() -> None:
    """One whose port is closed, one of a form that is not ours and one by QUIC, which cannot be tried, are left out."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = closed.getsockname()[1]
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        here = f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}/p2p/{ID}"
        assert await answering_relays([here, f"/ip4/127.0.0.1/tcp/{gone}/p2p/{ID}", "/unix/x"]) == (here,)
        assert await answering_relays([f"/ip4/127.0.0.1/udp/{gone}/quic-v1/p2p/{ID}"]) == ()
