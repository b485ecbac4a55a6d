"""The peer's session over real gRPC and TLS: delivery, presence, revocation, renewal, reconnection, leaving."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select

from auth.clock import steady_time
from auth.errors import RevokedError, TokenError
from auth.join_link import Address
from coordinator.context import services as run_services
from coordinator.control import news
from coordinator.ledger.judgement import Delivery, ReportVerdict
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.sessions import online_sessions
from coordinator.ledger.steering import Steersman
from coordinator.store.ledger_models import DailyShare, LossMark, LostSamples
from coordinator.store.models import Report, Step
from peer.control.events import CutOff, Welcomed
from peer.control.session import failed_rounds, paced, renewal_due_at, retry_delay_s
from peer.reporting.messages import ClockRead, Lost
from peer.runtime.version import software_version
from tests.support.control_plane import (
    OTHER_S,
    QUICK,
    Member,
    TestCoordinator,
    a_report,
    connected,
    joined,
    samples_of,
    serving,
    write_status,
)
from tests.support.ports import free_ports
from tests.support.receipts import keeper_confirms
from tests.support.waiting import PATIENCE_S, eventually


async def test_reports_reach_the_ledger_and_leave_the_outbox(coordinator: TestCoordinator, member: Member) -> None:
    """What was put before and during a session is acknowledged and forgotten; confirmed, it counts in the standing."""
    member.outbox.put(a_report(1), completed_at=time.time())
    member.start()
    await eventually("the ledger has the samples of step 1", lambda: samples_of(coordinator) == {1: 32})
    member.outbox.put(a_report(2, samples=16), completed_at=time.time())
    await eventually(
        "the ledger has both steps and the outbox is empty",
        lambda: samples_of(coordinator) == {1: 32, 2: 16} and len(member.outbox) == 0,
    )
    services = coordinator.services
    for step in (1, 2):
        keeper_confirms(services.database, services.membership, services.ledger, services.config.run.name, step)
    await eventually(
        "the member has heard where it stands",
        lambda: bool(member.heard.standings) and member.heard.standings[-1].own_samples == 48,
    )
    assert (member.heard.standings[-1].rank, member.heard.standings[-1].members) == (1, 1)
    assert member.heard.notices == []


async def test_presence_shows_the_device_online_until_it_says_goodbye(
    coordinator: TestCoordinator, member: Member
) -> None:
    """The coordinator knows who is here, on what, and how fast; an ordered end is seen at once."""

    def online() -> list[tuple[str, str, str, int, float]]:
        found = online_sessions(coordinator.services.database, time.time())
        return [(row.member, row.hardware, row.state, row.own_samples, row.samples_per_second) for row in found]

    member.start()
    await eventually("the member is online", lambda: online() == [("Ada", "8 cores", "training", 12, 3.5)])
    await member.leave()
    assert member.heard.connected == [True, False]
    [read] = [event for event in member.heard.events if isinstance(event, ClockRead)]
    assert abs(read.offset_s + steady_time() - time.time()) < PATIENCE_S
    welcomed = Welcomed(software_version(), coordinator.services.software_address)
    assert member.heard.events[0] == welcomed
    await eventually("nobody is online", lambda: online() == [])


async def test_presence_follows_the_coordinators_pace(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to say it every ten seconds is silent after a few times."""
    monkeypatch.setattr(news, "PRESENCES_PER_SECOND", 0.01)
    member.start()
    await eventually("the presence is asked for twice", lambda: len(member.presence_asked_at) > 1)
    await eventually(
        "the member is silent",
        lambda: time.monotonic() - member.presence_asked_at[-1] > 20 * QUICK.presence_every_s,
    )


@pytest.mark.parametrize(("told", "followed"), [(10.0, 10.0), (0.0, 3.0), (1e9, 60.0), (float("nan"), 3.0)])
def test_no_coordinator_makes_a_peer_shout_or_vanish(told: float, followed: float) -> None:
    """Its pace counts within bounds."""
    assert paced(told, 3.0) == followed


