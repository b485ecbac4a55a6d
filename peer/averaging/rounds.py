"""One peer's averaging rounds: the search for a group, the round with it, and its confirmation.

`peer.averaging.meetings` finds the groups. The inside of a round is given in (`Exchange`): a real peer
exchanges gradients (`peer.averaging.exchange`), a rehearsed one only takes the time. All else is the
same for both. Everything here runs in one event loop.

A failed round changes nothing, and the peer looks for the next group with the same gradients. The
others' round then fails, too, so samples count once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from auth.tokens import AccessToken
from peer.averaging.absences import Attendance
from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.deadline import RoundDeadline
from peer.averaging.declarations import MAX_BANDWIDTH, Declaration, DeclaredGroup
from peer.averaging.meetings import Meetings, Members, UnconfirmedAverageError
from peer.averaging.requirements import Requirements, least_samples
from peer.averaging.shares import NOBODY, GroupLines, RoundPlan
from peer.config.training import Averaging
from peer.reduction.attestation import AttestedWeight
from peer.reduction.findings import Accusations

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AveragedGroup:
    """The group and the samples of one successful averaging round."""

    size: int  # peers in the group
    samples: int  # the senders' total weight; if a sender was lost, the smallest total of any part
    averaged_bytes: int  # bytes received from others for reduction
    weights: Mapping[str, float] = field(default_factory=dict)  # peer ID -> samples in this peer's reduction
    counted: Mapping[str, float] = field(default_factory=dict)  # peer ID -> samples after any cut in weight
    attested: Mapping[str, AttestedWeight] = field(default_factory=dict)  # peer ID -> weight attested by the reducers
    seconds: float = 0.0  # time from the group's formation to the last average
    traffic: RoundTraffic | None = None  # measured traffic of this peer's connection
    lines: GroupLines = NOBODY  # declared bandwidths and roles
    peers: frozenset[str] = frozenset()  # peer IDs of the group
    digest: bytes = b""  # of all reducers' attestations
    pseudonyms: Mapping[str, str] = field(default_factory=dict)  # peer ID -> name in receipts


class SearchStage(Enum):
    """The stages of a search."""

    LOOKING = "looking for a group"
    MET = "met"  # the leader has begun the group, which waits for this peer's batch
    AVERAGING = "averaging"
    CONFIRMING = "confirming"  # this peer holds the average, which the voters are to confirm
    ENDED = "ended"


class RoundError(Exception):
    """A round has failed, or a search has ended without an average."""


@dataclass(eq=False)
class RoundSearch:
    """A search for a group and its round, as the trainer's side sees it."""

    number: int = 0
    stage: SearchStage = SearchStage.LOOKING
    is_due: bool = False  # whether the trainer has loaded its gradients for this search
    has_averaged: bool = False  # whether a round has begun, so that others may have this peer's gradients
    outcome: futures.Future[AveragedGroup] = field(default_factory=futures.Future)

    def enter(self, stage: SearchStage) -> None:
        """Note that the search has reached a stage."""
        self.stage = stage
        self.has_averaged |= stage is SearchStage.AVERAGING


@dataclass(frozen=True)
class OwnSide:
    """The facts about a peer that hold in all its rounds."""

    peer_id: str
    run: str
    takes_connections: bool
    reduces: bool  # whether other peers may send it gradients to reduce


@dataclass(eq=False)
class PlannedRound:
    """One round of a group, for an `Exchange`."""

    group: DeclaredGroup
    position: tuple[int, int]  # era and step
    plan: RoundPlan
    weight: float  # this peer's samples
    target: int  # the samples of a batch
    due_since: float  # loop's time since which this peer's batch has been full
    is_given_up: Callable[[], bool]  # whether this peer takes part no longer
    came_about: bool = False  # whether there are enough samples for a step, and all reducers that failed can be named


class Exchange(Protocol):
    """The inside of a round."""

    values: int  # number of averaged values

    @property
    def size_bytes(self) -> float:
        """The bytes of gradients that a peer sends per round."""

    def take_up(self, averaging: Averaging) -> None:
        """Use another encoding of gradients."""

    async def average(self, round_: PlannedRound) -> AveragedGroup:
        """Average with a group, record the absent peers, and set `came_about` of the round.

        Raises `RoundError` if the round fails with the loaded gradients unchanged.
        """


