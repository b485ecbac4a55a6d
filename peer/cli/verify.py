"""`manyhands verify`: recompute a leaderboard from signed receipts, or verify a certificate."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from auth.certificates import MAX_CERTIFICATE_CHARS, Certificate, open_certificate, read_certificate
from auth.errors import ConfigError, StorageError, UnverifiedError
from peer.network.http import fetch
from peer.runtime.console import say, say_json, say_table
from peer.verification.published import Get, PublishedAuthority, parse, read_published
from peer.verification.receipts import Verification, verify

SHOWN_PROBLEMS = 5
app = typer.Typer(pretty_exceptions_enable=False)
_KEY = re.compile(r"[0-9a-f]{64}")


@app.command("verify", epilog="Example: manyhands verify https://example.org:8080 --save receipts.json")
def verify_leaderboard(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Address of the dashboard, a file that `--save` wrote, or a certificate's file."
        ),
    ],
    save: Annotated[Path | None, typer.Option(help="Save the downloaded data in this file, to verify offline.")] = None,
    authority: Annotated[
        str,
        typer.Option(metavar="KEY|PAGE", help="Certificate only: the key that must have signed it, or the run's page."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Verify every receipt's signature, add up the samples, and compare them with the published leaderboard.

    For a certificate of contribution, verify that the run's authority has signed it.
    """
    if (certificate := certificate_in(source)) is not None:
        check_certificate(certificate, authority and authority_key(authority), as_json)
        return
    published = read_published(source, time.sleep)
    if save is not None:
        try:
            save.write_text(published.model_dump_json(), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"Cannot write `--save` ({save}): {error.strerror}.") from error
    found = verify(published)
    leaderboard = {row.member: row.samples for row in published.after.contributions}
    if as_json:
        say_json(_content(found, leaderboard))
    else:
        _show(found, leaderboard)
    if found.problems:
        more = f" and {len(found.problems) - SHOWN_PROBLEMS} more" if len(found.problems) > SHOWN_PROBLEMS else ""
        listed = "; ".join(found.problems[:SHOWN_PROBLEMS])
        raise UnverifiedError(f"The leaderboard does not follow from the receipts: {listed}{more}.")


def _content(found: Verification, leaderboard: dict[str, int]) -> dict[str, object]:
    return {
        "verified": not found.problems,
        "steps": found.steps,
        "receipts": found.receipts,
        "withheld_steps": found.withheld,
        "members": [
            {
                "member": member,
                "published": leaderboard.get(member, 0),
                "recomputed": found.samples[member],
                "unsigned": found.unsigned[member],
                "pending": found.pending[member],
            }
            for member in _members(found, leaderboard)
        ],
        "problems": found.problems,
    }


def _show(found: Verification, leaderboard: dict[str, int]) -> None:
    say_table(
        ("member", "published", "recomputed", "pending"),
        [
            (member, leaderboard.get(member, 0), found.samples[member], found.pending[member])
            for member in _members(found, leaderboard)
        ],
    )
    if unsigned := found.unsigned.total():
        say(f"{unsigned} of these samples are in no receipt: only the coordinator vouches for them.")
    if found.withheld:
        say(
            f"{found.withheld} steps from before receipts had pseudonyms carry no public receipts: theirs name libp2p "
            "identities."
        )
    if not found.problems:
        say(f"The leaderboard follows from {found.receipts} receipts of {found.steps} steps, all validly signed.")


def _members(found: Verification, leaderboard: dict[str, int]) -> list[str]:
    return sorted(leaderboard.keys() | found.samples.keys(), key=lambda name: (-found.samples[name], name))


def certificate_in(source: str) -> str | None:
    """Return the text of the file `source` if the file is a certificate, else None."""
    if urlsplit(source).scheme in ("http", "https"):
        return None
    try:
        with Path(source).open(encoding="utf-8") as file:
            text = file.read(MAX_CERTIFICATE_CHARS + 1)
    except (OSError, UnicodeDecodeError):  # the caller reports the error
        return None
    return text if '"authority_key"' in text else None


def authority_key(named: str, get: Get = fetch) -> str:
    """Return `named` if it is a key (hex), else the key of the run at that URL. Raises `ConfigError`."""
    if _KEY.fullmatch(named.lower()):
        return named.lower()
    if urlsplit(named).scheme not in ("http", "https"):
        raise ConfigError(f"`--authority` ({named!r:.80}) must be a key of 64 hex digits, or a run's page.")
    url = f"{named.rstrip('/')}/api/v1/authority"
    return parse(PublishedAuthority, get(url), url).key


def check_certificate(text: str, authority: str, as_json: bool) -> None:
    """Print a certificate. Raises `UnverifiedError` if it is invalid or not signed by `authority` (hex)."""
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
