"""The inside of a round, with a stand-in for its all-reduce; real rounds are in tests/system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from auth.keys import DeviceKey
from peer.averaging.absences import UNDERCOUNTED_ROUNDS, Attendance
from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.declarations import DeclaredGroup
from peer.averaging.exchange import GradientExchange
from peer.averaging.rounds import AveragedGroup, PlannedRound
from peer.averaging.shares import GroupLines, RoundPlan, part_size
from peer.config.training import Averaging, Compression
from peer.gradients.buffer import SharedTensors
from peer.gradients.power_sgd import FIRST
from peer.network.traffic import Traffic
from peer.reduction.attestation import AttestedRound, digest_of_all, layout_of
from peer.reduction.compression import compression_of
from peer.reduction.findings import Accusations
from peer.reduction.screening import LEAST_ROUNDS
from peer.reduction.sizes import VALUE_BYTES, values_sent
from tests.support.receipts import key_of
from tests.support.waiting import PATIENCE_S

PEERS = ("own", "keeper", "bob", "mallory")
SHARES = (100, 200, 300, 360)
TARGET = 32
SHAPES = [torch.Size((24, 40)), torch.Size((5,))]


class Runner:
    """A half of a round in which all peers have averaged their shares, unless a test says otherwise."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.missed: Collection[str] = ()
        self.other_reducers = set(PEERS[1:])
        self.least_weight = float(TARGET)
        self.attested_by_peer = {"bob": "attested"}
        self.undercounting: Collection[str] = ()
        self.reducer = SimpleNamespace(
            silent=(), late=(), received_bytes=900, weights_by_peer={"bob": 8.0}, counted_by_peer={"bob": 4.0}
        )
        half = options["terms"].attesting.round.group_id
        self.evidence = SimpleNamespace(digests=[half, b"", b"bob's"], drawn=None)
        self.is_whole: bool | None = None

    @property
    def accounts(self) -> Any:
        """The reducers' attestations."""
        return SimpleNamespace(
            undercounting=lambda target: self.undercounting if target == TARGET else (),
            attestations=dict.fromkeys(PEERS),
        )

    def passed(self, is_whole: bool) -> str:
        """Return an event."""
        self.is_whole = is_whole
        return "passed"


