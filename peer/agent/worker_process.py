"""The agent's handle on its worker, or another child: spawned, listened to, ended with its whole process group.

A child of its own also tries the device to train on before the run is joined: a driver may hang or crash it.
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
KILLED_S = 5.0  # until a killed process is gone; one that hangs in a driver stays as long as the driver wants
Plan = TypeVar("Plan")
Message = TypeVar("Message")
ChildMain = Callable[[Plan, Connection, int], None]
WorkerMain = ChildMain[WorkerPlan]
TRIAL_S = 180.0  # to load PyTorch from a slow disk and wake the driver of many cards
END_GRACE_S = 5.0
LOG_FILE = "device.log"  # in the device's data directory
TrialMain = ChildMain[TrialPlan]


def default_worker_main(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """The real worker."""
    name_process("worker")
    cache_within(Path(plan.data_dir), os.environ)
    from peer.training.worker import run_worker  # torch and hivemind: in the spawned process only

    run_worker(plan, pipe, parent_pid)


class Watchdog:
    """A watchdog for a worker: how long it may still be silent before it is taken to hang.

    Traffic is a sign of life until the worker is ready, and while it waits for another's state; otherwise it is none,
    as its averagers answer others by themselves. Nor is a doubt about the line, from the thread that counts the bytes.
    A worker that waits for its agent's download of a checkpoint lives as long as it says anything.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float]) -> None:
        self._patience_s, self._clock = patience_s, clock
        self._heard_at, self._ready, self._bytes = clock(), False, Transferred(0, 0)

    @property
    def left_s(self) -> float:
        """The seconds left, not below 0."""
        return max(0.0, self._patience_s - self.silent_s)

    @property
    def silent_s(self) -> float:
        """The seconds since the last sign of life."""
        return self._clock() - self._heard_at

    def hear(self, message: WorkerMessage, awaits_agent: bool = False) -> None:
        """Take a message for a sign of life, if it is one."""
        self._ready = self._ready or isinstance(message, Ready)
        if isinstance(message, Transferred):
            alive = awaits_agent or ((message.awaits_state or not self._ready) and message != self._bytes)
            self._bytes = message
        else:
            alive = not isinstance(message, LineInDoubt)
        if alive:
            self._heard_at = self._clock()


class ChildProcess(Generic[Plan, Message]):
    """One spawned process; its events arrive in order, then None when it has ended."""

    def __init__(self, plan: Plan, main: ChildMain[Plan]) -> None:
        self._plan, self._main = plan, main
        self._events: asyncio.Queue[Message | None] = asyncio.Queue()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self.asked_to_stop = False
        self.exit_code: int | None = None  # negative: the signal; known once it is ended, if it was over by itself

    def start(self) -> None:
        """Spawn the process and listen to it; call it on the event loop."""
        prepare_children(os.environ)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self._main, args=(self._plan, theirs, os.getpid()), name="worker")
        self._process.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop, self._pipe, self.pid), daemon=True).start()

    async def next_event(self) -> Message | None:
        """The next event; None once the process has ended and everything it said was read."""
        return await self._events.get()

    def ask_to_stop(self, reason: str) -> None:
        """Let the worker leave the swarm in order; one that is gone already is fine."""
        self.asked_to_stop = True
        self.tell(Stop(reason))

    def tell(self, message: AgentMessage) -> None:
        """Send it, if the worker is still there."""
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.send(message)

    async def ended(self) -> None:
        """Wait until the process itself has ended."""
        while self._process is not None and not has_ended(self.pid):  # noqa: ASYNC110 - the kernel sets no event
            await asyncio.sleep(POLL_S)

    def end(self) -> None:
        """Kill what is left of the worker and of all that it started; what cannot be killed now is left to itself."""
        if self._process is None:
            return
        was_over = has_ended(self.pid)
        end_group(self.pid)  # before it is reaped: until then its id is nobody else's
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
        """The process's id, which is its group's too."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def _listen(self, loop: asyncio.AbstractEventLoop, pipe: Connection, pid: int) -> None:
        """Hand events to the loop; the worker's forks hold the pipe's other end, so its end is no sign of anything."""
        while True:
            try:
                while not pipe.poll(POLL_S) and not has_ended(pid):
                    pass
                event = pipe.recv() if pipe.poll(0) else None
            except (EOFError, OSError):  # closed by either side
                event = None
            try:
                loop.call_soon_threadsafe(self._events.put_nowait, event)
            except RuntimeError:  # the loop is closed: nobody listens any more
                return
            if event is None:
                return


WorkerProcess = ChildProcess[WorkerPlan, WorkerMessage]


def default_trial_main(plan: TrialPlan, pipe: Connection, parent_pid: int) -> None:
    """The real trial."""
    name_process("trial of the device")
    from peer.backends.device_trial import run_trial  # torch: in the spawned process only

    run_trial(plan, pipe, parent_pid)


async def choose_device(
    name: str, data_dir: Path, main: TrialMain = default_trial_main, devices: Path = Path("/dev")
) -> tuple[str, str]:
    """The device that `--device` comes to, and what is wrong with a better one that is there ("" if nothing).

    Nothing is tried where there is nothing to try. Raises `ConfigError` where the person has chosen a device that is
    not there, or does not work.
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
    raise ConfigError(f"`--device {name}`: it cannot be used here ({fault}). Mend that, or use `--device cpu`.")
