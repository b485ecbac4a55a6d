"""Matchmaking: the start of a group's averaging round, and the choice of its leader.

hivemind's leader begins at its declared time, even if the last peer arrived much earlier. Here the
averager's process begins once all peers expected by the trainer's process are present. The declared
time matters only if a peer does not arrive.

hivemind requests to join every declared leader, and anyone can declare any peer in hivemind's DHT.
A leader determines the members of its group. A leader without a valid token, or with strangers in
its group, could block every round: the others reject the group (`auth.swarm.access`) and then ask
the same leader again. `Leaders` therefore follows only members that may average, and avoids leaders
of invalid groups for a time. A leader whose groups fail (it never begins, or sends members
different data) is skipped while another is available. Used by `peer.averaging.averager`.
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
AVOIDED_S = 60.0  # seconds for which a leader is avoided; few, because an honest leader may miss a recent revocation
MOST_AVOIDED = 1000
FRUITLESS_GROUPS = 2  # failed groups after which a leader is skipped for a time
MOST_PASSED_OVER_S = 600.0
LOOK_S = 0.3  # interval between lookups of leaders
BEGIN_POLL_S = 0.05
MOST_REQUEST_S = 3.0  # timeout for a peer's answer; ends mutual waits within the matchmaking time
NEVER = 2**30  # a group size that is never reached
FULL_GROUP_ATTEMPTS = 3  # number of failed rounds after which a majority of the peers suffices
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
LEAST_WINDOW_S = 3.0  # shortest matchmaking time: a DHT record and a distant peer's answer take up to a second each


class Gathering:
    """A trainer's requirements for the next group, shared with the averager's process."""

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
        """The minimum number of peers for a group to begin averaging."""
        return int(self._required.value)

    @required.setter
    def required(self, size: int) -> None:
        self._required.value = max(2, size)

    @property
    def expected(self) -> int:
        """The number of peers at which a group stops waiting; 0: unknown."""
        return int(self._expected.value)

    @expected.setter
    def expected(self, size: int) -> None:
        self._expected.value = size

    @property
    def keeperless(self) -> int:
        """The minimum number of peers for a group to average without the keeper."""
        return int(self._keeperless.value)

    @keeperless.setter
    def keeperless(self, size: int) -> None:
        self._keeperless.value = size

    @property
    def target(self) -> int:
        """The samples of a batch; 0: unknown."""
        return int(self._target.value)

    @target.setter
    def target(self, samples: int) -> None:
        self._target.value = samples

    @property
    def position(self) -> tuple[int, int]:
        """The era and global step after which the group averages, equal for all its peers."""
        return int(self._era.value), int(self._step.value)

    @position.setter
    def position(self, position: tuple[int, int]) -> None:
        self._era.value, self._step.value = position

    @property
    def code(self) -> tuple[Compression, int]:
        """The compression and PowerSGD rank of the next group, readable from another process."""
        rank, number = divmod(int(self._code.value), len(COMPRESSIONS))
        return COMPRESSIONS[number], rank

    @code.setter
    def code(self, code: tuple[Compression, int]) -> None:
        compression, rank = code
        self._code.value = rank * len(COMPRESSIONS) + COMPRESSIONS.index(compression)

    @property
    def begun_after(self) -> int:
        """The global step after which this peer's group began to average; -1 if it has not begun.

        Reset to -1 when this peer's round runs, when the group gives up, and when a search begins.
        """
        return int(self._begun_after.value)

    @begun_after.setter
    def begun_after(self, step: int) -> None:
        self._begun_after.value = step

    @property
    def window_s(self) -> float:
        """The seconds that a leader waits for absent peers."""
        return float(self._window_s.value)

    @window_s.setter
    def window_s(self, seconds: float) -> None:
        self._window_s.value = seconds

    async def steer(self, matchmaking: Matchmaking, step: StepControl) -> None:
        """Apply the trainer's requirements to the search for this step's group, until cancelled."""
        while True:
            self.apply(matchmaking)
            if step.triggered:  # the gradients are ready; before that, new trainers can still join
                await begin_if_complete(matchmaking, step, self.expected)
            await asyncio.sleep(BEGIN_POLL_S)

    def apply(self, matchmaking: Matchmaking) -> None:
        """Apply the current requirements to this search, from its next declaration on."""
        window_s = self.window_s
        matchmaking.min_group_size = self.required
        matchmaking.min_matchmaking_time = matchmaking.potential_leaders.min_matchmaking_time = window_s
        matchmaking.request_timeout = request_timeout(window_s)


class Beginnings:
    """A detector of group members that have begun to average, based on their streams.

    A peer begins when the claims that it trusts fill the batch. A peer that trusts fewer samples
    than the others would keep its group waiting, so it also begins once the keeper, or more than
    half of the group's members, have begun, if the group may average at all. A peer that reduces
    nothing receives no parts and cannot detect this. Used in the averager's process only.
    """

    def __init__(self, gathering: Gathering, token_of: Callable[[PeerID], AccessToken | None]) -> None:
        self._gathering, self._token_of = gathering, token_of
        self._step, self._searches = -1, 0
        self._found: GroupInfo | None = None
        self._sent: dict[PeerID, bytes] = {}  # sender -> ID of its stream's group

    def sought_after(self, step: int) -> None:
        """Set the global step of the groups to search for."""
        self._step = step

    def forget(self) -> int:
        """Reset for a new search or this peer's round; return the number of the search."""
        self._searches += 1
        self._found, self._sent = None, {}
        self._gathering.begun_after = -1
        return self._searches

    def found(self, group: GroupInfo, search: int) -> None:
        """Set the group found for this peer, unless a newer search has begun."""
        if search == self._searches:
            self._found = group
            self._judge()

    async def heard(self, peer: PeerID, stream: AsyncIterator[AveragingData]) -> AsyncIterator[AveragingData]:
        """Forward a peer's stream, and record which group the stream belongs to."""
        try:
            async for message in stream:
                if message.group_id:  # set in the first message only
                    self._sent[peer] = message.group_id[:GROUP_ID_BYTES]  # without the suffix that names half a round
                    self._judge()
                yield message
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def hung_up(self, peer: PeerID) -> None:
        """Record the end of a peer's stream; the peer no longer counts as having begun."""
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
    """One averager's selection of leaders; used in the averager's own process only."""

    def __init__(
        self,
        directory: PeerDirectory,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._directory, self._clock, self._pause = directory, clock, pause
        self._avoided: dict[PeerID, float] = {}  # leader -> end of the exclusion
        self._fruitless: Counter[PeerID] = Counter()  # leader -> failed groups since the last success
        self._passed_over: dict[PeerID, float] = {}  # leader -> time until which other leaders are preferred
        self._followed: tuple[PeerID, tuple[bytes, ...]] | None = None  # last leader and its declarations
        self._looked_at = float("-inf")

    def choose_for(self, matchmaking: Matchmaking) -> None:
        """Restrict a search to trusted leaders, looked up at intervals. Call this once per search.

        hivemind repeats a lookup immediately if no leader was found. It never asks a leader whose
        search ends after this peer's, but looks up no other leader while it knows such a leader.
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
            if leader not in await self.among([leader]):  # another leader may have redirected this peer
                return None
            asked_at = self._clock()
            try:
                group = await request(leader)
            except AssertionError:  # raised by hivemind for a group without this peer
                self._avoid(leader, "a group without this peer")
                raise
            if group is not None:
                self._followed = leader, group.gathered
                await self._look_at(leader, group)
            elif self._clock() - asked_at >= matchmaking.request_timeout:  # a refusal would have come at once
                self._came_to_nothing(leader)
            return group

        keys.get_averagers, matchmaking._request_join_group = trusted, request_trusted

    async def among(self, peers: Collection[PeerID]) -> set[PeerID]:
        """Return those of `peers` that this averager may follow as leaders."""
        now = self._clock()
        admitted = await self._directory.admitted(peers, TRAINING_ROLES)
        return {peer for peer in admitted if self._avoided.get(peer, now) <= now}

    def _fruitful(self, leaders: set[PeerID]) -> set[PeerID]:
        """Return the leaders that are not currently skipped, or all `leaders` if every one is."""
        now = self._clock()
        self._passed_over = {peer: until for peer, until in self._passed_over.items() if until > now}
        return leaders - self._passed_over.keys() or leaders

    def _came_to_nothing(self, leader: PeerID) -> None:
        """Skip a leader after its second failed group, and twice as long after each further one."""
        self._fruitless[leader] += 1
        over = self._fruitless[leader] - FRUITLESS_GROUPS
        if over >= 0:
            self._passed_over[leader] = self._clock() + min(MOST_PASSED_OVER_S, AVOIDED_S * 2.0 ** min(over, 16))
        if len(self._fruitless) > MOST_AVOIDED:
            self._fruitless.clear()

    def group_ended(self, group: GroupInfo, came_about: bool) -> None:
        """Record a group's success or failure for its leader."""
        leader = self._leader_of(group)
        if leader is None:
            return
        if came_about:
            del self._fruitless[leader]
        else:
            self._came_to_nothing(leader)

    def avoid_leader_of(self, group: GroupInfo, reason: str) -> None:
        """Stop joining this group's leader for a while, because it sent invalid declarations."""
        leader = self._leader_of(group)
        if leader is not None:
            self._avoid(leader, f"a group in which {reason}")

    def _leader_of(self, group: GroupInfo) -> PeerID | None:
        """Return the leader that this peer followed to this group, or None if this peer led it."""
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
    """Return the required group size: all peers, or a majority after failures or a long wait."""
    return averaging // 2 + 1 if has_waited or attempts >= FULL_GROUP_ATTEMPTS else averaging


def keeperless_group_size(live: int, has_keeper: bool, is_taken: bool) -> int:
    """Return the required size of a group without the keeper, so that no two groups take the same step.

    While the keeper is present, no step is taken without it. Otherwise more than half of all `live`
    peers, at any step, are required. A step that a peer has already taken (`is_taken`) is not
    repeated: the keeper may have taken part before it left, and its state takes precedence.
    """
    return NEVER if has_keeper or is_taken else live // 2 + 1


def require_declarations(matchmaking: Matchmaking, refused: Callable[[bytes, PeerID], str]) -> None:
    """Make this leader reject a follower if `refused` returns a reason against its declaration."""
    check = matchmaking._check_reasons_to_reject

    def reasons(request: JoinRequest, context: P2PContext) -> MessageFromLeader | None:
        found = check(request, context)
        if found is None and (why := refused(request.gather, context.remote_id)):
            logger.info("%s was not let into the group: %s", context.remote_id, why)
            return MessageFromLeader(code=MessageCode.PROTOCOL_VIOLATION)
        return found

    matchmaking._check_reasons_to_reject = reasons


def hold_searches(matchmaking: Matchmaking, beginnings: Beginnings) -> None:
    """Keep each search for a group alive until it ends, and bind its group to the declarations.

    `beginnings` is notified of each search and its group.

    hivemind does not await a cancelled search, and asyncio keeps no strong reference to a waiting
    task. Garbage collection (`peer.averaging.rounds`) could therefore end the task during cleanup,
    and the averager would find no group for a minute.
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
    """Return the seconds to wait for a peer's answer during matchmaking."""
    return min(MOST_REQUEST_S, window_s / 2)


async def begin_if_complete(matchmaking: Matchmaking, step: StepControl, expected: int) -> None:
    """Begin with the current followers if this peer leads and all expected peers are present."""
    if not _is_complete(matchmaking, step, expected):
        return
    async with matchmaking.lock_request_join_group:
        if _is_complete(matchmaking, step, expected):  # checked again under the lock
            await matchmaking.leader_assemble_group()


def _is_complete(matchmaking: Matchmaking, step: StepControl, expected: int) -> bool:
    return (
        expected > 1
        and matchmaking.step_control is step
        and matchmaking.current_leader is None
        and not matchmaking.assembled_group.done()
        and len(matchmaking.current_followers) + 1 >= expected
    )
