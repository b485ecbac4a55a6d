"""Groups and their averaging rounds in virtual time.

Shares of the reduction are computed by `peer.averaging.shares`. Meetings are a model of
`peer.averaging.meetings`, whose `may_begin` decides when a leader begins.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from statistics import median_low

import simpy

from peer.averaging.averager import REDUCERS_SHARE, SENDERS_SHARE
from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.declarations import Declaration
from peer.averaging.meetings import LOOK_S, Requirements, may_begin
from peer.averaging.rounds import RoundDeadline
from peer.averaging.shares import (
    NOBODY,
    TRUSTED_ROLES,
    GroupLines,
    agreed_patience,
    believed,
    reducing_peers,
    reduction_shares,
    round_limit,
    round_time,
)
from peer.node.quorum import Ruling, ruling
from peer.progress.decision import candidates
from peer.progress.view import SwarmCourse
from peer.reduction.attestation import AttestedWeight
from peer.reduction.sizes import RoundBytes
from peer.rehearsal.scenario import KEEPER
from peer.rehearsal.troubles import Process, Troubles
from peer.transport.lines import Direction, Lines

# Measured in real swarms on one machine with `benchmarks/swarm/rehearsal.py` at commit f9c99822:
JOIN_S = 0.1  # time to open a stream to a leader
FORM_S = 0.3  # time from a complete group to the first part: the leader's answer, shares, digests
FINISH_S = 1.0  # time from the last part to the step: attestations, the last averages, the optimizer
ROUND_BYTES = 170_000  # bytes per peer and direction besides the parts
JOIN_EXCHANGES, FORM_EXCHANGES = 3, 3  # round trips that `JOIN_S` and `FORM_S` include
ROUNDING_S = 1e-6
LAST_PARTS = 0.1  # final fraction of a round, in which a lost reducer may already have answered some peers
Position = tuple[int, int]  # era and step


@dataclass(frozen=True)
class MetGroup:
    """A completed round from one peer's perspective."""

    number: int  # unique number of the average
    peers: frozenset[str]
    weights: Mapping[str, float]  # declared weights of the senders with complete parts
    attested: Mapping[str, AttestedWeight]  # attested weights of the same senders
    reducers: frozenset[str]
    seconds: float  # duration of the round
    waited_s: float  # this peer's wait for the group
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
    reducers: frozenset[str]  # all reducers; empty if the group was dissolved before its round


@dataclass(eq=False)
class Seeker:
    """One peer's search for a group."""

    name: str
    member: str
    role: str
    leads: bool  # other peers can connect to this peer
    words: Declaration
    wanted: Requirements
    course: SwarmCourse  # provides the weight caps for this peer's reduction
    grace: RoundDeadline  # how long this peer, as a leader, waits for absent peers
    done: simpy.Event  # succeeds with a `MetGroup` or a `FailedRound`
    runs: simpy.Event  # succeeds when the group is complete
    gone_on: Callable[[], None]  # called if the keeper has taken the step
    weight: float | None = None  # number of the peer's samples; None before it begins to average
    position: Position = (0, 0)
    is_gone: bool = False
    is_in_doubt: bool = False  # it holds an average on which there is no ruling yet
    began_at: float = 0.0  # start time of this peer's averaging
    others: list[Seeker] = field(default_factory=list)  # all peers that search for the same group

    @property
    def is_running(self) -> bool:
        """Whether the group is complete, so that no other peer can join."""
        return self.runs.triggered


@dataclass
class _Round:
    """A running averaging round."""

    leader: Seeker
    present: list[Seeker]  # participants not known to be lost
    share_of: Mapping[str, float]
    patience_s: float
    moved_at: float  # time of the last progress
    ends_at: float
    winners: list[Seeker] = field(default_factory=list)  # peers that have received all averages
    number: int = 0  # unique number of the average

    @cached_property
    def reducers(self) -> frozenset[str]:
        """The peers with a share of the reduction."""
        return frozenset(name for name, share in self.share_of.items() if share > 0)


