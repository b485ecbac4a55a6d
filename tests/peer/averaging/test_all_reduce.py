"""What a round leaves behind; whole rounds are in tests/system."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.compression import NoCompression, serialize_torch_tensor
from hivemind.p2p import PeerID, ServicerBase
from hivemind.proto import averaging_pb2, runtime_pb2

from peer.averaging.all_reduce import ATTESTED, Attesting, ExactAllReduce, FalseAverage, take_averages
from peer.config.training import Averaging
from peer.network.traffic import Traffic
from peer.reduction.attestation import (
    Attestation,
    AttestedRound,
    AttestedSender,
    SignedAttestation,
    digest,
    digest_of,
    digest_of_all,
    split_digests,
)
from peer.reduction.audit import Drawn
from peer.reduction.combine import RefusedPart
from peer.reduction.compression import HALF_BYTES, decode, encode
from peer.reduction.findings import Finding, Findings
from peer.reduction.guard import Past, ReductionGuard, RoundGuard
from peer.reduction.shared_caps import CapsOfRound
from peer.reduction.top_k import TOP_K
from tests.support.receipts import key_of
from tests.support.waiting import PATIENCE_S

TRAINER, AUXILIARY = PeerID(b"\x12\x20" + b"t" * 32), PeerID(b"\x12\x20" + b"a" * 32)
GROUP = b"group"
LAYOUT = digest(b"order and shares")
ROUND = AttestedRound("run", 0, 7, GROUP, LAYOUT)


def round_of_two(
    cap: float = math.inf,
    *,
    parts: int = 1,
    reducer: PeerID = TRAINER,
    guard: RoundGuard | None = None,
    unawaited: Collection[str] = (),
    sender_timeout: float = PATIENCE_S,
    reducer_timeout: float = 2 * PATIENCE_S,
    is_sparse: bool = False,
) -> ExactAllReduce:
    """A trainer's (0) side of its round with an auxiliary peer (1), without a network; one of them reduces all."""

    async def may_contribute(peer: PeerID) -> bool:
        return peer == TRAINER

    return ExactAllReduce(
        p2p=SimpleNamespace(peer_id=TRAINER),
        servicer_type=ServicerBase,
        prefix=None,
        tensors=[torch.ones(3)] * parts,
        weight=4.0,
        ordered_peer_ids=[TRAINER, AUXILIARY],
        peer_fractions=[float(peer == reducer) for peer in (TRAINER, AUXILIARY)],
        traffic=Traffic(),
        note=lambda _finding: None,
        limits=[math.inf] * parts,
        accused=(),
        may_contribute=may_contribute,
        attesting=Attesting(ROUND, key_of("ada"), lambda _peer: key_of("ada").public_key),
        guard=guard or RoundGuard(CapsOfRound({}, cap), Findings(), Averaging(), Past(), set(), {}),
        unawaited=unawaited,
        sender_timeout=sender_timeout,
        reducer_timeout=reducer_timeout,
        compression=TOP_K if is_sparse else NoCompression(),
    )


def found(reducing: ExactAllReduce) -> list[tuple[str, str]]:
    """Who was banned for what it sent, and why."""
    return [(finding.peer_id, finding.detail) for finding in reducing._guard._findings.take()]


def committed(*messages: averaging_pb2.AveragingData) -> averaging_pb2.AveragingData:
    """What a sender of these parts says before the first."""
    return opening(messages[0].weight, b"".join(digest_of(message.tensor_part) for message in messages))


def opening(weight: float = 0.0, digests: bytes = b"") -> averaging_pb2.AveragingData:
    """The first message of a sender; all that one without a weight sends."""
    wire, code = runtime_pb2.Tensor(buffer=digests), averaging_pb2.PART_FOR_AVERAGING
    return averaging_pb2.AveragingData(code=code, group_id=GROUP, peer_id=LAYOUT, tensor_part=wire, weight=weight)


async def weightless(*more: averaging_pb2.AveragingData) -> AsyncIterator[averaging_pb2.AveragingData]:
    """The stream of a sender that names no weight, and sends these messages after that."""
    for message in (opening(), *more):
        yield message


async def stream_of(*messages: averaging_pb2.AveragingData) -> AsyncIterator[averaging_pb2.AveragingData]:
    """A sender's stream of these parts."""
    for message in (committed(*messages), *messages):
        yield message


