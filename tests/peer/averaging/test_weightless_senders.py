"""Rounds with senders without samples: they send no part, and take the same averages as all others."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any, cast

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.compression import Float16Compression
from hivemind.p2p import P2P
from hivemind.proto import averaging_pb2, runtime_pb2

from auth.swarm.hivemind_patches import patch_hivemind
from peer.averaging.all_reduce import ExactAllReduce, take_averages
from peer.averaging.reducer import Messages, RoundTerms
from peer.averaging.reduction_service import ReductionService
from peer.config.training import Averaging
from peer.gradients.power_sgd import FIRST, LowRank, orthonormal
from peer.network.traffic import Traffic
from peer.reduction.attestation import AttestedRound, Attesting, layout_of
from peer.reduction.audit import Audit
from peer.reduction.guard import Past, RoundGuard, WeightCaps
from peer.transport.lines import Line
from peer.transport.memory import MemoryNetwork
from peer.transport.p2p import P2PTransport
from peer.transport.transport import Transport
from tests.support.notes import Notes
from tests.support.receipts import key_of
from tests.support.virtual_tests import virtually
from tests.support.waiting import PATIENCE_S

KEEPER, FIRST_TRAINER, SECOND_TRAINER, AUXILIARY = range(4)
HONEST = (KEEPER, FIRST_TRAINER, SECOND_TRAINER)  # where the auxiliary peer is not
SHARES = (4, 2, 2, 2)
SHAPES = (torch.Size((120, 80)), torch.Size((600,)))
VALUES = sum(map(torch.Size.numel, SHAPES))
VALUE_BYTES = 2  # of float16
WORDS_BYTES = 2_000  # of a stream's opening message, with room
KEY = key_of("ada")
GROUP, SENDER_S = b"group", 20.0
LINE = Line(up=1e7, down=1e7, latency_s=0.02)
PEERS = ("keeper", "first trainer", "second trainer", "auxiliary peer")


class Everybody:
    """A directory that admits all peers."""

    async def admits(self, _peer: str, _roles: object) -> bool:
        """Admit it."""
        return True


def in_memory(network: MemoryNetwork | None = None) -> list[Transport]:
    """The peers' access to a network in memory."""
    network = network or MemoryNetwork(random.Random(1))
    return [network.join(peer, LINE) for peer in PEERS]


@asynccontextmanager
async def over_daemons() -> AsyncIterator[list[Transport]]:
    """The peers' access to a network of p2p daemons."""
    patch_hivemind()
    daemons: list[P2P] = []
    try:
        for _ in PEERS:
            known = [address for daemon in daemons for address in await daemon.get_visible_maddrs()]
            hosts = ["/ip4/127.0.0.1/tcp/0"]
            daemons.append(await P2P.create(host_maddrs=hosts, initial_peers=known, startup_timeout=PATIENCE_S))
        yield list(map(P2PTransport, daemons))
    finally:
        for daemon in daemons:
            await daemon.shutdown()


class Round:
    """One all-reduce of all peers, in this process."""

    def __init__(
        self, runners: Sequence[ExactAllReduce], tensors: Sequence[list[torch.Tensor]], groups: ExitStack
    ) -> None:
        self.runners, self.tensors, self._groups = runners, tensors, groups
        self.findings: list[Any] = [runner.reducer.terms.guard._note for runner in runners]

    async def run(self, *places: int) -> list[str]:
        """Let these peers average, by default all; return why each has failed, or nothing."""
        rounds = [take_averages(self.runners[at], self.tensors[at]) for at in places or range(len(self.runners))]
        ended = await asyncio.gather(*rounds, return_exceptions=True)
        assert all(error is None or isinstance(error, AllreduceException) for error in ended), ended
        return ["" if error is None else str(error) for error in ended]

    def begin(self, place: int) -> asyncio.Task[None]:
        """Let this peer average until it is told to stop."""
        return asyncio.create_task(take_averages(self.runners[place], self.tensors[place]))

    def require_one_average(self, *places: int) -> list[torch.Tensor]:
        """Return the averages, which are the same bits on all these peers, by default on all."""
        first, *others = [self.tensors[at] for at in places or range(len(self.runners))]
        assert all(torch.equal(own, theirs) for other in others for own, theirs in zip(first, other, strict=True))
        return first

    def found(self) -> list[set[tuple[str, str]]]:
        """Return the kind and the peer of each finding, by peer that found it."""
        return [{(finding.kind, finding.peer_id) for finding in findings} for findings in self.findings]


