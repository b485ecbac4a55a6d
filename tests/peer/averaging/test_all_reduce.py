"""What a round leaves behind; whole rounds are in tests/system."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.compression import CompressionInfo, NoCompression, serialize_torch_tensor
from hivemind.proto import averaging_pb2, runtime_pb2

from peer.averaging.all_reduce import ExactAllReduce, FalseAverage, take_averages
from peer.averaging.reducer import ATTESTED, Messages, RoundTerms, decoded
from peer.config.training import Averaging
from peer.network.traffic import Traffic
from peer.reduction.attestation import (
    Attestation,
    AttestedRound,
    AttestedSender,
    Attesting,
    SignedAttestation,
    digest,
    digest_of,
    digest_of_all,
    split_digests,
)
from peer.reduction.audit import Drawn
from peer.reduction.compression import ROOTS, decode
from peer.reduction.findings import Finding
from peer.reduction.guard import Past, ReductionGuard, RoundGuard, WeightCaps
from peer.transport.transport import Transport
from tests.support.notes import Notes
from tests.support.receipts import key_of
from tests.support.virtual_tests import virtually

PEERS = TRAINER, AUXILIARY = "trainer", "auxiliary"
SENDER_S, REDUCER_S = 20.0, 40.0  # time limits
GROUP = b"group"
LAYOUT = digest(b"order and shares")
ROUND = AttestedRound("run", 0, 7, GROUP, LAYOUT)


class Answers:
    """The network to a reducer that answers the trainer's messages so."""

    peer_id = TRAINER

    def __init__(self, answers: Callable[[Messages], Messages]) -> None:
        self._answers = answers

    async def serve(self, *_: object) -> None:
        """Serve nobody."""

    async def stream(self, peer: str, _name: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Let the auxiliary peer answer."""
        assert peer == AUXILIARY
        async for message in self._answers(decoded(requests)):
            yield message.SerializeToString()


async def nothing(_parts: Messages) -> Messages:
    """Answer nothing."""
    for message in ():
        yield message


async def anybody(_peer: str) -> bool:
    """Let everybody contribute."""
    return True


async def only_trainers(peer: str) -> bool:
    """Let the trainer contribute."""
    return peer == TRAINER


def round_of_two(
    cap: float = math.inf,
    *,
    parts: int = 1,
    reducer: str = TRAINER,
    guard: RoundGuard | None = None,
    unawaited: Collection[str] = (),
    may_contribute: Callable[[str], Awaitable[bool]] = anybody,
    answers: Callable[[Messages], Messages] = nothing,
    note: Callable[[Finding], None] = lambda _finding: None,
    key: bytes | None = key_of("ada").public_key,
) -> ExactAllReduce:
    """A trainer's (0) side of its round with an auxiliary peer (1); one of them reduces all.

    `key`: that of all peers; `answers`: of the auxiliary peer, where it reduces.
    """
    transport: Transport = Answers(answers)
    return ExactAllReduce(
        terms=RoundTerms(
            peers=PEERS,
            weight=4.0,
            compression=NoCompression(),
            sender_timeout=SENDER_S,
            reducer_timeout=REDUCER_S,
            traffic=Traffic(),
            may_contribute=may_contribute,
            guard=guard or RoundGuard(WeightCaps({}, cap), Notes(), Averaging(), Past(), set(), {}),
            unawaited=unawaited,
            attesting=Attesting(ROUND, key_of("ada"), lambda _peer: key),
        ),
        transport=transport,
        service="reduce",
        tensors=[torch.ones(3)] * parts,
        shares=[float(peer == reducer) for peer in PEERS],
        part_size_bytes=2**19,
        note=note,
        limits=[math.inf] * parts,
        accused=(),
    )


def found(reducing: ExactAllReduce) -> list[tuple[str, str]]:
    """Who was banned for what it sent, and why."""
    return [(finding.peer_id, finding.detail) for finding in reducing.reducer.terms.guard._note]


async def refused(reducing: ExactAllReduce, sender: str, stream: Messages) -> str:
    """Let a sender send this until it is banned; return why it is named, or nothing."""
    *_, last = [answer.code async for answer in reducing.reducer.answer(sender, stream)]
    assert last == averaging_pb2.INTERNAL_ERROR
    assert sender in reducing.reducer.banned
    named = found(reducing)
    assert [peer for peer, _ in named] == [sender] * len(named)
    return "".join(reason for _, reason in named)


def reducing_own(reducing: ExactAllReduce) -> asyncio.Task[None]:
    """Let the reducer send its own parts to itself."""
    return asyncio.create_task(reducing._average_at(0))


def committed(*messages: averaging_pb2.AveragingData) -> averaging_pb2.AveragingData:
    """What a sender of these parts says before the first."""
    return opening(messages[0].weight, b"".join(digest_of(message.tensor_part) for message in messages))


def opening(weight: float = 0.0, digests: bytes = b"") -> averaging_pb2.AveragingData:
    """The first message of a sender; all that one without a weight sends."""
    wire, code = runtime_pb2.Tensor(buffer=digests), averaging_pb2.PART_FOR_AVERAGING
    return averaging_pb2.AveragingData(code=code, group_id=GROUP, peer_id=LAYOUT, tensor_part=wire, weight=weight)


async def weightless(*more: averaging_pb2.AveragingData) -> Messages:
    """The stream of a sender that names no weight, and sends these messages after that."""
    for message in (opening(), *more):
        yield message


async def stream_of(*messages: averaging_pb2.AveragingData) -> Messages:
    """A sender's stream of these parts."""
    for message in (committed(*messages), *messages):
        yield message


def sent(part: torch.Tensor, weight: float) -> Messages:
    """The stream of a sender of one part."""
    return stream_of(written(part, weight))


class EndedRound:
    """A round that brings these averages, of which so many values are missing."""

    def __init__(self, averages: list[torch.Tensor], missing_values: int = 0, least_weight: float = 1.0) -> None:
        self.averages, self.missing_values, self.least_weight = averages, missing_values, least_weight

    async def run(self) -> list[torch.Tensor]:
        """Return the averages."""
        return self.averages

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


@virtually
async def test_an_average_that_is_far_too_large_fails_the_round_once() -> None:
    """Who returned it is named; whoever returns so much after that shows how large the gradients are."""
    found: list[Finding] = []
    reducing = round_of_two(reducer=AUXILIARY, note=found.append)
    reducing.limits = [20.0]
    own = [torch.full((4,), 0.01)]

    def keep(value: float) -> None:
        average = torch.full((4,), value)
        reducing._keep(Drawn(1, 0), serialize_torch_tensor(average), average, 4.0)

    keep(10.0)
    reducing.require_plausible(own)
    keep(11.0)
    with pytest.raises(AllreduceException, match="as large as could be"):
        reducing.require_plausible(own)
    detail = "returned an average 1.1 times as large as could be beside others of its round"
    assert found == [Finding(AUXILIARY, "average", detail)]
    reducing.require_plausible([torch.full((4,), 0.1)])  # this peer's own gradient has grown, too
    reducing.accused = [AUXILIARY]
    reducing.require_plausible(own)


@virtually
async def test_a_reducer_may_not_choose_a_code_that_is_not_for_averages() -> None:
    """The code of an optimizer's moments could lose most of an average."""
    wire = ROOTS.compress(torch.ones(3), CompressionInfo.from_tensor(torch.ones(3)))
    message = averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=1.0)
    with pytest.raises(ValueError, match="not taken"):
        round_of_two()._averaged_part(TRAINER, message)


