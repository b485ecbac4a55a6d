"""Averages of the last steps: which are held, and that they come back bit by bit."""

from __future__ import annotations

import math

import pytest
import torch
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionInfo
from hivemind.proto import runtime_pb2

from peer.averaging.gradient_codes import Factors
from peer.averaging.power_sgd import product
from peer.averaging.shares import part_size
from peer.config.training import Compression
from peer.protocol import HELD_AVERAGES
from peer.reduction.compression import HALF_BYTES, average_code_of, compression_of, decode
from peer.reduction.sizes import BLOCK, SCALE_BYTES
from peer.swarm.average_history import Average, AverageHistory, Lack, encode_average, whole_average

NAMES = [encode_average([torch.full((2,), float(step))], {}, "float16") for step in range(HELD_AVERAGES + 4)]


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
    average = encode_average([torch.ones(3)], {}, "float16")
    assert average.encoded.is_shared()
    assert not average.copy().encoded.is_shared()
    assert led_to(average.copy()) == 1


@pytest.mark.parametrize(
    ("compression", "value_bytes"),
    [("float16", 2), ("8bit-blockwise", 1 + 4 / 128), ("topk-2bit", 0.5 + 4 / 128), ("none", 4)],
)
@pytest.mark.parametrize("fits", [True, False])
def test_an_average_comes_back_bit_by_bit(compression: Compression, value_bytes: float, fits: bool) -> None:
    """In as few bits as it was averaged in; a peer that was alone has averages that fit into no code."""
    tensors = [torch.randn(40, 32), torch.randn(256)]
    code, info = average_code_of(compression), CompressionInfo.from_tensor(tensors[0])
    if fits:
        tensors = [decode(code.compress(each, info), HALF_BYTES) for each in tensors]
    average = encode_average(tensors, {}, compression)
    back = [decode(wire, HALF_BYTES) for wire in average.tensors()]
    assert all(torch.equal(mine, tensor) for mine, tensor in zip(back, tensors, strict=True))
    sizes = [len(wire.buffer) for wire in average.tensors()]
    assert sizes == [tensor.numel() * (value_bytes if fits else 4) for tensor in tensors]
    assert isinstance(next(average.tensors()), runtime_pb2.Tensor)


@pytest.mark.parametrize("wire_format", ["float16", "8bit-blockwise", "topk-2bit"])
def test_an_average_that_came_in_parts_travels_whole_in_the_same_code(wire_format: Compression) -> None:
    """The parts of a round are of whole blocks, or a home line would take four bytes for each of its values."""
    tensors = [torch.randn(400, 301), torch.randn(1001)]
    size_bytes = part_size(sum(map(torch.Tensor.numel, tensors)), wire_format, 3)
    parts = TensorPartContainer(tensors, [1, 2, 1], compression_of(wire_format), size_bytes)
    for part, info in (each for own in parts._input_parts_by_peer for each in own):
        part.copy_(decode(average_code_of(wire_format).compress(part, info), HALF_BYTES))
    assert parts.num_parts_by_tensor[0] > 3
    average = encode_average(tensors, {}, wire_format)
    assert all(torch.equal(*pair) for pair in zip(received(average), tensors, strict=True))
    blocks = [-(-tensor.numel() // BLOCK) for tensor in tensors]
    values = [tensor.numel() * {"float16": 2, "8bit-blockwise": 1, "topk-2bit": 0.5}[wire_format] for tensor in tensors]
    scales = [0 if wire_format == "float16" else SCALE_BYTES * number for number in blocks]
    expected = [math.ceil(own) + scale for own, scale in zip(values, scales, strict=True)]
    assert [len(wire.buffer) for wire in average.tensors()] == expected


SHAPES = [torch.Size((40, 32)), torch.Size((256,)), torch.Size((64, 8, 8))]


def factored(rank: int = 2) -> tuple[list[torch.Tensor], dict[int, Factors]]:
    """An average of these shapes, and the factors of its matrices, of which the right ones came in 16 bits."""
    factors = {
        index: (torch.randn(rank, shape[0]), torch.randn(rank, shape[1:].numel()).half().float())
        for index, shape in enumerate(SHAPES)
        if len(shape) > 1
    }
    tensors = [torch.randn(shape).half().float() for shape in SHAPES]
    for index, made_of in factors.items():
        tensors[index] = product(*made_of).view(SHAPES[index])
    return tensors, factors


def received(average: Average) -> list[torch.Tensor]:
    """Return the tensors that a peer that fell behind takes."""
    return [decode(wire, HALF_BYTES) for wire in average.tensors()]


def test_of_averaged_factors_only_these_travel_and_make_the_same_bits() -> None:
    """A model of millions of values would take a home line a minute for each step that it missed."""
    tensors, factors = factored()
    average = encode_average(tensors, factors, "float16")
    values = [4 * 2 * 40, 2 * 2 * 32, 2 * 256, 4 * 2 * 64, 2 * 2 * 64]
    assert [len(wire.buffer) for wire in average.tensors()] == values
    back = whole_average(received(average), SHAPES)
    assert back is not None
    assert all(torch.equal(mine, tensor) for mine, tensor in zip(back, tensors, strict=True))


def test_factors_of_another_average_do_not_travel() -> None:
    """A keeper that followed others has those of its own last round."""
    tensors, _ = factored()
    average = encode_average(tensors, factored()[1], "float16")
    assert [decode(wire, HALF_BYTES).shape for wire in average.tensors()] == SHAPES


@pytest.mark.parametrize("fault", ["fewer", "more", "rank", "columns", "no matrix", "infinite", "whole of other shape"])
def test_what_makes_no_average_is_not_taken(fault: str) -> None:
    """Nor what would cost a peer more work or memory than its own model."""
    tensors, factors = factored()
    parts = [*factors[0], tensors[1], *factors[2]]
    match fault:
        case "fewer":
            parts.pop()
        case "more":
            parts.append(torch.ones(1))
        case "rank":
            parts[:2] = torch.randn(30, 40), torch.randn(30, 32)
        case "columns":
            parts[1] = torch.randn(2, 33)
        case "no matrix":
            parts[0] = torch.randn(80)
        case "infinite":
            parts[0], parts[1] = torch.full((2, 40), 1e30), torch.full((2, 32), 1e30)
        case _:
            parts[:2] = [torch.randn(32, 40)]
    assert whole_average([*factors[0], tensors[1], *factors[2]], SHAPES) is not None
    assert whole_average(parts, SHAPES) is None