class Groups:
    """The model of all searches for groups and all averaging rounds."""

    def __init__(
        self,
        env: simpy.Environment,
        lines: Lines,
        round_bytes: RoundBytes,
        longest_s: float,
        troubles: Troubles,
        rng: random.Random,
    ) -> None:
        """Set up the model; `longest_s`: the run's time limit for a round."""
        self._env, self._lines, self._bytes, self._longest_s = env, lines, round_bytes, longest_s
        self._troubles, self._rng = troubles, rng
        self._seeking: dict[tuple[Position, tuple[bool, ...]], list[Seeker]] = {}
        self._changed = env.event()
        self._averages = 0
        self._keeper: Seeker | None = None  # the keeper's newest search
        if troubles.has_sides:
            env.process(self._follow_sides())

    def next_number(self) -> int:
        """Return a new number for an average."""
        self._averages += 1
        return self._averages

    def look(self, position: Position, seeker: Seeker) -> None:
        """Start a peer's search for a group for its current step."""
        self._env.process(self._look(position, seeker))

    def begin(self, seeker: Seeker, weight: float) -> None:
        """Start averaging for a peer that searches for a group."""
        if seeker.weight is None:
            seeker.weight = self._troubles.named_by(seeker.name, round(weight), "weight")
            seeker.began_at = self._env.now
            self._note(seeker)
            self._env.process(self._await_grace(seeker))

    def want(self, seeker: Seeker, wanted: Requirements) -> None:
        """Set a peer's requirements of its group."""
        before, seeker.wanted = seeker.wanted, wanted
        of_group = attrgetter("required", "expected", "quorum", "leaders")
        if of_group(wanted) != of_group(before):
            self._note(seeker)

    def give_up(self, seeker: Seeker) -> None:
        """End the search or round of a peer that has left or no longer wants the group."""
        seeker.is_gone = True
        if seeker in seeker.others:
            seeker.others.remove(seeker)
        self._note(seeker)

    def _note(self, seeker: Seeker) -> None:
        changed, self._changed = self._changed, self._env.event()
        changed.succeed()
        self._consider(seeker.others)

    def _look(self, position: Position, seeker: Seeker) -> Process:
        yield self._env.timeout(JOIN_S + JOIN_EXCHANGES * self._lines.exchange_s([seeker.name]))
        if seeker.is_gone:
            return
        seeker.position = position
        self._join(seeker)
        self._consider(seeker.others)
        self._tell_those_behind(seeker)

    def _tell_those_behind(self, newest: Seeker) -> None:
        """Tell peers that look for a group at an earlier step that the keeper has gone on."""
        if newest.role == "keeper":
            self._keeper = newest
        if (keeper := self._keeper) is not None:
            behind = [newest] if newest is not keeper else itertools.chain(*self._seeking.values())
            for each in behind:
                if each.position < keeper.position and self._hears(keeper, each):
                    each.gone_on()

    def _await_grace(self, seeker: Seeker) -> Process:
        while (
            left_s := seeker.began_at + max(seeker.grace.seconds, seeker.wanted.free_s) - self._env.now
        ) > ROUNDING_S:
            yield self._env.timeout(left_s)
        if seeker in seeker.others:
            self._consider(seeker.others)

    def _join(self, seeker: Seeker) -> None:
        """Add a peer to the search for its group on its side of a partition."""
        side = self._troubles.side_of(seeker.name)
        seeker.others = self._seeking.setdefault((seeker.position, side), [])
        seeker.others.append(seeker)

    def _follow_sides(self) -> Process:
        """Regroup the searches whenever a partition may have begun or ended."""
        while True:
            yield self._troubles.changed
            seekers = [seeker for group in self._seeking.values() for seeker in group]
            for group in self._seeking.values():
                group.clear()  # a peer that has given up may still refer to it
            self._seeking.clear()
            for seeker in seekers:
                self._join(seeker)
            for group in list(self._seeking.values()):
                self._consider(group)

    def _leader(self, seekers: Sequence[Seeker]) -> Seeker | None:
        """Return the leader of the peers that have met, or None."""
        able = {
            seeker.name: seeker
            for seeker in seekers
            if seeker.leads and not self._troubles.is_cut_off(seeker.name)
            if seeker.role == "keeper" or seeker.wanted.leaders != (KEEPER,)
        }
        keepers = [name for name, seeker in able.items() if seeker.role == "keeper"]
        return next((able[name] for name in candidates(keepers, able, "", seekers[0].position)), None) if able else None

    def _consider(self, seekers: list[Seeker]) -> None:
        """Start the group if its leader begins."""
        leader = self._leader(seekers)
        if leader is None or leader.weight is None:
            return
        if not leader.wanted.quorum.is_in([seeker.name for seeker in seekers]):
            return
        waited_s = self._env.now - leader.began_at
        if may_begin(len(seekers), leader.wanted, waited_s + ROUNDING_S, leader.grace.seconds):
            leader.grace.succeeded(waited_s)
            self._form(seekers, leader)

    def _form(self, seekers: list[Seeker], leader: Seeker) -> None:
        group = sorted(seekers, key=lambda seeker: seeker.name)
        seekers.clear()
        for seeker in group:
            seeker.runs.succeed()
        self._env.process(self._average(group, leader))

    def _average(self, group: list[Seeker], leader: Seeker) -> Process:
        yield self._env.timeout(FORM_S + FORM_EXCHANGES * self._lines.exchange_s(each.name for each in group))
        env, began = self._env, self._env.now
        names = {each.name for each in group}
        if not all(each.wanted.quorum.is_in(names) for each in group):
            for each in group:
                if not each.is_gone:
                    each.done.succeed(FailedRound(frozenset(), frozenset()))
            return
        lines = replace(_lines_of(group), averages_of_own=self._bytes.averages_of_own)
        shares = reduction_shares(2**20, lines.rates, lines.reduces, lines.trusted, lines.averages_of_own)
        promised_s = round_time(self._bytes.own, shares, lines.rates, lines.averages_of_own)
        patience_s = min(self._longest_s, round_limit(lines.patience_s, promised_s))
        round_ = _Round(
            leader=leader,
            present=list(group),
            share_of={each.name: share / 2**20 for each, share in zip(group, shares, strict=True)},
            patience_s=patience_s,
            moved_at=began,
            ends_at=began + patience_s,
        )
        for each in group:
            if self._troubles.lies(each.name, "leaves"):
                self._leave(each)
        silent_at = began + patience_s * SENDERS_SHARE
        while not all(map(_is_there, group)) and env.now < silent_at:
            yield self._changed | env.timeout(silent_at - env.now)
        round_.present = [each for each in group if _is_there(each)]
        traffic = self._traffic(round_.present, round_.share_of)
        yield from self._pass(round_, traffic)
        if round_.winners:
            yield env.timeout(FINISH_S)
        traffics = [
            RoundTraffic(
                traffic.get((each.name, "up"), 0.0), traffic.get((each.name, "down"), 0.0), env.now - began, promised_s
            )
            for each in group
        ]
        yield from self._end(group, round_, lines, traffics, began)

    def _end(
        self,
        group: Sequence[Seeker],
        round_: _Round,
        lines: GroupLines,
        traffics: Sequence[RoundTraffic],
        began: float,
    ) -> Process:
        """Deliver the round's result to each peer that is still present, once there is a ruling on its average."""
        attested, round_.number = self._attested(group, round_), self.next_number()
        senders = {each.name for each in round_.present if each.weight}
        ended_at = self._env.now
        lost = self._lost(round_)
        for each in group:
            if not (each.is_gone or each in round_.winners):
                each.done.succeed(FailedRound(self._lost_to(each, round_, lost), round_.reducers))
        traffic_of = {each.name: traffic for each, traffic in zip(group, traffics, strict=True)}

        def deliver(each: Seeker, is_confirmed: bool) -> None:
            if not is_confirmed:
                each.done.succeed(FailedRound(frozenset(), round_.reducers))
                return
            traffic = traffic_of[each.name]
            self._lines.passed(each.name, ROUND_BYTES, ROUND_BYTES)
            each.done.succeed(
                MetGroup(
                    number=round_.number,
                    peers=frozenset(traffic_of),
                    weights={name: weight.named for name, weight in attested.items()},
                    attested=attested,
                    reducers=round_.reducers,
                    seconds=traffic.seconds,
                    waited_s=max(0.0, began - each.began_at),
                    lines=lines,
                    traffic=traffic,
                    ended_at=ended_at,
                    averaged_bytes=self._bytes.sent * round_.share_of[each.name] * len(senders - {each.name}),
                )
            )

        yield from self._settle(group, round_, deliver)

    def _settle(self, group: Sequence[Seeker], round_: _Round, deliver: Callable[[Seeker, bool], None]) -> Process:
        """Let leaders decide on a round's average, as `peer.averaging.meetings` does, until no holder is in doubt."""
        in_doubt, leader = list(round_.winners), round_.leader
        for each in in_doubt:
            each.is_in_doubt = True
        if not (leader.is_gone or self._troubles.is_cut_off(leader.name)):
            heard = [each for each in in_doubt if self._hears(leader, each)]
            absent = frozenset(each.name for each in group if not self._hears(leader, each))
            self._decide(heard, ruling(leader.wanted.quorum, [each.name for each in heard], absent), deliver)
        while in_doubt := [each for each in in_doubt if not (each.is_gone or each.done.triggered)]:
            yield self._env.timeout(LOOK_S)
            for each in in_doubt:
                there = (*in_doubt, *self._seekers_at(each.position))
                others = [seeker for seeker in there if self._hears(each, seeker)]
                if (first := self._leader(others)) is not None and not each.done.triggered:
                    holders = [other for other in others if other in in_doubt]
                    names, quorum = {holder.name for holder in holders}, first.wanted.quorum
                    absent = quorum.voters - {other.name for other in others}
                    self._decide(holders, ruling(quorum, names, names | absent), deliver)

    def _decide(self, holders: Sequence[Seeker], given: Ruling, deliver: Callable[[Seeker, bool], None]) -> None:
        for each in holders if given is not Ruling.OPEN else ():
            deliver(each, given is Ruling.CONFIRMED)

    def _seekers_at(self, position: Position) -> list[Seeker]:
        return [seeker for (at, _), seekers in self._seeking.items() if at == position for seeker in seekers]

    def _hears(self, one: Seeker, other: Seeker) -> bool:
        """Return whether a peer is connected to another one, or to itself."""
        is_there = not (other.is_gone or self._troubles.is_cut_off(other.name) or self._troubles.is_cut_off(one.name))
        return is_there and not self._troubles.are_apart(one.name, other.name)

    def _leave(self, seeker: Seeker) -> None:
        """Let a misbehaving peer leave its group without notice."""
        seeker.is_gone = True
        seeker.done.succeed(FailedRound(frozenset(), frozenset()))

    def _pass(self, round_: _Round, traffic: Mapping[Direction, float]) -> Process:
        """Transfer all parts until they have arrived or a time limit is reached.

        A disconnected sender is excluded after the senders' time limit. After the reducers' limit,
        the averages of a disconnected reducer are lost to all peers that have not received them.
        """
        env, left = self._env, 1.0
        while env.now < round_.ends_at:
            blocked = self._blocked(round_)
            if not blocked:
                here = {each.name for each in round_.present}
                done = env.event()
                transfer = self._lines.send(
                    {way: left * size for way, size in traffic.items() if way[0] in here}, done.succeed
                )
                while not (done.triggered or env.now >= round_.ends_at or self._blocked(round_)):
                    yield done | self._changed | self._troubles.changed | env.timeout(round_.ends_at - env.now)
                self._lines.stop(transfer)
                left, round_.moved_at = left * transfer.left, env.now
                if done.triggered:
                    round_.winners = round_.present
                    return
                continue
            are_all = len(blocked) == len(round_.present)
            limit_s = round_.patience_s * (REDUCERS_SHARE if are_all else SENDERS_SHARE)
            yield env.timeout(max(0.0, min(round_.ends_at, round_.moved_at + limit_s) - env.now))
            still = self._blocked(round_)
            if len(still) == len(round_.present):
                break
            round_.present = [each for each in round_.present if each not in still]
        if left <= LAST_PARTS:
            able = [each for each in round_.present if not (each.is_gone or self._troubles.is_cut_off(each.name))]
            round_.winners = [each for each in able if self._rng.random() < 0.5]

    def _blocked(self, round_: _Round) -> list[Seeker]:
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

    def _lost_to(self, seeker: Seeker, round_: _Round, lost: frozenset[str]) -> frozenset[str]:
        """Return the reducers from which a peer receives no averages."""
        if self._troubles.has_sides:
            lost |= {name for name in round_.reducers if self._troubles.are_apart(seeker.name, name)}
        return lost - {seeker.name}

    def _attested(self, group: Sequence[Seeker], round_: _Round) -> dict[str, AttestedWeight]:
        """Compute each sender's attested weights from the caps of all reducers."""
        courses = dict.fromkeys(each.course for each in group if each.name in round_.reducers)
        caps = [course.weight_caps() for course in courses]
        attested = {}
        for each in round_.present:
            if each.weight:
                counted = [min(each.weight, of_known.get(each.name, of_others)) for of_known, of_others in caps]
                attested[each.name] = AttestedWeight(each.weight, each.weight, min(counted), median_low(counted))
        return attested

    def _traffic(self, present: Sequence[Seeker], share_of: Mapping[str, float]) -> dict[Direction, float]:
        """Return the bytes of parts and averages per connection and direction."""
        senders = {each.name for each in present if each.weight}
        traffic: dict[Direction, float] = {}
        for each in present:
            share, sends = share_of[each.name], each.name in senders
            returned = share * (len(present) - 1)
            brought = share * (len(senders) - sends)
            traffic[each.name, "up"] = self._bytes.sent * (1 - share) * sends + self._bytes.averages * returned
            traffic[each.name, "down"] = self._bytes.averages * (1 - share) + self._bytes.sent * brought
        return traffic


def _lines_of(group: Sequence[Seeker]) -> GroupLines:
    names, members = [each.name for each in group], [each.member for each in group]
    trusted = tuple(each.role in TRUSTED_ROLES for each in group)
    said = [each.words for each in group]
    return GroupLines(
        rates=tuple(believed(words.rate) for words in said),
        reduces=reducing_peers(names, members, trusted, said),
        trusted=trusted,
        second_reducers=(),
        patience_s=agreed_patience(members, [words.patience_s for words in said]),
    )


def _is_there(seeker: Seeker) -> bool:
    return seeker.weight is not None and not seeker.is_gone
