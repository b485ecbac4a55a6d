"""The operator's command to go back: `manyhands coordinator rewind DIR STEP`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.administration import Administration
from coordinator.audit import os_actor
from coordinator.device_cli import DIRECTORY, JSON
from coordinator.devices import SHORT_ID_CHARS
from coordinator.presence import checkpoints
from coordinator.rewinding import Contributor, checkpoint_to_return_to, contributors_since
from coordinator.runs import OpenRun, open_run
from coordinator.validations import validations
from peer.tables import format_age, say, say_json, say_table

STEP = typer.Argument(None, help="The checkpoint's step; none: show which there are.", show_default=False)


def rewind(
    directory: Path = DIRECTORY,
    step: int | None = STEP,
    quarantine: list[str] = typer.Option([], help="A member whose devices since then are cut off; repeatable."),
    yes: bool = typer.Option(False, "--yes", help="Do it; without, only say what would be undone."),
    as_json: bool = JSON,
) -> None:
    """Go back to a checkpoint: undo all later steps and have every peer resume from there."""
    with open_run(directory) as run:
        if step is None:
            _say_checkpoints(run, as_json)
            return
        checkpoint_to_return_to(run.directory.checkpoints_dir, step)
        found = contributors_since(run.sessions, step)
        _require_contributors(quarantine, found)
        if not yes:
            _say_contributors(step, run.ledger.last_step(), found, as_json)
            return
        acts = Administration(run.sessions, run.membership, os_actor(), time.time)
        suspects = {row.device_id for row in found if row.member in quarantine}
        undone, era = acts.rewind(run.directory.checkpoints_dir, run.ledger, step, suspects)
    if as_json:
        say_json({"step": step, "era": era, "undone": undone, "contributors": [asdict(row) for row in found]})
    else:
        say(f"Undone: {undone} steps after step {step}. All peers resume from there as soon as the keeper is up.")


def _require_contributors(names: list[str], found: list[Contributor]) -> None:
    strangers = sorted(set(names) - {row.member for row in found})
    if strangers:
        raise ConfigError(f"{', '.join(strangers)} contributed nothing to the steps that would be undone.")


def _say_checkpoints(run: OpenRun, as_json: bool) -> None:
    losses = {row.step: row.facts["loss"] for row in validations(run.sessions)}
    rows = [asdict(row) | {"validation_loss": losses.get(row.step)} for row in checkpoints(run.sessions)]
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
        ("member", "device", "steps", "samples", "suspicions", "unproven"),
        [
            (row.member, row.device_id[:SHORT_ID_CHARS], row.steps, row.samples, row.suspicions, row.notes)
            for row in found
        ],
    )
    say("Nothing is done yet: add --yes, and --quarantine NAME for whom to cut off.")
