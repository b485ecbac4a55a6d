"""Python processes that need not import torch: forked from an interpreter that has, they go on as if begun afresh.

An import of torch, hivemind and transformers takes a processor five seconds; a command starts several processes, and a
test several commands. Within `forking_python`, `subprocess` and `multiprocessing`'s "spawn" start `python` (with `-m`,
`-c` or a script, and with `-I` before it) by asking a *nursery*, a process of one thread that has everything imported,
and forks. Each process that it starts has a nursery of its own, forked before anything else, for the processes that it
starts in its turn.

The new process is a child of the process that asked, and all but its imports is a fresh interpreter's. (The nursery's
fork forks again and ends; meanwhile the process that asked adopts the orphans below it.) Imports that fail, and
variables that are read at import, need a fresh interpreter: all processes within `fresh_python` have one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import multiprocessing.util
import os
import pickle
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PRELOADED = (
    "torch",
    "hivemind",
    "peer.training.worker",
    "coordinator.keeper.opening",
    "coordinator.service.service",
    "coordinator.service.supervisor",
    "coordinator.cli.main",
    "coordinator.cli.members",
    "coordinator.cli.serve",
    "peer.cli.join",
    "peer.agent.agent",
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STANDARD = (0, 1, 2)
_ISOLATED = "-I"
_NUMBER = struct.Struct("=q")
_MOST_FILES = 200
_FRESH = subprocess.Popen._execute_child, multiprocessing.util.spawnv_passfds  # type: ignore[attr-defined]


@contextlib.contextmanager
def forking_python() -> Iterator[None]:
    """Fork the Python processes that this one starts while the block lasts."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch's threads a fork would have none
    with _starting_python(*_forked_by(_first_nursery())):
        yield


@contextlib.contextmanager
def fresh_python() -> Iterator[None]:
    """Start Python processes with a fresh interpreter while the block lasts, and so all that they start."""
    with _starting_python(*_FRESH):
        yield


@dataclass(frozen=True)
class Command:
    """The arguments of `python`, and where it is to run."""

    arguments: Sequence[str]
    files: Sequence[int]  # the numbers under which it has the files that come with the command
    environment: Mapping[str, str]
    directory: str
    new_session: bool
    ignores_interrupts: bool
    begin: Callable[[], object] | None  # is called first; what it changes holds for what the process starts, too


class Nursery:
    """This process's nursery, which is a child of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._asking = threading.Lock()
        self._asker = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process may ask; one that it has forked may not, for it could not adopt."""
        return self._asker == os.getpid()

    def start(
        self,
        arguments: Sequence[str],
        files: Mapping[int, int],
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        new_session: bool = False,
        begin: Callable[[], object] | None = None,
    ) -> int:
        """The id of a new child, which has our `files` under the numbers that are their keys."""
        command = Command(
            arguments,
            tuple(files),
            dict(os.environ if environment is None else environment),
            os.path.abspath(directory or "."),  # noqa: PTH100 - a text
            new_session,
            signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            begin,
        )
        text = pickle.dumps(command)
        with self._asking:
            _tell_kernel(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._connection, [_NUMBER.pack(len(text))], list(files.values()))
                self._connection.sendall(text)
                return int(_NUMBER.unpack(_receive(self._connection, _NUMBER.size))[0])
            finally:
                _tell_kernel(_PR_SET_CHILD_SUBREAPER, 0)


def main(connection: socket.socket, ended: list[int]) -> None:
    """The first nursery: import everything, then fork at each command, until nobody is left who could ask.

    It returns in each new process, when that has run its command; `ended` gets its exit code.
    """
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # the process that needs it will say so
            importlib.import_module(name)
    threads = os.listdir("/proc/self/task")  # noqa: PTH208
    assert len(threads) == 1, "an import has started threads, which a fork would not have"
    gc.collect()
    gc.freeze()  # else the first collection in each process would write to all that they share
    connection.sendall(b"\0")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        command, files = _wait_until_born(connection)
        ours, connection = socket.socketpair()
        parent = os.getpid()
        if os.fork() != 0:
            connection.close()
            break
        _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        ours.close()
        for file in files:
            os.close(file)
    _settle(command, files, ours)
    try:
        _run(command.arguments)
        ended.append(0)
    except SystemExit as exit_:
        code = 0 if exit_.code is None else exit_.code
        ended.append(code & 0xFF if isinstance(code, int) else 1)
        raise
    except Exception:
        ended.append(1)
        raise


def _wait_until_born(connection: socket.socket) -> tuple[Command, Sequence[int]]:
    """Fork at each command; returns in the new process, once it is the child of the process that asked."""
    while True:
        size, files, _, _ = socket.recv_fds(connection, _NUMBER.size, _MOST_FILES)
        if not size:
            os._exit(0)
        command = pickle.loads(_receive(connection, _NUMBER.unpack(size)[0]))  # noqa: S301 - from our parent
        born, adopted = os.pipe(), os.pipe()
        if (forked := os.fork()) == 0:
            if os.fork() != 0:
                os._exit(0)
            if command.new_session:
                os.setsid()  # before who asked knows the id, and may send a signal to the process's group
            os.write(born[1], _NUMBER.pack(os.getpid()))
            connection.close()
            for end in (*born, adopted[1]):
                os.close(end)
            os.read(adopted[0], 1)  # until it is closed
            os.close(adopted[0])
            if command.begin is not None:
                command.begin()
            return command, files
        os.waitpid(forked, 0)
        connection.sendall(os.read(born[0], _NUMBER.size))
        for file in (*born, *adopted, *files):
            os.close(file)


