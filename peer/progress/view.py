"""A peer's view of the swarm, computed from the DHT records with limits on claims.

The swarm's step is the step that more than half of the members have reached, limited by the
keeper's beacon. A member has one vote, regardless of its number of devices. Samples are capped per
member (`peer.progress.credit`), and peers with impossible claims are reported
(`peer.reporting.suspicions`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from auth.swarm.authorizer import TRAINING_ROLES
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.node.quorum import Quorum
from peer.progress.credit import Allowances, FalseClaims, is_inflated, newcomer_share
from peer.progress.fingerprint import Sketch, drifted
from peer.progress.records import Beacon, BeaconWatch, KnownPeer, nearest_step
from peer.reduction.attestation import AttestedWeight
from peer.reporting.metrics import Census, census_of
from peer.reporting.suspicions import Suspicion, SuspicionKind, Suspicions

STEPS_AHEAD = 2  # steps by which a record may lead the swarm's step, because other records may be late
STEPS_PER_SECOND = 2.0  # upper bound on the steps that the swarm takes per second between two reads
MOST_BATCHES = 8  # maximum number of batches that a device accumulates towards one step
REMEMBERED_SKETCHES = 16  # number of steps whose sketches are remembered
GREETING_PERIOD_S = 5.0  # interval of pings to a keeper that is not visible
MEETING_S = GREETING_PERIOD_S + 1.0


@dataclass(frozen=True)
class TrainerPace:
    """A trainer's credited speed towards the next step."""

    peer_id: str
    rate: float  # samples per second
    time: float  # timestamp of the record, on the DHT's clock


@dataclass(frozen=True)
class SwarmView:
    """One peer's view of the swarm, from the records at one point in time."""

    step: int  # the swarm's step
    samples: int  # counted samples towards the next step, from peers at `step`
    trainers: int  # number of training peers at any step
    averaging: int  # peers at `step` that join the next round, including keeper and auxiliary peers
    rate: float  # credited samples per second of all trainers
    keeper_sketch: Sketch  # the beacon's sketch if the beacon is at `step`; else empty
    live: frozenset[str] = frozenset()  # IDs of the active peers at any step, including keeper and auxiliary peers
    arriving: int = 0  # peers one step behind, which are probably about to take the step
    census: Census = ()
    paces: tuple[TrainerPace, ...] = ()  # paces of the trainers at `step`
    here: frozenset[str] = frozenset()  # IDs of the peers counted in `averaging`
    keeper_ids: frozenset[str] = frozenset()
    reachable: frozenset[str] = frozenset()  # IDs of those in `here` that other peers can connect to
    slow_lines: tuple[float, ...] = ()  # bytes per second of members with trainers on standby
    step_is_shared: bool = False  # a peer other than a keeper has taken the step

    @property
    def keepers(self) -> int:
        """The number of keepers in the swarm."""
        return len(self.keeper_ids)

    def expected_samples(self, own_id: str, now: float, longest_s: float) -> float:
        """Estimate the samples that others computed since their records, in at most `longest_s`."""
        return sum(
            pace.rate * min(max(0.0, now - pace.time), longest_s) for pace in self.paces if pace.peer_id != own_id
        )

    def remaining_s(self, own_id: str, missing: int, now: float, longest_s: float) -> float:
        """Return the seconds until a batch that lacks `missing` samples is full.

        Rates are extrapolated for at most `longest_s`; the result is infinite if no rate is known.
        """
        rate = sum(pace.rate for pace in self.paces)
        if rate <= 0:
            return math.inf
        return max(0.0, missing - self.expected_samples(own_id, now, longest_s)) / rate

    def usual_remaining_s(self, target: int) -> float:
        """Return the seconds until `target` samples are reached at all trainers' total rate."""
        return max(0, target - self.samples) / self.rate if self.rate > 0 else math.inf

    def faster_rate(self, own_id: str) -> float:
        """Return the total rate of the trainers at this step that are faster than this peer."""
        own = max(((pace.rate, pace.peer_id) for pace in self.paces if pace.peer_id == own_id), default=(0.0, own_id))
        return sum(pace.rate for pace in self.paces if (pace.rate, pace.peer_id) > own)


