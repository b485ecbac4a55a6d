"""The dashboard's server: what it says, how it is cached, what it never does."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from coordinator.ledger.keeper_status import KEEPER_SILENT_S
from coordinator.store.models import SwarmStatus
from coordinator.web.app import create_app
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.snapshot import STALE_AFTER_S, Snapshot, take_snapshot
from coordinator.web.state.web_state import WebState
from tests.support.clocks import Clock
from tests.support.served_page import TARGET, FakeRun, fake_run


@pytest.fixture
def client(run: FakeRun) -> Iterator[TestClient]:
    """A run with two members, three steps and a checkpoint, served."""
    for name in ("ada", "grace"):
        run.add_member(name)
    run.add_steps([9.0, 8.0, 7.0])
    run.add_checkpoint(3)
    with TestClient(create_app(WebState(run.directory, run.services))) as made:
        yield made


def test_overview_tells_where_the_run_stands(client: TestClient, run: FakeRun) -> None:
    """Progress, totals, contributions and the newest checkpoint, as the store has them."""
    overview = client.get("/api/v1/overview").json()
    assert overview["run"]["name"] == "test-run"
    assert overview["run"]["join_link"] == str(run.directory.join_link)
    assert overview["progress"]["samples_accumulated"] == 40
    assert overview["progress"]["step"] == 3
    assert overview["totals"] == {"steps": 3, "samples": 6 * (TARGET // 2 + 1), "members": 2}
    assert overview["loss"] == {"first": 9.0, "last": 7.0}
    assert overview["data_wait"] == {"seconds": 1.5, "share": 0.0125}
    assert overview["online"] == {"devices": 2, "members": 2}
    assert [row["share"] for row in overview["contributions"]] == [0.5, 0.5]
    assert [row["data_wait_share"] for row in overview["contributions"]] == [0.0125, 0.0125]
    assert overview["checkpoint"]["step"] == 3
    assert overview["stale"] is False


def test_checkpoints_are_listed_without_their_place(client: TestClient, run: FakeRun) -> None:
    """All that are kept, the oldest first, with what a reader can check; the operator's paths stay private."""
    run.add_checkpoint(5)
    with TestClient(client.app) as fresh:
        listed = fresh.get("/api/v1/checkpoints").json()
        assert [row["step"] for row in listed["checkpoints"]] == [3, 5]
        assert listed["checkpoints"][-1] == fresh.get("/api/v1/overview").json()["checkpoint"]
        assert set(listed["checkpoints"][0]) == {"step", "size_bytes", "manifest_sha256", "created_at", "withheld"}


def test_overview_tells_the_phases(tmp_path: Path, clock: Clock) -> None:
    """All phases stand there in order, the one in force is named, and progress is towards its batch."""
    phase = {"from_step": 2, "sequence_length": 256, "target_batch_size": 90, "optimizer": "fresh"}
    with fake_run(tmp_path, clock, [phase]) as run:
        run.add_member("ada")
        for step in (1, 2, 3):
            run.keeper_says(step)
            run.add_step(step, 5.0)
            with TestClient(create_app(WebState(run.directory, run.services))) as client:
                overview = client.get("/api/v1/overview").json()
                curve = client.get("/curve.svg").text
            in_second = step >= 2
            assert overview["progress"]["phase"] == 1 + in_second
            assert overview["progress"]["target_batch_size"] == (90 if in_second else TARGET)
            assert ("phase 2" in curve) == (step == 3)
        assert [each["from_step"] for each in overview["phases"]] == [0, 2]
        assert overview["phases"][1]["text"] == "256 tokens, 90 samples a step, fresh optimizer"


def test_held_out_text_speaks_everywhere(client: TestClient, run: FakeRun) -> None:
    """Overview, list, curve and metrics tell the same of the checkpoints that were evaluated."""
    assert client.get("/api/v1/overview").json()["validation"] == {"count": 0, "newest": None}
    assert "held-out text" not in client.get("/curve.svg").text
    for step, mlm_loss in ((1, 8.0), (3, 6.5)):
        run.add_validation(step, mlm_loss)
    with TestClient(create_app(WebState(run.directory, run.services))) as fresh:
        validation = fresh.get("/api/v1/overview").json()["validation"]
        listed = fresh.get("/api/v1/validations").json()
        metrics = fresh.get("/metrics").text
        curve = fresh.get("/curve.svg").text
    assert (validation["count"], validation["newest"]["step"]) == (2, 3)
    assert validation["newest"] == listed["validations"][-1]
    assert [(row["step"], row["loss"]) for row in listed["validations"]] == [(1, 8.5), (3, 7.0)]
    assert listed["era"] == 0
    for line in ("step 3.0", "loss 7.0", "accuracy 0.125", "sop_accuracy 0.75", f"perplexity {math.exp(6.5)}"):
        assert f"manyhands_validation_{line}" in metrics
    assert "held-out text" in curve


def test_a_loss_that_is_no_number_is_left_out(client: TestClient, run: FakeRun) -> None:
    """A broken checkpoint is no point of the curve, null in JSON and no metric; its step is known."""
    run.add_validation(3, mlm_loss=None)
    with TestClient(create_app(WebState(run.directory, run.services))) as fresh:
        newest = fresh.get("/api/v1/overview").json()["validation"]["newest"]
        metrics = fresh.get("/metrics").text
        assert "held-out text" not in fresh.get("/curve.svg").text
    assert (newest["loss"], newest["perplexity"]) == (None, None)
    assert "manyhands_validation_step 3.0" in metrics
    assert not re.search(r"^manyhands_validation_loss \S", metrics, re.MULTILINE)
    assert "manyhands_validation_loss_finite 0.0" in metrics


