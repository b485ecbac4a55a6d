"""The run's directory: whole or not at all, with its secrets private."""

from __future__ import annotations

import json
import shutil
import stat
import time
from hashlib import sha256
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from auth.errors import ConfigError
from auth.join_link import JoinLink
from auth.keys import certificate_fingerprint
from coordinator.context.open_run import open_run
from coordinator.context.services import open_run_services
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from peer.config.run import Run, RunConfig
from tests.support.operator_commands import call
from tests.support.small_checkpoints import add_checkpoint
from tests.support.small_run import make_small_run

CONFIG = RunConfig(run=Run(name="demo"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return RunDirectory.create(tmp_path_factory.mktemp("runs") / "demo", CONFIG, Settings(public_host="example.org"))


def test_created_run_opens_as_it_was_made(directory: RunDirectory) -> None:
    """Configuration, settings and authority are read back."""
    opened = RunDirectory.open(directory.path)
    assert opened.config == CONFIG
    assert opened.settings == Settings(public_host="example.org")
    assert opened.authority.public_bytes == directory.authority.public_bytes


def test_join_link_names_the_certificate(directory: RunDirectory) -> None:
    """The link carries host, port, run and the fingerprint of the certificate on disk."""
    link = directory.join_link
    assert (link.host, link.port, link.run) == ("example.org", 7443, "demo")
    assert link.fingerprint == certificate_fingerprint(directory.tls_cert_path.read_bytes())


def test_secrets_are_private(directory: RunDirectory) -> None:
    """No file of the run can be read by others, and its directories not entered."""
    for path in [directory.path, *directory.path.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.name.startswith("manyhands.db"), path


def test_a_run_that_was_moved_has_its_checkpoints(tmp_path: Path) -> None:
    """They lie where the run lies: `status` says so, and the dashboard gives them to whoever downloads them."""
    with open_run(make_small_run(tmp_path).path) as run:
        stored = add_checkpoint(run.directory, run.database, 5)
    moved = tmp_path / "elsewhere"
    shutil.move(run.directory.path, moved)
    directory, there = RunDirectory.open(moved), moved / "checkpoints" / "step-00000005"
    assert json.loads(call("status", moved, "--json").output)["checkpoint"] == str(there)
    with (
        open_run_services(directory, time.time) as services,
        TestClient(create_app(WebState(directory, services))) as client,
    ):
        answer = client.get("/api/v1/checkpoints/5/model.safetensors")
    assert sha256(answer.content).hexdigest() == stored.manifest.files["model.safetensors"].sha256


def test_opening_no_run_says_how_to_make_one(tmp_path: Path) -> None:
    """The error names the command."""
    with pytest.raises(ConfigError, match="manyhands coordinator init"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("control_port: 70000", "control_port"),
        ("control_port: '7443'", "control_port"),
        ('embed_on: ["*"]', "`embed_on` is not a known key; remove it"),
        ("public_host: 'exa mple'", "public_host"),
        ("- a list", "the file"),
        ("a: b: c", "not valid YAML"),
    ],
)
def test_bad_settings_name_the_key(tmp_path: Path, text: str, problem: str) -> None:
    """Each mistake in settings.yaml is a ConfigError that names the file and the key."""
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem) as raised:
        Settings.from_yaml(tmp_path / "settings.yaml")
    assert "settings.yaml" in str(raised.value)


def test_missing_settings_file_is_a_config_error(tmp_path: Path) -> None:
    """A run whose settings file was removed says which file."""
    with pytest.raises(ConfigError, match=r"settings\.yaml"):
        Settings.from_yaml(tmp_path / "settings.yaml")


def test_settings_do_not_show_a_database_password(tmp_path: Path) -> None:
    """A mistyped database address is not repeated in the error."""
    (tmp_path / "settings.yaml").write_text("database_url: [postgresql://u:secret@host/db]")
    with pytest.raises(ConfigError) as raised:
        Settings.from_yaml(tmp_path / "settings.yaml")
    assert "secret" not in str(raised.value)


def test_addresses_may_come_in_brackets() -> None:
    """As an IPv6 address stands in a link; the link has them again."""
    settings = Settings(public_host="[2001:db8::1]", bind_host="[::]", announce_hosts=["[2001:db8::2]", "192.0.2.1"])  # type: ignore[arg-type]
    assert (settings.public_host, settings.bind_host) == ("2001:db8::1", "::")
    assert settings.announce_hosts == ("2001:db8::2", "192.0.2.1")


def test_the_link_has_the_fallback_addresses(tmp_path: Path) -> None:
    """After the first one, with the control plane's port where none is given, and each once."""
    fallbacks = ("standby.example.net", "[2001:db8::1]:7445", "example.org:7443")
    run = RunDirectory.create(
        tmp_path / "run", CONFIG, Settings(public_host="example.org", fallback_addresses=fallbacks)
    )
    assert "//example.org:7443,standby.example.net:7443,[2001:db8::1]:7445/" in str(run.join_link)
    assert JoinLink.parse(str(run.join_link)) == run.join_link
