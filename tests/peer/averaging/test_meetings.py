"""Meetings: how peers find a leader and become a group, in virtual time and over a network in memory.

Real groups are in tests/system/test_pace.py.
"""

from __future__ import annotations

import asyncio
import math
import random
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from auth.keys import DeviceKey
from peer.averaging.deadline import LEAST_KNOWN
from peer.averaging.declarations import Declaration, open_declaration
from peer.averaging.meetings import (
    BEGIN,
    COUNT,
    FRUITLESS_S,
    FULL,
    GONE_ON,
    GONE_ON_S,
    INVALID_S,
    LEAST_GRACE_S,
    LOOK_S,
    MAX_REPORT_BYTES,
    MOST_GRACE_S,
    MOST_PASSED_OVER_S,
    MOST_REMEMBERED,
    RENEW_S,
    REPORT,
    RETRY_S,
    STALLED_S,
    UNREACHABLE_S,
    LeaderRecords,
    may_begin,
)
from peer.averaging.requirements import MOST_DELIVERED, REPORT_S, Heard, Requirements
from peer.node.quorum import Quorum
from peer.transport.memory import DIAL_S, SILENCE_S
from tests.support.meeting_scene import (
    ALICE,
    ALL,
    BOB,
    CAROL,
    DAVE,
    GRACE_S,
    MALLORY,
    NAME,
    POSITION,
    SOON_S,
    STEP,
    Peer,
    Scene,
    begin,
    declared_by,
    id_of,
    is_one_group,
    play,
    played,
)
from tests.support.virtual_tests import played_by, run_heard


@pytest.mark.parametrize(
    ("present", "required", "expected", "waited_s", "begins"),
    [
        (3, 3, 3, 0.0, True),
        (4, 3, 3, 0.0, True),
        (2, 2, 3, 0.0, False),
        (2, 2, 3, 4.9, False),
        (2, 2, 3, 5.0, True),
        (3, 2, 0, 4.9, False),  # nobody knows how many come
        (3, 2, 0, 5.0, True),
        (2, 3, 2, 600.0, False),
        (1, 1, 1, 600.0, False),  # nobody averages alone
    ],
)
def test_a_leader_begins_with_all_that_it_expects_or_after_the_grace(
    present: int, required: int, expected: int, waited_s: float, begins: bool
) -> None:
    """And never with fewer than are required."""
    wanted = Requirements(required=required, expected=expected)
    assert may_begin(present, wanted, waited_s, grace_s=5.0) is begins


class Records(LeaderRecords):
    """Records with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)


def test_a_leader_that_failed_is_passed_over_for_a_time() -> None:
    """If all have failed, the one whose time ends first leads."""
    records = Records()
    assert records.first([]) is None
    assert records.first(ALL) == ALICE
    records.failed(ALICE, 10.0)
    assert records.first(ALL) == BOB
    records.failed(BOB, 5.0)
    assert records.first([ALICE, BOB]) == BOB
    records.now = 10.0
    assert records.first(ALL) == ALICE


def test_each_failure_doubles_the_time_until_a_success() -> None:
    """A leader is not passed over for longer than a minute."""
    records = Records()
    for seconds in (10.0, 20.0, 40.0, *[MOST_PASSED_OVER_S] * 40):
        records.failed(ALICE, 10.0)
        until = records.now + min(seconds, MOST_PASSED_OVER_S)
        while records.now < until - 1.0 and seconds < MOST_PASSED_OVER_S:
            records.now += 1.0
            assert records.first([ALICE, BOB]) == (ALICE if records.now >= until else BOB)
        records.now = until
    records.failed(ALICE, 10.0)
    records.now += MOST_PASSED_OVER_S - 1.0
    assert records.first([ALICE, BOB]) == BOB
    records.succeeded(ALICE)
    assert records.first([ALICE, BOB]) == ALICE
    records.failed(ALICE, 10.0)
    records.now += 10.0
    assert records.first([ALICE, BOB]) == ALICE


def test_records_do_not_grow_for_ever() -> None:
    """Failures of very many leaders are forgotten."""
    records = Records()
    for number in range(3 * MOST_REMEMBERED):
        records.failed(str(number), 10.0)
    assert len(records._failures) <= MOST_REMEMBERED
    assert len(records._passed_over) <= MOST_REMEMBERED


@played
async def test_a_group_forms_once_everybody_is_there_and_the_leaders_batch_is_full(scene: Scene) -> None:
    """At once; the batch of one other peer does not matter."""
    scene.seek(BOB, CAROL, expected=3)
    scene.trigger(BOB)
    await asyncio.sleep(1.0)
    scene.seek(ALICE, expected=3)
    assert await scene.after(10.0) == {}
    scene.trigger(ALICE)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB, CAROL)


@played
async def test_the_last_to_come_completes_the_group(scene: Scene) -> None:
    """The leader's batch is full already."""
    scene.seek(ALICE, BOB, expected=3)
    scene.trigger()
    assert await scene.after(3.0) == {}
    scene.seek(CAROL, expected=3)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB, CAROL)


