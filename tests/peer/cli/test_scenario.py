"""`manyhands scenario`, and `manyhands rehearse` with what it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from auth.errors import ConfigError, StorageError
from manyhands import build_app
from tests.support.past_runs import past_run, past_swarm, write_tables
from tests.support.tiny_albert import tiny_config


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The tables of a run, and its run file with a small model."""
    base = tmp_path_factory.mktemp("past")
    with past_run(base, past_swarm()) as run:
        content = tiny_config().model_dump(mode="json")
        content["averaging"] = run.directory.config.averaging.model_dump(mode="json")
        run_file = base / "run.yaml"
        run_file.write_text(type(run.directory.config).from_mapping(content).to_yaml())
        yield write_tables(run, base / "history"), run_file


def called(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), [str(each) for each in arguments], env={"COLUMNS": "160"})


def test_a_past_run_is_rehearsed_beside_its_own_figures(past: tuple[Path, Path], tmp_path: Path) -> None:
    """The scenario is written with what it infers; the rehearsal prints both columns, for scripts too."""
    history, run_file = past
    target = tmp_path / "past.yaml"
    written = called("scenario", history, run_file, "-o", target)
    assert written.exit_code == 0, (written.output, written.exception)
    assert "Lines are estimates from below" in written.output
    assert f"manyhands rehearse {run_file} --scenario {target}" in written.output
    told = called("rehearse", run_file, "--scenario", target, "--seeds", 1)
    assert told.exit_code == 0, (told.output, told.exception)
    assert "measured" in told.output
    assert "The measured median step time lies" in told.output
    content = json.loads(called("rehearse", run_file, "--scenario", target, "--seeds", 1, "--json").stdout)
    assert content["comparison"]["measured_steps"] > 5
    assert content["comparison"]["changes"] == []
    printed = called("scenario", history, run_file)
    assert printed.stdout.rstrip() == target.read_text().rstrip()


def test_mistakes_are_one_sentence(past: tuple[Path, Path], tmp_path: Path) -> None:
    """A file is not written over, a folder must be there, and a history must be long enough."""
    history, run_file = past
    (taken := tmp_path / "taken.yaml").touch()
    cases = {
        "exists already": (history, run_file, "-o", taken),
        "cannot be written": (history, run_file, "-o", tmp_path / "no" / "past.yaml"),
        "steps.parquet of": (tmp_path, run_file),
        "a scenario needs 4": (history, run_file, "--until", 2),
        "Cannot read the run file": (history, tmp_path / "none.yaml"),
    }
    for message, arguments in cases.items():
        error = called("scenario", *arguments).exception
        assert isinstance(error, ConfigError | StorageError), message
        assert message in str(error)
    assert taken.read_text() == ""
