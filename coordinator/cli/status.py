"""The operator's commands that inspect a run: `status` and `doctor`."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import asdict
from pathlib import Path

import typer

from coordinator.checkpoints.validations import validations
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.ledger.sessions import online_sessions
from coordinator.ledger.speed import time_left_s
from coordinator.ledger.steering import read_helm
from coordinator.publishing.publications import newest_at
from coordinator.run.directory import RunDirectory
from coordinator.service.doctor import conclude, stages
from coordinator.statistics.alarms import MODEL_KINDS, AlarmRow, raised_alarms
from coordinator.statistics.return_point import read_return_point
from peer.config.phases import phase_at
from peer.doctor.display import CheckupDisplay, examine, open_display
from peer.runtime.console import say, say_facts, say_json, say_table

app = typer.Typer()
VALIDATION_FACTS = ("step", "loss", "perplexity", "accuracy", "sop_accuracy", "detection_accuracy", "detection_f1")


@app.command(epilog="Example: manyhands coordinator doctor my-run")
def doctor(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Check the run's files and its machine: keys, permissions, ports, clock, disk, public address."""
    asyncio.run(_examine(RunDirectory.open(directory), open_display(as_json)))


async def _examine(run: RunDirectory, display: CheckupDisplay) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's handler would wait for the checks to end
    await examine(stages(time.time()), run, display, conclude)


@app.command(epilog="Example: manyhands coordinator status my-run")
def status(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Show the state of a run: progress, loss, online members, the newest checkpoint."""
    now = time.time()
    with open_run(directory) as run:
        facts = _facts(run, now)
        online = online_sessions(run.database, now)
        alarms = [_alarm(run, row) for row in raised_alarms(run.database)]
        places = newest_at(run.database, [place.to for place in run.directory.settings.publications])
    if as_json:
        online_facts = [asdict(session) for session in online]
        say_json({**facts, "alarms": alarms, "publications": [asdict(row) for row in places], "online": online_facts})
        return
    say_facts({name.replace("_", " "): value for name, value in facts.items()})
    for alarm in alarms:
        say()
        say(f"Alarm {alarm['kind']} since step {alarm['step']}: {alarm['detail']}. {alarm['advice'] or ''}".rstrip())
    if places:
        say()
        rows = [(row.place, row.step, row.location or None, row.error or None) for row in places]
        say_table(("published to", "step", "where", "trouble"), rows)
    if online:
        say()
        say_table(
            ("online", "state", "step", "samples/s", "hardware"),
            [(row.member, row.state, row.step, row.samples_per_second, row.hardware) for row in online],
        )


def _alarm(run: OpenRun, row: AlarmRow) -> dict[str, object]:
    """Return an alarm's fields; for alarms about the model, add a checkpoint to return to."""
    point = read_return_point(run.database, row.step) if row.kind in MODEL_KINDS else None
    return {
        **asdict(row),
        "return_to_step": None if point is None else point.step,
        "advice": None if point is None else point.advice(run.directory.path),
    }


def _facts(run: OpenRun, now: float) -> dict[str, object]:
    """Return the status of a run as fields by name, in display order."""
    swarm = read_swarm_status(run.database)
    last_step = run.ledger.last_step()
    last = run.ledger.steps(after=last_step - 1)
    newest = checkpoints(run.database)[:1]
    validation = validations(run.database)[-1:]
    step = last_step if swarm is None else swarm.step
    phase, helm = phase_at(run.directory.config, step), read_helm(run.database)
    orders, averaging = helm.at(step), helm.averaging_after(step, run.directory.config)
    return {
        "run": run.directory.config.run.name,
        "step": step,
        "phase": phase.line,
        "loss": last[-1].loss if last else None,
        "samples_accumulated": None if swarm is None else swarm.samples_accumulated,
        "target_batch_size": phase.target_batch_size,
        "peers": None if swarm is None else swarm.peers,
        "samples_per_second": None if swarm is None else swarm.samples_per_second,
        "time_left_s": time_left_s(run.directory.config, helm, swarm),
        "learning_rate_scale": orders.learning_rate_scale,
        "compression": averaging.wire_format,
        "powersgd_rank": averaging.powersgd_rank,
        "compression_choice": (helm.why or "not made yet") if helm.chooses(run.directory.config) else None,
        "keeper_silent_s": None if swarm is None else round(max(0.0, now - swarm.updated_at), 1),
        "checkpoint": str(run.directory.checkpoint_dir(newest[0].step)) if newest else None,
        **{f"validation_{name}": validation[0].facts[name] if validation else None for name in VALIDATION_FACTS},
        "join_link": str(run.directory.join_link),
    }
