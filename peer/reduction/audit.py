"""Audit of a round by one of its peers, after the round: whether its reducers returned correct averages.

A peer that takes connections is a second reducer for one part that it drew at random: all who sent to the first one
show it the same bytes, and it combines them again. And all say which averages they got (as digests): a peer that was
given others than most, by one reducer, finds that out. Both rest on the others' word. Pure: `peer.reduction.audit_rpc`
does the talking.

An honest reducer takes the mean by weight. It may count a sender with less weight than it names, as far as it believes
it, and make what is far too large smaller; by what it knows itself, and others cannot know exactly. So an average that
is not the plain mean is looked at once more: a mean of the inputs must lie as near as its code rounds, with none of the
wrong sign or more weight than its own, and in all as much as the total that the reducer named, unless an input was far
too large (`falsified`).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

import numpy as np
import torch
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2

from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import decode, encode, most_rounding
from peer.reduction.findings import Finding
from peer.reduction.screening import LEAST_SENDERS, MARGIN as LARGE

SAME_WEIGHT = 1e-6  # of it: sums of doubles in another order
TOLERANCE = 1e-3  # of a part's norm: other processors round sums otherwise, and a code now and then to its next value
MOST_MOVES = 1000  # for each input, in search of the nearest mean
DIGEST_BYTES = 32


@dataclass(frozen=True)
class ReturnedAverage:
    """A reducer's average of a part, as it was returned."""

    average: torch.Tensor
    weight: float  # behind it
    compression: int  # hivemind's code, in which it travelled


@dataclass(frozen=True)
class Drawn:
    """The place of a part: its reducer's number in the group's order, and its own in the reducer's, both from 0."""

    reducer: int
    part: int


