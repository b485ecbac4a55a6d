"""A value that is costly to work out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from coordinator.throttling.cost_cache import LITTLE_S, REST, Costly
from tests.support.clocks import Clock


class Count:
    """How often it was worked out, each time taking so long."""

    def __init__(self, clock: Clock, takes_s: float) -> None:
        self.clock, self.takes_s, self.times = clock, takes_s, 0

    def __call__(self) -> int:
        self.clock.now += self.takes_s
        self.times += 1
        return self.times


def test_what_costs_little_is_always_new() -> None:
    """Each who asks gets what is true now."""
    clock = Clock()
    value = Costly(Count(clock, LITTLE_S / 2), clock)
    assert [value(), value(), value()] == [1, 2, 3]


def test_what_costs_much_rests_ten_times_as_long() -> None:
    """In between everybody gets the last value."""
    clock = Clock()
    value = Costly(Count(clock, 4.0), clock)
    assert [value(), value()] == [1, 1]
    clock.now += 4.0 * REST - 1
    assert value() == 1
    clock.now += 1
    assert value() == 2


def test_who_asks_at_the_same_time_shares_it() -> None:
    """A costly value is worked out once for all threads that wait."""
    clock = Clock()
    value = Costly(Count(clock, 4.0), clock)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: value(), range(8))) == [1] * 8
