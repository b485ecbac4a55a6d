"""The table of caps that two processes share."""

from __future__ import annotations

import math
import multiprocessing as mp

from peer.reduction.shared_caps import MOST_DEVICES, CapsOfRound, WeightCaps


def test_nobody_is_capped_before_anybody_says_so() -> None:
    """A peer that has not looked yet knows nothing of others."""
    assert WeightCaps().read() == CapsOfRound({}, math.inf)


def test_another_process_reads_what_was_said_last() -> None:
    """Of devices that are not named the newcomers' cap holds."""
    caps, context = WeightCaps(), mp.get_context("fork")
    caps.publish({"a": 3.0, "b": 4.0}, 1.0)
    answers = context.SimpleQueue()

    def read() -> None:
        known = caps.read()
        answers.put((known.of("a"), known.of("b"), known.of("c")))

    caps.publish({"b": 5.0}, 2.0)
    process = context.Process(target=read)
    process.start()
    assert answers.get() == (2.0, 5.0, 2.0)
    process.join()


def test_more_devices_than_there_is_room_for() -> None:
    """Those beyond are newcomers."""
    caps = WeightCaps()
    caps.publish({str(index): 7.0 for index in range(MOST_DEVICES + 1)}, 1.0)
    known = caps.read()
    assert (known.of("0"), known.of(str(MOST_DEVICES))) == (7.0, 1.0)
