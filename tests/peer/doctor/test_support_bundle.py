"""The archive that a volunteer sends along when asking for help."""

from __future__ import annotations

import getpass
import json
import stat
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.credentials import Credentials
from auth.errors import ConfigError
from peer.cli.doctor import LOG_BYTES, app
from peer.doctor.checkup import CONTACT, MACHINE
from peer.runtime.software import DISTRIBUTION
from peer.runtime.version import software_version

CODE = "NJA6J-G2MZA-NPN90-YTCDD"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A device's folder with a key, a token, and a log in which secrets stand."""
    folder = tmp_path / "state"
    assert Credentials(folder).device_key.peer_id  # makes the key
    (folder / "token.jwt").write_text("eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl")
    (folder / "data").mkdir()
    lines = [f"line {number} of a long log" for number in range(20_000)]
    lines += [f"joined with {CODE}", "the last line"]
    (folder / "data" / "worker.log").write_text("\n".join(lines))
    (folder / "data" / "stream.json").write_text(json.dumps({"version": 2}))
    return folder


def write(state_dir: Path, out: Path) -> dict[str, str]:
    arguments = ["support-bundle", "--no-doctor", "--state-dir", str(state_dir), "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    with zipfile.ZipFile(out) as bundle:
        return {name: bundle.read(name).decode() for name in bundle.namelist()}


def test_it_holds_what_helps_and_no_more(state_dir: Path, tmp_path: Path) -> None:
    """Versions, the machine, the log's end; what is missing is said."""
    out = tmp_path / "bundle.zip"
    files = write(state_dir, out)
    assert "torch" in json.loads(files["versions.json"])
    assert json.loads(files["versions.json"])[DISTRIBUTION] == software_version()  # with its commit
    assert json.loads(files["machine.json"])["cores"] >= 1
    assert files["data/worker.log"].endswith("the last line")
    assert len(files["data/worker.log"]) <= LOG_BYTES
    assert files["data/microbatch.json"] == "There is no such file.\n"
    assert "Read it before you send it" in files["README.txt"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_no_secret_is_in_it(state_dir: Path, tmp_path: Path) -> None:
    """Neither the device's files nor what the log has of them, nor who the user is."""
    files = write(state_dir, tmp_path / "bundle.zip")
    assert not {"device.key", "token.jwt"} & {Path(name).name for name in files}
    everything = "\n".join(files.values())
    assert CODE not in everything
    assert "<invite code>" in everything
    assert str(Path.home()) + "/" not in everything
    assert f"/{getpass.getuser()}/" not in everything


def test_nothing_is_written_over(state_dir: Path, tmp_path: Path) -> None:
    """An older archive stays."""
    out = tmp_path / "bundle.zip"
    out.write_text("mine")
    arguments = ["support-bundle", "--no-doctor", "--state-dir", str(state_dir), "--out", str(out)]
    with pytest.raises(ConfigError, match="exists already"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert out.read_text() == "mine"


def test_the_doctors_findings_are_in_it(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a link that leads nowhere: each stage, with what was found; training takes long and is left out here."""
    monkeypatch.setattr("peer.cli.doctor.WITH_LINK", (*MACHINE, *CONTACT))
    out = tmp_path / "bundle.zip"
    link = f"manyhands://127.0.0.1:9/demo#sha256={'ab' * 32}"
    arguments = ["support-bundle", link, "--state-dir", str(state_dir), "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    with zipfile.ZipFile(out) as bundle:
        findings = {entry["stage"]: entry for entry in json.loads(bundle.read("doctor.json"))}
    assert findings["tcp"]["verdict"] == "failed"
    assert findings["disk"]["verdict"] in ("ok", "warning")
