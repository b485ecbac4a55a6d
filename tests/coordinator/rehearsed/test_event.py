"""A rehearsed event in the dashboard: the page's numbers are the rehearsal's, and nothing passes for a real run."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from coordinator.context.open_run import make_settings
from coordinator.context.services import open_run_services
from coordinator.rehearsed.event import RehearsedEvent, rehearsed_config, rehearsed_event
from coordinator.web.app import WebState, create_app
from coordinator.web.archive import Wish, write_archive
from dashboards import catalogs
from peer.config.run import RunConfig
from peer.rehearsal.population import draw_scenario
from peer.rehearsal.scenario import HomeLine, Mishap, Rehearsed, Scenario, Visit
from tests.support.tiny_albert import tiny_config

LINE = HomeLine(up_mbit_per_second=10, down_mbit_per_second=50)
ENDS_AT = 1_800_000_000.0
DURATION_S = 600.0


def run_config() -> RunConfig:
    """A run with a batch of 64 samples and a checkpoint every third step."""
    raw = tiny_config().model_dump(mode="json")
    raw["averaging"] |= {"target_batch_size": 64, "statistics_expiration_s": 60.0}
    raw["data"]["microbatch_size"] = 2
    raw["checkpoints"]["every_steps"] = 3
    return RunConfig.from_mapping(raw)


def volunteer(name: str, rate: float | None = 1.0, **others: object) -> Rehearsed:
    """A device on a home line."""
    return Rehearsed.model_validate({"name": name, "line": LINE, "samples_per_second": rate, **others})


SCHOOL = (volunteer("pc-1", member="school"), volunteer("pc-2", 2.0, member="school"))
LEAVING = volunteer("leaving", visits=(Visit(begin_s=40, end_s=200), Visit(begin_s=300, end_s=401, ends="dies")))
SCENARIO = Scenario(
    duration_s=DURATION_S, parameters=1_000_000, devices=(*SCHOOL, LEAVING, volunteer("auxiliary", None))
)


@dataclass
class Shown:
    """An event, and requests to its dashboard."""

    event: RehearsedEvent
    client: TestClient


@contextmanager
def shown(scenario: Scenario, *, are_drawn: bool = False) -> Iterator[Shown]:
    """Rehearse a scenario, and open the web application over its store."""
    settings = make_settings(bind_host="127.0.0.1")
    with (
        rehearsed_event(run_config(), scenario, 1, settings, ENDS_AT, are_drawn=are_drawn) as event,
        open_run_services(event.directory, lambda: event.ended_at) as services,
        TestClient(
            create_app(WebState(event.directory, services, is_rehearsed=True)), base_url="http://127.0.0.1"
        ) as client,
    ):
        yield Shown(event, client)


@pytest.fixture(scope="module")
def page() -> Iterator[Shown]:
    """The dashboard of the scenario above."""
    with shown(SCENARIO) as found:
        yield found


def test_the_overview_has_the_rehearsals_numbers(page: Shown) -> None:
    """Steps, samples in them, samples towards the next step, and who is there at the end."""
    overview, run = page.client.get("/api/v1/overview").json(), page.event.run
    works = [each.work for each in run.devices]
    assert overview["totals"]["steps"] == len(run.steps) > 10
    assert overview["totals"]["samples"] == sum(step.samples for step in run.steps)
    held = sum(work.computed - work.counted - work.lost.total() for work in works)
    assert overview["progress"]["samples_accumulated"] == held > 0
    assert overview["online"] == {"devices": 3, "members": 2}
    assert overview["progress"]["peers"] == 2
    assert overview["averaging"]["rounds"]["succeeded"] == len(run.steps)
    assert (overview["verdict"]["state"], overview["stale"]) == ("healthy", False)
    assert overview["taken_at"] == ENDS_AT


def test_each_member_has_the_samples_of_its_devices(page: Shown) -> None:
    """In steps, as receipts confirm; and those that were lost, by the device's own word."""
    rows = page.client.get("/api/v1/participants").json()["participants"]
    counted: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for each in page.event.run.devices:
        counted[each.device.member or each.device.name] += each.work.counted
        lost[each.device.member or each.device.name] += each.work.lost.total()
    assert {row["member"]: row["samples"] for row in rows} == dict(counted)
    assert all(row["pending_samples"] == 0 for row in rows)
    pages = [page.client.get(f"/api/v1/participants/{row['number']}").json() for row in rows]
    assert {each["member"]: each["lost_samples"] for each in pages} == dict(lost)
    assert lost["leaving"] > 0
    [leaving] = [each for each in pages if each["member"] == "leaving"]
    begin = ENDS_AT - DURATION_S
    assert [stay["began_at"] - begin for stay in leaving["stays"]] == [40, 300]
    assert leaving["stays"][1]["ended_at"] - begin == 401
    assert all(each["averaged_bytes"] > 0 for each in pages)


