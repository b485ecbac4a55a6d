"""What a peer knows of the swarm's progress when its own state changes; real swarms are in tests/system."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.optim.progress_tracker import GlobalTrainingProgress
from hivemind.p2p import PeerID

from auth.keys import DeviceKey
from auth.swarm.authorizer import RecordKey
from peer.averaging.meetings import Heard
from peer.node.quorum import Quorum
from peer.reduction.shared_caps import WeightCaps
from peer.reporting.suspicions import Suspicions
from peer.swarm import tracker as swarm_tracker
from peer.swarm.decision import candidates
from peer.swarm.records import Course, KnownPeer, PeerRecord
from peer.swarm.refresh import REPORTS_PER_S, UNKNOWN_S
from peer.swarm.tracker import LED_SHARE, NOTHING_SEEN, StepTracker
from peer.swarm.view import TrainerPace
from tests.support.clocks import Clock
from tests.support.peer_records import Scene, peers, record


@pytest.mark.parametrize(("era", "known"), [(1, (23, 40)), (2, (5, 0))])
def test_a_return_to_a_checkpoint_takes_the_swarms_progress_back(era: int, known: tuple[int, int]) -> None:
    """Otherwise this peer would take itself to be behind, and fetch the very state that was undone."""
    begun: list[int] = []
    tracker = SimpleNamespace(
        era=1,
        course=Scene().course,
        _known_keepers=frozenset(),
        _looking=threading.Lock(),
        global_progress=SimpleNamespace(epoch=23, samples_accumulated=40),
        update_epoch=lambda new_epoch: begun.append(new_epoch),
    )
    StepTracker.begin_step_after(tracker, 5, era, ["Qm1"])  # type: ignore[arg-type]
    assert (tracker.global_progress.epoch, tracker.global_progress.samples_accumulated) == known
    assert (tracker.era, begun) == (era, [5])


def reporter(
    samples: int = 8,
    published: int = 4,
    stage: object = "stage",
    age_s: float = 0.0,
    remaining_s: float = 10_000.0,
    live: int = 5,
    led_s: float = 0.0,
) -> SimpleNamespace:
    """A tracker that has published so many samples so long ago, in a batch that is far from full."""
    return SimpleNamespace(
        should_report_progress=threading.Event(),
        shutdown_triggered=threading.Event(),
        local_progress=SimpleNamespace(samples_accumulated=samples),
        max_refresh_period=3600.0,
        _published=(time.monotonic() - age_s, "stage", published),
        _stage=stage,
        remaining_s=remaining_s,
        view=SimpleNamespace(live=range(live)),
        _led_s=led_s,
    )


def test_a_peer_that_stands_by_tells_its_line_until_it_trains_again() -> None:
    """Each news is reported at once, the same one again is none, and the others do not wait for the peer."""
    tracker = SimpleNamespace(_slow_line=None, _training=True, should_report_progress=threading.Event())
    reported = []
    for line in (None, 2e5, 2e5, 3e5, None):
        tracker.should_report_progress.clear()
        StepTracker.stand_by(tracker, line)  # type: ignore[arg-type]
        reported.append((tracker.should_report_progress.is_set(), tracker._training, tracker._slow_line))
    told = [(True, False, 2e5), (False, False, 2e5), (True, False, 3e5), (True, False, None)]
    assert reported == [(False, True, None), *told]
    tracker._slow_line, tracker._training = 2e5, True  # it has begun to train, and its line is as slow as before
    StepTracker.stand_by(tracker, 2e5)  # type: ignore[arg-type]
    assert not tracker._training
    tracker._training = True  # it has begun to train, because its line is faster
    StepTracker.stand_by(tracker, None)  # type: ignore[arg-type]
    assert tracker._training


@pytest.mark.parametrize("line", [None, 2e5])
def test_the_line_of_a_peer_that_stands_by_is_in_its_record(line: float | None) -> None:
    """As others read it."""
    tracker = SimpleNamespace(
        local_progress=SimpleNamespace(epoch=3, samples_accumulated=0, samples_per_second=0.0),
        target_batch_size=64,
        era=1,
        client_mode=False,
        _training=False,
        _role="trainer",
        _sketch=(2, ()),
        _slow_line=line,
    )
    record = StepTracker._record(tracker, 1e9)  # type: ignore[arg-type]
    assert PeerRecord.unpack(record.pack()).slow_line == line


class WaitedError(Exception):
    """A report was not due yet."""


def reports_at_once(tracker: SimpleNamespace) -> bool:
    """Whether the tracker publishes without a wait."""

    def wait(timeout: float) -> bool:
        raise WaitedError

    tracker.should_report_progress.wait = wait
    try:
        StepTracker._await_turn(tracker)  # type: ignore[arg-type]
    except WaitedError:
        return False
    return True


CROWD = 1000 * int(REPORTS_PER_S)


@pytest.mark.parametrize(
    ("changes", "at_once"),
    [
        ({}, False),
        ({"age_s": 2_600.0}, True),
        ({"stage": "another"}, True),
        ({"samples": 3}, True),
        ({"age_s": 2_600.0, "led_s": 3_000.0}, False),  # its leader knows
        ({"age_s": 2.0, "led_s": 1.0}, True),
        ({"remaining_s": 0.0, "live": CROWD, "age_s": 1001.0}, True),
        ({"remaining_s": 0.0, "live": CROWD}, False),
        ({"remaining_s": 0.0, "live": 10 * CROWD, "age_s": 1001.0}, False),
        ({"remaining_s": 0.0, "live": 10 * CROWD, "stage": "another"}, True),
    ],
)
def test_mere_samples_are_reported_as_rarely_as_others_look(changes: dict[str, Any], at_once: bool) -> None:
    """They would fill a home line; a step, a role, lost samples and the end are told at once, others rarely in a crowd.

    A full batch makes reports no more frequent than all can read.
    """
    tracker = reporter(**changes)
    assert reports_at_once(tracker) is at_once
    tracker.shutdown_triggered.set()
    assert reports_at_once(tracker)


@pytest.mark.parametrize(
    ("now", "missing", "seconds"), [(1000.0, 30, 10.0), (1002.0, 30, 26 / 3), (1020.0, 30, 22 / 3), (1002.0, 3, 0.0)]
)
def test_others_are_expected_to_go_on_as_they_reported(
    now: float, missing: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a few seconds without a report, not for good; this peer's own samples are known."""
    monkeypatch.setattr(swarm_tracker, "swarm_time", lambda: now)
    paces = (TrainerPace("Qm1", 1.0, 990.0), TrainerPace("Qm2", 2.0, 1000.0))
    view = replace(NOTHING_SEEN, step=4, paces=paces)
    tracker = SimpleNamespace(
        view=view, step=4, own_id="Qm1", missing_samples=missing, max_refresh_period=4.0, is_led=False
    )
    assert StepTracker.remaining_s.fget(tracker) == pytest.approx(seconds)  # type: ignore[attr-defined]
    tracker.view = replace(view, step=5)
    assert StepTracker.remaining_s.fget(tracker) == float("inf")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("live", "remaining_s", "seconds"),
    [
        (10, 0.0, 0.5),
        (10, 8.0, 2.0),
        (10, float("inf"), UNKNOWN_S),
        (60, 0.0, 1.0),
        (60, 300.0, 6.0),
        (600, 300.0, 10.0),
    ],
)
def test_in_a_crowd_each_looks_more_rarely(live: int, remaining_s: float, seconds: float) -> None:
    """So that what all looks take of a line does not grow with the swarm."""
    tracker = SimpleNamespace(
        _reducing_since=None,
        _led_s=0.0,
        local_progress=SimpleNamespace(epoch=3),
        min_refresh_period=0.5,
        max_refresh_period=6.0,
    )
    view = SimpleNamespace(step=3, keepers=1, live=range(live))
    assert StepTracker._next_look_s(tracker, view, remaining_s) == seconds  # type: ignore[arg-type]


