"""Gathering of a group to average with: when it begins, and which leaders an averager follows.

hivemind's leader begins when the time that it declared is up, however early the last peer came. Here the trainer's
process says which peers it knows to be there, and the averager's process begins as soon as they all are; the time only
matters where somebody does not come.

hivemind asks every peer that declares itself to be a leader, and in its DHT anybody can declare anybody. A leader says
who is in its group. One without the right token, or one that brings strangers along, could so hold up every round: the
others give such a group up (`auth.swarm.access`) and would ask the same leader again. So `Leaders` follows only members
who may average, and avoids for a time those whose groups were no good. A leader whose groups come to nothing (it
gathers followers and never begins, or tells each of them something else) is passed over while there is another. Used by
`peer.averaging.averager`.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing as mp
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from typing import Any, get_args

from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto.averaging_pb2 import AveragingData, JoinRequest, MessageCode, MessageFromLeader

from auth.swarm.authorizer import TRAINING_ROLES
from auth.swarm.directory import PeerDirectory
from auth.tokens import AccessToken
from peer.averaging.declarations import GROUP_ID_BYTES, bound
from peer.averaging.shares import TRUSTED_ROLES
from peer.config.training import Compression

logger = logging.getLogger(__name__)
AVOIDED_S = 60.0  # longer than a few rounds; a leader whose follower was revoked just then loses little
MOST_AVOIDED = 1000
FRUITLESS_GROUPS = 2  # of a leader, after which it is passed over for a time
MOST_PASSED_OVER_S = 600.0
LOOK_S = 0.3  # between two looks for leaders
BEGIN_POLL_S = 0.05
MOST_REQUEST_S = 3.0  # to wait for a peer's answer; less than the window, or two peers may wait for each other
NEVER = 2**30  # peers are in no group
FULL_GROUP_ATTEMPTS = 3  # rounds that wait for everybody; after them a majority is enough
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
LEAST_WINDOW_S = 3.0  # seconds; a record in the DHT and an answer of a far peer take up to a second each


class Gathering:
    """A trainer's demands on the group that its averager looks for, read by the averager's process while it looks."""

    def __init__(self, window_s: float) -> None:
        self._required, self._expected = mp.Value("i", 2), mp.Value("i", 0)
        self._keeperless = mp.Value("i", 2)
        self._target = mp.Value("q", 0)
        self._window_s = mp.Value("d", window_s)
        self._era, self._step = mp.Value("q", 0), mp.Value("q", 0)
        self._code = mp.Value("q", 0)
        self._begun_after = mp.Value("q", -1)

    @property
    def required(self) -> int:
        """The least number of peers with which a group begins."""
        return int(self._required.value)

    @required.setter
    def required(self, size: int) -> None:
        self._required.value = max(2, size)

    @property
    def expected(self) -> int:
        """The number of peers with which a group waits for nobody else; 0 if it is not known."""
        return int(self._expected.value)

    @expected.setter
    def expected(self, size: int) -> None:
        self._expected.value = size

    @property
    def keeperless(self) -> int:
        """The least number of peers with which a group without the keeper may average."""
        return int(self._keeperless.value)

    @keeperless.setter
    def keeperless(self, size: int) -> None:
        self._keeperless.value = size

    @property
    def target(self) -> int:
        """The samples of a batch; 0 if they are not known."""
        return int(self._target.value)

    @target.setter
    def target(self, samples: int) -> None:
        self._target.value = samples

    @property
    def position(self) -> tuple[int, int]:
        """The era and global step after which the group averages: only peers that say the same find each other."""
        return int(self._era.value), int(self._step.value)

    @position.setter
    def position(self, position: tuple[int, int]) -> None:
        self._era.value, self._step.value = position

    @property
    def code(self) -> tuple[Compression, int]:
        """The compression and PowerSGD's rank in which the next group averages, as another process reads them."""
        rank, number = divmod(int(self._code.value), len(COMPRESSIONS))
        return COMPRESSIONS[number], rank

    @code.setter
    def code(self, code: tuple[Compression, int]) -> None:
        compression, rank = code
        self._code.value = rank * len(COMPRESSIONS) + COMPRESSIONS.index(compression)

    @property
    def begun_after(self) -> int:
        """The global step after which the group found averages already (see `Beginnings`); -1: none.

        It is -1 again when this peer's round runs, when the group gives up, and with each search.
        """
        return int(self._begun_after.value)

    @begun_after.setter
    def begun_after(self, step: int) -> None:
        self._begun_after.value = step

    @property
    def window_s(self) -> float:
        """The seconds that a leader waits for peers that do not come."""
        return float(self._window_s.value)

    @window_s.setter
    def window_s(self, seconds: float) -> None:
        self._window_s.value = seconds

    async def steer(self, matchmaking: Matchmaking, step: StepControl) -> None:
        """Let the search for this step's group follow the trainer's demands, until cancelled."""
        while True:
            self.apply(matchmaking)
            if step.triggered:  # before, whoever begins to train meanwhile can still come in
                await begin_if_complete(matchmaking, step, self.expected)
            await asyncio.sleep(BEGIN_POLL_S)

    def apply(self, matchmaking: Matchmaking) -> None:
        """Apply the demands of this moment to this search, from its next declaration on."""
        window_s = self.window_s
        matchmaking.min_group_size = self.required
        matchmaking.min_matchmaking_time = matchmaking.potential_leaders.min_matchmaking_time = window_s
        matchmaking.request_timeout = request_timeout(window_s)