def test_run_without_data_says_so(run: FakeRun) -> None:
    """Before the first step there are no numbers, but a page and a curve that say so."""
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        overview = client.get("/api/v1/overview").json()
        assert overview["loss"] == {"first": None, "last": None}
        assert overview["data_wait"] == {"seconds": 0.0, "share": None}
        assert overview["checkpoint"] is None
        assert overview["stale"] is True
        assert "Waiting for the first global step" in client.get("/curve.svg").text


def test_silent_keeper_makes_the_page_stale(client: TestClient, run: FakeRun, clock: Clock) -> None:
    """When the keeper has not written for a while, a snapshot says that it may be old."""
    assert not take_snapshot(run.services, None).stale
    clock.now += STALE_AFTER_S + 1
    assert take_snapshot(run.services, None).stale


def test_later_snapshot_has_the_new_steps(client: TestClient, run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that builds on the one before equals one that is taken anew."""
    monkeypatch.setattr("coordinator.web.state.snapshot.LATE_STEPS", 4)  # more steps than are read again
    before = take_snapshot(run.services, None)
    run.add_steps([5.0] * 16, first=4)
    middle = take_snapshot(run.services, before)
    run.add_step(20, 4.0)
    assert take_snapshot(run.services, middle).steps == take_snapshot(run.services, None).steps
    run.services.ledger.roll_back(17)
    assert take_snapshot(run.services, middle).steps[-1].step == 17


async def test_failed_refresh_keeps_the_last_good_snapshot(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store does not answer, what was read before stays, marked as stale; afterwards it goes on."""
    monkeypatch.setattr("coordinator.web.state.live.REFRESH_S", 0.01)
    run.add_member("ada")
    run.add_step(1, 9.0)
    failing = False

    def take(before: Snapshot | None) -> Snapshot:
        if failing:
            raise OperationalError("SELECT", {}, Exception("disk gone"))
        return take_snapshot(run.services, before)

    live = LiveSnapshot(take)
    async with live.refreshing():
        updates = live.updates()
        assert not (await anext(updates)).stale
        failing = True
        while not (snapshot := await anext(updates)).stale:
            pass
        assert [row.loss for row in snapshot.steps] == [9.0]
        failing = False
        while (await anext(updates)).stale:
            pass


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    """Scripts come from here only; nobody may frame the page or guess types."""
    for path in ("/", "/api/v1/overview", "/static/frame.js", "/nowhere"):
        headers = client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_page_and_files_are_cached_by_etag(client: TestClient) -> None:
    """A second request for an unchanged file costs no bytes."""
    for path in ("/", "/static/style.css", "/plotly.min.js"):
        first = client.get(path)
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_plotly_comes_from_its_wheel_compressed(client: TestClient) -> None:
    """The charts' library is served from here, gzipped to well under its size."""
    with client.stream("GET", "/plotly.min.js") as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    script = gzip.decompress(raw)
    assert b"Plotly" in script
    assert len(raw) < len(script) / 2


def test_health_and_readiness(client: TestClient, run: FakeRun) -> None:
    """Healthy means that the process answers, ready that the store does, too."""
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 200
    SwarmStatus.__table__.drop(run.services.database.engine)  # type: ignore[attr-defined]
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_a_run_whose_keeper_is_silent_is_not_ready(client: TestClient, run: FakeRun, clock: Clock) -> None:
    """Nobody can join it; the service goes on all the same, and starting it again would mend nothing."""
    clock.now += KEEPER_SILENT_S
    assert client.get("/readyz").status_code == 200
    clock.now += 5.0
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "the keeper has been silent for 125 s"})
    assert client.get("/healthz").status_code == 200
    run.keeper_says(3)
    assert client.get("/readyz").status_code == 200


def test_a_run_without_a_keeper_yet_is_not_ready(run: FakeRun) -> None:
    """Before its first word."""
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        assert client.get("/readyz").json() == {"status": "the keeper has not reported yet"}


def test_metrics_follow_prometheus_conventions(client: TestClient) -> None:
    """Counters end in _total, the run's numbers are there, and no member's name is a label."""
    text = client.get("/metrics").text
    assert "manyhands_global_step 3.0" in text
    assert f"manyhands_samples_total {float(6 * (TARGET // 2 + 1))}" in text
    assert "manyhands_loss 7.0" in text
    assert "manyhands_training_seconds_total 120.0" in text
    assert "manyhands_data_wait_seconds_total 1.5" in text
    assert "ada" not in text


def test_hostile_name_stays_data(run: FakeRun) -> None:
    """A member's name is JSON text, whatever it spells, and never part of the server-drawn page."""
    name = "<img src=x onerror=alert(1)>"
    run.add_member(name)
    run.add_step(1, 9.0)
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        answer = client.get("/api/v1/overview")
        assert json.loads(answer.text)["contributions"][0]["member"] == name
        assert answer.headers["content-type"] == "application/json"
        assert name not in client.get("/").text + client.get("/curve.svg").text
