"""The loop of a peer that only averages."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.reporting.messages import Progress, StepReport
from peer.swarm.swarm import StepOutcome, SwarmProgress
from peer.training.worker import ASSIST_POLL_S, assist


@dataclass
class FakeSwarm:
    """Has these outcomes one after another, then none."""

    outcomes: list[StepOutcome | None]
    calls: list[str] = field(default_factory=list)

    def begin_training(self) -> None:
        self.calls.append("begin")

    def advance(self) -> StepOutcome | None:
        self.calls.append("advance")
        return self.outcomes.pop(0) if self.outcomes else None

    def progress(self) -> SwarmProgress:
        return SwarmProgress(4, 0, 30, 64, 2, 0.0)


def run(outcomes: list[StepOutcome | None], rounds: int) -> tuple[FakeSwarm, list[Progress | StepReport]]:
    swarm, sent, now = FakeSwarm(outcomes), list[Progress | StepReport](), [100.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    assist(swarm, sent.append, lambda: now[0] >= 100.0 + rounds * ASSIST_POLL_S, lambda: now[0], wait)
    return swarm, sent


def test_every_step_is_reported_with_what_was_averaged_and_no_samples() -> None:
    """Bytes are credited; there is no loss, no time spent training, and nothing for a step that was only taken over."""
    taken_over = StepOutcome(5, 0, False, 0, None, 1.0)
    averaged = StepOutcome(6, 0, True, 4, 64, 0.25, averaged_bytes=1234)
    swarm, sent = run([None, taken_over, averaged], rounds=5)
    [report] = [message for message in sent if isinstance(message, StepReport)]
    assert (report.step, report.samples, report.averaged_bytes, report.group_size) == (6, 0, 1234, 4)
    assert (report.loss, report.elapsed_s, report.samples_per_second, report.lost_samples) == (None, 0.0, 0.0, 0)
    assert swarm.calls == ["begin", *["advance"] * 5]


def test_progress_is_sent_about_once_a_second() -> None:
    """Though the swarm is asked far more often."""
    _, sent = run([], rounds=70)
    assert [type(message) for message in sent] == [Progress] * 3
