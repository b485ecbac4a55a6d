"""The insides of averaging rounds in virtual time: the traffic of a group on its lines, and the loss of peers.

Shares of the reduction are computed by `peer.averaging.shares`. Groups meet as real ones do
(`peer.averaging.meetings`).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median_low

from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.declarations import DeclaredGroup
from peer.averaging.shares import NOBODY, GroupLines, RoundPlan
from peer.progress.view import SwarmCourse
from peer.reduction.attestation import AttestedWeight
from peer.rehearsal.troubles import Troubles
from peer.transport.lines import Direction, Lines

# Measured in real swarms on one machine at commit f9c99822:
FORM_S = 0.3  # time from a complete group to the first part: shares, digests
FINISH_S = 1.0  # time from the last part to the step: attestations, the last averages, the optimizer
ROUND_BYTES = 170_000  # bytes per peer and direction besides the parts
FORM_EXCHANGES = 2  # round trips that `FORM_S` includes
LAST_S = 0.01  # time before a round's limit at which it ends here, before its peers give it up
LAST_PARTS = 0.1  # final fraction of a round, in which a lost reducer may already have answered some peers
SHARES = 2**20  # sum of all shares


@dataclass(frozen=True)
class MetGroup:
    """A completed round from one peer's perspective."""

    number: int  # unique number of the average
    peers: frozenset[str]
    weights: Mapping[str, float]  # declared weights of the senders with complete parts
    attested: Mapping[str, AttestedWeight]  # attested weights of the same senders
    reducers: frozenset[str]
    seconds: float  # duration of the round
    waited_s: float  # this peer's wait for the others
    lines: GroupLines
    traffic: RoundTraffic  # traffic of this peer's connection
    ended_at: float
    averaged_bytes: float = 0.0  # bytes received from others for reduction

    @property
    def samples(self) -> int:
        """The number of samples in the average."""
        return round(sum(self.counted.values()))

    @property
    def counted(self) -> dict[str, float]:
        """Each sender's counted weight."""
        return {name: weight.counted for name, weight in self.attested.items()}

    @classmethod
    def alone(cls, number: int, name: str, samples: int, now: float) -> MetGroup:
        """Build the group of a peer that is alone in the swarm."""
        traffic = RoundTraffic(0.0, 0.0, 0.0, 0.0)
        weight = float(samples)
        attested = {name: AttestedWeight(weight, weight, weight, weight)}
        return cls(number, frozenset({name}), {name: weight}, attested, frozenset(), 0.0, 0.0, NOBODY, traffic, now)


@dataclass(frozen=True)
class FailedRound:
    """A round that failed because some values are missing."""

    missed: frozenset[str]  # reducers with missing averages
    reducers: frozenset[str]  # all reducers
    samples: int = 0  # number of samples that arrived


@dataclass(eq=False)
class Sender:
    """One peer in a round."""

    name: str
    weight: float  # number of the peer's samples
    course: SwarmCourse  # provides the weight caps for this peer's reduction
    began_at: float  # since when this peer's batch has been full
    outcome: asyncio.Future[MetGroup | FailedRound]
    is_gone: bool = False


@dataclass
class _Round:
    """A running averaging round."""

    peers: tuple[str, ...]
    plan: RoundPlan
    here: dict[str, Sender] = field(default_factory=dict)  # all that have begun
    present: list[Sender] = field(default_factory=list)  # participants not known to be lost
    moved_at: float = 0.0  # time of the last progress
    ends_at: float = 0.0
    winners: list[Sender] = field(default_factory=list)  # peers that have received all averages

    @cached_property
    def share_of(self) -> dict[str, float]:
        """The fraction of the values that each peer reduces."""
        return {name: share / SHARES for name, share in zip(self.peers, self.plan.shares, strict=True)}

    @cached_property
    def reducers(self) -> frozenset[str]:
        """The peers with a share of the reduction."""
        return frozenset(name for name, share in self.share_of.items() if share > 0)


