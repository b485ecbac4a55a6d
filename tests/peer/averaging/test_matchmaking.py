"""Matchmaking: when a group of averaging peers begins, and which leaders an averager asks, or not again.

Real groups are in tests/system/test_pace.py, an observer that tries is in tests/auth/swarm/test_access.py.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from hivemind.proto.averaging_pb2 import AveragingData, MessageCode, MessageFromLeader

from peer.averaging.declarations import GROUP_ID_BYTES, bound
from peer.averaging.matchmaking import (
    AVOIDED_S,
    FULL_GROUP_ATTEMPTS,
    LOOK_S,
    MOST_PASSED_OVER_S,
    MOST_REQUEST_S,
    Beginnings,
    Gathering,
    Leaders,
    begin_if_complete,
    hold_searches,
    keeperless_group_size,
    request_timeout,
    require_declarations,
    required_group_size,
)
from tests.support.waiting import PATIENCE_S

ALICE, BOB, STRANGER = (PeerID(name) for name in (b"alice", b"bob", b"stranger"))

MEMBERS = {ALICE, BOB}


class Directory:
    """Knows the members without a DHT."""

    async def admitted(self, peers: Collection[PeerID], roles: Collection[str]) -> set[PeerID]:
        """Who of them is a member."""
        assert "observer" not in roles
        return set(peers) & MEMBERS

    def token_of(self, peer: PeerID) -> Any:
        """What a member's token says."""
        return SimpleNamespace(member="alice", device_id="1", role="trainer") if peer in MEMBERS else None


class Scene:
    """A search in which everybody declares itself, and leads a group of these peers."""

    def __init__(self, group: Collection[PeerID] | None) -> None:
        self.now, self.asked, self._group = 0.0, list[PeerID](), group
        self.matchmaking: Any = SimpleNamespace(
            group_key_manager=SimpleNamespace(get_averagers=self._declared),
            _request_join_group=self._request,
            potential_leaders=SimpleNamespace(search_end_time=3.0),
            request_timeout=1.0,
            peer_id=PeerID(b"own"),
        )
        self.paused_s, self.takes_s = 0.0, 0.0
        self.choice = Leaders(Directory(), lambda: self.now, self._pause)  # type: ignore[arg-type]
        self.choice.choose_for(self.matchmaking)

    async def _pause(self, seconds: float) -> None:
        self.paused_s += seconds
        self.now += seconds

    async def _declared(self, _key: str, only_active: bool) -> list[tuple[PeerID, float]]:
        assert only_active
        return [(STRANGER, 1.0), (ALICE, 2.0), (BOB, 3.0)]

    async def _request(self, leader: PeerID) -> GroupInfo | None:
        self.asked.append(leader)
        self.now += self.takes_s
        if self.takes_s:
            return None
        if self._group is None:
            raise AssertionError("Leader sent us group_peer_ids that does not contain us!")
        return GroupInfo(b"group", tuple(self._group), (b"",) * len(self._group))

    async def leaders(self) -> list[PeerID]:
        """Who may be asked."""
        return [peer for peer, _ in await self.matchmaking.group_key_manager.get_averagers("key", only_active=True)]


async def test_strangers_are_not_asked() -> None:
    """Neither those who declare themselves nor those to whom another leader points."""
    scene = Scene([ALICE, BOB])
    assert await scene.leaders() == [ALICE, BOB]
    assert await scene.matchmaking._request_join_group(STRANGER) is None
    assert await scene.matchmaking._request_join_group(ALICE) is not None
    assert scene.asked == [ALICE]
    assert await scene.leaders() == [ALICE, BOB]


async def test_who_gathers_for_longer_than_the_search_is_no_leader_of_it() -> None:
    """hivemind never asks it, and looks for no other while it knows one: a member's word of an hour would stop all."""
    scene = Scene([ALICE, BOB])
    scene.matchmaking.potential_leaders.search_end_time = 2.0
    assert await scene.leaders() == [ALICE]


async def test_leaders_are_looked_for_now_and_then() -> None:
    """However often hivemind asks: with nobody to follow it asks again at once, the whole time."""
    scene = Scene([ALICE, BOB])
    began = scene.now
    for _ in range(5):
        await scene.leaders()
    assert scene.paused_s == pytest.approx(4 * LOOK_S)
    scene.now += LOOK_S
    await scene.leaders()
    assert scene.now - began == pytest.approx(5 * LOOK_S)


