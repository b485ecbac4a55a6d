"""Downloading a published checkpoint from the web port."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator

import pytest
import torch
from starlette.testclient import TestClient

from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.writing import take_snapshot, write_checkpoint
from coordinator.throttling.rate_limits import CallerPlaces
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from tests.support.served_page import FakeRun
from tests.support.sound_checkpoints import record

STEP = 7
WHOLE = f"/api/v1/checkpoints/{STEP}.tar"
WEIGHTS = f"/api/v1/checkpoints/{STEP}/model.safetensors"


@pytest.fixture
def stored(run: FakeRun) -> StoredCheckpoint:
    """Its first checkpoint, on disk and recorded."""
    run.directory.tokenizer_dir.mkdir(parents=True, exist_ok=True)
    (run.directory.tokenizer_dir / "tokenizer.json").write_text("{}")
    model = torch.nn.Linear(20, 3)
    written = write_checkpoint(
        run.directory.checkpoints_dir,
        take_snapshot(STEP, model, torch.optim.SGD(model.parameters())),
        run="test-run",
        era=0,
        texts={"config.json": "{}"},
        tokenizer_dir=run.directory.tokenizer_dir,
        probe={},
        probe_loss=None,
        created_at=0.0,
    )
    record(run.services.database, written)
    return written


@pytest.fixture
def client(run: FakeRun, stored: StoredCheckpoint) -> Iterator[TestClient]:
    """The run, served with that checkpoint."""
    assert stored.manifest.step == STEP
    with TestClient(create_app(WebState(run.directory, run.services))) as made:
        yield made


def test_every_file_arrives_as_its_manifest_says(client: TestClient, stored: StoredCheckpoint) -> None:
    """The manifest has the digest that the list gives, and each file the manifest's."""
    listed = client.get("/api/v1/checkpoints").json()["checkpoints"][0]
    manifest = client.get(f"/api/v1/checkpoints/{STEP}/manifest.json")
    assert hashlib.sha256(manifest.content).hexdigest() == listed["manifest_sha256"]
    for name, entry in stored.manifest.files.items():
        answer = client.get(f"/api/v1/checkpoints/{STEP}/{name}")
        assert hashlib.sha256(answer.content).hexdigest() == entry.sha256
        assert answer.headers["etag"] == f'"{entry.sha256}"'


def test_a_download_goes_on_where_it_ended(client: TestClient, stored: StoredCheckpoint) -> None:
    """A range of just this file, and all of it where it has become another meanwhile."""
    whole = (stored.path / "model.safetensors").read_bytes()
    etag = f'"{stored.manifest.files["model.safetensors"].sha256}"'
    rest = client.get(WEIGHTS, headers={"Range": "bytes=100-", "If-Range": etag})
    assert (rest.status_code, rest.content) == (206, whole[100:])
    assert rest.headers["content-range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
    other = client.get(WEIGHTS, headers={"Range": "bytes=100-", "If-Range": '"another"'})
    assert (other.status_code, other.content) == (200, whole)
    assert client.get(WEIGHTS, headers={"Range": f"bytes={len(whole)}-"}).status_code == 416


def test_what_a_reader_has_is_not_sent_again(client: TestClient) -> None:
    """Neither its bytes to who names its tag, nor any to who only asks about it."""
    head = client.head(WEIGHTS)
    assert (head.status_code, head.content) == (200, b"")
    again = client.get(WEIGHTS, headers={"If-None-Match": f'"other", W/{head.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")


def test_a_whole_checkpoint_is_one_file(client: TestClient, stored: StoredCheckpoint) -> None:
    """A tar of the length that was said, with the manifest and the files that it names below one folder."""
    answer = client.get(WHOLE)
    assert answer.headers["content-disposition"] == f'attachment; filename="test-run-step-{STEP}.tar"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        found = {each.name: tar.extractfile(each) for each in tar.getmembers()}
        content = {name: file.read() for name, file in found.items() if file is not None}
    names = {"manifest.json", *stored.manifest.files}
    assert content == {f"test-run-step-{STEP}/{name}": (stored.path / name).read_bytes() for name in names}
    head = client.head(WHOLE)
    assert (head.headers["content-length"], head.content) == (answer.headers["content-length"], b"")
    assert client.get(WHOLE, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304


@pytest.mark.usefixtures("stored")
def test_few_download_whole_checkpoints_at_once(run: FakeRun) -> None:
    """A place is given back when the answer is sent; who finds all taken is told to come again."""
    with TestClient(create_app(WebState(run.directory, run.services, downloads=CallerPlaces(1, 1)))) as client:
        assert [client.get(WHOLE).status_code for _ in range(2)] == [200, 200]
    with TestClient(create_app(WebState(run.directory, run.services, downloads=CallerPlaces(0, 0)))) as client:
        refused = client.get(WHOLE)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")


@pytest.mark.parametrize(
    "path",
    [
        f"/api/v1/checkpoints/{STEP + 1}.tar",
        f"/api/v1/checkpoints/{STEP + 1}/model.safetensors",
        f"/api/v1/checkpoints/{STEP}/nothing.bin",
        f"/api/v1/checkpoints/{STEP}/..%2F..%2Fsettings.yaml",
        f"/api/v1/checkpoints/{STEP}/%2E%2E",
    ],
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    """Neither what no manifest names, nor what lies elsewhere."""
    assert client.get(path).status_code == 404


def test_what_did_not_pass_the_gate_stays_here(run: FakeRun, stored: StoredCheckpoint) -> None:
    """It is listed with the reason, and not given away."""
    record(run.services.database, stored, withheld="its loss is not finite")
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        assert client.get("/api/v1/checkpoints").json()["checkpoints"][0]["withheld"] == "its loss is not finite"
        assert client.get(WEIGHTS).status_code == client.get(WHOLE).status_code == 404


def test_a_checkpoint_that_was_just_removed_is_said_to_be_gone(client: TestClient, stored: StoredCheckpoint) -> None:
    """The keeper may remove it between the list and the download."""
    shutil.rmtree(stored.path)
    assert client.get(WEIGHTS).status_code == client.get(WHOLE).status_code == 404