def test_the_history_has_each_step(page: Shown) -> None:
    """Its time, its batch and its devices; a rehearsal computes no loss."""
    moments = page.client.get("/api/v1/moments/0").json()["moments"]
    steps, begin = page.event.run.steps, ENDS_AT - DURATION_S
    assert [each["step"] for each in moments] == [step.step for step in steps]
    assert [each["samples"] for each in moments] == [step.samples for step in steps]
    assert {each["target_batch_size"] for each in moments} == {64}
    assert [each["groups"][0]["size"] for each in moments] == [step.peers for step in steps]
    assert all(abs(each["completed_at"] - begin - step.at_s) < 1 for each, step in zip(moments, steps, strict=True))
    assert all(each["loss"] is None and each["refused"] == {} for each in moments)


@pytest.mark.parametrize("language", catalogs())
@pytest.mark.parametrize("path", ["/", "/participants", "/member?number=2", "/history", "/nowhere", "/admin"])
def test_each_page_says_that_it_is_simulated(page: Shown, path: str, language: str) -> None:
    """In the reader's language, beside a run's name that says so, too; and it leads to no way of joining."""
    text = page.client.get(path, headers={"Accept": "text/html", "Accept-Language": language}).text
    assert catalogs()[language]["frame"]["rehearsed_banner"] in text
    assert page.event.directory.config.run.name.endswith("-rehearsal")
    assert "manyhands://" not in text
    assert 'href="join"' not in text
    assert "og:image" not in text


@pytest.mark.parametrize(
    "path",
    [
        *("/join", "/model", "/card.png", "/admin/login", "/api/v1/joining", "/software/SKILL.md"),
        *("/api/v1/receipts", "/api/v1/participants/2/certificate", "/api/v1/authority"),
    ],
)
def test_nothing_of_it_can_be_joined_or_proved(page: Shown, path: str) -> None:
    """Receipts and certificates of samples that nobody computed are not handed out."""
    assert page.client.get(path).status_code == 404


def test_it_has_no_checkpoints(page: Shown) -> None:
    """Neither rows nor files, also where the run file wants them; nor can its settings publish any."""
    assert page.client.get("/api/v1/checkpoints").json()["checkpoints"] == []
    assert list(page.event.directory.checkpoints_dir.iterdir()) == []
    assert page.event.directory.settings.publications == ()


def test_its_archive_says_so_on_each_page(page: Shown, tmp_path: Path) -> None:
    """It has no page of a model, and no picture without a banner."""
    write_archive(page.event.directory, Wish(tmp_path / "pages", is_rehearsed=True), ENDS_AT)
    found = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "pages").glob("*.html")}
    assert {"index.html", "history.bn.html", "404.es.html"} <= found.keys()
    banners = [catalog["frame"]["rehearsed_banner"] for catalog in catalogs().values()]
    assert all(any(banner in text for banner in banners) for text in found.values())
    assert not any(name.startswith(("model", "join")) for name in found)
    assert not (tmp_path / "pages" / "card.png").exists()


def test_steps_that_were_undone_are_undone_in_the_store() -> None:
    """A keeper that is killed resumes from a checkpoint; the ledger begins another era with it."""
    alone = Scenario(
        duration_s=DURATION_S,
        parameters=1_000_000,
        devices=(
            volunteer("only", 3.0, visits=(Visit(end_s=295.0), Visit(begin_s=330.0))),
            volunteer("auxiliary", None),
        ),
        mishaps=(Mishap(kind="keeper", begin_s=300.0, end_s=310.0),),
    )
    with shown(alone) as page:
        run = page.event.run
        assert any(each.what == "undoes" for each in run.trace)
        overview = page.client.get("/api/v1/overview").json()
    assert (overview["era"], overview["totals"]["steps"]) == (1, len(run.steps))


def test_drawn_volunteers_have_invented_names_and_their_hardware() -> None:
    """Each another; and nothing of the run is left when it is closed."""
    config = run_config()
    drawn = draw_scenario(config, parameters=100_000, volunteers=5, hours=0.05, seed=1)
    with shown(drawn, are_drawn=True) as page:
        rows = page.client.get("/api/v1/participants").json()["participants"]
        folder = page.event.directory.path
        assert tempfile.gettempdir() in str(folder)
    arrived = {each.who for each in page.event.run.trace if each.what == "arrived"} - {"keeper"}
    assert len({row["member"] for row in rows}) == len(arrived) > 2
    assert not {row["member"] for row in rows} & arrived
    assert "unknown" not in {row["hardware"] for row in rows}
    assert not folder.exists()


def test_the_name_of_a_rehearsal_fits_a_runs_rules() -> None:
    """Also where the run's own name has no room for more."""
    raw = run_config().model_dump(mode="json")
    raw["run"]["name"] = "a" * 40
    name = rehearsed_config(RunConfig.from_mapping(raw)).run.name
    assert name == "a" * 30 + "-rehearsal"
