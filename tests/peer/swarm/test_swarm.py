"""What a peer signs of a round, and what it makes of steps that it missed."""

from __future__ import annotations

import random
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from auth.errors import SwarmError
from auth.receipts import open_receipt, read_receipt
from peer.averaging.averager import AveragedGroup
from peer.averaging.bandwidth import LineEstimate
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.node.average_history import Lack
from peer.reporting.event_log import NOWHERE
from peer.reporting.suspicions import Suspicions
from peer.runtime.mailbox import Mailbox
from peer.swarm.decision import DownloadPause, Situation
from peer.swarm.swarm import HELD_POLL_S, MOST_SILENT_LOOKS, Swarm, Witness
from tests.support.clocks import Clock
from tests.support.receipts import key_of, pseudonym_of


def test_who_reduced_signs_what_came() -> None:
    """Everybody's weight as whole samples under its pseudonym, its own too, without the keeper, who has none."""
    brought, pseudonyms = {"ada": 12.0, "bob": 20.0, "keeper": 0.0}, {}
    for name in brought:
        pseudonyms[key_of(name).peer_id] = pseudonym_of(name, "run")
    weights = {key_of(name).peer_id: weight for name, weight in brought.items()}
    text = Witness(key_of("ada").receipt_key("run"), "run").receipt(1, 7, weights, pseudonyms)
    receipt = open_receipt(read_receipt(text), pseudonym_of("ada", "run"))
    assert (receipt.run, receipt.era, receipt.step) == ("run", 1, 7)
    assert receipt.samples == {pseudonym_of("ada", "run"): 12, pseudonym_of("bob", "run"): 20}
    assert not any(key_of(name).peer_id in text for name in brought)


