"""The audit of a reduction: a peer keeps evidence of a round and draws conclusions about the others."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest
import torch
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2

from peer.reduction.audit import Audit, Drawn, Evidence, draw, equivocating
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import BLOCKWISE, decode, encode
from peer.reporting.suspicions import UNPROVEN

NONE, HALF = runtime_pb2.CompressionType.NONE, runtime_pb2.CompressionType.FLOAT16

PARTS = (2, 0, 3)  # of two reducers; the second peer reduces nothing


def evidence(weight: float = 4.0) -> Evidence:
    return Evidence(parts=PARTS, own=0, weight=weight, rng=random.Random(0))


async def messages(*parts: torch.Tensor) -> AsyncIterator[averaging_pb2.AveragingData]:
    for part in parts:
        yield averaging_pb2.AveragingData(tensor_part=encode(part, HALF), weight=4.0)


def test_every_part_of_another_is_drawn_as_often() -> None:
    """Nobody can know which of its answers will be looked at; one's own never are."""
    rng = random.Random(1)
    drawn = Counter(draw((2, 0, 3, 5), 3, rng) for _ in range(5_000))
    assert set(drawn) == {Drawn(0, 0), Drawn(0, 1), Drawn(2, 0), Drawn(2, 1), Drawn(2, 2)}
    assert min(drawn.values()) > 800
    assert draw((0, 7), 1, rng) is None


async def test_what_was_sent_is_kept_byte_by_byte() -> None:
    """What went over the line as it went, what this peer reduces itself as it is."""
    kept, third = evidence(), torch.full((3,), 1 / 3)
    assert [message.weight async for message in kept.keep_sent(2, messages(torch.zeros(3), third))] == [4.0, 4.0]
    kept.keep_own(third)
    assert kept.sent(Drawn(2, 1)) == encode(third, HALF)
    own = kept.sent(Drawn(0, 0))
    assert own is not None
    assert torch.equal(decode(own), third)
    for missing in (Drawn(2, 2), Drawn(1, 0), Drawn(9, 0)):
        assert kept.sent(missing) is None


async def test_who_weighs_nothing_keeps_nothing() -> None:
    """The keeper's zeros are in no average."""
    kept = evidence(weight=0.0)
    kept.keep_own(torch.ones(3))
    assert [message async for message in kept.keep_sent(2, messages(torch.zeros(3)))]
    assert (kept.sent(Drawn(0, 0)), kept.sent(Drawn(2, 0))) == (None, None)


def test_equal_answers_have_equal_digests() -> None:
    """And others other ones; the answer that was drawn is kept."""
    first, second = evidence(), evidence()
    for kept in (first, second):
        for drawn in [Drawn(reducer, part) for reducer, count in enumerate(PARTS) for part in range(count)]:
            average = torch.full((3,), float(drawn.part))
            kept.keep_returned(drawn, encode(average, HALF), average, weight=9.0)
    assert first.digests == second.digests
    assert first.digests[1] == b""
    assert first.drawn is not None
    assert first.returned is not None
    assert (first.returned.average[0], first.returned.weight) == (float(first.drawn.part), 9.0)
    second.keep_returned(Drawn(2, 3), encode(torch.ones(3), NONE), torch.ones(3))
    assert [a == b for a, b in zip(first.digests, second.digests, strict=True)] == [True, True, False]


PEERS = [PeerID(b"\x12\x20" + bytes([number]) * 32) for number in range(4)]

AUDITOR, SENDER, REDUCER, KEEPER = range(4)

NAMES = [peer.to_base58() for peer in PEERS]

WEIGHTS = (4.0, 8.0, 12.0, 0.0)

CODES = {"none": 0, "float16": int(runtime_pb2.CompressionType.FLOAT16), "8bit": BLOCKWISE.compression_type}

PART = Drawn(REDUCER, 0)

LENGTH = 1000


class AuditedPart:
    """One part of one reducer, and an auditor that hears of it whatever a test lets the others say."""

    def __init__(self, code: int, false: torch.Tensor | None = None, named: float = sum(WEIGHTS)) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = [torch.randn(LENGTH, generator=generator) for _ in range(3)]
        self.wires = [encode(part, 0 if index == REDUCER else code) for index, part in enumerate(self.inputs)]
        given = [WeightedPart(i, decode(wire), WEIGHTS[i]) for i, wire in enumerate(self.wires)]
        self.average = encode(weighted_mean(0, given) if false is None else false, code)
        evidence = Evidence(parts=(0, 0, 1, 0), own=AUDITOR, weight=WEIGHTS[AUDITOR], rng=random.Random(0))
        evidence._sent[REDUCER].append(self.wires[AUDITOR])
        evidence.keep_returned(PART, self.average, decode(self.average), named)
        self.audit = Audit(PEERS, PEERS[AUDITOR], evidence, weights={NAMES[SENDER]: WEIGHTS[SENDER]})

    def say(self, who: int, weight: float | None = None) -> Drawn | None:
        """One peer's statement; returns what it is asked for."""
        return self.audit.hear(PEERS[who], WEIGHTS[who] if weight is None else weight, self.audit.evidence.digests)

    def say_all(self) -> None:
        """All do what is asked of them."""
        for who in (SENDER, REDUCER, KEEPER):
            if self.say(who) is not None:
                self.audit.show(PEERS[who], self.wires[who])

    def named(self) -> list[str]:
        return [finding.peer_id for finding in self.audit.findings()]


