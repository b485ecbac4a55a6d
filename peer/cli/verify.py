"""`manyhands verify`: recompute a run's leaderboard from what its devices have signed, or check a certificate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from auth.errors import StorageError, UnverifiedError
from peer.runtime.console import say, say_json, say_table
from peer.verification.certificate import authority_key, certificate_in, check_certificate
from peer.verification.published import read_published
from peer.verification.receipts import Verification, verify

SHOWN_PROBLEMS = 5
app = typer.Typer(pretty_exceptions_enable=False)


@app.command("verify", epilog="Example: manyhands verify https://example.org:8080 --save receipts.json")
def verify_leaderboard(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="The dashboard's address, a file that `--save` wrote, or a certificate's file."
        ),
    ],
    save: Annotated[Path | None, typer.Option(help="Keep what was downloaded in this file, to verify offline.")] = None,
    authority: Annotated[
        str,
        typer.Option(metavar="KEY|PAGE", help="Of a certificate: the key that must have signed it, or the run's page."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check every receipt's signature, count by them, and compare with the published leaderboard.

    Of a certificate of contribution: whether the run's authority has signed it.
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
        say(f"{unsigned} of these samples no receipt is about: for them there is the coordinator's word alone.")
    if not found.problems:
        say(f"The leaderboard follows from {found.receipts} receipts of {found.steps} steps, each rightly signed.")


def _members(found: Verification, leaderboard: dict[str, int]) -> list[str]:
    return sorted(leaderboard.keys() | found.samples.keys(), key=lambda name: (-found.samples[name], name))