class Evidence:
    """Evidence of one all-reduce that a peer keeps until its reducers are audited; filled while the round runs.

    Of its own numbers the peer keeps the bytes of each part that it sent, and the parts that it reduces itself, which
    never travel. Of the reducers' answers it keeps a digest of each one's averages, and one part's average, drawn in
    secret before the first answer comes, so that no reducer can know which of its answers will be checked.
    """

    def __init__(self, *, parts: Sequence[int], own: int, weight: float, rng: random.Random) -> None:
        """`parts`: how many each peer of the group reduces; `own`: which of them this one is."""
        self.weight = weight
        self.drawn = draw(parts, own, rng)
        self.returned: ReturnedAverage | None = None  # of the part that was drawn
        self._own = own
        self._parts = tuple(parts)
        self._sent: list[list[runtime_pb2.Tensor]] = [[] for _ in parts]
        self._hashes = [hashlib.blake2b(digest_size=DIGEST_BYTES) for _ in parts]

    @property
    def digests(self) -> list[bytes]:
        """A digest of each reducer's averages; empty for a peer that reduced nothing."""
        return [found.digest() if count else b"" for found, count in zip(self._hashes, self._parts, strict=True)]

    def sent(self, drawn: Drawn) -> runtime_pb2.Tensor | None:
        """Return this peer's input of a part; None if there is no such part, or no weight and so no input."""
        if drawn.reducer < len(self._sent) and drawn.part < len(self._sent[drawn.reducer]):
            return self._sent[drawn.reducer][drawn.part]
        return None

    async def keep_sent(
        self, reducer: int, messages: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Pass on these messages, all parts for one reducer, and keep the parts if this peer has a weight."""
        async for message in messages:
            if self.weight:
                self._sent[reducer].append(message.tensor_part)
            yield message

    def keep_own(self, part: torch.Tensor) -> None:
        """Keep the next part that this peer reduces itself, as it added it."""
        if self.weight:
            self._sent[self._own].append(encode(part, runtime_pb2.CompressionType.NONE))

    def keep_returned(self, drawn: Drawn, wire: runtime_pb2.Tensor, average: torch.Tensor, weight: float = 0.0) -> None:
        """Add the next part that a reducer returned to its digest, and keep the drawn one; parts must come in order."""
        self._hashes[drawn.reducer].update(wire.buffer)
        if drawn == self.drawn:
            self.returned = ReturnedAverage(average, weight, wire.compression)


def draw(parts: Sequence[int], own: int, rng: random.Random) -> Drawn | None:
    """Draw one of all the parts that others reduce, each as likely; None if there is none."""
    others = [0 if index == own else count for index, count in enumerate(parts)]
    if not any(others):
        return None
    place = rng.randrange(sum(others))
    for reducer, count in enumerate(others):
        if place < count:
            return Drawn(reducer, place)
        place -= count
    raise AssertionError("the place is below the sum")


class Audit:
    """One peer's audit of a round: the statements and inputs that others send after it, and the findings from them."""

    def __init__(
        self,
        peers: Sequence[PeerID],
        own: PeerID,
        evidence: Evidence,
        *,
        weights: Mapping[str, float] = MappingProxyType({}),
        are_means: bool = True,
    ) -> None:
        """`weights`: what each sender, by peer ID, had named to this peer itself, if it reduced anything.

        Averages that are no means, but depend on the rounds before, are only compared, not computed again.
        """
        self._are_means = are_means
        self.peers, self.own = tuple(peers), own
        self._named = weights
        self._found: list[Finding] = []
        self.evidence = evidence
        self._digests: dict[int, tuple[bytes, ...]] = {}  # by peer's index, of the others
        self._weights: dict[int, float] = {self._index(own): evidence.weight}
        self._inputs: dict[int, torch.Tensor] = {}
        mine = evidence.sent(evidence.drawn) if evidence.drawn is not None else None
        if mine is not None:
            self._inputs[self._index(own)] = decode(mine)

    def _index(self, peer: PeerID) -> int:
        return self.peers.index(peer)

    def hear(self, peer: PeerID, weight: float, digests: Sequence[bytes]) -> Drawn | None:
        """Take another peer's statement, its first only; returns the part of which its input is wanted."""
        if peer not in self.peers or peer == self.own or self._index(peer) in self._digests:
            return None
        if len(digests) != len(self.peers) or any(len(digest) not in (0, DIGEST_BYTES) for digest in digests):
            return None
        named = self._named.get(peer.to_base58(), weight)
        if weight != named or not 0 <= weight < math.inf:  # its word would make an honest reducer look false
            detail = f"names {weight:g} samples after a round to which it brought {named:g}"
            self._found.append(Finding(peer.to_base58(), "samples", detail))
            return None
        self._digests[self._index(peer)] = tuple(digests)
        self._weights[self._index(peer)] = weight
        return self.evidence.drawn if weight else None

    def show(self, peer: PeerID, wire: runtime_pb2.Tensor) -> None:
        """Take the input that was asked for, the first only; raises `ValueError` for anything but such a part."""
        if peer not in self.peers or self._index(peer) not in self._digests or self._index(peer) in self._inputs:
            return
        returned, part = self.evidence.returned, decode(wire)
        if returned is None or part.shape != returned.average.shape or part.dtype != torch.float32:
            raise ValueError(f"an input of {tuple(part.shape)} was not asked for")
        if not bool(torch.isfinite(part).all()):  # with it nobody could tell what a reducer should have made
            raise ValueError("an input that is not finite is none")
        self._inputs[self._index(peer)] = part

    @property
    def is_complete(self) -> bool:
        """Whether all others have sent their statements and inputs."""
        others = len(self.peers) - 1
        return len(self._digests) == others and (self.evidence.drawn is None or not self.missing)

    @property
    def missing(self) -> list[PeerID]:
        """The peers that have not yet shown their input, or not even stated its weight."""
        return [
            peer
            for index, peer in enumerate(self.peers)
            if index not in self._inputs and self._weights.get(index, 1.0) != 0
        ]

    def findings(self) -> list[Finding]:
        """Return the findings from all that was heard until now."""
        found = [
            _note(self.peers[index], "gave this peer other averages than most others")
            for index in equivocating(self._index(self.own), self.evidence.digests, self._digests)
        ]
        drawn, returned = self.evidence.drawn, self.evidence.returned
        if self._are_means and drawn is not None and returned is not None and not self.missing:
            given = [WeightedPart(index, self._inputs[index], self._weights[index]) for index in sorted(self._inputs)]
            reason = falsified(returned, given)
            if reason is not None:
                found.append(_note(self.peers[drawn.reducer], reason))
        return [*self._found, *found]


def _note(peer: PeerID, detail: str) -> Finding:
    """Make a finding from others' words and inputs, which prove nothing (`peer.reporting.suspicions.UNPROVEN`)."""
    return Finding(peer.to_base58(), "reduction", detail)


def equivocating(own: int, digests: Sequence[bytes], heard: Mapping[int, Sequence[bytes]]) -> list[int]:
    """Return the reducers that gave this peer other averages than most others, by the others' own words.

    A single liar cannot bring that about in a group of four or more. A peer with the averages of most finds nothing.
    """
    found = []
    for reducer, digest in enumerate(digests):
        others = [theirs[reducer] for peer, theirs in heard.items() if peer != reducer]
        differing = sum(theirs != digest for theirs in others)
        if reducer != own and digest and 2 * differing > len(others):
            found.append(reducer)
    return found


def falsified(returned: ReturnedAverage, given: Sequence[WeightedPart]) -> str | None:
    """Return the fault of a reducer's average, if these are all inputs; None if it has none, or nobody can tell."""
    given = [contribution for contribution in given if contribution.weight > 0]
    weight = sum(contribution.weight for contribution in given)
    if not given or not weight:
        return None
    if not 0 < returned.weight <= weight * (1 + SAME_WEIGHT):
        return f"named {returned.weight:g} samples behind an average of {weight:g}"
    expected = decode(encode(weighted_mean(0, given), returned.compression))
    distance, norm = float((returned.average - expected).norm()), float(expected.norm())
    same_weight = abs(returned.weight - weight) <= SAME_WEIGHT * weight
    if same_weight and distance <= TOLERANCE * norm:
        return None
    if (not same_weight or _any_is_large(given)) and _may_be_honest(returned, given):
        return None
    return f"returned an average that is {distance / norm if norm else math.inf:.2g} of its norm off the true one"


def _may_be_honest(returned: ReturnedAverage, given: Sequence[WeightedPart]) -> bool:
    """Return whether caps on weights, limits on norms and rounding may have made this average of the inputs."""
    inputs = torch.stack([contribution.part.flatten() for contribution in given]).double()  # (senders, values)
    average = returned.average.flatten().double()
    most = [contribution.weight / returned.weight for contribution in given]
    if _any_is_large(given):
        inputs, most = torch.cat([inputs, torch.zeros_like(average)[None]]), [*most, 1.0]  # what was made smaller
    lost = TOLERANCE * float(average.norm()) + most_rounding(returned.average, returned.compression)
    return _is_near_a_mean(average, inputs, torch.tensor(most, dtype=torch.float64), lost)


def _is_near_a_mean(average: torch.Tensor, inputs: torch.Tensor, most: torch.Tensor, lost: float) -> bool:
    """Return whether some mean of the inputs, with at most so much of each, lies within `lost` of the average.

    Weight moves from the input that leads away to the one that leads nearest, until a mean lies so near, or none can.
    The weights in the average may be impossible to tell where inputs are alike, but not the nearest mean's distance.
    """
    products, pulls = (inputs @ inputs.T).numpy(), (inputs @ average).numpy()
    own, room = float(average @ average), most.numpy()
    shares = room / room.sum()
    for _ in range(MOST_MOVES * len(shares)):
        slopes = products @ shares - pulls
        squared = own + float(shares @ (slopes - pulls))
        less, more = np.where(shares > 0, slopes, -np.inf), np.where(shares < room, slopes, np.inf)
        off, to = int(less.argmax()), int(more.argmin())
        gap = float(less[off] - more[to])
        if squared <= lost**2:
            return True
        if squared - 2 * gap > lost**2:  # no mean is nearer than that
            return False
        bend = float(products[to, to] + products[off, off] - 2 * products[to, off])
        move = min(gap / bend if bend > 0 else np.inf, room[to] - shares[to], shares[off])
        shares[to], shares[off] = shares[to] + move, shares[off] - move
    return True  # nobody can tell


def _any_is_large(given: Sequence[WeightedPart]) -> bool:
    """Return whether a reducer may have scaled any of these inputs down.

    A reducer measures by the senders' median, of two by the other or by its own gradient, or by something larger.
    """
    total = sum(contribution.weight for contribution in given)
    norms = [float(contribution.part.norm()) for contribution in given]
    typical = median(norms) if len(norms) >= LEAST_SENDERS else min(norms)
    return any(
        contribution.weight / total * norm > LARGE * typical for contribution, norm in zip(given, norms, strict=True)
    )
