"""`manyhands support-bundle`: one file to send along when asking for help."""

from __future__ import annotations

import asyncio
import getpass
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from auth.errors import ConfigError
from peer.cli import STATE_DIR_VARIABLE
from peer.doctor.checkup import WITH_LINK, WITHOUT_LINK
from peer.doctor.context import Context, Options
from peer.doctor.stages import run_stages
from peer.doctor_cli import make_options
from peer.redaction import make_redactor
from peer.support_bundle import collect, write_bundle

app = typer.Typer(pretty_exceptions_enable=False)


@app.command("support-bundle", epilog="Example: manyhands support-bundle 'manyhands://host:7443/run#sha256=...'")
def support_bundle(
    link: Annotated[
        str | None,
        typer.Argument(metavar="[LINK]", help="The run's join link; without it only the machine is told of."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The archive to write.")] = Path("manyhands-support.zip"),
    state_dir: Annotated[
        Path | None,
        typer.Option(
            envvar=STATE_DIR_VARIABLE, help="Where this device's key and data are kept; default: as for `join`."
        ),
    ] = None,
    no_doctor: Annotated[bool, typer.Option("--no-doctor", help="Leave out the doctor's examination.")] = False,
) -> None:
    """Write a redacted archive for the run's operator: versions, the training log's end, what the doctor finds."""
    if out.exists():
        raise ConfigError(f"`--out` ({out}) exists already: remove it, or give another name.")
    options = make_options(link, state_dir)
    findings = [] if no_doctor else asyncio.run(_examine(options))
    redact = make_redactor(str(Path.home()), getpass.getuser(), socket.gethostname())
    write_bundle(out, collect(options.state_dir, findings), redact)
    typer.echo(f"Written to {out}: read it, then send it to the run's operator.")


async def _examine(options: Options) -> list[dict[str, Any]]:
    """What every stage finds."""
    stages = WITHOUT_LINK if options.link is None else WITH_LINK
    async with Context(options) as context:
        return [finding.to_json() async for finding in run_stages(stages, context)]