async def test_stopping_delivers_the_last_report(coordinator: TestCoordinator, member: Member) -> None:
    """A report that is put just before the end is still sent and acknowledged before the goodbye."""
    member.start()
    await eventually("the session is connected", lambda: member.heard.connected == [True])
    member.outbox.put(a_report(1), completed_at=time.time())
    await member.leave()
    assert len(member.outbox) == 0
    assert samples_of(coordinator) == {1: 32}


async def test_a_session_survives_a_restart_of_the_coordinator(coordinator: TestCoordinator, member: Member) -> None:
    """Reports made while it is away are delivered when it is back, each counted once; nothing is announced twice."""
    services = coordinator.services
    Steersman(services.database, services.config, "root", services.clock).announce("Thank you!")
    member.start()
    member.outbox.put(a_report(1), completed_at=time.time())
    await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
    port = coordinator.server.port
    await coordinator.server.stop()
    await eventually("the session has lost its connection", lambda: member.heard.connected == [True, False])
    member.outbox.put(a_report(2), completed_at=time.time())
    await coordinator.serve_again(port)
    await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
    assert samples_of(coordinator) == {1: 32, 2: 32}
    assert member.heard.connected == [True, False, True]
    assert [notice.text for notice in member.heard.notices] == ["From the operator: Thank you!"]


async def test_a_coordinator_that_was_restored_gets_what_its_backup_lacks(
    coordinator: TestCoordinator, member: Member
) -> None:
    """Reports and losses that it had acknowledged are sent again, each counted once, and the volunteer is told."""
    services = coordinator.services

    def losses() -> int:
        with services.database() as session:
            return session.scalar(select(func.sum(LostSamples.samples))) or 0

    member.start()
    for step in (1, 2):
        member.outbox.put(a_report(step), completed_at=time.time())
    member.outbox.put_lost(Lost(3, {"left": 4}), time.time())
    await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
    before = samples_of(coordinator), losses()
    port = coordinator.server.port
    await coordinator.server.stop()
    with services.database.begin() as session:  # as a backup taken after the first report has them
        for table in (LostSamples, LossMark, DailyShare):
            session.execute(delete(table))
        session.execute(delete(Report).where(Report.step == 2))
        session.execute(delete(Step).where(Step.step == 2))
    await coordinator.serve_again(port)
    await eventually("the ledger is whole again", lambda: (samples_of(coordinator), losses()) == before)
    await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
    assert [notice.text for notice in member.heard.notices] == [
        "The coordinator was restored from a backup that lacks 2 reports of this device: they are sent again."
    ]
    await coordinator.server.stop()
    await coordinator.serve_again(port)
    await eventually("the session is connected a third time", lambda: member.heard.connected.count(True) == 3)
    assert len(member.heard.notices) == 1


async def test_a_session_finds_a_coordinator_that_has_moved(tmp_path: Path) -> None:
    """Where its link has several addresses: it moves there and back, and nothing is lost or counted twice."""
    (second,) = free_ports("127.0.0.1", 1)
    others = (Address("127.0.0.1", second),)
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path, others=others) as member:
        first = coordinator.server.port
        member.start()
        await eventually("the session is connected", lambda: member.heard.connected == [True])
        for step, port in ((1, second), (2, first)):
            await coordinator.server.stop()
            await eventually("the session has lost its connection", lambda: not member.heard.connected[-1])
            member.outbox.put(a_report(step), completed_at=time.time())
            await coordinator.serve_again(port)
            await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
            assert member.client.link.port == port
        assert samples_of(coordinator) == {1: 32, 2: 32}


def test_only_after_all_addresses_a_longer_rest_comes() -> None:
    """With one address each failure is a round."""
    assert [failed_rounds(failures, 1) for failures in range(4)] == [0, 1, 2, 3]
    assert [failed_rounds(failures, 3) for failures in range(8)] == [0, 0, 0, 1, 0, 0, 2, 0]


