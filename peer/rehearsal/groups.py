"""Groups and their rounds of averaging, in virtual time.

Who reduces what follows from the product's own rules (`peer.averaging.shares`). The forming of a group is modelled
after `peer.averaging.matchmaking`: a leader begins when all peers have come that it knows to come, or when its time is
over and enough are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from peer.averaging.averager import REDUCERS_SHARE, SENDERS_SHARE
from peer.averaging.bandwidth import RoundTraffic, promised_time
from peer.averaging.declarations import Declaration
from peer.averaging.shares import (
    NOBODY,
    TRUSTED_ROLES,
    GroupLines,
    agreed_patience,
    believed,
    reducing_peers,
    reduction_shares,
)
from peer.rehearsal.lines import Direction, Lines, Process
from peer.swarm.decision import Demands

# Measured in real swarms on one machine, by `benchmarks/rehearsal.py`:
JOIN_S = 0.6  # until a peer that looks for a group has found its leader: a look at the DHT and a question
FORM_S = 0.3  # from a group's completion until the first part travels: the leader's answer, shares, digests
FINISH_S = (
    1.0  # from the last part until the step is taken: what reducers attest, the last parts' averages, the optimizer
)
ROUND_BYTES = 170_000  # of a peer in each direction beside the parts: looking for a group, declarations, attestations
JOIN_EXCHANGES, FORM_EXCHANGES = 3, 3  # questions and answers in these times, which the distance makes longer
Position = tuple[int, int]  # era and step


@dataclass(frozen=True)
class MetGroup:
    """What one peer has from a round that brought every value."""

    peers: frozenset[str]
    weights: Mapping[str, float]  # of the senders whose parts came
    seconds: float  # of the round
    waited_s: float  # for the group, by this peer
    lines: GroupLines
    traffic: RoundTraffic  # over this peer's line
    ended_at: float

    @property
    def samples(self) -> int:
        """All samples that were averaged."""
        return round(sum(self.weights.values()))

    @classmethod
    def alone(cls, name: str, samples: int, now: float) -> MetGroup:
        """Return the group of a peer that is alone in the swarm."""
        return cls(frozenset({name}), {name: float(samples)}, 0.0, 0.0, NOBODY, RoundTraffic(0.0, 0.0, 0.0, 0.0), now)


@dataclass(frozen=True)
class FailedRound:
    """A round that did not bring every value."""

    missed: frozenset[str]  # reducers that did not return all averages
    reducers: frozenset[str]  # all


@dataclass(eq=False)
class Seeker:
    """One peer's search for a group."""

    name: str
    member: str
    role: str
    leads: bool  # others can connect to it
    words: Declaration
    demands: Demands
    window_s: float  # so long it waits for peers that do not come
    done: simpy.Event  # succeeds with a `MetGroup` or a `FailedRound`
    runs: simpy.Event  # succeeds when its group is complete
    weight: float | None = None  # its samples, once it has begun to average
    is_gone: bool = False
    scheduled_at: float = 0.0  # when it waits no longer
    began_at: float = 0.0  # its averaging, once it has
    others: list[Seeker] = field(default_factory=list)  # who look for the same group, itself included

    @property
    def is_running(self) -> bool:
        """Whether its group is complete."""
        return self.runs.triggered


