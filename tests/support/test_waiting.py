"""Waiting in tests: for an event, and with its name and the logs when it never comes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import waiting
from tests.support.waiting import eventually, wait_until

TESTS = Path(__file__).parents[1]
WAITING = {"wait", "wait_for", "join", "result", "poll", "settimeout", "communicate"}
LEAST_PATIENCE_S = 300.0  # a machine that is busy ten times over is no failure


def test_it_returns_as_soon_as_the_event_has_come() -> None:
    """The event's question is asked again and again."""
    answers = iter([False, False, True])
    wait_until("the third answer has come", lambda: next(answers))
    assert next(answers, None) is None


async def test_an_event_that_never_comes_is_named_with_the_ends_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure says what was waited for and what the processes said last."""
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.0)
    log = tmp_path / "keeper.log"
    log.write_text("an old line\n" + "x" * waiting.TAIL_CHARACTERS + "\nno space left\n")
    with pytest.raises(AssertionError, match=r"waited 0 s until the keeper is up\n--- .*keeper\.log") as failed:
        wait_until("the keeper is up", lambda: False, log)
    assert str(failed.value).endswith("no space left\n")
    assert "an old line" not in str(failed.value)
    with pytest.raises(AssertionError, match=r"waited 0 s until the task is done$"):
        await eventually("the task is done", lambda: False)


def test_patience_outlasts_a_busy_machine_and_ends_before_pytests_own(pytestconfig: pytest.Config) -> None:
    """pytest prints all threads' stacks only after the waiting test has said what it waited for."""
    assert LEAST_PATIENCE_S <= waiting.PATIENCE_S < float(pytestconfig.getini("faulthandler_timeout"))


def limits_in(source: str) -> Iterator[tuple[int, float]]:
    """The line and the number of each limit that is written as a number."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
        for value in [*given, *(call.args if name in WAITING else [])]:
            if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
                yield call.lineno, value.value


def test_no_test_has_a_limit_of_its_own() -> None:
    """Tests have no limit of their own that is longer than a moment."""
    found = [
        f"{path.relative_to(TESTS)}:{line} waits {limit:g} s: let it be PATIENCE_S"
        for path in sorted(TESTS.rglob("*.py"))
        for line, limit in limits_in(path.read_text())
        if 1 < limit < waiting.PATIENCE_S
    ]
    assert found == []
