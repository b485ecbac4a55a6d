"""Credit: how many of the samples that a device claims are counted towards a step, and which claims were false.

A global step begins when the samples that peers claim fill its batch, so a claim is cut to what is likely: twice what
the device, or all devices of its member, has lately brought to a step, as the keeper saw it; and for a device that has
brought nothing yet, a share of the batch. Both grow with a step that takes longer than usual, so that it always ends.
What is cut is not lost: it is averaged with the rest.

A device may claim samples and not bring them, bring what cannot be taken, or name a weight in the round that no peer
accumulates. A round with fewer samples than were claimed fails and would be tried for ever. So from then on only what a
device has really brought counts, and what it accumulates beyond; after false claims in two rounds, no more than it
brings. All peers believe what the reducers of the round attest: a peer that went by its own parts, or that reduces
none, would take a batch for full while others wait for samples that nobody computes. A device whose parts were
refused is not counted until it has brought some that were taken; after the second time no more. One that claims samples
and brings none at all to round after round is not counted until it brings some. Nor does a device fill the batch with
samples that its gradients do not bear out (`peer.reduction.standing`): where its weight was cut in the last round, no
more is believed of it than has counted.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from peer.reduction.attestation import NOTHING_ATTESTED, AttestedWeight
from peer.swarm.records import MAX_CREDITS, KnownPeer

GROWTH = 2.0  # so much more than lately is believed at once
HEADROOM = 2.0  # of weights above that: who counts them may know of less than who began the round
REMEMBERED_STEPS = 8
DOUBTED_SHARE = 0.01  # of a batch: even who has claimed falsely is believed so much more, with patience all
HONEST_SHARE = 0.9  # of a claim; a peer may have dropped a microbatch since its record
FALSE_ROUNDS = 2
LOST_ROUNDS = 2  # towards one step
LOST_IN_ALL = 2 * LOST_ROUNDS  # in succession, towards any step
WEIGHT_MARGIN = 4.0  # times the samples at which a peer computes no more: its microbatch may be large


def newcomer_share(members: int, least: float) -> float:
    """The share of a batch that a member without credit may fill: twice a fair one, or `least`, where that is more."""
    return min(1.0, max(2.0 / max(1, members), least))


@dataclass(frozen=True)
class Allowances:
    """Limits on the samples believed of each peer towards the step that is being filled."""

    target: int  # samples of the batch
    share: float = 1.0  # see `newcomer_share`
    patience: float = 1.0  # by how much the step takes longer than usual; at least 1
    usual_s: float = 0.0  # that a step takes; 0: not known
    credits: Mapping[str, int] = field(default_factory=dict)  # peer ID -> samples lately brought to one step
    missing: Mapping[str, int] = field(default_factory=dict)  # peer ID -> what it claims towards this step and has not
    doubted: Mapping[str, int] = field(default_factory=dict)  # peer ID -> samples that it brought, or that counted
    refused: frozenset[str] = frozenset()  # peer IDs: what they sent to the last round was not taken

    def of(self, peer_ids: Sequence[str]) -> float:
        """Return the most samples that may count of these devices of one member together."""
        credit = sum(self.credits.get(peer_id, 0) for peer_id in peer_ids)
        return max(self.share * self.target, GROWTH * credit) * self.patience

    def samples(self, peer: KnownPeer) -> float:
        """Return how many of one device's samples count, before the limit on its member's devices together."""
        if peer.peer_id in self.refused:
            return 0
        claimed = max(0, peer.record.samples - self.missing.get(peer.peer_id, 0))
        most = self.of([peer.peer_id])
        if peer.peer_id in self.doubted:
            most = min(most, self.doubted[peer.peer_id] + DOUBTED_SHARE * self.target * self.patience)
        return min(claimed, most)

    def rate(self, peer: KnownPeer) -> float:
        """Return a peer's believed rate in samples per second: its whole claim while a step's duration is unknown."""
        most = self.of([peer.peer_id]) / self.usual_s if self.usual_s else math.inf
        return min(peer.record.rate, most)

    def weight_caps(self, peers: Iterable[KnownPeer]) -> dict[str, float]:
        """Return the most weight of each trainer in a round (peer ID -> samples): twice what is believed of it.

        A member's allowance is divided among its devices as they claim, and a device that claims little has its equal
        share all the same: its record may be an old one. So nothing is cut that was counted towards the batch.
        """
        caps = {}
        for devices in _by_member(peers).values():
            most = HEADROOM * self.of([device.peer_id for device in devices])
            claimed = sum(device.record.samples for device in devices)
            for device in devices:
                share = device.record.samples / claimed if claimed else 0.0
                caps[device.peer_id] = most * max(share, 1 / len(devices))
        return caps

    @property
    def newcomers_cap(self) -> float:
        """The most weight in a round of a device of which nothing is known."""
        return HEADROOM * self.of([])

    def counted(self, peers: Iterable[KnownPeer]) -> int:
        """The samples of all these trainers that count towards the step."""
        sums = [
            min(sum(map(self.samples, devices)), self.of([device.peer_id for device in devices]))
            for devices in _by_member(peers).values()
        ]
        return int(sum(sums))


def _by_member(peers: Iterable[KnownPeer]) -> dict[str, list[KnownPeer]]:
    members: dict[str, list[KnownPeer]] = {}
    for peer in peers:
        members.setdefault(peer.member, []).append(peer)
    return members


class CreditBook:
    """A record of the samples that devices have lately brought to steps, as the keeper sees them in its rounds."""

    def __init__(self) -> None:
        self._brought: dict[str, deque[int]] = {}
        self._lasted: deque[float] = deque(maxlen=REMEMBERED_STEPS)

    def take(self, weights: Mapping[str, float], seconds: float, allowed: Callable[[Sequence[str]], float]) -> None:
        """Record a step's samples (peer ID -> samples) and duration; nobody's credit grows faster than `GROWTH`."""
        self._lasted.append(seconds)
        for peer_id in self._brought.keys() | weights.keys():
            weight = weights.get(peer_id, 0.0)
            credited = min(weight, GROWTH * allowed([peer_id])) if weight >= 0 else 0.0  # false for no number
            self._brought.setdefault(peer_id, deque(maxlen=REMEMBERED_STEPS)).append(int(credited))
        self._brought = {peer_id: steps for peer_id, steps in self._brought.items() if any(steps)}

    @property
    def usual_s(self) -> float:
        """The median duration of the last steps in seconds; 0 before the first."""
        return median(self._lasted) if self._lasted else 0.0

    def credits_above(self, samples: float) -> dict[str, int]:
        """Return each device's most samples in one of the last steps, if above `samples`; the largest first."""
        most = {peer_id: max(steps) for peer_id, steps in self._brought.items()}
        named = sorted((peer_id for peer_id in most if most[peer_id] > samples), key=lambda peer_id: -most[peer_id])
        return {peer_id: most[peer_id] for peer_id in named[:MAX_CREDITS]}