@pytest.mark.parametrize("weight", [1e9, -1.0, 0.5, float("nan")])
@virtually
async def test_who_may_not_contribute_changes_no_average(weight: float) -> None:
    """Parts with a weight, of an auxiliary peer, are not added: it is banned, and a trainer's average comes at once."""
    reducing = round_of_two(may_contribute=only_trainers)
    trainers = reducing.reducer.answer(TRAINER, sent(torch.ones(3), 4.0))
    first = asyncio.create_task(anext(trainers))
    assert "may not contribute" in await refused(reducing, AUXILIARY, sent(torch.full((3,), 1e6), weight))
    answer = await first
    assert (answer.weight, reducing.reducer.weights_by_peer) == (4.0, {TRAINER: 4.0})
    assert torch.equal(decode(answer.tensor_part), torch.ones(3))
    await trainers.aclose()


@virtually
async def test_who_may_not_contribute_takes_part_without_a_part() -> None:
    """It receives each average as soon as there is one, then the attestation; it is neither late nor silent."""
    reducing = round_of_two(parts=2, may_contribute=only_trainers)
    own = reducing_own(reducing)
    answers = [answer async for answer in reducing.reducer.answer(AUXILIARY, weightless())]
    await own
    assert [answer.code for answer in answers] == [averaging_pb2.AVERAGED_PART] * 2 + [ATTESTED]
    assert [answer.weight for answer in answers[:2]] == [4.0] * 2
    reducer = reducing.reducer
    assert (reducer.received_bytes, reducer.silent, reducer.late) == (0, set(), set())


