"""Gradients that are set aside for a round in the background; real rounds are in tests/system."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import hivemind
import pytest
import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.optim.grad_averager import GradientAverager
from hivemind.p2p import PeerID
from hivemind.utils import MPFuture
from hivemind.utils.serializer import MSGPackSerializer

from auth.keys import DeviceKey
from auth.swarm.access import SwarmAccess
from auth.swarm.directory import PeerDirectory
from auth.tokens import AccessToken
from peer.averaging.absences import Absences
from peer.averaging.averager import MISSED_ROUNDS, MOST_HEARD, AveragedGroup, BalancedRounds, SwarmGradientAverager
from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.declarations import Declaration, read_declaration
from peer.averaging.meetings import MAX_REPORT_BYTES, MOST_DELIVERED, Heard, Requirements, UnconfirmedAverageError
from peer.averaging.rounds import LEAST_KNOWN, LEAST_S, RoundDeadline
from peer.averaging.shares import GroupLines, part_size
from peer.config.training import Averaging, Compression
from peer.network.traffic import Traffic
from peer.node.quorum import Quorum
from peer.reduction.attestation import digest_of_all
from peer.reduction.compression import compression_of
from peer.reduction.findings import Finding, FindingKind
from peer.reduction.screening import LEAST_ROUNDS
from peer.reduction.sizes import VALUE_BYTES
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon


@pytest.fixture
def parameter() -> torch.nn.Parameter:
    """What is trained."""
    return torch.nn.Parameter(torch.zeros(3))


@pytest.fixture
def averager(dht: hivemind.DHT, parameter: torch.nn.Parameter, key: DeviceKey) -> SwarmGradientAverager:
    """An averager that is never started, so that no round begins."""
    access = cast(SwarmAccess, SimpleNamespace(run="run", credentials=SimpleNamespace(device_key=key)))
    return SwarmGradientAverager(
        [parameter],
        dht=dht,
        prefix="test",
        access=access,
        traffic=Traffic(),
        allreduce_timeout=PATIENCE_S,
        start=False,
    )


@pytest.fixture
def no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps end before they look for a group."""

    async def begin(_averager: Any, *, step: StepControl, future_for_init: MPFuture[Any]) -> None:
        del future_for_init
        step.attach(MPFuture(), MPFuture())

    monkeypatch.setattr(GradientAverager, "_step", begin)


class FakeMeetings:
    """Meetings that record an averager's calls, and confirm an average once they `may_confirm`."""

    def __init__(self, averager: BalancedRounds) -> None:
        averager.__dict__["meetings"] = self
        self.ends_at: list[float] = []
        self.lacking = 0  # rounds whose average this peer does not have
        self.held: list[bytes] = []
        self.holds, self.may_confirm, self.is_void = asyncio.Event(), asyncio.Event(), False
        self.wanted: list[Requirements] = []
        self.declared: list[tuple[tuple[int, int], bytes]] = []
        self.came_about: list[bool] = []
        self.reasons: list[str] = []

    def want(self, wanted: Requirements) -> None:
        self.wanted.append(wanted)

    def declare(self, position: tuple[int, int], declared: bytes) -> None:
        self.declared.append((position, declared))

    def group_ended(self, came_about: bool) -> None:
        self.came_about.append(came_about)

    def distrust_leader(self, reason: str) -> None:
        self.reasons.append(reason)

    def round_began(self, ends_at: float) -> None:
        self.ends_at.append(ends_at)

    def round_failed(self) -> None:
        self.lacking += 1

    async def confirm(self, digest: bytes) -> None:
        self.held.append(digest)
        self.holds.set()
        await self.may_confirm.wait()
        if self.is_void:
            raise UnconfirmedAverageError("too few peers hold it")


def step_control() -> StepControl:
    """A step that another process has asked for."""
    return StepControl(0.0, 1e12, True, 1.0, MSGPackSerializer.dumps([None, 0, b"\xc0"]))


def accumulate(averager: SwarmGradientAverager, parameter: torch.nn.Parameter, value: float, samples: int) -> None:
    """Add a microbatch whose gradient is `value` in each sample."""
    assert parameter.grad is not None
    parameter.grad.add_(value * samples)
    averager.accumulate_grads_(samples)


