"""The keeper's look at the model: what is kept, when alarms are raised and cleared, and where they show."""

from __future__ import annotations

import pytest
import torch
from starlette.testclient import TestClient

from coordinator.keeper.alarm_watch import AlarmWatch, update_norm
from coordinator.ledger.reading import SETTLED_S
from coordinator.members.audit import audit_log
from coordinator.statistics.alarms import raised_alarms
from coordinator.web.app import WebState, create_app
from peer.swarm.fingerprint import sketch_of
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run with one member."""
    run.add_member("ada")
    return run


def watch(run: FakeRun, clock: Clock) -> AlarmWatch:
    """The keeper's."""
    return AlarmWatch(run.services.database, run.services.config, run.services.ledger, clock)


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


def test_the_sketch_tells_how_far_a_step_moved() -> None:
    """Within a third of the true norm, for tensors of very different sizes."""
    generator = torch.Generator().manual_seed(3)
    before = [torch.randn(size, generator=generator) for size in (1000, 10, 400, 7, 2000) * 20]
    steps = [0.01 * torch.randn(len(tensor), generator=generator) for tensor in before]
    after = [tensor + step for tensor, step in zip(before, steps, strict=True)]
    true = float(torch.cat(steps).norm())
    assert update_norm(sketch_of(before), sketch_of(after)) == pytest.approx(true, rel=0.35)
