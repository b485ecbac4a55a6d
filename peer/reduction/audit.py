"""Audit of a completed round, in which a peer checks that the reducers' averages are correct.

A peer that accepts connections recomputes the average of one random part; the part's senders send
it their inputs again. All peers also compare digests of their attestations
(`peer.reduction.attestation`). No claim is taken on trust: senders have confirmed the digests of
their inputs, the reducer has signed the weights, and a peer must show any attestation that differs.
This module is pure; `peer.reduction.auditing` communicates.

An honest reducer computes the mean with the weights that it attests. It may scale down inputs that
are far too large, based on data that other peers do not know exactly. `falsified` allows for this.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from hivemind.proto import runtime_pb2
from scipy.optimize import lsq_linear

from peer.reduction.attestation import (
    DIGEST_BYTES,
    Attestation,
    AttestedRound,
    AttestedSender,
    SignedAttestation,
    digest,
    digest_of,
    digest_of_all,
)
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import FLOAT16_LEAST, decode, encode, half_steps
from peer.reduction.findings import Finding, FindingKind
from peer.reduction.screening import LEAST_SENDERS, MARGIN as LARGE

MOST_AUDITORS = 8  # of a round, beside the keeper; streams and evidence grow with their number times the group's
TOLERANCE = 1e-3  # tolerated error as a fraction of a part's norm, because processors round sums differently
ON_EDGE = 1e-3  # tolerance as a fraction of half a rounding step, because near-ties may be rounded either way
MOST_DIFFERING = 4  # maximum number of attestations requested from one peer


def auditors_of(
    peers: Sequence[str], group_id: bytes, members: Mapping[str, str], trusted: Collection[str]
) -> list[str]:
    """Return those of `peers` that audit a group's round: the trusted ones, and one device each of some members.

    All of the group agree on them. A leader may try group IDs until its accomplices are drawn, who must be members.
    """
    drawn = sorted(peers, key=lambda peer: digest(group_id + peer.encode()))
    first = {members.get(peer, peer): peer for peer in reversed(drawn) if peer not in trusted}
    chosen = [peer for peer in drawn if first.get(members.get(peer, peer)) == peer][:MOST_AUDITORS]
    return [*(peer for peer in drawn if peer in trusted), *chosen]


@dataclass(frozen=True)
class ReturnedAverage:
    """A part's average as the reducer returned it."""

    average: torch.Tensor
    compression: int  # hivemind's compression code on the wire


@dataclass(frozen=True)
class Drawn:
    """A part's position: its reducer's index in the group, and its index among the reducer's parts."""

    reducer: int
    part: int


@dataclass(frozen=True)
class Wanted:
    """A request to a peer for its input to one part, and for the attestations of some reducers."""

    drawn: Drawn | None
    attestations: tuple[int, ...] = ()


class Evidence:
    """A peer's evidence from one all-reduce, collected for the audit of the round.

    It contains the bytes of every part that the peer sent or reduced itself, the reducers'
    attestations, and the average of one part. That part is drawn in secret before the first average
    arrives, so no reducer knows which average will be checked.
    """

    def __init__(
        self, attested: AttestedRound, *, parts: Sequence[int], own: int, weight: float, rng: random.Random
    ) -> None:
        """Set up the evidence; `parts`: number of parts per reducer; `own`: this peer's index in the group."""
        self.round, self.weight = attested, weight
        self.drawn = draw(parts, own, rng)
        self.returned: ReturnedAverage | None = None  # average of the drawn part
        self.attestations: dict[int, tuple[SignedAttestation, Attestation]] = {}  # reducer -> attestation
        self._own = own
        self._parts = tuple(parts)
        self._named = [weight] * len(self._parts)  # weight declared to each reducer
        self._sent: list[list[runtime_pb2.Tensor]] = [[] for _ in parts]
        self._inputs: list[list[bytes]] = [[] for _ in parts]  # digests of the parts for each reducer
        self._averages: list[list[bytes]] = [[] for _ in parts]  # digests of each reducer's averages
        self._weights: list[list[float]] = [[] for _ in parts]  # weights returned with the averages

    @property
    def digests(self) -> list[bytes]:
        """The digest of each peer's attestation; empty for a peer without one."""
        held = (self.attestations.get(reducer) for reducer in range(len(self._parts)))
        return [b"" if found is None else found[0].digest for found in held]

    def sent(self, drawn: Drawn) -> tuple[runtime_pb2.Tensor, list[bytes]] | None:
        """Return this peer's input of a part, and the digests of all its inputs to that reducer.

        Return None if there is no such part, or if this peer sent no input because it has no samples.
        """
        if drawn.reducer < len(self._sent) and drawn.part < len(self._sent[drawn.reducer]):
            return self._sent[drawn.reducer][drawn.part], self._inputs[drawn.reducer]
        return None

    def commit(self, reducer: int, parts: Sequence[runtime_pb2.Tensor], weight: float) -> list[bytes]:
        """Store all parts for one reducer with their weight, and return their digests."""
        self._sent[reducer], self._named[reducer] = list(parts), weight
        self._inputs[reducer] = [digest_of(part) for part in parts]
        return self._inputs[reducer]

    def keep_own(self, part: torch.Tensor) -> None:
        """Store the next part that this peer reduces itself, uncompressed."""
        if self.weight:
            wire = encode(part, runtime_pb2.CompressionType.NONE)
            self._sent[self._own].append(wire)
            self._inputs[self._own].append(digest_of(wire))

    def keep_returned(self, drawn: Drawn, wire: runtime_pb2.Tensor, average: torch.Tensor, weight: float) -> None:
        """Record the digest of a reducer's next average; keep the average if drawn for audit."""
        self._averages[drawn.reducer].append(digest_of(wire))
        self._weights[drawn.reducer].append(weight)
        if drawn == self.drawn:
            self.returned = ReturnedAverage(average, wire.compression)

    def inputs(self, reducer: int) -> list[bytes]:
        """Return the digests of all parts that this peer sent to a reducer."""
        return self._inputs[reducer]

    def attestation(self, senders: Sequence[AttestedSender]) -> Attestation:
        """Return this peer's own attestation of the parts that it has reduced."""
        return Attestation.of_round(self.round, self._averages[self._own], senders)

    def take(self, reducer: int, signed: SignedAttestation, opened: Attestation) -> None:
        """Store a reducer's attestation. Raises `ValueError` if it contradicts this peer's inputs or averages."""
        weight, inputs = self._named[reducer], self._inputs[reducer]
        opened.require_true(self._own, weight, inputs, self._averages[reducer], self._weights[reducer])
        self.attestations[reducer] = signed, opened


