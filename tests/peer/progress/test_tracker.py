"""What a peer knows of the swarm's progress when its own state changes; real swarms are in tests/system."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from dataclasses import replace

import pytest

from peer.averaging.requirements import Heard
from peer.config.run import RunConfig
from peer.node.quorum import Quorum
from peer.progress.decision import candidates
from peer.progress.fingerprint import Sketch
from peer.progress.records import Course, KnownPeer, PeerRecord
from peer.progress.refresh import REPORTS_PER_S, UNKNOWN_S, Refresh
from peer.progress.tracker import INFERRED_LIFETIMES, LED_SHARE, NOTHING_SEEN, Clocks, Owner, StepTracker
from peer.progress.view import GREETING_PERIOD_S, MEETING_S, SwarmCourse, SwarmView, TrainerPace
from peer.reduction.findings import Finding, FindingKind
from peer.reporting.suspicions import Suspicions
from tests.support.clocks import Clock
from tests.support.peer_records import peers, record

TARGET, EXPIRATION_S = 64, 60.0
OWN_ID, KEEPER_ID = "own", "the keeper"
REFRESH = Refresh(shortest_s=0.5, expiration_s=EXPIRATION_S)
CONFIG = RunConfig.from_mapping({"averaging": {"statistics_expiration_s": EXPIRATION_S}})


@pytest.fixture
def clock() -> Clock:
    """The swarm's time, and the local one, as trackers see it."""
    return Clock()


@pytest.fixture
def tracker(clock: Clock, request: pytest.FixtureRequest) -> StepTracker:
    """A trainer, or one of another role, that trains after step 0 with 20 samples; it has read nothing yet."""
    role = getattr(request, "param", "trainer")
    made = StepTracker(
        Owner(OWN_ID, "own", "own", role),
        "run",
        SwarmCourse.of(CONFIG, OWN_ID, role, Suspicions(lambda _: None, clock)),
        target_batch_size=TARGET,
        refresh=REFRESH,
        keepers=[KEEPER_ID],
        clocks=Clocks(clock, clock),
    )
    made.begin_training()
    made.report(20)
    return made


def begin_step_after(
    tracker: StepTracker, step: int, voters: Collection[str] = (), era: int = 0, samples: int = 0
) -> None:
    """Have the tracker's peer take a step with these."""
    tracker.begin_step(step, era, voters, (), samples)


def look(tracker: StepTracker, *known: KnownPeer) -> None:
    """Have the tracker read these records in the DHT."""
    tracker.look_begins()
    tracker.look(list(known))


def trainers(clock: Clock, *samples: int) -> list[KnownPeer]:
    """Trainers at step 0 that have just published so many samples."""
    return peers(*[record(0, count, time=clock.now) for count in samples])


def said(clock: Clock, samples: int) -> bytes:
    """A trainer's report that it has just sent to its leader."""
    return record(0, samples, time=clock.now).report()


