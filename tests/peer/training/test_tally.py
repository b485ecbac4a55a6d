"""What a peer did since the last global step, summed up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.backends import MicrobatchResult
from peer.reporting.messages import Progress, StepReport
from peer.swarm.moves import StepOutcome
from peer.swarm.swarm import SwarmProgress
from peer.training.tally import Tally, weighted_mean

OUTCOME = StepOutcome(3, 8, True, 2, None, 0.5)


def test_mean_loss_is_weighted_by_samples() -> None:
    """A microbatch of six samples counts three times as much as one of two."""
    tally = Tally(began_at=0.0, data_wait_s=0.0)
    tally.add(MicrobatchResult(samples=2, loss=6.0, mlm_loss=5.0, sop_loss=1.0, finite=True))
    tally.add(MicrobatchResult(samples=6, loss=2.0, mlm_loss=1.0, sop_loss=1.0, finite=True))
    report = tally.report(OUTCOME, now=4.0, data_wait_s=0.0)
    assert (report.loss, report.mlm_loss, report.sop_loss) == (3.0, 2.0, 1.0)
    assert report.samples_per_second == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("loss", "sop_loss", "own", "reported"),
    [(6.0, None, 8, (6.0, None)), (250.0, 1.0, 8, (100.0, 1.0)), (6.0, 1.0, 0, (None, None))],
    ids=["without sentence order", "more than a report may claim", "without own samples"],
)
def test_a_loss_is_reported_where_there_is_one(
    loss: float, sop_loss: float | None, own: int, reported: tuple[float | None, float | None]
) -> None:
    """It is left out rather than called zero; one that is too large for a moment, as a discriminator's, is capped."""
    tally = Tally(began_at=0.0, data_wait_s=0.0)
    tally.add(MicrobatchResult(samples=8, loss=loss, mlm_loss=5.0, sop_loss=sop_loss, finite=True))
    report = tally.report(replace(OUTCOME, samples=own), now=1.0, data_wait_s=0.0)
    assert (report.loss, report.sop_loss) == reported


def test_a_report_says_all_that_is_known_of_the_step() -> None:
    """The outcome's own numbers, the time since the last report, and how much of it the trainer waited for data."""
    outcome = StepOutcome(3, 8, True, 2, 24, 0.5, averaged_bytes=4096, receipt="signed", era=2)
    tally = Tally(began_at=10.0, data_wait_s=1.0)
    tally.add(MicrobatchResult(samples=8, loss=6.0, mlm_loss=5.0, sop_loss=1.0, finite=True))
    tally.lose(4, "non-finite")
    assert tally.report(outcome, now=10.5, data_wait_s=1.25) == StepReport(
        step=3,
        samples=8,
        loss=6.0,
        mlm_loss=5.0,
        sop_loss=1.0,
        group_size=2,
        group_samples=24,
        averaging_s=0.5,
        samples_per_second=16.0,
        lost_samples=4,
        lost_reason="non-finite",
        lost={"non-finite": 4},
        data_wait_s=0.25,
        elapsed_s=0.5,
        averaged_bytes=4096,
        receipt="signed",
        era=2,
    )


def test_progress_is_the_swarms_with_the_loss_of_this_step() -> None:
    """The loss is the mean over the microbatches since the last step."""
    tally = Tally(began_at=0.0, data_wait_s=0.0)
    tally.add(MicrobatchResult(samples=2, loss=6.0, mlm_loss=5.0, sop_loss=1.0, finite=True))
    tally.add(MicrobatchResult(samples=6, loss=2.0, mlm_loss=1.0, sop_loss=1.0, finite=True))
    assert tally.progress(SwarmProgress(7, 8, 40, 64, 5, 1.5, apart=True)) == Progress(7, 8, 40, 64, 5, 1.5, 3.0, True)


def test_losses_of_samples_add_up() -> None:
    """Samples lost before and at the step are reported together, with the reason given last."""
    tally = Tally(began_at=0.0, data_wait_s=0.0)
    tally.lose(2, "non-finite")
    tally.lose(3, "out of sync")
    tally.lose(0, "")
    report = tally.report(OUTCOME, now=1.0, data_wait_s=0.0)
    assert (report.lost_samples, report.lost_reason) == (5, "out of sync")
    assert report.lost == {"non-finite": 2, "out of sync": 3}


def test_no_time_gives_no_speed() -> None:
    """A step within the clock's resolution has a speed of zero, not an infinite one."""
    assert Tally(began_at=5.0, data_wait_s=0.0).report(OUTCOME, now=5.0, data_wait_s=0.0).samples_per_second == 0.0


def test_mean_of_nothing_is_nothing() -> None:
    """Without samples there is no mean."""
    assert weighted_mean([]) is None
    assert weighted_mean([(1.0, 0)]) is None
