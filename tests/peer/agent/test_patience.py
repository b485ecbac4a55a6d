"""Pauses before what is away for now is tried again."""

from __future__ import annotations

import random

import pytest

from auth.errors import FingerprintError, UnreachableError
from peer.agent.patience import FIRST_PAUSE_S, LONGEST_PAUSE_S, patiently
from peer.reporting.messages import Notice


class Away:
    """Does not answer for so many calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.told: list[Notice] = []
        self.paused_s: list[float] = []

    async def ask(self) -> str:
        """Fail, or answer at last."""
        self.calls -= 1
        if self.calls >= 0:
            raise UnreachableError("It does not answer.")
        return "here"

    async def rest(self, seconds: float) -> None:
        """Takes no time."""
        self.paused_s.append(seconds)


def unreachable(error: BaseException) -> bool:
    return isinstance(error, UnreachableError)


async def test_pauses_grow_to_a_bound_and_each_is_told() -> None:
    """Once each, with the reason and its length; at least half of each window is waited."""
    away = Away(12)
    assert await patiently(away.ask, unreachable, away.told.append, random.Random(1), away.rest) == "here"
    windows = [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**number) for number in range(12)]
    assert all(window / 2 <= paused <= window for paused, window in zip(away.paused_s, windows, strict=True))
    assert windows[-1] == LONGEST_PAUSE_S
    assert len(away.told) == 12
    assert {notice.level for notice in away.told} == {"warning"}
    assert all(notice.text.startswith("It does not answer. Trying again in ") for notice in away.told)
    assert away.told[-1].text.endswith(" min.")


async def test_devices_that_miss_the_same_do_not_come_back_at_once() -> None:
    """Each draws its own pauses."""
    paused = []
    for seed in range(2):
        away = Away(5)
        await patiently(away.ask, unreachable, away.told.append, random.Random(seed), away.rest)
        paused.append(away.paused_s)
    assert all(one != other for one, other in zip(*paused, strict=True))


async def test_what_does_not_pass_is_raised_at_once() -> None:
    """Another coordinator at the link's address is no reason to wait."""
    away = Away(0)

    async def refuse() -> None:
        raise FingerprintError("Another one.")

    with pytest.raises(FingerprintError):
        await patiently(refuse, unreachable, away.told.append, random.Random(1), away.rest)
    assert away.told == []