class Beginnings:
    """The peers of a group that have begun to average, as they show by what they send; in the averager's process only.

    A peer begins when the batch is full by the claims that it believes. A member of a short round believes less than
    the other peers, and its group would wait for it in vain. So a peer also begins once the keeper has begun, or more
    than half of the group's members have, if the group may average at all. A peer that reduces nothing receives no
    parts, so it does not notice that others begin.
    """

    def __init__(self, gathering: Gathering, token_of: Callable[[PeerID], AccessToken | None]) -> None:
        self._gathering, self._token_of = gathering, token_of
        self._step, self._searches = -1, 0
        self._found: GroupInfo | None = None
        self._sent: dict[PeerID, bytes] = {}  # sender -> the group to which it sends

    def sought_after(self, step: int) -> None:
        """Take in the global step after which the groups average that are looked for from now on."""
        self._step = step

    def forget(self) -> int:
        """Begin anew: another group is looked for, or this peer has begun itself; returns the number of the search."""
        self._searches += 1
        self._found, self._sent = None, {}
        self._gathering.begun_after = -1
        return self._searches

    def found(self, group: GroupInfo, search: int) -> None:
        """Take in the group that this peer is to average with, unless that search was given up for another."""
        if search == self._searches:
            self._found = group
            self._judge()

    async def heard(self, peer: PeerID, stream: AsyncIterator[AveragingData]) -> AsyncIterator[AveragingData]:
        """Pass on what a peer sends to be reduced, and remember to which group."""
        try:
            async for message in stream:
                if message.group_id:  # in the first one
                    self._sent[peer] = message.group_id[:GROUP_ID_BYTES]  # of a half of a round, too
                    self._judge()
                yield message
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def hung_up(self, peer: PeerID) -> None:
        """Take in that a peer's stream has ended; before this peer has begun, that peer waits for it no more."""
        self._sent.pop(peer, None)
        self._judge()

    def _judge(self) -> None:
        if (group := self._found) is None:
            return
        tokens = {peer: token for peer in group.peer_ids if (token := self._token_of(peer)) is not None}
        begun = [token for peer, token in tokens.items() if self._sent.get(peer) == group.group_id]
        members, begun_members = ({token.member for token in each} for each in (tokens.values(), begun))
        has_keeper, keeper_has = (any(t.role in TRUSTED_ROLES for t in each) for each in (tokens.values(), begun))
        may_average = has_keeper or group.group_size >= self._gathering.keeperless
        has_begun = may_average and (keeper_has or 2 * len(begun_members) > len(members))
        self._gathering.begun_after = self._step if has_begun else -1