async def test_who_leads_strangers_is_avoided_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """The log names it; the others can still lead, and it again later."""
    scene = Scene([ALICE, BOB, STRANGER])
    await scene.matchmaking._request_join_group(ALICE)
    assert "suspicious: alice (device 1, trainer)" in caplog.text
    assert await scene.leaders() == [BOB]
    scene.now = AVOIDED_S
    assert await scene.leaders() == [ALICE, BOB]


async def test_who_leads_a_group_without_us_is_avoided() -> None:
    """The search goes on as hivemind has it, without this leader."""
    scene = Scene(None)
    with pytest.raises(AssertionError):
        await scene.matchmaking._request_join_group(ALICE)
    assert await scene.leaders() == [BOB]


async def test_a_leader_whose_groups_come_to_nothing_is_passed_over() -> None:
    """After the second time, while there is another; others may still send us to it, for they may know it better."""
    scene = Scene([ALICE, BOB])
    for expected in ([ALICE, BOB], [ALICE, BOB], [BOB]):
        assert await scene.leaders() == expected
        scene.takes_s = 1.0
        await scene.matchmaking._request_join_group(ALICE)
    for _ in range(2):
        await scene.matchmaking._request_join_group(BOB)
    assert await scene.leaders() == [ALICE, BOB]  # of whom none is better
    assert scene.asked == [ALICE] * 3 + [BOB] * 2
    scene.now += 2 * AVOIDED_S
    scene.takes_s = 0.0
    scene.choice.group_ended(await scene.matchmaking._request_join_group(ALICE), came_about=True)
    scene.choice.group_ended(await scene.matchmaking._request_join_group(ALICE), came_about=False)
    assert await scene.leaders() == [ALICE, BOB]


@pytest.mark.parametrize(("times", "seconds"), [(2, AVOIDED_S), (3, 2 * AVOIDED_S), (20, MOST_PASSED_OVER_S)])
async def test_a_leader_that_tells_everybody_something_else_is_passed_over(times: int, seconds: float) -> None:
    """The peers of its groups do not find each other, and it is not their fault; each time it waits for longer."""
    scene = Scene([ALICE, BOB])
    await scene.leaders()
    for _ in range(times):
        group = await scene.matchmaking._request_join_group(ALICE)
        scene.choice.group_ended(bound(group), came_about=False)
    scene.choice.group_ended(GroupInfo(b"own", (ALICE, BOB), (b"1", b"2")), came_about=False)
    scene.now += seconds - 1.0
    assert await scene.leaders() == [BOB]
    scene.now += 1.0
    assert await scene.leaders() == [ALICE, BOB]


async def test_a_leader_that_refuses_is_none_whose_groups_come_to_nothing() -> None:
    """It answers at once: it is following another, or not looking."""
    scene = Scene([ALICE, BOB])
    scene.takes_s = 0.5
    for _ in range(3):
        await scene.matchmaking._request_join_group(ALICE)
    assert await scene.leaders() == [ALICE, BOB]


