"""Who is shut out is soon let in nowhere: a real coordinator and volunteer, and devices that knock at all doors.

A device whose owner has changed its program knocks at the doors of keeper and volunteer all the time (knocker.py). One
is revoked, another put in quarantine; a third is revoked while the service is down, with a token that expires soon.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO, Any

import pytest
from sqlalchemy import select

from auth.credentials import Credentials
from auth.tokens import issue_token
from coordinator.ledger.presence import online_sessions, read_swarm_status
from coordinator.members.quarantine import quarantine_device
from coordinator.store.models import Device
from peer.control.client import ControlClient
from tests.support.commands import Command, Site
from tests.support.waiting import PATIENCE_S
from tests.system.knocker import DOORS

EVERYWHERE = {(peer, door) for peer in ("keeper", "volunteer") for door in DOORS}
SHORT_LIFE_S = 20.0  # of the third token, or longer if all is slow:
OPENINGS = 4  # times the time until all doors have opened
CLOSED_ROUNDS = 3  # in succession, in which no door opened: then it is over


@dataclass(frozen=True)
class Knocks:
    """What one device met, before and after it was shut out; peers are `keeper` and `volunteer`."""

    before: frozenset[tuple[str, str]]  # which doors of whom let it in
    last_s: dict[tuple[str, str], float]  # how long after that each heard its last knock that was let in; 0: none was
    expired_after_s: float  # when its token expired, after it was shut out
    opened_after_s: float  # how long after its start all doors were open to it


class HonestSwarm:
    """The keeper, the service and a volunteer of a run."""

    def __init__(self, site: Site) -> None:
        self.site = site
        serve = ("coordinator", "serve", str(site.run.path))
        self.service: Command = site.start("service", *serve, "--service-only")
        site.start("keeper", *serve, "--keeper-only")
        site.wait_until("the keeper is there", lambda: read_swarm_status(site.database) is not None)
        site.join("volunteer", True)
        site.wait_until("the volunteer trains", self._someone_trains)
        status = read_swarm_status(site.database)
        assert status is not None
        self.keeper_address = status.addresses[0]
        self.volunteer_id = self._device("volunteer").peer_id
        self.names = {self.keeper_address.rsplit("/p2p/", 1)[1]: "keeper", self.volunteer_id: "volunteer"}

    def _someone_trains(self) -> bool:
        rows = online_sessions(self.site.database, time.time())
        return any(row.state in {"training", "averaging"} for row in rows)

    def _device(self, member: str) -> Device:
        with self.site.database() as session:
            return session.scalars(select(Device).where(Device.member.has(name=member))).one()

    def quarantine(self, member: str) -> None:
        """Put a member's device in quarantine."""
        device = self._device(member).id
        quarantine_device(self.site.database, member, device, "a measurement", "os:test", time.time())

    async def admit(self, name: str) -> Credentials:
        """Let a member's device in, by the front door."""
        credentials, link = Credentials(self.site.base / name), self.site.run.join_link
        client = await ControlClient.connect(link, time.time)
        try:
            reply = await client.join(credentials.device_key, self.site.membership.invite(name)[0])
        finally:
            await client.close()
        credentials.store_grant(link.run, reply.authority_key, reply.token, reply.revocations)
        return credentials

    def shut_out(self, credentials: Credentials, act: Callable[[], Any]) -> Knocks:
        """Let a device knock until it has met every door open, shut it out by `act`, and see when the last closes."""
        began, expires_at = time.time(), credentials.access_token(time.time()).expires_at
        with ExitStack() as stack:
            knocker = stack.enter_context(self._knocker(credentials))
            out: IO[str] | None = knocker.stdout
            assert out is not None
            assert knocker.stdin is not None
            stack.callback(knocker.stdin.close)
            rounds: list[dict[tuple[str, str], float]] = []  # what was open in each, and when it knocked there

            def knock_until(done: Callable[[], bool]) -> None:
                deadline = time.monotonic() + PATIENCE_S
                while not done() and time.monotonic() < deadline:
                    places = {tuple(where.split()): at for where, at in json.loads(out.readline()).items()}
                    rounds.append({(self.names[peer], door): at for (peer, door), at in places.items()})

            knock_until(lambda: bool(rounds and rounds[-1].keys() == EVERYWHERE) or time.time() > expires_at - 5)
            before, opened_after_s = frozenset[tuple[str, str]]().union(*rounds), time.time() - began
            rounds.clear()
            act()
            at = time.time()
            knock_until(lambda: len(rounds) >= CLOSED_ROUNDS and not any(rounds[-CLOSED_ROUNDS:]))
        last = {where: max((opened.get(where, at) - at for opened in rounds), default=0.0) for where in EVERYWHERE}
        last = {where: max(0.0, seconds) for where, seconds in last.items()}
        return Knocks(before, last, expires_at - at, opened_after_s)

    def _knocker(self, credentials: Credentials) -> subprocess.Popen[str]:
        where = (credentials.run, str(credentials.directory), self.keeper_address, self.volunteer_id)
        command = [sys.executable, "-m", "tests.system.knocker", *where]
        with (self.site.base / f"knocker-{credentials.directory.name}.log").open("w") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Knocks]:
    """All three cases, in one run."""
    site = Site(tmp_path_factory.mktemp("revocation"))
    try:
        swarm, revoke = HonestSwarm(site), site.membership.revoke
        found = {
            "revoked": swarm.shut_out(asyncio.run(swarm.admit("revoked")), lambda: revoke("revoked")),
            "quarantined": swarm.shut_out(
                asyncio.run(swarm.admit("quarantined")), lambda: swarm.quarantine("quarantined")
            ),
        }
        life_s = max(SHORT_LIFE_S, *(OPENINGS * knocks.opened_after_s for knocks in found.values()))
        unheard = asyncio.run(swarm.admit("unheard"))
        short = replace(unheard.access_token(time.time()), expires_at=time.time() + life_s)
        unheard.store_token(issue_token(site.run.authority, short))

        def revoke_unheard() -> None:
            swarm.service.terminate()
            revoke("unheard")

        return found | {"service down": swarm.shut_out(unheard, revoke_unheard)}
    finally:
        site.close()


@pytest.mark.parametrize("case", ["revoked", "quarantined", "service down"])
def test_every_door_closes(measured: dict[str, Knocks], case: str) -> None:
    """All doors of all honest peers are open before and closed for good afterwards, long before the token expires.

    With the service down, who has not heard of it closes when the token expires.
    """
    knocks = measured[case]
    assert knocks.before == EVERYWHERE
    assert set(knocks.last_s) == EVERYWHERE
    assert max(knocks.last_s.values()) < knocks.expired_after_s, knocks


def test_the_keeper_hears_without_the_service(measured: dict[str, Knocks]) -> None:
    """It reads the list itself, so its doors close before the volunteer's, who must wait for the expiry."""
    last = measured["service down"].last_s
    assert max(last["keeper", door] for door in DOORS) < max(last["volunteer", door] for door in DOORS)