def sent(part: torch.Tensor, weight: float) -> AsyncIterator[averaging_pb2.AveragingData]:
    """The stream of a sender of one part."""
    return stream_of(written(part, weight))


async def anybody(_peer: PeerID) -> bool:
    """Let everybody contribute."""
    return True


class EndedRound:
    """A round that brings these averages, of which so many values are missing."""

    def __init__(self, averages: list[torch.Tensor], missing_values: int = 0, least_weight: float = 1.0) -> None:
        self.averages, self.missing_values, self.least_weight = averages, missing_values, least_weight

    async def __aiter__(self) -> AsyncIterator[torch.Tensor]:
        for average in self.averages:
            yield average

    def require_plausible(self, own: Sequence[torch.Tensor]) -> None:
        """Find nothing too large."""


async def test_averages_replace_a_peers_own_numbers() -> None:
    """After a round all numbers are the averages."""
    own, averages = [torch.ones(3), torch.ones(2)], [torch.full((3,), 5.0), torch.full((2,), 6.0)]
    await take_averages(EndedRound(averages), own)  # type: ignore[arg-type]
    assert all(torch.equal(ours, average) for ours, average in zip(own, averages, strict=True))


@pytest.mark.parametrize(
    ("last", "missing_values", "weight", "named"),
    [
        (6.0, 2, 1.0, "2 values came back unaveraged"),
        (float("nan"), 0, 1.0, "not finite"),
        (6.0, 0, 0.0, "nobody's samples"),
        (6.0, 0, float("inf"), "not finite"),
    ],
)
async def test_a_failed_round_leaves_a_peers_own_numbers(
    last: float, missing_values: int, weight: float, named: str
) -> None:
    """The next round begins from the peer's own numbers, not from averages or gaps of one that failed."""
    own = [torch.ones(3), torch.ones(2)]
    ended = EndedRound([torch.full((3,), 5.0), torch.full((2,), last)], missing_values, weight)
    with pytest.raises(AllreduceException, match=named):
        await take_averages(ended, own)  # type: ignore[arg-type]
    assert torch.equal(own[0], torch.ones(3))
    assert torch.equal(own[1], torch.ones(2))


def test_an_average_that_is_far_too_large_fails_the_round_once() -> None:
    """Who returned it is named; whoever returns so much after that shows how large the gradients are."""
    found: list[Finding] = []
    reducing = ExactAllReduce.__new__(ExactAllReduce)
    reducing._note, reducing._limits, reducing._accused = found.append, [20.0], []
    reducing.peer_id, reducing.weight, reducing._sizes = AUXILIARY, 1.0, {}
    own = [torch.full((4,), 0.01)]
    reducing._measure(TRAINER, 0, torch.full((4,), 10.0))
    reducing.require_plausible(own)
    reducing._measure(TRAINER, 0, torch.full((4,), 11.0))
    with pytest.raises(AllreduceException, match="as large as could be"):
        reducing.require_plausible(own)
    detail = "returned an average 1.1 times as large as could be beside others of its round"
    assert found == [Finding(TRAINER.to_base58(), "average", detail)]
    reducing.require_plausible([torch.full((4,), 0.1)])  # this peer's own gradient has grown, too
    reducing._accused = [TRAINER.to_base58()]
    reducing.require_plausible(own)


@pytest.mark.parametrize(("values", "weight"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_who_returns_no_numbers_is_named(values: float, weight: float) -> None:
    """The round fails before anything is taken from it."""
    found: list[Finding] = []
    reducing = ExactAllReduce.__new__(ExactAllReduce)
    reducing._note, reducing._answer_code = found.append, NoCompression()
    wire = serialize_torch_tensor(torch.full((3,), values))
    message = averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=weight)
    with pytest.raises(AllreduceException, match="not finite"):
        reducing._averaged_part(TRAINER, message)
    assert [(finding.peer_id, finding.kind) for finding in found] == [(TRAINER.to_base58(), "average")]


@pytest.mark.parametrize("is_sparse", [False, True])
async def test_a_reducer_may_not_choose_a_code_that_loses_most_of_an_average(is_sparse: bool) -> None:
    """The code of senders' parts is for these, and half bytes are for runs whose reducers all use them."""
    reducing = round_of_two(is_sparse=is_sparse)
    for code in (TOP_K, HALF_BYTES):
        wire = encode(torch.ones(3), code.compression_type)
        message = averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=1.0)
        if is_sparse and code is HALF_BYTES:
            average, _ = reducing._averaged_part(TRAINER, message)
            assert average is not None
            assert torch.equal(average, torch.ones(3))
        else:
            with pytest.raises(ValueError, match="not taken"):
                reducing._averaged_part(TRAINER, message)


