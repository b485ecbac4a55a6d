"""Where the swarm is, as its peers' records tell it: what is believed, and who is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.node.quorum import Quorum
from peer.progress.credit import Allowances, CreditBook
from peer.progress.fingerprint import Sketch
from peer.progress.records import Beacon, Course, KnownPeer, nearest_step
from peer.progress.view import (
    MEETING_S,
    REMEMBERED_SKETCHES,
    SwarmView,
    agreed_step,
    beacon_of,
    claim_of,
    steps_by_member,
    training,
    view_swarm,
)
from peer.reduction.attestation import AttestedWeight
from tests.support.peer_records import SOUND, TARGET, Scene, peers, record

FALSE = (2.0,) * 32


def keeper(
    step: int,
    *,
    era: int = 0,
    time: float = 1.0,
    age_s: float = 0.0,
    usual_s: float = 0.0,
    credit: dict[str, int] | None = None,
    sketch: Sketch = (),
) -> KnownPeer:
    """The keeper, whose record is a beacon."""
    course = Course(age_s=age_s, usual_s=usual_s, credits=credit or {})
    item = record(step, time=time).model_copy(update={"course": course, "sketch": sketch, "era": era})
    return KnownPeer("keeper", "keeper", "k", "keeper", item)


def test_the_newest_keepers_record_is_the_beacon() -> None:
    """The era counts first, then the step, then the time; whoever is no keeper in training says nothing."""
    newest = keeper(3, era=1, time=2.0, usual_s=5.0, sketch=SOUND)
    older = [keeper(9, time=9.0), keeper(2, era=1, time=9.0), keeper(3, era=1, time=1.0)]
    liar = KnownPeer("liar", "liar", "l", "trainer", keeper(60, era=9).record)
    idle = KnownPeer("idle", "keeper", "k2", "keeper", keeper(70, era=9).record.model_copy(update={"training": False}))
    others = [*peers(record(step=50, time=50.0)), *peers(record(step=50), role="keeper"), liar, idle]
    assert beacon_of([*older, newest, *others]) == Beacon(3, SOUND, 2.0, Course(age_s=0.0, usual_s=5.0, credits={}), 1)
    assert beacon_of(others) is None


def view_of(known: list[KnownPeer]) -> SwarmView:
    """The view of a peer that has seen nothing before and believes everything that is claimed."""
    beacons = [peer for peer in known if peer.record.course is not None]
    beacon = None
    if beacons and beacons[0].record.course is not None:
        beacon = Beacon(beacons[0].record.step, beacons[0].record.sketch, 1.0, beacons[0].record.course)
    step = nearest_step(agreed_step(steps_by_member(training(known))), beacon, beacon)
    return view_swarm(known, known, step, beacon, Allowances(target=1000))


@pytest.mark.parametrize(
    ("known", "seen"),
    [
        ([], (0, 0, 0, 0, 0.0)),
        (peers(record(samples=10), record(samples=5), record(step=2, samples=99)), (3, 2, 3, 15, 3.0)),  # one lags
        (peers(record(samples=4), record(training=False)), (3, 1, 1, 4, 1.0)),  # one still downloads the state
        ([*peers(record(), record()), keeper(4)], (4, 1, 2, 0, 2.0)),  # whatever most trainers have completed
        ([*peers(record(samples=8, rate=2.0)), keeper(3)], (3, 2, 1, 8, 2.0)),
        ([*peers(record(samples=8)), *peers(*[record(7, 9, rate=5.0)] * 2, role="auxiliary")], (3, 1, 1, 8, 1.0)),
        ([*peers(record(samples=8)), *peers(record(3, 9, rate=5.0), role="auxiliary")], (3, 2, 1, 8, 1.0)),
        ([*peers(record(samples=5)), *peers(record(3, 9), role="observer"), keeper(3)], (3, 2, 1, 5, 1.0)),
    ],
)
def test_who_is_waited_for_and_who_contributes(known: list[KnownPeer], seen: tuple[int, int, int, int, float]) -> None:
    """Trainers at the step contribute; keeper and auxiliary peers are waited for; only the keeper may set the step."""
    view = view_of(known)
    assert (view.step, view.averaging, view.trainers, view.samples, view.rate) == seen


def test_a_step_is_shared_once_another_peer_has_taken_it() -> None:
    """That peer may train on, assist or leave; a keeper alone, and peers a step behind, share nothing."""
    assert not view_of([keeper(3), *peers(record(step=2))]).step_is_shared
    assert view_of([keeper(3), *peers(record(step=3))]).step_is_shared
    assert view_of([keeper(3), *peers(record(step=3, training=False))]).step_is_shared
    assert view_of([keeper(3), *peers(record(step=3), role="auxiliary")]).step_is_shared


def test_a_peer_that_one_look_misses_lives_until_it_has_been_silent_for_long() -> None:
    """Whatever its step; another record of a peer counts at once, and one of an undone era not at all."""
    scene, both = Scene(), peers(record(step=7), record(step=8))
    scene.look(both)
    assert scene.look(both[:1], now=10.0).live == {"trainer-0", "trainer-1"}
    assert scene.look(both[:1], now=11.0).live == {"trainer-0"}
    scene.look(both, now=12.0)
    assert scene.look([both[0], said_goodbye(both[1])], now=13.0).live == {"trainer-0"}
    assert scene.look([keeper(2, era=1)], now=14.0).live == {"keeper"}


def said_goodbye(peer: KnownPeer) -> KnownPeer:
    """The peer once it has left."""
    return replace(peer, record=peer.record.model_copy(update={"training": False}))


VOTERS = ("trainer-0", "trainer-1", "keeper")


def gone(scene: Scene) -> set[str]:
    """The voters that are gone."""
    quorum = scene.course.quorum(VOTERS, {"keeper"})
    assert (quorum.voters, quorum.keepers) == (set(VOTERS), {"keeper"})
    return set(quorum.gone)


def test_a_voter_is_gone_once_it_has_been_unseen_for_long() -> None:
    """Longer than its record lives, so that it has gone from everybody's view; then it counts again if it comes."""
    scene, known = Scene(), [*peers(record(), record()), keeper(3)]
    scene.look(known, now=100.0)
    for now in (104.0, 108.0, 109.9):
        scene.look(known[:1], now)
        assert gone(scene) == set()
    scene.look(known[:1], now=110.0)
    assert gone(scene) == {"trainer-1", "keeper"}
    for now in (111.0, 119.0):  # the time without it begins anew
        scene.look(known, now)
        scene.look(known[:1], now + 4.0)
        assert gone(scene) == set()


