"""Meetings: how the peers at one step become a group that averages.

Each peer opens a stream to the leader (`peer.progress.decision.candidates`) when it works towards a
step. It sends its signed declaration, then a report of its samples after each microbatch, and
finally that its batch is full. The leader tells its followers how many samples it counts. It begins
once its own batch is full, or the batches of most members, and the peers that its trainer expects
are there (`may_begin`). It then sends the group's peers and all their declarations over every
stream. Nobody polls, and no record in the DHT decides who meets.

The streams stay open during the round. Who holds the average then sends a signature, and the leader
rules on the average (`peer.node.quorum`). If the leader is lost before, the holders follow the next.

The leader is not trusted. Its followers check every declaration (`peer.averaging.declarations`),
every signature, and that all peers of the group are members. The group's ID depends on all that the
leader has said, so peers to which it has said different things do not average with each other. A
leader is passed over for a time if it cannot be reached, breaks the rules, or leads rounds that
fail. `peer.averaging.rounds` uses this module.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import struct
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from auth.keys import verify_signature
from auth.swarm.authorizer import TRAINING_ROLES
from auth.tokens import AccessToken
from peer.averaging.deadline import RoundDeadline
from peer.averaging.declarations import Declaration, DeclaredGroup, read_group
from peer.averaging.requirements import DELIVERY_S, MOST_DELIVERY_S, REPORT_S, Heard, Requirements, TrainerNews
from peer.node.quorum import (
    CONFIRMED,
    GROUP_ID_BYTES,
    LOST_S,
    MOST_SIGNATURE_BYTES,
    VOID,
    GroupRound,
    HeldAverage,
    KnownAverages,
    Ruling,
    Verify,
    read_average,
    read_certificate,
)
from peer.transport.transport import Transport, TransportError

logger = logging.getLogger(__name__)
MOST_GRACE_S = 10.0  # longest wait of a leader for peers that may still come; also for the first groups
LEAST_GRACE_S = 3.0  # shortest such wait; a DHT record and an answer take up to a second each
STALLED_S = 30.0  # seconds after which a peer leaves a leader that does not begin, or does not decide
RULING_S = 3.0  # longest wait for a leader's ruling after its round
UNREACHABLE_S = 2.0  # seconds for which a leader is passed over after its first failure of each kind
FRUITLESS_S = 15.0
INVALID_S = 60.0
MOST_PASSED_OVER_S = 60.0  # short, because peers that disagree about an honest leader do not meet
MOST_REMEMBERED = 1000
GONE_ON_S = 5.0  # pause after a leader has gone on: the trainer will soon begin the next step
DECLARE_S = 10.0  # longest wait for a follower's declaration
RENEW_S = 5.0  # shortest interval between look-ups of tokens that a leader misses
RETRY_S = 0.5  # pause after a failed attempt to follow a leader
MAX_REPORT_BYTES = 2048
REPORT, FULL, HOLDS = b"r", b"f", b"h"  # a follower's messages begin with: its record; its batch is full; its average
COUNT, GONE_ON, BEGIN = b"c", b"g", b"b"  # a leader's: its count of the batch; it has taken the step; the group
_COUNT = struct.Struct(">Qd")  # samples, seconds until the batch is full
LOOK_S, IDLE_LOOK_S = 1.0, 5.0  # longest time until a search looks again; with a trusted leader and no full batch


class UnconfirmedAverageError(Exception):
    """An average with which no step may be taken."""


def may_begin(present: int, wanted: Requirements, waited_s: float, grace_s: float) -> bool:
    """Return whether a leader with a full batch begins with the peers that are present, itself included."""
    is_complete = 0 < wanted.expected <= present
    return present >= max(2, wanted.required) and (is_complete or waited_s >= max(grace_s, wanted.free_s))


class Members(Protocol):
    """The part of `auth.swarm.directory.PeerDirectory` that meetings use."""

    def token_of(self, peer: str) -> AccessToken | None:
        """Return the valid token of a peer (by ID), if it is known."""

    async def admitted(self, peers: Collection[str], roles: Collection[str]) -> set[str]:
        """Return those peers with a valid token for one of the roles, after a look-up if one is unknown."""


class LeaderRecords:
    """One peer's memory of leaders that have failed, itself included."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = Counter[str]()  # leader -> failures since its last success
        self._passed_over: dict[str, float] = {}  # leader -> time until which other candidates are preferred

    def first(self, leaders: Sequence[str]) -> str | None:
        """Return the first candidate that is not passed over, else the one whose time ends first."""
        now = self._clock()
        return min(leaders, key=lambda leader: max(now, self._passed_over.get(leader, now)), default=None)

    @property
    def are_clear(self) -> bool:
        """Whether no leader is passed over."""
        return all(until <= self._clock() for until in self._passed_over.values())

    def failed(self, leader: str, seconds: float) -> None:
        """Pass over a leader for `seconds`, and twice as long after each further failure."""
        if len(self._failures) >= MOST_REMEMBERED:
            self._failures.clear()
            self._passed_over.clear()
        doubled = seconds * 2.0 ** min(self._failures[leader], 16)
        self._failures[leader] += 1
        self._passed_over[leader] = self._clock() + min(MOST_PASSED_OVER_S, doubled)

    def succeeded(self, leader: str) -> None:
        """Forget the failures of a leader whose group has averaged."""
        self._failures.pop(leader, None)
        self._passed_over.pop(leader, None)


