"""The publisher over real checkpoints: to a folder, to an S3 server and to a hub, all on this machine."""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from auth.errors import ConfigError
from coordinator.checkpoints.manifest import MANIFEST, verify
from coordinator.context.open_run import OpenRun
from coordinator.publishing.places import HubPlace
from coordinator.publishing.publications import FIRST_PAUSE_S, publications
from coordinator.publishing.publisher import Publisher, open_publisher
from coordinator.run.directory import RunDirectory
from coordinator.run.publish_settings import PlaceSettings, Secret
from coordinator.service.parts import PUBLISHER, PartProcess
from tests.support.clocks import Clock
from tests.support.local_hub import TOKEN, Hub
from tests.support.sound_checkpoints import add_sound_checkpoint, publish_to, record
from tests.support.waiting import wait_until

# huggingface_hub's own uploads.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
REPOSITORY = "us/model"
FILES = {"README.md", "config.json", "manifest.json", "model.safetensors", "probe.safetensors", "tokenizer.json"}


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a folder back takes seconds; two tests do."""
    monkeypatch.setattr("coordinator.publishing.publisher.check_loads", lambda _folder: 0.0)


def publisher_to(run: OpenRun, clock: Clock, *places: dict[str, object]) -> Publisher:
    """The run's publisher, with these places."""
    publish_to(run.directory.path, *places)
    return open_publisher(run.directory.path, clock)


def secret_file(run: OpenRun, text: str, mode: int = 0o600) -> str:
    """A secret below the run's directory; returns what settings.yaml says of it."""
    path = run.directory.path / "keys" / "place.secret"
    path.write_text(text)
    path.chmod(mode)
    return "keys/place.secret"


def hub_publisher(run: OpenRun, clock: Clock, token: str = TOKEN) -> Publisher:
    """A publisher to the hub."""
    return publisher_to(run, clock, {"to": f"hf://{REPOSITORY}", "secret_file": secret_file(run, token)})


def save(files: dict[str, bytes], folder: Path) -> Path:
    """What a visitor downloads."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.usefixtures("forked")
def test_a_folder_gets_the_newest_that_may_be_published(opened_run: OpenRun, clock: Clock, tmp_path: Path) -> None:
    """Not what is withheld, nothing twice, and what was staged on the way is gone."""
    publisher = publisher_to(opened_run, clock, {"to": f"file://{tmp_path}/place"})
    assert not publisher.publish_pending()
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    record(
        opened_run.database, add_sound_checkpoint(opened_run.directory, opened_run.database, 6), withheld="it is bad"
    )
    assert publisher.publish_pending()
    assert not publisher.publish_pending()
    latest = json.loads((tmp_path / "place" / "latest.json").read_text())
    folder = tmp_path / "place" / latest["folder"]
    assert latest["folder"] == f"step-00000005-{stored.manifest_sha256[:12]}"
    assert {path.name for path in folder.iterdir()} >= FILES
    assert not {"optimizer.safetensors", "run.yaml"} & {path.name for path in folder.iterdir()}
    assert verify(folder).manifest.probe_loss == stored.manifest.probe_loss
    (row,) = publications(opened_run.database)
    assert (row.step, row.location, row.published_at) == (5, f"file://{folder}", clock.now)
    assert list(opened_run.directory.publishing_dir.iterdir()) == []


@pytest.mark.usefixtures("forked")
def test_weights_that_compute_something_else_are_published_nowhere(
    opened_run: OpenRun, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss that plain transformers finds is not the manifest's: the operator is told, and no place hears of it."""
    publisher = publisher_to(opened_run, clock, {"to": f"file://{tmp_path}/place"})
    add_sound_checkpoint(opened_run.directory, opened_run.database, 5, said=1.0)
    assert not publisher.publish_pending()
    assert not (tmp_path / "place").exists()
    assert "the manifest says 1.0000" in publications(opened_run.database)[0].error
    assert "the manifest says 1.0000" in caplog.text


@pytest.mark.usefixtures("trusting")
def test_a_place_that_fails_is_asked_again_later_and_later(opened_run: OpenRun, clock: Clock, tmp_path: Path) -> None:
    """What one place refuses keeps no other from getting it."""
    (tmp_path / "file").touch()
    places = [{"to": f"file://{tmp_path}/file/inside"}, {"to": f"file://{tmp_path}/good"}]
    publisher = publisher_to(opened_run, clock, *places)
    add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    assert publisher.publish_pending()
    assert not publisher.publish_pending()
    rows = {row.place: row for row in publications(opened_run.database)}
    assert rows[places[1]["to"]].published_at is not None
    assert rows[places[0]["to"]].attempts == 1
    clock.now += FIRST_PAUSE_S
    assert not publisher.publish_pending()
    clock.now += FIRST_PAUSE_S
    assert not publisher.publish_pending()
    (tmp_path / "file").unlink()
    clock.now += FIRST_PAUSE_S
    assert publisher.publish_pending()
    rows = {row.place: row for row in publications(opened_run.database)}
    assert (rows[places[0]["to"]].attempts, rows[places[0]["to"]].error) == (2, "")