@played
async def test_followers_wait_for_a_leader_at_an_earlier_step(scene: Scene) -> None:
    """Until it is at theirs; those at the earlier step do not wait for them."""
    scene.seek(BOB, CAROL, expected=3)
    alice, dave = scene.peers[ALICE], scene.peers[DAVE]
    for peer in (alice, dave):
        peer.want(leaders=ALL, expected=2)
        peer.due.set()
    earlier = [peer.seek((0, STEP - 1)) for peer in (alice, dave)]
    await asyncio.wait(earlier, timeout=1.0)
    assert is_one_group([search.result() for search in earlier], ALICE, DAVE)
    assert await scene.after(10.0) == {}
    scene.seek(ALICE, expected=3)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB, CAROL)


@played
async def test_followers_wait_for_a_leader_that_is_not_yet_served(scene: Scene) -> None:
    """They try again soon, also if there is no other candidate."""
    handler = scene.network.find(ALICE).handlers.pop(NAME)  # type: ignore[union-attr]
    scene.seek(ALICE, BOB, leaders=(ALICE,))
    scene.trigger()
    assert await scene.after(30.0) == {}
    scene.network.find(ALICE).handlers[NAME] = handler  # type: ignore[union-attr]
    assert is_one_group((await scene.after(RETRY_S + SOON_S)).values(), ALICE, BOB)


@played
async def test_a_leader_waits_for_the_expected_until_the_grace_has_passed(scene: Scene) -> None:
    """The grace begins with its full batch."""
    scene.seek(ALICE, BOB, expected=3)
    await asyncio.sleep(100.0)
    scene.trigger(ALICE)
    assert await scene.after(GRACE_S - 0.1) == {}
    assert is_one_group((await scene.after(LOOK_S + SOON_S)).values(), ALICE, BOB)


@played
async def test_the_grace_follows_earlier_groups(scene: Scene) -> None:
    """Peers that always come at once are not waited for long."""
    scene.trigger()
    for _ in range(LEAST_KNOWN):
        scene.seek(ALICE, BOB)
        assert is_one_group((await scene.after(2.0)).values(), ALICE, BOB)
    scene.seek(ALICE, BOB, expected=3)
    assert await scene.after(LEAST_GRACE_S - 0.1) == {}
    assert is_one_group((await scene.after(LOOK_S + SOON_S)).values(), ALICE, BOB)


@played
async def test_a_leader_waits_for_a_moment_for_followers_that_still_compute(scene: Scene) -> None:
    """Who sends its gradients late would use up the round's time limit; who is silent holds nobody up for long."""
    scene.want(ready_s=5.0)
    scene.seek(ALICE, BOB, CAROL)
    scene.trigger(ALICE, BOB)
    assert await scene.after(3.0) == {}
    scene.trigger(CAROL)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB, CAROL)
    scene.peers[CAROL].due = asyncio.Event()
    scene.seek(ALICE, BOB, CAROL)
    assert await scene.after(4.5 + RETRY_S) == {}
    assert is_one_group((await scene.after(1.0)).values(), ALICE, BOB, CAROL)


@played
async def test_a_leader_waits_for_the_required_as_long_as_it_takes(scene: Scene) -> None:
    """And begins as soon as they are there, or fewer are required."""
    for finish in (lambda: scene.seek(CAROL), lambda: scene.peers[ALICE].want(required=2)):
        scene.seek(ALICE, BOB, leaders=(ALICE,), required=3, expected=4)
        scene.trigger()
        assert await scene.after(600.0) == {}
        finish()
        groups = await scene.after(LOOK_S + SOON_S)
        assert {ALICE, BOB} <= set(groups)
        assert groups[ALICE] == groups[BOB]
        scene.searches.pop(CAROL, asyncio.create_task(asyncio.sleep(0))).cancel()


