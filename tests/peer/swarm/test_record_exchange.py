"""When a peer's record is published, and others' records are read, against a DHT of one dictionary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.p2p import PeerID
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.errors import TokenError
from auth.swarm.authorizer import peers_key, record_subkey, token_subkey
from auth.swarm.directory import SwarmAccess
from auth.tokens import AccessToken, Role
from peer.config.run import RunConfig
from peer.progress.records import Course, PeerRecord
from peer.progress.refresh import Refresh
from peer.progress.tracker import Clocks, Owner, StepTracker
from peer.progress.view import GREETING_PERIOD_S, SwarmCourse
from peer.reporting.suspicions import Suspicions
from peer.swarm import record_exchange
from peer.swarm.record_exchange import RecordExchange
from tests.support.clocks import Clock
from tests.support.peer_records import record
from tests.support.waiting import PATIENCE_S, wait_until

TARGET, EXPIRATION_S = 64, 100.0
OWN, OTHER, KEEPER = (PeerID(bytes([number] * 34)) for number in (1, 2, 3))
ROLES: dict[str, Role] = {OWN.to_base58(): "trainer", OTHER.to_base58(): "trainer", KEEPER.to_base58(): "keeper"}
CONFIG = RunConfig.from_mapping({"averaging": {"statistics_expiration_s": EXPIRATION_S}})


class OneDht:
    """A DHT whose calls are answered at once, or as a test says."""

    def __init__(self) -> None:
        self.entries: dict[object, ValueWithExpiration] = {}
        self.stored: list[tuple[PeerRecord, float]] = []  # accepted records with their expirations
        self.accepts: list[bool | Exception] = []  # the next outcomes of storing; True once they are used
        self.reads = self.attempts = 0
        self.greeted: list[tuple[PeerID, ...]] = []

    def publish(self, peer_id: PeerID, told: PeerRecord) -> None:
        """Store another peer's record with its token, which is its ID here."""
        self.entries[token_subkey(peer_id.to_base58())] = ValueWithExpiration(peer_id.to_base58(), 1.0)
        self.entries[record_subkey(peer_id.to_base58())] = ValueWithExpiration(told.pack(), 1.0)

    def store(self, *, key: str, subkey: bytes, value: Any, expiration_time: float, return_future: bool) -> Any:
        """The DHT's."""
        assert (key, subkey, return_future) == (peers_key("run"), record_subkey(OWN.to_base58()), True)
        self.attempts += 1
        outcome, future = self.accepts.pop(0) if self.accepts else True, futures.Future[bool]()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            self.stored += [(PeerRecord.unpack(value), expiration_time)] * outcome
            future.set_result(outcome)
        return future

    def get(self, key: str, *, latest: bool, return_future: bool) -> Any:
        """The DHT's."""
        assert (key, latest, return_future) == (peers_key("run"), True, True)
        self.reads += 1
        future = futures.Future[ValueWithExpiration | None]()
        future.set_result(ValueWithExpiration(dict(self.entries), 1.0) if self.entries else None)
        return future

    def run_coroutine(self, greeting: Any, *, return_future: bool) -> None:
        """The DHT's."""
        assert return_future
        self.greeted.append(tuple(greeting.keywords["peer_ids"]))


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
        self.clock, self.dht = Clock(), OneDht()
        self.tracker = StepTracker(
            Owner(OWN.to_base58(), "own", "d1", "trainer"),
            "run",
            SwarmCourse.of(CONFIG, OWN.to_base58(), "trainer", Suspicions(lambda _: None, self.clock)),
            target_batch_size=TARGET,
            refresh=Refresh(0.5, EXPIRATION_S),
            keepers=[KEEPER.to_base58()],
            clocks=Clocks(self.clock, self.clock),
        )
        dht: Any = self.dht
        credentials: Any = Credentials()
        access = SwarmAccess(credentials, "run", frozenset({"keeper"}), self.clock)
        self.exchange = RecordExchange(dht, access, self.tracker, [KEEPER], EXPIRATION_S)

    @property
    def told(self) -> list[PeerRecord]:
        """The records that were stored."""
        return [told for told, _ in self.dht.stored]

    def keeper_is_there(self) -> None:
        """Let the keeper publish its beacon."""
        course = Course(age_s=0.0, usual_s=0.0, credits={})
        self.dht.publish(KEEPER, record(0, time=self.clock.now).model_copy(update={"course": course}))

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
    scene.dht.publish(OTHER, record(0, 11, time=scene.clock.now))
    scene.exchange.start()
    [(told, expires_at)] = scene.dht.stored
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
    assert scene.dht.reads == 1
    due_in_s = scene.tracker.look_in_s
    assert due_in_s > 0
    scene.dht.publish(OTHER, record(0, 11, time=scene.clock.now))
    scene.dht.publish(PeerID(bytes([9] * 34)), record(0, 50, time=scene.clock.now))
    scene.settle(due_in_s, lambda: scene.tracker.samples == 11, "the records are read")
    assert scene.tracker.view.live == {OTHER.to_base58()}
    reads = scene.dht.reads
    scene.tracker.look_now()
    wait_until("the records are read again", lambda: scene.dht.reads > reads)


