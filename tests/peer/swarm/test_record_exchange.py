"""When a peer's record is published, and others' records are read, against a node whose DHT is one dictionary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.p2p import PeerID
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.errors import SwarmError, TokenError
from auth.swarm.authorizer import record_subkey, token_subkey
from auth.swarm.directory import SwarmAccess
from auth.tokens import AccessToken, Role
from peer.config.run import RunConfig
from peer.progress.records import Course, PeerRecord
from peer.progress.refresh import Refresh
from peer.progress.tracker import Clocks, Owner, StepTracker
from peer.progress.view import GREETING_PERIOD_S, SwarmCourse
from peer.reporting.suspicions import Suspicions
from peer.swarm import record_exchange
from peer.swarm.messages import Greeting, RecordPut, RecordsWanted
from peer.swarm.record_exchange import RecordExchange
from tests.support.clocks import Clock
from tests.support.peer_records import record
from tests.support.waiting import PATIENCE_S, wait_until

TARGET, EXPIRATION_S = 64, 100.0
OWN, OTHER, KEEPER = (PeerID(bytes([number] * 34)) for number in (1, 2, 3))
ROLES: dict[str, Role] = {OWN.to_base58(): "trainer", OTHER.to_base58(): "trainer", KEEPER.to_base58(): "keeper"}
CONFIG = RunConfig.from_mapping({"averaging": {"statistics_expiration_s": EXPIRATION_S}})


class OneNode:
    """A node whose orders are carried out at once, or as a test says."""

    def __init__(self) -> None:
        self.entries: dict[object, ValueWithExpiration] = {}
        self.stored: list[tuple[PeerRecord, float]] = []  # accepted records with their expirations
        self.accepts: list[bool | Exception] = []  # the next outcomes of storing; True once they are used
        self.reads = self.attempts = 0
        self.fails: list[Exception] = []  # the next outcomes of reading
        self.greeted: list[tuple[str, ...]] = []

    def publish(self, peer_id: PeerID, told: PeerRecord) -> None:
        """Store another peer's record with its token, which is its ID here."""
        self.entries[token_subkey(peer_id.to_base58())] = ValueWithExpiration(peer_id.to_base58(), 1.0)
        self.entries[record_subkey(peer_id.to_base58())] = ValueWithExpiration(told.pack(), 1.0)

    def order(self, order: object) -> Any:
        """The node's."""
        future = futures.Future[Any]()
        match order:
            case RecordPut(record, expiration_time):
                self.attempts += 1
                outcome = self.accepts.pop(0) if self.accepts else True
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    self.stored += [(PeerRecord.unpack(record), expiration_time)] * outcome
                    future.set_result(outcome)
            case RecordsWanted():
                self.reads += 1
                if self.fails:
                    future.set_exception(self.fails.pop())
                else:
                    future.set_result(dict(self.entries) or None)
            case Greeting(_, peer_ids):
                self.greeted.append(peer_ids)
        return future


class Credentials:
    """They take a known peer's ID for its token."""

    def check(self, jwt: str, now: float) -> AccessToken:
        """Return the token, or refuse it."""
        if jwt not in ROLES:
            raise TokenError("unknown")
        return AccessToken(jwt[-4:], "d1", jwt, "ssh-rsa AAAA", ROLES[jwt], "run", 0.0, now + 1.0, "a" * 64)


