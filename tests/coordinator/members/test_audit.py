"""The audit log: every act of administration has its line, who did it included."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError
from coordinator.cli.main import app
from coordinator.context.open_run import open_run
from coordinator.members.audit import AuditLog, audit_log, os_actor
from tests.support.small_run import make_small_run


def test_commands_are_recorded_with_the_systems_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says, the user is the process's; invite, revoke, display name and erasure are there."""
    monkeypatch.setenv("LOGNAME", "somebody-else")
    run = str(make_small_run(tmp_path).path)
    runner = CliRunner()
    for words in (
        ["invite", run, "ada"],
        ["display-name", run, "ada", "Owl"],
        ["hide-name", run, "ada"],
        ["hide-name", run, "ada", "--show"],
        ["revoke", run, "ada", "--reason", "x"],
    ):
        assert runner.invoke(app, words).exit_code == 0
    rows = json.loads(runner.invoke(app, ["audit", run, "--json"]).stdout)
    assert {row["actor"] for row in rows} == {f"os:{pwd.getpwuid(os.getuid()).pw_name}"}
    assert [(row["act"], row["subject"], row["detail"]) for row in rows] == [
        ("revoke", "ada", "x"),
        ("show-name", "ada", ""),
        ("hide-name", "ada", ""),
        ("display-name", "ada", "Owl"),
        ("invite", "ada", "trainer, 1 code(s), 7 days"),
    ]
    assert "display-name" in runner.invoke(app, ["audit", run, "--limit", "4"]).stdout


def test_what_is_refused_is_recorded_with_why(tmp_path: Path) -> None:
    """An act that fails is no secret, and no success."""
    with open_run(make_small_run(tmp_path).path) as run:
        with pytest.raises(ConfigError):
            run.administration.revoke("nobody", "")
        (row,) = audit_log(run.database, 10)
    assert row.detail.startswith("refused: No member is called 'nobody'")


def test_a_user_without_a_name_is_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as users that no table names."""
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    assert os_actor() == "os:uid 987654"


def test_long_texts_are_cut(tmp_path: Path) -> None:
    """A line has bounds, whoever wrote it."""
    with open_run(make_small_run(tmp_path).path) as run:
        AuditLog(run.database, "os:me").record("revoke", "x" * 1000, "y" * 5000)
        (row,) = audit_log(run.database, 10)
    assert (len(row.subject), len(row.detail)) == (128, 500)
