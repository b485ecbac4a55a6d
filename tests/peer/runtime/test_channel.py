"""Messages between a process and its fork: whole, in order, and nobody waits or ends for a bad one."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.connection import Connection
from typing import Any

import pytest

from peer.runtime.channel import Channel
from tests.support.waiting import wait_until


class Unsendable:
    """Something that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise OSError("too many open files")


class Unreadable:
    """Something that cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def instead_of(message: object) -> str | None:
    """Another message, if it stands for one."""
    return "instead" if isinstance(message, Unsendable) else None


def channels() -> tuple[Channel, Channel, Connection]:
    """Both ends of a pipe, in one process, and the connection of the second."""
    first, second = mp.Pipe()
    return Channel(first, instead_of), Channel(second, instead_of), second


def test_messages_arrive_whole_and_in_order() -> None:
    """Until the other process ends."""
    sender, receiver, connection = channels()
    for number in range(3):
        sender.send({"number": number})
    sender.flush()
    assert [receiver.receive() for _ in range(3)] == [{"number": number} for number in range(3)]
    receiver.send("an answer")
    receiver.flush()
    assert sender.receive() == "an answer"
    connection.close()
    with pytest.raises((EOFError, OSError)):
        sender.receive()
    for _ in range(2):
        sender.send("to nobody")
        sender.flush()


def test_nobody_waits_for_a_process_that_reads_nothing() -> None:
    """What does not fit into the pipe waits, and shows as a backlog."""
    sender, receiver, _ = channels()
    for number in range(100):
        sender.send((number, bytes(2**16)))
    assert sender.has_backlog
    assert [receiver.receive()[0] for _ in range(100)] == list(range(100))
    wait_until("all has been sent", lambda: not sender.has_backlog)


def test_a_bad_message_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A process may lack a file descriptor for a tensor, at either end."""
    sender, receiver, _ = channels()
    for message in (Unsendable(), lambda: None, Unreadable(), "the last"):
        sender.send(message)
    assert [receiver.receive() for _ in range(2)] == ["instead", "the last"]
    assert caplog.text.count("could not be sent") == 2
    assert caplog.text.count("could not be read") == 1
