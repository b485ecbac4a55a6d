"""`manyhands verify` of a certificate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.certificates import sign_certificate, write_certificate
from auth.errors import ConfigError, RequestError, UnreachableError, UnverifiedError
from auth.keys import AuthorityKey
from peer.cli.verify import app, authority_key, certificate_in
from tests.support.certificates import CERTIFICATE

AUTHORITY = AuthorityKey.generate()
KEY = AUTHORITY.public_bytes.hex()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(write_certificate(sign_certificate(AUTHORITY, CERTIFICATE)))
    return path


def test_a_certificate_of_the_named_key_is_shown(file: Path) -> None:
    """What it says, and that the authority has signed it."""
    shown = CliRunner().invoke(app, [str(file), "--authority", KEY.upper()])
    assert shown.exit_code == 0
    assert "123,456 in 300 global steps" in shown.stdout
    assert "<img src=x onerror=alert(1)>" in shown.stdout
    assert shown.stdout.endswith("The run's authority has signed this.\n")
    said = json.loads(CliRunner().invoke(app, [str(file), "--authority", KEY, "--json"]).stdout)
    assert (said["verified"], said["samples"], said["authority_key"]) == (True, 123_456, KEY)


def test_without_a_key_nothing_is_claimed(file: Path) -> None:
    """Everybody can sign with some key: the person is told which it was, and to compare it."""
    shown = CliRunner().invoke(app, [str(file)])
    assert shown.exit_code == 0
    assert f"Signed by the key {KEY}: compare it" in " ".join(shown.stdout.split())
    assert json.loads(CliRunner().invoke(app, [str(file), "--json"]).stdout)["verified"] is False


def test_another_key_or_a_changed_text_fails(file: Path) -> None:
    """With the exit code of what does not follow from its signatures."""
    other = AuthorityKey.generate().public_bytes.hex()
    assert isinstance(CliRunner().invoke(app, [str(file), "--authority", other]).exception, UnverifiedError)
    signed = sign_certificate(AUTHORITY, CERTIFICATE)
    forged = signed.model_copy(update={"body": CERTIFICATE.model_copy(update={"samples": 10**9}).body})
    file.write_text(write_certificate(forged))
    assert isinstance(CliRunner().invoke(app, [str(file)]).exception, UnverifiedError)
    file.write_text('{"authority_key": 1}')
    assert isinstance(CliRunner().invoke(app, [str(file)]).exception, RequestError)


def test_other_sources_are_no_certificates(tmp_path: Path) -> None:
    """A page, saved receipts, a file that is not there, and one that is no text."""
    (tmp_path / "receipts.json").write_text('{"format": "manyhands-receipts-v1"}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for source in ("https://example.org", *(str(tmp_path / name) for name in ("receipts.json", "missing", "binary"))):
        assert certificate_in(source) is None


def test_the_key_comes_from_the_runs_page() -> None:
    """Or as it is; anything else is refused, and a page that says something else, too."""
    asked: list[str] = []

    def get(url: str) -> bytes:
        asked.append(url)
        return json.dumps({"run": "demo", "key": KEY}).encode()

    assert authority_key("https://example.org:8080/", get) == KEY
    assert asked == ["https://example.org:8080/api/v1/authority"]
    assert authority_key(KEY.upper()) == KEY
    with pytest.raises(ConfigError, match="64 hex digits"):
        authority_key("abc")
    with pytest.raises(RequestError):
        authority_key("https://example.org", lambda _: b'{"key": "short"}')
    with pytest.raises(UnreachableError):
        authority_key("http://127.0.0.1:1")