@pytest.mark.parametrize("weight", [1e9, -1.0, 0.5, float("nan")])
async def test_who_may_not_contribute_changes_no_average(weight: float) -> None:
    """Parts with a weight, of an auxiliary peer, are not added: it is banned, and a trainer's average comes at once."""
    reducing = round_of_two()
    trainers = reducing._accumulate_parts_streaming(sent(torch.ones(3), 4.0), 0)
    first = asyncio.ensure_future(anext(trainers))
    with pytest.raises(AllreduceException, match="may not contribute"):
        await anext(reducing._accumulate_parts_streaming(sent(torch.full((3,), 1e6), weight), 1))
    answer = await asyncio.wait_for(first, PATIENCE_S)
    assert (answer.weight, reducing.weights_by_peer) == (4.0, {TRAINER.to_base58(): 4.0})
    assert torch.equal(decode(answer.tensor_part), torch.ones(3))
    await trainers.aclose()


async def test_who_may_not_contribute_takes_part_without_a_part() -> None:
    """It receives each average as soon as there is one, then the attestation; it is neither late nor silent."""

    async def racing(reducing: ExactAllReduce) -> AsyncIterator[averaging_pb2.AveragingData]:
        own = asyncio.ensure_future(reducing._reduce_own_parts(0))
        async for answer in reducing.rpc_aggregate_part(weightless(), SimpleNamespace(remote_id=AUXILIARY)):
            yield answer
        await own

    reducing = round_of_two(parts=2)
    answers = [answer async for answer in racing(reducing)]
    assert [answer.code for answer in answers] == [averaging_pb2.AVERAGED_PART] * 2 + [ATTESTED]
    assert [answer.weight for answer in answers[:2]] == [4.0] * 2
    assert (reducing.received_bytes, reducing.silent, reducing.late) == (0, set(), set())


async def test_a_second_stream_gives_no_weight_to_who_named_none() -> None:
    """The sender is refused, and receives nothing more on the first stream either."""
    reducing = round_of_two(parts=2)
    reducing._may_contribute = anybody
    first = reducing._accumulate_parts_streaming(weightless(), 1)
    waiting = asyncio.ensure_future(anext(first))
    while 1 not in reducing._weights:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)
    with pytest.raises(RefusedPart, match="twice"):
        await anext(reducing._accumulate_parts_streaming(sent(torch.zeros(3), 4.0), 1))
    await reducing._reduce_own_parts(0)
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert reducing.least_weight == 4.0
    assert reducing.banned_senders == {AUXILIARY}


async def test_two_streams_at_once_give_one_sender_no_second_weight() -> None:
    """Nor while its role is still being asked for the first of them."""
    reducing, asked, known = round_of_two(parts=2), asyncio.Event(), asyncio.Event()

    async def slowly(_peer: PeerID) -> bool:
        asked.set()
        await known.wait()
        return True

    reducing._may_contribute = slowly
    parts = stream_of(*[written(torch.zeros(3), 4.0)] * 2)
    weighted = asyncio.ensure_future(anext(reducing._accumulate_parts_streaming(parts, 1)))
    await asked.wait()
    with pytest.raises(RefusedPart, match="twice"):
        await anext(reducing._accumulate_parts_streaming(weightless(), 1))
    known.set()
    await reducing._reduce_own_parts(0)
    await asyncio.wait({weighted})
    assert (reducing.least_weight, reducing.counted_by_peer.keys()) == (4.0, {TRAINER.to_base58()})


async def test_a_reader_that_stops_is_cut_off() -> None:
    """Its stream would hold the round's memory for as long as it likes."""
    reducing = round_of_two(parts=2, sender_timeout=0.005, reducer_timeout=0.01)

    async def read_one() -> None:
        async for _ in reducing.rpc_aggregate_part(weightless(), SimpleNamespace(remote_id=AUXILIARY)):
            await asyncio.Event().wait()

    reader = asyncio.ensure_future(read_one())
    await reducing._reduce_own_parts(0)
    await asyncio.wait({reader})
    assert reader.cancelled()