async def round_of(
    transports: Sequence[Transport],
    weights: Sequence[float],
    tensors: Sequence[list[torch.Tensor]],
    *,
    half: bytes = b"",
    shares: Sequence[int] = SHARES,
    kinds: Mapping[int, type[ExactAllReduce]] | None = None,
    caps: Mapping[int, float] | None = None,
    trusted: frozenset[str] = frozenset(),
    part_size_bytes: int = 2**11,
) -> Round:
    """Prepare a round; `kinds`, `caps`: the peers that are not honest, and what some count of each sender."""
    peers, group = [transport.peer_id for transport in transports], GROUP + half
    attested = AttestedRound("run", 0, 7, group, layout_of(peers, shares))
    runners, groups, everybody = [], ExitStack(), cast(Any, Everybody())
    for place, (transport, weight, own) in enumerate(zip(transports, weights, tensors, strict=True)):
        service = ReductionService(transport, f"reduce {half!r}", everybody, Traffic())
        runner = (kinds or {}).get(place, ExactAllReduce)(
            terms=RoundTerms(
                peers=peers,
                weight=weight,
                compression=Float16Compression(),
                sender_timeout=SENDER_S,
                reducer_timeout=2 * SENDER_S,
                traffic=Traffic(),
                may_contribute=service.may_contribute,
                guard=RoundGuard(
                    WeightCaps({}, (caps or {}).get(place, math.inf)), Notes(), Averaging(), Past(), set(), {}
                ),
                unawaited=(),
                attesting=Attesting(attested, KEY, lambda _peer: KEY.public_key, trusted=trusted),
            ),
            transport=transport,
            service=f"reduce {half!r}",
            tensors=own,
            shares=shares,
            part_size_bytes=part_size_bytes,
            note=lambda _finding: None,
            limits=[math.inf] * len(own),
            accused=(),
        )
        groups.enter_context(service.expecting([group]))
        service.begin(group, runner.reducer)
        await service.serve()
        runners.append(runner)
    return Round(runners, tensors, groups)


def gradients(weights: Sequence[float], shapes: Sequence[torch.Size] = SHAPES) -> list[list[torch.Tensor]]:
    """Each peer's gradients: zeros without a weight."""
    generator = torch.Generator().manual_seed(5)
    return [[bool(weight) * torch.randn(shape, generator=generator) for shape in shapes] for weight in weights]