def draw(parts: Sequence[int], own: int, rng: random.Random) -> Drawn | None:
    """Draw one of the other peers' parts uniformly at random, or return None if they reduce nothing."""
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
    """One peer's audit of a round, based on data that other peers send afterwards."""

    def __init__(
        self,
        peers: Sequence[str],
        own: str,
        evidence: Evidence,
        *,
        key_of: Callable[[str], bytes | None],
        are_means: bool = True,
    ) -> None:
        """Set up the audit of a group (peer IDs); `key_of` returns the public key (OpenSSH) in a peer's token, or None.

        Averages that are not plain means depend on earlier rounds and are not recomputed.
        """
        self.peers, self.own, self.evidence = tuple(peers), own, evidence
        self._key_of = key_of
        self._found: list[Finding] = []
        self._asked: dict[int, Wanted] = {}  # request to each other peer, by index
        self._answered: set[int] = set()
        self._inputs: dict[int, torch.Tensor] = {}
        drawn = evidence.drawn if are_means else None
        attested = None if drawn is None else evidence.attestations.get(drawn.reducer)
        self._drawn = None if attested is None else drawn
        self._lines = {  # entries of the senders in the drawn part
            index: line
            for index, line in enumerate(() if drawn is None or attested is None else attested[1].senders)
            if drawn is not None and line.counted_in(drawn.part) > 0
        }
        mine = None if self._drawn is None else evidence.sent(self._drawn)
        if mine is not None:
            self._inputs[self.peers.index(own)] = decode(mine[0])

    def hear(self, peer: str, digests: Sequence[bytes]) -> Wanted | None:
        """Process a peer's digests; return the evidence to request, or None for invalid digests."""
        index = self._index_of(peer)
        if index is None or index in self._asked or len(digests) != len(self.peers):
            return None
        if any(len(digest) not in (0, DIGEST_BYTES) for digest in digests):
            return None
        own = self.evidence.digests
        differing = [number for number, (held, theirs) in enumerate(zip(own, digests, strict=True)) if held != theirs]
        is_asked = self._drawn is not None and index in self._lines and self._drawn.reducer not in differing
        contradicted = [number for number in differing if own[number] and digests[number]]
        wanted = Wanted(self._drawn if is_asked else None, tuple(contradicted[:MOST_DIFFERING]))
        self._asked[index] = wanted
        if wanted == Wanted(None):
            self._answered.add(index)
        return wanted

    def _index_of(self, peer: str) -> int | None:
        return None if peer == self.own or peer not in self.peers else self.peers.index(peer)

    def show(
        self,
        peer: str,
        wire: runtime_pb2.Tensor,
        digests: Sequence[bytes],
        attestations: Sequence[bytes] = (),
    ) -> None:
        """Process the evidence that was requested from a peer; only the first answer is used."""
        index = self._index_of(peer)
        if index is None or index in self._answered or index not in self._asked:
            return
        self._answered.add(index)
        wanted = self._asked[index]
        for reducer, content in zip(wanted.attestations, attestations, strict=False):
            self._compare(reducer, SignedAttestation(content))
        if wanted.drawn is not None and digests:  # a peer without digests is treated as missing
            self._take_input(index, wanted.drawn, wire, digests)

    def _compare(self, reducer: int, other: SignedAttestation) -> None:
        held, key = self.evidence.attestations[reducer][1], self._key_of(self.peers[reducer])
        try:
            theirs = None if key is None else other.opened(key)
        except ValueError:
            return
        if theirs is not None and theirs.round == self.evidence.round and theirs != held:
            detail = "signed for this peer and another different accounts of one round"
            self._note(reducer, "reduction", detail)

    def _take_input(self, index: int, drawn: Drawn, wire: runtime_pb2.Tensor, digests: Sequence[bytes]) -> None:
        """Store an input that matches its sender's digests; record a finding for any other input."""
        line = self._lines[index]
        committed = digests[drawn.part : drawn.part + 1] if digest_of_all(digests).hex() == line.inputs else ()
        if digest_of(wire) not in committed:
            self._note(index, "shown", "showed after the round other bytes than it had sent in it")
            return
        returned = self.evidence.returned
        try:
            part = decode(wire)
        except ValueError:
            return  # no honest reducer would have accepted this part
        is_part = returned is not None and part.shape == returned.average.shape and part.dtype == torch.float32
        if is_part and bool(torch.isfinite(part).all()):
            self._inputs[index] = part

    def _note(self, index: int, kind: FindingKind, detail: str) -> None:
        finding = Finding(self.peers[index], kind, detail)
        if finding not in self._found:
            self._found.append(finding)

    @property
    def is_complete(self) -> bool:
        """Whether all other peers have sent their digests and the requested evidence."""
        return len(self._answered) == len(self.peers) - 1

    @property
    def missing(self) -> list[str]:
        """The senders whose input of the drawn part is missing."""
        return [self.peers[index] for index in self._lines if index not in self._inputs]

    def findings(self) -> list[Finding]:
        """Return the findings so far."""
        returned, found = self.evidence.returned, list(self._found)
        if self._drawn is not None and returned is not None and not self.missing:
            part = self._drawn.part
            given = [WeightedPart(at, self._inputs[at], line.counted_in(part)) for at, line in self._lines.items()]
            reason = falsified(returned, given, self._drawn.reducer)
            if reason is not None:
                found.append(Finding(self.peers[self._drawn.reducer], "reduction", reason))
        return found


