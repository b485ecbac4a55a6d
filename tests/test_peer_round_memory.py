"""What outlives a round of averaging; the rounds are real ones, of two peers in processes of their own."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from auth.credentials import Credentials
from benchmarks.averaging import RUN, hear, swarm_plans, tell
from benchmarks.averaging_memory import Peer, run_round, started
from peer.dht import start_dht
from peer.place import Place
from peer.round_memory import forget_frames, give_back
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon


class Gradients:
    """Something large that a round holds."""


def failed_round() -> tuple[weakref.ref[Gradients], BaseException]:
    """A round that fails while it holds gradients; returns them, and the exception, caused by another."""
    gradients = Gradients()
    try:
        try:
            raise ConnectionError
        except ConnectionError as error:
            raise TimeoutError from error
    except TimeoutError as error:
        return weakref.ref(gradients), error


def test_a_forgotten_failure_holds_no_gradients() -> None:
    """Who keeps the exception keeps nothing of the frames that it and its cause passed."""
    gradients, error = failed_round()
    assert gradients() is not None
    forget_frames(error)
    give_back()
    assert gradients() is None
    assert isinstance(error.__cause__, ConnectionError)


def test_objects_in_a_circle_are_freed() -> None:
    """What only holds itself is gone at once, not when Python would look for it."""
    gc.disable()
    try:
        gradients = Gradients()
        gradients.round = {"holds": gradients}  # type: ignore[attr-defined]
        held = weakref.ref(gradients)
        del gradients
        assert held() is not None
        give_back()
        assert held() is None
    finally:
        gc.enable()


def held_rounds(peer: Peer) -> int:
    """The number of rounds that the peer has in memory."""
    tell(peer, "rounds")
    return int(hear(peer))


def test_no_round_outlives_its_end() -> None:
    """Neither rounds that succeeded nor those that failed stay in the averager's memory until the next one."""
    with started() as (peer, failing):
        assert False in [run_round(peer, failing) for _ in range(3)]
        wait_until("the peer holds no round", lambda: held_rounds(peer) == 0, poll_s=0.1)


async def frozen_objects(dht: object, node: object) -> int:
    """How many objects no search in the DHT's process touches."""
    del dht, node
    return gc.get_freeze_count()


def test_the_dhts_process_searches_nothing_that_it_was_forked_with(tmp_path: Path) -> None:
    """So that none of the pages which it shares with the worker is ever copied for that."""
    [plan] = swarm_plans(tmp_path, values=1, peers=1)
    place = Place(host_maddrs=("/ip4/127.0.0.1/tcp/0",))
    dht = start_dht(RUN, Credentials(Path(plan.credentials_dir)), (), place)
    try:
        assert dht.run_coroutine(frozen_objects) > 0
    finally:
        dht.shutdown()