class Scene:
    """A peer of a group of four, whose rounds are as `runs` makes their halves."""

    def __init__(self, averaging: Averaging) -> None:
        self.runs: Callable[[Any], object] = lambda _: None
        self.runners, self.events = list[Any](), list[Any]()
        self.expected, self.expecting = list[list[bytes]](), False
        self.begun, self.audits = list[tuple[bytes, object]](), list[tuple[object, ...]]()
        self.tensors, self.traffic = SharedTensors(SHAPES), Traffic()
        self.attendance = Attendance("own")
        tokens = {
            peer: SimpleNamespace(member=f"{peer}'s owner", role="keeper" if peer == "keeper" else "trainer")
            for peer in PEERS[:3]  # Mallory's has expired
        }
        tokens["bob"].public_key = "bob's key"
        guard = SimpleNamespace(
            begin=lambda *_: SimpleNamespace(ended=lambda: None),
            accepted=lambda *_: None,
            forget_norms=lambda: self.events.append("norms forgotten"),
            makes_means=True,
        )
        auditing = SimpleNamespace(
            expect=lambda attested: self.audits.append(("expect", attested)),
            begin=lambda group_id, audit, second: self.audits.append(("begin", group_id, audit.peers, second)),
            give_up=lambda group_id: self.audits.append(("give up", group_id)),
        )
        service = SimpleNamespace(name="reduce", may_contribute=None, expecting=self._expecting, begin=self._begin)
        accusations = Accusations(lambda: 0.0)
        accusations.accuse("mallory")
        self.key: DeviceKey = key_of("own")
        self.exchange = GradientExchange(
            self.tensors,
            averaging,
            "run",
            self.key,
            cast(Any, SimpleNamespace(peer_id="own")),
            cast(Any, service),
            cast(Any, SimpleNamespace(token_of=tokens.get)),
            cast(Any, guard),
            cast(Any, auditing),
            self.attendance,
            accusations,
            lambda _: None,
            self.traffic,
            cast(Any, SimpleNamespace(add=self.events.append)),
        )

    @contextmanager
    def _expecting(self, group_ids: list[bytes]) -> Iterator[None]:
        self.expected.append(group_ids)
        self.expecting = True
        try:
            yield
        finally:
            self.expecting = False

    def _begin(self, group_id: bytes, reducer: object) -> None:
        assert self.expecting
        self.begun.append((group_id, reducer))

    def new_runner(self, **options: Any) -> Runner:
        """Make a half of a round."""
        self.runners.append(Runner(**options))
        return cast(Runner, self.runners[-1])

    async def take_averages(self, runner: Runner, values: Sequence[torch.Tensor]) -> None:
        """Run a half of a round."""
        self.traffic.up.reserve(300)
        self.traffic.down.reserve(600)
        self.runs(runner)
        for tensor in values:
            tensor.fill_(1.0)

    def round(self, limit_s: float = PATIENCE_S, *, is_given_up: bool = False) -> PlannedRound:
        """Plan a round with the group."""
        lines = GroupLines((None,) * 4, (True,) * 4, (False, True, False, False), ("keeper", "bob"))
        plan = RoundPlan(lines, SHARES, promised_s=60.0, limit_s=limit_s)
        group = DeclaredGroup(b"group", PEERS, (b"",) * 4)
        return PlannedRound(group, (1, 4), plan, 8.0, TARGET, 0.0, lambda: is_given_up)

    async def average(self) -> AveragedGroup:
        """Average with the group."""
        return await self.exchange.average(self.round())

    def values(self) -> list[torch.Tensor]:
        """Return copies of the shared tensors, which must be free."""
        with self.tensors.used() as tensors:
            return [tensor.clone() for tensor in tensors]


@pytest.fixture
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """An exchange of gradients, of whole ones by default."""
    made = Scene(getattr(request, "param", Averaging()))
    monkeypatch.setattr("peer.averaging.exchange.ExactAllReduce", made.new_runner)
    monkeypatch.setattr("peer.averaging.exchange.take_averages", made.take_averages)
    return made


def fail(_: object) -> None:
    """Break a round off."""
    raise ConnectionError("a value is missing")


FACTORS = pytest.mark.parametrize("scene", [Averaging(powersgd_rank=2)], indirect=True)


@FACTORS
async def test_an_outcome_is_of_both_halves(scene: Scene) -> None:
    """The samples and weights are the second's, the bytes those of both, and the digest is of all attestations."""

    def run(runner: Any) -> None:
        if len(scene.runners) == 1:
            runner.least_weight, runner.reducer.weights_by_peer = 99.0, {}

    scene.runs = run
    found = await scene.average()
    halves = [b"group" + FIRST, b"group"]
    digests = [digest_of_all([half, b"", b"bob's"]) for half in halves]
    assert (found.size, found.samples, found.averaged_bytes) == (4, TARGET, 1800)
    assert (found.weights, found.counted, found.attested) == ({"bob": 8.0}, {"bob": 4.0}, {"bob": "attested"})
    assert found.digest == digest_of_all(digests)
    assert found.traffic == RoundTraffic(600.0, 1200.0, found.seconds, promised_s=60.0)


@FACTORS
async def test_senders_and_auditors_find_each_half_under_its_own_name(scene: Scene) -> None:
    """Senders are expected from the beginning, also those of the second half, and until the round's end."""
    await scene.average()
    halves = [b"group" + FIRST, b"group"]
    assert scene.expected == [halves]
    assert not scene.expecting
    assert scene.begun == [(half, run.reducer) for half, run in zip(halves, scene.runners, strict=True)]
    layout = layout_of(PEERS, SHARES)
    assert scene.audits == [
        told
        for half in halves
        for told in (
            ("expect", AttestedRound("run", 1, 4, half, layout)),
            ("begin", half, PEERS, ["keeper", "bob"]),
        )
    ]
    met = scene.events[::2]
    assert [(each.group, each.peers, each.shares) for each in met] == [(half.hex(), PEERS, SHARES) for half in halves]
    assert scene.events[1::2] == ["passed", "passed"]
    assert [run.is_whole for run in scene.runners] == [True, True]