async def test_a_leader_that_changes_words_is_avoided(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has led the group, if it was not this peer."""
    scene = Scene([ALICE, BOB])
    group = await scene.matchmaking._request_join_group(ALICE)
    scene.choice.avoid_leader_of(GroupInfo(b"own", (ALICE, BOB), (b"1", b"2")), "something was wrong")
    assert await scene.leaders() == [ALICE, BOB]
    scene.choice.avoid_leader_of(bound(group), "the words were changed")
    assert await scene.leaders() == [BOB]
    assert "led a group in which the words were changed" in caplog.text


@pytest.mark.parametrize(("why", "code"), [("", None), ("it is too long", MessageCode.PROTOCOL_VIOLATION)])
def test_a_follower_whose_words_cannot_be_read_is_not_let_in(why: str, code: int | None) -> None:
    """Else all who follow this leader would give its group up, and avoid this peer."""
    matchmaking: Any = SimpleNamespace(_check_reasons_to_reject=lambda _request, _context: None)
    require_declarations(matchmaking, lambda gathered, peer: why if (gathered, peer) == (b"words", ALICE) else "no")
    request: Any = SimpleNamespace(gather=b"words")
    answer = matchmaking._check_reasons_to_reject(request, SimpleNamespace(remote_id=ALICE))
    assert (answer and answer.code) == code


def test_other_reasons_come_before_the_words() -> None:
    """A leader that is no longer looking reads nothing."""
    refusal = MessageFromLeader(code=MessageCode.NOT_LOOKING_FOR_GROUP)
    matchmaking: Any = SimpleNamespace(_check_reasons_to_reject=lambda _request, _context: refusal)
    require_declarations(matchmaking, lambda _gathered, _peer: "never asked")
    assert matchmaking._check_reasons_to_reject(None, None) is refusal


class Search:
    """A search for a group by a peer that leads two others."""

    def __init__(self, step: object, **changes: Any) -> None:
        self.step_control: object = step
        self.current_leader: str | None = None
        self.current_followers = {"first": None, "second": None}
        self.assembled_group: asyncio.Future[str] = asyncio.Future()
        self.lock_request_join_group = asyncio.Lock()
        self.potential_leaders = SimpleNamespace()
        vars(self).update(changes)

    async def leader_assemble_group(self) -> None:
        assert self.lock_request_join_group.locked()  # as hivemind demands
        self.assembled_group.set_result("assembled")


async def begins(expected: int, **changes: Any) -> bool:
    """Whether the group begins at once when so many peers are known."""
    step = SimpleNamespace(triggered=True)
    search = Search(step, **changes)
    await begin_if_complete(search, step, expected)  # type: ignore[arg-type]
    return search.assembled_group.done()


async def test_a_group_begins_when_everybody_known_has_come() -> None:
    """And not before; where nobody is known, hivemind's window decides."""
    assert await begins(3)
    assert await begins(2)
    assert not await begins(4)
    assert not await begins(1)
    assert not await begins(0)


async def test_only_the_leader_of_this_search_begins() -> None:
    """Neither who follows another, nor the search for a group of an earlier attempt."""
    assert not await begins(3, current_leader="another")
    assert not await begins(3, step_control=SimpleNamespace(triggered=True))


async def test_nobody_begins_while_another_may_still_come() -> None:
    """Followers that come while a request is being answered, or leave, are counted afterwards."""
    step = SimpleNamespace(triggered=True)
    search = Search(step)
    async with search.lock_request_join_group:
        waiting = asyncio.create_task(begin_if_complete(search, step, 3))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        del search.current_followers["second"]
    await waiting
    assert not search.assembled_group.done()


async def test_a_search_that_is_not_due_goes_on() -> None:
    """So that who begins to train before the batch is full comes in; when it is full, the group begins."""
    step = SimpleNamespace(triggered=False)
    search, gathering = Search(step), Gathering(6.0)
    gathering.expected = 3
    steering = asyncio.create_task(gathering.steer(search, step))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not search.assembled_group.done()
    step.triggered = True
    assert await asyncio.wait_for(search.assembled_group, PATIENCE_S) == "assembled"
    steering.cancel()


async def test_what_is_wanted_holds_for_the_search() -> None:
    """How many are required, and for how long they are waited for."""
    search, gathering = Search(None), Gathering(15.0)
    gathering.required, gathering.window_s = 5, 4.0
    gathering.apply(search)  # type: ignore[arg-type]
    assert vars(search)["min_group_size"] == 5
    assert vars(search)["min_matchmaking_time"] == search.potential_leaders.min_matchmaking_time == 4.0
    assert vars(search)["request_timeout"] == 2.0


def test_before_the_first_step_any_two_peers_may_average() -> None:
    """From the beginning of the run, whoever else is to come."""
    gathering = Gathering(15.0)
    assert (gathering.required, gathering.expected, gathering.keeperless) == (2, 0, 2)
    assert (gathering.position, gathering.window_s, gathering.target) == ((0, 0), 15.0, 0)


@pytest.mark.parametrize("window_s", [0.5, 3.0, 15.0, 600.0])
def test_an_answer_is_waited_for_less_long_than_the_window(window_s: float) -> None:
    """Or two peers that ask each other would both miss it."""
    assert request_timeout(window_s) <= min(MOST_REQUEST_S, window_s / 2)


@pytest.mark.parametrize("averaging", [1, 2, 3, 10])
def test_first_attempts_wait_for_everybody(averaging: int) -> None:
    """The first rounds of a step are begun only with every peer that is at this step."""
    sizes = [required_group_size(averaging, attempt, has_waited=False) for attempt in range(FULL_GROUP_ATTEMPTS)]
    assert sizes == [averaging] * 3


@pytest.mark.parametrize("averaging", range(1, 12))
def test_later_attempts_need_more_than_half(averaging: int) -> None:
    """Two groups that are each large enough would have to share a peer, so a step cannot be taken twice."""
    size = required_group_size(averaging, FULL_GROUP_ATTEMPTS, has_waited=False)
    assert size == required_group_size(averaging, 0, has_waited=True)
    assert 2 * size > averaging
    assert size <= averaging


@pytest.mark.parametrize("live", range(1, 9))
def test_two_groups_that_share_no_peer_never_both_take_a_step(live: int) -> None:
    """Whatever their sizes and steps: one has the keeper, or one has most peers; peers that are left may be too few."""
    least = keeperless_group_size(live, has_keeper=False, is_taken=False)
    assert [size for size in range(live + 1) if size >= least <= live - size] == []
    assert least <= live
    for has_keeper, is_taken in [(True, False), (False, True)]:
        assert keeperless_group_size(live, has_keeper, is_taken) > live


def test_a_search_that_was_given_up_ends_in_order() -> None:
    """Although nobody refers to it any more but itself, and unreachable objects are looked for meanwhile."""
    tidied = []

    class Search:
        async def look_for_group(self, step: object) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                gone = Waiting()
                await gone.wait()
                tidied.append(step)

    class Waiting:
        """As an answer of another process: known to who waits for it only, and by a weak reference."""

        def __init__(self) -> None:
            self.future = asyncio.get_running_loop().create_future()
            answers.append(weakref.ref(self.future))

        async def wait(self) -> None:
            await self.future

    answers: list[weakref.ref[asyncio.Future[None]]] = []

    async def main() -> None:
        search: Any = Search()
        hold_searches(search, Beginnings(Gathering(15.0), Directory().token_of))
        task = asyncio.ensure_future(search.look_for_group("step"))
        await asyncio.sleep(0)
        task.cancel()
        del task
        await asyncio.sleep(0)
        gc.collect()
        answer = answers[0]()
        assert answer is not None
        answer.set_result(None)
        del answer
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert tidied == ["step"]


MEMBER_OF = {"keeper": "op", "a1": "alice", "a2": "alice", "b": "bob", "c": "carol", "own": "dan"}


def group_of(*names: str, group_id: bytes = b"g" * GROUP_ID_BYTES) -> GroupInfo:
    """A group of these devices."""
    return GroupInfo(group_id, tuple(PeerID(name.encode()) for name in names), (b"",) * len(names))


GROUP = group_of(*MEMBER_OF)


def token_in_group(peer: PeerID) -> Any:
    """The token of a device of one of the group's members."""
    name = peer.to_bytes().decode()
    role = "keeper" if name == "keeper" else "trainer"
    return SimpleNamespace(member=MEMBER_OF[name], role=role) if name in MEMBER_OF else None


class Searcher:
    """A peer that looks for groups to average with after step 7."""

    def __init__(self) -> None:
        self.gathering = Gathering(15.0)
        self.beginnings = Beginnings(self.gathering, token_in_group)
        self.beginnings.sought_after(7)
        self.search = self.beginnings.forget()

    async def hear(self, peer: str, group_id: bytes) -> list[bytes]:
        """Something that a peer sends to a group; returns what comes through."""

        async def stream() -> AsyncIterator[AveragingData]:
            yield AveragingData(group_id=group_id)
            yield AveragingData()

        return [message.group_id async for message in self.beginnings.heard(PeerID(peer.encode()), stream())]


@pytest.mark.parametrize(
    ("senders", "group", "begun"),
    [
        ([], GROUP, False),
        (["keeper"], GROUP, True),
        (["a1", "a2", "b"], GROUP, False),  # of five members two, of whom one has two devices
        (["a1", "b", "c"], GROUP, True),
        (["a1", "b", "stranger"], GROUP, False),
        (["a1", "b"], group_of("keeper", "a1", "b", "own"), False),  # half of them
        (["a1", "b"], group_of("a1", "b", "own"), False),  # without the keeper it takes four
        (["a1", "b", "c"], group_of("a1", "b", "c", "own"), True),
    ],
)
async def test_a_group_has_begun_once_the_keeper_has_or_most_members(
    senders: list[str], group: GroupInfo, begun: bool
) -> None:
    """Parts count before and after this peer knows of the group, and pass on unchanged."""
    for found_before in (True, False):
        peer = Searcher()
        peer.gathering.keeperless = 4
        if found_before:
            peer.beginnings.found(group, peer.search)
        for sender in senders:
            assert await peer.hear(sender, group.group_id + b" half") == [group.group_id + b" half", b""]
        if not found_before:
            assert peer.gathering.begun_after == -1
            peer.beginnings.found(group, peer.search)
        assert peer.gathering.begun_after == (7 if begun else -1)
        search = peer.beginnings.forget()
        assert peer.gathering.begun_after == -1
        peer.beginnings.found(group, search)
        assert peer.gathering.begun_after == -1


async def test_what_is_sent_to_another_group_does_not_begin_this_one() -> None:
    """Nor does a stream that ends before anything has come, nor the group of a search that was given up."""
    peer = Searcher()
    peer.beginnings.found(GROUP, peer.search)
    await peer.hear("keeper", b"g" * (GROUP_ID_BYTES - 1) + b"G")

    async def nothing() -> AsyncIterator[AveragingData]:
        for _ in ():
            yield AveragingData()

    assert [message async for message in peer.beginnings.heard(GROUP.peer_ids[0], nothing())] == []
    assert peer.gathering.begun_after == -1
    peer.beginnings.forget()
    peer.beginnings.found(GROUP, peer.search)
    await peer.hear("keeper", GROUP.group_id)
    assert peer.gathering.begun_after == -1


async def test_a_leader_makes_no_group_seem_to_have_begun_by_its_id() -> None:
    """By an empty one, with which whatever anybody sends begins."""
    peer = Searcher()
    peer.beginnings.found(bound(group_of(*MEMBER_OF, group_id=b"")), peer.search)
    await peer.hear("keeper", GROUP.group_id)
    await peer.hear("b", b"")
    assert peer.gathering.begun_after == -1


async def test_a_group_that_gives_up_waits_no_more() -> None:
    """A peer that was busy all the while does not begin with it then."""
    peer = Searcher()
    peer.beginnings.found(GROUP, peer.search)
    await peer.hear("keeper", GROUP.group_id)
    assert peer.gathering.begun_after == 7
    peer.beginnings.hung_up(GROUP.peer_ids[0])
    assert peer.gathering.begun_after == -1
    peer.beginnings.hung_up(GROUP.peer_ids[0])


async def test_a_stream_that_is_heard_no_more_is_closed() -> None:
    """At once, as without anybody who listens between."""
    closed = []

    async def stream() -> AsyncIterator[AveragingData]:
        try:
            yield AveragingData(group_id=GROUP.group_id)
            yield AveragingData()
        finally:
            closed.append(True)

    heard: Any = Searcher().beginnings.heard(GROUP.peer_ids[0], stream())
    await anext(heard)
    await heard.aclose()
    assert closed == [True]


async def test_each_search_begins_anew_and_tells_of_its_group() -> None:
    """A group is told with the ID that its members send to."""
    peer = Searcher()
    outcomes = [GROUP, None]

    async def look(_step: object) -> GroupInfo | None:
        assert peer.gathering.begun_after == -1
        return outcomes.pop(0)

    search: Any = SimpleNamespace(look_for_group=look)
    hold_searches(search, peer.beginnings)
    assert await search.look_for_group("step") == bound(GROUP)
    await peer.hear("keeper", bound(GROUP).group_id)
    assert peer.gathering.begun_after == 7
    assert await search.look_for_group("step") is None
    assert peer.gathering.begun_after == -1