def averaged(averager: SwarmGradientAverager) -> list[float]:
    """What would be sent to the others."""
    averager.load_accumulators_into_averager_()
    with averager.get_tensors() as tensors:
        return [float(value) for value in tensors[0]]


def test_what_is_held_is_averaged_and_what_comes_after_is_not(
    averager: SwarmGradientAverager, parameter: torch.nn.Parameter
) -> None:
    """The mean over the samples that were there when the round began, however many come beside it."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 100.0, samples=8)
    assert averager.due_samples == 4
    assert averaged(averager) == [2.0] * 3


def test_a_failed_round_gives_back_what_it_had(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """Then all samples count towards the same step: none is lost, none is counted twice."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 5.0, samples=8)
    averager.take_back()
    assert not averager.holds
    assert averager.due_samples == 12
    assert averaged(averager) == [4.0] * 3


def test_a_step_lends_the_gradients_place(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """The optimizer finds the average in `.grad`; afterwards what came beside the round is there, for the next step."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 5.0, samples=8)
    with averager.making_room():
        assert parameter.grad is not None
        parameter.grad.fill_(-1.0)
    assert averager.due_samples == 8
    assert averaged(averager) == [5.0] * 3


def test_a_step_that_was_waited_for_uses_all_up(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """Without a round in the background the next step begins from nothing."""
    accumulate(averager, parameter, 2.0, samples=4)
    with averager.making_room():
        assert parameter.grad is not None
        parameter.grad.fill_(-1.0)
    assert averager.due_samples == 0
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.zeros(3))


def test_all_that_is_dropped_is_counted(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """A peer that was out of sync loses what it held and what came beside it, and says how much that was."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 5.0, samples=8)
    assert averager.drop_all() == 12
    assert (averager.holds, averager.due_samples) == (False, 0)
    assert averaged(averager) == [0.0] * 3


@pytest.mark.parametrize("kind", ["average", "reduction", "shown"])
def test_what_is_found_of_a_peer_is_an_accusation(averager: SwarmGradientAverager, kind: FindingKind) -> None:
    """It takes the peer its part in later groups where most accuse it, and goes to the operator."""
    finding = Finding("Qm1", kind, "returned something")
    averager._note(finding)
    assert averager.findings.take() == [finding]
    assert averager._accusations.current() == ["Qm1"]


@pytest.mark.usefixtures("no_round")
async def test_each_search_is_for_the_step_and_the_code_that_the_trainer_wants(
    averager: SwarmGradientAverager, key: DeviceKey
) -> None:
    """The averager's process takes up both for its next search, declares them, and meets others instead of hivemind."""
    meetings = FakeMeetings(averager)
    wanted = [
        Requirements(0, 4),
        Requirements(1, 5, ("8bit-blockwise", 0)),
        Requirements(1, 6, ("float16", 8)),
        Requirements(1, 7),
    ]
    for each in wanted:
        await averager._want(each)
        await averager._step(step=step_control(), future_for_init=MPFuture())
        assert averager.averaging.code == each.code
        assert averager._matchmaking is averager
        position, declared = meetings.declared[-1]
        assert position == each.position
        read_declaration(declared, key.public_key.decode(), "run", each.position, each.code)
    assert meetings.wanted == wanted
    assert len(meetings.declared) == len(wanted)


def test_requirements_are_sent_when_they_change(
    averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the averager's process."""
    sent: list[Any] = []
    monkeypatch.setattr(averager, "_outer_pipe", SimpleNamespace(send=sent.append))
    for wanted in (Requirements(), Requirements(step=4), Requirements(step=4), Requirements(step=5)):
        averager.want(wanted)
        assert averager.wanted == wanted
    assert sent == [("_want", [Requirements(step=step)], {}) for step in (4, 5)]


def test_what_is_heard_fits_into_a_pipe() -> None:
    """Otherwise, a member's long reports could block the averager's loop."""
    heard = Heard((0, 0), {f"Qm{number:044}": bytes(MAX_REPORT_BYTES) for number in range(MOST_DELIVERED)}, (1, 1.0))
    assert MOST_HEARD * len(pickle.dumps(heard)) < 2**16


def test_another_code_begins_with_what_is_usual_in_it(averager: SwarmGradientAverager) -> None:
    """Times of rounds are learnt anew, and with a rank what tensors are like; remainders are dropped with the rank."""
    usual = averager.averaging
    for norm in range(1, LEAST_ROUNDS + 1):
        averager._screen.accepted(b"", [torch.tensor([float(norm)]), torch.ones(1)])
    limits = averager._screen.limits(b"", 2)
    assert not averager.change(usual)
    averager._deadline.succeeded(1.0)
    assert averager.change(usual.with_code(("8bit-blockwise", 0)))
    assert averager.round_bytes == round(VALUE_BYTES["8bit-blockwise"] * 3)
    assert not averager._deadline._taken
    assert averager._screen.limits(b"", 2) == limits
    assert averager.change(usual.with_code(("8bit-blockwise", 4)))
    code = averager._code
    assert averager._screen.limits(b"", 3) == [max(limits)] * 3
    assert averager.change(usual.with_code(("none", 4)))
    assert averager._code is code
    assert averager.averaging.code == ("none", 4)


async def test_gradients_that_were_averaged_are_not_averaged_again(averager: SwarmGradientAverager) -> None:
    """This peer's own numbers are gone then: the next attempt loads them anew."""
    averager._control, averager._averaged.value = cast(Any, "a step"), True
    with pytest.raises(RuntimeError, match="failed after that"):
        await averager._aggregate_with_group(cast(GroupInfo, None))
    averager.load_accumulators_into_averager_()
    assert not averager._averaged.value


class RoundOfTwo(BalancedRounds):
    """A round of this peer (the first) with another one on a line three times as fast, without a network."""

    def __init__(self) -> None:
        self.total_size, self.wanted, self._traffic = 8, Requirements(target=12), Traffic()
        self._control = SimpleNamespace(stage=AveragingStage.RUNNING_ALLREDUCE)
        self.meetings = FakeMeetings(self)
        self.meetings.may_confirm.set()
        self.round_bytes = 600
        self._deadline = RoundDeadline(PATIENCE_S)
        self.tensors, self.shares = [torch.zeros(8)], tuple[int, ...]()
        self.directory = SimpleNamespace(
            token_of=lambda peer: SimpleNamespace(role="trainer", receipt_key=f"pseudonym of {peer}")
        )
        self._traffic.up.reserve(1_000)  # before the round
        self.peer_id, self.failures, self.patience_s = PeerID(b"own"), 0, 3.0
        self.group = GroupInfo(b"group", (self.peer_id, PeerID(b"other")), (b"", b""))
        self.limits: dict[str, float] = {}

    def _read_lines(self, group_info: GroupInfo, _tokens: object) -> GroupLines:
        assert group_info is self.group
        return GroupLines((10.0, 30.0), (True, True), (False, False), (), self.patience_s)

    @contextmanager
    def get_tensors(self) -> Iterator[list[torch.Tensor]]:
        yield self.tensors

    def _round_failed(self, _control: object, *, is_void: bool) -> None:
        self.failures += 1
        assert is_void is self.meetings.is_void

    async def _run_allreduce_inplace_(
        self, tensors: object, group_info: GroupInfo, *, peer_fractions: tuple[int, ...], **kwargs: float
    ) -> AveragedGroup:
        assert tensors is self.tensors
        self.limits = kwargs
        self.shares = peer_fractions
        self._traffic.up.reserve(600)
        self._traffic.down.reserve(900)
        return AveragedGroup(group_info.group_size, samples=12, averaged_bytes=900, seconds=2.0, digest=b"digest")


async def test_a_round_says_what_passed_on_the_line_and_what_the_lines_promised() -> None:
    """So that a peer's estimate of its own line follows its rounds; shares are those of the lines."""
    averager = RoundOfTwo()
    found = await averager._aggregate_with_group(averager.group, min_vector_size=0)
    assert averager.shares == (2, 6)
    assert (found.size, found.samples, found.seconds) == (2, 12, 2.0)
    assert found.peers == {peer.to_base58() for peer in averager.group.peer_ids}
    assert found.pseudonyms == {peer: f"pseudonym of {peer}" for peer in found.peers}
    assert found.traffic == RoundTraffic(sent_bytes=600.0, received_bytes=900.0, seconds=2.0, promised_s=60.0)
    assert averager.failures == 0


@pytest.mark.parametrize(
    ("voters", "averages"),
    [(["own", "other"], True), (["own", "other", "third"], True), (["own", "third"], False), (["third"], False)],
)
async def test_a_group_that_is_no_quorum_does_not_average(voters: list[str], averages: bool) -> None:
    """Beside it others may take the same step; nothing was begun then, and who leads such groups is passed over."""
    averager = RoundOfTwo()
    averager.wanted = Requirements(quorum=Quorum(frozenset(PeerID(voter.encode()).to_base58() for voter in voters)))
    with nullcontext() if averages else pytest.raises(MatchmakingException, match="others may take this step"):
        await averager._aggregate_with_group(averager.group, min_vector_size=0)
    assert (bool(averager.shares), averager.failures) == (averages, 0)
    assert averager.meetings.came_about == [False] * (not averages)


@pytest.mark.parametrize("is_void", [False, True])
async def test_an_average_waits_until_it_is_confirmed(is_void: bool) -> None:
    """Without a time limit here, and seen as no running all-reduce; a void one makes the round a failed one."""
    averager = RoundOfTwo()
    averager.meetings.may_confirm.clear()
    averager.meetings.is_void = is_void
    now = asyncio.get_running_loop().time()
    round_ = asyncio.create_task(averager._aggregate_with_group(averager.group, min_vector_size=0))
    holding = asyncio.create_task(averager.meetings.holds.wait())
    await asyncio.wait({round_, holding}, return_when=asyncio.FIRST_COMPLETED)
    assert not round_.done()
    assert averager._control.stage is AveragingStage.FINISHED
    assert averager.meetings.held == [b"digest"]
    [ends_at] = averager.meetings.ends_at
    assert ends_at >= now + 120.0  # its time limit
    averager.meetings.may_confirm.set()
    if is_void:
        with pytest.raises(UnconfirmedAverageError):  # hivemind would seek another group after its own exceptions
            await round_
    else:
        assert (await round_).digest == b"digest"
    assert averager.failures == is_void


async def test_an_average_of_too_few_samples_waits_for_nobody() -> None:
    """It leads to no step, of which the trainer then tells."""
    averager = RoundOfTwo()
    averager.wanted = Requirements(target=13)
    assert (await averager._aggregate_with_group(averager.group, min_vector_size=0)).samples == 12
    assert (averager.meetings.held, averager._control.stage) == ([], AveragingStage.RUNNING_ALLREDUCE)


async def test_a_digest_is_of_all_halves(averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else averages that differ in one of them could be one and the same to those who confirm them."""

    async def average_exactly(_: Any, _values: Any, group: Any, half: bytes) -> AveragedGroup:
        return AveragedGroup(group.group_size, samples=12, averaged_bytes=900, digest=half)

    async def average(values: Any, reduce: Any) -> None:
        for half in (b"first", b"second"):
            await reduce(values, half)

    monkeypatch.setattr(SwarmGradientAverager, "_average_exactly", average_exactly)
    monkeypatch.setattr(averager, "_code", SimpleNamespace(average=average))
    found = await averager._run_allreduce_inplace_([], GroupInfo(b"group", PEERS[:2], (b"", b"")))
    assert (found.digest, found.averaged_bytes) == (digest_of_all([b"first", b"second"]), 1800)


@pytest.mark.parametrize(
    ("agreed_s", "promised_s", "limit_s"),
    [(3.0, 1.0, LEAST_S), (30.0, 1.0, 30.0), (30.0, 40.0, 80.0), (1e6, 1.0, PATIENCE_S), (30.0, 1e6, PATIENCE_S)],
)
async def test_a_round_has_the_limits_that_its_group_agrees_on(
    agreed_s: float, promised_s: float, limit_s: float
) -> None:
    """Within this run's bounds; a silent sender is given up before those who wait for its reducer give that up."""
    averager = RoundOfTwo()
    averager.patience_s, averager.round_bytes = agreed_s, 10 * round(promised_s)
    await averager._aggregate_with_group(averager.group, min_vector_size=0)
    limits = {"sender_timeout": limit_s / 3, "reducer_timeout": 2 * limit_s / 3}
    assert averager.limits == pytest.approx(limits)


async def test_a_round_ends_at_its_limit() -> None:
    """As a failed one, after which another group is looked for."""

    class Endless(RoundOfTwo):
        async def _run_allreduce_inplace_(self, *_: object, **_kwargs: object) -> AveragedGroup:
            await asyncio.Event().wait()
            raise AssertionError

    averager = Endless()
    averager._deadline = RoundDeadline(0.01)
    with pytest.raises(MatchmakingException, match="TimeoutError"):
        await averager._aggregate_with_group(averager.group, min_vector_size=0)
    assert averager.failures == 1


PEERS = tuple(PeerID(b"\x12\x20" + bytes([number]) * 32) for number in range(4))
OWN, KEEPER, BOB, MALLORY = PEERS
TARGET = 32


class AfterRound:
    """An averager that has been in a round, as far as that says who was absent."""

    def __init__(self, averager: SwarmGradientAverager) -> None:
        self.averager = averager
        averager.__dict__["peer_id"] = OWN
        averager.wanted = Requirements(target=TARGET)
        self.meetings = FakeMeetings(averager)
        averager._directory = cast(PeerDirectory, SimpleNamespace(token_of=lambda _: None))
        averager._control, averager._position = step_control(), (0, 4)
        averager._control.attach(MPFuture(), MPFuture())
        averager._rate, averager._takes_connections = 1e6, True

    def note(
        self,
        missed: Collection[PeerID] = (),
        silent: Collection[PeerID] = (),
        late: Collection[PeerID] = (),
        undercounting: Collection[PeerID] = (),
        half: bytes = b"",
        attesting: Collection[PeerID] = PEERS,
        cannot_be_read: bool = False,
        samples: int = TARGET,
    ) -> None:
        """A round of four, in which these were missed or silent, still awaited at its end, or counted too little.

        `cannot_be_read`: the attestations.
        """
        low = {peer.to_base58() for peer in undercounting}

        def undercounted(target: int) -> set[str]:
            if cannot_be_read:
                raise IndexError("an attestation of fewer senders")
            return low if target == TARGET else set()

        runner = SimpleNamespace(
            missed={peer.to_base58() for peer in missed},
            silent={peer.to_base58() for peer in silent},
            late={peer.to_base58() for peer in late},
            accounts=SimpleNamespace(
                undercounting=undercounted,
                attestations={peer.to_base58(): None for peer in attesting},
            ),
            other_reducers={peer.to_base58() for peer in PEERS[1:]},
            sender_peer_ids=PEERS,
            least_weight=samples,
        )
        self.averager._note_absent(cast(Any, runner), half, self.averager._control)

    def declared(self, key: DeviceKey) -> Declaration:
        self.averager._declare()
        return read_declaration(self.averager._declared, key.public_key.decode(), "run", (0, 4), ("float16", 0))


@pytest.fixture
def after_round(averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch) -> AfterRound:
    """As above."""
    monkeypatch.setattr(SwarmGradientAverager, "peer_id", OWN)
    return AfterRound(averager)


def test_a_missed_reducer_is_declared(
    after_round: AfterRound, key: DeviceKey, caplog: pytest.LogCaptureFixture
) -> None:
    """To the next groups, signed; the log says that it is missing, and nobody is suspected."""
    after_round.note(missed=[MALLORY])
    assert after_round.declared(key).missed == [MALLORY.to_base58()]
    assert f"missing: no member, peer {MALLORY}, did not return all averages" in caplog.text
    assert after_round.averager.findings.take() == []
    assert after_round.meetings.came_about == [True]
    for _ in range(MISSED_ROUNDS):
        after_round.note()
    assert after_round.declared(key).missed == []


def test_a_reducer_that_undercounts_twice_in_succession_is_declared(
    after_round: AfterRound, key: DeviceKey, caplog: pytest.LogCaptureFixture
) -> None:
    """Each half of a round by itself; once may be chance, and this peer's own counts are no reason to be silent."""
    for half, low in ((b"a", [BOB]), (b"b", [MALLORY]), (b"a", [MALLORY]), (b"b", [BOB])):
        after_round.note(undercounting=low, half=half)
    assert after_round.declared(key).missed == []
    after_round.note(half=b"a", attesting=[OWN, KEEPER, BOB])  # a round that it is not in says nothing of it
    assert after_round.declared(key).missed == []
    after_round.note(undercounting=[MALLORY, OWN], half=b"a")
    assert after_round.declared(key).missed == [MALLORY.to_base58()]
    after_round.note(undercounting=[OWN], half=b"a")
    assert after_round.declared(key).missed == [MALLORY.to_base58()]
    assert f"missing: no member, peer {MALLORY}, counted too few of others' samples again" in caplog.text
    assert after_round.meetings.came_about == [True] * 7


def test_a_sender_that_was_silent_twice_is_not_waited_for(after_round: AfterRound) -> None:
    """The others hear nothing of that: each reducer decides for itself."""
    averager = after_round.averager
    after_round.note(silent=[BOB])
    assert averager._silent.current() == set()
    after_round.note(silent=[BOB])
    assert averager._silent.current() == {BOB.to_base58()}
    assert averager._missed.current() == set()


@pytest.mark.parametrize("took_all_its_time", [True, False])
def test_a_sender_too_slow_for_the_round_twice_is_not_waited_for(
    after_round: AfterRound, took_all_its_time: bool
) -> None:
    """A round that broke off early tells nothing of those whose parts were still on their way."""
    after_round.averager._nearly_over_at = time.monotonic() + (0.0 if took_all_its_time else PATIENCE_S)
    for _ in range(2):
        after_round.note(late=[BOB], silent=PEERS[1:])  # a round that is broken off breaks off everybody's stream
    assert after_round.averager._silent.current() == ({BOB.to_base58()} if took_all_its_time else set())


def test_who_awaits_a_late_sender_too_is_not_missed(after_round: AfterRound, key: DeviceKey) -> None:
    """At the end of a round's time a reducer that this peer awaits may await the same sender as this peer."""
    after_round.averager._nearly_over_at = time.monotonic()
    after_round.note(missed=[KEEPER], late=[BOB])
    assert after_round.declared(key).missed == []
    assert after_round.meetings.came_about == [True]


def test_who_was_absent_is_noted_before_anything_can_fail(after_round: AfterRound, key: DeviceKey) -> None:
    """Whatever the others have attested."""
    with pytest.raises(IndexError):
        after_round.note(missed=[MALLORY], silent=[BOB], cannot_be_read=True)
    assert after_round.declared(key).missed == [MALLORY.to_base58()]
    after_round.note(silent=[BOB])
    assert after_round.averager._silent.current() == {BOB.to_base58()}


async def test_a_digest_is_of_all_that_the_reducers_attest(
    averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order; who confirms it has the same averages."""
    part: Any = SimpleNamespace(
        passed=lambda _is_whole: None,
        evidence=SimpleNamespace(digests=[b"own", b"", b"bob's"]),
        peer_fractions=(1.0, 0.0),
        least_weight=12.0,
        received_bytes=900,
        weights_by_peer={},
        counted_by_peer={},
        attested_by_peer={},
        ended=lambda: None,
        begin=lambda *_: part,
        expect=lambda _: None,
        accepted=lambda *_: None,
        makes_means=True,
        limits=lambda *_: [],
    )

    async def done(*_: object) -> None:
        """All averages have come."""

    for name, stub in (("ExactAllReduce", lambda **_: part), ("take_averages", done), ("Audit", lambda *_, **__: part)):
        monkeypatch.setattr(f"peer.averaging.averager.{name}", stub)
    averager.__dict__ |= {"auditing": part, "_guard": part, "_screen": part}
    monkeypatch.setattr(averager, "_directory", SimpleNamespace(token_of=lambda _peer: None))
    monkeypatch.setattr(averager, "_note_absent", lambda *_: None)
    monkeypatch.setattr(averager, "_events", SimpleNamespace(add=lambda _: None))
    monkeypatch.setattr(averager, "_running_groups", {b"group": asyncio.Future()})
    averager._p2p = SimpleNamespace(peer_id=PEERS[0])
    group = GroupInfo(b"group", PEERS[:2], (b"", b""))
    found = await averager._average_exactly([torch.zeros(3)], group, b"", peer_fractions=(1, 0))
    assert found.digest == digest_of_all([b"own", b"", b"bob's"])


async def test_a_round_that_cannot_be_told_of_notes_who_was_absent(
    averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its event nor the judgement of what it showed stands before that."""
    noted: list[object] = []

    async def fails(*_: object) -> None:
        raise MatchmakingException("the round has failed")

    def cannot_tell(_is_whole: bool) -> None:
        raise ValueError("an event that cannot be written")

    runner = SimpleNamespace(passed=cannot_tell, peer_fractions=(1.0, 0.0))
    monkeypatch.setattr("peer.averaging.averager.ExactAllReduce", lambda **_: runner)
    monkeypatch.setattr("peer.averaging.averager.take_averages", fails)
    monkeypatch.setattr(averager, "_directory", SimpleNamespace(token_of=lambda _peer: None))
    monkeypatch.setattr(averager, "_note_absent", lambda *noted_of: noted.append(noted_of[0]))
    monkeypatch.setattr(averager, "_running_groups", {b"group": asyncio.Future()})
    averager._p2p = SimpleNamespace(peer_id=PEERS[0])
    group: Any = SimpleNamespace(group_id=b"group", group_size=2, peer_ids=list(PEERS[:2]))
    with pytest.raises(ValueError, match="cannot be written"):
        await averager._average_exactly([torch.zeros(3)], group, b"", peer_fractions=(1, 0))
    assert noted == [runner]


def test_a_peer_that_misses_most_blames_nobody(after_round: AfterRound, key: DeviceKey) -> None:
    """Its own line was down, or the leader has told it of another group than the others."""
    after_round.note(missed=PEERS[1:], silent=PEERS[1:])
    assert after_round.declared(key).missed == []
    assert after_round.averager._silent.current() == set()
    assert after_round.meetings.came_about == [False]


def test_a_round_of_too_few_samples_has_not_come_about(after_round: AfterRound) -> None:
    """Its leader has begun with too few peers; another one may lead the next group."""
    after_round.note(samples=TARGET - 1)
    after_round.note(samples=TARGET)
    assert after_round.meetings.came_about == [False, True]


def test_a_round_that_was_given_up_tells_nothing(after_round: AfterRound, key: DeviceKey) -> None:
    """The others' averages were still on their way."""
    assert after_round.averager._control is not None
    MPFuture.cancel(after_round.averager._control)
    after_round.note(missed=[MALLORY], silent=[BOB])
    after_round.averager._round_failed(after_round.averager._control)
    assert after_round.declared(key).missed == []
    assert after_round.averager.failed_rounds == 0


def test_only_an_unexplained_failure_asks_for_more_time(after_round: AfterRound) -> None:
    """A reducer that is missing is not too slow a line, and has cost enough time already."""
    averager = after_round.averager
    averager._deadline = RoundDeadline(600.0)
    for _ in range(LEAST_KNOWN):
        averager._deadline.succeeded(30.0)
    after_round.note(missed=[MALLORY])
    averager._round_failed(averager._control)
    assert (averager._deadline.seconds, averager.failed_rounds, averager.meetings.lacking) == (90.0, 1, 1)
    averager._missed = Absences(free=0, first_rounds=1)
    averager._round_failed(averager._control)
    assert (averager._deadline.seconds, averager.failed_rounds) == (180.0, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({}, ""), ({0: b"changed"}, "changed what this peer"), ({1: b"changed"}, "The declaration is not one")],
)
def test_a_group_with_changed_words_is_given_up(
    after_round: AfterRound, key: DeviceKey, changes: dict[int, bytes], reason: str
) -> None:
    """One's own, or another's; and the leader is distrusted."""
    averager, reasons = after_round.averager, after_round.meetings.reasons
    averager._declare()
    token = AccessToken("alice", "1", "peer", key.public_key.decode(), "trainer", "run", 0.0, 1.0, "a" * 64)
    gathered = [changes.get(index, averager._declared) for index in range(2)]
    group = GroupInfo(b"group", PEERS[:2], tuple(gathered))
    if not reason:
        assert averager._read_lines(group, [token, token]).rates == (1e6, 1e6)
        with pytest.raises(MatchmakingException, match="no valid token"):
            averager._read_lines(group, [token, None])
        assert reasons == []
        return
    with pytest.raises(MatchmakingException, match=reason):
        averager._read_lines(group, [token, token])
    assert len(reasons) == 1


def test_a_follower_is_heard_at_any_step(after_round: AfterRound, key: DeviceKey) -> None:
    """It may come before this peer is at its step; what is not signed for this run is invalid."""
    averager = after_round.averager
    token = AccessToken("alice", "1", "peer", key.public_key.decode(), "trainer", "run", 0.0, 1.0, "a" * 64)
    averager._position = (3, 9)
    averager._declare()
    averager._position = (0, 4)
    assert averager._opened(averager._declared, token).position == (3, 9)
    with pytest.raises(ValueError, match="is not one"):
        averager._opened(b"changed", token)


async def test_a_step_that_was_given_up_takes_part_in_no_round(
    averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its round has begun: else its samples would be averaged here, and by the next attempt once more."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def reduce(_averager: Any, _group: Any) -> None:
        began.set()
        try:
            await asyncio.Future()
        except asyncio.CancelledError as error:
            ended.set()
            raise MatchmakingException("the round failed") from error

    monkeypatch.setattr(BalancedRounds, "_aggregate_with_group", reduce)
    averager._control = step_control()
    averager._control.attach(MPFuture(), MPFuture())
    round_ = asyncio.create_task(averager._aggregate_with_group(cast(Any, None)))
    await asyncio.wait({round_, asyncio.create_task(began.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not round_.done()
    averager._control.cancel()
    with pytest.raises(MatchmakingException):
        await asyncio.wait_for(round_, PATIENCE_S)
    assert ended.is_set()


@pytest.mark.usefixtures("no_round")
async def test_a_step_is_not_known_as_given_up_before_that_shows(averager: SwarmGradientAverager) -> None:
    """hivemind looks once, when it is told; if nothing shows then, it goes on with the step to the end."""
    FakeMeetings(averager)
    step = step_control()
    await averager._step(step=step, future_for_init=MPFuture())
    assert step._cancel is not None
    waiting = asyncio.create_task(step.wait_for_cancel())
    step._cancel.set_result(None)
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    MPFuture.cancel(step)
    await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.mark.parametrize("compression", ["float16", "8bit-blockwise", "topk-2bit"])
async def test_parts_are_cut_for_the_code_in_which_they_travel(
    compression: Compression, averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole chunks, or averages of 8 bits would take four bytes a value to peers that missed them."""
    asked: list[dict[str, Any]] = []

    def no_round(**options: Any) -> None:
        asked.append(options)
        raise MatchmakingException("there is no network")

    monkeypatch.setattr("peer.averaging.averager.ExactAllReduce", no_round)
    monkeypatch.setattr(averager, "_directory", SimpleNamespace(token_of=lambda _peer: None))
    averager.averaging, averager._p2p = Averaging(compression=compression), SimpleNamespace(peer_id=PEERS[0])
    group: Any = SimpleNamespace(group_id=b"group", group_size=2, peer_ids=list(PEERS[:2]))
    values, of_hivemind = [torch.zeros(81_000)], {"part_size_bytes": 7, "compression": None}
    with pytest.raises(MatchmakingException):
        await averager._average_exactly(values, group, b"", peer_fractions=(1, 1), **of_hivemind)
    [options] = asked
    assert options["compression"].compression_type == compression_of(compression).compression_type
    assert options["part_size_bytes"] == part_size(81_000, compression, 2)