class Leaders:
    """One averager's choice among the peers that declare themselves leaders; used in its own process only."""

    def __init__(
        self,
        directory: PeerDirectory,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._directory, self._clock, self._pause = directory, clock, pause
        self._avoided: dict[PeerID, float] = {}  # until when
        self._fruitless: Counter[PeerID] = Counter()  # leader -> groups that came to nothing, since one came about
        self._passed_over: dict[PeerID, float] = {}  # until when, as long as there is another
        self._followed: tuple[PeerID, tuple[bytes, ...]] | None = None  # the last leader, with what it had gathered
        self._looked_at = float("-inf")

    def choose_for(self, matchmaking: Matchmaking) -> None:
        """Have this search ask no leaders but those chosen here, and look for them now and then; call it once.

        hivemind looks again as soon as a look has found no leader, the whole time. It never asks a leader that gathers
        for longer than this search, but looks for no other while it knows one.
        """
        keys, request = matchmaking.group_key_manager, matchmaking._request_join_group
        declared = keys.get_averagers

        async def trusted(*args: Any, **kwargs: Any) -> list[tuple[PeerID, float]]:
            await self._pause(max(0.0, self._looked_at + LOOK_S - self._clock()))
            self._looked_at = self._clock()
            found = await declared(*args, **kwargs)
            may_lead = self._fruitful(await self.among([peer for peer, _ in found]) - {matchmaking.peer_id})
            ends_at = matchmaking.potential_leaders.search_end_time
            return [(peer, until) for peer, until in found if peer in may_lead and until <= ends_at]

        async def request_trusted(leader: PeerID) -> GroupInfo | None:
            if leader not in await self.among([leader]):  # another leader may have sent us there
                return None
            asked_at = self._clock()
            try:
                group = await request(leader)
            except AssertionError:  # hivemind's, of a group without us
                self._avoid(leader, "a group without this peer")
                raise
            if group is not None:
                self._followed = leader, group.gathered
                await self._look_at(leader, group)
            elif self._clock() - asked_at >= matchmaking.request_timeout:  # a leader that refuses answers at once
                self._came_to_nothing(leader)
            return group

        keys.get_averagers, matchmaking._request_join_group = trusted, request_trusted

    async def among(self, peers: Collection[PeerID]) -> set[PeerID]:
        """Return those of these peers that may lead a group that this averager is in."""
        now = self._clock()
        admitted = await self._directory.admitted(peers, TRAINING_ROLES)
        return {peer for peer in admitted if self._avoided.get(peer, now) <= now}

    def _fruitful(self, leaders: set[PeerID]) -> set[PeerID]:
        """Return the leaders whose groups come about; all, if none is known for that."""
        now = self._clock()
        self._passed_over = {peer: until for peer, until in self._passed_over.items() if until > now}
        return leaders - self._passed_over.keys() or leaders

    def _came_to_nothing(self, leader: PeerID) -> None:
        """Pass the leader over, from its second such group on, for twice as long each time."""
        self._fruitless[leader] += 1
        over = self._fruitless[leader] - FRUITLESS_GROUPS
        if over >= 0:
            self._passed_over[leader] = self._clock() + min(MOST_PASSED_OVER_S, AVOIDED_S * 2.0 ** min(over, 16))
        if len(self._fruitless) > MOST_AVOIDED:
            self._fruitless.clear()

    def group_ended(self, group: GroupInfo, came_about: bool) -> None:
        """Take in whether a group averaged as far as it depends on its leader: all had the same words."""
        leader = self._leader_of(group)
        if leader is None:
            return
        if came_about:
            del self._fruitless[leader]
        else:
            self._came_to_nothing(leader)

    def avoid_leader_of(self, group: GroupInfo, reason: str) -> None:
        """Avoid the leader of a group with words that no honest leader hands out."""
        leader = self._leader_of(group)
        if leader is not None:
            self._avoid(leader, f"a group in which {reason}")

    def _leader_of(self, group: GroupInfo) -> PeerID | None:
        """Return whom this peer followed to this group; None if itself."""
        followed = self._followed
        return followed[0] if followed is not None and followed[1] == group.gathered else None

    async def _look_at(self, leader: PeerID, group: GroupInfo) -> None:
        strangers = set(group.peer_ids) - await self._directory.admitted(group.peer_ids, TRAINING_ROLES)
        if strangers:
            self._avoid(leader, f"a group with {len(strangers)} peers that hold no valid token")

    def _avoid(self, leader: PeerID, led: str) -> None:
        now = self._clock()
        self._avoided = {peer: until for peer, until in self._avoided.items() if until > now}
        if len(self._avoided) < MOST_AVOIDED:
            self._avoided[leader] = now + AVOIDED_S
        token = self._directory.token_of(leader)
        who = "no member" if token is None else f"{token.member} (device {token.device_id}, {token.role})"
        logger.warning("suspicious: %s, peer %s, led %s: not followed for %g s", who, leader, led, AVOIDED_S)


def required_group_size(averaging: int, attempts: int, has_waited: bool) -> int:
    """Return the number of peers that a group needs: all at this step; after repeated failure or long, over a half."""
    return averaging // 2 + 1 if has_waited or attempts >= FULL_GROUP_ATTEMPTS else averaging


def keeperless_group_size(live: int, has_keeper: bool, is_taken: bool) -> int:
    """Return the number of peers that a group without the keeper needs, so that no two groups take the same step.

    There is one keeper: while it is there no step is taken without it. Without it more than half of all `live` peers,
    whatever their step, take the step. None is taken that one of them has taken already (`is_taken`): perhaps with the
    keeper, before it went, and then the keeper's state counts.
    """
    return NEVER if has_keeper or is_taken else live // 2 + 1


def require_declarations(matchmaking: Matchmaking, refused: Callable[[bytes, PeerID], str]) -> None:
    """Have this leader accept no follower whose declaration others would not read; `refused` says why, or nothing."""
    check = matchmaking._check_reasons_to_reject

    def reasons(request: JoinRequest, context: P2PContext) -> MessageFromLeader | None:
        found = check(request, context)
        if found is None and (why := refused(request.gather, context.remote_id)):
            logger.info("%s was not let into the group: %s", context.remote_id, why)
            return MessageFromLeader(code=MessageCode.PROTOCOL_VIOLATION)
        return found

    matchmaking._check_reasons_to_reject = reasons


def hold_searches(matchmaking: Matchmaking, beginnings: Beginnings) -> None:
    """Let each search for a group end, also one that was given up, and bind the group found to its peers' words.

    `beginnings` is told of each search and of the group found.

    hivemind does not wait for a search that it cancels, and asyncio holds no task that waits. What such a search waits
    for may be held by nobody either; then the next look for unreachable objects (`peer.averaging.rounds`) ends it in
    the middle of tidying up, and the averager finds no group for a minute.
    """
    look, running = matchmaking.look_for_group, set()

    async def held(step: StepControl) -> Any:
        task = asyncio.current_task()
        running.add(task)
        search = beginnings.forget()
        try:
            if (group := await look(step)) is None:
                return None
            group = bound(group)
            beginnings.found(group, search)
            return group
        finally:
            running.discard(task)

    matchmaking.look_for_group = held


def request_timeout(window_s: float) -> float:
    """Return the seconds to wait for a peer's answer while a group is looked for."""
    return min(MOST_REQUEST_S, window_s / 2)


async def begin_if_complete(matchmaking: Matchmaking, step: StepControl, expected: int) -> None:
    """Begin with the followers that are there, if this peer leads them and nobody else is to come."""
    if not _is_complete(matchmaking, step, expected):
        return
    async with matchmaking.lock_request_join_group:
        if _is_complete(matchmaking, step, expected):  # still: whoever held the lock may have changed it
            await matchmaking.leader_assemble_group()


def _is_complete(matchmaking: Matchmaking, step: StepControl, expected: int) -> bool:
    return (
        expected > 1
        and matchmaking.step_control is step
        and matchmaking.current_leader is None
        and not matchmaking.assembled_group.done()
        and len(matchmaking.current_followers) + 1 >= expected
    )