async def test_a_refused_report_is_dropped_and_told_once(coordinator: TestCoordinator, member: Member) -> None:
    """An implausible claim is not sent for ever: it leaves the outbox with one line for the person."""
    member.outbox.put(a_report(1, samples=10**6), completed_at=time.time())
    member.outbox.put(a_report(1, samples=2**40), completed_at=time.time())
    member.outbox.put(a_report(1), completed_at=time.time())
    member.start()
    await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
    assert [notice.level for notice in member.heard.notices] == ["warning", "warning"]
    assert "step 1" in member.heard.notices[0].text
    assert samples_of(coordinator) == {1: 32}
    assert [kind for kind, _ in coordinator.refusals()] == ["report", "report"]


async def test_a_report_that_is_ahead_counts_when_its_step_is_known(
    coordinator: TestCoordinator, member: Member
) -> None:
    """It is kept, told of once, and sent again; what was put behind it waits with it and counts as well."""
    write_status(coordinator, "", step=3, fresh_for_s=3600)
    for step in range(4, 10):
        member.outbox.put(a_report(step), completed_at=time.time())
    member.start()
    await eventually(
        "four reports are left and a notice has come",
        lambda: len(member.outbox) == 4 and bool(member.heard.notices),
    )
    write_status(coordinator, "", step=9)
    await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
    assert samples_of(coordinator) == dict.fromkeys(range(4, 10), 32)
    assert [(notice.level, "step 6" in notice.text) for notice in member.heard.notices] == [("info", True)]
    assert coordinator.refusals() == []


async def test_only_the_first_of_those_that_are_ahead_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait, the coordinator is asked about one: waiting costs the peer."""
    asked: list[int] = []

    class Recording(Ledger):
        def record_all(self, deliveries: Sequence[Delivery]) -> list[ReportVerdict | Exception]:
            asked.extend(delivery.report.step for delivery in deliveries)
            return super().record_all(deliveries)

    monkeypatch.setattr(run_services, "Ledger", Recording)
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        write_status(coordinator, "", step=3, fresh_for_s=3600)
        for step in range(6, 106):
            member.outbox.put(a_report(step), completed_at=time.time())
        member.start()
        window = QUICK.window_reports
        await eventually("the window is sent again", lambda: len(asked) >= window + 10)
        assert asked[:window] == list(range(6, 6 + window))
        assert set(asked[window:]) == {6}
        assert len(member.outbox) == 100


async def test_what_waited_in_vain_is_refused_when_its_era_is_over(
    coordinator: TestCoordinator, member: Member
) -> None:
    """The run went back: the reports of steps that it never reached leave the outbox."""
    write_status(coordinator, "", step=3, fresh_for_s=3600)
    for step in (6, 7):
        member.outbox.put(a_report(step), completed_at=time.time())
    member.start()
    await eventually("a notice has come", lambda: bool(member.heard.notices))
    coordinator.services.ledger.roll_back(2)
    await eventually("the outbox is empty", lambda: len(member.outbox) == 0)
    assert samples_of(coordinator) == {}
    assert [notice.level for notice in member.heard.notices] == ["info", "warning", "warning"]


async def test_a_revocation_ends_the_session_of_the_revoked_and_reaches_the_others(tmp_path: Path) -> None:
    """The operator's command writes to the store; the revoked is told and leaves, everybody else gets the list."""
    async with (
        serving(tmp_path) as coordinator,
        joined(coordinator, tmp_path, "Ada") as ada,
        joined(coordinator, tmp_path, "Bo") as bo,
    ):
        ada.start()
        bo.start()
        await eventually("both are connected", lambda: bool(ada.heard.connected and bo.heard.connected))
        coordinator.services.membership.revoke("Ada", "test")
        assert ada.running is not None
        with pytest.raises(RevokedError, match="Ada"):
            await asyncio.wait_for(ada.running, PATIENCE_S)
        assert [event for event in ada.heard.events if isinstance(event, CutOff)] == [
            CutOff(str(ada.running.exception()))
        ]
        revoked = ada.credentials.device_key.peer_id
        await eventually("Bo knows of the revocation", lambda: bo.credentials.is_revoked(revoked))
        assert bo.running is not None
        assert not bo.running.done()


