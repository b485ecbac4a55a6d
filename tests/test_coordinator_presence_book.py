"""What devices say of themselves, written together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from coordinator.presence import PresenceClaim, close_session, online_sessions, open_session
from coordinator.presence_book import PresenceBook
from coordinator.store.engine import Sessions
from coordinator.store.models import Device, Member
from tests.support.stores import Kind, empty_store
from tests.support.waiting import eventually

NOW = 1_800_000_000.0
DEVICES = ("laptop", "desktop", "server")
NEVER_S = 3600.0


@pytest.fixture
def sessions(tmp_path: Path, store_kind: Kind) -> Iterator[Sessions]:
    with empty_store(tmp_path, store_kind) as sessions:
        with sessions.begin() as session:
            ada = Member(name="Ada", created_at=0.0)
            session.add_all(
                Device(id=name, member=ada, number=number, peer_id=name, public_key=b"", role="trainer", created_at=0.0)
                for number, name in enumerate(DEVICES)
            )
        yield sessions


def claim(step: int) -> PresenceClaim:
    return PresenceClaim(step, 12, 3.5, "training", NOW + step)


def steps_of(sessions: Sessions) -> dict[str, int]:
    return {row.device_id: row.step for row in online_sessions(sessions, NOW + 5)}


async def test_all_are_written_in_one_transaction_with_their_last_words(sessions: Sessions) -> None:
    """Who spoke twice is written once; who has left in between stays away."""
    stays = [open_session(sessions, device, "", "", NOW) for device in DEVICES]
    commits: list[Any] = []
    book = PresenceBook(sessions, NEVER_S)
    for step in (1, 2):
        for stay in stays:
            book.note(stay, claim(step))
    close_session(sessions, stays[2], NOW + 1)
    event.listen(sessions.engine, "commit", commits.append)
    await book.close()
    assert len(commits) == 1
    assert steps_of(sessions) == {"laptop": 2, "desktop": 2}


async def test_it_writes_by_itself_again_and_again(sessions: Sessions) -> None:
    """Nobody need ask for it."""
    stay = open_session(sessions, "laptop", "", "", NOW)
    book = PresenceBook(sessions, 0.01)
    for step in (1, 2):
        book.note(stay, claim(step))
        await eventually("the store has the newest step", lambda step=step: steps_of(sessions) == {"laptop": step})
    await book.close()


async def test_a_database_that_is_away_costs_only_what_was_to_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the next words are written when it is back."""
    with empty_store(tmp_path) as sessions:
        with sessions.begin() as session:
            session.add(
                Device(
                    id="laptop",
                    member=Member(name="Ada", created_at=0.0),
                    number=0,
                    peer_id="x",
                    public_key=b"",
                    role="trainer",
                    created_at=0.0,
                )
            )
        stay = open_session(sessions, "laptop", "", "", NOW)
        with sessions.begin() as session:
            session.connection().exec_driver_sql("ALTER TABLE sessions RENAME TO away")
        book = PresenceBook(sessions, 0.01)
        book.note(stay, claim(1))
        await eventually("the failed write is logged", lambda: "Cannot write who is here" in caplog.text)
        with sessions.begin() as session:
            session.connection().exec_driver_sql("ALTER TABLE away RENAME TO sessions")
        book.note(stay, claim(2))
        await eventually("the store has the newest step", lambda: steps_of(sessions) == {"laptop": 2})
        await book.close()
