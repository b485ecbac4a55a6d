"""Whether the reducers of a round did what they should have: one peer's look at it, after the round.

Whoever takes connections is a second reducer for one part that it drew at random: all who sent to the first one show it
the same bytes, and it combines them again. And all say which averages they got (as digests): who was given others than
most, by one reducer, finds that out. Both rest on the others' word. Pure: `peer.auditing` does the talking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from hivemind.p2p import PeerID
from hivemind.proto import runtime_pb2

from peer.compression import decode
from peer.evidence import DIGEST_BYTES, Drawn, Evidence
from peer.findings import Finding
from peer.part_reducer import Contribution
from peer.recombination import falsified


class Audit:
    """What one peer hears after a round, and what follows from it."""

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

        Averages that are no means, but depend on the rounds before, are only compared, not made again.
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
        """Whether all have said and shown what they can."""
        others = len(self.peers) - 1
        return len(self._digests) == others and (self.evidence.drawn is None or not self.missing)

    @property
    def missing(self) -> list[PeerID]:
        """Who has not yet shown what it had sent, or not even said how much that weighs."""
        return [
            peer
            for index, peer in enumerate(self.peers)
            if index not in self._inputs and self._weights.get(index, 1.0) != 0
        ]

    def findings(self) -> list[Finding]:
        """What no honest peer does, by what was heard until now."""
        found = [
            _note(self.peers[index], "gave this peer other averages than most others")
            for index in equivocating(self._index(self.own), self.evidence.digests, self._digests)
        ]
        drawn, returned = self.evidence.drawn, self.evidence.returned
        if self._are_means and drawn is not None and returned is not None and not self.missing:
            given = [Contribution(index, self._inputs[index], self._weights[index]) for index in sorted(self._inputs)]
            reason = falsified(returned, given)
            if reason is not None:
                found.append(_note(self.peers[drawn.reducer], reason))
        return [*self._found, *found]


def _note(peer: PeerID, detail: str) -> Finding:
    """A finding by what others say and show, which proves nothing (`peer.suspicion.UNPROVEN`)."""
    return Finding(peer.to_base58(), "reduction", detail)


def equivocating(own: int, digests: Sequence[bytes], heard: Mapping[int, Sequence[bytes]]) -> list[int]:
    """Which reducers gave this peer other averages than most of the others, whose word for it is believed.

    A single liar cannot make it so in a group of four or more, and who was given what most got has nothing to find.
    """
    found = []
    for reducer, digest in enumerate(digests):
        others = [theirs[reducer] for peer, theirs in heard.items() if peer != reducer]
        differing = sum(theirs != digest for theirs in others)
        if reducer != own and digest and 2 * differing > len(others):
            found.append(reducer)
    return found
