"""What rounds tell of a line; scripted, as no real line changes when a test wants it."""

from __future__ import annotations

import random

import pytest

from peer.averaging.bandwidth import (
    DOUBTFUL_ROUNDS,
    LATEST_S,
    LEAST_BYTES,
    SOONEST_S,
    SPREAD_S,
    LineEstimate,
    RoundTraffic,
)
from peer.averaging.declarations import MAX_BANDWIDTH
from peer.averaging.shares import reduction_shares, round_time
from tests.support.clocks import Clock

MBIT = 125_000.0  # bytes per second
ROUND_S = 60.0  # between the ends of two rounds
VALUES_BYTES = 36_000_000


class Stay:
    """One peer whose line is really so fast, and a coordinator that measures it."""

    def __init__(self, rate: float, declared: float | None = None) -> None:
        self.clock, self.true_rate = Clock(0.0), rate
        self.line = LineEstimate(rate if declared is None else declared, self.clock, random.Random(3))
        self.measurements = 0

    def rounds(self, number: int, others: float, noise: float = 0.0) -> None:
        """Rounds with three others whose lines are declared to have 20 Mbit/s, and have this much."""
        rng = random.Random(5)
        for _ in range(number):
            rates = [self.line.rate, *[20 * MBIT] * 3]
            shares = reduction_shares(VALUES_BYTES // 2, rates, [True] * 4)
            own_bytes = VALUES_BYTES * (1 + 2 * shares[0] / sum(shares))
            others_bytes = VALUES_BYTES * (1 + 2 * shares[1] / sum(shares))
            seconds = max(own_bytes / self.true_rate, others_bytes / others) * (1 + rng.uniform(-noise, noise))
            self.clock.now += ROUND_S + seconds
            promised_s = round_time(VALUES_BYTES, shares, rates)
            self.line.passed(RoundTraffic(own_bytes, own_bytes, seconds, promised_s))
            if self.line.is_due():
                self.measurements += 1
                self.line.measured(self.true_rate)


def test_a_line_that_halves_is_found_out() -> None:
    """Within the rounds of the first minutes in which measuring again is allowed."""
    stay = Stay(rate=20 * MBIT)
    stay.rounds(20, others=20 * MBIT)
    assert (stay.line.rate, stay.measurements) == (20 * MBIT, 0)
    stay.true_rate = 6 * MBIT
    stay.rounds(DOUBTFUL_ROUNDS + 2, others=20 * MBIT)
    assert (stay.line.rate, stay.measurements) == (6 * MBIT, 1)


def test_a_fast_peer_that_slow_ones_hold_up_is_not_lowered() -> None:
    """Its rounds pass a tenth of what its line could; its doubts are answered, and become rare."""
    stay = Stay(rate=100 * MBIT)
    stay.rounds(200, others=2 * MBIT)
    assert stay.line.rate == 100 * MBIT
    hours = stay.clock.now / 3600
    assert 1 <= stay.measurements <= 7 + hours * 3600 / LATEST_S


def test_a_line_that_was_underestimated_rises_with_its_rounds() -> None:
    """A round that passes more than was thought possible raises the rate at once, step by step up to what passes."""
    stay = Stay(rate=40 * MBIT, declared=5 * MBIT)
    traffic = RoundTraffic(90e6, 90e6, 90e6 / (40 * MBIT), 144.0)
    stay.line.passed(traffic)
    assert stay.line.rate == pytest.approx(22.5 * MBIT)
    for _ in range(20):
        stay.line.passed(traffic)
    assert stay.line.rate == pytest.approx(40 * MBIT)


def test_noise_neither_lowers_a_line_nor_has_it_measured() -> None:
    """Rounds that take up to a third more or less are no reason for doubts."""
    stay = Stay(rate=20 * MBIT)
    stay.rounds(50, others=20 * MBIT, noise=0.3)
    assert stay.line.rate is not None
    assert 20 * MBIT <= stay.line.rate <= 20 / 0.7 * MBIT
    assert stay.measurements == 0


def test_a_line_is_measured_now_and_then_and_never_often() -> None:
    """Without doubts every six hours; with them not at once, and each time that nothing is new after twice as long."""
    stay = Stay(rate=20 * MBIT)
    slow = RoundTraffic(36e6, 36e6, 600.0, 15.0)
    asked = []
    for second in range(0, 4 * 3600, 10):
        stay.clock.now = second
        stay.line.passed(slow)
        if stay.line.is_due():
            asked.append(second)
            stay.line.measured(20 * MBIT)
    gaps = [after - before for before, after in zip([0, *asked], asked, strict=False)]
    assert len(asked) == 6
    for doublings, gap in enumerate(gaps):
        patience_s = SOONEST_S * 2**doublings
        assert patience_s <= gap <= patience_s + SPREAD_S + 30
    stay.line.passed(RoundTraffic(36e6, 36e6, 15.0, 15.0))
    stay.clock.now += LATEST_S
    assert stay.line.is_due()
    assert not stay.line.is_due()  # asked is asked, also if no answer comes


def test_a_changed_line_is_doubted_soon_again() -> None:
    """After news, the next doubt is followed as soon as the first."""
    stay = Stay(rate=20 * MBIT)
    for rate in (20 * MBIT, 20 * MBIT, 5 * MBIT):
        stay.line.measured(rate)
    for _ in range(DOUBTFUL_ROUNDS):
        stay.line.passed(RoundTraffic(36e6, 36e6, 600.0, 15.0))
    stay.clock.now = SOONEST_S + SPREAD_S
    assert stay.line.is_due()


def test_rounds_that_break_off_are_doubts() -> None:
    """A line that has become so slow that no round ends in time would never be measured again otherwise."""
    stay = Stay(rate=20 * MBIT)
    for _ in range(DOUBTFUL_ROUNDS):
        stay.line.failed()
    stay.clock.now = SOONEST_S + SPREAD_S
    assert stay.line.is_due()


def test_one_slow_round_is_no_doubt() -> None:
    """A laptop that slept for a minute holds everybody up once."""
    stay = Stay(rate=20 * MBIT)
    for seconds in (600.0, 15.0) * 10:
        stay.line.passed(RoundTraffic(36e6, 36e6, seconds, 15.0))
    stay.clock.now = LATEST_S / 2
    assert not stay.line.is_due()


def test_little_traffic_tells_nothing() -> None:
    """What fits into buffers may seem to have passed in no time; a small model's rounds are short anyway."""
    stay = Stay(rate=1 * MBIT)
    stay.line.passed(RoundTraffic(LEAST_BYTES - 1, 1e9, 0.001, 1.0))
    stay.line.passed(RoundTraffic(1e9, 1e9, 0.0, 0.0))
    assert stay.line.rate == 1 * MBIT


def test_a_line_without_a_known_limit_never_gets_one() -> None:
    """The keeper is as fast as is known."""
    line = LineEstimate(None, clock := Clock(0.0), random.Random(1))
    line.passed(RoundTraffic(1e9, 1e9, 600.0, 1.0))
    line.measured(5e6)
    clock.now = 2 * LATEST_S
    assert not line.is_due()
    assert line.rate is None


def test_rates_stay_within_reason() -> None:
    """Neither a round nor a measurement makes a rate that others would not believe."""
    line = LineEstimate(1e6, Clock(0.0), random.Random(1))
    line.passed(RoundTraffic(1e15, 1e15, 1.0, 1.0))
    assert line.rate == MAX_BANDWIDTH
    for nonsense in (0.0, -1.0, float("nan"), float("inf")):
        line.measured(nonsense)
    assert line.rate == MAX_BANDWIDTH
