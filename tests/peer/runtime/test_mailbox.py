"""A mailbox: what a fork has said is read by its parent, in order, and nobody waits."""

from __future__ import annotations

import multiprocessing as mp

from peer.runtime.mailbox import Mailbox


def test_items_come_from_another_process_in_order() -> None:
    """All that was sent before the process ended can be taken once."""
    mailbox = Mailbox[dict[str, bytes]](2)

    def send() -> None:
        for number in range(2):
            mailbox.put({"number": bytes([number])})

    process = mp.get_context("fork").Process(target=send)
    process.start()
    process.join()
    assert mailbox.take() == [{"number": b"\x00"}, {"number": b"\x01"}]
    assert mailbox.take() == []


def test_a_full_mailbox_takes_nothing_until_it_is_emptied() -> None:
    """The sender is told, and does not wait."""
    mailbox = Mailbox[int](3)
    assert [mailbox.put(number) for number in range(5)] == [True] * 3 + [False] * 2
    assert mailbox.take() == [0, 1, 2]
    assert [mailbox.put(number) for number in range(5, 9)] == [True] * 3 + [False]
    assert mailbox.take() == [5, 6, 7]


def test_items_that_fill_most_of_the_pipe_are_sent_without_a_reader() -> None:
    """As a leader's reports: sixteen of 2 KiB."""
    mailbox = Mailbox[dict[str, bytes]](1)
    reports = {f"{number:060}": bytes(2048) for number in range(16)}
    assert mailbox.put(reports)
    assert mailbox.take() == [reports]