@virtually
async def test_a_second_stream_gives_no_weight_to_who_named_none() -> None:
    """The sender is refused, and receives nothing more on the first stream either."""
    reducing = round_of_two(parts=2)
    first = reducing.reducer.answer(AUXILIARY, weightless())
    waiting = asyncio.create_task(anext(first))
    await asyncio.sleep(1)
    assert "twice" in await refused(reducing, AUXILIARY, sent(torch.zeros(3), 4.0))
    await reducing_own(reducing)
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert reducing.least_weight == 4.0
    assert reducing.reducer.banned == {AUXILIARY}


@virtually
async def test_two_streams_at_once_give_one_sender_no_second_weight() -> None:
    """Nor while its role is still being asked for the first of them."""

    async def slowly(_peer: str) -> bool:
        await asyncio.sleep(2)
        return True

    reducing = round_of_two(parts=2, may_contribute=slowly)
    parts = stream_of(*[written(torch.zeros(3), 4.0)] * 2)
    weighted = asyncio.create_task(anext(reducing.reducer.answer(AUXILIARY, parts)))
    await asyncio.sleep(1)
    assert "twice" in await refused(reducing, AUXILIARY, weightless())
    await asyncio.sleep(2)
    await reducing_own(reducing)
    await asyncio.wait({weighted})
    assert (reducing.least_weight, reducing.reducer.counted_by_peer.keys()) == (4.0, {TRAINER})


@virtually
async def test_a_reader_that_stops_is_cut_off() -> None:
    """Its stream would hold the round's memory for as long as it likes."""
    reducing = round_of_two(parts=2)

    async def read_one() -> None:
        async for _ in reducing.reducer.answer(AUXILIARY, weightless()):
            await asyncio.sleep(3600)

    reader = asyncio.create_task(read_one())
    await reducing_own(reducing)
    await asyncio.wait({reader})
    assert (reader.cancelled(), asyncio.get_running_loop().time()) == (True, REDUCER_S)


@virtually
async def test_who_names_no_weight_and_never_ends_its_stream_is_cut_off() -> None:
    """The average comes without it at once, so it is not silent; it receives none after its time."""

    async def never_ends() -> Messages:
        yield opening()
        await asyncio.Event().wait()

    reducing = round_of_two()
    assert await refused(reducing, AUXILIARY, never_ends()) == ""
    assert asyncio.get_running_loop().time() == SENDER_S
    await reducing_own(reducing)
    assert reducing.least_weight == 4.0
    assert (reducing.reducer.banned, reducing.reducer.silent) == ({AUXILIARY}, set())


@virtually
async def test_averages_that_never_come_are_not_waited_for() -> None:
    """Where the round fails here, the stream of a sender without parts ends with it, and the values are missing."""
    reducing = round_of_two(parts=2)
    waiting = asyncio.create_task(anext(reducing.reducer.answer(AUXILIARY, weightless())))
    await asyncio.sleep(1)
    reducing.reducer._buffer.finalize()
    with pytest.raises(AllreduceException):
        await reducing_own(reducing)
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert (reducing.missing_values, reducing.missed) == (6, set())


@virtually
async def test_senders_that_do_not_belong_to_the_running_round_receive_nothing() -> None:
    """Members of other groups, and those that come too late; nobody is banned for it."""
    reducing = round_of_two()
    violation = averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
    assert [answer async for answer in reducing.reducer.answer("stranger", weightless())] == [violation]
    reducing.reducer.end()
    assert [answer async for answer in reducing.reducer.answer(AUXILIARY, weightless())] == [violation]
    assert reducing.reducer.banned == set()


def written(part: torch.Tensor, weight: float = 4.0) -> averaging_pb2.AveragingData:
    """One part on the wire."""
    wire = serialize_torch_tensor(part)
    return averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, tensor_part=wire, weight=weight)


