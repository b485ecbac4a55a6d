"""Transfer of the state: its time limit, how many joiners a donor serves at once, and its share of the line.

Real swarms are in tests/system.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from hivemind.compression import CompressionInfo, serialize_torch_tensor
from hivemind.compression.base import TensorRole
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.streaming import STREAMING_CHUNK_SIZE_BYTES, split_for_streaming

from auth.errors import SwarmError
from peer.models.optimizers import AdamW, Lamb, Muon, ParameterGroup, SharedOptimizer, StableAdamW
from peer.network.least_rate import LEAST_BYTES_PER_S, PATIENCE_S
from peer.network.traffic import BURST_S, HEADERS, LONGEST_PAUSE_S, STATES_SHARE, Traffic
from peer.protocol.history_pb2 import AverageAfter
from peer.reduction.compression import ROOTS, decode
from peer.swarm import state as state_sharing
from peer.swarm.average_history import AverageHistory, Lack, encode_average
from peer.swarm.fingerprint import DRIFT_TOLERANCE, drifted, sketch_of
from peer.swarm.state import (
    AT_ONCE,
    BROKEN_OFF_S,
    HUNG_S,
    OF_ONE_MEMBER,
    STALLED_S,
    STATE_CODE,
    Donations,
    SwarmStateAverager,
    moment_roles,
    moments_of,
    optimizer_tensors,
)
from tests.support.clocks import Clock


def test_a_few_are_served_and_the_others_come_back() -> None:
    """Who finds no place finds one when a download has ended."""
    donations = Donations(Clock())
    under_way = [donations.begin(f"member {n}", f"device {n}") for n in range(AT_ONCE)]
    assert None not in under_way
    assert donations.begin("late", "late's") is None
    first = under_way[0]
    assert first is not None
    donations.end(first)
    donations.end(first)  # a second time changes nothing
    assert donations.begin("late", "late's") is not None
    assert donations.begin("later", "later's") is None


def test_one_member_cannot_hold_all_places() -> None:
    """However many devices it has."""
    donations = Donations(Clock())
    assert [donations.begin("ada", f"device {n}") is not None for n in range(AT_ONCE)] == [True] * OF_ONE_MEMBER + [
        False
    ] * (AT_ONCE - OF_ONE_MEMBER)
    assert donations.begin("grace", "laptop") is not None


def test_who_takes_nothing_loses_its_place() -> None:
    """Its download ends with the next part, if that is ever taken; one that goes on keeps its place."""
    clock = Clock()
    donations = Donations(clock, at_once=2)
    stalled, moving = donations.begin("ada", "laptop"), donations.begin("grace", "desktop")
    assert stalled is not None
    assert moving is not None
    clock.now += STALLED_S - 1
    assert donations.goes_on(moving)
    clock.now += 1
    assert donations.begin("late", "late's") is not None
    assert not donations.goes_on(stalled)
    assert donations.goes_on(moving)


class GivingKeeper(SwarmStateAverager):
    """The part of a keeper's averager that gives `STATE`, in the process in which it does; it admits everybody."""

    _parent_pid = -1  # no process was started

    def __init__(self, clock: Clock) -> None:
        async def admits(_peer: object, _roles: object) -> bool:
            return True

        async def state() -> tuple[bytes, list[torch.Tensor], None]:
            return MSGPackSerializer.dumps({"epoch": 7}), STATE, None

        directory: Any = SimpleNamespace(
            admits=admits, token_of=lambda peer: SimpleNamespace(member="ada", device_id=peer)
        )
        self._directory, self._traffic, self.state_compression = directory, Traffic(), STATE_CODE
        self._allow_state_sharing = multiprocessing.Value("q", 1)
        self._turned_away = multiprocessing.Value("q", 0)
        self._get_current_state_from_host_process = state
        self._donations = Donations(clock, after_break_s=BROKEN_OFF_S)

    async def given_to(self, device: str, parts: int | None = None) -> list[averaging_pb2.DownloadData]:
        """The messages that a device takes before it is gone, all of them by default."""
        context: Any = SimpleNamespace(remote_id=device)
        taken: list[averaging_pb2.DownloadData] = []
        stream: Any = self.rpc_download_state(averaging_pb2.DownloadRequest(), context)
        async with aclosing(stream):  # as hivemind closes a stream whose reader has gone
            async for message in stream:
                taken.append(message)
                if len(taken) == parts:
                    break
        return taken


