"""What the trainer's process and the averager's tell each other, over a real fork; real rounds are in tests/system."""

from __future__ import annotations

import multiprocessing as mp
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from auth.errors import SwarmError
from peer.averaging.meetings import MAX_REPORT_BYTES, MOST_DELIVERED, Heard, Requirements
from peer.averaging.rounds import AveragedGroup, RoundError, RoundSearch, SearchStage
from peer.node.states import DonatedState, HistoryBegun, JoinedTensors, StateCopy, StateWanted
from peer.reduction.findings import Finding
from peer.reduction.guard import WeightCaps
from peer.swarm.averager import Averager, Listeners
from peer.swarm.averager_loop import AveragerLoop, Words
from peer.swarm.messages import (
    CopyWanted,
    GivenUp,
    Loaded,
    OrderDone,
    SearchNews,
    Served,
    Sought,
    StateCopied,
    StateOrdered,
    TransferNews,
    Word,
)
from tests.support.waiting import PATIENCE_S, wait_until

GROUP = AveragedGroup(size=2, samples=64, averaged_bytes=8)
WANTED, COPY = StateWanted([torch.Size([3])]), StateCopy(4, 0, (), JoinedTensors.room_for([torch.Size([3])]), [])
HEARD, FINDING = Heard((0, 4), {"Qm1": b"a report"}), Finding("Qm1", "parts", "sent nothing")
Script = Callable[[Connection], None]