def garbled() -> averaging_pb2.AveragingData:
    """A part of which the last bytes are missing."""
    message = written(torch.ones(3))
    message.tensor_part.buffer = message.tensor_part.buffer[:-2]
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
    ],
)
@pytest.mark.parametrize("most_at_once", [0, 100])  # values that are read without a thread
@virtually
async def test_who_sends_what_is_no_part_is_banned_and_named(
    message: averaging_pb2.AveragingData, named: str, most_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' average comes at once, without that sender, and the trainer is told who it was."""
    monkeypatch.setattr("peer.averaging.reducer.THREAD_VALUES", most_at_once)
    reducing = round_of_two()
    honest = reducing.reducer.answer(AUXILIARY, sent(torch.ones(3), 2.0))
    first = asyncio.create_task(anext(honest))
    assert named in await refused(reducing, TRAINER, stream_of(message))
    assert ((await first).weight, reducing.reducer.banned) == (2.0, {TRAINER})
    await honest.aclose()


@virtually
async def test_one_weight_for_all_parts() -> None:
    """Who names another weight with a later part is banned."""
    reducing = round_of_two(parts=2)
    reducing.reducer._ban(1)
    parts = [written(torch.ones(3), weight) for weight in (4.0, 5.0)]
    assert "the weights 4 and 5" in await refused(reducing, TRAINER, stream_of(*parts))


@virtually
async def test_a_part_more_than_there_are_is_refused() -> None:
    """Although there are digests of all others."""
    reducing, part = round_of_two(), written(torch.ones(3), 2.0)

    async def sends() -> Messages:
        for message in (committed(part), part, part):
            yield message

    own = reducing_own(reducing)
    assert "part 1 " in await refused(reducing, AUXILIARY, sends())
    await own


@virtually
async def test_weights_count_up_to_their_cap() -> None:
    """What is above it changes neither the average nor the weight behind it; what was named is known all the same."""
    reducing = round_of_two(cap=8.0)
    streams = [
        reducing.reducer.answer(TRAINER, sent(torch.zeros(3), 8.0)),
        reducing.reducer.answer(AUXILIARY, sent(torch.ones(3), 1e12)),
    ]
    answers = await asyncio.gather(*(anext(stream) for stream in streams))
    assert torch.equal(decode(answers[0].tensor_part), torch.full((3,), 0.5))
    assert answers[0].weight == 16.0
    assert reducing.reducer.weights_by_peer[AUXILIARY] == 1e12
    assert set(reducing.reducer.counted_by_peer.values()) == {8.0}  # of which receipts tell
    for stream in streams:
        await stream.aclose()


@virtually
async def test_who_was_refused_in_one_half_is_out_of_the_next() -> None:
    """The others' average of the second half comes without waiting for it."""
    guard = ReductionGuard(Notes())
    first = round_of_two(guard=guard.begin(GROUP, b"first half"))
    await refused(first, AUXILIARY, weightless(written(torch.ones(3), 0.0)))
    assert (first.reducer.banned, first.reducer.silent) == ({AUXILIARY}, set())  # it is named for what it sent
    second = round_of_two(guard=guard.begin(GROUP, b"second half"))
    assert second.reducer.banned == {AUXILIARY}
    stream = second.reducer.answer(TRAINER, sent(torch.ones(3), 4.0))
    assert (await anext(stream)).weight == 4.0
    await stream.aclose()


@virtually
async def test_a_client_has_its_first_average_before_its_last_part_is_sent() -> None:
    """Its line carries both at once; hivemind would keep all averages back until its stream has ended."""
    reducing, is_answered, part = round_of_two(parts=2), asyncio.Event(), written(torch.ones(3), 2.0)

    async def sends() -> Messages:
        yield committed(part, part)
        yield part
        await is_answered.wait()
        yield part

    own = reducing_own(reducing)
    answers = reducing.reducer.answer(AUXILIARY, sends())
    assert torch.equal(decode((await anext(answers)).tensor_part), torch.ones(3))
    is_answered.set()
    assert [answer.code async for answer in answers] == [averaging_pb2.AVERAGED_PART, ATTESTED]
    await own
    taken = [average async for average in reducing._container.iterate_output_tensors()]
    assert [average.tolist() for average in taken] == [[1.0] * 3] * 2  # what the client got, the reducer has


@virtually
async def test_too_few_parts_of_a_reducer_fail_the_round() -> None:
    """Nobody waits for the others: their values are missing. What was sent is kept, to be shown to others."""
    received: list[averaging_pb2.AveragingData] = []

    async def answers(parts: Messages) -> Messages:
        received.extend([message async for message in parts])
        average = serialize_torch_tensor(torch.ones(3))
        yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=average, weight=4.0)

    taking = round_of_two(parts=2, reducer=AUXILIARY, answers=answers)
    with pytest.raises(AllreduceException, match="returned 1 of 2 parts, and no attestation"):
        await taking._average_at(1)
    assert taking.missing_values == 6
    assert (taking.missed, taking.other_reducers) == ({AUXILIARY}, {AUXILIARY})
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
@virtually
async def test_who_sends_what_it_has_not_named_is_banned_and_named(
    named: averaging_pb2.AveragingData, part: averaging_pb2.AveragingData, reason: str
) -> None:
    """No part is averaged that its sender could disown after the round."""

    async def sends() -> Messages:
        yield named
        yield part

    assert reason in await refused(round_of_two(), TRAINER, sends())