def is_busy(taken: list[averaging_pb2.DownloadData]) -> bool:
    """Whether a device was told to come back."""
    return len(taken) == 1 and MSGPackSerializer.loads(taken[0].metadata) == {"busy": True}


async def test_a_device_whose_download_broke_off_is_turned_away_for_a_while() -> None:
    """So that it finds the checkpoint that the keeper then writes, and can resume that; others are not held up."""
    keeper = GivingKeeper(clock := Clock())
    whole = await keeper.given_to("laptop")
    assert len(whole) > 2
    assert not is_busy(await keeper.given_to("laptop", parts=2))
    assert keeper.turned_away == 0  # it may never come back
    assert is_busy(await keeper.given_to("laptop"))
    assert keeper.turned_away == 1
    assert len(await keeper.given_to("desktop")) == len(whole)
    clock.now += BROKEN_OFF_S
    assert len(await keeper.given_to("laptop")) == len(whole)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that passes as long as a donor waits before it sends."""
    clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return clock


async def test_states_leave_half_of_the_line_to_rounds(clock: Clock) -> None:
    """Whatever else the donor's line carries: a round may begin at any moment."""
    keeper, began_at = GivingKeeper(clock), clock.now
    keeper._traffic = Traffic.of_donor(LINE, clock)
    whole = [await keeper.given_to(device) for device in ("laptop", "desktop")]
    size_bytes = sum(message.ByteSize() for taken in whole for message in taken)
    assert (clock.now - began_at + BURST_S) * LINE * STATES_SHARE == pytest.approx(size_bytes * HEADERS, rel=0.01)


async def test_an_average_waits_for_no_state_and_a_state_makes_up_for_it(clock: Clock) -> None:
    """However many averages there were, a state comes faster than the least rate, so that nobody gives it up."""
    keeper, follower = GivingKeeper(clock), follower_of(donor := keeper_with(3), step=1)
    keeper._traffic = donor._traffic = Traffic.of_donor(LINE, clock)
    began_at = clock.now
    for _ in range(40):
        assert isinstance(await missed(follower), list)
    assert clock.now == began_at
    whole = await keeper.given_to("laptop")
    assert clock.now - began_at == pytest.approx(len(whole) * LONGEST_PAUSE_S)
    assert LONGEST_PAUSE_S < STALLED_S
    assert LONGEST_PAUSE_S * LEAST_BYTES_PER_S < STREAMING_CHUNK_SIZE_BYTES


def test_a_device_that_comes_again_has_left_its_download() -> None:
    """The donor may notice long after that nobody reads the stream."""
    donations = Donations(Clock(), after_break_s=BROKEN_OFF_S)
    left = donations.begin("ada", "laptop")
    assert left is not None
    assert donations.begin("ada", "laptop") is None
    assert not donations.goes_on(left)


def test_who_stalled_is_turned_away_and_who_misses_an_average_is_not() -> None:
    """An average is small, is in no checkpoint, and is wanted at once."""
    for after_break_s in (BROKEN_OFF_S, 0.0):
        donations = Donations(clock := Clock(), after_break_s=after_break_s)
        assert donations.begin("ada", "laptop") is not None
        clock.now += STALLED_S
        assert (donations.begin("ada", "laptop") is None) == (after_break_s > 0)


LINE = 50_000.0  # bytes a second
STATE = [torch.arange(60_000, dtype=torch.float32), torch.ones(7)]


