"""The audit of a reduction: a peer keeps evidence of a round and draws conclusions about the others."""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import cache

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.proto import runtime_pb2

from auth.keys import RSA_BITS, RSA_EXPONENT, DeviceKey
from peer.reduction.attestation import AttestedRound, AttestedSender, SignedAttestation, digest_of, digest_of_all
from peer.reduction.audit import MOST_DIFFERING, Audit, Drawn, Evidence, Wanted, draw
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import BLOCKWISE, decode, encode

NONE, HALF = runtime_pb2.CompressionType.NONE, runtime_pb2.CompressionType.FLOAT16

PARTS = (2, 0, 3)  # of two reducers; the second peer reduces nothing

ROUND = AttestedRound("run", 0, 7, b"group", bytes(32))


def evidence(weight: float = 4.0) -> Evidence:
    return Evidence(ROUND, parts=PARTS, own=0, weight=weight, rng=random.Random(0))


@cache
def key_of(index: int) -> DeviceKey:
    """Each peer's own."""
    return DeviceKey(rsa.generate_private_key(public_exponent=RSA_EXPONENT, key_size=RSA_BITS))


def test_every_part_of_another_is_drawn_as_often() -> None:
    """Nobody can know which of its answers will be looked at; one's own never are."""
    rng = random.Random(1)
    drawn = Counter(draw((2, 0, 3, 5), 3, rng) for _ in range(5_000))
    assert set(drawn) == {Drawn(0, 0), Drawn(0, 1), Drawn(2, 0), Drawn(2, 1), Drawn(2, 2)}
    assert min(drawn.values()) > 800
    assert draw((0, 7), 1, rng) is None


def test_what_was_sent_is_kept_byte_by_byte() -> None:
    """What goes over the line as it goes, what this peer reduces itself as it is; with the digests of all of it."""
    kept, third = evidence(), torch.full((3,), 1 / 3)
    parts = [encode(part, HALF) for part in (torch.zeros(3), third, third)]
    digests = kept.commit(2, parts, 4.0)
    assert digests == [digest_of(part) for part in parts]
    assert kept.sent(Drawn(2, 1)) == (parts[1], digests)
    kept.keep_own(third)
    own = kept.sent(Drawn(0, 0))
    assert own is not None
    assert torch.equal(decode(own[0]), third)
    assert own[1] == [digest_of(own[0])]
    for missing in (Drawn(2, 3), Drawn(1, 0), Drawn(9, 0)):
        assert kept.sent(missing) is None
    assert (kept.inputs(2), kept.inputs(0)) == (digests, own[1])


def test_who_weighs_nothing_keeps_nothing() -> None:
    """The keeper's zeros are in no average."""
    kept = evidence(weight=0.0)
    kept.keep_own(torch.ones(3))
    assert kept.sent(Drawn(0, 0)) is None
    assert kept.inputs(0) == []


def test_a_peers_own_attestation_is_of_what_it_returned() -> None:
    """It is kept like those of others, and only if it is true; the answer that was drawn is kept."""
    kept = evidence(weight=0.0)
    for drawn in [Drawn(reducer, part) for reducer, count in enumerate(PARTS) for part in range(count)]:
        average = torch.full((3,), float(drawn.part))
        kept.keep_returned(drawn, encode(average, HALF), average, 0.0)
    nobody = AttestedSender.of_parts(0.0, [], [0.0, 0.0])
    mine = kept.attestation([nobody] * 3)
    signed = SignedAttestation.sign(key_of(0), mine)
    with pytest.raises(ValueError, match="not of 3 parts"):
        kept.take(2, signed, mine)
    kept.take(0, signed, mine)
    assert kept.digests == [signed.digest, b"", b""]
    returned = [digest_of(encode(torch.full((3,), float(part)), HALF)) for part in (0, 1)]
    assert mine.averages == digest_of_all(returned).hex()
    assert kept.drawn is not None
    assert kept.returned is not None
    assert kept.returned.average[0] == float(kept.drawn.part)


PEERS = ["ada", "bob", "carol", "dave"]

AUDITOR, SENDER, REDUCER, KEEPER = range(4)


WEIGHTS = (4.0, 8.0, 12.0, 0.0)

CODES = {
    "none": 0,
    "float16": int(runtime_pb2.CompressionType.FLOAT16),
    "8bit": BLOCKWISE.compression_type,
}

PART = Drawn(REDUCER, 0)

LENGTH = 1000


