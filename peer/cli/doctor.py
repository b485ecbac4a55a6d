"""`manyhands doctor` and `manyhands support-bundle`: diagnosis of this machine and its network.

`doctor` checks this machine and its network; `support-bundle` writes an archive for support.
"""

from __future__ import annotations

import asyncio
import getpass
import io
import json
import platform
import socket
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

import typer
from platformdirs import user_data_dir

from auth.errors import ConfigError
from auth.files import write_private
from peer.cli.join import STATE_DIR_VARIABLE, Device, default_state_dir
from peer.control.join_page import read_link
from peer.doctor.checkup import WITH_LINK, WITHOUT_LINK, conclude
from peer.doctor.context import Context, Options
from peer.doctor.display import CheckupDisplay, examine, open_display
from peer.doctor.machine import read_memory, read_processor
from peer.doctor.stages import Stage, run_stages
from peer.reporting.event_log import FOLDER, SUFFIX, read_folder, read_lines
from peer.runtime.devices import check_device_name
from peer.runtime.redaction import make_redactor
from peer.runtime.software import DISTRIBUTION
from peer.runtime.temporary import own_temporary_files
from peer.runtime.version import software_version

app = typer.Typer(pretty_exceptions_enable=False)
LOG_BYTES = 200_000  # maximum number of bytes to include from the end of each log
LOGS = ("data/worker.log",)
EVENT_BYTES = 2_000_000  # maximum number of bytes to include from the end of each event log
TEXTS = ("data/stream.json", "data/microbatch.json")
MAX_TEXT_BYTES = 100_000
README = """This archive was made by `manyhands support-bundle` for the operator of a run.
It holds versions, this machine's size, the end of the training log, the log of events (rounds, groups, downloads and
restarts; `manyhands replay` shows it), the place in the data and, with a link, what the doctor found. Keys, tokens,
invite codes, e-mail addresses and the names of user, host and home folder were taken out.
Read it before you send it.
"""


@app.command("doctor", epilog="Example: manyhands doctor 'manyhands://host:7443/run#sha256=...'")
def doctor(
    link: Annotated[
        str | None,
        typer.Argument(metavar="[LINK]", help="Join link or page of a run; default: check only this machine."),
    ] = None,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads; default: one per core.")] = None,
    microbatch: Annotated[int | None, typer.Option(min=1, help="Samples per forward pass; default: the run's.")] = None,
    listen: Annotated[
        list[str] | None, typer.Option(help="libp2p address to listen on, e.g. /ip4/0.0.0.0/tcp/31338; repeatable.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            envvar=STATE_DIR_VARIABLE, help="Directory for this device's key and data; default: as for `join`."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Check this machine and, given a link, its connection to the run; needs no account and changes nothing."""
    options = make_options(link, state_dir, device, threads, microbatch, listen)
    with own_temporary_files():
        asyncio.run(_examine(Context(options), open_display(as_json)))


async def _examine(context: Context, display: CheckupDisplay) -> None:
    async with context.resources:
        await examine(_stages(context.options), context, display, conclude)


def _stages(options: Options) -> Sequence[Stage[Context]]:
    return WITHOUT_LINK if options.link is None else WITH_LINK


def make_options(
    link: str | None,
    state_dir: Path | None,
    device: str = "auto",
    threads: int | None = None,
    microbatch_size: int | None = None,
    listen: list[str] | None = None,
) -> Options:
    """Parse the command's arguments. Raises `LinkError` or `ConfigError` if one is invalid."""
    parsed = None if link is None else read_link(link)[0]
    usual = Path(user_data_dir("manyhands")) if parsed is None else default_state_dir(parsed)
    return Options(
        state_dir=(state_dir or usual).expanduser().absolute(),
        link=parsed,
        device=check_device_name(device),
        threads=threads,
        microbatch_size=microbatch_size,
        listen=tuple(listen or ()),
    )


@app.command("support-bundle", epilog="Example: manyhands support-bundle 'manyhands://host:7443/run#sha256=...'")
def support_bundle(
    link: Annotated[
        str | None,
        typer.Argument(metavar="[LINK]", help="Join link or page of the run; default: describe only this machine."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The archive to write; an existing file is not overwritten.")] = Path(
        "manyhands-support.zip"
    ),
    state_dir: Annotated[
        Path | None,
        typer.Option(
            envvar=STATE_DIR_VARIABLE, help="Directory with this device's key and data; default: as for `join`."
        ),
    ] = None,
    no_doctor: Annotated[
        bool, typer.Option("--no-doctor", help="Skip the doctor's checks, which take up to a minute.")
    ] = False,
) -> None:
    """Write a redacted archive for the run's operator: versions, end of the training log, doctor's findings."""
    if out.exists():
        raise ConfigError(f"`--out` ({out}) exists already: remove it, or give another name.")
    options = make_options(link, state_dir)
    findings = [] if no_doctor else asyncio.run(_findings(Context(options)))
    redact = make_redactor(str(Path.home()), getpass.getuser(), socket.gethostname())
    files = {name: redact(text) for name, text in collect(options.state_dir, findings).items()}
    _write_bundle(out, files | events_of(options.state_dir, redact))
    typer.echo(f"Written to {out}: read it, then send it to the run's operator.")


async def _findings(context: Context) -> list[dict[str, Any]]:
    with own_temporary_files():
        async with context.resources:
            return [finding.to_json() async for finding in run_stages(_stages(context.options), context)]


def collect(state_dir: Path, findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the archive's unredacted texts by file name; a note replaces each unreadable file."""
    files = {
        "versions.json": json.dumps(versions(), indent=1),
        "machine.json": json.dumps(machine(), indent=1),
        "doctor.json": json.dumps(list(findings), indent=1),
    }
    for name in LOGS:
        files[name] = _end_of(state_dir / name, LOG_BYTES)
    for name in TEXTS:
        files[name] = _end_of(state_dir / name, MAX_TEXT_BYTES)
    return files


def events_of(state_dir: Path, redact: Callable[[str], str]) -> dict[str, str]:
    """Return the event logs by file name, redacted but still readable by `replay`."""

    def redacted(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: inner if key == "kind" else redacted(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [redacted(inner) for inner in value]
        return redact(value) if isinstance(value, str) else value

    return {
        f"{FOLDER}/{process}{SUFFIX}": "".join(
            json.dumps(redacted(line.model_dump(mode="json"))) + "\n" for line in read_lines(data) if line is not None
        )
        for process, data in read_folder(state_dir / "data" / FOLDER, EVENT_BYTES).items()
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, the operating system and all installed packages."""
    packages = {str(found.metadata["Name"]): found.version for found in distributions() if found.metadata["Name"]}
    packages[DISTRIBUTION] = software_version()
    return {"python": sys.version, "system": platform.platform(), **dict(sorted(packages.items()))}


def machine() -> dict[str, Any]:
    """Return the machine's size and load."""
    memory, processor = read_memory(), read_processor()
    return {
        "architecture": platform.machine(),
        "cores": processor.cores,
        "core_quota": processor.quota,
        "load": processor.load,
        "memory_bytes": memory.total_bytes,
        "available_memory_bytes": memory.available_bytes,
    }


def _write_bundle(path: Path, files: Mapping[str, str]) -> None:
    """Write the archive atomically, readable only by its owner. Raises `StorageError` on failure."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("README.txt", README)
        for name, text in files.items():
            bundle.writestr(name, text)
    write_private(path, archive.getvalue())


def _end_of(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, io.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return "There is no such file.\n"
    except OSError as error:
        return f"It cannot be read: {error.strerror}.\n"