def falsified(returned: ReturnedAverage, given: Sequence[WeightedPart], reducer: int) -> str | None:
    """Describe the error in an average of these inputs; return None if the average is correct.

    `reducer` is the reducer's own index as a sender.
    """
    if not given:
        return None
    mean = weighted_mean(0, given)
    expected = decode(encode(mean, returned.compression))
    is_rounded = (returned.average - mean).double().flatten().abs() <= (1 + ON_EDGE) * half_steps(
        expected, returned.compression
    )
    difference = (returned.average - expected).flatten().masked_fill(is_rounded, 0.0)
    distance, norm = float(difference.norm()), float(expected.norm())
    least = FLOAT16_LEAST if returned.compression == runtime_pb2.CompressionType.FLOAT16 else 0.0
    if distance <= TOLERANCE * norm + least or _may_be_limited(returned, given, reducer):
        return None
    return f"returned an average that is {distance / norm if norm else math.inf:.2g} of its norm off the true one"


def _may_be_limited(returned: ReturnedAverage, given: Sequence[WeightedPart], reducer: int) -> bool:
    """Return whether scaling down far too large inputs can explain the average."""
    large = _are_large(given, reducer)
    if not any(large):
        return False
    total, average = sum(one.weight for one in given), returned.average.flatten().double()
    columns = [one.part.flatten().double() * (one.weight / total) for one in given]
    usual = sum((column for column, is_large in zip(columns, large, strict=True) if not is_large), 0 * average)
    limited = torch.stack([column for column, is_large in zip(columns, large, strict=True) if is_large], dim=1)
    nearest = lsq_linear(limited.numpy(), (average - usual).numpy(), bounds=(0.0, 1.0))
    is_rounded = torch.stack(columns).any(dim=0)  # zero has no rounding error in any compression
    rounding = half_steps(returned.average, returned.compression)[is_rounded]
    lost = TOLERANCE * float(average.norm()) + float(rounding.norm())
    return bool(math.sqrt(2 * nearest.cost) <= lost)


def _are_large(given: Sequence[WeightedPart], reducer: int) -> list[bool]:
    """Return which of these inputs a reducer may have scaled down.

    A reducer's reference norm is at least the senders' median. With two senders, it is the norm of
    the other sender or of the reducer's own gradient, but the latter is unknown if it sent none.
    """
    total = sum(one.weight for one in given)
    norms = [float(one.part.norm()) for one in given]
    typical = median(norms) if len(norms) >= LEAST_SENDERS else min(norms)
    if len(norms) < LEAST_SENDERS and all(one.sender != reducer for one in given):
        typical = 0.0
    return [one.weight / total * norm > LARGE * typical for one, norm in zip(given, norms, strict=True)]