class Process:
    """The averager's process as its parent sees it: `after` so many looks it has the state; it may move until then.

    `told_to_leave` after so many looks, 0 never.
    """

    def __init__(self, clock: Clock, after: int, moves: bool, told_to_leave: int = 0) -> None:
        self.looks, self.after, self.clock, self.moves, self.told_to_leave = 0, after, clock, moves, told_to_leave
        self.averager = SimpleNamespace(
            _outer_pipe=self,
            _clock=self.look,
            _interrupted=threading.Event(),
            _moves=multiprocessing.Value("q", 0),
            era=0,
            local_epoch=7,
            is_downloading=False,
            _tell_download=lambda *_: None,
        )
        self.averager._ask = partial(SwarmStateAverager._ask, self.averager)  # type: ignore[arg-type]
        self.future: Any = None
        self.was_downloading = False

    def send(self, message: tuple[str, list[Any], dict[str, Any]]) -> None:
        self.future = message[2]["future"]

    def look(self) -> float:
        """The parent asks for the time each time it has looked in vain: a minute has passed."""
        self.looks += 1
        self.clock.now += 60.0
        self.averager._moves.value += self.moves
        self.was_downloading |= self.averager.is_downloading
        if self.looks == self.told_to_leave:
            self.averager._interrupted.set()
        if self.looks == self.after:
            self.future.set_result(("keeper", {"epoch": 7}, STATE))
        return self.clock.now


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that follow each other at once."""
    monkeypatch.setattr(state_sharing, "LOOK_S", 0.001)


async def test_a_download_that_makes_progress_is_waited_for() -> None:
    """However long it takes; and meanwhile others can see that this peer waits for a state."""
    process = Process(Clock(), after=500, moves=True)
    assert SwarmStateAverager._download(process.averager, []) == ("keeper", {"epoch": 7}, STATE)  # type: ignore[arg-type]
    assert process.was_downloading
    assert not process.averager.is_downloading


async def test_a_process_that_hangs_is_not_waited_for() -> None:
    """An averager whose process neither asks a donor nor receives anything is an error, with a sentence."""
    clock = Clock()
    process = Process(clock, after=0, moves=False)
    began_at = clock.now
    with pytest.raises(SwarmError, match="hangs"):
        SwarmStateAverager._download(process.averager, [])  # type: ignore[arg-type]
    assert HUNG_S < clock.now - began_at < 3 * HUNG_S
    assert not process.averager.is_downloading


async def test_a_peer_that_is_told_to_leave_waits_for_no_state() -> None:
    """Its process still downloads, and has the state long after."""
    process = Process(Clock(), after=500, moves=True, told_to_leave=5)
    averager: Any = process.averager
    averager._download = partial(SwarmStateAverager._download, averager)
    assert not SwarmStateAverager.load_state_from_peers(averager, doubt=lambda *_: "is not asked about")
    assert process.looks == 5
    assert not averager.is_downloading


async def test_a_peer_that_is_told_to_leave_waits_for_no_average() -> None:
    """No donor has said anything: what this peer makes of that does not matter any more."""
    process = Process(Clock(), after=500, moves=True, told_to_leave=5)
    assert SwarmStateAverager.missed_average(process.averager) is Lack.SILENT  # type: ignore[arg-type]
    assert process.looks == 5


class Donor:
    """Gives `STATE` in small messages, each after so many seconds; then ends, trickles for ever, or falls silent."""

    def __init__(self, clock: Clock, seconds: float, then: Literal["ends", "trickles", "silent"]) -> None:
        self.clock, self.seconds, self.then = clock, seconds, then
        self.given = 0

    async def rpc_download_state(self, _: averaging_pb2.DownloadRequest) -> AsyncIterator[averaging_pb2.DownloadData]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[averaging_pb2.DownloadData]:
        metadata = MSGPackSerializer.dumps({"epoch": 7})
        for tensor in STATE:
            for part in split_for_streaming(serialize_torch_tensor(tensor), 1 << 14):
                self.clock.now += self.seconds
                self.given += 1
                yield averaging_pb2.DownloadData(tensor_part=part, metadata=metadata)
                metadata = b""
        if self.then == "silent":
            await asyncio.Event().wait()
        while self.then == "trickles":
            self.clock.now += self.seconds
            self.given += 1
            yield averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps({}))


async def download(donor: Donor) -> tuple[Any, list[torch.Tensor]] | None:
    """What a peer gets of that donor."""
    averager = SimpleNamespace(
        _clock=donor.clock,
        _moves=multiprocessing.Value("q", 0),
        _own_bytes=lambda: 1 << 28,
        _p2p=None,
        _traffic=Traffic(),
        get_stub=lambda *_, **__: donor,
        prefix="",
        serializer=MSGPackSerializer,
    )
    averager._receive = partial(SwarmStateAverager._receive, averager)  # type: ignore[arg-type]
    found: tuple[Any, list[torch.Tensor]] | None = await SwarmStateAverager._download_from(averager, "donor")  # type: ignore[arg-type]
    assert averager._moves.value >= donor.given
    return found


@pytest.mark.parametrize(("own", "donor_role"), [("keeper", "trainer"), ("trainer", "keeper")])
async def test_one_slow_donor_keeps_nobody_from_the_others(
    monkeypatch: pytest.MonkeyPatch, own: str, donor_role: str
) -> None:
    """Who may be a liar is left for others, whatever its name; the keeper, whom trainers ask, is waited for."""
    monkeypatch.setattr(state_sharing, "QUICK_S", 0.1)
    asked = []

    async def download_from(donor: str) -> tuple[Any, list[torch.Tensor]] | None:
        asked.append(donor)
        await asyncio.sleep(2.0 if donor == "A liar" else 0.0)
        return {"epoch": 7}, STATE

    async def with_role(_: frozenset[str]) -> list[Any]:
        return [SimpleNamespace(to_base58=lambda name=name: name, name=name) for name in ("A liar", "honest")]

    averager = SimpleNamespace(
        access=SimpleNamespace(donor_roles=frozenset({donor_role})),
        directory=SimpleNamespace(with_role=with_role),
        peer_id=SimpleNamespace(to_base58=lambda: own),
        _download_from=lambda donor: download_from(donor.name),
    )
    monkeypatch.setattr("random.shuffle", lambda names: None)
    found: asyncio.Future[Any] = asyncio.Future()
    await SwarmStateAverager._load_state_from_peers(averager, found)  # type: ignore[arg-type]
    assert found.result()[0] == ("honest" if own == "keeper" else "A liar")


async def test_a_slow_donors_state_is_taken() -> None:
    """A donor may be as slow as the least rate."""
    found = await download(Donor(Clock(), seconds=1.9, then="ends"))
    assert found is not None
    assert found[0] == {"epoch": 7}
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(STATE, found[1], strict=True))


async def test_a_donor_that_trickles_is_left() -> None:
    """For ever a few bytes a second, below the number that would be too many: the next donor is asked."""
    donor = Donor(Clock(), seconds=1.0, then="trickles")
    assert await download(donor) is None
    assert donor.given < 3 * PATIENCE_S


async def test_a_donor_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the end of its state no more comes, and the line stays open."""
    monkeypatch.setattr(state_sharing, "PATIENCE_S", 0.01)
    donor = Donor(Clock(), seconds=0.0, then="silent")
    assert await download(donor) is None
    assert donor.given > 1


