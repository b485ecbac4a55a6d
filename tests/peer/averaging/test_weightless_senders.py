"""Rounds over libp2p with senders without samples: they send no part, and take the same averages as all others."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.compression import Float16Compression
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2

from auth.swarm.hivemind_patches import patch_hivemind
from peer.averaging.all_reduce import Attesting, ExactAllReduce, take_averages
from peer.gradients.error_feedback import ErrorFeedback
from peer.gradients.power_sgd import FIRST, LowRank, orthonormal
from peer.config.training import Averaging
from peer.network.traffic import Traffic
from peer.reduction.attestation import AttestedRound, layout_of
from peer.reduction.audit import Audit
from peer.reduction.findings import Findings
from peer.reduction.guard import Past, RoundGuard
from peer.reduction.shared_caps import CapsOfRound
from peer.reduction.sizes import CHUNK_BYTES
from peer.reduction.top_k import TOP_K
from tests.support.receipts import key_of
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),  # by hivemind, for its daemon
]
KEEPER, FIRST_TRAINER, SECOND_TRAINER, AUXILIARY = range(4)
HONEST = (KEEPER, FIRST_TRAINER, SECOND_TRAINER)  # where the auxiliary peer is not
SHARES = (4, 2, 2, 2)
SHAPES = (torch.Size((120, 80)), torch.Size((600,)))
VALUES = sum(map(torch.Size.numel, SHAPES))
VALUE_BYTES = 2  # of float16
WORDS_BYTES = 2_000  # of a stream's opening message, with room
KEY = key_of("ada")


NUMBERS = itertools.count()  # of rounds, of which each has a name of its own


async def started(known: Sequence[P2P] = ()) -> P2P:
    """A peer that knows these others."""
    patch_hivemind()
    return await P2P.create(
        initial_peers=[address for peer in known for address in await peer.get_visible_maddrs()],
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        dht_mode="server",
        startup_timeout=PATIENCE_S,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peers() -> AsyncIterator[list[P2P]]:
    """Four peers that know each other: a keeper, two trainers, and an auxiliary peer."""
    together: list[P2P] = []
    for _ in SHARES:
        together.append(await started(together))
    yield together
    for peer in together:
        await peer.shutdown()


async def anybody(_peer: PeerID) -> bool:
    """Let everybody contribute."""
    return True


class Round:
    """One all-reduce of all peers, in this process."""

    def __init__(self, runners: Sequence[ExactAllReduce], tensors: Sequence[list[torch.Tensor]]) -> None:
        self.runners, self.tensors = runners, tensors
        self.findings = [runner._guard._findings for runner in runners]

    async def run(self, *places: int) -> list[str]:
        """Let these peers average, by default all; return why each has failed, or nothing."""
        rounds = [take_averages(self.runners[at], self.tensors[at]) for at in places or range(len(self.runners))]
        ended = await asyncio.wait_for(asyncio.gather(*rounds, return_exceptions=True), PATIENCE_S)
        assert all(error is None or isinstance(error, AllreduceException) for error in ended), ended
        return ["" if error is None else str(error) for error in ended]

    def begin(self, place: int) -> asyncio.Task[None]:
        """Let this peer average until it is told to stop."""
        return asyncio.create_task(take_averages(self.runners[place], self.tensors[place]))

    async def give_up(self, place: int, averaging: asyncio.Task[None]) -> None:
        """Stop a peer that averages."""
        averaging.cancel()
        await asyncio.wait({averaging})
        self.runners[place]._future.exception()  # asyncio complains of one that nobody has looked at

    def require_one_average(self, *places: int) -> list[torch.Tensor]:
        """Return the averages, which are the same bits on all these peers, by default on all."""
        first, *others = [self.tensors[at] for at in places or range(len(self.runners))]
        assert all(torch.equal(own, theirs) for other in others for own, theirs in zip(first, other, strict=True))
        return first

    def found(self) -> list[set[tuple[str, str]]]:
        """Return the kind and the peer of each finding, by peer that found it."""
        return [{(finding.kind, finding.peer_id) for finding in findings.take()} for findings in self.findings]


async def round_of(
    peers: Sequence[P2P],
    weights: Sequence[float],
    tensors: Sequence[list[torch.Tensor]],
    *,
    half: bytes = b"",
    shares: Sequence[int] = SHARES,
    kinds: dict[int, type[ExactAllReduce]] | None = None,
    caps: dict[int, float] | None = None,
    trusted: frozenset[str] = frozenset(),
    part_size_bytes: int = 2**11,
    is_sparse: bool = False,
) -> Round:
    """Prepare a round; `kinds`, `caps`: the peers that are not honest, and what some count of each sender."""
    ids, group = [peer.peer_id for peer in peers], f"round {next(NUMBERS)}".encode() + half
    attested = AttestedRound("run", 0, 7, group, layout_of(ids, shares))
    attesting = Attesting(attested, KEY, lambda _peer: KEY.public_key, trusted=trusted)
    runners = []
    for place, (peer, weight, own) in enumerate(zip(peers, weights, tensors, strict=True)):
        runner = (kinds or {}).get(place, ExactAllReduce)(
            p2p=peer,
            servicer_type=ExactAllReduce,
            prefix=group.decode(),
            tensors=own,
            weight=weight,
            ordered_peer_ids=ids,
            peer_fractions=shares,
            traffic=Traffic(),
            note=lambda _finding: None,
            limits=[math.inf] * len(own),
            accused=(),
            may_contribute=anybody,
            attesting=attesting,
            guard=RoundGuard(
                CapsOfRound({}, (caps or {}).get(place, math.inf)), Findings(), Averaging(), Past(), set(), {}
            ),
            sender_timeout=PATIENCE_S,
            compression=TOP_K if is_sparse else Float16Compression(),
            part_size_bytes=part_size_bytes,
        )
        await runner.add_p2p_handlers(peer, namespace=group.decode())
        runners.append(runner)
    return Round(runners, tensors)


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
    ids = round_.runners[0].ordered_peer_ids
    for runner in round_.runners:
        audit = Audit(ids, runner.peer_id, runner.evidence, key_of=lambda _peer: KEY.public_key)
        for other, weight in zip(round_.runners, weights, strict=True):
            if other is runner:
                continue
            wanted = audit.hear(other.peer_id, other.evidence.digests)
            assert wanted is not None
            assert (wanted.drawn is not None) == bool(weight)
            if wanted.drawn is not None:
                kept = other.evidence.sent(wanted.drawn)
                assert kept is not None
                audit.show(other.peer_id, *kept)
        assert audit.is_complete
        assert (audit.missing, audit.findings()) == ([], [])


@pytest.mark.parametrize("weights", [(0, 4, 8, 0), (0, 0, 8, 0)], ids=["two", "one"])
async def test_senders_without_samples_send_next_to_nothing(peers: list[P2P], weights: Sequence[float]) -> None:
    """All take the samples' mean, bit by bit alike, and nobody is found to have done wrong, in the audit neither."""
    own = gradients(weights)
    expected = [
        torch.stack([weight * tensors[at] for weight, tensors in zip(weights, own, strict=True)]).sum(0) / sum(weights)
        for at in range(len(SHAPES))
    ]
    round_ = await round_of(peers, weights, own)
    assert await round_.run() == [""] * len(peers)
    require_close(round_.require_one_average(), expected)
    weighing = [place for place, weight in enumerate(weights) if weight]
    for place, (runner, share) in enumerate(zip(round_.runners, SHARES, strict=True)):
        due = VALUE_BYTES * VALUES * share / sum(SHARES)
        senders = len([sender for sender in weighing if sender != place])
        assert runner.received_bytes == pytest.approx(senders * due, abs=2**12 * senders)
        sent = runner._traffic.up.total_bytes  # without the averages, which the averager counts
        if weights[place]:
            assert sent > VALUE_BYTES * VALUES - due - 2**12
        else:
            assert sent < WORDS_BYTES
        assert runner.weights_by_peer == dict(zip([peer.peer_id.to_base58() for peer in peers], weights, strict=True))
        assert set(runner.attested_by_peer) == {peers[at].peer_id.to_base58() for at in weighing}
        assert (runner.silent, runner.late, runner.missed) == (set(), set(), set())
    assert round_.found() == [set()] * len(peers)
    require_sound(round_, weights)