async def test_who_names_no_weight_and_never_ends_its_stream_is_cut_off() -> None:
    """The average comes without it at once, so it is not silent; it receives none after its time."""

    async def never_ends() -> AsyncIterator[averaging_pb2.AveragingData]:
        yield opening()
        await asyncio.Event().wait()

    reducing = round_of_two(sender_timeout=0.01)
    answers = reducing.rpc_aggregate_part(never_ends(), SimpleNamespace(remote_id=AUXILIARY))
    assert [answer.code async for answer in answers] == [averaging_pb2.INTERNAL_ERROR]
    await reducing._reduce_own_parts(0)
    assert reducing.least_weight == 4.0
    assert (reducing.banned_senders, reducing.silent) == ({AUXILIARY}, set())


async def test_averages_that_never_come_are_not_waited_for() -> None:
    """Where the round fails here, the stream of a sender without parts ends with it."""
    reducing = round_of_two(parts=2)
    answers = reducing._accumulate_parts_streaming(weightless(), 1)
    waiting = asyncio.ensure_future(anext(answers))
    while 1 not in reducing._weights:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)
    reducing.tensor_part_reducer.finalize()
    with pytest.raises(AllreduceException):
        await reducing._reduce_own_parts(0)
    await asyncio.wait({waiting})
    assert waiting.cancelled()


def written(part: torch.Tensor, weight: float = 4.0) -> averaging_pb2.AveragingData:
    """One part on the wire."""
    wire = serialize_torch_tensor(part)
    return averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, tensor_part=wire, weight=weight)


def garbled() -> averaging_pb2.AveragingData:
    """A part of which the last bytes are missing."""
    message = written(torch.ones(3))
    message.tensor_part.buffer = message.tensor_part.buffer[:-2]
    return message


def sparse_with_an_index_twice() -> averaging_pb2.AveragingData:
    """Two values of one place."""
    message = written(torch.ones(130))
    message.tensor_part.CopyFrom(encode(torch.ones(130), TOP_K.compression_type))
    message.tensor_part.buffer = message.tensor_part.buffer[:8] + bytes(6) + message.tensor_part.buffer[14:]
    return message


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (written(torch.tensor([1.0, math.nan, 1.0])), "not finite"),
        (written(torch.tensor([1.0, math.inf, 1.0])), "not finite"),
        (written(torch.ones(3), weight=math.nan), "weight nan"),
        (written(torch.ones(3), weight=math.inf), "weight inf"),
        (written(torch.ones(3), weight=-1.0), "weight -1"),
        (written(torch.ones(3, dtype=torch.float64)), "not asked for"),
        (written(torch.ones(3, dtype=torch.int64)), "not asked for"),
        (written(torch.ones(2)), "not asked for"),
        (written(torch.ones(1)), "not asked for"),  # would be added to all three values
        (written(torch.ones(())), "not asked for"),
        (garbled(), "no part"),
        (sparse_with_an_index_twice(), "no part"),
    ],
)
async def test_who_sends_what_is_no_part_is_banned_and_named(message: averaging_pb2.AveragingData, named: str) -> None:
    """The others' average comes at once, without that sender, and the trainer is told who it was."""
    reducing = round_of_two(is_sparse=message.tensor_part.compression == TOP_K.compression_type)
    reducing._may_contribute = anybody
    honest = reducing._accumulate_parts_streaming(sent(torch.ones(3), 2.0), 1)
    first = asyncio.ensure_future(anext(honest))
    with pytest.raises(RefusedPart, match=named):
        await anext(reducing._accumulate_parts_streaming(stream_of(message), 0))
    answer = await asyncio.wait_for(first, PATIENCE_S)
    assert (answer.weight, reducing.banned_senders) == (2.0, {TRAINER})
    ((peer_id, reason),) = found(reducing)
    assert peer_id == TRAINER.to_base58()
    assert named in reason
    await honest.aclose()


async def test_one_weight_for_all_parts() -> None:
    """Who names another weight with a later part is banned."""
    reducing = round_of_two(parts=2)
    reducing.tensor_part_reducer.on_sender_failed(1)

    parts = [written(torch.ones(3), weight) for weight in (4.0, 5.0)]
    stream = reducing._accumulate_parts_streaming(stream_of(*parts), 0)
    await anext(stream)
    with pytest.raises(RefusedPart, match="the weights 4 and 5"):
        await anext(stream)


