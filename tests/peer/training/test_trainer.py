"""The training loop, with a swarm made by hand: contributions, dropped samples, reports, and waiting while paused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from peer.backends import MicrobatchResult
from peer.data.batching.batches import Batch
from peer.reporting.messages import Lost, Progress, StepReport
from peer.swarm.moves import StepOutcome
from peer.swarm.swarm import SwarmProgress
from peer.training.trainer import train
from tests.support.clocks import Clock
from tests.support.tiny_albert import random_batch

TARGET = 6


@dataclass
class FakeBatches:
    """So many batches of two samples; each takes half a second to come."""

    clock: Clock
    count: int
    wait_s: float = 7.0

    def __iter__(self) -> Iterator[Batch]:
        for seed in range(self.count):
            self.clock.now += 0.5
            self.wait_s += 0.5
            yield random_batch(seed, samples=2)


@dataclass
class FakeBackend:
    """Gives the losses it is told to, each microbatch taking a quarter of a second."""

    clock: Clock
    losses: list[float]
    done: int = 0
    description: str = "an abacus"
    calls: list[str] = field(default_factory=list)

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        self.clock.now += 0.25
        loss = self.losses[self.done]
        self.done += 1
        return MicrobatchResult(batch.samples, loss, loss - 1, 1.0, math.isfinite(loss))

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        return usual

    def collect(self) -> None:
        self.calls.append("collect")

    def synchronize(self) -> None:
        self.calls.append("synchronize")


@dataclass
class FakeSwarm:
    """Takes a step alone whenever `TARGET` samples are there, unless an outcome was prepared for that moment."""

    outcomes: dict[int, StepOutcome] = field(default_factory=dict)  # by the number of the call to `advance`
    step: int = 0
    samples: int = 0
    target: int = TARGET
    behind: int = 0  # calls to `advance` that catch up before the first microbatch
    enough: int = 10**6  # samples
    calls: list[str] = field(default_factory=list)
    calls_of_backend: list[str] = field(default_factory=list)

    @property
    def wants_samples(self) -> bool:
        return self.behind == 0 and self.samples < self.enough

    def begin_training(self) -> None:
        self.calls.append("begin")

    def add(self, samples: int) -> None:
        self.calls.append("add")
        self.samples += samples

    def advance(self, collect: Callable[[], None]) -> StepOutcome | None:
        self.calls.append("advance")
        self.behind = max(0, self.behind - 1)
        prepared = self.outcomes.get(self.calls.count("advance") - 1)
        if prepared is None and self.samples < self.target:
            return None
        if prepared is not None and not (prepared.averaged or prepared.lost_samples):
            return prepared
        self.step += 1
        collect()
        taken, self.samples = self.samples, 0
        return prepared or StepOutcome(self.step, taken, True, 2, 11, 0.125)

    def finish(self, collect: Callable[[], None]) -> StepOutcome | None:
        self.calls.append("finish")
        return self.outcomes.get(-1)

    def progress(self) -> SwarmProgress:
        return SwarmProgress(self.step, self.samples, self.samples + 1, TARGET, 2, 4.0)


def messages(
    losses: list[float], swarm: FakeSwarm | None = None, stop_after: int = 10**6
) -> tuple[list[Progress | StepReport | Lost], FakeSwarm]:
    """Train over as many microbatches as there are losses; everything that was sent, in order."""
    clock, swarm, sent = Clock(), swarm or FakeSwarm(), list[Progress | StepReport | Lost]()
    backend = FakeBackend(clock, losses, calls=swarm.calls_of_backend)
    train(backend, FakeBatches(clock, len(losses)), swarm, sent.append, lambda: backend.done >= stop_after, clock)
    return sent, swarm


def run(
    losses: list[float], swarm: FakeSwarm | None = None, stop_after: int = 10**6
) -> tuple[list[StepReport], list[Progress], FakeSwarm]:
    """The reports and the progress of `messages`."""
    sent, swarm = messages(losses, swarm, stop_after)
    reports = [message for message in sent if isinstance(message, StepReport)]
    return reports, [message for message in sent if isinstance(message, Progress)], swarm


def test_each_global_step_is_reported_with_its_own_mean_loss() -> None:
    """Six samples make a step; its report has the mean of its three microbatches only, and the outcome's facts."""
    reports, _, _ = run([5.0, 4.0, 3.0, 2.5, 2.0, 1.5])
    assert [(report.step, report.samples, report.loss) for report in reports] == [(1, 6, 4.0), (2, 6, 2.0)]
    first = reports[0]
    assert (first.mlm_loss, first.sop_loss) == (3.0, 1.0)
    assert (first.group_size, first.group_samples, first.averaging_s) == (2, 11, 0.125)
    assert (first.lost_samples, first.lost_reason) == (0, "")


def test_report_measures_speed_and_waiting_per_step() -> None:
    """Speed is samples over the time since the last step; waiting is what the stream's total has grown by."""
    reports, _, _ = run([5.0] * 6)
    assert [report.elapsed_s for report in reports] == [2.25, 2.25]
    assert [report.data_wait_s for report in reports] == [1.5, 1.5]
    assert [report.samples_per_second for report in reports] == [pytest.approx(6 / 2.25)] * 2


