"""Which beacon holds: a keeper's newest, that it has renewed."""

from __future__ import annotations

from peer.beacon import Beacon, BeaconWatch, Course, nearest_step


def beacon(step: int, time: float, era: int = 0) -> Beacon:
    """A beacon of that step."""
    return Beacon(step, (), time, Course(age_s=0.0, usual_s=0.0, credits={}), era)


def test_a_beacon_holds_as_long_as_it_is_renewed() -> None:
    """The very same one again is no renewal: a keeper that is gone leaves its last record behind."""
    watch = BeaconWatch(silent_after_s=5.0)
    assert watch.look(beacon(3, time=1.0), now=10.0) == beacon(3, 1.0)
    assert watch.look(beacon(3, time=1.0), now=15.0) == beacon(3, 1.0)
    assert watch.look(beacon(3, time=1.0), now=15.1) is None
    assert watch.look(beacon(3, time=2.0), now=15.2) == beacon(3, 2.0)
    assert watch.look(None, now=16.0) == beacon(3, 2.0)


def test_a_beacon_never_goes_back_but_with_an_era() -> None:
    """An older step is none, so the newer one grows old; steps that were undone come with a new era."""
    watch = BeaconWatch(silent_after_s=5.0)
    watch.look(beacon(8, time=1.0), now=0.0)
    assert watch.look(beacon(7, time=2.0), now=1.0) == beacon(8, 1.0)
    assert watch.look(beacon(7, time=3.0), now=6.0) is None
    assert watch.look(beacon(7, time=4.0, era=1), now=7.0) == beacon(7, 4.0, era=1)


def test_the_swarm_is_at_most_a_step_beyond_the_beacon() -> None:
    """Nor is it behind it; without a beacon it is where most members are."""
    held = beacon(5, 1.0)
    assert [nearest_step(agreed, held, held) for agreed in (0, 5, 6, 7, 10**9)] == [5, 5, 6, 6, 6]
    assert nearest_step(10**9, None, None) == 10**9


def test_a_keeper_that_is_silent_still_marks_how_far_the_swarm_is() -> None:
    """As long as its record lies in the DHT, who is behind it has something to catch up with."""
    assert [nearest_step(agreed, beacon(5, 1.0), None) for agreed in (3, 9)] == [5, 9]