def _settle(command: Command, files: Sequence[int], connection: socket.socket) -> None:
    """Be as a fresh process is, with nothing of what those before have in common but the imports."""
    above = max((*command.files, *_STANDARD)) + 1
    connection = socket.socket(fileno=_moved(connection.detach(), above))
    for number, file in zip(command.files, [_moved(file, above) for file in files], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(command.environment)
    os.chdir(command.directory)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    interrupted = signal.SIG_IGN if command.ignores_interrupts else signal.default_int_handler
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    tempfile.tempdir = None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # `random` does by itself, and torch begins with the same seed always
    if "hivemind" in sys.modules:
        sys.modules["hivemind"].utils.MPFuture.reset_backend()  # its locks are made at import, and shared
    nursery = Nursery(connection)
    subprocess.Popen._execute_child, multiprocessing.util.spawnv_passfds = _forked_by(nursery)  # type: ignore


def _moved(file: int, above: int) -> int:
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(file)
    return moved


def _run(arguments: Sequence[str]) -> None:
    """As `python` does with these arguments."""
    isolated = arguments[0] == _ISOLATED
    arguments = arguments[isolated:]
    option, *sys.argv = arguments if arguments[0] in {"-m", "-c"} else ("", *arguments)
    if not isolated:
        folder = {"-c": "", "-m": os.getcwd()}.get(option, str(Path(sys.argv[0]).resolve().parent))  # noqa: PTH109
        sys.path.insert(0, folder)
    if option == "-c":
        code, sys.argv[0] = sys.argv[0], option
        main_module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main_module.__dict__)  # noqa: S102
    elif option == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _forked_by(nursery: Nursery) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`subprocess` and `multiprocessing` start processes by one function each; here are both."""

    def execute_child(
        process: Any,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        *rest: Any,
    ) -> None:
        pipes, (_, gid, gids, uid, umask, new_session, *group) = rest[:6], rest[6:]
        words = _python_arguments(args)
        usual = (gid, gids, uid, umask) == (None, None, None, -1) and group in ([], [-1])
        if shell or executable or not words or not usual or not nursery.is_ours:
            start = _FRESH[0]
            first = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell)
            start(process, *first, *rest)
            return
        ours = (pipes[0], pipes[3], pipes[5])  # its standard input, output and error, or -1: the same as ours
        files = {number: number if file == -1 else file for number, file in zip(_STANDARD, ours, strict=True)}
        files |= {file: file for file in pass_fds}
        process.pid = nursery.start(words, files, env, cwd, new_session, preexec_fn)
        process._child_created = True
        process._close_pipe_fds(*pipes)

    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> int:
        words = args[args.index("-c") :] if "-c" in args else ()  # behind our own interpreter's options
        if not words or not nursery.is_ours:
            return int(_FRESH[1](path, args, passfds))
        return nursery.start(words, {file: file for file in (*_STANDARD, *passfds)})

    return execute_child, spawnv_passfds


def _python_arguments(args: Any) -> Sequence[str]:
    """Behind the interpreter's name, unless another program is to run, or this one with options but `-I`."""
    if isinstance(args, (str, bytes, os.PathLike)):
        return ()
    words = [os.fsdecode(word) for word in args]
    first = words[1:2] if words[1:2] != [_ISOLATED] else words[2:3]
    if words[:1] == [sys.executable] and first and (first[0] in {"-m", "-c"} or first[0].endswith(".py")):
        return words[1:]
    return ()


@contextlib.contextmanager
def _starting_python(execute_child: Callable[..., Any], spawnv_passfds: Callable[..., Any]) -> Iterator[None]:
    before = subprocess.Popen._execute_child, multiprocessing.util.spawnv_passfds  # type: ignore[attr-defined]
    subprocess.Popen._execute_child, multiprocessing.util.spawnv_passfds = execute_child, spawnv_passfds  # type: ignore
    try:
        yield
    finally:
        subprocess.Popen._execute_child, multiprocessing.util.spawnv_passfds = before  # type: ignore


# The first exit function is called last. It spares a process to take apart what it has in common with others: to write
# to all of that takes longer than to begin with it.
_NURSERY = """
import atexit, os, socket, sys
ended = []
def leave():
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    if ended:
        os._exit(ended[0])
atexit.register(leave)
sys.path[:] = {path}
from tests.support.zygote import main
main(socket.socket(fileno={file}), ended)
"""


@functools.cache
def _first_nursery() -> Nursery:
    """The test process's own, begun when it is first needed; it ends with the test process."""
    ours, theirs = socket.socketpair()
    path = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100
    with fresh_python(), theirs, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY.format(path=path, file=theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        theirs.close()
        if not ours.recv(1):
            said.seek(0)
            raise RuntimeError(said.read().decode())

    def end() -> None:
        process.kill()  # it may wait for others that have forked from this one, and could not ask anyway
        process.wait()
        ours.close()

    atexit.register(end)
    return Nursery(ours)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise EOFError("the other side is gone")
        received += part
    return received


def _tell_kernel(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