def test_the_node_is_watched_before_anything_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper whose DHT process was killed while the averager started stood still for good, and told nobody."""
    order: list[str] = []

    class Watch:
        def __init__(self, *_: object) -> None:
            order.append("watch")

        def start(self, averager: SimpleNamespace, _name: str) -> None:
            order.append(f"start {averager.name}")
            if averager.name == "averager":
                raise SwarmError("the DHT process has died")

    def make(name: str) -> Any:
        order.append(name)
        return SimpleNamespace(name=name)

    monkeypatch.setattr("peer.swarm.swarm.NodeWatch", Watch)
    assembly: Any = SimpleNamespace(
        access=SimpleNamespace(credentials=None, clock=time.time),
        config=RunConfig(),
        dht=None,
        events=NOWHERE,
        role="keeper",
        tracker=lambda *_: make("tracker"),
        record_exchange=lambda *_: make("record exchange"),
        gradient_averager=lambda *_: make("averager"),
    )
    line = LineEstimate(None, time.monotonic, random.Random())
    with pytest.raises(SwarmError, match="has died"):
        Swarm(assembly, torch.nn.Linear(1, 1), [], line, Suspicions(lambda _: None, time.time), lambda _: None)
    assert order == ["watch", "tracker", "record exchange", "averager", "start averager"]


def test_who_reduced_nothing_signs_nothing() -> None:
    """A peer in client mode, one alone, or a round without any samples."""
    witness, bob = Witness(key_of("ada").receipt_key("run"), "run"), key_of("bob").peer_id
    assert witness.receipt(0, 7, {}, {}) == ""
    assert witness.receipt(0, 7, {bob: 0.0}, {bob: pseudonym_of("bob", "run")}) == ""


def swarm_with(**parts: Any) -> Any:
    """A swarm of these parts that has joined nobody, at step 4."""
    swarm: Any = Swarm.__new__(Swarm)
    swarm.state = SimpleNamespace(step=4)
    swarm._overlapping, swarm._has_late_samples, swarm._silent_looks, swarm._unfollowed = None, False, 0, -1
    swarm._may_follow, swarm._config, swarm._interrupted = True, RunConfig(), threading.Event()
    swarm._stands_by, swarm._rounds = False, SimpleNamespace(line_is_too_slow=False)
    swarm._events = NOWHERE
    vars(swarm).update(parts)
    return swarm


def behind(*answers: list[Any] | Lack, **changes: Any) -> Any:
    """A swarm whose peer is a step behind, and whose keeper answers so, one time after another."""
    left, followed, forgotten = list(answers), list[Any](), list[int]()
    swarm = swarm_with(
        forgotten=forgotten,
        _transfers=SimpleNamespace(average=lambda *_: left.pop(0)),
        training=SimpleNamespace(shapes=[]),
        _gradients=SimpleNamespace(
            drop_all=lambda: 12, take_back=lambda: None, due_samples=0, forget_remainders=lambda: forgotten.append(5)
        ),
        _rounds=SimpleNamespace(attempts=0),
        _tracker=SimpleNamespace(is_undone=False, swarm_step=5, report=lambda samples: None),
        state=SimpleNamespace(step=4, era=0, follow=followed.append, followed=followed),
        _interrupted=SimpleNamespace(wait=lambda seconds: False),
    )
    vars(swarm).update(changes)
    return swarm


def test_a_step_is_taken_by_the_peers_that_averaged() -> None:
    """They decide on the next one."""
    taken: list[frozenset[str]] = []
    swarm = swarm_with(
        _gradients=SimpleNamespace(due_samples=12),
        _pause=DownloadPause(Clock()),
        _witness=SimpleNamespace(receipt=lambda *_: "a receipt"),
        state=SimpleNamespace(step=5, era=1, take_step=taken.append),
    )
    group = AveragedGroup(size=2, samples=64, averaged_bytes=8, peers=frozenset({"Qm1", "Qm2"}))
    outcome = swarm._step(group, 0.1)
    assert (outcome.samples, outcome.group_samples, outcome.receipt) == (12, 64, "a receipt")
    assert taken == [group.peers]


def test_what_a_peer_had_accumulated_is_lost_only_when_it_follows() -> None:
    """It says that it took a step, and why the samples are in none."""
    swarm = behind(Lack.NOT_YET, ["tensor"])
    assert swarm._follow(lambda: None) is None
    outcome = swarm._follow(lambda: None)
    assert outcome is not None
    assert (outcome.followed_steps, outcome.averaged, outcome.samples) == (1, False, 0)
    assert (outcome.lost_samples, outcome.lost_reason) == (12, "late")
    assert swarm.state.followed == [["tensor"]]


def test_late_samples_are_collected_and_kept_where_the_run_allows_it() -> None:
    """They count for the next step."""
    config = RunConfig.from_mapping({"averaging": {"delay": True}})
    swarm, collected = behind(["tensor"], _config=config), list[str]()
    outcome = swarm._follow(lambda: collected.append("collected"))
    assert outcome is not None
    assert (outcome.lost_samples, outcome.lost_reason, collected) == (0, "", ["collected"])


def test_a_peer_follows_no_more_where_the_average_is_gone_or_nobody_answers() -> None:
    """It asks for the state then; a keeper that is a moment behind, or busy, is asked for the average again."""
    swarm = behind(Lack.GONE)
    assert swarm._follow(lambda: None) is None
    assert swarm._unfollowed == 4
    swarm = behind(*[Lack.NOT_YET, Lack.BUSY] * 20, *[Lack.SILENT] * MOST_SILENT_LOOKS)
    for _ in range(40 + MOST_SILENT_LOOKS):
        assert swarm._unfollowed == -1
        assert swarm._follow(lambda: None) is None
    assert swarm._unfollowed == 4


@pytest.mark.parametrize(
    ("swarm_step", "has_drifted", "is_undone", "overlapping", "is_behind"),
    [
        (4, False, False, None, False),
        (5, False, False, None, True),
        (4, True, False, None, True),
        (4, False, True, None, True),
        (5, False, False, "a round", False),
    ],
)
def test_a_peer_is_behind_until_it_has_the_swarms_state(
    swarm_step: int, has_drifted: bool, is_undone: bool, overlapping: Any, is_behind: bool
) -> None:
    """Whatever it computed before would be lost; a round of its own that is under way comes first."""
    tracker = SimpleNamespace(swarm_step=swarm_step, has_drifted=has_drifted, is_undone=is_undone)
    assert swarm_with(_overlapping=overlapping, _tracker=tracker).is_behind is is_behind


@pytest.mark.parametrize(
    ("samples", "swarm_step", "paused", "wanted"),
    [(319, 4, False, True), (320, 4, False, False), (0, 5, False, False), (0, 4, True, False)],
)
def test_a_peer_computes_only_what_can_count(samples: int, swarm_step: int, paused: bool, wanted: bool) -> None:
    """No more than eight batches are believed, who is behind catches up first, and a paused run takes no step."""
    tracker = SimpleNamespace(swarm_step=swarm_step, has_drifted=False, is_undone=False, target_batch_size=40)
    tracker.course = SimpleNamespace(steering=Steering(paused=paused))
    gradients = SimpleNamespace(all_samples=samples)
    assert swarm_with(_overlapping=None, _tracker=tracker, _gradients=gradients).wants_samples is wanted


def test_a_peer_of_a_paused_run_waits() -> None:
    """A call waits a moment, so that the loop that calls it again and again rests; leaving ends the wait."""
    waits = list[float]()
    swarm = swarm_with(
        _tracker=SimpleNamespace(
            course=SimpleNamespace(steering=Steering(paused=True)), rate=SimpleNamespace(pause=nullcontext)
        ),
        _interrupted=SimpleNamespace(wait=waits.append),
        _rounds=SimpleNamespace(prepare=lambda: None),
        _situation=lambda: Situation(step=4, swarm_step=4, is_held=True),
    )
    assert swarm.advance() is None
    assert waits == [HELD_POLL_S]


@pytest.mark.parametrize(("attempts", "forgotten"), [(0, []), (1, [5])])
def test_who_follows_keeps_remainders_that_were_in_no_round(attempts: int, forgotten: list[int]) -> None:
    """After a round, others may have counted values that this peer sent of them."""
    swarm = behind(["tensor"], _rounds=SimpleNamespace(attempts=attempts))
    assert swarm._follow(lambda: None).lost_samples == 12
    assert swarm.forgotten == forgotten


def test_a_peer_on_a_line_too_slow_for_a_round_stands_by_until_the_line_is_faster() -> None:
    """It drops its samples, and the others do not wait for it; it says so once, and computes nothing."""
    calls: list[str] = []
    told: list[float | None] = []
    line = LineEstimate(0.1e6, Clock(), random.Random(1))
    rounds = SimpleNamespace(
        line_is_too_slow=True,
        round_bytes=36_000_000,
        attempts=0,
        cancel=lambda: calls.append("gave up its group"),
    )
    swarm = swarm_with(
        _last_samples=0,
        _line=line,
        _gradients=SimpleNamespace(drop_all=lambda: 12, due_samples=0, all_samples=0),
        _rounds=rounds,
        _tracker=SimpleNamespace(
            swarm_step=4,
            has_drifted=False,
            is_undone=False,
            target_batch_size=40,
            stand_by=told.append,
            report=lambda samples: calls.append(f"has {samples} samples"),
            course=SimpleNamespace(allowances=SimpleNamespace(usual_s=30.0), steering=Steering()),
            rate=SimpleNamespace(per_second=1.0),
        ),
        _interrupted=SimpleNamespace(wait=lambda seconds: calls.append("waits")),
    )
    assert not swarm.wants_samples
    outcome = swarm._stand_by()
    assert (outcome.averaged, outcome.lost_samples, outcome.lost_reason) == (False, 12, "slow line")
    assert calls == ["gave up its group", "has 0 samples"]
    assert swarm._stand_by() is None
    assert calls[2:] == ["waits"]
    assert told == [0.1e6, 0.1e6]
    swarm._tracker.course.steering, swarm._tracker.swarm_step = Steering(last_step=9), 8
    assert not swarm.has_ended
    swarm._tracker.swarm_step = 9  # which this peer has not followed
    assert swarm.has_ended
    swarm._tracker.swarm_step = 4
    rounds.line_is_too_slow = False
    assert swarm.wants_samples


@pytest.mark.parametrize(("samples", "own", "all_rates", "ahead"), [(9, 2.0, 8.0, False), (10, 2.0, 8.0, True)])
def test_a_peer_trains_no_further_ahead_than_its_share(samples: int, own: float, all_rates: float, ahead: bool) -> None:
    """With a quarter of the swarm's speed, a peer has its part of the next batch of 40 when it has 10 samples of it."""
    tracker = SimpleNamespace(
        rate=SimpleNamespace(per_second=own),
        view=SimpleNamespace(rate=all_rates),
        course=SimpleNamespace(steering=Steering()),
        target_batch_size=40,
    )
    gradients = SimpleNamespace(local_samples_accumulated=samples, all_samples=samples)
    assert swarm_with(_tracker=tracker, _gradients=gradients)._is_ahead is ahead
    gradients.all_samples = 320  # with those that are being averaged: more are not believed of anybody
    assert swarm_with(_tracker=tracker, _gradients=gradients)._is_ahead


