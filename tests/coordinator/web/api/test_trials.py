"""Visitors ask the model, as the service hears them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from coordinator.playground.questions import MAX_WAITING, Candidate, record_answer, record_no_answer
from coordinator.store.models import Checkpoint
from coordinator.throttling.rate_limits import CallerPace
from coordinator.web.api.trials import MAX_PAGE_CHECKPOINTS, spread
from coordinator.web.app import create_app
from coordinator.web.state.web_state import ASKS_PER_MINUTE, WebState
from tests.support.served_page import FakeRun

pytestmark = pytest.mark.usefixtures("three_steps")

SENTENCE = {"text": "Many hands make ___ work."}


def test_a_visitor_asks_and_is_answered(client: TestClient, run: FakeRun) -> None:
    """The sentence waits, is answered by the process beside the keeper, and the same one is answered at once."""
    assert client.get("/api/v1/trials").json() == {
        "on": True,
        "kind": "blanks",
        "auto_class": "AutoModelForMaskedLM",
        "language": "en",
        "max_characters": 300,
        "max_blanks": 4,
        "steps": [3],
    }
    asked = client.post("/api/v1/trials", json=SENTENCE)
    content = asked.json()
    assert (asked.status_code, content["state"], content["text"]) == (202, "waiting", "Many hands make [MASK] work.")
    assert (content["step"], content["ahead"], content["blanks"]) == (3, 0, [])
    address = f"/api/v1/trials/{content['id']}"
    assert client.get(address).json() == content
    record_answer(run.services.database, content["id"], [[Candidate("light", 0.5)]], run.services.clock())
    answered = client.get(address).json()
    assert answered["state"] == "answered"
    assert answered["blanks"] == [[{"token": "light", "probability": 0.5}]]
    again = client.post("/api/v1/trials", json={**SENTENCE, "step": 3})
    assert (again.status_code, again.json()) == (200, answered)


def test_a_failure_is_told(client: TestClient, run: FakeRun) -> None:
    """In the answerer's words."""
    identity = client.post("/api/v1/trials", json=SENTENCE).json()["id"]
    record_no_answer(run.services.database, identity, "The sentence is too long.", run.services.clock())
    content = client.get(f"/api/v1/trials/{identity}").json()
    assert (content["state"], content["reason"]) == ("failed", "The sentence is too long.")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"text": "no blank"}, 400, "0 blanks"),
        ({"text": "x" * 301 + "___"}, 400, "300 are allowed"),
        ({"text": "x" * 5000}, 422, "1200"),
        ({"text": "a ___", "step": 2}, 404, "no published checkpoint of step 2"),
        ({"text": "a ___", "temperature": 1}, 422, "temperature"),
        ({"text": 5}, 422, "text"),
    ],
)
def test_what_cannot_be_asked_is_refused(client: TestClient, body: dict[str, object], status: int, says: str) -> None:
    """In a sentence, before it is in anybody's queue."""
    answer = client.post("/api/v1/trials", json=body)
    assert (answer.status_code, says in answer.text) == (status, True)


def test_unknown_answers_are_not_found(client: TestClient) -> None:
    """Neither by a name that nobody has, nor by one that is none."""
    assert client.get(f"/api/v1/trials/{'0' * 64}").status_code == 404
    assert client.get("/api/v1/trials/../overview%00").status_code in {404, 422}
    assert client.get("/api/v1/trials/abc").status_code == 422


@pytest.mark.usefixtures("no_patience")
def test_one_visitor_cannot_fill_the_queue(client: TestClient) -> None:
    """An address asks so many times a minute, and no more."""
    states = [client.post("/api/v1/trials", json=SENTENCE).status_code for _ in range(ASKS_PER_MINUTE + 1)]
    assert states == [202] * ASKS_PER_MINUTE + [429]


def test_a_full_queue_asks_for_patience(run: FakeRun) -> None:
    """The next visitor hears when to come back."""
    asks = CallerPace(2 * MAX_WAITING, time.monotonic)
    with TestClient(create_app(WebState(run.directory, run.services, asks=asks))) as client:
        for number in range(MAX_WAITING):
            assert client.post("/api/v1/trials", json={"text": f"{number} ___"}).status_code == 202
        full = client.post("/api/v1/trials", json=SENTENCE)
    assert (full.status_code, "try again" in full.json()["detail"]) == (429, True)
    assert int(full.headers["retry-after"]) > 0


def test_withheld_checkpoints_answer_nobody(run: FakeRun) -> None:
    """Nor does a model that the run file keeps to itself."""
    with run.services.database.begin() as session:
        checkpoint = session.get(Checkpoint, 3)
        assert checkpoint is not None
        checkpoint.withheld = "its loss rose"
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        assert client.get("/api/v1/trials").json()["on"] is False
        assert client.post("/api/v1/trials", json=SENTENCE).status_code == 404


def test_the_switch_turns_it_off(run: FakeRun) -> None:
    """`dashboard.try_it: false`: the page offers nothing, and nobody's sentence is taken."""
    off = run.services.config.model_copy(
        update={"dashboard": run.services.config.dashboard.model_copy(update={"try_it": False})}
    )
    with TestClient(create_app(WebState(run.directory, replace(run.services, config=off)))) as client:
        assert client.get("/api/v1/trials").json()["on"] is False
        assert client.post("/api/v1/trials", json=SENTENCE).status_code == 404


def test_checkpoints_to_compare_are_spread_over_the_run() -> None:
    """A few of many, the first and the last among them."""
    assert spread([5, 10], 12) == [5, 10]
    found = spread(list(range(0, 1000, 10)), MAX_PAGE_CHECKPOINTS)
    assert (len(set(found)), found[0], found[-1]) == (MAX_PAGE_CHECKPOINTS, 0, 990)