@pytest.mark.parametrize(
    "declared",
    [
        declared_by(MALLORY, (0, STEP - 1)),
        declared_by(MALLORY, (0, STEP + 1)),
        declared_by(MALLORY, (1, STEP)),
        declared_by(MALLORY, compression="float16"),
        declared_by(BOB),
        b"",
        b"\xff",
    ],
)
@played
async def test_a_follower_that_does_not_belong_is_left_out(scene: Scene, declared: bytes) -> None:
    """It is at another step, has another code, or says nothing valid of itself; the others are not disturbed."""
    following = asyncio.create_task(scene.follow(ALICE, declared))
    scene.seek(ALICE, BOB, required=2, expected=3)
    scene.trigger()
    assert await scene.after(GRACE_S - 1.0) == {}
    assert is_one_group((await scene.after(2.0 + LOOK_S)).values(), ALICE, BOB)
    assert not following.done() or following.result() in ([], [GONE_ON])
    following.cancel()
    await asyncio.wait({following})


@played
async def test_a_follower_that_is_revoked_meanwhile_is_left_out(scene: Scene) -> None:
    scene.seek(ALICE, BOB, CAROL)
    await asyncio.sleep(1.0)
    scene.members.peers.remove(CAROL)
    scene.trigger()
    assert is_one_group((await scene.after(GRACE_S + LOOK_S + SOON_S)).values(), ALICE, BOB)


@played
async def test_a_stranger_gets_no_answer(scene: Scene) -> None:
    """And is not heard."""
    scene.members.peers.remove(MALLORY)
    assert await scene.follow(ALICE, declared_by(MALLORY), REPORT, FULL) == []
    assert scene.now() < 1.0
    assert scene.peers[ALICE].followers == set()
    assert scene.peers[ALICE].reports == []


@played
async def test_a_peer_that_follows_anew_is_still_there_when_its_old_stream_ends(scene: Scene) -> None:
    """The old one may end later, as after a loss of the line."""
    old, new = (asyncio.create_task(scene.follow(ALICE, declared_by(MALLORY, said=said))) for said in "12")
    for task, expected in ((old, {MALLORY}), (new, set[str]())):
        await asyncio.sleep(SOON_S)
        assert scene.peers[ALICE].followers == {MALLORY}
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(SOON_S)
        assert scene.peers[ALICE].followers == expected


@played
async def test_real_declarations_are_checked_at_the_door(scene: Scene, key: DeviceKey, keys: list[bytes]) -> None:
    """A peer cannot follow with what another device has signed."""
    said = Declaration(run="run", era=0, step=STEP, compression="none", powersgd_rank=0, patience_s=1.0)
    token = SimpleNamespace(public_key=key.public_key.decode())
    scene.peers[ALICE].meetings._opened = lambda gathered, _: open_declaration(gathered, token.public_key, "run")
    following = asyncio.create_task(scene.follow(ALICE, said.signed(key.sign)))
    await asyncio.sleep(SOON_S)
    assert scene.peers[ALICE].followers == {MALLORY}
    following.cancel()
    token.public_key = keys[0].decode()
    assert await scene.follow(ALICE, said.signed(key.sign)) == []


@played
async def test_an_unreachable_leader_is_passed_over_for_a_short_time(scene: Scene) -> None:
    """The next candidate leads; once the first can be reached again, it leads again."""
    scene.network.part([ALICE])
    scene.network.silence(ALICE)
    scene.seek(BOB, CAROL, leaders=(ALICE, BOB), expected=3)
    await asyncio.sleep(DIAL_S + RETRY_S + SOON_S)
    assert scene.peers[BOB].followers == {CAROL}
    scene.network.resume(ALICE)
    scene.network.part()
    await asyncio.sleep(UNREACHABLE_S + LOOK_S + SOON_S)
    assert scene.peers[ALICE].followers == {BOB, CAROL}
    scene.seek(ALICE, expected=3)
    scene.trigger(ALICE)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB, CAROL)


@pytest.mark.parametrize("is_silent", [False, True])
@played
async def test_followers_of_a_leader_that_dies_follow_another(scene: Scene, is_silent: bool) -> None:
    """At once if its host says so, otherwise after a silence."""
    scene.seek(ALICE, BOB, CAROL, expected=2)
    await asyncio.sleep(1.0)
    assert scene.peers[ALICE].followers == {BOB, CAROL}
    if is_silent:
        scene.network.silence(ALICE)
    scene.network.kill(ALICE)
    await asyncio.sleep(SILENCE_S if is_silent else 0.0)
    scene.trigger(BOB, CAROL)
    assert is_one_group((await scene.after(LOOK_S + SOON_S)).values(), BOB, CAROL)