def test_a_voter_that_was_never_seen_is_expected_for_as_long() -> None:
    """From this peer's first look; who is expected once more gets no more time by that."""
    scene = Scene()
    assert gone(scene) == set(VOTERS)
    for now, expected in ((1000.0, VOTERS[:1]), (1005.0, VOTERS[:2])):
        scene.look([], now)
        scene.course.expect(expected, (), 3)
        assert gone(scene) == set(VOTERS) - set(expected)
    scene.course.expect((), VOTERS[2:], 3)
    scene.look([], now=1010.0)
    assert gone(scene) == {"trainer-0"}


def test_a_pause_of_this_peers_own_looks_drops_no_voter() -> None:
    """A laptop that slept for hours has not looked for them: of any pause only half of the time counts."""
    scene, known = Scene(), [*peers(record(), record()), keeper(3)]
    scene.look(known)
    for now in (10_000.0, 10_004.9):
        scene.look(known[:1], now)
        assert gone(scene) == set()
    scene.look(known[:1], now=10_005.0)
    assert gone(scene) == {"trainer-1", "keeper"}


@pytest.mark.parametrize("role", ["trainer", "auxiliary", "keeper"])
def test_a_voter_that_says_goodbye_does_not_count(role: str) -> None:
    """Nor once its record is gone or it is back, until it has taken another step; an observer never does."""
    scene = Scene()
    voter, observer = *peers(record(), role=role), *peers(record(), role="observer")
    names = {voter.peer_id, observer.peer_id}
    scene.course.expect(names, (), 3)
    assert scene.course.quorum(names, ()) == Quorum(frozenset(names))
    for known, left in (([voter], False), ([said_goodbye(voter)], True), ([], True), ([voter], True)):
        scene.look([*known, observer])
        staying = set() if left else {voter.peer_id}
        assert scene.course.quorum(names, ()).voters == scene.course.quorum((), names).voters == staying
    scene.look([said_goodbye(voter)])
    scene.course.expect(names, (), 3)
    scene.look([said_goodbye(voter)])  # as it had been before it took this step
    assert scene.course.quorum(names, ()).voters == names


