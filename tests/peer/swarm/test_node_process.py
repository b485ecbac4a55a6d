"""Orders and words between the trainer's process and its node, over a real fork; real rounds are in tests/system."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from auth.errors import SwarmError
from auth.swarm.authorizer import record_subkey
from peer.averaging.requirements import Heard, Requirements
from peer.averaging.rounds import AveragedGroup, RoundError, RoundSearch, SearchStage
from peer.config.training import Averaging
from peer.gradients.buffer import SharedTensors
from peer.network.placement import Placement
from peer.node.states import DonatedState, HistoryBegun, JoinedTensors, StateCopy, StateWanted
from peer.reduction.findings import Finding
from peer.reduction.guard import WeightCaps
from peer.swarm.messages import (
    CopyWanted,
    DaemonHeard,
    GivenUp,
    Greeting,
    Joined,
    Loaded,
    OrderDone,
    Ordered,
    RecordPut,
    RecordsWanted,
    SearchUpdate,
    Sought,
    StateCopied,
    TransferUpdate,
    Word,
)
from peer.swarm.node_loop import DAEMON_LOOK_S, TRANSFERS_S, NodeLoop, NodeParts
from peer.swarm.node_process import Listeners, NodeProcess
from peer.transport.lines import Line
from peer.transport.memory import MemoryNetwork
from tests.support.receipts import key_of
from tests.support.virtual_tests import virtually
from tests.support.waiting import PATIENCE_S, wait_until

GROUP = AveragedGroup(size=2, samples=64, averaged_bytes=8)
SHAPE = torch.Size([3])
WANTED, COPY = StateWanted([SHAPE]), StateCopy(4, 0, (), JoinedTensors.room_for([SHAPE]), [])
HEARD, FINDING = Heard((0, 4), {"Qm1": b"a report"}), Finding("Qm1", "parts", "sent nothing")
JOINED, HEARD_ALL = Joined(False, ("/ip4/192.0.2.1/tcp/1/p2p/Qm1",), 7, 8), DaemonHeard(())  # the scripts' last word
Script = Callable[[Connection], None]


class Trainer:
    """A trainer's process, whose node acts by a script once it has joined; `told`: what its listeners were told."""

    def __init__(self, script: Script, monkeypatch: pytest.MonkeyPatch, joined: Joined = JOINED) -> None:
        def serve(outer: Connection, inner: Connection, _parts: object) -> None:
            outer.close()
            inner.send(joined)
            script(inner)

        monkeypatch.setattr("peer.swarm.node_process.serve", serve)
        self.told = list[object]()
        self.node = NodeProcess(cast(Any, None))
        self.joined = self.node.start()
        self.node.listen(Listeners(lambda: self.told.append("daemon"), self.told.append, self.found, self.copy))

    def await_end(self) -> None:
        """Wait until the script has told everything."""
        wait_until("the node has told everything", lambda: "daemon" in self.told)

    def found(self, finding: Finding) -> None:
        """Hear of a finding."""
        self.told.append(finding)
        if finding != FINDING:
            raise ValueError("nonsense")

    def copy(self) -> StateCopy:
        """Copy the state the first time."""
        self.told.append("copied")
        if self.told.count("copied") > 1:
            raise MemoryError
        return COPY


@pytest.fixture
def trainer_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Script], Trainer]]:
    """Start a trainer with a node that does this."""
    trainers = list[Trainer]()

    def start(script: Script) -> Trainer:
        trainers.append(Trainer(script, monkeypatch))
        return trainers[-1]

    yield start
    for trainer in trainers:
        trainer.node.shutdown(0.0)


def until_left(inner: Connection) -> None:
    """Take orders until the trainer leaves."""
    while inner.recv() is not None:
        pass