@played
async def test_followers_with_a_full_batch_leave_a_leader_that_does_not_begin(scene: Scene) -> None:
    """The next candidate leads them; without another candidate they stay."""
    callers = scene.told()
    scene.seek(BOB, CAROL, leaders=(MALLORY, BOB), expected=2)
    scene.seek(DAVE, leaders=(MALLORY,))
    await asyncio.sleep(300.0)
    assert set(callers) == {BOB, CAROL, DAVE}
    scene.trigger(BOB, CAROL, DAVE)
    assert await scene.after(STALLED_S) == {}
    assert is_one_group((await scene.after(3 * LOOK_S)).values(), BOB, CAROL)
    await asyncio.sleep(300.0)
    assert len(callers) == 3


@played
async def test_a_leader_that_counts_fewer_samples_begins_with_most_members(scene: Scene) -> None:
    """Otherwise, they would wait for it while they compute nothing more."""
    scene.seek(*ALL, leaders=(ALICE,))
    await asyncio.sleep(1.0)
    scene.trigger(BOB, CAROL)
    assert await scene.after(100.0) == {}
    scene.trigger(DAVE)
    assert is_one_group((await scene.after(SOON_S)).values(), *ALL)


@played
async def test_a_member_with_many_devices_is_not_most_members(scene: Scene) -> None:
    """A member's devices count as one."""
    token_of = scene.members.token_of

    def of_one_member(peer: str) -> Any:
        token = token_of(peer)
        if token is not None and token.peer_id != ALICE:
            token.member = "one member"
        return token

    scene.members.token_of = of_one_member  # type: ignore[method-assign]
    scene.seek(*ALL, leaders=(ALICE,))
    scene.trigger(BOB, CAROL, DAVE)
    assert await scene.after(100.0) == {}


@pytest.mark.parametrize(
    "quorum",
    [
        Quorum(frozenset((ALICE, CAROL, DAVE)), frozenset((CAROL, DAVE))),
        Quorum(frozenset((ALICE, BOB, CAROL)), keepers=frozenset((BOB,))),
        Quorum(frozenset((CAROL, DAVE)), frozenset((CAROL, DAVE))),
        Quorum(),
    ],
)
@played
async def test_a_leader_begins_as_soon_as_a_quorum_of_the_voters_is_there(scene: Scene, quorum: Quorum) -> None:
    """Not before, however long it waits."""
    scene.seek(ALICE, BOB, leaders=(ALICE,))
    scene.want(quorum=Quorum(frozenset((ALICE, CAROL, DAVE))))
    scene.trigger()
    assert await scene.after(100.0) == {}
    scene.want(quorum=quorum)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB)


@played
async def test_a_leader_that_stalls_is_left_by_those_who_search_again(scene: Scene) -> None:
    """A trainer may wait less for its round than the leader is given."""
    callers = scene.told(None, None)
    scene.seek(ALICE, BOB, leaders=(MALLORY, ALICE))
    scene.trigger()
    await asyncio.sleep(MOST_GRACE_S + 1.0)
    for name in (ALICE, BOB):
        scene.searches[name].cancel()
    await asyncio.sleep(RETRY_S)
    scene.seek(ALICE, BOB, leaders=(MALLORY, ALICE))
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB)
    assert len(callers) == 2


@played
async def test_a_leader_that_stalls_is_counted_once(scene: Scene) -> None:
    """Although all other candidates are passed over for longer, so that it goes on to lead."""
    bob = scene.peers[BOB]
    bob.meetings._records.failed(BOB, 4 * STALLED_S)
    scene.seek(ALICE, BOB, leaders=(ALICE, BOB), expected=3, required=3)
    scene.trigger(BOB)
    await asyncio.sleep(STALLED_S + 10 * LOOK_S)
    assert bob.meetings._records._failures[ALICE] == 1


@played
async def test_followers_go_to_another_leader_if_the_trainer_says_so(scene: Scene) -> None:
    """And a leader becomes a follower."""
    scene.seek(ALICE, BOB, CAROL)
    await asyncio.sleep(1.0)
    for name in (ALICE, BOB, CAROL):
        scene.peers[name].want(leaders=(CAROL, ALICE))
    await asyncio.sleep(SOON_S)
    assert scene.peers[ALICE].followers == set()
    assert scene.peers[CAROL].followers == {ALICE, BOB}
    scene.trigger(CAROL)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB, CAROL)


