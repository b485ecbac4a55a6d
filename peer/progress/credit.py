"""Limits on the samples credited to each device per step, and detection of false claims.

A global step begins when the claimed samples fill its batch. Each claim is capped at twice the
samples that the device, or all devices of its member, recently contributed to a step, as measured
by the keeper. A device without history may claim a share of the batch. The caps grow while a step
takes longer than usual, so every step ends. Samples above the cap are still averaged.

After a device's first false claim, the missing samples are deducted from the claim, so that a round
is not retried forever; after false claims in two rounds, only the device's contributions count. All
peers use the reducers' attestations. A device with rejected parts does not count until some are
accepted, and after a second rejection never again. A device that contributes nothing to several
rounds in a row does not count until it contributes again. If a device's weight was cut in the last
round (`peer.reduction.standing`), only the remaining weight is credited.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from peer.progress.records import MAX_CREDITS, KnownPeer
from peer.reduction.attestation import NOTHING_ATTESTED, AttestedWeight

GROWTH = 2.0  # multiple of a device's recent contributions up to which a claim is credited
HEADROOM = 2.0  # multiple of a claim's cap that reducers accept, because their copy of the record may be old
REMEMBERED_STEPS = 8
DOUBTED_SHARE = 0.01  # share of a batch still credited beyond a device's contributions after false claims
HONEST_SHARE = 0.9  # share of a claim that must arrive; a peer may drop a microbatch after its report
FALSE_ROUNDS = 2
LOST_ROUNDS = 2  # missed rounds of one step after which a device's claim is ignored in that step
LOST_IN_ALL = 2 * LOST_ROUNDS  # missed rounds in a row after which all of a device's claims are ignored
WEIGHT_MARGIN = 4.0  # tolerated multiple of the usual maximum, because one microbatch may be large


def newcomer_share(members: int, least: float) -> float:
    """Return a newcomer's largest share of a batch: two equal shares, but at least `least`."""
    return min(1.0, max(2.0 / max(1, members), least))


@dataclass(frozen=True)
class Allowances:
    """Limits on the samples credited to each peer towards the current step."""

    target: int  # samples per batch
    share: float = 1.0  # share of the batch for a member without credit; see `newcomer_share`
    patience: float = 1.0  # duration of this step relative to a usual step; at least 1
    usual_s: float = 0.0  # usual duration of a step in seconds; 0: unknown
    credits: Mapping[str, int] = field(default_factory=dict)  # peer ID -> recent samples per step
    missing: Mapping[str, int] = field(default_factory=dict)  # peer ID -> claimed but missing samples
    doubted: Mapping[str, int] = field(default_factory=dict)  # peer ID -> maximum number of credited samples
    refused: frozenset[str] = frozenset()  # peer IDs whose parts were rejected in the last round

    def of(self, peer_ids: Sequence[str]) -> float:
        """Return the maximum number of samples credited to these devices of one member together."""
        credit = sum(self.credits.get(peer_id, 0) for peer_id in peer_ids)
        return max(self.share * self.target, GROWTH * credit) * self.patience

    def samples(self, peer: KnownPeer) -> float:
        """Return the samples credited to one device, before its member's limit is applied."""
        if peer.peer_id in self.refused:
            return 0
        claimed = max(0, peer.record.samples - self.missing.get(peer.peer_id, 0))
        most = self.of([peer.peer_id])
        if peer.peer_id in self.doubted:
            most = min(most, self.doubted[peer.peer_id] + DOUBTED_SHARE * self.target * self.patience)
        return min(claimed, most)

    def rate(self, peer: KnownPeer) -> float:
        """Return a peer's credited samples/s: its claim, capped once a step's duration is known."""
        most = self.of([peer.peer_id]) / self.usual_s if self.usual_s else math.inf
        return min(peer.record.rate, most)

    def weight_caps(self, peers: Iterable[KnownPeer]) -> dict[str, float]:
        """Return each trainer's weight limit in a round (peer ID -> samples).

        A member's limit is twice the samples that may be credited to it. Each device gets a part in
        proportion to its claim, or an equal share if that is larger: records may be out of date.
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
        """The weight limit in a round for an unknown device."""
        return HEADROOM * self.of([])

    def counted(self, peers: Iterable[KnownPeer]) -> int:
        """Return the number of these trainers' samples that are credited towards the step."""
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
    """The keeper's record of the samples that devices contributed to recent steps."""

    def __init__(self) -> None:
        self._brought: dict[str, deque[int]] = {}
        self._lasted: deque[float] = deque(maxlen=REMEMBERED_STEPS)

    def take(self, weights: Mapping[str, float], seconds: float, allowed: Callable[[Sequence[str]], float]) -> None:
        """Record a step's duration and each peer's samples, up to `GROWTH` times its allowance.

        Without any weights, because the keeper reduced nothing, only the duration is recorded.
        """
        self._lasted.append(seconds)
        for peer_id in self._brought.keys() | weights.keys() if weights else ():
            weight = weights.get(peer_id, 0.0)
            credited = min(weight, GROWTH * allowed([peer_id])) if weight >= 0 else 0.0  # NaN fails the comparison
            self._brought.setdefault(peer_id, deque(maxlen=REMEMBERED_STEPS)).append(int(credited))
        self._brought = {peer_id: steps for peer_id, steps in self._brought.items() if any(steps)}

    @property
    def usual_s(self) -> float:
        """The median duration of the last steps in seconds; 0 before the first."""
        return median(self._lasted) if self._lasted else 0.0

    def credits_above(self, samples: float) -> dict[str, int]:
        """Return each device's largest recent contribution above `samples`, in descending order."""
        most = {peer_id: max(steps) for peer_id, steps in self._brought.items()}
        named = sorted((peer_id for peer_id in most if most[peer_id] > samples), key=lambda peer_id: -most[peer_id])
        return {peer_id: most[peer_id] for peer_id in named[:MAX_CREDITS]}


