"""The API of what happened at each step."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from coordinator.members.names import set_display_name
from coordinator.statistics.moments import read_chunk
from coordinator.store.engine import Database
from coordinator.web.app import create_app
from coordinator.web.http.answers import AnswerCache
from coordinator.web.state.web_state import WebState
from tests.support.served_page import FakeRun

pytestmark = pytest.mark.usefixtures("three_steps")


def test_moments_and_milestones_are_public(client: TestClient, run: FakeRun) -> None:
    """A stretch of a hundred steps and what was reached; pseudonyms hold, and an unchanged answer is not sent again."""
    set_display_name(run.services.database, "ada", "Night Owl")
    answer = client.get("/api/v1/moments/0")
    content = answer.json()
    assert [moment["step"] for moment in content["moments"]] == [1, 2, 3]
    assert content["devices"][0]["member"] == "Night Owl"
    assert "ada" not in answer.text
    assert (content["first"], content["last"], content["steps_per_chunk"]) == (1, 100, 100)
    assert client.get("/api/v1/moments/0", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    assert client.get("/api/v1/moments/7").json()["moments"] == []
    assert client.get("/api/v1/moments/-1").status_code == 422
    found = client.get("/api/v1/milestones").json()["milestones"]
    assert [(each["kind"], each["step"]) for each in found] == [("first-step", 1)]


def test_other_questions_do_not_have_moments_read_again(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many answers somebody asks for meanwhile."""
    read: list[int] = []

    def note(database: Database, chunk: int) -> object:
        read.append(chunk)
        return read_chunk(database, chunk)

    monkeypatch.setattr("coordinator.web.api.history.read_chunk", note)
    with TestClient(create_app(WebState(run.directory, run.services, answers=AnswerCache(1)))) as client:
        for path in ("moments/0", "moments/1", "steps", "overview", "moments/0"):
            assert client.get(f"/api/v1/{path}").status_code == 200
    assert read == [0, 1]