TARGET, EXPIRATION_S = 64, 60.0
OWN, KEEPER = (PeerID(bytes([number] * 34)) for number in (1, 2))
OWN_ID, KEEPER_ID = OWN.to_base58(), KEEPER.to_base58()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The swarm's time, and the local one, as trackers see it."""
    clock = Clock()
    monkeypatch.setattr(swarm_tracker, "swarm_time", clock)
    monkeypatch.setattr(swarm_tracker, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def tracker(key: DeviceKey, clock: Clock, request: pytest.FixtureRequest) -> StepTracker:
    """A trainer, or one of another role, that trains after step 0 with 20 samples; its node reaches nobody."""
    role, dht = getattr(request, "param", "trainer"), SimpleNamespace(peer_id=OWN, client_mode=False)
    vars(dht).update(get=lambda *_, **__: None, add_validators=lambda _: None, run_coroutine=lambda *_, **__: None)
    token = SimpleNamespace(member="own", device_id="own")
    access = SimpleNamespace(run="run", clock=clock, credentials=SimpleNamespace(access_token=lambda now: token))
    made = StepTracker(
        dht,
        access=access,  # type: ignore[arg-type]
        key=RecordKey(key.private_der),
        role=role,
        keeper_ids=[KEEPER],
        newcomer_share=1.0,
        caps=WeightCaps(),
        suspicions=Suspicions(lambda _: None, clock),
        metadata_expiration=EXPIRATION_S,
        prefix="run",
        target_batch_size=TARGET,
    )
    made.begin_training()
    made.report_local_progress(0, 20)
    return made


def begin_step_after(tracker: StepTracker, step: int, voters: Collection[str]) -> None:
    """Have the tracker's peer take a step with these."""
    with tracker.pause_updates():
        tracker.begin_step_after(step, era=0, voters=voters)


def look(tracker: StepTracker, *known: KnownPeer) -> None:
    """Have the tracker read these records in the DHT."""
    tracker.global_progress = tracker._look_at(list(known))


def trainers(clock: Clock, *samples: int) -> list[KnownPeer]:
    """Trainers at step 0 that have just published so many samples."""
    return peers(*[record(0, count, time=clock.now) for count in samples])


def said(clock: Clock, samples: int) -> bytes:
    """A trainer's report that it has just sent to its leader."""
    return record(0, samples, time=clock.now).report()


def test_reports_alone_fill_a_batch(tracker: StepTracker, clock: Clock) -> None:
    """Without another look at the DHT, which would show them a second later."""
    look(tracker, *trainers(clock, 10, 10))
    clock.now += 1.0
    tracker.hear(Heard())
    tracker.hear(Heard(reports={"trainer-0": said(clock, 33)}))
    assert (tracker.view.samples, tracker.ready_to_update_epoch) == (63, False)
    tracker.hear(Heard(reports={"trainer-1": said(clock, 11)}))
    assert (tracker.view.samples, tracker.ready_to_update_epoch) == (64, True)


def test_the_newest_record_of_a_peer_holds_however_it_came(tracker: StepTracker, clock: Clock) -> None:
    """A look at the DHT does not take back a report, nor an older report a look or a newer report."""
    [before], old = trainers(clock, 10), said(clock, 1)
    look(tracker, before)
    clock.now += 1.0
    tracker.hear(Heard(reports={"trainer-0": said(clock, 30)}))
    look(tracker, before)
    assert tracker.view.samples == 50
    tracker.hear(Heard(reports={"trainer-0": old}))
    assert tracker.view.samples == 50
    clock.now += 1.0
    look(tracker, *trainers(clock, 40))
    tracker.hear(Heard(reports={"trainer-0": old}))
    assert tracker.view.samples == 60


def test_a_report_counts_only_for_who_sent_it_and_is_known(
    tracker: StepTracker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """By a record in the DHT, with a token; what is no record, or far ahead of time, changes nothing."""
    caplog.set_level("INFO", logger="peer.swarm.tracker")
    look(tracker, *trainers(clock, 10, 10))
    clock.now += 1.0
    later = record(0, 30, time=clock.now + 1e6).report()
    tracker.hear(Heard(reports={"stranger": said(clock, 40), "trainer-0": b"garbage", "trainer-1": said(clock, 20)}))
    assert (tracker.view.samples, tracker.view.averaging) == (50, 3)
    assert [entry.getMessage().split(": ")[0] for entry in caplog.records] == [
        "trainer-0 sent its leader no valid report"
    ]
    tracker.hear(Heard(reports={"trainer-1": later}))
    look(tracker, *trainers(clock, 10, 20))
    assert (tracker.view.samples, tracker.view.averaging) == (50, 3)


def test_reports_put_off_no_look(tracker: StepTracker, clock: Clock) -> None:
    """One that is due stays due: others than those who report may have come."""
    look(tracker, *trainers(clock, 10))
    tracker.look_now()
    clock.now += 1.0
    tracker.hear(Heard(reports={"trainer-0": said(clock, 11)}))
    assert tracker.global_progress.next_fetch_time == clock.now - 1.0


def test_a_report_takes_no_step_back(tracker: StepTracker, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's thread takes the step while another one processes the report."""
    look(tracker, *trainers(clock, 10))
    process = tracker._progress

    def take_step() -> None:
        begin_step_after(tracker, 1, [])

    taking = threading.Thread(target=take_step)

    def process_slowly(known: list[KnownPeer]) -> GlobalTrainingProgress:
        progress = process(known)
        taking.start()
        taking.join(0.2)  # it is to wait until the report is processed
        return progress

    monkeypatch.setattr(tracker, "_progress", process_slowly)
    clock.now += 1.0
    tracker.hear(Heard(reports={"trainer-0": said(clock, 60)}))
    taking.join()
    assert (tracker.step, tracker.swarm_step, tracker.ready_to_update_epoch) == (1, 1, False)


def test_an_unknown_follower_is_looked_for(tracker: StepTracker, clock: Clock) -> None:
    """At once, for its record may have come to the DHT; but not at each of its reports."""
    look(tracker, *trainers(clock, 10))
    looks = []
    for _ in range(3):
        due = clock.now + UNKNOWN_S / 4  # later than now, whatever the records say
        tracker.global_progress.next_fetch_time = due
        tracker.hear(Heard(reports={"stranger": said(clock, 40)}))
        looks.append(tracker.global_progress.next_fetch_time == clock.now)
        clock.now += UNKNOWN_S / 2
    assert looks == [True, False, True]


def test_a_leader_tells_when_the_batch_will_be_full(tracker: StepTracker, clock: Clock) -> None:
    """Its count is no record: it fills no batch; it holds for a while, and for the step of which it is."""
    look(tracker, *trainers(clock, 10))
    heard = Heard((0, 0), count=(60, 3.0))
    tracker.hear(heard)
    assert (tracker.is_led, tracker.missing_samples, tracker.remaining_s) == (True, 4, 3.0)
    clock.now += 5.0
    assert (tracker.missing_samples, tracker.remaining_s) == (4, 0.0)
    tracker.hear(replace(heard, count=(99, 0.0)))
    assert (tracker.missing_samples, tracker.ready_to_update_epoch) == (0, False)
    for other in (replace(heard, position=(0, 1)), replace(heard, position=(1, 0))):
        tracker.hear(other)
        assert (tracker.is_led, tracker.missing_samples) == (False, 34)
    tracker.hear(heard)
    clock.now += tracker.heartbeat_s
    assert (tracker.is_led, tracker.missing_samples) == (False, 34)


@pytest.mark.parametrize("heard", [Heard(count=(60, 3.0)), Heard(reports={"trainer-0": b"any"})])
def test_who_meets_others_looks_and_reports_rarely(tracker: StepTracker, clock: Clock, heard: Heard) -> None:
    """With the keeper in sight; who has missed a step looks at once, all the same."""
    beacon = record(0, time=clock.now).model_copy(update={"course": Course(age_s=0.0, usual_s=0.0, credits={})})
    keeper = KnownPeer("the keeper", "keeper", "k", "keeper", beacon)
    look(tracker, keeper, *trainers(clock, 10))
    tracker.hear(heard)
    assert tracker._next_look_s(replace(tracker.view, keeper_ids=frozenset()), 0.0) < 1.0
    look(tracker, keeper, *trainers(clock, 10))
    rarely = pytest.approx(LED_SHARE * tracker.heartbeat_s)
    assert tracker._led_s == tracker.global_progress.next_fetch_time - clock.now == rarely
    clock.now += 1.0
    look(tracker, *peers(*[record(1, time=clock.now)] * 3))
    assert tracker.global_progress.next_fetch_time - clock.now == tracker.min_refresh_period


def test_a_leader_that_has_gone_on_is_looked_after(tracker: StepTracker, clock: Clock) -> None:
    """The step has been taken, and the records show by whom."""
    look(tracker, *trainers(clock, 10))
    assert tracker.global_progress.next_fetch_time > clock.now
    tracker.hear(Heard(gone_on=True))
    assert tracker.global_progress.next_fetch_time == clock.now
    assert tracker.global_state_updated.is_set()


def test_a_report_is_the_same_until_the_record_changes(tracker: StepTracker, clock: Clock) -> None:
    """So that a peer with no news sends none; the newest is what others would read in the DHT."""
    first = tracker.report()
    clock.now += 1.0
    assert tracker.report() == first
    tracker.report_local_progress(0, 24)
    second = tracker.report()
    assert tracker.report() == second
    read = [PeerRecord.read_report(message) for message in (first, second)]
    assert [(heard.samples, heard.time) for heard in read] == [(20, clock.now - 1.0), (24, clock.now)]
    tracker.stand_by(2e5)
    assert not PeerRecord.read_report(tracker.report()).training


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
def test_the_keeper_reports_to_nobody(tracker: StepTracker) -> None:
    """It leads."""
    assert tracker.report() == b""


def test_the_keeper_leads_while_it_may_be_there(tracker: StepTracker, clock: Clock) -> None:
    """The one in view, else the one that was seen lately; then those at the step that others can reach."""
    reachable, unreachable, behind = peers(*[record(step, 10, time=clock.now) for step in (5, 5, 4)])
    unreachable = replace(unreachable, record=unreachable.record.model_copy(update={"client_mode": True}))
    beacon = reachable.record.model_copy(update={"course": Course(age_s=0.0, usual_s=0.0, credits={})})
    keeper = KnownPeer("the keeper", "keeper", "k", "keeper", beacon)
    begin_step_after(tracker, 5, [])
    others = candidates((), {tracker.own_id, "trainer-0"}, "run", (0, 5))
    look(tracker, keeper, reachable, unreachable, behind)
    assert tracker.leaders == ("the keeper",)
    look(tracker, reachable, unreachable, behind)
    assert tracker.leaders == (KEEPER_ID,)
    clock.now += EXPIRATION_S / 2 + 1
    look(tracker, keeper, reachable, unreachable, behind)  # its record is there, and not renewed
    assert tracker.leaders == others
    assert len(others) == 2


def silence(tracker: StepTracker, clock: Clock, *known: KnownPeer) -> None:
    """Look for so long that everybody is gone who is not among the known."""
    for _ in range(3):
        look(tracker, *known)
        clock.now += EXPIRATION_S / 4


def test_who_took_the_last_step_decides_on_the_next(tracker: StepTracker, clock: Clock) -> None:
    """Whoever else is there; each is expected for a time, and once more after another step."""
    voters, others = frozenset({OWN_ID, KEEPER_ID, "trainer-0"}), frozenset({"trainer-0", "trainer-1"})
    begin_step_after(tracker, 0, voters)
    assert tracker.quorum == Quorum(voters, keepers=frozenset({KEEPER_ID}))
    silence(tracker, clock, *trainers(clock, 10, 10))
    assert tracker.quorum.gone == {KEEPER_ID}
    silence(tracker, clock)
    assert tracker.quorum == Quorum(voters, voters - {OWN_ID}, frozenset({KEEPER_ID}))
    begin_step_after(tracker, 1, others)
    assert tracker.quorum == Quorum(others, keepers=frozenset({KEEPER_ID}))


@pytest.mark.parametrize(
    ("tracker", "keeper"), [("trainer", KEEPER_ID), ("keeper", OWN_ID)], indirect=["tracker"], ids=["trainer", "keeper"]
)
def test_of_a_step_that_nobody_remembers_the_keeper_decides(tracker: StepTracker, clock: Clock, keeper: str) -> None:
    """As after a checkpoint, whether or not it is seen; and the keeper itself knows that it is the keeper."""
    for step, voters in enumerate(([], ["trainer-0"], [])):
        begin_step_after(tracker, step, voters)
        assert tracker.quorum == Quorum(frozenset(voters or [keeper]), keepers=frozenset({keeper}))
    silence(tracker, clock, *trainers(clock, 10))
    assert tracker.quorum.gone == frozenset([keeper] if keeper == KEEPER_ID else [])


@pytest.mark.parametrize("voters", [[], [OWN_ID, "trainer-0"]])
def test_a_keeper_that_has_another_identity_is_expected(tracker: StepTracker, voters: list[str]) -> None:
    """Its voice is needed if nobody knows who took the last step; those that did still decide."""
    begin_step_after(tracker, 0, voters)
    moved = PeerID(bytes([3] * 34)).to_base58()
    tracker.keeper_at([f"/ip4/127.0.0.1/tcp/1/p2p/{moved}"])
    assert tracker.quorum == Quorum(frozenset(voters or [moved]), keepers=frozenset({moved}))
