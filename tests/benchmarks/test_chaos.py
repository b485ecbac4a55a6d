"""The benchmark of faults: real processes that fail, and SQL that notices what should not be in a ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import Engine, create_engine, text

from benchmarks.trust.chaos import longest_wait, main
from benchmarks.trust.chaos_audit import audit, losses
from benchmarks.trust.chaos_site import Kept, Told
from benchmarks.trust.offset_clock import OffsetClock
from coordinator.ledger.ledger import Ledger
from coordinator.store.engine import Database
from tests.support.commands import Command
from tests.support.ledgers import CONFIG, add_members, confirm, record
from tests.support.postgres import new_database
from tests.support.programs import require
from tests.support.receipts import key_of

PEER_IDS = {"ada": key_of("ada-1").peer_id, "bob": key_of("bob-1").peer_id}
YEAR_S = 365 * 24 * 3600.0
TOLD = [Told("ada", 1.0, 0, 1, 60, 5.0), Told("bob", 1.1, 0, 1, 40, 5.0), Told("ada", 2.0, 0, 2, 100, 5.0)]


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A ledger on PostgreSQL with two steps, of which the keeper has received all."""
    with new_database() as address:
        made = create_engine(address)
        database = Database(made)
        add_members(database)
        ledger = Ledger(database, CONFIG)
        for told in TOLD:
            record(ledger, f"{told.name}-1", told.step, samples=told.samples)
        confirm(ledger, 1, ada_1=60, bob_1=40)
        confirm(ledger, 2, ada_1=100)
        yield made
        made.dispose()


def wrong(engine: Engine, told: list[Told] = TOLD) -> list[str]:
    """The questions whose answers are not right."""
    return [check.question for check in audit(engine, told, PEER_IDS) if not check.holds]


def test_a_right_ledger_passes(engine: Engine) -> None:
    """Every question is answered right, and nothing is lost."""
    assert wrong(engine) == []
    assert losses(engine).samples == 0


@pytest.mark.parametrize(
    ("statement", "question"),
    [
        ("DELETE FROM steps WHERE step = 1", "steps missing between the first and the last"),
        ("UPDATE steps SET samples = 200 WHERE step = 2", "steps whose samples are not the sum of their reports"),
        ("DELETE FROM steps WHERE step = 2", "steps whose samples are not the sum of their reports"),
        ("UPDATE reports SET counted = 101 WHERE step = 2", "reports that count for more than they claim"),
        (
            "UPDATE receipts SET samples = '{\"0\": 50}' WHERE step = 1",
            "reports that count for more than the keeper received",
        ),
        (
            "UPDATE daily_shares SET counted = 2 * counted",
            "devices whose daily sums are not the sum of their reports",
        ),
        ("INSERT INTO eras VALUES (1, 1, 0)", "steps of an era that a later era has undone"),
        ("UPDATE devices SET quarantined_at = 1 WHERE number = 0", "devices quarantined or revoked"),
        ("DELETE FROM reports WHERE step = 2", "steps that a volunteer told of and the ledger does not have"),
        (
            "UPDATE reports SET samples = 99, counted = 99 WHERE step = 2",
            "steps that the ledger has with other samples than a volunteer told",
        ),
    ],
)
def test_what_is_wrong_is_noticed(engine: Engine, statement: str, question: str) -> None:
    """By the question that asks for it."""
    with engine.begin() as connection:
        connection.execute(text(statement))
    assert question in wrong(engine)


def test_samples_counted_twice_are_noticed(engine: Engine) -> None:
    """Two reports of one step by one device count, of two eras of which none was undone."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE again AS SELECT * FROM reports WHERE step = 2"))
        connection.execute(text("UPDATE again SET id = 1000, seq = 7, era = 1"))
        connection.execute(text("INSERT INTO reports SELECT * FROM again"))
    assert "samples counted twice: a device has two reports of a step" in wrong(engine)


@pytest.mark.parametrize(("exit_code", "own_ends"), [(18, [18]), (0, [0]), (-signal.SIGKILL, []), (None, [])])
def test_command_that_ended_although_nothing_killed_it_is_noticed(exit_code: int | None, own_ends: list[int]) -> None:
    """Its exit code is kept once, though the command is started again; a kill is the benchmark's own doing."""
    process = SimpleNamespace(poll=lambda: exit_code)
    command = cast(Command, SimpleNamespace(process=process, kill=lambda: None))
    kept = Kept(lambda: command, command)
    kept.tend()
    kept.tend()
    assert kept.own_ends == own_ends


def test_the_longest_wait_begins_with_the_step_before_the_fault() -> None:
    """It may as well be the time that has passed since the last step."""
    assert longest_wait([1.0, 2.0, 9.0], began=4.0, ended=10.0) == 7.0
    assert longest_wait([1.0, 2.0], began=4.0, ended=10.0) == 8.0
    assert longest_wait([], began=4.0, ended=5.0) == 1.0


def test_clock_that_is_set_back_leaves_sleeps_and_waits_alone(tmp_path: Path) -> None:
    """A program sees the wall clock go back under it, and goes on sleeping and waiting by the monotonic one."""
    require("compiler")
    clock = OffsetClock(tmp_path)
    code = """if True:
        import sys, threading, time
        for _ in sys.stdin:
            time.sleep(0.001)
            assert not threading.Event().wait(0.001)
            print(time.time(), time.monotonic(), flush=True)"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin
        assert program.stdout
        shown = []
        for seconds in (0, -YEAR_S):
            clock.set(seconds)
            program.stdin.write("now\n")
            program.stdin.flush()
            shown.append([float(word) for word in program.stdout.readline().split()])
        program.stdin.close()
    (wall, monotonic), (wall_then, monotonic_then) = shown
    assert wall_then < wall - YEAR_S / 2
    assert monotonic_then > monotonic


def test_a_fault_that_does_not_exist_is_refused() -> None:
    """With the names of those that do."""
    with pytest.raises(SystemExit, match="SIGKILL: the keeper"):
        main(["--only", "earthquake"])


def test_a_run_survives_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """All processes real: the keeper's swarm node is killed.

    The run goes on, the ledger is right, and nobody is named.
    """
    with suppress(SystemExit):  # what is wrong is in the output
        main(["--times", "1", "--seed", "1", "--json", "--only", "the keeper's swarm node"])
    shown = json.loads(capsys.readouterr().out)
    assert {row["times"] for row in shown["rows"]} == {1}
    assert [check["question"] for check in shown["checks"] if not check["holds"]] == []
    assert shown["names"] == []
