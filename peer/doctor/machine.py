"""Stages of the machine itself: is there room for a volunteer's files, for PyTorch, and for the work."""

from __future__ import annotations

import asyncio

from peer.doctor.context import Context
from peer.doctor.findings import Outcome, failed, ok, warning
from peer.doctor.readings import Memory, Processor, read_free_disk, read_memory, read_processor

MIB, GIB = 1 << 20, 1 << 30
LEAST_DISK_BYTES, GOOD_DISK_BYTES = 200 * MIB, GIB  # log, reports that wait, tokenizer; a dataset's cache beside them
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = GIB, 3 * GIB  # PyTorch and hivemind alone; with a small model
BUSY_SHARE = 0.5  # of the cores: beyond it other programs and the training slow each other down


async def check_disk(context: Context) -> Outcome:
    """Room for the device's key, log, tokenizer and waiting reports."""
    folder = context.options.state_dir
    try:
        free_bytes = await asyncio.to_thread(read_free_disk, folder)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return failed(f"Nothing can be written to {folder} ({reason}).", "Make room, or give another --state-dir.")
    return judge_disk(free_bytes)


def judge_disk(free_bytes: int) -> Outcome:
    """What so much free space means."""
    found = f"{free_bytes / GIB:.1f} GiB are free for this device's files."
    if free_bytes < LEAST_DISK_BYTES:
        remedy = f"Make room for {LEAST_DISK_BYTES // MIB} MiB at least, or give another --state-dir."
        return failed(found, remedy, free_bytes=free_bytes)
    if free_bytes < GOOD_DISK_BYTES:
        return warning(found, "Make room for 1 GiB, which a dataset's cache may take.", free_bytes=free_bytes)
    return ok(found, free_bytes=free_bytes)


async def check_memory(_: Context) -> Outcome:
    """Room for PyTorch, hivemind and a model."""
    return judge_memory(await asyncio.to_thread(read_memory))


def judge_memory(memory: Memory) -> Outcome:
    """What so much memory means."""
    available_bytes, total_bytes = memory.available_bytes, memory.total_bytes
    found = f"{available_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GiB of memory are available."
    data = {"available_bytes": available_bytes, "total_bytes": total_bytes}
    if available_bytes < LEAST_MEMORY_BYTES:
        return failed(found, "Close other programs: the libraries alone need 1 GiB.", **data)
    if available_bytes < GOOD_MEMORY_BYTES:
        return warning(found, "Close other programs: a small model needs 3 GiB, a larger one more.", **data)
    return ok(found, **data)


async def check_processor(_: Context) -> Outcome:
    """Cores that have nothing else to do."""
    return judge_processor(read_processor())


def judge_processor(processor: Processor) -> Outcome:
    """What so many cores, so busy, mean."""
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
