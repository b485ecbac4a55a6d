"""Units of systemd's user manager: what stands in them, by systemd's own word, and what is asked of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from auth.errors import ConfigError, RevokedError
from peer.runtime.user_service import UserService, kept_arguments, require_manager
from tests.support.programs import require
from tests.support.systemd import StandInForSystemd, stand_in_for_systemd

SERVICE = UserService(
    name="manyhands-demo",
    description="manyhands: 100 % of this machine",
    directory=Path("/home/ada/device"),
    arguments=["join", "manyhands://example.org:7443/demo#sha256=ab", "--max-disk", "5%GB", 'a "b" $HOME \\'],
    stop_s=60,
    never_again=(ConfigError, RevokedError),
)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInForSystemd:
    return stand_in_for_systemd(tmp_path, monkeypatch)


def test_systemd_itself_takes_the_unit(tmp_path: Path) -> None:
    """Its own tool of verification has nothing to say of any line, nor of a program that is not there."""
    require("systemd")
    path = tmp_path / SERVICE.unit
    path.write_text(SERVICE.text())
    verify = ["systemd-analyze", "verify", "--user", "--recursive-errors=no", str(path)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(verify, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    path.write_text(SERVICE.text().replace("Restart=on-failure", "Restart=sometimes"))
    assert "sometimes" in subprocess.run(verify, capture_output=True, text=True, env=environment, check=False).stderr


def test_the_unit_names_this_installation_and_what_no_start_mends() -> None:
    """Each word of the command is quoted as systemd reads it; a wrong command line and a second Ctrl-C end it, too."""
    text = SERVICE.text().splitlines()
    [command] = [line for line in text if line.startswith("ExecStart=")]
    assert command.startswith(f'ExecStart="{Path(sys.executable).with_name("manyhands")}" "join" "manyhands://')
    assert command.endswith('"5%%GB" "a \\"b\\" $$HOME \\\\"')
    assert "Description=manyhands: 100 %% of this machine" in text
    assert "RestartPreventExitStatus=2 3 11 130" in text
    with pytest.raises(ConfigError, match="no text"):
        replace(SERVICE, arguments=["a\nb"]).text()


def test_a_service_is_installed_once_and_changed_where_its_options_are(systemd: StandInForSystemd) -> None:
    """A second time it goes on undisturbed; the person hears where it is and what `linger` would do."""
    told = SERVICE.install()
    assert (systemd.units / "manyhands-demo.service").read_text() == SERVICE.text()
    assert "loginctl enable-linger" in told[-1]
    installed = systemd.asked()
    assert [line.removeprefix("systemctl --user ") for line in installed] == [
        "show-environment",
        "daemon-reload",
        "enable manyhands-demo.service",
        "restart manyhands-demo.service",
        "loginctl show-user --property=Linger --value",
    ]
    SERVICE.install()
    assert "systemctl --user start manyhands-demo.service" in (again := systemd.asked())
    assert not any("reload" in line or "restart" in line for line in again)
    replace(SERVICE, arguments=["join", "another"]).install()
    assert "systemctl --user restart manyhands-demo.service" in systemd.asked()


def test_a_service_is_removed_and_nothing_else(systemd: StandInForSystemd) -> None:
    """It ends in order; where there is none, that is said; another device's is left alone."""
    SERVICE.install()
    systemd.asked()
    other = replace(SERVICE, directory=Path("/home/ada/another"))
    for act in (other.install, other.remove):
        with pytest.raises(ConfigError, match="is the service of /home/ada/device: remove that one first"):
            act()
    assert systemd.asked() == ["systemctl --user show-environment"] * 2
    SERVICE.remove()
    assert "systemctl --user disable --now manyhands-demo.service" in systemd.asked()
    assert list(systemd.units.iterdir()) == []
    assert SERVICE.remove() == ["There is no service manyhands-demo.service."]


def test_without_systemd_there_is_one_sentence(systemd: StandInForSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing, and where it does not manage this user's services; nothing is written."""
    systemd.refuse("Failed to connect to bus: No medium found")
    with pytest.raises(ConfigError, match=r"does not manage your services here .*No medium found.*restart policy"):
        SERVICE.install()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match="needs systemd, which this machine does not have"):
        require_manager()
    assert not systemd.units.exists()


def test_options_are_kept_as_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those from the environment; defaults are left to the program, paths do not depend on where it starts."""
    app, kept = typer.Typer(), []

    @app.command()
    def join(
        context: typer.Context,
        link: str,
        invite: str = "",
        hours: list[str] = typer.Option([]),
        polite: bool = typer.Option(False, "--polite"),
        folder: list[Path] = typer.Option([], envvar="TEST_FOLDERS"),
        mode: bool = True,
        threads: int = 4,
        service: bool = typer.Option(False, "--service"),
    ) -> None:
        kept.append(kept_arguments(context, "invite"))

    monkeypatch.chdir(tmp_path)
    given = ["LINK", "--invite", "SECRET", "--hours", "1-2", "--hours", "3-4", "--polite", "--no-mode", "--service"]
    assert CliRunner().invoke(app, given, env={"TEST_FOLDERS": "texts"}).exit_code == 0
    assert kept == [
        ["LINK", "--hours", "1-2", "--hours", "3-4", "--polite", "--folder", str(tmp_path / "texts"), "--no-mode"]
    ]