@pytest.mark.parametrize("lookup_s", [0.0, 5.0])
@played
async def test_a_group_is_kept_although_the_candidates_change_at_that_moment(scene: Scene, lookup_s: float) -> None:
    """Or while its peers are looked up: the others of the group would wait for this peer in vain."""
    bob, admitted = scene.peers[BOB], scene.members.admitted

    async def look_up(peers: Collection[str], roles: Collection[str]) -> set[str]:
        await asyncio.sleep(lookup_s)
        return await admitted(peers, roles)

    async def words(*_: object) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(4.5)  # not when the search looks by itself
        asyncio.get_running_loop().call_later(lookup_s / 2, lambda: bob.want(leaders=(CAROL,)))
        yield begin([ALICE, BOB])

    scene.members.admitted = look_up  # type: ignore[method-assign]
    bob.meetings._transport.stream = words  # type: ignore[method-assign]
    bob.want(leaders=(ALICE,))
    scene.searches[BOB] = bob.seek()
    assert list(await scene.after(6.0 + 2 * lookup_s)) == [BOB]


@pytest.mark.parametrize(
    "word",
    [
        begin([MALLORY, BOB]),  # without Alice, who is told this
        begin([ALICE, BOB]),  # without the leader
        begin([ALICE, MALLORY, ALICE]),
        begin([ALICE, MALLORY], [b""]),
        begin([ALICE, MALLORY], [b"", b"", b""]),
        begin([]),
        b"",
        b"garbage",
        BEGIN + b"garbage",
        begin([ALICE, MALLORY])[:-3],
        COUNT + bytes(3),
        COUNT + struct.pack(">Qd", 1, math.nan),
        COUNT + struct.pack(">Qd", 1, -1.0),
    ],
)
@played
async def test_a_lying_leader_is_passed_over(scene: Scene, word: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The log names it, and the next candidate is followed for as long."""
    callers = scene.told(word)
    scene.seek(ALICE, leaders=(MALLORY, BOB))
    scene.seek(BOB, leaders=(BOB,))
    await asyncio.sleep(RETRY_S + SOON_S)
    assert scene.peers[BOB].followers == {ALICE}
    await asyncio.sleep(INVALID_S - 2.0)
    assert callers == [ALICE]
    scene.trigger(BOB)
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB)
    assert f"suspicious: member {MALLORY} (device 1, trainer), peer {MALLORY}, led a group in which" in caplog.text


@played
async def test_peers_to_which_a_leader_says_different_things_have_different_groups(scene: Scene) -> None:
    """So they do not average with each other; those to which it has said the same do."""
    everybody = [ALICE, BOB, CAROL, DAVE, MALLORY]
    changed = [declared_by(name, said="slow" if name == DAVE else "") for name in everybody]
    scene.told(begin(everybody), begin(everybody), begin(everybody, changed), begin(everybody[::-1]))
    scene.seek(*ALL, leaders=(MALLORY,))
    groups = list((await scene.after(SOON_S)).values())
    assert len(groups) == 4
    assert len({group.group_id for group in groups}) == 3


@played
async def test_a_leader_whose_group_fails_is_passed_over_also_by_itself(scene: Scene) -> None:
    """Each time for longer, until a round that it leads succeeds."""
    group, led_by = (ALICE, BOB, CAROL), []
    scene.trigger()
    for came_about in (False, False, True, True, True):
        scene.seek(*group)
        await scene.after(2.0)
        assert len({scene.searches[name].result() for name in group}) == 1
        [leader] = {scene.peers[name].meetings._leader.peer for name in group}
        led_by.append(leader)
        for name in group:
            scene.peers[name].meetings.group_ended(came_about)
    assert led_by == [ALICE, BOB, CAROL, CAROL, CAROL]
    await asyncio.sleep(FRUITLESS_S)
    scene.seek(*group)
    await scene.after(SOON_S)
    assert {scene.peers[name].meetings._leader.peer for name in group} == {ALICE}
    for name in group:
        scene.peers[name].meetings.group_ended(came_about=True)
        assert set(scene.peers[name].meetings._records._failures) == {BOB}


@played
async def test_the_leader_of_a_group_with_false_declarations_is_passed_over(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The averager reads them."""
    scene.seek(ALICE, BOB)
    scene.trigger()
    await scene.after(SOON_S)
    scene.peers[BOB].meetings.distrust_leader("the declarations were changed")
    assert scene.peers[BOB].meetings._first_choice == BOB
    assert f"peer {ALICE}, led a group in which the declarations were changed" in caplog.text


@pytest.mark.parametrize("succeeds", [False, True])
@played
async def test_rounds_that_fail_at_once_are_not_repeated_without_a_pause(scene: Scene, succeeds: bool) -> None:
    """hivemind looks for another group immediately, as after a success."""
    groups = 0

    async def repeat(peer: Peer) -> None:
        nonlocal groups
        while True:
            await peer.seek()
            groups += 1
            if succeeds:
                peer.meetings.group_ended(came_about=True)

    for name in (ALICE, BOB):
        scene.peers[name].want(leaders=(ALICE,), expected=2)
    scene.trigger()
    repeating = [asyncio.create_task(repeat(scene.peers[name])) for name in (ALICE, BOB)]
    await asyncio.sleep(10.0)
    assert (10 <= groups <= 2 * 10.0 / RETRY_S) is not succeeds
    for task in repeating:
        task.cancel()
    await asyncio.wait(repeating)


@played
async def test_a_search_for_a_step_that_the_trainer_has_left_finds_nothing(scene: Scene) -> None:
    """It neither leads nor follows, until the trainer is back at its step."""
    for name in (ALICE, BOB):
        scene.seek(ALICE, BOB)
        scene.trigger()
        scene.peers[name].want(step=STEP + 1)
        assert await scene.after(20.0) == {}
        assert name == ALICE or scene.peers[ALICE].followers == set()
        scene.peers[name].want(step=STEP)
        assert is_one_group((await scene.after(3 * GONE_ON_S)).values(), ALICE, BOB)


@played
async def test_a_search_without_candidates_waits_for_them(scene: Scene) -> None:
    scene.seek(ALICE, BOB, leaders=())
    scene.trigger()
    assert await scene.after(100.0) == {}
    for name in (ALICE, BOB):
        scene.peers[name].want(leaders=(BOB,))
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB)