def keeper_with(steps: int) -> Any:
    """A keeper that holds the averages of so many steps, and admits everybody."""

    async def admits(_peer: object, _roles: object) -> bool:
        return True

    history = AverageHistory()
    for step in range(1, steps + 1):
        history.keep(0, step, encode_average([tensor + step for tensor in STATE], {}, "float16"))
    return SimpleNamespace(
        directory=SimpleNamespace(
            admits=admits, token_of=lambda peer: SimpleNamespace(member="ada", device_id="laptop")
        ),
        serializer=MSGPackSerializer,
        _following=Donations(Clock()),
        _history=history,
        _traffic=Traffic(),
    )


def follower_of(keeper: Any, step: int) -> Any:
    """A peer after `step` steps whose only donor is this keeper."""
    context = SimpleNamespace(remote_id="a peer")

    async def call(request: AverageAfter) -> AsyncIterator[averaging_pb2.DownloadData]:
        return SwarmStateAverager.rpc_download_average(keeper, request, context)  # type: ignore[arg-type]

    async def with_role(_roles: object) -> list[str]:
        return ["keeper"]

    averager = SimpleNamespace(
        access=SimpleNamespace(donor_roles=frozenset({"keeper"})),
        directory=SimpleNamespace(with_role=with_role),
        era=0,
        local_epoch=step,
        prefix="",
        serializer=MSGPackSerializer,
        get_stub=lambda *_, **__: SimpleNamespace(rpc_download_average=call),
        _averaged_tensors=STATE,
        _clock=Clock(),
        _local_tensors=lambda: STATE,
        _moves=multiprocessing.Value("q", 0),
        _own_bytes=lambda: 1 << 28,
        _p2p=None,
        _tell_download=lambda *_: None,
        _traffic=Traffic(),
    )
    averager._receive = partial(SwarmStateAverager._receive, averager)  # type: ignore[arg-type]
    return averager