@pytest.mark.parametrize(
    ("voters", "left", "step", "sketch"),
    [
        (["trainer-0", "trainer-1", "trainer-2", "trainer-3"], 0, 8, SOUND),
        (["trainer-0", "trainer-1", "trainer-2", "trainer-3", "trainer-4"], 0, 4, ()),
        (["trainer-0", "trainer-1", "trainer-2", "trainer-3", "trainer-4"], 1, 8, SOUND),
        (["trainer-0", "trainer-2"], 0, 4, ()),  # one member alone may lie
        (["trainer-0", "trainer-2"], 1, 8, SOUND),  # unless it is the only one
        (["trainer-0", "keeper"], 0, 8, SOUND),
        ([], 0, 4, ()),
    ],
)
def test_half_of_the_voters_move_the_swarm_on(voters: list[str], left: int, step: int, sketch: Sketch) -> None:
    """And confirm a state; most members may be newcomers, which have no vote, and who has left has none."""
    scene, ahead = Scene(), record(step=8).model_copy(update={"sketch": SOUND})
    scene.course.expect(voters, {"keeper"}, 4)
    *firsts, third, fourth, fifth, sixth, seventh = peers(ahead, ahead, *[record(step=4)] * 5)
    known = [*firsts, said_goodbye(third) if left else third, fourth, fifth, sixth, seventh]
    assert (scene.look(known).step, scene.course.sketch_at(8)) == (step, sketch)


def test_a_sketch_is_accepted_once_the_voters_without_it_leave() -> None:
    """Though nobody reports anything new; these voters need not be trainers."""
    scene = Scene(is_keeper=True)
    ahead, *others = peers(record(4).model_copy(update={"sketch": SOUND}), record(3), record(3))
    helpers = peers(record(3), record(3), role="auxiliary")
    scene.course.expect({ahead.peer_id, *(helper.peer_id for helper in helpers)}, {"observer-0"}, 3)
    scene.look([ahead, *others, *helpers])
    scene.look([ahead, *others, *helpers], MEETING_S)
    assert scene.course.sketch_at(4) == ()
    scene.look([ahead, *others, *map(said_goodbye, helpers)], MEETING_S)
    assert scene.course.sketch_at(4) == SOUND


def test_a_step_is_taken_as_long_as_a_peer_holds_it() -> None:
    """Of the voters that took it, one may leave and one come back without its state: they count on."""
    scene, ahead = Scene(), record(5).model_copy(update={"sketch": SOUND})
    leaves, returns, holds, behind = peers(ahead, ahead, ahead, record(4))
    voters = {peer.peer_id for peer in (leaves, returns, holds, behind)}
    scene.course.expect(voters, (), 4)
    scene.look([leaves, returns, holds, behind])
    returned = replace(returns, record=record(3))
    for now in (0.0, 5.0, 10.0, 15.0):
        view = scene.look([said_goodbye(leaves), returned, holds, behind], now)
        assert (view.step, scene.course.sketch_at(5), scene.course.quorum(voters, ()).present) == (5, SOUND, voters)
    view = scene.look([said_goodbye(leaves), returned, said_goodbye(holds), behind], now=15.0)
    assert (view.step, scene.course.quorum(voters, ()).present) == (3, {returned.peer_id, behind.peer_id})


def test_a_members_devices_are_one_voter() -> None:
    """They move nobody alone."""
    scene, ahead = Scene(), record(step=8).model_copy(update={"sketch": SOUND})
    devices = [replace(peer, member="liar") for peer in peers(ahead, ahead)]
    scene.course.expect([peer.peer_id for peer in devices] + ["trainer-2"], (), 4)
    view = scene.look([*devices, *peers(ahead, ahead, record(step=4), record(step=4), record(step=4))[2:]])
    assert (view.step, scene.course.sketch_at(8)) == (4, ())


@pytest.mark.parametrize(("is_keeper", "limited"), [(False, 3), (True, 9)])
def test_without_the_keeper_nobody_is_ahead_of_it(is_keeper: bool, limited: int) -> None:
    """Those that took a step without the keeper may have taken another than the swarm did, until it is silent."""
    scene = Scene(is_keeper=is_keeper)
    known = [*peers(record(step=9), record(step=9)), keeper(3)]
    for voters, step in ((VOTERS[:2], limited), (VOTERS, max(4, limited)), ((), max(4, limited))):
        scene.course.expect(voters, {"keeper"}, 3)
        assert scene.look([*known[:2], keeper(3, time=2.0 + len(voters))]).step == step
    scene.course.expect(VOTERS[:2], {"keeper"}, 3)
    assert scene.look(known, now=11.0).step == 9


