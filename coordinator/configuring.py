"""`manyhands coordinator configure`: what a container does before it serves a run.

At the first start it makes the run that the environment describes, whole or not at all; at each later one it brings
`settings.yaml` in line with the environment, and leaves alone whatever no variable speaks of.
"""

from __future__ import annotations

import os
from pathlib import Path

from auth.errors import ConfigError
from auth.files import write_private
from coordinator.device_cli import DIRECTORY
from coordinator.directory import RunDirectory, Settings
from coordinator.environment import (
    Wanted,
    changed_keys,
    read_environment,
    require_same_database,
    settle,
)
from coordinator.runs import create_run
from peer.run_config import BUILTIN_RUNS, RunConfig
from peer.tables import say

SECRET_KEYS = frozenset({"database_url"})  # of settings.yaml: their values are not shown


def configure(directory: Path = DIRECTORY) -> None:
    """Make the run that the MANYHANDS_* variables describe, or bring its settings in line with them; for containers."""
    wanted = read_environment(os.environ)
    if (directory / "run.yaml").is_file():
        bring_in_line(RunDirectory.open(directory), wanted)
    else:
        make(directory, wanted)


def make(path: Path, wanted: Wanted) -> None:
    """Make the run, tokenizer included, or nothing."""
    config = RunConfig.from_yaml(wanted.run_file or BUILTIN_RUNS / "demo.yaml")
    settings = settle(Settings(), wanted)
    say(f"Making the run `{config.run.name}` in {path}; a large corpus takes a while.")
    run = create_run(path, config, settings)
    say(f"The run is ready. Join link: {run.join_link}")


def bring_in_line(run: RunDirectory, wanted: Wanted) -> None:
    """Write what the environment asks for into `settings.yaml`, and say what changes."""
    after = settle(run.settings, wanted)
    require_same_database(run.settings, after)
    changed = changed_keys(run.settings, after)
    if changed:
        write_private(run.path / "settings.yaml", after.to_yaml().encode())
    for key in changed:
        value = "what the environment says" if key in SECRET_KEYS else repr(getattr(after, key))
        say(f"settings.yaml: `{key}` is now {value}.")
    if wanted.run_file is not None and not _holds(wanted.run_file, run.config):
        say(f"{wanted.run_file} is not used: the run keeps the run file it was made with, {run.path}/run.yaml.")


def _holds(run_file: Path, config: RunConfig) -> bool:
    try:
        return RunConfig.from_yaml(run_file) == config
    except ConfigError:
        return False  # nobody needs it any more: no reason not to serve
