"""The operator's commands for a live run: `pause`, `resume`, `stop`, `change`, `announce`, `rewind`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.checkpoints.rewind import (
    Contributor,
    checkpoint_to_return_to,
    contributors_since,
    rewind as undo_steps,
)
from coordinator.checkpoints.validations import validations
from coordinator.cli.options import DIRECTORY, JSON, say_done
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.ledger.steering import Steersman
from coordinator.members.devices import SHORT_ID_CHARS
from peer.runtime.console import format_age, say, say_json, say_table

app = typer.Typer()
STEP = typer.Argument(None, help="Step of the checkpoint; default: list the checkpoints.", show_default=False)


@app.command(epilog="Example: manyhands coordinator pause my-run")
def pause(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Pause all volunteers; they stay connected and lose no work."""
    _steer(directory, as_json, Steersman.pause)


@app.command(epilog="Example: manyhands coordinator resume my-run")
def resume(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Resume training after a pause."""
    _steer(directory, as_json, Steersman.resume)


@app.command(epilog="Example: manyhands coordinator stop my-run 125000")
def stop(
    directory: Path = DIRECTORY,
    step: int | None = typer.Argument(None, help="The last step of the run.", show_default=False),
    never: bool = typer.Option(False, "--never", help="Cancel the planned end, so that the run continues."),
    as_json: bool = JSON,
) -> None:
    """End the run after a given step: volunteers leave cleanly, and a final checkpoint is written."""
    if (step is None) != never:
        raise ConfigError("Name the run's last step, or `--never`.")
    _steer(directory, as_json, lambda steersman: steersman.stop_at(step))


@app.command(epilog="Example: manyhands coordinator change my-run --learning-rate-scale 0.5 --from-step 1200")
def change(
    directory: Path = DIRECTORY,
    from_step: int | None = typer.Option(
        None, help="Completed steps after which it applies; at least three more than now.", show_default="soon"
    ),
    learning_rate_scale: float | None = typer.Option(
        None, help="Factor of the run file's learning rate; with local steps, of the outer one.", show_default=False
    ),
    target_batch_size: int | None = typer.Option(
        None, help="Samples in a global step; not with local steps.", show_default=False
    ),
    checkpoint_every: int | None = typer.Option(None, help="Number of steps between checkpoints.", show_default=False),
    compression: str | None = typer.Option(
        None, help="Wire format of averaged values: none, float16, 8bit-blockwise or auto.", show_default=False
    ),
    powersgd_rank: int | None = typer.Option(
        None, help="Rank of PowerSGD's factors: 4, 8, 16 or 32; 0 turns PowerSGD off.", show_default=False
    ),
    yes: bool = typer.Option(False, "--yes", help="Confirm a change that is far from the current value."),
    as_json: bool = JSON,
) -> None:
    """Change settings of a live run from a given step on, for all peers at once."""
    _steer(
        directory,
        as_json,
        lambda steersman: steersman.change(
            from_step,
            learning_rate_scale=learning_rate_scale,
            target_batch_size=target_batch_size,
            checkpoint_every=checkpoint_every,
            compression=compression,
            powersgd_rank=powersgd_rank,
            confirmed=yes,
        ),
    )


@app.command(epilog='Example: manyhands coordinator announce my-run "The run moves on Sunday."')
def announce(
    directory: Path = DIRECTORY,
    text: str = typer.Argument(..., help="Text of the message, on one line.", show_default=False),
    as_json: bool = JSON,
) -> None:
    """Send a message to all volunteers; it appears in their terminals and notebooks."""
    _steer(directory, as_json, lambda steersman: steersman.announce(text))


@app.command(epilog="Example: manyhands coordinator rewind my-run 1200 --quarantine mallory --yes")
def rewind(
    directory: Path = DIRECTORY,
    step: int | None = STEP,
    quarantine: list[str] = typer.Option([], help="Quarantine this member's devices of those steps; repeatable."),
    yes: bool = typer.Option(False, "--yes", help="Undo the steps; without it, only show what would be undone."),
    as_json: bool = JSON,
) -> None:
    """Return to a checkpoint: undo all later steps, and let every peer resume from the checkpoint."""
    with open_run(directory) as run:
        if step is None:
            _say_checkpoints(run, as_json)
            return
        checkpoint_to_return_to(run.directory.checkpoints_dir, step)
        found = contributors_since(run.database, step)
        _require_contributors(quarantine, found)
        if not yes:
            _say_contributors(step, run.ledger.last_step(), found, as_json)
            return
        suspects = {row.device_id for row in found if row.member in quarantine}
        undone, era = undo_steps(run.administration, run.directory.checkpoints_dir, run.ledger, step, suspects)
    facts = {"step": step, "era": era, "undone": undone, "contributors": [asdict(row) for row in found]}
    done = f"Undone: {undone} steps after step {step}. All peers resume from there as soon as the keeper is up."
    say_done(as_json, facts, done)


def _steer(directory: Path, as_json: bool, act: Callable[[Steersman], str]) -> None:
    with open_run(directory) as run:
        done = run.administration.steer(run.directory.config, act)
    say_done(as_json, {"done": done}, done)


def _require_contributors(names: list[str], found: list[Contributor]) -> None:
    strangers = sorted(set(names) - {row.member for row in found})
    if strangers:
        raise ConfigError(f"{', '.join(strangers)} contributed nothing to the steps that would be undone.")


def _say_checkpoints(run: OpenRun, as_json: bool) -> None:
    losses = {row.step: row.facts["loss"] for row in validations(run.database)}
    rows = [asdict(row) | {"validation_loss": losses.get(row.step)} for row in checkpoints(run.database)]
    if as_json:
        say_json(rows)
        return
    now = time.time()
    say_table(
        ("step", "written", "held-out loss", "withheld"),
        [
            (row["step"], format_age(row["created_at"], now), row["validation_loss"], row["withheld"] or None)
            for row in rows
        ],
    )


def _say_contributors(step: int, last: int, found: list[Contributor], as_json: bool) -> None:
    if as_json:
        say_json({"step": step, "would_undo": max(0, last - step), "contributors": [asdict(row) for row in found]})
        return
    say(f"This would undo {max(0, last - step)} steps, {step + 1} to {last}, with what these devices contributed:")
    say_table(
        ("member", "device", "steps", "samples", "suspicions"),
        [(row.member, row.device_id[:SHORT_ID_CHARS], row.steps, row.samples, row.suspicions) for row in found],
    )
    say("Nothing is done yet: add --yes, and --quarantine NAME for whom to cut off.")