def test_the_census_counts_peers_by_role_and_reachability() -> None:
    """Whatever their steps; a peer in client mode takes no connections, and an observer averages nothing."""
    client = record(step=2).model_copy(update={"client_mode": True})
    view = view_of([*peers(record(), record(step=2), client), *peers(record(), role="observer"), keeper(3)])
    assert view.census == (("keeper", True, 1), ("trainer", False, 1), ("trainer", True, 2))


def test_who_may_lead_is_known_by_name() -> None:
    """Keepers at any step; of others only those at the step to which others can connect."""
    client = record(step=4).model_copy(update={"client_mode": True})
    trainers = peers(record(step=4), client, record(step=3), record(step=4, training=False))
    view = view_of([*trainers, *peers(record(step=4), role="auxiliary"), *peers(record(step=4), role="observer")])
    assert (view.keeper_ids, view.keepers) == (frozenset(), 0)
    assert view.here == {"trainer-0", "trainer-1", "auxiliary-0"}
    assert view.reachable == {"trainer-0", "auxiliary-0"}
    view = view_of([*trainers, keeper(3)])
    assert (view.keeper_ids, view.keepers) == ({"keeper"}, 1)
    assert "keeper" not in view.reachable


def test_peers_one_step_behind_are_arriving() -> None:
    """Whoever has averaged a step and not taken it yet is seen, keeper and auxiliary peers included; no others are."""
    others = [*peers(record(step=3), role="auxiliary"), keeper(4)]
    view = view_of([*peers(record(step=4), record(step=4), record(step=3), record(step=2)), *others])
    assert (view.step, view.averaging, view.arriving) == (4, 3, 2)


def test_the_lines_of_trainers_that_stand_by_are_known_whatever_their_state() -> None:
    """In an undone era, too; those who train, who are no trainers, and who have been silent for long do not count."""
    scene = Scene(is_keeper=True)
    waits = {"slow_line": 2e5, "era": 0}
    waiting = record(step=1, training=False).model_copy(update=waits)
    trains = record().model_copy(update=waits)
    known = [keeper(3, era=1), *peers(waiting, trains), *peers(waiting, role="observer")]
    assert scene.look(known).slow_lines == (2e5,)
    second = waiting.model_copy(update={"slow_line": 1e5})  # of the same member
    assert scene.look([*known, replace(known[1], peer_id="second", record=second)]).slow_lines == (2e5,)
    assert scene.look([keeper(3, era=1)], 5.0).slow_lines == (2e5,)
    assert scene.look([keeper(3, era=1)], 20.0).slow_lines == ()


def test_a_member_with_many_devices_has_one_vote() -> None:
    """One person's five devices do not outvote three people."""
    crowd = [KnownPeer(f"c{i}", "crowd", f"c{i}", "trainer", record(step=10**6)) for i in range(5)]
    assert view_of([*peers(record(), record(), record()), *crowd]).step == 3


def test_step_bomb_moves_nobody_and_is_named() -> None:
    """A claim of step 10^9 changes nothing and is held against the member once."""
    scene = Scene()
    for now, claimed in ((0.0, 3), (1.0, 10**9), (2.0, 10**9)):
        assert scene.look([*peers(record(), record(), record(step=claimed)), keeper(3)], now).step == 3
    assert [(raised.member, raised.kind) for raised in scene.raised] == [("trainer-2", "step")]


def test_who_went_on_out_of_sight_is_not_named() -> None:
    """Alone for minutes while keeper and others were away, it is far ahead, and was so when they first saw it again."""
    for is_keeper in (False, True):
        scene = Scene(is_keeper=is_keeper)
        others = [*peers(record(step=40), record(step=41)), keeper(40)]
        scene.look(others, 0.0)
        for now, step in ((1.0, 84), (2.0, 85), (60.0, 99)):
            ahead = KnownPeer("joan", "joan", "j", "trainer", record(step=step))
            scene.look([*others, ahead], now)
        assert not scene.raised


def test_step_bomb_of_most_members_holds_for_nobody_while_the_keeper_is_there() -> None:
    """Only when the beacon has not been renewed for a while do most members decide."""
    scene = Scene()
    bombs = peers(record(), record(step=10**9), record(step=10**9))
    assert scene.look([*bombs, keeper(3)], 0.0).step == 4
    assert scene.look([*bombs, keeper(3)], 9.0).step == 4
    assert scene.look([*bombs, keeper(3)], 11.0).step == 10**9