class FalseClaims:
    """False sample claims detected in this peer's rounds."""

    def __init__(self) -> None:
        self.missing: dict[str, int] = {}  # peer ID -> samples claimed but not contributed, in this step
        self.doubted: dict[str, int] = {}  # peer ID -> samples contributed to the last round
        self._cut: dict[str, int] = {}  # peer ID -> samples counted in the last round, if the weight was cut
        self.refused: frozenset[str] = frozenset()  # peer IDs whose samples are not counted
        self._false: dict[str, set[float]] = {}  # peer ID -> times of records contradicted by the attestations
        self._seen_false: dict[str, set[float]] = {}  # peer ID -> times of records contradicted by parts reduced here
        self._lost: Counter[str] = Counter()  # peer ID -> rounds of this step without a contribution
        self._lost_in_all: Counter[str] = Counter()  # peer ID -> rounds since its last contribution
        self._refusals: Counter[str] = Counter()  # peer ID -> rounds in which its parts were rejected

    def are_false(self, peer_id: str) -> bool:
        """Return whether a peer has made enough false claims to be accused."""
        return len(self._seen_false.get(peer_id, ())) >= FALSE_ROUNDS

    @property
    def believed(self) -> dict[str, int]:
        """The limit on the credited samples of each peer with doubted claims or a cut weight."""
        both = self.doubted.keys() & self._cut.keys()
        return self.doubted | self._cut | {peer_id: min(self.doubted[peer_id], self._cut[peer_id]) for peer_id in both}

    def step_began(self) -> None:
        """Reset the counts of missing samples when a new step begins."""
        self.missing.clear()
        self._lost.clear()

    def parts_refused(self, peer_ids: Iterable[str]) -> None:
        """Stop counting the samples of these peers, which a round banned for invalid parts."""
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
        """Compare the trainers' claims with their samples in the round.

        The claim of a trainer missing from `attested` is ignored after a second missed round. A cut
        weight is not a false claim, but only the remaining weight is credited. Credit is based on
        all attestations. An accusation requires `weights`, the samples in the parts that this peer
        reduced itself, because a dishonest reducer could attest less than it received.
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
        """Record a trainer's missing samples; `own`: its weight in parts that this peer reduced."""
        peer_id = peer.peer_id
        if not weight.taken:
            self._lost[peer_id] += 1
            self._lost_in_all[peer_id] += not weight.by_most
            if self._lost[peer_id] >= LOST_ROUNDS:  # the peer may be stalling, so the others fill the batch
                self.missing[peer_id] = peer.record.samples
            if self._lost_in_all[peer_id] >= LOST_IN_ALL:  # not counted in later batches either
                self.refused |= {peer_id}
        elif weight.taken < believed:
            self.missing[peer_id] = int(peer.record.samples - weight.taken)
            if weight.brought < HONEST_SHARE * believed:
                self._false.setdefault(peer_id, set()).add(peer.record.time)
        elif peer_id in self.missing:  # the peer contributed more than was still credited
            self.missing[peer_id] = max(0, int(peer.record.samples - weight.taken))
        if 0 < own < HONEST_SHARE * believed:
            self._seen_false.setdefault(peer_id, set()).add(peer.record.time)


def is_inflated(named: float, cap: float, most: int) -> bool:
    """Return whether a declared weight exceeds both its cap and several times the usual maximum.

    `most`: the samples at which a peer stops computing. The peer's record is not used, because it
    may be old: a peer continues to compute while its network or daemon is stalled.
    """
    return named > max(cap, WEIGHT_MARGIN * most)
