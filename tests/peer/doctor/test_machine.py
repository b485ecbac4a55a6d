"""The machine's stages: what numbers mean, and a disk that is really full."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.doctor import machine
from peer.doctor.checkup import MACHINE
from peer.doctor.context import Context, Options
from peer.doctor.machine import (
    GIB,
    GOOD_DISK_BYTES,
    LEAST_DISK_BYTES,
    LEAST_MEMORY_BYTES,
    Memory,
    Processor,
    check_disk,
    judge_disk,
    judge_memory,
    judge_processor,
    read_memory,
    read_processor,
)
from peer.doctor.stages import Verdict, run_stages

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED


SIZE_BYTES = 64 * 1024


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A full file system of 64 KiB; where this user may mount none, what such a one says."""
    (folder := tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:

        def full_reading(_: Path) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(machine, "read_free_disk", full_reading)
        yield folder
        return
    with pytest.raises(OSError, match="space"):
        (folder / "filler").write_bytes(bytes(2 * SIZE_BYTES))
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("free_bytes", "verdict"),
    [
        (0, FAILED),
        (LEAST_DISK_BYTES - 1, FAILED),
        (LEAST_DISK_BYTES, WARNING),
        (GOOD_DISK_BYTES - 1, WARNING),
        (GOOD_DISK_BYTES, OK),
    ],
)
def test_free_space(free_bytes: int, verdict: Verdict) -> None:
    """Too little fails, little is a warning; the number is in the data."""
    outcome = judge_disk(free_bytes)
    assert outcome.verdict is verdict
    assert outcome.data == {"free_bytes": free_bytes}
    assert (outcome.remedy == "") == (verdict is OK)
    assert ("200 MiB" in outcome.remedy) == (verdict is FAILED)


def test_an_ordinary_disk_is_well(tmp_path: Path) -> None:
    """The directory need not exist yet, and is not made."""
    folder = tmp_path / "not" / "yet"
    outcome = check_disk(Context(Options(folder)))
    assert outcome.verdict in (OK, WARNING)
    assert not folder.parent.exists()


def test_a_full_disk_fails(full_disk: Path) -> None:
    """Where not a byte can be written, the system's reason is told."""
    outcome = check_disk(Context(Options(full_disk)))
    assert outcome.verdict is FAILED
    assert "No space left" in outcome.found


def test_a_path_that_is_a_file_fails(tmp_path: Path) -> None:
    """Nothing can be made below a file."""
    (tmp_path / "file").write_text("")
    outcome = check_disk(Context(Options(tmp_path / "file" / "state")))
    assert outcome.verdict is FAILED
    assert "--state-dir" in outcome.remedy


@pytest.mark.parametrize(
    ("available_bytes", "verdict"), [(LEAST_MEMORY_BYTES - 1, FAILED), (2 * GIB, WARNING), (8 * GIB, OK)]
)
def test_memory(available_bytes: int, verdict: Verdict) -> None:
    """What is available counts, not what is built in."""
    outcome = judge_memory(Memory(64 * GIB, available_bytes))
    assert outcome.verdict is verdict
    assert "64.0 GiB" in outcome.found


@pytest.mark.parametrize(
    ("processor", "verdict", "word"),
    [
        (Processor(8, None, 0.3), OK, "8 cores"),
        (Processor(8, None, 6.0), WARNING, "6.0 busy"),
        (Processor(8, 1.5, 0.0), WARNING, "1.5"),
        (Processor(2, 2.0, 0.0), OK, "2 cores"),
    ],
)
def test_processor(processor: Processor, verdict: Verdict, word: str) -> None:
    """Busy cores and a container's quota are worth a warning."""
    outcome = judge_processor(processor)
    assert outcome.verdict is verdict
    assert word in outcome.found


def test_a_quota_below_one_core_still_asks_for_one_thread() -> None:
    """No advice that `manyhands join` would refuse."""
    assert "--threads 1`" in judge_processor(Processor(4, 0.5, 0.0)).remedy


async def test_this_machine_can_be_read(tmp_path: Path) -> None:
    """The real readings make outcomes with numbers."""
    context = Context(Options(tmp_path))
    found = {finding.stage: finding.outcome.data async for finding in run_stages(MACHINE, context)}
    assert found["memory"]["available_bytes"] > 0
    assert found["processor"]["cores"] >= 1


@pytest.mark.parametrize(
    ("limit_file", "used_file"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_a_containers_memory_counts(tmp_path: Path, limit_file: str, used_file: str) -> None:
    """Both versions of control groups are read; what the container uses already is not available."""
    (tmp_path / "memory").mkdir()
    (tmp_path / limit_file).write_text("1000000\n")
    (tmp_path / used_file).write_text("400000\n")
    assert read_memory(tmp_path) == Memory(1_000_000, 600_000)


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_a_container_without_a_limit_is_the_machine(tmp_path: Path, limit: str) -> None:
    """However "no limit" is written."""
    (tmp_path / "memory.max").write_text(limit)
    assert read_memory(tmp_path).total_bytes == read_memory(tmp_path / "none").total_bytes


def test_a_containers_quota_is_read(tmp_path: Path) -> None:
    """Time per period, as both versions write it, or none."""
    assert read_processor(tmp_path).quota is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert read_processor(tmp_path).quota is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    assert read_processor(tmp_path).quota == 0.5
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert read_processor(tmp_path).quota == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert read_processor(tmp_path).quota is None
