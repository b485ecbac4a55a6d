"""Suspicions from the swarm reach the operator's log by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.errors import RequestError
from coordinator.strikes import Policy
from coordinator.suspicions import Claim, hear
from peer.protocol import control_pb2
from peer.session_stream import SessionHandlers
from peer.suspicion import Suspicion, WaitingSuspicions
from tests.support.control_plane import Member, connected, join_as, joined, serving
from tests.support.waiting import eventually


def waiting_at(member: Member, found: Suspicion) -> WaitingSuspicions:
    """Let this member's next session take what waits."""
    waiting = WaitingSuspicions()
    waiting.put(found)
    handlers = member.heard.handlers(member.credentials)
    fields = {name: getattr(handlers, name) for name in handlers.__dataclass_fields__} | {
        "take_suspicions": waiting.take
    }
    member.heard.handlers = lambda credentials=None: SessionHandlers(**fields)  # type: ignore[method-assign]
    return waiting


async def test_a_suspicion_names_the_member_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It comes over the session of whoever noticed; the suspected is named as the coordinator knows it."""
    async with (
        serving(tmp_path) as coordinator,
        joined(coordinator, tmp_path) as member,
        connected(coordinator) as client,
    ):
        mallory = (await join_as(coordinator, client, tmp_path / "mallory", "Mallory")).device_key.peer_id
        waiting_at(member, Suspicion(mallory, "whoever", "d9", "step", 7, "claims step 1000000000"))
        member.start()
        await eventually(
            "the suspicion is recorded as refused", lambda: ("suspicion", "step") in coordinator.refusals()
        )
    assert "Ada noticed at step 7: Mallory's device claims step 1000000000" in caplog.text


async def test_a_suspicion_of_nobody_is_dropped_and_recorded(tmp_path: Path) -> None:
    """The session goes on, and no name is in the log."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        waiting_at(member, Suspicion("QmNobody", "whoever", "d9", "step", 7, "claims step 1000000000"))
        member.start()
        await eventually(
            "the bad request is recorded as refused", lambda: ("session", "bad-request") in coordinator.refusals()
        )


async def test_an_older_coordinator_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not say that it hears suspicions would end the session over one."""
    silent = control_pb2.Welcome
    monkeypatch.setattr(control_pb2, "Welcome", lambda hears_suspicions, **fields: silent(**fields))
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        waiting = waiting_at(member, Suspicion("QmNobody", "whoever", "d9", "step", 7, "claims step 1000000000"))
        member.start()
        await eventually("the member has heard where it stands", lambda: bool(member.heard.standings))
        assert len(waiting.take()) == 1


@pytest.mark.parametrize(
    ("peer_id", "kind", "detail"),
    [("Qm1", "murder", "x"), ("Qm1", "step", "x" * 201), ("Qm1", "step", "two\nlines"), ("Qm\0", "step", "x")],
)
async def test_nonsense_is_no_suspicion(tmp_path: Path, peer_id: str, kind: str, detail: str) -> None:
    """What a peer writes into the operator's log is bounded and of a line."""
    async with serving(tmp_path) as coordinator:
        with pytest.raises(RequestError, match="kinds"):
            hear(coordinator.services.sessions, Policy(), Claim(peer_id, kind, 1, detail), "witness", 1.0)