def test_a_keeper_that_is_back_with_an_older_state_sets_no_step() -> None:
    """Until it has caught up, most members do; a new era, in which steps were undone, holds at once."""
    scene = Scene()
    ahead = peers(record(step=50), record(step=50))
    assert scene.look([*ahead, keeper(50)], 0.0).step == 50
    assert scene.look([*ahead, keeper(40, time=2.0)], 11.0).step == 50
    assert scene.look([*ahead, keeper(40, time=3.0, era=1)], 12.0).step == 40


def test_who_has_not_returned_to_the_checkpoint_is_nowhere() -> None:
    """In a new era what the others are doing in the old one sets no step, fills no batch, and is no offence."""
    scene = Scene()
    old = peers(record(step=50, samples=20), record(step=50, samples=20))
    assert scene.look([*old, keeper(50, sketch=SOUND)], 0.0).samples == 40
    back = KnownPeer("back", "back", "back", "trainer", record(step=40, samples=5).model_copy(update={"era": 1}))
    view = scene.look([*old, back, keeper(40, time=2.0, era=1)], 1.0)
    assert (view.step, view.samples, view.trainers) == (40, 5, 1)
    assert scene.course.era == 1
    assert scene.course.sketch_at(50) == ()
    assert not scene.raised


def test_the_beacons_sketch_goes_before_what_most_members_report() -> None:
    """To everybody but the keeper; of another step it says nothing."""
    scene = Scene()
    members = peers(*[record(step=50).model_copy(update={"sketch": FALSE})] * 3)
    for now, step, sketch in ((0.0, 50, SOUND), (MEETING_S, 49, FALSE)):
        scene.look([*members, keeper(step, time=now, sketch=SOUND)], now)
        assert scene.course.sketch_at(50) == sketch


def test_everybody_is_met_some_time_after_the_first_was_seen() -> None:
    """However late that was; a keeper by itself is nobody to meet."""
    scene = Scene()
    scene.look([keeper(3)], 90.0)
    assert not scene.course.has_met_all(1000.0)
    for now in (100.0, 105.0):
        scene.look([*peers(record()), keeper(3)], now)
    assert not scene.course.has_met_all(100.0)
    assert scene.course.has_met_all(100.0 + MEETING_S)


def test_no_step_has_an_age_before_the_first_look() -> None:
    """Nobody knows how long it has taken."""
    assert Scene().course.age_s(0, 1000.0) == 0.0


def test_the_keeper_follows_most_members() -> None:
    """However far they have come while it was away; what it believes of the state is what most of them report."""
    scene = Scene(is_keeper=True)
    members = [
        KnownPeer(name, name, name, "trainer", record(step=50).model_copy(update={"sketch": sketch}))
        for name, sketch in (("a", SOUND), ("b", SOUND), ("liar", FALSE))
    ]
    assert scene.look([members[2], keeper(40, sketch=FALSE)], 0.0).step == 50
    assert scene.course.sketch_at(50) == ()  # who came first is not most of them
    assert scene.look([*members, keeper(40, sketch=FALSE)], MEETING_S).step == 50
    assert scene.course.sketch_at(50) == SOUND


def test_members_confirm_a_step_one_after_another() -> None:
    """The keeper may see no two of them at one step: some have gone on when the others arrive."""
    scene = Scene(is_keeper=True)
    steps = [(50, 49, 48), (51, 50, 49), (52, 51, 50)]
    for now, at in zip((0.0, MEETING_S, MEETING_S + 1.0), steps, strict=True):
        sketches = {49: FALSE, 50: SOUND, 51: FALSE}
        scene.look(peers(*(record(step=s).model_copy(update={"sketch": sketches.get(s, ())}) for s in at)), now)
    assert (scene.course.sketch_at(50), scene.course.sketch_at(49)) == (SOUND, FALSE)
    assert scene.course.sketch_at(52) == ()


def test_claims_of_later_steps_push_no_report_out() -> None:
    """One member that claims another later step in each look does not make the keeper forget the others' reports."""
    scene = Scene(is_keeper=True)
    honest = [record(step=50).model_copy(update={"sketch": SOUND})] * 2
    scene.look(peers(*honest), 0.0)
    for claimed in range(51, 51 + 2 * REMEMBERED_SKETCHES):
        liar = record(step=claimed).model_copy(update={"sketch": FALSE})
        scene.look(peers(*honest, liar), MEETING_S + claimed / 100)
    assert scene.course.sketch_at(50) == SOUND
    assert not scene.course.is_most_reported(60, FALSE)


