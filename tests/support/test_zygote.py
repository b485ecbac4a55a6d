"""Forked Python processes: each is like one with a fresh interpreter, but for the imports."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.waiting import PATIENCE_S
from tests.support.zygote import forking_python, fresh_python

TELL = """
import json, os, random, sys, numpy
print(json.dumps({
    "imported": "torch" in sys.modules, "arguments": sys.argv, "parent": os.getppid(), "group": os.getpgrp(),
    "id": os.getpid(), "variable": os.environ.get("ONLY_HERE"), "folder": os.getcwd(), "input": sys.stdin.read(),
    "chance": [random.random(), numpy.random.random()],
}))
"""


@pytest.fixture(autouse=True)
def forking() -> Iterator[None]:
    with forking_python():
        yield


def told(*arguments: str, **options: Any) -> dict[str, Any]:
    """The facts that a process reports of itself."""
    command = [sys.executable, "-c", TELL, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, input="a line\n", **options)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_a_process_is_our_child_and_has_what_it_was_given(tmp_path: Path) -> None:
    """Arguments, input, output, environment, folder, parent and session are as `subprocess` was asked."""
    facts = told("one", "two", cwd=tmp_path, env={**os.environ, "ONLY_HERE": "yes"}, start_new_session=True)
    assert facts["imported"]
    assert facts["arguments"] == ["-c", "one", "two"]
    assert (facts["variable"], facts["folder"], facts["input"]) == ("yes", str(tmp_path), "a line\n")
    assert facts["parent"] == os.getpid()
    assert facts["group"] == facts["id"]


def test_a_new_session_has_begun_when_its_leader_is_known() -> None:
    """Who sends a signal to its group at once would else send it to the group of the test itself."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    assert os.getpgid(process.pid) == process.pid
    process.communicate(b"a line\n", timeout=PATIENCE_S)


def test_processes_draw_their_own_numbers() -> None:
    """As those do that begin with a seed from the system."""
    first, second = told()["chance"], told()["chance"]
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_fresh_interpreter_is_had_on_request() -> None:
    """It has imported nothing of ours."""
    with fresh_python():
        assert not told()["imported"]


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(11)", 11, ""),
        ("raise SystemExit('a sentence')", 1, "a sentence"),
        ("raise KeyError('nobody foresaw it')", 1, "KeyError: 'nobody foresaw it'"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'the last word')", 0, "the last word"),
        ("import threading; threading.Timer(0.1, print, ['later']).start()", 0, "later"),
    ],
)
def test_a_process_ends_as_any_interpreter(code: str, exit_code: int, words: str) -> None:
    """With the exit code, what it has to say, its exit functions and its threads."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == exit_code
    assert done.stdout.strip().endswith(words)


def test_a_script_and_a_module_are_run(tmp_path: Path) -> None:
    """A module by its name; a script finds what lies beside it."""
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    (tmp_path / "script.py").write_text("import sys, beside\nprint(__name__, sys.argv[1], beside.WORD)")
    for command in (["-m", "script", "x"], [str(tmp_path / "script.py"), "x"]):
        done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout == "__main__ x found\n"


def test_an_isolated_script_is_run(tmp_path: Path) -> None:
    """It finds nothing that lies beside it."""
    (tmp_path / "beside.py").touch()
    code = "import importlib.util as i, sys\nprint(i.find_spec('beside'), sys.argv[1:], 'torch' in sys.modules)"
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, "-I", str(tmp_path / "script.py"), "x"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "None ['x'] True\n"


def test_nothing_is_left_of_a_killed_process() -> None:
    """The nursery of a process ends with it."""
    process = psutil.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    others = process.children(recursive=True)
    process.kill()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert psutil.wait_procs(others, timeout=PATIENCE_S)[1] == []


def say_who(pipe: Connection) -> None:
    """In a spawned process; 7 is its exit code."""
    pipe.send(("torch" in sys.modules, os.getpid(), os.getppid()))
    sys.exit(7)


def spawn_another(pipe: Connection) -> None:
    """In a spawned process, which spawns one in its turn."""
    child = multiprocessing.get_context("spawn").Process(target=say_who, args=(pipe,))
    child.start()
    child.join()
    pipe.send((child.exitcode, child.pid, os.getpid()))


def test_spawned_processes_spawn_others() -> None:
    """Each is its parent's child, and its exit code is known to it."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=spawn_another, args=(theirs,))
    process.start()
    theirs.close()
    imported, child, parent = ours.recv()
    assert (imported, parent) == (True, process.pid)
    assert ours.recv() == (7, child, process.pid)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    process.close()
    ours.close()


def test_interrupts_are_ignored_where_the_parent_ignores_them() -> None:
    """A child that begins while they are ignored goes on ignoring them, as through an exec."""
    code = "print('up', flush=True); print(input())"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(b"still here\n", timeout=PATIENCE_S)[0] == b"still here\n"