def view_swarm(
    peers: Iterable[KnownPeer],
    lately: Sequence[KnownPeer],
    step: int,
    beacon: Beacon | None,
    allowances: Allowances,
    slow_lines: tuple[float, ...] = (),
) -> SwarmView:
    """Build the view of the swarm at `step` from the records, within the allowances.

    `lately`: the latest record of every peer seen recently, including `peers`. `slow_lines`: bytes
    per second of the trainers on standby.
    """
    active = taking_part(peers)
    trainers = training(active)
    here = [peer for peer in active if peer.record.step == step]
    current = training(here)
    return SwarmView(
        step=step,
        samples=allowances.counted(current),
        trainers=len(trainers),
        averaging=len(here),
        rate=sum(map(allowances.rate, trainers)),
        keeper_sketch=beacon.sketch if beacon is not None and beacon.step == step else (),
        live=frozenset(peer.peer_id for peer in taking_part(lately)),
        arriving=sum(peer.record.step == step - 1 for peer in active),
        census=census_of((peer.role, not peer.record.client_mode) for peer in active),
        paces=tuple(TrainerPace(peer.peer_id, allowances.rate(peer), peer.record.time) for peer in current),
        here=frozenset(peer.peer_id for peer in here),
        keeper_ids=frozenset(peer.peer_id for peer in active if peer.role == "keeper"),
        reachable=frozenset(peer.peer_id for peer in here if not peer.record.client_mode),
        slow_lines=slow_lines,
        step_is_shared=any(peer.role != "keeper" and peer.record.step == step for peer in lately),
    )


def taking_part(peers: Iterable[KnownPeer]) -> list[KnownPeer]:
    """Return the peers that take part in averaging."""
    return [peer for peer in peers if peer.record.training and peer.role in TRAINING_ROLES]


def training(peers: Iterable[KnownPeer]) -> list[KnownPeer]:
    """Return the peers that train."""
    return [peer for peer in peers if peer.record.training and peer.role == "trainer"]


def slow_lines_of(peers: Iterable[KnownPeer]) -> tuple[float, ...]:
    """Return the bandwidth of each member's fastest trainer on standby, in bytes per second."""
    fastest: dict[str, float] = {}
    for peer in peers:
        rate = peer.record.slow_line
        if rate is not None and peer.role == "trainer" and not peer.record.training:
            fastest[peer.member] = max(rate, fastest.get(peer.member, 0.0))
    return tuple(fastest.values())


def claim_of(accumulated: int, target: int) -> int:
    """Cap the reported samples at `MOST_BATCHES` batches, the maximum that other peers accept."""
    return min(accumulated, MOST_BATCHES * target)


def steps_by_member(peers: Iterable[KnownPeer]) -> dict[str, list[int]]:
    """Return the steps of each member's devices."""
    steps: dict[str, list[int]] = {}
    for peer in peers:
        steps.setdefault(peer.member, []).append(peer.record.step)
    return steps


def beacon_of(peers: Iterable[KnownPeer]) -> Beacon | None:
    """Return the newest beacon among these records; only a keeper's record contains one."""
    beacons = [
        Beacon(peer.record.step, peer.record.sketch, peer.record.time, peer.record.course, peer.record.era)
        for peer in peers
        if peer.role == "keeper" and peer.record.training and peer.record.course is not None
    ]
    return max(beacons, key=lambda beacon: (beacon.era, beacon.step, beacon.time), default=None)