def test_a_search_goes_through_its_stages_to_a_group(trainer_with: Callable[[Script], Trainer]) -> None:
    """Each process knows it by its number; the failed rounds are those of all searches."""

    def script(inner: Connection) -> None:
        assert inner.recv() == Requirements(step=4)
        sought = inner.recv()
        assert sought.rate == 5.0
        inner.send(SearchUpdate(sought.number, SearchStage.MET, 2))
        assert inner.recv() == Loaded(sought.number, 64)
        inner.send(SearchUpdate(sought.number, SearchStage.AVERAGING, 2))
        inner.send(SearchUpdate(sought.number, SearchStage.ENDED, 3, GROUP))
        until_left(inner)

    node = trainer_with(script).node
    for _ in range(2):
        node.want(Requirements(step=4))  # sent once
    search = node.seek(5.0)
    wait_until("the group has begun", lambda: search.stage is SearchStage.MET)
    assert (search.is_due, search.has_averaged, node.failed_rounds) == (False, False, 2)
    node.begin(search, 64)
    assert search.outcome.result(PATIENCE_S) == GROUP
    assert (search.is_due, search.has_averaged, node.failed_rounds) == (True, True, 3)


def test_a_search_ends_with_a_reason_or_is_given_up(trainer_with: Callable[[Script], Trainer]) -> None:
    """A group that comes after the search was given up is no fault."""

    def script(inner: Connection) -> None:
        inner.send(SearchUpdate(inner.recv().number, SearchStage.ENDED, 1, fault="too few peers hold it"))
        sought = inner.recv()
        assert inner.recv() == GivenUp(sought.number)
        inner.send(SearchUpdate(sought.number, SearchStage.ENDED, 7, GROUP))
        until_left(inner)

    node = trainer_with(script).node
    with pytest.raises(RoundError, match="too few peers hold it"):
        node.seek(None).outcome.result(PATIENCE_S)
    search = node.seek(None)
    node.give_up(search)
    wait_until("the search has ended", lambda: node.failed_rounds == 7)
    assert search.outcome.cancelled()
    assert not node._searches


def test_states_come_as_they_were_ordered(trainer_with: Callable[[Script], Trainer]) -> None:
    """In whatever order; a download that progresses shows, and the count of those who were turned away."""
    given = JoinedTensors.join([torch.arange(3.0)])

    def script(inner: Connection) -> None:
        first, second = inner.recv(), inner.recv()
        assert (first.order, second.order) == (WANTED, HistoryBegun(0, 4))
        inner.send(TransferUpdate(3, 5))
        inner.send(OrderDone(second.number))
        inner.send(OrderDone(first.number, DonatedState("Qm1", 4, 0, (), given)))
        until_left(inner)

    node = trainer_with(script).node
    wanted, begun = node.order(WANTED), node.order(HistoryBegun(0, 4))
    assert begun.result(PATIENCE_S) is None
    assert torch.equal(wanted.result(PATIENCE_S).tensors.values, torch.arange(3.0))
    assert (node.moves, node.turned_away) == (3, 5)


def test_what_others_say_is_heard_while_the_trainer_computes(trainer_with: Callable[[Script], Trainer]) -> None:
    """A word that cannot be processed ends nothing."""

    def script(inner: Connection) -> None:
        for word in (HEARD, Finding("Qm2", "parts", "nonsense"), FINDING, HEARD_ALL):
            inner.send(word)
        until_left(inner)

    trainer = trainer_with(script)
    assert trainer.joined == JOINED
    assert trainer.node.addresses == JOINED.addresses
    trainer.await_end()
    assert trainer.told == [HEARD, Finding("Qm2", "parts", "nonsense"), FINDING, "daemon"]
    assert trainer.node.addresses == JOINED.addresses  # the newest that the daemon has told


