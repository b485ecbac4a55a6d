"""Stages that check the machine: disk, memory, processor, device, training speed and pace.

Resources are read from the operating system, or from a container's limits if these are lower. The
training speed is measured, to predict whether the machine keeps pace with the run. PyTorch runs in
a helper process, so that only the helper is killed if memory runs out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.control.reachability import LineSpeed
from peer.doctor.answers import DetectedDevice, Speed
from peer.doctor.context import Context, RunDescription
from peer.doctor.helper import HelperError
from peer.doctor.stages import CheckResult, failed, ok, warning
from peer.network.traffic import passes_in_time
from peer.reporting.advice import FASTER_ROUND, Conditions, why_late

CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT_BYTES = 1 << 60  # cgroups v1 represents "no limit" as about 2^63
MIB, GIB = 1 << 20, 1 << 30
LEAST_DISK_BYTES, GOOD_DISK_BYTES = 200 * MIB, GIB  # minimum without and with a dataset cache
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = GIB, 3 * GIB  # minimum for the libraries alone, and with a small model
BUSY_SHARE = 0.5  # training is slow above this fraction of busy cores
MODEL_COPIES = 5  # extra copies of the model in a peer, for averages in flight and buffers
VALUE_BYTES = 4
LOOK, COMPUTE = "peer.doctor.training_helper:look", "peer.doctor.training_helper:compute"


def check_disk(context: Context) -> CheckResult:
    """Check that the disk has space for the device's key, log, tokenizer and queued reports."""
    folder = context.options.state_dir
    try:
        free_bytes = read_free_disk(folder)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return failed(f"Nothing can be written to {folder} ({reason}).", "Make room, or give another --state-dir.")
    return judge_disk(free_bytes)


def judge_disk(free_bytes: int) -> CheckResult:
    """Judge the amount of free disk space."""
    found = f"{free_bytes / GIB:.1f} GiB are free for this device's files."
    if free_bytes < LEAST_DISK_BYTES:
        remedy = f"Make room for {LEAST_DISK_BYTES // MIB} MiB at least, or give another --state-dir."
        return failed(found, remedy, free_bytes=free_bytes)
    if free_bytes < GOOD_DISK_BYTES:
        return warning(found, "Make room for 1 GiB, which a dataset's cache may take.", free_bytes=free_bytes)
    return ok(found, free_bytes=free_bytes)


def judge_memory(memory: Memory) -> CheckResult:
    """Check that PyTorch, hivemind and a model fit in the available memory."""
    found = f"{memory.available_bytes / GIB:.1f} of {memory.total_bytes / GIB:.1f} GiB of memory are available."
    data = asdict(memory)
    if memory.available_bytes < LEAST_MEMORY_BYTES:
        return failed(found, "Close other programs: the libraries alone need 1 GiB.", **data)
    if memory.available_bytes < GOOD_MEMORY_BYTES:
        return warning(found, "Close other programs: a small model needs 3 GiB, a larger one more.", **data)
    return ok(found, **data)


def judge_processor(processor: Processor) -> CheckResult:
    """Judge the number of cores and their load."""
    cores, quota, load = processor.cores, processor.quota, processor.load
    data = {"cores": cores, "quota": quota, "load": round(load, 2)}
    if quota is not None and quota < cores:
        threads = max(1, int(quota))
        return warning(
            f"This container sees {cores} cores, but may use {quota:.1f} of them.",
            f"Join with `--threads {threads}`.",
            **data,
        )
    found = f"{cores} cores, of which other programs keep about {load:.1f} busy."
    if load > BUSY_SHARE * cores:
        return warning(found, "Close them, or join when they are done.", **data)
    return ok(found, **data)


@dataclass(frozen=True)
class Memory:
    """The total and the available main memory, in bytes."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Processor:
    """The number of logical cores, and their load."""

    cores: int  # number of cores available to this process
    quota: float | None  # container's CPU limit in cores; None if unlimited
    load: float  # load average of the last minute


def read_free_disk(path: Path) -> int:
    """Return the free space for `path`, which need not exist. Raises `OSError` if it is not writable."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    with tempfile.TemporaryFile(dir=existing) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
    return shutil.disk_usage(existing).free