@played
async def test_a_leader_hears_the_newest_report_of_each_follower(scene: Scene) -> None:
    """Soon, at limited intervals, and nothing twice."""
    scene.peers[BOB].want(report=b"first")
    scene.seek(ALICE, BOB, CAROL)
    await asyncio.sleep(SOON_S)
    assert scene.peers[ALICE].reports == [{BOB: b"first"}]
    for number in range(200):
        scene.peers[BOB].want(report=b"%d" % number)
        await asyncio.sleep(0.01)
    await asyncio.sleep(2 * REPORT_S)
    heard = [reports[BOB] for reports in scene.peers[ALICE].reports[1:]]
    assert heard[-1] == b"199"
    assert 5 <= len(heard) <= 2.0 / REPORT_S + 2
    await asyncio.sleep(60.0)
    assert len(scene.peers[ALICE].reports) == len(heard) + 1


@played_by(partial(play, names=[id_of(f"peer {number}") for number in range(2 * MOST_DELIVERED + 3)]))
async def test_reports_wait_while_the_trainer_is_busy(scene: Scene) -> None:
    """The newest of each follower, a bounded number at once; and nothing is tried more often than that."""
    leader, *followers = names = list(scene.peers)
    scene.peers[leader].is_busy = True
    scene.seek(*names, leaders=(leader,))
    for number in (1, 2):
        for name in followers:
            scene.peers[name].want(report=b"%d" % number)
        await asyncio.sleep(1.0)
    scene.peers[leader].is_busy = False
    await asyncio.sleep(SOON_S)
    reports = scene.peers[leader].reports
    assert [len(some) for some in reports] == [MOST_DELIVERED, MOST_DELIVERED, 2]
    assert {name: report for some in reports for name, report in some.items()} == dict.fromkeys(followers, b"2")


@played
async def test_a_flood_of_reports_waits_on_its_own_line(scene: Scene) -> None:
    """It costs the leader neither memory nor attempts to deliver, also while the trainer is busy."""
    alice, attempts = scene.peers[ALICE], 0
    alice.is_busy = True
    deliver = alice.meetings._trainer._deliver

    def counted(heard: Heard) -> bool:
        nonlocal attempts
        attempts += 1
        assert heard.reports
        return deliver(heard)

    alice.meetings._trainer._deliver = counted
    sent = 0

    async def flood() -> AsyncIterator[bytes]:
        nonlocal sent
        yield declared_by(MALLORY)
        while True:
            sent += 1
            yield REPORT + b"%d" % sent + bytes(1000)
            await asyncio.sleep(0)

    alice.want(leaders=(ALICE,))
    stream = scene.mallory.stream(ALICE, NAME, flood())
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(60.0)
    assert sent < 2000
    assert len(alice.meetings._trainer.heard.reports) == 1
    assert 60 <= attempts < 60 * 25
    alice.is_busy = False
    await asyncio.sleep(10.0)
    assert 10 <= len(alice.reports) <= 10 * 2 / REPORT_S + 1
    waiting.cancel()
    await asyncio.wait({waiting})
    await stream.aclose()


