"""Gradients that are set aside for a round in the background; real rounds are in tests/system."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import hivemind
import pytest
import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking, MatchmakingException
from hivemind.optim.grad_averager import GradientAverager
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture
from hivemind.utils.serializer import MSGPackSerializer

from auth.swarm.access import AuthorizedAverager, SwarmAccess
from auth.swarm.directory import PeerDirectory
from peer.averaging.averager import AveragedGroup, BalancedRounds, SwarmGradientAverager
from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.matchmaking import Gathering
from peer.averaging.rounds import RoundDeadline
from peer.averaging.shares import LEAST_PART_BYTES
from peer.network.traffic import Traffic
from peer.reduction.findings import Finding, FindingKind
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon


@pytest.fixture
def parameter() -> torch.nn.Parameter:
    """What is trained."""
    return torch.nn.Parameter(torch.zeros(3))


@pytest.fixture
def averager(dht: hivemind.DHT, parameter: torch.nn.Parameter) -> SwarmGradientAverager:
    """An averager that is never started, so that no round begins."""
    access = cast(SwarmAccess, None)  # nobody asks to take part
    return SwarmGradientAverager(
        [parameter],
        dht=dht,
        prefix="test",
        access=access,
        traffic=Traffic(),
        gathering=Gathering(5.0),
        allreduce_timeout=PATIENCE_S,
        start=False,
    )


@pytest.fixture
def searches(averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch) -> list[Matchmaking]:
    """Each search for a group that the averager begins, as far as it says who may follow, in place of the real ones."""
    begun: list[Matchmaking] = []

    async def begin(averager: Any, *, step: StepControl, future_for_init: MPFuture[Any]) -> None:
        step.attach(MPFuture(), MPFuture())
        search = Matchmaking.__new__(Matchmaking)
        search.lock_looking_for_group, search.assembled_group = asyncio.Lock(), asyncio.Future()
        await search.lock_looking_for_group.acquire()
        search.group_key_manager = SimpleNamespace(current_key="another")
        search.client_mode, search.schema_hash = False, averager._matchmaking.schema_hash
        begun.append(search)

    monkeypatch.setattr(GradientAverager, "_step", begin)
    averager._leaders = cast(Any, "chosen already")
    averager._matchmaking = SimpleNamespace(potential_leaders=SimpleNamespace(), schema_hash=averager.schema_hash)
    return begun


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


@pytest.mark.parametrize(("kind", "accused"), [("average", ["Qm1"]), ("samples", ["Qm1"]), ("reduction", [])])
def test_only_what_this_peer_saw_itself_is_an_accusation(
    averager: SwarmGradientAverager, kind: FindingKind, accused: list[str]
) -> None:
    """What others showed it after the round takes no reducer its part; it goes to the operator all the same."""
    finding = Finding("Qm1", kind, "returned something")
    averager._note(finding)
    assert averager.findings.take() == [finding]
    assert averager._accusations.current() == accused


def test_a_group_is_looked_for_as_long_as_the_gathering_wants(averager: SwarmGradientAverager) -> None:
    """Also by the first search, before the gathering steers it; each answer is waited for less long."""
    searching = averager.matchmaking_kwargs
    assert (searching["min_matchmaking_time"], searching["request_timeout"]) == (5.0, 2.5)


async def test_peers_at_different_steps_form_no_group(
    averager: SwarmGradientAverager, searches: list[Matchmaking]
) -> None:
    """Who takes the keeper's place a step late would average the next step's gradients and call it its own."""
    for step in (4, 5, 4):
        averager.gathering.position = (0, step)
        await averager._step(step=step_control(), future_for_init=MPFuture())
    at_4, at_5, at_4_too = searches
    answers = [
        at_4._check_reasons_to_reject(averaging_pb2.JoinRequest(schema_hash=other.schema_hash), cast(Any, None))
        for other in (at_5, at_4_too)
    ]
    assert [answer and averaging_pb2.MessageCode.Name(answer.code) for answer in answers] == [
        "BAD_SCHEMA_HASH",
        "BAD_GROUP_KEY",
    ]


@pytest.mark.parametrize(("roles", "averages"), [("tt", False), ("ttt", True), ("tk", True)])
async def test_a_group_without_the_keeper_averages_only_with_enough_peers(
    averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch, roles: str, averages: bool
) -> None:
    """Beside it another group may take the same step; the keeper is in one only."""

    def shares(*_: Any) -> None:
        raise ZeroDivisionError  # the group was found good, and its round begins

    monkeypatch.setattr("peer.averaging.averager.reduction_shares", shares)
    monkeypatch.setattr(
        "peer.averaging.averager.group_lines", lambda *_: SimpleNamespace(rates=[], reduces=[], trusted=[])
    )
    peers = [PeerID(f"{role}{index}".encode()) for index, role in enumerate(roles)]
    averager._directory = cast(
        PeerDirectory,
        SimpleNamespace(token_of=lambda peer: SimpleNamespace(role="keeper" if b"k" in peer.to_bytes() else "trainer")),
    )
    averager.gathering.keeperless, averager._declared = 3, b""
    group = GroupInfo(b"group", tuple(peers), (b"",) * len(peers))
    with pytest.raises(MatchmakingException, match="ZeroDivisionError" if averages else "without the keeper"):
        await BalancedRounds._aggregate_with_group(averager, group, min_vector_size=0)


class RoundOfTwo(BalancedRounds):
    """A round of this peer (the first) with another one on a line three times as fast, without a network."""

    def __init__(self) -> None:
        self.total_size, self.gathering, self._traffic = 8, Gathering(5.0), Traffic()
        self._deadline, self._allreduce_timeout = RoundDeadline(PATIENCE_S), 0.0
        self.tensors, self.shares = [torch.zeros(8)], tuple[int, ...]()
        self.directory = SimpleNamespace(token_of=lambda _peer: None)
        lines = [MSGPackSerializer.dumps([rate, AveragingMode.NODE.value, b"\x90"]) for rate in (10.0, 30.0)]
        self._traffic.up.reserve(1_000)  # before the round
        self.peer_id, self._declared = PeerID(b"own"), lines[0]
        self.group = GroupInfo(b"group", (self.peer_id, PeerID(b"other")), tuple(lines))

    @contextmanager
    def get_tensors(self) -> Iterator[list[torch.Tensor]]:
        yield self.tensors

    def _declare(self) -> None:
        """Nobody is there to be told of a failed round."""

    async def _run_allreduce_inplace_(
        self, tensors: object, group_info: GroupInfo, *, peer_fractions: tuple[int, ...], **kwargs: int
    ) -> AveragedGroup:
        assert tensors is self.tensors
        assert kwargs == {"part_size_bytes": LEAST_PART_BYTES}
        self.shares = peer_fractions
        self._traffic.up.reserve(600)
        self._traffic.down.reserve(900)
        return AveragedGroup(group_info.group_size, samples=12, averaged_bytes=900, seconds=2.0)


async def test_a_round_says_what_passed_on_the_line_and_what_the_lines_promised() -> None:
    """So that a peer's estimate of its own line follows its rounds; shares are those of the lines."""
    averager = RoundOfTwo()
    found = await averager._aggregate_with_group(averager.group, min_vector_size=0)
    assert averager.shares == (2, 6)
    assert (found.size, found.samples, found.seconds) == (2, 12, 2.0)
    assert found.traffic == RoundTraffic(sent_bytes=600.0, received_bytes=900.0, seconds=2.0, promised_s=60.0)
    assert averager._allreduce_timeout == PATIENCE_S


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

    monkeypatch.setattr(AuthorizedAverager, "_aggregate_with_group", reduce)
    averager._control = step_control()
    averager._control.attach(MPFuture(), MPFuture())
    round_ = asyncio.create_task(averager._aggregate_with_group(cast(Any, None)))
    await asyncio.wait({round_, asyncio.create_task(began.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not round_.done()
    averager._control.cancel()
    with pytest.raises(MatchmakingException):
        await asyncio.wait_for(round_, PATIENCE_S)
    assert ended.is_set()


async def test_a_step_is_not_known_as_given_up_before_that_shows(
    averager: SwarmGradientAverager, searches: list[Matchmaking]
) -> None:
    """hivemind looks once, when it is told; if nothing shows then, it goes on with the step to the end."""
    step = step_control()
    await averager._step(step=step, future_for_init=MPFuture())
    assert step._cancel is not None
    waiting = asyncio.create_task(step.wait_for_cancel())
    step._cancel.set_result(None)
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    MPFuture.cancel(step)
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert searches
