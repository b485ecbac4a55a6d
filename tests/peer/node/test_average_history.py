"""Averages of the last steps: which are held, and for whom."""

from __future__ import annotations

import pytest
import torch
from hivemind.compression import serialize_torch_tensor

from peer.node.average_history import HELD_BYTES, Average, AverageHistory, Lack, averages_held
from peer.protocol import HELD_AVERAGES
from peer.reduction.compression import decode


def average_of(step: int) -> Average:
    """An average that says to which step it led, in shared memory as after a pipe."""
    content = serialize_torch_tensor(torch.full((2,), float(step))).SerializeToString()
    encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    encoded.share_memory_()  # type: ignore[no-untyped-call]
    return Average(encoded, [len(content)], (f"voter {step}",))


def held(steps: range, era: int = 0, most_bytes: int = 0) -> AverageHistory:
    """A history that was given the averages of these steps."""
    history = AverageHistory(most_bytes)
    for step in steps:
        history.keep(era, step, average_of(step))
    return history


def led_to(average: Average | Lack) -> int | Lack:
    """The step that this average led to, by its values and its voters."""
    if isinstance(average, Lack):
        return average
    step = int(decode(next(average.tensors()))[0])
    assert average.voters == (f"voter {step}",)
    return step


def test_a_peer_that_missed_steps_gets_them_one_after_another() -> None:
    """Nothing yet where none was missed, or where the peer is further than its donor."""
    history = held(range(3, 6))
    assert [led_to(history.after(0, step)) for step in (2, 3, 4, 5, 6)] == [3, 4, 5, Lack.NOT_YET, Lack.NOT_YET]


def test_a_gap_is_never_bridged() -> None:
    """Not before the first step that is held, nor across one that the donor did not average, nor in another era."""
    history = held(range(3, 6))
    assert {history.after(0, 1), history.after(1, 4), AverageHistory(0).after(0, 0)} == {Lack.GONE}
    history.keep(0, 8, average_of(8))
    assert (history.after(0, 5), led_to(history.after(0, 7))) == (Lack.GONE, 8)
    history.keep(1, 9, average_of(9))
    assert (history.after(0, 8), led_to(history.after(1, 8))) == (Lack.GONE, 9)


def test_a_donor_that_took_its_state_from_another_peer_lets_nobody_wait_for_its_averages() -> None:
    """It never had the one that led there; a peer that waited for it would wait until the donor's next step."""
    history = held(range(3, 6))
    history.begin(0, 7)
    assert [history.after(0, step) for step in (4, 5, 6, 7)] == [Lack.GONE, Lack.GONE, Lack.GONE, Lack.NOT_YET]
    history.keep(0, 8, average_of(8))
    assert led_to(history.after(0, 7)) == 8


def test_old_averages_are_forgotten() -> None:
    """A few are always held; small ones for as long as they are worth a download of the state."""
    history = held(range(1, HELD_AVERAGES + 4))
    assert history.after(0, 2) is Lack.GONE
    assert led_to(history.after(0, 3)) == 4
    larger = held(range(1, 101), most_bytes=50 * average_of(1).size)
    assert larger.after(0, 49) is Lack.GONE
    assert led_to(larger.after(0, 50)) == 51
    larger.keep(0, 102, average_of(102))
    assert (larger.after(0, 99), led_to(larger.after(0, 101))) == (Lack.GONE, 102)
    for step in range(103, 153):
        larger.keep(0, step, average_of(step))
    assert led_to(larger.after(0, 102)) == 103


def test_a_held_average_shares_no_memory_with_another_process() -> None:
    """Shared memory is scarce in containers."""
    average = average_of(1)
    assert average.encoded.is_shared()
    assert not average.copy().encoded.is_shared()
    assert led_to(average.copy()) == 1


@pytest.mark.parametrize(("average_bytes", "held"), [(4_000, HELD_AVERAGES), (2_000, HELD_AVERAGES), (500, 24)])
def test_a_joiner_knows_how_many_averages_are_held(average_bytes: int, held: int) -> None:
    """At least those of six steps; of small ones as many as the history keeps."""
    assert averages_held(average_bytes, 1_000) == held
    history = AverageHistory(HELD_BYTES * 1_000)
    for step in range(1, 41):
        history.keep(0, step, Average(torch.zeros(average_bytes, dtype=torch.uint8), (average_bytes,), ()))
    assert not isinstance(history.after(0, 40 - held), Lack)
    assert isinstance(history.after(0, 39 - held), Lack)
