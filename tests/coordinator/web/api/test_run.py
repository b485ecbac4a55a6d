"""The public API: cached, open to other sites' pages for reading, and the whole history for download."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator

import pyarrow.parquet
import pytest
from starlette.testclient import TestClient

from coordinator.members.names import hide_name, set_display_name
from coordinator.statistics.run_tables import TABLES
from coordinator.store.models import Step
from coordinator.throttling.rate_limits import CallerPlaces
from coordinator.web.api.run import overview_events
from coordinator.web.app import create_app
from coordinator.web.state.snapshot import Snapshot, take_snapshot
from coordinator.web.state.web_state import WebState
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun

FORMULA = "=HYPERLINK(1)"


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """Two members, one of whom spreadsheets would compute, and ten steps."""
    run.add_member("ada")
    run.add_member(FORMULA)
    run.add_steps([10.0 - step for step in range(1, 11)])
    run.add_validation(10)
    return run


PATHS = ("overview", "steps", "curve", "checkpoints", "validations", "publications", "receipts")


@pytest.mark.parametrize("path", PATHS)
def test_whoever_has_the_newest_answer_gets_none(client: TestClient, path: str) -> None:
    """Each answer has an ETag that stays while nothing happens."""
    first = client.get(f"/api/v1/{path}")
    again = client.get(f"/api/v1/{path}", headers={"If-None-Match": first.headers["etag"]})
    assert first.status_code == 200
    assert (again.status_code, again.content) == (304, b"")


def test_other_sites_may_read_and_nothing_else(client: TestClient) -> None:
    """Any origin reads the public API, without cookies; neither the administrators' nor a page."""
    origin = {"Origin": "https://elsewhere.example"}
    read = client.get("/api/v1/overview", headers=origin).headers
    assert read["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in read
    ask = {**origin, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "If-None-Match"}
    assert client.options("/api/v1/overview", headers=ask).status_code == 200
    write = {**ask, "Access-Control-Request-Method": "POST"}
    assert client.options("/api/v1/overview", headers=write).status_code == 400
    for path in ("/", "/admin", "/metrics"):
        assert "access-control-allow-origin" not in client.get(path, headers=origin).headers


def test_the_curve_is_thinned_out_and_smoothed(client: TestClient) -> None:
    """As many points as wanted, with the samples up to each; a part of it on demand."""
    whole = client.get("/api/v1/curve").json()
    assert whole["step"] == list(range(1, 11))
    assert whole["samples_total"] == [102 * step for step in range(1, 11)]
    assert whole["smoothed"] is None
    thin = client.get("/api/v1/curve", params={"points": 4, "smoothing": 3, "after": 2, "until": 9}).json()
    assert (thin["steps"], len(thin["step"])) == (7, 4)
    assert (thin["step"][0], thin["step"][-1]) == (3, 9)
    assert thin["smoothed"][0] == pytest.approx(7.75)
    assert (whole["usual"], whole["smoothing"]) == (None, 0)
    for wrong in ({"points": 2}, {"points": 10**6}, {"smoothing": -1}, {"smoothing": "much"}, {"after": -1}):
        assert client.get("/api/v1/curve", params=wrong).status_code == 422


def test_a_long_curve_comes_with_the_smoothing_and_range_that_fit_it(run: FakeRun) -> None:
    """By default it is averaged over steps by its length, with a range without the first drop; a choice wins."""
    facts = {"era": 0, "samples": 102, "loss_samples": 1, "devices": 2, "target_batch_size": 100, "completed_at": 0.0}
    with run.services.database.begin() as session:
        session.add_all(Step(step=step, loss_sum=1.0 + 1 / step, **facts) for step in range(11, 211))
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        curve = client.get("/api/v1/curve", params={"smoothing": "auto"}).json()
        assert (curve["smoothing"], len(curve["smoothed"])) == (20, 210)
        assert 6.5 < curve["usual"][1] < curve["loss"][0]  # the loss on held-out text at step 10 is 6.5
        assert client.get("/api/v1/curve", params={"smoothing": 0}).json()["smoothed"] is None


def test_steps_tell_where_the_next_page_begins(client: TestClient) -> None:
    """Page by page all of them come, once each."""
    found, after = [], 0
    while after is not None:
        page = client.get("/api/v1/steps", params={"after": after, "limit": 4}).json()
        found += page["step"]
        after = page["next"]
    assert found == list(range(1, 11))


def test_the_overview_says_how_averaging_goes_and_what_was_donated(run: FakeRun, clock: Clock) -> None:
    """Of settled steps; by kind of hardware."""
    clock.now += 60
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        overview = client.get("/api/v1/overview").json()
    assert overview["averaging"]["steps"] == 10
    assert overview["averaging"]["batch_share"] == pytest.approx(1.02)
    assert overview["averaging"]["lost_samples"] == {}
    assert overview["donated"] == [{"kind": "other", "device_s": 400.0, "accelerator_s": 400.0}]
    assert overview["recent"]["step"] == list(range(1, 11))
    assert overview["recent"]["samples_total"][-1] == overview["totals"]["samples"]


async def test_an_event_is_sent_when_there_is_news(run: FakeRun) -> None:
    """A snapshot that says the same is no event, nor does an event hold more contributions than are shown."""
    web = WebState(run.directory, run.services)
    snapshots = [take_snapshot(run.services, None)] * 2
    run.add_step(11, 3.0)
    snapshots.append(take_snapshot(run.services, snapshots[0]))

    async def updates() -> AsyncIterator[Snapshot]:
        for each in snapshots:
            yield each

    steps = [
        json.loads(event.decode().splitlines()[1].removeprefix("data: "))["totals"]["steps"]
        async for event in overview_events(web, updates())
    ]
    assert steps == [10, 11]


@pytest.mark.parametrize("table", TABLES)
def test_the_history_as_csv_and_parquet(client: TestClient, run: FakeRun, table: str) -> None:
    """Both formats say the same, under names that the public may know, without the keeper."""
    set_display_name(run.services.database, "ada", "countess")
    text = client.get(f"/api/v1/history/{table}.csv")
    names, *rows = csv.reader(io.StringIO(text.text))
    packed = client.get(f"/api/v1/history/{table}.parquet")
    columns = pyarrow.parquet.read_table(io.BytesIO(packed.content))
    assert names == columns.column_names
    assert len(rows) == columns.num_rows > 0
    assert f'filename="test-run-{table}.csv"' in text.headers["content-disposition"]
    assert all(columns.schema.field(name).metadata[b"meaning"] for name in names)
    if "member" in names:
        assert set(columns["member"].to_pylist()) == {"countess", FORMULA}
        assert {row[names.index("member")] for row in rows} == {"countess", f"'{FORMULA}"}
        assert "keeper" not in text.text


@pytest.mark.parametrize("table", ["contributions", "sessions"])
def test_the_history_hides_who_has_no_public_name(client: TestClient, run: FakeRun, table: str) -> None:
    """Under the same number as on the pages, in both formats, also where there had been another name."""
    database = run.services.database
    set_display_name(database, "ada", "countess")
    shown = hide_name(database, "ada", True, run.services.clock())
    rows = list(csv.DictReader(io.StringIO(client.get(f"/api/v1/history/{table}.csv").text)))
    packed = pyarrow.parquet.read_table(io.BytesIO(client.get(f"/api/v1/history/{table}.parquet").content))
    assert {row["member"] for row in rows} == {shown, f"'{FORMULA}"}
    assert set(packed["member"].to_pylist()) == {shown, FORMULA}


def test_the_history_is_whole(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page nothing is lost or comes twice."""
    monkeypatch.setattr("coordinator.statistics.run_tables.ROWS_AT_ONCE", 3)
    rows = list(csv.DictReader(io.StringIO(client.get("/api/v1/history/contributions.csv").text)))
    assert sorted((int(row["step"]), row["member"]) for row in rows) == sorted(
        (step, name) for step in range(1, 11) for name in ("ada", f"'{FORMULA}")
    )
    assert {row["undone"] for row in rows} == {"false"}
    assert {row["counted"] for row in rows} == {"51"}


@pytest.mark.parametrize("path", ["history/members.csv", "history/steps.xlsx", "history/steps"])
def test_there_is_no_other_table_or_format(client: TestClient, path: str) -> None:
    """Such an address is refused or has nothing."""
    assert client.get(f"/api/v1/{path}").status_code in {404, 422}


def test_few_download_at_once(run: FakeRun) -> None:
    """Who finds all places taken is told to come again."""
    with TestClient(create_app(WebState(run.directory, run.services, exports=CallerPlaces(0, 0)))) as client:
        refused = client.get("/api/v1/history/steps.csv")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