@pytest.mark.parametrize(("kind", "samples"), [("parts", 28), ("average", 44)])
def test_findings_of_the_averager_are_suspicions(
    tracker: StepTracker, clock: Clock, kind: FindingKind, samples: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The samples of a device whose parts were refused fill no batch."""
    known = trainers(clock, 8, 16)
    look(tracker, *known)
    assert tracker.samples == 44
    tracker.heed(Finding("trainer-1", kind, "did what no honest peer does"))
    assert "peer trainer-1) did what no honest peer does (step 0)" in caplog.text
    look(tracker, *known)
    assert tracker.samples == samples


@pytest.mark.parametrize(("era", "known"), [(0, (23, 0)), (1, (5, 40))])
def test_a_return_to_a_checkpoint_takes_the_swarms_progress_back(
    tracker: StepTracker, era: int, known: tuple[int, int]
) -> None:
    """Otherwise this peer would take itself to be behind, and fetch the very state that was undone."""
    begin_step_after(tracker, 23)
    begin_step_after(tracker, 5, era=era, samples=40)
    assert (tracker.swarm_step, tracker.samples) == known
    assert (tracker.era, tracker.step) == (era, 5)


def test_a_peer_that_stands_by_tells_its_line_until_it_trains_again(tracker: StepTracker) -> None:
    """Each news is reported at once, the same one again is none, and the others do not wait for the peer."""
    reported = []
    for line in (None, 2e5, 2e5, 3e5, None):
        told = tracker.publication()
        tracker.stand_by(line)
        is_news, told = tracker.publish_in_s == 0.0, tracker.publication()
        reported.append((is_news, told.training, PeerRecord.unpack(told.pack()).slow_line))
    assert reported == [
        (False, True, None),
        (True, False, 2e5),
        (False, False, 2e5),
        (True, False, 3e5),
        (True, False, None),
    ]
    tracker.stand_by(2e5)
    tracker.begin_training()  # and its line is as slow as before
    tracker.stand_by(2e5)
    assert not tracker.publication().training
    tracker.begin_training()  # because its line is faster
    tracker.stand_by(None)
    assert tracker.publication().training


CROWD = 4 * int(REPORTS_PER_S)


@pytest.mark.parametrize(
    ("change", "passed_s", "at_once"),
    [
        ("samples", 0.0, False),
        ("samples", 2.5, True),
        ("samples in a crowd", 3.9, False),  # so that all reports together can be read
        ("samples in a crowd", 4.1, True),
        ("samples of a led peer", 2.5, False),  # its leader knows
        ("fewer samples", 0.0, True),
        ("a step", 0.0, True),
        ("nothing", EXPIRATION_S / 4 - 1, False),
        ("nothing", EXPIRATION_S / 4, True),  # the record would expire
        ("nothing, for it could not be published", 0.0, True),
    ],
)
def test_mere_samples_are_reported_as_rarely_as_others_look(
    tracker: StepTracker, clock: Clock, change: str, passed_s: float, at_once: bool
) -> None:
    """They would fill a home line; a step, lost samples and the end are told at once, others rarely in a crowd."""
    live = CROWD if "crowd" in change else 40  # this peer included
    look(tracker, *trainers(clock, *[1] * (live - 1)))
    tracker.publication()
    if "led" in change:
        tracker.hear(Heard((0, 0), count=(30, 60.0)))
    if change.startswith("samples"):
        tracker.report(21)
    elif change == "fewer samples":
        tracker.report(19)
    elif change == "a step":
        begin_step_after(tracker, 1)
    elif "could not" in change:
        tracker.not_published()
    clock.now += passed_s
    assert (tracker.publish_in_s == 0.0) is at_once


@pytest.mark.parametrize(
    ("passed_s", "missing", "seconds"), [(0.0, 30, 10.0), (2.0, 30, 26 / 3), (20.0, 30, 24 / 3), (2.0, 3, 0.0)]
)
def test_others_are_expected_to_go_on_as_they_reported(
    tracker: StepTracker, clock: Clock, passed_s: float, missing: int, seconds: float
) -> None:
    """For a few seconds without a report, not for good; this peer's own samples are known."""
    paces = (TrainerPace(OWN_ID, 1.0, clock.now - 10.0), TrainerPace("Qm2", 2.0, clock.now))
    begin_step_after(tracker, 4, samples=TARGET - missing)
    clock.now += passed_s
    tracker.view = replace(NOTHING_SEEN, step=4, paces=paces)
    assert tracker.remaining_s == pytest.approx(seconds)
    tracker.view = replace(tracker.view, step=5)
    assert tracker.remaining_s == math.inf


@pytest.mark.parametrize(
    ("live", "remaining_s", "seconds"),
    [(10, 1.0, 0.5), (10, 8.0, 2.0), (10, math.inf, UNKNOWN_S), (60, 1.0, 1.0), (60, 300.0, 3.0), (240, 300.0, 4.0)],
)
def test_in_a_crowd_each_looks_more_rarely(
    tracker: StepTracker, clock: Clock, monkeypatch: pytest.MonkeyPatch, live: int, remaining_s: float, seconds: float
) -> None:
    """So that what all looks take of a line does not grow with the swarm."""
    view = replace(
        NOTHING_SEEN,
        trainers=1,
        rate=TARGET / remaining_s,
        live=frozenset(map(str, range(live))),
        keeper_ids=frozenset({KEEPER_ID}),
    )
    monkeypatch.setattr(tracker.course, "look", lambda *_: view)
    look(tracker)
    assert tracker.look_in_s == pytest.approx(seconds)


def test_reports_alone_fill_a_batch(tracker: StepTracker, clock: Clock) -> None:
    """Without another look at the DHT, which would show them a second later."""
    look(tracker, *trainers(clock, 10, 10))
    clock.now += 1.0
    tracker.hear(Heard())
    tracker.hear(Heard(reports={"trainer-0": said(clock, 33)}))
    assert (tracker.view.samples, tracker.is_full) == (63, False)
    tracker.hear(Heard(reports={"trainer-1": said(clock, 11)}))
    assert (tracker.view.samples, tracker.is_full) == (64, True)


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
    caplog.set_level("INFO", logger="peer.progress.tracker")
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
    assert tracker.look_in_s == 0.0


def test_a_report_takes_no_step_back(tracker: StepTracker, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's thread takes the step while another one processes the report."""
    look(tracker, *trainers(clock, 10))
    process = tracker.course.look
    taking = threading.Thread(target=begin_step_after, args=(tracker, 1))

    def process_slowly(known: list[KnownPeer], target: int, now: float) -> SwarmView:
        view = process(known, target, now)
        taking.start()
        taking.join(0.2)  # it is to wait until the report is processed
        return view

    monkeypatch.setattr(tracker.course, "look", process_slowly)
    clock.now += 1.0
    tracker.hear(Heard(reports={"trainer-0": said(clock, 60)}))
    taking.join()
    assert (tracker.step, tracker.swarm_step, tracker.is_full) == (1, 1, False)


def test_who_wants_a_look_during_another_one_gets_it(tracker: StepTracker, clock: Clock) -> None:
    """What was read may be older than what it is looked for."""
    look(tracker, *trainers(clock, 10))
    tracker.look_begins()
    assert tracker.look_in_s == math.inf
    tracker.look_now()
    tracker.look(trainers(clock, 10))
    assert tracker.look_in_s == 0.0
    look(tracker, *trainers(clock, 10))
    assert tracker.look_in_s > 0.0


def test_an_unknown_follower_is_looked_for(tracker: StepTracker, clock: Clock) -> None:
    """At once, for its record may have come to the DHT; but not at each of its reports."""
    look(tracker, *trainers(clock, 10))
    looks = []
    for _ in range(3):
        look(tracker, *trainers(clock, 10))
        tracker.hear(Heard(reports={"stranger": said(clock, 40)}))
        looks.append(tracker.look_in_s == 0.0)
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
    assert (tracker.missing_samples, tracker.is_full) == (0, False)
    for other in (replace(heard, position=(0, 1)), replace(heard, position=(1, 0))):
        tracker.hear(other)
        assert (tracker.is_led, tracker.missing_samples) == (False, 34)
    tracker.hear(heard)
    clock.now += REFRESH.heartbeat_s
    assert (tracker.is_led, tracker.missing_samples) == (False, 34)


@pytest.mark.parametrize("heard", [Heard(count=(60, 3.0)), Heard(reports={"trainer-0": b"any"})])
def test_who_meets_others_looks_and_reports_rarely(tracker: StepTracker, clock: Clock, heard: Heard) -> None:
    """With the keeper in sight; who has missed a step looks at once, all the same."""
    beacon = record(0, time=clock.now).model_copy(update={"course": Course(age_s=0.0, usual_s=0.0, credits={})})
    keeper = KnownPeer("the keeper", "keeper", "k", "keeper", beacon)
    look(tracker, keeper, *trainers(clock, 10))
    tracker.hear(heard)
    look(tracker, keeper, *trainers(clock, 10))
    tracker.publication()
    tracker.report(21)
    assert tracker.look_in_s == pytest.approx(LED_SHARE * REFRESH.heartbeat_s)
    assert tracker.publish_in_s == pytest.approx(REFRESH.heartbeat_s)
    clock.now += 1.0
    look(tracker, *peers(*[record(1, time=clock.now)] * 3))
    assert tracker.look_in_s == pytest.approx(REFRESH.shortest_s)


def test_who_stays_behind_looks_more_and_more_rarely(tracker: StepTracker, clock: Clock) -> None:
    """It may be downloading a state for hours, or stand by; reads would fill its line."""
    looks = []
    for _ in range(100):
        look(tracker, *peers(*[record(3, time=clock.now)] * 3))
        looks.append(tracker.look_in_s)
        clock.now += tracker.look_in_s
    assert tracker.swarm_step > tracker.step
    assert looks[0] == REFRESH.shortest_s
    assert looks == sorted(looks)
    assert looks[-1] == min(REFRESH.longest_s, GREETING_PERIOD_S / 2)
    begin_step_after(tracker, 3)
    look(tracker, *peers(*[record(4, time=clock.now)] * 3))
    assert tracker.look_in_s == REFRESH.shortest_s


def test_a_leader_that_has_gone_on_is_looked_after(tracker: StepTracker, clock: Clock) -> None:
    """The step has been taken, and the records show by whom."""
    look(tracker, *trainers(clock, 10))
    woken: list[float] = []
    tracker.on_due = lambda: woken.append(tracker.look_in_s)
    assert tracker.look_in_s > 0.0
    tracker.hear(Heard(gone_on=True))
    assert woken == [0.0]
    looks = []
    for _ in range(9):  # until the records show it, which may take a while
        look(tracker, *trainers(clock, 10))
        looks.append(tracker.look_in_s)
        clock.now += tracker.look_in_s
    assert looks[0] == REFRESH.shortest_s
    assert looks == sorted(looks)
    before = tracker.look_in_s
    begin_step_after(tracker, 1)
    tracker.hear(Heard((0, 0), gone_on=True))  # from the step before
    look(tracker, *peers(*[record(1, 10, time=clock.now)] * 3))
    assert tracker.look_in_s > before


def test_a_leaders_full_count_is_believed_until_the_step_is_taken(tracker: StepTracker, clock: Clock) -> None:
    """By who follows it, at this step: another batch is not full, and one that made a step is not averaged again."""
    look(tracker, *trainers(clock, 10))
    full = Heard((0, 0), count=(64, 0.0))
    for heard in (replace(full, count=(63, 0.1)), replace(full, position=(0, 1))):
        tracker.hear(heard)
        assert not tracker.is_told_full
    tracker.hear(full)
    assert (tracker.is_told_full, tracker.is_full) == (True, False)
    tracker.hear(Heard((0, 0), gone_on=True))
    assert not tracker.is_told_full
    begin_step_after(tracker, 1)
    tracker.hear(replace(full, position=(0, 1)))
    assert tracker.is_told_full
    clock.now += 1.0
    look(tracker, *peers(*[record(2, time=clock.now)] * 3))
    assert not tracker.is_told_full


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
def test_a_keeper_counts_itself(tracker: StepTracker) -> None:
    """It follows nobody."""
    tracker.hear(Heard((0, 0), count=(64, 0.0)))
    assert not tracker.is_told_full


def test_the_time_of_a_batch_is_known_from_the_trainers_rates(tracker: StepTracker, clock: Clock) -> None:
    """As far as they are credited."""
    assert tracker.batch_s == math.inf
    look(tracker, *trainers(clock, 10, 10))
    assert tracker.batch_s == tracker.target_batch_size / tracker.view.rate < math.inf


def test_a_report_is_the_same_until_the_record_changes(tracker: StepTracker, clock: Clock) -> None:
    """So that a peer with no news sends none; the newest is what others would read in the DHT."""
    first = tracker.message()
    clock.now += 1.0
    assert tracker.message() == first
    tracker.report(24)
    second = tracker.message()
    assert tracker.message() == second
    read = [PeerRecord.read_report(message) for message in (first, second)]
    assert [(heard.samples, heard.time) for heard in read] == [(20, clock.now - 1.0), (24, clock.now)]
    tracker.stand_by(2e5)
    assert not PeerRecord.read_report(tracker.message()).training


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
def test_the_keeper_reports_to_nobody(tracker: StepTracker) -> None:
    """It leads."""
    assert tracker.message() == b""


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


STATE, OTHER_STATE = (1.0, 0.0), (0.0, 1.0)


def reporting(clock: Clock, *sketches: Sketch, step: int = 5, era: int = 0) -> list[KnownPeer]:
    """Trainers that have just reported these states after this step."""
    own = record(step, time=clock.now)
    return peers(*[own.model_copy(update={"sketch": sketch, "era": era}) for sketch in sketches])


def restart(tracker: StepTracker, clock: Clock, *sketches: Sketch, step: int = 5, era: int = 0) -> bool:
    """Have a keeper begin after this step, and see peers that report these states; whether it may step before that."""
    tracker.begin_step(step, era, [], STATE, 0)
    look(tracker, *reporting(clock, *sketches, step=step, era=era))
    may_step = tracker.quorum.is_in({OWN_ID, "trainer-0", "trainer-1", "trainer-2"})
    clock.now += MEETING_S
    look(tracker, *reporting(clock, *sketches, step=step, era=era))
    return may_step


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
@pytest.mark.parametrize("era", [0, 2])
def test_a_restarted_keeper_takes_those_that_report_its_state_for_the_voters(
    tracker: StepTracker, clock: Clock, era: int
) -> None:
    """Once, for who reports it later has it from this keeper; and for a time, for it is a guess."""
    assert not restart(tracker, clock, STATE, STATE, STATE, OTHER_STATE, era=era)
    voters = frozenset({OWN_ID, "trainer-0", "trainer-1", "trainer-2"})
    assert tracker.quorum.voters == voters
    assert not tracker.quorum.is_in({OWN_ID, "trainer-3"})
    clock.now += 1.0
    look(tracker, *reporting(clock, *[STATE] * 4, era=era))
    assert tracker.quorum.voters == voters
    clock.now += INFERRED_LIFETIMES * EXPIRATION_S
    look(tracker, *reporting(clock, *[STATE] * 4, era=era))
    assert tracker.quorum == Quorum(frozenset({OWN_ID}), keepers=frozenset({OWN_ID}))


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
@pytest.mark.parametrize(
    ("sketches", "step", "era"),
    [
        ([STATE, OTHER_STATE, OTHER_STATE], 5, 0),  # few, who may be liars
        ([STATE, STATE], 0, 0),  # the run begins
        ([STATE, STATE], 5, 1),  # the run has gone back, and they have not yet
    ],
)
def test_nobody_else_is_taken_for_a_voter(
    tracker: StepTracker, clock: Clock, sketches: list[Sketch], step: int, era: int
) -> None:
    """Else a few devices that take part in no group would hold up the run."""
    begin_step_after(tracker, 7 if era else 0)
    restart(tracker, clock, *sketches, step=step, era=era)
    assert tracker.quorum.voters == {OWN_ID}


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
def test_the_voters_that_a_donor_names_count_too(tracker: StepTracker, clock: Clock) -> None:
    """They may be on the other side of a partition; and only until the keeper knows who has taken a step."""
    restart(tracker, clock, STATE)
    tracker.named_voters = frozenset({"far-0", "far-1"})
    tracker.begin_step(7, 0, [], STATE, 0)
    assert tracker.quorum.voters == {OWN_ID, "far-0", "far-1"}
    tracker.begin_step(8, 0, ["trainer-0"], STATE, 0)
    assert tracker.quorum.voters == {"trainer-0"}


@pytest.mark.parametrize("missing", [0, 1])
def test_claims_are_compared_with_what_came_if_it_fills_no_batch(tracker: StepTracker, missing: int) -> None:
    """Even if it makes a step; otherwise, a tenth of each batch could be claimed in vain for ever."""
    told: list[object] = []
    tracker.course.round_ended = lambda *facts: told.append(facts[-1])  # type: ignore[method-assign]
    samples = tracker.target_batch_size - missing
    tracker.round_ended({}, {}, {"trainer-0": None}, samples=samples, is_step=True)  # type: ignore[dict-item]
    assert told == [missing > 0]


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
@pytest.mark.parametrize("counted", [{}, {"trainer-0": 40.0}])
def test_a_keeper_knows_how_long_steps_take(tracker: StepTracker, clock: Clock, counted: dict[str, float]) -> None:
    """Though it reduced nothing itself; otherwise nobody would wait for the others' last samples."""
    look(tracker, *trainers(clock, 40))
    clock.now += 14.0
    tracker.round_ended({}, counted, {}, samples=64, is_step=True)
    course = tracker.record().course
    assert course is not None
    assert course.usual_s == 14.0


@pytest.mark.parametrize("tracker", ["keeper"], indirect=True)
def test_no_single_member_guides_a_keeper_that_has_inferred_the_voters(tracker: StepTracker, clock: Clock) -> None:
    """Two of the voters' members do, as long as they are half of them."""
    restart(tracker, clock, STATE, STATE, STATE, STATE)
    for ahead, swarm_step in ((1, 5), (2, 6)):
        clock.now += 1.0
        look(tracker, *(reporting(clock, *[OTHER_STATE] * ahead, step=6) + reporting(clock, *[STATE] * 4)[ahead:]))
        assert tracker.swarm_step == swarm_step


@pytest.mark.parametrize(
    ("tracker", "keeper"), [("trainer", KEEPER_ID), ("keeper", OWN_ID)], indirect=["tracker"], ids=["trainer", "keeper"]
)
def test_of_a_step_that_nobody_remembers_the_keeper_decides(tracker: StepTracker, clock: Clock, keeper: str) -> None:
    """As after a checkpoint, whether or not it is seen; and the keeper itself knows that it is the keeper."""
    for step, voters in enumerate(([], ["trainer-0"], [])):
        begin_step_after(tracker, step, voters)
        look(tracker, *trainers(clock, 10))
        clock.now += MEETING_S
        look(tracker, *trainers(clock, 10))
        assert tracker.quorum == Quorum(frozenset(voters or [keeper]), keepers=frozenset({keeper}))
    silence(tracker, clock, *trainers(clock, 10))
    assert tracker.quorum.gone == frozenset([keeper] if keeper == KEEPER_ID else [])


@pytest.mark.parametrize("voters", [[], [OWN_ID, "trainer-0"]])
def test_a_keeper_that_has_another_identity_is_expected(tracker: StepTracker, voters: list[str]) -> None:
    """Its voice is needed if nobody knows who took the last step; those that did still decide."""
    begin_step_after(tracker, 0, voters)
    moved = "another keeper"
    tracker.keepers_are([moved])
    assert tracker.quorum == Quorum(frozenset(voters or [moved]), keepers=frozenset({moved}))
