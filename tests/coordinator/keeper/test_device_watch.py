"""When a swarm is taken to be in two, and when somebody has been starting for too long."""

from __future__ import annotations

from pathlib import Path

from coordinator.keeper.device_watch import LOOK_EVERY_S, PATIENCE_S, STARTING_S, DeviceWatch
from coordinator.ledger.presence import APART, online_sessions
from coordinator.statistics.alarms import raised_alarms
from tests.support.clocks import Clock
from tests.support.crowds import touch
from tests.support.served_page import FakeRun, fake_run


def say(run: FakeRun, clock: Clock, *states: str) -> None:
    """Each member's device says this of itself."""
    database = run.services.database
    for online, state in zip(online_sessions(database, clock.now), states, strict=True):
        touch(database, online.session_id, step=3, own_samples=0, samples_per_second=1.0, state=state, now=clock.now)


def test_who_trains_apart_for_long_is_an_alarm_until_all_are_together(tmp_path: Path) -> None:
    """Not what ends within half a minute, as after a keeper's restart; it names the step and who it is."""
    clock = Clock()
    with fake_run(tmp_path, clock) as run:
        database = run.services.database
        run.add_member("ada")
        run.add_member("grace")
        watch = DeviceWatch(database, clock)
        for seconds, states in ((PATIENCE_S - LOOK_EVERY_S, (APART, "training")), (LOOK_EVERY_S, ("training",) * 2)):
            for _ in range(int(seconds / LOOK_EVERY_S)):
                clock.now += LOOK_EVERY_S
                say(run, clock, *states)
                watch.look(3)
        assert raised_alarms(database) == []
        for _ in range(int(PATIENCE_S / LOOK_EVERY_S)):
            clock.now += LOOK_EVERY_S
            say(run, clock, APART, "training")
            watch.look(3)
        (alarm,) = raised_alarms(database)
        assert (alarm.kind, alarm.step) == ("swarm_split", 3)
        assert "1 of 2 devices" in alarm.detail
        assert "(ada)" in alarm.detail
        clock.now += LOOK_EVERY_S
        say(run, clock, "training", "training")
        watch.look(4)
        assert raised_alarms(database) == []


def test_who_has_been_starting_for_minutes_is_an_alarm_until_it_trains(tmp_path: Path) -> None:
    """Each device has its own time, which begins anew with each start; the alarm names whose they are."""
    clock = Clock()
    with fake_run(tmp_path, clock) as run:
        database = run.services.database
        run.add_member("ada")
        run.add_member("grace")
        watch = DeviceWatch(database, clock)

        def for_s(seconds: float, *states: str) -> None:
            for _ in range(int(seconds / LOOK_EVERY_S)):
                clock.now += LOOK_EVERY_S
                say(run, clock, *states)
                watch.look(7)

        for_s(STARTING_S, "starting", "training")
        for_s(LOOK_EVERY_S, "training", "starting")
        for_s(STARTING_S - LOOK_EVERY_S, "starting", "starting")
        assert raised_alarms(database) == []
        for_s(LOOK_EVERY_S, "starting", "starting")
        (alarm,) = raised_alarms(database)
        assert (alarm.kind, alarm.step) == ("devices_starting", 7)
        assert "1 of 2 devices" in alarm.detail
        assert "(grace)" in alarm.detail
        for_s(LOOK_EVERY_S, "starting", "starting")
        assert "(ada, grace)" in raised_alarms(database)[0].detail
        for_s(LOOK_EVERY_S, "training", "training")
        assert raised_alarms(database) == []
