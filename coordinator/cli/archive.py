"""The operator's command `archive`."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from auth.errors import ConfigError
from auth.openid.provider import require_safe_url
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import open_run
from peer.runtime.console import say, say_json


def archive(
    directory: Path = DIRECTORY,
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to make.", show_default=False),
    address: str = typer.Option("", help="Where it will be served, so that shared links have a picture."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an earlier archive of this run."),
    as_json: bool = JSON,
) -> None:
    """Freeze the dashboard into plain files that any web host serves for ever."""
    from coordinator.web.archive import Wish, write_archive  # the web application, which other commands need not load

    if address:
        _require_address(address)
    with open_run(directory) as run, run.audit.act("archive", str(out)):
        made = write_archive(run.directory, Wish(out, address, overwrite), time.time())
    if as_json:
        facts = made.model_dump(exclude={"files", "format_version"})
        say_json({"archive": str(out), **facts, "files": len(made.files), "size_bytes": made.size_bytes})
        return
    size = f"{len(made.files) + 1:,} files, {made.size_bytes / 1e6:,.1f} MB"
    say(f"{out} holds the page of `{made.run}` as of step {made.step:,}: {size}.")
    say(f"To look at it: python -m http.server --directory {out}")


def _require_address(address: str) -> None:
    try:
        require_safe_url(address)
    except ValueError as error:
        raise ConfigError(f"`--address`: {error}.") from error