@played
async def test_a_report_that_is_too_long_is_dropped(scene: Scene) -> None:
    """The next one is heard."""
    longest = bytes(MAX_REPORT_BYTES - len(REPORT))
    messages = (declared_by(MALLORY), REPORT + longest + b"0", REPORT + longest)
    scene.peers[ALICE].want(leaders=(ALICE,))
    following = asyncio.create_task(scene.follow(ALICE, *messages))
    await asyncio.sleep(10.0)
    assert scene.peers[ALICE].reports == [{MALLORY: longest}]
    following.cancel()
    await asyncio.wait({following})


@played
async def test_followers_hear_what_their_leader_counts(scene: Scene) -> None:
    """Soon, at limited intervals; what it counted at an earlier step is not heard."""
    alice, bob = scene.peers[ALICE], scene.peers[BOB]
    alice.want(samples=5, remaining_s=4.0)
    scene.seek(ALICE, BOB)
    await asyncio.sleep(SOON_S)
    assert bob.heard == [Heard(POSITION, count=(5, 4.0))]
    for number in range(6, 206):
        alice.want(samples=number, remaining_s=0.3)
        await asyncio.sleep(0.01)
    await asyncio.sleep(2 * REPORT_S)
    assert bob.heard[-1] == Heard(POSITION, count=(205, 0.3))
    assert 5 <= len(bob.heard) <= 2.0 / REPORT_S + 3
    bob.is_busy = True
    alice.want(samples=300)
    await asyncio.sleep(1.0)
    bob.want(step=STEP + 1)
    bob.is_busy = False
    await asyncio.sleep(1.0)
    assert bob.heard[-1] == Heard(POSITION, count=(205, 0.3))


@played
async def test_a_leader_that_learns_only_later_that_it_leads_tells_its_count(scene: Scene) -> None:
    """At once, and also that a batch is full no longer; nobody waits for a change of the samples."""
    scene.want(target=8, remaining_s=9.0, samples=8)
    scene.seek(BOB, leaders=(ALICE,))
    scene.seek(ALICE, leaders=(CAROL,))
    await asyncio.sleep(SOON_S)
    bob = scene.peers[BOB]
    assert bob.heard == []
    scene.peers[ALICE].want(leaders=(ALICE,))
    await asyncio.sleep(SOON_S)
    assert bob.heard[-1].count == (8, 9.0)
    scene.peers[ALICE].want(samples=3)
    await asyncio.sleep(SOON_S)
    assert bob.heard[-1].count == (3, 9.0)


@played
async def test_counts_are_rare_until_the_batch_is_nearly_full(scene: Scene) -> None:
    """With three messages in the time that is left, and at once when the batch is full; so are reports."""
    alice, bob = scene.peers[ALICE], scene.peers[BOB]
    scene.want(target=100, remaining_s=9.0, samples=1)
    scene.seek(ALICE, BOB)
    await asyncio.sleep(SOON_S)
    for number in range(2, 62):
        alice.want(samples=number)
        bob.want(report=b"%d" % number)
        await asyncio.sleep(0.1)
    assert [heard.count for heard in bob.heard] == [(1, 9.0), (ANY, 9.0), (ANY, 9.0)]
    assert [reports[BOB] for reports in alice.reports] == [b"2", ANY]
    alice.want(samples=100, remaining_s=0.0)
    await asyncio.sleep(SOON_S)
    assert bob.heard[-1].count == (100, 0.0)


@played
async def test_a_follower_hears_that_its_leader_has_gone_on(scene: Scene) -> None:
    """Whenever it asks, and it passes nobody over for that."""
    scene.seek(ALICE, BOB)
    await asyncio.sleep(SOON_S)
    bob = scene.peers[BOB]
    bob.heard.clear()
    scene.peers[ALICE].want(step=STEP + 1)
    await asyncio.sleep(SOON_S)
    assert bob.heard == [Heard(POSITION, gone_on=True)]
    await asyncio.sleep(10.0)
    assert 2 <= len(bob.heard) <= 3


@played
async def test_a_leader_that_says_that_it_has_gone_on_is_passed_over(scene: Scene) -> None:
    """It may lie."""
    scene.told(*[GONE_ON] * 100)
    scene.seek(ALICE, BOB, leaders=(MALLORY, ALICE))
    scene.trigger()
    assert is_one_group((await scene.after(3 * GONE_ON_S)).values(), ALICE, BOB)


def test_a_leader_of_strangers_is_passed_over_for_a_short_time(caplog: pytest.LogCaptureFixture) -> None:
    """It may be honest: one of the two has not heard of a token, or of a revocation; so nobody is named."""

    async def scenario(scene: Scene) -> None:
        callers = scene.told(begin([ALICE, MALLORY, id_of("a stranger")]), begin([ALICE, MALLORY]))
        scene.seek(ALICE, leaders=(MALLORY, BOB))
        assert await scene.after(UNREACHABLE_S) == {}
        assert scene.peers[BOB].followers == {ALICE}
        assert list(await scene.after(LOOK_S + SOON_S)) == [ALICE]
        assert callers == [ALICE, ALICE]

    run_heard(play(scenario))
    assert "suspicious" not in caplog.text


