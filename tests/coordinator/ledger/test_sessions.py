"""Sessions tell who is here, and what each device last said of itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from auth.errors import RequestError
from coordinator.ledger.sessions import ONLINE_S, RECENT_S, close_session, online_sessions, open_session, recent_devices
from coordinator.store.engine import Database
from coordinator.store.models import Device, DeviceSession
from tests.support.crowds import touch
from tests.support.stores import let_others_wait

pytestmark = pytest.mark.usefixtures("members")
NOW = 1_800_000_000.0
PRESENCE: dict[str, Any] = {"step": 7, "own_samples": 12, "samples_per_second": 3.5, "state": "training"}


def test_connected_device_is_online_with_what_it_says(database: Database) -> None:
    """An open session shows its member, device and newest presence."""
    stay = open_session(database, "ada-1", "8 cores", "0.1", NOW)
    touch(database, stay, **PRESENCE, now=NOW + 3)
    [online] = online_sessions(database, NOW + 4)
    assert (online.session_id, online.member, online.device_id, online.role) == (stay, "Ada", "ada-1", "trainer")
    assert (online.step, online.own_samples, online.samples_per_second, online.state) == (7, 12, 3.5, "training")
    assert (online.hardware, online.started_at, online.last_seen_at) == ("8 cores", NOW, NOW + 3)


def test_of_two_sessions_that_begin_at_once_one_stays(database: Database) -> None:
    """At two replicas, a device's second session waits for the first, and ends it."""
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            session.get_one(Device, "ada-1", with_for_update=True)
            session.add(DeviceSession(id="first", device_id="ada-1", started_at=NOW, last_seen_at=NOW))
            second = pool.submit(open_session, database, "ada-1", "", "", NOW)
            let_others_wait(session)
        newest = second.result()
    assert [row.session_id for row in online_sessions(database, NOW)] == [newest]


def test_silent_device_goes_offline(database: Database) -> None:
    """A device that nobody has heard of for a while is not online, though its session is open."""
    open_session(database, "ada-1", "", "", NOW)
    assert online_sessions(database, NOW + ONLINE_S - 1)
    assert not online_sessions(database, NOW + ONLINE_S)


def test_closed_session_is_offline_at_once(database: Database) -> None:
    """A goodbye takes effect immediately, and a straggling presence does not undo it."""
    stay = open_session(database, "ada-1", "", "", NOW)
    close_session(database, stay, NOW + 1)
    touch(database, stay, **PRESENCE, now=NOW + 2)
    assert online_sessions(database, NOW + 2) == []


def test_reconnected_device_is_online_once(database: Database) -> None:
    """The stay that a lost connection left open ends when the device is back; other devices' stays do not."""
    open_session(database, "ada-1", "", "", NOW)
    other = open_session(database, "ada-2", "", "", NOW + 1)
    again = open_session(database, "ada-1", "", "", NOW + 2)
    assert [online.session_id for online in online_sessions(database, NOW + 3)] == [other, again]


def test_devices_of_the_last_minutes_are_counted_once(database: Database) -> None:
    """A device that left in order, one that fell silent and one that came back are devices of the last minutes."""
    close_session(database, open_session(database, "ada-2", "", "", NOW), NOW + 1)
    for at in (NOW + 2, NOW + 3):
        open_session(database, "ada-1", "", "", at)
    assert recent_devices(database, NOW + RECENT_S) == 2
    assert recent_devices(database, NOW + RECENT_S + 1) == 1
    assert recent_devices(database, NOW + RECENT_S + 3) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "flying"),
        ("step", -1),
        ("step", 2**31),
        ("own_samples", 2**40),
        ("samples_per_second", float("nan")),
        ("samples_per_second", float("inf")),
        ("samples_per_second", -1.0),
    ],
)
def test_impossible_presence_is_refused(database: Database, name: str, value: object) -> None:
    """A claim that cannot be true is a RequestError that names it, and changes nothing."""
    stay = open_session(database, "ada-1", "", "", NOW)
    with pytest.raises(RequestError, match=name):
        touch(database, stay, **(PRESENCE | {name: value}), now=NOW + 1)
    assert online_sessions(database, NOW + 1)[0].last_seen_at == NOW


def test_words_of_a_peer_are_cut_and_cleaned(database: Database) -> None:
    """A hardware line can neither fill the database nor break a terminal."""
    open_session(database, "ada-1", "\x1b[31m" + "x" * 500, "9" * 99, NOW)
    hardware = online_sessions(database, NOW)[0].hardware
    assert hardware.startswith("[31mx")
    assert len(hardware) == 200