@dataclass(eq=False)
class _Search(RoundSearch):
    """A search in the event loop of its rounds."""

    due: asyncio.Event = field(default_factory=asyncio.Event)
    weight: float = 0.0
    due_since: float = 0.0
    task: asyncio.Task[None] | None = None


class AveragingRounds:
    """One peer's searches for groups and its rounds, in one event loop."""

    def __init__(
        self,
        meetings: Meetings,
        exchange: Exchange,
        attendance: Attendance,
        accusations: Accusations,
        members: Members,
        own: OwnSide,
        averaging: Averaging,
        *,
        opened: Callable[[bytes, AccessToken], Declaration],
        signed: Callable[[Declaration], bytes],
        changed: Callable[[RoundSearch], None] = lambda _: None,
    ) -> None:
        """Set up rounds that begin with the settings `averaging`.

        `opened` verifies a peer's declaration for any step, and `signed` signs this peer's own.
        `changed` is called whenever a search reaches a stage.
        """
        self._meetings, self._exchange, self._members = meetings, exchange, members
        self._attendance, self._accusations = attendance, accusations
        self._own, self._opened, self._signed, self._changed = own, opened, signed, changed
        self._now = asyncio.get_running_loop().time
        self._averaging = averaging  # the current gradient encoding
        self._deadline = RoundDeadline(averaging.averaging_timeout_s)
        self._rate: float | None = None
        self._declared = b""  # this peer's newest declaration
        self._search: _Search | None = None
        self.wanted = Requirements()
        self.failed_rounds = 0

    def want(self, wanted: Requirements) -> None:
        """Set the requirements for this search or the next one."""
        self.wanted = wanted
        self._meetings.want(wanted)

    def seek(self, rate: float | None, number: int = 0) -> RoundSearch:
        """Begin to look for a group; `rate`: this peer's bytes per second, if known; `number`: of the search."""
        self._search, self._rate = _Search(number), rate
        search = self._search
        search.task = asyncio.create_task(self._run(search))
        search.task.add_done_callback(lambda _: self._enter(search, SearchStage.ENDED))
        return search

    def begin(self, search: RoundSearch, weight: float) -> None:
        """Let the search's group average the loaded gradients, which are of `weight` samples."""
        assert isinstance(search, _Search)
        search.weight, search.due_since, search.is_due = weight, self._now(), True
        search.due.set()

    def give_up(self, search: RoundSearch) -> None:
        """Cancel a search, or its round."""
        assert isinstance(search, _Search)
        if search.outcome.cancel() and search.task is not None:
            search.task.cancel()

    def stop(self) -> None:
        """Give up the newest search, before the peer leaves."""
        if self._search is not None:
            self.give_up(self._search)

    async def _run(self, search: _Search) -> None:
        try:
            search.outcome.set_result(await self._until_averaged(search))
        except asyncio.CancelledError:
            if not search.outcome.cancelled():  # the loop is being closed
                raise
        except Exception as error:
            if not isinstance(error, UnconfirmedAverageError):
                logger.exception("a search for a group has failed")
            search.outcome.set_exception(error)

    async def _until_averaged(self, search: _Search) -> AveragedGroup:
        """Look for groups until one has averaged. Raises `UnconfirmedAverageError` if its average is void."""
        position = self.wanted.position
        self._take_up(self._averaging.with_code(self.wanted.code))
        while True:
            self._enter(search, SearchStage.LOOKING)
            self._declare(position)
            group = await self._meetings.look_for_group(search.due)
            self._enter(search, SearchStage.MET)
            await search.due.wait()
            try:
                return await self._average_with(group, position, search)
            except RoundError as error:
                logger.warning("%s", error)

    def _enter(self, search: _Search, stage: SearchStage) -> None:
        search.enter(stage)
        self._changed(search)

    def _take_up(self, averaging: Averaging) -> None:
        """Switch to another encoding, which has other usual times."""
        if averaging.code == self._averaging.code:
            return
        self._exchange.take_up(averaging)
        self._averaging, self._deadline = averaging, RoundDeadline(averaging.averaging_timeout_s)
        self._attendance.forget_counts()

    def _declare(self, position: tuple[int, int]) -> None:
        """Sign the declaration with which this peer joins the next group."""
        era, step = position
        compression, rank = self._averaging.code
        said = Declaration(
            run=self._own.run,
            era=era,
            step=step,
            compression=compression,
            powersgd_rank=rank,
            rate=None if self._rate is None else min(MAX_BANDWIDTH, self._rate),
            takes_connections=self._own.takes_connections,
            reduces=self._own.reduces,
            patience_s=self._deadline.seconds,
            accused=self._accusations.current(),
            missed=self._attendance.declared,
        )
        self._declared = self._signed(said)
        self._meetings.declare(position, self._declared)

    async def _average_with(self, group: DeclaredGroup, position: tuple[int, int], search: _Search) -> AveragedGroup:
        """Average with a group, and wait for its confirmation.

        Raises `RoundError` if there is no average, `UnconfirmedAverageError` if no step may be
        taken with it.
        """
        tokens = self._tokens_of(group)
        plan = self._plan(group, tokens, position)
        if not self.wanted.quorum.is_in(group.peers):
            self._meetings.group_ended(came_about=False)
            raise RoundError(f"beside these {len(group.peers)} others may take this step")
        self._enter(search, SearchStage.AVERAGING)
        plan = replace(plan, limit_s=self._deadline.bounded(plan.limit_s))
        self._meetings.round_began(self._now() + plan.limit_s)
        target, is_given_up = self.wanted.target, search.outcome.cancelled
        round_ = PlannedRound(group, position, plan, search.weight, target, search.due_since, is_given_up)
        averaged = await self._exchanged(round_)
        if averaged.samples >= least_samples(target):  # otherwise, it leads to no step
            self._enter(search, SearchStage.CONFIRMING)
            try:
                await self._meetings.confirm(averaged.digest)
            except UnconfirmedAverageError:
                self._failed()
                raise
        self._deadline.succeeded(averaged.seconds)
        pseudonyms = {peer: token.receipt_key for peer, token in zip(group.peers, tokens, strict=True)}
        return replace(averaged, lines=plan.lines, peers=frozenset(group.peers), pseudonyms=pseudonyms)

    async def _exchanged(self, round_: PlannedRound) -> AveragedGroup:
        """Exchange gradients within the round's time limit.

        Raises `RoundError` if that fails; other errors end the search, because the gradients may be overwritten.
        """
        exchanging = asyncio.create_task(self._exchange.average(round_))
        try:
            await asyncio.wait({exchanging}, timeout=round_.plan.limit_s)
        finally:
            exchanging.cancel()  # no effect if it has ended
            [ended] = await asyncio.gather(exchanging, return_exceptions=True)
        self._meetings.group_ended(round_.came_about)
        if not isinstance(ended, BaseException):
            return ended
        self._failed()
        if not self._attendance.explains_failures:  # its time limit may be too short
            self._deadline.failed()
        if isinstance(ended, RoundError | asyncio.CancelledError):
            raise RoundError(f"a round has failed: {ended!r}") from ended
        raise ended

    def _tokens_of(self, group: DeclaredGroup) -> list[AccessToken]:
        """Return the tokens of a group's peers, in its order. Raises `RoundError` if one is not valid any more."""
        tokens = [token for peer in group.peers if (token := self._members.token_of(peer)) is not None]
        if len(tokens) < len(group.peers):
            raise RoundError("a peer of the group holds no valid token any more")
        return tokens

    def _plan(self, group: DeclaredGroup, tokens: Sequence[AccessToken], position: tuple[int, int]) -> RoundPlan:
        """Plan a group's round from its declarations; distrust the leader, and raise `RoundError`, if one is wrong."""
        try:
            if group.declared[group.peers.index(self._own.peer_id)] != self._declared:
                raise ValueError("the leader changed what this peer had said of itself")
            said = [self._opened(declared, token) for declared, token in zip(group.declared, tokens, strict=True)]
            for each in said:
                each.require(position, self._averaging.code)
            return RoundPlan.of(group.peers, tokens, said, self._exchange.values, self._exchange.size_bytes)
        except ValueError as error:
            self._meetings.distrust_leader(str(error))
            raise RoundError(str(error)) from error

    def _failed(self) -> None:
        self.failed_rounds += 1
        self._meetings.round_failed()