async def test_a_part_more_than_there_are_is_refused() -> None:
    """Although there are digests of all others."""
    reducing, part = round_of_two(), written(torch.ones(3), 2.0)
    reducing._may_contribute = anybody

    async def sends() -> AsyncIterator[averaging_pb2.AveragingData]:
        for message in (committed(part), part, part):
            yield message

    own = asyncio.ensure_future(reducing._reduce_own_parts(0))
    with pytest.raises(RefusedPart, match="part 1 "):
        _ = [answer async for answer in reducing._accumulate_parts_streaming(sends(), 1)]
    await own


async def test_weights_count_up_to_their_cap() -> None:
    """What is above it changes neither the average nor the weight behind it; what was named is known all the same."""
    reducing = round_of_two()
    reducing._guard._caps = CapsOfRound({}, 8.0)
    reducing._may_contribute = anybody
    streams = [
        reducing._accumulate_parts_streaming(sent(torch.zeros(3), 8.0), 0),
        reducing._accumulate_parts_streaming(sent(torch.ones(3), 1e12), 1),
    ]
    answers = await asyncio.gather(*(anext(stream) for stream in streams))
    assert torch.equal(decode(answers[0].tensor_part), torch.full((3,), 0.5))
    assert answers[0].weight == 16.0
    assert reducing.weights_by_peer[AUXILIARY.to_base58()] == 1e12
    assert set(reducing.counted_by_peer.values()) == {8.0}  # of which receipts tell
    for stream in streams:
        await stream.aclose()


async def test_who_was_refused_in_one_half_is_out_of_the_next() -> None:
    """The others' average of the second half comes without waiting for it."""
    guard = ReductionGuard()
    first = round_of_two(guard=guard.begin(GROUP, b"first half"))
    with pytest.raises(RefusedPart):
        await anext(first._accumulate_parts_streaming(weightless(written(torch.ones(3), 0.0)), 1))
    assert (first.banned_senders, first.silent) == ({AUXILIARY}, set())  # it is named for what it sent
    second = round_of_two(guard=guard.begin(GROUP, b"second half"))
    assert second.banned_senders == {AUXILIARY}
    stream = second._accumulate_parts_streaming(sent(torch.ones(3), 4.0), 0)
    assert (await asyncio.wait_for(anext(stream), PATIENCE_S)).weight == 4.0
    await stream.aclose()


async def test_a_client_has_its_first_average_before_its_last_part_is_sent() -> None:
    """Its line carries both at once; hivemind would keep all averages back until its stream has ended."""
    reducing, is_answered, part = round_of_two(parts=2), asyncio.Event(), written(torch.ones(3), 2.0)
    reducing._may_contribute = anybody

    async def sends() -> AsyncIterator[averaging_pb2.AveragingData]:
        yield committed(part, part)
        yield part
        await is_answered.wait()
        yield part

    own = asyncio.ensure_future(reducing._reduce_own_parts(0))
    answers = reducing.rpc_aggregate_part(sends(), SimpleNamespace(remote_id=AUXILIARY))
    assert torch.equal(decode((await asyncio.wait_for(anext(answers), PATIENCE_S)).tensor_part), torch.ones(3))
    is_answered.set()
    assert [answer.code async for answer in answers] == [averaging_pb2.AVERAGED_PART, ATTESTED]
    await own
    taken = [average async for average in reducing.tensor_part_container.iterate_output_tensors()]
    assert [average.tolist() for average in taken] == [[1.0] * 3] * 2  # what the client got, the reducer has


