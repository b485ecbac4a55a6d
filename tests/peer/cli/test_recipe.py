"""`manyhands recipe`, as a person at a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, StorageError
from peer.cli.recipe import app
from peer.config.recipes import RECIPES, load_recipe
from peer.config.run import RunConfig


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_written_to_be_edited(name: str, tmp_path: Path) -> None:
    """The file loads as the recipe does."""
    result = CliRunner().invoke(app, [name, "--language", "fi", "--out", str(tmp_path / "run.yaml")])
    assert result.exit_code == 0, result.output
    assert RunConfig.from_yaml(tmp_path / "run.yaml") == load_recipe(name, "fi")
    assert f"manyhands rehearse {tmp_path / 'run.yaml'}" in result.output.replace("\n", "")


def test_a_recipe_is_printed_without_a_file() -> None:
    """The output is the run file, in the recipe's own language unless another one is given; `--exact` is heard."""
    result = CliRunner().invoke(app, ["gpt2-small"])
    assert RunConfig.from_text(result.output, "the output") == load_recipe("gpt2-small")
    result = CliRunner().invoke(app, ["gpt2-small", "--language", "fi", "--exact"])
    assert RunConfig.from_text(result.output, "the output") == load_recipe("gpt2-small", "fi", is_exact=True)


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    """A file that exists stays as it is."""
    (tmp_path / "run.yaml").write_text("mine")
    result = CliRunner().invoke(app, ["gpt2-small", "-o", str(tmp_path / "run.yaml")])
    assert isinstance(result.exception, ConfigError)
    assert "exists already" in str(result.exception)
    assert (tmp_path / "run.yaml").read_text() == "mine"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error says which option named it, and why it failed."""
    result = CliRunner().invoke(app, ["gpt2-small", "-o", str(tmp_path / "missing" / "run.yaml")])
    assert isinstance(result.exception, StorageError)
    assert "`--out`" in str(result.exception)
    assert "No such file" in str(result.exception)
