"""`manyhands join` and `manyhands assist`: take part in a run."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from platformdirs import user_data_dir
from rich.console import Console

from auth.errors import (
    ConfigError,
    ManyhandsError,
    StorageError,
    SwarmError,
    UnreachableError,
)
from auth.join_link import JoinLink
from peer.agent.agent import Agent, run_agent
from peer.agent.notebook import NotebookDisplay
from peer.agent.options import AgentOptions
from peer.agent.terminal import Display, PanelState, open_display
from peer.config.trust import Allowed
from peer.control.join_page import read_link
from peer.control.login import LoginPrompt, show_as_json, show_as_text, show_in_notebook
from peer.doctor.checkup import explain
from peer.doctor.context import Context, Options
from peer.limits.cloud import VARIABLE, Cloud
from peer.limits.limits import Limits, parse_rate, parse_size, parse_windows
from peer.runtime.console import say
from peer.runtime.devices import DEVICES, CompileMode, check_device_name
from peer.runtime.processes import name_process
from peer.runtime.temporary import own_temporary_files

INVITE_VARIABLE = "MANYHANDS_INVITE"
STATE_DIR_VARIABLE = "MANYHANDS_STATE_DIR"
DATA_FOLDERS_VARIABLE = "MANYHANDS_DATA_FOLDERS"
LOGIN_SHOWN_AS = {"text": show_as_text, "json": show_as_json, "notebook": show_in_notebook}
app = typer.Typer(pretty_exceptions_enable=False)

Link = Annotated[
    str,
    typer.Argument(help="Join link of the run, manyhands://HOST:PORT/RUN#sha256=..., or its page, https://HOST/join."),
]
Invite = Annotated[
    str, typer.Option(help=f"Invite code, needed once per device; best set in {INVITE_VARIABLE} or typed when asked.")
]
Login = Annotated[
    str, typer.Option(metavar="PROVIDER", help="Log in with this identity provider; default: the run's only one.")
]
Device = Annotated[
    str,
    typer.Option(
        help=f"Device to train on: {', '.join(DEVICES)}. auto: the best one that works; "
        "cuda: all GPUs, or cuda:1 or cuda:0,2; mps: the GPU of a Mac."
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads; default: one per core.")]
MaxHours = Annotated[float | None, typer.Option(min=0.0, help="Leave cleanly after this many hours, including pauses.")]
Hours = Annotated[
    list[str] | None, typer.Option(help="Train only within these hours of the day, e.g. 22:00-07:00; repeatable.")
]
Rate = partial(typer.Option, metavar="MBIT/S")
MaxUploadRate = Annotated[float | None, Rate(help="Maximum upload rate, in Mbit/s.")]
MaxDownloadRate = Annotated[float | None, Rate(help="Maximum download rate, in Mbit/s.")]
MaxUpload = Annotated[str | None, typer.Option(metavar="SIZE", help="Leave cleanly after this much upload, e.g. 10GB.")]
MaxDownload = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Leave cleanly after this much download, e.g. 10GB.")
]
MaxMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="Maximum main memory for training, e.g. 4GB.")]
MaxDisk = Annotated[str | None, typer.Option(metavar="SIZE", help="Maximum disk space for its files, e.g. 2GB.")]
Polite = Annotated[
    bool, typer.Option("--polite", help="Pause on battery, on a metered network, and while somebody uses the machine.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar=STATE_DIR_VARIABLE, help="Directory for this device's key and data; default: the user's data directory."
    ),
]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        help="libp2p address to listen on, e.g. /ip4/0.0.0.0/tcp/31338, /ip4/0.0.0.0/udp/31338/quic-v1 or "
        "/ip6/::/tcp/31338; default: a free TCP port over IPv4 and IPv6; repeatable."
    ),
]
Format = Literal["text", "json", "notebook"]
LogFormat = Annotated[
    Format, typer.Option(help="Format: plain lines, one JSON object per line, or a panel for a notebook's cell.")
]
NoPanel = Annotated[bool, typer.Option("--no-panel", help="Print lines instead of the live panel.")]


WHO_LEARNS_THE_ADDRESS = (
    "Who learns this machine's IP address: the run's coordinator, and its other members while this machine takes part. "
    "It is not published."
)


def default_state_dir(link: JoinLink) -> Path:
    """Return the default directory for this device's key and data in a run."""
    return Path(user_data_dir("manyhands")) / f"{link.run}-{link.fingerprint[:16]}"