async def test_too_few_parts_of_a_reducer_fail_the_round() -> None:
    """Nobody waits for the others: their values are missing. What was sent is kept, to be shown to others."""
    received: list[averaging_pb2.AveragingData] = []

    async def returned(
        parts: AsyncIterator[averaging_pb2.AveragingData],
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        received.extend([message async for message in parts])
        average = serialize_torch_tensor(torch.ones(3))

        async def answers() -> AsyncIterator[averaging_pb2.AveragingData]:
            yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=average, weight=4.0)

        return answers()

    taking = round_of_two(parts=2, reducer=AUXILIARY)
    taking._get_peer_stub = lambda _peer: SimpleNamespace(rpc_aggregate_part=returned)
    with pytest.raises(AllreduceException, match="returned 1 of 2 parts, and no attestation"):
        await taking._communicate_with_peer(AUXILIARY)
    assert taking.missing_values == 3
    assert (taking.missed, taking.other_reducers) == ({AUXILIARY.to_base58()}, {AUXILIARY.to_base58()})
    named, *parts = received
    digests = split_digests(named.tensor_part.buffer)
    kept = [taking.evidence.sent(Drawn(1, part)) for part in range(3)]
    assert kept == [*((message.tensor_part, digests) for message in parts), None]
    assert digests == [digest_of(message.tensor_part) for message in parts]
    assert len(parts) == 2


def changed(message: averaging_pb2.AveragingData, **fields: Any) -> averaging_pb2.AveragingData:
    """The same message but for these fields of its part."""
    other = averaging_pb2.AveragingData.FromString(message.SerializeToString())
    for field, value in fields.items():
        setattr(other.tensor_part, field, value)
    return other


@pytest.mark.parametrize(
    ("named", "part", "reason"),
    [
        (committed(written(torch.ones(3))), written(torch.zeros(3)), "another digest"),
        (changed(committed(written(torch.ones(3))), buffer=b"x" * 31), written(torch.ones(3)), "no digests"),
        (changed(committed(written(torch.ones(3))), buffer=b""), written(torch.ones(3)), "digests of 0 parts"),
        (changed(committed(written(torch.ones(3))), buffer=b"x" * 64), written(torch.ones(3)), "digests of 2 parts"),
    ],
)
async def test_who_sends_what_it_has_not_named_is_banned_and_named(
    named: averaging_pb2.AveragingData, part: averaging_pb2.AveragingData, reason: str
) -> None:
    """No part is averaged that its sender could disown after the round."""

    async def sends() -> AsyncIterator[averaging_pb2.AveragingData]:
        yield named
        yield part

    reducing = round_of_two()
    with pytest.raises(RefusedPart, match=reason):
        await anext(reducing._accumulate_parts_streaming(sends(), 0))
    assert reducing.banned_senders == {TRAINER}
    assert [peer for peer, _ in found(reducing)] == [TRAINER.to_base58()]


async def test_who_was_told_another_order_is_banned_and_not_named() -> None:
    """A leader can do that to an honest sender, whose parts would be other values than are asked for."""

    async def sends() -> AsyncIterator[averaging_pb2.AveragingData]:
        message = committed(written(torch.ones(3)))
        message.peer_id = digest(b"another order")
        yield message

    reducing = round_of_two()
    with pytest.raises(AllreduceException, match="another order"):
        await anext(reducing._accumulate_parts_streaming(sends(), 0))
    assert reducing.banned_senders == {TRAINER}
    assert found(reducing) == []


async def test_digests_are_named_once() -> None:
    """A second stream of the same sender changes nothing of what the first is bound to."""
    reducing = round_of_two()
    first = reducing._accumulate_parts_streaming(sent(torch.ones(3), 4.0), 0)
    reducing.tensor_part_reducer.on_sender_failed(1)
    await anext(first)
    bound = dict(reducing._inputs)
    with pytest.raises(RefusedPart, match="twice"):
        await anext(reducing._accumulate_parts_streaming(sent(torch.zeros(3), 4.0), 0))
    assert reducing._inputs == bound
    await first.aclose()


async def test_a_reducer_attests_what_it_has_combined() -> None:
    """To all the same: every sender's digests and weights, also of one that was banned on the way."""
    reducing = round_of_two(cap=3.0, parts=2)
    reducing._may_contribute = anybody
    parts = [written(torch.full((3,), value), 8.0) for value in (1.0, 2.0)]

    async def one_only() -> AsyncIterator[averaging_pb2.AveragingData]:
        yield committed(*parts)
        yield parts[0]

    own = asyncio.ensure_future(reducing._reduce_own_parts(0))
    answers = [answer async for answer in reducing._accumulate_parts_streaming(one_only(), 1)]
    await own
    assert [answer.weight for answer in answers] == [6.0]
    signed = (await reducing._attestation).content
    opened = SignedAttestation(signed).opened(key_of("ada").public_key)
    lines = [(line.weight, line.counted) for line in opened.senders]
    assert lines == [(4.0, ((2, 3.0),)), (8.0, ((1, 3.0), (1, 0.0)))]
    assert opened.senders[1].inputs == digest_of_all([digest_of(part.tensor_part) for part in parts]).hex()
    assert opened.senders[0].inputs == digest_of_all(reducing.evidence.inputs(0)).hex()
    assert reducing.evidence.attestations[0][1] == opened