@pytest.mark.parametrize(
    ("counted", "failed"), [(0.1, ""), (0.0, "nobody's samples are in an average")], ids=["little", "nothing"]
)
async def test_a_reducer_that_counts_less_than_all_others_is_known_to_all(
    peers: list[P2P], counted: float, failed: str
) -> None:
    """Its attestation lowers nobody's claims, whether its averages are taken or not."""
    weights = (0, 4, 8, 0)
    round_ = await round_of(peers, weights, gradients(weights), caps={AUXILIARY: counted})
    assert await round_.run() == [failed] * len(peers)
    trainers = [(peers[at].peer_id.to_base58(), float(weights[at])) for at in (FIRST_TRAINER, SECOND_TRAINER)]
    for runner in round_.runners:
        assert runner.accounts.undercounting(12) == {peers[AUXILIARY].peer_id.to_base58()}
        assert runner.least_weight == pytest.approx(2 * counted)
        assert [(peer_id, weight.counted) for peer_id, weight in runner.attested_by_peer.items()] == trainers


async def test_what_a_keeper_counts_is_what_counts(peers: list[P2P]) -> None:
    """There is no round without it."""
    weights, keeper = (0, 4, 8, 0), peers[KEEPER].peer_id.to_base58()
    round_ = await round_of(peers, weights, gradients(weights), caps={KEEPER: 0.1}, trusted=frozenset({keeper}))
    assert await round_.run() == [""] * len(peers)
    for runner in round_.runners:
        assert runner.accounts.undercounting(12) == set()
        assert [weight.counted for weight in runner.attested_by_peer.values()] == [0.1, 0.1]