@pytest.mark.usefixtures("trusting")
def test_the_hub_gets_one_commit_for_each_checkpoint(
    opened_run: OpenRun, clock: Clock, hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a visitor downloads is whole and the newest; nobody's log holds the token."""
    caplog.set_level(logging.DEBUG)
    publisher = hub_publisher(opened_run, clock)
    for step in (5, 6):
        stored = add_sound_checkpoint(opened_run.directory, opened_run.database, step)
        assert publisher.publish_pending()
        assert verify(save(hub.files(REPOSITORY), tmp_path / f"visit{step}")).manifest.step == step
    assert hub.commits(REPOSITORY) == 2
    assert stored.manifest_sha256 in hub.files(REPOSITORY)["README.md"].decode()
    assert publications(opened_run.database)[-1].location.startswith(f"{hub.url}/{REPOSITORY}/commit/")
    assert TOKEN not in caplog.text


def test_subfolders_are_published_too(opened_run: OpenRun, hub: Hub, tmp_path: Path) -> None:
    """A model of sentence-transformers, as a release has it for a retrieval task, lies in several folders."""
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    (tmp_path / "model" / "1_Pooling").mkdir(parents=True)
    for name in ("modules.json", "1_Pooling/config.json"):
        (tmp_path / "model" / name).write_text("{}")
    HubPlace(PlaceSettings(to=f"hf://{REPOSITORY}"), Secret(TOKEN)).publish(tmp_path / "model", stored)
    assert hub.files(REPOSITORY).keys() == {"modules.json", "1_Pooling/config.json"}


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("kind", ["upload", "commit", "create", "preupload"])
@pytest.mark.parametrize("fault", [500, 0])
def test_a_hub_that_fails_in_between_holds_the_old_or_the_new(
    opened_run: OpenRun, clock: Clock, hub: Hub, kind: str, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's error or a cut connection: nothing half, and the next attempt brings all, the weights only once."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _s: None)
    publisher = hub_publisher(opened_run, clock)
    add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    hub.faults[kind] += [fault] * 10
    assert not publisher.publish_pending()
    assert [hub.commits(name) for name in hub.repositories] in ([0], [])
    hub.faults.clear()
    clock.now += FIRST_PAUSE_S
    assert publisher.publish_pending()
    assert hub.commits(REPOSITORY) == 1
    assert len(hub.uploads) == len(set(hub.uploads)) > 0


def test_a_card_that_waits_forgets_who_asked_to(
    opened_run: OpenRun, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged before somebody asked not to be named is not what is published."""
    checks: list[Path] = []
    monkeypatch.setattr("coordinator.publishing.publisher.check_loads", checks.append)
    monkeypatch.setattr("coordinator.publishing.publisher.card_files", lambda _: {"README.md": card})
    (tmp_path / "place").touch()  # in the way
    publisher = publisher_to(opened_run, clock, {"to": f"file://{tmp_path}/place"})
    add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    card = "thanks to carol"
    assert not publisher.publish_pending()
    (staged,) = opened_run.directory.publishing_dir.iterdir()
    assert (staged / "README.md").read_text() == card
    card = "thanks to one who is not named"
    (tmp_path / "place").unlink()
    clock.now += FIRST_PAUSE_S
    assert publisher.publish_pending()
    assert (tmp_path / "place" / staged.name / "README.md").read_text() == card
    verify(tmp_path / "place" / staged.name)
    assert len(checks) == 1


@pytest.mark.usefixtures("trusting")
def test_a_wrong_token_is_told_without_repeating_it(opened_run: OpenRun, clock: Clock, hub: Hub) -> None:
    """The reason names the place and what to check."""
    publisher = hub_publisher(opened_run, clock, token="hf_wrong")
    add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    assert not publisher.publish_pending()
    error = publications(opened_run.database)[0].error
    assert "check the token" in error
    assert REPOSITORY in error
    assert "hf_wrong" not in error


@pytest.mark.thorough
def test_killed_and_started_again_it_publishes_what_is_missing(opened_run: OpenRun, hub: Hub) -> None:
    """The process dies while it sends a file, then while the hub makes its commit, which is not made twice."""
    publish_to(opened_run.directory.path, {"to": f"hf://{REPOSITORY}", "secret_file": secret_file(opened_run, TOKEN)})
    add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    process = PartProcess(PUBLISHER, opened_run.directory.path)
    for kind in ("upload", "commit"):
        hub.hold = kind
        hub.arrived.clear()
        kill_when_held(process, hub)
        assert hub.commits(REPOSITORY) == 0
    hub.hold = ""
    hub.released.set()
    wait_until("the hub has the first commit", lambda: hub.commits(REPOSITORY) == 1)
    process.start()
    try:
        wait_until(
            "the checkpoint is recorded as published",
            lambda: publications(opened_run.database) and publications(opened_run.database)[0].published_at,
        )
        process.ask_to_stop()
        wait_until("the publisher has ended", process.has_ended)
    finally:
        process.end()
    assert hub.commits(REPOSITORY) == 1
    assert hub.files(REPOSITORY).keys() >= FILES


def kill_when_held(process: PartProcess, hub: Hub) -> None:
    """Start the publisher, and kill it when the hub holds its request; till then nobody has seen its secret."""
    process.start()
    try:
        wait_until("the upload has begun", hub.arrived.is_set)
        assert process._process is not None
        place = Path(f"/proc/{process._process.pid}")
        assert TOKEN not in (place / "environ").read_text()
        assert TOKEN not in (place / "cmdline").read_text()
        os.kill(process._process.pid or 0, signal.SIGKILL)
        wait_until("the publisher has ended", process.has_ended)
    finally:
        process.end()


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """An S3 server on this machine with a bucket `models`: its address and a client."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=address, aws_access_key_id="of-test", aws_secret_access_key="s", region_name="us-east-1"
    )
    client.create_bucket(Bucket="models")
    yield address, client
    client.close()
    server.stop()


@pytest.mark.usefixtures("trusting")
def test_s3_gets_whole_folders_with_the_manifest_last(
    opened_run: OpenRun, clock: Clock, s3: Any, tmp_path: Path
) -> None:
    """Through fsspec, with keys from a file of mode 0600; `latest.json` names what was published last."""
    address, client = s3
    keys = secret_file(opened_run, "key: of-test\nsecret: the-secret-of-it\n")
    options = {"endpoint_url": address, "client_kwargs": {"region_name": "us-east-1"}}
    publisher = publisher_to(opened_run, clock, {"to": "s3://models/ours", "secret_file": keys, "options": options})
    for step in (5, 6):
        add_sound_checkpoint(opened_run.directory, opened_run.database, step)
        assert publisher.publish_pending(), publications(opened_run.database)
    listed = {each["Key"]: each["LastModified"] for each in client.list_objects_v2(Bucket="models")["Contents"]}
    latest = json.loads(client.get_object(Bucket="models", Key="ours/latest.json")["Body"].read())
    assert latest["step"] == 6
    folder = tmp_path / "visit"
    folder.mkdir()
    inside = [key for key in listed if key.startswith(f"ours/{latest['folder']}/")]
    for key in inside:
        (folder / key.rpartition("/")[2]).write_bytes(client.get_object(Bucket="models", Key=key)["Body"].read())
    assert verify(folder).manifest.step == 6
    assert sha256((folder / MANIFEST).read_bytes()).hexdigest() == latest["manifest_sha256"]
    assert max(listed[key] for key in inside) == listed[f"ours/{latest['folder']}/{MANIFEST}"]


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [("hf_token", 0o644, "can be read by others"), ("", 0o600, "is empty"), ("ключ", 0o600, "not ASCII")],
)
def test_a_secret_that_is_not_private_is_refused(
    opened_run: OpenRun, clock: Clock, text: str, mode: int, complaint: str
) -> None:
    """The publisher does not start with it, and says what to do."""
    secret = secret_file(opened_run, text, mode)
    with pytest.raises(ConfigError, match=complaint):
        publisher_to(opened_run, clock, {"to": f"hf://{REPOSITORY}", "secret_file": secret})


@pytest.mark.parametrize(
    "place",
    [
        {"to": "hf://nobody"},
        {"to": "model"},
        {"to": "s3://key:secret@models/x"},
        {"to": "s3://models", "options": {"secret": "x"}},
        {"to": "s3://models", "options": {"client_kwargs": {"aws_secret_access_key": "x"}}},
    ],
)
def test_settings_take_no_secret_and_no_address_of_nothing(opened_run: OpenRun, place: dict[str, object]) -> None:
    """A mistake in `publications` is found when the settings are read."""
    publish_to(opened_run.directory.path, place)
    with pytest.raises(ConfigError, match="publications"):
        _ = RunDirectory.open(opened_run.directory.path).settings


def test_a_repository_is_found_however_many_slashes_lead_to_it() -> None:
    """The hub's client takes none before the owner."""
    assert PlaceSettings(to="hf:///us/ours/").to == "hf://us/ours"