@pytest.mark.parametrize(
    ("reported", "steps", "kinds"),
    [(FALSE, [50], []), (SOUND, [50], ["state"]), (SOUND, [49], []), (SOUND, [50, 51], ["state"])],
)
def test_a_donor_is_suspected_of_a_state_that_its_record_does_not_tell(
    reported: Sketch, steps: list[int], kinds: list[str]
) -> None:
    """An honest peer that was cut off may hold a state of its own, and its record of the step said so."""
    scene = Scene(is_keeper=True)
    for step in steps:
        scene.look(peers(record(step=step).model_copy(update={"sketch": reported})))
    scene.course.judge_donor("trainer-0", 50, FALSE)
    assert [raised.kind for raised in scene.raised] == kinds


def test_endless_samples_are_cut_and_named() -> None:
    """Who claims millions counts with a newcomer's share, and is held to have lied."""
    scene = Scene()
    view = scene.look(
        [*peers(record(samples=4), record(samples=4), record(samples=4), record(samples=10**7)), keeper(3)]
    )
    assert view.samples == 12 + TARGET // 2
    assert [(raised.member, raised.kind) for raised in scene.raised] == [("trainer-3", "samples")]


def test_a_keeper_with_an_older_state_makes_nobody_suspicious() -> None:
    """Who has come further without the keeper knows that others have, too; what nobody can have reached is named."""
    scene = Scene(own_id="trainer-0")
    for now, claimed in ((0.0, 18), (1.0, 10**9)):
        known = peers(record(step=18), record(step=18), record(step=claimed))
        assert scene.look([*known, keeper(2)], now).step == 3
    assert [raised.member for raised in scene.raised] == ["trainer-2"]


def test_no_peer_suspects_itself() -> None:
    """Its samples may have been lost on the way to the group."""
    scene = Scene(own_id="trainer-0")
    for step in (3, 4, 5):
        own, other = record(step, samples=20, time=float(step)), record(step, samples=12)
        scene.look([*peers(own, other), keeper(step, time=float(step))], float(step))
        scene.round_ended(step, {"trainer-0": 4.0, "trainer-1": 12.0}, short=True)
    assert scene.raised == []


def test_a_fast_device_is_not_suspected_while_rounds_fail() -> None:
    """However much it accumulates meanwhile, it claims no more than others believe possible."""
    scene = Scene()
    scene.look([*peers(record(samples=claim_of(100 * TARGET, TARGET))), keeper(3)])
    assert scene.raised == []
    assert claim_of(TARGET, TARGET) == TARGET


def test_false_claims_stop_counting_after_two_rounds() -> None:
    """Who claims half of a batch and brings four samples is believed once; after the second time, what it brings."""
    scene = Scene()
    for step in (3, 4):
        liar = record(step, samples=16, time=float(step))
        honest = [record(step, samples=8) for _ in range(3)]
        known = [*peers(*honest, liar), keeper(step, time=float(step))]
        assert scene.look(known, float(step)).samples == 40
        weights = {"trainer-0": 8.0, "trainer-1": 8.0, "trainer-2": 8.0, "trainer-3": 4.0}
        scene.round_ended(step, weights, short=True)
        assert scene.look(known, step + 0.5).samples == 28
    known = [*peers(*(record(5, samples=8) for _ in range(3)), record(5, samples=16, time=5.0)), keeper(5, time=5.0)]
    assert scene.look(known, 5.0).samples == 28
    assert [(raised.member, raised.kind) for raised in scene.raised] == [("trainer-3", "samples")]


def test_a_peer_lost_on_the_way_is_not_held_to_have_lied() -> None:
    """It may come to the next round with all that it claimed."""
    scene = Scene()
    for step in (3, 4, 5):
        known = [*peers(record(step, samples=16, time=float(step)), record(step, samples=16)), keeper(step)]
        scene.look(known, float(step))
        scene.round_ended(step, {"trainer-1": 16.0}, short=True)
        assert scene.look(known, step + 0.5).samples == 32
    assert scene.raised == []