class Trainer:
    """A trainer's process, whose averager does as a script says; `told` is what its listeners were told."""

    def __init__(self, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
        def serve(outer: Connection, inner: Connection, _parts: object) -> None:
            outer.close()
            script(inner)

        monkeypatch.setattr("peer.swarm.averager.serve", serve)
        self.told = list[object]()
        self.averager = Averager(cast(Any, None), Listeners(self.told.append, self.found, self.copy))
        self.averager.start()

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
    """Start a trainer with an averager that does this."""
    trainers = list[Trainer]()

    def start(script: Script) -> Trainer:
        trainers.append(Trainer(script, monkeypatch))
        return trainers[-1]

    yield start
    for trainer in trainers:
        trainer.averager.shutdown(0.0)


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
        inner.send(SearchNews(sought.number, SearchStage.MET, 2))
        assert inner.recv() == Loaded(sought.number, 64)
        inner.send(SearchNews(sought.number, SearchStage.AVERAGING, 2))
        inner.send(SearchNews(sought.number, SearchStage.ENDED, 3, GROUP))
        until_left(inner)

    averager = trainer_with(script).averager
    for _ in range(2):
        averager.want(Requirements(step=4))  # sent once
    search = averager.seek(5.0)
    wait_until("the group has begun", lambda: search.stage is SearchStage.MET)
    assert (search.is_due, search.has_averaged, averager.failed_rounds) == (False, False, 2)
    averager.begin(search, 64)
    assert search.result(PATIENCE_S) == GROUP
    assert (search.is_due, search.has_averaged, averager.failed_rounds) == (True, True, 3)


def test_a_search_ends_with_a_reason_or_is_given_up(trainer_with: Callable[[Script], Trainer]) -> None:
    """What ends after it was given up is no fault."""

    def script(inner: Connection) -> None:
        inner.send(SearchNews(inner.recv().number, SearchStage.ENDED, 1, fault="too few peers hold it"))
        sought = inner.recv()
        assert inner.recv() == GivenUp(sought.number)
        inner.send(SearchNews(sought.number, SearchStage.ENDED, 7, GROUP))
        until_left(inner)

    averager = trainer_with(script).averager
    with pytest.raises(RoundError, match="too few peers hold it"):
        averager.seek(None).result(PATIENCE_S)
    search = averager.seek(None)
    averager.give_up(search)
    wait_until("the search has ended", lambda: averager.failed_rounds == 7)
    assert search.cancelled()
    assert not averager._searches


def test_states_come_as_they_were_ordered(trainer_with: Callable[[Script], Trainer]) -> None:
    """In whatever order; a download that progresses shows, and the count of those who were turned away."""
    given = JoinedTensors.join([torch.arange(3.0)])

    def script(inner: Connection) -> None:
        first, second = inner.recv(), inner.recv()
        assert (first.order, second.order) == (WANTED, HistoryBegun(0, 4))
        inner.send(TransferNews(5))
        inner.send(OrderDone(second.number))
        inner.send(OrderDone(first.number, DonatedState("Qm1", 4, 0, (), given)))
        until_left(inner)

    averager = trainer_with(script).averager
    wanted, begun = averager.order(WANTED), averager.order(HistoryBegun(0, 4))
    assert begun.result(PATIENCE_S) is None
    assert torch.equal(wanted.result(PATIENCE_S).tensors.values, torch.arange(3.0))
    assert (averager.moves, averager.turned_away) == (1, 5)


def test_what_others_say_is_heard_while_the_trainer_computes(trainer_with: Callable[[Script], Trainer]) -> None:
    """A word that cannot be processed ends nothing."""

    def script(inner: Connection) -> None:
        for word in (HEARD, Finding("Qm2", "parts", "nonsense"), FINDING, Served()):
            inner.send(word)
        until_left(inner)

    trainer = trainer_with(script)
    trainer.averager.served.result(PATIENCE_S)
    assert trainer.told == [HEARD, Finding("Qm2", "parts", "nonsense"), FINDING]


def test_the_state_is_copied_for_who_downloads_it(
    trainer_with: Callable[[Script], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the averager's process learns that it could not be."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the second copy fails

    def script(inner: Connection) -> None:
        for step in (4, None):
            inner.send(CopyWanted())
            answer = inner.recv()
            assert isinstance(answer, StateCopied)
            assert (answer.copy.step if answer.copy else None) == step
        inner.send(Served())
        until_left(inner)

    trainer_with(script).averager.served.result(PATIENCE_S)


def test_an_averager_that_cannot_start_says_why(trainer_with: Callable[[Script], Trainer]) -> None:
    """And one that hangs is killed."""

    def script(inner: Connection) -> None:
        inner.send(Served("no daemon"))
        threading.Event().wait()

    averager = trainer_with(script).averager
    with pytest.raises(SwarmError, match="no daemon"):
        averager.served.result(PATIENCE_S)
    averager.shutdown(0.01)
    averager._process.join(PATIENCE_S)
    assert averager._process.exitcode is not None
    averager.want(Requirements(step=4))  # tells nobody, and raises nothing


def test_an_averager_ends_with_the_trainers_process(trainer_with: Callable[[Script], Trainer]) -> None:
    """Its pipe breaks off then."""

    def script(inner: Connection) -> None:
        inner.send(Served())
        with pytest.raises(EOFError):
            inner.recv()

    averager = trainer_with(script).averager
    averager.served.result(PATIENCE_S)
    averager._pipe.close()
    averager._process.join(PATIENCE_S)
    assert averager._process.exitcode == 0


def test_a_word_never_blocks_the_averager() -> None:
    """While the trainer reads nothing, others' words wait to be merged, and orders' outcomes are kept."""
    outer, inner = mp.Pipe()
    words = Words(inner)
    reports = {f"Qm{number:044}": bytes(MAX_REPORT_BYTES) for number in range(MOST_DELIVERED)}
    delivered = 0
    while words.deliver(Heard((0, delivered), reports)):
        wait_until("it is sent, or the pipe is full", lambda: not words._is_delivering or outer.poll())
        delivered += 1
        assert delivered < 1000
    words.say(OrderDone(7))
    received = list[Word]()
    while not received or received[-1] != OrderDone(7):
        received.append(outer.recv())
    assert [word.position[1] for word in received[:-1] if isinstance(word, Heard)] == list(range(delivered))
    wait_until("it is free again", lambda: words.deliver(HEARD))
    words.close()
    assert outer.recv() == HEARD


class Parts:
    """The averager's loop with a stand-in for its rounds; `said` is what it told the trainer."""

    def __init__(self) -> None:
        self.said = list[Word]()
        self.calls = list[object]()
        self.loop: Any = AveragerLoop.__new__(AveragerLoop)
        vars(self.loop).update(
            _words=SimpleNamespace(say=self.said.append),
            _searches={},
            _copied=None,
            _guard=SimpleNamespace(caps=None),
            rounds=SimpleNamespace(
                failed_rounds=2,
                want=self.calls.append,
                seek=self.seek,
                begin=lambda _, weight: self.calls.append(weight),
                give_up=self.give_up,
            ),
        )

    def seek(self, rate: float | None) -> RoundSearch:
        """Begin a search."""
        self.calls.append(rate)
        self.search = RoundSearch()
        return self.search

    def give_up(self, search: RoundSearch) -> None:
        """Cancel a search."""
        search.cancel()
        self.reach(SearchStage.ENDED)

    def reach(self, stage: SearchStage) -> None:
        """Let the newest search reach a stage."""
        self.search.enter(stage)
        self.loop._tell_news(self.search)


def test_orders_are_executed_in_the_loop() -> None:
    """Those for a search that has ended come too late."""
    parts, caps = Parts(), WeightCaps({"Qm1": 4.0}, 8.0)
    loop = parts.loop
    for order in (Requirements(step=4), caps, Sought(7, 5.0), Loaded(7, 64)):
        loop.obey(order)
    assert parts.calls == [Requirements(step=4), 5.0, 64]
    assert loop._guard.caps is caps
    parts.reach(SearchStage.AVERAGING)
    parts.search.set_result(GROUP)
    parts.reach(SearchStage.ENDED)
    for order in (Loaded(7, 64), GivenUp(7), StateCopied(COPY)):
        loop.obey(order)
    loop.obey(Sought(8, None))
    parts.search.set_exception(RuntimeError())
    parts.reach(SearchStage.ENDED)
    loop.obey(Sought(9, None))
    loop.obey(GivenUp(9))
    assert parts.said == [
        SearchNews(7, SearchStage.AVERAGING, 2),
        SearchNews(7, SearchStage.ENDED, 2, GROUP),
        SearchNews(8, SearchStage.ENDED, 2, fault="RuntimeError()"),
        SearchNews(9, SearchStage.ENDED, 2, fault="given up"),
    ]


async def test_an_order_that_fails_finds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The trainer tries again."""
    parts = Parts()

    async def obey(_order: object) -> None:
        raise OSError("no DHT")

    parts.loop._states = SimpleNamespace(obey=obey)
    await parts.loop._execute(StateOrdered(7, WANTED))
    assert parts.said == [OrderDone(7)]
    assert "StateWanted" in caplog.text
