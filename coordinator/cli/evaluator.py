"""`manyhands coordinator evaluator | evaluators`: evaluate checkpoints, and allow remote evaluators."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path

import typer

from auth.errors import ConfigError
from auth.files import make_private_directory, write_private
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import open_run
from coordinator.evaluation.evaluated_runs import LocalRun, RemoteRun
from coordinator.evaluation.evaluations import allow_evaluator, allowed_evaluators, remove_evaluator
from coordinator.evaluation.evaluator import Evaluator
from coordinator.run.directory import RunDirectory
from coordinator.run.logs import LogFormat, LogStyle, log_to_stderr
from coordinator.service.supervisor import StopSignal
from peer.config.evaluation import is_web
from peer.runtime.console import format_age, say, say_json, say_table
from peer.runtime.processes import name_process

app = typer.Typer()
ADDRESS_FILE = "coordinator.txt"


class EvaluatorsAction(str, Enum):
    """The actions of `manyhands coordinator evaluators`."""

    LIST = "list"
    ADD = "add"
    REMOVE = "remove"


@app.command(epilog="Example: manyhands coordinator evaluator my-run --once")
def evaluator(
    directory: Path = typer.Argument(
        ..., metavar="DIR", help="The run's directory; elsewhere, a directory for the evaluator.", show_default=False
    ),
    coordinator: str = typer.Option(
        "", help="The run's web address, needed at the first start elsewhere; it is saved."
    ),
    once: bool = typer.Option(False, "--once", help="Exit as soon as no checkpoint is waiting."),
    threads: int = typer.Option(0, min=0, help="Number of CPU threads; 0: one per core."),
    log_format: LogFormat = typer.Option(LogFormat.TEXT, help="Format: text for people, or one JSON object per line."),
) -> None:
    """Evaluate each published checkpoint on the tasks of the run file, until Ctrl-C or SIGTERM."""
    name_process("evaluator")
    log_to_stderr("evaluator", LogStyle(log_format, directory.name, frozenset()))
    with StopSignal() as stop:
        if (directory / "run.yaml").is_file():
            with open_run(directory) as run:
                _require_tasks(run.directory)
                Evaluator(LocalRun(run.directory, run.database), stop, threads=threads).run(once=once)
            return
        remote = RemoteRun(_address(directory, coordinator), directory.absolute())
        say(f"This evaluator's key: {remote.key.public_hex}")
        say(f"The run's operator allows it: manyhands coordinator evaluators DIR add NAME {remote.key.public_hex}")
        Evaluator(remote, stop, threads=threads).run(once=once)


@app.command(epilog="Example: manyhands coordinator evaluators my-run add gpu-box 0f1e2d...")
def evaluators(
    directory: Path = DIRECTORY,
    action: EvaluatorsAction = typer.Argument(EvaluatorsAction.LIST, help="Action to perform."),
    name: str = typer.Argument("", help="Name of the evaluator."),
    key: str = typer.Argument("", help="The key that the evaluator prints when it starts."),
    as_json: bool = JSON,
) -> None:
    """List, add or remove evaluators on other machines that may report results."""
    with open_run(directory) as run:
        if action is EvaluatorsAction.ADD:
            with run.audit.act("evaluators-add", name, key[:16]):
                allow_evaluator(run.database, name, key, time.time())
        elif action is EvaluatorsAction.REMOVE:
            with run.audit.act("evaluators-remove", name):
                remove_evaluator(run.database, name)
        rows = allowed_evaluators(run.database)
    if as_json:
        say_json([{"name": name, "key": key, "added_at": added_at} for name, key, added_at in rows])
        return
    now = time.time()
    say_table(("evaluator", "key", "added"), [(name, key, format_age(added_at, now)) for name, key, added_at in rows])


def _require_tasks(directory: RunDirectory) -> None:
    if not directory.config.evaluation.tasks:
        raise ConfigError(f"{directory.path}/run.yaml names no tasks: add them under `evaluation`.")


def _address(directory: Path, given: str) -> str:
    """Store and return `given`, the coordinator's web address; if empty, return the stored one."""
    kept = directory / ADDRESS_FILE
    if given:
        if not is_web(given):
            raise ConfigError(
                f"`--coordinator` ({given!r:.80}) must be the run's web address: https://... or http://..."
            )
        make_private_directory(directory)
        write_private(kept, given.encode())
        return given
    if not kept.is_file():
        raise ConfigError(f"{directory} holds no run: give the web address of one elsewhere with `--coordinator`.")
    return kept.read_text(encoding="utf-8").strip()