def read_memory(cgroups: Path = CGROUPS) -> Memory:
    """Return the machine's memory, or the container's limit if that is lower."""
    machine = psutil.virtual_memory()
    limit = _first_number(cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes")
    if limit is None or limit >= min(NO_LIMIT_BYTES, machine.total):
        return Memory(machine.total, machine.available)
    used = _first_number(cgroups / "memory.current", cgroups / "memory" / "memory.usage_in_bytes") or 0
    return Memory(limit, min(machine.available, max(0, limit - used)))


def read_processor(cgroups: Path = CGROUPS) -> Processor:
    """Read the number of cores available to this process, and their load."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Processor(cores, _read_quota(cgroups), psutil.getloadavg()[0])


def _read_quota(cgroups: Path) -> float | None:
    """Return the CPU quota in cores (time per period) from cgroups v2 or v1."""
    try:
        share, period = (cgroups / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        share_us = _first_number(cgroups / "cpu" / "cpu.cfs_quota_us")
        period_us = _first_number(cgroups / "cpu" / "cpu.cfs_period_us")
        return share_us / period_us if share_us and period_us and share_us > 0 else None
    return None if share == "max" else int(share) / int(period)


def _first_number(*paths: Path) -> int | None:
    """Return the number in the first file that contains one, or None."""
    for path in paths:
        try:
            return int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # the file does not exist or contains "max"
            continue
    return None


async def check_device(context: Context) -> CheckResult:
    """Check that the device selected by `--device` works."""
    try:
        device: DetectedDevice = await context.helper.ask(LOOK, context.options.device, context.options.threads)
    except HelperError as error:
        return failed(str(error), "Install manyhands again, into an environment of its own.")
    if device.error:
        return failed(device.error, "Install PyTorch's build for this machine's GPU, or join with `--device cpu`.")
    data = {"device": device.name, "threads": device.threads, "torch": device.torch}
    remedy = "Install PyTorch's CUDA build and the card's driver, or go on without it."
    if device.fault:
        return warning(f"It would train on {device.name}: {device.fault}.", remedy, **data)
    return ok(f"It would train on {device.name}.", **data)


async def check_speed(context: Context) -> CheckResult:
    """Measure the training speed on random tokens, with the run's model or the demo's."""
    options, description = context.options, context.description
    config = RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml") if description is None else description.config
    whose = "the demo's" if description is None else "the run's"
    asked = (config.to_json(), options.microbatch_size, options.device, options.threads, context.timing.speed_s)
    try:
        speed: Speed = await context.helper.ask(COMPUTE, *asked)
    except HelperError as error:  # the kernel kills a process that runs out of memory
        speed = Speed(error=str(error), out_of_memory=error.died)
    if not speed.error:
        context.speed = speed
    microbatch_size = speed.microbatch_size or options.microbatch_size or config.data.microbatch_size
    return judge_speed(speed, microbatch_size, whose, read_memory().total_bytes)


def swarm_bytes(parameters: int, moments: int) -> int:
    """Return the memory in bytes that a peer needs in addition to computing gradients.

    `moments` is the number of values in the optimizer's state.
    """
    return VALUE_BYTES * (MODEL_COPIES * parameters + moments)


def judge_speed(speed: Speed, microbatch_size: int, whose: str, memory_bytes: int) -> CheckResult:
    """Judge the measured speed, and whether the memory is sufficient for training."""
    of = f"microbatches of {microbatch_size} of {whose} model"
    if speed.out_of_memory:  # not even one sample fits
        remedy = "Close what else runs, or use a machine with more memory."
        return failed(f"No {of} fit into memory: {speed.error.rstrip('.')}.", remedy)
    if speed.error:
        return failed(
            f"No {of} could be computed: {speed.error.rstrip('.')}.",
            "Join with `--microbatch 1`, or use another machine.",
        )
    needed_bytes = speed.peak_bytes + swarm_bytes(speed.parameters, speed.moments)
    data = {**asdict(speed), "needed_bytes": needed_bytes}
    found = f"{speed.samples_per_second:,.1f} samples a second, in {of}."
    if needed_bytes > memory_bytes:
        remedy = f"Close what else runs, or use a machine with {needed_bytes / GIB:.0f} GiB of memory."
        return warning(f"{found} Training it needs about {needed_bytes / GIB:.1f} GiB.", remedy, **data)
    return ok(found, **data)


def check_pace(context: Context) -> CheckResult:
    """Check that this machine's measured speed and bandwidth let it keep pace with the swarm."""
    description, line, speed = context.description, context.line, context.speed
    assert description is not None
    assert line is not None
    assert speed is not None
    return judge_pace(speed, line, description)


def judge_pace(speed: Speed, line: LineSpeed, description: RunDescription) -> CheckResult:
    """Judge whether this machine's samples and gradients would arrive in time for each step."""
    target = description.config.averaging.target_batch_size
    longest_s = description.config.averaging.averaging_timeout_s
    slower = min(line.up, line.down)
    now = Conditions(
        step_s=target / (description.samples_per_second + speed.samples_per_second),
        sample_s=1 / speed.samples_per_second,
        round_s=speed.gradient_bytes / slower,
        longest_round_s=longest_s,
    )
    state_s = speed.state_bytes / line.down
    data = {**asdict(now), "state_s": state_s}
    step = f"With this machine the swarm would take a step every {_seconds(now.step_s)}"
    if not passes_in_time(speed.gradient_bytes, slower, longest_s):
        return failed(
            f"This line needs {_seconds(now.round_s)} for a step's gradients, too long for rounds of averaging that "
            f"last {_seconds(longest_s)} at most.",
            FASTER_ROUND,
            **data,
        )
    late = why_late(now)
    if late is not None:
        reason, remedy = late
        return warning(f"{step}, and {reason}.", remedy, **data)
    state = f"the run's state comes once, in {_seconds(state_s)} or more"
    if state_s > now.step_s:
        state += ", and this machine then catches up with the swarm"
    return ok(f"{step}; its gradients take this line {_seconds(now.round_s)}; {state}.", **data)


def _seconds(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 10 else 1}f} s"