@pytest.mark.parametrize(
    ("delay", "is_keeper", "step", "may"),
    [
        (True, False, 2, True),
        (True, False, 3, False),
        (True, False, 4, True),
        (False, False, 2, False),
        (True, True, 2, False),
    ],
)
def test_no_sample_passes_a_phases_boundary_beside_a_round(delay: bool, is_keeper: bool, step: int, may: bool) -> None:
    """A phase begins after step 4: who trains beside the round towards it would bring samples of the one before."""
    phases = [{"from_step": 4, "target_batch_size": 64}]
    config = RunConfig.from_mapping({"averaging": {"delay": delay, "target_batch_size": 32}, "phases": phases})
    state = SimpleNamespace(step=step)
    assert swarm_with(_config=config, _may_follow=not is_keeper, state=state)._may_overlap is may


@pytest.mark.parametrize(
    ("arriving", "since_s", "has_begun", "arrive"),
    [(1, 0.0, False, True), (0, 0.0, False, False), (1, 7200.0, False, False), (1, 0.0, True, False)],
)
def test_others_are_let_in_for_a_while(arriving: int, since_s: float, has_begun: bool, arrive: bool) -> None:
    """Those who are still to take the step that this peer has taken, unless the leader begins without them."""
    swarm = swarm_with(
        _rounds=SimpleNamespace(has_begun=has_begun),
        _tracker=SimpleNamespace(view=SimpleNamespace(arriving=arriving)),
        state=SimpleNamespace(step=4, changed_at=time.monotonic() - since_s),
    )
    assert swarm._others_arrive is arrive