@pytest.mark.parametrize("change", [{"peer_id": digest(b"another order")}, {"code": averaging_pb2.BEGIN_ALLREDUCE}])
@virtually
async def test_who_begins_in_another_way_is_banned_and_not_named(change: dict[str, Any]) -> None:
    """A leader can tell an honest sender another order: its parts would be other values than are asked for."""

    async def sends() -> Messages:
        message = committed(written(torch.ones(3)))
        for field, value in change.items():
            setattr(message, field, value)
        yield message

    assert await refused(round_of_two(), TRAINER, sends()) == ""


@virtually
async def test_digests_are_named_once() -> None:
    """A second stream of the same sender changes nothing of what the first is bound to."""
    reducing = round_of_two()
    reducing.reducer._ban(1)
    first = reducing.reducer.answer(TRAINER, sent(torch.ones(3), 4.0))
    await anext(first)
    bound = dict(reducing.reducer._inputs)
    assert "twice" in await refused(reducing, TRAINER, sent(torch.zeros(3), 4.0))
    assert reducing.reducer._inputs == bound
    await first.aclose()


@virtually
async def test_a_reducer_attests_what_it_has_combined() -> None:
    """To all the same: every sender's digests and weights, also of one that was banned on the way."""
    reducing = round_of_two(cap=3.0, parts=2)
    parts = [written(torch.full((3,), value), 8.0) for value in (1.0, 2.0)]

    async def one_only() -> Messages:
        yield committed(*parts)
        yield parts[0]

    own = reducing_own(reducing)
    answers = [answer async for answer in reducing.reducer.answer(AUXILIARY, one_only())]
    await own
    assert [answer.weight for answer in answers] == [6.0]
    signed = (await reducing.reducer._attestation).content
    opened = SignedAttestation(signed).opened(key_of("ada").public_key)
    lines = [(line.weight, line.counted) for line in opened.senders]
    assert lines == [(4.0, ((2, 3.0),)), (8.0, ((1, 3.0), (1, 0.0)))]
    assert opened.senders[1].inputs == digest_of_all([digest_of(part.tensor_part) for part in parts]).hex()
    assert opened.senders[0].inputs == digest_of_all(reducing.evidence.inputs(0)).hex()
    assert reducing.evidence.attestations[0][1] == opened


@virtually
async def test_nobody_waits_for_the_attestation_of_a_round_that_has_failed() -> None:
    """Neither where the peer gives it up, nor where it ends before it has begun."""
    given_up, ended = round_of_two(), round_of_two()
    own = reducing_own(given_up)
    await asyncio.sleep(1)
    own.cancel()
    with pytest.raises(asyncio.CancelledError):
        await own
    ended.reducer.end()
    for reducing in given_up, ended:
        with pytest.raises(AllreduceException, match="failed here"):
            await reducing.reducer._attestation
        assert all(answer.cancelled() for answer in reducing.reducer._answers)


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
@virtually
async def test_averages_are_taken_with_a_true_attestation_only(said: str, reason: str | None, is_named: bool) -> None:
    """Else the round fails, and who attested falsely is named."""

    async def answers(parts: Messages) -> Messages:
        named, part = [message async for message in parts]
        yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=part.tensor_part, weight=4.0)
        inputs = split_digests(named.tensor_part.buffer)
        lines = [AttestedSender.of_parts(4.0, inputs, [4.0]), AttestedSender.of_parts(0.0, [], [0.0])]
        attestation = Attestation.of_round(ROUND, [digest_of(part.tensor_part)], lines)
        content = b"nonsense"
        if said in ATTESTATIONS:
            content = SignedAttestation.sign(key_of("ada"), ATTESTATIONS[said](attestation)).content
        if said != "nothing":
            yield averaging_pb2.AveragingData(code=ATTESTED, tensor_part=runtime_pb2.Tensor(buffer=content))

    findings: list[Finding] = []
    taking = round_of_two(reducer=AUXILIARY, answers=answers, note=findings.append)
    if reason is None:
        assert [average.tolist() for average in await taking.run()] == [[1.0] * 3]
        assert (list(taking.evidence.attestations), taking.missing_values, findings) == ([1], 0, [])
        return
    with pytest.raises(AllreduceException, match=reason):
        await taking._average_at(1)
    assert (taking.evidence.attestations, taking.missing_values) == ({}, 3)
    assert taking.missed == (set() if is_named else {AUXILIARY})
    named = [(finding.peer_id, finding.kind) for finding in findings]
    assert named == ([(AUXILIARY, "average")] if is_named else [])