@pytest.mark.parametrize("failing", [FIRST, b""])
@FACTORS
async def test_a_round_that_fails_in_either_half_leaves_nothing_behind(scene: Scene, failing: bytes) -> None:
    """No peer waits for its parts or its audit; the tensors are free, and as they were, for a retry."""
    scene.runs = lambda run: run.options["terms"].attesting.round.group_id == b"group" + failing and fail(run)
    with pytest.raises(ConnectionError, match="a value is missing"):
        await scene.average()
    assert scene.audits[-1] == ("give up", b"group" + failing)
    assert len(scene.runners) == (1 if failing else 2)
    assert scene.runners[-1].is_whole is False
    assert not scene.expecting
    assert not any(tensor.any() for tensor in scene.values())


async def test_a_cancelled_round_releases_the_tensors(scene: Scene) -> None:
    """As a failed one."""
    with scene.tensors.used():
        round_ = asyncio.create_task(scene.average())
        await asyncio.sleep(0)
        round_.cancel()
        await asyncio.wait({round_})
    assert scene.expected == []
    assert (await scene.average()).samples == TARGET


async def test_a_round_is_set_up_as_its_group_has_planned_it(scene: Scene) -> None:
    """A silent sender is given up before those who wait for its reducer give that up."""
    for _ in range(2):
        scene.attendance.round_ended(silent=["bob"], reducers=PEERS[1:], senders=PEERS)
    await scene.average()
    options, terms = scene.runners[0].options, scene.runners[0].options["terms"]
    assert (terms.peers, options["shares"], terms.weight) == (PEERS, SHARES, 8.0)
    assert terms.sender_timeout == pytest.approx(PATIENCE_S / 3)
    assert terms.reducer_timeout == pytest.approx(2 * PATIENCE_S / 3)
    assert (terms.unawaited, options["accused"]) == ({"bob"}, ["mallory"])
    attesting = terms.attesting
    assert attesting.members == {peer: f"{peer}'s owner" for peer in PEERS[:3]}
    assert (attesting.key, attesting.trusted) == (scene.key, {"keeper"})
    assert (attesting.key_of("bob"), attesting.key_of("mallory")) == (b"bob's key", None)


@pytest.mark.parametrize(
    ("scene", "compression"),
    [(Averaging(compression=code), code) for code in ("float16", "8bit-blockwise")],
    indirect=["scene"],
)
async def test_parts_are_cut_for_the_code_in_which_they_travel(scene: Scene, compression: Compression) -> None:
    """Of whole blocks, or averages of 8 bits would take four bytes a value to peers that missed them."""
    await scene.average()
    [options] = [run.options for run in scene.runners]
    assert options["terms"].compression.compression_type == compression_of(compression).compression_type
    assert options["part_size_bytes"] == part_size(24 * 40 + 5, compression, len(PEERS))


async def test_absent_peers_are_noted(scene: Scene) -> None:
    """Reducers without averages, silent senders, and reducers that undercount again in the same half."""

    def run(runner: Any) -> None:
        runner.missed, runner.undercounting = {"keeper"}, {"mallory"}
        runner.reducer.silent = {"bob"}
        fail(runner)

    scene.runs = run
    for _ in range(UNDERCOUNTED_ROUNDS):
        with pytest.raises(ConnectionError):
            await scene.average()
    assert scene.attendance.declared == ["keeper", "mallory"]
    assert scene.attendance.unawaited(PEERS[1:]) == {"bob"}


@FACTORS
async def test_each_half_has_its_own_counts(scene: Scene) -> None:
    """An honest reducer may undercount once in each."""
    scene.runs = lambda runner: setattr(runner, "undercounting", {"mallory"})
    await scene.average()
    assert scene.attendance.declared == []


