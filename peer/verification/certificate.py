"""`manyhands verify` of a certificate of contribution: offline, or against the key that a run's page shows."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from auth.certificates import MAX_CERTIFICATE_CHARS, Certificate, open_certificate, read_certificate
from auth.errors import ConfigError, UnverifiedError
from peer.network.http import fetch
from peer.runtime.console import say, say_json, say_table
from peer.verification.published import Get, PublishedAuthority, parse

_KEY = re.compile(r"[0-9a-f]{64}")


def certificate_in(source: str) -> str | None:
    """The text of the file `source`, if it is a certificate; None for whatever else it may be."""
    if urlsplit(source).scheme in ("http", "https"):
        return None
    try:
        with Path(source).open(encoding="utf-8") as file:
            text = file.read(MAX_CERTIFICATE_CHARS + 1)
    except (OSError, UnicodeDecodeError):  # the caller will say so
        return None
    return text if '"authority_key"' in text else None


def authority_key(named: str, get: Get = fetch) -> str:
    """The key (hex) that was named, or that a run's page shows; raises `ConfigError` or `UnreachableError`."""
    if _KEY.fullmatch(named.lower()):
        return named.lower()
    if urlsplit(named).scheme not in ("http", "https"):
        raise ConfigError(f"`--authority` ({named!r:.80}) must be a key of 64 hex digits, or a run's page.")
    url = f"{named.rstrip('/')}/api/v1/authority"
    return parse(PublishedAuthority, get(url), url).key


def check_certificate(text: str, authority: str, as_json: bool) -> None:
    """Say what the certificate says; raises `UnverifiedError` if it is forged, or another run's (`authority`: hex)."""
    signed = read_certificate(text)
    certificate = open_certificate(signed)
    key = signed.authority_key
    if authority and key != authority:
        raise UnverifiedError(f"The certificate is signed by {key}, which is not the authority's key {authority}.")
    if as_json:
        say_json({"verified": bool(authority), "authority_key": key, **certificate.model_dump(exclude={"certificate"})})
        return
    say_table(("what", "as certified"), _rows(certificate))
    if authority:
        say("The run's authority has signed this.")
    else:
        say(f"Signed by the key {key}: compare it with the run's, or name the run's page with --authority.")


def _rows(certificate: Certificate) -> list[tuple[str, str]]:
    return [
        ("run", certificate.run),
        ("member", f"{certificate.member} (number {certificate.number})"),
        ("samples", f"{certificate.samples:,} in {certificate.steps:,} global steps"),
        ("days", f"{certificate.active_days}, from {certificate.first_day} to {certificate.last_day}"),
        ("training", f"{certificate.training_s / 3600:,.1f} device-hours"),
        ("devices", str(len(certificate.devices))),
        ("issued", datetime.fromtimestamp(certificate.issued_at, timezone.utc).isoformat(timespec="seconds")),
    ]
