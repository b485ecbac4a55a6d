"""The operator's commands that steer a live run: pause, resume, stop, change, announce."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.administration import Administration
from coordinator.audit import os_actor
from coordinator.device_cli import DIRECTORY, JSON
from coordinator.runs import open_run
from coordinator.steering import Steersman
from peer.tables import say, say_json


def pause(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Let all volunteers wait; they stay connected, and lose nothing."""
    _steer(directory, as_json, Steersman.pause)


def resume(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Let all volunteers go on after a pause."""
    _steer(directory, as_json, Steersman.resume)


def stop(
    directory: Path = DIRECTORY,
    step: int | None = typer.Argument(None, help="The last step of the run.", show_default=False),
    never: bool = typer.Option(False, "--never", help="Take it back: the run does not end by itself."),
    as_json: bool = JSON,
) -> None:
    """End the run with a step: volunteers leave in order, and a last checkpoint is written."""
    if (step is None) != never:
        raise ConfigError("Name the run's last step, or `--never`.")
    _steer(directory, as_json, lambda steersman: steersman.stop_at(step))


def change(
    directory: Path = DIRECTORY,
    from_step: int | None = typer.Option(
        None, help="Completed steps after which it holds; at least three more than there are.", show_default="soon"
    ),
    learning_rate_scale: float | None = typer.Option(None, help="Times the run file's schedule.", show_default=False),
    target_batch_size: int | None = typer.Option(None, help="Samples of a global step.", show_default=False),
    checkpoint_every: int | None = typer.Option(None, help="Steps between two checkpoints.", show_default=False),
    as_json: bool = JSON,
) -> None:
    """Change a live run from a step on, at all peers at once."""
    _steer(
        directory,
        as_json,
        lambda steersman: steersman.change(
            from_step,
            learning_rate_scale=learning_rate_scale,
            target_batch_size=target_batch_size,
            checkpoint_every=checkpoint_every,
        ),
    )


def announce(
    directory: Path = DIRECTORY,
    text: str = typer.Argument(..., help="One line.", show_default=False),
    as_json: bool = JSON,
) -> None:
    """Tell all volunteers something, in their terminals and notebooks."""
    _steer(directory, as_json, lambda steersman: steersman.announce(text))


def _steer(directory: Path, as_json: bool, act: Callable[[Steersman], str]) -> None:
    with open_run(directory) as run:
        acts = Administration(run.sessions, run.membership, os_actor(), time.time)
        done = acts.steer(run.directory.config, act)
    if as_json:
        say_json({"done": done})
    else:
        say(done)