def test_a_fast_device_counts_fully_once_it_has_credit() -> None:
    """Nine tenths of each batch by one of eleven members: cut at first, believed when the keeper has seen it."""
    slow = [record(samples=0) for _ in range(10)]
    scene = Scene()
    assert scene.look([*peers(record(samples=30), *slow), keeper(3)]).samples == TARGET // 4
    scene = Scene()
    assert scene.look([*peers(record(samples=30), *slow), keeper(3, credit={"trainer-0": 30})]).samples == 30


def test_a_step_that_takes_long_ends() -> None:
    """If the others stop, what one member is believed grows until its samples fill the batch."""
    scene = Scene()
    known = [*peers(record(samples=40), record(), record(), record()), keeper(3, usual_s=10.0)]
    assert scene.look(known, 0.0).samples == TARGET // 2
    assert scene.look(known, 25.0).samples >= TARGET


def test_a_newcomer_knows_from_the_beacon_when_the_step_began() -> None:
    """The beacon's age is that of its own step: one that most members have reached without it has just begun."""
    scene = Scene()
    scene.look([*peers(record(3), record(3)), keeper(3, age_s=7.0)], 100.0)
    assert scene.course.age_s(3, 105.0) == 12.0
    scene.look([*peers(record(4), record(4)), keeper(3, age_s=17.0, time=2.0)], 110.0)
    assert scene.course.age_s(4, 115.0) == 5.0


def test_a_step_usually_takes_as_long_as_one_step() -> None:
    """Neither earlier steps nor the days that a keeper waits for its first trainer are part of a step's usual time.

    With more than that, honest weights were cut while rounds fail: of three peers one goes, and two have three batches.
    """
    scene, book = Scene(is_keeper=True), CreditBook()

    def look(step: int, now: float, *samples: int) -> None:
        own = keeper(step, time=now + 1, age_s=scene.course.age_s(step, now), usual_s=book.usual_s)
        scene.look([*peers(*(record(step, claimed, time=now + 1) for claimed in samples)), own], now)

    for now in (0.0, 500.0, 1000.0):
        look(0, now)
    for step, began in ((0, 1000.5), (1, 1002.5)):
        look(step, began, 0, 0, 0)
        book.take({}, scene.course.age_s(step, began + 2.0), scene.course.allowances.of)
    assert book.usual_s == 2.0
    look(2, 1004.5, 0, 0, 0)
    look(2, 1012.5, 3 * TARGET, 3 * TARGET)
    caps, _ = scene.course.weight_caps()
    assert min(caps.values()) >= 3 * TARGET


@pytest.mark.parametrize(("usual_s", "rate"), [(0.0, 1e6), (4.0, 0.5 * TARGET / 4)])
def test_a_rate_is_believed_as_far_as_a_step_allows(usual_s: float, rate: float) -> None:
    """Nobody claims to be faster than its share of a batch in a step's usual time, once that is known."""
    view = Scene().look(
        [*peers(record(rate=0), record(rate=0), record(rate=0), record(rate=1e6)), keeper(3, usual_s=usual_s)]
    )
    assert view.rate == rate


def test_refused_parts_fill_no_batch_and_are_named() -> None:
    """The others' samples fill the batch, until the device has brought parts that were taken."""
    scene = Scene()
    known = [*peers(record(samples=8), record(samples=8), record(samples=16)), keeper(3)]
    assert scene.look(known, 0.0).samples == 32
    scene.course.parts_refused(3, {"trainer-2": "sent values that are not finite"})
    scene.round_ended(3, {"trainer-0": 8.0, "trainer-1": 8.0}, short=True)
    assert scene.look(known, 0.5).samples == 16
    assert [(raised.member, raised.kind) for raised in scene.raised] == [("trainer-2", "parts")]
    scene.round_ended(3, {"trainer-0": 16.0, "trainer-1": 16.0, "trainer-2": 16.0}, short=False)
    assert scene.look(known, 1.0).samples == 32


def test_a_cut_weight_fills_no_batch_and_is_not_named() -> None:
    """A round in which a member's weight was cut shows no false claim, and the others must fill the batch.

    Also at a peer whose own parts, if it has any, show nothing of it.
    """
    scene = Scene()
    known = [*peers(record(samples=8), record(samples=16)), keeper(3)]
    assert scene.look(known, 0.0).samples == 24
    cut = {
        "trainer-0": AttestedWeight(8.0, 8.0, 8.0, 8.0),
        "trainer-1": AttestedWeight(16.0, 16.0, 2.0, 2.0),
    }
    scene.course.round_ended(3, {}, cut, short=True)
    assert scene.look(known, 0.5).samples == 10
    assert scene.raised == []
    scene.round_ended(3, {"trainer-0": 8.0, "trainer-1": 16.0}, short=True)
    assert scene.look(known, 1.0).samples == 24


