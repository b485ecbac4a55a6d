"""What the coordinator logs: lines for people or for programs, and nobody's address or secret in either."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from coordinator.run.logs import (
    JsonLines,
    LogFormat,
    LogStyle,
    TextLines,
    about_session,
    redacted,
    shorten_database_failure,
)
from coordinator.store.engine import open_engine
from peer.runtime.repeats import RepeatFilter
from tests.support.small_run import make_small_run

STYLE = LogStyle(LogFormat.JSON, "small", frozenset({"192.0.2.9"}))


@pytest.fixture
def log(written: io.StringIO) -> Iterator[logging.Logger]:
    """A logger of its own, as the keeper's at step 7."""
    logger = logging.Logger("coordinator.test")
    handler = logging.StreamHandler(written)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(JsonLines("keeper", STYLE, lambda: 7))
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_a_line_is_one_object_with_what_is_known(log: logging.Logger, written: io.StringIO) -> None:
    """Time with its zone, level, logger, message, process, run and step; an own step goes before the process's."""
    log.warning("two\nlines of %s", "text")
    log.info("another", extra={"step": 3})
    first, second = map(json.loads, written.getvalue().splitlines())
    assert first["time"].endswith("+00:00")
    assert {name: first[name] for name in first if name != "time"} == {
        "level": "warning",
        "logger": "coordinator.test",
        "message": "two\nlines of text",
        "process": "keeper",
        "run": "small",
        "step": 7,
    }
    assert second["step"] == 3


def test_levels_keep_their_names(log: logging.Logger, written: io.StringIO) -> None:
    """Though hivemind, which the keeper imports, gives them names of its own."""
    before = logging.getLevelName(logging.WARNING)
    logging.addLevelName(logging.WARNING, "ATTENTION")
    try:
        log.warning("mind this")
    finally:
        logging.addLevelName(logging.WARNING, before)
    assert json.loads(written.getvalue())["level"] == "warning"


async def test_a_session_is_named_in_its_threads_too(log: logging.Logger, written: io.StringIO) -> None:
    """What the rules log in threads on behalf of a session is of that session, and of no other."""

    async def serve(name: str) -> None:
        with about_session(name):
            await asyncio.to_thread(log.info, "for %s", name)

    await asyncio.gather(serve("a"), serve("b"))
    log.info("for nobody")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert sorted((line["message"], line.get("session")) for line in lines) == [
        ("for a", "a"),
        ("for b", "b"),
        ("for nobody", None),
    ]


def test_a_trace_is_part_of_the_object(log: logging.Logger, written: io.StringIO) -> None:
    """An exception does not spill over the following lines, nor does it tell whom it was about."""
    try:
        raise ConnectionError("lost ipv4:203.0.113.7:50123")
    except ConnectionError:
        log.exception("failed")
    (line,) = map(json.loads, written.getvalue().splitlines())
    assert "Traceback" in line["exception"]
    assert "203.0.113.7" not in line["exception"]


def test_a_long_trace_stays_one_object(log: logging.Logger, written: io.StringIO) -> None:
    """What a peer could make long is cut before it is written, not after."""
    try:
        raise ConnectionError("x" * 100_000)
    except ConnectionError:
        log.exception("failed")
    assert 0 < len(json.loads(written.getvalue())["exception"]) < 10_000


def test_a_line_whose_arguments_do_not_fit_fails_nobody(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """The handler tells of it, as others do."""
    log.info("%s and %s", "one")
    assert "not enough arguments" in capsys.readouterr().err


def test_a_database_that_fails_is_one_line(log: logging.Logger, written: io.StringIO, tmp_path: Path) -> None:
    """With what to do, and no trace of how it was asked; a mistake of ours keeps its trace."""
    log.handlers[0].addFilter(shorten_database_failure)
    (tmp_path / "damaged.db").write_bytes(b"no database at all" * 100)
    for name, statement in (("damaged.db", "SELECT 1"), ("sound.db", "SELECT nothing")):
        engine = open_engine(f"sqlite:///{tmp_path}/{name}", create=True)
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        except DBAPIError:
            log.exception("A poll failed")
        engine.dispose()
    damaged, mistake = map(json.loads, written.getvalue().splitlines())
    assert damaged["message"].startswith("A poll failed: The run's database is damaged (file is not a database):")
    assert "exception" not in damaged
    assert "Traceback" in mistake["exception"]


@pytest.mark.parametrize(
    "text",
    [
        "from 203.0.113.7:50123",
        "/ip4/203.0.113.7/tcp/31337/p2p/Qm",
        "ipv6:[2001:db8::7]:50123",
        "/ip6/2001:db8:0:0:0:0:0:7/udp/1/quic",
        "by fe80::203:113:7%eth0",
    ],
)
@pytest.mark.parametrize("secret", ["ABCDE-12345-FGHIJ-67890", "eyJhbGciOi.eyJzdWIi.c2ln", "hf_abcdefghijklmnop"])
def test_addresses_and_secrets_stay_out(text: str, secret: str) -> None:
    """Of IPv4, IPv6 and libp2p addresses nothing is left, nor of codes and tokens."""
    clean = redacted(f"{text} with {secret}")
    assert "<address>" in clean
    assert all(part not in clean for part in ("203.0.113.7", "2001:db8", "fe80", secret))


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22 07:34:23,123 INFO coordinator.keeper: step 12: group of 3",
        "listening on 127.0.0.1:8080 and [::]:8080",
        "tests/test_a.py::test_b, version 1.2.3",
        "announced as 192.0.2.9:31337",
    ],
)
def test_what_is_no_volunteers_address_stays(text: str) -> None:
    """Times, versions, this machine and the run's own hosts can be read."""
    assert redacted(text, STYLE.own_hosts) == text


def test_text_lines_are_redacted_alike() -> None:
    """People's lines have the same rules."""
    record = logging.LogRecord("x", logging.INFO, "", 0, "a call of %s", ("203.0.113.7",), None)
    assert TextLines(STYLE).format(record).endswith("INFO x: a call of <address>")


@pytest.mark.usefixtures("forked")
def test_serve_logs_objects_only(tmp_path: Path) -> None:
    """With `--log-format json` every line of every process is one object, from the start to the orderly end."""
    run = make_small_run(tmp_path)
    command = [sys.executable, "-m", "manyhands", "coordinator", "serve", str(run.path), "--service-only"]
    with subprocess.Popen(
        [*command, "--log-format", "json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["message"].startswith("Dashboard:"):
                process.terminate()
    assert process.returncode == 0
    assert {"time", "level", "logger", "message", "process", "run"} <= set.intersection(*map(set, lines))
    assert {line["run"] for line in lines} == {"small"}
    assert str(run.join_link) in " ".join(line["message"] for line in lines)
    assert lines[-1]["message"] == "Stopped in order."
