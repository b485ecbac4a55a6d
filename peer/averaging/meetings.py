"""Meetings: how the peers at one step become a group that averages.

Each peer opens a stream to the leader (`peer.swarm.decision.candidates`) when it works towards a
step. It sends its signed declaration, then a report of its samples after each microbatch, and
finally that its batch is full. The leader tells its followers how many samples it counts. It begins
once its own batch is full, or the batches of most members, and the peers that its trainer expects
are there (`may_begin`). It then sends the group's peers and all their declarations over every
stream. Nobody polls, and no record in the DHT decides who meets.

The leader is not trusted. Its followers check every declaration (`peer.averaging.declarations`), and
that all peers of the group are members. The group's ID depends on all that the leader has said, so
peers to which it has said different things do not average with each other. A leader is passed over
for a time if it cannot be reached, breaks the rules, or leads rounds that fail.
`peer.averaging.averager` uses this module in its own process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import struct
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from hivemind.proto.averaging_pb2 import MessageCode, MessageFromLeader

from auth.swarm.authorizer import TRAINING_ROLES
from auth.swarm.directory import PeerDirectory
from auth.tokens import AccessToken
from peer.averaging.declarations import GROUP_ID_BYTES, Declaration, bound
from peer.averaging.rounds import RoundDeadline
from peer.config.training import Compression
from peer.transport.transport import Transport, TransportError

logger = logging.getLogger(__name__)
MOST_GRACE_S = 10.0  # longest wait of a leader for peers that may still come; also for the first groups
LEAST_GRACE_S = 3.0  # shortest such wait; a DHT record and an answer take up to a second each
STALLED_S = 30.0  # seconds after which a peer with a full batch leaves a leader that does not begin
UNREACHABLE_S = 2.0  # seconds for which a leader is passed over after its first failure of each kind
FRUITLESS_S = 15.0
INVALID_S = 60.0
MOST_PASSED_OVER_S = 60.0  # short, because peers that disagree about an honest leader do not meet
MOST_REMEMBERED = 1000
GONE_ON_S = 5.0  # pause after a leader has gone on: the trainer will soon begin the next step
DECLARE_S = 10.0  # longest wait for a follower's declaration
RENEW_S = 5.0  # shortest interval between look-ups of tokens that a leader misses
RETRY_S = 0.5  # pause after a failed attempt to follow a leader
REPORT_S = 0.2  # shortest interval between a peer's reports
MAX_REPORT_BYTES = 2048
REPORT, FULL = b"r", b"f"  # a follower's messages begin with: its record; its batch is full
COUNT, GONE_ON, BEGIN = b"c", b"g", b"b"  # a leader's: its count of the batch; it has taken the step; the group
_COUNT = struct.Struct(">Qd")  # samples, seconds until the batch is full
MOST_PEERS = 4096  # of a group
DELIVERY_S = 0.05  # interval between deliveries to the trainer's process
MOST_DELIVERED = 16  # reports that are delivered to the trainer's process at once
LOOK_S = 1.0  # longest time until the choice of the leader is reconsidered
Result = TypeVar("Result")


@dataclass(frozen=True)
class Requirements:
    """A trainer's requirements for its next group, sent whole to the averager's process."""

    era: int = 0
    step: int = 0  # global step after which the group averages
    code: tuple[Compression, int] = ("none", 0)  # compression and PowerSGD rank
    target: int = 0  # the samples of a batch; 0: unknown
    leaders: tuple[str, ...] = ()  # IDs of the candidates for leader, preferred first
    required: int = 2  # smallest group that may begin to average
    expected: int = 0  # size at which the group stops waiting for others; 0: unknown
    keeperless: int = 2  # smallest group that may average without the keeper
    report: bytes = b""  # this peer's record, for the leader
    samples: int = 0  # samples of the batch that the trainer counts, for followers
    remaining_s: float = field(default=math.inf, compare=False)  # seconds until the batch is full, for followers

    @property
    def position(self) -> tuple[int, int]:
        """The era and the step, equal for all peers of a group."""
        return self.era, self.step


@dataclass(frozen=True)
class Heard:
    """The messages from other peers, merged, that the averager's process passes to the trainer's."""

    position: tuple[int, int] = (0, 0)  # this peer's era and step
    reports: Mapping[str, bytes] = field(default_factory=dict)  # follower -> its newest record
    count: tuple[int, float] | None = None  # samples that the leader counts; seconds until the batch is full
    gone_on: bool = False  # whether the leader has taken the step

    @property
    def is_news(self) -> bool:
        """Whether there is a message to deliver."""
        return bool(self.reports) or self.count is not None or self.gone_on


def may_begin(present: int, wanted: Requirements, waited_s: float, grace_s: float) -> bool:
    """Return whether a leader with a full batch begins with the peers that are present, itself included."""
    is_complete = 0 < wanted.expected <= present
    return present >= max(2, wanted.required) and (is_complete or waited_s >= grace_s)


class Search(Protocol):
    """The part of hivemind's `StepControl` that a search for a group uses."""

    async def wait_for_trigger(self) -> None:
        """Wait until this peer's batch is full; it raises `CancelledError` if the round is cancelled."""


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
    group: bytes = b""  # the group, once the leader has begun
    is_replaced: bool = False  # whether the peer has opened another stream
    has_word: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, group: bytes) -> None:
        """Send the group to this peer."""
        self.group = group
        self.has_word.set()