@pytest.mark.parametrize("faulty", ["accounts", "passed"])
async def test_absent_peers_are_noted_before_anything_can_fail(
    scene: Scene, faulty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the others have attested, and whether or not the event can be written."""

    def break_off(*_: object) -> None:
        raise IndexError("an attestation of fewer senders")

    monkeypatch.setattr(Runner, faulty, property(break_off))
    scene.runs = lambda runner: setattr(runner, "missed", {"mallory"})
    round_ = scene.round()
    with pytest.raises(IndexError):
        await scene.exchange.average(round_)
    assert scene.attendance.declared == ["mallory"]
    assert round_.came_about


async def test_a_round_that_was_given_up_tells_nothing(scene: Scene) -> None:
    """The others' averages were still on their way."""

    def run(runner: Any) -> None:
        runner.missed, runner.reducer.silent = {"mallory"}, {"bob"}
        fail(runner)

    scene.runs = run
    for _ in range(2):
        round_ = scene.round(is_given_up=True)
        with pytest.raises(ConnectionError):
            await scene.exchange.average(round_)
        assert not round_.came_about
    assert (scene.attendance.declared, scene.attendance.unawaited(PEERS[1:])) == ([], set())
    assert scene.audits[-1] == ("give up", b"group")


@pytest.mark.parametrize("took_all_its_time", [True, False])
async def test_a_sender_is_late_only_at_the_end_of_a_rounds_time(scene: Scene, took_all_its_time: bool) -> None:
    """Reducers may have waited for it, too; a round that broke off early shows no late sender."""

    def run(runner: Any) -> None:
        runner.missed = {"keeper"}
        runner.reducer.late, runner.reducer.silent = {"bob"}, set(PEERS[1:])
        fail(runner)

    scene.runs = run
    for _ in range(2):
        with suppress(ConnectionError):
            await scene.exchange.average(scene.round(limit_s=0.0 if took_all_its_time else PATIENCE_S))
    assert scene.attendance.unawaited(PEERS[1:]) == ({"bob"} if took_all_its_time else set())
    assert scene.attendance.declared == ([] if took_all_its_time else ["keeper"])


@pytest.mark.parametrize(
    ("samples", "missed", "came_about"),
    [
        (TARGET, (), True),
        (TARGET, ("bob",), True),
        (TARGET, PEERS[1:], False),
        (TARGET - 3, (), True),
        (TARGET - 4, (), False),
    ],
)
async def test_a_round_comes_about_with_a_full_batch_and_absent_peers_that_can_be_named(
    scene: Scene, samples: int, missed: Collection[str], came_about: bool
) -> None:
    """Otherwise, its leader has begun with too few peers, or has told this peer of another group."""

    def run(runner: Any) -> None:
        runner.least_weight, runner.missed = float(samples), set(missed)

    scene.runs = run
    round_ = scene.round()
    assert (await scene.exchange.average(round_)).samples == samples
    assert round_.came_about == came_about


async def test_another_rank_begins_with_the_largest_usual_norm(scene: Scene) -> None:
    """The tensors' own norms are known again after some rounds; they are kept with another compression alone."""
    usual = Averaging()
    for _ in range(LEAST_ROUNDS + 1):
        await scene.average()
    limits = scene.runners[-1].options["limits"]
    scene.exchange.take_up(usual.with_code(("8bit-blockwise", 0)))
    assert scene.exchange.size_bytes == round(VALUE_BYTES["8bit-blockwise"] * scene.exchange.values)
    await scene.average()
    assert scene.runners[-1].options["limits"] == limits
    assert "norms forgotten" not in scene.events
    scene.exchange.take_up(usual.with_code(("8bit-blockwise", 2)))
    assert scene.exchange.size_bytes == round(VALUE_BYTES["8bit-blockwise"] * values_sent(SHAPES, 2))
    await scene.average()
    assert scene.expected[-1] == [b"group" + FIRST, b"group"]
    assert [run.options["limits"] for run in scene.runners[-2:]] == [[max(limits)], [max(limits)] * 2]
    assert scene.events.count("norms forgotten") == 1
