"""Attestations: a reducer's signed record of its inputs and averages in a round.

Each sender sends the digests of all its parts before the first part, and the reducer accepts no
other parts. When all parts are averaged, the reducer signs one attestation and sends the same bytes
to all senders. It contains each sender's digests, declared weight and counted weight, and the
digests of the averages. A sender accepts the averages only if the attestation matches its inputs
and the averages. Consequently:

- if two peers hold the same attestation, each of them has confirmed its own entry, so the inputs
  that a peer shows after the round must match the digests in its entry;
- a reducer's average must be the result of inputs with the attested digests;
- two different attestations of one round, signed by one reducer, prove that the reducer lied.

Between two steps, a peer takes part in only one round with a given group ID
(`peer.reduction.auditing`), so an honest reducer's attestation cannot be replayed for another
round. `peer.averaging.all_reduce` exchanges attestations, and `peer.reduction.audit` compares them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat
from statistics import median_high
from typing import Annotated, ClassVar, Literal, NamedTuple

from hivemind.proto import runtime_pb2
from pydantic import BaseModel, ConfigDict, Field

from auth.errors import RequestError
from auth.keys import DeviceKey, verify_signature
from auth.statements import Statement

DIGEST_BYTES = 32
MAX_SENDERS = 512
MAX_ATTESTATION_BYTES = 512 * 1024
SAME_WEIGHT = 1e-6  # tolerated relative difference between equal sums added in different orders

_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Parts = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Digest = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]


@dataclass(frozen=True)
class AttestedRound:
    """The round, or half of a round, to which an attestation refers."""

    run: str
    era: int
    step: int  # last step completed before the round
    group_id: bytes
    layout: bytes  # digest of the group's order and shares, because a leader could falsify them


@dataclass(frozen=True)
class Attesting:
    """The key and round details for signing and verifying attestations; peers are peer IDs."""

    round: AttestedRound
    key: DeviceKey
    key_of: Callable[[str], bytes | None]  # peer -> public key (OpenSSH) in its token
    members: Mapping[str, str] = field(default_factory=dict)  # peer -> member that owns the device
    trusted: frozenset[str] = frozenset()  # keepers


class AttestedSender(BaseModel):
    """One sender's entry in an attestation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    weight: _Weight  # declared by the sender, in samples
    inputs: _Digest | Literal[""]  # digest of the digests of the sender's parts; empty if the weight is 0
    counted: tuple[tuple[_Parts, _Weight], ...]  # counted weights, run-length encoded: (number of parts, weight)

    @classmethod
    def of_parts(cls, weight: float, inputs: Sequence[bytes], counted: Iterable[float]) -> AttestedSender:
        """Build a sender's entry from the digests and counted weights of its parts."""
        spans = tuple((len(list(span)), value) for value, span in groupby(counted))
        return cls(weight=weight, inputs=digest_of_all(inputs).hex() if weight else "", counted=spans)

    @property
    def parts(self) -> int:
        """The number of parts that the entry covers."""
        return sum(parts for parts, _ in self.counted)

    @property
    def least_counted(self) -> float:
        """The smallest weight with which this sender is counted in any part."""
        return min((weight for _, weight in self.counted), default=0.0)

    def counted_in(self, part: int) -> float:
        """Return the weight with which this sender is counted in a part."""
        for parts, weight in self.counted:
            if part < parts:
                return weight
            part -= parts
        return 0.0


class Attestation(Statement):
    """A reducer's record of a round."""

    noun: ClassVar[str] = "attestation"
    attestation: Literal["manyhands-attestation-v1"] = "manyhands-attestation-v1"
    run: Annotated[str, Field(min_length=1, max_length=1024)]
    era: _Count
    step: _Count
    group: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,128}$")]
    layout: _Digest
    averages: _Digest  # digest of the averages' digests, in the order of the parts
    senders: Annotated[tuple[AttestedSender, ...], Field(max_length=MAX_SENDERS)]  # in the group's order

    @classmethod
    def of_round(
        cls, attested: AttestedRound, averages: Iterable[bytes], senders: Sequence[AttestedSender]
    ) -> Attestation:
        """Build a round's attestation from its senders and the digests of its averages."""
        return cls(
            run=attested.run,
            era=attested.era,
            step=attested.step,
            group=attested.group_id.hex(),
            layout=attested.layout.hex(),
            averages=digest_of_all(averages).hex(),
            senders=tuple(senders),
        )

    @property
    def round(self) -> AttestedRound:
        """The attested round."""
        return AttestedRound(self.run, self.era, self.step, bytes.fromhex(self.group), bytes.fromhex(self.layout))

    def totals(self, parts: int) -> list[float]:
        """Return the total counted weight of each part; every entry must cover `parts` parts."""
        totals = [0.0] * parts
        for sender in self.senders:
            counted = chain.from_iterable(repeat(weight, count) for count, weight in sender.counted)
            for part, weight in enumerate(counted):
                totals[part] += weight
        return totals

    def require_true(
        self, own: int, weight: float, inputs: Sequence[bytes], averages: Sequence[bytes], weights: Sequence[float]
    ) -> None:
        """Raise `ValueError` unless the attestation agrees with the data of the peer at index `own`.

        `weight` and `inputs` (digests) are the peer's own. `averages` (digests) and `weights` were
        returned by the reducer.
        """
        if own >= len(self.senders):
            raise ValueError(f"it names {len(self.senders)} senders")
        line = AttestedSender.of_parts(weight, inputs, ())
        if (self.senders[own].weight, self.senders[own].inputs) != (line.weight, line.inputs):
            raise ValueError("it names other inputs than this peer has sent")
        if any(sender.parts != len(averages) for sender in self.senders):
            raise ValueError(f"it is not of {len(averages)} parts")
        if any(counted > sender.weight for sender in self.senders for _, counted in sender.counted):
            raise ValueError("it counts a sender with more than that named")
        if self.averages != digest_of_all(averages).hex():
            raise ValueError("it is of other averages than this peer was given")
        for counted, named in zip(self.totals(len(averages)), weights, strict=True):
            if not math.isclose(named, counted, rel_tol=SAME_WEIGHT):
                raise ValueError(f"it counts {counted:g} samples in an average said to have {named:g}")