class SwarmCourse:
    """The swarm's progress over time, with the history needed to check claims."""

    def __init__(
        self,
        *,
        own_id: str,
        is_keeper: bool,
        silent_after_s: float,
        first_step_s: float,
        least_share: float,
        suspicions: Suspicions,
    ) -> None:
        self._own_id = own_id
        self._is_keeper = is_keeper
        self._watch = BeaconWatch(silent_after_s)
        self._silent_after_s = silent_after_s
        self._last_seen: dict[str, tuple[float, KnownPeer]] = {}  # peer ID -> time and last record
        self._unseen_s: dict[str, float] = {}  # peer ID -> seconds without its record, while this peer looked
        self._looked_at = math.inf
        self._known_s: dict[str, float] = {}  # peer ID -> timestamp of its newest record when this peer took its step
        self._members: dict[str, str] = {}  # peer ID -> member
        self._reached: dict[str, int] = {}  # peer ID -> highest step reported in this era, which a peer still holds
        self._left = frozenset[str]()  # voters that take part no longer
        self._step = 0  # which the voters have taken together
        self._voters = self._keepers = frozenset[str]()  # that decide on this peer's next step
        self._are_inferred = False  # whether these voters are a keeper's guess
        self._first_step_s = first_step_s  # assumed duration of a step until one is measured
        self._least_share = least_share
        self._suspicions = suspicions
        self._step_began: tuple[int, float] = (-1, 0.0)
        self._peers: dict[str, KnownPeer] = {}  # peers in the last read
        self._claims = FalseClaims()
        self._met_at: float | None = None  # time at which this peer first saw a trainer
        self._sketches: dict[int, Sketch] = {}  # step -> sketch of the beacon or the majority
        self._reported: dict[int, dict[str, tuple[str, Sketch]]] = {}  # step -> peer ID -> member and sketch
        self._judges: object = None  # who decided on the accepted sketches
        self._sights: dict[str, tuple[float, int]] = {}  # peer ID -> time and last plausible step
        self.allowances = Allowances(target=1)
        self.hears_keeper = False  # whether the keeper renews its beacon

    @classmethod
    def of(cls, config: RunConfig, own_id: str, role: str, suspicions: Suspicions) -> SwarmCourse:
        """Create the course of one peer's run."""
        expiration_s = config.averaging.statistics_expiration_s
        return cls(
            own_id=own_id,
            is_keeper=role == "keeper",
            silent_after_s=expiration_s / 2,  # the keeper publishes at least twice in this time
            first_step_s=expiration_s,
            least_share=config.membership.newcomer_share,
            suspicions=suspicions,
        )

    def look(self, peers: list[KnownPeer], target: int, now: float) -> SwarmView:
        """Process these records, and return the view of the swarm at `now` (local seconds)."""
        beacon, era = beacon_of(peers), self.era
        held = self._watch.look(beacon, now)
        self.hears_keeper = held is not None
        if self.era != era:
            for known in (self._sketches, self._reported, self._reached):
                known.clear()  # they belong to undone steps
        self._last_seen |= {peer.peer_id: (now, peer) for peer in peers}
        self._last_seen = {
            peer_id: (at, peer) for peer_id, (at, peer) in self._last_seen.items() if now - at <= self._silent_after_s
        }
        lately = [peer for _, peer in self._last_seen.values()]
        self._look_for_voters(peers, lately, now)
        slow_lines = slow_lines_of(lately)
        if self._watch.newest is not None:  # peers in an older era are ignored
            peers, lately = ([peer for peer in seen if peer.record.era == self.era] for seen in (peers, lately))
        trainers = training(peers)
        self._peers = {peer.peer_id: peer for peer in peers}
        # the keeper issues the beacon and follows the majority
        agreed = max(agreed_step(steps_by_member(trainers)), self._voters_step(peers))
        with_keeper = not self._voters or bool(self._voters & self._keepers)
        step = nearest_step(agreed, beacon, None if self._is_keeper else held, lead=int(with_keeper))
        if step != self._step_began[0] or self._met_at is None:  # the first step may take days
            self._begin_step(step, beacon, now)
        self._met_at = now if trainers and self._met_at is None else self._met_at
        self.allowances = self._allowances(trainers, target, now)
        view = view_swarm(peers, lately, step, beacon, self.allowances, slow_lines)
        self._remember_sketches(training(lately), view, may_agree=not self._is_keeper or self.has_met_all(now))
        self._look_for_liars(trainers, view.step, target, now)
        return view

    def _look_for_voters(self, peers: list[KnownPeer], lately: list[KnownPeer], now: float) -> None:
        passed_s = min(max(0.0, now - self._looked_at), self._silent_after_s / 2)  # this peer may have slept
        self._looked_at = now
        unseen = {peer_id: seconds + passed_s for peer_id, seconds in self._unseen_s.items()}
        unseen |= dict.fromkeys((peer.peer_id for peer in peers), 0.0)
        self._unseen_s = {peer_id: seconds for peer_id, seconds in unseen.items() if seconds < self._silent_after_s}
        members = self._members | {peer.peer_id: peer.member for peer in peers}
        self._members = {peer_id: member for peer_id, member in members.items() if peer_id in self._unseen_s}
        active = {peer.peer_id for peer in taking_part(peers)}
        news = {peer.peer_id for peer in peers if peer.record.time > self._known_s.get(peer.peer_id, -math.inf)}
        self._left |= news - active
        held = max((peer.record.step for peer in taking_part(lately) if peer.record.era == self.era), default=0)
        for peer in peers:
            if peer.record.era == self.era:
                self._reached[peer.peer_id] = max(peer.record.step, self._reached.get(peer.peer_id, 0))
        held_steps = {peer_id: min(step, held) for peer_id, step in self._reached.items()}
        self._reached = {peer_id: step for peer_id, step in held_steps.items() if step > self._step}

    def expect(
        self, voters: Collection[str], keepers: Collection[str], step: int, *, are_inferred: bool = False
    ) -> None:
        """Set who took this peer's `step` (nobody: unknown), and the run's keepers.

        They count as present until they have not been seen for a time, and no more once they leave.
        Those that have been seen at a later step count on as long as a peer holds that step.
        """
        self._step = step
        self._voters, self._keepers, self._are_inferred = frozenset(voters), frozenset(keepers), are_inferred
        self._known_s = {peer_id: peer.record.time for peer_id, (_, peer) in self._last_seen.items()}
        self._unseen_s = dict.fromkeys(self._voters or self._keepers, 0.0) | self._unseen_s
        self._left = frozenset()

    def quorum(self, voters: Collection[str], keepers: Collection[str]) -> Quorum:
        """Return the peers that decide on the step after that of `voters`: those that have not left, or the keepers.

        A voter is gone if it has not been seen for a time besides its record's lifetime.
        """
        went_on = {peer_id for peer_id, step in self._reached.items() if step > self._step}
        staying = frozenset(voters or keepers) - (self._left - went_on)
        return Quorum(staying, staying - self._unseen_s.keys() - went_on, frozenset(keepers))

    def _voters_step(self, peers: list[KnownPeer]) -> int:
        """Return the step that enough of those who took this peer's step have reached; newcomers have no vote.

        A voter that has left, or has lost its state, had a vote as long as others hold its step.
        """
        steps = {peer.peer_id: peer.record.step for peer in taking_part(peers)} | self._reached
        reached = sorted({step for peer_id, step in steps.items() if peer_id in self._voters}, reverse=True)
        return next((step for step in reached if self._suffice({peer for peer in steps if steps[peer] >= step})), 0)

    def _suffice(self, peers: Collection[str]) -> bool:
        """Return whether these peers belong to half of the members that took this peer's step; two at least, or all.

        Others then cannot take the next step without one of them.
        """
        present = self.quorum(self._voters, ()).present - self._keepers if self._voters else frozenset[str]()
        members, theirs = (
            {self._members.get(peer, peer) for peer in voters} for voters in (present, present & set(peers))
        )
        least = 2 if self._are_inferred else min(2, len(members))  # one member must not guide a keeper by a guess
        return 2 * len(theirs) >= len(members) and len(theirs) >= least > 0

    @property
    def beacon(self) -> Beacon | None:
        """The newest beacon; None before the first."""
        return self._watch.newest

    @property
    def era(self) -> int:
        """The newest beacon's era; 0 before the first."""
        newest = self._watch.newest
        return 0 if newest is None else newest.era

    @property
    def steering(self) -> Steering:
        """The operator's steering from the newest beacon."""
        newest = self._watch.newest
        return Steering() if newest is None else newest.course.steering

    def sketch_at(self, step: int) -> Sketch:
        """Return the accepted sketch of the state after `step`; empty if unknown."""
        return self._sketches.get(step, ())

    def holders(self, step: int, sketch: Sketch) -> frozenset[str]:
        """Return the trainers in sight that have reported this state after `step`; nobody if they are few.

        They are few if they do not belong to half of the members in sight.
        """
        in_sight, reported = training(peer for _, peer in self._last_seen.values()), self._reported.get(step, {})
        holders = [peer for peer in in_sight if (told := reported.get(peer.peer_id)) and not drifted(told[1], sketch)]
        are_few = 2 * len({peer.member for peer in holders}) < len({peer.member for peer in in_sight})
        return frozenset() if are_few or not sketch else frozenset(peer.peer_id for peer in holders)

    def is_most_reported(self, step: int, sketch: Sketch) -> bool:
        """Return whether more members report `sketch` after `step` than any other sketch."""
        supporters = supporters_of(self._reported.get(step, {}).values())
        most = max(map(len, supporters.values()), default=0)
        leading = [known for known, theirs in supporters.items() if len(theirs) == most]
        return len(leading) == 1 and not drifted(sketch, leading[0])

    def round_ended(
        self, step: int, weights: Mapping[str, float], attested: Mapping[str, AttestedWeight], short: bool
    ) -> None:
        """Check the trainers' claims against their samples in a round towards `step + 1`.

        `weights`: peer ID -> samples in the parts that this peer reduced; `attested`: the samples
        according to all reducers. `short`: the round had too few samples for a step.
        """
        known = list(self._peers.values())  # a copy, because the tracker's thread may read concurrently
        here = [peer for peer in known if peer.role == "trainer" and peer.record.step == step]
        self._claims.round_ended(here, weights, attested, self.allowances, short)
        for peer in here:
            if short and self._claims.are_false(peer.peer_id):
                detail = f"claims {peer.record.samples} samples and brings {weights.get(peer.peer_id, 0.0):.0f}"
                self.suspect(peer.peer_id, "samples", step, detail)
        self._look_for_inflated_weights(training(known), step, weights)

    def _look_for_inflated_weights(self, trainers: list[KnownPeer], step: int, weights: Mapping[str, float]) -> None:
        """Suspect trainers with impossible weights; generous limits allow for outdated records."""
        caps, most = self.allowances.weight_caps(trainers), MOST_BATCHES * self.allowances.target
        for peer in trainers:
            named, claimed = weights.get(peer.peer_id, 0.0), peer.record.samples
            if peer.record.step == step and is_inflated(named, caps[peer.peer_id], most):
                self.suspect(peer.peer_id, "weight", step, f"claims {claimed} samples and names the weight {named:g}")

    def parts_refused(self, step: int, reasons: Mapping[str, str]) -> None:
        """Suspect senders banned from a round, and ignore their samples; `reasons`: by peer ID."""
        self._claims.parts_refused(reasons)
        for peer_id, reason in reasons.items():
            self.suspect(peer_id, "parts", step, reason)

    def weight_caps(self) -> tuple[dict[str, float], float]:
        """Return a round's weight limits in samples: by peer ID, and one for any other device."""
        return self.allowances.weight_caps(training(self._peers.values())), self.allowances.newcomers_cap

    def judge_donor(self, donor: str, step: int, sketch: Sketch) -> None:
        """Suspect the donor of a wrong state if the donor has reported another state of this step.

        An honest peer that was cut off may send a wrong state too, but has reported the same.
        """
        known = self._peers.get(donor)
        newest = known.record.sketch if known is not None and known.record.step == step else ()
        _, reported = self._reported.get(step, {}).get(donor, ("", newest))
        if drifted(sketch, reported):
            self.suspect(donor, "state", step, "gave a state that is neither the swarm's nor the one of its record")

    def suspect(self, peer_id: str, kind: SuspicionKind, step: int, detail: str) -> None:
        """Report a suspicion against another peer, with its member and device if they are known."""
        if peer_id == self._own_id:
            return
        peer = self._peers.get(peer_id)
        member, device = (peer.member, peer.device_id) if peer is not None else ("a member", "unknown")
        self._suspicions.raise_against(Suspicion(peer_id, member, device, kind, step, detail))

    def has_met_all(self, now: float) -> bool:
        """Return whether all peers have had time to appear; the first few may be a minority."""
        return self._met_at is not None and now - self._met_at >= MEETING_S

    def age_s(self, step: int, now: float) -> float:
        """Return the seconds since the swarm began this step; 0 for any other step."""
        begun, began = self._step_began
        return max(0.0, now - began) if begun == step and self._met_at is not None else 0.0

    def _allowances(self, trainers: list[KnownPeer], target: int, now: float) -> Allowances:
        newest = self._watch.newest
        usual_s = newest.course.usual_s if newest is not None else 0.0
        return Allowances(
            target=target,
            share=newcomer_share(len({peer.member for peer in trainers}), self._least_share),
            patience=max(1.0, self.age_s(self._step_began[0], now) / (usual_s or self._first_step_s)),
            usual_s=usual_s,
            credits=newest.course.credits if newest is not None else {},
            missing=self._claims.missing,
            doubted=self._claims.believed,
            refused=self._claims.refused,
        )

    def _begin_step(self, step: int, beacon: Beacon | None, now: float) -> None:
        began_before_s = beacon.course.age_s if beacon is not None and beacon.step == step else 0.0
        self._step_began = (step, now - began_before_s)
        self._claims.step_began()

    def _remember_sketches(self, trainers: list[KnownPeer], view: SwarmView, *, may_agree: bool) -> None:
        """Store the sketches that members report, and the accepted sketch of each step.

        Members take a step at different times, so a read may find no two of them at the same step.
        The keeper therefore counts every sketch that a member has reported for a step.
        """
        changed = set[int]()
        for peer in trainers:
            if peer.record.sketch and -REMEMBERED_SKETCHES < peer.record.step - view.step <= STEPS_AHEAD:
                reported, told = self._reported.setdefault(peer.record.step, {}), (peer.member, peer.record.sketch)
                if reported.get(peer.peer_id) != told:
                    reported[peer.peer_id] = told
                    changed.add(peer.record.step)
        members = len({peer.member for peer in trainers})
        present = self.quorum(self._voters, ()).present - self._keepers
        judges = members, may_agree, {peer_id: self._members.get(peer_id) for peer_id in present}
        if judges != self._judges:
            self._judges, changed = judges, set(self._reported)
        for step in changed if self._is_keeper else self._reported.keys() & {view.step}:
            agreed = agreed_sketch(self._reported[step].values(), members) or self._voters_sketch(step)
            if agreed and may_agree:
                self._sketches[step] = agreed
        if view.keeper_sketch and not self._is_keeper:
            self._sketches[view.step] = view.keeper_sketch
        for known in (self._sketches, self._reported):
            for step in [step for step in known if step <= view.step - REMEMBERED_SKETCHES]:
                del known[step]

    def _voters_sketch(self, step: int) -> Sketch:
        """Return the sketch that enough of those who took this peer's step report after `step`; empty if none."""
        reported = {peer_id: sketch for peer_id, (_, sketch) in self._reported[step].items()}
        for candidate in {sketch for peer_id, sketch in reported.items() if peer_id in self._voters}:
            if self._suffice({peer for peer, sketch in reported.items() if not drifted(sketch, candidate)}):
                return candidate
        return ()

    def _look_for_liars(self, trainers: list[KnownPeer], step: int, target: int, now: float) -> None:
        """Suspect peers with impossible claims, allowing for outdated records and long steps.

        While the keeper is away, an honest peer may train alone, unseen by others. Its step then
        seems to jump, whether the returning keeper adopts its state or rolls it back. A peer is
        therefore suspected only of a jump between two reads.
        """
        horizon = step + STEPS_AHEAD + int(self.age_s(step, now) * STEPS_PER_SECOND)
        sights = {peer.peer_id: self._sights.get(peer.peer_id, (now, peer.record.step)) for peer in trainers}
        for peer in trainers:
            at, seen = sights[peer.peer_id]
            if peer.record.step > max(horizon, seen + STEPS_AHEAD + int((now - at) * STEPS_PER_SECOND)):
                self.suspect(peer.peer_id, "step", step, f"claims step {peer.record.step}")
            else:
                sights[peer.peer_id] = now, peer.record.step
            if peer.record.samples > MOST_BATCHES * target * self.allowances.patience:
                detail = f"claims {peer.record.samples} samples towards a batch of {target}"
                self.suspect(peer.peer_id, "samples", step, detail)
        self._sights = sights


