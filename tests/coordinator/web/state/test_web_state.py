"""The dashboard's state builds what it can when the application is made, not for a request."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from coordinator.run.software import NOTEBOOK_NAME, SKILL_NAME
from coordinator.web.app import create_app
from coordinator.web.state import web_state
from coordinator.web.state.web_state import WebState
from tests.support.served_page import FakeRun


def test_software_is_built_and_the_certificate_read_before_any_request(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another certificate counts from the next start on; the state alone reads nothing."""
    built: list[str] = []
    monkeypatch.setattr(web_state, "notebook_for", lambda *_: built.append(NOTEBOOK_NAME) or b"a notebook")
    state = WebState(run.directory, run.services)
    assert built == []
    app = create_app(state)
    assert built == [NOTEBOOK_NAME]
    link = str(run.directory.join_link)
    run.directory.tls_cert_path.unlink()
    with TestClient(app) as client:
        assert client.get(f"/software/{NOTEBOOK_NAME}").content == b"a notebook"
        assert link in client.get(f"/software/{SKILL_NAME}").text
        assert client.get("/api/v1/overview").json()["run"]["join_link"] == link
    assert built == [NOTEBOOK_NAME]
