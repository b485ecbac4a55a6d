"""The agent's child processes, each of which runs a worker or a device test and sends events.

Before joining, a child process tests the training device, because its driver may hang or crash.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Generic, TypeVar

from auth.errors import ConfigError
from peer.limits.usage import cache_within
from peer.reporting.messages import (
    AgentMessage,
    DeviceTried,
    LineInDoubt,
    Ready,
    Stop,
    Transferred,
    TrialPlan,
    WorkerMessage,
    WorkerPlan,
)
from peer.runtime.devices import may_have_accelerator
from peer.runtime.processes import end_group, has_ended, name_process, prepare_children

POLL_S = 0.1
KILLED_S = 5.0  # time limit for a killed process to end; a hung driver may delay it
Plan = TypeVar("Plan")
Message = TypeVar("Message")
ChildMain = Callable[[Plan, Connection, int], None]
WorkerMain = ChildMain[WorkerPlan]
TRIAL_S = 180.0  # time limit of a device test, which may load PyTorch from a slow disk and start many GPUs
END_GRACE_S = 5.0
LOG_FILE = "device.log"  # name of the file in the device's data folder
TrialMain = ChildMain[TrialPlan]


def default_worker_main(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """Run the training worker; unit tests pass another `worker_main` to `Agent`."""
    name_process("worker")
    cache_within(Path(plan.data_dir), os.environ)
    from peer.training.worker import run_worker  # imports torch and hivemind

    run_worker(plan, pipe, parent_pid)


class Watchdog:
    """A watchdog that measures the time since a worker's last sign of life, to detect a hang.

    Every message is a sign of life except `LineInDoubt`, which comes from a separate thread, and
    traffic reports (`Transferred`), because the node replies even if training hangs. Before the
    worker is ready, and while it waits for another peer's state, a report of new traffic counts.
    While it waits for the agent to download a checkpoint, any traffic report counts.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float]) -> None:
        self._patience_s, self._clock = patience_s, clock
        self._heard_at, self._ready, self._bytes = clock(), False, Transferred(0, 0)

    @property
    def left_s(self) -> float:
        """The number of seconds until the worker counts as hung, at least 0."""
        return max(0.0, self._patience_s - self.silent_s)

    @property
    def silent_s(self) -> float:
        """The number of seconds since the last sign of life."""
        return self._clock() - self._heard_at

    def hear(self, message: WorkerMessage, awaits_agent: bool = False) -> None:
        """Restart the timer on a sign of life; `awaits_agent` is true while the agent downloads."""
        self._ready = self._ready or isinstance(message, Ready)
        if isinstance(message, Transferred):
            alive = awaits_agent or ((message.awaits_state or not self._ready) and message != self._bytes)
            self._bytes = message
        else:
            alive = not isinstance(message, LineInDoubt)
        if alive:
            self._heard_at = self._clock()


class ChildProcess(Generic[Plan, Message]):
    """A spawned process; `next_event` returns its events in order, and None when the process ends."""

    def __init__(self, plan: Plan, main: ChildMain[Plan]) -> None:
        self._plan, self._main = plan, main
        self._events: asyncio.Queue[Message | None] = asyncio.Queue()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self.asked_to_stop = False
        # Set by `end` if the process exited by itself; a negative code is a signal number.
        self.exit_code: int | None = None

    def start(self) -> None:
        """Spawn the process and start receiving events; requires a running event loop."""
        prepare_children(os.environ)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self._main, args=(self._plan, theirs, os.getpid()), name="worker")
        self._process.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop, self._pipe, self.pid), daemon=True).start()

    async def next_event(self) -> Message | None:
        """Wait for the next event and return it, or None after the last event of an ended process."""
        return await self._events.get()

    def ask_to_stop(self, reason: str) -> None:
        """Ask the worker to leave the swarm gracefully; do nothing if it has ended."""
        self.asked_to_stop = True
        self.tell(Stop(reason))

    def tell(self, message: AgentMessage) -> None:
        """Send a message if the process is running."""
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.send(message)

    async def ended(self) -> None:
        """Wait until the process has ended."""
        while self._process is not None and not has_ended(self.pid):  # noqa: ASYNC110  # nothing signals the end
            await asyncio.sleep(POLL_S)

    def end(self) -> None:
        """Kill the process and its group; abandon the process if it does not end in time."""
        if self._process is None:
            return
        was_over = has_ended(self.pid)
        end_group(self.pid)  # the process is not reaped yet, so its id cannot have been reused
        self._process.kill()
        self._process.join(KILLED_S)
        self.exit_code = self._process.exitcode if was_over else None
        if self._process.exitcode is not None:
            self._process.close()
        self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    @property
    def pid(self) -> int:
        """The process id, which is also the process group id."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def _listen(self, loop: asyncio.AbstractEventLoop, pipe: Connection, pid: int) -> None:
        """Forward events until the process ends, even if its children keep the pipe open."""
        while True:
            try:
                while not pipe.poll(POLL_S) and not has_ended(pid):
                    pass
                event = pipe.recv() if pipe.poll(0) else None
            except (EOFError, OSError):  # the pipe was closed by this process or by the child
                event = None
            try:
                loop.call_soon_threadsafe(self._events.put_nowait, event)
            except RuntimeError:  # the event loop is closed, so nobody needs the event
                return
            if event is None:
                return


WorkerProcess = ChildProcess[WorkerPlan, WorkerMessage]


def default_trial_main(plan: TrialPlan, pipe: Connection, parent_pid: int) -> None:
    """Run the device test; unit tests pass another `main` to `choose_device`."""
    name_process("trial of the device")
    from peer.backends.device_trial import run_trial  # imports torch

    run_trial(plan, pipe, parent_pid)


async def choose_device(
    name: str, data_dir: Path, main: TrialMain = default_trial_main, devices: Path = Path("/dev")
) -> tuple[str, str]:
    """Return the device to train on, and the reason for not using a better one ("" if it is the best).

    `name` is the value of `--device`. `cpu` is not tested, nor is `auto` on a machine without an
    accelerator. Raises `ConfigError` if the volunteer's chosen device is missing or does not work.
    """
    if name == "cpu" or (name == "auto" and not may_have_accelerator(devices)):
        return name, ""
    trial: ChildProcess[TrialPlan, DeviceTried] = ChildProcess(TrialPlan(name, str(data_dir / LOG_FILE)), main)
    trial.start()
    try:
        tried = await asyncio.wait_for(trial.next_event(), TRIAL_S)
        if tried is None:
            await asyncio.wait_for(trial.ended(), END_GRACE_S)
        reason = "died"
    except asyncio.TimeoutError:
        tried, reason = None, f"did not answer within {TRIAL_S:g} s"
    finally:
        trial.end()
    if tried is not None and tried.device:
        return tried.device, tried.fault
    if tried is not None:
        raise ConfigError(tried.fault)
    if trial.exit_code is not None:
        code = trial.exit_code
        reason = f"died: {signal.strsignal(-code) if code < 0 else f'exit code {code}'}"
    fault = f"the process that tried it {reason}; see {data_dir / LOG_FILE}"
    if name == "auto":
        return "cpu", f"the accelerator here cannot be used ({fault})"
    raise ConfigError(f"`--device {name}`: it cannot be used here ({fault}). Fix this, or use `--device cpu`.")