def agreed_step(claims: Mapping[str, Sequence[int]]) -> int:
    """Return the highest step that most members have reached with most of their devices.

    `claims`: the steps of each member's devices; the result is 0 if it is empty.
    """
    votes = [median_low(steps) for steps in claims.values() if steps]
    return median_low(votes) if votes else 0


def agreed_sketch(sketches: Iterable[tuple[str, Sketch]], members: int) -> Sketch:
    """Return the sketch that more than half of `members` report with all devices; empty if none.

    `sketches` are (member, sketch) pairs of the devices at one step.
    """
    supporters = supporters_of(sketches)
    return next((sketch for sketch, theirs in supporters.items() if 2 * len(theirs) > members), ())


def supporters_of(sketches: Iterable[tuple[str, Sketch]]) -> dict[Sketch, set[str]]:
    """Return the distinct sketches, each with the members whose devices all report it."""
    reporters: dict[Sketch, set[str]] = {}
    for member, sketch in sketches:
        if sketch:
            reporters.setdefault(sketch, set()).add(member)
    found: dict[Sketch, set[str]] = {}
    for candidate in reporters:
        if all(drifted(candidate, known) for known in found):
            others = (theirs for sketch, theirs in reporters.items() if drifted(sketch, candidate))
            found[candidate] = set[str]().union(*reporters.values()).difference(*others)
    return found
