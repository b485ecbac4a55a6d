"""`manyhands name`, against a real control plane."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from auth.errors import ConfigError, NotInvitedError, RequestError
from coordinator.members.names import display_names, hide_name
from peer.cli.name import app
from tests.support.control_plane import TestCoordinator, connected, join_as, serving


async def name(coordinator: TestCoordinator, directory: Path, *words: str) -> Result:
    """As typed on the machine whose device is in `directory`."""
    arguments = [str(coordinator.link), "--state-dir", str(directory), *words]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def test_a_member_chooses_a_name_on_the_command_line(tmp_path: Path) -> None:
    """The public sees it at once; a refusal is one sentence; a hidden name is said to be hidden."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        await join_as(coordinator, client, tmp_path / "ada", "Ada")
        database = coordinator.services.database
        result = await name(coordinator, tmp_path / "ada", "--as", "Night Owl")
        assert result.stdout == "The run's page shows you as Night Owl.\n"
        assert display_names(database) == {"Ada": "Night Owl"}
        assert isinstance((await name(coordinator, tmp_path / "ada", "--as", "Anonymous 1")).exception, RequestError)
        assert coordinator.refusals() == [("name", "bad-request")]
        hide_name(database, "Ada", hidden=True, now=1.0)
        result = await name(coordinator, tmp_path / "ada", "--own")
        assert result.stdout.startswith("The run's page shows you as Anonymous 1.\nThe run's operator has hidden")


@pytest.mark.parametrize("words", [(), ("--own", "--anonymous"), ("--as", "Owl", "--own")])
async def test_one_choice_at_a_time(tmp_path: Path, words: tuple[str, ...]) -> None:
    """None, or two that exclude each other, change nothing."""
    async with serving(tmp_path) as coordinator:
        assert isinstance((await name(coordinator, tmp_path, *words)).exception, ConfigError)


async def test_a_machine_that_never_joined_has_no_name(tmp_path: Path) -> None:
    """It is told to join, and no key is made for it."""
    async with serving(tmp_path) as coordinator:
        result = await name(coordinator, tmp_path / "new", "--anonymous")
        assert isinstance(result.exception, NotInvitedError)
        assert not (tmp_path / "new").exists()
