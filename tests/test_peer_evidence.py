"""What a peer keeps of a round."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator

import torch
from hivemind.proto import averaging_pb2, runtime_pb2

from peer.compression import decode, encode
from peer.evidence import Drawn, Evidence, draw

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