async def missed(averager: Any) -> list[torch.Tensor] | Lack:
    """What the follower's two processes make of its donor's answer."""
    future: asyncio.Future[Any] = asyncio.Future()
    await SwarmStateAverager._load_average(averager, future, averager.era, averager.local_epoch)
    averager._ask = lambda _method, **_options: future.result()
    return SwarmStateAverager.missed_average(averager)


async def test_a_peer_that_fell_behind_gets_the_first_average_that_it_missed() -> None:
    """Bit by bit."""
    average = await missed(follower_of(keeper_with(3), step=1))
    assert isinstance(average, list)
    assert all(torch.equal(ours, theirs + 2) for ours, theirs in zip(average, STATE, strict=True))


async def test_who_missed_nothing_waits_and_who_missed_too_much_is_told() -> None:
    """The average may be there in a moment, or never again."""
    assert await missed(follower_of(keeper_with(3), step=3)) is Lack.NOT_YET
    assert await missed(follower_of(keeper_with(9), step=1)) is Lack.GONE


async def test_a_keeper_gives_averages_to_a_few_at_once() -> None:
    """The others ask again, and do not take the state instead."""
    keeper = keeper_with(3)
    keeper._following = Donations(Clock(), at_once=0)
    assert await missed(follower_of(keeper, step=1)) is Lack.BUSY


async def test_a_keeper_that_is_not_there_is_silent() -> None:
    """Which is no word on what it holds."""
    follower = follower_of(keeper_with(3), step=1)

    async def nobody(_roles: object) -> list[str]:
        return []

    follower.directory.with_role = nobody
    assert await missed(follower) is Lack.SILENT


async def test_an_average_that_fits_no_parameter_is_not_taken() -> None:
    """The keeper of another run, or a keeper that errs: the state is asked for, which is checked as a whole."""
    follower = follower_of(keeper_with(3), step=1)
    follower._local_tensors = lambda: [torch.zeros(3), torch.zeros(7)]
    assert await missed(follower) is Lack.GONE


SHAPES = [(300, 128), (2, 128), (128,), (96, 64), (64, 96), (96,)]