@played
async def test_two_with_a_full_batch_are_most_only_while_they_are(scene: Scene) -> None:
    """Those who come later are counted, too."""
    scene.seek(ALICE, BOB, expected=4, leaders=(ALICE,))
    scene.seek(CAROL, expected=4, leaders=(ALICE,))
    scene.trigger(BOB, CAROL)
    assert await scene.after(1.0) == {}
    scene.seek(DAVE, expected=4, leaders=(ALICE,))
    assert await scene.after(100.0) == {}


@played
async def test_a_peer_that_does_not_lead_neither_counts_nor_hears(scene: Scene) -> None:
    """Its followers would take it for their leader; a report waits until this peer leads."""
    alice = scene.peers[ALICE]
    alice.want(leaders=(BOB,), samples=5, step=STEP)
    following = asyncio.create_task(scene.follow(ALICE, declared_by(MALLORY), REPORT + b"record"))
    await asyncio.sleep(10.0)
    assert alice.heard == []
    alice.want(leaders=(ALICE,), samples=6)
    await asyncio.sleep(2 * LOOK_S)
    assert alice.reports == [{MALLORY: b"record"}]
    following.cancel()
    await asyncio.wait({following})


@played
async def test_a_leader_looks_up_tokens_that_it_misses(scene: Scene) -> None:
    """Its own one, too, and a follower's that was renewed; at limited intervals."""
    token_of, admitted, known = scene.members.token_of, scene.members.admitted, set[str]()
    lookups = 0

    def cached(peer: str) -> Any:
        return token_of(peer) if peer in known else None

    async def look_up(peers: Collection[str], roles: Collection[str]) -> set[str]:
        nonlocal lookups
        lookups += 1
        known.update(scene.members.peers)
        return await admitted(peers, roles)

    scene.members.token_of, scene.members.admitted = cached, look_up  # type: ignore[method-assign]
    scene.seek(ALICE, BOB, leaders=(ALICE,))
    await asyncio.sleep(RENEW_S)
    known.clear()
    await asyncio.sleep(RENEW_S)
    scene.trigger(ALICE)
    assert is_one_group((await scene.after(RENEW_S + LOOK_S)).values(), ALICE, BOB)
    assert lookups < 10


@played
async def test_a_peer_follows_with_one_stream(scene: Scene) -> None:
    """An older one is ended."""
    streams = [asyncio.create_task(scene.follow(ALICE, declared_by(MALLORY))) for _ in range(20)]
    await asyncio.sleep(5.0)
    assert sum(stream.done() for stream in streams) == 19
    assert scene.peers[ALICE].followers == {MALLORY}
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)


@pytest.mark.parametrize("seed", range(30))
@played
async def test_a_search_may_be_cancelled_at_any_time(scene: Scene, seed: int) -> None:
    """It leaves nothing behind (`play`), and the next search finds a group."""
    rng = random.Random(seed)
    scene.trigger(*rng.sample(ALL, 2))
    scene.seek(ALICE, BOB, CAROL, required=3)
    await asyncio.sleep(rng.uniform(0.0, 0.3))
    cancelled = rng.sample([ALICE, BOB, CAROL], rng.randint(1, 3))
    for name in cancelled:
        if rng.random() < 0.5:
            scene.peers[name].want(report=b"news")
        scene.searches[name].cancel()
    await asyncio.wait([scene.searches[name] for name in cancelled])
    for name in (ALICE, BOB, CAROL):
        scene.searches[name].cancel()
    scene.leave()
    await asyncio.sleep(1.0)
    assert not any(peer.followers for peer in scene.peers.values())
    scene.seek(ALICE, BOB, CAROL)
    scene.trigger()
    assert is_one_group((await scene.after(SOON_S)).values(), ALICE, BOB, CAROL)


@played
async def test_a_search_is_cancelled_although_there_is_news_at_that_moment(scene: Scene) -> None:
    """Before Python 3.12, `asyncio.wait_for` forgets that it was cancelled."""
    scene.seek(ALICE)
    await asyncio.sleep(0.1)
    scene.peers[ALICE].want(expected=3)
    await asyncio.sleep(0)
    scene.searches[ALICE].cancel()
    await asyncio.wait({scene.searches[ALICE]}, timeout=STALLED_S)
    assert scene.searches[ALICE].cancelled()