async def test_nobody_waits_for_the_attestation_of_a_round_that_has_failed() -> None:
    """Neither where it fails by itself, nor where the peer gives it up, nor where it ends before it has begun."""
    reducing = round_of_two()
    own = asyncio.ensure_future(reducing._reduce_own_parts(0))
    await asyncio.sleep(0)
    own.cancel()
    with pytest.raises(asyncio.CancelledError):
        await own
    with pytest.raises(AllreduceException, match="failed here"):
        await reducing._attestation
    reducing = round_of_two()
    reducing.finalize(cancel=True)
    with pytest.raises(AllreduceException, match="failed here"):
        await reducing._attestation
    assert all(answer.cancelled() for answer in reducing._answers)


ATTESTATIONS: dict[str, Callable[[Attestation], Attestation]] = {
    "the truth": lambda attestation: attestation,
    "of other averages": lambda attestation: attestation.model_copy(update={"averages": "00" * 32}),
    "of other inputs": lambda attestation: attestation.model_copy(update={"senders": attestation.senders[::-1]}),
    "of another group": lambda attestation: attestation.model_copy(update={"group": b"another".hex()}),
    "of another order": lambda attestation: attestation.model_copy(update={"layout": "00" * 32}),
    "of another step": lambda attestation: attestation.model_copy(update={"step": 8}),
}


@pytest.mark.parametrize(
    ("said", "reason", "is_named"),
    [
        ("the truth", None, False),
        ("of other averages", "other averages", True),
        ("of other inputs", "other inputs", True),
        ("of another group", "another group", True),
        ("of another step", "led to another step", False),  # a leader can do that to an honest reducer
        ("of another order", "led to another step", False),
        ("nothing", "no attestation", False),  # and so can a line that breaks
        ("nonsense", "attested its averages falsely", True),
    ],
)
async def test_averages_are_taken_with_a_true_attestation_only(said: str, reason: str | None, is_named: bool) -> None:
    """Else the round fails, and who attested falsely is named."""

    async def returned(
        parts: AsyncIterator[averaging_pb2.AveragingData],
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        named, part = [message async for message in parts]

        async def answers() -> AsyncIterator[averaging_pb2.AveragingData]:
            yield averaging_pb2.AveragingData(
                code=averaging_pb2.AVERAGED_PART, tensor_part=part.tensor_part, weight=4.0
            )
            inputs = split_digests(named.tensor_part.buffer)
            lines = [AttestedSender.of_parts(4.0, inputs, [4.0]), AttestedSender.of_parts(0.0, [], [0.0])]
            attestation = Attestation.of_round(ROUND, [digest_of(part.tensor_part)], lines)
            content = b"nonsense"
            if said in ATTESTATIONS:
                content = SignedAttestation.sign(key_of("ada"), ATTESTATIONS[said](attestation)).content
            if said != "nothing":
                wire = runtime_pb2.Tensor(buffer=content)
                yield averaging_pb2.AveragingData(code=ATTESTED, tensor_part=wire)

        return answers()

    findings: list[Finding] = []
    taking = round_of_two(reducer=AUXILIARY)
    taking._note = findings.append
    taking._get_peer_stub = lambda _peer: SimpleNamespace(rpc_aggregate_part=returned)
    if reason is None:
        await taking._communicate_with_peer(AUXILIARY)
        assert (list(taking.evidence.attestations), taking.missing_values) == ([1], 0)
        averages = [average.tolist() async for average in taking.tensor_part_container.iterate_output_tensors()]
        assert (averages, findings) == ([[1.0] * 3], [])
        return
    with pytest.raises(AllreduceException, match=reason):
        await taking._communicate_with_peer(AUXILIARY)
    assert (taking.evidence.attestations, taking.missing_values) == ({}, 3)
    assert taking.missed == (set() if is_named else {AUXILIARY.to_base58()})
    named = [(finding.peer_id, finding.kind) for finding in findings]
    assert named == ([(AUXILIARY.to_base58(), "average")] if is_named else [])


async def test_of_a_reducer_without_a_token_nothing_is_taken() -> None:
    """Its token may have expired in the round, so nobody is named."""
    taking = round_of_two(reducer=AUXILIARY)
    taking._attesting = Attesting(ROUND, key_of("ada"), lambda _peer: None)
    with pytest.raises(AllreduceException, match="no valid token"):
        taking._take_attestation(AUXILIARY, b"anything")


async def test_a_reducer_that_returns_no_average_of_an_honest_one_is_not_missing() -> None:
    """It is accused of that instead, which weighs more."""

    async def returned(_parts: object) -> AsyncIterator[averaging_pb2.AveragingData]:
        async def answers() -> AsyncIterator[averaging_pb2.AveragingData]:
            wire = serialize_torch_tensor(torch.full((3,), math.nan))
            yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=4.0)

        return answers()

    taking = round_of_two(reducer=AUXILIARY)
    taking._get_peer_stub = lambda _peer: SimpleNamespace(rpc_aggregate_part=returned)
    with pytest.raises(FalseAverage):
        await taking._communicate_with_peer(AUXILIARY)
    assert taking.missed == set()


