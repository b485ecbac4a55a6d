"""`manyhands name`: set the name shown for this device's member on a run's public page."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from auth.credentials import DEVICE_KEY_FILE
from auth.errors import ConfigError, NotInvitedError
from auth.join_link import JoinLink
from auth.keys import DeviceKey
from peer.cli.join import Link, StateDir, default_state_dir
from peer.control.client import ControlClient
from peer.control.join_page import read_link
from peer.protocol import control_pb2
from peer.runtime.console import say

app = typer.Typer(pretty_exceptions_enable=False)


@app.command("name", epilog="Example: manyhands name 'manyhands://host:7443/run#sha256=...' --as 'Night Owl'")
def choose_name(
    link: Link,
    shown_as: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Show this name; it must not resemble another member's.")
    ] = "",
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Show a number instead of a name.")] = False,
    own: Annotated[bool, typer.Option("--own", help="Show the name in your invitation.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Choose the name that the run's page shows for you; it applies to all your devices, past and future."""
    if [bool(shown_as), anonymous, own].count(True) != 1:
        raise ConfigError("Choose one of `--as NAME`, `--anonymous` and `--own`.")
    parsed, _ = read_link(link)
    directory = (state_dir or default_state_dir(parsed)).expanduser()
    if not (directory / DEVICE_KEY_FILE).exists():
        raise NotInvitedError(f"{directory} holds no device of this run: join it first, or name its `--state-dir`.")
    key = DeviceKey.load_or_create(directory / DEVICE_KEY_FILE)
    reply = asyncio.run(_choose(parsed, key, shown_as, anonymous))
    say(f"The run's page shows you as {reply.shown}.")
    if reply.hidden:
        say("The run's operator has hidden your name: ask the operator if you want to change that.")


async def _choose(link: JoinLink, key: DeviceKey, name: str, anonymous: bool) -> control_pb2.ChooseNameReply:
    client = await ControlClient.connect(link, time.time)
    try:
        return await client.choose_name(key, name, anonymous)
    finally:
        await client.close()