async def test_without_any_samples_there_is_no_average(peers: list[P2P]) -> None:
    """The round ends at once, in each peer alike: nothing is changed, and nobody is blamed."""
    weights = (0, 0, 0, 0)
    round_ = await round_of(peers, weights, [[torch.ones(shape) for shape in SHAPES] for _ in peers])
    assert await round_.run() == ["nobody's samples are in an average"] * len(peers)
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in round_.require_one_average())
    blamed = [runner.missed | runner.silent | runner.accounts.undercounting(1) for runner in round_.runners]
    assert blamed == [set()] * len(peers)
    assert round_.found() == [set()] * len(peers)


async def test_both_halves_of_a_round_with_factors_come_to_the_same_bits(peers: list[P2P]) -> None:
    """Images and coordinates of peers without samples are zeros, which nobody needs."""
    weights = (0.0, 4.0, 8.0, 0.0)
    own = gradients(weights)
    sums = [[tensor * weight for tensor in tensors] for tensors, weight in zip(own, weights, strict=True)]
    factors = [LowRank(SHAPES, 2) for _ in peers]
    for low_rank, tensors, weight in zip(factors, own, weights, strict=True):
        low_rank.load(tensors, int(weight))
    images = [low_rank.images(tensors) for low_rank, tensors in zip(factors, own, strict=True)]
    first = await round_of(peers, weights, images, half=FIRST)
    assert await first.run() == [""] * len(peers)
    lefts = [orthonormal(image) for image in first.require_one_average()]
    values = [low_rank.coordinates(tensors, lefts) for low_rank, tensors in zip(factors, own, strict=True)]
    second = await round_of(peers, weights, values)
    assert await second.run() == [""] * len(peers)
    for low_rank, tensors, average, of_peer in zip(factors, own, values, sums, strict=True):
        low_rank.take(tensors, lefts, average)
        low_rank.settle(tensors, of_peer, averaged=True)
    averages = second.require_one_average()
    assert all(average.abs().sum() > 0 for average in averages)
    assert all(runner._traffic.up.total_bytes < WORDS_BYTES for runner in (second.runners[0], second.runners[3]))


async def test_sparse_gradients_come_to_the_same_bits_and_what_was_not_sent_comes_later(peers: list[P2P]) -> None:
    """Senders send a small part of what reducers return, and audits find nothing; no decay, so nothing is lost.

    The same gradient in every round: what all rounds brought, and what is left over, are together what there was.
    """
    weights, shapes, rounds = (0.0, 4.0, 8.0, 0.0), [torch.Size((7, 4096)), torch.Size((600,))], 3
    feedback = [ErrorFeedback(decay=1.0) for _ in peers]
    expected = mean_of_trainers(gradients(weights, shapes))
    brought = [torch.zeros(shape) for shape in shapes]
    for _ in range(rounds):
        own = gradients(weights, shapes)
        for memory, tensors, weight in zip(feedback, own, weights, strict=True):
            memory.load(tensors, int(weight))
        exact = mean_of_trainers(own)
        round_ = await round_of(peers, weights, own, part_size_bytes=2 * CHUNK_BYTES, is_sparse=True)
        assert await round_.run() == [""] * len(peers)
        averages = round_.require_one_average()
        for average, mean in zip(averages, exact, strict=True):
            assert 0 < float((average - mean).norm()) < 0.1 * float(mean.norm())  # of half bytes
        require_sound(round_, weights)
        for memory, tensors, means, weight in zip(feedback, own, gradients(weights, shapes), weights, strict=True):
            memory.settle(tensors, [mean * weight for mean in means], averaged=True)
        brought = [total + mean for total, mean in zip(brought, exact, strict=True)]
    for index, (total, mean) in enumerate(zip(brought, expected, strict=True)):
        left = (feedback[FIRST_TRAINER]._lost[index] + feedback[SECOND_TRAINER]._lost[index]) / 12
        assert torch.allclose(total + left, rounds * mean, atol=1e-4)
    sender = round_.runners[FIRST_TRAINER]._traffic
    assert sender.up.total_bytes < sender.down.total_bytes / 4
    assert not any(feedback[at]._lost for at in (KEEPER, AUXILIARY))