class AuditedPart:
    """One part of one reducer, and an auditor that hears of it whatever a test lets the others say."""

    def __init__(
        self,
        code: int,
        false: torch.Tensor | None = None,
        counted: tuple[float, ...] = WEIGHTS,
        are_means: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = [torch.randn(LENGTH, generator=generator) for _ in range(3)]
        self.wires = [encode(part, 0 if index == REDUCER else code) for index, part in enumerate(self.inputs)]
        self.digests = [[digest_of(wire)] for wire in self.wires]
        given = [WeightedPart(i, decode(wire), WEIGHTS[i]) for i, wire in enumerate(self.wires)]
        self.average = encode(weighted_mean(0, given) if false is None else false, code)
        self.evidence = Evidence(ROUND, parts=(0, 0, 1, 0), own=AUDITOR, weight=WEIGHTS[AUDITOR], rng=random.Random(0))
        self.evidence.commit(REDUCER, [self.wires[AUDITOR]], WEIGHTS[AUDITOR])
        self.evidence.keep_returned(PART, self.average, decode(self.average), sum(counted))
        lines = [self.line(index, counted[index]) for index in range(4)]
        self.attestation = self.evidence.attestation(lines).model_copy(
            update={"averages": digest_of_all([digest_of(self.average)]).hex()}
        )
        self.signed = SignedAttestation.sign(key_of(REDUCER), self.attestation)
        self.evidence.take(REDUCER, self.signed, self.attestation)
        self.audit = Audit(PEERS, PEERS[AUDITOR], self.evidence, key_of=self.key_of, are_means=are_means)

    def line(self, index: int, counted: float) -> AttestedSender:
        return AttestedSender.of_parts(WEIGHTS[index], self.digests[index] if WEIGHTS[index] else [], [counted])

    @staticmethod
    def key_of(peer: str) -> bytes:
        return key_of(PEERS.index(peer)).public_key

    def say(self, who: int, held: bytes | None = None) -> Wanted | None:
        """One peer's statement; returns what it is asked for."""
        return self.audit.hear(PEERS[who], [b"", b"", self.signed.digest if held is None else held, b""])

    def show(self, who: int, *attestations: bytes) -> None:
        wire, digests = (runtime_pb2.Tensor(), []) if who == KEEPER else (self.wires[who], self.digests[who])
        self.audit.show(PEERS[who], wire, digests, attestations)

    def say_all(self) -> None:
        """All do what is asked of them."""
        for who in (SENDER, REDUCER, KEEPER):
            if self.say(who) != Wanted(None):
                self.show(who)

    def named(self) -> list[tuple[str, str]]:
        return [(finding.peer_id, finding.kind) for finding in self.audit.findings()]


@pytest.mark.parametrize("code", CODES)
def test_an_honest_reducer_is_named_by_nobody(code: str) -> None:
    """In each of the wire's codes, whose rounding is the same for both reducers."""
    honest = AuditedPart(CODES[code])
    assert not honest.audit.is_complete
    honest.say_all()
    assert honest.audit.is_complete
    assert honest.audit.missing == []
    assert honest.audit.findings() == []


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.99, 1.01])
def test_a_false_average_is_found(code: str, factor: float) -> None:
    """Another sign, nothing at all, one in a hundred: whatever is more than rounding."""
    true = decode(AuditedPart(CODES[code]).average)
    false = AuditedPart(CODES[code], false=true * factor)
    false.say_all()
    assert false.named() == [(PEERS[REDUCER], "reduction")]


def test_weights_that_the_reducer_has_attested_must_be_those_in_the_average() -> None:
    """It cannot count one sender and say that it counted another."""
    false = AuditedPart(0, counted=(4.0, 2.0, 12.0, 0.0))
    false.say_all()
    assert false.named() == [(PEERS[REDUCER], "reduction")]


def test_a_sender_that_counts_nothing_is_not_asked() -> None:
    """The average follows from the others' inputs alone."""
    generator = torch.Generator().manual_seed(7)
    own, _, reducers = [torch.randn(LENGTH, generator=generator) for _ in range(3)]
    mean = weighted_mean(0, [WeightedPart(0, own, 4.0), WeightedPart(2, reducers, 12.0)])
    part = AuditedPart(0, false=mean, counted=(4.0, 0.0, 12.0, 0.0))
    assert part.say(SENDER) == Wanted(None)
    part.say_all()
    assert part.audit.is_complete
    assert part.named() == []


def test_averages_that_are_no_means_are_not_combined_again() -> None:
    """Who holds another attestation is asked for it all the same."""
    clipped = AuditedPart(0, false=torch.zeros(LENGTH), are_means=False)
    assert clipped.say(SENDER) == Wanted(None)
    assert clipped.say(KEEPER, b"x" * 32) == Wanted(None, (REDUCER,))
    assert clipped.say(REDUCER) == Wanted(None)
    assert clipped.named() == []


def test_nobody_is_named_while_an_input_is_missing() -> None:
    """Who takes no part in an audit fails nothing, and proves nothing."""
    silent = AuditedPart(0, false=torch.zeros(LENGTH))
    assert silent.say(KEEPER) == Wanted(None)
    assert silent.say(SENDER) == Wanted(PART)
    silent.show(SENDER)
    assert silent.audit.missing == [PEERS[REDUCER]]
    assert silent.named() == []
    silent.say(REDUCER)
    silent.audit.show(PEERS[REDUCER], runtime_pb2.Tensor(), [])  # as good as nothing
    assert silent.audit.is_complete
    assert silent.named() == []


