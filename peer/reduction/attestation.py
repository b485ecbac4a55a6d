"""Attestations: a reducer's signed account of a round, of what it combined and what it returned.

Each sender names the digests of all its parts before the first one goes out, and the reducer takes no other parts. When
all parts are averaged the reducer signs one attestation and hands the same bytes to all senders: each sender's digests,
the weight that it named and the one that counted, and the digests of the averages. A sender takes the averages only if
the attestation says of it, and of the averages, the truth. So

- a sender that holds the same attestation as another peer has confirmed its own line in it: what it shows that peer
  after the round must have these digests;
- a reducer's average must follow from inputs with these digests;
- a reducer that signs two attestations of one round has proved that it told its senders different things.

No peer takes part twice in rounds with the same group's ID between two steps (`peer.reduction.audit_rpc`), so an old
attestation of an honest reducer passes for no other round's. Used by `peer.averaging.all_reduce`, which exchanges them,
and `peer.reduction.audit`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from statistics import median_high
from typing import Annotated, ClassVar, Literal, NamedTuple

from hivemind.p2p import PeerID
from hivemind.proto import runtime_pb2
from pydantic import BaseModel, ConfigDict, Field

from auth.errors import RequestError
from auth.keys import DeviceKey, verify_signature
from auth.statements import Statement

DIGEST_BYTES = 32
MAX_SENDERS = 512
MAX_ATTESTATION_BYTES = 512 * 1024
SAME_WEIGHT = 1e-6  # of it: sums of doubles in another order

_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Parts = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Digest = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]


@dataclass(frozen=True)
class AttestedRound:
    """The round, or the half of one, that an attestation is of."""

    run: str
    era: int
    step: int  # the global step after which the group averages
    group_id: bytes
    layout: bytes  # the digest of the group's order and shares, which a leader could tell each peer otherwise


class AttestedSender(BaseModel):
    """One sender's line in an attestation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    weight: _Weight  # that it named, in samples
    inputs: _Digest | Literal[""]  # the digest of its parts' digests; empty of a sender without a weight
    counted: tuple[tuple[_Parts, _Weight], ...]  # parts, one span after another, and the weight that counts in them

    @classmethod
    def of_parts(cls, weight: float, inputs: Sequence[bytes], counted: Iterable[float]) -> AttestedSender:
        """Return the line of a sender whose parts, with these digests, counted with these weights."""
        spans = tuple((len(list(span)), value) for value, span in groupby(counted))
        return cls(weight=weight, inputs=digest_of_all(inputs).hex() if weight else "", counted=spans)

    @property
    def parts(self) -> int:
        """The number of parts that the line speaks of."""
        return sum(parts for parts, _ in self.counted)

    @property
    def least_counted(self) -> float:
        """The weight that counts in the part that has least of this sender."""
        return min((weight for _, weight in self.counted), default=0.0)

    def counted_in(self, part: int) -> float:
        """Return the weight of this sender in a part's average."""
        for parts, weight in self.counted:
            if part < parts:
                return weight
            part -= parts
        return 0.0


class Attestation(Statement):
    """A reducer's account of a round."""

    noun: ClassVar[str] = "attestation"
    attestation: Literal["manyhands-attestation-v1"] = "manyhands-attestation-v1"
    run: Annotated[str, Field(min_length=1, max_length=1024)]
    era: _Count
    step: _Count
    group: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,128}$")]
    layout: _Digest
    averages: _Digest  # the digest of the averages' digests, in the order of the parts
    senders: Annotated[tuple[AttestedSender, ...], Field(max_length=MAX_SENDERS)]  # in the group's order

    @classmethod
    def of_round(
        cls, attested: AttestedRound, averages: Iterable[bytes], senders: Sequence[AttestedSender]
    ) -> Attestation:
        """Return the attestation of a round with averages of these digests."""
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
        """The round that this is an attestation of."""
        return AttestedRound(self.run, self.era, self.step, bytes.fromhex(self.group), bytes.fromhex(self.layout))

    def totals(self, parts: int) -> list[float]:
        """Return the weight of all senders in each of so many parts, which every sender's line must speak of."""
        totals = [0.0] * parts
        for sender in self.senders:
            counted = chain.from_iterable(repeat(weight, count) for count, weight in sender.counted)
            for part, weight in enumerate(counted):
                totals[part] += weight
        return totals

    def require_true(
        self, own: int, weight: float, inputs: Sequence[bytes], averages: Sequence[bytes], weights: Sequence[float]
    ) -> None:
        """Raise `ValueError` unless this is the truth as far as the peer at `own` of the group's order can tell.

        `weight` and `inputs` are what it brought itself, the latter as digests; `averages` and `weights` the digests
        of the averages that it was given, and the weights named behind them.
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
    """An attestation's bytes as they travel: the statement, a line's end, the signature."""

    content: bytes

    @classmethod
    def sign(cls, key: DeviceKey, attestation: Attestation) -> SignedAttestation:
        """Return the attestation under this device's key."""
        body = attestation.body.encode()
        return cls(body + b"\n" + key.sign(body))

    @property
    def digest(self) -> bytes:
        """The digest of the statement, by which two peers find that they hold the same; no two signatures are alike."""
        return digest(self.content.partition(b"\n")[0])

    def opened(self, public_key: bytes) -> Attestation:
        """Return the attestation. Raises `ValueError` unless the holder of this key (OpenSSH) signed it."""
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
    """The samples of one sender in a round, as its reducers attest."""

    named: float  # the largest weight that any reducer heard
    brought: float  # the smallest; 0 if a reducer heard none
    counted: float  # in the part with the least of them, of the reducers that heard a weight
    by_most: float  # counted by more than half of the reducers

    @property
    def taken(self) -> float:
        """The samples that every reducer received and counted."""
        return min(self.brought, self.counted)


NOTHING_ATTESTED = AttestedWeight(0.0, 0.0, 0.0, 0.0)


def attested_weights(attestations: Collection[Attestation], senders: Iterable[str]) -> dict[str, AttestedWeight]:
    """Return what the reducers of a round attest of each of its senders (peer IDs) that named a weight to any of them.

    Each attestation has a line for each sender. All peers of a whole round hold the same ones, and so come to the same
    numbers, whatever they reduced.
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


def layout_of(peers: Iterable[PeerID], fractions: Iterable[float]) -> bytes:
    """Return the digest of a group's order and of its peers' shares of the reduction."""
    lines = [f"{peer.to_base58()} {float(fraction)!r}" for peer, fraction in zip(peers, fractions, strict=True)]
    return digest("\n".join(lines).encode())


def digest(content: bytes) -> bytes:
    """Return the digest of some bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def digest_of(wire: runtime_pb2.Tensor) -> bytes:
    """Return the digest of a part as it travels: its code, kind, shape and bytes."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    found.update(f"{wire.compression} {wire.dtype!r} {list(wire.size)}\n".encode())
    found.update(wire.buffer)
    return found.digest()


def digest_of_all(digests: Iterable[bytes]) -> bytes:
    """Return the one digest of many, in their order."""
    return digest(b"".join(digests))


def split_digests(joined: bytes) -> list[bytes]:
    """Return the digests that were joined to these bytes. Raises `ValueError` if that is no whole number of them."""
    if len(joined) % DIGEST_BYTES:
        raise ValueError(f"{len(joined)} bytes are no digests of {DIGEST_BYTES}")
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]