RULES: dict[str, Callable[[list[ParameterGroup]], SharedOptimizer]] = {
    "lamb": lambda groups: Lamb(groups, lr=1.76e-3, max_grad_norm=1.0),
    "adamw": lambda groups: AdamW(groups, lr=1e-3, max_grad_norm=1.0),
    "stable_adamw": lambda groups: StableAdamW(groups, lr=1e-3, betas=(0.9, 0.98), max_grad_norm=1.0),
    "muon": lambda groups: Muon(groups, lr=1e-3, betas=(0.9, 0.98), max_grad_norm=1.0),
}

BYTES = {"lamb": (8.0, 8.2), "adamw": (9.9, 10.2), "stable_adamw": (9.9, 10.2), "muon": (9.4, 9.7)}


class Trained:
    """A peer's state: parameters with their optimizer's moments, which change by the averages that all peers take."""

    def __init__(self, seed: int, rule: str) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = [torch.nn.Parameter(0.02 * self.normal(shape)) for shape in SHAPES]
        self.optimizer = RULES[rule](
            [
                {"params": self.parameters[3:5], "weight_decay": 0.01, "is_hidden": rule == "muon"},
                {"params": self.parameters[:2], "weight_decay": 0.01},
                {"params": [each for each in self.parameters if each.ndim == 1], "weight_decay": 0.0},
            ]
        )
        self.sizes = [1e-3 * (1.5 * self.normal((shape[0], *[1] * (len(shape) - 1)))).exp() for shape in SHAPES]
        self.steady = [0.3 * self.normal(shape) for shape in SHAPES]

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def average(self) -> list[torch.Tensor]:
        """The next average as it travels: mostly noise, of rows whose sizes differ, a few of the embedding's only."""
        averages = [(self.steady[n] + self.normal(shape)) * self.sizes[n] for n, shape in enumerate(SHAPES)]
        averages[0] *= torch.rand(SHAPES[0][0], 1, generator=self.generator) < 0.3
        return [average.half().float() for average in averages]

    def take(self, average: list[torch.Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, average, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    @property
    def ordered(self) -> list[torch.Tensor]:
        return [each.detach() for group in self.optimizer.param_groups for each in group["params"]]

    @property
    def sketch(self) -> tuple[float, ...]:
        return sketch_of(self.ordered, moments_of(self.optimizer))

    def wire_bytes_to(self, joiner: Trained) -> int:
        """Give the state to a joiner as donors do; return how many bytes of values that were."""
        moved = 0
        moments = zip(
            moment_roles(self.optimizer),
            optimizer_tensors(self.optimizer),
            optimizer_tensors(joiner.optimizer),
            strict=True,
        )
        parameters = zip(self.ordered, joiner.ordered, strict=True)
        for role, mine, theirs in (*((TensorRole.PARAMETER, *both) for both in parameters), *moments):
            wire = STATE_CODE.compress(mine, CompressionInfo.from_tensor(mine, role=role))
            moved += len(wire.buffer)
            theirs.copy_(decode(wire, ROOTS))
        return moved


@pytest.mark.parametrize("rule", RULES)
def test_a_joiner_whose_moments_were_rounded_stays_with_its_donor(rule: str) -> None:
    """For hundreds of steps of the same averages, after a state of so many bytes a parameter."""
    donor, joiner = Trained(0, rule), Trained(1, rule)
    for _ in range(100):
        donor.take(donor.average())
    moved = donor.wire_bytes_to(joiner)
    values = sum(each.numel() for each in donor.parameters)
    assert BYTES[rule][0] * values < moved < BYTES[rule][1] * values
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(donor.ordered, joiner.ordered, strict=True))
    for _ in range(6):
        assert not drifted(joiner.sketch, donor.sketch)
        for _ in range(50):
            average = donor.average()
            donor.take(average)
            joiner.take(average)
    apart = torch.cat([(a - b).flatten() for a, b in zip(donor.ordered, joiner.ordered, strict=True)])
    assert apart.norm() < DRIFT_TOLERANCE / 2 * torch.cat([each.flatten() for each in donor.ordered]).norm()
    donor.take(donor.average())
    assert drifted(joiner.sketch, donor.sketch)
