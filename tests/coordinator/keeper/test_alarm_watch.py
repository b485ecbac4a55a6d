"""The keeper's look at the model: what is kept, when alarms are raised and cleared, and where they show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from starlette.testclient import TestClient

from coordinator.keeper.alarm_watch import LOOK_EVERY_S, PATIENCE_S, STARTING_S, AlarmWatch, DeviceWatch, update_norm
from coordinator.ledger.reading import SETTLED_S
from coordinator.ledger.sessions import APART, online_sessions
from coordinator.members.audit import audit_log
from coordinator.statistics.alarms import AlarmRow, raised_alarms
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from peer.progress.fingerprint import sketch_of
from tests.support.clocks import Clock
from tests.support.crowds import touch
from tests.support.served_page import FakeRun


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run with one member."""
    run.add_member("ada")
    return run


def watch(run: FakeRun, clock: Clock) -> AlarmWatch:
    """The keeper's."""
    return AlarmWatch(run.services.database, run.directory, run.services.ledger, clock)


def test_an_alarm_is_raised_once_shown_and_cleared(run: FakeRun, clock: Clock) -> None:
    """With its step, in the audit log, as a metric; a restarted keeper does not raise it again."""
    database = run.services.database
    watching = watch(run, clock)
    for step in range(1, 15):
        run.add_step(step, 3.0 if step < 8 else 9.0)
        clock.now += SETTLED_S + 1
        watching.step_taken(0, step, (float(step),))
    watch(run, clock).step_taken(0, 15, (15.0,))
    (alarm,) = raised_alarms(database)
    assert alarm.kind == "loss_diverges"
    assert 8 <= alarm.step <= 12
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        assert f'manyhands_alarm_step{{kind="loss_diverges"}} {alarm.step}.0' in client.get("/metrics").text
    for step in range(15, 21):
        run.add_step(step, 3.0)
        clock.now += SETTLED_S + 1
        watching.step_taken(0, step, (float(step),))
    assert raised_alarms(database) == []
    entries = [(row.actor, row.act, row.subject) for row in audit_log(database, 10) if row.act.startswith("alarm")]
    assert entries == [("run:keeper", "alarm-over", "loss_diverges"), ("run:keeper", "alarm", "loss_diverges")]


def test_a_leap_of_the_parameters_is_seen(run: FakeRun, clock: Clock) -> None:
    """Between two successive states of one era only; what is undone is forgotten."""
    watching, place = watch(run, clock), 0.0
    for step in range(1, 30):
        place += 1.0
        watching.step_taken(0, step, (place,))
    assert raised_alarms(run.services.database) == []
    watching.step_taken(0, 30, (place + 50.0,))
    assert [(row.kind, row.step) for row in raised_alarms(run.services.database)] == [("update_norm", 30)]
    watching.step_taken(1, 28, (28.0,))  # back at a checkpoint
    assert raised_alarms(run.services.database) == []