class FalseClaims:
    """False claims of samples, as shown by the rounds that this peer was in."""

    def __init__(self) -> None:
        self.missing: dict[str, int] = {}  # peer ID -> claimed towards the step that is being filled, and not brought
        self.doubted: dict[str, int] = {}  # peer ID -> brought to the last round, by those who claimed falsely
        self._cut: dict[str, int] = {}  # peer ID -> counted in the last round, of those whose weight was cut
        self.refused: frozenset[str] = frozenset()  # peer IDs that are not counted
        self._false: dict[str, set[float]] = {}  # peer ID -> times of its records that were false by all attestations
        self._seen_false: dict[str, set[float]] = {}  # the same, by what this peer reduced itself
        self._lost: Counter[str] = Counter()  # peer ID -> rounds towards this step to which it brought nothing
        self._lost_in_all: Counter[str] = Counter()  # the same, since it last brought something
        self._refusals: Counter[str] = Counter()  # peer ID -> rounds in which its parts were refused

    def are_false(self, peer_id: str) -> bool:
        """Whether this peer has claimed falsely often enough to be accused of it."""
        return len(self._seen_false.get(peer_id, ())) >= FALSE_ROUNDS

    @property
    def believed(self) -> dict[str, int]:
        """The most samples that are believed of each peer whose claims are doubted, or whose weight was cut."""
        both = self.doubted.keys() & self._cut.keys()
        return self.doubted | self._cut | {peer_id: min(self.doubted[peer_id], self._cut[peer_id]) for peer_id in both}

    def step_began(self) -> None:
        """Forget the samples missing from the step before: another step is being filled."""
        self.missing.clear()
        self._lost.clear()

    def parts_refused(self, peer_ids: Iterable[str]) -> None:
        """Stop counting these peers, which were banned from a round for what they sent."""
        peer_ids = set(peer_ids)
        self._refusals.update(peer_ids)
        self.refused |= peer_ids

    def round_ended(
        self,
        peers: Iterable[KnownPeer],
        weights: Mapping[str, float],
        attested: Mapping[str, AttestedWeight],
        allowances: Allowances,
        short: bool,
    ) -> None:
        """Compare trainers' claims with the samples they brought; one that is not in `attested` may come once more.

        A device whose weight was cut has claimed nothing falsely, but the batch must come together. What is believed
        follows from all attestations. An accusation needs more: the `weights` that this peer reduced itself, for one
        lying reducer could attest less than it received.
        """
        for peer_id, weight in attested.items():
            self._cut.pop(peer_id, None)
            if weight.counted < HONEST_SHARE * weight.named:
                self._cut[peer_id] = int(weight.counted)
        for peer in peers:
            peer_id, weight = peer.peer_id, attested.get(peer.peer_id, NOTHING_ATTESTED)
            if weight.by_most > 0:
                self._lost_in_all[peer_id] = 0
            if weight.taken > 0 and self._refusals[peer_id] < FALSE_ROUNDS:
                self.refused -= {peer_id}
            if short:
                self._fell_short(peer, weights.get(peer_id, 0.0), weight, allowances.samples(peer))
            if peer_id in self.doubted or len(self._false.get(peer_id, ())) >= FALSE_ROUNDS:
                self.doubted[peer_id] = int(weight.taken)

    def _fell_short(self, peer: KnownPeer, own: float, weight: AttestedWeight, believed: float) -> None:
        """Note what is missing of one trainer's samples; `own`: its weight in what this peer reduced."""
        peer_id = peer.peer_id
        if not weight.taken:
            self._lost[peer_id] += 1
            self._lost_in_all[peer_id] += not weight.by_most
            if self._lost[peer_id] >= LOST_ROUNDS:  # it may be stalling: the others fill the batch
                self.missing[peer_id] = peer.record.samples
            if self._lost_in_all[peer_id] >= LOST_IN_ALL:  # and the batches to come
                self.refused |= {peer_id}
        elif weight.taken < believed:
            self.missing[peer_id] = int(peer.record.samples - weight.taken)
            if weight.brought < HONEST_SHARE * believed:
                self._false.setdefault(peer_id, set()).add(peer.record.time)
        elif peer_id in self.missing:  # it brought more than was still believed of it
            self.missing[peer_id] = max(0, int(peer.record.samples - weight.taken))
        if 0 < own < HONEST_SHARE * believed:
            self._seen_false.setdefault(peer_id, set()).add(peer.record.time)


def is_inflated(named: float, cap: float, most: int) -> bool:
    """Whether the weight that a device named in a round is above its cap, and several times what a peer accumulates.

    `most`: the samples at which a peer computes no more. The device's record is no measure: while its line or its
    daemon stands still, it computes on, and others see an old record.
    """
    return named > max(cap, WEIGHT_MARGIN * most)
