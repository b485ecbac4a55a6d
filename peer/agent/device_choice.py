"""Choice of the device to train on, before joining the run, by a trial in a process that a driver may hang or crash."""

from __future__ import annotations

import asyncio
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from auth.errors import ConfigError
from peer.agent.worker_process import ChildMain, ChildProcess
from peer.reporting.messages import DeviceTried, TrialPlan
from peer.runtime.devices import may_have_accelerator

TRIAL_S = 180.0  # to load PyTorch from a slow disk and wake the driver of many cards
END_GRACE_S = 5.0
LOG_FILE = "device.log"  # in the device's data directory
TrialMain = ChildMain[TrialPlan]


def default_trial_main(plan: TrialPlan, pipe: Connection, parent_pid: int) -> None:
    """The real trial."""
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