@dataclass(eq=False)
class _Follower:
    """A peer that waits for this one to lead."""

    peer: str
    member: str
    declared: bytes
    declaration: Declaration
    is_full: bool = False  # whether this peer's batch is full
    words: list[bytes] = field(default_factory=list)  # the group, once the leader has begun, and the ruling
    group_id: bytes = b""  # of that group
    held: HeldAverage | None = None  # what this peer holds, with its signature
    signature: bytes = b""
    is_ruled: bool = False  # whether the ruling has been told
    report: bytes = b""  # its newest report, until it is delivered
    is_replaced: bool = False  # whether the peer has opened another stream
    has_word: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, word: bytes) -> None:
        """Send a word to this peer."""
        self.words.append(word)
        self.has_word.set()


@dataclass(eq=False)
class _Leader:
    """The leader that this peer follows, and what it has said."""

    peer: str
    group: asyncio.Future[bytes | None] = field(default_factory=asyncio.Future)  # None: it is at another step
    ruling: asyncio.Future[bytes] = field(default_factory=asyncio.Future)
    following: asyncio.Task[None] | None = None

    def lost(self, error: Exception) -> None:
        """Note that this leader says nothing more."""
        for awaited in self.group, self.ruling:
            if not awaited.done():
                awaited.set_exception(error)
                awaited.exception()  # asyncio would log it if nobody waits for this leader any more

    def leave(self) -> None:
        """Stop following this leader."""
        if self.following is not None:
            self.following.cancel()