def test_a_leap_is_logged_at_once_with_the_way_back(
    run: FakeRun, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """In the call for its step, also while another alarm or an earlier leap holds; it names the kept checkpoint."""
    watching, place = watch(run, clock), 0.0
    for kept in (20, 30, 40):
        run.add_checkpoint(kept)
    for step in range(1, 50):
        run.add_step(step, 3.0 if step < 40 else None)
        clock.now += SETTLED_S + 1
        place += 39.0 if step in {35, 45} else 1.0
        caplog.clear()
        watching.step_taken(0, step, (place,))
        if step in {35, 45}:
            (line,) = caplog.messages
            assert f"alarm, step 35: step {step} moved the parameters by 39, the median is 1" in line
            assert line.endswith(f"Return to step 30: manyhands coordinator rewind {run.directory.path} 30")
    assert {row.kind: row.step for row in raised_alarms(run.services.database)} == {
        "loss_not_finite": 40,
        "update_norm": 35,
    }


def test_a_loss_is_judged_between_steps_once_its_reports_are_in(run: FakeRun, clock: Clock) -> None:
    """The last step's loss is told without waiting for the next one, and the alarm ends with a return to before it."""
    watching, database = watch(run, clock), run.services.database
    for step in range(1, 14):
        run.add_step(step, 3.0 if step < 9 else 9.0)
        watching.step_taken(0, step, (float(step),))
    watching.look(13)
    assert raised_alarms(database) == []
    clock.now += SETTLED_S + 1
    watching.look(13)
    assert [(row.kind, row.step) for row in raised_alarms(database)] == [("loss_diverges", 9)]
    run.services.ledger.roll_back(8)
    clock.now += LOOK_EVERY_S
    watching.look(8)
    assert raised_alarms(database) == []


def test_the_sketch_tells_how_far_a_step_moved() -> None:
    """Within a third of the true norm, for tensors of very different sizes."""
    generator = torch.Generator().manual_seed(3)
    before = [torch.randn(size, generator=generator) for size in (1000, 10, 400, 7, 2000) * 20]
    steps = [0.01 * torch.randn(len(tensor), generator=generator) for tensor in before]
    after = [tensor + step for tensor, step in zip(before, steps, strict=True)]
    true = float(torch.cat(steps).norm())
    assert update_norm(sketch_of(before), sketch_of(after)) == pytest.approx(true, rel=0.35)


@dataclass
class TwoDevices:
    """Ada's and Grace's, and the keeper's watch over them."""

    run: FakeRun
    clock: Clock

    def __post_init__(self) -> None:
        self.run.add_member("grace")
        self.watch = DeviceWatch(self.run.services.database, self.clock)

    def say(self, seconds: float, *states: str) -> list[AlarmRow]:
        """Let both say this of themselves for so long, at step 3; return the alarms that hold then."""
        database = self.run.services.database
        for _ in range(int(seconds / LOOK_EVERY_S)):
            self.clock.now += LOOK_EVERY_S
            for online, state in zip(online_sessions(database, self.clock.now), states, strict=True):
                claim = {"step": 3, "own_samples": 0, "samples_per_second": 1.0, "state": state}
                touch(database, online.session_id, **claim, now=self.clock.now)
            self.watch.look(3)
        return raised_alarms(database)


@pytest.fixture
def devices(run: FakeRun, clock: Clock) -> TwoDevices:
    return TwoDevices(run, clock)


def test_who_trains_apart_for_long_is_an_alarm_until_all_are_together(devices: TwoDevices) -> None:
    """Not what ends within half a minute, as after a keeper's restart; it names the step and who it is."""
    assert devices.say(PATIENCE_S - LOOK_EVERY_S, APART, "training") == []
    assert devices.say(LOOK_EVERY_S, "training", "training") == []
    (alarm,) = devices.say(PATIENCE_S, APART, "training")
    assert (alarm.kind, alarm.step) == ("swarm_split", 3)
    assert "1 of 2 devices" in alarm.detail
    assert "(ada)" in alarm.detail
    assert devices.say(LOOK_EVERY_S, "training", "training") == []


def test_who_has_been_starting_for_minutes_is_an_alarm_until_it_trains(devices: TwoDevices) -> None:
    """Each device has its own time, which begins anew with each start; the alarm names whose they are."""
    devices.say(STARTING_S, "starting", "training")
    devices.say(LOOK_EVERY_S, "training", "starting")
    assert devices.say(STARTING_S - LOOK_EVERY_S, "starting", "starting") == []
    (alarm,) = devices.say(LOOK_EVERY_S, "starting", "starting")
    assert (alarm.kind, alarm.step) == ("devices_starting", 3)
    assert "1 of 2 devices" in alarm.detail
    assert "(grace)" in alarm.detail
    (alarm,) = devices.say(LOOK_EVERY_S, "starting", "starting")
    assert "(ada, grace)" in alarm.detail
    assert devices.say(LOOK_EVERY_S, "training", "training") == []