def mean_of_trainers(own: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Compute the mean of the two trainers' gradients, of 4 and 8 samples."""
    first, second = own[FIRST_TRAINER], own[SECOND_TRAINER]
    return [(4 * ours + 8 * others) / 12 for ours, others in zip(first, second, strict=True)]


def require_close(averages: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Raise `AssertionError` unless these are the expected averages, but for the rounding of float16."""
    for average, mean in zip(averages, expected, strict=True):
        assert torch.allclose(average, mean, atol=1e-2)


def require_sound(round_: Round, weights: Sequence[float]) -> None:
    """Raise `AssertionError` unless all audits end without a finding, and ask no sender without a weight."""
    for runner in round_.runners:
        peers, own = runner.peers, runner.peers[round_.runners.index(runner)]
        audit = Audit(peers, own, runner.evidence, key_of=lambda _peer: KEY.public_key)
        for peer, other, weight in zip(peers, round_.runners, weights, strict=True):
            if other is runner:
                continue
            wanted = audit.hear(peer, other.evidence.digests)
            assert wanted is not None
            assert (wanted.drawn is not None) == bool(weight)
            if wanted.drawn is not None:
                kept = other.evidence.sent(wanted.drawn)
                assert kept is not None
                audit.show(peer, *kept)
        assert audit.is_complete
        assert (audit.missing, audit.findings()) == ([], [])


async def require_little_sent(transports: Sequence[Transport], weights: Sequence[float]) -> None:
    """Raise `AssertionError` unless all take the samples' mean, and nobody without samples has sent a part."""
    own = gradients(weights)
    expected = [
        torch.stack([weight * tensors[at] for weight, tensors in zip(weights, own, strict=True)]).sum(0) / sum(weights)
        for at in range(len(SHAPES))
    ]
    round_ = await round_of(transports, weights, own)
    assert await round_.run() == [""] * len(transports)
    require_close(round_.require_one_average(), expected)
    weighing = [place for place, weight in enumerate(weights) if weight]
    for place, (runner, share) in enumerate(zip(round_.runners, SHARES, strict=True)):
        due = VALUE_BYTES * VALUES * share / sum(SHARES)
        senders = len([sender for sender in weighing if sender != place])
        assert runner.reducer.received_bytes == pytest.approx(senders * due, abs=2**12 * senders)
        sent = runner.terms.traffic.up.total_bytes  # without the averages, which the service counts
        if weights[place]:
            assert sent > VALUE_BYTES * VALUES - due - 2**12
        else:
            assert sent < WORDS_BYTES
        assert runner.reducer.weights_by_peer == dict(zip(runner.peers, weights, strict=True))
        assert set(runner.attested_by_peer) == {runner.peers[at] for at in weighing}
        assert (runner.reducer.silent, runner.reducer.late, runner.missed) == (set(), set(), set())
    assert round_.found() == [set()] * len(transports)
    require_sound(round_, weights)


@pytest.mark.parametrize("weights", [(0, 4, 8, 0), (0, 0, 8, 0)], ids=["two", "one"])
@virtually
async def test_senders_without_samples_send_next_to_nothing(weights: Sequence[float]) -> None:
    """All take the samples' mean, bit by bit alike, and nobody is found to have done wrong, in the audit neither."""
    await require_little_sent(in_memory(), weights)


# hivemind finds its daemon by a function of importlib that is going away
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
async def test_rounds_come_to_the_same_over_daemons_and_in_threads() -> None:
    """As in memory, in virtual time."""
    async with over_daemons() as transports:
        await require_little_sent(transports, (0, 4, 8, 0))


@pytest.mark.parametrize(
    ("counted", "failed"), [(0.1, ""), (0.0, "nobody's samples are in an average")], ids=["little", "nothing"]
)
@virtually
async def test_a_reducer_that_counts_less_than_all_others_is_known_to_all(counted: float, failed: str) -> None:
    """Its attestation lowers nobody's claims, whether its averages are taken or not."""
    weights = (0, 4, 8, 0)
    round_ = await round_of(in_memory(), weights, gradients(weights), caps={AUXILIARY: counted})
    assert await round_.run() == [failed] * len(PEERS)
    trainers = [(PEERS[at], float(weights[at])) for at in (FIRST_TRAINER, SECOND_TRAINER)]
    for runner in round_.runners:
        assert runner.accounts.undercounting(12) == {PEERS[AUXILIARY]}
        assert runner.least_weight == pytest.approx(2 * counted)
        assert [(peer_id, weight.counted) for peer_id, weight in runner.attested_by_peer.items()] == trainers


@virtually
async def test_what_a_keeper_counts_is_what_counts() -> None:
    """There is no round without it."""
    weights, keeper = (0, 4, 8, 0), PEERS[KEEPER]
    round_ = await round_of(in_memory(), weights, gradients(weights), caps={KEEPER: 0.1}, trusted=frozenset({keeper}))
    assert await round_.run() == [""] * len(PEERS)
    for runner in round_.runners:
        assert runner.accounts.undercounting(12) == set()
        assert [weight.counted for weight in runner.attested_by_peer.values()] == [0.1, 0.1]


@virtually
async def test_without_any_samples_there_is_no_average() -> None:
    """The round ends at once, in each peer alike: nothing is changed, and nobody is blamed."""
    weights = (0, 0, 0, 0)
    round_ = await round_of(in_memory(), weights, [[torch.ones(shape) for shape in SHAPES] for _ in PEERS])
    assert await round_.run() == ["nobody's samples are in an average"] * len(PEERS)
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in round_.require_one_average())
    blamed = [runner.missed | runner.reducer.silent | runner.accounts.undercounting(1) for runner in round_.runners]
    assert blamed == [set()] * len(PEERS)
    assert round_.found() == [set()] * len(PEERS)


@virtually
async def test_both_halves_of_a_round_with_factors_come_to_the_same_bits() -> None:
    """Images and coordinates of peers without samples are zeros, which nobody needs."""
    weights = (0.0, 4.0, 8.0, 0.0)
    own = gradients(weights)
    sums = [[tensor * weight for tensor in tensors] for tensors, weight in zip(own, weights, strict=True)]
    factors = [LowRank(SHAPES, 2) for _ in PEERS]
    for low_rank, tensors, weight in zip(factors, own, weights, strict=True):
        low_rank.load(tensors, int(weight))
    images = [low_rank.images(tensors) for low_rank, tensors in zip(factors, own, strict=True)]
    first = await round_of(in_memory(), weights, images, half=FIRST)
    assert await first.run() == [""] * len(PEERS)
    lefts = [orthonormal(image) for image in first.require_one_average()]
    values = [low_rank.coordinates(tensors, lefts) for low_rank, tensors in zip(factors, own, strict=True)]
    second = await round_of(in_memory(), weights, values)
    assert await second.run() == [""] * len(PEERS)
    for low_rank, tensors, average, of_peer in zip(factors, own, values, sums, strict=True):
        low_rank.take(tensors, lefts, average)
        low_rank.settle(tensors, of_peer, averaged=True)
    averages = second.require_one_average()
    assert all(average.abs().sum() > 0 for average in averages)
    assert all(runner.terms.traffic.up.total_bytes < WORDS_BYTES for runner in (second.runners[0], second.runners[3]))


def opening(runner: ExactAllReduce, digests: bytes = b"") -> averaging_pb2.AveragingData:
    """The first message of a sender without a weight."""
    attested = runner.terms.attesting.round
    return averaging_pb2.AveragingData(
        code=averaging_pb2.PART_FOR_AVERAGING,
        group_id=attested.group_id,
        peer_id=attested.layout,
        tensor_part=runtime_pb2.Tensor(buffer=digests),
    )


class SendsParts(ExactAllReduce):
    """A peer that names no weight, and sends parts with its weight."""

    async def _committed_parts(self, reducer: int) -> Messages:
        yield opening(self)
        async for part in self._container.iterate_input_parts_for(reducer):
            yield averaging_pb2.AveragingData(tensor_part=part, weight=self.terms.weight)


class NamesDigests(ExactAllReduce):
    """A peer that names no weight, and the digests of parts."""

    async def _committed_parts(self, reducer: int) -> Messages:
        async for message in super()._committed_parts(reducer):
            yield opening(self, message.tensor_part.buffer)
            return


@pytest.mark.parametrize(
    ("hostile", "weight"),
    [(SendsParts, 0.0), (SendsParts, 6.0), (NamesDigests, 6.0)],
    ids=["parts", "parts with a weight", "digests"],
)
@virtually
async def test_who_named_no_weight_sends_nothing_else(hostile: type[ExactAllReduce], weight: float) -> None:
    """The sender is refused and named; the others' average is as it would be without it."""
    own = gradients((0.0, 4.0, 8.0, 1.0))
    expected, weights = mean_of_trainers(own), (0.0, 4.0, 8.0, weight)
    round_ = await round_of(in_memory(), weights, own, shares=(4, 2, 2, 0), kinds={AUXILIARY: hostile})
    lying = round_.begin(AUXILIARY)
    assert await round_.run(*HONEST) == [""] * 3
    require_close(round_.require_one_average(*HONEST), expected)
    with pytest.raises(AllreduceException):
        await lying
    assert round_.found()[:3] == [{("parts", PEERS[AUXILIARY])}] * 3


class StopsReading(ExactAllReduce):
    """A peer without samples that opens its streams, and takes one average from each."""

    async def _exchange(self, reducer: int) -> None:
        requests = (message.SerializeToString() async for message in self._committed_parts(reducer))
        async with aclosing(self.transport.stream(self.peers[reducer], self.service, requests)) as answers:
            await anext(answers)
            await asyncio.Event().wait()


@virtually
async def test_nobody_waits_for_one_that_reads_no_more() -> None:
    """Its averages wait on its own streams, however many bytes they are; after its time, these are closed."""
    weights = (0.0, 4.0, 8.0, 0.0)
    own = gradients(weights, [torch.Size((1_500_000,))])
    kinds = {AUXILIARY: StopsReading}
    round_ = await round_of(in_memory(), weights, own, shares=(4, 2, 2, 0), kinds=kinds, part_size_bytes=2**16)
    waiting = round_.begin(AUXILIARY)
    assert await round_.run(*HONEST) == [""] * 3
    assert asyncio.get_running_loop().time() < SENDER_S
    round_.require_one_average(*HONEST)
    waiting.cancel()


class StopsAfterOpening(ExactAllReduce):
    """A peer that opens its streams, and then neither sends nor receives."""

    async def _committed_parts(self, reducer: int) -> Messages:
        async for message in super()._committed_parts(reducer):
            yield message
            await asyncio.Event().wait()


@pytest.mark.parametrize("weight", [0.0, 6.0])
@virtually
async def test_a_peer_that_dies_after_its_opening_message_stops_nobody(weight: float) -> None:
    """The others' average comes without it, whether it had samples or not."""
    own, network = gradients((0.0, 4.0, 8.0, 1.0)), MemoryNetwork(random.Random(1))
    expected, weights = mean_of_trainers(own), (0.0, 4.0, 8.0, weight)
    kinds = {AUXILIARY: StopsAfterOpening}
    round_ = await round_of(in_memory(network), weights, own, shares=(4, 2, 2, 0), kinds=kinds)
    dying, living = round_.begin(AUXILIARY), asyncio.create_task(round_.run(*HONEST))
    await asyncio.sleep(1)
    assert all(AUXILIARY in round_.runners[at].reducer._weights for at in HONEST)
    network.kill(PEERS[AUXILIARY])
    assert await living == [""] * 3
    assert asyncio.get_running_loop().time() < SENDER_S
    require_close(round_.require_one_average(*HONEST), expected)
    assert round_.found()[:3] == [set()] * 3
    await asyncio.gather(dying, return_exceptions=True)