def test_a_false_claim_fills_no_batch_at_a_peer_that_reduces_nothing() -> None:
    """Such a peer would stop computing, while those who reduced the round wait for samples."""
    scene = Scene()
    known = [*peers(record(samples=8), record(samples=10_000_000)), keeper(3)]
    assert scene.look(known, 0.0).samples >= TARGET
    attested = {
        "trainer-0": AttestedWeight(8.0, 8.0, 8.0, 8.0),
        "trainer-1": AttestedWeight(4.0, 4.0, 4.0, 4.0),
    }
    scene.course.round_ended(3, {}, attested, short=True)
    assert scene.look(known, 60.0).samples == 12


def test_who_is_lost_again_and_again_is_not_waited_for() -> None:
    """After two rounds towards a step what it claimed does not count any more: it may be stalling."""
    scene = Scene()
    known = [*peers(record(samples=16), record(samples=16)), keeper(3)]
    for _ in range(2):
        assert scene.look(known, 0.0).samples == 32
        scene.round_ended(3, {"trainer-1": 16.0}, short=True)
    assert scene.look(known, 0.5).samples == 16
    further = [*peers(record(samples=20), record(samples=16)), keeper(3)]
    assert scene.look(further, 1.0).samples == 20
    assert scene.raised == []


def test_who_brings_nothing_to_step_after_step_is_not_counted_until_it_does() -> None:
    """Else a member that leaves each round would cost two rounds of each step."""
    scene = Scene()
    for step in (3, 4):
        known = [*peers(record(step, samples=16, time=float(step)), record(step, samples=16)), keeper(step)]
        for _ in range(2):
            assert scene.look(known, float(step)).samples == 32
            scene.round_ended(step, {"trainer-1": 16.0}, short=True)
    later = [*peers(record(5, samples=16, time=5.0), record(5, samples=16)), keeper(5)]
    assert scene.look(later, 5.0).samples == 16
    scene.round_ended(5, {"trainer-0": 16.0, "trainer-1": 16.0}, short=False)
    assert scene.look(later, 5.5).samples == 32
    assert scene.raised == []


def test_a_weight_that_no_peer_accumulates_is_named() -> None:
    """What is above all that is believed of a device, and above what it computes while nobody takes a step."""
    scene = Scene()
    scene.look([*peers(record(samples=8), record(samples=8), record(samples=8)), keeper(3)], 0.0)
    scene.round_ended(3, {"trainer-0": 8.0, "trainer-1": 40.0, "trainer-2": 1e12}, short=False)
    detail = "claims 8 samples and names the weight 1e+12"
    assert [(raised.member, raised.kind, raised.step, raised.detail) for raised in scene.raised] == [
        ("trainer-2", "weight", 3, detail)
    ]


def test_a_round_with_one_who_does_not_train_yet_ends_well() -> None:
    """Who has taken the state and not begun is at the step, claims nothing, and is suspected of nothing."""
    scene = Scene()
    scene.look([*peers(record(samples=8), record(samples=0, training=False)), keeper(3)], 0.0)
    scene.round_ended(3, {"trainer-0": 8.0, "trainer-1": 100.0}, short=False)
    assert not scene.raised


def test_caps_leave_what_the_view_counts() -> None:
    """Trainers by what is believed of them, everybody else as newcomers."""
    scene = Scene()
    scene.look([*peers(record(samples=8), record(samples=8)), keeper(3, credit={"trainer-0": 100})], 0.0)
    caps, newcomers = scene.course.weight_caps()
    assert caps == {"trainer-0": 400.0, "trainer-1": 2.0 * TARGET}
    assert newcomers == 2.0 * TARGET


def test_the_faster_peers_fill_what_is_missing_first() -> None:
    """Of those at this step; of two that are equally fast one goes first."""
    rates = [1.0, 3.0, 3.0, 8.0]
    known = peers(*[record(step=4).model_copy(update={"rate": rate}) for rate in rates])
    others = peers(record(step=3).model_copy(update={"rate": 50.0}))
    view = view_swarm([*known, *others], [], 4, None, Allowances(target=100_000, usual_s=1.0))
    assert sorted(view.faster_rate(peer.peer_id) for peer in known) == [0.0, 8.0, 11.0, 14.0]