@virtually
async def test_of_a_reducer_without_a_token_nothing_is_taken() -> None:
    """Its token may have expired in the round, so nobody is named."""
    taking = round_of_two(reducer=AUXILIARY, key=None)
    with pytest.raises(AllreduceException, match="no valid token"):
        taking._take_attestation(1, b"anything")


@pytest.mark.parametrize(("values", "weight"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
@virtually
async def test_a_reducer_that_returns_no_average_of_an_honest_one_is_not_missing(values: float, weight: float) -> None:
    """It is accused of that instead, which weighs more."""

    async def answers(_parts: Messages) -> Messages:
        wire = serialize_torch_tensor(torch.full((3,), values))
        yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=weight)

    findings: list[Finding] = []
    taking = round_of_two(reducer=AUXILIARY, answers=answers, note=findings.append)
    with pytest.raises(FalseAverage, match="not finite"):
        await taking._average_at(1)
    assert (taking.missed, [(one.peer_id, one.kind) for one in findings]) == (set(), [(AUXILIARY, "average")])


@pytest.mark.parametrize("gives_up_s", [REDUCER_S / 2, 2 * REDUCER_S])
@virtually
async def test_a_reducer_still_awaited_when_the_round_is_broken_off_is_missing(gives_up_s: float) -> None:
    """The round is broken off before the reducer's time limit, or at it."""

    async def silence(parts: Messages) -> Messages:
        await asyncio.Event().wait()
        async for part in parts:
            yield part

    taking = round_of_two(reducer=AUXILIARY, answers=silence)
    with pytest.raises((asyncio.TimeoutError, AllreduceException)):
        await asyncio.wait_for(take_averages(taking, [torch.zeros(3)]), gives_up_s)
    assert asyncio.get_running_loop().time() == min(gives_up_s, REDUCER_S)
    assert taking.missed == {AUXILIARY}


@pytest.mark.parametrize("unawaited", [False, True])
@virtually
async def test_a_sender_that_was_silent_before_is_not_waited_for(unawaited: bool) -> None:
    """The average comes without it at once, and that is no further silence; another is waited for, then it is one."""
    reducing = round_of_two(unawaited=[AUXILIARY] if unawaited else [])
    await reducing.run()
    assert asyncio.get_running_loop().time() == (0.0 if unawaited else SENDER_S)
    assert reducing.reducer.banned == {AUXILIARY}
    assert reducing.reducer.silent == (set() if unawaited else {AUXILIARY})
    assert reducing.reducer.weights_by_peer == {TRAINER: 4.0}


@virtually
async def test_an_unawaited_sender_without_a_weight_misses_no_average() -> None:
    """It opens its stream when all parts but the last are averaged; its part was not needed."""
    reducer, ones = round_of_two(parts=2, unawaited=[AUXILIARY]).reducer, torch.ones(3)
    await reducer.reduce_own(0, ones)
    answers = reducer.answer(AUXILIARY, weightless())
    assert (await anext(answers)).weight == 4.0
    await reducer.reduce_own(1, ones)
    assert (await anext(answers)).weight == 4.0
    await answers.aclose()


@virtually
async def test_what_an_unawaited_sender_brought_in_part_is_in_no_receipt() -> None:
    """Its first part came in time, its second did not: it is out from there on."""
    reducing, part = round_of_two(parts=2, unawaited=[AUXILIARY]), written(torch.ones(3), 2.0)
    late = reducing.reducer.answer(AUXILIARY, stream_of(part, part))
    first = asyncio.create_task(anext(late))
    await asyncio.sleep(1)
    await reducing_own(reducing)
    assert (await first).weight == 6.0
    assert reducing.reducer.weights_by_peer == {TRAINER: 4.0}
    assert reducing.reducer.silent == set()
    await late.aclose()