async def test_a_reducer_still_awaited_when_the_round_is_broken_off_is_missing() -> None:
    """One that answers too slowly for the round, and never so slowly that it would be cut off by itself."""
    asked = asyncio.Event()

    async def awaited(_parts: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    taking = round_of_two(reducer=AUXILIARY)
    taking._get_peer_stub = lambda _peer: SimpleNamespace(rpc_aggregate_part=awaited)
    round_ = asyncio.ensure_future(take_averages(taking, [torch.zeros(3)]))
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    round_.cancel()
    await asyncio.wait({round_})
    taking._future.exception()  # asyncio complains of one that nobody has looked at
    assert taking.missed == {AUXILIARY.to_base58()}


@pytest.mark.parametrize("unawaited", [False, True])
async def test_a_sender_that_was_silent_before_is_not_waited_for(unawaited: bool) -> None:
    """The average comes without it at once, and that is no further silence; another is waited for, then it is one."""
    silent = AUXILIARY.to_base58()
    reducing = round_of_two(unawaited=[silent] if unawaited else [], sender_timeout=PATIENCE_S if unawaited else 0.01)
    await asyncio.wait_for(
        asyncio.gather(reducing._handle_missing_senders(), reducing._reduce_own_parts(0)), PATIENCE_S
    )
    assert reducing.banned_senders == {AUXILIARY}
    assert reducing.silent == (set() if unawaited else {silent})
    assert reducing.weights_by_peer == {TRAINER.to_base58(): 4.0}


async def test_an_unawaited_sender_without_a_weight_misses_no_average() -> None:
    """It opens its stream when all parts but the last are averaged; its part was not needed."""
    reducing = round_of_two(parts=2, unawaited=[AUXILIARY.to_base58()])
    ones = torch.ones(3)
    first = await reducing.tensor_part_reducer.accumulate_part(0, 0, ones, weight=4.0)
    reducing._answer(0, first)
    assert reducing.tensor_part_reducer.banned == {1}
    answers = reducing._accumulate_parts_streaming(weightless(), 1)
    assert (await anext(answers)).weight == 4.0
    reducing._answer(1, await reducing.tensor_part_reducer.accumulate_part(0, 1, ones, weight=4.0))
    assert (await anext(answers)).weight == 4.0
    await answers.aclose()


async def test_what_an_unawaited_sender_brought_in_part_is_in_no_receipt() -> None:
    """Its first part came in time, its second did not: it is out from there on."""
    reducing = round_of_two(parts=2, unawaited=[AUXILIARY.to_base58()])
    reducing._may_contribute, part = anybody, written(torch.ones(3), 2.0)
    late = reducing._accumulate_parts_streaming(stream_of(part, part), 1)
    first = asyncio.ensure_future(anext(late))
    while not reducing.tensor_part_reducer._held:  # noqa: ASYNC110 - read in another thread
        await asyncio.sleep(0.001)
    await asyncio.wait_for(reducing._reduce_own_parts(0), PATIENCE_S)
    assert (await first).weight == 6.0
    assert reducing.weights_by_peer == {TRAINER.to_base58(): 4.0}
    assert reducing.silent == set()
    await late.aclose()
