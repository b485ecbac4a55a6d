"""A peer's rate: of the time in which it computes, of its newest microbatches most."""

from __future__ import annotations

import pytest

from peer.progress.sample_rate import SMOOTHING, SampleRate
from tests.support.clocks import Clock


def compute(rate: SampleRate, clock: Clock, samples: int, seconds: float) -> None:
    """Compute a microbatch for so long."""
    clock.now += seconds
    rate.computed(samples)


def test_the_newest_microbatches_weigh_most() -> None:
    """Of the seconds per sample; the first is believed as a whole, and before it there is no rate."""
    clock = Clock()
    rate = SampleRate(clock)
    assert rate.per_second == 0.0
    compute(rate, clock, 10, 10.0)
    assert rate.per_second == pytest.approx(1.0)
    compute(rate, clock, 20, 60.0)
    assert 1 / rate.per_second == pytest.approx((3.0 + (1 - SMOOTHING) * 1.0) / (1 + (1 - SMOOTHING)))
    for _ in range(100):
        compute(rate, clock, 10, 30.0)
    assert 1 / rate.per_second == pytest.approx(3.0, rel=1e-3)


def test_time_without_computation_does_not_count() -> None:
    """A round, a download, or the start of the next step."""
    clock = Clock()
    rate = SampleRate(clock)
    with rate.pause():
        clock.now += 1000.0
    compute(rate, clock, 8, 2.0)
    clock.now += 1000.0
    rate.restart()
    compute(rate, clock, 8, 2.0)
    assert rate.per_second == pytest.approx(4.0)
