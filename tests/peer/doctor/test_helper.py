"""The doctor's helpers: spawned, asked, and ended whatever they do."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.doctor.helper import Helper, HelperError
from tests.support import doctor_mains
from tests.support.waiting import PATIENCE_S

ECHO = "tests.support.doctor_mains:echo"


@asynccontextmanager
async def helper_with(
    prepare: Callable[[Path], None] | None = None, timeout_s: float = PATIENCE_S
) -> AsyncIterator[Helper]:
    helper = Helper(timeout_s) if prepare is None else Helper(timeout_s, prepare)
    try:
        yield helper
    finally:
        await helper.end()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_one_process_answers_all_questions() -> None:
    """It is started with the first and gone after the end."""
    async with helper_with() as helper:
        answers = [await helper.ask(ECHO, name) for name in ("cpu", "cuda")]
        assert [name for name, _ in answers] == ["cpu", "cuda"]
        (pid,) = {pid for _, pid in answers}
        assert pid != os.getpid()
        assert is_running(pid)
    assert not is_running(pid)


async def test_a_helper_that_cannot_start_leaves_its_last_words() -> None:
    """What it printed last is in the error."""
    async with helper_with(doctor_mains.dies) as helper:
        with pytest.raises(HelperError, match=r"died .*libcudart\.so\.12 is missing") as caught:
            await helper.ask(ECHO, "cpu")
        assert caught.value.died


async def test_a_helper_that_is_killed_at_work_is_noticed() -> None:
    """Without a word, even if an earlier question left one, and without waiting for the timeout."""
    async with helper_with() as helper:
        await helper.ask("tests.support.doctor_mains:prints", "Terminated p2pd")
        with pytest.raises(HelperError, match="it printed nothing") as caught:
            await helper.ask("os:_exit", 137)
        assert caught.value.died


async def test_a_helper_that_hangs_is_ended() -> None:
    """After the timeout; and the next question finds a new one."""
    async with helper_with(doctor_mains.hangs, 0.3) as helper:
        for _ in range(2):
            with pytest.raises(HelperError, match="did not answer") as caught:
                await helper.ask(ECHO, "cpu")
            assert not caught.value.died


async def test_ending_twice_is_fine() -> None:
    """Also if it was never started."""
    async with helper_with() as helper:
        await helper.end()
        await helper.ask(ECHO, "cpu")
        await helper.end()