class Meetings:
    """One peer's meetings with the peers at its step, as a leader or as a follower."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        directory: Members,
        opened: Callable[[bytes, AccessToken], Declaration],
        sign: Callable[[bytes], bytes],
        deliver: Callable[[Heard], bool],
        verify: Verify = verify_signature,
    ) -> None:
        """Set up meetings over streams of this name; `opened` verifies a peer's declaration.

        `sign` signs what this peer holds, and `verify` checks others' signatures. `deliver` takes
        what this peer has heard, unless it is busy and returns False.
        """
        self._transport, self._name, self._directory, self._opened = transport, name, directory, opened
        self._sign, self._verify = sign, verify
        self._clock = asyncio.get_running_loop().time
        self._records = LeaderRecords(self._clock)
        self._grace = RoundDeadline(MOST_GRACE_S, LEAST_GRACE_S)
        self._wanted = Requirements()
        self._declared = b""
        self._followers: dict[str, _Follower] = {}
        self._leader = _Leader(transport.peer_id)  # of the newest group
        self._round: GroupRound | None = None  # of the newest group
        self._averages = KnownAverages(transport.peer_id, self._clock)
        self._shown = b""  # the ruling on this peer's average, from a follower that has gone on
        self._is_asked = False  # whether the leader has missed it
        self._given_up = (-1, -1), -math.inf  # position of an average given up that may be the step's, and until when
        self._rests_until = -math.inf  # end of the pause after a group whose round may have failed at once
        self._trainer = TrainerNews(deliver, self._clock)
        self._sought = self._wanted.position  # as in this peer's declaration
        self._news = asyncio.Event()  # something that the running search depends on has changed
        self._counting: asyncio.TimerHandle | None = None  # the next count for the followers
        self._counted_at = -math.inf  # time of the last one
        self._is_full = False  # whether this peer's batch is full, as the leader is to know
        self._was_complete = False  # whether all expected peers have come to the group that this peer leads
        self._has_message = asyncio.Event()
        self._renew_at = -math.inf  # time of the next look-up of missing tokens
        self._searching = asyncio.Lock()
        self._tasks = set[asyncio.Task[Any]]()  # asyncio itself keeps no strong reference to a waiting task

    async def serve(self) -> None:
        """Let other peers follow this one."""
        await self._transport.serve(self._name, self.welcome)

    def want(self, wanted: Requirements) -> None:
        """Set the trainer's requirements for this search or the next one."""
        before, self._wanted, self._averages.quorum = self._wanted, wanted, wanted.quorum
        if wanted.report != before.report:
            self._has_message.set()
        if wanted.position != before.position:
            self._trainer.heard = Heard(wanted.position, self._trainer.heard.reports)
        if wanted.position != before.position or wanted.is_full != before.is_full:
            self._wake_followers()
        elif wanted.samples != before.samples and self._counting is None:
            counts_at = max(self._clock(), self._counted_at + wanted.report_s)
            self._counting = asyncio.get_running_loop().call_at(counts_at, self._wake_followers)
        if _of_group(wanted) != _of_group(before):
            self._deliver_reports()
            self._wake_followers()  # this peer may lead them only now
            self._news.set()

    def _wake_followers(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
        self._counting, self._counted_at = None, self._clock()
        for follower in self._followers.values():
            follower.has_word.set()

    def declare(self, position: tuple[int, int], declared: bytes) -> None:
        """Set this peer's signed declaration for its next group, at `position` (era, step)."""
        if position != self._sought:
            self._averages.lacking.clear()
        self._sought, self._declared = position, declared

    async def look_for_group(self, due: asyncio.Event) -> DeclaredGroup:
        """Return the next group at the declared position; wait until there is one.

        `due` is set once this peer's batch is full.
        """
        async with self._searching:
            self._leader.leave()
            if (led := self._averages.led) is not None:
                led.ends_at = min(led.ends_at, self._clock())  # for this peer; it may not have begun
            await asyncio.sleep(self._rests_until - self._clock())
            group = (await self._search(due)).bound
            self._round = GroupRound(group.group_id, set(group.peers))
            if self._leader.peer == self._transport.peer_id:
                self._averages.led = self._round
            self._rests_until = self._clock() + RETRY_S
            return group

    def round_began(self, ends_at: float) -> None:
        """Note that the newest group's round has begun, and by when it ends for all its peers."""
        if self._round is not None:
            self._round.ends_at = ends_at

    def round_failed(self) -> None:
        """Rule on the newest group's average for a time, if this peer has led the group, and lacks the average."""
        if (led := self._averages.led) is not None and led is self._round:
            self._start(self._rule_on(led))

    async def _rule_on(self, led: GroupRound) -> None:
        position = self._sought
        while self._averages.led is led and self._sought == position and self._clock() < led.ends_at + LOST_S:
            if all(follower.group_id != led.group_id for follower in self._followers.values()):
                break
            self._decide()
            await asyncio.sleep(LOOK_S)

    async def confirm(self, digest: bytes) -> None:
        """Wait until the voters have confirmed the newest group's average, which this peer holds.

        Raises `UnconfirmedAverageError` if no step may be taken with it.
        """
        assert self._round is not None
        held = HeldAverage(self._name, *self._sought, self._round.group_id, digest)
        self._averages.hold(held, held.signature(self._sign))
        self._has_message.set()
        self._wake_followers()
        try:
            if not await self._is_confirmed(held, self._round.ends_at + RULING_S):
                raise UnconfirmedAverageError("too few peers hold this round's average")
        except asyncio.CancelledError:
            self._given_up = self._sought, self._clock() + MOST_PASSED_OVER_S
            raise
        finally:
            self._averages.held = None
            self._leader.leave()

    def group_ended(self, came_about: bool) -> None:
        """Record the success or failure of the newest group's round for its leader."""
        if came_about:
            self._rests_until = -math.inf
            self._records.succeeded(self._leader.peer)
        else:
            self._records.failed(self._leader.peer, FRUITLESS_S)

    def distrust_leader(self, reason: str) -> None:
        """Pass over the newest group's leader, because `reason` holds in its group."""
        self._distrust(self._leader.peer, reason)

    async def welcome(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Let a member wait for a group that this peer leads; send it the group. Others get no answer."""
        if not await self._directory.admitted([caller], TRAINING_ROLES):
            return
        token = self._directory.token_of(caller)
        assert token is not None  # as it is admitted
        try:
            declared = await asyncio.wait_for(anext(requests, b""), DECLARE_S)
            holding = declared.removeprefix(HOLDS) if declared.startswith(HOLDS) else b""
            if holding:
                declared = await asyncio.wait_for(anext(requests, b""), DECLARE_S)
            follower = _Follower(caller, token.member, declared, self._opened(declared, token))
            if holding:
                self._take_holding(follower, holding)
        except (ValueError, asyncio.TimeoutError) as error:
            logger.info("%s may not follow this peer: %s", caller, error)
            return
        if (older := self._followers.get(caller)) is not None:
            older.is_replaced = True
            older.has_word.set()
        self._followers[caller] = follower
        self._news.set()
        hearing = self._start(self._hear(follower, requests))
        try:
            async with aclosing(self._words_for(follower)) as words:
                async for word in words:
                    yield word
        finally:
            if self._followers.get(caller) is follower:
                del self._followers[caller]
                self._news.set()
            hearing.cancel()
            await asyncio.wait({hearing})  # the transport cannot close `requests` while a task reads them

    async def _words_for(self, follower: _Follower) -> AsyncGenerator[bytes, None]:
        """Yield the samples that this leader counts, then the group, and at last the ruling."""
        counted, asked = -1, None
        while not follower.is_replaced:
            follower.has_word.clear()
            wanted = self._wanted
            if self._averages.held != asked and follower.declaration.position > wanted.position:
                asked = self._averages.held
                if asked is not None:
                    yield HOLDS + asked.message(b"")
            while follower.words:
                word = follower.words.pop(0)
                yield word
                if word.startswith((CONFIRMED, VOID)):
                    return
            if wanted.position > follower.declaration.position:
                is_confirmed = follower.held is not None and follower.held == self._averages.confirmed
                yield self._averages.certified if is_confirmed else GONE_ON
                return
            is_here = wanted.position == follower.declaration.position and not follower.group_id
            if is_here and self._leads and counted != wanted.samples:
                if self._directory.token_of(follower.peer) is None:  # revoked, or it has expired
                    return
                counted = wanted.samples
                yield count_word(wanted.samples, wanted.remaining_s)
            await follower.has_word.wait()

    async def _hear(self, follower: _Follower, messages: AsyncIterator[bytes]) -> None:
        """Process a follower's messages, at limited intervals."""
        with suppress(TransportError):  # the transport then ends the handler, too
            async for message in messages:
                if message == FULL:
                    follower.is_full = True
                    self._news.set()
                elif message.startswith(HOLDS):
                    self._take_holding(follower, message[len(HOLDS) :])
                elif (held := self._averages.held) is not None and message.startswith(CONFIRMED + held.message(b"")):
                    self._shown = message
                    self._news.set()
                elif message.startswith(REPORT) and len(message) <= MAX_REPORT_BYTES:
                    follower.report = message[len(REPORT) :]
                    self._deliver_reports()
                await asyncio.sleep(REPORT_S / 2)

    def _deliver_reports(self) -> None:
        """Deliver the followers' newest reports, which concern the leader only."""
        new = {caller: follower.report for caller, follower in self._followers.items() if follower.report}
        if new and self._leads:
            within_s = min(MOST_DELIVERY_S, max(DELIVERY_S, self._wanted.report_s / 2))
            self._trainer.tell(within_s, reports={**self._trainer.heard.reports, **new})
            for caller in new:
                self._followers[caller].report = b""

    def _take_holding(self, follower: _Follower, message: bytes) -> None:
        try:
            position = follower.declaration.position
            held, signature = read_average(message, self._name, position, MOST_SIGNATURE_BYTES)
            token = self._directory.token_of(follower.peer)
            if token is None or not held.is_signed(token.public_key, signature, self._verify):
                raise ValueError("its signature is false")
        except ValueError as error:
            logger.info("%s says falsely that it holds an average: %s", follower.peer, error)
            return
        follower.held, follower.signature = held, signature
        self._news.set()

    async def _search(self, due: asyncio.Event) -> DeclaredGroup:
        while True:
            self._news.clear()
            if (leader := self._first_choice) is None:
                await _wait(self._news, LOOK_S)
            elif (group := await self._meet_at(leader, due)) is not None:
                return group

    @property
    def _leads(self) -> bool:
        """Whether this peer is the first choice for leader."""
        return self._records.first(self._wanted.leaders) == self._transport.peer_id

    @property
    def _first_choice(self) -> str | None:
        """The present leader; None if there is no candidate, or the trainer has gone on to another step.

        Who has given up an average that may be the step's leaves the step to others for a time.
        """
        wanted, (given_up, until) = self._wanted, self._given_up
        is_current = wanted.position == self._sought and (wanted.position != given_up or self._clock() >= until)
        return self._records.first(wanted.leaders) if is_current else None

    async def _meet_at(self, leader: str, due: asyncio.Event) -> DeclaredGroup | None:
        """Lead, or follow this leader, until there is a group, the attempt fails, or another peer leads."""
        leads, full_at, group = leader == self._transport.peer_id, math.inf, None
        self._is_full = self._was_complete = False
        followed = self._turn_to(leader)
        waking = self._start(due.wait())
        try:
            while True:
                self._news.clear()
                if followed.group.done():  # even if another peer leads from now on
                    group = await self._group_of(followed)
                    return group
                if self._first_choice != leader:
                    return None
                if due.is_set() and not self._is_full:
                    self._is_full = True
                    self._has_message.set()
                is_open = leads and await self._leads_on()
                is_full = self._is_full or (leads and self._is_full_for_most)
                full_at = min(full_at, self._clock()) if is_full else math.inf
                waited_s = self._clock() - full_at
                if leads and not is_open and waited_s >= 0 and (group := self._begun(waited_s)) is not None:
                    return group
                if not leads and waited_s > STALLED_S:
                    self._stalled(leader)
                    full_at = self._clock()  # if it goes on to lead, it stalls again after as long
                is_idle = not (leads or is_full) and self._records.are_clear
                unready_s = self._wanted.ready_s - waited_s  # until this leader waits no longer for computing peers
                look_s = min(LOOK_S, max(DELIVERY_S, unready_s)) if leads and unready_s > 0 else LOOK_S
                await _wait(self._news, IDLE_LOOK_S if is_idle else look_s)
        except asyncio.CancelledError:  # the trainer waits no longer, maybe less than `STALLED_S`
            if not leads and self._clock() - full_at > MOST_GRACE_S:
                self._stalled(leader)
            raise
        finally:
            waking.cancel()
            if group is None:  # otherwise, the leader is to confirm its average
                followed.leave()

    def _stalled(self, leader: str) -> None:
        """Pass over a leader that has not begun with a full batch, if there is another candidate."""
        if len(self._wanted.leaders) > 1 and self._wanted.position == self._sought:
            self._records.failed(leader, FRUITLESS_S)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task whose end is news for the search."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio would log it if the search has gone on without the task
        self._tasks.discard(task)
        self._news.set()

    @property
    def _present(self) -> dict[str, _Follower]:
        """The members that wait for a group at this step and with the same code, by peer ID."""
        wanted = self._wanted.position, self._wanted.code
        return {
            caller: follower
            for caller, follower in self._followers.items()
            if (follower.declaration.position, follower.declaration.code) == wanted
            and not (follower.group_id or follower.held or follower.is_replaced)
            and self._directory.token_of(caller) is not None
        }

    @property
    def _is_full_for_most(self) -> bool:
        """Whether more than half of the members report a full batch; they may credit more samples than this peer."""
        present = self._present.values()
        full = {follower.member for follower in present if follower.is_full}
        own = self._directory.token_of(self._transport.peer_id)
        return 2 * len(full) > len({follower.member for follower in present} | {own.member if own else ""})

    async def _renew_tokens(self) -> None:
        """Look up tokens of this leader and its followers that are missing or have expired, at limited intervals."""
        peers = [self._transport.peer_id, *self._followers]
        if self._clock() >= self._renew_at and any(self._directory.token_of(peer) is None for peer in peers):
            self._renew_at = self._clock() + RENEW_S
            await self._directory.admitted(peers, TRAINING_ROLES)

    def _begun(self, waited_s: float) -> DeclaredGroup | None:
        """Begin as the leader if enough peers are present, and send them the group; else return None."""
        wanted, present = self._wanted, self._present
        if not wanted.quorum.is_in({self._transport.peer_id, *present}):
            return None
        if not self._was_complete and 0 < wanted.expected <= len(present) + 1:
            self._was_complete = True
            self._grace.succeeded(waited_s)
        are_ready = waited_s >= wanted.ready_s or all(follower.is_full for follower in present.values())
        if not (are_ready and may_begin(len(present) + 1, wanted, waited_s, self._grace.seconds)):
            return None
        logger.info("lead %d peers, of %d expected, after %.2f s", len(present) + 1, wanted.expected, waited_s)
        declared = {self._transport.peer_id: self._declared}
        declared |= {caller: follower.declared for caller, follower in present.items()}
        order = sorted(declared)
        group = DeclaredGroup(
            secrets.token_bytes(GROUP_ID_BYTES), tuple(order), tuple(declared[peer] for peer in order)
        )
        group_id, word = group.bound.group_id, BEGIN + group.message()
        for follower in present.values():
            follower.group_id = group_id
            follower.tell(word)
        return group

    async def _leads_on(self) -> bool:
        """As the leader, decide on earlier averages; return whether one is open, so that no group may begin."""
        await self._renew_tokens()
        self._deliver_reports()
        rulings = self._decide().values()
        if Ruling.CONFIRMED in rulings:  # this peer does not hold the step's average
            self._trainer.tell(gone_on=True)
        return any(given is not Ruling.VOID for given in rulings)

    def _decide(self) -> dict[HeldAverage, Ruling]:
        """As the leader, rule on each average that peers at this step hold, and tell those concerned."""
        here = {
            caller: follower
            for caller, follower in self._followers.items()
            if follower.declaration.position == self._sought
            and not follower.is_replaced
            and self._directory.token_of(caller) is not None
        }
        holdings = {caller: (each.held, each.signature) for caller, each in here.items() if each.held is not None}
        rulings = self._averages.decide(holdings, {caller: each.group_id for caller, each in here.items()})
        for held, (given, word) in rulings.items():
            for follower in here.values():
                is_concerned = follower.held == held or follower.group_id == held.group_id
                if is_concerned and given is not Ruling.OPEN and not follower.is_ruled:
                    follower.is_ruled = True
                    follower.tell(word)
        return {held: given for held, (given, _) in rulings.items()}

    async def _is_confirmed(self, held: HeldAverage, decides_by: float) -> bool:
        """Wait for the ruling on this peer's average, from one leader after another."""
        is_new = False
        while self._wanted.position == self._sought:
            self._news.clear()
            leader, first = self._leader, self._first_choice
            if self._shown and await self._confirmed_in(self._shown, held, most_s=0.0) == held:
                return True
            is_late = self._clock() > decides_by
            is_left = (is_new or is_late) and first != leader.peer
            if leader.peer == self._transport.peer_id and not is_left:
                if (given := self._decide()[held]) is not Ruling.OPEN:
                    return given is Ruling.CONFIRMED
            elif leader.ruling.done():
                if (is_confirmed := await self._ruling_by(leader, held)) is not None:
                    return is_confirmed
                is_left, first = True, self._first_choice
            elif is_late:
                self._records.failed(leader.peer, FRUITLESS_S)
                is_left, first = True, self._first_choice
            if is_left and first is not None:
                leader.leave()
                self._turn_to(first)
                is_new, decides_by = True, self._clock() + STALLED_S
                continue
            await _wait(self._news, LOOK_S)
        return False

    async def _ruling_by(self, leader: _Leader, held: HeldAverage) -> bool | None:
        """Return whether a leader has confirmed this peer's average; None, after a pause, if it gives no ruling."""
        try:
            word = leader.ruling.result()
            if word == VOID:
                return False
            if (confirmed := await self._confirmed_in(word, held)) is None:
                raise ValueError("too few voters have signed the average")
            return confirmed == held
        except (TransportError, ValueError) as error:
            await self._pass_over(leader.peer, error)
            return None

    async def _confirmed_in(self, word: bytes, held: HeldAverage, most_s: float = STALLED_S) -> HeldAverage | None:
        """Return the average that a word confirms for the step of `held`; None if it is not the voters' word.

        This peer may notice up to `most_s` later than others that voters are gone.
        """
        self._shown = b""
        try:
            confirmed, signatures = read_average(word[len(CONFIRMED) :], held.run, held.position)
            signers = read_certificate(signatures, confirmed, self._key_of, self._verify)
        except ValueError as error:
            logger.info("an average is confirmed falsely: %s", error)
            return None
        until = self._clock() + most_s
        while not self._wanted.quorum.is_in(signers):
            if self._clock() >= until or self._wanted.position != self._sought:
                return None
            self._news.clear()
            await _wait(self._news, LOOK_S)
        if confirmed == held:  # a peer shows certificates only of averages with which it takes the step
            self._averages.confirmed, self._averages.certified = confirmed, word
        return confirmed

    def _key_of(self, peer: str) -> str | None:
        """Return the key of a peer whose signature counts."""
        quorum, token = self._wanted.quorum, self._directory.token_of(peer)
        return token.public_key if token is not None and peer in quorum.voters | quorum.keepers else None

    async def _group_of(self, leader: _Leader) -> DeclaredGroup | None:
        """Read the leader's group; return None, after a pause, if the leader has failed or gone on."""
        try:
            if (group := leader.group.result()) is not None:
                return await self._read(group, leader.peer)
            self._records.failed(leader.peer, 2 * GONE_ON_S)  # it may lie
            await asyncio.sleep(GONE_ON_S)
            return None
        except (TransportError, ValueError) as error:
            await self._pass_over(leader.peer, error)
            return None

    def _turn_to(self, peer: str) -> _Leader:
        """Follow this leader from now on, unless it is this peer itself."""
        self._leader = leader = _Leader(peer)
        if peer != self._transport.peer_id:
            leader.following = self._start(self._hear_leader(leader))
        return leader

    async def _hear_leader(self, leader: _Leader) -> None:
        """Read a leader's words until it says nothing more."""
        try:
            async with aclosing(self._transport.stream(leader.peer, self._name, self._said())) as words:
                async for word in words:
                    if word.startswith(BEGIN) and not leader.group.done():
                        leader.group.set_result(word[len(BEGIN) :])
                    elif word.startswith((CONFIRMED, VOID)):
                        leader.ruling.set_result(word)
                        break
                    elif word.startswith(HOLDS):
                        self._is_asked = self._averages.certified.startswith(CONFIRMED + word[len(HOLDS) :])
                        self._has_message.set()
                    elif word == GONE_ON:
                        if self._wanted.position == self._sought:  # otherwise, the trainer has gone on, too
                            self._trainer.tell(gone_on=True)
                        if not leader.group.done():
                            leader.group.set_result(None)
                        break
                    else:
                        count = _count_in(word)
                        if self._wanted.position == self._sought:
                            self._trainer.tell(count=count)
                        continue
                    self._news.set()
            leader.lost(TransportError("it says nothing more."))
        except (TransportError, ValueError) as error:
            leader.lost(error)

    async def _said(self) -> AsyncGenerator[bytes, None]:
        """Yield this peer's declaration and its messages to its leader."""
        held, report, is_full, reports_at = self._averages.held, b"", False, -math.inf
        if held is not None:  # before this peer counts as one that holds nothing
            yield HOLDS + held.message(self._averages.signature)
        yield self._declared
        while True:  # the open stream says that this peer is there
            self._has_message.clear()
            if self._is_asked:
                self._is_asked = False
                yield self._averages.certified
                await asyncio.sleep(REPORT_S)
            if self._averages.held not in (None, held):
                held = self._averages.held
                yield HOLDS + held.message(self._averages.signature)
            if report != self._wanted.report and self._clock() >= reports_at:
                report, reports_at = self._wanted.report, self._clock() + self._wanted.report_s
                yield REPORT + report
            if is_full != self._is_full:
                is_full = self._is_full
                yield FULL
            await _wait(self._has_message, None if report == self._wanted.report else reports_at - self._clock())

    async def _read(self, word: bytes, leader: str) -> DeclaredGroup:
        """Read a leader's group.

        Raises `ValueError` if it is invalid, and `TransportError` if strangers are in it.
        """
        group = read_group(word)
        peers = set(group.peers)
        if not peers >= {leader, self._transport.peer_id}:
            raise ValueError("the leader or this peer is missing")
        strangers = peers - await self._directory.admitted(peers, TRAINING_ROLES)
        if strangers:  # this peer may know a revocation sooner than an honest leader, or a token later
            raise TransportError(f"{len(strangers)} peers of its group hold no valid token.")
        return group

    async def _pass_over(self, leader: str, error: Exception) -> None:
        """Pass over a leader that is lost or breaks the rules, and pause."""
        if isinstance(error, TransportError):
            logger.info("the leader %s is lost: %s", leader, error)
            self._records.failed(leader, UNREACHABLE_S)
        else:
            self._distrust(leader, str(error))
        await asyncio.sleep(RETRY_S)

    def _distrust(self, leader: str, reason: str) -> None:
        self._records.failed(leader, INVALID_S)
        token = self._directory.token_of(leader)
        who = "no member" if token is None else f"{token.member} (device {token.device_id}, {token.role})"
        logger.warning("suspicious: %s, peer %s, led a group in which %s: passed over for a time", who, leader, reason)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event, for `seconds` at most; `asyncio.wait_for` may lose a cancellation before Python 3.12."""
    waking = None if seconds is None else asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        if waking is not None:
            waking.cancel()


def _of_group(wanted: Requirements) -> object:
    """Return the requirements on which the search for a group depends."""
    return wanted.position, wanted.code, wanted.leaders, wanted.required, wanted.expected, wanted.quorum


def count_word(samples: int, remaining_s: float) -> bytes:
    """Return a leader's count of the batch, which is full in `remaining_s` seconds."""
    return COUNT + _COUNT.pack(samples, remaining_s)


def _count_in(word: bytes) -> tuple[int, float]:
    """Read a leader's count. Raises `ValueError` if it is malformed."""
    if word.startswith(COUNT) and len(word) == len(COUNT) + _COUNT.size:
        samples, remaining_s = _COUNT.unpack(word[len(COUNT) :])
        if remaining_s >= 0:  # so it is a number
            return samples, remaining_s
    raise ValueError("its words are not understood")