@pytest.mark.parametrize("code", CODES)
def test_an_honest_reducer_is_named_by_nobody(code: str) -> None:
    """In each of the wire's codes, whose rounding is the same for both reducers."""
    honest = AuditedPart(CODES[code])
    assert not honest.audit.is_complete
    honest.say_all()
    assert honest.audit.is_complete
    assert honest.audit.findings() == []


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.99, 1.01])
def test_a_false_average_is_found(code: str, factor: float) -> None:
    """Another sign, nothing at all, one in a hundred: whatever is more than rounding."""
    true = decode(AuditedPart(CODES[code]).average)
    false = AuditedPart(CODES[code], false=true * factor)
    false.say_all()
    assert false.named() == [NAMES[REDUCER]]


def test_nobody_is_named_while_an_input_is_missing() -> None:
    """Who takes no part in an audit fails nothing, and proves nothing."""
    silent = AuditedPart(0, false=torch.zeros(LENGTH))
    silent.say(KEEPER)
    assert silent.say(SENDER) == PART
    silent.audit.show(PEERS[SENDER], silent.wires[SENDER])
    assert silent.audit.missing == [PEERS[REDUCER]]
    assert silent.named() == []


@pytest.mark.parametrize("weight", [9.0, 0.0, -1.0, math.nan, math.inf])
def test_a_sender_that_names_other_samples_than_it_brought_is_found(weight: float) -> None:
    """Its word would make an honest reducer's average look false."""
    framed = AuditedPart(0)
    assert framed.say(SENDER, weight) is None
    framed.say_all()
    assert [(found.peer_id, found.kind) for found in framed.audit.findings()] == [(NAMES[SENDER], "samples")]


def test_a_sender_that_shows_other_bytes_than_it_sent_brings_a_reducer_a_note_only() -> None:
    """Nothing ties what it shows to what it sent, so the finding is of the kind that proves nothing."""
    framed = AuditedPart(0)
    framed.wires[SENDER] = encode(-framed.inputs[SENDER], 0)
    framed.say_all()
    found = framed.audit.findings()
    assert [finding.peer_id for finding in found] == [NAMES[REDUCER]]
    assert {finding.kind for finding in found} <= UNPROVEN


def test_who_lies_about_its_averages_brings_a_reducer_a_note_only() -> None:
    """In a small group one liar is most of the others."""
    audit = Audit(PEERS[:3], PEERS[AUDITOR], Evidence(parts=(0, 0, 1), own=AUDITOR, weight=4.0, rng=random.Random(0)))
    audit.hear(PEERS[SENDER], 8.0, [b"", b"", Y])
    found = audit.findings()
    assert [finding.peer_id for finding in found] == [NAMES[REDUCER]]
    assert {finding.kind for finding in found} <= UNPROVEN


def test_statements_and_inputs_count_once_from_the_group_only() -> None:
    """In the form that was asked for; whatever else comes is ignored or refused."""
    part, stranger = AuditedPart(0), PeerID(b"\x12\x20" + b"s" * 32)
    digests = part.audit.evidence.digests
    assert part.audit.hear(stranger, 1.0, digests) is None
    assert part.audit.hear(PEERS[AUDITOR], 4.0, digests) is None
    assert part.audit.hear(PEERS[SENDER], 8.0, digests[:-1]) is None
    assert part.audit.hear(PEERS[SENDER], 8.0, [b"x"] * 4) is None
    part.audit.show(PEERS[SENDER], part.wires[SENDER])  # before it was asked
    assert PEERS[SENDER] in part.audit.missing
    assert part.say(SENDER) == PART
    for wrong in (torch.zeros(LENGTH + 1), torch.zeros(LENGTH, dtype=torch.float64)):
        with pytest.raises(ValueError, match="not asked for"):
            part.audit.show(PEERS[SENDER], encode(wrong, 0))
    assert part.say(SENDER) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_input_that_is_not_finite_is_refused(value: float) -> None:
    """Nobody could tell with it what the reducer should have made; the true input is still taken."""
    part = AuditedPart(0)
    part.say(SENDER)
    with pytest.raises(ValueError, match="not finite"):
        part.audit.show(PEERS[SENDER], encode(torch.full((LENGTH,), value), 0))
    assert PEERS[SENDER] in part.audit.missing
    part.audit.show(PEERS[SENDER], part.wires[SENDER])
    assert PEERS[SENDER] not in part.audit.missing


def test_inputs_of_an_honest_sender_cannot_be_replaced() -> None:
    """The first counts."""
    part = AuditedPart(0)
    part.say_all()
    part.audit.show(PEERS[SENDER], encode(torch.zeros(LENGTH), 0))
    assert part.named() == []


X, Y = b"x" * 32, b"y" * 32


@pytest.mark.parametrize(
    ("heard", "found"),
    [
        ({1: X, 3: X}, False),
        ({1: Y, 3: Y}, True),  # two got the same, and this peer something else
        ({1: Y, 3: X}, False),  # one lies, or was given something else: it will notice
        ({1: Y, 2: Y, 3: X}, False),  # the reducer has no say
        ({1: Y}, True),
        ({}, False),
    ],
)
def test_who_got_other_averages_than_most_finds_it_out(heard: Mapping[int, bytes], found: bool) -> None:
    """By the word of most others, so that no single liar frames a reducer in a group of four."""
    statements = {peer: (b"", b"", digest, b"") for peer, digest in heard.items()}
    assert equivocating(0, [b"", b"", X, b""], statements) == ([2] if found else [])