def test_samples_are_contributed_before_the_swarm_advances() -> None:
    """A microbatch: the others are told to wait for this peer, its samples are added, the step is tried."""
    _, _, swarm = run([5.0])
    assert swarm.calls == ["begin", "add", "advance", "finish"]


def test_a_peer_that_is_behind_catches_up_before_it_computes() -> None:
    """No microbatch is drawn in vain, nor for a phase that has ended; nobody is to wait for it before its first one."""
    _, _, swarm = run([5.0, 4.0], FakeSwarm(behind=2))
    assert swarm.calls == ["advance", "advance", *["begin", "add", "advance"] * 2, "finish"]


def test_a_peer_that_has_enough_computes_no_more_before_a_step() -> None:
    """It looks for the step as often as it can, and leaves when it is told to."""
    step = StepOutcome(1, 4, True, 2, 9, 0.5)
    computed = ["begin", "add", "advance"]
    _, _, swarm = run([5.0, 4.0, 3.0], FakeSwarm({3: step}, target=100, enough=4))
    assert swarm.calls == [*computed, *computed, "advance", "advance", *computed, "finish"]
    _, _, swarm = run([5.0, 4.0, 3.0], FakeSwarm(target=100, enough=4), stop_after=2)
    assert swarm.calls == [*computed, *computed, "finish"]


def test_who_is_told_to_stop_catches_up_no_further() -> None:
    """It leaves at once, however far behind."""
    _, _, swarm = run([5.0], FakeSwarm(behind=10**6), stop_after=0)
    assert swarm.calls == ["finish"]


def test_samples_that_count_a_step_late_are_not_lost() -> None:
    """A peer that followed the swarm and kept them reports them, and their losses, with the next step."""
    followed = StepOutcome(1, 0, averaged=False, group_size=0, group_samples=None, averaging_s=1.0)
    reports, _, _ = run([5.0, 4.0, 3.0], FakeSwarm({0: followed}))
    assert [(r.samples, r.loss, r.lost_samples) for r in reports] == [(6, 4.0, 0)]


def test_gradients_are_collected_for_each_step_and_parameters_taken_after_it() -> None:
    """A backend with devices of its own moves nothing while the batch is not full."""
    _, _, swarm = run([5.0] * 7)
    assert swarm.calls_of_backend == ["collect", "synchronize"] * 2


def test_microbatch_with_a_loss_that_is_not_finite_is_dropped() -> None:
    """It is not contributed, the others' samples stay, and the next report says that it was lost."""
    reports, _, swarm = run([5.0, math.nan, 4.0, 3.0])
    assert [(r.samples, r.loss, r.lost_samples, r.lost_reason) for r in reports] == [(6, 4.0, 2, "non-finite")]
    assert swarm.calls.count("add") == 3


def test_falling_behind_loses_the_accumulation_and_says_so() -> None:
    """When the swarm was ahead no step is reported; the samples lost appear in the report of the next one."""
    behind = StepOutcome(9, 0, False, 0, None, 1.0, lost_samples=2, lost_reason="out of sync")
    reports, _, _ = run([50.0, 5.0, 4.0, 3.0], FakeSwarm({0: behind}))
    assert [(r.samples, r.loss, r.lost_samples, r.lost_reason) for r in reports] == [(6, 4.0, 2, "out of sync")]


def test_progress_is_sent_about_once_a_second() -> None:
    """Eight microbatches of three quarters of a second send four messages, the first at once."""
    _, progress, _ = run([5.0] * 8)
    assert len(progress) == 4
    assert progress[0] == Progress(
        step=0,
        own_samples=2,
        swarm_samples=3,
        target_batch_size=TARGET,
        peers=2,
        samples_per_second=4.0,
        loss=5.0,
    )


def test_stops_when_told_to() -> None:
    """No microbatch is begun after `should_stop`, and what was accumulated is not lost before the swarm is left."""
    reports, _, swarm = run([5.0] * 8, stop_after=2)
    assert reports == []
    assert swarm.samples == 4


def test_what_is_left_to_the_others_is_told_at_the_end() -> None:
    """Two microbatches that no step has taken, and one that was dropped since the last report, are told by cause."""
    sent, _ = messages([5.0, 4.0, 3.0, 2.0, math.nan, 1.0], stop_after=6)
    assert sent[-1] == Lost(2, {"left": 4, "non-finite": 2})
    sent, _ = messages([5.0, 4.0, 3.0])  # leaves right after a step
    assert not any(isinstance(message, Lost) for message in sent)


def test_a_step_that_was_averaged_while_leaving_is_reported() -> None:
    """What the others have taken from this peer before it was told to stop counts; only what came after is lost."""
    last = StepOutcome(1, 4, averaged=True, group_size=2, group_samples=9, averaging_s=1.0)
    sent, _ = messages([5.0, 4.0, 3.0, 2.0], FakeSwarm({-1: last}, target=100), stop_after=3)
    [report] = [message for message in sent if isinstance(message, StepReport)]
    assert (report.step, report.samples, report.loss) == (1, 4, 4.0)
    assert [message for message in sent if isinstance(message, Lost)] == [Lost(1, {"left": 2})]
