"""Where workers hear that the keeper is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from auth.errors import RequestError
from peer.agent.worker_requests import KeeperSearch
from peer.reporting.messages import KeeperAt
from tests.support.waiting import eventually

OLD, NEW = "/ip4/127.0.0.1/tcp/1/p2p/QmKeeper", "/ip4/127.0.0.1/tcp/2/p2p/QmKeeper"


class Scene:
    """A coordinator that says where the keeper is, and workers that listen."""

    def __init__(self, *answers: tuple[str, ...] | RequestError) -> None:
        self.answers = list(answers)
        self.told: list[tuple[str, ...]] = []
        self.search = KeeperSearch(self.ask, self.hear)

    def hear(self, keeper: KeeperAt) -> None:
        """What the agent passes on."""
        self.told.append(keeper.addresses)

    async def ask(self) -> Sequence[str]:
        """The coordinator's next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, RequestError):
            raise answer
        return answer


async def test_workers_hear_what_is_new_once() -> None:
    """What was told before, and what no keeper has, is not passed on."""
    scene = Scene()
    scene.search.hear(())
    scene.search.hear(["/unix/tmp/socket/p2p/QmKeeper"])
    assert not scene.search.known.is_set()
    scene.search.hear([OLD])
    assert scene.search.known.is_set()
    scene.search.hear([OLD])
    await eventually("the old keeper is told", lambda: scene.told == [(OLD,)])
    scene.search.hear([NEW])
    await eventually("the new keeper is told", lambda: scene.told == [(OLD,), (NEW,)])


async def test_of_two_quick_changes_the_newer_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the older address takes longer to dial: workers hear of the newer alone."""
    answers = asyncio.Event()

    async def slow_to_the_old(addresses: Sequence[str]) -> tuple[str, ...]:
        if OLD in addresses:
            await answers.wait()
        return tuple(addresses)

    monkeypatch.setattr("peer.agent.worker_requests.best_ways", slow_to_the_old)
    scene = Scene()
    others = asyncio.all_tasks()
    scene.search.hear([OLD])
    await asyncio.sleep(0)  # until it is dialled
    scene.search.hear([NEW])
    telling = asyncio.all_tasks() - others
    answers.set()
    await asyncio.wait(telling)
    assert scene.told == [(NEW,)]


async def test_who_seeks_it_hears_what_the_coordinator_says_now() -> None:
    """The same addresses again, too: another of them may answer by now."""
    scene = Scene((OLD,), (NEW,))
    scene.search.hear([OLD])
    await eventually("the first keeper is told", lambda: len(scene.told) == 1)
    for expected in ([(OLD,)] * 2, [(OLD,), (OLD,), (NEW,)]):
        scene.search.seek()
        await eventually("the next keeper is told", lambda expected=expected: scene.told == expected)


async def test_without_an_answer_the_known_addresses_are_tried_again() -> None:
    """The coordinator is away, or is asked too much from this network."""
    scene = Scene(RequestError("Too often."))
    scene.search.hear([OLD])
    await eventually("the first keeper is told", lambda: len(scene.told) == 1)
    scene.search.seek()
    await eventually("the keeper is told again", lambda: scene.told == [(OLD,)] * 2)