def test_the_state_is_copied_for_who_downloads_it(
    trainer_with: Callable[[Script], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the node learns that it could not be."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the second copy fails

    def script(inner: Connection) -> None:
        for step in (4, None):
            inner.send(CopyWanted())
            answer = inner.recv()
            assert isinstance(answer, StateCopied)
            assert (answer.copy.step if answer.copy else None) == step
        inner.send(HEARD_ALL)
        until_left(inner)

    trainer_with(script).await_end()


def test_an_order_that_fails_says_why(trainer_with: Callable[[Script], Trainer]) -> None:
    """The future of its outcome raises the reason."""

    def script(inner: Connection) -> None:
        inner.send(OrderDone(inner.recv().number, fault="nobody answers"))
        until_left(inner)

    with pytest.raises(SwarmError, match="nobody answers"):
        trainer_with(script).node.order(RecordsWanted()).result(PATIENCE_S)


def test_an_order_that_cannot_be_sent_says_so(trainer_with: Callable[[Script], Trainer]) -> None:
    """Others are carried out all the same."""

    def script(inner: Connection) -> None:
        inner.send(OrderDone(inner.recv().number, found=1))
        until_left(inner)

    node = trainer_with(script).node
    unsent, sent = node.order(RecordPut(threading.Lock(), 1.0)), node.order(RecordsWanted())
    with pytest.raises(SwarmError, match="could not be sent"):
        unsent.result(PATIENCE_S)
    assert sent.result(PATIENCE_S) == 1


def test_nobody_waits_for_a_node_that_has_ended(trainer_with: Callable[[Script], Trainer]) -> None:
    """Neither for what was ordered before its end, nor after."""
    node = trainer_with(lambda inner: inner.recv() and None).node
    search, order = node.seek(None), node.order(RecordsWanted())
    for _ in range(2):
        with pytest.raises(SwarmError, match="node has ended"):
            order.result(PATIENCE_S)
        with pytest.raises(RoundError, match="node has ended"):
            search.outcome.result(PATIENCE_S)
        search, order = node.seek(None), node.order(RecordsWanted())


@pytest.mark.parametrize("fault", ["no daemon", ""])
def test_a_node_that_cannot_start_says_why(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own words, or those of the trainer's process if it is killed; nothing of it is left."""

    def serve(_outer: Connection, inner: Connection, _parts: object) -> None:
        if not fault:
            os.kill(os.getpid(), signal.SIGKILL)
        inner.send(Joined(fault=fault))
        until_left(inner)

    monkeypatch.setattr("peer.swarm.node_process.serve", serve)
    node = NodeProcess(cast(Any, None))
    with pytest.raises(SwarmError, match=fault or "was killed as it started"):
        node.start()
    assert node._process.exitcode is not None
    node.want(Requirements(step=4))  # tells nobody, and raises nothing


def test_a_node_that_hangs_is_killed(trainer_with: Callable[[Script], Trainer]) -> None:
    """When the trainer leaves."""
    node = trainer_with(lambda _inner: threading.Event().wait() and None).node
    node.shutdown(0.01)
    node._process.join(PATIENCE_S)
    assert node._process.exitcode is not None


def test_a_node_ends_with_the_trainers_process(trainer_with: Callable[[Script], Trainer]) -> None:
    """Its pipe breaks off then."""

    def script(inner: Connection) -> None:
        with pytest.raises(EOFError):
            inner.recv()

    node = trainer_with(script).node
    with socket.socket(fileno=os.dup(node._pipe.fileno())) as pipe:
        pipe.shutdown(socket.SHUT_RDWR)  # as at the end of the process
    node._process.join(PATIENCE_S)
    assert node._process.exitcode == 0


def test_a_node_searches_nothing_that_it_was_forked_with(trainer_with: Callable[[Script], Trainer]) -> None:
    """So that none of the pages which it shares with the trainer is ever copied for that."""
    gc.unfreeze()  # see `pytest_collection_finish`: what the process inherits frozen would count as well

    def script(inner: Connection) -> None:
        inner.send(Heard((gc.get_freeze_count(), 0)))
        inner.send(HEARD_ALL)
        until_left(inner)

    try:
        trainer = trainer_with(script)
    finally:
        gc.freeze()
    trainer.await_end()
    [heard, _] = trainer.told
    assert isinstance(heard, Heard)
    assert heard.position[0] > 0


def test_caps_are_sent_when_they_change(trainer_with: Callable[[Script], Trainer]) -> None:
    """Each look at the records computes them anew."""

    def script(inner: Connection) -> None:
        assert [inner.recv() for _ in range(2)] == [WeightCaps({"Qm1": 4.0}, 8.0), WeightCaps({}, 8.0)]
        inner.send(HEARD_ALL)
        until_left(inner)

    trainer = trainer_with(script)
    for caps in ({"Qm1": 4.0}, {"Qm1": 4.0}, {}):
        trainer.node.cap(caps, 8.0)
    trainer.await_end()


class LoneBoard:
    """A board that nobody else reads; `calls` is what was asked of it."""

    def __init__(self) -> None:
        self.is_client, self.calls = False, list[object]()
        self.p2p = SimpleNamespace(_child=SimpleNamespace(pid=8))
        self.is_silent = False

    async def entries(self) -> object:
        """Read the entries."""
        return {b"subkey": 1}

    async def put(self, *entry: object) -> bool:
        """Store an entry."""
        self.calls.append(entry)
        return True

    async def greet(self, *peers: object) -> None:
        """Ping peers."""
        self.calls.append(peers)

    async def announce(self, *, relayed: bool) -> None:
        """Publish the addresses."""
        self.calls.append(relayed)

    async def addresses(self) -> tuple[str, ...]:
        """Ask the daemon."""
        if self.is_silent:
            raise OSError("no daemon")
        return JOINED.addresses


class Parts:
    """A node's loop with a stand-in for its rounds; `said` is what it told the trainer."""

    def __init__(self) -> None:
        self.said = list[Word]()
        self.calls = list[object]()
        self.has_backlog = False
        key = key_of("ada")
        credentials = SimpleNamespace(device_key=key)
        access: Any = SimpleNamespace(credentials=credentials, run="run", clock=time.time, donor_roles=frozenset())
        parts = NodeParts(access, (), Placement(), Averaging(), SharedTensors([SHAPE]))
        self.transport = MemoryNetwork(random.Random(1)).join(key.peer_id, Line(1e6, 1e6, 0.0))
        self.board = LoneBoard()
        self.loop = NodeLoop(parts, cast(Any, self.board), self.transport, cast(Any, self))
        rounds: Any = SimpleNamespace(
            failed_rounds=2,
            want=self.calls.append,
            seek=self.seek,
            begin=lambda _, weight: self.calls.append(weight),
            give_up=self.give_up,
            stop=lambda: None,
        )
        self.loop.rounds = rounds

    def send(self, word: Word) -> None:
        """Tell the trainer something."""
        self.said.append(word)

    def seek(self, rate: float | None, number: int) -> RoundSearch:
        """Begin a search."""
        self.calls.append(rate)
        self.search = RoundSearch(number)
        return self.search

    def give_up(self, search: RoundSearch) -> None:
        """Cancel a search."""
        search.outcome.cancel()
        self.reach(SearchStage.ENDED)

    def reach(self, stage: SearchStage) -> None:
        """Let the newest search reach a stage."""
        self.search.enter(stage)
        self.loop._tell_update(self.search)


async def test_orders_are_executed_in_the_loop() -> None:
    """Those for a search that has ended come too late."""
    parts, caps = Parts(), WeightCaps({"Qm1": 4.0}, 8.0)
    loop = parts.loop
    for order in (Requirements(step=4), caps, Sought(7, 5.0), Loaded(7, 64)):
        loop.obey(order)
    assert parts.calls == [Requirements(step=4), 5.0, 64]
    assert loop._guard.caps is caps
    parts.reach(SearchStage.AVERAGING)
    parts.search.outcome.set_result(GROUP)
    parts.reach(SearchStage.ENDED)
    for order in (Loaded(7, 64), GivenUp(7), StateCopied(COPY)):
        loop.obey(order)
    loop.obey(Sought(8, None))
    parts.search.outcome.set_exception(RuntimeError())
    parts.reach(SearchStage.ENDED)
    loop.obey(Sought(9, None))
    loop.obey(GivenUp(9))
    loop.obey(Sought(10, None))
    parts.reach(SearchStage.ENDED)  # though the search has no outcome
    assert parts.said == [
        SearchUpdate(7, SearchStage.AVERAGING, 2),
        SearchUpdate(7, SearchStage.ENDED, 2, GROUP),
        SearchUpdate(8, SearchStage.ENDED, 2, fault="RuntimeError()"),
        SearchUpdate(9, SearchStage.ENDED, 2, fault="given up"),
        SearchUpdate(10, SearchStage.ENDED, 2, fault="given up"),
    ]


async def test_the_records_are_read_and_published() -> None:
    """And a keeper that this peer does not see is greeted."""
    parts, greeting = Parts(), Greeting(("/ip4/192.0.2.8/tcp/1/p2p/Qm2",), ("Qm2",))
    for number, order in enumerate((RecordsWanted(), RecordPut([1], 9.0), greeting)):
        await parts.loop._execute(Ordered(number, order))
    assert parts.said == [OrderDone(0, {b"subkey": 1}), OrderDone(1, True), OrderDone(2)]
    own = record_subkey(key_of("ada").peer_id)
    assert parts.board.calls == [(own, [1], 9.0), (greeting.addresses, greeting.peer_ids)]


@pytest.mark.parametrize("error", [OSError("no DHT"), asyncio.CancelledError("by hivemind")])
async def test_an_order_that_fails_is_told_and_logged(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """The trainer tries again."""
    parts = Parts()

    async def obey(_order: object) -> None:
        raise error

    states: Any = SimpleNamespace(obey=obey)
    parts.loop._states = states
    await parts.loop._execute(Ordered(7, WANTED))
    assert parts.said == [OrderDone(7, fault=repr(error))]
    assert "StateWanted" in caplog.text


@pytest.mark.parametrize("is_client", [False, True])
@virtually
async def test_a_node_serves_unless_nobody_can_connect(is_client: bool) -> None:
    """Then it says so, and tells of each answer of the daemon."""
    parts = Parts()
    parts.board.is_client = is_client
    served = list[str]()
    parts.transport.serve = lambda name, _: as_served(parts, served, name)  # type: ignore[method-assign, assignment]
    await parts.loop.serve()
    assert parts.said == [Joined(is_client, JOINED.addresses, os.getpid(), 8)]
    await asyncio.sleep(2.5 * DAEMON_LOOK_S)
    assert parts.said[1:] == [DaemonHeard(JOINED.addresses)] * 2
    parts.board.is_silent = True
    await asyncio.sleep(2 * DAEMON_LOOK_S)
    parts.board.is_silent = False
    await asyncio.sleep(DAEMON_LOOK_S)
    assert parts.said[1:] == [DaemonHeard(JOINED.addresses)] * 3
    assert bool(served) is not is_client
    assert parts.board.calls == ([] if is_client else [False])
    parts.loop.stop()
    await asyncio.sleep(2 * DAEMON_LOOK_S)
    assert len(parts.said) == 4


async def as_served(parts: Parts, served: list[str], name: str) -> None:
    """Note that something is served, of which others' calls are words to the trainer: it must know of the node."""
    assert parts.said
    served.append(name)


@virtually
async def test_transfers_are_told_of_at_most_every_moment() -> None:
    """A download moves with each message, and anybody may be turned away thousands of times."""
    parts = Parts()
    for _ in range(1000):
        parts.loop._moved()
        parts.loop._turn_away()
    assert parts.said == []
    await asyncio.sleep(TRANSFERS_S)
    parts.loop._moved()
    await asyncio.sleep(2 * TRANSFERS_S)
    assert parts.said == [TransferUpdate(1000, 1000), TransferUpdate(1001, 1000)]


@virtually
async def test_a_copy_that_does_not_come_is_waited_for_no_longer() -> None:
    """The next reader of the state asks for another."""
    parts = Parts()
    with pytest.raises(asyncio.TimeoutError):
        await parts.loop._copy()
    for copied in (COPY, None):
        copying = asyncio.create_task(parts.loop._copy())
        await asyncio.sleep(0)
        parts.loop.obey(StateCopied(copied))
        if copied is not None:
            assert await copying is copied
    with pytest.raises(RuntimeError, match="could not copy"):
        await copying
    assert parts.said == [CopyWanted()] * 3


async def test_what_others_say_waits_while_the_trainer_reads_nothing() -> None:
    """The meetings merge it meanwhile."""
    parts = Parts()
    for parts.has_backlog in (False, True):
        assert parts.loop._deliver(HEARD) is not parts.has_backlog
    finding = Finding("Qm1", "parts", "x" * 10_000)
    parts.loop._note(finding)
    assert parts.said == [HEARD, finding.bounded]
    assert parts.loop._accusations.current() == ["Qm1"]