class Scene:
    """A trainer's exchange; the time of its tracker passes only when told to."""

    def __init__(self) -> None:
        self.clock, self.node = Clock(), OneNode()
        self.tracker = StepTracker(
            Owner(OWN.to_base58(), "own", "d1", "trainer"),
            "run",
            SwarmCourse.of(CONFIG, OWN.to_base58(), "trainer", Suspicions(lambda _: None, self.clock)),
            target_batch_size=TARGET,
            refresh=Refresh(0.5, EXPIRATION_S),
            keepers=[KEEPER.to_base58()],
            clocks=Clocks(self.clock, self.clock),
        )
        node: Any = self.node
        credentials: Any = Credentials()
        access = SwarmAccess(credentials, "run", frozenset({"keeper"}), self.clock)
        self.exchange = RecordExchange(node, access, self.tracker, [KEEPER.to_base58()], EXPIRATION_S)

    @property
    def told(self) -> list[PeerRecord]:
        """The records that were stored."""
        return [told for told, _ in self.node.stored]

    def keeper_is_there(self) -> None:
        """Let the keeper publish its beacon."""
        course = Course(age_s=0.0, usual_s=0.0, credits={})
        self.node.publish(KEEPER, record(0, time=self.clock.now).model_copy(update={"course": course}))

    def settle(self, seconds: float, due: Callable[[], object], sentence: str) -> None:
        """Let this time pass, and wait for what is due then; the threads look at the turned clock."""
        self.clock.now += seconds + 0.001
        self.exchange._wake()
        wait_until(sentence, due)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The exchange, which ends with the test."""
    made = Scene()
    monkeypatch.setattr(record_exchange, "time", SimpleNamespace(monotonic=made.clock))
    monkeypatch.setattr(record_exchange, "RETRY_S", 0.0)
    yield made
    made.exchange.stop(PATIENCE_S)


def test_who_starts_has_published_and_read(scene: Scene) -> None:
    """Others know of the peer, and it of them, before it trains; the record lives for its lifetime."""
    scene.node.publish(OTHER, record(0, 11, time=scene.clock.now))
    scene.exchange.start()
    [(told, expires_at)] = scene.node.stored
    assert (told.training, expires_at) == (False, scene.clock.now + EXPIRATION_S)
    assert scene.tracker.view.live == {OTHER.to_base58()}
    assert scene.tracker.samples == 11


def test_what_changes_is_published_when_it_is_due(scene: Scene) -> None:
    """A start at once, samples later, and what does not change as a heartbeat."""
    scene.exchange.start()
    scene.tracker.begin_training()
    wait_until("the start is published", lambda: len(scene.told) == 2)
    assert scene.told[-1].training
    scene.tracker.report(20)
    due_in_s = scene.tracker.publish_in_s
    assert due_in_s > 0
    scene.settle(due_in_s, lambda: len(scene.told) == 3, "the samples are published")
    assert scene.told[-1].samples == 20
    scene.settle(EXPIRATION_S / 4, lambda: len(scene.told) == 4, "the heartbeat is published")
    assert scene.told[-1].time == scene.clock.now


def test_records_are_read_when_it_is_due(scene: Scene) -> None:
    """Or at once where somebody asks; records without a valid token are nobody's."""
    scene.exchange.start()
    assert scene.node.reads == 1
    due_in_s = scene.tracker.look_in_s
    assert due_in_s > 0
    scene.node.publish(OTHER, record(0, 11, time=scene.clock.now))
    scene.node.publish(PeerID(bytes([9] * 34)), record(0, 50, time=scene.clock.now))
    scene.settle(due_in_s, lambda: scene.tracker.samples == 11, "the records are read")
    assert scene.tracker.view.live == {OTHER.to_base58()}
    reads = scene.node.reads
    scene.tracker.look_now()
    wait_until("the records are read again", lambda: scene.node.reads > reads)


@pytest.mark.parametrize("failure", [SwarmError("the DHT does not answer"), futures.TimeoutError(), False])
def test_a_record_that_was_not_stored_is_published_again(scene: Scene, failure: Exception | bool) -> None:
    """Soon, not at the next heartbeat: until then, others would not wait for this peer."""
    scene.exchange.start()
    scene.node.accepts = [failure, failure]
    scene.tracker.begin_training()
    wait_until("the record is published", lambda: len(scene.told) == 2)
    assert scene.told[-1].training
    assert scene.node.attempts == 4


@pytest.mark.parametrize("failure", [SwarmError("the DHT does not answer"), futures.TimeoutError()])
def test_a_failed_read_is_repeated(scene: Scene, failure: Exception) -> None:
    """One error of the node must not leave the peer blind for good."""
    scene.exchange.start()
    scene.node.fails = [failure] * 2
    scene.node.publish(OTHER, record(0, 11, time=scene.clock.now))
    scene.tracker.look_now()
    wait_until("the records are read", lambda: scene.tracker.samples == 11)


@pytest.mark.parametrize("fails", [False, True])
def test_who_stops_is_not_waited_for(scene: Scene, fails: bool) -> None:
    """Its last record says that it does not train; a DHT that takes no more records holds up nobody."""
    scene.exchange.start()
    scene.tracker.begin_training()
    wait_until("the start is published", lambda: len(scene.told) == 2)
    scene.node.accepts = [SwarmError("the DHT has ended")] * fails
    threads = list(scene.exchange._threads)
    scene.exchange.stop(PATIENCE_S)
    assert not any(map(threading.Thread.is_alive, threads))
    assert [told.training for told in scene.told] == [False, True] + [False] * (not fails)
    reads = scene.node.reads
    scene.tracker.look_now()
    assert scene.node.reads == reads


def test_a_keeper_that_is_not_in_view_is_greeted_now_and_then(scene: Scene) -> None:
    """A restarted one knows no peers; a ping for each read would be traffic for nothing."""
    greeted = []
    for passed_s in (0.0, 0.1, GREETING_PERIOD_S - 0.2, 0.2, GREETING_PERIOD_S / 2):
        scene.clock.now += passed_s
        scene.exchange._read()
        greeted.append(len(scene.node.greeted))
    assert greeted == [1, 1, 1, 2, 2]
    assert set(scene.node.greeted) == {(KEEPER.to_base58(),)}
    scene.keeper_is_there()
    scene.clock.now += 2 * GREETING_PERIOD_S
    scene.exchange._read()
    assert len(scene.node.greeted) == 2


def test_a_keeper_that_has_moved_is_greeted_at_once(scene: Scene) -> None:
    """At its new identity, which is one of the run's keepers from now on."""
    scene.exchange._read()
    scene.exchange.keeper_at([f"/ip4/192.0.2.8/tcp/1/p2p/{OTHER.to_base58()}"])
    scene.exchange._read()
    assert scene.node.greeted == [(KEEPER.to_base58(),), (OTHER.to_base58(),)]
    assert scene.tracker.quorum.voters == {OTHER.to_base58()}