def find_invite(given: str, known_device: bool) -> str:
    """Return the invite code from the option, the environment or a prompt, or "" if there is none."""
    invite = os.environ.pop(INVITE_VARIABLE, "")  # remove the code, so that child processes cannot see it
    invite = given or invite
    if not invite and not known_device and sys.stdin.isatty():
        return str(
            typer.prompt(
                "Invite code (empty to log in, where the run offers that)",
                default="",
                show_default=False,
                hide_input=True,
            )
        )
    return invite


@app.command("join", epilog="Example: manyhands join 'manyhands://host:7443/run#sha256=...'")
def join(
    link: Link,
    invite: Invite = "",
    login: Login = "",
    device: Device = "auto",
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        typer.Option(
            help="Precision of products; auto: bf16 on TPUs and GPUs that support it, fp16 on older GPUs, else fp32."
        ),
    ] = "auto",
    threads: Threads = None,
    microbatch: Annotated[
        int | None, typer.Option(min=1, help="Samples in one forward pass, in every phase; default: as many as fit.")
    ] = None,
    compile_layers: Annotated[
        CompileMode,
        typer.Option("--compile", help="Use torch.compile for the layers; auto: on GPUs, where it is faster."),
    ] = "auto",
    max_hours: MaxHours = None,
    hours: Hours = None,
    polite: Polite = False,
    max_upload_rate: MaxUploadRate = None,
    max_download_rate: MaxDownloadRate = None,
    max_memory: MaxMemory = None,
    max_disk: MaxDisk = None,
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    state_dir: StateDir = None,
    listen: Listen = None,
    client_mode: Annotated[
        bool, typer.Option(help="Accept no incoming connections, and do not test whether they arrive.")
    ] = False,
    data_folder: Annotated[
        list[Path] | None,
        typer.Option(
            envvar=DATA_FOLDERS_VARIABLE,
            help="Folder on this machine that the run may read its text from; repeatable.",
        ),
    ] = None,
    private_network: Annotated[
        bool, typer.Option("--private-network", help="Let the run fetch its text from this machine's own network, too.")
    ] = False,
    log_format: LogFormat = "text",
    no_panel: NoPanel = False,
) -> None:
    """Take part in a run with this machine; Ctrl-C leaves cleanly, a second Ctrl-C at once."""
    if listen and client_mode:
        raise ConfigError("`--listen` and `--client-mode` exclude each other: give one of them.")
    sizes = {
        "--max-memory": max_memory,
        "--max-disk": max_disk,
        "--max-upload": max_upload,
        "--max-download": max_download,
    }
    limits = _limits(max_hours, hours, polite, (max_upload_rate, max_download_rate), sizes)
    options = _options(link, state_dir, listen)
    options = replace(
        options,
        device=check_device_name(device),
        precision=precision,
        threads=threads,
        microbatch_size=microbatch,
        compile=compile_layers,
        limits=limits,
        client_mode=client_mode,
        allowed=Allowed(tuple(data_folder or ()), private_network),
    )
    options = replace(options, login=login)
    _take_part(options, invite, log_format, no_panel)