@dataclass(frozen=True)
class SignedAttestation:
    """A signed attestation on the wire: the statement, a newline, the signature."""

    content: bytes

    @classmethod
    def sign(cls, key: DeviceKey, attestation: Attestation) -> SignedAttestation:
        """Sign an attestation with this device's key."""
        body = attestation.body.encode()
        return cls(body + b"\n" + key.sign(body))

    @property
    def digest(self) -> bytes:
        """The digest of the statement, without its randomized signature, for comparisons between peers."""
        return digest(self.content.partition(b"\n")[0])

    def opened(self, public_key: bytes) -> Attestation:
        """Verify and return the attestation. Raises `ValueError` unless it is signed by this key (OpenSSH)."""
        if len(self.content) > MAX_ATTESTATION_BYTES:
            raise ValueError(f"it has {len(self.content)} bytes, of {MAX_ATTESTATION_BYTES} at most")
        body, _, signature = self.content.partition(b"\n")
        try:
            return Attestation.opened(
                body.decode("ascii", errors="replace"), lambda signed: verify_signature(public_key, signed, signature)
            )
        except RequestError as error:
            raise ValueError(str(error)) from error


class AttestedWeight(NamedTuple):
    """The samples of one sender in a round, according to its reducers' attestations."""

    named: float  # largest weight that any reducer received
    brought: float  # smallest weight that any reducer received; 0 if one received none
    counted: float  # smallest weight counted in any part, among the reducers that received a weight
    by_most: float  # largest weight that at least half of the reducers counted

    @property
    def taken(self) -> float:
        """The samples that all reducers received and counted."""
        return min(self.brought, self.counted)


NOTHING_ATTESTED = AttestedWeight(0.0, 0.0, 0.0, 0.0)


def attested_weights(attestations: Collection[Attestation], senders: Iterable[str]) -> dict[str, AttestedWeight]:
    """Return the attested weights of each sender (peer ID) that declared a weight to any reducer.

    Each attestation has an entry for each sender. All peers of a complete round hold the same
    attestations and therefore compute the same values.
    """
    found = {}
    for index, peer_id in enumerate(senders):
        lines = [attestation.senders[index] for attestation in attestations]
        named = [line.weight for line in lines]
        if any(named):
            counted = min(line.least_counted for line in lines if line.weight > 0)
            by_most = median_high(min(line.weight, line.least_counted) for line in lines)
            found[peer_id] = AttestedWeight(max(named), min(named), counted, by_most)
    return found


def layout_of(peers: Iterable[str], shares: Iterable[float]) -> bytes:
    """Return the digest of a group's order and its peers' shares of the reduction."""
    lines = [f"{peer} {float(share)!r}" for peer, share in zip(peers, shares, strict=True)]
    return digest("\n".join(lines).encode())


def digest(content: bytes) -> bytes:
    """Return the BLAKE2b digest of bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def digest_of(wire: runtime_pb2.Tensor) -> bytes:
    """Return the digest of a part on the wire: its compression, dtype, shape and bytes."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    found.update(f"{wire.compression} {wire.dtype!r} {list(wire.size)}\n".encode())
    found.update(wire.buffer)
    return found.digest()


def digest_of_all(digests: Iterable[bytes]) -> bytes:
    """Return the digest of a sequence of digests."""
    return digest(b"".join(digests))


def split_digests(joined: bytes) -> list[bytes]:
    """Split concatenated digests. Raises `ValueError` if the length is not a multiple of a digest's."""
    if len(joined) % DIGEST_BYTES:
        raise ValueError(f"{len(joined)} bytes are no digests of {DIGEST_BYTES}")
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]