class Meetings:
    """One peer's meetings with the peers at its step, as a leader or as a follower."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        directory: PeerDirectory,
        opened: Callable[[bytes, AccessToken], Declaration],
        deliver: Callable[[Heard], bool],
    ) -> None:
        """Set up meetings over streams of this name; `opened` verifies a peer's declaration.

        `deliver` takes what this peer has heard, unless it is busy and returns False.
        """
        self._transport, self._name, self._directory, self._opened = transport, name, directory, opened
        self._clock = asyncio.get_running_loop().time
        self._records = LeaderRecords(self._clock)
        self._grace = RoundDeadline(MOST_GRACE_S, LEAST_GRACE_S)
        self._wanted = Requirements()
        self._declared = b""
        self._followers: dict[str, _Follower] = {}
        self._leader = ""  # of the newest group
        self._rests_until = -math.inf  # end of the pause after a group whose round may have failed at once
        self._deliver, self._delivering = deliver, False
        self._heard = Heard()  # what has not been delivered
        self._sought = self._wanted.position  # as in this peer's declaration
        self._news = asyncio.Event()  # something that the running search depends on has changed
        self._is_full = False  # whether this peer's batch is full, as the leader is to know
        self._has_message = asyncio.Event()
        self._renew_at = -math.inf  # time of the next look-up of missing tokens
        self._searching = asyncio.Lock()
        self._tasks = set[asyncio.Task[Any]]()  # asyncio itself keeps no strong reference to a waiting task

    async def serve(self) -> None:
        """Let other peers follow this one."""
        await self._transport.serve(self._name, self._welcome)

    def want(self, wanted: Requirements) -> None:
        """Set the trainer's requirements for this search or the next one."""
        before, self._wanted = self._wanted, wanted
        if wanted.report != before.report:
            self._has_message.set()
        if wanted.position != before.position:
            self._heard = Heard(wanted.position, self._heard.reports)
        for follower in self._followers.values():
            follower.has_word.set()
        self._news.set()

    def declare(self, position: tuple[int, int], declared: bytes) -> None:
        """Set this peer's signed declaration for its next group, at `position` (era, step)."""
        self._sought, self._declared = position, declared

    async def look_for_group(self, step: Search) -> GroupInfo:
        """Return the next group at the declared position, for hivemind's averager; wait until there is one."""
        async with self._searching:
            await asyncio.sleep(self._rests_until - self._clock())
            group = await self._search(step)
            self._rests_until = self._clock() + RETRY_S
            return bound(group)

    def group_ended(self, came_about: bool) -> None:
        """Record the success or failure of the newest group's round for its leader."""
        if came_about:
            self._rests_until = -math.inf
            self._records.succeeded(self._leader)
        else:
            self._records.failed(self._leader, FRUITLESS_S)

    def distrust_leader(self, reason: str) -> None:
        """Pass over the newest group's leader, because `reason` holds in its group."""
        self._distrust(self._leader, reason)

    async def _welcome(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Let a member wait for a group that this peer leads; send it the group. Others get no answer."""
        peer = PeerID.from_base58(caller)
        if not await self._directory.admits(peer, TRAINING_ROLES):
            return
        token = self._directory.token_of(peer)
        assert token is not None  # as it is admitted
        try:
            declared = await asyncio.wait_for(anext(requests, b""), DECLARE_S)
            follower = _Follower(caller, token.member, declared, self._opened(declared, token))
        except (ValueError, asyncio.TimeoutError) as error:
            logger.info("%s may not follow this peer: %s", caller, error)
            return
        if (older := self._followers.get(caller)) is not None:
            older.is_replaced = True
            older.has_word.set()
        self._followers[caller] = follower
        self._news.set()
        hearing = self._start(self._hear(caller, follower, requests))
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
        """Yield the samples that this leader counts, at limited intervals, and at last the group."""
        counted, counts_at = -1, 0.0
        while not (follower.group or follower.is_replaced):
            follower.has_word.clear()
            wanted, wait_s = self._wanted, None
            if wanted.position > follower.declaration.position:
                yield GONE_ON
                return
            if self._leads and wanted.position == follower.declaration.position and counted != wanted.samples:
                wait_s = max(0.0, counts_at - self._clock())
                if wait_s == 0:
                    if self._token_of(follower.peer) is None:  # revoked, or it has expired
                        return
                    counted, counts_at, wait_s = wanted.samples, self._clock() + REPORT_S, None
                    yield COUNT + _COUNT.pack(wanted.samples, wanted.remaining_s)
            await _wait(follower.has_word, wait_s)
        if follower.group:
            yield BEGIN + follower.group

    async def _hear(self, caller: str, follower: _Follower, messages: AsyncIterator[bytes]) -> None:
        """Process a follower's messages, at limited intervals."""
        with suppress(TransportError):  # the transport then ends the handler, too
            async for message in messages:
                if message == FULL:
                    follower.is_full = True
                    self._news.set()
                elif message.startswith(REPORT) and len(message) <= MAX_REPORT_BYTES:
                    while not self._leads:  # noqa: ASYNC110 - depends on time, too; a report concerns the leader only
                        await asyncio.sleep(LOOK_S)
                    self._tell(replace(self._heard, reports={**self._heard.reports, caller: message[len(REPORT) :]}))
                await asyncio.sleep(REPORT_S / 2)

    def _tell(self, heard: Heard) -> None:
        """Deliver soon to the trainer's process; try again later if it is busy."""
        self._heard = heard
        if not self._delivering:
            self._delivering = True
            asyncio.get_running_loop().call_later(DELIVERY_S, self._deliver_heard)

    def _deliver_heard(self) -> None:
        heard = self._heard
        some = dict(itertools.islice(heard.reports.items(), MOST_DELIVERED))
        if heard.is_news and self._deliver(replace(heard, reports=some)):
            left = {caller: heard.reports[caller] for caller in heard.reports.keys() - some.keys()}
            self._heard = Heard(heard.position, left)
        self._delivering = self._heard.is_news
        if self._delivering:
            asyncio.get_running_loop().call_later(DELIVERY_S, self._deliver_heard)

    async def _search(self, step: Search) -> GroupInfo:
        while True:
            self._news.clear()
            if (leader := self._first_choice) is None:
                await self._news.wait()
            elif (group := await self._meet_at(leader, step)) is not None:
                self._leader = leader
                return group

    @property
    def _leads(self) -> bool:
        """Whether this peer is the first choice for leader."""
        return self._records.first(self._wanted.leaders) == self._transport.peer_id

    @property
    def _first_choice(self) -> str | None:
        """The present leader; None if there is no candidate, or the trainer has gone on to another step."""
        wanted = self._wanted
        return self._records.first(wanted.leaders) if wanted.position == self._sought else None

    async def _meet_at(self, leader: str, step: Search) -> GroupInfo | None:
        """Lead, or follow this leader, until there is a group, the attempt fails, or another peer leads."""
        leads, full_at = leader == self._transport.peer_id, math.inf
        self._is_full = False
        following = None if leads else self._start(self._group_word_of(leader))
        triggering = self._start(step.wait_for_trigger())
        try:
            while True:
                self._news.clear()
                if following is not None and following.done():  # even if another peer leads from now on
                    return await self._group_in(following, leader)
                if self._first_choice != leader:
                    return None
                if triggering.done() and not triggering.cancelled() and not self._is_full:
                    self._is_full = True
                    self._has_message.set()
                if leads:
                    await self._renew_tokens()
                is_full = self._is_full or (leads and self._is_full_for_most)
                full_at = min(full_at, self._clock()) if is_full else math.inf
                waited_s = self._clock() - full_at
                if leads and waited_s >= 0 and (group := self._begun(waited_s)) is not None:
                    return group
                if not leads and waited_s > STALLED_S and len(self._wanted.leaders) > 1:
                    self._records.failed(leader, FRUITLESS_S)
                    full_at = self._clock()  # if it goes on to lead, it stalls again after as long
                await _wait(self._news, LOOK_S)
        finally:
            triggering.cancel()
            if following is not None:
                following.cancel()

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
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
        """The followers that wait for a group at this step, by peer ID."""
        return {
            caller: follower
            for caller, follower in self._followers.items()
            if not (follower.group or follower.is_replaced) and self._belongs(follower)
        }

    @property
    def _is_full_for_most(self) -> bool:
        """Whether more than half of the members report a full batch; they may credit more samples than this peer."""
        present = self._present.values()
        full = {follower.member for follower in present if follower.is_full}
        own = self._token_of(self._transport.peer_id)
        return 2 * len(full) > len({follower.member for follower in present} | {own.member if own else ""})

    async def _renew_tokens(self) -> None:
        """Look up tokens of this leader and its followers that are missing or have expired, at limited intervals."""
        peers = [self._transport.peer_id, *self._followers]
        if self._clock() >= self._renew_at and any(self._token_of(peer) is None for peer in peers):
            self._renew_at = self._clock() + RENEW_S
            await self._directory.admitted([PeerID.from_base58(peer) for peer in peers], TRAINING_ROLES)

    def _begun(self, waited_s: float) -> GroupInfo | None:
        """Begin as the leader if enough peers are present, and send them the group; else return None."""
        wanted, present = self._wanted, self._present
        tokens = map(self._token_of, [self._transport.peer_id, *present])
        has_keeper = any(token is not None and token.role == "keeper" for token in tokens)
        if not has_keeper and len(present) + 1 < wanted.keeperless:
            return None
        if not may_begin(len(present) + 1, wanted, waited_s, self._grace.seconds):
            return None
        if 0 < wanted.expected <= len(present) + 1:  # otherwise, the wait was in vain
            self._grace.succeeded(waited_s)
        logger.info("lead %d peers, of %d expected, after %.2f s", len(present) + 1, wanted.expected, waited_s)
        declared = {self._transport.peer_id: self._declared}
        declared |= {caller: follower.declared for caller, follower in present.items()}
        order = sorted(declared)
        message = MessageFromLeader(
            code=MessageCode.BEGIN_ALLREDUCE,
            group_id=secrets.token_bytes(GROUP_ID_BYTES),
            ordered_peer_ids=[PeerID.from_base58(peer).to_bytes() for peer in order],
            gathered=[declared[peer] for peer in order],
        )
        for follower in present.values():
            follower.begin(message.SerializeToString())
        return _group_of(message)

    def _token_of(self, peer: str) -> AccessToken | None:
        return self._directory.token_of(PeerID.from_base58(peer))

    def _belongs(self, follower: _Follower) -> bool:
        """Return whether a follower is at this step, has the same code, and is still a member."""
        said, wanted = follower.declaration, self._wanted
        is_here = said.position == wanted.position and said.code == wanted.code
        return is_here and self._token_of(follower.peer) is not None

    async def _group_in(self, word: asyncio.Task[bytes | None], leader: str) -> GroupInfo | None:
        """Read the leader's group; return None, after a pause, if the leader has failed or gone on."""
        try:
            if (group := word.result()) is not None:
                return await self._read(group, leader)
            self._tell(replace(self._heard, gone_on=True))
            self._records.failed(leader, 2 * GONE_ON_S)  # it may lie
            await asyncio.sleep(GONE_ON_S)
            return None
        except TransportError as error:
            logger.info("the leader %s is lost: %s", leader, error)
            self._records.failed(leader, UNREACHABLE_S)
        except (ValueError, DecodeError) as error:
            self._distrust(leader, str(error))
        await asyncio.sleep(RETRY_S)
        return None

    async def _group_word_of(self, leader: str) -> bytes | None:
        """Follow a leader until it sends the group; return None if it has gone on to another step."""
        async with aclosing(self._words_of(leader)) as words:
            async for word in words:
                if word.startswith(BEGIN):
                    return word[len(BEGIN) :]
                if word == GONE_ON:
                    return None
                count = _count_in(word)
                if self._wanted.position == self._sought:  # otherwise, the trainer has gone on
                    self._tell(replace(self._heard, count=count))
        raise TransportError("it did not let this peer follow.")

    def _words_of(self, leader: str) -> AsyncGenerator[bytes, None]:
        """Send this peer's declaration and its messages to the leader; yield the leader's. Raises `TransportError`."""

        async def said() -> AsyncIterator[bytes]:
            yield self._declared
            report, is_full = b"", False
            while True:  # the open stream says that this peer is there
                self._has_message.clear()
                if report != self._wanted.report:
                    report = self._wanted.report
                    yield REPORT + report
                if is_full != self._is_full:
                    is_full = self._is_full
                    yield FULL
                await asyncio.sleep(REPORT_S)
                await self._has_message.wait()

        return self._transport.stream(leader, self._name, said())

    async def _read(self, word: bytes, leader: str) -> GroupInfo:
        """Read a leader's group.

        Raises `ValueError` or `DecodeError` if it is invalid, and `TransportError` if strangers are in it.
        """
        message = MessageFromLeader.FromString(word)
        if (
            not len(set(message.ordered_peer_ids))
            == len(message.ordered_peer_ids)
            == len(message.gathered)
            <= MOST_PEERS
        ):
            raise ValueError("peers and declarations do not belong together")
        group = _group_of(message)
        peers = set(group.peer_ids)
        if not peers >= {PeerID.from_base58(leader), PeerID.from_base58(self._transport.peer_id)}:
            raise ValueError("the leader or this peer is missing")
        strangers = peers - await self._directory.admitted(peers, TRAINING_ROLES)
        if strangers:  # this peer may know a revocation sooner than an honest leader, or a token later
            raise TransportError(f"{len(strangers)} peers of its group hold no valid token.")
        return group

    def _distrust(self, leader: str, reason: str) -> None:
        self._records.failed(leader, INVALID_S)
        token = self._token_of(leader)
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


def _count_in(word: bytes) -> tuple[int, float]:
    """Read a leader's count. Raises `ValueError` if it is malformed."""
    if not (word.startswith(COUNT) and len(word) == len(COUNT) + _COUNT.size):
        raise ValueError("its words are not understood")
    samples, remaining_s = _COUNT.unpack(word[len(COUNT) :])
    if not remaining_s >= 0:  # or not a number
        raise ValueError("its words are not understood")
    return samples, remaining_s


def _group_of(message: MessageFromLeader) -> GroupInfo:
    peers = tuple(PeerID(peer) for peer in message.ordered_peer_ids)
    return GroupInfo(message.group_id, peers, tuple(message.gathered))