class RehearsedRounds:
    """The model of all averaging rounds."""

    def __init__(self, lines: Lines, size_bytes: int, troubles: Troubles, rng: random.Random) -> None:
        """Set up the model on the running event loop."""
        self._lines, self._bytes, self._troubles, self._rng = lines, size_bytes, troubles, rng
        self._now, self._changed = asyncio.get_running_loop().time, troubles.changed
        self._context = contextvars.copy_context()  # of no device, with which a round would end
        self._rounds: dict[bytes, _Round] = {}  # by the ID of the group
        self._ended = set[bytes]()  # rounds that nobody answers in any more
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._averages = itertools.count(1)

    def next_number(self) -> int:
        """Return a new number for an average."""
        return next(self._averages)

    async def average(self, group: DeclaredGroup, plan: RoundPlan, sender: Sender) -> MetGroup | FailedRound:
        """Average with a group, whose round begins with the first peer; a cancelled peer is lost to the others."""
        group_id = group.group_id
        if group_id in self._ended:
            await asyncio.sleep(plan.reducer_s)
            return FailedRound(frozenset(), frozenset())
        if group_id not in self._rounds:
            self._rounds[group_id] = _Round(group.peers, plan)
            task = self._context.run(asyncio.create_task, self._run(group_id))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
        self._rounds[group_id].here.setdefault(sender.name, sender)
        self._changed.tell()
        try:
            return await sender.outcome
        finally:
            sender.is_gone = not sender.outcome.done() or sender.outcome.cancelled()
            self._changed.tell()

    async def _run(self, group_id: bytes) -> None:
        round_ = self._rounds[group_id]
        round_.ends_at = self._now() + round_.plan.limit_s - FINISH_S - LAST_S
        await asyncio.sleep(FORM_S + FORM_EXCHANGES * self._lines.exchange_s(round_.peers))
        began = round_.moved_at = self._now()
        silent_at = began + round_.plan.sender_s
        while len(self._there(round_)) < len(round_.peers) and (left_s := silent_at - self._now()) > 0:
            await self._changed.wait(left_s)
        round_.present = self._there(round_)
        traffic = self._traffic(round_)
        await self._pass(round_, traffic)
        if round_.winners:
            await asyncio.sleep(FINISH_S)
        self._end(round_, traffic, began)
        del self._rounds[group_id]
        self._ended.add(group_id)

    def _there(self, round_: _Round) -> list[Sender]:
        return [each for name in round_.peers if (each := round_.here.get(name)) is not None and not each.is_gone]

    def _end(self, round_: _Round, traffic: Mapping[Direction, float], began: float) -> None:
        """Deliver the round's result to each peer that is still present."""
        attested, number, now = self._attested(round_), self.next_number(), self._now()
        samples = round(sum(weight.counted for weight in attested.values()))
        senders = {each.name for each in round_.present if each.weight}
        lost, plan = self._lost(round_), round_.plan
        for name, each in round_.here.items():
            if each.outcome.done():
                continue
            if each not in round_.winners:
                each.outcome.set_result(FailedRound(self._lost_to(each, round_, lost), round_.reducers, samples))
                continue
            sent, received = traffic.get((name, "up"), 0.0), traffic.get((name, "down"), 0.0)
            self._lines.passed(name, ROUND_BYTES, ROUND_BYTES)
            each.outcome.set_result(
                MetGroup(
                    number=number,
                    peers=frozenset(round_.peers),
                    weights={name: weight.named for name, weight in attested.items()},
                    attested=attested,
                    reducers=round_.reducers,
                    seconds=now - began,
                    waited_s=max(0.0, began - each.began_at),
                    lines=plan.lines,
                    traffic=RoundTraffic(sent, received, now - began, plan.promised_s),
                    ended_at=now,
                    averaged_bytes=self._bytes * round_.share_of[name] * len(senders - {name}),
                )
            )

    async def _pass(self, round_: _Round, traffic: Mapping[Direction, float]) -> None:
        """Transfer all parts until they have arrived or a time limit is reached.

        A disconnected sender is excluded after the senders' time limit. After the reducers' limit,
        the averages of a disconnected reducer are lost to all peers that have not received them.
        """
        left = 1.0
        while (now := self._now()) < round_.ends_at:
            blocked = self._blocked(round_)
            if not blocked:
                here = {each.name for each in round_.present}
                sizes = {way: left * size for way, size in traffic.items() if way[0] in here}
                transfer = self._lines.send(sizes, self._changed.tell)
                while not (transfer.is_done or self._now() >= round_.ends_at or self._blocked(round_)):
                    await self._changed.wait(round_.ends_at - self._now())
                self._lines.stop(transfer)
                left, round_.moved_at = left * transfer.left, self._now()
                if transfer.is_done:
                    round_.winners = round_.present
                    return
                continue
            are_all = len(blocked) == len(round_.present)
            limit_s = round_.plan.reducer_s if are_all else round_.plan.sender_s
            await asyncio.sleep(max(0.0, min(round_.ends_at, round_.moved_at + limit_s) - now))
            still = self._blocked(round_)
            if len(still) == len(round_.present):
                break
            round_.present = [each for each in round_.present if each not in still]
        if left <= LAST_PARTS:
            able = [each for each in round_.present if not (each.is_gone or self._troubles.is_cut_off(each.name))]
            round_.winners = [each for each in able if self._rng.random() < 0.5]

    def _blocked(self, round_: _Round) -> list[Sender]:
        """Return the participants that are gone, withhold averages or lack a reducer's averages."""
        lost = self._lost(round_)
        return [
            each
            for each in round_.present
            if each.is_gone
            or self._troubles.is_cut_off(each.name)
            or self._withholds(each.name, round_)
            or self._lost_to(each, round_, lost)
        ]

    def _withholds(self, name: str, round_: _Round) -> bool:
        return name in round_.reducers and self._troubles.lies(name, "withholds")

    def _lost(self, round_: _Round) -> frozenset[str]:
        """Return the reducers from which nobody receives averages."""
        here = {each.name for each in round_.present if not each.is_gone}
        silent = (name for name in here if self._troubles.is_cut_off(name) or self._withholds(name, round_))
        return round_.reducers - here.difference(silent)

    def _lost_to(self, sender: Sender, round_: _Round, lost: frozenset[str]) -> frozenset[str]:
        """Return the reducers from which a peer receives no averages."""
        if self._troubles.has_sides:
            lost |= {name for name in round_.reducers if self._troubles.are_apart(sender.name, name)}
        return lost - {sender.name}

    def _attested(self, round_: _Round) -> dict[str, AttestedWeight]:
        """Compute each sender's attested weights from the caps of all reducers."""
        courses = dict.fromkeys(each.course for each in round_.here.values() if each.name in round_.reducers)
        caps = [course.weight_caps() for course in courses]
        attested = {}
        for each in round_.present:
            if each.weight and caps:
                counted = [min(each.weight, of_known.get(each.name, of_others)) for of_known, of_others in caps]
                attested[each.name] = AttestedWeight(each.weight, each.weight, min(counted), median_low(counted))
        return attested

    def _traffic(self, round_: _Round) -> dict[Direction, float]:
        """Return the bytes of parts and averages per connection and direction."""
        present, senders = round_.present, {each.name for each in round_.present if each.weight}
        traffic: dict[Direction, float] = {}
        for each in present:
            share, sends = round_.share_of[each.name], each.name in senders
            returned = share * (len(present) - 1)
            brought = share * (len(senders) - sends)
            traffic[each.name, "up"] = self._bytes * ((1 - share) * sends + returned)
            traffic[each.name, "down"] = self._bytes * (1 - share + brought)
        return traffic
