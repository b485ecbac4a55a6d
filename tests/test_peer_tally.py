"""What a peer did since the last global step, summed up."""

from __future__ import annotations

import pytest

from peer.backends import MicrobatchResult
from peer.swarm import StepOutcome
from peer.tally import Tally, weighted_mean

OUTCOME = StepOutcome(3, 8, True, 2, None, 0.5)


def test_mean_loss_is_weighted_by_samples() -> None:
    """A microbatch of six samples counts three times as much as one of two."""
    tally = Tally(began_at=0.0, data_wait_s=0.0)
    tally.add(MicrobatchResult(samples=2, loss=6.0, mlm_loss=5.0, sop_loss=1.0, finite=True))
    tally.add(MicrobatchResult(samples=6, loss=2.0, mlm_loss=1.0, sop_loss=1.0, finite=True))
    report = tally.report(OUTCOME, now=4.0, data_wait_s=0.0)
    assert (report.loss, report.mlm_loss, report.sop_loss) == (3.0, 2.0, 1.0)
    assert report.samples_per_second == pytest.approx(2.0)


def test_without_sentence_order_there_is_no_such_loss() -> None:
    """The report of an objective without sentence order leaves that loss out rather than calling it zero."""
    tally = Tally(began_at=0.0, data_wait_s=0.0)
    tally.add(MicrobatchResult(samples=8, loss=6.0, mlm_loss=6.0, sop_loss=None, finite=True))
    assert tally.report(OUTCOME, now=1.0, data_wait_s=0.0).sop_loss is None


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