class Groups:
    """All searches for groups, and all rounds."""

    def __init__(self, env: simpy.Environment, lines: Lines, values_bytes: float) -> None:
        """`values_bytes`: of all averaged values as they travel."""
        self._env, self._lines, self._values_bytes = env, lines, values_bytes
        self._seeking: dict[Position, list[Seeker]] = {}
        self._changed = env.event()

    def look(self, position: Position, seeker: Seeker) -> None:
        """Begin to look for a group of peers at the same step."""
        self._env.process(self._look(position, seeker))

    def begin(self, seeker: Seeker, weight: float) -> None:
        """Let a peer that looks for a group average, from now on."""
        if seeker.weight is None:
            seeker.weight, seeker.began_at = weight, self._env.now
            self._note(seeker)

    def demand(self, seeker: Seeker, demands: Demands) -> None:
        """Set a peer's demands on its group."""
        if demands != seeker.demands:
            seeker.demands = demands
            self._note(seeker)

    def give_up(self, seeker: Seeker) -> None:
        """End a peer's search, or its part in a round: it has gone, or does not want the group any more."""
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
        seeker.others = self._seeking.setdefault(position, [])
        seeker.others.append(seeker)
        seeker.scheduled_at = self._env.now + seeker.window_s
        self._consider(seeker.others)
        while seeker in seeker.others:
            yield self._env.timeout(max(0.0, seeker.scheduled_at - self._env.now))
            leads = seeker in seeker.others and self._leader(seeker.others) is seeker and seeker.weight is not None
            if leads and len(seeker.others) >= seeker.demands.required:
                self._form(seeker.others)
                return
            seeker.scheduled_at = self._env.now + seeker.window_s

    @staticmethod
    def _leader(seekers: Sequence[Seeker]) -> Seeker | None:
        """Return whom the others follow: the one that began to look first, of those who can be connected to."""
        return min(
            (seeker for seeker in seekers if seeker.leads),
            key=lambda each: (each.scheduled_at, each.name),
            default=None,
        )

    def _consider(self, seekers: list[Seeker]) -> None:
        """Let a group begin if its leader waits for nobody else."""
        leader = self._leader(seekers)
        if leader is not None and leader.weight is not None and 1 < leader.demands.expected <= len(seekers):
            self._form(seekers)

    def _form(self, seekers: list[Seeker]) -> None:
        group = sorted(seekers, key=lambda seeker: seeker.name)
        seekers.clear()
        for seeker in group:
            seeker.runs.succeed()
        self._env.process(self._average(group))

    def _average(self, group: list[Seeker]) -> Process:
        yield self._env.timeout(FORM_S + FORM_EXCHANGES * self._lines.exchange_s(each.name for each in group))
        env, began = self._env, self._env.now
        size = len(group)
        if not any(each.role == "keeper" for each in group) and any(size < each.demands.keeperless for each in group):
            self._end(group, {})
            return
        names, members = [each.name for each in group], [each.member for each in group]
        trusted = tuple(each.role in TRUSTED_ROLES for each in group)
        said = [each.words for each in group]
        lines = GroupLines(
            rates=tuple(believed(words.rate) for words in said),
            reduces=reducing_peers(names, members, trusted, said),
            trusted=trusted,
            second_reducers=(),
            patience_s=agreed_patience(members, [words.patience_s for words in said]),
        )
        shares = reduction_shares(2**20, lines.rates, lines.reduces, lines.trusted)
        silent_at = began + lines.patience_s * SENDERS_SHARE
        while not all(_is_there(each) for each in group) and env.now < silent_at:
            yield self._changed | env.timeout(silent_at - env.now)
        present = [each for each in group if _is_there(each)]
        share_of = dict(zip(names, (share / 2**20 for share in shares), strict=True))
        missed = frozenset(name for name in names if share_of[name] > 0) - {each.name for each in present}
        if missed:
            yield env.timeout(max(0.0, began + lines.patience_s * REDUCERS_SHARE - env.now))
            self._end(group, share_of, missed)
            return
        traffic = self._traffic(present, share_of)
        transfer = self._lines.send(traffic)
        ends_at = began + lines.patience_s
        while not transfer.done.triggered and env.now < ends_at and not missed:
            yield transfer.done | self._changed | env.timeout(ends_at - env.now)
            gone = {each.name for each in present if each.is_gone}
            missed = frozenset(name for name in gone if share_of[name] > 0)
        if not transfer.done.triggered:
            self._lines.stop(transfer)
            if missed:
                yield env.timeout(max(0.0, min(ends_at, env.now + lines.patience_s * REDUCERS_SHARE) - env.now))
            self._end(group, share_of, missed)
            return
        if any(each.is_gone for each in present):  # who reduces waited for the next part of a sender that has gone
            yield env.timeout(lines.patience_s * SENDERS_SHARE)
        weights = {each.name: float(each.weight or 0) for each in present if not each.is_gone}
        yield env.timeout(FINISH_S)
        self._succeed(group, present, weights, lines, shares, traffic, began)

    def _succeed(
        self,
        group: Sequence[Seeker],
        present: Sequence[Seeker],
        weights: Mapping[str, float],
        lines: GroupLines,
        shares: Sequence[int],
        traffic: Mapping[Direction, float],
        began: float,
    ) -> None:
        """Give all that are still there what they have from the round."""
        seconds = self._env.now - began
        for index, each in enumerate(group):
            if each not in present or each.is_gone:
                continue
            self._lines.passed(each.name, ROUND_BYTES)
            sent, received = (traffic.get((each.name, way), 0.0) for way in ("up", "down"))
            promised_s = promised_time(min(sent, received), index, shares, lines.rates)
            each.done.succeed(
                MetGroup(
                    peers=frozenset(seeker.name for seeker in group),
                    weights=weights,
                    seconds=seconds,
                    waited_s=max(0.0, began - each.began_at),
                    lines=lines,
                    traffic=RoundTraffic(sent, received, seconds, promised_s),
                    ended_at=self._env.now,
                )
            )

    def _traffic(self, present: Sequence[Seeker], share_of: Mapping[str, float]) -> dict[Direction, float]:
        """Return the bytes of a round over each line: a sender's own parts, and the averages that reducers return."""
        senders = {each.name for each in present if each.weight}
        traffic: dict[Direction, float] = {}
        for each in present:
            share, sends = share_of[each.name], each.name in senders
            returned = share * (len(present) - 1)
            traffic[each.name, "up"] = self._values_bytes * ((1 - share) * sends + returned)
            traffic[each.name, "down"] = self._values_bytes * (1 - share + share * (len(senders) - sends))
        return traffic

    def _end(
        self, group: Sequence[Seeker], share_of: Mapping[str, float], missed: frozenset[str] = frozenset()
    ) -> None:
        """End a round that has failed."""
        reducers = frozenset(name for name, share in share_of.items() if share > 0)
        for each in group:
            if not each.is_gone:
                each.done.succeed(FailedRound(missed, reducers))


def _is_there(seeker: Seeker) -> bool:
    return seeker.weight is not None and not seeker.is_gone