@pytest.mark.parametrize("who", [SENDER, REDUCER])
def test_who_shows_other_bytes_than_it_sent_is_named_and_nobody_else(who: int) -> None:
    """With its own digests, with those of what it shows, or with too few: its line in the attestation says others."""
    for digests in (None, [digest_of(encode(torch.zeros(LENGTH), 0))], [b"x" * 32, b"y" * 32]):
        framing = AuditedPart(0)
        framing.wires[who] = encode(torch.zeros(LENGTH), 0)
        framing.digests[who] = digests or framing.digests[who]
        framing.say_all()
        assert framing.named() == [(PEERS[who], "shown")]


def test_who_does_not_hold_the_same_attestation_is_not_believed() -> None:
    """A sender that has not confirmed its line neither frames the reducer nor is framed by it."""
    unknown = AuditedPart(0)
    assert unknown.say(SENDER, b"x" * 32) == Wanted(None, (REDUCER,))
    unknown.wires[SENDER] = encode(torch.zeros(LENGTH), 0)
    unknown.show(SENDER, b"no attestation")
    unknown.say(KEEPER)
    unknown.say(REDUCER)
    unknown.show(REDUCER)
    assert unknown.audit.is_complete
    assert unknown.audit.missing == [PEERS[SENDER]]
    assert unknown.named() == []


def test_a_reducer_that_attests_two_things_of_one_round_is_named() -> None:
    """Once, however many show that; by its own signatures."""
    part = AuditedPart(0)
    other = part.attestation.model_copy(update={"averages": "00" * 32})
    content = SignedAttestation.sign(key_of(REDUCER), other).content
    for who in (SENDER, KEEPER):
        assert part.say(who, SignedAttestation(content).digest) == Wanted(None, (REDUCER,))
        part.show(who, content)
    assert part.named() == [(PEERS[REDUCER], "reduction")]


def test_other_attestations_prove_nothing() -> None:
    """Of another round, in another's name, the very same one, or none at all."""
    part = AuditedPart(0)
    other = part.attestation.model_copy(update={"averages": "00" * 32})
    for content in (
        SignedAttestation.sign(key_of(REDUCER), other.model_copy(update={"step": 6})).content,
        SignedAttestation.sign(key_of(SENDER), other).content,
        SignedAttestation.sign(key_of(REDUCER), part.attestation).content,
        b"",
    ):
        part = AuditedPart(0)
        part.say(SENDER, b"x" * 32)
        part.show(SENDER, content)
        assert part.named() == []


def test_few_attestations_are_asked_for() -> None:
    """Each costs a check of a signature."""
    many = AuditedPart(0)
    peers = [*PEERS, *(f"peer {number}" for number in range(4, 9))]
    many.evidence._parts = (1,) * 9
    many.evidence.attestations.update(dict.fromkeys(range(9), many.evidence.attestations[REDUCER]))
    audit = Audit(peers, peers[AUDITOR], many.evidence, key_of=many.key_of)
    wanted = audit.hear(peers[SENDER], [b"x" * 32] * 9)
    assert wanted is not None
    assert wanted.attestations == tuple(range(MOST_DIFFERING))


def test_statements_and_inputs_count_once_from_the_group_only() -> None:
    """In the form that was asked for; whatever else comes is ignored."""
    part, stranger = AuditedPart(0), "stranger"
    digests = part.evidence.digests
    assert part.audit.hear(stranger, digests) is None
    assert part.audit.hear(PEERS[AUDITOR], digests) is None
    assert part.audit.hear(PEERS[SENDER], digests[:-1]) is None
    assert part.audit.hear(PEERS[SENDER], [b"x"] * 4) is None
    part.show(SENDER)  # before it was asked
    assert PEERS[SENDER] in part.audit.missing
    assert part.say(SENDER) == Wanted(PART)
    assert part.say(SENDER) is None


@pytest.mark.parametrize(
    "wire",
    [
        encode(torch.zeros(LENGTH + 1), 0),
        encode(torch.zeros(LENGTH, dtype=torch.float64), 0),
        encode(torch.full((LENGTH,), math.nan), 0),
        runtime_pb2.Tensor(buffer=b"no part", dtype="float32", size=[LENGTH]),
    ],
)
def test_what_no_honest_reducer_combines_is_no_input(wire: runtime_pb2.Tensor) -> None:
    """An accomplice of the reducer may have sent it: nobody could tell what follows from that."""
    part = AuditedPart(0)
    part.wires[SENDER], part.digests[SENDER] = wire, [digest_of(wire)]
    part.audit._lines[SENDER] = part.line(SENDER, WEIGHTS[SENDER])
    part.say_all()
    assert part.audit.missing == [PEERS[SENDER]]
    assert part.named() == []


def test_inputs_of_an_honest_sender_cannot_be_replaced() -> None:
    """The first counts."""
    part = AuditedPart(0)
    part.say_all()
    part.audit.show(PEERS[SENDER], encode(torch.zeros(LENGTH), 0), [b"x" * 32])
    assert part.named() == []
