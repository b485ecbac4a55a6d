"""The operator's commands, run in this process."""

from __future__ import annotations

import signal

from typer.testing import CliRunner, Result

from auth.errors import ManyhandsError
from coordinator.cli.main import app


def call(*arguments: object) -> Result:
    """Run a command; an error of ours is raised as it is for the front door to tell."""
    at_sigterm = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if signal.getsignal(signal.SIGTERM) is not at_sigterm:  # the command expected to be the whole process
        signal.signal(signal.SIGTERM, at_sigterm)
    if isinstance(result.exception, ManyhandsError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result
