"""Averages of the last steps: which are held, and that they come back bit by bit."""

from __future__ import annotations

import pytest
import torch
from hivemind.compression import CompressionBase, CompressionInfo, Float16Compression, NoCompression
from hivemind.proto import runtime_pb2

from peer.protocol import HELD_AVERAGES
from peer.reduction.compression import HALF_BYTES, decode
from peer.swarm.history import Average, AverageHistory, Lack, encode_average

NAMES = [encode_average([torch.full((2,), float(step))]) for step in range(HELD_AVERAGES + 4)]


def held(steps: range, era: int = 0) -> AverageHistory:
    """A history that was given the averages of these steps."""
    history = AverageHistory()
    for step in steps:
        history.keep(era, step, NAMES[step])
    return history


def led_to(average: Average | Lack) -> int | Lack:
    """The step that this average led to, which is what its values say."""
    return average if isinstance(average, Lack) else int(decode(next(average.tensors()))[0])


def test_who_missed_steps_gets_them_one_after_another() -> None:
    """Nothing yet where none was missed, or where the peer is further than its donor."""
    history = held(range(3, 6))
    assert [led_to(history.after(0, step)) for step in (2, 3, 4, 5, 6)] == [3, 4, 5, Lack.NOT_YET, Lack.NOT_YET]


def test_a_gap_is_never_bridged() -> None:
    """Not before the first step that is held, nor across one that the donor did not average, nor in another era."""
    history = held(range(3, 6))
    assert {history.after(0, 1), history.after(1, 4), AverageHistory().after(0, 0)} == {Lack.GONE}
    history.keep(0, 8, NAMES[8])
    assert (history.after(0, 5), led_to(history.after(0, 7))) == (Lack.GONE, 8)
    history.keep(1, 9, NAMES[9])
    assert (history.after(0, 8), led_to(history.after(1, 8))) == (Lack.GONE, 9)


def test_a_donor_that_took_its_state_from_another_peer_lets_nobody_wait_for_its_averages() -> None:
    """It never had the one that led there; a peer that waited for it would wait until the donor's next step."""
    history = held(range(3, 6))
    history.begin(0, 7)
    assert [history.after(0, step) for step in (4, 5, 6, 7)] == [Lack.GONE, Lack.GONE, Lack.GONE, Lack.NOT_YET]
    history.keep(0, 8, NAMES[8])
    assert led_to(history.after(0, 7)) == 8


def test_old_averages_are_forgotten() -> None:
    """As many are held as are worth a download of the state."""
    history = held(range(1, HELD_AVERAGES + 4))
    assert history.after(0, 2) is Lack.GONE
    assert led_to(history.after(0, 3)) == 4


def test_what_is_held_shares_no_memory_with_another_process() -> None:
    """Shared memory is scarce in containers."""
    average = encode_average([torch.ones(3)])
    assert average.encoded.is_shared()
    assert not average.copy().encoded.is_shared()
    assert led_to(average.copy()) == 1


@pytest.mark.parametrize(
    ("came_in", "value_bytes"), [(Float16Compression(), 2), (HALF_BYTES, 0.5 + 4 / 128), (NoCompression(), 4)]
)
def test_an_average_comes_back_bit_by_bit(came_in: CompressionBase, value_bytes: float) -> None:
    """In as few bits as it was averaged in."""
    tensors = [torch.randn(40, 32), torch.randn(256)]
    info = CompressionInfo.from_tensor(tensors[0])
    tensors = [decode(came_in.compress(each, info), HALF_BYTES) for each in tensors]
    average = encode_average(tensors)
    back = [decode(wire, HALF_BYTES) for wire in average.tensors()]
    assert all(torch.equal(mine, tensor) for mine, tensor in zip(back, tensors, strict=True))
    assert [len(wire.buffer) for wire in average.tensors()] == [tensor.numel() * value_bytes for tensor in tensors]
    assert isinstance(next(average.tensors()), runtime_pb2.Tensor)