def opening(runner: ExactAllReduce, digests: bytes = b"") -> averaging_pb2.AveragingData:
    """The first message of a sender without a weight."""
    return averaging_pb2.AveragingData(
        code=averaging_pb2.PART_FOR_AVERAGING,
        group_id=runner.group_id,
        peer_id=runner._attesting.round.layout,
        tensor_part=runtime_pb2.Tensor(buffer=digests),
    )


def hostile(kind: type[ExactAllReduce]) -> type[ExactAllReduce]:
    """Give a class the name by which hivemind's peers call each other."""
    kind.__name__ = ExactAllReduce.__name__
    return kind


@hostile
class SendsParts(ExactAllReduce):
    """A peer that names no weight, and sends parts with its weight."""

    async def _committed_parts(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        yield opening(self)
        async for message in self._generate_input_for_peer(peer_index):
            yield message


@hostile
class NamesDigests(ExactAllReduce):
    """A peer that names no weight, and the digests of parts."""

    async def _committed_parts(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        async for message in super()._committed_parts(peer_index):
            yield opening(self, message.tensor_part.buffer)
            return


@pytest.mark.parametrize(
    ("hostile", "weight"),
    [(SendsParts, 0.0), (SendsParts, 6.0), (NamesDigests, 6.0)],
    ids=["parts", "parts with a weight", "digests"],
)
async def test_who_named_no_weight_sends_nothing_else(
    peers: list[P2P], hostile: type[ExactAllReduce], weight: float
) -> None:
    """The sender is refused and named; the others' average is as it would be without it."""
    own = gradients((0.0, 4.0, 8.0, 1.0))
    expected = mean_of_trainers(own)
    round_ = await round_of(peers, (0.0, 4.0, 8.0, weight), own, shares=(4, 2, 2, 0), kinds={AUXILIARY: hostile})
    lying = round_.begin(AUXILIARY)
    assert await round_.run(*HONEST) == [""] * 3
    require_close(round_.require_one_average(*HONEST), expected)
    with pytest.raises(AllreduceException):
        await lying
    accused = {("parts", peers[AUXILIARY].peer_id.to_base58())}
    assert round_.found()[:3] == [accused] * 3


@hostile
class StopsReading(ExactAllReduce):
    """A peer without samples that opens its streams, and takes one average from each."""

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        sent = self._committed_parts(self.ordered_peer_ids.index(peer_id))
        answers = await self._get_peer_stub(peer_id).rpc_aggregate_part(sent)
        try:
            await anext(answers)
            await asyncio.Event().wait()
        finally:
            await answers.aclose()


async def test_nobody_waits_for_one_that_reads_no_more(peers: list[P2P]) -> None:
    """Its averages wait on its own streams, however many bytes they are."""
    weights = (0.0, 4.0, 8.0, 0.0)
    own = gradients(weights, [torch.Size((1_500_000,))])
    round_ = await round_of(
        peers, weights, own, shares=(4, 2, 2, 0), kinds={AUXILIARY: StopsReading}, part_size_bytes=2**16
    )
    waiting = round_.begin(AUXILIARY)
    assert await round_.run(*HONEST) == [""] * 3
    round_.require_one_average(*HONEST)
    await round_.give_up(AUXILIARY, waiting)


@hostile
class StopsAfterOpening(ExactAllReduce):
    """A peer that opens its streams, and then neither sends nor receives."""

    async def _committed_parts(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        async for message in super()._committed_parts(peer_index):
            yield message
            await asyncio.Event().wait()


@pytest.mark.parametrize("weight", [0.0, 6.0])
async def test_a_peer_that_dies_after_its_opening_message_stops_nobody(peers: list[P2P], weight: float) -> None:
    """The others' average comes without it, whether it had samples or not."""
    own, victim = gradients((0.0, 4.0, 8.0, 1.0)), await started(peers)
    expected, weights = mean_of_trainers(own), (0.0, 4.0, 8.0, weight)
    kinds = {AUXILIARY: StopsAfterOpening}
    round_ = await round_of([*peers[:3], victim], weights, own, shares=(4, 2, 2, 0), kinds=kinds)
    dying, living = round_.begin(AUXILIARY), asyncio.create_task(round_.run(*HONEST))
    await eventually(
        "its opening messages have come", lambda: all(AUXILIARY in round_.runners[at]._weights for at in HONEST)
    )
    await victim.shutdown()
    assert await living == [""] * 3
    require_close(round_.require_one_average(*HONEST), expected)
    assert round_.found()[:3] == [set()] * 3
    await round_.give_up(AUXILIARY, dying)