def test_others_are_heard_until_the_peer_leaves() -> None:
    """In a thread of its own, for this peer may be computing; what cannot be processed ends nothing."""
    heard, told = Mailbox[str](3), list[str]()
    for said in ("a count", "nonsense", "a report"):
        assert heard.put(said)

    def hear(said: str) -> None:
        if said == "nonsense":
            raise ValueError(said)
        told.append(said)

    swarm = swarm_with(_gradients=SimpleNamespace(is_alive=lambda: True))
    heard.close()
    swarm._serve(heard, hear)
    assert told == ["a count", "a report"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_state_is_copied_for_who_downloads_it(fails: bool) -> None:
    """Or the averager's process learns that it could not be."""
    copies = Mailbox[Any](1)

    def copy() -> str:
        if fails:
            raise MemoryError
        return "a copy"

    swarm = swarm_with(_gradients=SimpleNamespace(copies=copies), training=SimpleNamespace(copy=copy))
    with pytest.raises(MemoryError) if fails else nullcontext():
        swarm._give_copy(None)
    assert copies.get() == (None if fails else "a copy")


@pytest.mark.parametrize(("usual_s", "in_vain"), [(36_000.0, False), (0.5, True)])
def test_the_others_last_samples_are_waited_for_once_a_step(usual_s: float, in_vain: bool) -> None:
    """Until one of them reports them; where the batch stays short, this peer computes on, and waits no more for it."""
    looks: list[None] = []
    tracker = SimpleNamespace(
        view=SimpleNamespace(faster_rate=lambda own_id: 1.0, arriving=0),
        own_id="Qm1",
        course=SimpleNamespace(allowances=SimpleNamespace(usual_s=usual_s), sketch_at=lambda step: ()),
        rate=SimpleNamespace(per_second=8.0),
        look_now=lambda: None,
        sketch=(),
        swarm_step=4,
        is_undone=False,
        has_drifted=False,
        is_held=False,
        missing_samples=10_000,
        remaining_s=0.0,
    )

    def wait(seconds: float) -> bool:
        looks.append(None)
        rounds.is_full = len(looks) == 5
        time.sleep(seconds)
        return False

    rounds = SimpleNamespace(prepare=lambda: None, line_is_too_slow=False, is_full=False, has_begun=False)
    interrupted = SimpleNamespace(wait=wait, is_set=lambda: False)
    swarm = swarm_with(
        _interrupted=interrupted, _rounds=rounds, _tracker=tracker, _last_samples=8, _held_after=-1, _held=(4, 0.0)
    )
    swarm._pause = DownloadPause(time.monotonic)
    assert swarm._situation().may_hold
    swarm._hold()
    assert rounds.is_full is not in_vain
    assert swarm._held[1] > 0
    assert swarm._situation().may_hold is not in_vain
