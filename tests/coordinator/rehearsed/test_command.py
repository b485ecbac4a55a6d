"""`manyhands coordinator rehearse` refuses at once, in one sentence, and not after a minute of rehearsal."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, ManyhandsError, PortTakenError
from coordinator.rehearsed import command
from peer.config.run import BUILTIN_RUNS

RUN = BUILTIN_RUNS / "demo.yaml"
DEVICE = {"line": {"up_mbit_per_second": 10, "down_mbit_per_second": 50}, "samples_per_second": 1}


def refusal(*arguments: object) -> ManyhandsError:
    """The error that ends the command, as `manyhands` prints it."""
    result = CliRunner().invoke(command.app, [str(each) for each in (RUN, *arguments)])
    assert isinstance(result.exception, ManyhandsError), result.output
    assert str(result.exception).endswith(".")
    return result.exception


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Three devices for a minute."""
    content = {"duration_s": 60, "parameters": 1000, "devices": [{"name": name, **DEVICE} for name in "abc"]}
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path, scenario: Path) -> None:
    """Before the rehearsal; and pages that are written need no port."""
    error = refusal("--scenario", scenario, "--output", tmp_path)
    assert isinstance(error, ConfigError)
    assert str(tmp_path) in str(error)
    assert "`--port`" in str(refusal("--scenario", scenario, "--output", tmp_path / "new", "--port", 8080))
    assert not (tmp_path / "new").exists()


def test_a_port_that_is_taken_is_refused(scenario: Path) -> None:
    """By its option's name."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = refusal("--scenario", scenario, "--port", taken.getsockname()[1])
    assert isinstance(error, PortTakenError)
    assert "--port" in str(error)


def test_more_devices_than_a_page_can_show_are_refused(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take hours to write."""
    monkeypatch.setattr(command, "MOST_DEVICES", 2)
    assert "at most 2 devices, not 3" in str(refusal("--scenario", scenario))


def test_the_swarm_is_chosen_as_for_a_forecast(scenario: Path) -> None:
    """With the same options, and the same refusals."""
    assert "`--volunteers`" in str(refusal("--scenario", scenario, "--volunteers", 3))
    assert "`--hours` (0)" in str(refusal("--hours", 0))
