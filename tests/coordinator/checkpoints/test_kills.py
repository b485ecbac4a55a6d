"""`kill -9` while checkpoints are written and published: what is there is always whole."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from coordinator.checkpoints.manifest import MANIFEST, newest_verified, verify
from tests.support import kill_mains
from tests.support.small_run import make_small_run
from tests.support.sound_checkpoints import publish_to
from tests.support.waiting import wait_until
from tests.support.zygote import forking_python

KILLS = int(os.environ.get("MANYHANDS_KILLS", "10"))
MOST_S = 0.25  # from the first whole checkpoint to the kill: several are written in that time


def killed_again_and_again(main: Callable[[str, str], None], run_dir: Path, check: Callable[[int], None]) -> None:
    """Start `main`, kill it at a random instant, and `check` with the last step that it said was complete."""
    context = multiprocessing.get_context("spawn")
    chance, written = random.Random(5), run_dir / "written"
    written.touch()
    for _ in range(KILLS):
        before = written.stat().st_size
        process = context.Process(target=main, args=(str(run_dir), str(written)))
        with forking_python():
            process.start()
        wait_until("the writer has written a checkpoint", lambda before=before: written.stat().st_size > before)  # type: ignore[misc]
        time.sleep(chance.uniform(0, MOST_S))
        assert process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        process.close()
        check(int(written.read_text().split()[-1]))


def test_a_checkpoint_is_whole_or_absent_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    """After each kill the newest verified checkpoint is the last that was complete, or the one after."""
    run = make_small_run(tmp_path)

    def check(last: int) -> None:
        newest = newest_verified(run.checkpoints_dir)
        assert newest is not None
        assert newest.manifest.step in {last, last + 1}

    killed_again_and_again(kill_mains.write_for_ever, run.path, check)


def test_a_place_holds_whole_checkpoints_whenever_the_publisher_is_killed(tmp_path: Path) -> None:
    """After each kill the place names the last published or the one after, whole like all that has a manifest."""
    run = make_small_run(tmp_path)
    place = tmp_path / "place"
    publish_to(run.path, {"to": f"file://{place}"})

    def check(last: int) -> None:
        newest = newest_verified(run.checkpoints_dir)
        latest = json.loads((place / "latest.json").read_text())
        assert newest is not None
        assert last <= latest["step"] <= newest.manifest.step <= last + 1
        assert sha256((place / latest["folder"] / MANIFEST).read_bytes()).hexdigest() == latest["manifest_sha256"]
        for manifest in place.glob(f"*/{MANIFEST}"):
            verify(manifest.parent)

    killed_again_and_again(kill_mains.write_and_publish_for_ever, run.path, check)


@pytest.mark.parametrize("name", [".step-00000003.writing", ".step-00000003.replaced"])
def test_what_a_killed_writer_left_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    """Leftovers are not taken for checkpoints."""
    (tmp_path / name).mkdir()
    assert newest_verified(tmp_path) is None