async def test_a_revoked_device_is_told_when_it_comes_back(coordinator: TestCoordinator, member: Member) -> None:
    """Who was away during the revocation learns it at the next hello, and stops trying."""
    coordinator.services.membership.revoke("Ada", "test")
    member.start()
    assert member.running is not None
    with pytest.raises(RevokedError):
        await asyncio.wait_for(member.running, PATIENCE_S)


async def test_a_device_on_its_own_list_learns_the_reason_from_the_coordinator(
    coordinator: TestCoordinator, member: Member
) -> None:
    """The list, which may come first, names the device without a reason."""
    membership = coordinator.services.membership
    membership.revoke("Ada", "test")
    member.credentials.store_revocations(membership.revocations_jwt())
    member.start()
    assert member.running is not None
    with pytest.raises(RevokedError, match="removed from this run"):
        await asyncio.wait_for(member.running, PATIENCE_S)


async def test_the_session_brings_a_new_token_before_the_old_one_is_old(
    coordinator: TestCoordinator, member: Member
) -> None:
    """At half of a token's life a new one comes down the session."""
    before = member.credentials.access_token(time.time())
    member.start()
    await eventually("the session is connected", lambda: member.heard.connected == [True])
    coordinator.clock.ahead_s = 0.55 * 3600
    await eventually(
        "a new token has come",
        lambda: member.credentials.access_token(coordinator.clock()).expires_at > before.expires_at + 1000,
    )


async def test_without_a_session_the_peer_renews_at_two_thirds(coordinator: TestCoordinator, member: Member) -> None:
    """The peer looks after its token by itself, before it begins to fail."""
    member.clock.ahead_s = 0.7 * 3600
    before = member.credentials.token_jwt
    member.start()
    await eventually("a new token has come", lambda: member.credentials.token_jwt != before)
    assert coordinator.refusals() == []


async def test_a_peer_whose_token_expired_meanwhile_renews_and_comes_back(
    coordinator: TestCoordinator, member: Member
) -> None:
    """After a coordinator's long absence the device's signature is enough to go on."""
    coordinator.clock.ahead_s = 3601.0
    member.clock.ahead_s = 3551.0  # within the allowed skew; by it, the token is good for another while
    member.start()
    await eventually("the session is connected", lambda: member.heard.connected == [True])
    assert ("session", "expired-token") in coordinator.refusals()


async def test_stopping_does_not_wait_for_a_coordinator_that_is_silent(member: Member) -> None:
    """A line that hangs in the handshake is dropped at once when the person wants to leave."""
    opened = asyncio.Event()

    class Silent:
        async def read(self) -> None:
            opened.set()
            await asyncio.Event().wait()

        def cancel(self) -> None:
            """A real call would send a reset."""

    member.client.open_session = Silent  # type: ignore[method-assign]
    member.start()
    await asyncio.wait_for(opened.wait(), PATIENCE_S)
    await member.leave()  # long before the handshake's time is over


async def test_what_only_a_person_can_mend_ends_the_session(tmp_path: Path) -> None:
    """A token of a foreign authority is not retried for ever."""
    async with (
        serving(tmp_path / "one") as coordinator,
        serving(tmp_path / "two", OTHER_S) as stranger,
        joined(coordinator, tmp_path) as member,
        connected(stranger) as other_client,
    ):
        member.client = other_client
        member.start()
        assert member.running is not None
        with pytest.raises(TokenError, match="authority"):
            await asyncio.wait_for(member.running, PATIENCE_S)


def test_the_wait_before_a_retry_grows_to_its_limit_and_is_never_the_same() -> None:
    """Peers that lost the coordinator together do not come back together."""
    rng = random.Random(0)
    waits = [retry_delay_s(failures, 1.0, 30.0, rng) for failures in range(200)]
    assert all(0.1 <= wait <= 30.0 for wait in waits)
    assert max(waits[:3]) < 4.0 < max(waits[10:])
    assert len(set(waits)) == len(waits)


def test_renewal_is_due_at_two_thirds_of_the_lifetime() -> None:
    """Two hours before the end of a token that lives for six."""
    assert renewal_due_at(issued_at=1000.0, expires_at=1000.0 + 6 * 3600) == 1000.0 + 4 * 3600
