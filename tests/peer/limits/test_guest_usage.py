"""Memory of a process group, disk of this device's files, and a cache that is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auth.errors import ConfigError
from peer.limits.cloud import Cloud
from peer.limits.limits import Limits
from peer.limits.monitor import Machine
from peer.limits.usage import (
    CACHES,
    IN_USE_S,
    cache_within,
    clean_cache,
    disk_use,
    group_memory,
    kills_for_memory,
    require_memory,
)
from tests.support.waiting import PATIENCE_S, wait_until

MB = 1_000_000
NOW = 2_000_000_000.0


def make_file(path: Path, size: int, used_s_ago: float) -> None:
    """A file that was read last so long before `NOW`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    os.utime(path, (NOW - used_s_ago, NOW - used_s_ago))


def test_memory_of_a_group_counts_shared_pages_once() -> None:
    """A process with 60 MB that forks two children has still 60 MB, with what three interpreters need beside it."""
    script = (
        "import os, sys, time\n"
        f"block = os.urandom({60 * MB})\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(3600)\n"
        "print('ready', flush=True); sys.stdin.read(); os.killpg(0, 9)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 60 * MB < group_memory(process.pid) < 110 * MB
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE_S)
        wait_until("the children have ended, a moment after their leader", lambda: not group_memory(process.pid))


def test_the_cache_loses_what_was_unused_longest(tmp_path: Path) -> None:
    """No more than needed, and nothing that is in use, whatever the limit."""
    make_file(tmp_path / "hub" / "old", MB, 5 * IN_USE_S)
    make_file(tmp_path / "hub" / "older", MB, 9 * IN_USE_S)
    make_file(tmp_path / "xet" / "recent", MB, 2 * IN_USE_S)
    make_file(tmp_path / "in-use", MB, 1.0)
    left = clean_cache(tmp_path, int(3.5 * MB), NOW)
    assert not (tmp_path / "hub" / "older").exists()
    assert left == disk_use(tmp_path)
    assert 3 * MB <= left <= 3.1 * MB
    clean_cache(tmp_path, 0, NOW)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["in-use"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Nothing outside the folder is counted or deleted."""
    make_file(tmp_path / "elsewhere", MB, 9 * IN_USE_S)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "link").symlink_to(tmp_path / "elsewhere")
    assert clean_cache(tmp_path / "cache", 0, NOW) == 0
    assert (tmp_path / "elsewhere").exists()


def test_what_libraries_fetch_lies_in_the_devices_folder(tmp_path: Path) -> None:
    """Unless the person has said where."""
    environment = {"HF_XET_CACHE": "/mine"}
    cache_within(tmp_path, environment)
    assert environment["HF_XET_CACHE"] == "/mine"
    assert environment["HF_HUB_CACHE"] == str(tmp_path / "cache" / "hub")
    assert environment.keys() == CACHES.keys()


def test_the_libraries_keep_to_it(tmp_path: Path) -> None:
    """In a fresh interpreter they take the folders from these variables."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    cache_within(tmp_path, environment)
    script = "from huggingface_hub import constants as c; print(c.HF_HUB_CACHE, c.HF_XET_CACHE, c.HF_ASSETS_CACHE)"
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(tmp_path / "cache" / name) for name in ("hub", "xet", "assets")]


def test_a_machine_keeps_to_its_disk_by_cleaning_the_cache(tmp_path: Path) -> None:
    """The cache gives way to what cannot be fetched again; without a limit nothing is deleted."""
    long_ago = NOW - time.time() + 9 * IN_USE_S
    make_file(tmp_path / "data" / "cache" / "hub" / "old", MB, long_ago)
    make_file(tmp_path / "data" / "position.json", MB, long_ago)
    for limit, least, most in ((None, 0, 0), (3 * MB, 2 * MB, 2.1 * MB), (int(1.5 * MB), MB, 1.1 * MB)):
        machine = Machine(Limits(disk_bytes=limit), Cloud(), tmp_path, time.monotonic)
        assert least <= machine.read().disk_bytes <= most
    assert (tmp_path / "data" / "position.json").exists()
    assert not (tmp_path / "data" / "cache" / "hub" / "old").exists()


def test_a_limit_that_the_model_alone_exceeds_is_refused() -> None:
    """In one sentence, with what it needs at least."""
    require_memory(None, 10**12, 2 * 10**12)
    require_memory(10**9, 12_000_000, 24_000_000)
    with pytest.raises(ConfigError, match=r"`--max-memory` \(1 GB\).*350.0 million parameters needs 7.50 GB"):
        require_memory(10**9, 350_000_000, 700_000_000)


@pytest.mark.parametrize(
    ("text", "kills"),
    [("pgfault 7\noom_kill 3\noom_kill_x 9\n", 3), ("pgfault 7\n", None), ("oom_kill many\n", None), (None, None)],
)
def test_kills_for_memory_are_what_the_kernel_counts(tmp_path: Path, text: str | None, kills: int | None) -> None:
    """Unknown where it does not say, or where there is no such file."""
    if text is not None:
        (tmp_path / "vmstat").write_text(text)
    assert kills_for_memory(tmp_path / "vmstat") == kills
