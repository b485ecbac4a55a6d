"""What a stranger may read of a run names no device by what finds it in the swarm: no libp2p identity, no RSA key."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from coordinator.store.models import Device, Receipt
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from peer.verification.published import Page
from tests.support.receipts import key_of, pseudonym_of
from tests.support.served_page import FakeRun, fake_run

NAMES, STEPS, OLD_STEP = ("ada", "grace"), 3, 2
PARAMETERS = {"number": "2", "table": "contributions.csv", "name": "contributions.csv"}
PEER_ID = re.compile(rb"Qm[1-9A-HJ-NP-Za-km-z]{44}|12D3Koo[1-9A-HJ-NP-Za-km-z]{40,}")
RSA_KEY = re.compile(rb"ssh-rsa|AAAAB3NzaC1yc2E")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """Two members, some steps that the keeper confirms, one of them by a receipt of before there were pseudonyms."""
    with fake_run(tmp_path_factory.mktemp("run")) as made:
        for name in NAMES:
            made.add_member(name)
        for step in range(1, STEPS + 1):
            made.add_step(step, 9.0 - step)
        with made.services.database.begin() as session:
            session.execute(update(Receipt).where(Receipt.step == OLD_STEP).values(signature=None))
        yield made


@pytest.fixture(scope="module")
def client(run: FakeRun) -> Iterator[TestClient]:
    with TestClient(create_app(WebState(run.directory, run.services)), raise_server_exceptions=False) as made:
        yield made


def public_paths(client: TestClient) -> list[str]:
    """All that can be read without an account, with something in the place of each parameter, but live streams."""
    described = client.get("/openapi.json").json()["paths"]
    paths = [path for path, methods in described.items() if "get" in methods and "events" not in path]
    return [
        "/",
        "/metrics",
        *(re.sub(r"\{(\w+)\}", lambda named: PARAMETERS.get(named[1], "1"), path) for path in paths),
    ]


def test_nothing_public_tells_an_identity(run: FakeRun, client: TestClient) -> None:
    """Page by page and table by table: neither the text nor the keys of any device, the keeper's neither."""
    secrets = []
    for name in (*NAMES, "keeper"):
        secrets += [key_of(name).peer_id.encode(), key_of(name).public_key.split()[1]]
    with run.services.database() as session:
        secrets += [device.encode() for device in session.scalars(select(Device.id))]
    read = {path: client.get(path).content for path in public_paths(client)}
    assert pseudonym_of("ada", "test-run").encode() in read["/api/v1/receipts"]
    certificate = client.get("/api/v1/participants/1/certificate").content
    assert pseudonym_of("ada", "test-run").encode() in certificate
    for path, content in {**read, "certificate": certificate}.items():
        assert not PEER_ID.search(content), path
        assert not RSA_KEY.search(content), path
        assert not [secret for secret in secrets if secret in content], path


def test_a_step_of_before_there_were_pseudonyms_has_no_public_receipts(client: TestClient) -> None:
    """It counts as it was judged, and says that its receipts are withheld; those of the other steps are there."""
    page = Page.model_validate_json(client.get("/api/v1/receipts").content)
    assert [(step.step, step.withheld, len(step.receipts)) for step in page.steps] == [
        (step, step == OLD_STEP, int(step != OLD_STEP)) for step in range(1, STEPS + 1)
    ]
    assert all(claim.counted == claim.claimed for step in page.steps for claim in step.claims)
    assert {len(base64.b64decode(word.signature)) for step in page.steps for word in step.receipts} == {64}


def test_a_device_without_a_pseudonym_is_published_by_its_number(run: FakeRun, client: TestClient) -> None:
    """It has not been here since there are pseudonyms, and its steps have no public receipts."""
    with run.services.database.begin() as session:
        session.execute(update(Receipt).values(signature=None))
        device = session.get_one(Device, run.devices["ada"])
        device.receipt_key = None
        number = str(device.number)
    content = client.get("/api/v1/receipts").content
    page = Page.model_validate_json(content)
    assert page.devices[number].member == "ada"
    assert not PEER_ID.search(content)
