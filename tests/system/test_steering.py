"""An operator steers a run while everybody trains: goes back to a checkpoint, pauses, changes, ends.

A coordinator with its keeper and two volunteers train steps of about two seconds.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

from sqlalchemy import select

from coordinator.checkpoints.manifest import stored_steps
from coordinator.checkpoints.rewind import UNDONE
from coordinator.ledger.sessions import online_sessions
from coordinator.ledger.steering import LEAD_STEPS
from coordinator.store.models import Step
from tests.support.commands import NAMES, Site
from tests.support.small_run import TARGET_BATCH_SIZE
from tests.support.waiting import PATIENCE_S

NEWS = "The run moves on Sunday."


def steer(site: Site, command: str, *arguments: str) -> Any:
    """A command, as an operator types it; what it says to scripts."""
    line = [sys.executable, "-m", "manyhands", "coordinator", command, str(site.run.path), *arguments, "--json"]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def all_told(site: Site, words: str) -> bool:
    """Whether every volunteer's terminal shows this."""
    return all(words in (site.base / f"{name}.log").read_text() for name in NAMES)


def pending_reports(site: Site, name: str) -> int:
    """Of a volunteer, those that the coordinator has not taken."""
    with closing(sqlite3.connect(site.base / name / "outbox.sqlite")) as outbox:
        return int(outbox.execute("SELECT COUNT(*) FROM reports").fetchone()[0])


def target_batch_sizes(site: Site, after: int) -> list[int]:
    """Of the steps that were taken."""
    with site.database() as session:
        return list(session.scalars(select(Step.target_batch_size).where(Step.step > after).order_by(Step.step)))


def test_an_operator_steers_a_live_run(site: Site) -> None:
    """All return to a checkpoint, wait, change at the same step and leave in order, by the same processes."""
    serve = site.serve()
    volunteers = [site.join(name, first=True) for name in NAMES]
    checkpoints = site.run.checkpoints_dir
    site.wait_until("two checkpoints are stored", lambda: len(stored_steps(checkpoints)) >= 2)
    earlier, later = stored_steps(checkpoints)[:2]
    site.wait_for_step(later + 1)

    done = steer(site, "rewind", str(earlier), "--yes")
    assert (done["step"], done["era"]) == (earlier, 1)
    assert {row["member"] for row in done["contributors"]} == set(NAMES)
    site.wait_until(
        "both volunteers have reported a step after the change",
        lambda: [row for row in site.ledger.steps(after=earlier) if row.devices == len(NAMES)] != [],
    )
    site.wait_until("a later checkpoint is stored", lambda: max(stored_steps(checkpoints)) >= later)
    assert site.ledger.current_era() == 1
    assert (checkpoints / UNDONE / f"step-{later:08d}").is_dir()

    steer(site, "announce", NEWS)
    steer(site, "pause")
    site.wait_until(
        "both volunteers know of the pause and the news",
        lambda: all_told(site, "The operator has paused the run") and all_told(site, NEWS),
    )
    site.wait_until(
        "both volunteers are shown as paused",
        lambda: [each.state for each in online_sessions(site.database, time.time())] == ["paused"] * len(NAMES),
    )
    site.wait_until("every report has arrived", lambda: not any(pending_reports(site, name) for name in NAMES))
    site.assert_ledger_is_right()
    reached = site.ledger.last_step()
    steer(site, "change", "--target-batch-size", str(TARGET_BATCH_SIZE // 2), "--learning-rate-scale", "0.5")
    last = reached + LEAD_STEPS + 2
    steer(site, "stop", str(last))
    steer(site, "resume")

    assert [volunteer.process.wait(timeout=PATIENCE_S) for volunteer in volunteers] == [0, 0]
    assert all_told(site, f"the run has ended with step {last}")
    site.wait_until("the last step's checkpoint is stored", lambda: last in stored_steps(checkpoints))
    usual = [TARGET_BATCH_SIZE] * LEAD_STEPS
    assert target_batch_sizes(site, after=reached) == [*usual, *[TARGET_BATCH_SIZE // 2] * 2]
    assert serve.process.poll() is None
    lines = (site.base / "serve.log").read_text().splitlines()
    assert [line for line in lines if "suspicious" in line] == []