@pytest.mark.parametrize("failure", [RuntimeError("the DHT does not answer"), futures.TimeoutError(), False])
def test_a_record_that_was_not_stored_is_published_again(scene: Scene, failure: Exception | bool) -> None:
    """Soon, not at the next heartbeat: until then, others would not wait for this peer."""
    scene.exchange.start()
    scene.dht.accepts = [failure, failure]
    scene.tracker.begin_training()
    wait_until("the record is published", lambda: len(scene.told) == 2)
    assert scene.told[-1].training
    assert scene.dht.attempts == 4


@pytest.mark.parametrize("failure", [RuntimeError("the DHT does not answer"), futures.TimeoutError()])
def test_a_failed_read_is_repeated(scene: Scene, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """One error of the DHT's process must not leave the peer blind for good."""
    scene.exchange.start()
    answer, failures = scene.dht.get, [failure] * 2

    def fail(key: str, **options: bool) -> Any:
        future = answer(key, **options)
        if failures:
            future = futures.Future[None]()
            future.set_exception(failures.pop())
        return future

    monkeypatch.setattr(scene.dht, "get", fail)
    scene.dht.publish(OTHER, record(0, 11, time=scene.clock.now))
    scene.tracker.look_now()
    wait_until("the records are read", lambda: scene.tracker.samples == 11)


@pytest.mark.parametrize("fails", [False, True])
def test_who_stops_is_not_waited_for(scene: Scene, fails: bool) -> None:
    """Its last record says that it does not train; a DHT that takes no more records holds up nobody."""
    scene.exchange.start()
    scene.tracker.begin_training()
    wait_until("the start is published", lambda: len(scene.told) == 2)
    scene.dht.accepts = [RuntimeError("the DHT has ended")] * fails
    threads = list(scene.exchange._threads)
    scene.exchange.stop(PATIENCE_S)
    assert not any(map(threading.Thread.is_alive, threads))
    assert [told.training for told in scene.told] == [False, True] + [False] * (not fails)
    reads = scene.dht.reads
    scene.tracker.look_now()
    assert scene.dht.reads == reads


def test_a_read_that_nothing_answers_ends_with_the_exchange(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The DHT's process may have ended; until then, the answer is waited for."""
    monkeypatch.setattr(record_exchange, "LOOK_S", 0.01)
    answer = futures.Future[None]()
    monkeypatch.setattr(scene.dht, "get", lambda *_, **__: answer)
    reading = threading.Thread(target=scene.exchange._read)
    reading.start()
    reading.join(0.1)
    assert reading.is_alive()
    scene.exchange.stop(0.0)
    reading.join(PATIENCE_S)
    assert not reading.is_alive()


def test_a_keeper_that_is_not_in_view_is_greeted_now_and_then(scene: Scene) -> None:
    """A restarted one knows no peers; a ping for each read would be traffic for nothing."""
    greeted = []
    for passed_s in (0.0, 0.1, GREETING_PERIOD_S - 0.2, 0.2, GREETING_PERIOD_S / 2):
        scene.clock.now += passed_s
        scene.exchange._read()
        greeted.append(len(scene.dht.greeted))
    assert greeted == [1, 1, 1, 2, 2]
    assert set(scene.dht.greeted) == {(KEEPER,)}
    scene.keeper_is_there()
    scene.clock.now += 2 * GREETING_PERIOD_S
    scene.exchange._read()
    assert len(scene.dht.greeted) == 2


def test_a_keeper_that_has_moved_is_greeted_at_once(scene: Scene) -> None:
    """At its new identity, which is one of the run's keepers from now on."""
    scene.exchange._read()
    scene.exchange.keeper_at([f"/ip4/192.0.2.8/tcp/1/p2p/{OTHER.to_base58()}"])
    scene.exchange._read()
    assert scene.dht.greeted == [(KEEPER,), (OTHER,)]
    assert scene.tracker.quorum.voters == {OTHER.to_base58()}
