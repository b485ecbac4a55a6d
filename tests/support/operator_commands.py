"""The operator's commands, run in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from auth.errors import ManyhandsError
from coordinator.cli.main import app


def call(*arguments: object) -> Result:
    """Run a command; an error of ours is raised as it is for the front door to tell."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ManyhandsError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result