@app.command("assist", epilog="Example: manyhands assist 'manyhands://host:7443/run#sha256=...'")
def assist(
    link: Link,
    invite: Invite = "",
    login: Login = "",
    threads: Threads = None,
    max_hours: MaxHours = None,
    hours: Hours = None,
    polite: Polite = False,
    max_upload_rate: MaxUploadRate = None,
    max_download_rate: MaxDownloadRate = None,
    max_memory: MaxMemory = None,
    max_disk: MaxDisk = None,
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    state_dir: StateDir = None,
    listen: Listen = None,
    log_format: LogFormat = "text",
    no_panel: NoPanel = False,
) -> None:
    """Average for a run's trainers without training; for machines with a fast connection that others can reach."""
    options = _options(link, state_dir, listen)
    sizes = {
        "--max-memory": max_memory,
        "--max-disk": max_disk,
        "--max-upload": max_upload,
        "--max-download": max_download,
    }
    limits = _limits(max_hours, hours, polite, (max_upload_rate, max_download_rate), sizes)
    options = replace(options, role="auxiliary", device="cpu", threads=threads, limits=limits)
    options = replace(options, login=login)
    _take_part(options, invite, log_format, no_panel)


def _limits(
    max_hours: float | None,
    hours: list[str] | None,
    polite: bool,
    rates: tuple[float | None, float | None],
    sizes: dict[str, str | None],
) -> Limits:
    """Parse the options that limit usage; `rates` are the limits on upload and download rates."""
    allowed = {option: parse_size(option, text) for option, text in sizes.items()}
    return Limits(
        hours=parse_windows(hours or ()),
        polite=polite,
        max_hours=max_hours,
        memory_bytes=allowed["--max-memory"],
        disk_bytes=allowed["--max-disk"],
        upload_rate=parse_rate("--max-upload-rate", rates[0]),
        download_rate=parse_rate("--max-download-rate", rates[1]),
        upload_bytes=allowed["--max-upload"],
        download_bytes=allowed["--max-download"],
    )


def _options(link: str, state_dir: Path | None, listen: list[str] | None) -> AgentOptions:
    parsed, invite = read_link(link)
    directory = (state_dir or default_state_dir(parsed)).expanduser().absolute()
    cloud = Cloud.find(os.environ.get(VARIABLE, ""))
    return AgentOptions(parsed, directory, invite=invite, cloud=cloud, listen=tuple(listen or ()))


def _take_part(options: AgentOptions, invite: str, log_format: Format, no_panel: bool) -> None:
    name_process(f"agent {options.link.run}")
    with only_one(options.state_dir), own_temporary_files():
        known_device = (options.state_dir / "token.jwt").exists()
        if not known_device:
            typer.echo(WHO_LEARNS_THE_ADDRESS, err=True)
        options = replace(options, invite=find_invite(invite or options.invite, known_device or bool(options.login)))
        asyncio.run(_join(options, _display_for(log_format, no_panel), LOGIN_SHOWN_AS[log_format]))
    if log_format == "text" and sys.stdout.isatty():
        say("To continue later, run the same command again: this machine is known by its key and needs no code.")


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Lock the device's directory during the block: two agents with the same key would interfere."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (state_dir / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(
                    f"Another `manyhands join` uses {state_dir}: stop it, or give this one a --state-dir of its own."
                ) from error
            yield
    except OSError as error:
        raise StorageError(f"Cannot use the directory {state_dir} ({error.strerror}).") from error


def _display_for(log_format: Format, no_panel: bool) -> Callable[[PanelState], Display]:
    if log_format == "notebook":
        return partial(NotebookDisplay, stream=sys.stdout, clock=time.time)
    return partial(open_display, panel=not no_panel, as_json=log_format == "json", clock=time.monotonic)


async def _join(
    options: AgentOptions, display: Callable[[PanelState], Display], show_login: Callable[[LoginPrompt], None]
) -> None:
    async def look_into(error: UnreachableError | SwarmError) -> ManyhandsError:
        return await explain(error, Context(Options(options.state_dir, options.link, listen=options.listen)))

    try:
        await run_agent(Agent(options, display, time.time, show_login=show_login, explain=look_into))
    except UnreachableError as error:
        with Console(stderr=True).status("Looking for the reason"):
            raise await look_into(error) from error
